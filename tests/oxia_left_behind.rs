//! Gateways on a real Oxia server that stand still until the log they need next has been trimmed: they
//! start over by themselves, as the same process.

mod support;

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leaseway::backend::oxia::cluster::ClusterShard;
use leaseway::backend::oxia::names::Names;
use leaseway::backend::oxia::shard::Shard;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::cluster_client::ClusterClient;
use support::client::{Client, EVERYTHING, Watching, eventually, within};
use support::oxia::Oxia;
use support::{PATIENCE, Server, leaseway};
use tokio::task::JoinSet;

const LEFT_BEHIND: &str = "left behind by the log; starting over";

/// Flags of a gateway that makes checkpoints often.
fn flags(oxia: &Oxia, keyspace: &str) -> [String; 2] {
    let backend = format!("--backend=oxia://{}/default?keyspace={keyspace}", oxia.address());
    [backend, "--checkpoint-log-bytes=100000".to_owned()]
}

fn gateway(oxia: &Oxia, keyspace: &str) -> Server {
    Server::start(&flags(oxia, keyspace).each_ref().map(String::as_str))
}

async fn shard(oxia: &Oxia, keyspace: &str) -> ClusterShard {
    ClusterShard::new(Arc::new(oxia.client(keyspace).await), &Names::new(keyspace))
}

/// Writes through `client` until all that the log holds now has been trimmed: gateways that do not move are
/// forgotten after ten seconds, and then not waited for.
async fn write_until_trimmed(client: &Client, shard: &ClusterShard) {
    let tip = shard.proven_tip().await.expect("a tip").position;
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        let mut puts = JoinSet::new();
        for key in 0..20 {
            let client = client.clone();
            puts.spawn(async move { client.put(format!("k{key}"), vec![b'v'; 2000], 0).await });
        }
        for put in puts.join_all().await {
            put.expect("a put");
        }
        let first = shard.read(1, 1).await.expect("a read").first().map(|record| record.position);
        if first > Some(tip) {
            return;
        }
        assert!(Instant::now() < deadline, "the log still begins at {first:?}, before {tip}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Hash, compacted revision and all rows at a revision: what must be the same everywhere.
async fn picture(client: &Client, revision: i64) -> (u32, i64, Vec<(Vec<u8>, Vec<u8>, i64)>) {
    let rows = client.everything(revision).await.expect("rows").kvs;
    let hash = client.hash_kv(revision).await.expect("a hash");
    let rows = rows.into_iter().map(|row| (row.key.to_vec(), row.value.to_vec(), row.mod_revision));
    (hash.hash, hash.compact_revision, rows.collect())
}

async fn members(server: &Server) -> Vec<u64> {
    let url = format!("http://127.0.0.1:{}", server.port);
    let mut cluster = ClusterClient::connect(url).await.expect("connects");
    let list = cluster.member_list(pb::MemberListRequest::default()).await.expect("a list");
    let mut ids: Vec<u64> = list.into_inner().members.iter().map(|member| member.id).collect();
    ids.sort_unstable();
    ids
}

/// Revisions of events until the stream ends, which it must.
async fn rest(watching: &mut Watching) -> Vec<i64> {
    let mut revisions = Vec::new();
    while let Ok(Some(answer)) = within(watching.next()).await {
        assert!(!answer.canceled, "{answer:?}");
        revisions.extend(
            answer.events.iter().map(|event| event.kv.as_ref().expect("a key").mod_revision),
        );
    }
    revisions
}

/// One whose starts a service manager follows, and the manager's socket.
fn supervised(oxia: &Oxia, keyspace: &str, dir: &std::path::Path) -> (Server, UnixDatagram) {
    let path = dir.join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let program = move || {
        let mut command = leaseway();
        command.env("NOTIFY_SOCKET", &path);
        command
    };
    let flags = flags(oxia, keyspace);
    let server = Server::start_through(Box::new(program), &flags.each_ref().map(String::as_str));
    (server, socket)
}

fn told(socket: &UnixDatagram) -> String {
    let mut message = [0; 128];
    let length = socket.recv(&mut message).expect("a datagram in time");
    String::from_utf8_lossy(&message[..length]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_left_behind_serves_again_as_the_same_process() {
    let Some(oxia) = Oxia::start() else { return };
    let dir = tempfile::tempdir().expect("temporary directory");
    let one = gateway(&oxia, "b");
    let (mut two, manager) = supervised(&oxia, "b", dir.path());
    let shard = shard(&oxia, "b").await;
    let client = Client::connect(one.port).await;
    let second = Client::connect(two.port).await;
    client.grant(7, 120).await.expect("a lease");
    client.put("on 7", "v", 7).await.expect("a put");
    assert_eq!(told(&manager), "READY=1");
    let both = members(&one).await;
    assert_eq!(both.len(), 2);

    // Round after round, so that the second life is left behind as well.
    let mut next = 1;
    for round in 1..=2_u64 {
        client.put("round", round.to_string(), 0).await.expect("a put");
        let mut watching = second.watch_everything(next).await.expect("a watch");
        let seen = watching.collect_until(client.revision().await).await;
        next = seen.keys().next_back().expect("events") + 1;
        two.signal("STOP");
        write_until_trimmed(&client, &shard).await;
        two.signal("CONT");
        // What was connected is cut off, after nothing but what comes next.
        let more = rest(&mut watching).await;
        assert!(more.iter().copied().eq(next..next + more.len() as i64), "{more:?} from {next}");
        next += more.len() as i64;

        // A call waits until it can be answered, and the answer is of now.
        let revision = client.revision().await;
        assert_eq!(second.revision().await, revision);
        assert_eq!(two.log().matches(LEFT_BEHIND).count() as u64, round, "{}", two.log());
        assert_eq!(picture(&second, revision).await, picture(&client, revision).await);
        let written = second.put("through two", round.to_string(), 0).await.expect("a put");
        assert_eq!(written, revision + 1);
        assert_eq!(
            client.get("through two").await.expect("read").expect("there").mod_revision,
            written
        );
        assert_eq!(second.keep_alive(7).await.expect("renewed"), 120);

        // Without a gap, without a repetition.
        let mut resumed = second.watch_everything(next).await.expect("a watch");
        let seen = resumed.collect_until(written).await;
        assert!(seen.keys().copied().eq(next..=written), "{:?} from {next}", seen.keys());
        next = written + 1;
        let metrics = two.http("GET", "/metrics", &[]).body;
        assert!(metrics.contains(&format!("\nleaseway_starts_over_total {round}\n")), "{metrics}");
        assert_eq!(two.http("GET", "/readyz", &[]).status, 200);
        assert!(told(&manager).starts_with("STATUS=left behind"));
        assert!(told(&manager).starts_with("STATUS=serving again"));
    }

    // Who would resume before the compaction is told so, as anywhere else.
    let compacted = client.revision().await - 5;
    client.compact(compacted, false).await.expect("compacted");
    second.revision().await;
    let mut late = second.watch_everything(2).await.expect("a watch");
    let refused = within(late.next()).await.expect("an answer").expect("not ended");
    assert!(refused.canceled);
    assert_eq!(refused.compact_revision, compacted);

    // It goes by the same name, and those that it had before go away.
    eventually(PATIENCE, "the same members", || members(&one), |now| *now == both).await;
    two.stop();
    assert_eq!(told(&manager), "STOPPING=1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_starts_over_is_alive_not_ready_and_can_be_stopped() {
    let Some(mut oxia) = Oxia::start() else { return };
    let one = gateway(&oxia, "w");
    let mut waiting = [gateway(&oxia, "w"), gateway(&oxia, "w")];
    let shard = shard(&oxia, "w").await;
    let client = Client::connect(one.port).await;
    client.put("k", "v", 0).await.expect("a put");
    let mut clients = Vec::new();
    for server in &waiting {
        let client = Client::connect(server.port).await;
        // Held open, it makes the end of the first life take a moment.
        let create = pb::WatchCreateRequest { key: EVERYTHING.into(), ..Default::default() };
        let watching = client.watch_with(create).await.expect("a watch");
        clients.push((client, watching));
    }
    for server in &waiting {
        server.signal("STOP");
    }
    write_until_trimmed(&client, &shard).await;
    for server in &waiting {
        server.signal("CONT");
    }
    for server in &mut waiting {
        server.wait_for_log(LEFT_BEHIND);
    }
    oxia.kill();
    for (_, watching) in &mut clients {
        rest(watching).await;
    }
    // Connections wait while nobody accepts.
    for server in &waiting {
        let status = |path: &str| server.http("GET", path, &[]).status;
        assert_eq!(status("/livez"), 200);
        assert_eq!(status("/readyz"), 503);
        let metrics = server.http("GET", "/metrics", &[]).body;
        assert!(metrics.contains("\nleaseway_starts_over_total 1\n"), "{metrics}");
    }
    let [back, ended] = &mut waiting;
    ended.signal("TERM");
    let (code, took) = ended.wait();
    assert_eq!(code, Some(0), "{}", ended.log());
    assert!(took < Duration::from_secs(5), "{took:?}");

    let (second, _) = &clients[0];
    let waits = tokio::spawn({
        let second = second.clone();
        async move { second.put("k", "again", 0).await }
    });
    oxia.restart();
    let written = waits.await.expect("no panic").expect("a put");
    assert_eq!(picture(second, written).await, picture(&client, written).await);
    eventually(
        PATIENCE,
        "readiness",
        async || back.http("GET", "/readyz", &[]).status,
        |s| *s == 200,
    )
    .await;
    back.stop();
}

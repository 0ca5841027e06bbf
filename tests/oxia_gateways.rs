//! Gateways on a real Oxia server: what is done through one is there through every other, and none of
//! them is needed.

mod support;

use std::time::{Duration, Instant};

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::cluster_client::ClusterClient;
use support::client::{Client, eventually, within};
use support::oxia::Oxia;
use support::{PATIENCE, Server};
use tokio::task::JoinSet;

const SECOND: Duration = Duration::from_secs(1);

/// Starts a gateway of a keyspace, and waits until it serves.
fn gateway(oxia: &Oxia, keyspace: &str) -> Server {
    let backend = format!("--backend=oxia://{}/default?keyspace={keyspace}", oxia.address());
    Server::start(&[&backend])
}

async fn hash(client: &Client, revision: i64) -> (u32, i64) {
    // A hash is of what the gateway has; a read brings it up to what everybody has.
    client.get("any").await.expect("an answer");
    let request = pb::HashKvRequest { revision };
    let hash = client.maintenance.clone().hash_kv(request).await.expect("a hash").into_inner();
    (hash.hash, hash.compact_revision)
}

async fn members(server: &Server) -> Vec<u64> {
    let url = format!("http://127.0.0.1:{}", server.port);
    let mut cluster = ClusterClient::connect(url).await.expect("connects");
    let list = cluster.member_list(pb::MemberListRequest::default()).await.expect("a list");
    list.into_inner().members.iter().map(|member| member.id).collect()
}

async fn value(client: &Client, key: &str) -> Option<String> {
    let row = client.get(key).await.expect("an answer")?;
    Some(String::from_utf8(row.value.to_vec()).expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_reads_and_watches_through_any_gateway() {
    let Some(oxia) = Oxia::start() else { return };
    let (one, two) = (gateway(&oxia, "a"), gateway(&oxia, "a"));
    let (first, second) = (Client::connect(one.port).await, Client::connect(two.port).await);
    let mut watching = second.watch_everything(1).await.expect("a watch");
    for round in 0..50_i64 {
        let (writer, reader) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let revision = writer.put("k", round.to_string(), 0).await.expect("a put");
        assert_eq!(revision, round + 2);
        assert_eq!(value(reader, "k").await, Some(round.to_string()), "read through the other");
    }
    let mut seen = Vec::new();
    while seen.len() < 50 {
        let answer = within(watching.next()).await.expect("open").expect("not ended");
        seen.extend(
            answer.events.iter().map(|event| event.kv.as_ref().expect("a key").mod_revision),
        );
    }
    assert_eq!(seen, (2..52).collect::<Vec<i64>>(), "without gap or repetition");
    assert_eq!(hash(&first, 0).await, hash(&second, 0).await);
    let both = members(&one).await;
    assert_eq!(both.len(), 2);
    assert_eq!(members(&two).await, both);
    // Each of its 25 puts was an append of its own, nobody else was there to share it.
    let metrics = one.http("GET", "/metrics", &[]).body;
    let appends = metrics.lines().find_map(|line| {
        line.strip_prefix("leaseway_oxia_append_duration_seconds_count ")?.parse::<u64>().ok()
    });
    assert_eq!(appends, Some(25), "{metrics}");
    assert!(metrics.contains("\nleaseway_oxia_barrier_duration_seconds_bucket"), "{metrics}");

    // The largest request of the usual settings, and many large ones at once.
    let large = "x".repeat(1_572_864 - 100);
    first.put("large", large.clone(), 0).await.expect("a put");
    assert_eq!(value(&second, "large").await, Some(large.clone()));
    let puts: Vec<_> = (0..8).map(|n| (n, second.clone(), large.clone())).collect();
    let mut putting: JoinSet<_> = puts
        .into_iter()
        .map(|(n, client, large)| async move { client.put(format!("large/{n}"), large, 0).await })
        .collect();
    while let Some(put) = putting.join_next().await {
        put.expect("a writer").expect("a put");
    }
    assert_eq!(hash(&first, 0).await, hash(&second, 0).await);

    // Another keyspace in the same cluster has nothing of this.
    let other = gateway(&oxia, "b");
    let client = Client::connect(other.port).await;
    assert_eq!(client.put("k", "b", 0).await.expect("a put"), 2);
    assert_eq!(value(&first, "k").await.as_deref(), Some("49"));
    assert_eq!(members(&other).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_everybodys() {
    let Some(oxia) = Oxia::start() else { return };
    let servers = [gateway(&oxia, "l"), gateway(&oxia, "l"), gateway(&oxia, "l")];
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(Client::connect(server.port).await);
    }
    let [a, b, c] = &clients[..] else { panic!("three") };
    // 400 s is longer than any session of the server: the gateways keep its time.
    for (id, ttl) in [(7, 3), (8, 60), (9, 400)] {
        a.grant(id, ttl).await.expect("a lease");
        b.put(format!("on {id}"), "v", id).await.expect("a put");
        assert_eq!(c.keep_alive(id).await.expect("an answer"), ttl);
        let told = b.time_to_live(id, true).await.expect("an answer");
        assert_eq!((told.granted_ttl, told.keys.len()), (ttl, 1));
    }
    assert!(a.grant(8, 60).await.is_err(), "the id is taken");
    let mut listed = c.leases().await.expect("leases");
    listed.sort_unstable();
    assert_eq!(listed, [7, 8, 9]);

    // Renewed now through this, now through that gateway, it outlives its TTL; then it ends.
    let mut renewed = Instant::now();
    for round in 0..6 {
        let client = &clients[round % 3];
        tokio::time::sleep(SECOND).await;
        assert_eq!(client.keep_alive(7).await.expect("an answer"), 3, "round {round}");
        renewed = Instant::now();
    }
    let ask = || a.get("on 7");
    let absent = |row: &Result<_, _>| matches!(row, Ok(None));
    eventually(PATIENCE, "the end of lease 7", ask, absent).await.expect("an answer");
    assert!(renewed.elapsed() >= 3 * SECOND - SECOND / 10, "early: {:?}", renewed.elapsed());
    assert_eq!(b.keep_alive(7).await.expect("an answer"), 0);

    for id in [8, 9] {
        b.revoke(id).await.expect("revoked");
        assert_eq!(a.keep_alive(id).await.expect("an answer"), 0, "revoked elsewhere");
        assert_eq!(value(c, &format!("on {id}")).await, None);
    }
    assert!(c.leases().await.expect("leases").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_renewals_on_one_stream_are_answered_in_order() {
    let Some(oxia) = Oxia::start() else { return };
    let server = gateway(&oxia, "r");
    let client = Client::connect(server.port).await;
    const LEASES: i64 = 300;
    let mut granting = JoinSet::new();
    for id in 1..=LEASES {
        let client = client.clone();
        granting.spawn(async move { client.grant(id, 30).await.expect("a lease") });
    }
    granting.join_all().await;
    let requests = (1..=LEASES).map(|id| pb::LeaseKeepAliveRequest { id });
    let answers = client.lease.clone().lease_keep_alive(tokio_stream::iter(requests)).await;
    let mut answers = answers.expect("a stream").into_inner();
    for id in 1..=LEASES {
        let answer = answers.message().await.expect("an answer").expect("not ended");
        assert_eq!((answer.id, answer.ttl), (id, 30), "in the order of the requests");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_loses_nothing_that_was_acknowledged() {
    let Some(oxia) = Oxia::start() else { return };
    let (mut one, two) = (gateway(&oxia, "k"), gateway(&oxia, "k"));
    let (first, second) = (Client::connect(one.port).await, Client::connect(two.port).await);
    first.grant(5, 30).await.expect("a lease");
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let client = first.clone();
        writers.spawn(async move {
            let mut acknowledged = Vec::new();
            for number in 0..10_000 {
                let key = format!("{writer}/{number}");
                match client.put(key.clone(), "v", 5).await {
                    Ok(_) => acknowledged.push(key),
                    Err(_) => return acknowledged,
                }
            }
            acknowledged
        });
    }
    let some = || second.everything(0);
    let enough = |all: &Result<pb::RangeResponse, _>| all.as_ref().is_ok_and(|all| all.count > 200);
    eventually(PATIENCE, "some writes", some, enough).await.expect("an answer");
    one.kill();
    let mut acknowledged = Vec::new();
    while let Some(done) = writers.join_next().await {
        acknowledged.extend(done.expect("a writer"));
    }
    assert!(acknowledged.len() > 200);
    assert_eq!(
        second.keep_alive(5).await.expect("an answer"),
        30,
        "the lease is as good as before"
    );
    let held = second.time_to_live(5, true).await.expect("an answer").keys;
    for key in &acknowledged {
        assert!(held.iter().any(|kept| kept[..] == *key.as_bytes()), "{key} is lost");
    }
    one.restart();
    let again = Client::connect(one.port).await;
    assert_eq!(hash(&again, 0).await, hash(&second, 0).await);
    again.put("after", "v", 0).await.expect("a put");
    assert_eq!(value(&second, "after").await.as_deref(), Some("v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlive_a_time_without_gateways() {
    let Some(oxia) = Oxia::start() else { return };
    let (mut one, mut two) = (gateway(&oxia, "g"), gateway(&oxia, "g"));
    let first = Client::connect(one.port).await;
    first.grant(3, 2).await.expect("a lease");
    first.put("k", "v", 3).await.expect("a put");
    one.kill();
    two.kill();
    // Longer than the lease: its session ends while nobody could renew it.
    let marker = format!("leaseway/{}/lease", "g");
    let client = oxia.client("g").await;
    let range =
        || leaseway::backend::oxia::client::KeyRange::children_of(&marker).expect("a range");
    let ask = || async { client.list(range()).expect("a leader").all(10).await };
    let none = |found: &Result<Vec<String>, _>| found.as_ref().is_ok_and(Vec::is_empty);
    eventually(PATIENCE, "the end of the session", ask, none).await.expect("an answer");

    one.restart();
    two.restart();
    let first = Client::connect(one.port).await;
    let second = Client::connect(two.port).await;
    assert_eq!(second.keep_alive(3).await.expect("an answer"), 2, "it has its time again");
    assert_eq!(value(&first, "k").await.as_deref(), Some("v"));
    let ask = || first.get("k");
    let absent = |row: &Result<_, _>| matches!(row, Ok(None));
    eventually(PATIENCE, "the end of the lease", ask, absent).await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_oxia_only_serializable_reads_go_on() {
    let Some(mut oxia) = Oxia::start() else { return };
    let mut server = gateway(&oxia, "w");
    let client = Client::connect(server.port).await;
    client.put("k", "v", 0).await.expect("a put");
    oxia.kill();
    let stale = pb::RangeRequest { key: "k".into(), serializable: true, ..Default::default() };
    assert_eq!(client.range(stale).await.expect("an answer").kvs.len(), 1);
    let (put, get, renewal) =
        tokio::join!(client.put("k", "w", 0), client.get("k"), client.grant(1, 60));
    for error in [put.expect_err("away"), get.expect_err("away"), renewal.expect_err("away")] {
        assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
        assert_eq!(error.message(), "etcdserver: request timed out");
    }
    assert_eq!(server.http("GET", "/livez", &[]).status, 200);
    assert_eq!(server.http("GET", "/readyz", &[]).status, 503);
    oxia.restart();
    let ask = || client.get("k");
    eventually(PATIENCE, "service again", ask, |row| row.is_ok()).await.expect("an answer");
    client.put("k", "x", 0).await.expect("a put");
    assert_eq!(value(&client, "k").await.as_deref(), Some("x"));
    server.stop();
}

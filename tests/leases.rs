//! Leases of the real binary: how they end, and what a stop or a restart does to them.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::mvccpb::Event;
use support::client::{Client, eventually, is_delete, op, put, revision, within};
use support::{PATIENCE, Server};
use tokio::task::JoinSet;
use tonic::Code;

const SECOND: Duration = Duration::from_secs(1);

/// The shortest lease, with the default election timeout.
const SHORTEST: i64 = 2;

fn key_of(event: &Event) -> String {
    String::from_utf8(event.kv.as_ref().expect("a key").key.to_vec()).expect("text")
}

async fn gone(client: &Client, key: &str, patience: Duration) {
    let ask = || client.get(key);
    let absent = |row: &Result<_, _>| matches!(row, Ok(None));
    eventually(patience, &format!("the end of {key}"), ask, absent).await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_is_one_revision_with_keys_in_order() {
    let server = Server::start(&[]);
    let client = Client::connect(server.port).await;
    client.grant(1, SHORTEST).await.expect("a lease");
    client.grant(2, 3600).await.expect("a lease");
    let keys = ["m", "b", "zz", "a", "z", "aa", "c\u{0}", "c"];
    for key in keys.iter().chain(&["detached", "moved"]) {
        client.put(*key, "on the lease", 1).await.expect("a put");
    }
    client.put("detached", "stays", 0).await.expect("a put");
    let last = client.put("moved", "stays", 2).await.expect("a put");
    let mut watching = client.watch_everything(last + 1).await.expect("a watch");

    let answer = within(watching.next()).await.expect("open").expect("not ended");
    assert_eq!(answer.header.as_ref().expect("a header").revision, last + 1);
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let deleted: Vec<String> = answer.events.iter().map(key_of).collect();
    assert_eq!(deleted, sorted);
    for event in &answer.events {
        assert!(is_delete(event));
        assert_eq!(event.kv.as_ref().expect("a key").mod_revision, last + 1);
    }
    let left = client.everything(0).await.expect("an answer");
    assert_eq!(revision(left.header.as_ref()), last + 1);
    let left: Vec<&[u8]> = left.kvs.iter().map(|kv| &kv.key[..]).collect();
    assert_eq!(left, [b"detached".as_slice(), b"moved"]);
    assert_eq!(client.leases().await.expect("leases"), [2]);
    let ended = client.time_to_live(1, true).await.expect("an answer");
    assert_eq!((ended.ttl, ended.granted_ttl, ended.keys.len()), (-1, 0, 0));
    assert_eq!(client.keep_alive(1).await.expect("an answer"), 0);
    let error = client.put("late", "", 1).await.expect_err("no lease");
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.message(), "etcdserver: requested lease not found");
}

/// Puts one after the other until told to stop; gives how long each took.
async fn steady_puts(client: Client, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let mut took = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let started = Instant::now();
        client.put("steady", "x".repeat(100), 0).await.expect("answered");
        took.push(started.elapsed());
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leases_end_within_a_second() {
    const LEASES: i64 = 10_000;
    const AT_ONCE: i64 = 100;
    let server = Server::start(&[]);
    let client = Client::connect(server.port).await;
    // All of them are granted to end within the same second; a slow machine gets more time.
    let mut until = Instant::now() + 10 * SECOND;
    for first in (1..=LEASES).step_by(AT_ONCE as usize) {
        until = until.max(Instant::now() + 4 * SECOND);
        let mut tasks = JoinSet::new();
        for id in first..first + AT_ONCE {
            let client = client.clone();
            tasks.spawn(async move {
                let ttl = until.duration_since(Instant::now()).as_secs() as i64;
                client.grant(id, ttl).await.expect("a lease");
                client.put(format!("leased/{id:05}"), "x", id).await.expect("a put");
            });
        }
        tasks.join_all().await;
    }
    let granted = client.revision().await;
    assert!(client.leases().await.expect("leases").len() > 1, "the first end too early");
    let mut watching = client.watch_everything(2).await.expect("a watch");
    let stop = Arc::new(AtomicBool::new(false));
    let putting = tokio::spawn(steady_puts(client.clone(), stop.clone()));

    let left = || client.leases();
    let patience = until.duration_since(Instant::now()) + PATIENCE;
    let none = |ids: &Result<Vec<i64>, _>| ids.as_ref().is_ok_and(Vec::is_empty);
    eventually(patience, "the end of all leases", left, none).await.expect("an answer");
    let late = Instant::now().saturating_duration_since(until);
    stop.store(true, Ordering::SeqCst);
    let mut took = putting.await.expect("no panic");
    took.sort_unstable();
    let (p99, longest) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    println!("{} puts, p99 {p99:?}, longest {longest:?}; all ended {late:?} late", took.len());
    assert!(late < 10 * SECOND, "the last lease ended {late:?} late");
    assert!(longest < 5 * SECOND, "a put took {longest:?}");

    let last = client.revision().await;
    assert!(last >= granted);
    let history = watching.collect_until(last).await;
    let mut ended: Vec<String> = Vec::new();
    for events in history.values() {
        let deleted: Vec<&Event> = events.iter().filter(|event| is_delete(event)).collect();
        assert!(deleted.len() <= 1, "two leases ended in one revision");
        ended.extend(deleted.into_iter().map(key_of));
    }
    ended.sort_unstable();
    assert!(ended.iter().cloned().eq((1..=LEASES).map(|id| format!("leased/{id:05}"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_with_twenty_thousand_keys() {
    const KEYS: usize = 20_000;
    const IN_TXN: usize = 125;
    let server = Server::start(&[]);
    let client = Client::connect(server.port).await;
    client.grant(1, 3600).await.expect("a lease");
    client.put("other", "stays", 0).await.expect("a put");
    let mut names: Vec<String> = (0..KEYS).map(|number| format!("key/{number:05}")).collect();
    // From the end, so that the order is the server's doing.
    names.reverse();
    for names in names.chunks(IN_TXN) {
        let puts = names.iter().map(|name| op(Request::RequestPut(put(name.as_str(), "x", 1))));
        let request = pb::TxnRequest { success: puts.collect(), ..Default::default() };
        client.txn(request).await.expect("a transaction");
    }
    names.reverse();
    let answer = client.time_to_live(1, true).await.expect("an answer");
    assert!(answer.keys.iter().map(|key| &key[..]).eq(names.iter().map(String::as_bytes)));
    assert_eq!(client.time_to_live(1, false).await.expect("an answer").keys.len(), 0);

    let before = client.revision().await;
    let mut watching = client.watch_everything(before + 1).await.expect("a watch");
    assert_eq!(client.revoke(1).await.expect("revoked"), before + 1);
    let mut deleted = Vec::new();
    while deleted.len() < KEYS {
        let answer = within(watching.next()).await.expect("open").expect("not ended");
        for event in answer.events {
            assert!(is_delete(&event));
            assert_eq!(event.kv.as_ref().expect("a key").mod_revision, before + 1);
            deleted.push(key_of(&event));
        }
    }
    assert_eq!(deleted, names);
    let left = client.everything(0).await.expect("an answer");
    assert_eq!((left.count, revision(left.header.as_ref())), (1, before + 1));
}

/// Asks until less than `seconds` are left.
async fn run_down(client: &Client, id: i64, seconds: i64) {
    let ask = || async { client.time_to_live(id, false).await.expect("an answer").ttl };
    eventually(PATIENCE, "less time left", ask, |&ttl| ttl < seconds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_extends_and_never_shortens() {
    const TTL: i64 = 4;
    let mut server = Server::start(&[]);
    for orderly in [false, true] {
        let client = Client::connect(server.port).await;
        client.grant(1, TTL).await.expect("a lease");
        client.grant(2, 3600).await.expect("a lease");
        client.put("short", "x", 1).await.expect("a put");
        client.put("long", "x", 2).await.expect("a put");
        run_down(&client, 1, 2).await;
        if orderly {
            server.stop()
        } else {
            server.kill()
        }
        let restarted = Instant::now();
        server.restart();
        let client = Client::connect(server.port).await;
        let answer = client.time_to_live(1, true).await.expect("an answer");
        assert_eq!((answer.granted_ttl, answer.keys.len()), (TTL, 1));
        assert!((TTL - 1..=TTL).contains(&answer.ttl) || restarted.elapsed() > SECOND);
        assert!(answer.ttl >= 1, "shortened to {}", answer.ttl);
        gone(&client, "short", PATIENCE).await;
        let lived = restarted.elapsed();
        assert!(lived >= Duration::from_secs(TTL as u64), "it ended {lived:?} after the restart");
        assert!(client.get("long").await.expect("an answer").is_some());
        assert_eq!(client.leases().await.expect("leases"), [2]);
        client.revoke(2).await.expect("revoked");
        assert_eq!(client.leases().await.expect("leases"), [0_i64; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_spares_its_leases() {
    let (server, running) = (Server::start(&[]), Server::start(&[]));
    let client = Client::connect(server.port).await;
    let elsewhere = Client::connect(running.port).await;
    for id in [1, 2, 3] {
        client.grant(id, SHORTEST).await.expect("a lease");
        client.put(format!("key{id}"), "x", id).await.expect("a put");
    }
    let mut watching = client.watch_everything(5).await.expect("a watch");
    server.signal("STOP");
    // One client asks in vain meanwhile, another one comes back afterwards.
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.keep_alive(1).await }
    });
    // Until a lease of the same time, granted later elsewhere, has run out.
    elsewhere.grant(1, SHORTEST).await.expect("a lease");
    elsewhere.put("timer", "x", 1).await.expect("a put");
    gone(&elsewhere, "timer", PATIENCE).await;
    server.signal("CONT");
    let continued = Instant::now();
    assert_eq!(waiting.await.expect("no panic").expect("an answer"), SHORTEST);
    assert_eq!(client.keep_alive(2).await.expect("an answer"), SHORTEST);
    let shown = client.everything(0).await.expect("an answer");
    assert!(shown.count == 3 || continued.elapsed() > SECOND, "{shown:?}");

    // Without renewals they end as ever, each once, and not before a full timeout.
    let mut ended = Vec::new();
    while ended.len() < 3 {
        let answer = within(watching.next()).await.expect("open").expect("not ended");
        assert!(continued.elapsed() >= Duration::from_secs(SHORTEST as u64 - 1));
        ended.extend(answer.events.iter().map(key_of));
    }
    ended.sort_unstable();
    assert_eq!(ended, ["key1", "key2", "key3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_lease_is_configurable() {
    let mut server = Server::start(&[]);
    let client = Client::connect(server.port).await;
    client.grant(1, 3600).await.expect("a lease");
    client.put("key", "x", 1).await.expect("a put");
    server.stop();
    server.set_flags(&["--max-session-timeout=10"]);
    server.restart();
    let client = Client::connect(server.port).await;
    let error = client.grant(2, 11).await.expect_err("too long");
    assert_eq!(error.code(), Code::OutOfRange);
    assert_eq!(error.message(), "etcdserver: too large lease TTL");
    assert_eq!(client.grant(3, 10).await.expect("a lease").ttl, 10);
    for short in [0, 1, -5] {
        let granted = client.grant(0, short).await.expect("a lease");
        assert_eq!(granted.ttl, SHORTEST, "asked for {short}");
        client.revoke(granted.id).await.expect("revoked");
    }
    // A lease from before keeps what it was granted.
    assert_eq!(client.keep_alive(1).await.expect("an answer"), 3600);
    assert_eq!(client.time_to_live(1, false).await.expect("an answer").granted_ttl, 3600);
    assert_eq!(client.leases().await.expect("leases"), [1, 3]);
    assert!(client.get("key").await.expect("an answer").is_some());
}

//! Compaction by the real binary: the space comes back, service goes on, what is gone is refused.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use support::client::{Client, op, put, within};
use support::{Server, real_etcd};
use tokio::task::JoinSet;
use tonic::Code;

const MIB: u64 = 1 << 20;

/// Bytes that the files of a directory take on the disk.
fn size_of(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).expect("a directory");
    let metadata = entries.map(|entry| entry.expect("an entry").metadata().expect("a file"));
    metadata.map(|metadata| metadata.len().max(metadata.blocks() * 512)).sum()
}

fn value(key: usize, times: usize) -> Vec<u8> {
    let mut value = format!("{key} for the {times}th time ").into_bytes();
    value.resize(4_000, b'x');
    value
}

async fn overwrite(client: &Client, keys: usize, times: usize) {
    let mut tasks = JoinSet::new();
    for key in 0..keys {
        let client = client.clone();
        tasks.spawn(async move {
            for times in 1..=times {
                client.put(format!("key{key:03}"), value(key, times), 0).await.expect("a put");
            }
        });
    }
    tasks.join_all().await;
}

async fn check_values(client: &Client, keys: usize, times: usize) {
    let shown = client.everything(0).await.expect("an answer");
    assert_eq!(shown.count, keys as i64);
    for (key, kv) in shown.kvs.iter().enumerate() {
        assert_eq!(kv.key, format!("key{key:03}"));
        assert_eq!(kv.value, value(key, times));
        assert_eq!(kv.version, times as i64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn physical_compaction_and_defragmentation_give_space_back() {
    const KEYS: usize = 64;
    const TIMES: usize = 100;
    let mut server = Server::start(&[]);
    let dir = server.dir.path().join("data");
    let client = Client::connect(server.port).await;
    let empty = size_of(&dir);
    overwrite(&client, KEYS, TIMES).await;
    let full = size_of(&dir) - empty;
    assert!(full > 22 * MIB, "only {full}");
    let last = client.revision().await;
    client.compact(last, true).await.expect("compacts");
    let status = client.maintenance.clone().status(pb::StatusRequest {}).await.expect("a status");
    let in_use = status.into_inner().db_size_in_use;
    assert!(in_use < MIB as i64, "{in_use} bytes in use");
    client.maintenance.clone().defragment(pb::DefragmentRequest {}).await.expect("shrinks");
    let shrunk = size_of(&dir).saturating_sub(empty);
    println!("{full} bytes before, {shrunk} after");
    assert!(shrunk < full / 4, "{full} bytes before, {shrunk} after");
    let status = client.maintenance.clone().status(pb::StatusRequest {}).await.expect("a status");
    assert!(status.into_inner().db_size < (full / 4) as i64);
    check_values(&client, KEYS, TIMES).await;

    // The same after a restart, and the space can be used again.
    let hash = client.hash_kv(0).await.expect("a hash").hash;
    server.kill();
    server.restart();
    let client = Client::connect(server.port).await;
    check_values(&client, KEYS, TIMES).await;
    assert_eq!(client.hash_kv(0).await.expect("a hash").hash, hash);
    let now = size_of(&dir).saturating_sub(empty);
    assert!(now < full / 4, "{now} after a restart");
    assert_eq!(client.put("key000", "again", 0).await.expect("a put"), last + 1);
}

/// Writes keys that each transaction overwrites.
async fn overwrite_in_transactions(client: &Client, txns: usize, value: &str) {
    const IN_TXN: usize = 128;
    for times in 0..txns {
        let puts = (0..IN_TXN).map(|key| {
            let value = format!("{times} {value}");
            op(Request::RequestPut(put(format!("{key}"), value, 0)))
        });
        let request = pb::TxnRequest { success: puts.collect(), ..Default::default() };
        client.txn(request).await.expect("a transaction");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defragmentation_waits_for_a_compaction_and_puts_wait_for_neither() {
    let server = Server::start(&[]);
    let dir = server.dir.path().join("data");
    let client = Client::connect(server.port).await;
    let empty = size_of(&dir);
    overwrite_in_transactions(&client, 200, &"x".repeat(1_000)).await;
    let full = size_of(&dir) - empty;
    assert!(full > 25 * MIB, "only {full}");
    let last = client.revision().await;
    client.compact(last, false).await.expect("accepted");
    let mut maintenance = client.maintenance.clone();
    let shrinking = tokio::spawn(async move {
        maintenance.defragment(pb::DefragmentRequest {}).await.expect("shrinks");
    });
    let mut puts = 0;
    while !shrinking.is_finished() {
        client.put("meanwhile", format!("{puts}"), 0).await.expect("answered");
        puts += 1;
    }
    shrinking.await.expect("no panic");
    let shrunk = size_of(&dir).saturating_sub(empty);
    println!("{full} bytes before, {shrunk} after; {puts} puts meanwhile");
    assert!(shrunk < full / 4, "{full} bytes before, {shrunk} after");
    let status = client.maintenance.clone().status(pb::StatusRequest {}).await.expect("a status");
    let in_use = status.into_inner().db_size_in_use;
    assert!(in_use < MIB as i64, "{in_use} bytes in use: it did not wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_are_answered_during_a_large_compaction() {
    const TXNS: usize = 500;
    const IN_TXN: usize = 128;
    let server = Server::start(&[]);
    let client = Client::connect(server.port).await;
    let mut tasks = JoinSet::new();
    for client_number in 0..4 {
        let client = client.clone();
        tasks.spawn(async move {
            for times in 0..TXNS / 4 {
                let puts = (0..IN_TXN).map(|key| {
                    let name = format!("{client_number}/{key}");
                    op(Request::RequestPut(put(name, format!("{times}"), 0)))
                });
                let request = pb::TxnRequest { success: puts.collect(), ..Default::default() };
                client.txn(request).await.expect("a transaction");
            }
        });
    }
    tasks.join_all().await;
    let last = client.revision().await;
    let before = client.everything(0).await.expect("an answer").kvs;

    let finished = Arc::new(AtomicBool::new(false));
    let putting = tokio::spawn({
        let (client, finished) = (client.clone(), finished.clone());
        async move {
            let mut took = Vec::new();
            while !finished.load(Ordering::SeqCst) {
                let started = Instant::now();
                client.put("steady", format!("{}", took.len()), 0).await.expect("answered");
                took.push(started.elapsed());
            }
            took
        }
    });
    let started = Instant::now();
    client.compact(last, true).await.expect("compacts");
    let compaction = started.elapsed();
    finished.store(true, Ordering::SeqCst);
    let took = putting.await.expect("no panic");
    let longest = took.iter().max().copied().unwrap_or_default();
    println!("{} rows in {compaction:?}; {} puts, longest {longest:?}", TXNS * IN_TXN, took.len());
    assert!(!took.is_empty());
    assert!(longest < Duration::from_secs(5), "a put took {longest:?}");
    // A put never waits for the whole of it, when it is long enough to tell.
    assert!(compaction < Duration::from_secs(1) || longest < compaction, "{longest:?}");

    let mut after = client.everything(0).await.expect("an answer").kvs;
    let steady = after.pop().expect("the last key");
    assert_eq!((&steady.key[..], steady.version), (b"steady".as_slice(), took.len() as i64));
    assert_eq!(after, before);
}

/// Everything that reads, writes and watches say about compacted and future revisions.
async fn about_old_revisions(client: &Client) -> Vec<String> {
    let mut said = Vec::new();
    for number in 2..=10 {
        client.put("key", format!("{number}"), 0).await.expect("a put");
    }
    said.push(format!("{:?}", client.compact(11, false).await.map_err(told)));
    said.push(format!("{:?}", client.compact(6, true).await.map_err(told)));
    for revision in [6, 5, 0, -1, 10, 11] {
        said.push(format!("{:?}", client.compact(revision, false).await.map_err(told)));
        if revision == 6 {
            said.extend(reads(client).await);
        }
    }
    said.extend(reads(client).await);
    said
}

fn told(status: tonic::Status) -> (Code, String) {
    (status.code(), status.message().to_owned())
}

/// Reads at every revision, alone, in transactions and by watching.
async fn reads(client: &Client) -> Vec<String> {
    let mut said = Vec::new();
    for revision in 1..=12 {
        let request = pb::RangeRequest { key: "key".into(), revision, ..Default::default() };
        let shown = client.range(request.clone()).await.map_err(told);
        let shown = shown.map(|answer| answer.kvs.first().map(|kv| kv.value.clone()));
        said.push(format!("range at {revision}: {shown:?}"));
        let counted = pb::RangeRequest { count_only: true, serializable: true, ..request.clone() };
        let counted = client.range(counted).await.map_err(told).map(|answer| answer.count);
        said.push(format!("count at {revision}: {counted:?}"));
        let success =
            vec![op(Request::RequestPut(put("none", "", 0))), op(Request::RequestRange(request))];
        let refused = [1, 2, 3, 4, 5, 12].contains(&revision);
        if refused {
            let txn = pb::TxnRequest { success, ..Default::default() };
            said.push(format!("txn at {revision}: {:?}", client.txn(txn).await.map_err(told)));
        }
        let create = pb::WatchCreateRequest {
            key: "key".into(),
            start_revision: revision,
            ..Default::default()
        };
        if revision <= 10 {
            let mut watching = client.watch_with(create).await.expect("a watch");
            let first = within(watching.next()).await.expect("open").expect("not ended");
            let events: Vec<i64> = first
                .events
                .iter()
                .map(|event| event.kv.as_ref().expect("a key").mod_revision)
                .collect();
            said.push(format!(
                "watch from {revision}: {} {} {:?} {events:?}",
                first.canceled, first.compact_revision, first.cancel_reason
            ));
        }
    }
    said.push(format!("none: {:?}", client.get("none").await.map_err(told)));
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_revisions_are_refused_in_etcds_words() {
    let mut server = Server::start(&[]);
    let client = Client::connect(server.port).await;
    let said = about_old_revisions(&client).await;
    let refusal = format!(
        "range at 5: Err({:?})",
        (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted")
    );
    let future = format!(
        "range at 12: Err({:?})",
        (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision")
    );
    assert_eq!(said.iter().filter(|line| **line == refusal).count(), 2, "{said:#?}");
    assert_eq!(said.iter().filter(|line| **line == future).count(), 2, "{said:#?}");

    // A restart changes nothing about it.
    let before = reads(&client).await;
    server.kill();
    server.restart();
    let client = Client::connect(server.port).await;
    assert_eq!(reads(&client).await, before);

    let Some(etcd) = real_etcd() else { return };
    let etcd = Server::start_etcd(&etcd, &[]);
    let expected = about_old_revisions(&Client::connect(etcd.port).await).await;
    for (ours, theirs) in said.iter().zip(&expected) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(said.len(), expected.len());
}

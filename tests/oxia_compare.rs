//! Gateways that hold different things find out: the log in Oxia is changed after two have read it, and a
//! third reads what it says then.

mod support;

use std::time::Duration;

use leaseway::backend::oxia::client::{Expect, KeyRange, WriteBatch};
use leaseway::backend::oxia::names::Names;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::AlarmType;
use leaseway_proto::etcdserverpb::alarm_request::AlarmAction;
use support::client::{Client, eventually};
use support::oxia::Oxia;
use support::{Server, finish, free_port, leaseway};
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(30);

fn backend(oxia: &Oxia, keyspace: &str) -> String {
    format!("--backend=oxia://{}/default?keyspace={keyspace}", oxia.address())
}

async fn value(client: &Client) -> Option<Vec<u8>> {
    client.get("k").await.expect("an answer").map(|row| row.value.to_vec())
}

/// Puts `right`, has every client read it, and makes the log say `wrong` in its place.
async fn falsify(oxia: &Oxia, keyspace: &str, clients: &[&Client]) {
    clients[0].put("k", "right", 0).await.expect("a put");
    for client in clients {
        assert_eq!(value(client).await.as_deref(), Some(&b"right"[..]));
    }
    let client = oxia.client(keyspace).await;
    let log = Names::new(keyspace).log();
    let range = KeyRange::of_sequence(&log, 0, u64::MAX).expect("a range");
    let records = client.range_scan(range).expect("a leader").all(1000).await.expect("records");
    let newest = records.last().expect("a log");
    let at = newest.value.windows(5).position(|bytes| bytes == b"right").expect("the put");
    let mut changed = newest.value.to_vec();
    changed[at..at + 5].copy_from_slice(b"wrong");
    // The number of the newest record is given out again when the record is gone.
    let mut delete = WriteBatch::new();
    delete.delete(newest.key.clone(), Expect::Anything);
    client.write(delete).await.expect("deleted");
    let appended = client.append(&log, changed.into()).await.expect("appended");
    assert_eq!(newest.key, format!("{log}-{:020}", appended.value), "in its place");
}

/// Waits until the one that looks after the others, whichever it is, has said so.
async fn logged(servers: &[&Server], text: &str) {
    let said = || async { servers.iter().any(|server| server.log().contains(text)) };
    eventually(PATIENCE, text, said, |said| *said).await;
}

async fn member_id(client: &Client) -> u64 {
    let status = client.maintenance.clone().status(pb::StatusRequest {}).await.expect("a status");
    status.into_inner().header.expect("a header").member_id
}

async fn alarm(client: &Client, action: AlarmAction, member_id: u64) -> Vec<pb::AlarmMember> {
    let alarm = AlarmType::Corrupt.into();
    let request = pb::AlarmRequest { action: action.into(), member_id, alarm };
    client.maintenance.clone().alarm(request).await.expect("an answer").into_inner().alarms
}

/// Waits for the CORRUPT alarm; returns whose it is.
async fn raised(client: &Client) -> Vec<u64> {
    let alarms = || alarm(client, AlarmAction::Get, 0);
    let alarms = eventually(PATIENCE, "an alarm", alarms, |alarms| !alarms.is_empty()).await;
    alarms.iter().map(|alarm| alarm.member_id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_that_differs_from_most_gets_the_alarm() {
    let Some(oxia) = Oxia::start() else { return };
    let flags = [backend(&oxia, "c"), "--corrupt-check-time=1s".into()];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let one = Server::start(&flags);
    let two = Server::start(&flags);
    let (first, second) = (Client::connect(one.port).await, Client::connect(two.port).await);
    first.put("k", "left", 0).await.expect("a put");
    logged(&[&one, &two], "they hold the same").await;
    falsify(&oxia, "c", &[&first, &second]).await;

    // One that looks before it serves does not start, and changes nothing.
    let url = format!("http://127.0.0.1:{}", free_port());
    let dir = tempfile::tempdir().expect("temporary directory");
    let refused = finish(
        leaseway()
            .current_dir(dir.path())
            .args(["--data-dir", "data", "--listen-client-urls", &url])
            .args(["--advertise-client-urls", &url, flags[0]])
            .arg("--feature-gates=InitialCorruptCheck=true"),
    );
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("found data inconsistency with peers"), "{}", refused.stderr);
    first.put("other", "v", 0).await.expect("a put");

    let mut three = Server::start(&flags);
    let third = Client::connect(three.port).await;
    assert_eq!(value(&third).await.as_deref(), Some(&b"wrong"[..]));
    let bad = member_id(&third).await;
    assert_eq!(raised(&first).await, [bad]);
    logged(&[&one, &two], "data corruption").await;
    for client in [&first, &second, &third] {
        let error = client.put("k", "new", 0).await.expect_err("refused");
        assert_eq!(
            (error.code(), error.message()),
            (Code::DataLoss, "etcdserver: corrupt cluster")
        );
    }

    // Without it everything is as before.
    three.stop();
    alarm(&first, AlarmAction::Deactivate, bad).await;
    let revision = first.put("k", "new", 0).await.expect("a put");
    assert_eq!(second.get("k").await.expect("an answer").expect("a key").mod_revision, revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_compaction_two_that_differ_stop_all_writes() {
    let Some(oxia) = Oxia::start() else { return };
    let flags = [
        backend(&oxia, "d"),
        "--feature-gates=CompactHashCheck=true".into(),
        "--compact-hash-check-time=1s".into(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let one = Server::start(&flags);
    let first = Client::connect(one.port).await;
    falsify(&oxia, "d", &[&first]).await;
    let two = Server::start(&flags);
    let second = Client::connect(two.port).await;
    assert_eq!(value(&second).await.as_deref(), Some(&b"wrong"[..]));
    let revision = first.put("other", "v", 0).await.expect("a put");
    first.compact(revision - 1, true).await.expect("compacted");
    assert_eq!(raised(&second).await, [0], "nobody knows who is right");
}

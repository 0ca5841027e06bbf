//! Against a real server of the older generation, when there is one.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leaseway::backend::oxia::client::{
    Client, Comparison, Config, Dialect, Epoch, Event, Expect, KeyRange, Kind, Notice,
    RECORD_BYTES_MAX, Refusal, WriteBatch, WriteError, Written, sequence_key,
};
use leaseway::backend::oxia::cluster::ClusterShard;
use leaseway::backend::oxia::names::Names;
use leaseway::backend::oxia::shard::Shard;
use tokio::task::JoinSet;

use crate::support::PATIENCE;
use crate::support::oxia::Oxia;

/// One put; gives what came of it.
async fn put(
    client: &Client,
    key: &str,
    value: &'static str,
    expect: Expect,
) -> Result<Written, Refusal> {
    let mut batch = WriteBatch::new();
    batch.put(key, value, expect);
    client.write(batch).await.expect("written").puts[0]
}

/// The numbers and values of a sequence.
async fn records(client: &Client, prefix: &str) -> Vec<(String, Bytes)> {
    let range = KeyRange::of_sequence(prefix, 0, u64::MAX).expect("a range");
    let records = client.range_scan(range).expect("a leader").all(100_000).await.expect("read");
    records.into_iter().map(|record| (record.key, record.value)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_share_one_sequence_without_a_gap() {
    let Some(oxia) = Oxia::start() else { return };
    let mut writers = JoinSet::new();
    for _ in 0..4 {
        let client = oxia.client("ks").await;
        writers.spawn(async move {
            let mut numbers = Vec::new();
            for n in 0..100 {
                let appended = client.append("ks/log", Bytes::from(format!("{n}"))).await;
                numbers.push(appended.expect("appended").value);
                // What was acknowledged is at or below any tip that is asked for afterwards.
                if n % 10 == 0 {
                    let tip = client.read_tip_with_proof("ks/log").await.expect("a tip");
                    assert!(Some(&tip.sequence) >= numbers.last());
                }
            }
            assert!(numbers.is_sorted(), "in the order of the calls");
            numbers
        });
    }
    let numbers: BTreeSet<u64> = writers.join_all().await.into_iter().flatten().collect();
    assert_eq!(numbers, (1..=400).collect());

    let client = oxia.client("ks").await;
    let (_, shard, dialect) = client.leader_address().expect("a leader");
    assert_eq!((shard, dialect), (0, Dialect::Legacy));
    let tip = client.read_tip_with_proof("ks/log").await.expect("a tip");
    assert_eq!((tip.sequence, tip.epoch), (400, Epoch(1)));
    let keys: Vec<_> = records(&client, "ks/log").await.into_iter().map(|(key, _)| key).collect();
    let expected: Vec<_> = (1..=400).map(|number| sequence_key("ks/log", number)).collect();
    assert_eq!(keys, expected);
    let none = client.read_tip_with_proof("ks/other").await.expect("a tip");
    assert_eq!(none.sequence, 0, "a sequence that doesn't exist");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_keeps_the_order_of_the_calls() {
    let Some(oxia) = Oxia::start() else { return };
    let client = oxia.client("ks").await;
    let calls: Vec<_> =
        (0..300).map(|n| client.append("ks/log", Bytes::from(format!("{n}")))).collect();
    // Awaited from the last to the first: the order of the calls counts, not of the polls.
    for (n, call) in calls.into_iter().enumerate().rev() {
        assert_eq!(call.await.expect("appended").value, n as u64 + 1);
    }
    let values: Vec<_> =
        records(&client, "ks/log").await.into_iter().map(|(_, value)| value).collect();
    let expected: Vec<_> = (0..300).map(|n| Bytes::from(format!("{n}"))).collect();
    assert_eq!(values, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn goes_on_after_the_server_was_killed() {
    let Some(mut oxia) = Oxia::start() else { return };
    let client = Arc::new(oxia.client("ks").await);
    for n in 1..=50 {
        let appended = client.append("ks/log", Bytes::from_static(b"before")).await;
        assert_eq!(appended.expect("appended").value, n);
    }
    let mut hints = client.sequence_updates("ks/log");
    let before = client.epoch().expect("a leader");
    let calls: Vec<_> =
        (0..20).map(|_| client.append("ks/log", Bytes::from_static(b"during"))).collect();
    oxia.kill();
    let mut landed = 0;
    for call in calls {
        match call.await {
            Ok(_) => landed += 1,
            Err(WriteError::Unknown(_) | WriteError::NotSent(_)) => {}
        }
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        match client.append("ks/log", Bytes::from_static(b"without a server")).await {
            Err(WriteError::NotSent(error)) if error.kind == Kind::NoLeader => break,
            result => assert!(Instant::now() < deadline, "{result:?}"),
        }
    }
    assert!(client.read_tip_with_proof("ks/log").await.is_err());
    oxia.restart();
    let after = match client.wait_for_leader_after(before, PATIENCE).await {
        Ok(after) => after,
        Err(error) => panic!("no leader again: {error}\n{}", oxia.log()),
    };
    assert!(after > before);
    let tip = client.read_tip_with_proof("ks/log").await.expect("a tip");
    assert!((50 + landed..=71).contains(&tip.sequence), "{landed} of 20 landed: {tip:?}");
    let appended = client.append("ks/log", Bytes::from_static(b"after")).await.expect("appended");
    assert_eq!((appended.value, appended.epoch), (tip.sequence + 1, after));
    // The hints go on with the next leader.
    let last = tokio::time::timeout(PATIENCE, async {
        loop {
            let hint = hints.next().await.expect("the client lives");
            if hint.sequence == appended.value {
                return hint;
            }
        }
    });
    assert_eq!(last.await.expect("a hint in time").epoch, after);
    let keys: Vec<_> = records(&client, "ks/log").await.into_iter().map(|(key, _)| key).collect();
    let expected: Vec<_> = (1..=appended.value).map(|n| sequence_key("ks/log", n)).collect();
    assert_eq!(keys, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_is_told() {
    let Some(oxia) = Oxia::start() else { return };
    let client = oxia.client("ks").await;
    let mut notices = client.notifications(None);
    let Some(Notice::From(_)) = notices.next().await else { panic!("no beginning") };
    let session = client.create_session(Duration::from_secs(2), "me").await.expect("made").value;
    let mut batch = WriteBatch::new();
    batch.put_ephemeral("ks/marker/a", "nonce", Expect::Absent, session);
    batch.put_ephemeral("ks/marker/b", "nonce", Expect::Absent, session + 1);
    let results = client.write(batch).await.expect("written");
    assert_eq!(results.puts[0].map(|put| put.version.session), Ok(Some(session)));
    assert_eq!(results.puts[1], Err(Refusal::SessionNotFound));
    client.keep_alive(session).await.expect("alive");

    let all = KeyRange::children_of("ks/marker").expect("a range");
    let keys = client.list_session_keys(session, &all, 10).await.expect("listed");
    assert_eq!(keys.value, ["ks/marker/a"]);
    assert_eq!(client.get_session(session).await.expect("asked").value, None, "not offered");
    let sessions = client.list_sessions(10).await.expect("listed");
    assert_eq!(sessions.value, [session]);

    let deleted = tokio::time::timeout(PATIENCE, async {
        let mut created = false;
        loop {
            let Some(notice) = notices.next().await else { panic!("no more notices") };
            let Notice::Changes { events, .. } = notice else { panic!("{notice:?}") };
            created |= events
                .iter()
                .any(|(key, event)| key == "ks/marker/a" && matches!(event, Event::Created(_)));
            if events.contains(&("ks/marker/a".to_owned(), Event::Deleted)) {
                return created;
            }
        }
    });
    assert!(deleted.await.expect("the end in time"), "created before it was deleted");
    // The server forgets the session a moment after it has told of its records.
    let ended = tokio::time::timeout(PATIENCE, async {
        loop {
            match client.keep_alive(session).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => return error.kind,
            }
        }
    });
    assert_eq!(ended.await.expect("forgotten in time"), Kind::SessionNotFound);
    client.close_session(session).await.expect("closing an ended one is fine");
    assert_eq!(client.list_sessions(10).await.expect("listed").value, [0; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_hold_one_by_one() {
    let Some(oxia) = Oxia::start() else { return };
    let client = oxia.client("ks").await;
    let first = put(&client, "ks/head", "1", Expect::Absent).await.expect("put");
    assert_eq!(put(&client, "ks/head", "2", Expect::Absent).await, Err(Refusal::Version));
    let second = put(&client, "ks/head", "2", Expect::Version(first.version.id)).await;
    let second = second.expect("put");
    assert_eq!(second.version.modifications, 1);
    let stale = put(&client, "ks/head", "3", Expect::Version(first.version.id)).await;
    assert_eq!(stale, Err(Refusal::Version));

    // One refused operation doesn't keep the others from taking effect.
    let mut batch = WriteBatch::new();
    batch.put("ks/head", "x", Expect::Absent);
    batch.append("ks/log", "y");
    batch.delete("ks/nothing", Expect::Anything);
    let results = client.write(batch).await.expect("written");
    assert_eq!(results.puts[0], Err(Refusal::Version));
    assert_eq!(results.puts[1].map(|put| put.sequence), Ok(1));
    assert_eq!(results.deletes, [Err(Refusal::NotFound)]);

    let head = client.get("ks/head", Comparison::Equal).await.expect("read").value.expect("there");
    assert_eq!((head.value, head.version), (Bytes::from_static(b"2"), second.version));
    let mut batch = WriteBatch::new();
    batch.delete("ks/head", Expect::Version(first.version.id));
    let results = client.write(batch).await.expect("written");
    assert_eq!(results.deletes, [Err(Refusal::Version)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_hold_their_directory_and_nothing_else() {
    let Some(oxia) = Oxia::start() else { return };
    let client = oxia.client("ks").await;
    for key in ["ks/a/1", "ks/a/2", "ks/a/2/3", "ks/a", "ks/b/1", "kt/a/1", "ks/a-1"] {
        put(&client, key, "v", Expect::Anything).await.expect("put");
    }
    let children = || KeyRange::children_of("ks/a").expect("a range");
    let listed = client.list(children()).expect("a leader").all(10).await.expect("listed");
    assert_eq!(listed, ["ks/a/1", "ks/a/2"]);
    let cases = [
        (Comparison::Equal, Some("ks/a/2")),
        (Comparison::Floor, Some("ks/a/2")),
        (Comparison::Ceiling, Some("ks/a/2")),
        (Comparison::Lower, Some("ks/a/1")),
    ];
    for (comparison, expected) in cases {
        let found = client.get("ks/a/2", comparison).await.expect("read").value;
        assert_eq!(found.as_ref().map(|record| record.key.as_str()), expected, "{comparison:?}");
    }
    assert_eq!(client.get("ks/a/3", Comparison::Equal).await.expect("read").value, None);
    let mut batch = WriteBatch::new();
    batch.delete_range(children());
    assert_eq!(client.write(batch).await.expect("written").ranges, [Ok(())]);
    let left = client.list(children()).expect("a leader").all(10).await.expect("listed");
    assert_eq!(left, [""; 0]);
    for key in ["ks/a", "ks/b/1", "kt/a/1", "ks/a-1", "ks/a/2/3"] {
        let kept = client.get(key, Comparison::Equal).await.expect("read").value;
        assert!(kept.is_some(), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_scans_arrive_whole_beside_writes() {
    let Some(oxia) = Oxia::start() else { return };
    let client = oxia.client("ks").await;
    let value = Bytes::from(vec![7; 1_500_000]);
    for number in 1..=12 {
        let appended = client.append("ks/log", value.clone()).await.expect("appended");
        assert_eq!(appended.value, number);
    }
    let range = KeyRange::of_sequence("ks/log", 1, 13).expect("a range");
    let mut scan = client.range_scan(range).expect("a leader");
    let mut count = 0;
    while let Some(page) = scan.next().await.expect("read") {
        assert!(page.iter().all(|record| record.value == value));
        count += page.len();
        // A scan whose reader is slow doesn't hold up the writes: they've a connection of their own.
        let put = put(&client, "ks/x", "v", Expect::Anything);
        tokio::time::timeout(PATIENCE, put).await.expect("in time").expect("put");
    }
    assert_eq!(count, 12);
    let mut batch = WriteBatch::new();
    batch.append("ks/log", vec![0; RECORD_BYTES_MAX]);
    let refused = client.write(batch).await;
    assert!(
        matches!(&refused, Err(WriteError::NotSent(error)) if error.kind == Kind::TooLarge),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_read_on_from_anywhere_while_it_grows() {
    let Some(oxia) = Oxia::start() else { return };
    let shard = ClusterShard::new(Arc::new(oxia.client("ks").await), &Names::new("ks"));
    let record = |number: u64| Bytes::from(vec![number.to_be_bytes()[7]; 400_000]);
    let append = async |numbers: RangeInclusive<u64>| {
        for number in numbers {
            assert_eq!(shard.append(record(number)).await.map(|tip| tip.position), Ok(number));
        }
    };
    // Several portions, each of some records.
    append(1..=20).await;
    let (mut next, mut portions) = (1, 0);
    while next <= 30 {
        portions += 1;
        assert!(portions < 100, "stuck at {next}");
        let read = shard.read(next, 1000).await.expect("read");
        // What was appended after a scan began is read as well, and so is what was read before.
        match portions {
            2 => append(21..=30).await,
            3 => assert_eq!(shard.read(2, 1).await.expect("read")[0].position, 2),
            _ => {}
        }
        for found in &read {
            assert_eq!((found.position, &found.value), (next, &record(next)));
            next += 1;
        }
    }
    assert_eq!(shard.read(31, 1000).await, Ok(Vec::new()));
    // Cut short, a portion is not gone on with behind its end.
    assert_eq!(shard.read(1, 2).await.expect("read").len(), 2);
    assert_eq!(shard.read(3, 1000).await.expect("read")[0].position, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn says_why_there_is_no_leader() {
    let Some(oxia) = Oxia::start() else { return };
    drop(oxia.client("ks").await);
    let config = Config::new(vec![oxia.address()], "elsewhere", "ks", "ks/proof");
    let error = Client::connect(config, Duration::from_secs(2)).await.err().expect("no namespace");
    assert_eq!(error.kind, Kind::NamespaceNotFound, "{error}");
}

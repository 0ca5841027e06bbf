//! Against nodes that fail, stop, lie and move the leader.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leaseway::backend::oxia::client::{
    Client, Config, Dialect, Epoch, IN_FLIGHT_MAX, KeyRange, Kind, Notice, Token, WriteBatch,
    WriteError,
};
use leaseway_proto::oxia::NotificationBatch;

use crate::fake::{Node, SHARD, Store};
use crate::support::PATIENCE;

async fn cluster(count: usize) -> (Arc<Mutex<Store>>, Vec<Node>) {
    let store = Arc::<Mutex<Store>>::default();
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(Node::start(&store).await);
    }
    say(&nodes, 0);
    (store, nodes)
}

/// All nodes name this one the leader, and the others say that they aren't.
fn say(nodes: &[Node], leader: usize) {
    let address = nodes[leader].address.to_string();
    for (number, node) in nodes.iter().enumerate() {
        node.behave(|behaviour| {
            behaviour.leader = address.clone();
            behaviour.deposed = number != leader;
        });
    }
}

fn config(nodes: &[Node]) -> Config {
    let seeds = nodes.iter().map(|node| node.address.clone()).collect();
    Config::new(seeds, "ns", "ks", "ks/proof/test")
}

async fn connect(nodes: &[Node]) -> Client {
    Client::connect(config(nodes), PATIENCE).await.expect("a leader")
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn value() -> Bytes {
    Bytes::from_static(b"x")
}

#[tokio::test]
async fn speaks_the_newer_name_and_says_who_it_is() {
    let (_, nodes) = cluster(1).await;
    let mut config = config(&nodes);
    config.token = Some(Token::new("secret").expect("a token"));
    let client = Client::connect(config, PATIENCE).await.expect("a leader");
    let leader = client.leader_address().expect("a leader");
    assert_eq!(leader, (nodes[0].address.clone(), SHARD, Dialect::V1));
    assert_eq!(client.append("ks/log", value()).await.expect("appended").value, 1);
    let seen = nodes[0].seen();
    let expected =
        [Some("ns"), Some("7"), Some("Bearer secret")].map(|text| text.map(str::to_owned));
    assert_eq!(seen.streams, [expected]);
    let keys = seen.writes.iter().flat_map(|write| &write.puts).map(|put| put.key.as_str());
    assert_eq!(keys.collect::<Vec<_>>(), ["ks/proof/test", "ks/log"], "a proof comes first");
    assert!(seen.writes.iter().all(|write| write.shard == Some(SHARD)));
    let partitions = seen.writes.iter().flat_map(|write| &write.puts);
    assert!(partitions.into_iter().all(|put| put.partition_key.as_deref() == Some("ks")));
}

#[tokio::test]
async fn finds_the_leader_where_only_one_node_knows_it() {
    let (_, nodes) = cluster(3).await;
    // The second is behind: by its word, it still leads.
    let stale = nodes[1].address.to_string();
    nodes[1].behave(|behaviour| behaviour.leader = stale);
    for _ in 0..5 {
        let client = connect(&nodes).await;
        assert_eq!(
            client.leader_address().map(|(address, ..)| address),
            Some(nodes[0].address.clone())
        );
    }
}

#[tokio::test]
async fn moves_with_the_leader() {
    let (_, nodes) = cluster(2).await;
    let client = connect(&nodes).await;
    client.append("ks/log", value()).await.expect("appended");
    say(&nodes, 1);
    nodes[0].behave(|behaviour| behaviour.cuts += 1);
    let epoch = client.wait_for_leader_after(Epoch(1), PATIENCE).await.expect("another leader");
    let appended = client.append("ks/log", value()).await.expect("appended");
    assert_eq!((appended.value, appended.epoch), (2, epoch));
    assert_eq!(
        client.leader_address().map(|(address, ..)| address),
        Some(nodes[1].address.clone())
    );
}

#[tokio::test]
async fn leaves_a_leader_that_has_stopped_when_another_is_named() {
    let (_, nodes) = cluster(2).await;
    let client = connect(&nodes).await;
    nodes[0].behave(|behaviour| behaviour.silent = true);
    let stuck = client.append("ks/log", value());
    eventually("the append arrives", || nodes[0].seen().writes.len() == 2).await;
    let new = nodes[1].address.to_string();
    nodes[1].behave(|behaviour| {
        behaviour.deposed = false;
        behaviour.leader = new;
    });
    let epoch = client.wait_for_leader_after(Epoch(1), PATIENCE).await.expect("another leader");
    let error = stuck.await.expect_err("no answer");
    assert!(matches!(&error, WriteError::Unknown(error) if error.kind == Kind::LeaderChanged));
    assert_eq!(client.append("ks/log", value()).await.expect("appended").epoch, epoch);
}

#[tokio::test]
async fn stays_with_a_leader_that_works_when_another_is_wrongly_named() {
    let (_, nodes) = cluster(2).await;
    let client = connect(&nodes).await;
    let wrong = nodes[1].address.to_string();
    nodes[1].behave(|behaviour| behaviour.leader = wrong);
    // It's asked, refuses, and nothing changes.
    eventually("it's asked", || !nodes[1].seen().streams.is_empty()).await;
    assert_eq!(client.append("ks/log", value()).await.expect("appended").epoch, Epoch(1));
    assert_eq!(client.epoch(), Some(Epoch(1)));
}

#[tokio::test]
async fn tells_what_was_sent_from_what_was_not() {
    let (_, nodes) = cluster(1).await;
    let client = connect(&nodes).await;
    nodes[0].behave(|behaviour| behaviour.holding = true);
    let count = IN_FLIGHT_MAX + 30;
    let calls: Vec<_> = (0..count).map(|_| client.append("ks/log", value())).collect();
    eventually("the first of them arrive", || nodes[0].seen().writes.len() > IN_FLIGHT_MAX).await;
    nodes[0].behave(|behaviour| behaviour.cuts += 1);
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(matches!(call.await.expect_err("cut"), WriteError::Unknown(_)));
    }
    let sent = outcomes.iter().filter(|unknown| **unknown).count();
    assert_eq!(sent, IN_FLIGHT_MAX, "no more than these were ever on their way");
    assert!(outcomes.is_sorted_by(|a, b| a >= b), "the first ones were sent, the last ones not");
    let received = nodes[0].seen().writes.len();
    assert_eq!(received, IN_FLIGHT_MAX + 1, "and a proof");
    nodes[0].behave(|behaviour| behaviour.holding = false);
    client.wait_for_leader_after(Epoch(1), PATIENCE).await.expect("a leader again");
    assert_eq!(client.append("ks/log", value()).await.expect("appended").value, 1);
}

#[tokio::test]
async fn a_tip_without_a_committed_put_is_no_tip() {
    let (_, nodes) = cluster(1).await;
    let client = connect(&nodes).await;
    client.append("ks/log", value()).await.expect("appended");
    assert_eq!(client.read_tip_with_proof("ks/log").await.expect("proven").sequence, 1);
    // As a deposed leader: it reads its old state, and commits nothing.
    nodes[0].behave(|behaviour| behaviour.holding = true);
    let writes = nodes[0].seen().writes.len();
    let (tip, ()) = tokio::join!(client.read_tip_with_proof("ks/log"), async {
        eventually("the put is sent", || nodes[0].seen().writes.len() > writes).await;
        nodes[0].behave(|behaviour| behaviour.cuts += 1);
    });
    assert!(tip.is_err_and(|error| error.is_transient()));
}

#[tokio::test]
async fn fails_at_once_without_a_leader() {
    let (_, nodes) = cluster(1).await;
    nodes[0].behave(|behaviour| behaviour.deposed = true);
    let client = Client::start(config(&nodes)).expect("a good configuration");
    let error = client.wait_for_leader(Duration::from_millis(300)).await.expect_err("none");
    assert_eq!(error.kind, Kind::NoLeader);
    let write = client.append("ks/log", value()).await.expect_err("none");
    assert!(matches!(write, WriteError::NotSent(error) if error.kind == Kind::NoLeader));
    assert_eq!(client.keep_alive(1).await.map_err(|error| error.kind), Err(Kind::NoLeader));
    nodes[0].behave(|behaviour| behaviour.deposed = false);
    client.wait_for_leader(PATIENCE).await.expect("a leader");
    client.append("ks/log", value()).await.expect("appended");
}

#[tokio::test]
async fn uses_the_extension_for_sessions_where_it_is_offered() {
    let (_, nodes) = cluster(1).await;
    let client = connect(&nodes).await;
    let session = client.create_session(Duration::from_secs(10), "me").await.expect("made").value;
    let mut batch = WriteBatch::new();
    batch.put_ephemeral("ks/a/1", "", Default::default(), session);
    batch.put_ephemeral("ks/b/1", "", Default::default(), session);
    batch.put("ks/a/2", "", Default::default());
    client.write(batch).await.expect("written");
    // Not offered: asked once, and the filter, which would be skipped, isn't used.
    for _ in 0..3 {
        assert_eq!(client.get_session(session).await.expect("asked").value, None);
    }
    assert_eq!(nodes[0].seen().get_session, 1);
    let range = KeyRange::children_of("ks/a").expect("a range");
    let keys = client.list_session_keys(session, &range, 9).await.expect("listed");
    assert_eq!(keys.value, [""; 0], "this node has no index to fall back on");
    // Offered by the next leader.
    nodes[0].behave(|behaviour| {
        behaviour.sessions = true;
        behaviour.cuts += 1;
    });
    client.wait_for_leader_after(Epoch(1), PATIENCE).await.expect("a leader again");
    let info = client.get_session(session).await.expect("asked").value.expect("told");
    assert_eq!((info.timeout, info.remaining), (Duration::from_secs(10), Duration::from_secs(4)));
    let keys = client.list_session_keys(session, &range, 9).await.expect("listed");
    assert_eq!(keys.value, ["ks/a/1"]);
    client.close_session(session).await.expect("closed");
    client.close_session(session).await.expect("closed again");
    for error in [
        client.keep_alive(session).await.expect_err("closed"),
        client.get_session(session).await.expect_err("closed"),
    ] {
        assert_eq!(error.kind, Kind::SessionNotFound);
    }
}

#[tokio::test]
async fn notifications_tell_what_they_missed() {
    let (store, nodes) = cluster(1).await;
    let batch = |offset| NotificationBatch { offset, ..NotificationBatch::default() };
    {
        let mut store = store.lock().expect("no panic elsewhere");
        store.offset = 9;
        // 5 has been trimmed: the server goes on with 6 as if there had been nothing.
        store.notifications = [4, 6, 7].map(batch).into();
    }
    let client = connect(&nodes).await;
    let mut notices = client.notifications(Some(3));
    let mut next = async || {
        let next = tokio::time::timeout(PATIENCE, notices.next()).await;
        next.expect("in time").expect("the client lives")
    };
    let changes = |offset| Notice::Changes { offset, events: vec![] };
    assert_eq!(next().await, Notice::From(3));
    assert_eq!(next().await, changes(4));
    assert_eq!(next().await, Notice::Gap { after: 4, next: 6 });
    assert_eq!(next().await, changes(6));
    assert_eq!(next().await, changes(7));
    // Another leader that has more goes on where the last one stopped.
    store.lock().expect("no panic elsewhere").notifications.push(batch(8));
    nodes[0].behave(|behaviour| behaviour.cuts += 1);
    assert_eq!(next().await, changes(8));
    assert_eq!(nodes[0].seen().starts.last(), Some(&Some(7)));
    // One whose log is shorter would say nothing for a long time.
    store.lock().expect("no panic elsewhere").offset = 1;
    nodes[0].behave(|behaviour| behaviour.cuts += 1);
    let Notice::Gap { after: 8, next } = next().await else { panic!("no gap") };
    assert!(next < 8, "{next}");
}

#[tokio::test]
async fn refuses_a_configuration_that_cannot_work() {
    let seeds = || vec!["127.0.0.1:1".parse().expect("an address")];
    for config in [
        Config::new(vec![], "ns", "ks", "ks/proof"),
        Config::new(seeds(), "", "ks", "ks/proof"),
        Config::new(seeds(), "ns", "ks", "__oxia/proof"),
    ] {
        assert_eq!(Client::start(config).err().map(|error| error.kind), Some(Kind::Invalid));
    }
    assert_eq!(Token::new("a\nb").err().map(|error| error.kind), Some(Kind::Invalid));
}

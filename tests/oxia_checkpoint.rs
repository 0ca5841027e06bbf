//! Checkpoints of gateways on a real Oxia server: the log is trimmed, new gateways start from a
//! checkpoint, and whoever makes them may die at it or have company.

mod support;

use std::sync::Arc;
use std::time::Duration;

use leaseway::backend::oxia::checkpoint::load::Loader;
use leaseway::backend::oxia::checkpoint::pin::Pin;
use leaseway::backend::oxia::checkpoint::write::{WriteError, Writer, read_head};
use leaseway::backend::oxia::cluster::ClusterShard;
use leaseway::backend::oxia::names::Names;
use leaseway::backend::oxia::shard::Shard;
use leaseway::keyspace::gateways::{Founded, Gateways};
use leaseway::storage::redb_engine::RedbEngine;
use leaseway::storage::tables::meta;
use leaseway::storage::{Batch, Durability, Engine, StorageError, Table};
use leaseway::vital::Vital;
use leaseway_proto::log::Member;
use support::client::{Client, eventually};
use support::oxia::Oxia;
use support::{PATIENCE, Server};
use tokio::task::JoinSet;

/// Starts a gateway that makes checkpoints often.
fn gateway(oxia: &Oxia, keyspace: &str) -> Server {
    let backend = format!("--backend=oxia://{}/default?keyspace={keyspace}", oxia.address());
    Server::start(&[&backend, "--checkpoint-log-bytes=100000"])
}

async fn shard(oxia: &Oxia, keyspace: &str) -> (Arc<ClusterShard>, Names) {
    let names = Names::new(keyspace);
    let client = Arc::new(oxia.client(keyspace).await);
    (Arc::new(ClusterShard::new(client, &names)), names)
}

/// Position of the log's first record.
async fn first(shard: &ClusterShard) -> u64 {
    let records = shard.read(1, 1).await.expect("a read");
    records.first().expect("never empty").position
}

/// Hash, compacted revision and all rows at a revision: what must be the same everywhere.
async fn picture(client: &Client, revision: i64) -> (u32, i64, Vec<(Vec<u8>, Vec<u8>, i64)>) {
    let hash = client.hash_kv(revision).await.expect("a hash");
    let rows = client.everything(revision).await.expect("rows").kvs;
    let rows = rows.into_iter().map(|row| (row.key.to_vec(), row.value.to_vec(), row.mod_revision));
    (hash.hash, hash.compact_revision, rows.collect())
}

/// Puts keys `from..to`, many at a time; the value is told by the key.
async fn put_many(client: &Client, from: usize, to: usize, length: usize) {
    let mut puts = JoinSet::new();
    for part in 0..20 {
        let client = client.clone();
        puts.spawn(async move {
            for key in (from..to).filter(|key| key % 20 == part) {
                client.put(format!("k{key:06}"), vec![b'v'; length], 0).await.expect("a put");
            }
        });
    }
    puts.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_gateway_needs_no_more_than_the_checkpoint_and_what_is_left_of_the_log() {
    let Some(oxia) = Oxia::start() else { return };
    let mut one = gateway(&oxia, "c");
    let (shard, names) = shard(&oxia, "c").await;
    let client = Client::connect(one.port).await;
    client.grant(7, 60).await.expect("a lease");
    client.grant(8, 4000).await.expect("a lease");
    client.put("on 7", "v", 7).await.expect("a put");
    client.put("on 8", "v", 8).await.expect("a put");
    put_many(&client, 0, 1500, 200).await;
    client.compact(client.revision().await - 100, false).await.expect("compacted");
    for key in 0..50 {
        client.delete(format!("k{key:06}")).await.expect("deleted");
    }
    put_many(&client, 1000, 2500, 200).await;
    let head = || async { read_head(&*shard, &names).await.ok().flatten().map(|(head, _)| head) };
    let trimmed = || async { (head().await.map_or(0, |head| head.position), first(&shard).await) };
    eventually(PATIENCE, "a trimmed log", trimmed, |(head, first)| *first > 1 && head == first)
        .await;

    let revision = client.revision().await;
    let before = picture(&client, revision).await;
    let mut two = gateway(&oxia, "c");
    let second = Client::connect(two.port).await;
    assert_eq!(second.revision().await, revision);
    assert_eq!(picture(&second, revision).await, before);
    let mut leases = second.leases().await.expect("leases");
    leases.sort_unstable();
    assert_eq!(leases, [7, 8]);
    assert_eq!(second.keep_alive(7).await.expect("renewed"), 60);
    assert!(second.time_to_live(8, true).await.expect("told").ttl > 3900);
    second.revoke(8).await.expect("revoked");
    assert!(client.get("on 8").await.expect("an answer").is_none());

    // Nobody is left, and what was in the first part of the log is in the checkpoint only.
    let revision = client.revision().await;
    let before = picture(&client, revision).await;
    one.kill();
    two.kill();
    let three = gateway(&oxia, "c");
    let third = Client::connect(three.port).await;
    assert_eq!(third.revision().await, revision);
    assert_eq!(picture(&third, revision).await, before);
    assert_eq!(third.leases().await.expect("leases"), [7]);
    assert_eq!(third.put("more", "v", 0).await.expect("a put"), revision + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_are_killed_again_and_again_while_they_make_checkpoints() {
    let Some(oxia) = Oxia::start() else { return };
    let mut servers = [gateway(&oxia, "k"), gateway(&oxia, "k")];
    let (shard, names) = shard(&oxia, "k").await;
    for round in 0..6 {
        let (dies, lives) = (round % 2, (round + 1) % 2);
        let client = Client::connect(servers[lives].port).await;
        let doomed = Client::connect(servers[dies].port).await;
        // A checkpoint of some 3 MB, half a dozen segments, is due after half of it.
        put_many(&doomed, 0, 60, 25_000).await;
        let writer = tokio::spawn({
            let client = client.clone();
            async move { put_many(&client, 60, 120, 25_000).await }
        });
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..1500))).await;
        servers[dies].kill();
        writer.await.expect("every put is acknowledged");
        client.compact(client.revision().await, false).await.expect("compacted");
        servers[dies].restart();
        let again = Client::connect(servers[dies].port).await;
        let revision = client.revision().await;
        assert_eq!(picture(&again, revision).await, picture(&client, revision).await, "{round}");
    }
    let trimmed = || first(&shard);
    eventually(PATIENCE, "a trimmed log", trimmed, |first| *first > 1).await;
    // In the end there is the head's checkpoint and no other.
    let kept = || async {
        let (head, _) = read_head(&*shard, &names).await.expect("a head").expect("there is one");
        let mut others = 0;
        for name in shard.names(&names.checkpoints()).await.expect("names") {
            let (folder, _) = names.checkpoint_of(&name).expect("a checkpoint's name");
            let parts = shard.names(&names.segments(folder)).await.expect("names").len();
            if folder == head.folder {
                assert!(parts > 1);
            } else {
                others += parts;
            }
        }
        others
    };
    eventually(2 * PATIENCE, "one checkpoint", kept, |others| *others == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_starting_is_alive_and_not_ready() {
    let Some(mut oxia) = Oxia::start() else { return };
    drop(oxia.client("s").await);
    oxia.kill();
    let one = gateway(&oxia, "s");
    let status = |path: &str| one.http("GET", path, &[]).status;
    assert_eq!(status("/livez"), 200);
    assert_eq!(status("/readyz"), 503);
    assert_eq!(status("/readyz/serializable_read"), 503, "nothing can be read yet");
    assert_eq!(status("/health"), 503);
    assert!(one.http("GET", "/metrics", &[]).body.contains("leaseway_load_bytes_expected 0"));
    // Who calls waits, and is served as soon as there is something to serve.
    let client = Client::connect(one.port).await;
    let put = tokio::spawn(async move { client.put("k", "v", 0).await });
    oxia.restart();
    assert_eq!(put.await.expect("no panic").expect("a put"), 2);
    assert_eq!(status("/readyz"), 200);
}

/// A store at a position, with a row of its own.
fn store(position: u64) -> Result<RedbEngine, StorageError> {
    let engine = RedbEngine::in_memory()?;
    let mut batch = Batch::default();
    meta::put_state(&mut batch, &meta::State { position, ..Default::default() });
    let founded = Some(Founded { incarnation: [7; 16], cluster_id: 1 });
    meta::put_gateways(&mut batch, &Gateways { founded, ..Gateways::default() }.encode());
    batch.put(Table::Rows, b"row".to_vec(), vec![position as u8; 1_000_000]);
    engine.commit(&batch, Durability::Immediate)?;
    Ok(engine)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_make_checkpoints_at_once() {
    let Some(oxia) = Oxia::start() else { return };
    let (one, names) = shard(&oxia, "t").await;
    let (two, _) = shard(&oxia, "t").await;
    for _ in 0..40 {
        one.append("a record".into()).await.expect("appended");
    }
    for round in 1..=10_u64 {
        let at = |position| {
            let (shard, names) = if position % 2 == 0 { (&one, &names) } else { (&two, &names) };
            async move {
                let engine = store(position)?;
                let snapshot = engine.snapshot()?;
                Writer { shard: &**shard, names, applied: &|| 0 }.write(&*snapshot).await
            }
        };
        let (earlier, later) = tokio::join!(at(2 * round), at(2 * round + 1));
        let later = later.expect("nobody has a later one");
        assert!(matches!(earlier, Ok(_) | Err(WriteError::Overtaken)), "{earlier:?}");
        let (head, _) = read_head(&*one, &names).await.expect("a head").expect("there is one");
        assert_eq!(head, later);
    }
    let pin = Pin::set(one.clone(), &names, &Member::default(), &Vital::default()).await;
    let loader = Loader { shard: &one, names: &names, pin: &pin, progress: &|_, _| {} };
    let loaded = loader.load(|| Ok(Arc::new(RedbEngine::in_memory()?))).await.expect("loads");
    let mut row = Vec::new();
    let snapshot = loaded.snapshot().expect("a snapshot");
    snapshot.get(Table::Rows, b"row", &mut |value| row = value.to_vec()).expect("a row");
    assert_eq!(row, vec![21; 1_000_000]);
}

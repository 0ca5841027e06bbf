//! `kill -9` while clients write.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use super::history::{Changes, Lease, Lost, Model, Record};
use crate::support::client::{Client, changed_at, delete, op, put, revision};
use crate::support::{PATIENCE, Server};

const ROUNDS: u64 = 6;
/// Keys of each writer.
const KEYS: usize = 16;

/// One client that writes until the server is gone.
struct Writer {
    client: Client,
    record: Record,
    random: StdRng,
    /// Makes names and values unlike those of every other writer.
    name: String,
    sent: u64,
}

type Forever = Result<Infallible, Lost>;
type Task = Pin<Box<dyn Future<Output = Forever> + Send>>;
type Act = fn(Writer, i64) -> Task;

impl Writer {
    fn value(&mut self) -> Vec<u8> {
        self.sent += 1;
        let length = match self.random.random_range(0..40) {
            0 => 60_000,
            1..10 => 2_000,
            _ => 20,
        };
        format!("{}/{}/{}", self.name, self.sent, "x".repeat(length)).into_bytes()
    }

    /// Puts and deletes single keys.
    async fn singles(mut self) -> Forever {
        let mut alive = [false; KEYS];
        loop {
            let chosen = self.random.random_range(0..KEYS);
            let key = format!("{}/{chosen}", self.name).into_bytes();
            let client = self.client.clone();
            if alive[chosen] && self.random.random_bool(0.2) {
                let changes = vec![(key.clone(), None)];
                let call = async { client.delete(key).await.map(Some) };
                self.record.attempt(changes, call).await?;
                alive[chosen] = false;
            } else {
                let value = self.value();
                let changes = vec![(key.clone(), Some((value.clone(), 0)))];
                let call = async { client.put(key, value, 0).await.map(Some) };
                self.record.attempt(changes, call).await?;
                alive[chosen] = true;
            }
        }
    }

    /// Replaces several keys in one transaction, on condition that nobody else did meanwhile.
    async fn sets(mut self) -> Forever {
        let keys = ["a", "b", "c"].map(|part| format!("{}/{part}", self.name).into_bytes());
        let mut last = 0;
        loop {
            let value = self.value();
            // The third key comes and goes.
            let mut changes: Changes =
                keys[..2].iter().map(|key| (key.clone(), Some((value.clone(), 0)))).collect();
            let mut success: Vec<pb::RequestOp> = keys[..2]
                .iter()
                .map(|key| op(Request::RequestPut(put(key.clone(), value.clone(), 0))))
                .collect();
            if self.sent.is_multiple_of(2) {
                changes.push((keys[2].clone(), None));
                success.push(op(Request::RequestDeleteRange(delete(keys[2].clone()))));
            } else {
                changes.push((keys[2].clone(), Some((value.clone(), 0))));
                success.push(op(Request::RequestPut(put(keys[2].clone(), value, 0))));
            }
            let compare = vec![changed_at(keys[0].clone(), last)];
            let request = pb::TxnRequest { compare, success, failure: Vec::new() };
            let client = self.client.clone();
            let changed = self.record.attempt(changes, txn(&client, request)).await?;
            last = changed.expect("nobody else writes these keys");
        }
    }

    /// Counts up in a key that all of them share.
    async fn counts(mut self) -> Forever {
        loop {
            let row = self.record.answered(self.client.get("counter").await)?;
            let (count, last) = row.map_or((0, 0), |kv| (count(&kv.value), kv.mod_revision));
            let value = [format!("{} ", count + 1).as_bytes(), &self.value()].concat();
            let changes = vec![(b"counter".to_vec(), Some((value.clone(), 0)))];
            let request = pb::TxnRequest {
                compare: vec![changed_at("counter", last)],
                success: vec![op(Request::RequestPut(put("counter", value, 0)))],
                failure: Vec::new(),
            };
            let client = self.client.clone();
            self.record.attempt(changes, txn(&client, request)).await?;
        }
    }

    /// Grants leases, hangs keys on them and revokes some.
    async fn leases(mut self) -> Forever {
        loop {
            let id = self.random.random_range(1..i64::MAX);
            self.record.lease(id, Lease::Asked);
            self.record.answered(self.client.grant(id, 3600).await)?;
            self.record.lease(id, Lease::Granted);
            let (key, value) = (format!("{}/{id:x}", self.name).into_bytes(), self.value());
            let changes = vec![(key.clone(), Some((value.clone(), id)))];
            let client = self.client.clone();
            let call = async { client.put(key.clone(), value, id).await.map(Some) };
            self.record.attempt(changes, call).await?;
            if self.random.random_bool(0.8) {
                self.record.lease(id, Lease::Ending);
                let call = async { client.revoke(id).await.map(Some) };
                self.record.attempt(vec![(key, None)], call).await?;
                self.record.lease(id, Lease::Ended);
            }
        }
    }

    /// Compacts what was verified after the last start, once, somewhere in the middle.
    async fn compacts(mut self, verified: i64) -> Forever {
        let wait = self.random.random_range(1..200);
        while self.record.acknowledged() < wait {
            if self.record.ending.load(Ordering::SeqCst) {
                return Err(Lost);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if verified > 1 {
            let physical = self.random.random_bool(0.5);
            self.record.answered(self.client.compact(verified, physical).await)?;
            self.record.compacted(verified);
        }
        Err(Lost)
    }

    /// Notes what a reader is shown.
    async fn reads(mut self) -> Forever {
        loop {
            let serializable = self.random.random_bool(0.5);
            let request = pb::RangeRequest {
                key: b"counter".as_slice().into(),
                serializable,
                ..Default::default()
            };
            let answer = self.record.answered(self.client.range(request).await)?;
            self.record.saw_row(answer.kvs.first(), revision(answer.header.as_ref()));
        }
    }

    /// Notes what a watcher is told.
    async fn watches(self, from: i64) -> Forever {
        let mut watching = self.record.answered(self.client.watch_everything(from).await)?;
        loop {
            let answer = self.record.answered(watching.next().await)?.ok_or(Lost)?;
            for event in &answer.events {
                self.record.saw_event(event);
            }
        }
    }
}

async fn txn(client: &Client, request: pb::TxnRequest) -> Result<Option<i64>, tonic::Status> {
    let answer = client.txn(request).await?;
    Ok(answer.succeeded.then(|| revision(answer.header.as_ref())))
}

fn count(value: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(value);
    text.split(' ').next().and_then(|count| count.parse().ok()).expect("a counter's value")
}

/// Starts everybody.
async fn load(port: u16, record: &Record, round: u64, verified: i64) -> JoinSet<Forever> {
    let mut tasks = JoinSet::new();
    let roles: [(&str, usize, Act); 7] = [
        ("singles", 4, |writer, _| Box::pin(writer.singles())),
        ("sets", 2, |writer, _| Box::pin(writer.sets())),
        ("counts", 3, |writer, _| Box::pin(writer.counts())),
        ("leases", 2, |writer, _| Box::pin(writer.leases())),
        ("compacts", 1, |writer, verified| Box::pin(writer.compacts(verified))),
        ("reads", 1, |writer, _| Box::pin(writer.reads())),
        ("watches", 1, |writer, verified| Box::pin(writer.watches(verified + 1))),
    ];
    for (role, number, act) in roles {
        for who in 0..number {
            let writer = Writer {
                client: Client::connect(port).await,
                record: record.clone(),
                random: StdRng::seed_from_u64(round << 32 | (role.len() * 16 + who) as u64),
                name: format!("{round}/{role}/{who}"),
                sent: 0,
            };
            tasks.spawn(act(writer, verified));
        }
    }
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_by_kill_9() {
    let mut random = StdRng::seed_from_u64(9);
    let mut server = Server::start(&[]);
    let mut model = Model::default();
    for round in 0..ROUNDS {
        let what = format!("round {round}");
        let record = Record::default();
        let mut tasks = load(server.port, &record, round, model.revision).await;
        // The moment of the end is a number of acknowledgements, so that a slow machine does not
        // make it an idle one.
        let enough = random.random_range(20..600);
        let deadline = Instant::now() + PATIENCE;
        while record.acknowledged() < enough {
            assert!(Instant::now() < deadline, "{what}: {} of {enough}", record.acknowledged());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        record.ending.store(true, Ordering::SeqCst);
        server.kill();
        while let Some(ended) = tasks.join_next().await {
            assert!(matches!(ended.expect("no panic"), Err(Lost)));
        }
        // Sometimes the start is cut short as well.
        for _ in 0..random.random_range(0..3) {
            server.launch_again();
            tokio::time::sleep(Duration::from_millis(random.random_range(0..80))).await;
            server.kill();
        }
        server.restart();
        let client = Client::connect(server.port).await;
        model.verify(&client, &record, &what).await;
        check_counter(&client, &model, &what).await;
    }
    in_order(&mut server, &mut model).await;
}

/// The counter never lost an increment: its value is the number of times that it was changed.
async fn check_counter(client: &Client, model: &Model, what: &str) {
    let row = client.get("counter").await.expect("an answer");
    let Some(kv) = row else { return };
    assert_eq!(count(&kv.value), u64::try_from(kv.version).expect("positive"), "{what}");
    assert_eq!(model.rows["counter".as_bytes()].version, kv.version, "{what}");
}

/// A start after an end in order shows the same in every way.
async fn in_order(server: &mut Server, model: &mut Model) {
    let client = Client::connect(server.port).await;
    let before = client.hash_kv(0).await.expect("a hash");
    server.stop();
    server.restart();
    let client = Client::connect(server.port).await;
    model.verify(&client, &Record::default(), "after an end in order").await;
    let after = client.hash_kv(0).await.expect("a hash");
    let of =
        |answer: &pb::HashKvResponse| (answer.hash, answer.compact_revision, answer.hash_revision);
    assert_eq!(of(&after), of(&before));
    assert_eq!(after.hash_revision, model.revision);
}

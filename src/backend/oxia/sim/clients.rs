//! Clients of the simulated gateways, each of which checks what it is told against what is true.

use super::gateway::{Gateway, LONGEST, Serving};
use super::oracle::{Fate, number};
use super::world::World;
use crate::backend::Log;
use crate::keyspace::command::{Op, Outcome, Reply, command};
use crate::keyspace::reader::Reader;
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use parking_lot::Mutex;
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// What clients share.
pub struct Field {
    /// The shard.
    pub world: Arc<World>,
    /// The gateways that run now.
    pub gateways: Mutex<Vec<Arc<Gateway>>>,
}

/// How clients behave. Chances are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Longest pause between a writer's requests.
    pub pause: Duration,
    /// A request goes to the client's own gateway, of which each has one, and not to any.
    pub own: u32,
    /// Lessees put a key as soon as they have a lease.
    pub puts: u32,
    /// Most renewals of a lease.
    pub renewals: u32,
    /// At least this share of its time passes before each.
    pub early: f64,
    /// At most this share of its time passes before each.
    pub late: f64,
    /// Another client renews the same lease at the same moment.
    pub twice: u32,
    /// A lease that is not renewed any more is revoked.
    pub revokes: u32,
    /// Longest pause before the next lease.
    pub again: Duration,
}

/// One client.
pub struct Client {
    field: Arc<Field>,
    id: usize,
    random: StdRng,
    count: u64,
    until: Instant,
    habits: Habits,
    others: JoinSet<()>,
}

fn range(key: &[u8]) -> pb::RangeRequest {
    pb::RangeRequest { key: Bytes::copy_from_slice(key), ..Default::default() }
}

/// A key's value, the revision that it was put at, and the current revision.
fn read(reader: &Reader, key: &[u8]) -> (Option<(Bytes, i64)>, i64) {
    let reply = reader.range(&range(key), None).expect("a map and the current revision");
    let response = pb::RangeResponse::decode(&reply.encode_to_vec()[..]).expect("encoded here");
    let revision = response.header.map_or(0, |header| header.revision);
    (response.kvs.into_iter().next().map(|kv| (kv.value, kv.mod_revision)), revision)
}

impl Client {
    /// A client that works until then.
    pub fn new(field: Arc<Field>, id: usize, seed: u64, until: Instant, habits: Habits) -> Self {
        let random = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(id as u64));
        Self { field, id, random, count: 0, until, habits, others: JoinSet::new() }
    }

    fn happens(&mut self, thousandths: u32) -> bool {
        self.random.random_range(0..1000) < thousandths
    }

    fn violate(&self, what: String) {
        let mut world = self.field.world.lock();
        world.oracle.violate(format!("client {}: {what}", self.id));
    }

    fn note(&self, what: &str, a: u64, b: u64) {
        self.field.world.lock().note(what, a, b);
    }

    fn seen(&self) -> i64 {
        self.field.world.lock().seen
    }

    /// A revision that was told: not below `floor`, which everyone had seen before.
    fn see(&self, what: &str, revision: i64, floor: i64) {
        let mut world = self.field.world.lock();
        world.seen = world.seen.max(revision);
        if revision < floor {
            let told = format!("client {}: {what} at {revision} after {floor}", self.id);
            world.oracle.violate(told);
        }
    }

    fn truth(&self, key: &[u8], revision: i64) -> Option<(Bytes, i64)> {
        self.field.world.lock().oracle.value_at(key, revision)
    }

    fn fate(&self, lease: i64) -> (Fate, bool) {
        let world = self.field.world.lock();
        let lives = world.oracle.lives_since(lease).is_some();
        (world.oracle.fates.get(&lease).copied().unwrap_or_default(), lives)
    }

    /// A request to a random gateway; `None` when none serves, or it was killed.
    async fn ask<T, F: Future<Output = T>>(
        &mut self,
        request: impl FnOnce(Arc<Serving>) -> F,
    ) -> Option<T> {
        let own = self.habits.own > 0 && self.happens(self.habits.own);
        let gateway = {
            let gateways = self.field.gateways.lock();
            let mut any = || self.random.random_range(0..gateways.len());
            gateways[if own { self.id % gateways.len() } else { any() }].clone()
        };
        let Some(serving) = gateway.serving() else {
            sleep(Duration::from_millis(30)).await;
            return None;
        };
        let world = self.field.world.clone();
        gateway.answer(&world, request(serving)).await
    }

    fn unique(&mut self) -> Bytes {
        self.count += 1;
        format!("{}.{}", self.id, self.count).into()
    }

    /// Puts, gets and counts.
    pub async fn write(mut self) {
        while Instant::now() < self.until {
            match self.random.random_range(0..10) {
                0..4 => self.put(0).await,
                4..7 => self.get().await,
                _ => self.count_up().await,
            }
            let pause = self.random.random_range(0..self.habits.pause.as_millis() as u64);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn propose(&mut self, op: Op) -> Option<Outcome> {
        self.ask(|serving| async move { serving.log.propose(command(op)).await }).await?.ok()
    }

    async fn put(&mut self, lease: i64) {
        let (value, floor, begun) = (self.unique(), self.seen(), Instant::now());
        let key = format!("key{}", self.random.random_range(0..3));
        let key = if lease == 0 { key } else { format!("leased{lease}") };
        let put = pb::PutRequest {
            key: key.clone().into(),
            value: value.clone(),
            lease,
            ..Default::default()
        };
        let (before, lived) = self.fate(lease);
        let Some(outcome) = self.propose(Op::Put(put)).await else {
            return self.note("put unknown", self.id as u64, self.count);
        };
        self.note("put", self.id as u64, outcome.revision as u64);
        match outcome.reply {
            Ok(_) => {
                self.see("a put", outcome.revision, floor + 1);
                let truth = self.truth(key.as_bytes(), outcome.revision);
                if truth != Some((value.clone(), outcome.revision)) {
                    self.violate(format!("{value:?} was not put at {}", outcome.revision));
                }
            }
            Err(refusal) => {
                let (after, lives) = self.fate(lease);
                let all_along = lived && lives && before.lives == after.lives;
                if lease == 0 || all_along {
                    self.violate(format!("a put since {begun:?} was refused: {refusal}"));
                }
            }
        }
    }

    async fn get(&mut self) {
        let floor = self.seen();
        let counter = self.random.random_bool(0.3);
        let key = if counter {
            "counter".into()
        } else {
            format!("key{}", self.random.random_range(0..3))
        };
        let asked = key.clone();
        let answer = self.ask(|serving| async move {
            serving.log.barrier().await.ok()?;
            Some(read(&serving.reader, asked.as_bytes()))
        });
        let Some(Some((found, revision))) = answer.await else { return };
        self.note("get", self.id as u64, revision as u64);
        self.see("a get", revision, floor);
        if self.truth(key.as_bytes(), revision) != found {
            self.violate(format!("{found:?} was read from {key} at {revision}"));
        }
    }

    async fn count_up(&mut self) {
        const KEY: &[u8] = b"counter";
        let floor = self.seen();
        let answer = self.ask(|serving| async move {
            let (found, _) = read(&serving.reader, KEY);
            let (count, revision) =
                found.map_or((0, 0), |(value, revision)| (number(&value), revision));
            let compare = pb::Compare {
                key: KEY.into(),
                target: pb::compare::CompareTarget::Mod.into(),
                target_union: Some(pb::compare::TargetUnion::ModRevision(revision)),
                ..Default::default()
            };
            let value = Bytes::from((count + 1).to_string());
            let put = pb::PutRequest { key: KEY.into(), value, ..Default::default() };
            let op = |request| pb::RequestOp { request: Some(request) };
            let txn = pb::TxnRequest {
                compare: vec![compare],
                success: vec![op(pb::request_op::Request::RequestPut(put))],
                failure: vec![op(pb::request_op::Request::RequestRange(range(KEY)))],
            };
            Some((count, serving.log.propose(command(Op::Txn(txn))).await.ok()?))
        });
        let Some(Some((count, outcome))) = answer.await else { return };
        let Ok(Reply::Txn(response)) = outcome.reply else {
            return self.violate("a transaction was refused".into());
        };
        self.note("count", self.id as u64, outcome.revision as u64);
        let truth = self.truth(KEY, outcome.revision);
        if response.succeeded {
            self.see("a count", outcome.revision, floor + 1);
            let counted = Bytes::from((count + 1).to_string());
            if truth != Some((counted, outcome.revision)) {
                self.violate(format!("no count of {} at {}", count + 1, outcome.revision));
            }
            return;
        }
        self.see("a failed count", outcome.revision, floor);
        let found = response.responses.into_iter().find_map(|op| match op.response? {
            pb::response_op::Response::ResponseRange(range) => range.kvs.into_iter().next(),
            _ => None,
        });
        if found.map(|kv| (kv.value, kv.mod_revision)) != truth {
            self.violate(format!("a wrong count was read at {}", outcome.revision));
        }
    }

    /// Grants leases, renews them for a while and leaves or revokes them.
    pub async fn lease(mut self, long: bool) {
        while Instant::now() < self.until {
            let id = self.id as i64 * 10 + self.random.random_range(1..3);
            let ttl = if long && self.random.random_bool(0.7) {
                LONGEST.as_secs() as i64 + self.random.random_range(1..3)
            } else {
                self.random.random_range(2..4)
            };
            if self.grant(id, ttl).await {
                self.keep(id, ttl).await;
            }
            if self.happens(self.habits.revokes) {
                self.revoke(id).await;
            }
            let pause = self.random.random_range(0..self.habits.again.as_millis() as u64);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Uses a lease for a while.
    async fn keep(&mut self, id: i64, ttl: i64) {
        if self.happens(self.habits.puts) {
            self.put(id).await;
        }
        let renewals = self.random.random_range(0..=self.habits.renewals);
        for _ in 0..renewals {
            let share = self.random.random_range(self.habits.early..self.habits.late);
            sleep(Duration::from_secs_f64(ttl as f64 * share)).await;
            if self.habits.twice > 0 && self.happens(self.habits.twice) {
                let (field, seed) = (self.field.clone(), self.random.random());
                let habits = Habits { own: 0, ..self.habits };
                let mut other = Client::new(field, self.id, seed, self.until, habits);
                self.others.spawn(async move {
                    other.renew(id, ttl).await;
                });
            }
            if !self.renew(id, ttl).await {
                break;
            }
        }
    }

    async fn grant(&mut self, id: i64, ttl: i64) -> bool {
        let (before, _) = self.fate(id);
        let answer =
            self.ask(|serving| async move { serving.leases.grant(id, ttl, None).await }).await;
        let Some(Ok(_)) = answer else {
            self.note("no grant", id as u64, 0);
            return false;
        };
        let (after, lives) = self.fate(id);
        self.note("grant", id as u64, u64::from(lives));
        let Some(granted) = after.granted.filter(|_| after.lives > before.lives) else {
            self.violate(format!("lease {id} was not granted"));
            return false;
        };
        let promise = granted + self.lasts(ttl);
        self.promise(id, after, lives, promise);
        lives
    }

    /// How long a lease lives at least, in true time.
    fn lasts(&self, ttl: i64) -> Duration {
        self.field.world.lock().at_least(Duration::from_secs(ttl.unsigned_abs()))
    }

    fn promise(&self, id: i64, fate: Fate, lives: bool, promise: Instant) {
        if lives {
            let mut world = self.field.world.lock();
            let kept = world.oracle.promises.entry(id).or_insert(promise);
            *kept = promise.max(*kept);
        } else if let Some(ended) = fate.ended.filter(|ended| fate.expired && *ended < promise) {
            self.violate(format!(
                "lease {id} expired {:?} early before the answer",
                promise - ended
            ));
        }
    }

    async fn renew(&mut self, id: i64, ttl: i64) -> bool {
        let ((before, lived), begun) = (self.fate(id), Instant::now());
        let answer = self.ask(|serving| async move { serving.leases.keep_alive(id).await }).await;
        let Some(Ok(told)) = answer else {
            self.note("no renewal", id as u64, 0);
            return true;
        };
        let (after, lives) = self.fate(id);
        self.note("renewal", id as u64, told as u64);
        let same = before.lives == after.lives;
        if told == 0 {
            if lived && lives && same {
                self.violate(format!("the renewal of lease {id} was refused, but it lives"));
            }
            return false;
        }
        if !lived && !lives && same {
            self.violate(format!("lease {id} was renewed, but had ended"));
        }
        if same {
            self.promise(id, after, lives, begun + self.lasts(ttl));
        }
        true
    }

    async fn revoke(&mut self, id: i64) {
        self.field.world.lock().oracle.promises.remove(&id);
        let (before, _) = self.fate(id);
        let answer = self.ask(|serving| async move { serving.leases.revoke(id, None).await }).await;
        self.note("revoke", id as u64, u64::from(matches!(answer, Some(Ok(_)))));
        if let Some(Ok(_)) = answer {
            let (after, lives) = self.fate(id);
            if lives && before.lives == after.lives {
                self.violate(format!("lease {id} was revoked, but lives"));
            }
        }
    }
}

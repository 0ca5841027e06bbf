//! Random commands against a naive model, and against power cuts.

use super::auth::{AuthState, change};
use super::command::{Command, Op, Outcome, Reply, internal};
use super::error::Refusal;
use super::load::load;
use super::machine::Machine;
use super::reader::Reader;
use super::staging::Staging;
use super::view::View;
use crate::backend::local::recover::{self, make_room, recover};
use crate::backend::local::wal::{Files, Wal};
use crate::storage::behind::Behind;
use crate::storage::power_cut::Disk;
use crate::storage::redb_engine::RedbEngine;
use crate::storage::{Batch, Durability, Engine, StorageError};
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::log::{
    AuthDisable, AuthEnable, LeaseGrant, LeaseRevoke, UserAdd, UserPassword,
};
use leaseway_proto::mvccpb::KeyValue;
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const STORE: [u8; 16] = [1; 16];
/// Bytes of each log file: few groups, so that checkpoints are frequent.
const LOG: usize = 1 << 10;

/// A keyspace over an engine and a log, driven by hand.
struct Driven {
    machine: Machine,
    engine: Arc<dyn Engine>,
    /// The store's file, which may be behind.
    file: Behind,
    wal: Wal,
    view: Arc<View>,
}

fn files(logs: [Disk; 2]) -> Files {
    logs.map(|log| Box::new(log) as _)
}

impl Driven {
    fn create(store: Disk, logs: [Disk; 2]) -> Result<Self, StorageError> {
        let engine = RedbEngine::with_backend(store, 1 << 20)?;
        let machine = load(&*engine.snapshot()?, &mut |_| {})?;
        let wal = Wal::create(files(logs), STORE, LOG)?;
        engine.commit(&machine.checkpoint_batch(), Durability::Immediate)?;
        let view = Arc::new(View::new(machine.published()));
        Ok(Self { machine, file: engine.file().clone(), engine: Arc::new(engine), wal, view })
    }

    fn open(store: Disk, logs: [Disk; 2]) -> Result<Self, StorageError> {
        let engine = RedbEngine::with_backend(store, 1 << 20)?;
        let mut machine = load(&*engine.snapshot()?, &mut |_| {})?;
        let position = machine.published().position;
        let (mut wal, groups) = Wal::open(files(logs), STORE, position)?;
        recover(&mut machine, &engine, &mut wal, groups)?;
        let view = Arc::new(View::new(machine.published()));
        Ok(Self { machine, file: engine.file().clone(), engine: Arc::new(engine), wal, view })
    }

    fn group(&mut self, commands: &[Command]) -> Result<Vec<Outcome>, StorageError> {
        let snapshot = self.engine.snapshot()?;
        let mut staging = Staging::new(snapshot, self.machine.next_position());
        let mut outcomes = Vec::new();
        for command in commands {
            outcomes.push(self.machine.apply(&mut staging, command)?);
        }
        let changed = commands.iter().zip(&outcomes).filter(|(_, outcome)| outcome.changed);
        let logged: Vec<Command> = changed.map(|(command, _)| command.clone()).collect();
        let known = self.view.now().visible.compacted;
        self.machine.compaction_step(&mut staging, known)?;
        if logged.is_empty() {
            self.machine.finish_group(&mut staging, false);
            self.engine.commit(&staging.finish().0, Durability::Deferred)?;
        } else {
            let position = staging.position;
            let entry = self.wal.entry(position, logged);
            make_room(&mut self.wal, &*self.engine, &entry)?;
            self.machine.finish_group(&mut staging, true);
            let batch = staging.finish().0;
            // Both are done at once; whichever is first must not matter.
            if position.is_multiple_of(2) {
                self.wal.append(&entry)?;
                self.engine.commit(&batch, Durability::Deferred)?;
            } else {
                self.engine.commit(&batch, Durability::Deferred)?;
                self.wal.append(&entry)?;
            }
        }
        self.view.publish(self.machine.published());
        Ok(outcomes)
    }

    fn checkpoint(&mut self) -> Result<(), StorageError> {
        recover::checkpoint(&self.machine, &*self.engine, &mut self.wal)
    }

    fn reader(&self) -> Reader {
        Reader::new(self.machine.shared().clone(), self.engine.clone(), self.view.clone())
    }

    fn everything(&self, revision: i64) -> Result<Vec<KeyValue>, super::error::ReadError> {
        let request = pb::RangeRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            revision,
            ..Default::default()
        };
        let reply = self.reader().range(&request, Some(&super::auth::GATEWAY))?;
        let decoded = pb::RangeResponse::decode(&reply.encode_to_vec()[..]).unwrap();
        assert_eq!(decoded.count as usize, decoded.kvs.len());
        Ok(decoded.kvs)
    }
}

/// The model: the whole keyspace at every revision, as plain maps.
#[derive(Clone, Default)]
struct Model {
    history: BTreeMap<i64, BTreeMap<Bytes, KeyValue>>,
    leases: BTreeMap<i64, ()>,
    revision: i64,
    compacted: i64,
    /// Not naive: what is compared is that it comes back from storage and log.
    auth: Arc<AuthState>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self { revision: 1, compacted: -1, ..Self::default() };
        model.history.insert(1, BTreeMap::new());
        model
    }

    fn now(&self) -> BTreeMap<Bytes, KeyValue> {
        self.history[&self.revision].clone()
    }

    fn commit(&mut self, before: &BTreeMap<Bytes, KeyValue>, after: BTreeMap<Bytes, KeyValue>) {
        if *before != after {
            self.revision += 1;
            self.history.insert(self.revision, after);
        }
    }

    fn put(&self, keys: &mut BTreeMap<Bytes, KeyValue>, put: &pb::PutRequest) {
        let revision = self.revision + 1;
        let old = keys.get(&put.key);
        let kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create_revision: old.map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.map_or(1, |old| old.version + 1),
            lease: put.lease,
        };
        keys.insert(put.key.clone(), kv);
    }

    fn apply(&mut self, command: &Command) -> Result<(), Refusal> {
        let before = self.now();
        let mut after = before.clone();
        match command.op.as_ref().unwrap() {
            Op::Put(put) => {
                if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                    return Err(Refusal::LeaseNotFound);
                }
                self.put(&mut after, put);
            }
            Op::DeleteRange(delete) => {
                let (start, end) = (&delete.key[..], &delete.range_end[..]);
                after.retain(|key, _| match end {
                    b"" => key != start,
                    b"\0" => &key[..] < start,
                    end => &key[..] < start || &key[..] >= end,
                });
            }
            Op::Txn(txn) => {
                // The generator makes one compare: the first key's version is 0.
                let absent = !before.contains_key(&txn.compare[0].key);
                let branch = if absent { &txn.success } else { &txn.failure };
                for op in branch {
                    match op.request.as_ref().unwrap() {
                        Request::RequestPut(put) => self.put(&mut after, put),
                        Request::RequestDeleteRange(delete) => {
                            after.remove(&delete.key);
                        }
                        _ => unreachable!("not generated"),
                    }
                }
            }
            Op::Compact(compact) => {
                if compact.revision <= self.compacted {
                    return Err(Refusal::Compacted);
                }
                if compact.revision > self.revision {
                    return Err(Refusal::FutureRevision);
                }
                self.compacted = compact.revision;
            }
            Op::LeaseGrant(grant) => {
                if self.leases.contains_key(&grant.id) {
                    return Err(Refusal::LeaseExists);
                }
                self.leases.insert(grant.id, ());
            }
            Op::LeaseRevoke(revoke) => {
                if self.leases.remove(&revoke.id).is_none() {
                    return Err(Refusal::LeaseNotFound);
                }
                after.retain(|_, kv| kv.lease != revoke.id);
            }
            op => change::apply(&mut self.auth, &mut Batch::default(), op)?,
        }
        self.commit(&before, after);
        Ok(())
    }
}

fn key(random: &mut StdRng) -> Bytes {
    let letters = b"abc\0\xff";
    let length = random.random_range(1..=3);
    (0..length).map(|_| letters[random.random_range(0..letters.len())]).collect::<Vec<_>>().into()
}

fn put(random: &mut StdRng) -> pb::PutRequest {
    let length = random.random_range(0..40);
    let value = (0..length).map(|_| random.random()).collect::<Vec<u8>>().into();
    let lease = if random.random_ratio(1, 3) { random.random_range(1..4) } else { 0 };
    pb::PutRequest { key: key(random), value, lease, ..Default::default() }
}

fn random_change_of_users(random: &mut StdRng) -> Op {
    let mut name = || ["root", "ann", "bob"][random.random_range(0..3)].to_string();
    let (name, role) = (name(), name());
    let secret = || Bytes::from_static(b"0123456789abcdef");
    match random.random_range(0..12) {
        0..3 => {
            let no_password = random.random();
            Op::UserAdd(UserAdd { name, password_hash: secret(), no_password })
        }
        3 => Op::UserDelete(pb::AuthUserDeleteRequest { name }),
        4 => Op::UserPassword(UserPassword { name, password_hash: secret() }),
        5..7 => Op::UserGrantRole(pb::AuthUserGrantRoleRequest { user: name, role }),
        7 => Op::UserRevokeRole(pb::AuthUserRevokeRoleRequest { name, role }),
        8 => Op::RoleAdd(pb::AuthRoleAddRequest { name }),
        9 => Op::RoleDelete(pb::AuthRoleDeleteRequest { role }),
        10 => {
            let (key, range_end) = (key(random), key(random));
            let perm_type = random.random_range(0..3);
            let perm = Some(leaseway_proto::authpb::Permission { perm_type, key, range_end });
            Op::RoleGrantPermission(pb::AuthRoleGrantPermissionRequest { name, perm })
        }
        _ if random.random() => Op::AuthEnable(AuthEnable { token_key: secret() }),
        _ => Op::AuthDisable(AuthDisable {}),
    }
}

fn random_command(random: &mut StdRng, revision: i64) -> Command {
    let request_op = |request| pb::RequestOp { request: Some(request) };
    internal(match random.random_range(0..115) {
        100.. => random_change_of_users(random),
        0..50 => Op::Put(put(random)),
        50..65 => {
            let range_end = if random.random() { key(random) } else { Bytes::new() };
            Op::DeleteRange(pb::DeleteRangeRequest { key: key(random), range_end, prev_kv: false })
        }
        65..80 => {
            let one = pb::PutRequest { lease: 0, ..put(random) };
            let gone = pb::DeleteRangeRequest { key: key(random), ..Default::default() };
            Op::Txn(pb::TxnRequest {
                compare: vec![pb::Compare {
                    key: one.key.clone(),
                    target: pb::compare::CompareTarget::Version as i32,
                    ..Default::default()
                }],
                success: vec![request_op(Request::RequestPut(one))],
                failure: vec![request_op(Request::RequestDeleteRange(gone))],
            })
        }
        80..88 => {
            let revision = random.random_range((revision - 8).max(-1)..=revision + 1);
            Op::Compact(pb::CompactionRequest { revision, physical: false })
        }
        88..95 => {
            let id = random.random_range(1..4);
            Op::LeaseGrant(LeaseGrant { id, ttl: 60, session: 1, marker: String::new() })
        }
        _ => Op::LeaseRevoke(LeaseRevoke { id: random.random_range(1..4) }),
    })
}

fn check(driven: &Driven, model: &Model) {
    assert_eq!(driven.machine.published().auth, model.auth);
    assert_eq!(driven.view.now().visible.revision, model.revision);
    for revision in 1..=model.revision {
        let read = driven.everything(revision);
        if revision < model.compacted {
            assert!(read.is_err(), "revision {revision} is compacted");
        } else {
            let expected: Vec<KeyValue> = model.history[&revision].values().cloned().collect();
            assert_eq!(read.unwrap(), expected, "at revision {revision}");
        }
    }
    for id in 1..4 {
        let held = driven.machine.shared().leases.keys(id, None, usize::MAX).value;
        assert_eq!(held.is_some(), model.leases.contains_key(&id));
        let expected: Vec<Bytes> =
            model.now().values().filter(|kv| kv.lease == id).map(|kv| kv.key.clone()).collect();
        assert_eq!(
            held.unwrap_or_default().iter().map(|key| &key[..]).collect::<Vec<_>>(),
            expected
        );
    }
}

#[test]
fn random_commands_do_what_the_model_does() {
    for seed in 0..60 {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut driven = Driven::create(Disk::default(), Default::default()).unwrap();
        let mut model = Model::new();
        for _ in 0..30 {
            let size = random.random_range(1..6);
            let commands: Vec<Command> =
                (0..size).map(|_| random_command(random, model.revision)).collect();
            let outcomes = driven.group(&commands).unwrap();
            for (command, outcome) in commands.iter().zip(outcomes) {
                let expected = model.apply(command);
                assert_eq!(outcome.reply.map(|_: Reply| ()), expected, "seed {seed}: {command:?}");
                assert_eq!(outcome.revision, model.revision, "seed {seed}: {command:?}");
            }
        }
        check(&driven, &model);
        // The same again from what is stored, and once more with compaction finished.
        let machine = load(&*driven.engine.snapshot().unwrap(), &mut |_| {}).unwrap();
        driven.machine = machine;
        check(&driven, &model);
        let mut rounds = 0;
        while driven.machine.compacting() {
            driven.group(&[]).unwrap();
            rounds += 1;
            assert!(rounds < 1000, "compaction ends");
        }
        check(&driven, &model);
    }
}

/// Seeds of the power-cut test; more with `LEASEWAY_SEEDS`.
fn seeds() -> u64 {
    std::env::var("LEASEWAY_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2_000)
}

/// Opens what the disks hold after a cut; sometimes the power goes once more on the way.
fn open_after_cut(store: &Disk, logs: &[Disk; 2], seed: u64, random: &mut StdRng) -> Driven {
    let held = |store: &Disk, logs: &[Disk; 2], seed: u64| {
        let disk = Disk::holding(store.after_cut(seed));
        let logs = [0, 1].map(|which: usize| {
            disk.beside_holding(logs[which].after_cut(seed ^ (which as u64 + 1)))
        });
        (disk, logs)
    };
    let (mut store, mut logs) = held(store, logs, seed);
    if random.random_ratio(1, 4) {
        store.cut_after(random.random_range(0..40));
        drop(Driven::open(store.clone(), logs.clone()));
        (store, logs) = held(&store, &logs, !seed);
    }
    Driven::open(store, logs).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

#[test]
fn a_power_cut_loses_nothing_that_was_committed_and_nothing_by_halves() {
    let (seeds, next) = (seeds(), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    cut_power(seed);
                }
            });
        }
    });
}

fn cut_power(seed: u64) {
    let random = &mut StdRng::seed_from_u64(seed);
    let disk = Disk::default();
    let logs = [disk.beside(), disk.beside()];
    let mut driven = Driven::create(disk.clone(), logs.clone()).unwrap();
    disk.cut_after(random.random_range(0..130));
    let mut committed = Model::new();
    let mut attempted = committed.clone();
    for _ in 0..40 {
        let size = random.random_range(1..4);
        let commands: Vec<Command> =
            (0..size).map(|_| random_command(random, committed.revision)).collect();
        for command in &commands {
            let _ = attempted.apply(command);
        }
        if driven.group(&commands).is_err() {
            break;
        }
        committed = attempted.clone();
        if random.random_ratio(1, 16) && driven.checkpoint().is_err() {
            break;
        }
        // What was begun proceeds, or does not.
        let steps = if random.random() { 0 } else { random.random_range(0..20) };
        (0..steps).all(|_| driven.file.step());
    }
    drop(driven);
    let after = open_after_cut(&disk, &logs, seed, random);
    let revision = after.view.now().visible.revision;
    let same = |model: &Model| {
        revision == model.revision
            && after.view.now().visible.compacted == model.compacted
            && after.machine.shared().leases.len() == model.leases.len()
            && after.view.auth() == model.auth
    };
    let model = if same(&committed) { &committed } else { &attempted };
    assert!(same(model), "seed {seed}: revision {revision} is neither before nor after");
    check(&after, model);
}

//! The log's pipeline, over a log file whose syncs the test holds up.

use super::log::{LocalLog, LogStats, Parts, Publish};
use super::wal::Wal;
use crate::backend::{Log, ProposeError};
use crate::keyspace::command::{Command, Op, Outcome, command};
use crate::keyspace::event::{RevisionEvents, Visible};
use crate::keyspace::hash::hash_store;
use crate::keyspace::load::load;
use crate::keyspace::machine::Shared;
use crate::keyspace::view::View;
use crate::storage::power_cut::Disk;
use crate::storage::redb_engine::RedbEngine;
use crate::storage::{Durability, Engine};
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::etcdserverpb::{CompactionRequest, PutRequest, RequestOp, TxnRequest};
use parking_lot::{Condvar, Mutex};
use redb::StorageBackend;
use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A proposal that waits for its answer.
type Proposed = JoinHandle<Result<Outcome, ProposeError>>;

/// What happens to syncs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Syncs {
    Pass,
    Wait,
    Fail,
}

/// A disk whose syncs are held up.
#[derive(Clone, Debug)]
struct Gated {
    disk: Disk,
    gate: Arc<(Mutex<(Syncs, usize)>, Condvar)>,
}

impl Gated {
    fn new() -> Self {
        Self {
            disk: Disk::default(),
            gate: Arc::new((Mutex::new((Syncs::Pass, 0)), Condvar::new())),
        }
    }

    fn set(&self, syncs: Syncs) {
        self.gate.0.lock().0 = syncs;
        self.gate.1.notify_all();
    }

    /// Waits until a sync is held up.
    fn holds(&self) {
        let mut state = self.gate.0.lock();
        while state.1 == 0 {
            assert!(!self.gate.1.wait_for(&mut state, PATIENCE).timed_out(), "no sync");
        }
    }
}

impl StorageBackend for Gated {
    fn len(&self) -> Result<u64, Error> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.disk.set_len(len)
    }

    fn sync_data(&self) -> Result<(), Error> {
        let mut state = self.gate.0.lock();
        state.1 += 1;
        self.gate.1.notify_all();
        while state.0 == Syncs::Wait {
            if self.gate.1.wait_for(&mut state, PATIENCE).timed_out() {
                return Err(Error::other("held up for too long"));
            }
        }
        state.1 -= 1;
        if state.0 == Syncs::Fail { Err(Error::other("broken")) } else { self.disk.sync_data() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.disk.write(offset, data)
    }
}

/// Notes down the revisions that watchers are told of.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<i64>>>);

impl Publish for Told {
    fn publish(&self, revisions: Vec<RevisionEvents>, _: Visible) {
        self.0.lock().extend(revisions.iter().map(|events| events.revision));
    }
}

struct World {
    log: Arc<LocalLog>,
    thread: std::thread::JoinHandle<()>,
    file: Gated,
    engine: Arc<dyn Engine>,
    shared: Shared,
    view: Arc<View>,
    told: Told,
    failure: Arc<Mutex<Option<String>>>,
}

impl World {
    fn start() -> Self {
        let engine: Arc<dyn Engine> = Arc::new(RedbEngine::in_memory().unwrap());
        let machine = load(&*engine.snapshot().unwrap(), &mut |_| {}).unwrap();
        let (file, other) = (Gated::new(), Disk::default());
        let files = [Box::new(file.clone()) as _, Box::new(other) as _];
        let wal = Wal::create(files, [1; 16], 1 << 20).unwrap();
        engine.commit(&machine.checkpoint_batch(), Durability::Immediate).unwrap();
        let (view, told) = (Arc::new(View::new(machine.published())), Told::default());
        let (shared, failure) = (machine.shared().clone(), Arc::new(Mutex::new(None)));
        let tell = failure.clone();
        let (log, thread) = LocalLog::start(Parts {
            machine,
            wal,
            engine: engine.clone(),
            view: view.clone(),
            publish: Box::new(told.clone()),
            on_failure: Box::new(move |error| *tell.lock() = Some(error.to_string())),
            on_commit: Box::new(|_, _| {}),
        })
        .unwrap();
        Self { log: Arc::new(log), thread, file, engine, shared, view, told, failure }
    }

    /// Proposes a change of ten keys, which is enough for the log's thread.
    fn propose(&self, name: &str) -> Proposed {
        let (log, command) = (self.log.clone(), ten_puts(name));
        tokio::spawn(async move { log.propose(command).await })
    }

    /// Waits until a proposal has been applied in memory.
    async fn applied(&self, name: &str) {
        let is_there = || self.shared.index.latest(format!("{name}9").as_bytes()).is_some();
        let applied = async {
            while !is_there() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, applied).await.expect("it is applied in time");
    }

    /// Two groups, of which one is held up on its way into the log, and the other has been applied.
    async fn two_groups(&self) -> (Proposed, Proposed) {
        self.file.set(Syncs::Wait);
        let first = self.propose("first");
        self.file.holds();
        let second = self.propose("second");
        self.applied("second").await;
        (first, second)
    }

    fn stats(&self) -> &LogStats {
        self.log.stats()
    }
}

fn ten_puts(name: &str) -> Command {
    let put = |number| PutRequest { key: format!("{name}{number}").into(), ..Default::default() };
    let op = |number| RequestOp { request: Some(Request::RequestPut(put(number))) };
    let success = (0..10).map(op).collect();
    command(Op::Txn(TxnRequest { success, ..Default::default() }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_applied_while_the_one_before_it_is_logged_and_answered_after_it_is() {
    let world = World::start();
    let (first, second) = world.two_groups().await;
    assert!(!first.is_finished() && !second.is_finished(), "nothing of it is durable");
    assert_eq!(world.view.now().visible.revision, 1);
    assert_eq!(*world.told.0.lock(), [0; 0]);
    world.file.set(Syncs::Pass);
    assert_eq!(first.await.unwrap().unwrap().revision, 2);
    assert_eq!(second.await.unwrap().unwrap().revision, 3);
    assert_eq!(*world.told.0.lock(), [2, 3]);
    assert_eq!(world.view.now().visible.revision, 3);
    assert_eq!(world.stats().commits.load(Ordering::Relaxed), 2);
    world.log.stop().await;
    world.thread.join().unwrap();
    assert!(world.failure.lock().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hash_of_what_the_store_has_ahead_of_the_log_waits_for_it() {
    let world = World::start();
    let before = hash_store(&*world.engine).unwrap();
    assert_eq!(before.position, world.view.now().position);
    let (first, second) = world.two_groups().await;
    let ahead = async {
        loop {
            let found = hash_store(&*world.engine).unwrap();
            if found.value != before.value {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, ahead).await.expect("it is committed in time");
    assert!(found.position > world.view.now().position, "{found:?}");
    world.file.set(Syncs::Pass);
    world.view.durable(found.position).await;
    assert!(world.view.now().visible.revision >= 2);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    world.log.stop().await;
    world.thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_applied_on_a_group_that_is_not_logged_is_not_answered_either() {
    let world = World::start();
    let (first, second) = world.two_groups().await;
    world.file.set(Syncs::Fail);
    world.thread.join().unwrap();
    assert!(matches!(first.await.unwrap(), Err(ProposeError::Stopped)));
    assert!(matches!(second.await.unwrap(), Err(ProposeError::Stopped)));
    assert_eq!(world.view.now().visible.revision, 1);
    assert_eq!(*world.told.0.lock(), [0; 0]);
    let failure = world.failure.lock().take();
    assert!(failure.is_some_and(|error| error.contains("broken")));
}

#[tokio::test]
async fn a_command_behind_a_disk_that_does_not_answer_has_its_end_in_time() {
    let world = World::start();
    world.file.set(Syncs::Wait);
    let first = world.propose("first");
    tokio::task::yield_now().await;
    world.file.holds();
    // From here on time passes as soon as nothing else happens.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    assert!(matches!(first.await.unwrap(), Err(ProposeError::TimedOut)));
    assert!(begun.elapsed() < crate::backend::PATIENCE + Duration::from_secs(1));
    assert_eq!(world.stats().pending.load(Ordering::Relaxed), 0);
    tokio::time::resume();
    world.file.set(Syncs::Pass);
    // Its outcome was not known: it is done after all.
    assert_eq!(world.propose("second").await.unwrap().unwrap().revision, 3);
    assert_eq!(*world.told.0.lock(), [2, 3]);
    world.log.stop().await;
    world.thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_group_is_finished_before_the_end() {
    let world = World::start();
    world.file.set(Syncs::Wait);
    let first = world.propose("first");
    world.file.holds();
    world.log.stop().await;
    world.file.set(Syncs::Pass);
    assert_eq!(first.await.unwrap().unwrap().revision, 2);
    world.thread.join().unwrap();
    assert!(world.failure.lock().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_that_has_nothing_to_remove_ends() {
    let world = World::start();
    world.propose("some").await.unwrap().unwrap();
    let compaction = CompactionRequest { revision: 2, ..Default::default() };
    let outcome = world.log.propose(command(Op::Compact(compaction))).await.unwrap();
    assert!(outcome.reply.is_ok());
    let ended = tokio::time::timeout(PATIENCE, world.log.compacted(2)).await;
    ended.expect("it ends in time").unwrap();
    world.log.stop().await;
    world.thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_does_not_wait_for_a_compaction() {
    let world = World::start();
    // Ten rows a group, of which all but the newest go: more than one step's.
    for _ in 0..300 {
        world.propose("same").await.unwrap().unwrap();
    }
    let revision = world.view.now().visible.revision;
    world.file.set(Syncs::Wait);
    let log = world.log.clone();
    let compaction = command(Op::Compact(CompactionRequest { revision, ..Default::default() }));
    let compacting = tokio::spawn(async move { log.propose(compaction).await });
    world.file.holds();
    // It is queued before the compaction's first step.
    world.log.stop().await;
    world.file.set(Syncs::Pass);
    assert!(compacting.await.unwrap().unwrap().reply.is_ok());
    let ended = world.log.compacted(revision).await;
    assert!(matches!(ended, Err(ProposeError::Stopped)), "the next start does it");
    world.thread.join().unwrap();
    assert!(world.failure.lock().is_none());
}

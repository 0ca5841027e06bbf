//! The local log: a queue, one thread that applies, one sync per group.
//!
//! While a sync is under way, everything that arrives queues for the next group; nothing waits on
//! a timer. Per group the thread: applies each command to a staging, lets the commands that changed
//! something be written to the log file and synced ([`super::logger`]) while it commits the staging to the
//! store, publishes the new state, hands the events to the watchers, and only then answers. The store itself is made durable when a
//! log file is full, while groups go on into the other one, and when the process ends. Compaction proceeds in bounded steps that
//! ride on the groups.
//!
//! If storage fails, nothing of the group is answered, and the process is told to stop: what is on
//! disk is then no longer known.

use super::logger::Logger;
use super::recover::{checkpoint, make_room};
use super::wal::Wal;
use crate::backend::{Log, Pending, ProposeError};
use crate::keyspace::command::{Command, Outcome};
use crate::keyspace::event::{RevisionEvents, Visible};
use crate::keyspace::machine::Machine;
use crate::keyspace::staging::Staging;
use crate::keyspace::view::View;
use crate::storage::{Durability, Engine, StorageError};
use prost::Message;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// Commands that may wait; proposers beyond that wait to be let in.
const QUEUE: usize = 8192;
/// Commands in one group at most.
const GROUP: usize = 4096;
/// Encoded bytes of commands in one group at most (one command more than that still fits).
const GROUP_BYTES: usize = 4 << 20;

/// How long a shrink waits for a compaction, which has free space to add.
pub const COMPACTION_WAIT: Duration = Duration::from_secs(60);

/// Who wants to know of committed revisions. Called on the apply thread: must not block.
pub trait Publish: Send + 'static {
    /// `revisions` have been committed, and `visible` is what readers see from now on.
    fn publish(&self, revisions: Vec<RevisionEvents>, visible: Visible);
}

/// Called once when storage has failed.
pub type OnFailure = Box<dyn FnOnce(&StorageError) + Send>;

/// Numbers about the log, for metrics.
#[derive(Debug, Default)]
pub struct LogStats {
    /// Commands applied.
    pub applied: AtomicU64,
    /// Commands that were refused.
    pub refused: AtomicU64,
    /// Commits made.
    pub commits: AtomicU64,
    /// Nanoseconds spent in commits.
    pub commit_nanos: AtomicU64,
    /// Commands waiting or being applied.
    pub pending: AtomicU64,
}

struct Proposal {
    command: Command,
    answer: oneshot::Sender<Outcome>,
}

enum Request {
    Propose(Proposal),
    Shrink(oneshot::Sender<bool>),
    Stop,
}

/// Observes how long each group took from apply to commit, and how long of that the log's sync.
pub type OnCommit = Box<dyn Fn(Duration, Duration) + Send>;

/// The queue's sending side. Dropping it does not stop the thread; [`LocalLog::stop`] does.
pub struct LocalLog {
    queue: mpsc::Sender<Request>,
    finished: watch::Receiver<i64>,
    stats: Arc<LogStats>,
}

/// What the apply thread works with.
pub struct Parts {
    /// The loaded keyspace.
    pub machine: Machine,
    /// Where groups are made durable.
    pub wal: Wal,
    /// Where groups are committed.
    pub engine: Arc<dyn Engine>,
    /// Where committed state is published.
    pub view: Arc<View>,
    /// Who is told of events.
    pub publish: Box<dyn Publish>,
    /// Who is told when storage fails.
    pub on_failure: OnFailure,
    /// Who is told how long commits take.
    pub on_commit: OnCommit,
}

impl LocalLog {
    /// Starts the apply thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(parts: Parts) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (queue, requests) = mpsc::channel(QUEUE);
        let (told, finished) = watch::channel(parts.machine.compaction_finished());
        let stats = Arc::new(LogStats::default());
        let Parts { machine, wal, engine, view, publish, on_failure, on_commit } = parts;
        let logger = Logger::start(wal)?;
        let (shrinks, told_stats) = (Vec::new(), stats.clone());
        let applier = Applier {
            machine,
            logger,
            engine,
            view,
            publish,
            on_failure,
            on_commit,
            requests,
            told,
            shrinks,
            stats: told_stats,
        };
        let thread =
            std::thread::Builder::new().name("apply".into()).spawn(move || applier.run())?;
        Ok((Self { queue, finished, stats }, thread))
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> &LogStats {
        &self.stats
    }

    /// Gives free space in the store back to the file system, between two groups. A compaction that
    /// is under way is waited for, but no longer than [`COMPACTION_WAIT`]. Returns whether shrinking was
    /// possible: long reads may be in the way.
    ///
    /// # Errors
    /// [`ProposeError::Stopped`].
    pub async fn shrink(&self) -> Result<bool, ProposeError> {
        let (done, wait) = oneshot::channel();
        self.queue.send(Request::Shrink(done)).await.map_err(|_| ProposeError::Stopped)?;
        wait.await.map_err(|_| ProposeError::Stopped)
    }

    /// Lets the thread finish what is queued and end.
    pub async fn stop(&self) {
        let _ = self.queue.send(Request::Stop).await;
    }
}

impl Log for LocalLog {
    async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
        let (answer, wait) = oneshot::channel();
        let proposal = Request::Propose(Proposal { command, answer });
        let _pending = Pending::new(&self.stats.pending);
        self.queue.send(proposal).await.map_err(|_| ProposeError::Stopped)?;
        wait.await.map_err(|_| ProposeError::Stopped)
    }

    async fn barrier(&self) -> Result<(), ProposeError> {
        // Everything that was acknowledged has been published before: that is the order in which
        // the apply thread works.
        if self.queue.is_closed() { Err(ProposeError::Stopped) } else { Ok(()) }
    }

    async fn compacted(&self, revision: i64) -> Result<(), ProposeError> {
        let mut finished = self.finished.clone();
        let reached = finished.wait_for(|finished| *finished >= revision).await;
        reached.map(|_| ()).map_err(|_| ProposeError::Stopped)
    }

    fn pending(&self) -> u64 {
        self.stats.pending.load(Ordering::Relaxed)
    }
}

struct Applier {
    machine: Machine,
    logger: Logger,
    engine: Arc<dyn Engine>,
    view: Arc<View>,
    publish: Box<dyn Publish>,
    on_failure: OnFailure,
    on_commit: OnCommit,
    requests: mpsc::Receiver<Request>,
    told: watch::Sender<i64>,
    /// Who waits for the store to be shrunk, and since when.
    shrinks: Vec<(oneshot::Sender<bool>, Instant)>,
    stats: Arc<LogStats>,
}

/// A group on its way.
#[derive(Default)]
struct Group {
    /// What has to be logged.
    commands: Vec<Command>,
    /// What is to be answered once the group is durable.
    answers: Vec<(oneshot::Sender<Outcome>, Outcome)>,
}

impl Applier {
    fn run(mut self) {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
            while self.group()? {}
            // What is in the log is in the store now: the next start has nothing to do again.
            self.checkpoint()
        }));
        let error = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            // The panic's own text has been printed; what was applied so far is half done.
            Err(_) => StorageError::Closed("applying a command failed".into()),
        };
        // Nobody gets an answer from here on.
        self.requests.close();
        (self.on_failure)(&error);
    }

    /// Collects, applies, commits, publishes and answers one group. Returns whether to go on.
    fn group(&mut self) -> Result<bool, StorageError> {
        let compacting = self.machine.compacting();
        let first =
            if compacting { self.requests.try_recv().ok() } else { self.requests.blocking_recv() };
        if first.is_none() && !compacting {
            return Ok(false);
        }
        let snapshot = self.engine.snapshot()?;
        let mut staging = Staging::new(snapshot, self.machine.next_position());
        let mut group = Group::default();
        self.apply_all(first, &mut staging, &mut group)?;
        let known = self.view.now().visible.compacted;
        self.machine.compaction_step(&mut staging, known)?;
        self.commit(staging, std::mem::take(&mut group.commands))?;
        let finished = self.machine.compaction_finished();
        self.told.send_if_modified(|told| std::mem::replace(told, finished) != finished);
        for (answer, outcome) in group.answers {
            // Whoever gave up waiting is not told; the command stands.
            let _ = answer.send(outcome);
        }
        self.shrink()?;
        Ok(true)
    }

    /// Shrinks the store for those who asked, unless there is a compaction to wait for.
    fn shrink(&mut self) -> Result<(), StorageError> {
        let compacting = self.machine.compacting();
        let due = |asked: &Instant| !compacting || asked.elapsed() >= COMPACTION_WAIT;
        // Whoever gave up waiting needs none.
        self.shrinks.retain(|(done, _)| !done.is_closed());
        if !self.shrinks.iter().any(|(_, asked)| due(asked)) {
            return Ok(());
        }
        self.checkpoint()?;
        let shrunk = match self.engine.shrink() {
            Ok(()) => true,
            Err(StorageError::Busy) => false,
            Err(error) => return Err(error),
        };
        // Notes which pages are free now, for a fast start.
        self.checkpoint()?;
        for (done, _) in self.shrinks.drain(..) {
            let _ = done.send(shrunk);
        }
        Ok(())
    }

    fn apply_all(
        &mut self,
        first: Option<Request>,
        staging: &mut Staging,
        group: &mut Group,
    ) -> Result<(), StorageError> {
        let (mut commands, mut bytes) = (0, 0);
        let mut next = first;
        while let Some(request) = next.take() {
            match request {
                Request::Propose(Proposal { command, answer }) => {
                    bytes += command.encoded_len();
                    let outcome = self.machine.apply(staging, &command)?;
                    if outcome.reply.is_err() {
                        self.stats.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    if outcome.changed {
                        group.commands.push(command);
                    }
                    group.answers.push((answer, outcome));
                    commands += 1;
                }
                Request::Shrink(done) => self.shrinks.push((done, Instant::now())),
                // What is queued already is still served; the end of the queue ends the thread.
                Request::Stop => self.requests.close(),
            }
            if commands < GROUP && bytes < GROUP_BYTES {
                next = self.requests.try_recv().ok();
            }
        }
        self.stats.applied.fetch_add(commands as u64, Ordering::Relaxed);
        Ok(())
    }

    fn commit(&mut self, mut staging: Staging, commands: Vec<Command>) -> Result<(), StorageError> {
        if commands.is_empty() && staging.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let (events, synced) = if commands.is_empty() {
            self.machine.finish_group(&mut staging, false);
            let (batch, events) = staging.finish();
            self.engine.commit(&batch, Durability::Deferred)?;
            (events, Duration::ZERO)
        } else {
            let position = staging.position;
            let entry = self.logger.with(|wal| {
                let entry = wal.entry(position, commands);
                make_room(wal, &*self.engine, &entry).map(|()| entry)
            })?;
            self.machine.finish_group(&mut staging, true);
            let (batch, events) = staging.finish();
            (events, self.logger.log_and_commit(entry, &*self.engine, &batch)?)
        };
        let took = started.elapsed();
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.stats.commit_nanos.fetch_add(nanos, Ordering::Relaxed);
        (self.on_commit)(took, synced);
        let published = self.machine.published();
        let visible = published.visible;
        self.view.publish(published);
        self.publish.publish(events, visible);
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), StorageError> {
        self.logger.with(|wal| checkpoint(&self.machine, &*self.engine, wal))
    }
}

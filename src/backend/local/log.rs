//! The local log: a queue, one thread that applies, one sync per group.
//!
//! While a group is written to the log file and synced ([`super::logger`]), the thread commits it to the
//! store, and then applies whatever arrives to the staging of the next group; nothing waits on a timer.
//! Once a group is in the log, the thread publishes the new state, hands the events to the watchers, and only
//! then answers; the next group is logged after that, so one at most is on its way. The store itself is made
//! durable when a log file is full, while groups go on into the other one, and when the process ends.
//! Compaction proceeds in bounded steps that ride on the groups.
//!
//! If storage fails, nothing of the group is answered, and the process is told to stop: what is on
//! disk is then no longer known.

use super::logger::Logger;
use super::recover::{checkpoint, make_room};
use super::wal::Wal;
use crate::backend::compaction::CompactionTold;
use crate::backend::{Log, Pending, ProposeError, answered};
use crate::keyspace::command::{Command, Outcome};
use crate::keyspace::event::{RevisionEvents, Visible};
use crate::keyspace::machine::Machine;
use crate::keyspace::staging::Staging;
use crate::keyspace::view::{Published, View};
use crate::storage::{Durability, Engine, StorageError};
use leaseway_proto::log::Entry;
use prost::Message;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::error::TryRecvError;
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
    /// The log has something to say.
    Logged,
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
        let machine = &parts.machine;
        let (compaction, finished) =
            CompactionTold::new(machine.compaction_finished(), machine.compacting());
        let stats = Arc::new(LogStats::default());
        let Parts { machine, wal, engine, view, publish, on_failure, on_commit } = parts;
        let waking = queue.downgrade();
        let logger = Logger::start(wal, move || {
            // A thread that has something queued, or nobody to queue anything, need not be woken up.
            if let Some(queue) = waking.upgrade() {
                let _ = queue.try_send(Request::Logged);
            }
        })?;
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
            compaction,
            shrinks,
            flight: None,
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
        // Behind a disk that does not answer. What is queued may still be done.
        answered(async {
            self.queue.send(proposal).await.ok()?;
            wait.await.ok()
        })
        .await
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
    compaction: CompactionTold,
    /// Who waits for the store to be shrunk, and since when.
    shrinks: Vec<(oneshot::Sender<bool>, Instant)>,
    flight: Option<Flight>,
    stats: Arc<LogStats>,
}

/// Outcomes, and who waits for them.
type Answers = Vec<(oneshot::Sender<Outcome>, Outcome)>;

fn answer_all(answers: Answers) {
    for (answer, outcome) in answers {
        // Whoever gave up waiting is not told; the command stands.
        let _ = answer.send(outcome);
    }
}

/// A group that is being collected.
#[derive(Default)]
struct Group {
    /// What has to be logged.
    commands: Vec<Command>,
    /// What is to be answered once the group is durable.
    answers: Answers,
}

/// A group that is in the store, and on its way into the log.
struct Flight {
    answers: Answers,
    events: Vec<RevisionEvents>,
    published: Published,
    /// How long the commit to the store took.
    took: Duration,
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

    /// Collects, applies and commits one group, and publishes and answers the one before it. Returns whether
    /// to go on.
    fn group(&mut self) -> Result<bool, StorageError> {
        let first = if self.machine.compacting() && self.flight.is_none() {
            match self.requests.try_recv() {
                Ok(request) => Some(request),
                Err(TryRecvError::Empty) => None,
                // The next start goes on with the compaction.
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        } else {
            self.requests.blocking_recv()
        };
        if first.is_none() && self.flight.is_none() && !self.machine.compacting() {
            return Ok(false);
        }
        let snapshot = self.engine.snapshot()?;
        let mut staging = Staging::new(snapshot, self.machine.next_position());
        let mut group = Group::default();
        self.collect(first, &mut staging, &mut group)?;
        self.land()?;
        let known = self.view.now().visible.compacted;
        self.machine.compaction_step(&mut staging, known)?;
        self.commit(staging, group)?;
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

    /// Applies what is queued, and what arrives until the group before this one is in the log.
    fn collect(
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
                Request::Logged => {}
                // What is queued already is still served; the end of the queue ends the thread.
                Request::Stop => self.requests.close(),
            }
            if self.flight.is_some()
                && let Some(logged) = self.logger.try_wait()?
            {
                self.arrive(logged);
            }
            if commands < GROUP && bytes < GROUP_BYTES {
                next = match self.flight {
                    Some(_) => self.requests.blocking_recv(),
                    None => self.requests.try_recv().ok(),
                };
            }
        }
        self.stats.applied.fetch_add(commands as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Commits a group to the store and sends it to the log. Of one that changes nothing only the answers
    /// are sent.
    fn commit(&mut self, mut staging: Staging, group: Group) -> Result<(), StorageError> {
        let Group { commands, answers } = group;
        if commands.is_empty() && staging.is_empty() {
            // A compaction with nothing to remove ends like this.
            self.tell_compaction();
            answer_all(answers);
            return Ok(());
        }
        let started = Instant::now();
        let position = staging.position;
        let entry = (!commands.is_empty()).then(|| self.entry(position, commands)).transpose()?;
        self.machine.finish_group(&mut staging, entry.is_some());
        let (batch, events) = staging.finish();
        let logged = match entry {
            Some(entry) => self.logger.log(entry, &batch)?,
            None => Some(Duration::ZERO),
        };
        self.engine.commit(&batch, Durability::Deferred)?;
        self.flight = Some(Flight {
            answers,
            events,
            published: self.machine.published(),
            took: started.elapsed(),
        });
        if let Some(logged) = logged {
            self.arrive(logged);
        }
        Ok(())
    }

    /// An entry of the log, for which there is room.
    fn entry(&self, position: u64, commands: Vec<Command>) -> Result<Entry, StorageError> {
        self.logger.with(|wal| {
            let entry = wal.entry(position, commands);
            make_room(wal, &*self.engine, &entry).map(|()| entry)
        })
    }

    /// Waits until the group that is on its way is in the log, and publishes and answers it.
    fn land(&mut self) -> Result<(), StorageError> {
        if self.flight.is_some() {
            let logged = self.logger.wait()?;
            self.arrive(logged);
        }
        Ok(())
    }

    /// Publishes and answers the group that was on its way, with which the log was busy for `logged`.
    fn arrive(&mut self, logged: Duration) {
        let Some(flight) = self.flight.take() else { return };
        let took = flight.took.max(logged);
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.stats.commit_nanos.fetch_add(nanos, Ordering::Relaxed);
        (self.on_commit)(took, logged);
        let visible = flight.published.visible;
        self.view.publish(flight.published);
        self.publish.publish(flight.events, visible);
        self.tell_compaction();
        answer_all(flight.answers);
    }

    /// Tells how far compaction is. Only the group that is committed next moves it on, after the one before
    /// it has arrived.
    fn tell_compaction(&mut self) {
        self.compaction.note(self.machine.compaction_finished(), self.machine.compacting());
    }

    fn checkpoint(&mut self) -> Result<(), StorageError> {
        self.land()?;
        self.logger.with(|wal| checkpoint(&self.machine, &*self.engine, wal))
    }
}

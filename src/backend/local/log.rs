//! The local log: a queue, one thread that applies, one commit per group.
//!
//! While a commit is under way, everything that arrives queues for the next group; nothing waits on
//! a timer. Per group the thread: applies each command to a staging, commits it with one sync,
//! publishes the new state, hands the events to the watchers, and only then answers. Compaction
//! proceeds in bounded steps that ride on these commits.
//!
//! If storage fails, nothing of the group is answered, and the process is told to stop: what is on
//! disk is then no longer known.

use crate::backend::{Log, ProposeError};
use crate::keyspace::command::{Command, Outcome};
use crate::keyspace::event::{RevisionEvents, Visible};
use crate::keyspace::machine::Machine;
use crate::keyspace::staging::Staging;
use crate::keyspace::view::View;
use crate::storage::{Engine, StorageError};
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
const GROUP_BYTES: usize = 8 << 20;

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
    Shrink(oneshot::Sender<()>),
    Stop,
}

/// Observes how long each commit took.
pub type OnCommit = Box<dyn Fn(Duration) + Send>;

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
        let applier = Applier { parts, requests, told, stats: stats.clone() };
        let thread =
            std::thread::Builder::new().name("apply".into()).spawn(move || applier.run())?;
        Ok((Self { queue, finished, stats }, thread))
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> &LogStats {
        &self.stats
    }

    /// Gives free space in the store back to the file system, between two groups.
    ///
    /// # Errors
    /// [`ProposeError::Stopped`].
    pub async fn shrink(&self) -> Result<(), ProposeError> {
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
}

/// Counts a caller that waits, also when it is cancelled.
struct Pending<'a>(&'a AtomicU64);

impl<'a> Pending<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Applier {
    parts: Parts,
    requests: mpsc::Receiver<Request>,
    told: watch::Sender<i64>,
    stats: Arc<LogStats>,
}

/// A group on its way: what is to be answered once it is durable.
#[derive(Default)]
struct Answers {
    waiting: Vec<(oneshot::Sender<Outcome>, Outcome)>,
    shrinks: Vec<oneshot::Sender<()>>,
}

impl Applier {
    fn run(mut self) {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
            while self.group()? {}
            Ok(())
        }));
        let error = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            // The panic's own text has been printed; what was applied so far is half done.
            Err(_) => StorageError::Closed("applying a command failed".into()),
        };
        // Nobody gets an answer from here on.
        self.requests.close();
        (self.parts.on_failure)(&error);
    }

    /// Collects, applies, commits, publishes and answers one group. Returns whether to go on.
    fn group(&mut self) -> Result<bool, StorageError> {
        let compacting = self.parts.machine.compacting();
        let first =
            if compacting { self.requests.try_recv().ok() } else { self.requests.blocking_recv() };
        if first.is_none() && !compacting {
            return Ok(false);
        }
        let snapshot = self.parts.engine.snapshot()?;
        let mut staging = Staging::new(snapshot, self.parts.machine.next_position());
        let mut answers = Answers::default();
        self.apply_all(first, &mut staging, &mut answers)?;
        let known = self.parts.view.now().visible.compacted;
        self.parts.machine.compaction_step(&mut staging, known)?;
        self.commit(staging)?;
        let finished = self.parts.machine.compaction_finished();
        self.told.send_if_modified(|told| std::mem::replace(told, finished) != finished);
        for (answer, outcome) in answers.waiting {
            // Whoever gave up waiting is not told; the command stands.
            let _ = answer.send(outcome);
        }
        for done in answers.shrinks {
            self.parts.engine.shrink()?;
            let _ = done.send(());
        }
        Ok(true)
    }

    fn apply_all(
        &mut self,
        first: Option<Request>,
        staging: &mut Staging,
        answers: &mut Answers,
    ) -> Result<(), StorageError> {
        let (mut commands, mut bytes) = (0, 0);
        let mut next = first;
        while let Some(request) = next.take() {
            match request {
                Request::Propose(Proposal { command, answer }) => {
                    bytes += prost::Message::encoded_len(&command);
                    let outcome = self.parts.machine.apply(staging, &command)?;
                    if outcome.reply.is_err() {
                        self.stats.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    answers.waiting.push((answer, outcome));
                    commands += 1;
                }
                Request::Shrink(done) => answers.shrinks.push(done),
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

    fn commit(&mut self, mut staging: Staging) -> Result<(), StorageError> {
        if !staging.is_empty() || self.parts.machine.published() != self.parts.view.now() {
            self.parts.machine.finish_group(&mut staging);
            let (batch, events) = staging.finish();
            let started = Instant::now();
            self.parts.engine.commit(&batch)?;
            let took = started.elapsed();
            self.stats.commits.fetch_add(1, Ordering::Relaxed);
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.stats.commit_nanos.fetch_add(nanos, Ordering::Relaxed);
            (self.parts.on_commit)(took);
            let published = self.parts.machine.published();
            self.parts.view.publish(published);
            self.parts.publish.publish(events, published.visible);
        }
        Ok(())
    }
}

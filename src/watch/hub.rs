//! The hub's threads, and what others hand to them. What its own thread does is in [`worker`].

mod worker;

use super::batch::events_size;
use super::catch_up::{Job, Outcome};
use super::deliver::Fanout;
use super::list::Watchers;
use super::outbox::{Limit, Notices, Outbox};
use super::registry::{CreateWatcher, Registry};
use super::stats::Stats;
use super::stream::StreamControl;
use crate::keyspace::event::{History, RevisionEvents, Visible};
use crate::vital::Vital;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use worker::Worker;

/// Threads that read history.
const READERS: usize = 2;

/// Bounds. The defaults suit a server; tests choose smaller ones.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of events that wait in one stream's outbox; the last batch may exceed it.
    pub outbox_bytes: usize,
    /// Answers that wait in one stream's outbox, or two for each of its watchers if that is more.
    pub outbox_notices: usize,
    /// Bytes of published revisions that wait for the hub. What comes beyond is read from history.
    pub published_bytes: usize,
    /// Bytes of one read of history.
    pub chunk_bytes: usize,
    /// Events of one read of history.
    pub chunk_events: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            outbox_bytes: 1 << 20,
            outbox_notices: 4096,
            published_bytes: 16 << 20,
            chunk_bytes: 1 << 20,
            chunk_events: 4096,
        }
    }
}

/// The hub has been closed, or the store has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no longer watching")]
pub struct Closed;

/// Identifies a stream for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StreamId(u64);

impl StreamId {
    /// For people.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What a stream asks of the hub.
pub(super) enum Command {
    Open(StreamId, Arc<Outbox>),
    Create(StreamId, CreateWatcher, OwnedSemaphorePermit),
    Refuse(StreamId, &'static str, OwnedSemaphorePermit),
    Cancel(StreamId, i64, OwnedSemaphorePermit),
    Progress(StreamId, OwnedSemaphorePermit),
    /// Time for periodic progress.
    Tick(StreamId),
    /// The outbox was full, and is not any more.
    Room(StreamId),
    Close(StreamId),
    /// Tell of the watchers, of so many at most.
    List(usize, oneshot::Sender<Watchers>),
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Command>,
    published: VecDeque<RevisionEvents>,
    published_size: usize,
    /// History is known to reach this revision.
    target: i64,
    outcomes: Vec<Outcome>,
    /// Whether somebody may want what is published; if not, the hub need not be woken.
    watched: bool,
    closed: bool,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    closed: bool,
}

/// What the threads and the streams share.
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    inbox_changed: Condvar,
    jobs: Mutex<Jobs>,
    jobs_changed: Condvar,
    history: Arc<dyn History>,
    settings: Settings,
    stats: Arc<Stats>,
    last_stream: AtomicU64,
}

impl Shared {
    pub fn command(&self, command: Command) {
        let mut inbox = self.inbox.lock();
        if !inbox.closed {
            inbox.commands.push(command);
            drop(inbox);
            self.inbox_changed.notify_one();
        }
    }

    fn close(&self) {
        let mut inbox = self.inbox.lock();
        inbox.closed = true;
        let left = std::mem::take(&mut *inbox);
        inbox.closed = true;
        drop(inbox);
        self.inbox_changed.notify_all();
        let mut jobs = self.jobs.lock();
        jobs.closed = true;
        jobs.queue.clear();
        drop(jobs);
        self.jobs_changed.notify_all();
        for command in left.commands {
            if let Command::Open(_, outbox) = command {
                outbox.end();
            }
        }
    }
}

/// Closes on drop: when the last handle goes, and when a thread ends for whatever reason.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Owner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Fans committed revisions out to watchers. Clones are handles on the same hub; it stops when it
/// is closed or the last handle is dropped.
#[derive(Clone)]
pub struct Hub {
    owner: Arc<Owner>,
}

impl Hub {
    /// Starts the threads. Revisions that are visible in `history` by now need not be published.
    pub fn start(history: Arc<dyn History>, settings: Settings) -> io::Result<Self> {
        Self::start_watched(history, settings, &Vital::default())
    }

    /// The same; `vital` is told when a thread can't go on, and with it the hub.
    pub fn start_watched(
        history: Arc<dyn History>,
        settings: Settings,
        vital: &Vital,
    ) -> io::Result<Self> {
        let stats = Arc::new(Stats::default());
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            inbox_changed: Condvar::new(),
            jobs: Mutex::default(),
            jobs_changed: Condvar::new(),
            history: history.clone(),
            settings,
            stats: stats.clone(),
            last_stream: AtomicU64::new(0),
        });
        let owner = Arc::new(Owner { shared: shared.clone(), threads: Mutex::default() });
        let mut threads = Vec::new();
        for _ in 0..READERS {
            let guard = CloseOnDrop(shared.clone());
            let watched = vital.guard("a reader of the watch hub");
            let builder = std::thread::Builder::new().name("watch-reader".into());
            threads.push(builder.spawn(move || {
                let _watched = watched;
                read_jobs(&guard.0);
            })?);
        }
        let revision = history.visible().revision;
        let mut worker = Worker::new(Fanout::new(Registry::new(stats), revision, history));
        let guard = CloseOnDrop(shared);
        let (watched, vital) = (vital.guard("the watch hub"), vital.clone());
        let builder = std::thread::Builder::new().name("watch-hub".into());
        threads.push(builder.spawn(move || {
            let _watched = watched;
            if let Err(error) = worker.run(&guard.0) {
                vital.failed("the watch hub", &format!("can't read history: {error}"));
            }
        })?);
        *owner.threads.lock() = threads;
        Ok(Self { owner })
    }

    /// Hands over what has been committed, or only that it has been while nobody watches. Never waits.
    /// Revisions must come in ascending order; ones that are missing are read from history, which must
    /// hold everything up to `visible`.
    pub fn publish(&self, revisions: Vec<RevisionEvents>, visible: Visible) {
        let shared = &self.owner.shared;
        let mut dropped = 0;
        let mut inbox = shared.inbox.lock();
        if inbox.closed {
            return;
        }
        let newest = revisions.last().map_or(0, |newest| newest.revision);
        inbox.target = inbox.target.max(visible.revision).max(newest);
        if !inbox.watched {
            return;
        }
        for revision in revisions {
            let size = events_size(&revision.events);
            if inbox.published_size + size > shared.settings.published_bytes {
                dropped += 1;
            } else {
                inbox.published_size += size;
                inbox.published.push_back(revision);
            }
        }
        drop(inbox);
        shared.inbox_changed.notify_one();
        if dropped > 0 {
            shared.stats.add_dropped(dropped);
        }
    }

    /// Opens a stream: its requesting and its answering half.
    pub fn open(&self) -> Result<(StreamControl, Notices), Closed> {
        let shared = &self.owner.shared;
        let stream = StreamId(shared.last_stream.fetch_add(1, Ordering::Relaxed));
        let limit =
            Limit { bytes: shared.settings.outbox_bytes, notices: shared.settings.outbox_notices };
        let outbox = Arc::new(Outbox::new(limit, shared.stats.clone()));
        let notices = Notices { stream, outbox: outbox.clone(), shared: shared.clone() };
        let mut inbox = shared.inbox.lock();
        if inbox.closed {
            return Err(Closed);
        }
        inbox.commands.push(Command::Open(stream, outbox));
        drop(inbox);
        shared.inbox_changed.notify_one();
        Ok((StreamControl::new(stream, shared.clone()), notices))
    }

    /// The watchers, those furthest behind first and at most `most`, as the hub's thread sees them
    /// between two rounds of its work.
    ///
    /// # Errors
    /// The hub has been closed.
    pub async fn watchers(&self, most: usize) -> Result<Watchers, Closed> {
        let (answer, told) = oneshot::channel();
        self.owner.shared.command(Command::List(most, answer));
        told.await.map_err(|_| Closed)
    }

    /// What the hub counts.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.owner.shared.stats
    }

    /// Ends all streams and waits for the threads: history is not used any more after this.
    pub fn close(&self) {
        self.owner.shared.close();
        for thread in std::mem::take(&mut *self.owner.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a watch thread had panicked");
            }
        }
    }
}

/// A reader thread.
fn read_jobs(shared: &Shared) {
    loop {
        let mut jobs = shared.jobs.lock();
        while jobs.queue.is_empty() && !jobs.closed {
            shared.jobs_changed.wait(&mut jobs);
        }
        let Some(job) = jobs.queue.pop_front() else { return };
        drop(jobs);
        let outcome = job.run(&*shared.history, &shared.settings);
        let mut inbox = shared.inbox.lock();
        if inbox.closed {
            return;
        }
        inbox.outcomes.push(outcome);
        drop(inbox);
        shared.inbox_changed.notify_one();
    }
}

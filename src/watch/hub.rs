//! The hub's threads, and what others hand to them.

use super::batch::events_size;
use super::catch_up::{Job, Outcome, read_history};
use super::deliver::Fanout;
use super::outbox::{Limit, Notice, Notices, Outbox, What};
use super::registry::{CreateWatcher, Registry, State};
use super::stats::Stats;
use super::stream::StreamControl;
use crate::keyspace::event::{History, HistoryError, RevisionEvents, Visible};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use tokio::sync::OwnedSemaphorePermit;

/// Threads that read history.
const READERS: usize = 2;
/// Published revisions handled before commands are looked at again.
const REVISIONS_PER_ROUND: usize = 256;
/// Watchers of a stream that the hub itself brings up to date when the stream has room again.
const UNPARK_AT_ONCE: usize = 128;
/// Progress requests of a stream that may wait at a time; more go unanswered.
const PROGRESS_MAX: usize = 64;

const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

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
}

#[derive(Default)]
struct Inbox {
    commands: Vec<Command>,
    published: VecDeque<RevisionEvents>,
    published_size: usize,
    /// History is known to reach this revision.
    target: i64,
    outcomes: Vec<Outcome>,
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
            let builder = std::thread::Builder::new().name("watch-reader".into());
            threads.push(builder.spawn(move || read_jobs(&guard.0))?);
        }
        let revision = history.visible().revision;
        let mut worker = Worker {
            fanout: Fanout::new(Registry::new(stats), revision, history),
            backlog: VecDeque::new(),
            target: revision,
            running: 0,
            last_job: i64::MAX,
        };
        let guard = CloseOnDrop(shared);
        let builder = std::thread::Builder::new().name("watch-hub".into());
        threads.push(builder.spawn(move || {
            if let Err(error) = worker.run(&guard.0) {
                tracing::error!(%error, "watching stops: history cannot be read");
            }
        })?);
        *owner.threads.lock() = threads;
        Ok(Self { owner })
    }

    /// Hands over what has been committed. Never waits. Revisions must come in ascending order;
    /// ones that are missing are read from history, which must hold everything up to `visible`.
    pub fn publish(&self, revisions: Vec<RevisionEvents>, visible: Visible) {
        let shared = &self.owner.shared;
        let sized: Vec<_> = revisions.into_iter().map(|r| (events_size(&r.events), r)).collect();
        let mut dropped = 0;
        let mut inbox = shared.inbox.lock();
        if inbox.closed {
            return;
        }
        inbox.target = inbox.target.max(visible.revision);
        for (size, revision) in sized {
            inbox.target = inbox.target.max(revision.revision);
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

/// The hub thread.
struct Worker {
    fanout: Fanout,
    /// Published revisions, taken and not yet delivered.
    backlog: VecDeque<RevisionEvents>,
    /// The hub's revision is to reach this.
    target: i64,
    /// Jobs that readers have.
    running: usize,
    last_job: i64,
}

impl Worker {
    fn run(&mut self, shared: &Shared) -> Result<(), HistoryError> {
        let mut commands = Vec::new();
        let mut outcomes = Vec::new();
        while self.take(shared, &mut commands, &mut outcomes) {
            for command in commands.drain(..) {
                self.obey(command)?;
            }
            for outcome in outcomes.drain(..) {
                self.running -= 1;
                self.fanout.apply(outcome)?;
            }
            self.advance(&shared.settings)?;
            self.answer_progress();
            self.start_jobs(shared);
            self.fanout.registry.wake();
        }
        Ok(())
    }

    /// Waits for something to do and takes it. False when the hub is to stop.
    fn take(
        &mut self,
        shared: &Shared,
        commands: &mut Vec<Command>,
        outcomes: &mut Vec<Outcome>,
    ) -> bool {
        let busy = !self.backlog.is_empty() || self.target > self.fanout.revision;
        let mut inbox = shared.inbox.lock();
        while !busy
            && !inbox.closed
            && inbox.commands.is_empty()
            && inbox.outcomes.is_empty()
            && inbox.target <= self.target
        {
            shared.inbox_changed.wait(&mut inbox);
        }
        std::mem::swap(&mut inbox.commands, commands);
        std::mem::swap(&mut inbox.outcomes, outcomes);
        if self.backlog.is_empty() {
            // Together, so that what is missing from the backlog is known to have been dropped.
            std::mem::swap(&mut inbox.published, &mut self.backlog);
            inbox.published_size = 0;
            self.target = self.target.max(inbox.target);
        }
        !inbox.closed
    }

    /// Delivers some of what was published, or reads a chunk of what is missing from it.
    fn advance(&mut self, settings: &Settings) -> Result<(), HistoryError> {
        for _ in 0..REVISIONS_PER_ROUND {
            let next = self.fanout.revision + 1;
            match self.backlog.front().map(|front| front.revision) {
                Some(revision) if revision > next => {
                    return self.read_missing(revision - 1, settings);
                }
                Some(revision) => {
                    let taken = self.backlog.pop_front();
                    if let Some(taken) = taken.filter(|_| revision == next) {
                        self.fanout.deliver(taken)?;
                    }
                }
                None if self.target >= next => return self.read_missing(self.target, settings),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn read_missing(&mut self, to: i64, settings: &Settings) -> Result<(), HistoryError> {
        let history = self.fanout.history.clone();
        match read_history(&*history, self.fanout.revision + 1, to, settings) {
            Ok(chunk) => {
                for revision in chunk.revisions {
                    self.fanout.deliver(revision)?;
                }
                self.fanout.revision = self.fanout.revision.max(chunk.through);
                Ok(())
            }
            Err(HistoryError::Compacted(compacted)) => {
                self.fanout.skip_compacted(compacted);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn start_jobs(&mut self, shared: &Shared) {
        while self.running < READERS {
            let Some(job) = self.fanout.next_job(&mut self.last_job, &shared.settings) else {
                return;
            };
            self.running += 1;
            shared.jobs.lock().queue.push_back(job);
            shared.jobs_changed.notify_one();
        }
    }

    /// What a client may have seen by now.
    fn now(&self) -> Visible {
        let mut now = self.fanout.history.visible();
        now.revision = now.revision.max(self.fanout.revision);
        now
    }

    fn obey(&mut self, command: Command) -> Result<(), HistoryError> {
        match command {
            Command::Open(stream, outbox) => self.fanout.registry.open(stream, outbox),
            Command::Create(stream, asked, permit) => return self.create(stream, asked, permit),
            Command::Refuse(stream, reason, permit) => self.refuse(stream, reason, permit),
            Command::Cancel(stream, watch_id, permit) => {
                if self.fanout.registry.cancel(stream, watch_id) {
                    let revision = self.now().revision;
                    let notice = Notice { watch_id, revision, what: What::Canceled };
                    self.fanout.registry.answer(stream, notice, Some(permit));
                }
            }
            Command::Progress(stream, _permit) => self.request_progress(stream),
            Command::Tick(stream) => self.tick(stream),
            Command::Room(stream) => {
                let parked = self.fanout.registry.stream(stream);
                let parked = parked.map(|stream| std::mem::take(&mut stream.parked));
                return self.unpark(&parked.unwrap_or_default());
            }
            Command::Close(stream) => self.fanout.registry.close(stream),
        }
        Ok(())
    }

    fn unpark(&mut self, slots: &[u32]) -> Result<(), HistoryError> {
        let registry = &mut self.fanout.registry;
        for &slot in slots {
            if let Some(next) = registry.watcher(slot).map(|watcher| watcher.next) {
                registry.settle(slot, State::Queued, next);
            }
        }
        if slots.len() > UNPARK_AT_ONCE {
            // So many that a reader had better do it, a part at a time.
            return Ok(());
        }
        self.fanout.resume(slots)
    }

    fn refuse(&mut self, stream: StreamId, reason: &'static str, permit: OwnedSemaphorePermit) {
        let (revision, what) = (self.now().revision, What::Refused(reason));
        let notice = Notice { watch_id: -1, revision, what };
        self.fanout.registry.answer(stream, notice, Some(permit));
    }

    fn create(
        &mut self,
        stream: StreamId,
        asked: CreateWatcher,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), HistoryError> {
        let now = self.now();
        let registry = &mut self.fanout.registry;
        let Some(state) = registry.stream(stream) else { return Ok(()) };
        let refusal = if asked.start_revision < 0 {
            Some(COMPACTED)
        } else if asked.range.is_empty() {
            Some(EMPTY_RANGE)
        } else if asked.watch_id != 0 && state.watchers.contains_key(&asked.watch_id) {
            Some(DUPLICATE_ID)
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.refuse(stream, reason, permit);
            return Ok(());
        }
        let watch_id = if asked.watch_id != 0 { asked.watch_id } else { free_id(state) };
        let start = asked.start_revision;
        let next = if start == 0 { now.revision + 1 } else { start };
        let Some(slot) = registry.add(stream, watch_id, &asked, next) else { return Ok(()) };
        let notice = Notice { watch_id, revision: now.revision, what: What::Created };
        registry.answer(stream, notice, Some(permit));
        if next <= now.revision && next < now.compacted {
            registry.kill(slot, now.compacted);
            return Ok(());
        }
        if next <= self.fanout.revision {
            return self.fanout.resume(&[slot]);
        }
        Ok(())
    }

    /// etcd leaves a request unanswered when a watcher of the stream is behind or starts in the
    /// future, and clients ask again.
    fn request_progress(&mut self, stream: StreamId) {
        let target = self.now().revision;
        let registry = &mut self.fanout.registry;
        if registry.watchers_of(stream).any(|(_, watcher)| watcher.start > target) {
            return;
        }
        let Some(state) = registry.stream(stream) else { return };
        let idle = state.watchers.is_empty();
        if idle || state.behind > 0 || state.dead > 0 || state.progress.len() >= PROGRESS_MAX {
            return;
        }
        state.progress.push(target);
        if state.progress.len() == 1 {
            registry.awaiting_progress.push(stream);
        }
    }

    /// Answers the progress requests whose revision has been reached.
    fn answer_progress(&mut self) {
        let revision = self.fanout.revision;
        let registry = &mut self.fanout.registry;
        for id in std::mem::take(&mut registry.awaiting_progress) {
            let waits = registry.watchers_of(id).any(|(_, w)| w.next > revision + 1);
            let future = registry.watchers_of(id).any(|(_, w)| w.start > revision);
            let Some(stream) = registry.stream(id) else { continue };
            if future || stream.dead > 0 || stream.watchers.is_empty() {
                stream.progress.clear();
                continue;
            }
            if stream.behind == 0 && !waits {
                let before = stream.progress.len();
                stream.progress.retain(|target| *target > revision);
                let reached = before - stream.progress.len();
                for _ in 0..reached {
                    registry.report(id, -1, revision);
                }
            }
            if registry.stream(id).is_some_and(|stream| !stream.progress.is_empty()) {
                registry.awaiting_progress.push(id);
            }
        }
    }

    /// Periodic progress for those watchers that were sent nothing since the last time.
    fn tick(&mut self, stream: StreamId) {
        let revision = self.fanout.revision;
        let registry = &mut self.fanout.registry;
        let notified = registry.watchers_of(stream).filter(|(_, watcher)| watcher.progress_notify);
        let slots: Vec<u32> = notified.map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(watcher) = registry.watcher_mut(slot) else { continue };
            let sent = std::mem::take(&mut watcher.sent_since_tick);
            let synced = watcher.state == State::Live
                && watcher.start <= revision
                && watcher.next <= revision + 1;
            if synced && !sent {
                let watch_id = watcher.id;
                registry.report(stream, watch_id, revision);
            }
        }
    }
}

/// The lowest id, from the last chosen one on, that is not taken.
fn free_id(stream: &mut super::registry::StreamState) -> i64 {
    while stream.watchers.contains_key(&stream.next_id) {
        stream.next_id += 1;
    }
    stream.next_id += 1;
    stream.next_id - 1
}

//! The hub's own thread: obeys streams, delivers what is published, hands out jobs.

use super::{Command, Inbox, READERS, Settings, Shared, StreamId};
use crate::keyspace::event::{HistoryError, RevisionEvents, Visible};
use crate::watch::catch_up::{Outcome, read_history};
use crate::watch::deliver::Fanout;
use crate::watch::outbox::{Notice, What};
use crate::watch::registry::{CreateWatcher, State, StreamState};
use std::collections::VecDeque;
use tokio::sync::OwnedSemaphorePermit;

/// Published revisions handled before commands are looked at again.
const REVISIONS_PER_ROUND: usize = 256;
/// Watchers of a stream that go on at a time when the stream has room again: all of them might be too many for
/// the room, and would be looked at each time that there is some.
const UNPARK_AT_ONCE: usize = 128;
/// Progress requests of a stream that may wait at a time; more go unanswered.
const PROGRESS_MAX: usize = 64;

const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

/// The hub thread.
pub(super) struct Worker {
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
    /// A thread's work from the revision on that `fanout` has reached.
    pub(super) fn new(fanout: Fanout) -> Self {
        let target = fanout.revision;
        Self { fanout, backlog: VecDeque::new(), target, running: 0, last_job: i64::MAX }
    }

    /// Works until the hub is closed.
    pub(super) fn run(&mut self, shared: &Shared) -> Result<(), HistoryError> {
        let mut commands = Vec::new();
        let mut outcomes = Vec::new();
        while self.take(shared, &mut commands, &mut outcomes) {
            self.skip_unwatched();
            for command in commands.drain(..) {
                self.obey(command, shared)?;
            }
            for outcome in outcomes.drain(..) {
                self.running -= 1;
                self.fanout.apply(outcome)?;
            }
            self.advance(&shared.settings)?;
            let unparked = self.fanout.registry.unpark(UNPARK_AT_ONCE);
            self.fanout.resume(&unparked)?;
            self.answer_progress();
            self.start_jobs(shared);
            self.measure_lag(shared);
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
        let busy = !self.backlog.is_empty()
            || self.target > self.fanout.revision
            || self.fanout.registry.can_unpark(UNPARK_AT_ONCE);
        let mut inbox = shared.inbox.lock();
        inbox.watched = !self.fanout.registry.is_empty();
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
        // Somebody may be about to watch.
        inbox.watched |= !commands.is_empty();
        self.take_published(&mut inbox);
        !inbox.closed
    }

    /// Passes over what was published while nobody watched.
    fn skip_unwatched(&mut self) {
        if self.fanout.registry.is_empty() {
            self.backlog.clear();
            self.fanout.skip_to(self.target);
        }
    }

    fn take_published(&mut self, inbox: &mut Inbox) {
        if self.backlog.is_empty() {
            // Together, so that what is missing from the backlog is known to have been dropped.
            std::mem::swap(&mut inbox.published, &mut self.backlog);
            inbox.published_size = 0;
            self.target = self.target.max(inbox.target);
        }
    }

    /// Delivers up to a revision that is visible by now, published or not.
    fn reach(&mut self, revision: i64, shared: &Shared) -> Result<(), HistoryError> {
        self.target = self.target.max(revision);
        while self.fanout.revision < revision {
            self.take_published(&mut shared.inbox.lock());
            self.advance(&shared.settings)?;
        }
        Ok(())
    }

    /// Delivers some of what was published, or reads a chunk of what is missing from it.
    fn advance(&mut self, settings: &Settings) -> Result<(), HistoryError> {
        self.skip_unwatched();
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

    fn obey(&mut self, command: Command, shared: &Shared) -> Result<(), HistoryError> {
        match command {
            Command::Open(stream, outbox) => self.fanout.registry.open(stream, outbox),
            Command::Create(stream, asked, permit) => {
                return self.create(stream, asked, permit, shared);
            }
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
            Command::Room(stream) => self.fanout.registry.has_room(stream),
            Command::Close(stream) => self.fanout.registry.close(stream),
            Command::List(most, answer) => {
                // Whoever asked may have gone.
                let _ = answer.send(self.fanout.list(most));
            }
        }
        Ok(())
    }

    fn measure_lag(&self, shared: &Shared) {
        let next = self.fanout.registry.furthest_behind();
        let lag = next.map_or(0, |next| self.fanout.revision + 1 - next);
        shared.stats.set_lag(lag.max(0));
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
        shared: &Shared,
    ) -> Result<(), HistoryError> {
        let now = self.now();
        if (1..=now.revision).contains(&asked.start_revision) {
            // What it is sent of the past says which revision the store has reached, and that is no
            // less than what it is told when it is created.
            self.reach(now.revision, shared)?;
        }
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
        let Some(state) = registry.stream(stream) else { return };
        let idle = state.watchers.is_empty() || state.starts_behind(target);
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
            let Some(stream) = registry.stream(id) else { continue };
            if stream.starts_behind(revision) || stream.dead > 0 || stream.watchers.is_empty() {
                stream.progress.clear();
                continue;
            }
            if stream.behind == 0 && !stream.created_behind(revision) {
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
fn free_id(stream: &mut StreamState) -> i64 {
    while stream.watchers.contains_key(&stream.next_id) {
        stream.next_id += 1;
    }
    stream.next_id += 1;
    stream.next_id - 1
}

//! Streams and watchers, and what state each watcher is in.

use super::batch::{Batch, Wants};
use super::hub::StreamId;
use super::index::{GroupId, Index, KeyRange, Place};
use super::outbox::{Notice, Outbox, What};
use super::stats::Stats;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct CreateWatcher {
    /// The keys.
    pub range: KeyRange,
    /// First revision wanted; 0 for what comes after the current one.
    pub start_revision: i64,
    /// Chosen id; 0 leaves the choice to the server.
    pub watch_id: i64,
    /// Whether events carry what was there before.
    pub prev_kv: bool,
    /// Whether to report progress from time to time.
    pub progress_notify: bool,
    /// Whether large answers may be cut.
    pub fragment: bool,
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletes.
    pub no_delete: bool,
}

/// How a watcher gets its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// With the next revision that is published, or the first one at its cursor.
    Live,
    /// From history: waits for a reader.
    Queued,
    /// From history: a reader is at it.
    Reading,
    /// Not before its stream has room.
    Parked,
    /// Never: compacted. It keeps its id until the client cancels it.
    Dead,
}

impl State {
    fn is_behind(self) -> bool {
        matches!(self, State::Queued | State::Reading | State::Parked)
    }
}

#[derive(Debug)]
pub(super) struct Watcher {
    pub id: i64,
    /// As the client gave it.
    pub start: i64,
    /// The cursor: events from this revision on have not been handed over.
    pub next: i64,
    pub stream: u32,
    pub place: Place,
    pub wants: Wants,
    pub fragment: bool,
    pub progress_notify: bool,
    /// Whether events were handed over since the last periodic progress.
    pub sent_since_tick: bool,
    pub state: State,
}

struct Slot {
    /// Rises when the slot is used again, so that late results find no stranger.
    generation: u32,
    watcher: Option<Watcher>,
}

pub(super) struct StreamState {
    pub id: StreamId,
    pub outbox: Arc<Outbox>,
    pub watchers: HashMap<i64, u32>,
    pub next_id: i64,
    /// Watchers that wait for room, by cursor.
    pub parked: BTreeSet<(i64, u32)>,
    /// Whether nobody was turned away since there was room last.
    pub has_room: bool,
    /// Whether it is among the registry's `roomy` ones.
    listed: bool,
    /// Where watchers start that were given a start, with those that lie in the past.
    starts: BTreeSet<(i64, u32)>,
    /// The newest revision that a watcher of what comes then was created at.
    created_at: i64,
    /// How many are behind, parked ones included.
    pub behind: usize,
    /// How many are dead.
    pub dead: usize,
    /// Progress requests: each waits for the hub to reach this revision.
    pub progress: Vec<i64>,
    dirty: bool,
}

impl StreamState {
    /// Whether one of its watchers starts behind `revision`, as its client asked.
    pub fn starts_behind(&self, revision: i64) -> bool {
        self.starts.last().is_some_and(|(start, _)| *start > revision)
    }

    /// Whether one of its watchers was created at a revision that the hub has not come to.
    pub fn created_behind(&self, revision: i64) -> bool {
        self.created_at > revision
    }

    /// How many of the watchers that wait for room may go on, of which `most` do at a time.
    fn portion(&self, most: usize) -> usize {
        let under_way = self.behind - self.parked.len();
        if self.has_room { self.parked.len().min(most.saturating_sub(under_way)) } else { 0 }
    }
}

#[derive(Default)]
pub(super) struct Registry {
    pub index: Index,
    slots: Vec<Slot>,
    free: Vec<u32>,
    streams: Vec<Option<StreamState>>,
    free_streams: Vec<u32>,
    by_id: HashMap<StreamId, u32>,
    /// `Queued` watchers, by cursor.
    pub queued: BTreeSet<(i64, u32)>,
    /// All that are behind, by cursor.
    behind: BTreeSet<(i64, u32)>,
    /// Streams with progress requests.
    pub awaiting_progress: Vec<StreamId>,
    /// Streams that have room again for watchers that wait for it.
    roomy: Vec<StreamId>,
    /// Streams that were given something and not woken yet.
    dirty: Vec<u32>,
    stats: Arc<Stats>,
}

impl Registry {
    pub fn new(stats: Arc<Stats>) -> Self {
        Self { stats, ..Self::default() }
    }

    pub fn open(&mut self, id: StreamId, outbox: Arc<Outbox>) {
        let stream = StreamState {
            id,
            outbox,
            watchers: HashMap::new(),
            next_id: 0,
            parked: BTreeSet::new(),
            has_room: true,
            listed: false,
            starts: BTreeSet::new(),
            created_at: 0,
            behind: 0,
            dead: 0,
            progress: Vec::new(),
            dirty: false,
        };
        let slot = match self.free_streams.pop() {
            Some(slot) => {
                self.streams[slot as usize] = Some(stream);
                slot
            }
            None => {
                self.streams.push(Some(stream));
                (self.streams.len() - 1) as u32
            }
        };
        self.by_id.insert(id, slot);
        self.stats.add_streams(1);
    }

    /// Forgets a stream and its watchers.
    pub fn close(&mut self, id: StreamId) {
        let Some(slot) = self.by_id.remove(&id) else { return };
        let Some(stream) = self.streams[slot as usize].take() else { return };
        for watcher in stream.watchers.values() {
            self.forget(*watcher);
        }
        self.free_streams.push(slot);
        self.stats.add_streams(-1);
    }

    pub fn stream(&mut self, id: StreamId) -> Option<&mut StreamState> {
        let slot = self.by_id.get(&id)?;
        self.streams[*slot as usize].as_mut()
    }

    /// A stream's watchers.
    pub fn watchers_of(&self, id: StreamId) -> impl Iterator<Item = (u32, &Watcher)> {
        let stream = self.by_id.get(&id).and_then(|slot| self.streams[*slot as usize].as_ref());
        let slots = stream.into_iter().flat_map(|stream| stream.watchers.values());
        slots.filter_map(|slot| Some((*slot, self.watcher(*slot)?)))
    }

    pub fn watcher(&self, slot: u32) -> Option<&Watcher> {
        self.slots.get(slot as usize)?.watcher.as_ref()
    }

    pub fn watcher_mut(&mut self, slot: u32) -> Option<&mut Watcher> {
        self.slots.get_mut(slot as usize)?.watcher.as_mut()
    }

    pub fn generation(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |slot| slot.generation)
    }

    /// All watchers' slots.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Watcher)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, known)| Some((slot as u32, known.watcher.as_ref()?)))
    }

    /// The first revision that some watcher which is behind has not been given.
    pub fn furthest_behind(&self) -> Option<i64> {
        self.behind.first().map(|(next, _)| *next)
    }

    /// The stream in a place.
    pub fn stream_at(&self, place: u32) -> Option<&StreamState> {
        self.streams.get(place as usize)?.as_ref()
    }

    /// The keys of a watcher that is not dead.
    pub fn range(&self, group: GroupId) -> Option<&KeyRange> {
        self.index.range(group)
    }

    /// Adds a watcher under an id that is free, `Live` from the given cursor.
    pub fn add(
        &mut self,
        stream: StreamId,
        id: i64,
        asked: &CreateWatcher,
        next: i64,
    ) -> Option<u32> {
        let stream = *self.by_id.get(&stream)?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, watcher: None });
            (self.slots.len() - 1) as u32
        });
        let place = self.index.insert(&asked.range, slot);
        let known = &mut self.slots[slot as usize];
        known.generation = known.generation.wrapping_add(1);
        known.watcher = Some(Watcher {
            id,
            start: asked.start_revision,
            next,
            stream,
            place,
            wants: Wants::new(asked.prev_kv, asked.no_put, asked.no_delete),
            fragment: asked.fragment,
            progress_notify: asked.progress_notify,
            sent_since_tick: false,
            state: State::Live,
        });
        let state = self.streams[stream as usize].as_mut()?;
        state.watchers.insert(id, slot);
        match asked.start_revision {
            0 => state.created_at = state.created_at.max(next - 1),
            start => _ = state.starts.insert((start, slot)),
        }
        self.stats.add_watchers(1);
        Some(slot)
    }

    /// Removes a watcher by its id on the stream. False when there is none.
    pub fn cancel(&mut self, stream: StreamId, id: i64) -> bool {
        let Some(state) = self.stream(stream) else { return false };
        let Some(slot) = state.watchers.remove(&id) else { return false };
        self.forget(slot);
        true
    }

    /// Removes what leads to a watcher, besides its entry in the stream.
    fn forget(&mut self, slot: u32) {
        let Some(watcher) = self.watcher(slot) else { return };
        let (next, place, state, stream) =
            (watcher.next, watcher.place, watcher.state, watcher.stream);
        let start = watcher.start;
        if state == State::Queued {
            self.queued.remove(&(next, slot));
        }
        if state != State::Dead {
            self.unindex(place);
        }
        if state.is_behind() {
            self.behind.remove(&(next, slot));
            self.stats.add_slow(-1);
        }
        if let Some(Some(stream)) = self.streams.get_mut(stream as usize) {
            stream.behind -= usize::from(state.is_behind());
            stream.dead -= usize::from(state == State::Dead);
            stream.parked.remove(&(next, slot));
            stream.starts.remove(&(start, slot));
        }
        self.slots[slot as usize].watcher = None;
        self.free.push(slot);
        self.stats.add_watchers(-1);
    }

    fn unindex(&mut self, place: Place) {
        if let Some(moved) = self.index.remove(place)
            && let Some(watcher) = self.watcher_mut(moved)
        {
            watcher.place = place;
        }
    }

    /// Moves a watcher's cursor, and puts it into a state.
    pub fn settle(&mut self, slot: u32, to: State, next: i64) {
        let Some(watcher) = self.watcher_mut(slot) else { return };
        let (from, cursor, place) = (watcher.state, watcher.next, watcher.place);
        let stream = watcher.stream;
        watcher.state = to;
        watcher.next = next;
        if from == State::Queued {
            self.queued.remove(&(cursor, slot));
        }
        if to == State::Queued {
            self.queued.insert((next, slot));
        }
        if from.is_behind() {
            self.behind.remove(&(cursor, slot));
        }
        if to.is_behind() {
            self.behind.insert((next, slot));
        }
        if to == State::Dead && from != State::Dead {
            self.unindex(place);
        }
        self.stats.add_slow(i64::from(to.is_behind()) - i64::from(from.is_behind()));
        let Some(Some(stream)) = self.streams.get_mut(stream as usize) else { return };
        stream.behind += usize::from(to.is_behind());
        stream.behind -= usize::from(from.is_behind());
        stream.dead += usize::from(to == State::Dead);
        stream.dead -= usize::from(from == State::Dead);
        if from == State::Parked {
            stream.parked.remove(&(cursor, slot));
        }
        if to == State::Parked {
            stream.parked.insert((next, slot));
        }
    }

    /// Puts events into the outbox of a watcher's stream. False when there is no room; the stream
    /// then calls back.
    #[must_use]
    pub fn send(&mut self, slot: u32, revision: i64, batch: &Arc<Batch>) -> bool {
        let Some(watcher) = self.slots[slot as usize].watcher.as_mut() else { return true };
        let Some(stream) = self.streams[watcher.stream as usize].as_mut() else { return true };
        let what = What::Events { batch: batch.clone(), fragment: watcher.fragment };
        let notice = Notice { watch_id: watcher.id, revision, what };
        if !stream.outbox.offer(notice, stream.watchers.len(), true) {
            stream.has_room = false;
            return false;
        }
        watcher.sent_since_tick = true;
        mark_dirty(stream, watcher.stream, &mut self.dirty);
        true
    }

    /// Puts an answer into a stream's outbox, whether it is full or not.
    pub fn answer(&mut self, id: StreamId, notice: Notice, request: Option<OwnedSemaphorePermit>) {
        let Some(slot) = self.by_id.get(&id).copied() else { return };
        let Some(stream) = self.streams[slot as usize].as_mut() else { return };
        stream.outbox.push_answer(notice, request);
        mark_dirty(stream, slot, &mut self.dirty);
    }

    /// Puts progress into a stream's outbox, or drops it when that is full.
    pub fn report(&mut self, id: StreamId, watch_id: i64, revision: i64) {
        let Some(slot) = self.by_id.get(&id).copied() else { return };
        let Some(stream) = self.streams[slot as usize].as_mut() else { return };
        let notice = Notice { watch_id, revision, what: What::Progress };
        if stream.outbox.offer(notice, stream.watchers.len(), false) {
            mark_dirty(stream, slot, &mut self.dirty);
        }
    }

    /// Ends a watcher whose next event has been compacted.
    pub fn kill(&mut self, slot: u32, compacted: i64) {
        let Some(watcher) = self.watcher(slot) else { return };
        let (watch_id, next, stream) = (watcher.id, watcher.next, watcher.stream);
        self.settle(slot, State::Dead, next);
        let Some(id) = self.streams[stream as usize].as_ref().map(|stream| stream.id) else {
            return;
        };
        // There is one of these for each watcher at most, so they need no room.
        self.answer(id, Notice { watch_id, revision: 0, what: What::Compacted(compacted) }, None);
    }

    /// A stream has room again.
    pub fn has_room(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else { return };
        stream.has_room = true;
        if !std::mem::replace(&mut stream.listed, true) {
            self.roomy.push(id);
        }
    }

    /// Takes watchers out of those that wait for room, on each stream that has it: as many as make `most` of
    /// the stream's that catch up at a time. They are `Queued` then, for whoever serves them.
    pub fn unpark(&mut self, most: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        for id in std::mem::take(&mut self.roomy) {
            let Some(stream) = self.stream(id) else { continue };
            if !stream.has_room || stream.parked.is_empty() {
                stream.listed = false;
                continue;
            }
            let portion = stream.portion(most);
            let portion: Vec<(i64, u32)> = stream.parked.iter().take(portion).copied().collect();
            for (next, slot) in portion {
                self.settle(slot, State::Queued, next);
                taken.push(slot);
            }
            self.roomy.push(id);
        }
        taken
    }

    /// Whether [`Registry::unpark`] would take any.
    pub fn can_unpark(&self, most: usize) -> bool {
        self.roomy.iter().any(|id| {
            let slot = self.by_id.get(id).copied();
            slot.and_then(|slot| self.stream_at(slot)).is_some_and(|it| it.portion(most) > 0)
        })
    }

    /// Whether nobody waits for events.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Wakes the streams that were given something.
    pub fn wake(&mut self) {
        for slot in self.dirty.drain(..) {
            if let Some(Some(stream)) = self.streams.get_mut(slot as usize) {
                stream.dirty = false;
                stream.outbox.wake();
            }
        }
    }
}

fn mark_dirty(stream: &mut StreamState, slot: u32, dirty: &mut Vec<u32>) {
    if !stream.dirty {
        stream.dirty = true;
        dirty.push(slot);
    }
}

impl Drop for StreamState {
    fn drop(&mut self) {
        // However the hub ends, no client is left waiting.
        self.outbox.end();
    }
}

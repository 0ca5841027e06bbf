//! From a revision to its watchers.

use super::batch::{Batch, EncodedRevision, Wants};
use super::index::GroupId;
use super::recent::Recent;
use super::registry::{Registry, State};
use crate::keyspace::event::{History, HistoryError, RevisionEvents};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// What the hub itself hands to a watcher that resumes, in bytes; one that lacks more gets it from
/// a reader. What is lacking can be large although the recent revisions are small: each event may
/// carry a large previous value.
const RESUME_BYTES_MAX: usize = 4 << 20;

/// A batch once it has been made; made, it may turn out empty.
type Made = Option<Option<Arc<Batch>>>;

/// The hub's position, and everyone who follows it.
pub(super) struct Fanout {
    pub registry: Registry,
    pub recent: Recent,
    /// Every `Live` watcher has been given its events up to here.
    pub revision: i64,
    pub history: Arc<dyn History>,
    /// Buffers, kept between revisions: groups of an event; (group, event) pairs.
    groups: Vec<u32>,
    matches: Vec<(u32, u32)>,
}

impl Fanout {
    pub fn new(registry: Registry, revision: i64, history: Arc<dyn History>) -> Self {
        Self {
            registry,
            recent: Recent::new(revision),
            revision,
            history,
            groups: Vec::new(),
            matches: Vec::new(),
        }
    }

    /// Hands the next revision to the watchers that want it.
    pub fn deliver(&mut self, source: RevisionEvents) -> Result<(), HistoryError> {
        debug_assert!(source.revision > self.revision);
        let mut revision = EncodedRevision::new(source);
        self.revision = revision.revision;
        let mut matches = std::mem::take(&mut self.matches);
        self.find(&revision, &mut matches);
        let mut whole: [Made; Wants::COUNT] = Default::default();
        let mut positions = Vec::new();
        for run in matches.chunk_by(|a, b| a.0 == b.0) {
            positions.clear();
            positions.extend(run.iter().map(|(_, event)| *event));
            let mut part: [Made; Wants::COUNT] = Default::default();
            let all = positions.len() == revision.events.len();
            let made = if all { &mut whole } else { &mut part };
            self.deliver_to_group(run[0].0, &mut revision, &positions, made)?;
        }
        matches.clear();
        self.matches = matches;
        self.recent.push(revision);
        Ok(())
    }

    /// Finds the groups that want events of a revision, sorted by group, then event.
    fn find(&mut self, revision: &EncodedRevision, matches: &mut Vec<(u32, u32)>) {
        for (position, event) in revision.events.iter().enumerate() {
            self.registry.index.find(&event.key, &mut self.groups);
            matches.extend(self.groups.drain(..).map(|group| (group, position as u32)));
        }
        if revision.events.len() > 1 {
            matches.sort_unstable();
        }
    }

    fn deliver_to_group(
        &mut self,
        group: u32,
        revision: &mut EncodedRevision,
        positions: &[u32],
        made: &mut [Made; Wants::COUNT],
    ) -> Result<(), HistoryError> {
        // By position: sending changes the registry, though never the group.
        for position in 0..self.registry.index.members(group).len() {
            let slot = self.registry.index.members(group)[position];
            let Some(watcher) = self.registry.watcher(slot) else { continue };
            if watcher.state != State::Live || watcher.next > revision.revision {
                continue;
            }
            let wants = watcher.wants;
            let made = &mut made[wants.index()];
            if made.is_none() {
                let mut pieces = Vec::with_capacity(positions.len());
                revision.append(positions, wants, &*self.history, &mut pieces)?;
                *made = Some(Batch::new(pieces));
            }
            if let Some(Some(batch)) = made
                && !self.registry.send(slot, revision.revision, batch)
            {
                self.registry.settle(slot, State::Parked, revision.revision);
            }
        }
        Ok(())
    }

    /// Brings watchers that are behind up to the hub's revision, if what they lack is at hand;
    /// queues the others for a reader. None of them may be `Parked`: one that has to be parked
    /// again must get into its stream's list again.
    pub fn resume(&mut self, slots: &[u32]) -> Result<(), HistoryError> {
        let mut made: HashMap<(GroupId, i64, Wants), Made> = HashMap::new();
        for &slot in slots {
            let Some(watcher) = self.registry.watcher(slot) else { continue };
            let (next, key) = (watcher.next, (watcher.place.group, watcher.next, watcher.wants));
            if next > self.revision {
                self.registry.settle(slot, State::Live, next);
                continue;
            }
            let batch = match made.get(&key) {
                _ if !self.recent.covers(next) => None,
                Some(batch) => batch.clone(),
                None => made.entry(key).or_insert(self.recent_batch(key)?).clone(),
            };
            let Some(batch) = batch else {
                self.registry.settle(slot, State::Queued, next);
                continue;
            };
            let sent = batch.is_none_or(|batch| self.registry.send(slot, self.revision, &batch));
            if sent {
                self.registry.settle(slot, State::Live, self.revision + 1);
            } else {
                self.registry.settle(slot, State::Parked, next);
            }
        }
        if !made.is_empty() {
            self.recent.measure();
        }
        Ok(())
    }

    /// What a watcher lacks, from the recent revisions. `None` when it is too much.
    fn recent_batch(
        &mut self,
        (group, next, wants): (GroupId, i64, Wants),
    ) -> Result<Made, HistoryError> {
        let Some(range) = self.registry.range(group) else { return Ok(None) };
        let mut pieces: Vec<Bytes> = Vec::new();
        let (mut counted, mut bytes) = (0, 0);
        for revision in self.recent.from(next) {
            for position in 0..revision.events.len() {
                if range.contains(&revision.events[position].key) {
                    let position = [position as u32];
                    revision.append(&position, wants, &*self.history, &mut pieces)?;
                }
            }
            bytes += pieces[counted..].iter().map(Bytes::len).sum::<usize>();
            counted = pieces.len();
            if bytes > RESUME_BYTES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(Batch::new(pieces)))
    }

    /// Goes on behind `revision` while nobody watches. Whoever comes and wants what lies before it gets it
    /// from history.
    pub fn skip_to(&mut self, revision: i64) {
        debug_assert!(self.registry.is_empty());
        if revision > self.revision {
            self.revision = revision;
            self.recent = Recent::new(revision);
        }
    }

    /// History up to the hub's revision is gone: everyone who still needed it ends. The hub goes
    /// on just below the compaction point.
    pub fn skip_compacted(&mut self, compacted: i64) {
        let next = self.revision + 1;
        let lost = |watcher: &super::registry::Watcher| {
            watcher.state == State::Live && watcher.next.max(next) < compacted
        };
        let lost: Vec<u32> =
            self.registry.all().filter(|(_, w)| lost(w)).map(|(slot, _)| slot).collect();
        for slot in lost {
            self.registry.kill(slot, compacted);
        }
        self.revision = self.revision.max(compacted - 1);
        self.recent = Recent::new(self.revision);
    }
}

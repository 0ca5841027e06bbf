//! The last few revisions, for watchers that are only a little behind.
//!
//! Without it, a watcher that catches up under a steady stream of writes would always find that
//! more has been published while it read history.

use super::batch::EncodedRevision;
use std::collections::VecDeque;

/// Revisions kept at most.
const REVISIONS_MAX: usize = 512;
/// Events kept at most, unless the newest revision alone has more: a watcher that resumes looks at
/// each of them.
const EVENTS_MAX: usize = 2048;
/// Bytes kept at most, encodings included, unless the newest revision alone has more.
const BYTES_MAX: usize = 4 << 20;

/// All revisions above `floor` up to the hub's own.
#[derive(Debug)]
pub(super) struct Recent {
    revisions: VecDeque<EncodedRevision>,
    floor: i64,
    size: usize,
    events: usize,
}

impl Recent {
    pub fn new(floor: i64) -> Self {
        Self { revisions: VecDeque::new(), floor, size: 0, events: 0 }
    }

    /// Adds the next revision.
    pub fn push(&mut self, revision: EncodedRevision) {
        self.size += revision.size();
        self.events += revision.events.len();
        self.revisions.push_back(revision);
        self.shrink();
    }

    /// Measures again what is kept: revisions grow when their events are encoded for a watcher
    /// that resumes.
    pub fn measure(&mut self) {
        self.size = self.revisions.iter().map(EncodedRevision::size).sum();
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.is_too_large() {
            let Some(oldest) = self.revisions.pop_front() else { break };
            self.size -= oldest.size();
            self.events -= oldest.events.len();
            self.floor = oldest.revision;
        }
    }

    fn is_too_large(&self) -> bool {
        let large = self.size > BYTES_MAX || self.events > EVENTS_MAX;
        self.revisions.len() > REVISIONS_MAX || (large && self.revisions.len() > 1)
    }

    /// Whether every revision from `from` on is here.
    pub fn covers(&self, from: i64) -> bool {
        from > self.floor
    }

    /// The revisions from `from` on.
    pub fn from(&mut self, from: i64) -> impl Iterator<Item = &mut EncodedRevision> {
        let start = self.revisions.partition_point(|known| known.revision < from);
        self.revisions.range_mut(start..)
    }
}

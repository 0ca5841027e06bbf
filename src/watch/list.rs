//! Watchers as people see them.

use super::deliver::Fanout;
use super::index::KeyRange;
use super::registry::{State, Watcher};

/// Some of the watchers.
#[derive(Clone, Debug)]
pub struct Watchers {
    /// How many there are.
    pub total: usize,
    /// The revision that the hub has come to.
    pub revision: i64,
    /// Those furthest behind first.
    pub watchers: Vec<WatcherInfo>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct WatcherInfo {
    /// Its stream: a number for the life of the process.
    pub stream: u64,
    /// Its id on the stream.
    pub id: i64,
    /// The keys that it wants; none once it has ended because of a compaction.
    pub range: Option<KeyRange>,
    /// The first revision that it was asked for; 0 for what came after its creation.
    pub start: i64,
    /// Revisions that it has not been given; negative for one that starts in the future.
    pub lag: i64,
    /// `live`, `catching up`, `waiting for its client` or `compacted`.
    pub state: &'static str,
    /// Answers on its stream, of all its watchers, that the client has not taken.
    pub waiting: usize,
}

impl Fanout {
    /// The watchers, those furthest behind first, at most `most`.
    pub(super) fn list(&self, most: usize) -> Watchers {
        let mut all: Vec<(i64, u32)> =
            self.registry.all().map(|(slot, watcher)| (self.lag(watcher), slot)).collect();
        let total = all.len();
        all.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        all.truncate(most);
        let watchers = all.into_iter().filter_map(|(lag, slot)| {
            let watcher = self.registry.watcher(slot)?;
            let stream = self.registry.stream_at(watcher.stream)?;
            let dead = watcher.state == State::Dead;
            Some(WatcherInfo {
                stream: stream.id.number(),
                id: watcher.id,
                range: (!dead).then(|| self.registry.range(watcher.place.group).cloned()).flatten(),
                start: watcher.start,
                lag,
                state: told(watcher.state),
                waiting: stream.outbox.waiting(),
            })
        });
        Watchers { total, revision: self.revision, watchers: watchers.collect() }
    }

    fn lag(&self, watcher: &Watcher) -> i64 {
        let missing = self.revision + 1 - watcher.next;
        match watcher.state {
            // Its cursor stays where it was when it caught up.
            State::Live => missing.min(0),
            _ => missing,
        }
    }
}

fn told(state: State) -> &'static str {
    match state {
        State::Live => "live",
        State::Queued | State::Reading => "catching up",
        State::Parked => "waiting for its client",
        State::Dead => "compacted",
    }
}

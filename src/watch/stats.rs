//! Numbers for the metrics page.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What the hub counts. Read at any time, from any thread.
#[derive(Debug, Default)]
pub struct Stats {
    streams: AtomicI64,
    watchers: AtomicI64,
    slow_watchers: AtomicI64,
    events_pending: AtomicI64,
    events_sent: AtomicU64,
    revisions_dropped: AtomicU64,
    lag: AtomicI64,
}

impl Stats {
    /// Open watch streams.
    pub fn streams(&self) -> i64 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Watchers on all streams, including those that a compaction has ended and their client has
    /// not yet cancelled.
    pub fn watchers(&self) -> i64 {
        self.watchers.load(Ordering::Relaxed)
    }

    /// Watchers that are behind: starting in the past, or on a stream whose client reads slowly.
    pub fn slow_watchers(&self) -> i64 {
        self.slow_watchers.load(Ordering::Relaxed)
    }

    /// How many revisions the watcher furthest behind has not been given.
    pub fn lag(&self) -> i64 {
        self.lag.load(Ordering::Relaxed)
    }

    /// Events in outboxes, not yet taken by the transport.
    pub fn events_pending(&self) -> i64 {
        self.events_pending.load(Ordering::Relaxed)
    }

    /// Events that the transport has taken, since the start.
    pub fn events_sent(&self) -> u64 {
        self.events_sent.load(Ordering::Relaxed)
    }

    /// Published revisions that the hub was too far behind to keep and read from history instead.
    pub fn revisions_dropped(&self) -> u64 {
        self.revisions_dropped.load(Ordering::Relaxed)
    }

    pub(super) fn add_streams(&self, by: i64) {
        self.streams.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn add_watchers(&self, by: i64) {
        self.watchers.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn add_slow(&self, by: i64) {
        self.slow_watchers.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn set_lag(&self, revisions: i64) {
        self.lag.store(revisions, Ordering::Relaxed);
    }

    pub(super) fn add_dropped(&self, by: u64) {
        self.revisions_dropped.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn events_queued(&self, count: usize) {
        self.events_pending.fetch_add(count as i64, Ordering::Relaxed);
    }

    pub(super) fn events_taken(&self, count: usize) {
        self.events_pending.fetch_sub(count as i64, Ordering::Relaxed);
        self.events_sent.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(super) fn events_discarded(&self, count: usize) {
        self.events_pending.fetch_sub(count as i64, Ordering::Relaxed);
    }
}

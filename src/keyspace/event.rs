//! What a committed revision changed, in the form that watchers and history readers share.

use bytes::Bytes;
use std::sync::Arc;

pub use crate::storage::tables::rows::{EventKind, RowId};

/// One change of one key.
#[derive(Clone, Debug)]
pub struct Event {
    /// Which change.
    pub row: RowId,
    /// Put or delete.
    pub kind: EventKind,
    /// The key.
    pub key: Bytes,
    /// The key's new state as an encoded `mvccpb.KeyValue`. For a delete: key and mod_revision only.
    pub kv: Bytes,
    /// Whether this put created the key (create_revision equals mod_revision). False for deletes.
    pub create: bool,
}

/// All events of one revision, in the order in which they happened.
#[derive(Clone, Debug)]
pub struct RevisionEvents {
    /// The revision; every event's `row.main` equals it.
    pub revision: i64,
    /// Never empty.
    pub events: Arc<[Event]>,
}

/// Revision and compaction point that readers may rely on: everything up to `revision` is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Current revision, from 1.
    pub revision: i64,
    /// Compacted revision; 0 or below when nothing has been compacted.
    pub compacted: i64,
}

/// Why history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The start lies below the compaction point, which is given.
    #[error("revisions below {0} have been compacted")]
    Compacted(i64),
    /// The store failed; the process is about to stop.
    #[error("storage: {0}")]
    Storage(String),
}

/// Bounds for one read of history: it ends after the revision with which either is reached.
#[derive(Clone, Copy, Debug)]
pub struct HistoryBudget {
    /// Bytes of keys and values.
    pub bytes: usize,
    /// Number of events.
    pub events: usize,
}

/// One piece of history, made of whole revisions.
#[derive(Clone, Debug)]
pub struct HistoryChunk {
    /// Revisions with events, ascending. Revisions that a compaction thinned out hold what is left.
    pub revisions: Vec<RevisionEvents>,
    /// Everything from the requested start to here (inclusive) has been covered.
    pub through: i64,
}

/// Reading what has been committed, by revision. Calls may block on disk.
pub trait History: Send + Sync + 'static {
    /// What is durable now.
    fn visible(&self) -> Visible;

    /// Events from revision `from` (inclusive) up to at most `to` (inclusive), whole revisions only,
    /// at least one revision per call.
    fn events(
        &self,
        from: i64,
        to: i64,
        budget: HistoryBudget,
    ) -> Result<HistoryChunk, HistoryError>;

    /// The key's state just before `revision`, as an encoded `mvccpb.KeyValue`; `None` when it did
    /// not exist then or when that state has been compacted away.
    fn previous(&self, key: &[u8], revision: i64) -> Result<Option<Bytes>, HistoryError>;
}

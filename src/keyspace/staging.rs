//! Changes of a group of commands between apply and commit.

use super::event::{Event, EventKind, RevisionEvents, RowId};
use crate::storage::tables::rows;
use crate::storage::{Batch, Snapshot, StorageError, Table};
use bytes::Bytes;
use leaseway_proto::mvccpb::KeyValue;
use prost::Message;
use std::sync::Arc;

/// Rows by their id, wherever they are.
pub trait Rows {
    /// Hands the row's encoded `KeyValue` to `visit`.
    ///
    /// # Errors
    /// I/O errors, damage, and a row that is missing.
    fn visit(&self, row: RowId, visit: &mut dyn FnMut(&[u8])) -> Result<(), StorageError>;

    /// The row's `KeyValue`.
    ///
    /// # Errors
    /// As [`Rows::visit`].
    fn load(&self, row: RowId) -> Result<KeyValue, StorageError> {
        let mut copy = Bytes::new();
        self.visit(row, &mut |kv| copy = Bytes::copy_from_slice(kv))?;
        KeyValue::decode(copy).map_err(|error| StorageError::Corrupted(error.to_string()))
    }
}

/// Rows of a snapshot.
pub struct Committed<'a>(pub &'a dyn Snapshot);

impl Rows for Committed<'_> {
    fn visit(&self, row: RowId, visit: &mut dyn FnMut(&[u8])) -> Result<(), StorageError> {
        let key = rows::key(row);
        let mut result = Ok(());
        let found = self.0.get(Table::Rows, &key, &mut |value| match rows::open(&key, value) {
            Ok((_, kv)) => visit(kv),
            Err(error) => result = Err(error),
        })?;
        if !found {
            return Err(StorageError::Corrupted(format!("row {row:?} is missing")));
        }
        result
    }
}

/// A group's changes, on top of the snapshot of the commit before it.
pub struct Staging {
    snapshot: Arc<dyn Snapshot>,
    /// Number that the group's commit will have.
    pub position: u64,
    /// Changes for storage besides rows.
    pub batch: Batch,
    /// Rows in order; each is also in `batch` once the group is finished.
    rows: Vec<(RowId, Bytes)>,
    /// Bytes that the staged rows add to the store.
    pub row_bytes: i64,
    /// Events of finished revisions.
    pub events: Vec<RevisionEvents>,
    /// What happened to the times of leases that the gateways keep in mind, in order.
    pub timed: Vec<Timed>,
    open: Vec<Event>,
}

/// What happened to the time of a lease, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// It was granted, renewed or ended: its time starts anew.
    Changed(i64),
    /// What it has left was noted.
    Noted(i64),
}

impl Staging {
    /// An empty group on top of `snapshot`.
    pub fn new(snapshot: Arc<dyn Snapshot>, position: u64) -> Self {
        Self {
            snapshot,
            position,
            batch: Batch::default(),
            rows: Vec::new(),
            row_bytes: 0,
            events: Vec::new(),
            timed: Vec::new(),
            open: Vec::new(),
        }
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.batch.is_empty()
    }

    /// How much is staged; grows with every change.
    pub(super) fn mark(&self) -> (usize, usize) {
        (self.rows.len(), self.batch.changes.len())
    }

    /// How many changes the open revision has so far: the next one's place.
    pub(super) fn next_sub(&self) -> u32 {
        self.open.len() as u32
    }

    pub(super) fn push_put(&mut self, row: RowId, kv: &KeyValue) {
        let value = rows::encode_put(row, kv);
        let encoded = value.slice(rows::ROW_HEADER..);
        let create = kv.create_revision == kv.mod_revision;
        let key = key_of(&encoded, kv.key.len());
        self.open.push(Event { row, kind: EventKind::Put, key, kv: encoded, create });
        self.push_row(row, value);
    }

    fn push_row(&mut self, row: RowId, value: Bytes) {
        self.row_bytes += rows::bytes(value.len());
        self.rows.push((row, value));
    }

    /// Removes a committed row.
    pub(super) fn drop_row(&mut self, row: RowId) -> Result<(), StorageError> {
        let key = rows::key(row);
        let mut bytes = 0;
        self.snapshot.get(Table::Rows, &key, &mut |value| bytes = rows::bytes(value.len()))?;
        self.row_bytes -= bytes;
        self.batch.delete(Table::Rows, key.to_vec());
        Ok(())
    }

    pub(super) fn push_delete(&mut self, row: RowId, key: Bytes) {
        let length = key.len();
        let told = KeyValue { key: key.clone(), mod_revision: row.main, ..KeyValue::default() };
        let encoded = Bytes::from(told.encode_to_vec());
        let value = rows::encode_delete(row, key);
        let key = key_of(&encoded, length);
        self.open.push(Event { row, kind: EventKind::Delete, key, kv: encoded, create: false });
        self.push_row(row, value);
    }

    /// Ends the open revision; returns whether it changed anything.
    pub(super) fn finish_revision(&mut self, revision: i64) -> bool {
        if self.open.is_empty() {
            return false;
        }
        let events = std::mem::take(&mut self.open).into();
        self.events.push(RevisionEvents { revision, events });
        true
    }

    /// Everything to commit, and the events to publish after it.
    pub fn finish(mut self) -> (Batch, Vec<RevisionEvents>) {
        debug_assert!(self.open.is_empty(), "a revision was left open");
        self.batch.changes.reserve(self.rows.len());
        for (row, value) in self.rows {
            self.batch.put(Table::Rows, rows::key(row).to_vec(), value);
        }
        (self.batch, self.events)
    }
}

/// The key within an encoded `KeyValue`, where it is the first field, sharing its memory.
pub(super) fn key_of(kv: &Bytes, length: usize) -> Bytes {
    if length == 0 {
        return Bytes::new();
    }
    let start = 1 + prost::length_delimiter_len(length);
    kv.slice(start..start + length)
}

impl Rows for Staging {
    fn visit(&self, row: RowId, visit: &mut dyn FnMut(&[u8])) -> Result<(), StorageError> {
        match self.rows.binary_search_by_key(&row, |(id, _)| *id) {
            Ok(at) => {
                visit(&self.rows[at].1[rows::ROW_HEADER..]);
                Ok(())
            }
            Err(_) => Committed(&*self.snapshot).visit(row, visit),
        }
    }
}

//! Where bytes are kept: tables of byte keys and byte values behind a small engine trait.
//!
//! Owns: tables, snapshots, commits and their durability. Relies on: nothing above it. Deliberately absent:
//! any knowledge of keys, revisions or leases beyond each table's own encoding (one file a table).

pub mod behind;
pub mod power_cut;
mod redb_check;
pub mod redb_engine;
pub mod tables;

use bytes::Bytes;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The tables of a data directory. Each has its own file under `tables/` with its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Single facts about the store: identity, format, position. See [`tables::meta`].
    Meta,
    /// One row per change, in revision order. See [`tables::rows`].
    Rows,
    /// Living leases. See [`tables::leases`].
    Leases,
    /// Raised alarms. See [`tables::alarms`].
    Alarms,
    /// Users of authentication. See [`tables::users`].
    Users,
    /// Roles of authentication. See [`tables::roles`].
    Roles,
}

impl Table {
    /// All of them, in order.
    pub const ALL: [Table; 6] =
        [Table::Meta, Table::Rows, Table::Leases, Table::Alarms, Table::Users, Table::Roles];
}

/// Why storage could not do what was asked. None but [`StorageError::Busy`] is survivable for a write.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused a read, a write or a sync.
    #[error("{0}")]
    Io(String),
    /// The same, for want of space: the disk is full, or a quota or the largest length of a file is reached.
    #[error("{0}")]
    NoSpace(String),
    /// What is stored is not what was written.
    #[error("the data is corrupted: {0}")]
    Corrupted(String),
    /// Readers did not finish in time. Nothing is wrong, and nothing was done.
    #[error("the store is being read; try again")]
    Busy,
    /// The store was closed, or an earlier failure poisoned it.
    #[error("the store is closed: {0}")]
    Closed(String),
}

impl From<std::io::Error> for StorageError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::NoSpace(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }
}

/// Changes that are committed together.
#[derive(Debug, Default)]
pub struct Batch {
    /// Keys with their new value, or `None` to delete; a later change of a key wins.
    pub changes: Vec<Change>,
}

/// One change of a [`Batch`].
#[derive(Debug)]
pub struct Change {
    /// In which table.
    pub table: Table,
    /// Key, encoded by the table's own file.
    pub key: Bytes,
    /// New value, or `None` to delete the key.
    pub value: Option<Bytes>,
}

impl Batch {
    /// Sets a key.
    pub fn put(&mut self, table: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.changes.push(Change { table, key: key.into(), value: Some(value.into()) });
    }

    /// Removes a key; removing an absent key is allowed.
    pub fn delete(&mut self, table: Table, key: impl Into<Bytes>) {
        self.changes.push(Change { table, key: key.into(), value: None });
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// When a commit survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At once, with all commits before it.
    Immediate,
    /// As with an immediate one, but without waiting for it: [`Engine::settle`] does.
    Begun,
    /// With the next that is not deferred. A power cut before that is durable takes the store back to
    /// the last one that was, as a whole.
    Deferred,
}

/// What [`Snapshot::scan`] calls for each row.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// An unchanging view of everything that was committed when it was taken.
pub trait Snapshot: Send + Sync {
    /// Hands the value of `key` to `visit`; returns whether the key exists.
    ///
    /// # Errors
    /// I/O errors and corruption found on the way.
    fn get(
        &self,
        table: Table,
        key: &[u8],
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, StorageError>;

    /// Visits keys from `from` (inclusive) to `to` (exclusive; `None` is the end) in order, until
    /// `visit` breaks.
    ///
    /// # Errors
    /// I/O errors and corruption found on the way.
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: Visit<'_>,
    ) -> Result<(), StorageError>;
}

/// A scan whose visitor may fail: its error ends the scan and is returned.
///
/// # Errors
/// The visitor's, and those of [`Snapshot::scan`].
pub fn try_scan(
    snapshot: &dyn Snapshot,
    table: Table,
    from: &[u8],
    to: Option<&[u8]>,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StorageError>,
) -> Result<(), StorageError> {
    let mut result = Ok(());
    snapshot.scan(table, from, to, &mut |key, value| {
        visit(key, value).unwrap_or_else(|error| {
            result = Err(error);
            ControlFlow::Break(())
        })
    })?;
    result
}

/// A storage engine. Implementations: [`redb_engine::RedbEngine`] over a file, over memory, or over
/// the power-cutting disk of [`power_cut`].
pub trait Engine: Send + Sync {
    /// A view of the last commit.
    ///
    /// # Errors
    /// Fails when the store is closed or poisoned.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, StorageError>;

    /// The same for those who must not wait: `None` while [`Engine::shrink`] holds up snapshots.
    ///
    /// # Errors
    /// As [`Engine::snapshot`].
    fn snapshot_at_once(&self) -> Result<Option<Arc<dyn Snapshot>>, StorageError> {
        self.snapshot().map(Some)
    }

    /// Commits a batch as a whole. It is visible in snapshots when this returns; whether it survives
    /// a power cut is what `durability` says.
    ///
    /// # Errors
    /// After any error the engine is poisoned and every later call fails too.
    fn commit(&self, batch: &Batch, durability: Durability) -> Result<(), StorageError>;

    /// Waits until the last commit that was not deferred is durable.
    ///
    /// # Errors
    /// As [`Engine::commit`].
    fn settle(&self) -> Result<(), StorageError>;

    /// Length of the store's file in bytes.
    fn file_bytes(&self) -> u64;

    /// Gives free space back to the file system. Waits a few seconds for snapshots to be dropped and
    /// holds up new ones while it runs.
    ///
    /// # Errors
    /// [`StorageError::Busy`] when a snapshot is held for longer, which changes nothing; else as
    /// [`Engine::commit`].
    fn shrink(&self) -> Result<(), StorageError>;

    /// Writes what a fast start needs and closes; later calls fail with [`StorageError::Closed`].
    fn close(&self);
}

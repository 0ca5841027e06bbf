//! `HashKV`: one number for everything that a keyspace holds up to a revision; and `Hash`, one for
//! everything in the store.
//!
//! `HashKV` is equal to etcd's for equal contents. CRC-32C over the word `key`, then for each row in order its
//! id as etcd stores it (revision and sub-revision as big-endian u64 around `_`, a `t` behind
//! tombstones) and its encoded `KeyValue`. Rows that a compaction removes sooner or later are left
//! out, so that the number does not depend on how far compaction has come.

use super::event::{EventKind, RowId, Visible};
use super::index::{Index, Trimmed};
use super::leases::Positioned;
use crate::storage::tables::{meta, rows};
use crate::storage::{Engine, Snapshot, StorageError, Table, try_scan};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// A hash and what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// The hash.
    pub hash: u32,
    /// Compacted revision that it was computed at.
    pub compacted: i64,
    /// Last revision covered.
    pub revision: i64,
    /// Current revision.
    pub current: i64,
}

/// Why there is no hash.
#[derive(Debug)]
pub enum HashError {
    /// A compaction overtook the computation.
    Trimmed,
    /// The store failed.
    Storage(StorageError),
}

impl From<Trimmed> for HashError {
    fn from(_: Trimmed) -> Self {
        Self::Trimmed
    }
}

impl From<StorageError> for HashError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

/// A checksum over everything in the store, which is not the same as etcd's for equal contents.
///
/// # Errors
/// Storage errors.
pub fn hash_store(engine: &dyn Engine) -> Result<Positioned<u32>, StorageError> {
    let snapshot = engine.snapshot()?;
    let position = meta::state(&*snapshot)?.position;
    let mut hash = 0;
    let tables = [Table::Rows, Table::Leases, Table::Alarms, Table::Users, Table::Roles];
    for table in tables {
        snapshot.scan(table, &[], None, &mut |key, value| {
            hash = crc32c::crc32c_append(hash, key);
            hash = crc32c::crc32c_append(hash, value);
            ControlFlow::Continue(())
        })?;
    }
    Ok(Positioned { value: hash, position })
}

/// Hashes rows up to `through` (which may be negative: then no row).
pub(super) fn hash_kv(
    index: &Index,
    snapshot: &dyn Snapshot,
    visible: Visible,
    through: i64,
) -> Result<HashKv, HashError> {
    let compacted = visible.compacted;
    // Of the compacted part only what is still alive at `through` counts; where nothing is alive
    // then, what was alive at the compaction.
    let mut kept = HashSet::new();
    let mut alive = 0_usize;
    if through >= compacted.max(0) {
        index.rows_at(through, |row| {
            alive += 1;
            if row.main <= compacted {
                kept.insert(row);
            }
        })?;
    }
    if alive == 0 && compacted > 0 {
        index.rows_at(compacted, |row| {
            kept.insert(row);
        })?;
    }
    let counts = |row: RowId, kind: EventKind| {
        row.main <= through
            && (row.main > compacted || (kind == EventKind::Put && kept.contains(&row)))
    };
    let mut hash = crc32c::crc32c(b"key");
    try_scan(snapshot, Table::Rows, &[], None, |key, value| {
        let row = rows::decode_row_id(key)?;
        let (kind, kv) = rows::open(key, value)?;
        if row.main > through {
            return Ok(ControlFlow::Break(()));
        }
        if counts(row, kind) {
            hash = crc32c::crc32c_append(hash, &etcd_id(row, kind));
            hash = crc32c::crc32c_append(hash, kv);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(HashKv { hash, compacted, revision: through, current: visible.revision })
}

fn etcd_id(row: RowId, kind: EventKind) -> Vec<u8> {
    let mut id = Vec::with_capacity(18);
    id.extend((row.main as u64).to_be_bytes());
    id.push(b'_');
    id.extend(u64::from(row.sub).to_be_bytes());
    if kind == EventKind::Delete {
        id.push(b't');
    }
    id
}

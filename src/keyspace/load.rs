//! Builds the machine from a store: one scan of the rows gives the index and the leases' keys.

use super::alarms::Alarms;
use super::auth::AuthState;
use super::event::EventKind;
use super::index::{Index, Latest};
use super::leases::{Lease, LeaseTable};
use super::machine::{Machine, Shared};
use crate::storage::tables::{alarms, leases, meta, rows};
use crate::storage::{Snapshot, StorageError, Table, try_scan};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Loads a keyspace. `progress` is told the number of rows every so often.
///
/// # Errors
/// I/O errors and any damage: a row that fails its checksum is never skipped.
pub fn load(
    snapshot: &dyn Snapshot,
    progress: &mut dyn FnMut(u64),
) -> Result<Machine, StorageError> {
    let state = meta::state(snapshot)?;
    let shared = Shared {
        index: Arc::new(Index::new()),
        leases: Arc::new(LeaseTable::default()),
        alarms: Arc::new(Alarms::default()),
        row_bytes: Arc::default(),
    };
    for row in leases::all(snapshot)? {
        let lease = Lease {
            id: row.id,
            ttl: row.ttl,
            session: row.session,
            renewals: row.renewals,
            remaining: row.remaining,
            spared: row.spared,
            marker: row.marker,
        };
        shared.leases.grant(lease, 0);
    }
    for (member, alarm) in alarms::all(snapshot)? {
        shared.alarms.raise(member, alarm, 0);
    }
    load_rows(snapshot, &shared, state.revision, progress)?;
    let auth = Arc::new(AuthState::load(snapshot)?);
    Ok(Machine::new(shared, state, auth))
}

fn load_rows(
    snapshot: &dyn Snapshot,
    shared: &Shared,
    revision: i64,
    progress: &mut dyn FnMut(u64),
) -> Result<(), StorageError> {
    let mut count = 0_u64;
    try_scan(snapshot, Table::Rows, &[], None, |key, value| {
        load_row(key, value, shared, revision)?;
        count += 1;
        if count.is_multiple_of(100_000) {
            progress(count);
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn load_row(key: &[u8], value: &[u8], shared: &Shared, revision: i64) -> Result<(), StorageError> {
    let row = rows::decode_row_id(key)?;
    if row.main > revision {
        return Err(StorageError::Corrupted(format!(
            "row {row:?} lies beyond the last revision {revision}"
        )));
    }
    let (kind, kv) = rows::open(key, value)?;
    shared.row_bytes.fetch_add(rows::bytes(value.len()), Ordering::Relaxed);
    let summary = rows::summarize(kv)?;
    let latest = match kind {
        EventKind::Put => Latest {
            row,
            create: summary.create_revision,
            version: summary.version,
            lease: summary.lease,
        },
        EventKind::Delete => Latest { row, create: 0, version: 0, lease: 0 },
    };
    let before = shared.index.load(summary.key, latest);
    let old = before.map_or(0, |before| before.lease);
    shared.leases.move_key(summary.key, old, latest.lease, 0);
    Ok(())
}

//! `meta`: single facts about the store.
//!
//! | key | value (behind its checksum) |
//! |---|---|
//! | `identity` | format version (u32), cluster id (u64), member id (u64), all little-endian, the log's secret (16); written once |
//! | `state` | revision, compacted revision, revision through which compaction is finished (i64 each), log position (u64), little-endian; rewritten by every commit |

use super::{malformed, seal, unseal};
use crate::storage::{Batch, Snapshot, StorageError, Table};
use bytes::{Buf, BufMut};

const NAME: &str = "meta";
const IDENTITY: &[u8] = b"identity";
const STATE: &[u8] = b"state";

/// The storage layout that this code reads and writes.
pub const FORMAT: u32 = 1;

/// Who this store is. Both ids are random and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Same for everyone who serves this keyspace.
    pub cluster_id: u64,
    /// This server's own.
    pub member_id: u64,
    /// What the store and its log know each other by. Never leaves the data directory.
    pub log_secret: [u8; 16],
}

/// Where the keyspace stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Current revision, from 1.
    pub revision: i64,
    /// Compacted revision, -1 before the first compaction.
    pub compacted: i64,
    /// Rows superseded before this revision are gone.
    pub compaction_finished: i64,
    /// Number of commits so far.
    pub position: u64,
}

impl Default for State {
    fn default() -> Self {
        Self { revision: 1, compacted: -1, compaction_finished: -1, position: 0 }
    }
}

fn read(snapshot: &dyn Snapshot, key: &'static [u8]) -> Result<Option<Vec<u8>>, StorageError> {
    let mut found = Vec::new();
    if !snapshot.get(Table::Meta, key, &mut |value| found.extend_from_slice(value))? {
        return Ok(None);
    }
    unseal(NAME, key, &found).map(|value| Some(value.to_vec()))
}

/// The store's identity, if it has one yet.
///
/// # Errors
/// Damage, or a format that this version does not know.
pub fn identity(snapshot: &dyn Snapshot) -> Result<Option<Identity>, StorageError> {
    let Some(value) = read(snapshot, IDENTITY)? else { return Ok(None) };
    let mut value = &value[..];
    if value.len() != 36 {
        return Err(malformed(NAME, IDENTITY));
    }
    let format = value.get_u32_le();
    if format != FORMAT {
        return Err(StorageError::Corrupted(format!(
            "storage format {format} is not known to this version, which reads format {FORMAT}"
        )));
    }
    let (cluster_id, member_id) = (value.get_u64_le(), value.get_u64_le());
    let log_secret = value.try_into().map_err(|_| malformed(NAME, IDENTITY))?;
    Ok(Some(Identity { cluster_id, member_id, log_secret }))
}

/// Stages the identity.
pub fn put_identity(batch: &mut Batch, identity: Identity) {
    let value = seal(IDENTITY, 36, |out| {
        out.put_u32_le(FORMAT);
        out.put_u64_le(identity.cluster_id);
        out.put_u64_le(identity.member_id);
        out.put_slice(&identity.log_secret);
    });
    batch.put(Table::Meta, IDENTITY, value);
}

/// The keyspace's state; the empty keyspace's when there is none.
///
/// # Errors
/// Damage.
pub fn state(snapshot: &dyn Snapshot) -> Result<State, StorageError> {
    let Some(value) = read(snapshot, STATE)? else { return Ok(State::default()) };
    let mut value = &value[..];
    if value.len() != 32 {
        return Err(malformed(NAME, STATE));
    }
    Ok(State {
        revision: value.get_i64_le(),
        compacted: value.get_i64_le(),
        compaction_finished: value.get_i64_le(),
        position: value.get_u64_le(),
    })
}

/// Stages the state.
pub fn put_state(batch: &mut Batch, state: &State) {
    let value = seal(STATE, 32, |out| {
        out.put_i64_le(state.revision);
        out.put_i64_le(state.compacted);
        out.put_i64_le(state.compaction_finished);
        out.put_u64_le(state.position);
    });
    batch.put(Table::Meta, STATE, value);
}

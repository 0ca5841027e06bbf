//! `meta`: single facts about the store.
//!
//! | key | value (behind its checksum) |
//! |---|---|
//! | `identity` | format version (u32), cluster id (u64), member id (u64), all little-endian, the log's secret (16); written once |
//! | `gateways` | who may append to the log and how far each has come, in the keyspace's own form; only of a replicated log; rewritten by every commit |
//! | `auth` | whether authentication is required (u8), auth revision (u64, little-endian), key of tokens (the rest); absent until there has been a user or a role |
//! | `state` | revision, compacted revision, revision through which compaction is finished (i64 each), log position (u64), little-endian; rewritten by every commit |

use super::{malformed, seal, unseal};
use crate::storage::{Batch, Snapshot, StorageError, Table};
use bytes::{Buf, BufMut, Bytes};

const NAME: &str = "meta";
const IDENTITY: &[u8] = b"identity";
const STATE: &[u8] = b"state";
const AUTH: &[u8] = b"auth";
const GATEWAYS: &[u8] = b"gateways";

/// The storage layout that this code reads and writes.
pub const FORMAT: u32 = 2;

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

/// How authentication stands, besides its users and roles.
#[derive(Clone, PartialEq, Eq)]
pub struct Auth {
    /// Whether it is required.
    pub enabled: bool,
    /// Auth revision, from 1.
    pub revision: u64,
    /// What tokens are signed with; empty until authentication was turned on. Secret.
    pub token_key: Bytes,
}

impl Default for Auth {
    fn default() -> Self {
        Self { enabled: false, revision: 1, token_key: Bytes::new() }
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

/// Whether a row tells of this store only, and not of the keyspace in it.
pub fn is_local(key: &[u8]) -> bool {
    key == IDENTITY
}

/// The gateways, in the keyspace's own form, if there ever were any.
///
/// # Errors
/// Damage.
pub fn gateways(snapshot: &dyn Snapshot) -> Result<Option<Vec<u8>>, StorageError> {
    read(snapshot, GATEWAYS)
}

/// Stages the gateways.
pub fn put_gateways(batch: &mut Batch, gateways: &[u8]) {
    let value = seal(GATEWAYS, gateways.len(), |out| out.put_slice(gateways));
    batch.put(Table::Meta, GATEWAYS, value);
}

/// How authentication stands; nothing while there has never been a user or a role.
///
/// # Errors
/// Damage.
pub fn auth(snapshot: &dyn Snapshot) -> Result<Option<Auth>, StorageError> {
    let Some(value) = read(snapshot, AUTH)? else { return Ok(None) };
    let mut value = &value[..];
    if value.len() < 9 || value[0] > 1 {
        return Err(malformed(NAME, AUTH));
    }
    let enabled = value.get_u8() == 1;
    let revision = value.get_u64_le();
    Ok(Some(Auth { enabled, revision, token_key: Bytes::copy_from_slice(value) }))
}

/// Stages how authentication stands.
pub fn put_auth(batch: &mut Batch, auth: &Auth) {
    let value = seal(AUTH, 9 + auth.token_key.len(), |out| {
        out.put_u8(u8::from(auth.enabled));
        out.put_u64_le(auth.revision);
        out.put_slice(&auth.token_key);
    });
    batch.put(Table::Meta, AUTH, value);
}

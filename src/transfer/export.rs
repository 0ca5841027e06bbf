//! Out: a keyspace as etcd's database file, of one moment and from nothing but a storage snapshot.

use super::bolt::{Filling, Writer};
use super::schema::{self, Lease};
use crate::keyspace::event::EventKind;
use crate::storage::tables::{alarms, leases, meta, roles, rows, users};
use crate::storage::{Snapshot, StorageError, Table, try_scan};
use leaseway_proto::etcdserverpb::AlarmMember;
use prost::Message;
use std::io::{self, Seek, Write};
use std::ops::ControlFlow;

/// Raft's term in the file: there is no raft, and etcd's first one is 2.
const TERM: u64 = 2;

/// What is told of the file's maker.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Id of the member that makes it.
    pub member_id: u64,
    /// Version of etcd's that the file is for, as `major.minor.0`.
    pub storage_version: &'static str,
}

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The keyspace can't be read.
    #[error("cannot read the keyspace: {0}")]
    Storage(#[from] StorageError),
    /// The file can't be written.
    #[error("cannot write the file: {0}")]
    Io(#[from] io::Error),
}

/// Writes the keyspace to `out`, which must be empty. Returns it, and the file's length.
///
/// # Errors
/// What can't be read or written; what is in `out` then is no database file.
pub fn write<W: Write + Seek>(
    snapshot: &dyn Snapshot,
    origin: Origin,
    out: W,
) -> Result<(W, u64), ExportError> {
    let mut writer = Writer::new(out)?;
    let auth = meta::auth(snapshot)?.unwrap_or_default();
    let state = meta::state(snapshot)?;
    writer.bucket(schema::ALARM, |bucket| alarms_of(snapshot, bucket))?;
    writer.bucket(schema::AUTH, |bucket| {
        bucket.put(schema::AUTH_ENABLED, &[auth.enabled.into()])?;
        bucket.put(schema::AUTH_REVISION, &auth.revision.to_be_bytes())
    })?;
    writer.bucket(schema::AUTH_ROLES, |bucket| -> Result<(), ExportError> {
        for (name, role) in roles::all(snapshot)? {
            bucket.put(name.as_bytes(), &role.encode_to_vec())?;
        }
        Ok(())
    })?;
    writer.bucket(schema::AUTH_USERS, |bucket| -> Result<(), ExportError> {
        for row in users::all(snapshot)? {
            bucket.put(row.name.as_bytes(), &row.user.encode_to_vec())?;
        }
        Ok(())
    })?;
    writer.bucket(schema::CLUSTER, |bucket| {
        bucket.put(schema::CLUSTER_VERSION, origin.storage_version.as_bytes())
    })?;
    writer.bucket(schema::KEY, |bucket| rows_of(snapshot, bucket))?;
    writer.bucket(schema::LEASE, |bucket| leases_of(snapshot, bucket))?;
    writer.bucket(schema::MEMBERS, nothing)?;
    writer.bucket(schema::MEMBERS_REMOVED, nothing)?;
    writer.bucket(schema::META, |bucket| meta_of(&state, origin, bucket))?;
    Ok(writer.finish()?)
}

/// Who belonged to a cluster says nothing to another one: etcd empties these when it restores.
fn nothing<W: Write + Seek>(_: &mut Filling<'_, W>) -> io::Result<()> {
    Ok(())
}

fn alarms_of<W: Write + Seek>(
    snapshot: &dyn Snapshot,
    bucket: &mut Filling<'_, W>,
) -> Result<(), ExportError> {
    let raised = alarms::all(snapshot)?.into_iter();
    let mut keys: Vec<Vec<u8>> =
        raised.map(|(member_id, alarm)| AlarmMember { member_id, alarm }.encode_to_vec()).collect();
    keys.sort_unstable();
    for key in keys {
        bucket.put(&key, &[])?;
    }
    Ok(())
}

fn rows_of<W: Write + Seek>(
    snapshot: &dyn Snapshot,
    bucket: &mut Filling<'_, W>,
) -> Result<(), ExportError> {
    let mut written = Ok(());
    try_scan(snapshot, Table::Rows, &[], None, |key, value| {
        let row = rows::decode_row_id(key)?;
        let (kind, kv) = rows::open(key, value)?;
        written = bucket.put(&schema::row_key(row, kind == EventKind::Delete), kv);
        Ok(if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(written?)
}

fn leases_of<W: Write + Seek>(
    snapshot: &dyn Snapshot,
    bucket: &mut Filling<'_, W>,
) -> Result<(), ExportError> {
    let mut all = leases::all(snapshot)?;
    // etcd's order is that of the bytes, in which negative ids come last; ours is the same.
    all.sort_unstable_by_key(|lease| lease.id as u64);
    for row in all {
        let lease = Lease { id: row.id, ttl: row.ttl, remaining: row.remaining };
        bucket.put(&row.id.to_be_bytes(), &lease.encode_to_vec())?;
    }
    Ok(())
}

fn meta_of<W: Write + Seek>(
    state: &meta::State,
    origin: Origin,
    bucket: &mut Filling<'_, W>,
) -> io::Result<()> {
    let revision = |main| schema::row_key(rows::RowId { main, sub: 0 }, false);
    let conf_state = format!(r#"{{"voters":[{}],"auto_leave":false}}"#, origin.member_id);
    bucket.put(schema::CONF_STATE, conf_state.as_bytes())?;
    // 0 would mean that it is not known.
    bucket.put(schema::CONSISTENT_INDEX, &(state.position + 1).to_be_bytes())?;
    if state.compaction_finished > 0 {
        bucket.put(schema::FINISHED_COMPACTION, &revision(state.compaction_finished))?;
    }
    if state.compacted > 0 {
        bucket.put(schema::SCHEDULED_COMPACTION, &revision(state.compacted))?;
    }
    bucket.put(schema::STORAGE_VERSION, origin.storage_version.as_bytes())?;
    bucket.put(schema::TERM, &TERM.to_be_bytes())
}

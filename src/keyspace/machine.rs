//! The machine: applies commands, one after the other, in the log's order.
//!
//! A command either changes everything it says, as one revision, or nothing. Changes go to the
//! shared index, lease table and alarms at once, and to a [`Staging`] for the commit; readers do not
//! see them before the commit is published, because they read at published revisions
//! ([`super::index`]) or wait for a position ([`super::leases::Positioned`]).

mod lease_commands;

use super::alarms::Alarms;
use super::auth::{AuthState, change};
use super::command::{AlarmChange, Outcome, Reply};
use super::command::{Command, Op};
use super::error::{ReadError, Refusal};
use super::event::{RowId, Visible};
use super::index::{Index, Latest};
use super::leases::LeaseTable;
use super::query;
use super::range::KeyRange;
use super::staging::{Rows, Staging};
use super::txn::{self, Compared, State};
use super::view::Published;
use crate::storage::tables::{alarms, meta};
use crate::storage::{Batch, StorageError};
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::mvccpb::KeyValue;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Rows that one step of compaction drops at most (a few more for a key's last).
const COMPACTION_ROWS: usize = 1000;

/// What the machine shares with readers.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Which row holds a key at a revision.
    pub index: Arc<Index>,
    /// Leases and their keys.
    pub leases: Arc<LeaseTable>,
    /// Raised alarms.
    pub alarms: Arc<Alarms>,
    /// Bytes of all rows: what a quota counts, whatever the engine makes of it on disk.
    pub row_bytes: Arc<AtomicI64>,
}

/// The one writer's side of the keyspace.
#[derive(Debug)]
pub struct Machine {
    shared: Shared,
    state: meta::State,
    auth: Arc<AuthState>,
    pass: Option<Pass>,
}

/// A pass of compaction through the index.
#[derive(Debug)]
struct Pass {
    bound: i64,
    cursor: Option<Box<[u8]>>,
}

impl Machine {
    /// A machine that goes on from a loaded state.
    pub fn new(shared: Shared, state: meta::State, auth: Arc<AuthState>) -> Self {
        Self { shared, state, auth, pass: None }
    }

    /// What it shares with readers.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What is to be published once everything applied so far is durable.
    pub fn published(&self) -> Published {
        let visible = Visible { revision: self.state.revision, compacted: self.state.compacted };
        Published { visible, position: self.state.position, auth: self.auth.clone() }
    }

    /// Revision through which compaction has removed what it may, as of the last finished group.
    pub fn compaction_finished(&self) -> i64 {
        self.state.compaction_finished
    }

    /// Whether there is compaction left to do.
    pub fn compacting(&self) -> bool {
        self.state.compaction_finished < self.state.compacted
    }

    /// Number of the next commit.
    pub fn next_position(&self) -> u64 {
        self.state.position + 1
    }

    /// Closes a group: what follows is to be committed and then published. A group without commands
    /// (a step of compaction) has no position of its own.
    pub fn finish_group(&mut self, staging: &mut Staging, has_commands: bool) {
        if has_commands {
            self.state.position = staging.position;
        }
        self.shared.row_bytes.fetch_add(staging.row_bytes, Ordering::Relaxed);
        meta::put_state(&mut staging.batch, &self.state);
    }

    /// A batch with which everything applied so far is committed durably.
    pub fn checkpoint_batch(&self) -> Batch {
        let mut batch = Batch::default();
        meta::put_state(&mut batch, &self.state);
        batch
    }

    /// Applies one command.
    ///
    /// # Errors
    /// Only storage errors, after which the process must stop: the command may be half done in
    /// memory. Everything else is in the outcome, and then nothing was changed.
    pub fn apply(
        &mut self,
        staging: &mut Staging,
        command: &Command,
    ) -> Result<Outcome, StorageError> {
        let before = (staging.mark(), self.state);
        let refusal = self.refuse_by_alarm(command).map_or_else(|| self.permit(command), Err);
        let result = match refusal {
            Err(refusal) => Err(refusal.into()),
            Ok(()) => self.dispatch(staging, command),
        };
        if staging.finish_revision(self.state.revision + 1) {
            self.state.revision += 1;
        }
        let reply = match result {
            Ok(reply) => Ok(reply),
            Err(ReadError::Refused(refusal)) => Err(refusal),
            Err(ReadError::Storage(error)) => return Err(error),
        };
        let changed = (staging.mark(), self.state) != before;
        Ok(Outcome { reply, revision: self.state.revision, changed })
    }

    fn refuse_by_alarm(&self, command: &Command) -> Option<Refusal> {
        let refusal = self.shared.alarms.refusal_of_writes()?;
        let refused = match (&command.op, refusal) {
            (None, _) => false,
            (Some(Op::Alarm(_) | Op::LeaseRenewed(_)), _) => false,
            (Some(Op::LeaseCheckpoint(_) | Op::LeaseRebind(_)), _) => false,
            // Users and roles can be changed whatever has happened to the keys.
            (Some(op), _) if change::concerns(op) => false,
            (_, Refusal::Corrupt) | (Some(Op::Put(_) | Op::LeaseGrant(_)), _) => true,
            (Some(Op::Txn(request)), _) => txn::may_put(request),
            _ => false,
        };
        refused.then_some(refusal)
    }

    /// Whether whoever asks for a command may, in the state that it is applied to.
    fn permit(&self, command: &Command) -> Result<(), Refusal> {
        let (auth, leases) = (&*self.auth, &*self.shared.leases);
        let (Some(op), true) = (&command.op, auth.enabled) else { return Ok(()) };
        let authority = command.authority.as_ref();
        match op {
            Op::Put(request) => auth.rights(authority).put(request, leases),
            Op::DeleteRange(request) => auth.rights(authority).delete(request),
            Op::Txn(request) => auth.rights(authority).txn(request, leases),
            Op::LeaseGrant(_) => auth.anybody(authority),
            Op::LeaseRevoke(request) => {
                auth.anybody(authority)?;
                auth.write_lease(authority, leases, request.id)
            }
            // No client can ask for these.
            Op::LeaseExpire(_)
            | Op::LeaseRenewed(_)
            | Op::LeaseCheckpoint(_)
            | Op::LeaseRebind(_) => Ok(()),
            Op::Compact(_) | Op::Alarm(_) => auth.admin(authority),
            op if change::concerns(op) => auth.admin(authority),
            _ => Err(Refusal::PermissionDenied),
        }
    }

    fn dispatch(&mut self, staging: &mut Staging, command: &Command) -> Result<Reply, ReadError> {
        let Some(op) = &command.op else { return Err(Refusal::UnknownCommand.into()) };
        match op {
            Op::Put(request) => {
                let mut applying = Applying { machine: self, staging };
                txn::check_put(&applying, request)?;
                applying.put(request).map(Reply::Put)
            }
            Op::DeleteRange(request) => {
                Applying { machine: self, staging }.delete(request).map(Reply::DeleteRange)
            }
            Op::Txn(request) => {
                txn::run(&mut Applying { machine: self, staging }, request).map(Reply::Txn)
            }
            Op::Compact(request) => Ok(self.compact(request.revision)?),
            Op::LeaseGrant(grant) => Ok(self.grant(staging, grant)?),
            Op::LeaseRevoke(revoke) => {
                if !self.shared.leases.lives(revoke.id) {
                    return Err(Refusal::LeaseNotFound.into());
                }
                self.end_lease(staging, revoke.id);
                Ok(Reply::Lease(true))
            }
            Op::LeaseExpire(expire) => Ok(Reply::Lease(self.expire(staging, expire))),
            Op::LeaseRenewed(renewed) => Ok(Reply::Lease(self.renewed(staging, renewed))),
            Op::LeaseRebind(rebind) => Ok(Reply::Lease(self.rebind(staging, rebind))),
            Op::LeaseCheckpoint(checkpoint) => {
                self.checkpoint(staging, checkpoint);
                Ok(Reply::Lease(true))
            }
            Op::Alarm(change) => Ok(Reply::Alarm(self.alarm(staging, change))),
            op => {
                change::apply(&mut self.auth, &mut staging.batch, op)?;
                Ok(Reply::Auth)
            }
        }
    }

    fn compact(&mut self, revision: i64) -> Result<Reply, Refusal> {
        if revision <= self.state.compacted {
            return Err(Refusal::Compacted);
        }
        if revision > self.state.revision {
            return Err(Refusal::FutureRevision);
        }
        self.state.compacted = revision;
        Ok(Reply::Compact(revision))
    }

    /// Does a bounded piece of pending compaction. `published` is the compaction point that readers
    /// already know: history is never taken from under one who may still ask for it.
    ///
    /// # Errors
    /// Storage errors.
    pub fn compaction_step(
        &mut self,
        staging: &mut Staging,
        published: i64,
    ) -> Result<(), StorageError> {
        if self.state.compaction_finished >= published {
            return Ok(());
        }
        let index = &self.shared.index;
        let pass = self.pass.get_or_insert_with(|| {
            index.begin_trim(published);
            Pass { bound: published, cursor: None }
        });
        let mut dropped = Vec::new();
        pass.cursor = index.trim(pass.bound, pass.cursor.as_deref(), COMPACTION_ROWS, &mut dropped);
        dropped.sort_unstable();
        for row in dropped {
            staging.drop_row(row)?;
        }
        if pass.cursor.is_none() {
            self.state.compaction_finished = pass.bound;
            self.pass = None;
        }
        Ok(())
    }

    fn alarm(&mut self, staging: &mut Staging, change: &AlarmChange) -> Vec<pb::AlarmMember> {
        let (member, alarm) = (change.member, change.alarm);
        let told = vec![pb::AlarmMember { member_id: member, alarm }];
        if change.raise {
            if self.shared.alarms.raise(member, alarm, staging.position) {
                alarms::put(&mut staging.batch, member, alarm);
            }
            return told;
        }
        if self.shared.alarms.disarm(member, alarm, staging.position) {
            alarms::delete(&mut staging.batch, member, alarm);
            return told;
        }
        Vec::new()
    }
}

/// The state that a command is applied to: what was there, with the command's own changes so far.
struct Applying<'a> {
    machine: &'a mut Machine,
    staging: &'a mut Staging,
}

impl Applying<'_> {
    fn next_row(&self) -> RowId {
        RowId { main: self.machine.state.revision + 1, sub: self.staging.next_sub() }
    }

    /// Revision that the command's reads see.
    fn seen(&self) -> i64 {
        self.machine.state.revision + i64::from(self.staging.next_sub() > 0)
    }

    /// Deletes a key if it exists; returns whether it did.
    fn bury(&mut self, key: &[u8]) -> bool {
        let row = self.next_row();
        let index = &self.machine.shared.index;
        let Some(before) = index.latest(key).filter(Latest::alive) else { return false };
        index.insert(key, Latest { row, create: 0, version: 0, lease: 0 });
        self.machine.shared.leases.move_key(key, before.lease, 0, self.staging.position);
        self.staging.push_delete(row, Bytes::copy_from_slice(key));
        true
    }

    fn load_latest(&self, key: &[u8]) -> Result<Option<KeyValue>, ReadError> {
        match self.machine.shared.index.latest(key).filter(Latest::alive) {
            Some(latest) => Ok(Some(self.staging.load(latest.row)?)),
            None => Ok(None),
        }
    }
}

fn header(revision: i64) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision, ..Default::default() })
}

impl State for Applying<'_> {
    fn revision(&self) -> i64 {
        self.machine.state.revision
    }

    fn compacted(&self) -> i64 {
        self.machine.state.compacted
    }

    fn lease_lives(&self, id: i64) -> bool {
        self.machine.shared.leases.lives(id)
    }

    fn exists(&self, key: &[u8]) -> Result<bool, ReadError> {
        Ok(self.machine.shared.index.latest(key).is_some_and(|latest| latest.alive()))
    }

    fn compared(
        &self,
        range: KeyRange<'_>,
        with_value: bool,
        visit: &mut dyn FnMut(Compared<'_>) -> bool,
    ) -> Result<(), ReadError> {
        let index = &self.machine.shared.index;
        let numbers = |latest: &Latest| Compared {
            create: latest.create,
            modified: latest.row.main,
            version: latest.version,
            lease: latest.lease,
            value: &[],
        };
        if !with_value {
            index.latest_in(range, |found| visit(numbers(&found.latest)));
            return Ok(());
        }
        // Rows are read outside of the index's lock.
        let mut found = Vec::new();
        index.latest_in(range, |key| {
            found.push(key.latest);
            true
        });
        for latest in found {
            let kv = self.staging.load(latest.row)?;
            if !visit(Compared { value: &kv.value, ..numbers(&latest) }) {
                break;
            }
        }
        Ok(())
    }

    fn range(&mut self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, ReadError> {
        let current = self.seen();
        let at = query::resolve(request.revision, current, self.machine.state.compacted)?;
        let index = &self.machine.shared.index;
        let found = query::select(index, request, at).map_err(|_| Refusal::Compacted)?;
        let (kvs, more) = query::collect(request, &found, self.staging)?;
        let count = found.count as i64;
        Ok(pb::RangeResponse { header: header(current), kvs, more, count })
    }

    fn put(&mut self, request: &pb::PutRequest) -> Result<pb::PutResponse, ReadError> {
        let keeps = request.ignore_value || request.ignore_lease;
        let previous =
            if keeps || request.prev_kv { self.load_latest(&request.key)? } else { None };
        if keeps && previous.is_none() {
            return Err(Refusal::KeyNotFound.into());
        }
        let kept = previous.as_ref().filter(|_| keeps);
        let value = match kept {
            Some(kv) if request.ignore_value => kv.value.clone(),
            _ => request.value.clone(),
        };
        let lease = match kept {
            Some(kv) if request.ignore_lease => kv.lease,
            _ => request.lease,
        };
        let row = self.next_row();
        let shared = &self.machine.shared;
        let mut latest = Latest { row, create: row.main, version: 1, lease };
        let before = shared.index.update(&request.key, |before| {
            if let Some(before) = before.filter(|before| before.alive()) {
                latest.create = before.create;
                latest.version = before.version + 1;
            }
            latest
        });
        let old_lease = before.map_or(0, |before| before.lease);
        shared.leases.move_key(&request.key, old_lease, lease, self.staging.position);
        self.staging.push_put(
            row,
            &KeyValue {
                key: request.key.clone(),
                create_revision: latest.create,
                mod_revision: row.main,
                version: latest.version,
                value,
                lease,
            },
        );
        let prev_kv = if request.prev_kv { previous } else { None };
        Ok(pb::PutResponse { header: header(row.main), prev_kv })
    }

    fn delete(
        &mut self,
        request: &pb::DeleteRangeRequest,
    ) -> Result<pb::DeleteRangeResponse, ReadError> {
        let range = KeyRange::new(&request.key, &request.range_end);
        let mut found: Vec<(Box<[u8]>, RowId)> = Vec::new();
        self.machine.shared.index.latest_in(range, |key| {
            found.push((key.key.into(), key.latest.row));
            true
        });
        let mut prev_kvs = Vec::new();
        if request.prev_kv {
            for (_, row) in &found {
                prev_kvs.push(self.staging.load(*row)?);
            }
        }
        for (key, _) in &found {
            self.bury(key);
        }
        let header = header(self.seen());
        Ok(pb::DeleteRangeResponse { header, deleted: found.len() as i64, prev_kvs })
    }
}

//! Reads at published revisions, from any thread.
//!
//! A read takes the published state, then a snapshot of storage (which is at least as new), then
//! walks the index. A compaction that overtakes it is noticed by the index ([`Trimmed`]): then the read
//! starts again, at the newer revision if it is of the current one, and is refused if what it asks for is gone.

use super::auth::Authority;
use super::auth::rights::Rights;
use super::error::{ReadError, Refusal};
use super::event::{
    Event, EventKind, History, HistoryBudget, HistoryChunk, HistoryError, RevisionEvents, RowId,
    Visible,
};
use super::hash::{self, HashKv};
use super::index::Trimmed;
use super::leases::LeaseTable;
use super::machine::Shared;
use super::query;
use super::range::KeyRange;
use super::staging::{Committed, Rows, key_of};
use super::txn::{self, Compared, State};
use super::view::View;
use crate::storage::tables::rows;
use crate::storage::{Engine, Snapshot, StorageError, Table, try_scan};
use bytes::{Bytes, BytesMut};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::mvccpb::KeyValue;
use leaseway_proto::raw::RangeReply;
use prost::Message;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Attempts of a read whose revision is compacted under it again and again.
const ATTEMPTS: usize = 16;

/// The readers' side of the keyspace. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    shared: Shared,
    engine: Arc<dyn Engine>,
    view: Arc<View>,
}

/// A piece of a streamed range.
#[derive(Debug)]
pub struct Piece {
    /// Encoded `kvs` fields.
    pub kvs: Bytes,
    /// Number of keys in them.
    pub len: usize,
    /// Where the next piece starts; `None` when the range is exhausted.
    pub next: Option<Vec<u8>>,
}

impl Reader {
    /// A reader of what the machine shares and `view` publishes.
    pub fn new(shared: Shared, engine: Arc<dyn Engine>, view: Arc<View>) -> Self {
        Self { shared, engine, view }
    }

    /// The lease table.
    pub fn leases(&self) -> &LeaseTable {
        &self.shared.leases
    }

    /// What the machine shares.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The published state.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The current revision and compaction point, if `permit` lets `authority` read there.
    fn permitted(
        &self,
        authority: Option<&Authority>,
        permit: impl Fn(&Rights<'_>) -> Result<(), Refusal>,
    ) -> Result<Visible, Refusal> {
        let (now, auth) = self.view.with_auth_if_enabled();
        if let Some(auth) = auth {
            permit(&auth.rights(authority))?;
            auth.current(authority)?;
        }
        Ok(now.visible)
    }

    /// Runs `read` at a consistent point, again on a newer one while compaction overtakes it.
    fn at<T>(
        &self,
        requested: i64,
        authority: Option<&Authority>,
        permit: impl Fn(&Rights<'_>) -> Result<(), Refusal>,
        read: impl FnMut(&Point<'_>) -> Result<T, PointError>,
    ) -> Result<T, ReadError> {
        let snapshot = || self.engine.snapshot().map(Some);
        let read = self.at_snapshot(requested, authority, permit, snapshot, read)?;
        read.ok_or_else(|| StorageError::Busy.into())
    }

    /// The same; `None` if there is a time without a snapshot.
    fn at_snapshot<T>(
        &self,
        requested: i64,
        authority: Option<&Authority>,
        permit: impl Fn(&Rights<'_>) -> Result<(), Refusal>,
        snapshot: impl Fn() -> Result<Option<Arc<dyn Snapshot>>, StorageError>,
        mut read: impl FnMut(&Point<'_>) -> Result<T, PointError>,
    ) -> Result<Option<T>, ReadError> {
        for _ in 0..ATTEMPTS {
            let visible = self.permitted(authority, &permit)?;
            let at = query::resolve(requested, visible.revision, visible.compacted)?;
            let Some(snapshot) = snapshot()? else { return Ok(None) };
            let point = Point { shared: &self.shared, snapshot: &*snapshot, visible, at };
            match read(&point) {
                Ok(value) => return Ok(Some(value)),
                // What is trimmed has been published as compacted: the next attempt knows.
                Err(PointError::Trimmed) => {}
                Err(PointError::Read(error)) => return Err(error),
            }
        }
        Err(Refusal::Compacted.into())
    }

    /// Answers a range request. The header holds the current revision only.
    ///
    /// # Errors
    /// `authority` may not read this; future or compacted revision; storage errors.
    pub fn range(
        &self,
        request: &pb::RangeRequest,
        authority: Option<&Authority>,
    ) -> Result<RangeReply, ReadError> {
        let permit = |rights: &Rights<'_>| rights.range(request);
        self.at(request.revision, authority, permit, |point| point.range_reply(request))
    }

    /// The same where nothing else may be held up: `None` if the range has many keys, or there is no
    /// snapshot of the store just now.
    ///
    /// # Errors
    /// As [`Reader::range`].
    pub fn range_at_once(
        &self,
        request: &pb::RangeRequest,
        authority: Option<&Authority>,
    ) -> Result<Option<RangeReply>, ReadError> {
        if !query::is_short(&self.shared.index, request) {
            return Ok(None);
        }
        let permit = |rights: &Rights<'_>| rights.range(request);
        let snapshot = || self.engine.snapshot_at_once();
        let read = |point: &Point<'_>| point.range_reply(request);
        self.at_snapshot(request.revision, authority, permit, snapshot, read)
    }

    /// A streamed range's pinned point, the current revision or the requested one, and the current
    /// revision. Who may read there is settled by this.
    ///
    /// # Errors
    /// `authority` may not read this; future or compacted revision.
    pub fn pin(
        &self,
        request: &pb::RangeRequest,
        authority: Option<&Authority>,
    ) -> Result<(i64, i64), Refusal> {
        let visible = self.permitted(authority, |rights| rights.range(request))?;
        let at = query::resolve(request.revision, visible.revision, visible.compacted)?;
        Ok((at, visible.revision))
    }

    /// One piece of a streamed range: up to `limit` keys (at least 1) from `request.key` on, at a
    /// point that was [pinned](Reader::pin).
    ///
    /// # Errors
    /// The revision has been compacted meanwhile; storage errors.
    pub fn piece(
        &self,
        request: &pb::RangeRequest,
        at: i64,
        limit: usize,
    ) -> Result<Piece, ReadError> {
        self.at(
            at,
            None,
            |_| Ok(()),
            |point| {
                let range = KeyRange::new(&request.key, &request.range_end);
                let mut found =
                    point.shared.index.range(range, at, limit.saturating_add(1), false)?;
                let more = found.rows.len() > limit;
                found.rows.truncate(limit);
                let mut kvs = BytesMut::new();
                if query::sorts(request) {
                    // A sort target without an order: each piece is sorted by itself, as in etcd.
                    append_all(&query::collect(request, &found, &point.rows())?.0, &mut kvs);
                } else {
                    point.append(request, &found.rows, &mut kvs)?;
                }
                let next = match found.rows.last().filter(|_| more) {
                    Some(last) => {
                        let mut next = point.rows().load(*last)?.key.to_vec();
                        next.push(0);
                        Some(next)
                    }
                    None => None,
                };
                Ok(Piece { kvs: kvs.freeze(), len: found.rows.len(), next })
            },
        )
    }

    /// Number of keys in a range at `at`, a point that was [pinned](Reader::pin).
    ///
    /// # Errors
    /// Future or compacted revision.
    pub fn count(&self, key: &[u8], range_end: &[u8], at: i64) -> Result<usize, ReadError> {
        self.at(
            at,
            None,
            |_| Ok(()),
            |point| Ok(point.shared.index.count(KeyRange::new(key, range_end), point.at)?),
        )
    }

    /// Answers a transaction that only reads, see [`txn::is_read_only`].
    ///
    /// # Errors
    /// `authority` may not do all that is in it; refusals of its ranges; storage errors.
    pub fn txn(
        &self,
        request: &pb::TxnRequest,
        authority: Option<&Authority>,
    ) -> Result<pb::TxnResponse, ReadError> {
        let permit = |rights: &Rights<'_>| rights.txn(request, &self.shared.leases);
        self.at(0, authority, permit, |point| point.txn(request))
    }

    /// The same where nothing else may be held up, as [`Reader::range_at_once`].
    ///
    /// # Errors
    /// As [`Reader::txn`].
    pub fn txn_at_once(
        &self,
        request: &pb::TxnRequest,
        authority: Option<&Authority>,
    ) -> Result<Option<pb::TxnResponse>, ReadError> {
        if !query::is_short_txn(&self.shared.index, request) {
            return Ok(None);
        }
        let permit = |rights: &Rights<'_>| rights.txn(request, &self.shared.leases);
        let snapshot = || self.engine.snapshot_at_once();
        self.at_snapshot(0, authority, permit, snapshot, |point| point.txn(request))
    }

    /// Hash of all rows up to `revision` (0: the current one).
    ///
    /// # Errors
    /// Future or compacted revision; storage errors.
    pub fn hash_kv(&self, revision: i64) -> Result<HashKv, ReadError> {
        // Unlike a read, a negative revision is taken as it is: it covers no row.
        self.at(
            revision.max(0),
            None,
            |_| Ok(()),
            |point| {
                let through = if revision < 0 { revision } else { point.at };
                let visible = point.visible;
                // A later compaction may have thinned out the snapshot, which the index does not notice
                // if it is of revisions that are older than the one asked for.
                if self.view.now().visible.compacted != visible.compacted {
                    return Err(PointError::Trimmed);
                }
                Ok(hash::hash_kv(&point.shared.index, point.snapshot, visible, through)?)
            },
        )
    }
}

enum PointError {
    Trimmed,
    Read(ReadError),
}

impl From<Trimmed> for PointError {
    fn from(_: Trimmed) -> Self {
        Self::Trimmed
    }
}

impl<E: Into<ReadError>> From<E> for PointError {
    fn from(error: E) -> Self {
        Self::Read(error.into())
    }
}

impl From<hash::HashError> for PointError {
    fn from(error: hash::HashError) -> Self {
        match error {
            hash::HashError::Trimmed => Self::Trimmed,
            hash::HashError::Storage(error) => Self::Read(error.into()),
        }
    }
}

/// A consistent point to read at.
struct Point<'a> {
    shared: &'a Shared,
    snapshot: &'a dyn Snapshot,
    visible: Visible,
    at: i64,
}

impl Point<'_> {
    fn rows(&self) -> Committed<'_> {
        Committed(self.snapshot)
    }

    fn range_reply(&self, request: &pb::RangeRequest) -> Result<RangeReply, PointError> {
        let mut found = query::select(&self.shared.index, request, self.at)?;
        let mut kvs = BytesMut::new();
        let more = if query::is_plain(request) {
            let more = query::cut(request, &mut found.rows);
            self.append(request, &found.rows, &mut kvs)?;
            more
        } else {
            let (list, more) = query::collect(request, &found, &self.rows())?;
            append_all(&list, &mut kvs);
            more
        };
        let revision = self.visible.revision;
        let header = Some(pb::ResponseHeader { revision, ..Default::default() });
        Ok(RangeReply { header, kvs: kvs.freeze(), more, count: found.count as i64 })
    }

    fn txn(&self, request: &pb::TxnRequest) -> Result<pb::TxnResponse, PointError> {
        let mut state = ReadOnly { point: self, trimmed: Cell::new(false) };
        let result = txn::run(&mut state, request);
        if state.trimmed.get() {
            return Err(PointError::Trimmed);
        }
        let mut response = result?;
        let revision = self.visible.revision;
        response.header = Some(pb::ResponseHeader { revision, ..Default::default() });
        Ok(response)
    }

    fn append(
        &self,
        request: &pb::RangeRequest,
        found: &[RowId],
        kvs: &mut BytesMut,
    ) -> Result<(), PointError> {
        let rows = self.rows();
        if request.keys_only {
            for row in found {
                let kv = rows.load(*row)?;
                let kv = KeyValue { value: Bytes::new(), lease: 0, ..kv };
                query::append_encoded(&kv.encode_to_vec(), kvs);
            }
            return Ok(());
        }
        for row in found {
            query::append(*row, &rows, kvs)?;
        }
        Ok(())
    }
}

fn append_all(list: &[KeyValue], kvs: &mut BytesMut) {
    for kv in list {
        query::append_encoded(&kv.encode_to_vec(), kvs);
    }
}

/// A transaction's view of a point. It is never asked to change anything.
struct ReadOnly<'a, 'p> {
    point: &'a Point<'p>,
    // A compaction has overtaken it: its outcome does not count.
    trimmed: Cell<bool>,
}

impl ReadOnly<'_, '_> {
    fn not_a_read<T>() -> Result<T, ReadError> {
        Err(Refusal::UnknownCommand.into())
    }

    /// Stops, since the whole has to begin again.
    fn trimmed(&self) -> Refusal {
        self.trimmed.set(true);
        Refusal::Compacted
    }
}

impl State for ReadOnly<'_, '_> {
    fn revision(&self) -> i64 {
        self.point.visible.revision
    }

    fn compacted(&self) -> i64 {
        self.point.visible.compacted
    }

    fn lease_lives(&self, id: i64) -> bool {
        self.point.shared.leases.session(id).value.is_some()
    }

    fn exists(&self, key: &[u8]) -> Result<bool, ReadError> {
        let found = self.point.shared.index.get(key, self.point.at);
        Ok(found.map_err(|Trimmed| self.trimmed())?.is_some())
    }

    fn compared(
        &self,
        range: KeyRange<'_>,
        _with_value: bool,
        visit: &mut dyn FnMut(Compared<'_>) -> bool,
    ) -> Result<(), ReadError> {
        let found = self.point.shared.index.range(range, self.point.at, 0, false);
        for row in found.map_err(|Trimmed| self.trimmed())?.rows {
            let kv = self.point.rows().load(row)?;
            let compared = Compared {
                create: kv.create_revision,
                modified: kv.mod_revision,
                version: kv.version,
                lease: kv.lease,
                value: &kv.value,
            };
            if !visit(compared) {
                break;
            }
        }
        Ok(())
    }

    fn range(&mut self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, ReadError> {
        let visible = self.point.visible;
        let at = query::resolve(request.revision, visible.revision, visible.compacted)?;
        let found = query::select(&self.point.shared.index, request, at);
        let found = found.map_err(|Trimmed| self.trimmed())?;
        let (kvs, more) = query::collect(request, &found, &self.point.rows())?;
        let header = Some(pb::ResponseHeader { revision: visible.revision, ..Default::default() });
        Ok(pb::RangeResponse { header, kvs, more, count: found.count as i64 })
    }

    fn put(&mut self, _: &pb::PutRequest) -> Result<pb::PutResponse, ReadError> {
        Self::not_a_read()
    }

    fn delete(&mut self, _: &pb::DeleteRangeRequest) -> Result<pb::DeleteRangeResponse, ReadError> {
        Self::not_a_read()
    }
}

impl From<StorageError> for HistoryError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error.to_string())
    }
}

/// Reads one stored row as an event.
fn event_of(key: &[u8], value: &[u8]) -> Result<Event, StorageError> {
    let row = rows::decode_row_id(key)?;
    let (kind, kv) = rows::open(key, value)?;
    let summary = rows::summarize(kv)?;
    let length = summary.key.len();
    let (kv, create) = match kind {
        EventKind::Put => (Bytes::copy_from_slice(kv), summary.create_revision == row.main),
        EventKind::Delete => {
            let key = Bytes::copy_from_slice(summary.key);
            let told = KeyValue { key, mod_revision: row.main, ..KeyValue::default() };
            (Bytes::from(told.encode_to_vec()), false)
        }
    };
    Ok(Event { row, kind, key: key_of(&kv, length), kv, create })
}

impl History for Reader {
    fn visible(&self) -> Visible {
        self.view.now().visible
    }

    fn events(
        &self,
        from: i64,
        to: i64,
        budget: HistoryBudget,
    ) -> Result<HistoryChunk, HistoryError> {
        let reached = self.visible().revision;
        // The snapshot is taken before the compaction point is looked at: what is missing in it was
        // removed by a compaction that the check then sees.
        let snapshot = self.engine.snapshot()?;
        let compacted = self.visible().compacted;
        if from < compacted {
            return Err(HistoryError::Compacted(compacted));
        }
        let to = to.min(reached);
        let mut chunk = HistoryChunk { revisions: Vec::new(), through: to };
        if from > to {
            return Ok(HistoryChunk { through: from - 1, ..chunk });
        }
        let first = rows::key(RowId { main: from.max(0), sub: 0 });
        let end = rows::key(RowId { main: to + 1, sub: 0 });
        let mut pending: Vec<Event> = Vec::new();
        let (mut bytes, mut events) = (0, 0);
        try_scan(&*snapshot, Table::Rows, &first, Some(&end), |key, value| {
            let event = event_of(key, value)?;
            if let Some(before) = pending.first().filter(|e| e.row.main != event.row.main) {
                let revision = before.row.main;
                let whole = std::mem::take(&mut pending).into();
                chunk.revisions.push(RevisionEvents { revision, events: whole });
                if bytes >= budget.bytes || events >= budget.events {
                    chunk.through = event.row.main - 1;
                    return Ok(ControlFlow::Break(()));
                }
            }
            bytes += event.kv.len();
            events += 1;
            pending.push(event);
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(last) = pending.first() {
            let revision = last.row.main;
            chunk.revisions.push(RevisionEvents { revision, events: pending.into() });
        }
        Ok(chunk)
    }

    fn previous(&self, key: &[u8], revision: i64) -> Result<Option<Bytes>, HistoryError> {
        let at = revision - 1;
        // First the snapshot, as above: the row must not vanish between the check and the read.
        let snapshot = self.engine.snapshot()?;
        if at < 1 || at < self.visible().compacted {
            return Ok(None);
        }
        let Ok(Some(row)) = self.shared.index.get(key, at) else { return Ok(None) };
        let mut copy = None;
        Committed(&*snapshot).visit(row, &mut |kv| copy = Some(Bytes::copy_from_slice(kv)))?;
        Ok(copy)
    }
}

#[cfg(test)]
mod tests;

//! Range requests: from a request to rows to an answer, in etcd's order of steps (limit, filter,
//! sort, cut), which shows in the answers.

use super::error::{ReadError, Refusal};
use super::event::RowId;
use super::index::{Index, RangeRows, Trimmed};
use super::range::KeyRange;
use super::staging::Rows;
use bytes::{BufMut, BytesMut};
use leaseway_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::etcdserverpb::{RangeRequest, RequestOp, TxnRequest};
use leaseway_proto::mvccpb::KeyValue;
use leaseway_proto::raw::KVS_TAG;
use prost::encoding::encode_varint;

/// The revision to read at: 0 and below mean the current one.
///
/// # Errors
/// A future or compacted revision.
pub fn resolve(requested: i64, current: i64, compacted: i64) -> Result<i64, Refusal> {
    if requested > current {
        return Err(Refusal::FutureRevision);
    }
    let at = if requested <= 0 { current } else { requested };
    if at < compacted { Err(Refusal::Compacted) } else { Ok(at) }
}

/// Whether the answer comes in key order without sorting. A target without an order counts as
/// ordered here, which is why etcd applies the limit before it sorts in that case.
pub fn in_key_order(request: &RangeRequest) -> bool {
    let order = request.sort_order;
    order == SortOrder::None as i32
        || (request.sort_target == SortTarget::Key as i32 && order == SortOrder::Ascend as i32)
}

/// Whether any of the four revision filters is set.
pub fn has_filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// Whether the keys are sorted by something else than their order in the store.
pub fn sorts(request: &RangeRequest) -> bool {
    let none = request.sort_order == SortOrder::None as i32;
    request.sort_target != SortTarget::Key as i32 || !(none || in_key_order(request))
}

/// Whether the answer is just the first rows of the range, so that it needs no decoding.
pub fn is_plain(request: &RangeRequest) -> bool {
    !sorts(request) && !has_filters(request) && !request.keys_only
}

/// Keys without values come from etcd's index, which knows no leases.
fn keys_from_index(request: &RangeRequest) -> bool {
    request.keys_only && request.sort_target != SortTarget::Value as i32
}

/// Keys in the index that a short read may look at.
const SHORT_KEYS: usize = 512;
/// Rows that a short read may load.
const SHORT_ROWS: usize = 64;

/// What is left of a short read's share.
#[derive(Clone, Copy)]
struct Share {
    keys: usize,
    rows: usize,
}

impl Share {
    const WHOLE: Self = Self { keys: SHORT_KEYS, rows: SHORT_ROWS };

    /// Takes a range out of the share, of which no more than `rows` are loaded; false when there is not
    /// so much left.
    fn takes(&mut self, index: &Index, range: KeyRange<'_>, rows: usize) -> bool {
        let named = match range {
            KeyRange::One(_) => 1,
            _ => index.named(range, self.keys + 1),
        };
        let left = (self.keys.checked_sub(named), self.rows.checked_sub(named.min(rows)));
        let (Some(keys), Some(rows)) = left else { return false };
        *self = Self { keys, rows };
        true
    }

    fn takes_range(&mut self, index: &Index, request: &RangeRequest) -> bool {
        let rows = if request.count_only { 0 } else { limit(request).unwrap_or(usize::MAX) };
        self.takes(index, KeyRange::new(&request.key, &request.range_end), rows)
    }

    fn takes_ops(mut self, index: &Index, ops: &[RequestOp]) -> bool {
        ops.iter().all(|op| match &op.request {
            Some(Request::RequestRange(range)) => self.takes_range(index, range),
            _ => false,
        })
    }
}

/// Whether a range looks at so few keys that whoever has other things to do may read it meanwhile. The size
/// of values is not known here.
pub fn is_short(index: &Index, request: &RangeRequest) -> bool {
    request.range_end.is_empty() || { Share::WHOLE }.takes_range(index, request)
}

/// The same of a transaction that only reads, whichever of its branches is taken.
pub fn is_short_txn(index: &Index, request: &TxnRequest) -> bool {
    let mut share = Share::WHOLE;
    request.compare.iter().all(|compare| {
        share.takes(index, KeyRange::new(&compare.key, &compare.range_end), usize::MAX)
    }) && share.takes_ops(index, &request.success)
        && share.takes_ops(index, &request.failure)
}

/// The limit of a range whose first rows are the answer's, so that it bounds what is looked at.
fn limit(request: &RangeRequest) -> Option<usize> {
    let limited = request.limit > 0 && in_key_order(request) && !has_filters(request);
    limited.then(|| usize::try_from(request.limit).unwrap_or(usize::MAX))
}

/// Rows that a request looks at: one more than its limit, to know whether there are more.
///
/// # Errors
/// [`Trimmed`] as [`Index::range`].
pub fn select(index: &Index, request: &RangeRequest, at: i64) -> Result<RangeRows, Trimmed> {
    let range = KeyRange::new(&request.key, &request.range_end);
    if request.count_only {
        let count = index.count(range, at)?;
        return Ok(RangeRows { rows: Vec::new(), count });
    }
    index.range(range, at, limit(request).map_or(0, |limit| limit.saturating_add(1)), true)
}

/// Cuts off what lies beyond the request's limit; returns whether there was anything.
pub fn cut<T>(request: &RangeRequest, items: &mut Vec<T>) -> bool {
    match usize::try_from(request.limit) {
        Ok(limit) if limit > 0 && items.len() > limit => {
            items.truncate(limit);
            true
        }
        _ => false,
    }
}

/// The general answer: loads, filters, sorts and cuts. Returns the keys and whether there are more.
///
/// # Errors
/// Storage errors.
pub fn collect(
    request: &RangeRequest,
    found: &RangeRows,
    rows: &dyn Rows,
) -> Result<(Vec<KeyValue>, bool), ReadError> {
    let mut kvs = Vec::with_capacity(found.rows.len());
    for row in &found.rows {
        let mut kv = rows.load(*row)?;
        if keys_from_index(request) {
            kv.value.clear();
            kv.lease = 0;
        }
        if passes(request, &kv) {
            kvs.push(kv);
        }
    }
    sort(request, &mut kvs);
    let more = cut(request, &mut kvs);
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value.clear());
    }
    Ok((kvs, more))
}

fn passes(request: &RangeRequest, kv: &KeyValue) -> bool {
    let at_most = |bound: i64, value: i64| bound == 0 || value <= bound;
    let at_least = |bound: i64, value: i64| bound == 0 || value >= bound;
    at_most(request.max_mod_revision, kv.mod_revision)
        && at_least(request.min_mod_revision, kv.mod_revision)
        && at_most(request.max_create_revision, kv.create_revision)
        && at_least(request.min_create_revision, kv.create_revision)
}

fn sort(request: &RangeRequest, kvs: &mut [KeyValue]) {
    if !sorts(request) {
        return;
    }
    let compare = |a: &KeyValue, b: &KeyValue| match request.sort_target() {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    if request.sort_order == SortOrder::Descend as i32 {
        kvs.sort_by(|a, b| compare(b, a));
    } else {
        kvs.sort_by(compare);
    }
}

/// Appends a row as one `kvs` field of a range answer.
///
/// # Errors
/// Storage errors.
pub fn append(row: RowId, rows: &dyn Rows, out: &mut BytesMut) -> Result<(), ReadError> {
    rows.visit(row, &mut |kv| append_encoded(kv, out))?;
    Ok(())
}

/// Appends an encoded `KeyValue` as one `kvs` field of a range answer.
pub fn append_encoded(kv: &[u8], out: &mut BytesMut) {
    out.put_u8(KVS_TAG);
    encode_varint(kv.len() as u64, out);
    out.put_slice(kv);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::index::Latest;
    use leaseway_proto::etcdserverpb::Compare;

    /// So many keys, `0000` and so on.
    fn index(keys: i64) -> Index {
        let index = Index::new();
        for i in 0..keys {
            let row = RowId { main: i + 2, sub: 0 };
            let latest = Latest { row, create: i + 2, version: 1, lease: 0 };
            index.insert(format!("{i:04}").as_bytes(), latest);
        }
        index
    }

    fn all() -> RangeRequest {
        RangeRequest { key: "0".into(), range_end: "1".into(), ..RangeRequest::default() }
    }

    #[test]
    fn a_range_is_short_by_what_it_looks_at() {
        let (few, some, many) = (index(64), index(65), index(600));
        let short = |index: &Index, request: RangeRequest| is_short(index, &request);
        let key = |key: &'static str| RangeRequest { key: key.into(), ..RangeRequest::default() };
        assert!(short(&many, key("0001")) && short(&many, key("9")));
        assert!(short(&few, all()));
        assert!(!short(&some, all()));
        assert!(short(&some, RangeRequest { limit: 64, ..all() }));
        assert!(!short(&some, RangeRequest { limit: 65, ..all() }));
        assert!(!short(&some, RangeRequest { limit: -1, ..all() }));
        assert!(short(&some, RangeRequest { count_only: true, ..all() }));
        assert!(short(&many, RangeRequest { range_end: "0060".into(), ..all() }));
        // The count of the whole range is part of every answer.
        assert!(!short(&many, RangeRequest { limit: 1, ..all() }));
        assert!(!short(&many, RangeRequest { count_only: true, ..all() }));
        // Each key is loaded before the limit counts.
        let newest = RangeRequest {
            limit: 1,
            sort_order: SortOrder::Descend as i32,
            sort_target: SortTarget::Mod as i32,
            ..all()
        };
        assert!(short(&few, newest.clone()) && !short(&some, newest));
        assert!(!short(&some, RangeRequest { limit: 1, min_mod_revision: 3, ..all() }));
    }

    #[test]
    fn a_transaction_is_short_if_all_of_it_is() {
        let index = index(40);
        let op = |range| RequestOp { request: Some(Request::RequestRange(range)) };
        let txn = |compares: usize, success, failure| {
            let compare = Compare { key: "0".into(), range_end: "1".into(), ..Compare::default() };
            let ops = |ranges| std::iter::repeat_n(op(all()), ranges).collect();
            let (success, failure) = (ops(success), ops(failure));
            let compare = std::iter::repeat_n(compare, compares).collect();
            is_short_txn(&index, &TxnRequest { compare, success, failure })
        };
        assert!(txn(0, 0, 0) && txn(1, 0, 0) && txn(0, 1, 1));
        assert!(!txn(1, 1, 0) && !txn(1, 0, 1) && !txn(0, 2, 0) && !txn(2, 0, 0));
    }
}

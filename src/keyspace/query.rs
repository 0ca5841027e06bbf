//! Range requests: from a request to rows to an answer, in etcd's order of steps (limit, filter,
//! sort, cut), which shows in the answers.

use super::error::{ReadError, Refusal};
use super::event::RowId;
use super::index::{Index, RangeRows, Trimmed};
use super::range::KeyRange;
use super::staging::Rows;
use bytes::{BufMut, BytesMut};
use leaseway_proto::etcdserverpb::RangeRequest;
use leaseway_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
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
    let limited = request.limit > 0 && in_key_order(request) && !has_filters(request);
    let limit = if limited { usize::try_from(request.limit).unwrap_or(0) } else { 0 };
    index.range(range, at, limit.saturating_add(usize::from(limited)), true)
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

//! What is refused before it reaches the log: requests that can't mean anything, and limits.

use super::error::Error;
use crate::config::Limits;
use crate::keyspace::query;
use crate::keyspace::range::KeyRange;
use leaseway_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use prost::Message;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

/// What etcd's log wraps around a request: its tag and length come on top.
const ENVELOPE: usize = 15;
/// How deep transactions may be nested. A message nested too deep can't be decoded, and in the log a
/// request lies deeper than it came.
const MAX_DEPTH: usize = 40;
/// What etcd's quota counts for a put besides key and value.
const PUT_OVERHEAD: usize = 256;

/// Refuses requests larger than what etcd would log.
///
/// # Errors
/// [`Error::RequestTooLarge`].
pub fn size(request: &impl Message, limits: &Limits) -> Result<(), Error> {
    let length = request.encoded_len();
    let logged = length + prost::length_delimiter_len(length) + ENVELOPE;
    if logged > limits.max_request_bytes { Err(Error::RequestTooLarge) } else { Ok(()) }
}

/// What a put counts for in the quota, in bytes.
pub fn put_cost(request: &PutRequest) -> usize {
    PUT_OVERHEAD + request.key.len() + request.value.len()
}

/// What a transaction counts for in the quota: the larger branch, in bytes; 0 without a put.
pub fn txn_cost(request: &TxnRequest) -> usize {
    let branch = |ops: &[RequestOp]| {
        ops.iter()
            .map(|op| match &op.request {
                Some(Request::RequestPut(put)) => put_cost(put),
                Some(Request::RequestTxn(nested)) => txn_cost(nested),
                _ => 0,
            })
            .sum::<usize>()
    };
    branch(&request.success).max(branch(&request.failure))
}

/// Checks a range request.
///
/// # Errors
/// Empty key, unknown sort option.
pub fn range(request: &RangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let known = SortOrder::try_from(request.sort_order).is_ok()
        && SortTarget::try_from(request.sort_target).is_ok();
    if known { Ok(()) } else { Err(Error::InvalidSortOption) }
}

/// Checks a streamed range request.
///
/// # Errors
/// As [`range`]; sorting and filters, which a stream does not offer.
pub fn range_stream(request: &RangeRequest) -> Result<(), Error> {
    range(request)?;
    if !query::in_key_order(request) {
        return Err(Error::StreamSort);
    }
    if query::has_filters(request) {
        return Err(Error::StreamFilters);
    }
    Ok(())
}

/// Checks a put.
///
/// # Errors
/// Empty key; a value or lease beside the flag that ignores it.
pub fn put(request: &PutRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

/// Checks a delete.
///
/// # Errors
/// Empty key.
pub fn delete(request: &DeleteRangeRequest) -> Result<(), Error> {
    if request.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Checks a transaction, both branches, however deeply nested.
///
/// # Errors
/// What its operations are refused for; too many operations; overlapping changes.
pub fn txn(request: &TxnRequest, max_ops: usize) -> Result<(), Error> {
    operations(request, max_ops, MAX_DEPTH)?;
    overlaps(&request.success)?;
    overlaps(&request.failure)?;
    Ok(())
}

fn operations(request: &TxnRequest, max_ops: usize, depth: usize) -> Result<(), Error> {
    if depth == 0 {
        return Err(Error::TooManyOps);
    }
    let most = request.compare.len().max(request.success.len()).max(request.failure.len());
    // A nested transaction may use what its parent's longest list leaves over.
    let left = max_ops.checked_sub(most).ok_or(Error::TooManyOps)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(request)) => range(request)?,
            Some(Request::RequestPut(request)) => put(request)?,
            Some(Request::RequestDeleteRange(request)) => delete(request)?,
            Some(Request::RequestTxn(request)) => operations(request, left, depth - 1)?,
            None => return Err(Error::KeyNotFound),
        }
    }
    Ok(())
}

/// Keys put and ranges deleted somewhere in a branch.
#[derive(Default)]
struct Changes<'a> {
    puts: HashSet<&'a [u8]>,
    deletes: Vec<KeyRange<'a>>,
}

impl<'a> Changes<'a> {
    fn add_put(&mut self, key: &'a [u8], deletes: &Deletes<'a>) -> Result<(), Error> {
        if deletes.cover(key) || !self.puts.insert(key) {
            return Err(Error::DuplicateKey);
        }
        Ok(())
    }
}

/// Deleted keys, merged, so that looking a key up takes no walk through all of them.
#[derive(Default)]
struct Deletes<'a> {
    points: HashSet<&'a [u8]>,
    // Start to end; disjoint.
    ranges: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Deletes<'a> {
    fn add(&mut self, range: KeyRange<'a>) {
        match range {
            KeyRange::One(key) => {
                self.points.insert(key);
            }
            KeyRange::Between(start, end) if start < end => self.merge(start, end),
            // etcd's check takes the end `\0` of an open range at its word, so that an open range
            // covers nothing there, and neither does it here.
            KeyRange::From(_) | KeyRange::Between(..) => {}
        }
    }

    fn merge(&mut self, mut start: &'a [u8], mut end: &'a [u8]) {
        while let Some((&other, &until)) = self.ranges.range(..=end).next_back() {
            if until < start {
                break;
            }
            start = start.min(other);
            end = end.max(until);
            self.ranges.remove(other);
        }
        self.ranges.insert(start, end);
    }

    fn cover(&self, key: &[u8]) -> bool {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        self.points.contains(key)
            || before.into_iter().next_back().is_some_and(|(_, end)| key < *end)
    }
}

/// Refuses a branch that changes a key twice. Of two nested branches only one runs, so they may
/// change the same key; what stands beside them must not.
fn overlaps(ops: &[RequestOp]) -> Result<Changes<'_>, Error> {
    let mut changes = Changes::default();
    let mut deletes = Deletes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            let range = KeyRange::new(&delete.key, &delete.range_end);
            deletes.add(range);
            changes.deletes.push(range);
        }
    }
    for op in ops {
        let Some(Request::RequestTxn(nested)) = &op.request else { continue };
        let then = overlaps(&nested.success)?;
        let or_else = overlaps(&nested.failure)?;
        for key in &then.puts {
            changes.add_put(key, &deletes)?;
        }
        for key in &or_else.puts {
            if !then.puts.contains(key) {
                changes.add_put(key, &deletes)?;
            } else if deletes.cover(key) {
                return Err(Error::DuplicateKey);
            }
        }
        for range in then.deletes.into_iter().chain(or_else.deletes) {
            deletes.add(range);
            changes.deletes.push(range);
        }
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request {
            changes.add_put(&put.key, &deletes)?;
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use leaseway_proto::log::{Command, Entry, command::Op};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put_op(key: &'static str) -> RequestOp {
        op(Request::RequestPut(PutRequest { key: key.into(), ..Default::default() }))
    }

    fn delete_op(key: &'static str, range_end: &'static str) -> RequestOp {
        let key = Bytes::from(key);
        let range_end = Bytes::from(range_end);
        op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false }))
    }

    fn branch(success: Vec<RequestOp>) -> TxnRequest {
        TxnRequest { success, ..Default::default() }
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        op(Request::RequestTxn(TxnRequest { success, failure, ..Default::default() }))
    }

    #[test]
    fn a_key_is_changed_once() {
        let refused = Err(Error::DuplicateKey);
        assert_eq!(txn(&branch(vec![put_op("a"), put_op("a")]), 128), refused);
        assert_eq!(txn(&branch(vec![put_op("b"), delete_op("a", "c")]), 128), refused);
        assert_eq!(txn(&branch(vec![delete_op("b", ""), put_op("b")]), 128), refused);
        assert_eq!(
            txn(&branch(vec![put_op("a"), nested(vec![put_op("a")], vec![])]), 128),
            refused
        );
        let siblings = vec![nested(vec![put_op("a")], vec![]), nested(vec![], vec![put_op("a")])];
        assert_eq!(txn(&branch(siblings), 128), refused);
        let untaken = TxnRequest { failure: vec![put_op("a"), put_op("a")], ..Default::default() };
        assert_eq!(txn(&untaken, 128), refused);
    }

    #[test]
    fn what_is_allowed() {
        assert_eq!(txn(&branch(vec![delete_op("a", ""), delete_op("a", "")]), 128), Ok(()));
        assert_eq!(txn(&branch(vec![nested(vec![put_op("a")], vec![put_op("a")])]), 128), Ok(()));
        assert_eq!(txn(&branch(vec![delete_op("a", "\0"), put_op("b")]), 128), Ok(()));
        assert_eq!(txn(&branch(vec![delete_op("a", "b"), put_op("b")]), 128), Ok(()));
    }

    #[test]
    fn operations_are_counted_down_the_tree() {
        let puts = |n: usize| {
            (0..n).map(|i| {
                let key = format!("{i}").into();
                op(Request::RequestPut(PutRequest { key, ..Default::default() }))
            })
        };
        assert_eq!(txn(&branch(puts(128).collect()), 128), Ok(()));
        assert_eq!(txn(&branch(puts(129).collect()), 128), Err(Error::TooManyOps));
        let inner = |n| branch(vec![nested(puts(n).collect(), vec![])]);
        assert_eq!(txn(&inner(127), 128), Ok(()));
        assert_eq!(txn(&inner(128), 128), Err(Error::TooManyOps));
    }

    #[test]
    fn nesting_has_a_bound() {
        let nest = |depth: usize| {
            (1..depth).fold(branch(vec![put_op("a")]), |inner, _| {
                branch(vec![op(Request::RequestTxn(inner))])
            })
        };
        assert_eq!(txn(&nest(MAX_DEPTH), 128), Ok(()));
        assert_eq!(txn(&nest(MAX_DEPTH + 1), 128), Err(Error::TooManyOps));
        // What is allowed can be read back from the log.
        let command = Command { op: Some(Op::Txn(nest(MAX_DEPTH))), ..Default::default() };
        let entry = Entry { commands: vec![command], ..Default::default() };
        assert_eq!(Entry::decode(&entry.encode_to_vec()[..]), Ok(entry));
    }

    #[test]
    fn merged_ranges_cover_what_their_parts_do() {
        let mut random = StdRng::seed_from_u64(5);
        for _ in 0..300 {
            let keys: Vec<[u8; 1]> = (0..20).map(|_| [random.random_range(0..40)]).collect();
            let ranges: Vec<_> = keys.chunks(2).map(|k| KeyRange::new(&k[0], &k[1])).collect();
            let mut deletes = Deletes::default();
            ranges.iter().for_each(|range| deletes.add(*range));
            for key in 0..40 {
                let open = |range: &KeyRange<'_>| matches!(range, KeyRange::From(_));
                let parts = ranges.iter().any(|range| !open(range) && range.contains(&[key]));
                assert_eq!(deletes.cover(&[key]), parts, "{key} in {ranges:?}");
            }
        }
    }

    #[test]
    fn empty_operations_and_keys() {
        assert_eq!(txn(&branch(vec![RequestOp { request: None }]), 128), Err(Error::KeyNotFound));
        assert_eq!(txn(&branch(vec![put_op("")]), 128), Err(Error::EmptyKey));
        assert_eq!(txn(&branch(vec![delete_op("", "")]), 128), Err(Error::EmptyKey));
        let sorted = RangeRequest { key: "a".into(), sort_order: 9, ..Default::default() };
        assert_eq!(range(&sorted), Err(Error::InvalidSortOption));
    }
}

//! Transactions: compares, checks and execution over any state.
//!
//! The order matters and is etcd's: all compares, nested ones too, look at the state before the
//! transaction and fix the path; then the path is checked; only then is anything changed, and
//! nothing that was checked can fail any more. Ranges see what came before them in the path.

use super::error::{ReadError, Refusal};
use super::range::KeyRange;
use leaseway_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::etcdserverpb::response_op::Response;
use leaseway_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use std::cmp::Ordering;

/// What a compare looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compared<'a> {
    /// Revision that created the key, 0 if absent.
    pub create: i64,
    /// Revision that changed it last, 0 if absent.
    pub modified: i64,
    /// Puts since it was created, 0 if absent.
    pub version: i64,
    /// Lease it hangs on, or 0.
    pub lease: i64,
    /// Its value, when that was asked for.
    pub value: &'a [u8],
}

/// State that a transaction is evaluated against.
pub trait State {
    /// Revision before the transaction.
    fn revision(&self) -> i64;
    /// Compacted revision.
    fn compacted(&self) -> i64;
    /// Whether a lease lives.
    fn lease_lives(&self, id: i64) -> bool;
    /// Whether a key exists.
    ///
    /// # Errors
    /// Storage errors.
    fn exists(&self, key: &[u8]) -> Result<bool, ReadError>;
    /// Visits the keys of a range until `visit` returns false.
    ///
    /// # Errors
    /// Storage errors.
    fn compared(
        &self,
        range: KeyRange<'_>,
        with_value: bool,
        visit: &mut dyn FnMut(Compared<'_>) -> bool,
    ) -> Result<(), ReadError>;
    /// Answers a range within the transaction, seeing its changes so far.
    ///
    /// # Errors
    /// Storage errors.
    fn range(&mut self, request: &RangeRequest) -> Result<RangeResponse, ReadError>;
    /// Puts, as checked before.
    ///
    /// # Errors
    /// Storage errors.
    fn put(&mut self, request: &PutRequest) -> Result<PutResponse, ReadError>;
    /// Deletes.
    ///
    /// # Errors
    /// Storage errors.
    fn delete(&mut self, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse, ReadError>;
}

/// Whether no branch holds anything but ranges at its top level: etcd serves those without ordering
/// them, and counts a nested transaction as a write whatever is in it.
pub fn is_read_only(request: &TxnRequest) -> bool {
    let range = |op: &RequestOp| matches!(op.request, Some(Request::RequestRange(_)));
    request.success.iter().all(range) && request.failure.iter().all(range)
}

/// Whether a put could happen in any branch, however deep: what a NOSPACE alarm forbids.
pub fn may_put(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|op| match &op.request {
        Some(Request::RequestPut(_)) => true,
        Some(Request::RequestTxn(nested)) => may_put(nested),
        _ => false,
    })
}

/// Evaluates, checks and executes. The answer's header is left without a revision.
///
/// # Errors
/// A refusal changes nothing. Storage errors are fatal.
pub fn run(state: &mut dyn State, request: &TxnRequest) -> Result<TxnResponse, ReadError> {
    let mut path = Vec::new();
    choose(state, request, &mut path)?;
    check(state, request, &mut path.iter().copied(), &mut Vec::new())?;
    execute(state, request, &mut path.iter().copied())
}

fn branch(request: &TxnRequest, taken: bool) -> &[RequestOp] {
    if taken { &request.success } else { &request.failure }
}

fn choose(state: &dyn State, request: &TxnRequest, path: &mut Vec<bool>) -> Result<(), ReadError> {
    let mut taken = true;
    for compare in &request.compare {
        if !holds(state, compare)? {
            taken = false;
            break;
        }
    }
    path.push(taken);
    for op in branch(request, taken) {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            choose(state, nested, path)?;
        }
    }
    Ok(())
}

fn holds(state: &dyn State, compare: &Compare) -> Result<bool, ReadError> {
    let range = KeyRange::new(&compare.key, &compare.range_end);
    let with_value = compare.target == CompareTarget::Value as i32;
    let (mut all, mut any) = (true, false);
    state.compared(range, with_value, &mut |found| {
        any = true;
        all = one_holds(compare, &found);
        all
    })?;
    if any {
        return Ok(all);
    }
    // A key that does not exist has no value to compare with, not even an empty one.
    Ok(!with_value && one_holds(compare, &Compared::default()))
}

fn one_holds(compare: &Compare, found: &Compared<'_>) -> bool {
    let number = |found: i64, wanted: Option<i64>| found.cmp(&wanted.unwrap_or(0));
    // A target and a value that do not fit together compare with 0 or the empty value.
    let ordering = match (CompareTarget::try_from(compare.target), &compare.target_union) {
        (Ok(CompareTarget::Value), Some(TargetUnion::Value(value))) => found.value.cmp(value),
        (Ok(CompareTarget::Value), _) => found.value.cmp(&[]),
        (Ok(CompareTarget::Create), union) => number(
            found.create,
            match union {
                Some(TargetUnion::CreateRevision(revision)) => Some(*revision),
                _ => None,
            },
        ),
        (Ok(CompareTarget::Mod), union) => number(
            found.modified,
            match union {
                Some(TargetUnion::ModRevision(revision)) => Some(*revision),
                _ => None,
            },
        ),
        (Ok(CompareTarget::Version), union) => number(
            found.version,
            match union {
                Some(TargetUnion::Version(version)) => Some(*version),
                _ => None,
            },
        ),
        (Ok(CompareTarget::Lease), union) => number(
            found.lease,
            match union {
                Some(TargetUnion::Lease(lease)) => Some(*lease),
                _ => None,
            },
        ),
        (Err(_), _) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        Err(_) => true,
    }
}

/// Checks the path. `deleted` collects the ranges deleted so far: a put behind them that wants to
/// keep the value or lease of a key in them has nothing to keep.
fn check<'r>(
    state: &dyn State,
    request: &'r TxnRequest,
    path: &mut dyn Iterator<Item = bool>,
    deleted: &mut Vec<KeyRange<'r>>,
) -> Result<(), ReadError> {
    let taken = path.next().unwrap_or(false);
    for op in branch(request, taken) {
        match &op.request {
            Some(Request::RequestRange(range)) => check_range(state, range)?,
            Some(Request::RequestPut(put)) => {
                check_put(state, put)?;
                let keeps = put.ignore_value || put.ignore_lease;
                if keeps && deleted.iter().any(|range| range.contains(&put.key)) {
                    return Err(Refusal::KeyNotFound.into());
                }
            }
            Some(Request::RequestDeleteRange(delete)) => {
                deleted.push(KeyRange::new(&delete.key, &delete.range_end));
            }
            Some(Request::RequestTxn(nested)) => check(state, nested, path, deleted)?,
            None => {}
        }
    }
    Ok(())
}

fn check_range(state: &dyn State, request: &RangeRequest) -> Result<(), Refusal> {
    match request.revision {
        0 => Ok(()),
        revision if revision > state.revision() => Err(Refusal::FutureRevision),
        revision if revision < state.compacted() => Err(Refusal::Compacted),
        _ => Ok(()),
    }
}

/// Checks what a put needs to exist: its lease, and the key when it keeps something of it.
///
/// # Errors
/// The refusal, or a storage error.
pub fn check_put(state: &dyn State, request: &PutRequest) -> Result<(), ReadError> {
    if request.lease != 0 && !state.lease_lives(request.lease) {
        return Err(Refusal::LeaseNotFound.into());
    }
    if (request.ignore_value || request.ignore_lease) && !state.exists(&request.key)? {
        return Err(Refusal::KeyNotFound.into());
    }
    Ok(())
}

fn execute(
    state: &mut dyn State,
    request: &TxnRequest,
    path: &mut dyn Iterator<Item = bool>,
) -> Result<TxnResponse, ReadError> {
    let taken = path.next().unwrap_or(false);
    let ops = branch(request, taken);
    let mut responses = Vec::with_capacity(ops.len());
    for op in ops {
        let response = match &op.request {
            Some(Request::RequestRange(range)) => {
                Some(Response::ResponseRange(state.range(range)?))
            }
            Some(Request::RequestPut(put)) => Some(Response::ResponsePut(state.put(put)?)),
            Some(Request::RequestDeleteRange(delete)) => {
                Some(Response::ResponseDeleteRange(state.delete(delete)?))
            }
            Some(Request::RequestTxn(nested)) => {
                Some(Response::ResponseTxn(execute(state, nested, path)?))
            }
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    let header = Some(ResponseHeader::default());
    Ok(TxnResponse { header, succeeded: taken, responses })
}

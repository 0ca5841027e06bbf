//! Compare-and-swap on a key's modification revision, the way locks and API servers write.

use super::{Outcome, Unit, extra};
use crate::load::{self, Operation, Window};
use crate::requests::{self, path};
use crate::servers::Server;
use crate::wire::{CallError, Caller, Method, frame};
use anyhow::Result;
use bytes::Bytes;
use leaseway_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use leaseway_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse, request_op, response_op,
};
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const VALUE_BYTES: usize = 256;

/// `contended`: all clients swap the same key; otherwise each has its own.
pub async fn run(
    server: &Server,
    window: Window,
    clients: usize,
    contended: bool,
) -> Result<Outcome> {
    let callers = load::connect_for(server, clients).await?;
    let tally = Arc::new(Tally::default());
    let client = |number: usize| Client {
        caller: callers[number % callers.len()].clone(),
        method: Method::new(path::TXN),
        key: requests::key(if contended { 0 } else { number as u64 }),
        value: requests::value(VALUE_BYTES, number as u64),
        mod_revision: 0,
        tally: tally.clone(),
    };
    let clients = (0..clients).map(client).collect();
    let measured = load::closed_loop(server, window, clients).await?;
    let swapped = tally.swapped.load(Ordering::Relaxed) as f64;
    let tried = tally.tried.load(Ordering::Relaxed).max(1) as f64;
    let extras = vec![extra("swaps that succeeded", 100.0 * swapped / tried, Unit::Percent)];
    Ok(Outcome { measured, extras })
}

#[derive(Default)]
struct Tally {
    tried: AtomicU64,
    swapped: AtomicU64,
}

struct Client {
    caller: Caller,
    method: Method,
    key: Bytes,
    value: Bytes,
    /// What this client last saw; 0 for a key that does not exist.
    mod_revision: i64,
    tally: Arc<Tally>,
}

impl Client {
    fn request(&self) -> Bytes {
        let put =
            PutRequest { key: self.key.clone(), value: self.value.clone(), ..Default::default() };
        let get = RangeRequest { key: self.key.clone(), ..Default::default() };
        frame(&TxnRequest {
            compare: vec![Compare {
                result: CompareResult::Equal as i32,
                target: CompareTarget::Mod as i32,
                key: self.key.clone(),
                range_end: Bytes::new(),
                target_union: Some(TargetUnion::ModRevision(self.mod_revision)),
            }],
            success: vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(request_op::Request::RequestRange(get)) }],
        })
    }
}

impl Operation for Client {
    async fn perform(&mut self) -> Result<u64, CallError> {
        let answer = self.caller.unary(&self.method, self.request()).await?;
        let answer = TxnResponse::decode(answer)?;
        self.tally.tried.fetch_add(1, Ordering::Relaxed);
        if answer.succeeded {
            self.tally.swapped.fetch_add(1, Ordering::Relaxed);
        }
        let seen = revision_seen(&answer);
        self.mod_revision = seen.filter(|seen| *seen > self.mod_revision).ok_or_else(|| {
            CallError::Unexpected(format!("revision {seen:?} after {}", self.mod_revision))
        })?;
        Ok(1)
    }
}

/// The key's modification revision after the transaction. It always rises: either this client has
/// just written, or another had, since this client last looked.
fn revision_seen(answer: &TxnResponse) -> Option<i64> {
    if answer.succeeded {
        return answer.header.as_ref().map(|header| header.revision);
    }
    match answer.responses.first()?.response.as_ref()? {
        response_op::Response::ResponseRange(range) => Some(range.kvs.first()?.mod_revision),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::etcdserverpb::{RangeResponse, ResponseHeader, ResponseOp};
    use leaseway_proto::mvccpb::KeyValue;

    #[test]
    fn the_revision_comes_from_the_header_or_the_row() {
        let header = Some(ResponseHeader { revision: 12, ..Default::default() });
        let won = TxnResponse { header, succeeded: true, responses: vec![] };
        assert_eq!(revision_seen(&won), Some(12));

        let kvs = vec![KeyValue { mod_revision: 11, ..Default::default() }];
        let range = RangeResponse { kvs, ..Default::default() };
        let response = Some(response_op::Response::ResponseRange(range));
        let lost =
            TxnResponse { header, succeeded: false, responses: vec![ResponseOp { response }] };
        assert_eq!(revision_seen(&lost), Some(11));
        assert_eq!(revision_seen(&TxnResponse::default()), None);
    }
}

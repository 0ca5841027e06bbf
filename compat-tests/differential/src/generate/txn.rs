//! Transactions: comparisons of all kinds, both branches, nested three levels deep.

use leaseway_proto::etcdserverpb as pb;
use pb::compare::TargetUnion;
use pb::request_op::Request;

use super::Generator;
use crate::token;

const DEPTH_MAX: usize = 3;

impl Generator {
    pub(super) fn txn_call(&mut self) {
        let txn = if self.rng.below(120) == 0 { self.oversized_txn() } else { self.txn(0) };
        self.push("KV.Txn", &txn);
        self.revisions += 1;
    }

    pub(super) fn txn(&mut self, depth: usize) -> pb::TxnRequest {
        let mut txn = pb::TxnRequest::default();
        let (compares, then, otherwise) = (self.rng.below(3), self.rng.below(4), self.rng.below(4));
        for _ in 0..compares {
            txn.compare.push(self.compare());
        }
        for _ in 0..then {
            txn.success.push(self.request_op(depth));
        }
        for _ in 0..otherwise {
            txn.failure.push(self.request_op(depth));
        }
        if depth == 0 {
            avoid_lost_keyspace(&mut txn);
        }
        txn
    }

    fn request_op(&mut self, depth: usize) -> pb::RequestOp {
        let request = match self.rng.below(100) {
            0..35 => Some(Request::RequestPut(self.txn_put())),
            35..63 => Some(Request::RequestRange(self.txn_range())),
            63..82 => Some(Request::RequestDeleteRange(self.delete_range())),
            82..99 if depth < DEPTH_MAX => Some(Request::RequestTxn(self.txn(depth + 1))),
            82..99 => Some(Request::RequestRange(self.txn_range())),
            _ => None,
        };
        pb::RequestOp { request }
    }

    /// Most mistakes are rarer here than outside, as one is enough to refuse the whole transaction.
    fn txn_put(&mut self) -> pb::PutRequest {
        let mut put = self.put();
        if self.rng.chance(70) {
            (put.ignore_value, put.ignore_lease, put.lease) = (false, false, 0);
            if put.key.is_empty() {
                put.key = "a".into();
            }
        }
        put
    }

    fn txn_range(&mut self) -> pb::RangeRequest {
        let mut range = self.range();
        if self.rng.chance(70) {
            range.revision = 0;
            (range.sort_order, range.sort_target) =
                (range.sort_order.clamp(0, 2), range.sort_target.clamp(0, 4));
        }
        range
    }

    fn compare(&mut self) -> pb::Compare {
        let target = self.rng.below(5) as i32;
        let union = if self.rng.chance(90) { target } else { self.rng.below(5) as i32 };
        let target_union = match union {
            _ if self.rng.below(25) == 0 => None,
            0 => Some(TargetUnion::Version(self.rng.pick(&[0, 0, 1, 1, 2, 3, -1, i64::MAX]))),
            1 => Some(TargetUnion::CreateRevision(self.compared_revision())),
            2 => Some(TargetUnion::ModRevision(self.compared_revision())),
            3 => Some(TargetUnion::Value(self.value())),
            _ => Some(TargetUnion::Lease(self.lease_id())),
        };
        let mut compare = pb::Compare {
            result: self.rng.below(4) as i32,
            target,
            key: self.key(),
            range_end: if self.rng.chance(80) { "".into() } else { self.range_end() },
            target_union,
        };
        if self.rng.below(50) == 0 {
            compare.result = self.rng.pick(&[4, 9, -1]);
        }
        if self.rng.below(50) == 0 {
            compare.target = self.rng.pick(&[5, 9, -1]);
        }
        compare
    }

    fn compared_revision(&mut self) -> i64 {
        match self.rng.below(10) {
            0..4 => 0,
            4..9 => token::revision(self.rng.between(0, self.revisions + 1)),
            _ => self.rng.pick(&[-1, 1, i64::MAX, i64::MIN]),
        }
    }

    /// About as many operations as are allowed, or one more; the parts of a nested transaction
    /// share what its parent leaves.
    fn oversized_txn(&mut self) -> pb::TxnRequest {
        let range = pb::RequestOp { request: Some(Request::RequestRange(small_range())) };
        let count = self.rng.pick(&[126, 127, 128, 129]);
        let compare = pb::Compare { key: "a".into(), ..pb::Compare::default() };
        let mut txn = pb::TxnRequest::default();
        match self.rng.below(4) {
            0 => txn.compare = vec![compare; count],
            1 => txn.success = vec![range; count],
            2 => txn.failure = vec![range; count],
            _ => {
                let outer = self.rng.below(64);
                let inner = pb::TxnRequest {
                    success: vec![range.clone(); count - outer],
                    ..pb::TxnRequest::default()
                };
                txn.success = vec![range; outer];
                txn.success.push(pb::RequestOp { request: Some(Request::RequestTxn(inner)) });
            }
        }
        txn
    }
}

fn small_range() -> pb::RangeRequest {
    pb::RangeRequest { key: "a".into(), count_only: true, ..pb::RangeRequest::default() }
}

/// etcd accepts a deletion of all keys from some key on together with a put of one of them, and
/// loses its keyspace at a later compaction. As every sequence ends with one, the combination is
/// left to the hand-written cases.
fn avoid_lost_keyspace(txn: &mut pb::TxnRequest) {
    if has_put(txn) {
        close_deletes(txn);
    }
}

fn has_put(txn: &pb::TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| match &op.request {
        Some(Request::RequestPut(_)) => true,
        Some(Request::RequestTxn(inner)) => has_put(inner),
        _ => false,
    })
}

fn close_deletes(txn: &mut pb::TxnRequest) {
    for op in txn.success.iter_mut().chain(&mut txn.failure) {
        match &mut op.request {
            Some(Request::RequestDeleteRange(delete)) if delete.range_end.as_ref() == b"\0" => {
                delete.range_end = "\u{0}\u{0}".into();
            }
            Some(Request::RequestTxn(inner)) => close_deletes(inner),
            _ => {}
        }
    }
}

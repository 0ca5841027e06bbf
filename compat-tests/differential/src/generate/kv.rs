//! Range, RangeStream, Put, DeleteRange and Compact.

use leaseway_proto::etcdserverpb as pb;

use super::Generator;
use crate::token;

impl Generator {
    /// One request of the KV service.
    pub(super) fn kv(&mut self) {
        match self.rng.below(100) {
            0..28 => self.write(),
            28..52 => {
                let range = self.range();
                self.push("KV.Range", &range);
            }
            52..60 => {
                let mut range = self.range();
                if self.rng.chance(70) {
                    (range.sort_order, range.sort_target) = (0, 0);
                    (range.min_mod_revision, range.max_mod_revision) = (0, 0);
                    (range.min_create_revision, range.max_create_revision) = (0, 0);
                }
                self.push("KV.RangeStream", &range);
            }
            60..66 => self.delete_range_call(),
            66..93 => self.txn_call(),
            93..96 => {
                let request = pb::HashKvRequest { revision: self.revision() };
                self.push("Maintenance.HashKV", &request);
            }
            _ => self.compact(),
        }
    }

    /// A request that usually makes a revision.
    pub(super) fn write(&mut self) {
        match self.rng.below(10) {
            0..7 => {
                let put = self.put();
                self.push("KV.Put", &put);
                self.revisions += 1;
            }
            7..9 => self.delete_range_call(),
            _ => self.txn_call(),
        }
    }

    pub(super) fn put(&mut self) -> pb::PutRequest {
        let (ignore_value, ignore_lease) = (self.rng.below(12) == 0, self.rng.below(12) == 0);
        let with_lease = self.rng.below(10) == 0 && !ignore_lease || self.rng.below(100) == 0;
        pb::PutRequest {
            key: self.key(),
            value: if ignore_value && self.rng.chance(85) { "".into() } else { self.value() },
            lease: if with_lease { self.lease_id() } else { 0 },
            prev_kv: self.rng.chance(30),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete_range_call(&mut self) {
        let delete = self.delete_range();
        self.push("KV.DeleteRange", &delete);
        self.revisions += 1;
    }

    pub(super) fn delete_range(&mut self) -> pb::DeleteRangeRequest {
        let range_end = if self.rng.chance(60) { "".into() } else { self.range_end() };
        pb::DeleteRangeRequest { key: self.key(), range_end, prev_kv: self.rng.chance(40) }
    }

    pub(super) fn range(&mut self) -> pb::RangeRequest {
        let mut request = pb::RangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            limit: self.limit(),
            revision: self.revision(),
            serializable: self.rng.chance(20),
            keys_only: self.rng.chance(15),
            count_only: self.rng.chance(10),
            ..pb::RangeRequest::default()
        };
        if self.rng.chance(35) {
            request.sort_order = self.rng.pick(&[0, 1, 1, 2, 2, 2]);
            request.sort_target = self.rng.below(5) as i32;
        }
        if self.rng.below(40) == 0 {
            request.sort_order = self.rng.pick(&[0, 3, 9, -1, i32::MAX]);
            request.sort_target = self.rng.pick(&[0, 5, 9, -1, i32::MIN]);
        }
        if self.rng.chance(15) {
            request.min_mod_revision = self.revision();
            request.max_mod_revision = self.revision();
        }
        if self.rng.chance(15) {
            request.min_create_revision = self.revision();
            request.max_create_revision = self.revision();
        }
        request
    }

    fn compact(&mut self) {
        let request = pb::CompactionRequest {
            revision: match self.rng.below(4) {
                0 => self.revision(),
                1 => token::revision(self.revisions),
                _ => token::revision(self.rng.between(self.compacted, self.revisions + 1)),
            },
            physical: self.rng.chance(30),
        };
        if let Some(token::Token::Revision(offset)) = token::decode(request.revision)
            && offset <= self.revisions
        {
            self.compacted = self.compacted.max(offset);
        }
        self.push("KV.Compact", &request);
    }

    /// More keys than a chunk of a stream holds, or larger values than a message should have.
    pub(super) fn many(&mut self) {
        let count = self.rng.pick(&[9, 10, 11, 12, 29, 30, 31, 69, 70, 71, 120]);
        let large = self.rng.chance(25);
        let value = if large { "<fill:90000>" } else { "v" };
        let per_txn = if large { 12 } else { 40 };
        for first in (0..count).step_by(per_txn) {
            let keys = first..(first + per_txn).min(count);
            let put = |n| {
                let put = pb::PutRequest {
                    key: format!("m{n:03}").into(),
                    value: value.into(),
                    ..pb::PutRequest::default()
                };
                pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }
            };
            let txn = pb::TxnRequest { success: keys.map(put).collect(), ..Default::default() };
            self.push("KV.Txn", &txn);
            self.revisions += 1;
        }
        let times = 3 + self.rng.below(5);
        for _ in 0..times {
            let request = pb::RangeRequest {
                key: ["m", "m005", "\0"][self.rng.below(3)].into(),
                range_end: ["n", "\0", "m011"][self.rng.below(3)].into(),
                limit: self.rng.pick(&[0, 0, 1, 9, 10, 11, 12, 20, 29, 30, 31, 70, 119, -1]),
                revision: if self.rng.chance(30) { self.revision() } else { 0 },
                keys_only: self.rng.chance(25),
                count_only: self.rng.chance(10),
                serializable: self.rng.chance(20),
                ..pb::RangeRequest::default()
            };
            let method = if self.rng.chance(75) { "KV.RangeStream" } else { "KV.Range" };
            self.push(method, &request);
            if self.rng.chance(20) {
                self.write();
            }
        }
    }
}

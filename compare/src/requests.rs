//! The requests of the workloads, encoded ahead of time.

use crate::wire::frame;
use bytes::Bytes;
use leaseway_proto::etcdserverpb::{
    PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
};

pub mod path {
    pub const RANGE: &str = "/etcdserverpb.KV/Range";
    pub const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";
    pub const PUT: &str = "/etcdserverpb.KV/Put";
    pub const TXN: &str = "/etcdserverpb.KV/Txn";
    pub const WATCH: &str = "/etcdserverpb.Watch/Watch";
    pub const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
    pub const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
    pub const LEASE_LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
}

/// Keys are `key/` and twelve digits.
const DIGITS: usize = 12;
/// Puts in one transaction while loading; etcd's limit is 128.
pub const PUTS_PER_LOAD: u64 = 100;

pub fn key(number: u64) -> Bytes {
    Bytes::from(format!("key/{number:0DIGITS$}"))
}

/// `size` bytes that do not compress, the same for the same seed.
pub fn value(size: usize, seed: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    Bytes::from((0..size).map(|_| random.u8(..)).collect::<Vec<u8>>())
}

/// A framed request with room for the number of its key.
#[derive(Clone)]
pub struct KeyedRequest {
    framed: Bytes,
    digits_at: usize,
}

impl KeyedRequest {
    pub fn put(value: Bytes) -> Self {
        Self::new(frame(&PutRequest { key: key(0), value, ..Default::default() }))
    }

    pub fn get(serializable: bool) -> Self {
        Self::new(frame(&RangeRequest { key: key(0), serializable, ..Default::default() }))
    }

    /// `framed` starts with the key as its first field: frame, tag and length take seven bytes.
    fn new(framed: Bytes) -> Self {
        let digits_at = 5 + 2 + "key/".len();
        assert_eq!(&framed[digits_at..digits_at + DIGITS], [b'0'; DIGITS]);
        Self { framed, digits_at }
    }

    pub fn with_key(&self, number: u64) -> Bytes {
        let mut copy = self.framed.to_vec();
        let mut rest = number;
        for digit in copy[self.digits_at..self.digits_at + DIGITS].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        Bytes::from(copy)
    }
}

/// All keys from `first` on, `count` of them.
pub fn range(first: u64, count: u64) -> Bytes {
    let request =
        RangeRequest { key: key(first), range_end: key(first + count), ..Default::default() };
    frame(&request)
}

/// One transaction that puts the keys from `first` up to, not including, `end`.
pub fn load(first: u64, end: u64, value: &Bytes) -> Bytes {
    let put = |number| {
        let put = PutRequest { key: key(number), value: value.clone(), ..Default::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    };
    frame(&TxnRequest { success: (first..end).map(put).collect(), ..Default::default() })
}

/// The end of the range of all keys that begin with `prefix`, whose last byte is below 255.
pub fn prefix_end(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Bytes::from(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn a_patched_put_decodes_to_its_key_and_value() {
        let stored = value(256, 7);
        let request = KeyedRequest::put(stored.clone()).with_key(31_415);
        assert_eq!(&request[..5], [0, 0, 0, 1, 21]);
        let decoded = PutRequest::decode(&request[5..]).unwrap();
        assert_eq!(decoded.key, key(31_415));
        assert_eq!(decoded.value, stored);
    }

    #[test]
    fn a_patched_get_decodes_to_its_key_and_mode() {
        for serializable in [false, true] {
            let request = KeyedRequest::get(serializable).with_key(999_999_999_999);
            let decoded = RangeRequest::decode(&request[5..]).unwrap();
            assert_eq!(decoded.key, "key/999999999999");
            assert_eq!(decoded.serializable, serializable);
        }
    }

    #[test]
    fn a_load_holds_each_key_once() {
        let request = TxnRequest::decode(&load(5, 8, &value(1, 1))[5..]).unwrap();
        let keys: Vec<_> = request
            .success
            .into_iter()
            .map(|operation| match operation.request {
                Some(Request::RequestPut(put)) => put.key,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(keys, [key(5), key(6), key(7)]);
    }

    #[test]
    fn values_are_reproducible() {
        assert_eq!(value(64, 1), value(64, 1));
        assert_ne!(value(64, 1), value(64, 2));
        assert_eq!(prefix_end("w/"), "w0");
    }
}

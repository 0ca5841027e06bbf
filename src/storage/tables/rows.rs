//! `rows`: one row per change of a key, in revision order.
//!
//! Key, 12 bytes: revision (u64, big-endian), then the change's place in it (u32, big-endian).
//! Value: checksum (4), kind (1: 0 put, 1 delete), then an encoded `mvccpb.KeyValue`: the whole
//! new state for a put, only the key for a delete.
//!
//! Lives until a compaction finds it superseded. Written once, in key order, never changed.

use super::{malformed, seal, unseal};
use crate::storage::StorageError;
use bytes::{BufMut, Bytes};
use leaseway_proto::mvccpb::KeyValue;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Bytes before the encoded `KeyValue` in a row's value.
pub const ROW_HEADER: usize = super::CHECKSUM + 1;

const NAME: &str = "rows";
const KEY: usize = 12;

/// Identifies one change: the revision, and its place among that revision's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// The revision, from 2 (1 is the empty store).
    pub main: i64,
    /// Position among the changes of the revision, from 0.
    pub sub: u32,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Created or overwritten.
    Put,
    /// Deleted by a request, or with its lease.
    Delete,
}

/// Bytes that a row with a value of `length` bytes counts for.
pub fn bytes(length: usize) -> i64 {
    (KEY + length) as i64
}

/// Encodes a row's key.
pub fn key(row: RowId) -> [u8; KEY] {
    let mut out = [0; KEY];
    out[..8].copy_from_slice(&(row.main as u64).to_be_bytes());
    out[8..].copy_from_slice(&row.sub.to_be_bytes());
    out
}

/// Decodes a row's key.
///
/// # Errors
/// The key is not 12 bytes long or its revision does not fit an `i64`.
pub fn decode_row_id(key: &[u8]) -> Result<RowId, StorageError> {
    let decode = || {
        let (main, sub) = key.split_at_checked(8)?;
        let main = i64::try_from(u64::from_be_bytes(main.try_into().ok()?)).ok()?;
        Some(RowId { main, sub: u32::from_be_bytes(sub.try_into().ok()?) })
    };
    decode().ok_or_else(|| malformed(NAME, key))
}

/// A put's row.
pub fn encode_put(row: RowId, kv: &KeyValue) -> Bytes {
    encode(row, EventKind::Put, kv)
}

/// A delete's row.
pub fn encode_delete(row: RowId, key: Bytes) -> Bytes {
    encode(row, EventKind::Delete, &KeyValue { key, ..KeyValue::default() })
}

fn encode(row: RowId, kind: EventKind, kv: &KeyValue) -> Bytes {
    let size = 1 + kv.encoded_len();
    seal(&key(row), size, |out| {
        out.put_u8(kind as u8);
        kv.encode_raw(out);
    })
}

/// A row's kind and its encoded `KeyValue`.
///
/// # Errors
/// The row fails its checksum or has an unknown kind.
pub fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<(EventKind, &'a [u8]), StorageError> {
    match unseal(NAME, key, value)?.split_first() {
        Some((0, kv)) => Ok((EventKind::Put, kv)),
        Some((1, kv)) => Ok((EventKind::Delete, kv)),
        _ => Err(malformed(NAME, key)),
    }
}

/// What the index needs of a row, without decoding the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Revision that created the key.
    pub create_revision: i64,
    /// Number of puts since the key was created.
    pub version: i64,
    /// Lease the key is attached to, or 0.
    pub lease: i64,
    /// The value.
    pub value: &'a [u8],
}

/// Reads an encoded `KeyValue` without copying.
///
/// # Errors
/// The bytes are not a `KeyValue`.
pub fn summarize(mut kv: &[u8]) -> Result<Summary<'_>, StorageError> {
    let broken = |_| StorageError::Corrupted("a row is not a KeyValue".into());
    let short = || StorageError::Corrupted("a row ends within a field".into());
    let mut out = Summary::default();
    while !kv.is_empty() {
        let (tag, wire) = decode_key(&mut kv).map_err(broken)?;
        match wire {
            WireType::LengthDelimited => {
                let length = decode_varint(&mut kv).map_err(broken)?;
                let length = usize::try_from(length).map_err(|_| short())?;
                let (field, rest) = kv.split_at_checked(length).ok_or_else(short)?;
                kv = rest;
                match tag {
                    1 => out.key = field,
                    5 => out.value = field,
                    _ => {}
                }
            }
            WireType::Varint => {
                let number = decode_varint(&mut kv).map_err(broken)? as i64;
                match tag {
                    2 => out.create_revision = number,
                    4 => out.version = number,
                    6 => out.lease = number,
                    _ => {}
                }
            }
            _ => return Err(short()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_round_trip_in_order(a in (1..i64::MAX, any::<u32>()), b in (1..i64::MAX, any::<u32>())) {
            let (a, b) = (RowId { main: a.0, sub: a.1 }, RowId { main: b.0, sub: b.1 });
            prop_assert_eq!(decode_row_id(&key(a)).unwrap(), a);
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
        }

        #[test]
        fn rows_round_trip_and_notice_any_changed_bit(
            k in prop::collection::vec(any::<u8>(), 1..40),
            v in prop::collection::vec(any::<u8>(), 0..80),
            numbers in any::<(i64, i64, i64)>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let row = RowId { main: 7, sub: 3 };
            let kv = KeyValue {
                key: k.clone().into(),
                value: v.clone().into(),
                create_revision: numbers.0,
                mod_revision: 7,
                version: numbers.1,
                lease: numbers.2,
            };
            let stored = encode_put(row, &kv);
            let (kind, encoded) = open(&key(row), &stored).unwrap();
            prop_assert_eq!(kind, EventKind::Put);
            prop_assert_eq!(KeyValue::decode(encoded).unwrap(), kv);
            let summary = summarize(encoded).unwrap();
            prop_assert_eq!(summary.key, &k[..]);
            prop_assert_eq!(summary.value, &v[..]);
            prop_assert_eq!((summary.create_revision, summary.version, summary.lease), numbers);

            let mut damaged = stored.to_vec();
            let bit = flip.index(damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&key(row), &damaged).is_err());
            let elsewhere = key(RowId { main: 8, sub: 3 });
            prop_assert!(open(&elsewhere, &stored).is_err());
        }

        #[test]
        fn nonsense_is_refused_not_fatal(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = summarize(&bytes);
            let _ = decode_row_id(&bytes);
            prop_assert!(open(&[0; 12], &bytes).is_err() || bytes.len() > 4);
        }
    }

    #[test]
    fn deletes_hold_the_key_only() {
        let row = RowId { main: 2, sub: 0 };
        let stored = encode_delete(row, Bytes::from_static(b"k"));
        let (kind, kv) = open(&key(row), &stored).unwrap();
        assert_eq!(kind, EventKind::Delete);
        assert_eq!(kv, b"\x0a\x01k");
    }
}

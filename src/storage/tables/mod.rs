//! The on-disk schema: one file a table, with its keys, its values and how long they live.
//!
//! Every value starts with a CRC-32C (Castagnoli, little-endian) over the key and the rest of the
//! value, so that a damaged or misplaced row is never taken for a good one.

pub mod alarms;
pub mod leases;
pub mod meta;
pub mod roles;
pub mod rows;
pub mod users;

use super::StorageError;
use bytes::{BufMut, Bytes, BytesMut};

const CHECKSUM: usize = 4;

/// Prefixes a value with its checksum. `fill` writes the value itself.
fn seal(key: &[u8], size_hint: usize, fill: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(CHECKSUM + size_hint);
    out.put_u32_le(0);
    fill(&mut out);
    let sum = crc32c::crc32c_append(crc32c::crc32c(key), &out[CHECKSUM..]);
    out[..CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    out.freeze()
}

/// The value behind its checksum.
fn unseal<'a>(table: &str, key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], StorageError> {
    let broken = || StorageError::Corrupted(format!("{table} row {key:02x?} fails its checksum"));
    let (sum, value) = sealed.split_at_checked(CHECKSUM).ok_or_else(broken)?;
    let expected = crc32c::crc32c_append(crc32c::crc32c(key), value);
    if sum == expected.to_le_bytes() { Ok(value) } else { Err(broken()) }
}

fn malformed(table: &str, key: &[u8]) -> StorageError {
    StorageError::Corrupted(format!("{table} row {key:02x?} has an impossible form"))
}

//! `leases`: living leases. Which keys hang on one is told by the rows themselves.
//!
//! Key: lease id (i64, big-endian). Value: checksum, granted seconds (i64), session (u64), renewal
//! count (u64), remaining seconds as last noted (i64, 0 = not noted), whether it was spared (1 or 0, one
//! byte), marker name (rest, UTF-8); all little-endian.
//!
//! Lives from the grant until revoke or expiry.

use super::{malformed, seal, unseal};
use crate::storage::{Batch, Snapshot, StorageError, Table, try_scan};
use bytes::{Buf, BufMut};
use std::ops::ControlFlow;

const NAME: &str = "leases";

/// One lease as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Lease id; never 0.
    pub id: i64,
    /// Granted seconds.
    pub ttl: i64,
    /// Session that keeps its time.
    pub session: u64,
    /// How many renewals have been logged.
    pub renewals: u64,
    /// Remaining seconds as last noted; 0 when never noted.
    pub remaining: i64,
    /// Was given a new session after an outage, and has not been renewed since.
    pub spared: bool,
    /// Name of the session's marker record; empty without one.
    pub marker: String,
}

/// Stages a lease.
pub fn put(batch: &mut Batch, row: &Row) {
    let key = row.id.to_be_bytes();
    let value = seal(&key, 33 + row.marker.len(), |out| {
        out.put_i64_le(row.ttl);
        out.put_u64_le(row.session);
        out.put_u64_le(row.renewals);
        out.put_i64_le(row.remaining);
        out.put_u8(row.spared.into());
        out.put_slice(row.marker.as_bytes());
    });
    batch.put(Table::Leases, key.to_vec(), value);
}

/// Stages a lease's end.
pub fn delete(batch: &mut Batch, id: i64) {
    batch.delete(Table::Leases, id.to_be_bytes().to_vec());
}

/// All stored leases.
///
/// # Errors
/// Damage and I/O errors.
pub fn all(snapshot: &dyn Snapshot) -> Result<Vec<Row>, StorageError> {
    let mut rows = Vec::new();
    try_scan(snapshot, Table::Leases, &[], None, |key, value| {
        rows.push(decode(key, value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

fn decode(key: &[u8], value: &[u8]) -> Result<Row, StorageError> {
    let id = key.try_into().map(i64::from_be_bytes).map_err(|_| malformed(NAME, key))?;
    let mut value = unseal(NAME, key, value)?;
    if value.len() < 33 {
        return Err(malformed(NAME, key));
    }
    Ok(Row {
        id,
        ttl: value.get_i64_le(),
        session: value.get_u64_le(),
        renewals: value.get_u64_le(),
        remaining: value.get_i64_le(),
        spared: value.get_u8() != 0,
        marker: String::from_utf8(value.to_vec()).map_err(|_| malformed(NAME, key))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_round_trip(
            id in any::<i64>(),
            numbers in any::<(i64, u64, u64, i64, bool)>(),
            marker in "\\PC{0,20}",
        ) {
            let (ttl, session, renewals, remaining, spared) = numbers;
            let row = Row { id, ttl, session, renewals, remaining, spared, marker };
            let mut batch = Batch::default();
            put(&mut batch, &row);
            let change = &batch.changes[0];
            let stored = change.value.as_ref().unwrap();
            prop_assert_eq!(decode(&change.key, stored).unwrap(), row);
            prop_assert!(decode(&[0; 8], stored).is_err() || id == 0);
            prop_assert!(decode(&change.key, &stored[..20]).is_err());
        }
    }
}

//! `alarms`: raised alarms.
//!
//! Key: member id (u64, big-endian), alarm type (i32, big-endian). Value: checksum only.
//!
//! Lives until the alarm is disarmed.

use super::{malformed, seal, unseal};
use crate::storage::{Batch, Snapshot, StorageError, Table, try_scan};
use std::ops::ControlFlow;

const NAME: &str = "alarms";

fn key(member: u64, alarm: i32) -> Vec<u8> {
    let mut key = member.to_be_bytes().to_vec();
    key.extend(alarm.to_be_bytes());
    key
}

/// Stages a raised alarm.
pub fn put(batch: &mut Batch, member: u64, alarm: i32) {
    let key = key(member, alarm);
    let value = seal(&key, 0, |_| {});
    batch.put(Table::Alarms, key, value);
}

/// Stages a disarmed alarm.
pub fn delete(batch: &mut Batch, member: u64, alarm: i32) {
    batch.delete(Table::Alarms, key(member, alarm));
}

/// All raised alarms as (member, alarm type).
///
/// # Errors
/// Damage and I/O errors.
pub fn all(snapshot: &dyn Snapshot) -> Result<Vec<(u64, i32)>, StorageError> {
    let mut rows = Vec::new();
    try_scan(snapshot, Table::Alarms, &[], None, |key, value| {
        rows.push(decode(key, value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

fn decode(key: &[u8], value: &[u8]) -> Result<(u64, i32), StorageError> {
    unseal(NAME, key, value)?;
    let (member, alarm) = key.split_at_checked(8).ok_or_else(|| malformed(NAME, key))?;
    let member = member.try_into().map_err(|_| malformed(NAME, key))?;
    let alarm = alarm.try_into().map_err(|_| malformed(NAME, key))?;
    Ok((u64::from_be_bytes(member), i32::from_be_bytes(alarm)))
}

//! `roles`: roles of authentication.
//!
//! Key: the name. Value: an encoded `authpb.Role` with the name once more and the permissions.
//!
//! Lives until the role is deleted.

use super::{malformed, seal, unseal};
use crate::storage::{Batch, Snapshot, StorageError, Table, try_scan};
use leaseway_proto::authpb::Role;
use prost::Message;
use std::ops::ControlFlow;

const NAME: &str = "roles";

/// Stages a role.
pub fn put(batch: &mut Batch, name: &str, role: &Role) {
    let key = name.as_bytes().to_vec();
    let value = seal(&key, role.encoded_len(), |out| role.encode_raw(out));
    batch.put(Table::Roles, key, value);
}

/// Stages a role's removal.
pub fn delete(batch: &mut Batch, name: &str) {
    batch.delete(Table::Roles, name.as_bytes().to_vec());
}

/// All roles with their names, in the names' order.
///
/// # Errors
/// Damage and I/O errors.
pub fn all(snapshot: &dyn Snapshot) -> Result<Vec<(String, Role)>, StorageError> {
    let mut rows = Vec::new();
    try_scan(snapshot, Table::Roles, &[], None, |key, value| {
        rows.push(decode(key, value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

fn decode(key: &[u8], value: &[u8]) -> Result<(String, Role), StorageError> {
    let broken = || malformed(NAME, key);
    let role = Role::decode(unseal(NAME, key, value)?).map_err(|_| broken())?;
    let name = std::str::from_utf8(key).map_err(|_| broken())?;
    Ok((name.to_owned(), role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::authpb::Permission;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn roles_round_trip_and_notice_any_changed_bit(
            name in "[a-zé]{1,12}",
            granted in prop::collection::vec((0..4_i32, any::<[u8; 3]>(), any::<[u8; 2]>()), 0..4),
            flip in any::<prop::sample::Index>(),
        ) {
            let key_permission = granted.iter().map(|(kind, key, end)| Permission {
                perm_type: *kind,
                key: key.to_vec().into(),
                range_end: end.to_vec().into(),
            });
            let role = Role {
                name: name.clone().into_bytes().into(),
                key_permission: key_permission.collect(),
            };
            let mut batch = Batch::default();
            put(&mut batch, &name, &role);
            let change = &batch.changes[0];
            let mut value = change.value.clone().unwrap().to_vec();
            prop_assert_eq!(decode(&change.key, &value).unwrap(), (name, role));
            let bit = flip.index(value.len() * 8);
            value[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&change.key, &value).is_err());
        }
    }
}

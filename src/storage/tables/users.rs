//! `users`: users of authentication.
//!
//! Key: the name. Value: auth revision of the last change of the password (u64, little-endian), then
//! an encoded `authpb.User` with the name once more, the password's bcrypt hash, roles and options.
//!
//! Lives until the user is deleted.

use super::{malformed, seal, unseal};
use crate::storage::{Batch, Snapshot, StorageError, Table, try_scan};
use bytes::BufMut;
use leaseway_proto::authpb::User;
use prost::Message;
use std::ops::ControlFlow;

const NAME: &str = "users";

/// A stored user.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The user's name.
    pub name: String,
    /// The user in etcd's form.
    pub user: User,
    /// Auth revision of the last change of the password.
    pub credentials_since: u64,
}

/// Stages a user.
pub fn put(batch: &mut Batch, name: &str, user: &User, credentials_since: u64) {
    let key = name.as_bytes().to_vec();
    let value = seal(&key, 8 + user.encoded_len(), |out| {
        out.put_u64_le(credentials_since);
        user.encode_raw(out);
    });
    batch.put(Table::Users, key, value);
}

/// Stages a user's removal.
pub fn delete(batch: &mut Batch, name: &str) {
    batch.delete(Table::Users, name.as_bytes().to_vec());
}

/// All users, by name.
///
/// # Errors
/// Damage and I/O errors.
pub fn all(snapshot: &dyn Snapshot) -> Result<Vec<Row>, StorageError> {
    let mut rows = Vec::new();
    try_scan(snapshot, Table::Users, &[], None, |key, value| {
        rows.push(decode(key, value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

fn decode(key: &[u8], value: &[u8]) -> Result<Row, StorageError> {
    let broken = || malformed(NAME, key);
    let value = unseal(NAME, key, value)?;
    let (since, user) = value.split_at_checked(8).ok_or_else(broken)?;
    Ok(Row {
        name: std::str::from_utf8(key).map_err(|_| broken())?.to_owned(),
        user: User::decode(user).map_err(|_| broken())?,
        credentials_since: u64::from_le_bytes(since.try_into().map_err(|_| broken())?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn users_round_trip_and_notice_any_changed_bit(
            name in "[a-zé]{1,12}",
            password in prop::collection::vec(any::<u8>(), 0..60),
            roles in prop::collection::vec("[a-z]{1,5}", 0..4),
            since in any::<u64>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let user = User {
                name: name.clone().into_bytes().into(),
                password: password.into(),
                roles,
                options: None,
            };
            let mut batch = Batch::default();
            put(&mut batch, &name, &user, since);
            let change = &batch.changes[0];
            let mut value = change.value.clone().unwrap().to_vec();
            let row = decode(&change.key, &value).unwrap();
            prop_assert_eq!(row, Row { name, user, credentials_since: since });
            let bit = flip.index(value.len() * 8);
            value[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&change.key, &value).is_err());
        }

        #[test]
        fn nonsense_is_refused_not_fatal(
            key in prop::collection::vec(any::<u8>(), 0..9),
            value in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let sealed = seal(&key, 0, |out| out.put_slice(&value));
            let _ = decode(&key, &sealed);
            let _ = decode(&key, &value);
        }
    }
}

//! What is in etcd's database file, from 3.4 to 3.7.
//!
//! | bucket | key | value |
//! |---|---|---|
//! | `key` | revision and sub-revision (u64 each) around `_`, a `t` behind if it is a tombstone | `mvccpb.KeyValue`, of a tombstone only its key |
//! | `lease` | lease id (i64) | [`Lease`] |
//! | `alarm` | `etcdserverpb.AlarmMember` | nothing |
//! | `auth` | `authEnabled` | one byte, 0 or 1 |
//! | | `authRevision` | u64 |
//! | `authUsers` | user's name | `authpb.User` |
//! | `authRoles` | role's name | `authpb.Role` |
//! | `meta` | `scheduledCompactRev` | the compacted revision, in the form of a key of `key` |
//! | | `finishedCompactRev` | through where compaction has removed what it may, in the same form |
//! | | `consistent_index` | raft's index of the last command in the file (u64) |
//! | | `term` | raft's term of it (u64), from 3.5 on |
//! | | `confState` | raft's voters (JSON), from 3.5 on |
//! | | `storageVersion` | `3.6.0` or `3.7.0`; earlier versions have none |
//! | `cluster` | `clusterVersion` | lowest version among the members, from 3.5 on |
//! | `members`, `members_removed` | member id in hexadecimal | JSON |
//!
//! All numbers are big-endian.

use crate::keyspace::event::RowId;

pub const ALARM: &str = "alarm";
pub const AUTH: &str = "auth";
pub const AUTH_ROLES: &str = "authRoles";
pub const AUTH_USERS: &str = "authUsers";
pub const CLUSTER: &str = "cluster";
pub const KEY: &str = "key";
pub const LEASE: &str = "lease";
pub const MEMBERS: &str = "members";
pub const MEMBERS_REMOVED: &str = "members_removed";
pub const META: &str = "meta";

pub const AUTH_ENABLED: &[u8] = b"authEnabled";
pub const AUTH_REVISION: &[u8] = b"authRevision";
pub const CLUSTER_VERSION: &[u8] = b"clusterVersion";
pub const CONF_STATE: &[u8] = b"confState";
pub const CONSISTENT_INDEX: &[u8] = b"consistent_index";
pub const FINISHED_COMPACTION: &[u8] = b"finishedCompactRev";
pub const SCHEDULED_COMPACTION: &[u8] = b"scheduledCompactRev";
pub const STORAGE_VERSION: &[u8] = b"storageVersion";
pub const TERM: &[u8] = b"term";

/// The longest TTL that etcd grants, in seconds.
pub const TTL_MAX: i64 = 9_000_000_000;
/// Bytes of a row's key without the mark of a tombstone.
const ROW_KEY: usize = 17;
const TOMBSTONE: u8 = b't';
/// Changes within one revision: what the index has room for.
const SUB_MAX: u64 = (u32::MAX >> 1) as u64;

/// A lease as etcd stores it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Lease {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Granted seconds.
    #[prost(int64, tag = "2")]
    pub ttl: i64,
    /// Seconds that were left when that was last noted; 0 if never.
    #[prost(int64, tag = "3")]
    pub remaining: i64,
}

/// A key of the bucket `key`.
pub fn row_key(row: RowId, tombstone: bool) -> Vec<u8> {
    let mut key = Vec::with_capacity(ROW_KEY + 1);
    key.extend((row.main as u64).to_be_bytes());
    key.push(b'_');
    key.extend(u64::from(row.sub).to_be_bytes());
    if tombstone {
        key.push(TOMBSTONE);
    }
    key
}

/// A key of the bucket `key` taken apart: which row it is, and whether a tombstone. Nothing if it is none.
pub fn parse_row_key(key: &[u8]) -> Option<(RowId, bool)> {
    let (fixed, mark) = key.split_at_checked(ROW_KEY)?;
    let tombstone = match mark {
        [] => false,
        [TOMBSTONE] => true,
        _ => return None,
    };
    let main = i64::try_from(number(&fixed[..8])?).ok().filter(|main| *main > 0)?;
    let sub = number(&fixed[9..])?;
    let sub = u32::try_from(sub).ok().filter(|_| sub <= SUB_MAX)?;
    (fixed[8] == b'_').then_some((RowId { main, sub }, tombstone))
}

/// A number of 8 bytes.
pub fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn keys_of_rows_are_etcds() {
        let row = RowId { main: 258, sub: 3 };
        assert_eq!(row_key(row, false), b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x03");
        assert_eq!(row_key(row, true), b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x03t");
        for tombstone in [false, true] {
            assert_eq!(parse_row_key(&row_key(row, tombstone)), Some((row, tombstone)));
        }
    }

    #[test]
    fn what_is_no_key_of_a_row_is_noticed() {
        let good = row_key(RowId { main: 258, sub: 3 }, true);
        for cut in 0..good.len() {
            assert_eq!(parse_row_key(&good[..cut]).is_some(), cut == ROW_KEY, "{cut} bytes");
        }
        for (at, byte) in [(0, 0x80), (8, b'-'), (9, 1), (13, 0x80), (17, b'x')] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(parse_row_key(&bad), None, "byte {at}");
        }
        assert_eq!(parse_row_key(&row_key(RowId { main: 0, sub: 0 }, false)), None);
        assert_eq!(parse_row_key(&[&good[..], b"t"].concat()), None);
    }

    #[test]
    fn leases_are_etcds() {
        let lease = Lease { id: 1, ttl: 300, remaining: 2 };
        assert_eq!(lease.encode_to_vec(), b"\x08\x01\x10\xac\x02\x18\x02");
    }
}

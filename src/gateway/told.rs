//! Lines of the log about what administrators do: alarms, users and roles, compactions, defragmentation.
//!
//! A line is written where a request was served, once it has changed something. Every gateway applies the same
//! log, but only the one that was asked knows by whom, so the others are silent and a change has one line among all
//! of them. Texts and fields are mostly those of etcd's log, by which it is searched. This is what has happened, always
//! there; who asked for what in vain, and for which keys, is the audit log's to say. Never a password or a hash, and
//! nothing on the way of puts, reads and transactions.

use super::Context;
use super::audited::{ClientAddress, Who};
use super::json;
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::keyspace::alarms;
use crate::keyspace::command::{AlarmChange, Op};
use bytes::Bytes;
use leaseway_proto::authpb::permission::Type;
use std::time::Instant;
use tonic::Request;

/// Whether requests to a path may get a line here, and so have to carry where their client is.
pub fn concerns(path: &str) -> bool {
    match path.strip_prefix("/etcdserverpb.") {
        Some(rest) => {
            rest.starts_with("Auth/") || rest.starts_with("Maintenance/") || rest == "KV/Compact"
        }
        None => json::is_api(path),
    }
}

/// Where the client of a request is, for a line.
pub fn address<T>(request: &Request<T>) -> Option<ClientAddress> {
    request.extensions().get().cloned()
}

/// Who asks for something, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Asker {
    user: Option<String>,
    client: Option<ClientAddress>,
}

impl Asker {
    /// Whoever sends a request. To be made before the request is done: it may be the one after which nobody is
    /// known any more.
    pub fn of<L: Log, S: Sessions, T>(context: &Context<L, S>, request: &Request<T>) -> Self {
        let user = context.user(&Credentials::of(request));
        Self { user, client: address(request) }
    }

    fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    fn client(&self) -> Option<&str> {
        self.client.as_ref().map(|client| &*client.0)
    }
}

/// Bytes of a name that somebody claims to have, in a line.
const NAME_MAX: usize = 128;
/// What stands for the rest of it.
const CUT: &str = "...";

/// Leaves the beginning of a name that nobody has and anybody could send, whatever its length.
pub fn shorten(name: &mut String) {
    if name.len() > NAME_MAX {
        let mut ends = (0..=NAME_MAX - CUT.len()).rev();
        name.truncate(ends.find(|end| name.is_char_boundary(*end)).unwrap_or(0));
        name.push_str(CUT);
        name.shrink_to_fit();
    }
}

/// A login that failed.
pub fn failed_login(name: &mut String, client: Option<&ClientAddress>, error: &str) {
    shorten(name);
    tracing::warn!(
        user = &**name,
        remote_addr = client.map(|client| &*client.0),
        error,
        "invalid authentication was requested"
    );
}

/// Logins that failed after others of the same minute, and have no line of their own.
pub fn failed_logins(count: u64) {
    tracing::warn!(count, "more invalid authentications were requested within a minute");
}

/// An alarm that was raised or disarmed; `asker` is none where the server did it by itself.
pub fn alarm(change: &AlarmChange, asker: Option<&Asker>) {
    let message = if change.raise { "alarm raised" } else { "alarm disarmed" };
    tracing::warn!(
        alarm = &*alarms::name(change.alarm),
        from = format!("{:x}", change.member),
        requested_by = asker.and_then(Asker::user),
        remote_addr = asker.and_then(Asker::client),
        "{message}"
    );
}

/// A compaction that counts from now on; its end is said by each server that has removed the history.
pub fn compaction(compact_revision: i64, physical: bool, asker: &Asker) {
    tracing::info!(
        compact_revision,
        physical,
        requested_by = asker.user(),
        remote_addr = asker.client(),
        "compaction requested"
    );
}

/// A snapshot of everything, of so many bytes, that is about to be sent.
pub fn snapshot(bytes: u64, asker: &Asker) {
    tracing::info!(
        bytes,
        requested_by = asker.user(),
        remote_addr = asker.client(),
        "sending a snapshot"
    );
}

/// A defragmentation that has begun, and has to have its end in the log too: also if its client goes away.
pub struct Defragmentation {
    asker: Asker,
    bytes_before: u64,
    begun: Instant,
    ended: bool,
}

impl Defragmentation {
    /// Says that one begins, of a store whose file has `bytes`.
    pub fn begin(bytes: u64, asker: &Asker) -> Self {
        tracing::info!(
            current_db_size_bytes = bytes,
            requested_by = asker.user(),
            remote_addr = asker.client(),
            "defragmenting"
        );
        Self { asker: asker.clone(), bytes_before: bytes, begun: Instant::now(), ended: false }
    }

    /// Says how it has ended, with a file of `bytes`.
    pub fn end(mut self, bytes: u64, error: Option<&str>) {
        self.ended = true;
        let took = self.begun.elapsed();
        match error {
            Some(error) => {
                tracing::warn!(
                    error,
                    current_db_size_bytes = bytes,
                    ?took,
                    requested_by = self.asker.user(),
                    remote_addr = self.asker.client(),
                    "failed to defragment"
                );
            }
            None => tracing::info!(
                db_size_bytes_before = self.bytes_before,
                current_db_size_bytes = bytes,
                ?took,
                requested_by = self.asker.user(),
                remote_addr = self.asker.client(),
                "finished defragmenting"
            ),
        }
    }
}

impl Drop for Defragmentation {
    fn drop(&mut self) {
        if !self.ended {
            tracing::warn!(
                took = ?self.begun.elapsed(),
                "nobody waits for the defragmentation any more; it may go on"
            );
        }
    }
}

/// A change of users, roles or of authentication itself, before it is known whether it comes about.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AuthChange {
    message: &'static str,
    user: Option<String>,
    role: Option<String>,
    permission: Option<&'static str>,
    key: Option<Bytes>,
    range_end: Option<Bytes>,
}

impl AuthChange {
    /// What `op` does; nothing is said of operations that concern neither users nor roles.
    pub fn of(op: &Op) -> Option<Self> {
        let about = |message, user: Option<&String>, role: Option<&String>| {
            Some(Self { message, user: user.cloned(), role: role.cloned(), ..Self::default() })
        };
        match op {
            Op::AuthEnable(_) => about("enabled authentication", None, None),
            Op::AuthDisable(_) => about("disabled authentication", None, None),
            Op::UserAdd(add) => about("added a user", Some(&add.name), None),
            Op::UserDelete(delete) => about("deleted a user", Some(&delete.name), None),
            Op::UserPassword(change) => {
                about("changed a password of a user", Some(&change.name), None)
            }
            Op::UserGrantRole(grant) => {
                about("granted a role to a user", Some(&grant.user), Some(&grant.role))
            }
            Op::UserRevokeRole(revoke) => {
                about("revoked a role from a user", Some(&revoke.name), Some(&revoke.role))
            }
            Op::RoleAdd(add) => about("created a role", None, Some(&add.name)),
            Op::RoleDelete(delete) => about("deleted a role", None, Some(&delete.role)),
            Op::RoleGrantPermission(grant) => {
                let perm = grant.perm.clone().unwrap_or_default();
                Some(Self {
                    message: "granted/updated a permission to a role",
                    role: Some(grant.name.clone()),
                    permission: Type::try_from(perm.perm_type).ok().map(|it| it.as_str_name()),
                    key: Some(perm.key),
                    range_end: Some(perm.range_end),
                    ..Self::default()
                })
            }
            Op::RoleRevokePermission(revoke) => Some(Self {
                message: "revoked a permission on range",
                role: Some(revoke.role.clone()),
                key: Some(revoke.key.clone()),
                range_end: Some(revoke.range_end.clone()),
                ..Self::default()
            }),
            _ => None,
        }
    }

    /// Says that it has come about.
    pub fn tell(&self, asker: &Asker) {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        tracing::info!(
            user_name = self.user,
            role_name = self.role,
            permission_name = self.permission,
            key = self.key.as_ref().map(text),
            range_end = self.range_end.as_ref().map(text),
            requested_by = asker.user(),
            remote_addr = asker.client(),
            "{}",
            self.message
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::log::UserAdd;

    #[test]
    fn only_seldom_requests_carry_their_clients_address() {
        for path in [
            "/etcdserverpb.Auth/Authenticate",
            "/etcdserverpb.Maintenance/Alarm",
            "/etcdserverpb.KV/Compact",
            "/v3/auth/authenticate",
        ] {
            assert!(concerns(path), "{path}");
        }
        for path in [
            "/etcdserverpb.KV/Put",
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.KV/Txn",
            "/etcdserverpb.Watch/Watch",
            "/etcdserverpb.Lease/LeaseKeepAlive",
            "/metrics",
            "",
        ] {
            assert!(!concerns(path), "{path}");
        }
    }

    #[test]
    fn names_of_nobody_are_short() {
        let shortened = |name: &str| {
            let mut name = name.to_owned();
            shorten(&mut name);
            // It was shortened while somebody waited, and once more for the line.
            shorten(&mut name);
            name
        };
        for name in ["", "ann", &"x".repeat(NAME_MAX)] {
            assert_eq!(shortened(name), name);
        }
        assert_eq!(shortened(&"\u{20ac}".repeat(1000)).len(), 123 + 3);
    }

    #[test]
    fn a_line_about_a_user_has_no_hash() {
        let password_hash = Bytes::from_static(b"$2b$04$secret");
        let op = Op::UserAdd(UserAdd { name: "ann".into(), password_hash, no_password: false });
        let change = AuthChange::of(&op).expect("a change of users");
        assert_eq!((change.message, change.user.as_deref()), ("added a user", Some("ann")));
        assert!(!format!("{change:?}").contains("secret"));
    }

    #[test]
    fn what_concerns_no_users_is_not_told_here() {
        assert_eq!(AuthChange::of(&Op::Compact(Default::default())), None);
        assert_eq!(AuthChange::of(&Op::Alarm(AlarmChange::default())), None);
    }
}

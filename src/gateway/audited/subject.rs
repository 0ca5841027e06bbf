//! What is said of each request and answer: which keys, lease, user or role it is about. Never a
//! value, a password, a hash or a token.

use crate::audit::line::Subject;
use crate::keyspace::alarms;
use crate::keyspace::txn::is_read_only;
use bytes::Bytes;
use leaseway_proto::authpb::permission::Type;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::alarm_request::AlarmAction;
use leaseway_proto::etcdserverpb::request_op::Request as Op;
use leaseway_proto::raw::RangeReply;
use leaseway_proto::{v3electionpb, v3lockpb};

/// How deep branches of transactions are named.
const DEPTH_MAX: usize = 64;

/// A request.
pub(crate) trait Asked: Clone + Send + 'static {
    /// Whether it changes something, or is worth a line in any case.
    fn changes(&self) -> bool {
        true
    }

    /// What it is about.
    fn subject(&self) -> Subject {
        Subject::default()
    }

    /// What has to be kept of it until it has its line.
    fn kept(&self) -> Self {
        self.clone()
    }
}

/// An answer.
pub(crate) trait Answered: Sync {
    /// The revision in its header.
    fn revision(&self) -> Option<i64>;

    /// Adds what only the answer knows.
    fn tell(&self, _subject: &mut Subject) {}
}

/// An answer of which nothing is known.
pub(crate) struct Nothing;

impl Answered for Nothing {
    fn revision(&self) -> Option<i64> {
        None
    }
}

fn of_key(action: &'static str, key: &Bytes, range_end: &Bytes) -> Subject {
    let mut subject = Subject::default();
    subject.key(action, key, range_end, "");
    subject
}

fn of_lease(id: i64) -> Subject {
    let mut subject = Subject::default();
    subject.lease(id);
    subject
}

fn with(details: &[(&'static str, &str)]) -> Subject {
    let mut subject = Subject::default();
    for (name, value) in details {
        subject.detail(name, value);
    }
    subject
}

impl Asked for pb::RangeRequest {
    fn changes(&self) -> bool {
        false
    }

    fn subject(&self) -> Subject {
        of_key("get", &self.key, &self.range_end)
    }
}

impl Asked for pb::PutRequest {
    fn subject(&self) -> Subject {
        let mut subject = of_key("put", &self.key, &Bytes::new());
        subject.lease(self.lease);
        subject
    }
}

impl Asked for pb::DeleteRangeRequest {
    fn subject(&self) -> Subject {
        of_key("delete", &self.key, &self.range_end)
    }
}

impl Asked for pb::TxnRequest {
    fn changes(&self) -> bool {
        !is_read_only(self)
    }

    fn subject(&self) -> Subject {
        let mut subject = Subject::default();
        add_txn(&mut subject, self, "", 0);
        subject
    }
}

fn add_txn(subject: &mut Subject, txn: &pb::TxnRequest, path: &str, depth: usize) {
    if depth == DEPTH_MAX {
        subject.more_keys += 1;
        return;
    }
    for compare in &txn.compare {
        subject.key("compare", &compare.key, &compare.range_end, path);
    }
    for (name, operations) in [("then", &txn.success), ("else", &txn.failure)] {
        let branch = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        for operation in operations {
            match &operation.request {
                Some(Op::RequestRange(get)) => {
                    subject.key("get", &get.key, &get.range_end, &branch);
                }
                Some(Op::RequestPut(put)) => {
                    subject.key("put", &put.key, &Bytes::new(), &branch);
                    subject.lease(put.lease);
                }
                Some(Op::RequestDeleteRange(delete)) => {
                    subject.key("delete", &delete.key, &delete.range_end, &branch);
                }
                Some(Op::RequestTxn(txn)) => add_txn(subject, txn, &branch, depth + 1),
                None => {}
            }
        }
    }
}

impl Asked for pb::CompactionRequest {
    fn subject(&self) -> Subject {
        with(&[("compact_revision", &self.revision.to_string())])
    }
}

impl Asked for pb::WatchCreateRequest {
    fn changes(&self) -> bool {
        false
    }

    fn subject(&self) -> Subject {
        of_key("watch", &self.key, &self.range_end)
    }
}

impl Asked for pb::LeaseGrantRequest {
    fn subject(&self) -> Subject {
        let mut subject = of_lease(self.id);
        subject.detail("ttl", self.ttl);
        subject
    }
}

impl Asked for pb::LeaseRevokeRequest {
    fn subject(&self) -> Subject {
        of_lease(self.id)
    }
}

impl Asked for pb::LeaseKeepAliveRequest {
    fn changes(&self) -> bool {
        false
    }

    fn subject(&self) -> Subject {
        of_lease(self.id)
    }
}

impl Asked for pb::LeaseTimeToLiveRequest {
    fn changes(&self) -> bool {
        false
    }

    fn subject(&self) -> Subject {
        of_lease(self.id)
    }
}

impl Asked for pb::AlarmRequest {
    fn changes(&self) -> bool {
        AlarmAction::try_from(self.action) != Ok(AlarmAction::Get)
    }

    fn subject(&self) -> Subject {
        let action = AlarmAction::try_from(self.action).map_or("?", |it| it.as_str_name());
        let alarm = alarms::name(self.alarm);
        with(&[("action", action), ("alarm", &alarm), ("member", &format!("{:x}", self.member_id))])
    }
}

impl Asked for pb::MoveLeaderRequest {
    fn subject(&self) -> Subject {
        with(&[("member", &format!("{:x}", self.target_id))])
    }
}

impl Asked for pb::DowngradeRequest {
    fn subject(&self) -> Subject {
        with(&[("version", &self.version)])
    }
}

impl Asked for pb::MemberAddRequest {
    fn subject(&self) -> Subject {
        with(&[("peer_urls", &self.peer_ur_ls.join(","))])
    }
}

impl Asked for pb::MemberUpdateRequest {
    fn subject(&self) -> Subject {
        let id = format!("{:x}", self.id);
        with(&[("member", &id), ("peer_urls", &self.peer_ur_ls.join(","))])
    }
}

impl Asked for pb::MemberRemoveRequest {
    fn subject(&self) -> Subject {
        with(&[("member", &format!("{:x}", self.id))])
    }
}

impl Asked for pb::MemberPromoteRequest {
    fn subject(&self) -> Subject {
        with(&[("member", &format!("{:x}", self.id))])
    }
}

impl Asked for v3lockpb::LockRequest {
    fn subject(&self) -> Subject {
        let mut subject = of_key("lock", &self.name, &Bytes::new());
        subject.lease(self.lease);
        subject
    }
}

impl Asked for v3lockpb::UnlockRequest {
    fn subject(&self) -> Subject {
        of_key("unlock", &self.key, &Bytes::new())
    }
}

impl Asked for v3electionpb::CampaignRequest {
    fn subject(&self) -> Subject {
        let mut subject = of_key("campaign", &self.name, &Bytes::new());
        subject.lease(self.lease);
        subject
    }
}

fn of_leader(action: &'static str, leader: Option<&v3electionpb::LeaderKey>) -> Subject {
    let Some(leader) = leader else { return Subject::default() };
    let mut subject = of_key(action, &leader.key, &Bytes::new());
    subject.lease(leader.lease);
    subject
}

impl Asked for v3electionpb::ProclaimRequest {
    fn subject(&self) -> Subject {
        of_leader("proclaim", self.leader.as_ref())
    }
}

impl Asked for v3electionpb::ResignRequest {
    fn subject(&self) -> Subject {
        of_leader("resign", self.leader.as_ref())
    }
}

impl Asked for v3electionpb::LeaderRequest {
    fn changes(&self) -> bool {
        false
    }

    fn subject(&self) -> Subject {
        of_key("get", &self.name, &Bytes::new())
    }
}

/// Requests that are about a user, a role or both, by these fields.
macro_rules! about_users {
    ($($request:ident $changes:literal { $($name:literal: $field:ident),* }),* $(,)?) => {
        $(
            impl Asked for pb::$request {
                fn changes(&self) -> bool {
                    $changes
                }

                fn subject(&self) -> Subject {
                    with(&[$(($name, &self.$field)),*])
                }

                // Never a password, however long the request is in coming to its end.
                #[allow(clippy::needless_update, reason = "some have no other fields")]
                fn kept(&self) -> Self {
                    Self { $($field: self.$field.clone(),)* ..Self::default() }
                }
            }
        )*
    };
}

about_users! {
    // A login changes nothing, and is what an auditor wants to see.
    AuthenticateRequest true { "target_user": name },
    AuthUserAddRequest true { "target_user": name },
    AuthUserGetRequest false { "target_user": name },
    AuthUserDeleteRequest true { "target_user": name },
    AuthUserChangePasswordRequest true { "target_user": name },
    AuthUserGrantRoleRequest true { "target_user": user, "target_role": role },
    AuthUserRevokeRoleRequest true { "target_user": name, "target_role": role },
    AuthRoleAddRequest true { "target_role": name },
    AuthRoleGetRequest false { "target_role": role },
    AuthRoleDeleteRequest true { "target_role": role },
}

impl Asked for pb::AuthRoleGrantPermissionRequest {
    fn subject(&self) -> Subject {
        let mut subject = Subject::default();
        if let Some(permission) = &self.perm {
            subject.key("grant", &permission.key, &permission.range_end, "");
            let kind = Type::try_from(permission.perm_type).map_or("?", |it| it.as_str_name());
            subject.detail("permission", kind);
        }
        subject.detail("target_role", &self.name);
        subject
    }
}

impl Asked for pb::AuthRoleRevokePermissionRequest {
    fn subject(&self) -> Subject {
        let mut subject = of_key("revoke", &self.key, &self.range_end);
        subject.detail("target_role", &self.role);
        subject
    }
}

/// Requests that say all by their method: those that read, and those that get a line anyway.
macro_rules! plain {
    ($($request:ident $changes:literal),* $(,)?) => {
        $(
            impl Asked for pb::$request {
                fn changes(&self) -> bool {
                    $changes
                }
            }
        )*
    };
}

plain! {
    AuthEnableRequest true,
    AuthDisableRequest true,
    AuthStatusRequest false,
    AuthUserListRequest false,
    AuthRoleListRequest false,
    DefragmentRequest true,
    HashRequest false,
    HashKvRequest false,
    LeaseLeasesRequest false,
    MemberListRequest false,
    // It reads everything at once, hashes of passwords included.
    SnapshotRequest true,
    StatusRequest false,
}

/// Answers of which only the header counts.
macro_rules! headed {
    ($($answer:ty),* $(,)?) => {
        $(
            impl Answered for $answer {
                fn revision(&self) -> Option<i64> {
                    self.header.as_ref().map(|header| header.revision)
                }
            }
        )*
    };
}

headed! {
    RangeReply,
    pb::PutResponse,
    pb::CompactionResponse,
    pb::LeaseRevokeResponse,
    pb::LeaseTimeToLiveResponse,
    pb::LeaseLeasesResponse,
    pb::LeaseKeepAliveResponse,
    pb::AlarmResponse,
    pb::StatusResponse,
    pb::DefragmentResponse,
    pb::HashResponse,
    pb::HashKvResponse,
    pb::MoveLeaderResponse,
    pb::DowngradeResponse,
    pb::MemberListResponse,
    pb::MemberAddResponse,
    pb::MemberRemoveResponse,
    pb::MemberUpdateResponse,
    pb::MemberPromoteResponse,
    pb::AuthEnableResponse,
    pb::AuthDisableResponse,
    pb::AuthStatusResponse,
    pb::AuthenticateResponse,
    pb::AuthUserAddResponse,
    pb::AuthUserGetResponse,
    pb::AuthUserListResponse,
    pb::AuthUserDeleteResponse,
    pb::AuthUserChangePasswordResponse,
    pb::AuthUserGrantRoleResponse,
    pb::AuthUserRevokeRoleResponse,
    pb::AuthRoleAddResponse,
    pb::AuthRoleGetResponse,
    pb::AuthRoleListResponse,
    pb::AuthRoleDeleteResponse,
    pb::AuthRoleGrantPermissionResponse,
    pb::AuthRoleRevokePermissionResponse,
    v3lockpb::UnlockResponse,
    v3electionpb::ProclaimResponse,
    v3electionpb::LeaderResponse,
    v3electionpb::ResignResponse,
}

impl Answered for v3lockpb::LockResponse {
    fn revision(&self) -> Option<i64> {
        self.header.as_ref().map(|header| header.revision)
    }

    fn tell(&self, subject: &mut Subject) {
        subject.key("put", &self.key, &Bytes::new(), "");
    }
}

impl Answered for v3electionpb::CampaignResponse {
    fn revision(&self) -> Option<i64> {
        self.header.as_ref().map(|header| header.revision)
    }

    fn tell(&self, subject: &mut Subject) {
        if let Some(leader) = &self.leader {
            subject.key("put", &leader.key, &Bytes::new(), "");
            subject.lease(leader.lease);
        }
    }
}

impl Answered for pb::DeleteRangeResponse {
    fn revision(&self) -> Option<i64> {
        self.header.as_ref().map(|header| header.revision)
    }

    fn tell(&self, subject: &mut Subject) {
        subject.detail("deleted", self.deleted);
    }
}

impl Answered for pb::TxnResponse {
    fn revision(&self) -> Option<i64> {
        self.header.as_ref().map(|header| header.revision)
    }

    fn tell(&self, subject: &mut Subject) {
        subject.detail("branch", if self.succeeded { "then" } else { "else" });
    }
}

impl Answered for pb::LeaseGrantResponse {
    fn revision(&self) -> Option<i64> {
        self.header.as_ref().map(|header| header.revision)
    }

    fn tell(&self, subject: &mut Subject) {
        subject.lease(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_under_way_does_not_keep_its_password() {
        let (name, password) = ("ann".to_owned(), "secret".repeat(1000));
        let kept = pb::AuthenticateRequest { name: name.clone(), password }.kept();
        assert_eq!(kept, pb::AuthenticateRequest { name, password: String::new() });
        assert_eq!(kept.subject(), with(&[("target_user", "ann")]));
    }
}

//! The one table of gRPC codes and texts. They are etcd's, to the letter: clients compare them.

use crate::backend::ProposeError;
use crate::keyspace::error::{ReadError, Refusal};
use crate::lease::LeaseError;
use crate::storage::StorageError;
use tonic::{Code, Status};

/// Everything that a client can be told besides an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// An empty key.
    EmptyKey,
    /// A key that should exist does not, or a transaction's operation is empty.
    KeyNotFound,
    /// A value beside `ignore_value`.
    ValueProvided,
    /// A lease beside `ignore_lease`.
    LeaseProvided,
    /// More operations than one transaction may have.
    TooManyOps,
    /// Two puts, or a put and a delete, of one key in one transaction.
    DuplicateKey,
    /// An unknown sort order or target.
    InvalidSortOption,
    /// Below the compaction point.
    Compacted,
    /// Above the current revision.
    FutureRevision,
    /// A NOSPACE alarm is raised.
    NoSpace,
    /// A CORRUPT alarm is raised.
    Corrupt,
    /// Larger than the configured maximum.
    RequestTooLarge,
    /// Unknown lease.
    LeaseNotFound,
    /// Lease id taken.
    LeaseExists,
    /// TTL above the maximum.
    LeaseTtlTooLarge,
    /// Unknown member.
    MemberNotFound,
    /// Peer URLs that are no URLs.
    MemberBadUrls,
    /// Peer URL of an existing member.
    PeerUrlExists,
    /// Membership can't change: there is one member.
    MemberNotEnoughStarted,
    /// Promoting a member that is no learner.
    MemberNotLearner,
    /// Moving leadership to nobody.
    BadLeaderTransferee,
    /// A downgrade version that is no version.
    WrongDowngradeVersionFormat,
    /// A downgrade version that can't be gone to.
    InvalidDowngradeTarget,
    /// No downgrade to cancel.
    NoInflightDowngrade,
    /// Authenticating while authentication is off.
    AuthNotEnabled,
    /// Enabling authentication without a user named root.
    RootUserMissing,
    /// Enabling authentication without the root role of root.
    RootRoleMissing,
    /// User name taken.
    UserExists,
    /// Nobody asks, where somebody has to; a user without a name.
    UserEmpty,
    /// Unknown user.
    UserNotFound,
    /// Role name taken.
    RoleExists,
    /// Unknown role.
    RoleNotFound,
    /// A role without a name.
    RoleEmpty,
    /// Wrong password, or unknown user.
    AuthFailed,
    /// A password for a user who has none, or a hash that is none.
    NoPasswordUser,
    /// A password that bcrypt can't tell from a longer one.
    PasswordTooLong,
    /// Granting no permission.
    PermissionNotGiven,
    /// Whoever asks may not.
    PermissionDenied,
    /// Revoking a role that the user does not have.
    RoleNotGranted,
    /// Revoking a permission that the role does not have.
    PermissionNotGranted,
    /// A token that is none, or not any more.
    InvalidAuthToken,
    /// Taking from root what it needs; a permission for an empty range.
    InvalidAuthManagement,
    /// A token from before a change of users or roles.
    AuthOldRevision,
    /// Asked for a token where there is only a key to check tokens with.
    TokenVerifyOnly,
    /// More than can be worked on.
    TooManyRequests,
    /// The backend stopped.
    Stopped,
    /// The backend did not answer in time; a write may have taken effect or not.
    TimedOut,
    /// The store is being read and can't be defragmented now.
    Busy,
    /// Sorting in a streamed range.
    StreamSort,
    /// Revision filters in a streamed range.
    StreamFilters,
}

impl Error {
    /// All of them, for tests that walk the table.
    pub const ALL: [Self; 50] = [
        Self::EmptyKey,
        Self::KeyNotFound,
        Self::ValueProvided,
        Self::LeaseProvided,
        Self::TooManyOps,
        Self::DuplicateKey,
        Self::InvalidSortOption,
        Self::Compacted,
        Self::FutureRevision,
        Self::NoSpace,
        Self::Corrupt,
        Self::RequestTooLarge,
        Self::LeaseNotFound,
        Self::LeaseExists,
        Self::LeaseTtlTooLarge,
        Self::MemberNotFound,
        Self::MemberBadUrls,
        Self::PeerUrlExists,
        Self::MemberNotEnoughStarted,
        Self::MemberNotLearner,
        Self::BadLeaderTransferee,
        Self::WrongDowngradeVersionFormat,
        Self::InvalidDowngradeTarget,
        Self::NoInflightDowngrade,
        Self::AuthNotEnabled,
        Self::RootUserMissing,
        Self::RootRoleMissing,
        Self::UserExists,
        Self::UserEmpty,
        Self::UserNotFound,
        Self::RoleExists,
        Self::RoleNotFound,
        Self::RoleEmpty,
        Self::AuthFailed,
        Self::NoPasswordUser,
        Self::PasswordTooLong,
        Self::PermissionNotGiven,
        Self::PermissionDenied,
        Self::RoleNotGranted,
        Self::PermissionNotGranted,
        Self::InvalidAuthToken,
        Self::InvalidAuthManagement,
        Self::AuthOldRevision,
        Self::TokenVerifyOnly,
        Self::TooManyRequests,
        Self::Stopped,
        Self::TimedOut,
        Self::Busy,
        Self::StreamSort,
        Self::StreamFilters,
    ];

    /// Code and text.
    pub const fn told(self) -> (Code, &'static str) {
        use Code::{DataLoss, FailedPrecondition, InvalidArgument, NotFound, OutOfRange};
        use Code::{PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable};
        use Code::{Unimplemented, Unknown};
        match self {
            Self::EmptyKey => (InvalidArgument, "etcdserver: key is not provided"),
            Self::KeyNotFound => (InvalidArgument, "etcdserver: key not found"),
            Self::ValueProvided => (InvalidArgument, "etcdserver: value is provided"),
            Self::LeaseProvided => (InvalidArgument, "etcdserver: lease is provided"),
            Self::TooManyOps => (InvalidArgument, "etcdserver: too many operations in txn request"),
            Self::DuplicateKey => {
                (InvalidArgument, "etcdserver: duplicate key given in txn request")
            }
            Self::InvalidSortOption => (InvalidArgument, "etcdserver: invalid sort option"),
            Self::Compacted => {
                (OutOfRange, "etcdserver: mvcc: required revision has been compacted")
            }
            Self::FutureRevision => {
                (OutOfRange, "etcdserver: mvcc: required revision is a future revision")
            }
            Self::NoSpace => (ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            Self::Corrupt => (DataLoss, "etcdserver: corrupt cluster"),
            Self::RequestTooLarge => (InvalidArgument, "etcdserver: request is too large"),
            Self::LeaseNotFound => (NotFound, "etcdserver: requested lease not found"),
            Self::LeaseExists => (FailedPrecondition, "etcdserver: lease already exists"),
            Self::LeaseTtlTooLarge => (OutOfRange, "etcdserver: too large lease TTL"),
            Self::MemberNotFound => (NotFound, "etcdserver: member not found"),
            Self::MemberBadUrls => (InvalidArgument, "etcdserver: given member URLs are invalid"),
            Self::PeerUrlExists => (FailedPrecondition, "etcdserver: Peer URLs already exists"),
            // etcd answers this one with the client's form of the error, which has no code.
            Self::MemberNotEnoughStarted => {
                (Unknown, "etcdserver: re-configuration failed due to not enough started members")
            }
            Self::MemberNotLearner => {
                (FailedPrecondition, "etcdserver: can only promote a learner member")
            }
            Self::BadLeaderTransferee => (FailedPrecondition, "etcdserver: bad leader transferee"),
            Self::WrongDowngradeVersionFormat => {
                (InvalidArgument, "etcdserver: wrong downgrade target version format")
            }
            Self::InvalidDowngradeTarget => {
                (InvalidArgument, "etcdserver: invalid downgrade target version")
            }
            Self::NoInflightDowngrade => {
                (FailedPrecondition, "etcdserver: no inflight downgrade job")
            }
            Self::AuthNotEnabled => {
                (FailedPrecondition, "etcdserver: authentication is not enabled")
            }
            Self::RootUserMissing => (FailedPrecondition, "etcdserver: root user does not exist"),
            Self::RootRoleMissing => {
                (FailedPrecondition, "etcdserver: root user does not have root role")
            }
            Self::UserExists => (FailedPrecondition, "etcdserver: user name already exists"),
            Self::UserEmpty => (InvalidArgument, "etcdserver: user name is empty"),
            Self::UserNotFound => (FailedPrecondition, "etcdserver: user name not found"),
            Self::RoleExists => (FailedPrecondition, "etcdserver: role name already exists"),
            Self::RoleNotFound => (FailedPrecondition, "etcdserver: role name not found"),
            Self::RoleEmpty => (InvalidArgument, "etcdserver: role name is empty"),
            Self::AuthFailed => {
                (InvalidArgument, "etcdserver: authentication failed, invalid user ID or password")
            }
            // These three have no code in etcd, and the text that its own packages use.
            Self::NoPasswordUser => {
                (Unknown, "auth: authentication failed, password was given for no password user")
            }
            Self::PasswordTooLong => (Unknown, "bcrypt: password length exceeds 72 bytes"),
            Self::TokenVerifyOnly => {
                (Unknown, "auth: token signing attempted with verify-only key")
            }
            Self::PermissionNotGiven => (InvalidArgument, "etcdserver: permission not given"),
            Self::PermissionDenied => (PermissionDenied, "etcdserver: permission denied"),
            Self::RoleNotGranted => {
                (FailedPrecondition, "etcdserver: role is not granted to the user")
            }
            Self::PermissionNotGranted => {
                (FailedPrecondition, "etcdserver: permission is not granted to the role")
            }
            Self::InvalidAuthToken => (Unauthenticated, "etcdserver: invalid auth token"),
            Self::InvalidAuthManagement => (InvalidArgument, "etcdserver: invalid auth management"),
            Self::AuthOldRevision => (InvalidArgument, "etcdserver: revision of auth store is old"),
            Self::TooManyRequests => (ResourceExhausted, "etcdserver: too many requests"),
            Self::Stopped => (Unavailable, "etcdserver: server stopped"),
            Self::TimedOut => (Unavailable, "etcdserver: request timed out"),
            Self::Busy => (Unavailable, "etcdserver: the store is being read, try again"),
            Self::StreamSort => (Unimplemented, "RangeStream does not support custom sort orders"),
            Self::StreamFilters => (Unimplemented, "RangeStream does not support revision filters"),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (code, text) = error.told();
        Status::new(code, text)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            // An unknown command can only come from a newer gateway; this one can't go on.
            Refusal::UnknownCommand => Self::Stopped,
            Refusal::KeyNotFound => Self::KeyNotFound,
            Refusal::LeaseNotFound => Self::LeaseNotFound,
            Refusal::LeaseExists => Self::LeaseExists,
            Refusal::Compacted => Self::Compacted,
            Refusal::FutureRevision => Self::FutureRevision,
            Refusal::NoSpace => Self::NoSpace,
            Refusal::Corrupt => Self::Corrupt,
            Refusal::UserEmpty => Self::UserEmpty,
            Refusal::UserNotFound => Self::UserNotFound,
            Refusal::UserExists => Self::UserExists,
            Refusal::RoleEmpty => Self::RoleEmpty,
            Refusal::RoleNotFound => Self::RoleNotFound,
            Refusal::RoleExists => Self::RoleExists,
            Refusal::RoleNotGranted => Self::RoleNotGranted,
            Refusal::PermissionNotGiven => Self::PermissionNotGiven,
            Refusal::PermissionNotGranted => Self::PermissionNotGranted,
            Refusal::PermissionDenied => Self::PermissionDenied,
            Refusal::AuthOldRevision => Self::AuthOldRevision,
            Refusal::InvalidAuthManagement => Self::InvalidAuthManagement,
            Refusal::RootUserMissing => Self::RootUserMissing,
            Refusal::RootRoleMissing => Self::RootRoleMissing,
        }
    }
}

impl From<ProposeError> for Error {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Stopped => Self::Stopped,
            ProposeError::TimedOut => Self::TimedOut,
        }
    }
}

impl From<LeaseError> for Error {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Refused(refusal) => refusal.into(),
            LeaseError::TtlTooLarge => Self::LeaseTtlTooLarge,
            LeaseError::Stopped => Self::Stopped,
            LeaseError::TimedOut => Self::TimedOut,
        }
    }
}

/// A failed read as a client sees it. Storage errors are logged; what they say is not the client's.
pub fn read_failed(error: ReadError) -> Status {
    match error {
        ReadError::Refused(refusal) => Error::from(refusal).into(),
        // On the way out, or after a failure of the store that has been told and ends the process.
        ReadError::Storage(StorageError::Closed(_)) => Error::Stopped.into(),
        ReadError::Storage(error) => {
            tracing::error!(%error, "reading from storage failed");
            Status::new(Code::DataLoss, "etcdserver: corrupt cluster")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_store_that_is_closed_is_not_a_corrupt_one() {
        use crate::backend::fake::machine_after;
        use crate::keyspace::reader::Reader;
        use crate::keyspace::view::View;
        use leaseway_proto::etcdserverpb as pb;
        use std::sync::Arc;

        let (machine, engine) = machine_after([]);
        let view = Arc::new(View::new(machine.published()));
        let reader = Reader::new(machine.shared().clone(), engine.clone(), view);
        engine.close();
        let request = pb::RangeRequest { key: "k".into(), ..pb::RangeRequest::default() };
        let told = read_failed(reader.range(&request, None).expect_err("closed"));
        assert_eq!((told.code(), told.message()), Error::Stopped.told());
        let damaged = read_failed(StorageError::Corrupted("a page".into()).into());
        assert_eq!((damaged.code(), damaged.message()), Error::Corrupt.told());
    }

    #[test]
    fn the_table_is_whole_and_unambiguous() {
        let all: HashSet<Error> = Error::ALL.into_iter().collect();
        assert_eq!(all.len(), Error::ALL.len());
        let texts: HashSet<&str> = Error::ALL.into_iter().map(|error| error.told().1).collect();
        assert_eq!(texts.len(), Error::ALL.len());
        for error in Error::ALL {
            let (code, text) = error.told();
            let foreign = matches!(code, Code::Unimplemented | Code::Unknown);
            assert!(text.starts_with("etcdserver: ") || foreign, "{text}");
        }
    }
}

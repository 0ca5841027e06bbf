//! The one table of gRPC codes and texts. They are etcd's, to the letter: clients compare them.

use crate::backend::ProposeError;
use crate::keyspace::error::{ReadError, Refusal};
use crate::lease::LeaseError;
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
    pub const ALL: [Self; 30] = [
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
        Self::Stopped,
        Self::TimedOut,
        Self::Busy,
        Self::StreamSort,
        Self::StreamFilters,
    ];

    /// Code and text.
    pub const fn told(self) -> (Code, &'static str) {
        use Code::{DataLoss, FailedPrecondition, InvalidArgument, NotFound, OutOfRange};
        use Code::{ResourceExhausted, Unavailable, Unimplemented};
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
            Self::MemberNotEnoughStarted => (
                Code::Unknown,
                "etcdserver: re-configuration failed due to not enough started members",
            ),
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
    fn the_table_is_whole_and_unambiguous() {
        let all: HashSet<Error> = Error::ALL.into_iter().collect();
        assert_eq!(all.len(), Error::ALL.len());
        let texts: HashSet<&str> = Error::ALL.into_iter().map(|error| error.told().1).collect();
        assert_eq!(texts.len(), Error::ALL.len());
        for error in Error::ALL {
            let (code, text) = error.told();
            assert!(text.starts_with("etcdserver: ") || code == Code::Unimplemented, "{text}");
        }
    }
}

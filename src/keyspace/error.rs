//! What the keyspace may refuse, named by cause. The gateway gives each its code and text.

use crate::storage::StorageError;

/// A command or read was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `ignore_value` or `ignore_lease` on a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// The lease is not known.
    #[error("lease not found")]
    LeaseNotFound,
    /// The lease id is taken.
    #[error("lease already exists")]
    LeaseExists,
    /// The revision lies below the compaction point.
    #[error("revision has been compacted")]
    Compacted,
    /// The revision lies above the current one.
    #[error("revision is in the future")]
    FutureRevision,
    /// A NOSPACE alarm is raised.
    #[error("no space")]
    NoSpace,
    /// A CORRUPT alarm is raised.
    #[error("corrupt")]
    Corrupt,
    /// The command has no operation that this version knows.
    #[error("unknown command")]
    UnknownCommand,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The request can't be satisfied.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

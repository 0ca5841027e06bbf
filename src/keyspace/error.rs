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
    /// Nobody asks, where somebody has to.
    #[error("user name is empty")]
    UserEmpty,
    /// No such user.
    #[error("user not found")]
    UserNotFound,
    /// The user's name is taken.
    #[error("user already exists")]
    UserExists,
    /// A role without a name.
    #[error("role name is empty")]
    RoleEmpty,
    /// No such role.
    #[error("role not found")]
    RoleNotFound,
    /// The role's name is taken.
    #[error("role already exists")]
    RoleExists,
    /// The user does not have the role.
    #[error("role is not granted to the user")]
    RoleNotGranted,
    /// Granting nothing.
    #[error("permission not given")]
    PermissionNotGiven,
    /// The role does not have the permission.
    #[error("permission is not granted to the role")]
    PermissionNotGranted,
    /// Whoever asks may not.
    #[error("permission denied")]
    PermissionDenied,
    /// What whoever asks may do has changed since it was looked up.
    #[error("auth revision is old")]
    AuthOldRevision,
    /// Root's rights can't be taken while authentication is on; a permission for an empty range.
    #[error("invalid auth management")]
    InvalidAuthManagement,
    /// Authentication needs a user named root.
    #[error("root user does not exist")]
    RootUserMissing,
    /// Authentication needs root to have the root role.
    #[error("root user does not have root role")]
    RootRoleMissing,
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

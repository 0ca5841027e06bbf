//! Commands that the machine applies, and what it answers.
//!
//! Commands are the log's own messages ([`leaseway_proto::log`]), so that what is applied here and
//! what a replicated log carries can't drift apart.

use super::error::Refusal;
use leaseway_proto::etcdserverpb as pb;
pub use leaseway_proto::log::command::Op;
pub use leaseway_proto::log::{
    AlarmChange, Authority, Command, LeaseCheckpoint, LeaseExpire, LeaseGrant, LeaseRebind,
    LeaseRenewed, LeaseRevoke, lease_checkpoint::Remaining,
};

/// What a command answered, with headers holding at most a revision.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Of a put.
    Put(pb::PutResponse),
    /// Of a delete.
    DeleteRange(pb::DeleteRangeResponse),
    /// Of a transaction.
    Txn(pb::TxnResponse),
    /// Of a compaction: the revision that readers may not go below from now on.
    Compact(i64),
    /// Of a lease command: whether it had an effect.
    Lease(bool),
    /// Of an alarm command: the alarms that it concerned.
    Alarm(Vec<pb::AlarmMember>),
    /// Of a command about users, roles or authentication itself.
    Auth,
}

/// A command's outcome, and the revision right after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The answer, or why nothing was done.
    pub reply: Result<Reply, Refusal>,
    /// Current revision after the command.
    pub revision: i64,
    /// Whether anything is different after it. If not, it need not be logged.
    pub changed: bool,
}

/// An operation for the log that nobody in particular asks for: refused once authentication is on,
/// unless it is one that no client can ask for.
pub fn command(op: Op) -> Command {
    Command { authority: None, op: Some(op) }
}

/// An operation for the log that the gateway itself asks for.
pub fn internal(op: Op) -> Command {
    Command { authority: Some(super::auth::GATEWAY), op: Some(op) }
}

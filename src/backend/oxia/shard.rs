//! What this backend needs of Oxia: one shard, with a log of its own in it.
//!
//! [`super::client`] provides it from a real cluster; tests provide it from a simulation that loses,
//! delays and reorders answers. Positions count the records of the log from 1 without a gap.

use bytes::Bytes;
use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;

/// Why a request to the shard has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// It did not reach the shard's leader, or was refused by it: it surely has no effect.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The answer was lost: a write may have taken effect or not.
    #[error("no answer: {0}")]
    Unknown(String),
    /// The session that it was for does not live.
    #[error("session not found")]
    SessionNotFound,
    /// It can never succeed as it is.
    #[error("refused: {0}")]
    Refused(String),
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log, from 1.
    pub position: u64,
    /// What was appended.
    pub value: Bytes,
}

/// A record beside the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its whole name.
    pub name: String,
    /// What it holds.
    pub value: Bytes,
}

/// A record beside the log, and which state of it this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// What it holds.
    pub value: Bytes,
    /// Differs from that of every other state of a record of this name.
    pub version: i64,
}

/// What a put demands of the record that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing.
    Anything,
    /// There is none.
    Absent,
    /// It has this version.
    Version(i64),
}

/// How far the log reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Position of the newest record, 0 without one.
    pub position: u64,
    /// Rises whenever another leader is used, or the same one anew.
    pub epoch: u64,
}

/// Word of records that were deleted, in the shard's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Records of these names are gone, by whatever cause.
    Deleted(Vec<String>),
    /// Some notices may be missing before the next one.
    Gap,
}

/// A session as it was made. A server whose log was lost gives the same ids again: what an id means is
/// certain only in the epoch in which it was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its id. Never 0.
    pub id: u64,
    /// Epoch of the leader that made it.
    pub epoch: u64,
}

/// How it is known which session an id means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means<'a> {
    /// The one that was made in this epoch.
    Made(u64),
    /// The one that the record of this name, which nobody else uses, goes with.
    With(&'a str),
}

/// A session that the server may or may not be able to tell about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// How long it lives without a heartbeat.
    pub timeout: Duration,
    /// How long it has left.
    pub remaining: Duration,
}

/// One shard. Every future may be dropped at any time; a write whose future is dropped is as one whose
/// answer was lost.
pub trait Shard: Send + Sync + 'static {
    /// Appends a record to the log; returns its position and the epoch of the leader that took it. That leader
    /// led when it was committed, so the answer is a proof as [`Shard::proven_tip`] is one.
    fn append(&self, record: Bytes) -> impl Future<Output = Result<Tip, ShardError>> + Send;

    /// The log's records from position `from` on, in order, at most `most` and perhaps fewer, but not
    /// none if there is one.
    fn read(
        &self,
        from: u64,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Record>, ShardError>> + Send;

    /// The position of the newest record, proven to be current at some moment between the call and the
    /// answer.
    fn proven_tip(&self) -> impl Future<Output = Result<Tip, ShardError>> + Send;

    /// Positions that records are said to exist up to. May run ahead of what can be read, and may
    /// miss some.
    fn hints(&self) -> watch::Receiver<u64>;

    /// Starts a session.
    fn create_session(
        &self,
        timeout: Duration,
        identity: String,
    ) -> impl Future<Output = Result<Session, ShardError>> + Send;

    /// One heartbeat; returns the epoch of the leader that took it. Only a tip that was asked for after
    /// it and proven in the same epoch proves that it counted.
    fn keep_alive(&self, session: u64) -> impl Future<Output = Result<u64, ShardError>> + Send;

    /// Ends a session and its records, if its id still means this one at the leader that is told to: never
    /// another that has got the same id. Ending one that is gone is fine.
    fn close_session(
        &self,
        session: u64,
        means: Means<'_>,
    ) -> impl Future<Output = Result<(), ShardError>> + Send;

    /// What the server knows of a session; `None` where it can't say.
    fn session(
        &self,
        session: u64,
    ) -> impl Future<Output = Result<Option<Told>, ShardError>> + Send;

    /// Creates a record that goes with a session, or with none. Returns whether it was created:
    /// `false` when the name is taken. Not sent once the session's epoch is over.
    fn create(
        &self,
        name: String,
        value: Bytes,
        session: Option<Session>,
    ) -> impl Future<Output = Result<bool, ShardError>> + Send;

    /// Sets a record that exists already and keeps its session. Returns whether it existed.
    fn replace(
        &self,
        name: String,
        value: Bytes,
        session: u64,
    ) -> impl Future<Output = Result<bool, ShardError>> + Send;

    /// Deletes a record. Deleting one that is gone is fine.
    fn delete(&self, name: String) -> impl Future<Output = Result<(), ShardError>> + Send;

    /// Records whose names begin with `folder`, which ends in a slash.
    fn list(&self, folder: &str) -> impl Future<Output = Result<Vec<Named>, ShardError>> + Send;

    /// One record beside the log. As any read it may be answered by a leader that has been deposed.
    fn get(&self, name: &str)
    -> impl Future<Output = Result<Option<Versioned>, ShardError>> + Send;

    /// Sets a record that stays until it is deleted. Returns whether what was there was as expected;
    /// if not, nothing was changed.
    fn put(
        &self,
        name: String,
        value: Bytes,
        expected: Expected,
    ) -> impl Future<Output = Result<bool, ShardError>> + Send;

    /// Names that begin with `folder`, which ends in a slash.
    fn names(&self, folder: &str) -> impl Future<Output = Result<Vec<String>, ShardError>> + Send;

    /// Deletes all records whose names begin with `folder`, which ends in a slash.
    fn delete_folder(&self, folder: &str) -> impl Future<Output = Result<(), ShardError>> + Send;

    /// Deletes the log's records up to and including position `through`. The newest one must never
    /// be among them: the server numbers from the newest that exists.
    fn trim(&self, through: u64) -> impl Future<Output = Result<(), ShardError>> + Send;

    /// The next word of deletions, since the shard was opened. For one caller at a time.
    fn notice(&self) -> impl Future<Output = Result<Notice, ShardError>> + Send;
}

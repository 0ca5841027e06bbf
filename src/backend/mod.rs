//! What orders commands and keeps the clock.
//!
//! A backend is a totally ordered, durable [`Log`] of commands and a set of user-managed
//! [`Sessions`]. Neither knows what the other is for: a log does not understand commands, a session
//! knows no keys. [`local`] keeps both in this process and its data directory, [`oxia`] in a cluster
//! that any number of gateways share.

mod compaction;
#[cfg(test)]
pub mod fake;
pub mod local;
pub mod oxia;

use crate::keyspace::command::{Command, Outcome};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// How long a caller waits at most, as in etcd with its usual settings: 5 s and two election timeouts.
pub const PATIENCE: Duration = Duration::from_secs(7);

/// Waits for no longer than [`PATIENCE`].
///
/// # Errors
/// [`ProposeError::TimedOut`].
pub async fn in_time<T>(wait: impl Future<Output = T>) -> Result<T, ProposeError> {
    tokio::time::timeout(PATIENCE, wait).await.map_err(|_| ProposeError::TimedOut)
}

/// The same for an answer that does not come when everything stops.
///
/// # Errors
/// [`ProposeError::TimedOut`]; [`ProposeError::Stopped`] for `None`.
pub async fn answered<T>(wait: impl Future<Output = Option<T>>) -> Result<T, ProposeError> {
    in_time(wait).await?.ok_or(ProposeError::Stopped)
}

/// Why a command has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The backend stopped. The command may or may not take effect.
    #[error("the backend has stopped")]
    Stopped,
    /// The backend did not answer in time. The command may or may not take effect.
    #[error("the backend did not answer in time")]
    TimedOut,
}

/// That a backend has stopped by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    /// Why, in one line.
    pub reason: String,
    /// The log goes on at this entry, and those before it that are missing here have been trimmed: a newer
    /// checkpoint holds what they did, so that starting over helps. None if it does not.
    pub trimmed_below: Option<u64>,
}

impl From<String> for Halt {
    fn from(reason: String) -> Self {
        Self { reason, trimmed_below: None }
    }
}

/// The log of commands, together with the keyspace that applies them.
pub trait Log: Send + Sync + 'static {
    /// Orders a command, makes it durable, applies it, and returns the outcome: in that order, so
    /// that an outcome that is told can't be lost.
    ///
    /// # Errors
    /// When the outcome will never be known here.
    fn propose(
        &self,
        command: Command,
    ) -> impl Future<Output = Result<Outcome, ProposeError>> + Send;

    /// Returns once the keyspace here holds everything that was acknowledged to anyone, anywhere,
    /// before the call: what a linearizable read waits for.
    ///
    /// # Errors
    /// When that can't be established, in time or ever.
    fn barrier(&self) -> impl Future<Output = Result<(), ProposeError>> + Send;

    /// Returns once compaction has physically removed what lies below `revision`.
    ///
    /// # Errors
    /// [`ProposeError::Stopped`] when the backend stops first.
    fn compacted(&self, revision: i64) -> impl Future<Output = Result<(), ProposeError>> + Send;

    /// Number of commands that wait for their outcome here.
    fn pending(&self) -> u64;
}

/// Counts a caller that waits, also when it is cancelled.
struct Pending<'a>(&'a AtomicU64);

impl<'a> Pending<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session's identity within its backend. Never 0.
pub type SessionId = u64;

/// A session just started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its id.
    pub id: SessionId,
    /// Name of the record whose end tells of the session's; empty where sessions need none.
    pub marker: String,
}

/// A session that ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its id.
    pub id: SessionId,
    /// Its marker, by which it is told from another session with the same id.
    pub marker: String,
}

/// What is known of a living session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// How long it lives without a heartbeat.
    pub timeout: Duration,
    /// How long it has left.
    pub remaining: Duration,
}

/// Why a session could not be created or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Unknown, expired or closed.
    #[error("session not found")]
    NotFound,
    /// The timeout lies above the configured maximum, or above what the backend takes.
    #[error("the timeout is above the maximum")]
    TimeoutTooLong,
    /// The backend will never do this.
    #[error("the backend has refused")]
    Refused,
    /// The backend stopped.
    #[error("the backend has stopped")]
    Stopped,
    /// The backend did not answer in time.
    #[error("the backend did not answer in time")]
    TimedOut,
}

/// Who looks after leases whose sessions may have ended unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Not known yet.
    Unknown,
    /// Another process.
    Other {
        /// Whether it has looked after what happened before it came.
        settled: bool,
    },
    /// This process.
    Mine {
        /// Whether there was a time before it in which no process served.
        spare: bool,
    },
}

/// User-managed sessions: anyone who knows an id may renew, inspect or close the session. Nothing
/// renews a session by itself.
pub trait Sessions: Send + Sync + 'static {
    /// The longest timeout that a client may ask for.
    fn maximum(&self) -> Duration;

    /// The longest timeout that a session can have. Between it and [`Sessions::maximum`] the time has to
    /// be kept by other means.
    fn longest(&self) -> Duration;

    /// Whether other processes use the same sessions, and may end a lease when its session ends.
    fn shared(&self) -> bool;

    /// How long to wait before ending a lease that other gateways may be about to end too.
    fn turn(&self, lease: i64) -> Duration;

    /// Starts a session that ends `timeout` after its last heartbeat.
    ///
    /// # Errors
    /// [`SessionError::TimeoutTooLong`] above [`Sessions::longest`].
    fn create(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Created, SessionError>> + Send;

    /// One heartbeat: the whole timeout lies ahead again. When it returns, it is certain that the
    /// heartbeat counted, and the keyspace here holds everything that was acknowledged to anyone
    /// before it was sent.
    ///
    /// # Errors
    /// [`SessionError::NotFound`] once it has ended, even if nobody has been told yet.
    fn keep_alive(&self, id: SessionId) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// What is known of it, without renewing it; `None` where the backend can't tell.
    ///
    /// # Errors
    /// [`SessionError::NotFound`] once it has ended.
    fn info(
        &self,
        id: SessionId,
    ) -> impl Future<Output = Result<Option<SessionInfo>, SessionError>> + Send;

    /// Ends it at once, if it has this marker. Closing an ended session is fine.
    ///
    /// # Errors
    /// The backend did not answer, in time or ever.
    fn close(
        &self,
        id: SessionId,
        marker: &str,
    ) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// The next sessions that ended by themselves, in the order in which they ended, at most `most`
    /// (at least 1). A session that was closed may be among them.
    ///
    /// # Errors
    /// Only that the backend has stopped.
    fn expired(&self, most: usize)
    -> impl Future<Output = Result<Vec<Ended>, SessionError>> + Send;

    /// Who looks after leases; `None` where no session can end unnoticed. Then nothing below is
    /// called.
    fn duty(&self) -> Option<watch::Receiver<Duty>>;

    /// Waits until ends of sessions may have gone unnoticed.
    fn gap(&self) -> impl Future<Output = ()> + Send;

    /// Markers of all sessions that exist.
    ///
    /// # Errors
    /// The backend did not answer, in time or ever.
    fn markers(&self) -> impl Future<Output = Result<Vec<String>, SessionError>> + Send;

    /// The session that a marker goes with.
    fn session_of(&self, marker: &str) -> Option<SessionId>;

    /// Ends a session that no lease has, by its marker.
    ///
    /// # Errors
    /// The backend did not answer, in time or ever.
    fn discard(&self, marker: String) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// Whether this process has just heard of the others. If not, it stood still or was cut off, or is
    /// so now, and [`Sessions::duty`] may not tell so yet.
    fn attends(&self) -> bool;

    /// Whether this process has looked after what happened before it came, from now on.
    fn settle(&self, settled: bool);

    /// Whether it has.
    fn is_settled(&self) -> bool;
}

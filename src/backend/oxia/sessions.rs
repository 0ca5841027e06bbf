//! Sessions in the shard, for anyone who knows their ids.
//!
//! Each has one record that goes with it, its marker: the server tells of the marker's deletion, and
//! that is how a gateway learns that the session has ended. The marker's name holds the session's id
//! and random bits, so that it names this session and no other, even if the server gives the id out
//! again.
//!
//! Nothing in Oxia's answer to a heartbeat is a promise: a deposed leader says yes as well. So
//! each is followed by a barrier in the same epoch.

use super::barrier::Barriers;
use super::join::Membership;
use super::members::proven;
use super::names::Names;
use super::shard::{Means, Notice, Shard, ShardError};
use crate::backend::{
    Created, Duty, Ended, PATIENCE, SessionError, SessionId, SessionInfo, Sessions,
};
use crate::keyspace::gateways::{GatewayId, Gateways};
use crate::keyspace::view::View;
use crate::seams::{self, Rule, follows};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, watch};

/// Shortest timeout of a session in Oxia.
const SHORTEST: Duration = Duration::from_secs(2);
/// Pause after a failed attempt.
const AGAIN: Duration = Duration::from_millis(50);
/// How long all gateways but one leave an ended lease to that one.
const OTHERS: Duration = Duration::from_millis(500);

/// Sessions of a shard.
pub struct OxiaSessions<S> {
    shard: Arc<S>,
    names: Names,
    barriers: Barriers,
    view: Arc<View>,
    gateways: watch::Receiver<Gateways>,
    membership: watch::Receiver<Option<Membership>>,
    maximum: Duration,
    longest: watch::Receiver<Duration>,
    duty: watch::Receiver<Duty>,
    settled: watch::Sender<bool>,
    ended: Mutex<VecDeque<Ended>>,
    lookout: tokio::sync::Notify,
    /// Whether it was told once that requests are refused: clients can ask for many.
    refused: AtomicBool,
}

/// What the sessions work with.
pub struct Parts<S> {
    /// Where they are.
    pub shard: Arc<S>,
    /// Names of the keyspace.
    pub names: Names,
    /// What renewals wait for.
    pub barriers: Barriers,
    /// What has been applied.
    pub view: Arc<View>,
    /// Known gateways.
    pub gateways: watch::Receiver<Gateways>,
    /// This process among them.
    pub membership: watch::Receiver<Option<Membership>>,
    /// Who looks after leases.
    pub duty: watch::Receiver<Duty>,
    /// Where it is told that this process has.
    pub settled: watch::Sender<bool>,
    /// Longest timeout that clients may ask for.
    pub maximum: Duration,
    /// Longest timeout that the server takes, as far as is known.
    pub longest: watch::Receiver<Duration>,
}

impl<S: Shard> OxiaSessions<S> {
    /// Sessions of `parts`.
    pub fn new(parts: Parts<S>) -> Self {
        let Parts { shard, names, barriers, view, gateways, membership, .. } = parts;
        let Parts { duty, settled, maximum, longest, .. } = parts;
        Self {
            shard,
            names,
            barriers,
            view,
            gateways,
            membership,
            duty,
            settled,
            maximum,
            longest,
            ended: Mutex::default(),
            lookout: tokio::sync::Notify::new(),
            refused: AtomicBool::new(false),
        }
    }

    async fn patiently<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, SessionError>
    where
        F: Future<Output = Result<T, ShardError>>,
    {
        let tries = async {
            loop {
                match attempt().await {
                    Ok(value) => return Ok(value),
                    Err(ShardError::SessionNotFound) => return Err(SessionError::NotFound),
                    // It would be refused as often as it is asked for.
                    Err(error @ ShardError::Refused(_)) => {
                        if !self.refused.swap(true, Ordering::Relaxed) {
                            tracing::warn!(%error, "a session's request is refused; others may be too");
                        }
                        return Err(SessionError::Refused);
                    }
                    Err(error) => tracing::debug!(%error, "a session's request failed"),
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::time::timeout(PATIENCE, tries).await.unwrap_or(Err(SessionError::TimedOut))
    }

    async fn try_create(&self, timeout: Duration) -> Result<Created, ShardError> {
        let session = self.shard.create_session(timeout, "lease".into()).await?;
        let id = session.id;
        let marker = self.names.marker(id, seams::random());
        match self.shard.create(marker.clone(), Bytes::new(), Some(session)).await {
            Ok(true) => Ok(Created { id, marker }),
            // Another random name will not be.
            Ok(false) => Err(ShardError::NotSent("the marker's name is taken".into())),
            // It had 2 s at least: whatever is wrong, another one may do better.
            Err(ShardError::SessionNotFound) => Err(ShardError::Unknown("it has ended".into())),
            Err(error) => {
                // If this fails too, it runs out by itself.
                let _ = self.shard.close_session(id, Means::Made(session.epoch)).await;
                Err(error)
            }
        }
    }

    /// Asks again whether a session is unknown: one that was deposed does not know those that came
    /// after it, and ends those that it had.
    async fn confirm_unknown(&self, id: SessionId) -> ShardError {
        let beaten = async { Ok(self.shard.keep_alive(id).await) };
        match proven(&self.barriers, beaten).await {
            Ok(Err(ShardError::SessionNotFound)) => ShardError::SessionNotFound,
            Ok(Err(error)) | Err(error) => error,
            Ok(Ok(_)) => ShardError::Unknown("a leader that did not lead answered".into()),
        }
    }

    /// A heartbeat that certainly counted.
    async fn renew(&self, id: SessionId) -> Result<(), ShardError> {
        let epoch = match self.shard.keep_alive(id).await {
            Err(ShardError::SessionNotFound) if follows(Rule::ProvenNotFound) => {
                return Err(self.confirm_unknown(id).await);
            }
            beaten => beaten?,
        };
        if !follows(Rule::HeartbeatBarrier) {
            return Ok(());
        }
        let stopped = || ShardError::NotSent("stopping".into());
        let tip = self.barriers.tip().await.ok_or_else(stopped)?;
        if tip.epoch != epoch && follows(Rule::SameEpoch) {
            return Err(ShardError::Unknown("the leader changed".into()));
        }
        self.view.durable(tip.position).await;
        Ok(())
    }
}

/// Which of several gateways goes first, for a lease: the same answer for all who know the same ones.
fn first(lease: i64, gateways: &Gateways) -> Option<GatewayId> {
    let weight = |id: &GatewayId| crc32c::crc32c_append(crc32c::crc32c(id), &lease.to_le_bytes());
    gateways.known.keys().max_by_key(|id| (weight(id), **id)).copied()
}

impl<S: Shard> Sessions for OxiaSessions<S> {
    fn maximum(&self) -> Duration {
        self.maximum
    }

    fn longest(&self) -> Duration {
        *self.longest.borrow()
    }

    fn shared(&self) -> bool {
        true
    }

    fn turn(&self, lease: i64) -> Duration {
        let me = self.membership.borrow().as_ref().map(|me| me.id);
        if me == first(lease, &self.gateways.borrow()) { Duration::ZERO } else { OTHERS }
    }

    fn duty(&self) -> Option<watch::Receiver<Duty>> {
        Some(self.duty.clone())
    }

    async fn gap(&self) {
        self.lookout.notified().await;
    }

    async fn markers(&self) -> Result<Vec<String>, SessionError> {
        let folder = self.names.markers();
        self.patiently(|| proven(&self.barriers, self.shard.names(&folder))).await
    }

    fn session_of(&self, marker: &str) -> Option<SessionId> {
        self.names.session_of(marker)
    }

    async fn discard(&self, marker: String) -> Result<(), SessionError> {
        if let Some(session) = self.names.session_of(&marker) {
            self.close(session, &marker).await?;
        }
        self.patiently(|| self.shard.delete(marker.clone())).await
    }

    fn attends(&self) -> bool {
        self.membership.borrow().as_ref().is_some_and(Membership::is_fresh)
    }

    fn settle(&self, settled: bool) {
        self.settled.send_replace(settled);
    }

    fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    async fn create(&self, timeout: Duration) -> Result<Created, SessionError> {
        if timeout > self.longest() {
            return Err(SessionError::TimeoutTooLong);
        }
        let timeout = timeout.max(SHORTEST);
        match self.patiently(|| self.try_create(timeout)).await {
            // There is nothing else in it to refuse: the server takes less than it did.
            Err(SessionError::Refused) => Err(SessionError::TimeoutTooLong),
            created => created,
        }
    }

    async fn keep_alive(&self, id: SessionId) -> Result<(), SessionError> {
        self.patiently(|| self.renew(id)).await
    }

    async fn info(&self, id: SessionId) -> Result<Option<SessionInfo>, SessionError> {
        let told = self.patiently(|| self.shard.session(id)).await?;
        Ok(told.map(|told| SessionInfo { timeout: told.timeout, remaining: told.remaining }))
    }

    async fn close(&self, id: SessionId, marker: &str) -> Result<(), SessionError> {
        self.patiently(|| self.shard.close_session(id, Means::With(marker))).await
    }

    async fn expired(&self, most: usize) -> Result<Vec<Ended>, SessionError> {
        // One caller at a time: the notices are read while the lock is held.
        let mut ended = self.ended.lock().await;
        while ended.is_empty() {
            match self.shard.notice().await {
                Ok(Notice::Deleted(names)) => {
                    ended.extend(names.into_iter().filter_map(|marker| {
                        self.names.session_of(&marker).map(|id| Ended { id, marker })
                    }))
                }
                Ok(Notice::Gap) => self.lookout.notify_one(),
                Err(_) => return Err(SessionError::Stopped),
            }
        }
        let most = most.max(1).min(ended.len());
        Ok(ended.drain(..most).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::barrier;
    use super::*;
    use crate::backend::fake::machine_after;
    use crate::backend::oxia::checkpoint::fake::Fake;
    use crate::vital::Vital;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_not_asked_for_again() {
        let shard = Arc::new(Fake::new());
        let proofs = barrier::Parts {
            shard: shard.clone(),
            on_turn: Box::new(|_| ()),
            commands_wait: Box::new(|| false),
        };
        let (barriers, _proved) = Barriers::start(proofs, &Vital::default());
        let hour = Duration::from_secs(3_600);
        let sessions = OxiaSessions::new(Parts {
            shard: shard.clone(),
            names: Names::new("test"),
            barriers,
            view: Arc::new(View::new(machine_after([]).0.published())),
            gateways: watch::channel(Gateways::default()).1,
            membership: watch::channel(None).1,
            duty: watch::channel(Duty::Unknown).1,
            settled: watch::channel(false).0,
            maximum: hour,
            longest: watch::channel(hour).1,
        });
        // What is only not there yet is waited for.
        shard.refuse_sessions(3);
        let created = sessions.create(hour).await.expect("a session");
        assert_eq!(sessions.session_of(&created.marker), Some(created.id));
        // The server was started again with a lower limit.
        shard.limit_sessions(Duration::from_secs(300));
        let begun = Instant::now();
        assert_eq!(sessions.create(hour).await, Err(SessionError::TimeoutTooLong));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        sessions.create(Duration::from_secs(300)).await.expect("a session");
    }
}

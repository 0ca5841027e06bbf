//! Leases on sessions: grant, renew, revoke, time to live, expiry.
//!
//! The keyspace knows which keys hang on a lease, a session knows how long it lives; this is what
//! keeps the two together. A lease's session is started before the lease is logged and closed after
//! its end is applied; a session that ended by itself is turned into a logged, conditional expiry.
//! Deliberately absent: any list of keys, and any clock.

use crate::backend::{Log, ProposeError, SessionError, SessionId, Sessions};
use crate::keyspace::command::{self, LeaseCheckpoint, LeaseExpire, LeaseGrant, Op, Remaining};
use crate::keyspace::command::{LeaseRenewed, LeaseRevoke, Outcome, Reply};
use crate::keyspace::error::Refusal;
use crate::keyspace::leases::Lease;
use crate::keyspace::reader::Reader;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// Longest TTL in seconds that etcd grants.
pub const MAX_TTL: i64 = 9_000_000_000;
/// Expiries on their way through the log at once: enough for thousands a second, few enough that a
/// put never queues behind many.
const EXPIRIES: usize = 64;
/// Leases noted in one checkpoint command.
const CHECKPOINT: usize = 1000;

/// Why a lease request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The keyspace refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Above [`MAX_TTL`], or above the configured maximum session timeout.
    #[error("too large lease TTL")]
    TtlTooLarge,
    /// The backend stopped.
    #[error("the backend has stopped")]
    Stopped,
    /// The backend did not answer in time.
    #[error("the backend did not answer in time")]
    TimedOut,
}

impl From<ProposeError> for LeaseError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Stopped => Self::Stopped,
            ProposeError::TimedOut => Self::TimedOut,
        }
    }
}

impl From<SessionError> for LeaseError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::TimeoutTooLong => Self::TtlTooLarge,
            SessionError::NotFound => Self::Refused(Refusal::LeaseNotFound),
            SessionError::Stopped => Self::Stopped,
            SessionError::TimedOut => Self::TimedOut,
        }
    }
}

/// A granted lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Lease id.
    pub id: i64,
    /// Granted seconds.
    pub ttl: i64,
    /// Revision at the grant.
    pub revision: i64,
}

/// What is known of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// Granted seconds.
    pub granted: i64,
    /// Whole seconds left, 0 in the last one.
    pub remaining: i64,
    /// Attached keys in order, if asked for.
    pub keys: Vec<Box<[u8]>>,
}

/// Lease requests over a log and sessions.
pub struct Leases<L, S> {
    log: Arc<L>,
    sessions: Arc<S>,
    reader: Reader,
    min_ttl: i64,
    by_session: Mutex<HashMap<SessionId, i64>>,
    // A checkpoint of remaining times is under way.
    noting: AtomicBool,
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

impl<L: Log, S: Sessions> Leases<L, S> {
    /// `min_ttl` in seconds: shorter requests are raised to it. Leases that live already must have
    /// their sessions (see [`Leases::adopt`]).
    pub fn new(log: Arc<L>, sessions: Arc<S>, reader: Reader, min_ttl: i64) -> Self {
        let by_session = Mutex::new(HashMap::new());
        let noting = AtomicBool::new(false);
        Self { log, sessions, reader, min_ttl, by_session, noting }
    }

    /// Takes note of leases whose sessions live already.
    pub fn adopt(&self, leases: &[Lease]) {
        let mut by_session = self.by_session.lock();
        by_session.extend(leases.iter().map(|lease| (lease.session, lease.id)));
    }

    async fn propose(&self, op: Op) -> Result<Outcome, ProposeError> {
        self.log.propose(command::command(op)).await
    }

    /// Grants a lease. An `id` of 0 lets the server pick a random one.
    ///
    /// # Errors
    /// TTL too large; id taken; refusals by alarm.
    pub async fn grant(&self, id: i64, ttl: i64) -> Result<Granted, LeaseError> {
        if ttl > MAX_TTL {
            // A raised alarm is told first, as it would be by the keyspace.
            let alarms = &self.reader.shared().alarms;
            return Err(match alarms.refusal_of_writes() {
                Some(refusal) => refusal.into(),
                None => LeaseError::TtlTooLarge,
            });
        }
        let ttl = ttl.max(self.min_ttl);
        loop {
            let chosen = if id != 0 { id } else { rand::random::<i64>() & i64::MAX };
            if chosen == 0 {
                continue;
            }
            match self.grant_as(chosen, ttl).await {
                Err(LeaseError::Refused(Refusal::LeaseExists)) if id == 0 => {}
                result => return result,
            }
        }
    }

    async fn grant_as(&self, id: i64, ttl: i64) -> Result<Granted, LeaseError> {
        let session = self.sessions.create(seconds(ttl)).await?;
        self.by_session.lock().insert(session, id);
        let grant = LeaseGrant { id, ttl, session, marker: String::new() };
        let outcome = self.propose(Op::LeaseGrant(grant)).await?;
        if let Err(refusal) = outcome.reply {
            self.forget(session).await?;
            return Err(refusal.into());
        }
        // The session's time began before the lease was durable; the client's begins now.
        self.sessions.keep_alive(session).await?;
        Ok(Granted { id, ttl, revision: outcome.revision })
    }

    async fn forget(&self, session: SessionId) -> Result<(), LeaseError> {
        self.by_session.lock().remove(&session);
        Ok(self.sessions.close(session).await?)
    }

    /// Ends a lease and its keys; returns the revision afterwards.
    ///
    /// # Errors
    /// Lease not found.
    pub async fn revoke(&self, id: i64) -> Result<i64, LeaseError> {
        self.log.barrier().await?;
        let session = self.reader.leases().session(id).value;
        let outcome = self.propose(Op::LeaseRevoke(LeaseRevoke { id })).await?;
        outcome.reply?;
        if let Some((session, _)) = session {
            self.forget(session).await?;
        }
        Ok(outcome.revision)
    }

    /// Renews a lease; returns its TTL in seconds, 0 when it does not live.
    ///
    /// # Errors
    /// Only that the backend stopped.
    pub async fn keep_alive(&self, id: i64) -> Result<i64, LeaseError> {
        let leases = self.reader.leases();
        let found = leases.session(id);
        let Some((session, ttl)) = found.value else {
            self.log.barrier().await?;
            return Ok(0);
        };
        self.reader.view().durable(found.position).await;
        match self.sessions.keep_alive(session).await {
            Ok(()) => {}
            Err(SessionError::NotFound) => {
                // Ended, but perhaps not yet applied: the client must not see its keys any more
                // once it has been told.
                self.expire(session).await?;
                return Ok(0);
            }
            Err(error) => return Err(error.into()),
        }
        if leases.has_noted_remaining(id) || self.noting.load(Ordering::SeqCst) {
            // A noted remaining time must not outlive the renewal, or a restart would shorten it.
            let renewed = LeaseRenewed { id, session };
            let outcome = self.propose(Op::LeaseRenewed(renewed)).await?;
            if outcome.reply != Ok(Reply::Lease(true)) {
                return Ok(0);
            }
        }
        Ok(ttl)
    }

    /// What is known of a lease; `None` when it does not live.
    ///
    /// # Errors
    /// Only that the backend stopped.
    pub async fn time_to_live(
        &self,
        id: i64,
        with_keys: bool,
    ) -> Result<Option<TimeToLive>, LeaseError> {
        self.log.barrier().await?;
        let found = self.reader.leases().get(id);
        let mut position = found.position;
        let mut keys = Vec::new();
        if with_keys && found.value.is_some() {
            let attached = self.reader.leases().keys(id, None, usize::MAX);
            position = attached.position;
            keys = attached.value.unwrap_or_default();
        }
        self.reader.view().durable(position).await;
        let Some(lease) = found.value else { return Ok(None) };
        let remaining = match self.sessions.info(lease.session).await {
            Ok(info) => i64::try_from(info.remaining.as_secs()).unwrap_or(i64::MAX),
            // Its end is on the way through the log.
            Err(SessionError::NotFound) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Some(TimeToLive { granted: lease.ttl, remaining, keys }))
    }

    /// Ids of all leases, those that end first at the front.
    ///
    /// # Errors
    /// Only that the backend stopped.
    pub async fn all(&self) -> Result<Vec<i64>, LeaseError> {
        self.log.barrier().await?;
        let found = self.reader.leases().all();
        self.reader.view().durable(found.position).await;
        let mut ids = Vec::with_capacity(found.value.len());
        for lease in found.value {
            let info = self.sessions.info(lease.session).await;
            ids.push((info.map_or(Duration::ZERO, |info| info.remaining), lease.id));
        }
        ids.sort_unstable();
        Ok(ids.into_iter().map(|(_, id)| id).collect())
    }

    /// Logs the end of a lease whose session has ended; returns whether the lease is gone.
    async fn expire(&self, session: SessionId) -> Result<bool, LeaseError> {
        let id = self.by_session.lock().get(&session).copied();
        let Some(id) = id else { return Ok(true) };
        loop {
            let lease = self.reader.leases().get(id).value;
            let Some(lease) = lease.filter(|lease| lease.session == session) else {
                self.by_session.lock().remove(&session);
                return Ok(true);
            };
            let expire = LeaseExpire { id, session, renewals: lease.renewals };
            match self.propose(Op::LeaseExpire(expire)).await?.reply {
                // Ignored when a renewal was logged meanwhile; but the session is gone, so the
                // lease ends all the same.
                Ok(_) => {}
                Err(Refusal::Corrupt) => return Ok(false),
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Turns ended sessions into expired leases until the backend stops. `on_expired` is told how
    /// many leases ended.
    pub async fn run_expiry(self: Arc<Self>, on_expired: impl Fn(u64) + Send + Sync + 'static) {
        let on_expired = Arc::new(on_expired);
        let mut running = JoinSet::new();
        while let Ok(ended) = self.sessions.expired(EXPIRIES).await {
            for session in ended {
                while running.len() >= EXPIRIES {
                    running.join_next().await;
                }
                running.spawn(self.clone().expire_until_gone(session, on_expired.clone()));
            }
        }
    }

    async fn expire_until_gone(
        self: Arc<Self>,
        session: SessionId,
        on_expired: Arc<impl Fn(u64) + Send + Sync>,
    ) {
        // Only a raised CORRUPT alarm holds an expiry up, until it is disarmed.
        while let Ok(false) = self.expire(session).await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        on_expired(1);
    }

    /// Notes, every `interval`, how much time is left of leases that are granted for longer than
    /// it, so that a restart does not start them in full.
    pub async fn run_checkpoints(self: Arc<Self>, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            if self.checkpoint(interval).await.is_err() {
                return;
            }
        }
    }

    /// Notes remaining times once; see [`Leases::run_checkpoints`].
    ///
    /// # Errors
    /// Only that the backend stopped.
    pub async fn checkpoint(&self, longer_than: Duration) -> Result<(), LeaseError> {
        // From here on renewals are logged. One that was not had its effect before the remaining
        // time is read below; one that is makes the count differ, or comes later and wins.
        self.noting.store(true, Ordering::SeqCst);
        let result = self.note_remaining(longer_than).await;
        self.noting.store(false, Ordering::SeqCst);
        result
    }

    async fn note_remaining(&self, longer_than: Duration) -> Result<(), LeaseError> {
        let mut noted = Vec::new();
        for lease in self.reader.leases().all().value {
            if seconds(lease.ttl) <= longer_than {
                continue;
            }
            let Ok(info) = self.sessions.info(lease.session).await else { continue };
            // Rounded up: a restart may extend, never shorten.
            let left = i64::try_from(info.remaining.as_secs()).unwrap_or(i64::MAX - 1) + 1;
            if left < lease.ttl && left != lease.remaining {
                let (id, session, renewals) = (lease.id, lease.session, lease.renewals);
                noted.push(Remaining { id, session, seconds: left, renewals });
            }
        }
        for portion in noted.chunks(CHECKPOINT) {
            let checkpoint = LeaseCheckpoint { remaining: portion.to_vec() };
            self.propose(Op::LeaseCheckpoint(checkpoint)).await?;
        }
        Ok(())
    }
}

/// How much of its time a lease has when the process starts: all of it, or what was noted last.
pub fn time_at_start(lease: &Lease) -> Duration {
    let noted = if lease.remaining > 0 { lease.remaining } else { lease.ttl };
    seconds(noted.min(lease.ttl))
}

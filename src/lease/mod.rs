//! Leases on sessions: grant, renew, revoke, time to live, expiry.
//!
//! The keyspace knows which keys hang on a lease, a session knows how long it lives; this is what
//! keeps the two together. A lease's session is started before the lease is logged and closed after
//! its end is applied; a session that ended by itself is turned into a logged, conditional expiry
//! ([`expiry`]). A lease that is longer than any session has none: its renewals are logged, and every
//! gateway measures its time from there ([`times`]).
//!
//! Where sessions are shared with other gateways, a lease may have ended while it was renewed: it is
//! looked at again afterwards. And when so much time has passed since the last acknowledged renewal
//! that the end may have been decided meanwhile, the renewal is also logged, which makes a decided
//! expiry void: the lease is given another session.
//!
//! Deliberately absent: any list of keys.

mod begun;
mod expiry;
mod remaining;
mod sweep;
pub mod times;

use crate::backend::{Log, ProposeError, SessionError, SessionId, Sessions, in_time};
use crate::keyspace::auth::Authority;
use crate::keyspace::command::{
    self, Command, LeaseGrant, LeaseRenewed, LeaseRevoke, Op, Outcome, Reply,
};
use crate::keyspace::error::Refusal;
use crate::keyspace::leases::{Keeper, Lease};
use crate::keyspace::reader::Reader;
use crate::seams::{self, Rule, follows};
use parking_lot::Mutex;
pub use remaining::time_at_start;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use times::Times;
use tokio::time::Instant;

/// Longest TTL in seconds that etcd grants.
pub const MAX_TTL: i64 = 9_000_000_000;
/// How often a renewal is begun again because the lease was given another session meanwhile.
const RENEWAL_ATTEMPTS: usize = 4;

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
            // As for a client whose request can't be done: there is nothing in it to change.
            SessionError::Refused | SessionError::TimedOut => Self::TimedOut,
        }
    }
}

/// What came of a renewal.
enum Renewal {
    /// The TTL in seconds, 0 when the lease does not live.
    Done(i64),
    /// The session that the lease had has ended, or the lease has another one now.
    Ended(Keeper),
    /// The lease had no session, and has one now, or is gone.
    Changed,
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
    times: Arc<Times>,
    // A checkpoint of remaining times is under way.
    noting: AtomicBool,
    // Leases with their sessions that were there before this process was.
    inherited: Mutex<BTreeSet<(i64, SessionId)>>,
    begun: Instant,
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

impl<L: Log, S: Sessions> Leases<L, S> {
    /// `min_ttl` in seconds: shorter requests are raised to it. `times` keeps the time of leases
    /// without a session; the sessions of the others must live already.
    pub fn new(
        log: Arc<L>,
        sessions: Arc<S>,
        reader: Reader,
        min_ttl: i64,
        times: Arc<Times>,
    ) -> Self {
        let (noting, inherited) = (AtomicBool::new(false), Mutex::default());
        let begun = times.clock.now();
        let leases = Self { log, sessions, reader, min_ttl, times, noting, inherited, begun };
        leases.inherit();
        leases
    }

    /// Whether sessions are shared with other processes, and a renewal takes a while.
    pub fn shares_sessions(&self) -> bool {
        self.sessions.shared()
    }

    /// Waits until a commit is durable.
    async fn durable(&self, position: u64) -> Result<(), LeaseError> {
        Ok(in_time(self.reader.view().durable(position)).await?)
    }

    async fn propose(&self, op: Op) -> Result<Outcome, ProposeError> {
        self.log.propose(command::command(op)).await
    }

    async fn propose_for(
        &self,
        authority: Option<&Authority>,
        op: Op,
    ) -> Result<Outcome, ProposeError> {
        self.log.propose(Command { authority: authority.cloned(), op: Some(op) }).await
    }

    /// Grants a lease to `authority`. An `id` of 0 lets the server pick a random one. What was begun goes on
    /// when the caller goes away.
    ///
    /// # Errors
    /// TTL too large; id taken; refusals by alarm, and of nobody.
    pub async fn grant(
        self: &Arc<Self>,
        id: i64,
        ttl: i64,
        authority: Option<&Authority>,
    ) -> Result<Granted, LeaseError> {
        let (leases, authority) = (self.clone(), authority.cloned());
        let grant = async move { leases.try_grant(id, ttl, authority.as_ref()).await };
        begun::to_its_end(grant).await
    }

    async fn try_grant(
        &self,
        id: i64,
        ttl: i64,
        authority: Option<&Authority>,
    ) -> Result<Granted, LeaseError> {
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
            let chosen = if id != 0 { id } else { seams::random::<i64>() & i64::MAX };
            if chosen == 0 {
                continue;
            }
            match self.grant_as(chosen, ttl, authority).await {
                Err(LeaseError::Refused(Refusal::LeaseExists)) if id == 0 => {}
                result => return result,
            }
        }
    }

    async fn grant_as(
        &self,
        id: i64,
        ttl: i64,
        authority: Option<&Authority>,
    ) -> Result<Granted, LeaseError> {
        let timeout = seconds(ttl);
        if timeout > self.sessions.maximum() {
            return Err(LeaseError::TtlTooLarge);
        }
        if timeout > self.sessions.longest() {
            let marker = format!("{:016x}", seams::random::<u64>());
            let grant = LeaseGrant { id, ttl, session: 0, marker };
            let outcome = self.propose_for(authority, Op::LeaseGrant(grant)).await?;
            outcome.reply?;
            return Ok(Granted { id, ttl, revision: outcome.revision });
        }
        let begun = self.times.clock.now();
        let created = self.sessions.create(timeout).await?;
        let session = created.id;
        let keeper = Keeper { session, marker: created.marker };
        let grant = LeaseGrant { id, ttl, session, marker: keeper.marker.clone() };
        let outcome = self.propose_for(authority, Op::LeaseGrant(grant)).await?;
        if let Err(refusal) = outcome.reply {
            self.sessions.close(session, &keeper.marker).await?;
            return Err(refusal.into());
        }
        // The session's time began before the lease was durable; the client's begins now.
        let beaten = if follows(Rule::GrantHeartbeat) {
            self.sessions.keep_alive(session).await
        } else {
            Ok(())
        };
        match beaten {
            Ok(()) => {}
            Err(SessionError::NotFound) => {
                // It took so long that the lease is over already, and nobody was there to see it.
                self.expire_lease(id, &keeper).await?;
                return Err(LeaseError::TimedOut);
            }
            Err(error) => return Err(error.into()),
        }
        // Its session may be about to be ended by one that has not heard of the lease.
        if self.is_late(begun) {
            return Err(LeaseError::TimedOut);
        }
        // As with a renewal: the heartbeat may have come after the end was decided.
        let late =
            self.sessions.shared() && self.times.clock.since(begun) >= times::surely(timeout);
        if late && follows(Rule::LogLateRenewal) && !self.log_renewal(id, &keeper).await? {
            return Err(LeaseError::TimedOut);
        }
        self.times.acknowledge(session, begun);
        Ok(Granted { id, ttl, revision: outcome.revision })
    }

    /// Ends a lease and its keys for `authority`; returns the revision afterwards. What was begun goes on when
    /// the caller goes away.
    ///
    /// # Errors
    /// Lease not found; `authority` may not write its keys.
    pub async fn revoke(
        self: &Arc<Self>,
        id: i64,
        authority: Option<&Authority>,
    ) -> Result<i64, LeaseError> {
        let (leases, authority) = (self.clone(), authority.cloned());
        let revoke = async move { leases.try_revoke(id, authority.as_ref()).await };
        begun::to_its_end(revoke).await
    }

    async fn try_revoke(&self, id: i64, authority: Option<&Authority>) -> Result<i64, LeaseError> {
        self.log.barrier().await?;
        let keeper = self.reader.leases().keeper(id).value;
        let outcome = self.propose_for(authority, Op::LeaseRevoke(LeaseRevoke { id })).await?;
        outcome.reply?;
        if let Some((keeper, _)) = keeper.filter(|(keeper, _)| keeper.session != 0) {
            self.times.forget(keeper.session);
            self.sessions.close(keeper.session, &keeper.marker).await?;
        }
        Ok(outcome.revision)
    }

    /// Renews a lease; returns its TTL in seconds, 0 when it does not live.
    ///
    /// # Errors
    /// The backend stopped, or did not answer in time.
    pub async fn keep_alive(&self, id: i64) -> Result<i64, LeaseError> {
        for _ in 0..RENEWAL_ATTEMPTS {
            let keeper = match self.try_keep_alive(id).await? {
                Renewal::Done(ttl) => return Ok(ttl),
                Renewal::Ended(keeper) => keeper,
                Renewal::Changed if follows(Rule::RenewAgain) => continue,
                Renewal::Changed => return Ok(0),
            };
            // Perhaps when no gateway was there; then it is given a new session.
            let settled = self.settled(id, keeper.session);
            in_time(settled).await?;
            // Otherwise, perhaps its end is not yet applied: the client must not see its keys any more
            // once it has been told.
            self.expire_lease(id, &keeper).await?;
            // One that is gone here may have been granted anew: that takes a barrier to know.
            if self.reader.leases().keeper(id).value.is_some_and(|(now, _)| now == keeper) {
                return Ok(0);
            }
        }
        Err(LeaseError::TimedOut)
    }

    async fn try_keep_alive(&self, id: i64) -> Result<Renewal, LeaseError> {
        let leases = self.reader.leases();
        let mut found = leases.keeper(id);
        if found.value.is_none() && follows(Rule::UnknownLease) {
            // Perhaps its grant, by another gateway, has only not been seen here yet.
            self.log.barrier().await?;
            found = leases.keeper(id);
        }
        let Some((keeper, ttl)) = found.value else { return Ok(Renewal::Done(0)) };
        let session = keeper.session;
        self.durable(found.position).await?;
        if session == 0 {
            // If not, another gateway has ended it, and perhaps granted it anew, with a session.
            let renewed = self.log_renewal(id, &keeper).await?;
            return Ok(if renewed { Renewal::Done(ttl) } else { Renewal::Changed });
        }
        let sent = self.times.clock.now();
        match self.sessions.keep_alive(session).await {
            Ok(()) => {}
            Err(SessionError::NotFound) => return Ok(Renewal::Ended(keeper)),
            Err(error) => return Err(error.into()),
        }
        let mut logged = leases.has_notes(id) || self.noting.load(Ordering::SeqCst);
        if self.sessions.shared() {
            if leases.keeper(id).value.is_none_or(|(now, _)| now != keeper) {
                return Ok(Renewal::Ended(keeper));
            }
            logged |=
                !self.times.renewed_in_time(session, seconds(ttl)) && follows(Rule::LogLateRenewal);
        }
        // A noted remaining time must not outlive the renewal, or a restart would shorten it.
        if logged && !self.log_renewal(id, &keeper).await? {
            return Ok(Renewal::Ended(keeper));
        }
        if self.sessions.shared() {
            self.times.acknowledge(session, sent);
        }
        Ok(Renewal::Done(ttl))
    }

    /// Logs a renewal; returns whether the lease is still kept by the same.
    async fn log_renewal(&self, id: i64, keeper: &Keeper) -> Result<bool, LeaseError> {
        let Keeper { session, marker } = keeper.clone();
        let renewed = LeaseRenewed { id, session, marker };
        let outcome = self.propose(Op::LeaseRenewed(renewed)).await?;
        Ok(outcome.reply == Ok(Reply::Lease(true)))
    }

    /// What is known of a lease; `None` when it does not live.
    ///
    /// # Errors
    /// The backend stopped, or did not answer in time.
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
        self.durable(position).await?;
        let Some(lease) = found.value else { return Ok(None) };
        let remaining = match self.remaining(&lease).await {
            Ok(remaining) => i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX),
            // Its end is on the way through the log.
            Err(SessionError::NotFound) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Some(TimeToLive { granted: lease.ttl, remaining, keys }))
    }

    /// How much time a lease has left. Where the backend can't tell: since this gateway renewed it
    /// last, or all of it.
    async fn remaining(&self, lease: &Lease) -> Result<Duration, SessionError> {
        if lease.session == 0 {
            return Ok(self.times.of_unkept(lease.id));
        }
        let info = self.sessions.info(lease.session).await?;
        Ok(info.map_or_else(
            || self.times.estimate(lease.session, seconds(lease.ttl)),
            |info| info.remaining,
        ))
    }

    /// All leases that are known here with what they have left, as far as that can be told without
    /// asking anyone: those that end first at the front.
    ///
    /// # Errors
    /// [`LeaseError::TimedOut`] while it can't be told what is durable.
    pub async fn with_remaining(&self) -> Result<Vec<(Duration, Lease)>, LeaseError> {
        let found = self.reader.leases().all();
        self.durable(found.position).await?;
        let mut leases = Vec::with_capacity(found.value.len());
        for lease in found.value {
            // The order is a courtesy: not worth a request for each where sessions are far away.
            let remaining = if self.sessions.shared() && lease.session != 0 {
                self.times.estimate(lease.session, seconds(lease.ttl))
            } else {
                self.remaining(&lease).await.unwrap_or_default()
            };
            leases.push((remaining, lease));
        }
        leases.sort_unstable_by_key(|(remaining, lease)| (*remaining, lease.id));
        Ok(leases)
    }

    /// Ids of all leases, those that end first at the front.
    ///
    /// # Errors
    /// The backend stopped, or did not answer in time.
    pub async fn all(&self) -> Result<Vec<i64>, LeaseError> {
        self.log.barrier().await?;
        Ok(self.with_remaining().await?.into_iter().map(|(_, lease)| lease.id).collect())
    }
}

//! Ended sessions become logged expiries.

use super::times::surely;
use super::{LeaseError, Leases};
use crate::backend::{Ended, Log, Sessions};
use crate::keyspace::command::{LeaseExpire, Op};
use crate::keyspace::error::Refusal;
use crate::keyspace::leases::{Keeper, Lease};
use crate::seams::{Rule, follows};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Expiries on their way through the log at once: enough for thousands a second, few enough that a
/// put never queues behind many.
const EXPIRIES: usize = 64;
/// Ended leases that may wait for their turn at once, where sessions are shared.
const WAITING: usize = 65_536;
/// Pause before an expiry that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Ends of leases: those that wait for their turn, and those of them that are under way.
struct Ends {
    running: JoinSet<()>,
    most: usize,
    slots: Arc<Semaphore>,
}

impl Ends {
    /// None yet. Where nobody else ends leases, none waits, and as many are begun as can be under way.
    fn new(shared: bool) -> Self {
        let most = if shared { WAITING } else { EXPIRIES };
        Self { running: JoinSet::new(), most, slots: Arc::new(Semaphore::new(EXPIRIES)) }
    }

    /// Starts an expiry, once there is room for it. It takes a slot when its turn has come.
    async fn begin(&mut self, expiry: impl Future<Output = ()> + Send + 'static) {
        while self.running.try_join_next().is_some() {}
        while self.running.len() >= self.most {
            self.running.join_next().await;
        }
        self.running.spawn(expiry);
    }
}

impl<L: Log, S: Sessions> Leases<L, S> {
    /// Logs the end of a lease whose session has ended; returns whether the lease is gone, or has
    /// another session.
    ///
    /// If a renewal was logged a moment ago, the end of the session had been decided before it, and
    /// the client was told that the lease lives: then it is given another session.
    pub(super) async fn expire_lease(&self, id: i64, keeper: &Keeper) -> Result<bool, LeaseError> {
        let session = keeper.session;
        loop {
            let lease = self.reader.leases().get(id).value;
            let lease = lease.filter(|lease| {
                // The lease may have been granted anew, with a session that has got the same id.
                let same = lease.marker == keeper.marker || !follows(Rule::Marker);
                lease.session == session && same
            });
            let Some(lease) = lease else {
                self.times.forget(session);
                return Ok(true);
            };
            let ttl = super::seconds(lease.ttl);
            let renewed = self.times.since_logged(&lease).filter(|_| follows(Rule::RenewedLives));
            match renewed {
                // Too early for the session that was renewed then.
                Some(since) if since < surely(ttl) => {
                    self.rebind(&lease, "its session ended right after a renewal").await?;
                    continue;
                }
                Some(since) if since < ttl => {
                    self.times.clock.sleep(ttl - since).await;
                    continue;
                }
                _ => {}
            }
            let Lease { renewals, marker, .. } = lease;
            let expire = LeaseExpire { id, session, renewals, marker };
            match self.propose(Op::LeaseExpire(expire)).await?.reply {
                // Ignored when a renewal was logged meanwhile: looked at again.
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
        let mut ends = Ends::new(self.sessions.shared());
        while let Ok(ended) = self.sessions.expired(EXPIRIES).await {
            for ended in ended {
                let (slots, on_expired) = (ends.slots.clone(), on_expired.clone());
                ends.begin(self.clone().expire_until_gone(ended, slots, on_expired)).await;
            }
        }
    }

    async fn expire_until_gone(
        self: Arc<Self>,
        ended: Ended,
        slots: Arc<Semaphore>,
        on_expired: Arc<impl Fn(u64) + Send + Sync>,
    ) {
        let (session, marker) = (ended.id, ended.marker.clone());
        let lives = || {
            let leases = self.reader.leases().of_session(session).value;
            leases.into_iter().find(|lease| lease.marker == marker || !follows(Rule::Marker))
        };
        let Some(lease) = lives() else { return };
        // If this process was away, nobody may have been there to renew it.
        self.settled(lease.id, ended.id).await;
        let Some(lease) = lives() else { return };
        // Others may have seen it too; one of us goes first.
        let turn = self.sessions.turn(lease.id) + self.second_hand(&lease);
        self.times.clock.sleep(turn.max(self.renewed_lately(&lease))).await;
        // While there are many, others may have ended it meanwhile.
        let slot = if lives().is_some() { slots.acquire().await.ok() } else { None };
        if slot.is_none() || lives().is_none() {
            return;
        }
        let keeper = Keeper { session: ended.id, marker: ended.marker };
        loop {
            match self.expire_lease(lease.id, &keeper).await {
                Ok(true) => break,
                // A raised CORRUPT alarm holds an expiry up, until it is disarmed.
                Ok(false) | Err(LeaseError::TimedOut) => tokio::time::sleep(AGAIN).await,
                Err(_) => return,
            }
        }
        on_expired(1);
    }

    /// How long the end of a lease has to wait whose session ended about a TTL after its last logged renewal, but,
    /// by the clock here, a little less.
    fn renewed_lately(&self, lease: &Lease) -> Duration {
        let (ttl, since) = (super::seconds(lease.ttl), self.times.since_logged(lease));
        let lately = since.filter(|since| *since >= surely(ttl) && follows(Rule::RenewedLives));
        lately.map_or(Duration::ZERO, |since| ttl.saturating_sub(since))
    }

    /// A pause for those who were there before this process, if it knows a logged renewal only from
    /// reading the log at its start: it can't tell how old that is, and would give the lease its time
    /// again.
    fn second_hand(&self, lease: &Lease) -> Duration {
        let since = self.times.since_logged(lease);
        if since.is_some_and(|since| since >= self.times.clock.since(self.begun)) {
            AGAIN
        } else {
            Duration::ZERO
        }
    }

    /// Ends leases without a session when their time is over, until the backend stops.
    pub async fn run_unkept_expiry(
        self: Arc<Self>,
        on_expired: impl Fn(u64) + Send + Sync + 'static,
    ) {
        let on_expired = Arc::new(on_expired);
        let mut ends = Ends::new(self.sessions.shared());
        loop {
            for id in self.times.over(EXPIRIES).await {
                let (slots, on_expired) = (ends.slots.clone(), on_expired.clone());
                ends.begin(self.clone().expire_unkept(id, slots, on_expired)).await;
            }
        }
    }

    async fn expire_unkept(
        self: Arc<Self>,
        id: i64,
        slots: Arc<Semaphore>,
        on_expired: Arc<impl Fn(u64) + Send + Sync>,
    ) {
        self.times.clock.sleep(self.sessions.turn(id)).await;
        let lives = || self.reader.leases().get(id).value.is_some_and(|lease| lease.session == 0);
        let slot = if lives() { slots.acquire().await.ok() } else { None };
        if slot.is_none() || !lives() || self.times.runs(id) {
            return;
        }
        match self.try_expire_unkept(id).await {
            Ok(true) => on_expired(1),
            // Another gateway was first, or a renewal was, which has started its time anew.
            Ok(false) | Err(LeaseError::Stopped) => {}
            // While the backend is away, nobody can renew it: it has its time again.
            Err(LeaseError::TimedOut) => {
                let lease = self.reader.leases().get(id).value;
                self.times.start(id, lease.map_or(AGAIN, |lease| super::seconds(lease.ttl)));
            }
            Err(_) => self.times.start(id, AGAIN),
        }
    }

    async fn try_expire_unkept(&self, id: i64) -> Result<bool, LeaseError> {
        // A renewal that another gateway has logged starts the time anew here first. Without the barrier its
        // count would make the expiry void as well, but at the price of an entry; and while the backend is
        // away, nothing is to be on its way that ends the lease once it is back.
        self.log.barrier().await?;
        let lease = self.reader.leases().get(id).value;
        let Some(lease) = lease.filter(|lease| lease.session == 0) else { return Ok(false) };
        if self.times.runs(id) {
            return Ok(false);
        }
        let Lease { renewals, marker, .. } = lease;
        let expire = LeaseExpire { id, session: 0, renewals, marker };
        let outcome = self.propose(Op::LeaseExpire(expire)).await?;
        Ok(outcome.reply? == crate::keyspace::command::Reply::Lease(true))
    }
}

//! What this process itself knows of leases' times.
//!
//! - Of leases without a session: when their time is over, measured from when their last renewal
//!   was applied here, never before it was logged. Every gateway measures for itself.
//! - Of leases whose session is shared: when this gateway sent the last heartbeat that it has
//!   acknowledged to a client, and when it saw the lease's last renewal in the log.

use crate::backend::local::sessions::LocalSessions;
use crate::backend::{SessionId, Sessions};
use crate::keyspace::leases::{Lease, LeaseTable};
use crate::keyspace::staging::Timed;
use crate::seams::{Clock, Rule, follows};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The most acknowledged heartbeats that are remembered; beyond it those that are over are dropped.
const REMEMBERED: usize = 10_000;

/// Times of leases, as measured here.
#[derive(Debug)]
pub struct Times {
    pub(super) clock: Clock,
    unkept: LocalSessions,
    // Leases with their sessions, since when their last logged renewal is known.
    logged: Mutex<HashMap<i64, (SessionId, Instant)>>,
    acknowledged: Mutex<Acknowledged>,
}

#[derive(Debug, Default)]
struct Acknowledged {
    sent: HashMap<SessionId, Instant>,
    sweep_at: usize,
}

/// How long after a renewal the session surely lives, whatever two clocks may differ by.
pub(super) fn surely(ttl: Duration) -> Duration {
    if follows(Rule::ClockMargin) { ttl.mul_f64(0.9) } else { ttl }
}

fn key(lease: i64) -> SessionId {
    SessionId::from_ne_bytes(lease.to_ne_bytes())
}

impl Times {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::measured_by(Clock::default())
    }

    /// Knows nothing yet; all times are those of `clock`.
    pub fn measured_by(clock: Clock) -> Self {
        Self {
            clock,
            unkept: LocalSessions::measured_by(clock, Duration::MAX),
            logged: Mutex::default(),
            acknowledged: Mutex::default(),
        }
    }

    /// Starts the time of a lease without a session.
    pub fn start(&self, lease: i64, time: Duration) {
        self.unkept.restore(key(lease), time, time);
    }

    /// Takes note of the leases that are there when the process starts. How old their logged renewals are can't
    /// be told: they count as of now.
    pub fn begin(&self, leases: &LeaseTable) {
        for lease in leases.all().value {
            match lease.session {
                0 => self.start(lease.id, super::time_at_start(&lease)),
                _ => self.changed(lease.id, leases),
            }
        }
    }

    /// Takes note of what has just happened to leases in the log.
    pub fn note(&self, happened: &[Timed], leases: &LeaseTable) {
        for timed in happened {
            match *timed {
                Timed::Changed(id) => self.changed(id, leases),
                Timed::Noted(id) => self.noted(id, leases),
            }
        }
    }

    fn changed(&self, id: i64, leases: &LeaseTable) {
        let lease = leases.get(id).value;
        match &lease {
            Some(lease) if lease.session == 0 => self.start(id, super::seconds(lease.ttl)),
            _ => self.unkept.drop(key(id)),
        }
        let mut logged = self.logged.lock();
        match lease.filter(|lease| lease.session != 0 && lease.renewals > 0 && !lease.spared) {
            Some(lease) => logged.insert(id, (lease.session, self.clock.now())),
            None => logged.remove(&id),
        };
    }

    /// Whoever noted it had measured for longer, if it has less left: this process was started since its last
    /// renewal, and found that in the log.
    fn noted(&self, id: i64, leases: &LeaseTable) {
        // Not if it was renewed since.
        let lease = leases.get(id).value;
        let lease = lease.filter(|lease| lease.session == 0 && lease.remaining > 0);
        let Some(left) = lease.map(|lease| super::time_at_start(&lease)) else { return };
        if self.runs(id) && left < self.of_unkept(id) {
            self.start(id, left);
        }
    }

    /// How long it is known here that a lease was renewed in the log; `None` if it never was with its
    /// present session.
    pub fn since_logged(&self, lease: &Lease) -> Option<Duration> {
        let found = self.logged.lock().get(&lease.id).copied();
        found.filter(|(session, _)| *session == lease.session).map(|(_, at)| self.clock.since(at))
    }

    /// The next leases whose time is over, at most `most`. Each is told once for each start.
    pub async fn over(&self, most: usize) -> Vec<i64> {
        let ended = self.unkept.expired(most).await.unwrap_or_default();
        ended.into_iter().map(|ended| i64::from_ne_bytes(ended.id.to_ne_bytes())).collect()
    }

    /// Whether a lease's time is running.
    pub fn runs(&self, lease: i64) -> bool {
        self.unkept.look(key(lease)).is_some()
    }

    /// What a lease without a session has left.
    pub fn of_unkept(&self, lease: i64) -> Duration {
        self.unkept.look(key(lease)).map_or(Duration::ZERO, |info| info.remaining)
    }

    /// A heartbeat that was sent at `sent` has been acknowledged to a client.
    pub fn acknowledge(&self, session: SessionId, sent: Instant) {
        let mut acknowledged = self.acknowledged.lock();
        if acknowledged.sent.len() >= acknowledged.sweep_at.max(REMEMBERED) {
            let long_ago = Duration::from_secs(600);
            acknowledged.sent.retain(|_, sent| self.clock.since(*sent) < long_ago);
            acknowledged.sweep_at = 2 * acknowledged.sent.len();
        }
        acknowledged.sent.insert(session, sent);
    }

    /// Whether so little time has passed since the last acknowledged heartbeat, that the session can't
    /// have been about to end when the next one arrived.
    pub fn renewed_in_time(&self, session: SessionId, timeout: Duration) -> bool {
        let sent = self.acknowledged.lock().sent.get(&session).copied();
        sent.is_some_and(|sent| self.clock.since(sent) < surely(timeout))
    }

    /// What a session has left as far as is known here: all, if this gateway never renewed it.
    pub fn estimate(&self, session: SessionId, timeout: Duration) -> Duration {
        let sent = self.acknowledged.lock().sent.get(&session).copied();
        sent.map_or(timeout, |sent| timeout.saturating_sub(self.clock.since(sent)))
    }

    /// A session that ended.
    pub fn forget(&self, session: SessionId) {
        self.acknowledged.lock().sent.remove(&session);
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

//! Leases compared with the sessions that exist.
//!
//! The word of a session's end can be lost, and sessions end while no gateway is there to hear of it.
//! So one gateway looks, from time to time, whether each lease's session still exists. What is
//! missing twice has ended. But if there was a time in which no gateway served, the lease gets
//! a new session instead, once: nobody could have renewed it.

use super::{LeaseError, Leases, seconds};
use crate::backend::{Duty, Log, SessionId, Sessions};
use crate::keyspace::command::{LeaseRebind, Op, Reply};
use crate::keyspace::leases::Lease;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How often leases and sessions are compared.
const EVERY: Duration = Duration::from_secs(30);
/// Pause before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Leases looked after at once.
const AT_ONCE: usize = 64;
/// How long a session has to be known without a lease before it is ended: longer than a grant, or a new session
/// for a lease, can take to get into the log and still count.
const ORPHANED: Duration = Duration::from_secs(30);

/// What was found in the last look.
#[derive(Debug, Default)]
struct Found {
    missing: BTreeSet<(i64, u64)>,
    // Since when.
    orphans: BTreeMap<String, Instant>,
}

impl<L: Log, S: Sessions> Leases<L, S> {
    /// Looks after leases until the backend stops. Returns at once where sessions can't be lost.
    pub async fn run_sweeps(self: Arc<Self>) {
        let Some(mut duty) = self.sessions.duty() else { return };
        let mut before = Found::default();
        let mut was_unknown = false;
        loop {
            let now = *duty.borrow_and_update();
            let entered = !was_unknown;
            was_unknown = now == Duty::Unknown;
            let wait = match now {
                Duty::Mine { spare } => {
                    // Only what ended before this process came: from then on there was one.
                    let spare = spare && !self.sessions.is_settled();
                    let swept = tokio::select! {
                        biased;
                        // What changes now is looked at now; what was begun can be left at any point.
                        goes_on = changed(&mut duty, now) => if goes_on { continue } else { return },
                        swept = self.clone().sweep(&mut before, spare) => swept,
                    };
                    match swept {
                        Ok(()) => {
                            self.sessions.settle(true);
                            self.inherited.lock().clear();
                            EVERY
                        }
                        Err(LeaseError::Stopped) => return,
                        Err(error) => {
                            tracing::info!(%error, "cannot compare leases with sessions yet");
                            AGAIN
                        }
                    }
                }
                Duty::Unknown => {
                    // If it is cut off when nothing was known yet, there may be more leases by now.
                    if entered || !self.sessions.attends() {
                        self.sessions.settle(false);
                        self.inherit();
                    }
                    before = Found::default();
                    AGAIN
                }
                Duty::Other { .. } => {
                    before = Found::default();
                    EVERY
                }
            };
            tokio::select! {
                biased;
                goes_on = changed(&mut duty, now) => if !goes_on { return },
                () = self.sessions.gap() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn sweep(self: Arc<Self>, before: &mut Found, spare: bool) -> Result<(), LeaseError> {
        // In this order: a lease that is known had its marker before, if it has one now.
        let leases = self.reader.leases().all().value;
        let markers: BTreeSet<String> = self.sessions.markers().await?.into_iter().collect();
        let missing =
            leases.iter().filter(|lease| lease.session != 0 && !markers.contains(&lease.marker));
        let mut found = Found::default();
        let mut running = JoinSet::new();
        for lease in missing {
            let key = (lease.id, lease.session);
            found.missing.insert(key);
            // The word of an end may be on its way, unless it came before this process did.
            let spare = spare && self.inherited.lock().contains(&key);
            if !spare && !before.missing.contains(&key) {
                continue;
            }
            if running.len() >= AT_ONCE {
                ended(running.join_next().await)?;
            }
            running.spawn(self.clone().look_after(lease.clone(), spare));
        }
        while let Some(done) = running.join_next().await {
            ended(Some(done))?;
        }
        self.clone().drop_orphans(markers, before, &mut found).await?;
        *before = found;
        Ok(())
    }

    async fn look_after(self: Arc<Self>, lease: Lease, spare: bool) -> Result<(), LeaseError> {
        if spare && !lease.spared && self.rebind(&lease, "no gateway could renew it").await? {
            return Ok(());
        }
        self.expire_lease(lease.id, &lease.keeper()).await.map(|_| ())
    }

    /// Gives a lease a new session; returns whether it, or another, has it now.
    pub(super) async fn rebind(&self, lease: &Lease, why: &str) -> Result<bool, LeaseError> {
        let begun = self.times.clock.now();
        let created = self.sessions.create(seconds(lease.ttl)).await?;
        let rebind = LeaseRebind {
            id: lease.id,
            session: lease.session,
            renewals: lease.renewals,
            new_session: created.id,
            new_marker: created.marker,
            marker: lease.marker.clone(),
        };
        if self.is_late(begun) {
            self.sessions.close(rebind.new_session, &rebind.new_marker).await?;
            return Err(LeaseError::TimedOut);
        }
        let outcome = self.propose(Op::LeaseRebind(rebind.clone())).await?;
        if outcome.reply == Ok(Reply::Lease(true)) {
            tracing::info!(lease = lease.id, "{why}; it has its whole time again");
            return Ok(true);
        }
        self.sessions.close(rebind.new_session, &rebind.new_marker).await?;
        let now = self.reader.leases().keeper(lease.id).value;
        Ok(now.is_none_or(|(keeper, _)| keeper != lease.keeper()))
    }

    /// Ends sessions that no lease has: their grants never got into the log, or their leases were
    /// revoked by a gateway that died before it could close them.
    async fn drop_orphans(
        self: Arc<Self>,
        markers: BTreeSet<String>,
        before: &Found,
        found: &mut Found,
    ) -> Result<(), LeaseError> {
        // A lease that was acknowledged by anyone is known here from now on.
        self.log.barrier().await?;
        let of_leases: BTreeSet<String> =
            self.reader.leases().all().value.into_iter().map(|lease| lease.marker).collect();
        let mut running = JoinSet::new();
        for marker in markers.into_iter().filter(|marker| !of_leases.contains(marker)) {
            // One that was just made may belong to a grant on its way.
            let since = before.orphans.get(&marker).copied();
            let since = since.unwrap_or_else(|| self.times.clock.now());
            if self.times.clock.since(since) >= ORPHANED {
                if running.len() >= AT_ONCE {
                    ended(running.join_next().await)?;
                }
                running.spawn(self.clone().discard_orphan(marker.clone()));
            }
            // Also of one that is ended now: if that fails, it is not seen anew.
            found.orphans.insert(marker, since);
        }
        while let Some(done) = running.join_next().await {
            ended(Some(done))?;
        }
        Ok(())
    }

    async fn discard_orphan(self: Arc<Self>, marker: String) -> Result<(), LeaseError> {
        // Looked up again: others that were ended first may have taken a while.
        let of_session =
            self.sessions.session_of(&marker).map(|id| self.reader.leases().of_session(id));
        let mut leases = of_session.into_iter().flat_map(|leases| leases.value);
        if !leases.any(|lease| lease.marker == marker) {
            self.sessions.discard(marker).await?;
        }
        Ok(())
    }

    /// Whether a session that was begun then may soon be taken for one that no lease has: this process stood
    /// still.
    pub(super) fn is_late(&self, begun: Instant) -> bool {
        self.sessions.shared() && self.times.clock.since(begun) >= ORPHANED / 2
    }

    /// Notes the leases that are there while it is not known whether anybody could renew them.
    pub(super) fn inherit(&self) {
        if self.sessions.duty().is_some() {
            let leases = self.reader.leases().all().value;
            let with_session = leases.iter().filter(|lease| lease.session != 0);
            *self.inherited.lock() = with_session.map(|lease| (lease.id, lease.session)).collect();
        }
    }

    /// Waits while it is not known whether anybody could renew leases, and, if a lease was there before
    /// that was known, until it is decided what becomes of those whose sessions ended by then.
    pub(super) async fn settled(&self, id: i64, session: SessionId) {
        let Some(duty) = self.sessions.duty() else { return };
        let inherited = || self.inherited.lock().contains(&(id, session));
        let settled = |duty: &Duty| match duty {
            Duty::Unknown => false,
            Duty::Other { settled } => *settled || !inherited(),
            Duty::Mine { .. } => self.sessions.is_settled() || !inherited(),
        };
        loop {
            // The word of an end may come before it is noticed that this process was away.
            if self.sessions.attends() && settled(&duty.borrow()) {
                return;
            }
            // The end of the one who tells means that everything is stopping.
            if duty.has_changed().is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Waits until the duty is another than `now`; returns `false` once nobody tells of it any more.
async fn changed(duty: &mut watch::Receiver<Duty>, now: Duty) -> bool {
    let same = |duty: &Duty| std::mem::discriminant(duty) == std::mem::discriminant(&now);
    duty.wait_for(|duty| !same(duty)).await.is_ok()
}

fn ended(
    done: Option<Result<Result<(), LeaseError>, tokio::task::JoinError>>,
) -> Result<(), LeaseError> {
    match done {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(_)) => Err(LeaseError::Stopped),
    }
}

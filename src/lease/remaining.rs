//! Remaining times, noted in the log from time to time, as advice for the next start.

use super::{LeaseError, Leases, seconds};
use crate::backend::{Duty, Log, Sessions};
use crate::keyspace::command::{LeaseCheckpoint, Op, Remaining};
use crate::keyspace::leases::Lease;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// Leases noted in one checkpoint command.
const CHECKPOINT: usize = 1000;

impl<L: Log, S: Sessions> Leases<L, S> {
    /// Notes, every `interval`, how much time is left of leases that are granted for longer than
    /// it, so that a restart does not start them in full.
    pub async fn run_checkpoints(self: Arc<Self>, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            match self.checkpoint(interval).await {
                Ok(()) => {}
                Err(LeaseError::Stopped) => return,
                Err(error) => tracing::info!(%error, "cannot note what leases have left yet"),
            }
        }
    }

    /// Notes remaining times once; see [`Leases::run_checkpoints`].
    ///
    /// # Errors
    /// The backend stopped, or did not answer in time: then some are not noted.
    pub async fn checkpoint(&self, longer_than: Duration) -> Result<(), LeaseError> {
        // From here on renewals are logged. One that was not had its effect before the remaining
        // time is read below; one that is makes the count differ, or comes later and wins.
        self.noting.store(true, Ordering::SeqCst);
        let result = self.note_remaining(longer_than).await;
        self.noting.store(false, Ordering::SeqCst);
        result
    }

    /// Whether it is this process that notes: of several, the one that looks after leases.
    fn notes(&self) -> bool {
        let mine = |duty: watch::Receiver<Duty>| matches!(*duty.borrow(), Duty::Mine { .. });
        self.sessions.duty().is_none_or(mine)
    }

    async fn note_remaining(&self, longer_than: Duration) -> Result<(), LeaseError> {
        let mut noted = Vec::new();
        if !self.notes() {
            return Ok(());
        }
        let leases = self.reader.leases().all();
        // The time of one that has just been renewed starts anew before that is published.
        self.durable(leases.position).await?;
        for lease in leases.value {
            if seconds(lease.ttl) <= longer_than {
                continue;
            }
            let Ok(remaining) = self.remaining(&lease).await else { continue };
            // Rounded up: a restart may extend, never shorten.
            let left = i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX - 1) + 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ProposeError;
    use crate::backend::fake::{FakeLog, keyspace_after};
    use crate::backend::local::sessions::LocalSessions;
    use crate::keyspace::command::LeaseGrant;
    use crate::lease::times::Times;

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_backend_is_not_the_end() {
        let (hour, interval) = (Duration::from_secs(3600), Duration::from_secs(300));
        let grant = LeaseGrant { id: 7, ttl: 3600, session: 1, marker: String::new() };
        let reader = keyspace_after([Op::LeaseGrant(grant)]);
        let sessions = Arc::new(LocalSessions::new(hour));
        sessions.restore(1, hour, hour);
        let log = FakeLog::new([Err(ProposeError::TimedOut)]);
        let leases = Leases::new(log.clone(), sessions, reader, 1, Arc::new(Times::new()));
        let run = Arc::new(leases).run_checkpoints(interval);
        // It ends with the second answer: that the backend has stopped.
        tokio::time::timeout(3 * interval, run).await.expect("it ends");
        assert_eq!(log.asked().len(), 2);
    }
}

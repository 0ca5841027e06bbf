//! Where a simulation takes hold of what is otherwise left to chance, and of the rules whose need it
//! shows by leaving one out at a time, and of the clock that leases are measured with.
//!
//! Outside of tests all three are nothing: randomness comes from the operating system, every rule is
//! followed, and the clock is the monotonic one. Deliberately absent: all other time, which the simulation
//! owns by running on a paused clock.

use rand::distr::{Distribution, StandardUniform};
use std::time::Duration;
use tokio::time::Instant;

/// A rule without which the replicated backend gives wrong answers in some order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An entry at or below its gateway's highest number has no effect.
    Numbers,
    /// An append without an answer is settled before its commands are proposed again.
    Settle,
    /// A gateway that goes on under a new id first makes sure that the old one is retired.
    RetireOld,
    /// Nothing is proposed under an id whose registration has not been answered and applied.
    RegisterFirst,
    /// The tip of a log counts only when its leader proves, after reading it, that it still leads.
    ProvenTip,
    /// Who asks while a barrier is under way waits for the next one.
    NextBarrier,
    /// A heartbeat counts only when a barrier after it has passed.
    HeartbeatBarrier,
    /// That barrier has to be of the leader that took the heartbeat.
    SameEpoch,
    /// The word that a session is unknown counts only from a leader that proves that it leads.
    ProvenNotFound,
    /// A renewal that may come too late is logged.
    LogLateRenewal,
    /// The end of a session that follows right upon a logged renewal does not end the lease.
    RenewedLives,
    /// An expiry has no effect when the lease has been renewed since it was decided.
    ExpiryRenewals,
    /// An expiry has no effect when the lease is another one by now, or has another session: when its
    /// session or its marker is not the one that ended.
    ExpirySession,
    /// A lease is unknown only when it is so after a barrier.
    UnknownLease,
    /// A renewal that finds its lease gone or changed begins again: the lease may have been granted anew.
    RenewAgain,
    /// The end of a session is the one whose marker the lease has.
    Marker,
    /// A session is given its record by the leader that made it, and ended by one that still has the record
    /// of it: by its id alone it may be another one.
    OwnSession,
    /// A grant is answered only after a heartbeat.
    GrantHeartbeat,
    /// A gateway that is cut off notices it while it is.
    NoticesCut,
    /// How long a session surely lives leaves room for clocks that do not run alike.
    ClockMargin,
}

/// Whether a rule is followed: always, outside of a simulation.
#[cfg(not(test))]
#[inline(always)]
pub const fn follows(_: Rule) -> bool {
    true
}

/// Random bits, for what has to be unique or hard to guess.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    #[cfg(test)]
    if let Some(value) = simulated::random() {
        return value;
    }
    rand::random()
}

#[cfg(test)]
pub use simulated::follows;

/// The monotonic clock of a process. In a simulation each process has its own, which runs a little
/// faster or slower than others, and whose timers fire late.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    #[cfg(test)]
    own: Option<simulated::OwnClock>,
}

impl Clock {
    /// Now.
    pub fn now(&self) -> Instant {
        #[cfg(test)]
        if let Some(own) = &self.own {
            return own.now();
        }
        Instant::now()
    }

    /// How long ago a moment of this clock was.
    pub fn since(&self, moment: Instant) -> Duration {
        self.now().saturating_duration_since(moment)
    }

    /// Waits until a moment of this clock.
    pub async fn sleep_until(&self, moment: Instant) {
        #[cfg(test)]
        if let Some(own) = &self.own {
            return own.sleep_until(moment).await;
        }
        tokio::time::sleep_until(moment).await;
    }

    /// Waits for so long by this clock.
    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now() + time).await;
    }
}

#[cfg(test)]
pub mod simulated {
    //! What a simulation on this thread has taken hold of.

    use super::{Clock, Rule};
    use rand::distr::{Distribution, StandardUniform};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::cell::{Cell, RefCell};
    use std::time::Duration;
    use tokio::time::Instant;

    thread_local! {
        static CHANCE: RefCell<Option<StdRng>> = const { RefCell::new(None) };
        static WITHOUT: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Lasts as long as the simulation.
    pub struct Hold(());

    /// Everything random on this thread comes from `seed`, and `without` is not followed.
    pub fn hold(seed: u64, without: Option<Rule>) -> Hold {
        CHANCE.with(|chance| *chance.borrow_mut() = Some(StdRng::seed_from_u64(seed)));
        WITHOUT.with(|rule| rule.set(without));
        Hold(())
    }

    impl Drop for Hold {
        fn drop(&mut self) {
            CHANCE.with(|chance| *chance.borrow_mut() = None);
            WITHOUT.with(|rule| rule.set(None));
        }
    }

    /// Whether a rule is followed.
    pub fn follows(rule: Rule) -> bool {
        WITHOUT.with(|without| without.get() != Some(rule))
    }

    pub(super) fn random<T>() -> Option<T>
    where
        StandardUniform: Distribution<T>,
    {
        CHANCE.with(|chance| chance.borrow_mut().as_mut().map(|chance| chance.random()))
    }

    /// A clock that does not run as time does.
    #[derive(Clone, Copy, Debug)]
    pub struct OwnClock {
        origin: Instant,
        ahead: i32,
        late: u32,
        late_by: Duration,
    }

    const MILLION: u128 = 1_000_000;

    /// A clock that gains `ahead` millionths (loses, if negative), and of whose timers `late` of a
    /// thousand fire up to `late_by` late. Shows the right time now.
    pub fn clock(ahead: i32, late: u32, late_by: Duration) -> Clock {
        Clock { own: Some(OwnClock { origin: Instant::now(), ahead, late, late_by }) }
    }

    impl OwnClock {
        /// Millionths of a second that it counts in a second.
        fn rate(&self) -> u128 {
            u128::from(1_000_000_u32.saturating_add_signed(self.ahead))
        }

        pub(super) fn now(&self) -> Instant {
            let passed = self.origin.elapsed().as_nanos();
            self.origin + nanos(passed * self.rate() / MILLION)
        }

        pub(super) async fn sleep_until(&self, moment: Instant) {
            let shown = moment.saturating_duration_since(self.origin).as_nanos();
            let mut at = self.origin + nanos((shown * MILLION).div_ceil(self.rate()));
            if random::<u32>().is_some_and(|chance| chance % 1000 < self.late) {
                at += self.late_by.mul_f64(random().unwrap_or(0.0));
            }
            tokio::time::sleep_until(at).await;
        }
    }

    fn nanos(count: u128) -> Duration {
        Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
    }
}

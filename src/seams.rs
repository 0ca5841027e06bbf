//! Where a simulation takes hold of what is otherwise left to chance, and of the rules whose need it
//! shows by leaving one out at a time.
//!
//! Outside of tests both are nothing: randomness comes from the operating system, and every rule is
//! followed. Deliberately absent: time, which the simulation owns by running on a paused clock.

use rand::distr::{Distribution, StandardUniform};

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
    /// An expiry has no effect when the lease has another session than the one that ended.
    ExpirySession,
    /// A lease is unknown only when it is so after a barrier.
    UnknownLease,
    /// A lease without a session ends only when its time is still over after a barrier.
    UnkeptBarrier,
    /// The end of a session is the one whose marker the lease has.
    Marker,
    /// A grant is answered only after a heartbeat.
    GrantHeartbeat,
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

#[cfg(test)]
pub mod simulated {
    //! What a simulation on this thread has taken hold of.

    use super::Rule;
    use rand::distr::{Distribution, StandardUniform};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::cell::{Cell, RefCell};

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
}

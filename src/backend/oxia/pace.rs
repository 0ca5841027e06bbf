//! How long to wait for company before asking the shard for something that many callers share.
//!
//! What the shard is asked for costs three nodes a write each, however many share it. Callers who were
//! answered together tend to come back together, a moment later; those who came meanwhile are there
//! already. Asking at once would split them into two halves that each wait for the other's turn. So
//! when one turn has followed another without a pause, the next begins when as many are there as the
//! last two turns had, or after a fraction of what a turn takes. A lone caller never waits.

use std::time::Duration;
use tokio::time::Instant;

/// The longest wait, whatever a turn takes: what is slow is not made much slower.
const LONGEST: Duration = Duration::from_millis(2);
/// A wait is at most this part of the last turn.
const PART: u32 = 4;

/// Told how long a turn took that went well.
pub type OnTurn = Box<dyn Fn(Duration) + Send + Sync>;

/// When the next turn begins.
pub struct Pace {
    expected: usize,
    until: Option<Instant>,
    on_turn: OnTurn,
}

impl Pace {
    /// No turn has been yet.
    pub fn new(on_turn: OnTurn) -> Self {
        Self { expected: 0, until: None, on_turn }
    }

    /// A turn that took so long has been answered to so many, while others came who are waiting now.
    pub fn ended(&mut self, took: Duration, answered: usize, waiting: usize) {
        (self.on_turn)(took);
        self.expected = answered + waiting;
        self.until = (self.expected > 1).then(|| Instant::now() + (took / PART).min(LONGEST));
    }

    /// A turn went wrong: nobody was answered, and the next begins as soon as it can.
    pub fn failed(&mut self) {
        self.until = None;
    }

    /// Until when to wait for more, when so many are there; `None` when the turn begins now.
    pub fn wait(&self, there: usize) -> Option<Instant> {
        self.until.filter(|until| there < self.expected && Instant::now() < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_millis(4);

    #[tokio::test(start_paused = true)]
    async fn a_lone_caller_never_waits() {
        let mut pace = Pace::new(Box::new(|_| ()));
        assert_eq!(pace.wait(1), None);
        pace.ended(TURN, 1, 0);
        assert_eq!(pace.wait(1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_were_answered_are_waited_for_a_fraction_of_a_turn() {
        let mut pace = Pace::new(Box::new(|_| ()));
        pace.ended(TURN, 3, 2);
        let until = Instant::now() + TURN / PART;
        assert_eq!(pace.wait(2), Some(until));
        assert_eq!(pace.wait(4), Some(until));
        assert_eq!(pace.wait(5), None);
        tokio::time::advance(TURN / PART).await;
        assert_eq!(pace.wait(2), None);
        pace.ended(Duration::from_secs(1), 3, 0);
        assert_eq!(pace.wait(1), Some(Instant::now() + LONGEST));
        pace.failed();
        assert_eq!(pace.wait(1), None);
    }
}

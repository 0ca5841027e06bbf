//! Tells the log that the shard does not answer, and that it does again: soon, and then seldom.
//!
//! What asks the shard asks again every few milliseconds when that fails. A person wants to know once, why, and
//! for how long.

use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// What is over before that is not worth a line: a leader that changes.
const SOON: Duration = Duration::from_secs(1);
/// Time between two lines.
const AGAIN: Duration = Duration::from_secs(10);

/// Whether, and since when, something fails.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
    told: Option<Instant>,
}

impl Outage {
    /// It failed: `what` does not go on.
    pub fn failed(&mut self, what: &str, error: &impl Display) {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let due = self.told.map_or(since + SOON, |told| told + AGAIN);
        if now >= due {
            self.told = Some(now);
            let seconds = (now - since).as_secs();
            tracing::warn!(%error, seconds, "no answer from the Oxia shard: {what}");
        }
    }

    /// It went well.
    pub fn over(&mut self) {
        if let (Some(since), Some(_)) = (self.since.take(), self.told.take()) {
            tracing::info!(seconds = since.elapsed().as_secs(), "the Oxia shard answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_told_once_in_a_while() {
        let mut outage = Outage::default();
        let mut told = 0;
        for _ in 0..2_500 {
            let before = outage.told;
            outage.failed("nothing", &"no leader");
            told += usize::from(outage.told != before);
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        // After 1, 11 and 21 of 25 seconds.
        assert_eq!(told, 3);
        outage.over();
        assert!(outage.told.is_none());
        // A moment is not worth a line.
        outage.failed("nothing", &"no leader");
        tokio::time::advance(Duration::from_millis(500)).await;
        outage.failed("nothing", &"no leader");
        assert!(outage.told.is_none());
    }
}

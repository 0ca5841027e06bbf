//! Compacting without being asked, as `--auto-compaction-mode` and `-retention` say.
//!
//! When to compact is decided by two small machines without a clock; a task feeds them. Deliberately
//! absent: what a compaction does, which is a command like a client's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leaseway_proto::etcdserverpb::CompactionRequest;
use tokio::time::Instant;

use crate::backend::{Log, ProposeError};
use crate::config::AutoCompaction;
use crate::keyspace::command::{Op, Outcome, internal};
use crate::keyspace::error::Refusal;
use crate::keyspace::reader::Reader;

/// How often the number of revisions is looked at.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);
/// History kept by time is compacted at least this often.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
/// Looks at the revision in a period.
const SAMPLES_PER_PERIOD: u32 = 10;
/// No period is looked at more often than this.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Compacts for as long as the server runs.
pub async fn run<L: Log>(mode: AutoCompaction, log: Arc<L>, reader: Reader) {
    let mut policy = match mode {
        AutoCompaction::Off => return,
        AutoCompaction::Periodic(period) => Policy::Periodic(Periodic::new(period)),
        AutoCompaction::Revision(kept) => Policy::Revision(ByRevision { kept, last: 0 }),
    };
    let started = Instant::now();
    loop {
        policy.sample(reader.view().now().visible.revision);
        tokio::time::sleep(policy.interval()).await;
        let now = reader.view().now().visible.revision;
        let Some(revision) = policy.due(started.elapsed(), now) else { continue };
        tracing::info!(revision, mode = ?mode, "starting auto compaction");
        let request = CompactionRequest { revision, physical: false };
        let began = Instant::now();
        let outcome = match log.propose(internal(Op::Compact(request))).await {
            // A client may have been quicker.
            Ok(Outcome { reply: Ok(_) | Err(Refusal::Compacted), .. }) => Ok(()),
            Ok(Outcome { reply: Err(refusal), .. }) => Err(refusal.to_string()),
            Err(error @ ProposeError::TimedOut) => Err(error.to_string()),
            // So has everything else.
            Err(ProposeError::Stopped) => return,
        };
        match outcome {
            Ok(()) => {
                policy.done(started.elapsed(), revision);
                tracing::info!(revision, took = ?began.elapsed(), "completed auto compaction");
            }
            Err(error) => {
                tracing::warn!(revision, error, "auto compaction failed, and is tried again");
            }
        }
    }
}

enum Policy {
    Periodic(Periodic),
    Revision(ByRevision),
}

impl Policy {
    fn interval(&self) -> Duration {
        match self {
            Policy::Periodic(policy) => policy.interval,
            Policy::Revision(_) => REVISION_INTERVAL,
        }
    }

    fn sample(&mut self, revision: i64) {
        if let Policy::Periodic(policy) = self {
            policy.sample(revision);
        }
    }

    fn due(&self, elapsed: Duration, current: i64) -> Option<i64> {
        match self {
            Policy::Periodic(policy) => policy.due(elapsed),
            Policy::Revision(policy) => policy.due(current),
        }
    }

    fn done(&mut self, elapsed: Duration, revision: i64) {
        match self {
            Policy::Periodic(policy) => {
                (policy.last, policy.wait_until) =
                    (revision, elapsed + policy.period.min(PERIOD_MAX));
            }
            Policy::Revision(policy) => policy.last = revision,
        }
    }
}

/// Keeps the history of a period: the revision of one period ago is compacted.
///
/// A period of 5 s: the revision is sampled every 0.5 s. After 5 s of samples the oldest of them is
/// compacted; then every 5 s, or every hour when the period is longer. A failed compaction is tried
/// again at the next sample, with what is the oldest then.
struct Periodic {
    period: Duration,
    interval: Duration,
    samples_max: usize,
    samples: VecDeque<i64>,
    last: i64,
    wait_until: Duration,
}

impl Periodic {
    fn new(period: Duration) -> Periodic {
        let interval = (period.min(PERIOD_MAX) / SAMPLES_PER_PERIOD).max(SAMPLE_INTERVAL_MIN);
        // A century in samples of six minutes is below a million.
        let samples = period.as_nanos() / interval.as_nanos();
        let samples_max = usize::try_from(samples).unwrap_or(usize::MAX).saturating_add(1);
        let samples = VecDeque::new();
        Periodic { period, interval, samples_max, samples, last: 0, wait_until: period }
    }

    fn sample(&mut self, revision: i64) {
        self.samples.push_back(revision);
        if self.samples.len() > self.samples_max {
            self.samples.pop_front();
        }
    }

    fn due(&self, elapsed: Duration) -> Option<i64> {
        let oldest = *self.samples.front()?;
        (elapsed >= self.wait_until && oldest != self.last).then_some(oldest)
    }
}

/// Keeps a number of revisions.
struct ByRevision {
    kept: i64,
    last: i64,
}

impl ByRevision {
    fn due(&self, current: i64) -> Option<i64> {
        let revision = current.saturating_sub(self.kept);
        (revision > 0 && revision != self.last).then_some(revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fake::{FakeLog, keyspace_after, outcome};
    use crate::keyspace::command::Reply;

    /// Runs a policy over simulated time; each sample interval `writes` revisions are made.
    fn simulate(
        period: Duration,
        steps: u32,
        writes: i64,
        fails: impl Fn(u32) -> bool,
    ) -> Vec<(Duration, i64)> {
        let mut policy = Policy::Periodic(Periodic::new(period));
        let (mut elapsed, mut revision, mut compacted) = (Duration::ZERO, 1, Vec::new());
        for step in 0..steps {
            policy.sample(revision);
            elapsed += policy.interval();
            revision += writes;
            if let Some(due) = policy.due(elapsed, revision) {
                compacted.push((elapsed, due));
                if !fails(step) {
                    policy.done(elapsed, due);
                }
            }
        }
        compacted
    }

    #[test]
    fn what_is_older_than_a_period_is_compacted_every_period() {
        let seconds = Duration::from_secs;
        let seen = simulate(seconds(10), 40, 1, |_| false);
        // At 10 s the oldest sample is that of the start; later, that of ten seconds ago.
        assert_eq!(
            seen,
            [(seconds(10), 1), (seconds(20), 10), (seconds(30), 20), (seconds(40), 30)]
        );
    }

    #[test]
    fn a_long_period_is_compacted_every_hour() {
        let hours = |n: u64| Duration::from_secs(n * 3600);
        let seen = simulate(hours(3), 60, 1, |_| false);
        let times: Vec<Duration> = seen.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [hours(3), hours(4), hours(5), hours(6)]);
        assert_eq!(seen[3].1 - seen[2].1, 10, "an hour's worth: {seen:?}");
    }

    #[test]
    fn nothing_new_is_not_compacted_again() {
        assert_eq!(simulate(Duration::from_secs(1), 100, 0, |_| false).len(), 1);
    }

    #[test]
    fn a_failure_is_tried_again_at_the_next_sample() {
        let seen = simulate(Duration::from_secs(10), 12, 1, |step| step == 9);
        let times: Vec<u64> = seen.iter().map(|(at, _)| at.as_secs()).collect();
        assert_eq!(times, [10, 11]);
    }

    #[test]
    fn a_number_of_revisions_is_kept() {
        let mut policy = ByRevision { kept: 100, last: 0 };
        assert_eq!(policy.due(100), None);
        assert_eq!(policy.due(150), Some(50));
        policy.last = 50;
        assert_eq!(policy.due(150), None);
        assert_eq!(policy.due(151), Some(51));
        let everything = ByRevision { kept: i64::MAX, last: 0 };
        assert_eq!(everything.due(i64::MAX), None);
    }

    #[test]
    fn a_tiny_period_does_not_spin() {
        let policy = Periodic::new(Duration::from_nanos(1));
        assert_eq!(policy.interval, SAMPLE_INTERVAL_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_backend_is_not_the_end() {
        let done = outcome(Reply::Compact(1));
        let log = FakeLog::new([Err(ProposeError::TimedOut), Ok(done)]);
        let mode = AutoCompaction::Periodic(Duration::from_secs(10));
        let run = run(mode, log.clone(), keyspace_after([]));
        // The second time it has been done, and there is nothing new to compact.
        tokio::time::timeout(Duration::from_secs(60), run).await.expect_err("it goes on");
        assert_eq!(log.asked().len(), 2);
        let log = FakeLog::new([]);
        let run = super::run(mode, log.clone(), keyspace_after([]));
        tokio::time::timeout(Duration::from_secs(60), run).await.expect("the backend has stopped");
        assert_eq!(log.asked().len(), 1);
    }
}

//! Bounds how many lines of the log clients can cause: of many like events in an interval the first few get a line
//! each, and all others one together, at its end.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Events of an interval that get a line each.
const FIRST: u64 = 10;
/// Time from the first event to the line about those that got none.
const INTERVAL: Duration = Duration::from_secs(60);

/// Counts events of one kind.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    interval: Arc<Mutex<Interval>>,
}

#[derive(Debug, Default)]
struct Interval {
    begun: Option<Instant>,
    events: u64,
}

impl Lines {
    /// One more event: `tell` writes its line, `sum_up` one about so many that got none. Which of them is
    /// called, and when, is decided here.
    pub fn event(&self, tell: impl FnOnce(), sum_up: fn(u64)) {
        let mut interval = self.interval.lock();
        let now = Instant::now();
        // One with events that got no line is ended by the task that tells of them.
        if interval.events <= FIRST && interval.begun.is_none_or(|begun| now >= begun + INTERVAL) {
            *interval = Interval { begun: Some(now), events: 0 };
        }
        interval.events += 1;
        let (events, end) = (interval.events, interval.begun.unwrap_or(now) + INTERVAL);
        drop(interval);
        if events <= FIRST {
            tell();
        } else if events == FIRST + 1
            && let Ok(runtime) = Handle::try_current()
        {
            let interval = self.interval.clone();
            runtime.spawn(async move {
                tokio::time::sleep_until(end).await;
                let ended = std::mem::take(&mut *interval.lock());
                sum_up(ended.events - FIRST);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static SUMMED_UP: AtomicU64 = AtomicU64::new(0);

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_a_few_lines() {
        let (lines, mut told) = (Lines::default(), 0);
        let mut happen = |times: usize| {
            for _ in 0..times {
                lines.event(
                    || told += 1,
                    |more| {
                        SUMMED_UP.fetch_add(more, Ordering::Relaxed);
                    },
                );
            }
            told
        };
        let summed_up = || SUMMED_UP.load(Ordering::Relaxed);
        assert_eq!(happen(3), 3);
        tokio::time::advance(INTERVAL / 2).await;
        assert_eq!((happen(10_000), summed_up()), (10, 0));
        tokio::time::sleep(INTERVAL).await;
        assert_eq!(summed_up(), 9_993, "told though nothing more happens");
        // Then it begins anew.
        assert_eq!(happen(10), 20);
        tokio::time::sleep(2 * INTERVAL).await;
        assert_eq!((happen(11), summed_up()), (30, 9_993), "there was nothing to sum up");
        tokio::time::sleep(2 * INTERVAL).await;
        assert_eq!((happen(1), summed_up()), (31, 9_994));
    }
}

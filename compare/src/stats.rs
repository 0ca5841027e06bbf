//! Latencies, counts and medians.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest latency told apart; anything above counts as this.
const LONGEST_MICROS: u64 = 600_000_000;

/// Percentiles of one series of latencies, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Latencies with three significant digits.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> Self {
        // Fails only for bounds or digits out of range; these are constants within it.
        Self(Histogram::new_with_bounds(1, LONGEST_MICROS, 3).expect("constant bounds"))
    }

    pub fn add(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(micros);
    }

    /// None while nothing has been added.
    pub fn summary(&self) -> Option<Latency> {
        if self.0.is_empty() {
            return None;
        }
        let at = |quantile| self.0.value_at_quantile(quantile) as f64;
        Some(Latency { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: self.0.max() as f64 })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Phase {
    WarmUp,
    Measuring,
    Done,
}

/// Collects what all clients of a row see. Operations count only if they end between
/// [`Recorder::start`] and [`Recorder::stop`], which is also when CPU time is read.
#[derive(Clone)]
pub struct Recorder(Arc<Shared>);

struct Shared {
    phase: AtomicU8,
    totals: Mutex<Totals>,
}

struct Totals {
    operations: u64,
    latencies: Latencies,
}

impl Recorder {
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            phase: AtomicU8::new(Phase::WarmUp as u8),
            totals: Mutex::new(Totals { operations: 0, latencies: Latencies::new() }),
        }))
    }

    pub fn start(&self) {
        self.0.phase.store(Phase::Measuring as u8, Ordering::Relaxed);
    }

    pub fn stop(&self) {
        self.0.phase.store(Phase::Done as u8, Ordering::Relaxed);
    }

    pub fn is_measuring(&self) -> bool {
        self.0.phase.load(Ordering::Relaxed) == Phase::Measuring as u8
    }

    pub fn is_done(&self) -> bool {
        self.0.phase.load(Ordering::Relaxed) == Phase::Done as u8
    }

    /// Counts one answer that took `latency` and stands for `operations` operations.
    pub fn record(&self, latency: Duration, operations: u64) {
        if self.is_measuring() {
            let mut totals = self.totals();
            totals.operations += operations;
            totals.latencies.add(latency);
        }
    }

    /// Operations so far, and their latencies.
    pub fn totals_so_far(&self) -> (u64, Option<Latency>) {
        let totals = self.totals();
        (totals.operations, totals.latencies.summary())
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.0.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The middle value, or the mean of the two middle ones. None for an empty list.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted.get(middle).copied();
    }
    let below = sorted.get(middle.checked_sub(1)?)?;
    Some((below + sorted.get(middle)?) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut latencies = Latencies::new();
        for micros in 1..=10_000 {
            latencies.add(Duration::from_micros(micros));
        }
        let summary = latencies.summary().unwrap();
        for (found, expected) in
            [(summary.p50, 5_000.0), (summary.p99, 9_900.0), (summary.p999, 9_990.0)]
        {
            assert!((found - expected).abs() <= expected / 1_000.0, "{found} for {expected}");
        }
    }

    #[test]
    fn an_endless_latency_saturates() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.summary(), None);
        latencies.add(Duration::MAX);
        assert!(latencies.summary().unwrap().max >= LONGEST_MICROS as f64 * 0.999);
    }

    #[test]
    fn only_the_measured_phase_counts() {
        let recorder = Recorder::new();
        recorder.record(Duration::from_millis(1), 1);
        assert_eq!(recorder.totals_so_far(), (0, None));
        recorder.start();
        recorder.record(Duration::from_millis(2), 5);
        recorder.stop();
        recorder.record(Duration::from_millis(3), 1);
        let (operations, latency) = recorder.totals_so_far();
        assert_eq!(operations, 5);
        assert!((latency.unwrap().p50 - 2_000.0).abs() < 3.0);
        assert!(recorder.is_done());
    }
}

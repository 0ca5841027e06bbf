//! Counters, gauges and histograms: plain atomics, so that counting costs next to nothing.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Something that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Something that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    /// Adds to the value; a negative number takes away.
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// One more, until the guard is dropped.
    pub fn hold(&self) -> Held<'_> {
        self.add(1);
        Held(self)
    }

    /// The value now.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Counts one in a [`Gauge`] while it lives.
#[derive(Debug)]
pub struct Held<'a>(&'a Gauge);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// Bounds of buckets, in seconds, rising.
pub type Bounds = &'static [f64];

/// etcd's bounds for requests and for what touches the disk: 1 ms to 8.192 s, doubling.
pub const DISK_BOUNDS: Bounds = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192,
];
/// etcd's bounds for hashes of everything: 10 ms to 164 s, doubling.
pub const HASH_BOUNDS: Bounds = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
];
/// The customary bounds for requests, as in etcd's histogram of gRPC methods.
pub const REQUEST_BOUNDS: Bounds = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// etcd's bounds for times of leases: 1 s to about 97 days, doubling.
pub const LEASE_BOUNDS: Bounds = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    16384.0, 32768.0, 65536.0, 131072.0, 262144.0, 524288.0, 1048576.0, 2097152.0, 4194304.0,
    8388608.0,
];

/// How observed values are spread.
#[derive(Debug)]
pub struct Histogram {
    bounds: Bounds,
    /// One bucket for each bound and a last one for all above.
    buckets: Box<[AtomicU64]>,
    /// Sum in millionths, which keeps it exact enough and in one atomic.
    sum_millionths: AtomicU64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(bounds: Bounds) -> Histogram {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, buckets, sum_millionths: AtomicU64::new(0) }
    }

    /// Records a duration.
    pub fn observe(&self, taken: Duration) {
        self.record(taken.as_secs_f64(), u64::try_from(taken.as_micros()).unwrap_or(u64::MAX));
    }

    /// Records how long a future takes; nothing if it is dropped.
    pub async fn time<T>(&self, future: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let output = future.await;
        self.observe(started.elapsed());
        output
    }

    /// Records a whole number of seconds.
    pub fn observe_seconds(&self, seconds: u64) {
        self.record(seconds as f64, seconds.saturating_mul(1_000_000));
    }

    fn record(&self, value: f64, millionths: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_millionths.fetch_add(millionths, Relaxed);
    }

    /// Whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.load(Relaxed) == 0)
    }

    /// The bounds with the number of values at or below each, the number of all, and their sum.
    pub fn snapshot(&self) -> Snapshot {
        let mut below = 0;
        let cumulative: Vec<u64> = self
            .buckets
            .iter()
            .map(|bucket| {
                below += bucket.load(Relaxed);
                below
            })
            .collect();
        let sum = self.sum_millionths.load(Relaxed) as f64 / 1e6;
        Snapshot { bounds: self.bounds, cumulative, count: below, sum }
    }
}

/// What a [`Histogram`] held at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// The bounds.
    pub bounds: Bounds,
    /// For each bound, and then for infinity, the number of values not above it.
    pub cumulative: Vec<u64>,
    /// The number of values.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_it() {
        let histogram = Histogram::new(DISK_BOUNDS);
        histogram.observe(Duration::from_millis(1));
        histogram.observe(Duration::from_micros(1001));
        histogram.observe(Duration::from_secs(60));
        let seen = histogram.snapshot();
        assert_eq!(&seen.cumulative[..3], [1, 2, 2]);
        assert_eq!(seen.cumulative[DISK_BOUNDS.len() - 1], 2);
        assert_eq!((seen.cumulative[DISK_BOUNDS.len()], seen.count), (3, 3));
        assert!((seen.sum - 60.002_001).abs() < 1e-9, "{}", seen.sum);
    }

    #[test]
    fn a_held_gauge_falls_back() {
        let gauge = Gauge::default();
        {
            let _first = gauge.hold();
            let _second = gauge.hold();
            assert_eq!(gauge.get(), 2);
        }
        assert_eq!(gauge.get(), 0);
    }
}

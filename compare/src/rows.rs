//! The rows of the comparison, and how large each is.

use anyhow::{Result, bail};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub title: &'static str,
    /// What is counted, in the plural.
    pub operations: &'static str,
    pub workload: Workload,
}

#[derive(Clone, Copy, Debug)]
pub enum Workload {
    Put { clients: usize },
    Get { clients: usize, serializable: bool },
    Mixed { clients: usize },
    Range { clients: usize, keys: u64, streamed: bool },
    Swap { clients: usize, contended: bool },
    WatchFanOut { writers: usize, every: Option<Duration> },
    WatchIdle,
    LeaseGrant { clients: usize },
    KeepAlive { streams: usize },
    Expiry,
    Store(StoreShape),
}

#[derive(Clone, Copy, Debug)]
pub enum StoreShape {
    ManyKeys,
    ManyBytes,
}

#[derive(Clone, Copy, Debug)]
pub struct StoreSize {
    pub keys: u64,
    pub value_bytes: usize,
}

/// What `--quick` makes smaller.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub warm_up: Duration,
    pub measured: Duration,
    /// Keys that puts and gets choose from.
    pub keys: u64,
    pub value_bytes: usize,
    pub watchers: usize,
    pub idle_watchers: usize,
    pub leases: usize,
    /// Must leave time to grant all leases, attach a key to each and renew them.
    pub lease_seconds: u64,
    many_keys: StoreSize,
    many_bytes: StoreSize,
}

impl Sizes {
    pub fn full(measured: Duration) -> Self {
        Self {
            warm_up: Duration::from_secs(2).min(measured),
            measured,
            keys: 100_000,
            value_bytes: 256,
            watchers: 1_000,
            idle_watchers: 10_000,
            leases: 10_000,
            lease_seconds: 20,
            many_keys: StoreSize { keys: 1_000_000, value_bytes: 256 },
            many_bytes: StoreSize { keys: 262_144, value_bytes: 4_096 },
        }
    }

    pub fn quick(measured: Duration) -> Self {
        Self {
            warm_up: Duration::from_millis(300).min(measured),
            leases: 2_000,
            lease_seconds: 5,
            many_keys: StoreSize { keys: 100_000, value_bytes: 256 },
            many_bytes: StoreSize { keys: 16_384, value_bytes: 4_096 },
            ..Self::full(measured)
        }
    }

    pub fn store(&self, shape: StoreShape) -> StoreSize {
        match shape {
            StoreShape::ManyKeys => self.many_keys,
            StoreShape::ManyBytes => self.many_bytes,
        }
    }
}

const fn row(
    name: &'static str,
    title: &'static str,
    operations: &'static str,
    workload: Workload,
) -> Row {
    Row { name, title, operations, workload }
}

/// In the order in which they are run and reported.
#[rustfmt::skip]
pub const ROWS: [Row; 25] = [
    row("put-1", "put 256 B, 1 client", "puts", Workload::Put { clients: 1 }),
    row("put-100", "put 256 B, 100 clients", "puts", Workload::Put { clients: 100 }),
    row("put-1000", "put 256 B, 1,000 clients", "puts", Workload::Put { clients: 1_000 }),
    row("get-1", "linearizable get, 1 client", "gets", Workload::Get { clients: 1, serializable: false }),
    row("get-100", "linearizable get, 100 clients", "gets", Workload::Get { clients: 100, serializable: false }),
    row("get-1000", "linearizable get, 1,000 clients", "gets", Workload::Get { clients: 1_000, serializable: false }),
    row("serializable-get-1", "serializable get, 1 client", "gets", Workload::Get { clients: 1, serializable: true }),
    row("serializable-get-100", "serializable get, 100 clients", "gets", Workload::Get { clients: 100, serializable: true }),
    row("serializable-get-1000", "serializable get, 1,000 clients", "gets", Workload::Get { clients: 1_000, serializable: true }),
    row("range-1000", "range of 1,000 keys, 10 clients", "ranges", Workload::Range { clients: 10, keys: 1_000, streamed: false }),
    row("range-100000", "range of 100,000 keys, 1 client", "ranges", Workload::Range { clients: 1, keys: 100_000, streamed: false }),
    row("stream-1000", "RangeStream of 1,000 keys, 10 clients", "ranges", Workload::Range { clients: 10, keys: 1_000, streamed: true }),
    row("stream-100000", "RangeStream of 100,000 keys, 1 client", "ranges", Workload::Range { clients: 1, keys: 100_000, streamed: true }),
    row("swap-own", "compare-and-swap, 100 clients, a key each", "transactions", Workload::Swap { clients: 100, contended: false }),
    row("swap-contended", "compare-and-swap, 100 clients, one key", "transactions", Workload::Swap { clients: 100, contended: true }),
    row("mixed", "90% gets, 10% puts, 100 clients", "operations", Workload::Mixed { clients: 100 }),
    row("watch-fan-out", "1,000 watchers, 10 puts at a time", "events delivered", Workload::WatchFanOut { writers: 10, every: None }),
    row("watch-latency", "1,000 watchers, 20 puts a second", "events delivered", Workload::WatchFanOut { writers: 1, every: Some(Duration::from_millis(50)) }),
    row("watch-idle", "creating idle watchers", "watchers", Workload::WatchIdle),
    row("lease-grant", "lease grant, 100 clients", "leases", Workload::LeaseGrant { clients: 100 }),
    row("keep-alive-1", "lease keep-alive, 1 stream", "renewals", Workload::KeepAlive { streams: 1 }),
    row("keep-alive-100", "lease keep-alive, 100 streams", "renewals", Workload::KeepAlive { streams: 100 }),
    row("expiry", "leases that end together, while 10 clients put", "leases", Workload::Expiry),
    row("store-keys", "loading a store of many keys", "keys", Workload::Store(StoreShape::ManyKeys)),
    row("store-bytes", "loading a store of many bytes", "keys", Workload::Store(StoreShape::ManyBytes)),
];

/// What says most about one process, and little about a cluster.
const SINGLE: [&str; 3] = ["range", "stream", "store"];

/// Rows by name, or by what a name begins with up to a hyphen (`put`, `watch`). If none are given, all,
/// or for clusters all but those about one process.
pub fn select(wanted: &[String], single: bool) -> Result<Vec<Row>> {
    for name in wanted {
        if !ROWS.iter().any(|row| belongs(row, name)) {
            let known: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            bail!("no row {name:?}; there are {}", known.join(", "));
        }
    }
    let by_default = |row: &Row| single || !SINGLE.iter().any(|name| belongs(row, name));
    let selected = |row: &&Row| match wanted {
        [] => by_default(row),
        wanted => wanted.iter().any(|name| belongs(row, name)),
    };
    Ok(ROWS.iter().filter(selected).copied().collect())
}

fn belongs(row: &Row, name: &str) -> bool {
    row.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: &[&str]) -> Vec<&'static str> {
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        select(&wanted, true).unwrap().iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_are_selected_by_name_or_beginning() {
        assert_eq!(names(&["put-1"]), ["put-1"]);
        assert_eq!(names(&["put"]), ["put-1", "put-100", "put-1000"]);
        assert_eq!(names(&["expiry", "keep-alive"]), ["keep-alive-1", "keep-alive-100", "expiry"]);
        assert_eq!(names(&[]).len(), ROWS.len());
        assert!(select(&["pu".to_owned()], true).is_err());
        let cluster = select(&[], false).unwrap();
        assert!(cluster.iter().all(|row| !row.name.starts_with("store")));
        assert!(cluster.len() > 10);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
    }
}

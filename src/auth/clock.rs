//! The wall clock: times in tokens are for other processes to read.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "a token's time is checked by other processes and after restarts, which share no \
              monotonic clock; nothing in the keyspace depends on it"
)]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

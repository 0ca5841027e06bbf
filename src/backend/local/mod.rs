//! The embedded backend: one process, one data directory.
//!
//! [`log`] is a queue in front of the keyspace, made durable group by group in a log file ([`wal`]);
//! [`sessions`] are deadlines in memory, started anew from the lease table when the process starts.
//! [`recover`] brings a store up to its log when the process starts.

pub mod log;
#[cfg(test)]
mod log_tests;
mod logger;
pub mod recover;
pub mod sessions;
pub mod wal;

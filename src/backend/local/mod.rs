//! The embedded backend: one process, one data directory.
//!
//! [`log`] is a queue in front of the keyspace with one durable commit per group; [`sessions`] are
//! deadlines in memory, started anew from the lease table when the process starts.

pub mod log;
pub mod sessions;

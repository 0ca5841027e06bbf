//! The keyspace: what a command does.
//!
//! A pure, deterministic machine: commands in; responses and events out. It owns revisions,
//! transactions, leases' keys and alarms. Deliberately absent: clocks, randomness, threads,
//! network, local configuration, and all I/O besides the storage it is handed.

pub mod event;

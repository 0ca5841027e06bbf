//! The keyspace: what a command does.
//!
//! A pure, deterministic machine: commands in; responses and events out. It owns revisions,
//! transactions, leases' keys, alarms, users and roles. Deliberately absent: clocks, randomness, threads,
//! network, local configuration, and all I/O besides the storage it is handed.
//!
//! [`machine`] applies commands for the one writer; [`reader`] answers reads at published revisions.

pub mod alarms;
pub mod auth;
pub mod command;
pub mod error;
pub mod event;
pub mod gateways;
pub mod hash;
pub mod index;
pub mod leases;
pub mod load;
pub mod machine;
pub mod query;
pub mod range;
pub mod reader;
pub mod staging;
pub mod txn;
pub mod view;

#[cfg(test)]
mod model_tests;

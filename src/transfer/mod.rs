//! Moving in from etcd and out again: its database file, read and written.
//!
//! | part | what it does |
//! |---|---|
//! | [`bolt`] | the file's format: pages, trees, checksums |
//! | [`schema`] | what etcd keeps in it |
//! | [`export`] | a storage snapshot into a file |
//! | [`import`] | a file into an empty store |
//! | [`source`] | the file that is read, and the checks before |
//! | [`raft_log`] | whether a stopped etcd has written more than is in its file |
//! | [`into`] | what is filled, a data directory or a keyspace |
//! | [`target`] | the data directory that is filled: whole, or not at all |
//! | [`cluster`] | the keyspace on Oxia that is filled |
//! | [`remote`] | a running server: connections, TLS, users |
//! | [`fetch`] | a file from a running server |
//! | [`follow`] | what changes at that server afterwards, until the cut-over |
//! | [`command`] | `leaseway import`, `export` and `restore`; [`help`], what they tell of themselves |
//!
//! Relies on the storage tables alone. Deliberately absent: the log and what commands mean, so that
//! nothing here depends on how a keyspace came to be what it is.

pub mod bolt;
mod cluster;
pub mod command;
pub mod export;
mod fetch;
mod follow;
pub mod help;
pub mod import;
mod into;
pub mod progress;
pub mod raft_log;
mod remote;
#[allow(missing_docs)]
pub mod schema;
pub mod source;
pub mod target;
pub mod temporary;

#[cfg(test)]
mod tests;

//! Leaseway: a server that speaks the etcd v3 API.

pub mod config;
pub mod keyspace;
pub mod watch;

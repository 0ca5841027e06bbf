//! Leaseway: a server that speaks the etcd v3 API.

pub mod config;
pub mod data_dir;
pub mod gateway;
pub mod keyspace;
pub mod node;
pub mod telemetry;
pub mod watch;

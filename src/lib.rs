//! Leaseway: a server that speaks the etcd v3 API. ARCHITECTURE.md has the map.

pub mod audit;
pub mod auth;
pub mod auto_compaction;
pub mod backend;
pub mod config;
pub mod data_dir;
#[cfg(test)]
pub mod fuzzing;
pub mod gateway;
pub mod health_check;
pub mod keyspace;
pub mod lease;
pub mod lives;
pub mod node;
pub mod seams;
pub mod storage;
pub mod supervisor;
pub mod telemetry;
pub mod tls;
pub mod transfer;
pub mod vital;
pub mod watch;

//! Logs, metrics and traces.
//!
//! Metrics are a value that is passed in: two servers in one process do not share counters. The
//! log belongs to the process. Deliberately absent: any decision; nothing here changes an answer.

pub mod exposition;
pub mod grpc;
mod health;
pub mod instrument;
pub mod lines;
pub mod log;
pub mod methods;
pub mod metrics;
pub mod prefixes;
mod process;
mod rotate;
mod text;
pub mod trace;

pub use instrument::{Counter, Gauge, Histogram};
pub use metrics::Metrics;

//! The workloads, and which row runs which.

mod expiry;
mod kv;
mod lease;
mod range;
mod store;
mod swap;
mod watch;

use crate::load::{Measured, Window};
use crate::rows::{Sizes, Workload};
use crate::servers::Server;
use anyhow::Result;
use serde::Serialize;

/// Something that only one kind of row measures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Extra {
    pub name: &'static str,
    pub value: f64,
    pub unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Bytes,
    Count,
    Microseconds,
    Percent,
    PerSecond,
    Seconds,
}

#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub measured: Measured,
    pub extras: Vec<Extra>,
}

impl Outcome {
    fn plain(measured: Measured) -> Self {
        Self { measured, extras: Vec::new() }
    }
}

fn extra(name: &'static str, value: f64, unit: Unit) -> Extra {
    Extra { name, value, unit }
}

/// Prepares a fresh `server` for the workload and runs it. `server` may be restarted.
pub async fn run(workload: Workload, server: &mut Server, sizes: &Sizes) -> Result<Outcome> {
    let window = Window { warm_up: sizes.warm_up, measured: sizes.measured };
    match workload {
        Workload::Put { clients } => kv::put(server, window, sizes, clients).await,
        Workload::Get { clients, serializable } => {
            kv::get(server, window, sizes, clients, serializable).await
        }
        Workload::Mixed { clients } => kv::mixed(server, window, sizes, clients).await,
        Workload::Range { clients, keys, streamed } => {
            range::run(server, window, sizes, range::Shape { clients, keys, streamed }).await
        }
        Workload::Swap { clients, contended } => {
            swap::run(server, window, clients, contended).await
        }
        Workload::WatchFanOut { writers, every } => {
            watch::fan_out(server, window, sizes, watch::Pace { writers, every }).await
        }
        Workload::WatchIdle => watch::idle(server, sizes).await,
        Workload::LeaseGrant { clients } => lease::grant(server, window, clients).await,
        Workload::KeepAlive { streams } => lease::keep_alive(server, window, streams).await,
        Workload::Expiry => expiry::run(server, sizes).await,
        Workload::Store(shape) => store::run(server, sizes.store(shape)).await,
    }
}

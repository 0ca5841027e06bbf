//! A large store: loading it, its memory, and how long a restart takes.

use super::{Outcome, Unit, extra};
use crate::load::{self, Meter};
use crate::proc;
use crate::requests;
use crate::rows::StoreSize;
use crate::servers::Server;
use anyhow::Result;
use std::time::Duration;

/// Memory is read this long after the last work.
const SETTLE: Duration = Duration::from_secs(3);

/// An operation is one key loaded, in transactions of [`requests::PUTS_PER_LOAD`] puts.
pub async fn run(server: &mut Server, size: StoreSize) -> Result<Outcome> {
    let value = requests::value(size.value_bytes, 0);
    let meter = Meter::start(server)?;
    load::preload(server, size.keys, value).await?;
    let measured = meter.finish(size.keys, None)?;

    tokio::time::sleep(SETTLE).await;
    let loaded = proc::memory_of(&server.pids())?;
    let ready = server.restart().await?;
    tokio::time::sleep(SETTLE).await;
    let restarted = proc::memory_of(&server.pids())?;
    let extras = vec![
        extra("resident after load", loaded.resident as f64, Unit::Bytes),
        extra("anonymous after load", loaded.anonymous as f64, Unit::Bytes),
        extra("start to ready", ready.as_secs_f64(), Unit::Seconds),
        extra("resident after restart", restarted.resident as f64, Unit::Bytes),
        extra("anonymous after restart", restarted.anonymous as f64, Unit::Bytes),
        extra("peak resident since restart", restarted.peak as f64, Unit::Bytes),
        extra("disk after restart", server.disk_bytes()? as f64, Unit::Bytes),
    ];
    Ok(Outcome { measured, extras })
}

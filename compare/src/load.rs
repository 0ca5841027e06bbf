//! Driving a server with many clients and measuring what it does meanwhile.

use crate::proc;
use crate::requests::{self, PUTS_PER_LOAD, path};
use crate::servers::Server;
use crate::stats::{Latency, Recorder};
use crate::wire::{CallError, Caller, Method};
use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use serde::Serialize;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// As many clients share a connection as in etcd's own benchmark with its usual arguments.
const CLIENTS_PER_CONNECTION: usize = 10;
const LOADERS: usize = 16;

/// How long a row warms up and how long it counts.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub warm_up: Duration,
    pub measured: Duration,
}

/// What one server did in one row.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub operations: u64,
    pub seconds: f64,
    pub latency_us: Option<Latency>,
    pub server_cpu_seconds: f64,
    pub generator_cpu_seconds: f64,
    /// None where the kernel does not let the peak be reset.
    pub peak_resident_bytes: Option<u64>,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    pub fn server_cpu_us(&self) -> f64 {
        self.server_cpu_seconds * 1e6 / self.operations as f64
    }

    pub fn generator_cpu_us(&self) -> f64 {
        self.generator_cpu_seconds * 1e6 / self.operations as f64
    }
}

/// CPU and memory between two points in time.
pub struct Meter {
    pids: Vec<u32>,
    began: Instant,
    server_cpu: Duration,
    generator_cpu: Duration,
    peak_is_fresh: bool,
}

impl Meter {
    pub fn start(server: &Server) -> Result<Self> {
        let pids = server.pids();
        Ok(Self {
            peak_is_fresh: pids.iter().all(|pid| proc::reset_peak(*pid)),
            server_cpu: proc::cpu_time_of(&pids)?,
            pids,
            generator_cpu: proc::cpu_time(std::process::id())?,
            began: Instant::now(),
        })
    }

    pub fn finish(self, operations: u64, latency_us: Option<Latency>) -> Result<Measured> {
        let seconds = self.began.elapsed().as_secs_f64();
        let server_cpu = proc::cpu_time_of(&self.pids)?.saturating_sub(self.server_cpu);
        let generator_cpu = proc::cpu_time(std::process::id())?.saturating_sub(self.generator_cpu);
        let peak = proc::memory_of(&self.pids)?.peak;
        if operations == 0 {
            bail!("no operation ended within {seconds:.1} s");
        }
        Ok(Measured {
            operations,
            seconds,
            latency_us,
            server_cpu_seconds: server_cpu.as_secs_f64(),
            generator_cpu_seconds: generator_cpu.as_secs_f64(),
            peak_resident_bytes: self.peak_is_fresh.then_some(peak),
        })
    }
}

/// One client's next operation.
pub trait Operation: Send + 'static {
    /// Performs it and says how many operations it stands for.
    fn perform(&mut self) -> impl Future<Output = Result<u64, CallError>> + Send;
}

pub async fn connect(server: &Server, connections: usize) -> Result<Vec<Caller>> {
    let mut callers = Vec::with_capacity(connections);
    for _ in 0..connections {
        callers.push(Caller::connect(server.address()).await?);
    }
    Ok(callers)
}

/// The connections that `clients` clients share.
pub async fn connect_for(server: &Server, clients: usize) -> Result<Vec<Caller>> {
    connect(server, clients.div_ceil(CLIENTS_PER_CONNECTION)).await
}

/// Runs each client in a closed loop: the next operation starts when the last one has ended.
pub async fn closed_loop<O: Operation>(
    server: &Server,
    window: Window,
    clients: Vec<O>,
) -> Result<Measured> {
    let recorder = Recorder::new();
    let mut tasks = JoinSet::new();
    for client in clients {
        spawn_client(&mut tasks, &recorder, client);
    }
    observe(server, window, &recorder, tasks).await
}

/// Adds one closed-loop client to `tasks`. It ends when the recorder is done.
pub fn spawn_client<O: Operation>(
    tasks: &mut JoinSet<Result<(), CallError>>,
    recorder: &Recorder,
    mut client: O,
) {
    let recorder = recorder.clone();
    tasks.spawn(async move {
        while !recorder.is_done() {
            let began = Instant::now();
            let operations = client.perform().await?;
            recorder.record(began.elapsed(), operations);
        }
        Ok(())
    });
}

/// Lets `tasks` work through the window while they report to `recorder`, then ends them.
pub async fn observe(
    server: &Server,
    window: Window,
    recorder: &Recorder,
    mut tasks: JoinSet<Result<(), CallError>>,
) -> Result<Measured> {
    let watched = async {
        tokio::time::sleep(window.warm_up).await;
        let meter = Meter::start(server)?;
        recorder.start();
        tokio::time::sleep(window.measured).await;
        recorder.stop();
        let (operations, latency) = recorder.totals_so_far();
        meter.finish(operations, latency)
    };
    let outcome = unless_failed(&mut tasks, watched).await;
    tasks.shutdown().await;
    outcome
}

/// Waits for `work`, unless one of `tasks` fails first.
pub async fn unless_failed<T>(
    tasks: &mut JoinSet<Result<(), CallError>>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let failure = async {
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return anyhow!(error),
                Err(error) => return anyhow!(error),
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        result = work => result,
        error = failure => Err(error),
    }
}

/// Puts the keys 0 to `keys`, several transactions at a time.
pub async fn preload(server: &Server, keys: u64, value: Bytes) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let callers = connect(server, LOADERS / 4).await?;
    let mut tasks = JoinSet::new();
    for caller in callers.iter().cycle().take(LOADERS) {
        let (mut caller, next, value) = (caller.clone(), next.clone(), value.clone());
        tasks.spawn(async move {
            let txn = Method::new(path::TXN);
            loop {
                let first = next.fetch_add(PUTS_PER_LOAD, Ordering::Relaxed);
                if first >= keys {
                    return Ok::<_, CallError>(());
                }
                let end = keys.min(first + PUTS_PER_LOAD);
                caller.unary(&txn, requests::load(first, end, &value)).await?;
            }
        });
    }
    join_all(tasks).await
}

/// Waits for all of `tasks`, or for the first that fails.
pub async fn join_all(mut tasks: JoinSet<Result<(), CallError>>) -> Result<()> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

//! Starting, watching and stopping the servers under test.
//!
//! Owns the child processes and their data directories. Every server gets the same flags, free ports
//! of 127.0.0.1 and an empty directory; it is stopped through its own process id.

use crate::requests::{self, path};
use crate::wire::{Caller, Method};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Longest wait for a server to come up, which for a large store includes reading it.
const READY_WITHIN: Duration = Duration::from_secs(300);
const READY_POLL: Duration = Duration::from_millis(2);
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Above etcd's default of 2 GB, so that a full row never meets the quota.
const QUOTA_BYTES: u64 = 8 << 30;

/// Gateways that run beside each other.
const GATEWAYS: usize = 2;
/// Members of an etcd cluster.
const MEMBERS: usize = 3;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Product {
    /// One etcd.
    Etcd,
    /// Leaseway with its data in one directory.
    Leaseway,
    /// Three etcd members.
    Etcd3,
    /// Two Leaseway gateways on three Oxia nodes.
    Gateways,
}

impl Product {
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Leaseway => "leaseway",
            Self::Etcd3 => "etcd3",
            Self::Gateways => "gateways",
        }
    }

    /// Whether it is one process.
    pub fn is_single(self) -> bool {
        matches!(self, Self::Etcd | Self::Leaseway)
    }

    /// What it is compared with.
    pub fn reference(self) -> Option<Self> {
        match self {
            Self::Leaseway => Some(Self::Etcd),
            Self::Gateways => Some(Self::Etcd3),
            Self::Etcd | Self::Etcd3 => None,
        }
    }
}

/// What is needed to start a product.
#[derive(Clone, Debug)]
pub struct Program {
    pub product: Product,
    pub binary: PathBuf,
    /// The script that starts Oxia clusters.
    pub oxia_cluster: PathBuf,
}

/// What runs: one server, or all those of a cluster. Dropping it kills the processes;
/// [`Server::stop`] ends them in good order.
pub struct Server {
    program: Program,
    directory: PathBuf,
    processes: Vec<Process>,
    oxia: Option<Oxia>,
    // Callers are spread over the servers.
    next: AtomicUsize,
}

struct Process {
    arguments: Vec<String>,
    directory: PathBuf,
    client: u16,
    child: Child,
    pid: u32,
}

#[derive(Clone, Copy)]
struct Ports {
    client: u16,
    peer: u16,
}

impl Server {
    /// Starts a product on an empty `directory` and waits until it answers.
    pub async fn start(program: &Program, directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        let (count, oxia) = match program.product {
            Product::Etcd | Product::Leaseway => (1, None),
            Product::Etcd3 => (MEMBERS, None),
            Product::Gateways => {
                let oxia = Oxia::start(&program.oxia_cluster, &directory.join("oxia")).await?;
                (GATEWAYS, Some(oxia))
            }
        };
        let mut server = Self {
            program: program.clone(),
            directory: directory.to_owned(),
            processes: Vec::new(),
            oxia,
            next: AtomicUsize::new(0),
        };
        let ports = (0..count).map(|_| Ports::free()).collect::<Result<Vec<_>>>()?;
        for (number, own) in ports.iter().enumerate() {
            let directory = directory.join(format!("server-{number}"));
            std::fs::create_dir_all(&directory)?;
            let arguments = server.arguments(number, &ports, &directory);
            let (child, pid) = spawn(&program.binary, &arguments, &directory)?;
            let client = own.client;
            server.processes.push(Process { arguments, directory, client, child, pid });
        }
        server.wait_until_ready().await?;
        Ok(server)
    }

    fn arguments(&self, number: usize, ports: &[Ports], directory: &Path) -> Vec<String> {
        let client = format!("http://127.0.0.1:{}", ports[number].client);
        let peer = |number: usize| format!("http://127.0.0.1:{}", ports[number].peer);
        let name = |number: usize| format!("compare-{number}");
        let mut arguments = vec![
            format!("--name={}", name(number)),
            format!("--data-dir={}", directory.join("data").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--quota-backend-bytes={QUOTA_BYTES}"),
            "--log-level=warn".into(),
        ];
        if let Some(oxia) = &self.oxia {
            let seeds = oxia.addresses.join(",");
            arguments.push(format!("--backend=oxia://{seeds}/default?keyspace=compare"));
            return arguments;
        }
        let members = (0..ports.len()).map(|number| format!("{}={}", name(number), peer(number)));
        arguments.push(format!("--listen-peer-urls={}", peer(number)));
        arguments.push(format!("--initial-advertise-peer-urls={}", peer(number)));
        arguments.push(format!("--initial-cluster={}", members.collect::<Vec<_>>().join(",")));
        arguments
    }

    /// Stops the server and starts it again on its data. Returns the time from the start of the
    /// new process to its first answer to a linearizable read.
    pub async fn restart(&mut self) -> Result<Duration> {
        self.stop_processes().await?;
        let started = Instant::now();
        for process in &mut self.processes {
            (process.child, process.pid) =
                spawn(&self.program.binary, &process.arguments, &process.directory)?;
        }
        self.wait_until_ready().await?;
        Ok(started.elapsed())
    }

    /// SIGTERM, and SIGKILL only if that is not enough.
    pub async fn stop(&mut self) -> Result<()> {
        self.stop_processes().await?;
        match self.oxia.take() {
            Some(oxia) => oxia.stop().await,
            None => Ok(()),
        }
    }

    async fn stop_processes(&mut self) -> Result<()> {
        for number in 0..self.processes.len() {
            if self.processes[number].child.try_wait()?.is_some() {
                bail!("a server ended by itself:\n{}", self.log_tail());
            }
            let pid = i32::try_from(self.processes[number].pid).ok();
            let pid = pid.and_then(Pid::from_raw).context("process id")?;
            kill_process(pid, Signal::TERM).context("sending SIGTERM")?;
        }
        for process in &mut self.processes {
            if let Ok(status) = timeout(STOP_WITHIN, process.child.wait()).await {
                status?;
                continue;
            }
            process.child.kill().await?;
            bail!("a server did not stop within {STOP_WITHIN:?} of SIGTERM");
        }
        Ok(())
    }

    /// Where a caller connects to: each server in turn.
    pub fn address(&self) -> SocketAddr {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.processes.len();
        (Ipv4Addr::LOCALHOST, self.processes[turn].client).into()
    }

    /// All processes that belong to it.
    pub fn pids(&self) -> Vec<u32> {
        let own = self.processes.iter().map(|process| process.pid);
        let others = self.oxia.iter().flat_map(|oxia| oxia.pids.iter().copied());
        own.chain(others).collect()
    }

    /// What the gateways have waited for Oxia so far, all of them together; `None` without Oxia.
    pub async fn waits(&self) -> Result<Option<Waits>> {
        if self.oxia.is_none() {
            return Ok(None);
        }
        let mut all = Waits::default();
        for process in &self.processes {
            all.add(&metrics(process.client).await?)?;
        }
        Ok(Some(all))
    }

    /// Bytes that the data directories occupy.
    pub fn disk_bytes(&self) -> Result<u64> {
        disk_usage(&self.directory)
    }

    /// The last lines of the servers' logs, for an error message.
    pub fn log_tail(&self) -> String {
        let tails = self.processes.iter().map(|process| {
            let text = std::fs::read(process.directory.join("server.log")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().rev().take(5).collect();
            lines.into_iter().rev().collect::<Vec<_>>().join("\n")
        });
        tails.collect::<Vec<_>>().join("\n")
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let range = Method::new(path::RANGE);
        for number in 0..self.processes.len() {
            loop {
                if let Some(status) = self.processes[number].child.try_wait()? {
                    let binary = self.program.binary.display();
                    bail!("{binary} ended with {status}:\n{}", self.log_tail());
                }
                let address = (Ipv4Addr::LOCALHOST, self.processes[number].client).into();
                let attempt = async {
                    let mut caller = Caller::connect(address).await?;
                    caller.unary(&range, requests::range(0, 1)).await
                };
                if let Ok(Ok(_)) = timeout(Duration::from_secs(5), attempt).await {
                    break;
                }
                if Instant::now() >= deadline {
                    bail!("not ready within {READY_WITHIN:?}:\n{}", self.log_tail());
                }
                tokio::time::sleep(READY_POLL).await;
            }
        }
        Ok(())
    }
}

/// What gateways have waited for Oxia.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// For records to be appended to the log.
    pub append: Wait,
    /// For proofs of how far the log reaches.
    pub barrier: Wait,
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wait {
    seconds: f64,
    calls: f64,
}

impl Waits {
    /// Adds what one gateway's metrics tell.
    fn add(&mut self, metrics: &str) -> Result<()> {
        self.append.add(metrics, "leaseway_oxia_append_duration_seconds")?;
        self.barrier.add(metrics, "leaseway_oxia_barrier_duration_seconds")
    }
}

impl Wait {
    fn add(&mut self, metrics: &str, name: &str) -> Result<()> {
        let value = |what: &str| {
            let mut lines = metrics.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(what));
            let value = value.with_context(|| format!("no metric {name}{what}"))?;
            value.trim().parse::<f64>().with_context(|| format!("{name}{what}: {value:?}"))
        };
        self.seconds += value("_sum ")?;
        self.calls += value("_count ")?;
        Ok(())
    }

    /// How long one call took since `before`; `None` if there was none.
    pub fn mean_since(self, before: Self) -> Option<Duration> {
        let mean = (self.seconds - before.seconds) / (self.calls - before.calls);
        Duration::try_from_secs_f64(mean).ok()
    }
}

/// The metrics that a server offers on its client port.
async fn metrics(port: u16) -> Result<String> {
    let get = async {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    timeout(READY_WITHIN, get).await.context("no metrics in time")?.context("reading metrics")
}

fn spawn(binary: &Path, arguments: &[String], directory: &Path) -> Result<(Child, u32)> {
    let log = File::options().create(true).append(true).open(directory.join("server.log"))?;
    let child = Command::new(binary)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", binary.display()))?;
    let pid = child.id().context("the server has ended at once")?;
    Ok((child, pid))
}

/// A cluster of three Oxia nodes. It ends with this process at the latest.
struct Oxia {
    script: PathBuf,
    directory: PathBuf,
    addresses: Vec<String>,
    pids: Vec<u32>,
}

impl Oxia {
    async fn start(script: &Path, directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        let output = Command::new(script)
            .arg("start")
            .arg(&directory)
            .args(["--owner", &std::process::id().to_string()])
            .output()
            .await
            .with_context(|| format!("running {}", script.display()))?;
        let mut oxia =
            Self { script: script.to_owned(), directory, addresses: Vec::new(), pids: Vec::new() };
        if !output.status.success() {
            oxia.stop().await?;
            bail!("no Oxia cluster: {}", String::from_utf8_lossy(&output.stderr));
        }
        let printed = String::from_utf8_lossy(&output.stdout);
        oxia.addresses = printed.lines().map(ToOwned::to_owned).collect();
        for entry in std::fs::read_dir(&oxia.directory)? {
            let Ok(text) = std::fs::read_to_string(entry?.path().join("pid")) else { continue };
            oxia.pids.push(text.trim().parse().context("a process id")?);
        }
        Ok(oxia)
    }

    async fn stop(mut self) -> Result<()> {
        let status = Command::new(&self.script).arg("stop").arg(&self.directory).status().await?;
        ensure!(status.success(), "stopping Oxia: {status}");
        self.pids.clear();
        Ok(())
    }
}

/// After a row that failed, its directory goes, by which the script would know the processes.
impl Drop for Oxia {
    fn drop(&mut self) {
        for pid in &self.pids {
            if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Ports {
    /// Two ports that are free now, below those that outgoing connections get. Nothing holds them
    /// until the server does, so a start can fail if another program is faster; that is an error,
    /// not a retry.
    fn free() -> Result<Self> {
        let listen = || {
            let mut ports = (0..1000).map(|_| fastrand::u16(15_000..32_000));
            ports.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        };
        // Both at one time, so that they differ.
        let (client, peer) = listen().zip(listen()).context("no free ports")?;
        Ok(Self { client: client.local_addr()?.port(), peer: peer.local_addr()?.port() })
    }
}

/// What `binary --version` calls itself: its own line where it has one, beside that of the etcd it is
/// compatible with.
pub fn version(binary: &Path) -> Result<String> {
    let output = std::process::Command::new(binary)
        .arg("--version")
        .output()
        .with_context(|| format!("running {} --version", binary.display()))?;
    ensure!(output.status.success(), "{} --version: {}", binary.display(), output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let own = text.lines().find(|line| line.starts_with("Leaseway"));
    Ok(own.or_else(|| text.lines().next()).unwrap_or_default().trim().to_owned())
}

/// Blocks in use below `path`. A write-ahead log is preallocated, and sparse files are cheaper
/// than they look, so lengths would mislead.
fn disk_usage(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() {
            bytes += disk_usage(&entry.path())?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_all_gateways_are_counted_since_a_moment() {
        let metrics = |append: &str| {
            format!(
                "leaseway_oxia_append_duration_seconds_bucket{{le=\"0.001\"}} 1\n\
                 leaseway_oxia_append_duration_seconds_sum {append}\n\
                 leaseway_oxia_barrier_duration_seconds_sum 0\n\
                 leaseway_oxia_barrier_duration_seconds_count 0\n"
            )
        };
        let mut before = Waits::default();
        before.add(&metrics("1.5\nleaseway_oxia_append_duration_seconds_count 3")).unwrap();
        let mut after = before;
        after.add(&metrics("0.25\nleaseway_oxia_append_duration_seconds_count 5")).unwrap();
        let mean = after.append.mean_since(before.append);
        assert_eq!(mean, Some(Duration::from_millis(50)));
        assert_eq!(after.barrier.mean_since(before.barrier), None);
        assert!(after.add(&metrics("1")).is_err(), "no count");
    }

    #[test]
    fn ports_differ() {
        let ports = Ports::free().unwrap();
        assert_ne!(ports.client, ports.peer);
    }

    #[test]
    fn disk_usage_counts_nested_files() {
        let directory = tempfile::tempdir().unwrap();
        let nested = directory.path().join("a/b");
        std::fs::create_dir_all(&nested).unwrap();
        let file = nested.join("file");
        std::fs::write(&file, vec![1; 1 << 20]).unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        let bytes = disk_usage(directory.path()).unwrap();
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
    }

    #[tokio::test]
    async fn a_server_that_ends_at_once_is_reported_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("server");
        std::fs::write(&script, "#!/bin/sh\necho no such flag >&2\nexit 2\n").unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let program =
            Program { product: Product::Etcd, binary: script, oxia_cluster: PathBuf::new() };
        let error = Server::start(&program, &directory.path().join("run")).await.err().unwrap();
        let text = error.to_string();
        assert!(text.contains("exit status: 2") && text.contains("no such flag"), "{text}");
    }
}

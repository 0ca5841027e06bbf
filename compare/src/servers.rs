//! Starting, watching and stopping the servers under test.
//!
//! Owns the child process and its data directory. Every server gets the same flags, free ports of
//! 127.0.0.1 and an empty directory; it is stopped through its own process id.

use crate::requests::{self, path};
use crate::wire::{Caller, Method};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Longest wait for a server to come up, which for a large store includes reading it.
const READY_WITHIN: Duration = Duration::from_secs(300);
const READY_POLL: Duration = Duration::from_millis(2);
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Above etcd's default of 2 GB, so that a full row never meets the quota.
const QUOTA_BYTES: u64 = 8 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Product {
    Etcd,
    Leaseway,
}

impl Product {
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Leaseway => "leaseway",
        }
    }
}

/// A running server. Dropping it kills the process; [`Server::stop`] ends it in good order.
pub struct Server {
    binary: PathBuf,
    directory: PathBuf,
    ports: Ports,
    child: Child,
    pid: u32,
}

#[derive(Clone, Copy)]
struct Ports {
    client: u16,
    peer: u16,
}

impl Server {
    /// Starts `binary` on an empty `directory` and waits until it answers.
    pub async fn start(binary: &Path, directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        let ports = Ports::free()?;
        let (child, pid) = spawn(binary, directory, ports)?;
        let (binary, directory) = (binary.to_owned(), directory.to_owned());
        let mut server = Self { binary, directory, ports, child, pid };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Stops the server and starts it again on its data. Returns the time from the start of the
    /// new process to its first answer to a linearizable read.
    pub async fn restart(&mut self) -> Result<Duration> {
        self.stop().await?;
        let started = Instant::now();
        (self.child, self.pid) = spawn(&self.binary, &self.directory, self.ports)?;
        self.wait_until_ready().await?;
        Ok(started.elapsed())
    }

    /// SIGTERM, and SIGKILL only if that is not enough.
    pub async fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            bail!("the server ended by itself:\n{}", self.log_tail());
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).context("process id")?;
        kill_process(pid, Signal::TERM).context("sending SIGTERM")?;
        if let Ok(status) = timeout(STOP_WITHIN, self.child.wait()).await {
            status?;
            return Ok(());
        }
        self.child.kill().await?;
        bail!("the server did not stop within {STOP_WITHIN:?} of SIGTERM")
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.client).into()
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Bytes that the data directory occupies.
    pub fn disk_bytes(&self) -> Result<u64> {
        disk_usage(&self.directory.join("data"))
    }

    /// The last lines of the server's log, for an error message.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(self.directory.join("server.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        let range = Method::new(path::RANGE);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                let binary = self.binary.display();
                bail!("{binary} ended with {status}:\n{}", self.log_tail());
            }
            let attempt = async {
                let mut caller = Caller::connect(self.address()).await?;
                caller.unary(&range, requests::range(0, 1)).await
            };
            if let Ok(Ok(_)) = timeout(Duration::from_secs(5), attempt).await {
                return Ok(());
            }
            tokio::time::sleep(READY_POLL).await;
        }
        bail!("not ready within {READY_WITHIN:?}:\n{}", self.log_tail())
    }
}

fn spawn(binary: &Path, directory: &Path, ports: Ports) -> Result<(Child, u32)> {
    let log = File::options().create(true).append(true).open(directory.join("server.log"))?;
    let client = format!("http://127.0.0.1:{}", ports.client);
    let peer = format!("http://127.0.0.1:{}", ports.peer);
    let child = Command::new(binary)
        .args(["--name", "compare"])
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("compare={peer}")])
        .args(["--quota-backend-bytes", &QUOTA_BYTES.to_string(), "--log-level", "warn"])
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", binary.display()))?;
    let pid = child.id().context("the server has ended at once")?;
    Ok((child, pid))
}

impl Ports {
    /// Two ports that are free now. Nothing holds them until the server does, so a start can fail
    /// if another program is faster; that is an error, not a retry.
    fn free() -> Result<Self> {
        let client = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let peer = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(Self { client: client.local_addr()?.port(), peer: peer.local_addr()?.port() })
    }
}

/// First line of `binary --version`.
pub fn version(binary: &Path) -> Result<String> {
    let output = std::process::Command::new(binary)
        .arg("--version")
        .output()
        .with_context(|| format!("running {} --version", binary.display()))?;
    ensure!(output.status.success(), "{} --version: {}", binary.display(), output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
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
        let error = Server::start(&script, &directory.path().join("run")).await.err().unwrap();
        let text = error.to_string();
        assert!(text.contains("exit status: 2") && text.contains("no such flag"), "{text}");
    }
}

//! The two servers: starting, stopping and restarting them.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::schema::Schema;

/// Where servers listen.
const PORTS: Range<u16> = 15_000..32_000;
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// What is compared with etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The reference.
    Etcd,
    /// The server under test, embedded.
    Leaseway,
    /// The server under test, as a gateway on the Oxia cluster that `OXIA_ADDRESSES` names
    /// (HOST:PORT, comma-separated). Each data directory has a keyspace of its own.
    Oxia,
}

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    etcd: PathBuf,
    leaseway: PathBuf,
    /// Requests go through the JSON gateways.
    json: bool,
}

impl Programs {
    /// Finds the programs by the environment: `LEASEWAY_TOOLS_CACHE` (or the user's cache folder)
    /// holds etcd, `LEASEWAY_BIN` or `target/release/leaseway` is the subject.
    pub fn from_environment() -> Result<Programs, String> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let cache = var("LEASEWAY_TOOLS_CACHE")
            .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("leaseway")))
            .or_else(|| var("HOME").map(|dir| dir.join(".cache/leaseway")))
            .ok_or("none of LEASEWAY_TOOLS_CACHE, XDG_CACHE_HOME and HOME is set")?;
        let etcd = cache.join("etcd-v3.7.3/etcd");
        if !etcd.is_file() {
            return Err(format!(
                "{} does not exist; compat-tests/tools/build-etcd.sh builds it",
                etcd.display()
            ));
        }
        let leaseway =
            var("LEASEWAY_BIN").unwrap_or_else(|| PathBuf::from("target/release/leaseway"));
        Ok(Programs { etcd, leaseway, json: false })
    }

    /// The same programs, asked in JSON or not.
    pub fn with_json(self, json: bool) -> Programs {
        Programs { json, ..self }
    }

    fn of(&self, kind: Kind) -> &PathBuf {
        match kind {
            Kind::Etcd => &self.etcd,
            Kind::Leaseway | Kind::Oxia => &self.leaseway,
        }
    }
}

/// Where a server's data goes. etcd, which is told not to sync, reserves 128 MB of log at its start:
/// free on a disk, but cleared page by page in memory.
fn scratch(kind: Kind) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    match kind {
        Kind::Leaseway if memory.is_dir() => memory,
        _ => std::env::temp_dir(),
    }
}

/// A running server with its own data directory.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    programs: Programs,
    child: Child,
    dir: TempDir,
    /// A connection to it.
    pub client: Client,
    /// Its member id.
    pub member_id: u64,
}

impl Server {
    /// Starts a server on an empty directory and waits until it answers.
    pub async fn start(kind: Kind, programs: &Programs) -> Result<Server, String> {
        let dir = tempfile::Builder::new()
            .prefix("leaseway-differential-")
            .tempdir_in(scratch(kind))
            .map_err(|e| format!("no scratch directory: {e}"))?;
        let (child, client, member_id) = launch(kind, programs, &dir).await?;
        Ok(Server { kind, programs: programs.clone(), child, dir, client, member_id })
    }

    /// True while the process runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops the process, and starts it again on its data.
    pub async fn restart(&mut self, kill: bool) -> Result<(), String> {
        self.stop(kill).await?;
        let launched = launch(self.kind, &self.programs, &self.dir).await?;
        (self.child, self.client, self.member_id) = launched;
        Ok(())
    }

    async fn stop(&mut self, kill: bool) -> Result<(), String> {
        let signal =
            if kill { rustix::process::Signal::KILL } else { rustix::process::Signal::TERM };
        if let Some(pid) = self.child.id().and_then(|p| rustix::process::Pid::from_raw(p as i32)) {
            let _ = rustix::process::kill_process(pid, signal);
        }
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("{:?} cannot be waited for: {error}", self.kind)),
            Err(_) => Err(format!("{:?} does not stop within {STOP_TIMEOUT:?}", self.kind)),
        }
    }

    /// The end of the server's log, for a report about its death.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(3000)..]).into_owned()
    }
}

async fn launch(
    kind: Kind,
    programs: &Programs,
    dir: &TempDir,
) -> Result<(Child, Client, u64), String> {
    let mut last = String::new();
    // A port found free may be taken by another process before the server listens on it.
    for _ in 0..3 {
        match launch_once(kind, programs, dir).await {
            Ok(launched) => return Ok(launched),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn launch_once(
    kind: Kind,
    programs: &Programs,
    dir: &TempDir,
) -> Result<(Child, Client, u64), String> {
    let io = |e: std::io::Error| format!("{kind:?}: {e}");
    let (port, peer_port) = (free_port()?, free_port()?);
    let log_path = dir.path().join("log");
    let log = std::fs::File::options().create(true).append(true).open(&log_path).map_err(io)?;
    let mut command = Command::new(programs.of(kind));
    // What the server advertises is the same for both, so that member lists can be compared.
    command
        .arg("--name=differential")
        .arg("--bcrypt-cost=4")
        .arg(format!("--data-dir={}", dir.path().join("data").display()))
        .arg(format!("--listen-client-urls=http://127.0.0.1:{port}"))
        .arg("--advertise-client-urls=http://127.0.0.1:2379")
        .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"))
        .arg("--initial-advertise-peer-urls=http://127.0.0.1:2380")
        .arg("--initial-cluster=differential=http://127.0.0.1:2380")
        // The defaults differ, and no sequence waits for it.
        .arg("--watch-progress-notify-interval=1h")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(io)?)
        .stderr(log)
        .kill_on_drop(true);
    if kind == Kind::Etcd {
        command.arg("--unsafe-no-fsync").arg("--log-level=warn");
    }
    if kind == Kind::Oxia {
        command.arg(backend(dir)?);
    }
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", programs.of(kind).display()))?;
    let deadline = Instant::now() + START_TIMEOUT;
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            let log = std::fs::read_to_string(&log_path).unwrap_or_default();
            return Err(format!("{kind:?} ended at its start with {status}:\n{log}"));
        }
        if let Some((mut client, member_id)) = probe(port).await {
            if programs.json {
                client.use_json();
            }
            return Ok((child, client, member_id));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(format!("{kind:?} does not answer within {START_TIMEOUT:?}"))
}

/// The flag for a keyspace that goes with the directory.
fn backend(dir: &TempDir) -> Result<String, String> {
    let addresses = std::env::var("OXIA_ADDRESSES").map_err(|_| "OXIA_ADDRESSES is not set")?;
    let name = dir.path().file_name().and_then(|name| name.to_str()).unwrap_or("differential");
    Ok(format!("--backend=oxia://{addresses}/default?keyspace={name}"))
}

/// Connects, and asks for a linearizable read, which succeeds only when the server is ready.
async fn probe(port: u16) -> Option<(Client, u64)> {
    let client = Client::connect(port).await.ok()?;
    let range = Schema::known("KV.Range");
    // key "\0"
    let answer = client.call(&range.path, Bytes::from_static(b"\x0a\x01\x00"), &range.output).await;
    let header = answer.message()?.get_field_by_name("header")?.into_owned();
    let member_id = header.as_message()?.get_field_by_name("member_id")?.as_u64()?;
    Some((client, member_id))
}

/// A port that nobody listens on, below those that outgoing connections and listeners of port 0 get. No
/// two servers started at the same time get the same one: the later would end, and its client would
/// find the earlier.
fn free_port() -> Result<u16, String> {
    // From anywhere on: two testers side by side would go through the same ports otherwise.
    static GIVEN: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new(RandomState::new().hash_one(()) as u16));
    for _ in 0..PORTS.len() {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + given % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(format!("no port of {PORTS:?} is free"))
}

/// The reference and the subject side by side.
#[derive(Debug)]
pub struct Pair {
    /// The real etcd.
    pub reference: Server,
    /// The server compared with it.
    pub subject: Server,
    /// False once a sequence has left a state that later ones must not find.
    pub clean: bool,
}

impl Pair {
    /// Starts both on empty directories.
    pub async fn start(subject: Kind, programs: &Programs) -> Result<Pair, String> {
        let (reference, subject) =
            tokio::join!(Server::start(Kind::Etcd, programs), Server::start(subject, programs));
        Ok(Pair { reference: reference?, subject: subject?, clean: true })
    }

    /// Stops both.
    pub async fn stop(&mut self) {
        let _ = tokio::join!(self.reference.stop(true), self.subject.stop(true));
    }

    /// Replaces both by new ones on empty directories.
    pub async fn renew(&mut self) -> Result<(), String> {
        self.stop().await;
        let programs = self.reference.programs.clone();
        *self = Pair::start(self.subject.kind, &programs).await?;
        Ok(())
    }
}

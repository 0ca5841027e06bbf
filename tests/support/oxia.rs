//! A real Oxia server for tests, when one has been built on this machine: standalone, one shard.

#![allow(dead_code)]

use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leaseway::backend::oxia::client::{Address, Client, Config};
use tempfile::TempDir;

use super::{PATIENCE, cached, free_port};

/// The server's binary, built by `compat-tests/tools/build-oxia.sh`.
pub fn real_oxia() -> Option<PathBuf> {
    cached("oxia-v0.14.0-fixed3/oxia")
}

/// A running server, stopped when dropped.
pub struct Oxia {
    child: Child,
    binary: PathBuf,
    ports: [u16; 2],
    dir: TempDir,
}

impl Oxia {
    /// Starts one, if there is one; says so on standard error if not.
    pub fn start() -> Option<Oxia> {
        let Some(binary) = real_oxia() else {
            eprintln!("skipped: no Oxia server; run compat-tests/tools/build-oxia.sh");
            return None;
        };
        let dir = tempfile::tempdir().expect("temporary directory");
        let ports = [free_port(), free_port()];
        let child = launch(&binary, ports, &dir);
        Some(Oxia { child, binary, ports, dir })
    }

    /// Where it listens.
    pub fn address(&self) -> Address {
        Address { tls: false, host: "127.0.0.1".into(), port: self.ports[0] }
    }

    /// A client for a keyspace.
    pub async fn client(&self, keyspace: &str) -> Client {
        let config = Config::new(
            vec![self.address()],
            "default",
            keyspace,
            format!("{keyspace}/proof/test"),
        );
        match Client::connect(config, PATIENCE).await {
            Ok(client) => client,
            Err(error) => panic!("no Oxia: {error}\n{}", self.log()),
        }
    }

    /// Ends it without any warning.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// Starts it again, at the same addresses and with its data.
    pub fn restart(&mut self) {
        self.child = launch(&self.binary, self.ports, &self.dir);
    }

    /// What it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Oxia {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the server and waits until it may be called. A call in the moment between its opening the
/// port and knowing its own shard ends it; then it is started again. It opens the port for metrics
/// after that moment.
fn launch(binary: &PathBuf, ports: [u16; 2], dir: &TempDir) -> Child {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut child = spawn(binary, ports, dir);
        while child.try_wait().expect("a child of ours").is_none() {
            if TcpStream::connect(("127.0.0.1", ports[1])).is_ok() {
                return child;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("no Oxia in time");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(Instant::now() < deadline, "Oxia ends again and again");
    }
}

fn spawn(binary: &PathBuf, [public, metrics]: [u16; 2], dir: &TempDir) -> Child {
    let log = File::options().create(true).append(true).open(dir.path().join("log"));
    let log = log.expect("log file");
    Command::new(binary)
        .arg("standalone")
        .args(["-p", &format!("127.0.0.1:{public}"), "-m", &format!("127.0.0.1:{metrics}")])
        .args(["-s", "1", "--data-dir", "db", "--wal-dir", "wal"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("second handle"))
        .stderr(log)
        .spawn()
        .expect("the server starts")
}

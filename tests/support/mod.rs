//! Starting server processes for tests: ours, and a real etcd beside it when there is one.
//!
//! Every process is stopped by its own id, every wait has a deadline.

#![allow(dead_code)]

pub mod client;
pub mod oxia;
pub mod tls;
pub mod users;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A port that nobody listens on, and that this process gives out only once.
///
/// It is below those that outgoing connections get, and that listeners of port 0 get: nothing takes
/// it by chance before the server that it is for listens on it, or while that server is started again.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().expect("no test panics here");
    let mut ports = (0..1000).map(|_| rand::random_range(15_000..32_000));
    ports
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok() && given.insert(port))
        .expect("a free port")
}

/// The real etcd's binary, when it has been built on this machine.
pub fn real_etcd() -> Option<PathBuf> {
    cached("etcd-v3.7.3/etcd")
}

/// A program that other software was built into on this machine, when it was.
pub fn cached(program: &str) -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = of("LEASEWAY_TOOLS_CACHE")
        .or_else(|| Some(of("XDG_CACHE_HOME")?.join("leaseway")))
        .or_else(|| Some(of("HOME")?.join(".cache/leaseway")))?;
    let path = cache.join(program);
    path.is_file().then_some(path)
}

/// Our binary with no arguments and an environment without `ETCD_` variables.
pub fn leaseway() -> Command {
    clean(Path::new(env!("CARGO_BIN_EXE_leaseway")))
}

fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// What a process that ends by itself left behind.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command that should end by itself; stops it when it does not.
pub fn finish(command: &mut Command) -> Finished {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let (mut out, mut err) =
        (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let stdout = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    let stderr = std::thread::spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    let status = wait(&mut child, PATIENCE);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let stdout = stdout.join().expect("reader").expect("readable");
    let stderr = stderr.join().expect("reader").expect("readable");
    let status = status.unwrap_or_else(|| panic!("still running\n{stdout}\n{stderr}"));
    Finished { code: status.code(), stdout, stderr }
}

/// Whether somebody answers on the port. Sent as bytes that every listener of ours understands,
/// a listener for gRPC alone included: the beginning of HTTP/2, to which settings are the answer.
fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let hello = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &settings].concat();
    let mut first = [0; 9];
    stream.write_all(&hello).is_ok() && stream.read_exact(&mut first).is_ok() && first[3] == 4
}

/// Waits for a child for a bounded time.
fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a server process; returns it and its port.
fn launch(program: &Program, flags: &[String], dir: &Path, log: &Path) -> (Child, u16) {
    let port = free_port();
    let scheme = if is_secure(flags) { "https" } else { "http" };
    let url = format!("{scheme}://127.0.0.1:{port}");
    let log_file = std::fs::File::create(log).expect("log file");
    let child = program()
        .current_dir(dir)
        .args(["--data-dir", "data", "--listen-client-urls", &url])
        .args(["--advertise-client-urls", &url])
        .args(flags)
        .stdout(log_file.try_clone().expect("second handle"))
        .stderr(log_file)
        .spawn()
        .expect("the program starts");
    (child, port)
}

/// Whether these flags make the client port one with TLS.
fn is_secure(flags: &[String]) -> bool {
    flags.iter().any(|flag| flag.starts_with("--cert-file=") || flag == "--auto-tls")
}

/// How a server's process is made, without its flags.
type Program = Box<dyn Fn() -> Command + Send>;

/// A running server, stopped when dropped.
pub struct Server {
    child: Child,
    log: PathBuf,
    program: Program,
    flags: Vec<String>,
    /// The client port on 127.0.0.1; another one after each start.
    pub port: u16,
    /// Holds the data and the log.
    pub dir: TempDir,
}

impl Server {
    /// Starts ours with its own directory and port, and waits until it is ready.
    pub fn start(extra: &[&str]) -> Server {
        Self::spawn(Box::new(leaseway), extra, &[])
    }

    /// Starts ours through another program, which is given the binary and its flags.
    pub fn start_through(program: Program, extra: &[&str]) -> Server {
        Self::spawn(program, extra, &[])
    }

    /// Starts the real etcd likewise.
    pub fn start_etcd(binary: &Path, extra: &[&str]) -> Server {
        let peer = format!("http://127.0.0.1:{}", free_port());
        let cluster = format!("default={peer}");
        let peers = [
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &cluster,
        ];
        let binary = binary.to_owned();
        let server = Self::spawn(Box::new(move || clean(&binary)), extra, &peers);
        server.wait_until_settled();
        server
    }

    /// Waits until a real etcd reports the storage version of its cluster: a new one reports an
    /// older version until its monitor has raised it, some time after it serves.
    fn wait_until_settled(&self) {
        if is_secure(&self.flags) {
            return;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let versions = self.http("GET", "/version", &[("Host", "127.0.0.1")]).body;
            let of = |name: &str| {
                let (_, rest) = versions.split_once(&format!("\"{name}\":\""))?;
                rest.split('"').next().map(str::to_owned)
            };
            if of("storage").is_some() && of("storage") == of("etcdcluster") {
                return;
            }
            assert!(Instant::now() < deadline, "unsettled: {versions}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn spawn(program: Program, extra: &[&str], more: &[&str]) -> Server {
        let dir = tempfile::tempdir().expect("temporary directory");
        let log = dir.path().join("log");
        let flags: Vec<String> = more.iter().chain(extra).map(|&flag| flag.to_owned()).collect();
        let (child, port) = launch(&program, &flags, dir.path(), &log);
        let mut server = Server { child, log, program, flags, port, dir };
        server.wait_until_ready();
        server
    }

    /// Starts an ended process again on the same directory, with a new log and on another port,
    /// and does not wait for it.
    pub fn launch_again(&mut self) {
        let ended = self.child.try_wait().expect("a child of ours");
        assert!(ended.is_some(), "still running");
        (self.child, self.port) = launch(&self.program, &self.flags, self.dir.path(), &self.log);
    }

    /// Starts an ended process again and waits until it is ready.
    pub fn restart(&mut self) {
        self.launch_again();
        self.wait_until_ready();
    }

    /// Starts an ended process again and waits until it is ready or has ended.
    ///
    /// # Errors
    /// The exit code of a process that ended by itself; `None` also for one that did neither in time,
    /// and was stopped.
    pub fn try_restart(&mut self) -> Result<(), Option<i32>> {
        self.launch_again();
        let deadline = Instant::now() + PATIENCE;
        while !answers(self.port) {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return Err(status.code());
            }
            if Instant::now() > deadline {
                self.kill();
                return Err(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Replaces the program that the next start runs.
    pub fn set_program(&mut self, program: Program) {
        self.program = program;
    }

    /// Replaces the flags that the next start gets beside those for directory and addresses.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    }

    /// Ends the process without any warning, as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// Ends the process in order.
    pub fn stop(&mut self) {
        self.signal("TERM");
        let (code, _) = self.wait();
        assert_eq!(code, Some(0), "{}", self.log());
    }

    /// Waits for an answer on the client port: the log may be anywhere.
    fn wait_until_ready(&mut self) {
        if is_secure(&self.flags) {
            return self.wait_for_log("ready to serve client requests");
        }
        let deadline = Instant::now() + PATIENCE;
        while !answers(self.port) {
            let ended = self.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "ended with {ended:?}:\n{}", self.log());
            assert!(Instant::now() < deadline, "no answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the log has a line with `text`.
    pub fn wait_for_log(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            let ended = self.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "ended with {ended:?}:\n{}", self.log());
            assert!(Instant::now() < deadline, "no {text:?} in the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything the process has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for the end; gives the exit code and how long it took.
    pub fn wait(&mut self) -> (Option<i32>, Duration) {
        let started = Instant::now();
        let status = wait(&mut self.child, PATIENCE);
        (
            status.unwrap_or_else(|| panic!("still running:\n{}", self.log())).code(),
            started.elapsed(),
        )
    }

    /// Asks over HTTP/1.1 on the client port.
    pub fn http(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        http(self.port, method, path, headers)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer over HTTP/1.1.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// Names in lower case.
    pub headers: std::collections::BTreeMap<String, String>,
    pub body: String,
}

/// Sends one request and reads its answer.
pub fn http(port: u16, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    exchange(&mut stream, method, path, headers)
}

/// The same on an open connection, which is closed after it.
pub fn exchange(
    stream: &mut (impl Read + Write),
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> HttpAnswer {
    let host =
        if headers.iter().any(|(name, _)| *name == "Host") { "" } else { "Host: localhost\r\n" };
    let extra: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!("{method} {path} HTTP/1.1\r\n{host}{extra}Connection: close\r\n\r\n");
    exchange_raw(stream, request.as_bytes())
}

/// Sends a request as it is, and reads its answer until the connection is closed.
pub fn exchange_raw(stream: &mut (impl Read + Write), request: &[u8]) -> HttpAnswer {
    stream.write_all(request).expect("sends");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("receives");
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
    let headers: std::collections::BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked");
    let body = if chunked { unchunked(body) } else { body.to_owned() };
    HttpAnswer { status: status.expect("a status"), headers, body }
}

/// Joins the chunks of a body.
fn unchunked(mut rest: &str) -> String {
    let mut out = String::new();
    while let Some((length, tail)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).expect("a length");
        out.push_str(&tail[..length]);
        rest = tail[length..].strip_prefix("\r\n").unwrap_or_default();
    }
    out
}

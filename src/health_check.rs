//! `leaseway health`: asks a running server whether it is ready, for supervisors in whose image there
//! is nothing else to ask with.
//!
//! HTTP over the standard library, with TLS if the endpoint's scheme says so. Deliberately absent:
//! everything that the server's own start needs (configuration, log, runtime).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::config::options::{Flag, Options, value};
use crate::config::value::parse_duration;
use crate::config::{Endpoint, Place, asking};
use crate::tls::client::{ClientFiles, configure};

/// The word that asks for the check, in place of flags.
pub const COMMAND: &str = "health";
/// A second more than a server waits for its backend.
const TIMEOUT: &str = "8s";
const FLAGS: [Flag; 6] = {
    let [ca, certificate, key, anybody] = asking::FLAGS;
    [value("endpoint"), value("timeout"), ca, certificate, key, anybody]
};
/// Bytes of an answer that are looked at: what fails is said at its beginning.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// What to ask, and for how long.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    endpoint: Endpoint,
    timeout: Duration,
    files: ClientFiles,
}

/// Asks `/readyz`. `args` are the arguments after the command's name, as [`HEALTH`](crate::config::HEALTH) tells them.
///
/// # Errors
/// Why the server is not ready, or can't be asked, in one line.
pub fn run(args: &[String]) -> Result<(), String> {
    let question = question(args)?;
    let answer = ask(&question).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("{}: no answer within {:?}", question.endpoint, question.timeout)
        }
        _ => format!("{}: {error}", question.endpoint),
    })?;
    judge(&answer).map_err(|why| format!("{}: {why}", question.endpoint))
}

fn question(args: &[String]) -> Result<Question, String> {
    let options = Options::parse(args, &FLAGS)?;
    if let Some(word) = options.rest.first() {
        return Err(format!("there is {word:?} where only flags are expected"));
    }
    let files = asking::files(&options)?;
    let endpoint = options.get("endpoint").unwrap_or(asking::ENDPOINT);
    let endpoint =
        asking::endpoint(endpoint, &files).map_err(|why| format!("--endpoint: {why}"))?;
    let timeout = options.get("timeout").unwrap_or(TIMEOUT);
    let nanos = parse_duration(timeout).map_err(|why| format!("--timeout: {why}"))?;
    let timeout = u64::try_from(nanos).map(Duration::from_nanos).unwrap_or_default();
    if timeout.is_zero() {
        return Err("--timeout must be more than 0".into());
    }
    Ok(Question { endpoint, timeout, files })
}

fn ask(question: &Question) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + question.timeout;
    match &question.endpoint.place {
        Place::Tcp { host, port } => {
            let host_header = match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            };
            let stream = connect(host, *port, deadline)?;
            stream.set_write_timeout(Some(left(deadline)?))?;
            let control = stream.try_clone()?;
            let set_timeout = |left| control.set_read_timeout(Some(left));
            ask_on(stream, question, host, &host_header, deadline, set_timeout)
        }
        Place::Unix { path } => {
            let stream = UnixStream::connect(path)?;
            stream.set_write_timeout(Some(left(deadline)?))?;
            let control = stream.try_clone()?;
            let set_timeout = |left| control.set_read_timeout(Some(left));
            ask_on(stream, question, "localhost", "localhost", deadline, set_timeout)
        }
    }
}

/// Asks on a connection, over TLS if that is the endpoint's scheme.
fn ask_on(
    mut stream: impl Read + Write,
    question: &Question,
    host: &str,
    host_header: &str,
    deadline: Instant,
    set_timeout: impl Fn(Duration) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    if !question.endpoint.tls {
        return exchange(&mut stream, host_header, deadline, set_timeout);
    }
    let config = configure(&question.files, &["http/1.1"]).map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    // Covers the handshake, which begins with the first write.
    set_timeout(left(deadline)?)?;
    exchange(&mut StreamOwned::new(session, stream), host_header, deadline, set_timeout)
}

/// The time until the deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Tries a name's addresses one after the other.
fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends the request and reads what comes until the server closes, the answer is too long to matter,
/// or the time is over.
fn exchange(
    stream: &mut (impl Read + Write),
    host: &str,
    deadline: Instant,
    set_timeout: impl Fn(Duration) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while answer.len() < ANSWER_BYTES_MAX {
        set_timeout(left(deadline)?)?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A connection with TLS that ended without saying so.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && !answer.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// Whether an HTTP answer says that the server is ready.
fn judge(answer: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.lines().next().unwrap_or_default();
    let code = status.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match code {
        Some("200") => Ok(()),
        Some(code) => {
            let failed: Vec<&str> =
                body.lines().filter_map(|line| line.strip_prefix("[-]")).collect();
            Err(match failed.is_empty() {
                true => format!("not ready: HTTP status {code}"),
                false => format!("not ready: {}", failed.join("; ")),
            })
        }
        None if answer.is_empty() => Err("the connection was closed without an answer".into()),
        None => Err("the answer is not HTTP".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    fn args(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    /// Answers one request with these bytes; returns where, and what was asked.
    fn answering(answer: &'static str) -> (String, JoinHandle<String>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = Vec::new();
            let mut piece = [0; 1024];
            while !request.ends_with(b"\r\n\r\n") {
                let read = stream.read(&mut piece).expect("a request");
                assert_ne!(read, 0, "it ended early");
                request.extend_from_slice(&piece[..read]);
            }
            stream.write_all(answer.as_bytes()).expect("an answer");
            String::from_utf8(request).expect("text")
        });
        (format!("http://127.0.0.1:{port}"), asked)
    }

    #[test]
    fn a_ready_server_is_ready() {
        let (url, asked) = answering("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n");
        assert_eq!(run(&args(&["--endpoint", &url])), Ok(()));
        let asked = asked.join().expect("asked");
        assert!(asked.starts_with("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:"), "{asked}");
    }

    #[test]
    fn a_server_that_is_not_ready_says_why() {
        let (url, asked) = answering(
            "HTTP/1.1 503 Service Unavailable\r\n\r\n[+]data_corruption ok\n\
             [-]linearizable_read failed: etcdserver: request timed out\n",
        );
        let why = run(&args(&[&format!("--endpoint={url}")])).expect_err("not ready");
        asked.join().expect("asked");
        let want = "not ready: linearizable_read failed: etcdserver: request timed out";
        assert_eq!(why, format!("{url}: {want}"));
    }

    #[test]
    fn what_does_not_answer_is_not_waited_for() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let words = args(&["--timeout", "50ms", "--endpoint", &url]);
        assert_eq!(run(&words), Err(format!("{url}: no answer within 50ms")));
        drop(listener);
        let refused = run(&words).expect_err("nobody listens");
        assert!(refused.contains("refused"), "{refused}");
    }

    #[test]
    fn other_answers_are_no_readiness() {
        assert_eq!(judge(b"HTTP/1.1 421 Misdirected"), Err("not ready: HTTP status 421".into()));
        assert_eq!(judge(b"\0\0\x12\x04"), Err("the answer is not HTTP".into()));
        assert!(judge(b"").expect_err("closed").contains("without an answer"));
        assert!(judge(b"HTTP/1.1 2000 OK\r\n\r\n").is_err());
    }

    #[test]
    fn its_help_names_each_of_its_flags() {
        for flag in FLAGS {
            assert!(crate::config::HEALTH.contains(&format!("--{}", flag.name)), "{}", flag.name);
        }
    }

    #[test]
    fn arguments() {
        let plain = question(&[]).expect("defaults");
        assert_eq!(plain.endpoint.to_string(), "http://127.0.0.1:2379");
        assert_eq!(plain.timeout, Duration::from_secs(8));
        let host = question(&args(&["--endpoint", "127.0.0.1:2379"])).expect("valid");
        assert_eq!(host.endpoint, plain.endpoint);
        let meant = question(&args(&["--endpoints=x"])).expect_err("unknown");
        assert!(meant.contains("Did you mean --endpoint?"), "{meant}");
        let socket = question(&args(&["-endpoint", "unix:///run/a", "--timeout=1.5s"]));
        assert_eq!(socket.expect("valid").timeout, Duration::from_millis(1500));
        for wrong in [
            &["--endpoint"][..],
            &["--endpoint", "127.0.0.1"],
            &["--endpoint=https://a:1", "--cert=c"],
            &["--insecure-skip-tls-verify=maybe"],
            &["--timeout", "5"],
            &["--timeout=0s"],
            &["--timeout=-1s"],
            &["--data-dir=x"],
            &["now"],
        ] {
            assert!(question(&args(wrong)).is_err(), "{wrong:?}");
        }
    }
}

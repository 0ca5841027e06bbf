//! Starting and stopping the binary.

mod support;

use std::fs::DirBuilder;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use support::{Finished, PATIENCE, Server, exchange, finish, free_port, leaseway};

/// Asserts a refusal: the exit code, one line (and a hint after usage errors), no backtrace.
fn assert_refused(run: &Finished, code: i32, parts: &[&str]) {
    assert_eq!(run.code, Some(code), "{run:?}");
    let lines: Vec<&str> =
        run.stderr.lines().filter(|line| !line.contains("\"level\":\"info\"")).collect();
    assert_eq!(lines.len(), if code == 2 { 2 } else { 1 }, "{run:?}");
    for part in parts {
        assert!(lines[0].contains(part), "{part:?} is not in {:?}", lines[0]);
    }
    assert!(!run.stderr.contains("stack backtrace") && !run.stderr.contains("panicked"), "{run:?}");
}

fn refused(args: &[&str], code: i32, parts: &[&str]) {
    let dir = tempfile::tempdir().expect("temporary directory");
    assert_refused(&finish(leaseway().current_dir(dir.path()).args(args)), code, parts);
}

#[test]
fn bad_flags_are_refused_in_one_line() {
    refused(&["--nosuch"], 2, &["flag provided but not defined: -nosuch"]);
    refused(&["--max-txn-ops=x"], 2, &["invalid value \"x\" for flag -max-txn-ops: parse error"]);
    refused(
        &["--listen-client-urls=http://127.0.0.1:1"],
        1,
        &["--advertise-client-urls is required"],
    );
    refused(&["--config-file=/nonexistent/x.yaml"], 1, &["/nonexistent/x.yaml", "No such file"]);
    refused(&["--log-outputs=/nonexistent/log"], 1, &["log file /nonexistent/log", "No such file"]);
    let urls = ["--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://a:1"];
    refused(&urls, 1, &["must be provided for client url https://127.0.0.1:1 with HTTPS scheme"]);
    let files = ["--cert-file=/nonexistent/cert", "--key-file=/nonexistent/key"];
    refused(&[&urls[..], &files].concat(), 1, &["/nonexistent/cert", "No such file"]);
}

#[test]
fn a_slip_of_the_finger_gets_a_hint() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for (args, code, part) in [
        (&["--datadir=x"][..], 2, "Did you mean --data-dir? Run 'leaseway --help'"),
        (&["imprt", "x"], 1, "Did you mean the command import?"),
        (&["--auto-tls", "true"], 1, "--auto-tls=true"),
        (&["--oxia-ca-file=x"], 1, "--backend oxia://"),
        (&["import"], 1, "nothing to import from"),
        (&["import", "--skip-hash-check", "true", "x.db"], 1, "--skip-hash-check=true"),
        (&["import", "x.db", "--datadir=x"], 1, "Did you mean --data-dir?"),
        (&["export", "x", "--data-dir=x", "--storage-version=9"], 1, "3.6.0 or 3.7.0"),
    ] {
        let run = finish(leaseway().current_dir(dir.path()).args(args));
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.stderr.contains(part), "{part:?} is not in {run:?}");
        assert_eq!(run.stderr.lines().count(), if code == 2 { 2 } else { 1 }, "{run:?}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://127.0.0.1:{}", taken.local_addr().expect("address").port());
    let args = ["--listen-client-urls", &url, "--advertise-client-urls", &url];
    refused(&args, 1, &[&format!("cannot listen on {url}: "), "in use"]);
    let free = format!("http://127.0.0.1:{}", free_port());
    let args = [
        "--listen-client-urls",
        &free,
        "--advertise-client-urls",
        &free,
        "--listen-metrics-urls",
        &url,
    ];
    refused(&args, 1, &[&format!("cannot listen on {url}: "), "in use"]);
}

#[test]
fn a_data_directory_has_one_owner() {
    let mut first = Server::start(&[]);
    let url = format!("http://127.0.0.1:{}", free_port());
    let args =
        ["--data-dir", "data", "--listen-client-urls", &url, "--advertise-client-urls", &url];
    let second = finish(leaseway().current_dir(first.dir.path()).args(args));
    assert_refused(&second, 1, &["data directory data is in use by another process"]);
    assert_eq!(first.http("GET", "/version", &[]).status, 200, "the first one goes on");
    // Even a process that could not clean up leaves the directory free.
    first.signal("KILL");
    first.wait();
    let mut third = std::process::Command::new(env!("CARGO_BIN_EXE_leaseway"));
    let log = first.dir.path().join("third.log");
    let mut third = third
        .current_dir(first.dir.path())
        .args(args)
        .stdout(std::fs::File::create(&log).expect("file"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let deadline = std::time::Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&log).unwrap_or_default().contains("serves the etcd") {
        assert!(std::time::Instant::now() < deadline && third.try_wait().expect("child").is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    third.kill().expect("running");
    third.wait().expect("ended");
}

#[test]
fn a_data_directory_that_cannot_be_used_is_named() {
    refused(&["--data-dir=/proc/nowhere"], 1, &["cannot access data directory /proc/nowhere"]);
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::create_dir_all(dir.path().join("default.etcd/member")).expect("etcd's folder");
    let run = finish(leaseway().current_dir(dir.path()));
    assert_refused(&run, 1, &["data directory default.etcd holds the data of an etcd member"]);
}

#[test]
fn a_data_directory_keeps_its_backend() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = |name: &str| {
        let folder = dir.path().join("default.etcd");
        DirBuilder::new().recursive(true).mode(0o700).create(folder).expect("directory");
        std::fs::write(dir.path().join("default.etcd").join(name), "").expect("file");
    };
    file("gateway.redb");
    let run = finish(leaseway().current_dir(dir.path()));
    assert_refused(&run, 1, &["default.etcd holds gateway.redb: it is a gateway's"]);
    std::fs::remove_file(dir.path().join("default.etcd/gateway.redb")).expect("made");
    file("keyspace.redb");
    let place = format!("--backend=oxia://127.0.0.1:{}/default", free_port());
    let run = finish(leaseway().current_dir(dir.path()).arg(place));
    assert_refused(&run, 1, &["default.etcd holds keyspace.redb: it has keys of its own"]);
}

#[test]
fn a_unix_socket_is_served_and_cleaned_up() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("a.sock");
    // What a killed process leaves behind is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("stale socket"));
    let url = format!("unix://{}", path.display());
    let mut server = Server::start(&["--listen-metrics-urls", &url]);
    let connect = || {
        let stream = UnixStream::connect(&path).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    };
    let answer = exchange(&mut connect(), "GET", "/metrics", &[]);
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("etcd_server_version{server_version=\"3.7.3\"} 1"));
    let args = ["--listen-client-urls", &url, "--advertise-client-urls", "http://a:1"];
    refused(&args, 1, &["another process listens there", &url]);
    server.signal("TERM");
    assert_eq!(server.wait().0, Some(0));
    assert!(!path.exists(), "the socket stays behind");
    std::fs::write(&path, "precious").expect("file");
    refused(&args, 1, &["not a socket", &url]);
    assert_eq!(std::fs::read_to_string(&path).expect("kept"), "precious");
}

#[test]
fn signals_end_the_process_in_order() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&[]);
        server.signal(signal);
        let (code, took) = server.wait();
        assert_eq!(code, Some(0), "{signal}: {}", server.log());
        assert!(took < Duration::from_secs(5), "{signal}: {took:?}");
        assert!(server.log().contains("\"msg\":\"stopped\""));
    }
}

#[test]
fn a_service_manager_is_told() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let told = || {
        let mut message = [0; 64];
        let length = socket.recv(&mut message).expect("a datagram in time");
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let variable = path.clone();
    let program = move || {
        let mut command = leaseway();
        command.env("NOTIFY_SOCKET", &variable);
        command
    };
    let mut server = Server::start_through(Box::new(program), &[]);
    assert_eq!(told(), "READY=1");
    server.signal("TERM");
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn idle_and_half_open_connections_do_not_delay_the_end() {
    let mut server = Server::start(&[]);
    let silent = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
    let mut half = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
    std::io::Write::write_all(&mut half, b"GET /health HTTP/1.1\r\nHost: ").expect("sends");
    assert_eq!(server.http("GET", "/version", &[]).status, 200);
    server.signal("TERM");
    let (code, took) = server.wait();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop((silent, half));
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (port, log) = (free_port(), dir.path().join("log"));
    let url = format!("http://127.0.0.1:{port}");
    let command = format!(
        "ulimit -Sn 256 && exec {} --data-dir data --listen-client-urls {url} --advertise-client-urls {url}",
        env!("CARGO_BIN_EXE_leaseway")
    );
    let mut child = std::process::Command::new("sh")
        .args(["-c", &command])
        .current_dir(dir.path())
        .stdout(std::fs::File::create(&log).expect("file"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let deadline = std::time::Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&log).unwrap_or_default().contains("serves the etcd") {
        assert!(std::time::Instant::now() < deadline && child.try_wait().expect("child").is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).expect("Linux");
    child.kill().expect("running");
    child.wait().expect("ended");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let numbers: Vec<&str> = line["Max open files".len()..].split_ascii_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
}

#[test]
fn a_person_is_told_where_and_what() {
    let mut server = Server::start(&["--log-outputs=run.log"]);
    server.wait_for_log("serves the etcd");
    let greeting = server.log();
    let [line] = greeting.lines().collect::<Vec<_>>()[..] else { panic!("one line: {greeting}") };
    let url = format!("http://127.0.0.1:{}", server.port);
    assert!(line.contains(&url) && line.contains("data is in data"), "{line}");
    assert!(!greeting.contains('\u{1b}'), "colours: {greeting:?}");
}

#[test]
fn a_full_log_file_is_set_aside() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run.log");
    std::fs::write(&path, vec![b'x'; 1 << 20]).expect("written");
    let output = format!("--log-outputs={}", path.display());
    let config = "--log-rotation-config-json={\"MaxSize\": 1, \"compress\": true}";
    let mut server = Server::start(&[&output, "--enable-log-rotation", config]);
    server.stop();
    let log = std::fs::read_to_string(&path).expect("a log");
    assert!(log.contains("starting leaseway") && !log.contains('x'.to_string().repeat(9).as_str()));
    let mut names: Vec<String> = std::fs::read_dir(dir.path())
        .expect("readable")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    // Compressing it takes a moment, and is not waited for at the end.
    let [aside, .., _] = &names[..] else { panic!("two files expected: {names:?}") };
    assert!(aside.starts_with("run-2") && aside.contains(".log"), "{names:?}");
}

#[test]
fn a_data_directory_that_goes_away_is_noticed() {
    let mut server = Server::start(&[]);
    std::fs::remove_dir_all(server.dir.path().join("data")).expect("removed");
    server.wait_for_log("the data directory has been removed or replaced");
    // As with etcd, what is open can be used as before.
    assert_eq!(server.http("GET", "/readyz", &[]).status, 200);
    server.signal("TERM");
    assert_eq!(server.wait().0, Some(0), "{}", server.log());
}

#[test]
fn a_running_server_is_asked_for_its_health() {
    let server = Server::start(&[]);
    let url = format!("http://127.0.0.1:{}", server.port);
    let ready = finish(leaseway().args(["health", "--endpoint", &url]));
    assert_eq!((ready.code, ready.stdout.as_str(), ready.stderr.as_str()), (Some(0), "", ""));
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let away = finish(leaseway().args(["health", "--endpoint", &nobody]));
    assert_refused(&away, 1, &[&nobody, "refused"]);
}

#[test]
fn a_command_tells_of_itself() {
    for command in ["import", "export", "restore", "health"] {
        let run = finish(leaseway().args([command, "--help"]));
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(run.stdout.contains(&format!("leaseway {command} ")), "{run:?}");
        // Of itself alone.
        for other in ["import", "export", "restore", "health"].iter().filter(|it| **it != command) {
            assert!(!run.stdout.contains(&format!("\n  leaseway {other} ")), "{run:?}");
        }
    }
}

#[test]
fn the_data_is_its_owners_only() {
    let mut server = Server::start(&[]);
    let data = server.dir.path().join("data");
    let mode = |name: &str| {
        let found = std::fs::metadata(data.join(name)).expect("it is there");
        found.permissions().mode() & 0o777
    };
    for name in ["keyspace.redb", "log-0", "log-1", "LOCK"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    assert!(!server.log().contains("check file permission"), "{}", server.log());
    server.stop();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).expect("ours");
    server.restart();
    assert!(server.log().contains("check file permission"), "{}", server.log());
}

//! TLS on the listeners for clients, with the real binary, with OpenSSL as the client where it
//! matters who speaks, and beside the real etcd where there is one.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leaseway::tls::client::ClientFiles;
use support::tls::{Authority, Folder, Subject, connect, der, get, shown};
use support::{PATIENCE, Server, cached, finish, free_port, leaseway, real_etcd};

/// A folder with an authority, `ca.pem`, and a server's certificate of it, `server.pem`.
fn folder() -> (Folder, Authority) {
    let (folder, ours) = (Folder::new(), Authority::new("ours"));
    folder.write("ca.pem", ours.pem());
    folder.issue(&ours, "server", &Subject::server());
    (folder, ours)
}

fn server_flags(folder: &Folder) -> Vec<String> {
    vec![folder.flag("cert-file", "server.pem"), folder.flag("key-file", "server.key")]
}

/// The same, and certificates demanded of clients.
fn mutual_flags(folder: &Folder) -> Vec<String> {
    let mut flags = server_flags(folder);
    flags.push(folder.flag("trusted-ca-file", "ca.pem"));
    flags.push("--client-cert-auth".into());
    flags
}

fn start(flags: &[String]) -> Server {
    Server::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn start_etcd(flags: &[String]) -> Option<Server> {
    let flags = flags.iter().map(String::as_str).collect::<Vec<_>>();
    Some(Server::start_etcd(&real_etcd()?, &flags))
}

/// Ours, and the real etcd with the same flags if there is one.
fn both(flags: &[String]) -> Vec<(&'static str, Server)> {
    let mut servers = vec![("ours", start(flags))];
    servers.extend(start_etcd(flags).map(|etcd| ("etcd", etcd)));
    servers
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A sample on the metrics page.
fn sample(page: &str, name: &str) -> f64 {
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name}:\n{page}")).parse().expect("a number")
}

fn has_openssl() -> bool {
    let found = Command::new("openssl").arg("version").stdin(Stdio::null()).output().is_ok();
    if !found {
        eprintln!("skipped: there is no openssl");
    }
    found
}

/// Whether a client that is OpenSSL gets an answer to a request for `/health`.
fn openssl_is_served(port: u16, folder: &Folder, more: &[&str]) -> bool {
    let mut client = Command::new("openssl")
        .args(["s_client", "-ign_eof", "-connect", &format!("127.0.0.1:{port}")])
        .arg("-CAfile")
        .arg(folder.path("ca.pem"))
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl runs");
    let mut input = client.stdin.take().expect("piped");
    // It may have been turned away before it reads.
    let _ = input.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let output = client.wait_with_output().expect("openssl ends");
    String::from_utf8_lossy(&output.stdout).contains("200 OK")
}

#[test]
fn http_and_grpc_are_served_over_tls() {
    let (folder, _) = folder();
    let mut flags = server_flags(&folder);
    flags.push("--host-whitelist=nobody.example".into());
    let anybody = folder.client("ca.pem", None);
    for (name, server) in both(&flags) {
        let health = get(server.port, &anybody, "/health").expect("an answer");
        assert!(
            health.contains("200 OK") && health.contains("\"health\":\"true\""),
            "{name}: {health}"
        );
        let version = get(server.port, &anybody, "/version").expect("an answer");
        assert!(version.contains("\"etcdserver\":\"3.7.3\""), "{name}: {version}");
        for (offered, chosen) in [(&["h2", "http/1.1"][..], Some(&b"h2"[..])), (&[], None)] {
            let stream = connect(server.port, &anybody, offered).expect("connects");
            assert_eq!(stream.conn.alpn_protocol(), chosen, "{name}");
        }
        assert!(connect(server.port, &anybody, &["spdy/1"]).is_err(), "{name}");
        let elsewhere = Folder::new();
        elsewhere.write("ca.pem", Authority::new("theirs").pem());
        let error = connect(server.port, &elsewhere.client("ca.pem", None), &["h2"]);
        assert!(error.expect_err("not trusted").to_string().contains("UnknownIssuer"), "{name}");
        assert!(server.log().contains("serving client traffic securely"), "{name}");
    }
}

#[test]
fn clients_are_let_in_as_etcd_lets_them_in() {
    if !has_openssl() {
        return;
    }
    let (folder, ours) = folder();
    let theirs = Authority::new("theirs");
    folder.issue(&ours, "good", &Subject { serial: 1, ..Subject::named("ann") });
    folder.issue(&ours, "revoked", &Subject { serial: 2, ..Subject::named("ann") });
    folder.issue(&ours, "expired", &Subject { expired: true, ..Subject::named("ann") });
    folder.issue(&theirs, "stranger", &Subject::named("ann"));
    folder.write("crl", ours.revoke(&[2, 77]));
    let mut flags = mutual_flags(&folder);
    flags.push(folder.flag("client-crl-file", "crl"));
    let old = ["-cipher", "DEFAULT@SECLEVEL=0"];
    for (name, server) in both(&flags) {
        for (own, more, want) in [
            ("good", &[][..], true),
            ("good", &["-tls1_3"], true),
            ("good", &["-tls1_2"], true),
            ("good", &[&["-tls1_1"], &old[..]].concat(), false),
            ("good", &[&["-tls1"], &old[..]].concat(), false),
            ("", &[], false),
            ("revoked", &[], false),
            ("revoked", &["-tls1_2"], false),
            ("expired", &[], false),
            ("stranger", &[], false),
        ] {
            let (certificate, key) =
                (folder.path(&format!("{own}.pem")), folder.path(&format!("{own}.key")));
            let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
            let pair = ["-cert", &certificate, "-key", &key];
            let pair = if own.is_empty() { &[][..] } else { &pair };
            let served = openssl_is_served(server.port, &folder, &[pair, more].concat());
            assert_eq!(served, want, "{name}: {own} {more:?}");
        }
    }
}

#[test]
fn versions_and_suites_are_as_configured() {
    if !has_openssl() {
        return;
    }
    let (folder, _) = folder();
    // etcd does not serve without this one, which HTTP/2 demands.
    let suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    // Flags of the server; those of a client, and whether it is let in.
    type Case<'a> = (&'a [&'a str], &'a [(&'a [&'a str], bool)]);
    let cases: [Case; 3] = [
        (&["--tls-min-version=TLS1.3"], &[(&["-tls1_2"], false), (&["-tls1_3"], true)]),
        (&["--tls-max-version=TLS1.2"], &[(&["-tls1_2"], true), (&["-tls1_3"], false)]),
        (
            &[&format!("--cipher-suites={suite}")],
            &[
                (&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"], true),
                (&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"], false),
                (&["-tls1_3"], true),
            ],
        ),
    ];
    for (more, clients) in cases {
        let mut flags = server_flags(&folder);
        flags.extend(more.iter().map(ToString::to_string));
        for (name, server) in both(&flags) {
            for (client, want) in clients {
                let served = openssl_is_served(server.port, &folder, client);
                assert_eq!(served, *want, "{name}: {more:?} {client:?}");
            }
        }
    }
}

#[test]
fn only_allowed_host_names() {
    let (folder, ours) = folder();
    folder.issue(&ours, "a", &Subject { hosts: &["a.example.org"], ..Subject::named("x") });
    folder.issue(
        &ours,
        "b",
        &Subject { hosts: &["b.example.org"], ..Subject::named("a.example.org") },
    );
    let mut flags = mutual_flags(&folder);
    flags.push("--client-cert-allowed-hostname=c.example.org,a.example.org".into());
    for (name, server) in both(&flags) {
        let served = |own| {
            let answer = get(server.port, &folder.client("ca.pem", Some(own)), "/health");
            answer.is_ok_and(|answer| answer.contains("200 OK"))
        };
        assert!(served("a"), "{name}");
        assert!(!served("b"), "{name}");
    }
}

#[test]
fn what_is_not_tls_is_closed_without_a_word() {
    let (folder, _) = folder();
    let server = start(&server_flags(&folder));
    for text in [
        &b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0",
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(text).expect("sent");
        let mut answer = Vec::new();
        // Closed, or reset because of what was not read.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    let said = "rejected connection on client endpoint";
    eventually("three lines", || server.log().matches(said).count() == 3);
    assert!(server.log().contains("the client does not speak TLS"), "{}", server.log());
    // One who only looks whether the port is open is nobody's concern.
    drop(TcpStream::connect(("127.0.0.1", server.port)).expect("connects"));
    let health = get(server.port, &folder.client("ca.pem", None), "/metrics").expect("served");
    assert_eq!(sample(&health, "leaseway_tls_handshakes_failed_total"), 3.0);
    assert_eq!(server.log().matches(said).count(), 3);
}

#[test]
fn the_silent_hold_nobody_up_and_do_not_stay() {
    let (folder, _) = folder();
    let server = start(&server_flags(&folder));
    let started = Instant::now();
    let silent: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
            if number % 2 == 1 {
                // The beginning of a record that never comes to its end.
                stream.write_all(&[0x16, 3, 1, 2, 0, 1]).expect("sent");
            }
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream
        })
        .collect();
    let client = folder.client("ca.pem", None);
    get(server.port, &client, "/health").expect("served beside them");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    for mut stream in silent {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    let took = started.elapsed();
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(20), "{took:?}");
    assert!(server.log().contains("not done within 10s"), "{}", server.log());
}

#[test]
fn changed_files_are_followed() {
    let (folder, ours) = folder();
    folder.issue(&ours, "client", &Subject { serial: 5, ..Subject::named("ann") });
    folder.write("crl", ours.revoke(&[]));
    let mut flags = mutual_flags(&folder);
    let metrics_port = free_port();
    flags.push(folder.flag("client-crl-file", "crl"));
    flags.push(format!("--listen-metrics-urls=http://127.0.0.1:{metrics_port}"));
    let server = start(&flags);
    let client = folder.client("ca.pem", Some("client"));
    let served = |client: &ClientFiles| {
        get(server.port, client, "/health").is_ok_and(|answer| answer.contains("200 OK"))
    };
    assert!(served(&client));

    // The server's certificate.
    folder.issue(&ours, "server", &Subject::server());
    let new = der(&folder.path("server.pem"));
    eventually("the new certificate", || shown(server.port, &client) == new);

    // The list of revoked certificates, there and back.
    folder.write("crl", ours.revoke(&[5]));
    eventually("revoked", || !served(&client));
    folder.write("crl", ours.revoke(&[6]));
    eventually("not revoked any more", || served(&client));

    // What can't be used changes nothing, and is said once.
    let said = "can't be used";
    folder.write("server.pem", "nonsense");
    eventually("a complaint", || server.log().contains(said));
    let page = || support::http(metrics_port, "GET", "/metrics", &[]).body;
    let reloads = sample(&page(), "leaseway_tls_reloads_total");
    let deadline = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < deadline {
        assert_eq!(shown(server.port, &client), new);
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(server.log().matches(said).count(), 1, "{}", server.log());
    assert_eq!(sample(&page(), "leaseway_tls_reload_failures_total"), 1.0);
    assert_eq!(sample(&page(), "leaseway_tls_reloads_total"), reloads);
    assert!(sample(&page(), "leaseway_tls_certificate_not_after_seconds") > 2.0e9);

    // The authority: those of the old one are strangers now.
    folder.issue(&ours, "server", &Subject::server());
    let theirs = Authority::new("theirs");
    folder.write("old-ca.pem", ours.pem());
    folder.write("ca.pem", theirs.pem());
    eventually("refused", || !served(&folder.client("old-ca.pem", Some("client"))));
    folder.issue(&theirs, "client", &Subject::named("bob"));
    assert!(served(&folder.client("old-ca.pem", Some("client"))));
}

#[test]
fn a_generated_certificate_is_kept() {
    let mut server = start(&["--auto-tls".into()]);
    let certificate = server.dir.path().join("data/fixtures/client/cert.pem");
    let first = der(&certificate);
    let trusting = ClientFiles { ca: Some(certificate.clone()), ..ClientFiles::default() };
    assert_eq!(shown(server.port, &trusting), first);
    let url = format!("https://127.0.0.1:{}", server.port);
    let health = |more: &[&str]| finish(leaseway().args(["health", "--endpoint", &url]).args(more));
    let ca = certificate.display().to_string();
    assert_eq!(health(&["--cacert", &ca]).code, Some(0));
    assert_eq!(health(&["--insecure-skip-tls-verify"]).code, Some(0));
    let refused = health(&["--timeout=10s"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.starts_with(&format!("leaseway: {url}: ")), "{}", refused.stderr);
    server.stop();
    server.restart();
    assert_eq!(shown(server.port, &trusting), first);
}

#[test]
fn health_of_a_server_that_demands_certificates() {
    let (folder, ours) = folder();
    folder.issue(&ours, "client", &Subject::named("probe"));
    let server = start(&mutual_flags(&folder));
    let url = format!("https://127.0.0.1:{}", server.port);
    let file = |name: &str| folder.path(name).display().to_string();
    let ask = |more: &[String]| {
        let cacert = format!("--cacert={}", file("ca.pem"));
        finish(leaseway().args(["health", "--endpoint", &url, &cacert]).args(more))
    };
    let pair = [format!("--cert={}", file("client.pem")), format!("--key={}", file("client.key"))];
    let asked = ask(&pair);
    assert_eq!(asked.code, Some(0), "{}", asked.stderr);
    assert_eq!(ask(&[]).code, Some(1));
    assert_eq!(ask(&pair[..1]).code, Some(1));
    assert!(ask(&pair[..1]).stderr.contains("--cert and --key belong together"));
}

#[test]
fn with_and_without_tls_at_one_place_and_on_sockets() {
    let (folder, _) = folder();
    let port = free_port();
    let socket = folder.path("socket").display().to_string();
    let urls = format!("http://127.0.0.1:{port},https://127.0.0.1:{port},unixs://{socket}");
    let dir = folder.path("data").display().to_string();
    let mut child = leaseway()
        .args(server_flags(&folder))
        .args(["--data-dir", &dir, "--listen-client-urls", &urls, "--advertise-client-urls"])
        .arg(format!("https://127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let asked = |endpoint: &str| {
        let ca = folder.path("ca.pem").display().to_string();
        let mut health = leaseway();
        finish(health.args(["health", "--endpoint", endpoint, "--cacert", &ca])).code == Some(0)
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("plain", || asked(&format!("http://127.0.0.1:{port}")));
        assert!(asked(&format!("https://127.0.0.1:{port}")));
        assert!(asked(&format!("unixs://{socket}")));
        assert!(!asked(&format!("unix://{socket}")));
    }));
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// The flags of the static pod that kubeadm writes for Kubernetes 1.37, with other places.
fn kubeadm(folder: &Folder, client: u16, peer: u16, metrics: u16) -> Vec<String> {
    let file = |name: &str| folder.path(name).display().to_string();
    vec![
        format!("--advertise-client-urls=https://127.0.0.1:{client}"),
        format!("--cert-file={}", file("server.pem")),
        "--client-cert-auth=true".into(),
        format!("--data-dir={}", file("etcd")),
        "--feature-gates=InitialCorruptCheck=true".into(),
        format!("--initial-advertise-peer-urls=https://127.0.0.1:{peer}"),
        format!("--initial-cluster=node=https://127.0.0.1:{peer}"),
        format!("--key-file={}", file("server.key")),
        format!("--listen-client-urls=https://127.0.0.1:{client},https://[::1]:{client}"),
        format!("--listen-metrics-urls=http://127.0.0.1:{metrics}"),
        format!("--listen-peer-urls=https://127.0.0.1:{peer}"),
        "--name=node".into(),
        format!("--peer-cert-file={}", file("server.pem")),
        "--peer-client-cert-auth=true".into(),
        format!("--peer-key-file={}", file("server.key")),
        format!("--peer-trusted-ca-file={}", file("ca.pem")),
        "--snapshot-count=10000".into(),
        format!("--trusted-ca-file={}", file("ca.pem")),
        "--watch-progress-notify-interval=5s".into(),
    ]
}

#[test]
fn the_static_pod_of_kubeadm_starts_as_it_is() {
    let (folder, ours) = folder();
    folder.issue(&ours, "client", &Subject::named("kube-apiserver-etcd-client"));
    let (client, peer, metrics) = (free_port(), free_port(), free_port());
    let log = std::fs::File::create(folder.path("log")).expect("a log");
    let mut child = leaseway()
        .args(kubeadm(&folder, client, peer, metrics))
        .stdout(log.try_clone().expect("a handle"))
        .stderr(log)
        .spawn()
        .expect("starts");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // The probes of the pod.
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", metrics)).is_err() {
            assert!(Instant::now() < deadline, "{:?}", std::fs::read_to_string(folder.path("log")));
            std::thread::sleep(Duration::from_millis(20));
        }
        eventually("ready", || support::http(metrics, "GET", "/readyz", &[]).status == 200);
        assert_eq!(support::http(metrics, "GET", "/livez", &[]).status, 200);
        let apiserver = folder.client("ca.pem", Some("client"));
        let version = get(client, &apiserver, "/version").expect("an answer");
        assert!(version.contains("3.7.3"), "{version}");
        assert!(get(client, &folder.client("ca.pem", None), "/version").is_err());
        if let Some(etcdctl) = cached("etcd-v3.7.3/etcdctl") {
            let mut etcdctl = Command::new(etcdctl);
            etcdctl.args(["--endpoints", &format!("https://127.0.0.1:{client}")]);
            for (flag, name) in
                [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")]
            {
                etcdctl.arg(flag).arg(folder.path(name));
            }
            let put = finish(etcdctl.args(["put", "a", "1"]));
            assert_eq!(put.stdout, "OK\n", "{}", put.stderr);
        }
    }));
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

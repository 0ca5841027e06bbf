//! The HTTP endpoints of the binary, against recorded answers and against a real etcd.

mod support;

use support::{HttpAnswer, Server, http, real_etcd};

/// Headers that clients may look at; the others (date, length, encoding) differ between libraries.
const COMPARED: &[&str] = &[
    "content-type",
    "x-content-type-options",
    "allow",
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
];

/// An answer as far as it must be the same as etcd's.
fn comparable(path: &str, mut answer: HttpAnswer) -> HttpAnswer {
    answer.headers.retain(|name, _| COMPARED.contains(&name.as_str()));
    if path.starts_with("/metrics") && answer.status == 200 {
        answer.body = String::new();
    }
    // etcd runs its checks in an order of chance.
    let mut lines: Vec<&str> = answer.body.lines().collect();
    lines.sort_unstable();
    answer.body = lines.join("\n");
    answer
}

const REQUESTS: &[(&str, &str)] = &[
    ("GET", "/health"),
    ("GET", "/health?exclude=NOSPACE&serializable=true"),
    ("GET", "/health?serializable=1&exclude="),
    ("GET", "/livez"),
    ("GET", "/livez?verbose"),
    ("GET", "/livez?verbose=false"),
    ("GET", "/livez?exclude=serializable_read&verbose"),
    ("GET", "/livez/serializable_read"),
    ("GET", "/livez/linearizable_read"),
    ("GET", "/readyz"),
    ("GET", "/readyz?verbose"),
    ("GET", "/readyz?exclude=non_learner&exclude=data_corruption&verbose"),
    ("GET", "/readyz?exclude=nosuch&%76erbose"),
    ("GET", "/readyz/data_corruption"),
    ("GET", "/readyz/serializable_read?verbose"),
    ("GET", "/readyz/linearizable_read?verbose"),
    ("GET", "/readyz/non_learner?verbose"),
    ("GET", "/readyz/nosuch"),
    ("GET", "/readyz/"),
    ("GET", "/livez/"),
    ("GET", "/version"),
    ("GET", "/version?x=y"),
    ("GET", "/version/"),
    ("GET", "/"),
    ("GET", "/foo"),
    ("GET", "/v2/keys"),
    ("GET", "/health/"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("POST", "/metrics"),
    ("POST", "/health"),
    ("PUT", "/health"),
    ("HEAD", "/health"),
    ("DELETE", "/version"),
    ("HEAD", "/version"),
    ("POST", "/livez"),
    ("POST", "/readyz/non_learner"),
    ("POST", "/foo"),
    ("HEAD", "/foo"),
    ("OPTIONS", "/health"),
    ("OPTIONS", "/foo"),
];

#[test]
fn answers_are_those_of_a_real_etcd() {
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    let metrics_port = [support::free_port(), support::free_port()];
    let metrics = metrics_port.map(|port| format!("http://127.0.0.1:{port}"));
    let ours = Server::start(&["--listen-metrics-urls", &metrics[0]]);
    let theirs = Server::start_etcd(&etcd, &["--listen-metrics-urls", &metrics[1]]);
    for (method, path) in REQUESTS {
        let want = comparable(path, theirs.http(method, path, &[]));
        assert_eq!(comparable(path, ours.http(method, path, &[])), want, "{method} {path}");
        let want = comparable(path, http(metrics_port[1], method, path, &[]));
        let have = comparable(path, http(metrics_port[0], method, path, &[]));
        assert_eq!(have, want, "{method} {path} on the port for metrics");
    }
}

#[test]
fn origins_and_hosts_are_let_in_as_by_a_real_etcd() {
    let flags =
        ["--cors=http://a.example:80,http://b.example:81", "--host-whitelist=good,127.0.0.1"];
    let ours = Server::start(&flags);
    let theirs = real_etcd().map(|etcd| Server::start_etcd(&etcd, &flags));
    for (headers, status, origin) in [
        (
            &[("Host", "good:2379"), ("Origin", "http://b.example:81")][..],
            200,
            Some("http://b.example:81"),
        ),
        (&[("Host", "good"), ("Origin", "http://c.example:81")], 200, None),
        (&[("Host", "127.0.0.1:1")], 200, None),
        (&[("Host", "evil")], 421, None),
        (&[("Host", "[::1]:5"), ("Origin", "http://b.example:81")], 421, None),
    ] {
        let have = comparable("", ours.http("GET", "/version", headers));
        assert_eq!(have.status, status, "{headers:?}");
        let allowed = have.headers.get("access-control-allow-origin").map(String::as_str);
        assert_eq!(allowed, origin, "{headers:?}");
        if let Some(theirs) = &theirs {
            let want = comparable("", theirs.http("GET", "/version", headers));
            assert_eq!(have, want, "{headers:?}");
        }
    }
}

#[test]
fn http_moves_to_its_own_port_when_it_has_one() {
    let port = support::free_port();
    let url = format!("http://127.0.0.1:{port}");
    let server = Server::start(&["--listen-client-http-urls", &url]);
    assert_eq!(http(port, "GET", "/version", &[]).status, 200);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
    stream.set_read_timeout(Some(support::PATIENCE)).expect("timeout");
    std::io::Write::write_all(&mut stream, b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sends");
    let mut answer = Vec::new();
    // Closed or reset: whichever, there is no HTTP/1.1 on a port for gRPC alone.
    let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1"), "{}", String::from_utf8_lossy(&answer));
}

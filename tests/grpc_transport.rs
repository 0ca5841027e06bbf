//! What gRPC says below the API, against recorded answers and against a real etcd.
//!
//! Requests are made byte by byte over HTTP/2, as no well-behaved client would send most of them.

mod support;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{PATIENCE, Server, real_etcd};

/// An answer: HTTP status, content type, gRPC status and message.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    http: u16,
    content_type: String,
    status: String,
    message: String,
    body_len: usize,
}

async fn call(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Answer {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("connects");
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("handshake");
    let driver = tokio::spawn(connection);
    let mut request =
        Request::builder().method(method).uri(format!("http://127.0.0.1:{port}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    let response = tokio::time::timeout(PATIENCE, sender.send_request(request)).await;
    let response =
        response.unwrap_or_else(|_| panic!("{method} {path} {headers:?}: no answer in time"));
    let response = response.unwrap_or_else(|error| panic!("{method} {path} {headers:?}: {error}"));
    let (head, body) = response.into_parts();
    // A stream that stays open is cut off: what came first is what counts.
    let body = tokio::time::timeout(Duration::from_secs(5), body.collect()).await;
    let (body, trailers) = match body {
        Ok(Ok(body)) => {
            let trailers = body.trailers().cloned().unwrap_or_default();
            (body.to_bytes(), trailers)
        }
        other => panic!("{method} {path}: the answer did not end: {other:?}"),
    };
    driver.abort();
    let get = |name: &str| -> String {
        let of = |headers: &HeaderMap| headers.get(name).map(|v| v.as_bytes().to_vec());
        let bytes = of(&head.headers).or_else(|| of(&trailers)).unwrap_or_default();
        decode(&bytes)
    };
    Answer {
        http: head.status.as_u16(),
        content_type: get("content-type"),
        status: get("grpc-status"),
        message: get("grpc-message"),
        body_len: body.len(),
    }
}

/// Undoes gRPC's percent encoding. Go's protobuf library puts a no-break space into its messages
/// by chance, so that nobody relies on them; it counts as a space.
fn decode(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        if let (b'%', Some(byte)) = (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            out.push(byte);
            rest = &tail[2..];
        } else {
            out.push(first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&out).replace('\u{a0}', " ")
}

/// A gRPC message: flag, length, content.
fn message(flag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![flag];
    out.extend(u32::try_from(content.len()).expect("short").to_be_bytes());
    out.extend(content);
    out
}

struct Case {
    what: &'static str,
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: Vec<u8>,
    http: u16,
    status: &'static str,
    message: &'static str,
}

const CHECK: &str = "/grpc.health.v1.Health/Check";
const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc")];
const GZIP: &[(&str, &str)] = &[("content-type", "application/grpc"), ("grpc-encoding", "gzip")];

fn cases() -> Vec<Case> {
    let case = |what, path, headers, body, status, message| Case {
        what,
        method: "POST",
        path,
        headers,
        body,
        http: 200,
        status,
        message,
    };
    let empty = || message(0, b"");
    let mut cases = vec![
        case("check", CHECK, GRPC, empty(), "0", ""),
        case("check of a service", CHECK, GRPC, message(0, b"\x0a\x03foo"), "5", "unknown service"),
        case("list", "/grpc.health.v1.Health/List", GRPC, empty(), "0", ""),
        case(
            "unknown method",
            "/grpc.health.v1.Health/Nope",
            GRPC,
            empty(),
            "12",
            "unknown method Nope for service grpc.health.v1.Health",
        ),
        case("unknown service", "/foo.Bar/Nope", GRPC, empty(), "12", "unknown service foo.Bar"),
        case("path of one part", "/foo", GRPC, empty(), "12", "malformed method name: \"/foo\""),
        case("empty path", "/", GRPC, empty(), "12", "malformed method name: \"/\""),
        case("path of three parts", "/a/b/c", GRPC, empty(), "12", "unknown service a/b"),
        case(
            "not protobuf",
            CHECK,
            GRPC,
            message(0, b"\xff\xff\xff"),
            "13",
            "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
        ),
        case(
            "cut protobuf",
            CHECK,
            GRPC,
            message(0, b"\x0a\x05\x01"),
            "13",
            "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
        ),
        case(
            "text that is not UTF-8",
            CHECK,
            GRPC,
            message(0, b"\x0a\x02\xff\xfe"),
            "13",
            "grpc: error unmarshalling request: string field contains invalid UTF-8",
        ),
        case(
            "compressed without saying how",
            CHECK,
            GRPC,
            message(1, b""),
            "13",
            "grpc: compressed flag set with identity or empty encoding",
        ),
        case(
            "unknown flag",
            CHECK,
            GRPC,
            message(3, b""),
            "13",
            "grpc: received unexpected payload format 3",
        ),
        case(
            "unknown encoding",
            CHECK,
            &[("content-type", "application/grpc"), ("grpc-encoding", "zstd")],
            empty(),
            "12",
            "grpc: Decompressor is not installed for grpc-encoding \"zstd\"",
        ),
        case("no message", CHECK, GRPC, vec![], "2", "EOF"),
        case("half a message", CHECK, GRPC, vec![0, 0, 0, 0, 9, 1], "2", "unexpected EOF"),
        case("two messages", CHECK, GRPC, [empty(), empty()].concat(), "0", ""),
        case(
            "codec in the type",
            CHECK,
            &[("content-type", "application/grpc+proto")],
            empty(),
            "0",
            "",
        ),
    ];
    let (too_large, watch) = (vec![0; 2 * 1024 * 1024 + 1], "/etcdserverpb.Watch/Watch");
    let keep_alive = "/etcdserverpb.Lease/LeaseKeepAlive";
    let too_large_text = "grpc: received message larger than max (2097153 vs. 2097152)";
    let bad_stream_text = "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data";
    cases.extend([
        case(
            "too large",
            "/etcdserverpb.KV/Put",
            GRPC,
            message(0, &too_large),
            "8",
            too_large_text,
        ),
        case("too large on a stream", watch, GRPC, message(0, &too_large), "8", too_large_text),
        case("bad message on a stream", watch, GRPC, message(0, b"\xff"), "13", bad_stream_text),
        case("bad keep-alive", keep_alive, GRPC, message(0, b"\xff"), "13", bad_stream_text),
        case(
            "bad request for a stream",
            "/etcdserverpb.KV/RangeStream",
            GRPC,
            message(0, b"\xff"),
            "13",
            bad_stream_text,
        ),
        case(
            "an error of the API",
            "/etcdserverpb.KV/Range",
            GRPC,
            message(0, b""),
            "3",
            "etcdserver: key is not provided",
        ),
        case(
            "too large when decompressed",
            "/etcdserverpb.KV/Put",
            GZIP,
            message(1, &zeros_in_gzip(3 << 20)),
            "8",
            "grpc: received message after decompression larger than max 2097152",
        ),
        case(
            "too large when decompressed, on a stream",
            watch,
            GZIP,
            message(1, &zeros_in_gzip(3 << 20)),
            "8",
            "grpc: received message after decompression larger than max 2097152",
        ),
        case(
            "something other than gzip",
            "/etcdserverpb.KV/Range",
            GZIP,
            message(1, b"hardly compressed"),
            "13",
            "grpc: failed to decompress the message: gzip: invalid header",
        ),
    ]);
    for (what, method, headers, http, status, message) in [
        (
            "bad timeout",
            "POST",
            &[("content-type", "application/grpc"), ("grpc-timeout", "xx")][..],
            400,
            "13",
            "malformed grpc-timeout: transport: timeout unit is not recognized: \"xx\"",
        ),
        (
            "wrong type",
            "POST",
            &[("content-type", "text/plain")],
            415,
            "3",
            "invalid gRPC request content-type \"text/plain\"",
        ),
        (
            "gRPC for browsers",
            "POST",
            &[("content-type", "application/grpc-web")],
            415,
            "3",
            "invalid gRPC request content-type \"application/grpc-web\"",
        ),
        ("no type", "POST", &[], 415, "3", "invalid gRPC request content-type \"\""),
        (
            "wrong method",
            "PUT",
            GRPC,
            405,
            "13",
            "Received a HEADERS frame with :method \"PUT\" which should be POST",
        ),
    ] {
        let body = empty();
        cases.push(Case { what, method, path: CHECK, headers, body, http, status, message });
    }
    cases
}

/// etcd never answers a call whose headers end the stream, only one that ends after them.
const NOT_FOR_ETCD: &str = "no message";

async fn check(port: u16, whose: &str) -> Vec<(&'static str, Answer)> {
    let mut answers = Vec::new();
    for case in cases().into_iter().filter(|case| whose == "ours" || case.what != NOT_FOR_ETCD) {
        eprintln!("{whose}: {}", case.what);
        let answer = call(port, case.method, case.path, case.headers, case.body).await;
        let have = (answer.http, answer.status.as_str(), answer.message.as_str());
        assert_eq!(have, (case.http, case.status, case.message), "{whose}: {}", case.what);
        // Go writes out the empty name in a map of one, which need not be written.
        let body_len = if case.what == "list" { 0 } else { answer.body_len };
        answers.push((case.what, Answer { body_len, ..answer }));
    }
    answers
}

#[tokio::test]
async fn malformed_calls_are_answered_as_recorded_and_as_by_a_real_etcd() {
    let ours = Server::start(&[]);
    let mut have = check(ours.port, "ours").await;
    have.retain(|(what, _)| *what != NOT_FOR_ETCD);
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    let theirs = Server::start_etcd(&etcd, &[]);
    assert_eq!(have, check(theirs.port, "etcd").await);
}

#[tokio::test]
async fn a_stream_ends_at_its_deadline() {
    let headers = [("content-type", "application/grpc"), ("grpc-timeout", "200m")];
    let watch = "/grpc.health.v1.Health/Watch";
    let ours = Server::start(&[]);
    let answer = call(ours.port, "POST", watch, &headers, message(0, b"")).await;
    assert_eq!(
        (answer.status.as_str(), answer.message.as_str()),
        ("4", "context deadline exceeded")
    );
    assert_eq!(answer.body_len, 7, "the status is told before");
    let metrics = ours.http("GET", "/metrics", &[]).body;
    let labels =
        "grpc_method=\"Watch\",grpc_service=\"grpc.health.v1.Health\",grpc_type=\"server_stream\"";
    let line = format!("grpc_server_handled_total{{grpc_code=\"DeadlineExceeded\",{labels}}} 1");
    assert!(metrics.lines().any(|have| have == line), "missing {line}");
}

#[tokio::test]
async fn what_is_over_before_it_begins_is_not_begun() {
    let ours = Server::start(&[]);
    let put = "/etcdserverpb.KV/Put";
    let put_request = message(0, &[10, 1, b'k']);
    let begun = ours.http("GET", "/metrics", &[]).body;
    for timeout in ["1n", "0S"] {
        let headers = [("content-type", "application/grpc"), ("grpc-timeout", timeout)];
        let answer = call(ours.port, "POST", put, &headers, put_request.clone()).await;
        let told = (answer.status.as_str(), answer.message.as_str());
        assert_eq!(told, ("4", "context deadline exceeded"), "{timeout}");
    }
    let puts = |metrics: &str| {
        let line = metrics.lines().find(|line| line.starts_with("etcd_mvcc_put_total"));
        line.expect("a metric").to_owned()
    };
    assert_eq!(puts(&ours.http("GET", "/metrics", &[]).body), puts(&begun));
}

#[tokio::test]
async fn gets_over_http2_are_answered_like_those_over_http1() {
    let ours = Server::start(&[]);
    let answer = call(ours.port, "GET", "/version", &[], vec![]).await;
    assert_eq!((answer.http, answer.content_type.as_str()), (200, "application/json"));
}

#[tokio::test]
async fn a_login_at_the_page_over_http2_is_not_taken_for_grpc() {
    let ours = Server::start(&["--enable-ui"]);
    let headers = [("x-leaseway-ui", "1")];
    let answer = call(ours.port, "POST", "/ui/api/login", &headers, vec![]).await;
    assert_eq!((answer.http, answer.content_type.as_str()), (400, "application/json"));
}

#[tokio::test]
async fn open_streams_do_not_delay_the_end() {
    let mut ours = Server::start(&[]);
    let (port, watch) = (ours.port, "/grpc.health.v1.Health/Watch");
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("connects");
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("handshake");
    let driver = tokio::spawn(connection);
    let request = Request::post(format!("http://127.0.0.1:{port}{watch}"))
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::from(message(0, b""))))
        .expect("a request");
    let mut body = sender.send_request(request).await.expect("an answer").into_body();
    let serving = body.frame().await.expect("a frame").expect("data").into_data().expect("data");
    assert_eq!(serving.as_ref(), [0, 0, 0, 0, 2, 8, 1]);
    ours.signal("TERM");
    // The watcher is told before the connection goes.
    let stopping = body.frame().await.expect("a frame").expect("data").into_data().expect("data");
    assert_eq!(stopping.as_ref(), [0, 0, 0, 0, 2, 8, 2]);
    let (code, took) = tokio::task::spawn_blocking(move || ours.wait()).await.expect("waited");
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
    let ended = tokio::time::timeout(PATIENCE, driver).await.expect("the connection ends");
    drop(ended);
}

/// At least `length` zeros as a gzip file without an end, which nobody gets to.
fn zeros_in_gzip(length: usize) -> Vec<u8> {
    const REPEATED: usize = 258;
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let (mut byte, mut used) = (0_u8, 0);
    let mut push = |bits: &str| {
        for bit in bits.bytes() {
            byte |= (bit - b'0') << used;
            used += 1;
            if used == 8 {
                file.push(std::mem::take(&mut byte));
                used = 0;
            }
        }
    };
    // A block with the fixed code: a literal zero, then again and again the longest repetition of
    // the byte before.
    push("01");
    push("0");
    push("00110000");
    for _ in 0..length / REPEATED + 8 {
        push("11000101");
        push("00000");
    }
    file
}

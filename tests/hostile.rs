//! Bytes that no client would send, to every method: the server answers each with a status and goes on.
//!
//! Messages of the API are encoded, damaged by chance (from a fixed seed) and sent over HTTP/2, and JSON texts
//! likewise to the gateway. `LEASEWAY_HOSTILE` is how many of each are sent.

mod support;

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leaseway::telemetry::methods;
use leaseway_proto::etcdserverpb as pb;
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::client::{Client, put};
use support::{PATIENCE, Server};
use tokio::task::JoinSet;

/// Requests under way at once.
const AT_ONCE: usize = 16;
/// A stream that goes on is left after this long: what it said first is what counts.
const ENOUGH: Duration = Duration::from_secs(1);

fn count(default: u64) -> u64 {
    let told = std::env::var("LEASEWAY_HOSTILE").ok();
    told.and_then(|count| count.parse().ok()).unwrap_or(default)
}

/// Messages with every kind of field, nested as far as the API does.
fn messages() -> Vec<Vec<u8>> {
    let range = pb::RangeRequest {
        key: "a".into(),
        range_end: "z".into(),
        limit: -3,
        revision: i64::MAX,
        sort_order: 2,
        sort_target: 4,
        min_mod_revision: i64::MIN,
        ..Default::default()
    };
    let write = pb::PutRequest {
        key: "k".into(),
        value: vec![7; 300].into(),
        lease: 77,
        prev_kv: true,
        ..Default::default()
    };
    let compare = pb::Compare {
        result: 3,
        target: 1,
        key: "k".into(),
        range_end: "l".into(),
        target_union: Some(pb::compare::TargetUnion::CreateRevision(-1)),
    };
    let op = |request| pb::RequestOp { request: Some(request) };
    let mut txn = pb::TxnRequest {
        compare: vec![compare],
        success: vec![op(pb::request_op::Request::RequestPut(write.clone()))],
        failure: vec![op(pb::request_op::Request::RequestRange(range.clone()))],
    };
    for _ in 0..5 {
        let inner = op(pb::request_op::Request::RequestTxn(txn.clone()));
        txn = pb::TxnRequest { success: vec![inner.clone(), inner], ..txn };
    }
    let watch = pb::WatchCreateRequest {
        key: "a".into(),
        range_end: "b".into(),
        start_revision: 1,
        progress_notify: true,
        filters: vec![0, 1, 9],
        prev_kv: true,
        watch_id: 5,
        fragment: true,
    };
    let watch = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(watch)),
    };
    let permission = pb::AuthRoleGrantPermissionRequest {
        name: "r".into(),
        perm: Some(leaseway_proto::authpb::Permission {
            perm_type: 2,
            key: "a".into(),
            range_end: "\0".into(),
        }),
    };
    let (lease, alarm) = (
        pb::LeaseGrantRequest { ttl: -1, id: i64::MIN },
        pb::AlarmRequest { action: 7, member_id: u64::MAX, alarm: 9 },
    );
    vec![
        Vec::new(),
        range.encode_to_vec(),
        write.encode_to_vec(),
        txn.encode_to_vec(),
        watch.encode_to_vec(),
        permission.encode_to_vec(),
        lease.encode_to_vec(),
        alarm.encode_to_vec(),
    ]
}

/// Changes a few bytes, cuts, repeats or inserts.
fn damage(random: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            2 => {
                let piece = bytes[at..].to_vec();
                bytes.extend(piece.into_iter().take(500));
            }
            3 => {
                // A number as long as they come.
                let long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
                bytes.splice(at..at, long);
            }
            _ if at < bytes.len() => bytes[at] = random.random(),
            _ => {}
        }
    }
}

fn framed(random: &mut StdRng, content: Vec<u8>) -> Vec<u8> {
    let mut length = u32::try_from(content.len()).expect("short");
    let mut flag = 0;
    match random.random_range(0..60) {
        0 => length = random.random(),
        1 => length = length.saturating_sub(1),
        2 => flag = random.random(),
        _ => {}
    }
    let mut frame = vec![flag];
    frame.extend(length.to_be_bytes());
    frame.extend(content);
    frame
}

async fn connect(port: u16) -> SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("connects");
    let shake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = shake.expect("handshake");
    tokio::spawn(connection);
    sender
}

/// Sends one request; whatever is wrong with it, there is an answer.
async fn send(
    sender: SendRequest<Full<Bytes>>,
    port: u16,
    path: String,
    kind: &'static str,
    body: Vec<u8>,
) {
    let request = Request::post(format!("http://127.0.0.1:{port}{path}"))
        .header("content-type", kind)
        .header("te", "trailers")
        .header("grpc-timeout", "500m")
        .body(Full::new(Bytes::from(body.clone())))
        .expect("a request");
    let mut sender = sender;
    sender.ready().await.unwrap_or_else(|error| panic!("{path} {body:?}: {error}"));
    let answer = tokio::time::timeout(PATIENCE, sender.send_request(request)).await;
    let answer = answer.unwrap_or_else(|_| panic!("{path} {body:?}: no answer"));
    let answer = answer.unwrap_or_else(|error| panic!("{path} {body:?}: {error}"));
    let in_head = answer.headers().contains_key("grpc-status");
    let grpc = kind == "application/grpc" && answer.status() == 200;
    let rest = tokio::time::timeout(ENOUGH, answer.collect()).await;
    if let (true, false, Ok(Ok(rest))) = (grpc, in_head, rest) {
        let has_status = rest.trailers().is_some_and(|all| all.contains_key("grpc-status"));
        assert!(has_status, "{path} {body:?}: no status");
    }
}

async fn still_serves(server: &mut Server) {
    let client = Client::connect(server.port).await;
    // Chance may have raised an alarm, which writes are then refused for.
    let _ = client.kv.clone().put(put("alive", "yes", 0)).await;
    client.maintenance.clone().status(pb::StatusRequest {}).await.expect("it answers");
    server.stop();
    let log = server.log();
    for word in ["panicked", "stack backtrace", "\"level\":\"fatal\""] {
        assert!(!log.contains(word), "{word}:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_messages_are_answered_by_every_method() {
    let mut server = Server::start(&[]);
    let port = server.port;
    let mut random = StdRng::seed_from_u64(1);
    let (messages, methods) = (messages(), methods::all().collect::<Vec<_>>());
    assert!(methods.len() > 40, "{}", methods.len());
    let mut running = JoinSet::new();
    let mut sender = connect(port).await;
    for number in 0..count(4_000) {
        if number % 500 == 499 {
            sender = connect(port).await;
        }
        let (service, method, _) = methods[random.random_range(0..methods.len())];
        let mut content = messages[random.random_range(0..messages.len())].clone();
        damage(&mut random, &mut content);
        let body = framed(&mut random, content);
        let path = format!("/{service}/{method}");
        running.spawn(send(sender.clone(), port, path, "application/grpc", body));
        while running.len() >= AT_ONCE {
            running.join_next().await.expect("one runs").expect("an answer");
        }
    }
    while let Some(done) = running.join_next().await {
        done.expect("an answer");
    }
    still_serves(&mut server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_json_is_answered() {
    const PATHS: [&str; 12] = [
        "/v3/kv/range",
        "/v3/kv/put",
        "/v3/kv/deleterange",
        "/v3/kv/txn",
        "/v3/kv/compaction",
        "/v3/watch",
        "/v3/lease/grant",
        "/v3/lease/keepalive",
        "/v3/lease/timetolive",
        "/v3/maintenance/alarm",
        "/v3/auth/role/grant",
        "/v3/lock/lock",
    ];
    const TEXTS: [&str; 6] = [
        "{}",
        r#"{"key":"Zm9v","range_end":"Zm9w","limit":"-9","sort_order":"DESCEND","revision":1e3}"#,
        r#"{"compare":[{"key":"aw==","target":"MOD","mod_revision":"7"}],"success":[{"request_txn":{"success":[{"requestPut":{"key":"aw==","value":"dg=="}}]}}]}"#,
        r#"{"create_request":{"key":"aw==","start_revision":"1","filters":["NOPUT",7]}}"#,
        r#"{"TTL":9007199254740993,"ID":"-1","name":"\ud800","perm":{"permType":"READ"}}"#,
        r#"[[[[{"a":null,"key":{"key":[1,2.5,"x",true]}}]]]]"#,
    ];
    let mut server = Server::start(&[]);
    let port = server.port;
    let mut random = StdRng::seed_from_u64(2);
    let mut running = JoinSet::new();
    let sender = connect(port).await;
    for _ in 0..count(3_000) {
        let path = PATHS[random.random_range(0..PATHS.len())].to_owned();
        let mut text = TEXTS[random.random_range(0..TEXTS.len())].as_bytes().to_vec();
        damage(&mut random, &mut text);
        if random.random_range(0..200) == 0 {
            text = b"{\"success\":[{\"request_txn\":".repeat(random.random_range(1..3_000));
        }
        running.spawn(send(sender.clone(), port, path, "application/json", text));
        while running.len() >= AT_ONCE {
            running.join_next().await.expect("one runs").expect("an answer");
        }
    }
    while let Some(done) = running.join_next().await {
        done.expect("an answer");
    }
    still_serves(&mut server).await;
}

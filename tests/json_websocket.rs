//! The API on websockets, as pages in browsers use it.

mod support;

use std::time::Duration;

use futures_util::SinkExt;
use serde_json::{Value, json};
use support::{PATIENCE, Server, http};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data as OpData, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{Frame, Utf8Bytes};
use tokio_tungstenite::tungstenite::{Error, Message};

/// A websocket of ours or of a real etcd.
struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    async fn open(
        server: &Server,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> (Socket, Option<String>) {
        let url = format!("ws://127.0.0.1:{}{path}", server.port);
        let mut request = url.into_client_request().expect("a request");
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a value"));
        }
        let stream = TcpStream::connect(("127.0.0.1", server.port)).await.expect("connects");
        let opening = tokio_tungstenite::client_async(request, stream);
        let (socket, response) =
            timeout(PATIENCE, opening).await.expect("in time").expect("a websocket");
        let protocol = response.headers().get("sec-websocket-protocol");
        let protocol = protocol.map(|value| value.to_str().expect("text").to_owned());
        (Socket(socket), protocol)
    }

    async fn send(&mut self, message: Value) {
        self.0.send(Message::text(message.to_string())).await.expect("sends");
    }

    /// The next answer; none when the server has closed.
    async fn next(&mut self) -> Option<Value> {
        loop {
            match timeout(PATIENCE, self.0.next()).await.expect("in time")? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).expect("JSON")),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) => return None,
                Ok(other) => panic!("unexpected: {other:?}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// What the server says as its last word, after nothing else.
    async fn goodbye(&mut self) -> Option<CloseFrame> {
        let last = timeout(PATIENCE, self.0.next()).await.expect("in time");
        let Some(Ok(Message::Close(frame))) = last else { panic!("unexpected: {last:?}") };
        frame
    }
}

fn key() -> Value {
    json!({ "key": "Zm9v" })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_renewals_go_on_until_the_client_leaves() {
    let theirs = support::real_etcd().map(|etcd| Server::start_etcd(&etcd, &[]));
    for server in [Some(Server::start(&[])), theirs].iter().flatten() {
        let (mut watch, protocol) = Socket::open(server, "/v3/watch", &[]).await;
        assert_eq!(protocol, None);
        watch.send(json!({ "create_request": key() })).await;
        let created = watch.next().await.expect("an answer");
        assert_eq!(created["result"]["created"], json!(true), "{created}");
        watch.send(json!({ "create_request": { "key": "Zm9v", "watch_id": "5" } })).await;
        let created = watch.next().await.expect("an answer");
        assert_eq!(created["result"]["watch_id"], json!("5"), "{created}");
        let (mut lease, _) = Socket::open(server, "/v3/lease/keepalive", &[]).await;
        for id in [1, 2] {
            lease.send(json!({ "ID": id })).await;
            let answer = lease.next().await.expect("an answer");
            assert_eq!(answer["result"]["ID"], json!(id.to_string()), "{answer}");
        }
        // A goodbye is answered with the same code.
        for (mut socket, frame) in [(watch, None), (lease, Some(goodbye(CloseCode::Away)))] {
            socket.0.close(frame.clone()).await.expect("closes");
            assert_eq!(socket.goodbye().await, frame);
        }
    }
}

fn goodbye(code: CloseCode) -> CloseFrame {
    CloseFrame { code, reason: Utf8Bytes::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_the_end_and_the_client_is_told_why() {
    let server = Server::start(&[]);
    // Larger than any request may be.
    let (mut socket, _) = Socket::open(&server, "/v3/watch", &[]).await;
    let large = Message::text("x".repeat(5 << 20));
    timeout(PATIENCE, socket.0.send(large)).await.expect("in time").expect("sends");
    assert_eq!(socket.goodbye().await, Some(goodbye(CloseCode::Size)));
    // The same in pieces.
    let (mut socket, _) = Socket::open(&server, "/v3/watch", &[]).await;
    for opcode in [OpData::Text, OpData::Continue, OpData::Continue] {
        let piece = Frame::message("x".repeat(2 << 20), OpCode::Data(opcode), false);
        let sent = timeout(PATIENCE, socket.0.send(Message::Frame(piece)));
        sent.await.expect("in time").expect("sends");
    }
    assert_eq!(socket.goodbye().await, Some(goodbye(CloseCode::Size)));
    // No kind of message that there is.
    let theirs = support::real_etcd().map(|etcd| Server::start_etcd(&etcd, &[]));
    for server in [Some(server), theirs].iter().flatten() {
        let (mut socket, _) = Socket::open(server, "/v3/watch", &[]).await;
        let odd = Frame::message("x", OpCode::Data(OpData::Reserved(3)), true);
        socket.0.send(Message::Frame(odd)).await.expect("sends");
        assert_eq!(socket.goodbye().await.map(|frame| frame.code), Some(CloseCode::Protocol));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_one_answer_are_answered_and_end() {
    let server = Server::start(&[]);
    let (mut socket, _) = Socket::open(&server, "/v3/kv/range", &[]).await;
    socket.send(key()).await;
    let answer = socket.next().await.expect("an answer");
    assert_eq!(answer["header"]["revision"], json!("1"), "{answer}");
    assert_eq!(socket.next().await, None);
    // What is wrong is told, and is the end too.
    for (path, message, code) in [
        ("/v3/kv/range", json!({ "key": 1 }), 3),
        ("/v3/watch", json!({ "create_request": 1 }), 3),
        ("/v3/nosuch", json!({}), 5),
    ] {
        let (mut socket, _) = Socket::open(&server, path, &[]).await;
        socket.send(message).await;
        let answer = socket.next().await.expect("an answer");
        let error = answer.get("error").filter(|error| error.is_object()).unwrap_or(&answer);
        assert_eq!(error["code"], json!(code), "{path}: {answer}");
        assert_eq!(socket.next().await, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_come_as_a_subprotocol_or_in_a_cookie() {
    let server = Server::start(&["--bcrypt-cost=4"]);
    for (path, message) in [
        ("/v3/auth/user/add", json!({ "name": "root", "password": "r" })),
        ("/v3/auth/role/add", json!({ "name": "root" })),
        ("/v3/auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("/v3/auth/enable", json!({})),
    ] {
        let (mut socket, _) = Socket::open(&server, path, &[]).await;
        socket.send(message).await;
        assert!(socket.next().await.expect("an answer")["code"].is_null(), "{path}");
    }
    let (mut socket, _) = Socket::open(&server, "/v3/auth/authenticate", &[]).await;
    socket.send(json!({ "name": "root", "password": "r" })).await;
    let token = socket.next().await.expect("an answer")["token"].as_str().expect("text").to_owned();
    let watch = async |headers: &[(&'static str, &str)]| {
        let (mut socket, protocol) = Socket::open(&server, "/v3/watch", headers).await;
        socket.send(json!({ "create_request": key() })).await;
        let answer = socket.next().await.expect("an answer");
        (answer["result"]["canceled"] == json!(true), protocol)
    };
    assert_eq!(watch(&[]).await, (true, None));
    let subprotocol = format!("Bearer, {token}");
    let bearer = Some("Bearer".to_owned());
    let with_token = watch(&[("sec-websocket-protocol", &subprotocol)]).await;
    assert_eq!(with_token, (false, bearer));
    let cookie = format!("a=b; token={token}");
    assert_eq!(watch(&[("cookie", &cookie)]).await, (false, None));
    assert_eq!(watch(&[("cookie", "token=x")]).await, (true, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_server_is_told() {
    let mut server = Server::start(&[]);
    let (mut socket, _) = Socket::open(&server, "/v3/watch", &[]).await;
    socket.send(json!({ "create_request": key() })).await;
    socket.next().await.expect("an answer");
    server.signal("TERM");
    let ended = async {
        loop {
            match socket.0.next().await {
                None | Some(Err(Error::ConnectionClosed | Error::Protocol(_) | Error::Io(_))) => {
                    break;
                }
                Some(_) => {}
            }
        }
    };
    timeout(PATIENCE, ended).await.expect("closed");
    let (code, took) = server.wait();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn what_is_no_proper_websocket_is_refused() {
    let server = Server::start(&[]);
    let theirs = support::real_etcd().map(|etcd| Server::start_etcd(&etcd, &[]));
    let key = ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    let base = [("Connection", "keep-alive, Upgrade"), ("Upgrade", "WebSocket")];
    for (method, more, status) in [
        ("GET", &[][..], 400),
        ("GET", &[key], 400),
        ("GET", &[("Sec-WebSocket-Version", "13")], 400),
        ("GET", &[("Sec-WebSocket-Version", "8"), key], 400),
        ("GET", &[("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "short")], 400),
        ("POST", &[("Sec-WebSocket-Version", "13"), key], 405),
    ] {
        let headers = [&base[..], more].concat();
        let answer = http(server.port, method, "/v3/watch", &headers);
        assert_eq!(answer.status, status, "{method} {more:?}");
        if let Some(theirs) = &theirs {
            let want = http(theirs.port, method, "/v3/watch", &headers);
            assert_eq!((want.status, want.body), (answer.status, answer.body), "{method} {more:?}");
        }
    }
}

//! The API on websockets: each message is a request or more, each answer a message.
//!
//! Browsers cannot set headers here, so a token comes as a subprotocol or in a cookie.

use super::requests::Source;
use super::{JsonGateway, status};
use crate::gateway::audited::ClientAddress;
use crate::gateway::serve::Held;
use bytes::{Bytes, BytesMut};
use futures_util::SinkExt;
use http::header::{self, HeaderMap, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use leaseway_proto::schema;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Utf8Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};
use tonic::body::Body;

/// The subprotocol under which a token comes.
const BEARER: &str = "Bearer";
/// The only version there is.
const VERSION: &str = "13";
/// Bytes of the key that a client chooses, in base64.
const KEY_LENGTH: usize = 24;
/// Messages that wait, in either direction.
const WAITING_MAX: usize = 4;
/// What is read at once: requests are short, and each websocket has that much.
const READ_BYTES: usize = 4 << 10;
/// How long a client may take to answer a goodbye.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may go on sending what is not read any more.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE: HeaderValue = HeaderValue::from_static("Upgrade");
const PROTOCOL: HeaderName = header::SEC_WEBSOCKET_PROTOCOL;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Whether a request asks for a websocket.
pub fn is_upgrade<B>(request: &Request<B>) -> bool {
    let has = |name: HeaderName, token: &str| {
        let values = request.headers().get_all(name);
        let texts = values.iter().filter_map(|value| value.to_str().ok());
        let mut tokens = texts.flat_map(|text| text.split(','));
        tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket")
}

/// Accepts a websocket on which `method` is called once.
pub fn accept(
    gateway: &JsonGateway,
    mut request: Request<Incoming>,
    method: Option<&'static schema::Method>,
    held: Held,
) -> Response<Body> {
    if request.method() != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED);
    }
    let key = request.headers().get(header::SEC_WEBSOCKET_KEY);
    let version = request.headers().get(header::SEC_WEBSOCKET_VERSION);
    let key = key.filter(|key| key.len() == KEY_LENGTH);
    let (Some(key), true) = (key, version.is_some_and(|version| version == VERSION)) else {
        return refuse(StatusCode::BAD_REQUEST);
    };
    let accepted = HeaderValue::try_from(derive_accept_key(key.as_bytes()));
    let Ok(accepted) = accepted else { return refuse(StatusCode::BAD_REQUEST) };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, WEBSOCKET);
    headers.insert(header::CONNECTION, UPGRADE);
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accepted);
    let protocol = request.headers().get(PROTOCOL).map(HeaderValue::as_bytes);
    if protocol.is_some_and(|protocol| protocol.starts_with(BEARER.as_bytes())) {
        headers.insert(PROTOCOL, HeaderValue::from_static(BEARER));
    }
    let headers = forwarded(request.headers());
    let client = request.extensions().get().cloned();
    let call = Call { gateway: gateway.clone(), method, headers, client };
    tokio::spawn(serve(hyper::upgrade::on(&mut request), call, held));
    response
}

fn refuse(status: StatusCode) -> Response<Body> {
    let text = status.canonical_reason().unwrap_or_default();
    let mut response = status::answer(status, format!("{text}\n"));
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    let version = HeaderValue::from_static(VERSION);
    response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, version);
    response
}

/// The headers of the call: where the page is from, and the token.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = HeaderMap::new();
    for name in [header::ORIGIN, header::REFERER] {
        if let Some(value) = headers.get(&name) {
            forwarded.insert(name, value.clone());
        }
    }
    let protocol = headers.get(PROTOCOL).and_then(|protocol| protocol.to_str().ok());
    let protocol = protocol.filter(|protocol| !protocol.is_empty()).map(|protocol| {
        let token = protocol.split_once("Bearer,").map(|(_, token)| token.trim_matches(' '));
        token.map_or(String::new(), |token| format!("{BEARER} {token}"))
    });
    let token = cookie(headers, "token").map(|token| format!("{BEARER} {token}")).or(protocol);
    if let Some(Ok(token)) = token.map(HeaderValue::try_from) {
        forwarded.insert(header::AUTHORIZATION, token);
    }
    forwarded
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim().trim_matches('"'))
}

/// What is called on a websocket.
struct Call {
    gateway: JsonGateway,
    method: Option<&'static schema::Method>,
    headers: HeaderMap,
    client: Option<ClientAddress>,
}

impl Call {
    /// Hands each line of the answer to `lines`.
    async fn run(self, requests: mpsc::Receiver<Bytes>, lines: mpsc::Sender<Bytes>) {
        let response = match self.method {
            Some(method) => {
                let source = Source::Socket(requests);
                self.gateway.respond(method, &self.headers, self.client, source).await
            }
            None => status::not_found(),
        };
        let mut body = response.into_body();
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(line) = frame.into_data() else { continue };
            let line = line.strip_suffix(b"\n").map_or(line.clone(), |text| line.slice_ref(text));
            if !line.is_empty() && lines.send(line).await.is_err() {
                return;
            }
        }
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves a websocket until the call or the client ends, or the server closes its connections.
async fn serve(upgrade: OnUpgrade, call: Call, mut held: Held) {
    let upgraded = match upgrade.await {
        Ok(upgraded) => TokioIo::new(upgraded),
        Err(error) => {
            tracing::debug!(%error, "a connection did not become a websocket");
            return;
        }
    };
    let max = Some(call.gateway.text_max);
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(max)
        .max_frame_size(max);
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, Some(config)).await;
    let (requests, incoming) = mpsc::channel(WAITING_MAX);
    let (outgoing, mut lines) = mpsc::channel(WAITING_MAX);
    let _running = AbortOnDrop(tokio::spawn(call.run(incoming, outgoing)).abort_handle());
    loop {
        // A call that takes no more requests does not keep the client's goodbye from being heard.
        let message = async {
            let place = requests.reserve().await.ok();
            (place, socket.next().await)
        };
        tokio::select! {
            (place, message) = message => {
                let text = match message {
                    Some(Ok(Message::Text(text))) => Bytes::from(text),
                    Some(Ok(Message::Binary(bytes))) => bytes,
                    Some(Ok(Message::Close(_))) => return hear_out(socket).await,
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                    Some(Err(error)) => return give_up(socket, &error, held).await,
                    None => return,
                };
                if let Some(place) = place {
                    place.send(terminated(&text));
                }
            }
            line = lines.recv() => {
                let Some(line) = line else { return say_goodbye(socket, CloseCode::Normal).await };
                // JSON is text.
                let Ok(text) = Utf8Bytes::try_from(line) else { return };
                if socket.send(Message::Text(text)).await.is_err() {
                    return;
                }
            }
            () = held.closing() => return say_goodbye(socket, CloseCode::Away).await,
        }
    }
}

/// A message with what separates it from the next.
fn terminated(text: &[u8]) -> Bytes {
    let mut terminated = BytesMut::with_capacity(text.len() + 1);
    terminated.extend_from_slice(text);
    terminated.extend_from_slice(b"\n");
    terminated.freeze()
}

/// Closes a websocket, and waits a moment for the client to do the same: it may not have read the last
/// answers yet.
async fn say_goodbye(mut socket: Socket, code: CloseCode) {
    let closing = async {
        if socket.close(Some(goodbye(code))).await.is_ok() {
            while let Some(Ok(_)) = socket.next().await {}
        }
    };
    // Whoever does not answer is closed all the same.
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// Lets the answer to a client's goodbye out, which is made where it is read.
async fn hear_out(mut socket: Socket) {
    let closing = async { while let Some(Ok(_)) = socket.next().await {} };
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// Tells a client why nothing more of it is read.
async fn give_up(mut socket: Socket, error: &Error, mut held: Held) {
    let code = match error {
        Error::Capacity(_) => CloseCode::Size,
        Error::Protocol(_) => CloseCode::Protocol,
        Error::Utf8(_) => CloseCode::Invalid,
        // The connection is lost.
        _ => return,
    };
    let closing = async {
        if socket.close(Some(goodbye(code))).await.is_err() {
            return;
        }
        // What is still on its way is thrown away. If it were left, the client might be told that the
        // connection broke, and nothing else.
        let (mut rest, mut discarded) = (socket.into_inner(), vec![0; READ_BYTES]);
        while let Ok(1..) = rest.read(&mut discarded).await {}
    };
    tokio::select! {
        _ = timeout(DISCARD_TIMEOUT, closing) => {}
        () = held.closing() => {}
    }
}

fn goodbye(code: CloseCode) -> CloseFrame {
    CloseFrame { code, reason: Utf8Bytes::default() }
}

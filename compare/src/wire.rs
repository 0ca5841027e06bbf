//! gRPC calls straight on HTTP/2, with messages as bytes.
//!
//! The generator shares its cores with the server under test, so each call is as cheap as the
//! protocol allows: no channel, no buffer task, no codec; a request is encoded once and sent many
//! times. Deliberately absent: TLS, compression, deadlines, reconnection. A lost connection ends
//! the row.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, header};
use prost::Message;
use std::fmt;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// How much a server may send before the generator has read it. Large enough never to hold up
/// an answer of 100,000 keys for long.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// A length prefix above this is taken for garbage.
const LONGEST_MESSAGE: usize = 1 << 30;
const PREFIX: usize = 5;

#[derive(Debug)]
pub enum CallError {
    Transport(String),
    /// The server's own answer.
    Status {
        code: String,
        message: String,
    },
    /// The server answered something that the workload can not have asked for.
    Unexpected(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(cause) => write!(f, "transport: {cause}"),
            Self::Status { code, message } => write!(f, "grpc status {code}: {message}"),
            Self::Unexpected(what) => write!(f, "unexpected answer: {what}"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<h2::Error> for CallError {
    fn from(error: h2::Error) -> Self {
        Self::Transport(error.to_string())
    }
}

impl From<std::io::Error> for CallError {
    fn from(error: std::io::Error) -> Self {
        Self::Transport(error.to_string())
    }
}

impl From<prost::DecodeError> for CallError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Unexpected(error.to_string())
    }
}

/// A message as gRPC frames it: no compression, length, bytes.
pub fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).expect("requests are small"));
    message.encode(&mut framed).expect("a buffer that grows");
    framed.freeze()
}

/// One RPC's request head, built once.
#[derive(Clone)]
pub struct Method(Request<()>);

impl Method {
    /// `path` such as `/etcdserverpb.KV/Put`, a constant of this program.
    pub fn new(path: &'static str) -> Self {
        let uri = format!("http://127.0.0.1{path}");
        let mut request = Request::post(uri).body(()).expect("a constant path");
        request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        let grpc = HeaderValue::from_static("application/grpc");
        request.headers_mut().insert(header::CONTENT_TYPE, grpc);
        Self(request)
    }
}

/// A handle on one connection. Clones share the connection.
#[derive(Clone)]
pub struct Caller(SendRequest<Bytes>);

impl Caller {
    pub async fn connect(address: SocketAddr) -> Result<Self, CallError> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .handshake(socket)
            .await?;
        // Ends with the connection; whoever waits on it gets the error.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Sends a framed request and returns the answer's bytes without the frame.
    pub async fn unary(&mut self, method: &Method, request: Bytes) -> Result<Bytes, CallError> {
        let (mut sender, mut receiver) = self.open(method).await?;
        sender.send_last(request)?;
        let answer = receiver.next().await?;
        let answer = answer.ok_or_else(|| CallError::Unexpected("no message".into()))?;
        match receiver.next().await? {
            None => Ok(answer),
            Some(_) => Err(CallError::Unexpected("a second message".into())),
        }
    }

    /// Sends one framed request and leaves the answers to be read.
    pub async fn server_stream(
        &mut self,
        method: &Method,
        request: Bytes,
    ) -> Result<Receiver, CallError> {
        let (mut sender, receiver) = self.open(method).await?;
        sender.send_last(request)?;
        Ok(receiver)
    }

    /// Opens a stream in both directions.
    pub async fn open(&mut self, method: &Method) -> Result<(Sender, Receiver), CallError> {
        std::future::poll_fn(|context| self.0.poll_ready(context)).await?;
        let (response, stream) = self.0.send_request(method.0.clone(), false)?;
        let receiver = Receiver { source: Source::Head(response), buffer: Gathered::default() };
        Ok((Sender(stream), receiver))
    }
}

pub struct Sender(SendStream<Bytes>);

impl Sender {
    pub fn send(&mut self, request: Bytes) -> Result<(), CallError> {
        Ok(self.0.send_data(request, false)?)
    }

    fn send_last(&mut self, request: Bytes) -> Result<(), CallError> {
        Ok(self.0.send_data(request, true)?)
    }
}

enum Source {
    Head(ResponseFuture),
    Body(RecvStream),
}

pub struct Receiver {
    source: Source,
    buffer: Gathered,
}

impl Receiver {
    /// The next message; None after the last, when the server has reported success.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        if let Source::Head(response) = &mut self.source {
            let response = response.await?;
            check_head(&response)?;
            self.source = Source::Body(response.into_body());
        }
        let Source::Body(body) = &mut self.source else {
            return Err(CallError::Unexpected("no head".into()));
        };
        loop {
            if let Some(message) = self.buffer.take()? {
                return Ok(Some(message));
            }
            match body.data().await {
                Some(chunk) => {
                    let chunk = chunk?;
                    body.flow_control().release_capacity(chunk.len())?;
                    self.buffer.add(chunk);
                }
                None => {
                    let trailers = body.trailers().await?;
                    check_status(&trailers.unwrap_or_default(), true)?;
                    return Ok(None);
                }
            }
        }
    }
}

/// Bytes that have arrived and are not yet a whole message. One chunk is kept as it came, since
/// most answers are just that; only what spans chunks is copied.
#[derive(Default)]
struct Gathered {
    single: Bytes,
    several: BytesMut,
}

impl Gathered {
    fn add(&mut self, chunk: Bytes) {
        if self.single.is_empty() && self.several.is_empty() {
            self.single = chunk;
            return;
        }
        self.several.extend_from_slice(&std::mem::take(&mut self.single));
        self.several.extend_from_slice(&chunk);
    }

    fn take(&mut self) -> Result<Option<Bytes>, CallError> {
        let held: &[u8] = if self.several.is_empty() { &self.single } else { &self.several };
        let Some(length) = message_length(held)? else { return Ok(None) };
        if held.len() < PREFIX + length {
            let missing = PREFIX + length - held.len();
            self.several.reserve(missing.min(LONGEST_MESSAGE));
            return Ok(None);
        }
        if self.several.is_empty() {
            self.single.advance(PREFIX);
            return Ok(Some(self.single.split_to(length)));
        }
        self.several.advance(PREFIX);
        Ok(Some(self.several.split_to(length).freeze()))
    }
}

fn message_length(mut held: &[u8]) -> Result<Option<usize>, CallError> {
    if held.len() < PREFIX {
        return Ok(None);
    }
    if held.get_u8() != 0 {
        return Err(CallError::Unexpected("a compressed message".into()));
    }
    let length = held.get_u32() as usize;
    if length > LONGEST_MESSAGE {
        return Err(CallError::Unexpected(format!("a message of {length} bytes")));
    }
    Ok(Some(length))
}

fn check_head(response: &http::Response<RecvStream>) -> Result<(), CallError> {
    if response.status() != http::StatusCode::OK {
        return Err(CallError::Unexpected(format!("HTTP status {}", response.status())));
    }
    check_status(response.headers(), false)
}

fn check_status(headers: &HeaderMap, required: bool) -> Result<(), CallError> {
    let text = |name| {
        headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    match text("grpc-status").as_deref() {
        Some("0") => Ok(()),
        None if !required => Ok(()),
        None => Err(CallError::Unexpected("no grpc-status".into())),
        Some(code) => Err(CallError::Status {
            code: code.to_owned(),
            message: text("grpc-message").unwrap_or_default(),
        }),
    }
}

/// How often the length-delimited field `number` occurs at the top level of `message`, without
/// decoding what is in it.
pub fn count_field(message: &[u8], number: u32) -> Result<u64, CallError> {
    let mut rest = message;
    let mut found = 0;
    while !rest.is_empty() {
        let tag = prost::encoding::decode_varint(&mut rest)?;
        let skipped = match tag & 7 {
            0 => {
                prost::encoding::decode_varint(&mut rest)?;
                0
            }
            1 => 8,
            2 => prost::encoding::decode_varint(&mut rest)?,
            5 => 4,
            other => return Err(CallError::Unexpected(format!("wire type {other}"))),
        };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        rest = rest
            .get(skipped..)
            .ok_or_else(|| CallError::Unexpected("a truncated message".into()))?;
        found += u64::from(tag >> 3 == u64::from(number) && tag & 7 == 2);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::etcdserverpb::{PutRequest, RangeResponse, ResponseHeader};
    use leaseway_proto::mvccpb::KeyValue;

    fn message(text: &'static str) -> Bytes {
        frame(&PutRequest { key: Bytes::from_static(text.as_bytes()), ..Default::default() })
    }

    #[test]
    fn messages_come_out_whatever_the_chunks() {
        let mut wire = BytesMut::new();
        for text in ["one", "", "a rather longer third message"] {
            wire.extend_from_slice(&message(text));
        }
        for size in 1..=wire.len() {
            let mut gathered = Gathered::default();
            let mut keys = Vec::new();
            for chunk in wire.chunks(size) {
                gathered.add(Bytes::copy_from_slice(chunk));
                while let Some(found) = gathered.take().unwrap() {
                    keys.push(PutRequest::decode(found).unwrap().key);
                }
            }
            assert_eq!(keys, ["one", "", "a rather longer third message"], "chunks of {size}");
        }
    }

    #[test]
    fn compression_and_absurd_lengths_are_refused() {
        assert!(message_length(&[1, 0, 0, 0, 0]).is_err());
        assert!(message_length(&[0, 255, 255, 255, 255]).is_err());
        assert_eq!(message_length(&[0, 0, 0, 1]).unwrap(), None);
        assert_eq!(message_length(&[0, 0, 0, 1, 2]).unwrap(), Some(258));
    }

    #[test]
    fn rows_are_counted_without_decoding() {
        let row = KeyValue { key: Bytes::from_static(b"k"), version: 3, ..Default::default() };
        let answer = RangeResponse {
            header: Some(ResponseHeader { revision: 9, ..Default::default() }),
            kvs: vec![row.clone(), row.clone(), row],
            more: true,
            count: 70,
        };
        let bytes = answer.encode_to_vec();
        assert_eq!(count_field(&bytes, 2).unwrap(), 3);
        assert_eq!(count_field(&bytes, 1).unwrap(), 1);
        assert_eq!(count_field(&[], 2).unwrap(), 0);
        assert!(count_field(&[0x12, 0x09, 0x00], 2).is_err());
    }

    #[test]
    fn a_status_other_than_zero_is_an_error() {
        let mut trailers = HeaderMap::new();
        assert!(check_status(&trailers, true).is_err());
        assert!(check_status(&trailers, false).is_ok());
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        assert!(check_status(&trailers, true).is_ok());
        trailers.insert("grpc-status", HeaderValue::from_static("8"));
        trailers.insert("grpc-message", HeaderValue::from_static("no space"));
        let error = check_status(&trailers, true).unwrap_err();
        assert_eq!(error.to_string(), "grpc status 8: no space");
    }
}

//! Calls with the messages as bytes, so that what a server sends is seen exactly as sent. They go as gRPC,
//! or as JSON if the method has a path there.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tokio_stream::Stream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::json::{self, Raw, Socket};
use crate::schema::{Method, Schema};

/// How long a single call may take; longer than any request that waits on purpose.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Everything that a server gave back for one call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The messages, in order; one for a call that is no stream and succeeded.
    pub messages: Vec<DynamicMessage>,
    /// How the call ended.
    pub end: End,
    /// HTTP's status and headers, for a call in JSON.
    pub http: String,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With the code OK.
    Ok,
    /// With another code, its message and its details.
    Failed(i32, String, Bytes),
    /// Not within the time allowed.
    Timeout,
    /// With a message that does not follow the contract.
    Unreadable(String),
}

impl From<Status> for End {
    fn from(status: Status) -> End {
        let details = Bytes::copy_from_slice(status.details());
        End::Failed(i32::from(status.code()), status.message().to_owned(), details)
    }
}

impl Answer {
    /// An answer without messages.
    pub fn ended(end: End) -> Answer {
        Answer { messages: Vec::new(), end, http: String::new() }
    }

    /// The only message of a successful call.
    pub fn message(&self) -> Option<&DynamicMessage> {
        self.messages.first().filter(|_| self.end == End::Ok)
    }
}

/// A connection to one server.
#[derive(Debug, Clone)]
pub struct Client {
    port: u16,
    channel: Channel,
    json: bool,
    token: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// Connects to a server on this machine.
    pub async fn connect(port: u16) -> Result<Client, tonic::transport::Error> {
        let endpoint = Channel::from_shared(format!("http://127.0.0.1:{port}"))
            .expect("a port makes a valid address")
            .connect_timeout(Duration::from_secs(2))
            .initial_stream_window_size(1 << 22)
            .initial_connection_window_size(1 << 24);
        Ok(Client { port, channel: endpoint.connect().await?, json: false, token: None })
    }

    /// Sends what can be sent as JSON in JSON from now on.
    pub fn use_json(&mut self) {
        self.json = true;
    }

    /// Sends this token with every call and with streams that are opened from now on; a text that
    /// can't be sent is none.
    pub fn set_token(&mut self, token: Option<&str>) {
        self.token = token.and_then(|token| token.parse().ok());
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    fn grpc(&self) -> tonic::client::Grpc<Channel> {
        tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// One request and all its answers.
    pub async fn call(&self, path: &str, body: Bytes, output: &MessageDescriptor) -> Answer {
        if let Some((path, request)) = self.in_json(path, &body) {
            return in_time(json::call(self.port, self.token(), path, &request)).await;
        }
        let mut answer = Answer::ended(End::Ok);
        let collect = self.collect(path, body, output, &mut answer.messages);
        answer.end = tokio::time::timeout(CALL_TIMEOUT, collect).await.unwrap_or(End::Timeout);
        answer
    }

    /// Any HTTP request.
    pub async fn send(&self, request: &Raw) -> Answer {
        in_time(json::send(self.port, self.token(), request)).await
    }

    /// Path and message of a call that goes as JSON.
    fn in_json(&self, path: &str, body: &Bytes) -> Option<(&'static str, DynamicMessage)> {
        let method = Schema::get().at_path(path).filter(|_| self.json)?;
        let path = json::path_of(method)?;
        Some((path, DynamicMessage::decode(method.input.clone(), body.clone()).ok()?))
    }

    /// Where a stream is opened if it goes as JSON.
    pub fn socket(&self, method: &Method) -> Option<Socket> {
        let path = json::path_of(method).filter(|_| self.json)?;
        Some(Socket { port: self.port, token: self.token().map(str::to_owned), path })
    }

    fn token(&self) -> Option<&str> {
        self.token.as_ref().and_then(|token| token.to_str().ok())
    }

    async fn collect(
        &self,
        path: &str,
        body: Bytes,
        output: &MessageDescriptor,
        into: &mut Vec<DynamicMessage>,
    ) -> End {
        let Ok(path) = PathAndQuery::try_from(path) else {
            return End::Unreadable(format!("{path} is no path"));
        };
        let mut grpc = self.grpc();
        if let Err(error) = grpc.ready().await {
            return End::Failed(14, error.to_string(), Bytes::new());
        }
        let response = grpc.server_streaming(self.request(body), path, BytesCodec).await;
        let mut stream = match response {
            Ok(response) => response.into_inner(),
            Err(status) => return status.into(),
        };
        loop {
            match stream.message().await {
                Ok(Some(bytes)) => match DynamicMessage::decode(output.clone(), bytes) {
                    Ok(message) => into.push(message),
                    Err(error) => return End::Unreadable(error.to_string()),
                },
                Ok(None) => return End::Ok,
                Err(status) => return status.into(),
            }
        }
    }

    /// A stream in both directions.
    pub async fn stream(
        &self,
        path: &str,
        requests: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<Streaming<Bytes>, Status> {
        let mut grpc = self.grpc();
        grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let path =
            PathAndQuery::try_from(path).map_err(|e| Status::internal(format!("{path}: {e}")))?;
        Ok(grpc.streaming(self.request(requests), path, BytesCodec).await?.into_inner())
    }
}

async fn in_time(call: impl Future<Output = Answer>) -> Answer {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await;
    answer.unwrap_or_else(|_| Answer::ended(End::Timeout))
}

#[derive(Debug, Clone, Copy)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = BytesCodec;
    type Decoder = BytesCodec;

    fn encoder(&mut self) -> BytesCodec {
        BytesCodec
    }

    fn decoder(&mut self) -> BytesCodec {
        BytesCodec
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

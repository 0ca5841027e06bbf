//! One connection to one node, and the calls on it.
//!
//! The calls are made by hand over tonic's generic client, because the path of a call is known only
//! at run time: servers up to 0.16 serve the contract under one package name, newer ones under
//! another (and some under both).
//!
//! A connection is made once. When it's lost, every call on it fails at once: to reconnect behind
//! the caller's back would break the promise that all calls of one [`Wire`] reach one process.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::address::Address;
use super::error::{Error, Kind};
use super::token::Token;
use crate::vital::Vital;

/// What a server accepts and sends at most, in bytes.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Servers end a connection that pings more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Room for answers on the way, in bytes: so that a stream isn't held up by round trips.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// Under which name a server speaks the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `io.oxia.proto.v1`: servers of 0.17 and later.
    V1,
    /// `io.streamnative.oxia.proto`: servers up to 0.16.
    Legacy,
}

impl Dialect {
    pub(super) fn other(self) -> Dialect {
        match self {
            Dialect::V1 => Dialect::Legacy,
            Dialect::Legacy => Dialect::V1,
        }
    }
}

/// A call's path under both names.
pub(super) struct Method {
    v1: &'static str,
    legacy: &'static str,
}

macro_rules! methods {
    ($($constant:ident = $name:literal;)*) => {
        $(pub(super) const $constant: Method = Method {
            v1: concat!("/io.oxia.proto.v1.OxiaClient/", $name),
            legacy: concat!("/io.streamnative.oxia.proto.OxiaClient/", $name),
        };)*
    };
}

methods! {
    GET_SHARD_ASSIGNMENTS = "GetShardAssignments";
    WRITE_STREAM = "WriteStream";
    READ = "Read";
    LIST = "List";
    RANGE_SCAN = "RangeScan";
    GET_SEQUENCE_UPDATES = "GetSequenceUpdates";
    GET_NOTIFICATIONS = "GetNotifications";
    CREATE_SESSION = "CreateSession";
    KEEP_ALIVE = "KeepAlive";
    CLOSE_SESSION = "CloseSession";
    GET_SESSION = "GetSession";
}

impl Method {
    fn path(&self, dialect: Dialect) -> PathAndQuery {
        PathAndQuery::from_static(match dialect {
            Dialect::V1 => self.v1,
            Dialect::Legacy => self.legacy,
        })
    }
}

/// A byte stream to a node.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A byte stream in the making.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

/// How a node is reached: the place for TLS, and for tests that come between.
pub trait Transport: Send + Sync + 'static {
    /// Opens a byte stream to a node. The caller bounds the time.
    fn connect(&self, address: &Address) -> Connecting;

    /// Whether what is sent on such a stream can't be read by others.
    fn encrypts(&self, address: &Address) -> bool {
        address.tls
    }
}

/// Plain TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    fn connect(&self, address: &Address) -> Connecting {
        let (address, tls) = (format!("{}:{}", address.host, address.port), address.tls);
        Box::pin(async move {
            if tls {
                return Err(io::Error::other("the address asks for TLS, which isn't set up"));
            }
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Io>)
        })
    }
}

/// Hands out the one stream that there is.
struct Once(Option<TokioIo<Box<dyn Io>>>);

impl Service<Uri> for Once {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = std::future::Ready<Result<Self::Response, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let lost = || io::Error::new(io::ErrorKind::NotConnected, "the connection was lost");
        std::future::ready(self.0.take().ok_or_else(lost))
    }
}

/// What every connection needs to know.
pub(super) struct Dialing {
    pub transport: Box<dyn Transport>,
    /// Sent as `:authority` in place of the node's address.
    pub authority: Option<String>,
    pub token: Option<Token>,
    pub connect_timeout: Duration,
    pub call_timeout: Duration,
    /// Told of panics.
    pub vital: Vital,
}

/// One connection to one process, and the name it speaks the contract under.
#[derive(Clone)]
pub(super) struct Wire {
    grpc: Grpc<Channel>,
    pub dialect: Dialect,
    token: Option<Token>,
    call_timeout: Duration,
}

impl Wire {
    /// Connects. Which name the node understands shows only with the first call.
    ///
    /// # Errors
    /// [`Kind::Unavailable`], or [`Kind::Timeout`] after [`Dialing::connect_timeout`].
    pub(super) async fn connect(
        dialing: &Dialing,
        address: &Address,
        dialect: Dialect,
    ) -> Result<Wire, Error> {
        let unreachable = |error: &dyn std::fmt::Display| {
            Error::new(Kind::Unavailable, format!("oxia: {address} can't be reached: {error}"))
        };
        let open = async {
            let io = dialing.transport.connect(address).await.map_err(|e| unreachable(&e))?;
            let scheme = if dialing.transport.encrypts(address) { "https" } else { "http" };
            let own = format!("{}:{}", address.host, address.port);
            let authority = dialing.authority.as_deref().unwrap_or(&own);
            // The scheme of the endpoint only says that tonic has no encryption to do.
            let endpoint = Endpoint::from_shared(format!("http://{own}"))
                .map_err(|e| Error::new(Kind::Invalid, format!("oxia: {address}: {e}")))?
                .origin(format!("{scheme}://{authority}").parse().map_err(|_| {
                    Error::new(Kind::Invalid, format!("oxia: no valid authority: {authority:?}"))
                })?)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW);
            let once = Once(Some(TokioIo::new(io)));
            endpoint.connect_with_connector(once).await.map_err(|e| unreachable(&e))
        };
        let channel = tokio::time::timeout(dialing.connect_timeout, open)
            .await
            .map_err(|_| Error::timeout(&format!("connect to {address}")))??;
        Ok(Wire {
            grpc: Grpc::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
            dialect,
            token: dialing.token.clone(),
            call_timeout: dialing.call_timeout,
        })
    }

    /// The longest that a single answer may take.
    pub(super) fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.value());
        }
        request
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    /// A call with one answer, within the time for a call.
    pub(super) async fn unary<Q, A>(&self, method: &Method, message: Q) -> Result<A, Error>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let call = async {
            let path = method.path(self.dialect);
            let codec = ProstCodec::<Q, A>::default();
            self.ready().await?.unary(self.request(message), path, codec).await
        };
        match tokio::time::timeout(self.call_timeout, call).await {
            Ok(answer) => Ok(answer.map(Response::into_inner)?),
            Err(_) => Err(Error::timeout("a call")),
        }
    }

    /// A call with many answers. Note that a server may send nothing at all, not even that it has
    /// accepted the call, before it has a first answer: whoever can't wait must not wait here.
    pub(super) async fn streaming<Q, A>(
        &self,
        method: &Method,
        message: Q,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let path = method.path(self.dialect);
        let codec = ProstCodec::<Q, A>::default();
        let mut grpc = self.ready().await?;
        grpc.server_streaming(self.request(message), path, codec).await.map(Response::into_inner)
    }

    /// A call with a stream in each direction and metadata of its own.
    pub(super) async fn duplex<Q, A, S>(
        &self,
        method: &Method,
        metadata: &[(&'static str, MetadataValue<Ascii>)],
        messages: S,
    ) -> Result<Streaming<A>, Status>
    where
        S: Stream<Item = Q> + Send + 'static,
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let path = method.path(self.dialect);
        let codec = ProstCodec::<Q, A>::default();
        let mut request = self.request(messages);
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, value.clone());
        }
        self.ready().await?.streaming(request, path, codec).await.map(Response::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_under_both_names() {
        assert_eq!(WRITE_STREAM.path(Dialect::V1), "/io.oxia.proto.v1.OxiaClient/WriteStream");
        assert_eq!(
            WRITE_STREAM.path(Dialect::Legacy),
            "/io.streamnative.oxia.proto.OxiaClient/WriteStream"
        );
    }
}

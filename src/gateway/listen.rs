//! Listening sockets and the connections they give.
//!
//! A socket belongs to the process ([`Bound`]); who accepts on it, within a runtime, is a [`Listener`]. So a
//! process that starts over keeps its places: meanwhile clients wait to be accepted.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{RecvFlags, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::config::{Endpoint, Place, SocketOptions};
use crate::telemetry::Metrics;

/// Connections that may wait to be accepted; the kernel has a limit of its own below.
const BACKLOG: i32 = 4096;
/// After how long without a word, and how often then, the kernel asks whether a client is still there; who
/// does not answer that many times is gone. What Go's programs, and so etcd, have on every connection.
/// Without it, a client that vanished without a word would keep its watches, and its place in queues for
/// locks, for hours, and over HTTP/1.1 for good.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(15);
const PROBES: u32 = 9;

/// What is served on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// gRPC, and HTTP on the same port.
    GrpcAndHttp,
    /// gRPC alone.
    Grpc,
    /// HTTP alone.
    Http,
    /// Metrics and health alone.
    Metrics,
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Traffic::GrpcAndHttp => "grpc+http",
            Traffic::Grpc => "grpc",
            Traffic::Http => "http",
            Traffic::Metrics => "metrics",
        })
    }
}

/// Whether TLS is spoken on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// Never.
    Plain,
    /// Always.
    Tls,
    /// As the client begins.
    Either,
}

/// A place that this process listens at, whether somebody accepts or not.
#[derive(Debug)]
pub struct Bound {
    /// What to serve there.
    pub traffic: Traffic,
    /// Whether over TLS.
    pub security: Security,
    /// Where it listens, with the port that the system chose if none was given.
    pub address: Endpoint,
    socket: BoundSocket,
}

#[derive(Debug)]
enum BoundSocket {
    Tcp(std::net::TcpListener),
    /// The path is removed when this goes.
    Unix(std::os::unix::net::UnixListener, PathBuf),
}

/// Accepts connections at a [`Bound`] place.
#[derive(Debug)]
pub struct Listener {
    /// What to serve there.
    pub traffic: Traffic,
    /// Whether over TLS.
    pub security: Security,
    /// Where it listens.
    pub address: Endpoint,
    socket: ListenSocket,
}

#[derive(Debug)]
enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A place that could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {url}: {source}")]
pub struct ListenError {
    url: String,
    source: io::Error,
}

impl Bound {
    /// Starts listening.
    ///
    /// # Errors
    /// The URL and what the system says about it.
    pub fn bind(
        url: &Endpoint,
        traffic: Traffic,
        options: SocketOptions,
    ) -> Result<Bound, ListenError> {
        let fail = |source| ListenError { url: url.to_string(), source };
        let socket = match &url.place {
            Place::Tcp { host, port } => {
                BoundSocket::Tcp(bind_tcp(host, *port, options).map_err(fail)?)
            }
            Place::Unix { path } => {
                let path = PathBuf::from(path);
                BoundSocket::Unix(bind_unix(&path).map_err(fail)?, path)
            }
        };
        let mut address = url.clone();
        if let (Place::Tcp { port, .. }, BoundSocket::Tcp(tcp)) = (&mut address.place, &socket) {
            *port = tcp.local_addr().map_err(fail)?.port();
        }
        let security = if url.tls { Security::Tls } else { Security::Plain };
        Ok(Bound { traffic, security, address, socket })
    }

    /// Whether another URL names the same socket for the same traffic.
    pub fn is_at(&self, url: &Endpoint, traffic: Traffic) -> bool {
        let chosen = matches!(url.place, Place::Tcp { port: 0, .. });
        self.traffic == traffic && self.address.place == url.place && !chosen
    }

    /// The URLs by which clients may begin here: two if they may choose.
    pub fn urls(&self) -> Vec<Endpoint> {
        urls(&self.address, self.security).into_iter().map(|(url, _)| url).collect()
    }

    /// Who accepts here. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The URL and what the system says: no file descriptor is left.
    pub fn listener(&self) -> Result<Listener, ListenError> {
        let fail = |source| ListenError { url: self.address.to_string(), source };
        let socket = match &self.socket {
            BoundSocket::Tcp(socket) => {
                socket.try_clone().and_then(TcpListener::from_std).map(ListenSocket::Tcp)
            }
            BoundSocket::Unix(socket, _) => {
                socket.try_clone().and_then(UnixListener::from_std).map(ListenSocket::Unix)
            }
        };
        let (traffic, security, address) = (self.traffic, self.security, self.address.clone());
        Ok(Listener { traffic, security, address, socket: socket.map_err(fail)? })
    }
}

/// By which URLs a place is reached, and whether that is over TLS.
pub fn urls(address: &Endpoint, security: Security) -> Vec<(Endpoint, bool)> {
    let ways: &[bool] = match security {
        Security::Plain => &[false],
        Security::Tls => &[true],
        Security::Either => &[false, true],
    };
    ways.iter().map(|&tls| (Endpoint { tls, place: address.place.clone() }, tls)).collect()
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let BoundSocket::Unix(_, path) = &self.socket {
            // Somebody else may have removed it; there is nothing to do about it then.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    /// Waits for the next connection.
    ///
    /// # Errors
    /// What the system says; the listener can still be used.
    pub async fn accept(&self) -> io::Result<Connection> {
        match &self.socket {
            ListenSocket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are written whole; waiting for more to send would only delay them.
                stream.set_nodelay(true)?;
                Ok(Connection::Tcp(stream))
            }
            ListenSocket::Unix(listener) => Ok(Connection::Unix(listener.accept().await?.0)),
        }
    }
}

fn bind_tcp(host: &str, port: u16, options: SocketOptions) -> io::Result<std::net::TcpListener> {
    let ip = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => host.parse().map_err(|_| io::Error::other("the host is not an IP address"))?,
    };
    if ip == IpAddr::V4(Ipv4Addr::UNSPECIFIED) {
        // As with etcd, 0.0.0.0 means every address of the machine, of either family.
        match listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), options) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    listen(SocketAddr::from((ip, port)), options)
}

fn listen(address: SocketAddr, options: SocketOptions) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    // Without it a restart would have to wait for the old connections to time out.
    socket.set_reuse_address(true)?;
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    // Connections that are accepted have this from the listening socket.
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(&socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(&socket, PROBES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the path exists and is not a socket",
            ));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        // Left behind by a process that could not clean up.
        std::fs::remove_file(path)?;
    }
    let socket = std::os::unix::net::UnixListener::bind(path)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// An accepted connection.
#[derive(Debug)]
pub enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Waits for the client's first byte, without taking it; none if the client sends nothing.
    ///
    /// # Errors
    /// The connection was lost.
    pub async fn first_byte(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let read = match self {
            Connection::Tcp(stream) => stream.peek(&mut byte).await?,
            Connection::Unix(stream) => {
                stream
                    .async_io(Interest::READABLE, || {
                        Ok(rustix::net::recv(stream, &mut byte, RecvFlags::PEEK)?.0)
                    })
                    .await?
            }
        };
        Ok((read > 0).then_some(byte[0]))
    }

    /// Who is on the other side, for the log.
    pub fn peer(&self) -> String {
        match self {
            Connection::Tcp(stream) => {
                stream.peer_addr().map_or_else(|_| "unknown".into(), |peer| peer.to_string())
            }
            Connection::Unix(_) => "unix".into(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Connection::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Tcp(stream) => Pin::new(stream).poll_write(context, data),
            Connection::Unix(stream) => Pin::new(stream).poll_write(context, data),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, data),
            Connection::Unix(stream) => Pin::new(stream).poll_write_vectored(context, data),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Connection::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Connection::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A connection whose bytes are counted.
#[derive(Debug)]
pub struct Metered {
    connection: Connection,
    metrics: Arc<Metrics>,
}

impl Metered {
    /// Counts the bytes of `connection`.
    pub fn new(connection: Connection, metrics: Arc<Metrics>) -> Metered {
        Metered { connection, metrics }
    }

    /// The connection itself.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    fn sent(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.metrics.network.sent_bytes_total.add(*bytes as u64);
        }
        written
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.connection).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.metrics.network.received_bytes_total.add(bytes as u64);
        }
        result
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, data);
        self.sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(context, data);
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_asks_whether_clients_are_still_there() {
        let place = Place::Tcp { host: "127.0.0.1".into(), port: 0 };
        let url = Endpoint { tls: false, place };
        let bound = Bound::bind(&url, Traffic::GrpcAndHttp, SocketOptions { reuse_port: false });
        let listener = bound.expect("a free port").listener().expect("a descriptor");
        let Place::Tcp { port, .. } = listener.address.place else { panic!("{listener:?}") };
        let client = TcpStream::connect(("127.0.0.1", port));
        let (client, accepted) = tokio::join!(client, listener.accept());
        let _client = client.expect("connects");
        let Ok(Connection::Tcp(stream)) = accepted else { panic!("{accepted:?}") };
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(&stream), Ok(Duration::from_secs(15)));
        assert_eq!(sockopt::tcp_keepintvl(&stream), Ok(Duration::from_secs(15)));
        assert_eq!(sockopt::tcp_keepcnt(&stream), Ok(9));
    }
}

//! A running server that is asked: etcd, or Leaseway. As whom and how is said by the flags that etcdctl
//! has for it.

use crate::config::options::{Flag, Options, value};
use crate::config::{self, Endpoint, asking};
use crate::tls::client::{ClientFiles, configure};
use hyper_util::rt::TokioIo;
use leaseway_proto::etcdserverpb::AuthenticateRequest;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Flags that say as whom a server is asked, and how it is checked.
pub const FLAGS: [Flag; 6] = {
    let [ca, certificate, key, anybody] = asking::FLAGS;
    [value("user"), value("password"), ca, certificate, key, anybody]
};

/// How long making a connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// How long one answer may take.
const CALL: Duration = Duration::from_secs(30);
/// How often a connection is tried out while something is awaited; etcd allows it every 5 s.
const PING: Duration = Duration::from_secs(20);

/// How long a server may be out of reach.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(500);

/// Name and password.
type User = (String, String);

/// Where a server is, as whom it is asked, and how it is checked.
pub struct Place {
    /// As it was given.
    pub endpoint: String,
    url: Endpoint,
    user: Option<User>,
    tls: Option<Arc<ClientConfig>>,
}

impl Place {
    /// What the flags say of the server at `endpoint`.
    ///
    /// # Errors
    /// What is wrong with them, in one line.
    pub fn of(endpoint: &str, options: &Options) -> Result<Self, String> {
        let files = asking::files(options)?;
        let url = asking::endpoint(endpoint, &files)?;
        let tls = match url.tls {
            true => Some(configure(&files, &["h2"]).map_err(|error| format!("TLS: {error}"))?),
            // Whoever gives them does not want a password to go in clear.
            false if files != ClientFiles::default() => {
                return Err(format!("{endpoint} is spoken to without TLS: give an https:// URL"));
            }
            false => None,
        };
        Ok(Self { endpoint: endpoint.into(), url, user: user(options)?, tls: tls.map(Arc::new) })
    }
}

fn user(options: &Options) -> Result<Option<User>, String> {
    match (options.get("user"), options.get("password")) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err("--password needs a --user".into()),
        // With a password of its own the name may have colons.
        (Some(user), Some(password)) => Ok(Some((user.into(), password.into()))),
        (Some(user), None) => match user.split_once(':') {
            Some((name, password)) => Ok(Some((name.into(), password.into()))),
            None => {
                Err("--user has the form NAME:PASSWORD, or there is a --password as well".into())
            }
        },
    }
}

/// A byte stream to a server.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Dialing = Pin<Box<dyn Future<Output = io::Result<TokioIo<Box<dyn Stream>>>> + Send>>;

/// Makes connections.
#[derive(Clone)]
struct Dial {
    url: Endpoint,
    tls: Option<Arc<ClientConfig>>,
}

impl Dial {
    async fn dial(self) -> io::Result<TokioIo<Box<dyn Stream>>> {
        let (stream, name): (Box<dyn Stream>, _) = match self.url.place {
            config::Place::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), port)).await?;
                stream.set_nodelay(true)?;
                (Box::new(stream), host)
            }
            config::Place::Unix { path } => {
                (Box::new(UnixStream::connect(path).await?), "localhost".into())
            }
        };
        let Some(tls) = self.tls else { return Ok(TokioIo::new(stream)) };
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        Ok(TokioIo::new(Box::new(stream)))
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = io::Error;
    type Future = Dialing;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dialing = self.clone().dial();
        Box::pin(async move {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
            tokio::time::timeout(CONNECT, dialing).await.map_err(late)?
        })
    }
}

/// A server that is connected to. The connection is made again when it is lost.
pub struct Remote {
    endpoint: String,
    channel: Channel,
    user: Option<User>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl Remote {
    /// Connects, and logs in where there is a user.
    ///
    /// # Errors
    /// Why not, in one line.
    pub async fn connect(place: Place) -> Result<Self, String> {
        let Place { endpoint, url, user, tls } = place;
        let failed = |why: String| format!("{endpoint}: cannot connect: {why}");
        let authority = match &url.place {
            config::Place::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            config::Place::Tcp { host, port } => format!("{host}:{port}"),
            config::Place::Unix { .. } => "localhost".into(),
        };
        let scheme = if url.tls { "https" } else { "http" };
        let origin: Uri = format!("{scheme}://{authority}")
            .parse()
            .map_err(|_| failed("the address is none".into()))?;
        // The scheme only says that there is no encryption to do above the connections made here.
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{authority}"))
            .map_err(|error| failed(error.to_string()))?
            .origin(origin)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .connect_with_connector(Dial { url, tls })
            .await
            .map_err(|error| failed(root_cause(&error)))?;
        let remote = Self { endpoint, channel, user, token: Mutex::new(None) };
        remote.log_in().await?;
        Ok(remote)
    }

    /// As it was given.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// For calls with more than one answer.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A request in the user's name.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = self.token.lock().clone() {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    /// What a server's refusal is told as.
    pub fn refused(&self, status: &Status) -> String {
        // Where the connection is to blame, only that is told.
        let why = status.source().map_or_else(|| status.message().to_owned(), root_cause);
        format!("{}: {why}", self.endpoint)
    }

    /// Gets a token, where there is a user.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn log_in(&self) -> Result<(), String> {
        let Some((name, password)) = self.user.clone() else { return Ok(()) };
        let mut client = AuthClient::new(self.channel());
        let asked = client.authenticate(AuthenticateRequest { name, password });
        let answer = tokio::time::timeout(CALL, asked).await.map_err(|_| self.silent())?;
        let answer = answer.map_err(|status| self.refused(&status))?;
        let token = MetadataValue::try_from(answer.into_inner().token);
        let token = token.map_err(|_| format!("{}: the token is none", self.endpoint))?;
        *self.token.lock() = Some(token);
        Ok(())
    }

    /// Asks something that changes nothing, with one answer; once more with a new token where the old one ran out, and
    /// again for a while where the connection is lost.
    ///
    /// # Errors
    /// What the server says.
    pub async fn call<Q, A, F>(
        &self,
        message: Q,
        send: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut again = self.user.is_some();
        let begun = Instant::now();
        loop {
            let asked = send(self.channel(), self.request(message.clone()));
            let answer = tokio::time::timeout(CALL, asked).await;
            match answer.map_err(|_| Status::deadline_exceeded("no answer in time"))? {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if again && status.code() == Code::Unauthenticated => {
                    again = false;
                    self.log_in().await.map_err(Status::unauthenticated)?;
                }
                // The connection failed, not the server. It is made again by the next question; all that is
                // asked here may be asked twice.
                Err(status) if status.source().is_some() && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(status) => return Err(status),
            }
        }
    }

    fn silent(&self) -> String {
        format!("{}: no answer within {CALL:?}", self.endpoint)
    }
}

fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Options {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Options::parse(&args, &FLAGS).unwrap()
    }

    #[test]
    fn users_are_given_as_to_etcdctl() {
        let named = |name: &str, password: &str| Ok(Some((name.to_owned(), password.to_owned())));
        assert_eq!(user(&options(&[])), Ok(None));
        assert_eq!(user(&options(&["--user=a:b:c"])), named("a", "b:c"));
        assert_eq!(user(&options(&["--user=a:b", "--password=c"])), named("a:b", "c"));
        assert!(user(&options(&["--user=a"])).is_err());
        assert!(user(&options(&["--password=a"])).is_err());
    }

    #[test]
    fn files_are_read_before_anybody_is_asked() {
        let tls = |endpoint: &str, args: &[&str]| {
            Place::of(endpoint, &options(args)).map(|place| place.tls.is_some())
        };
        assert_eq!(tls("127.0.0.1:1", &[]), Ok(false));
        let anybody = "--insecure-skip-tls-verify";
        assert_eq!(tls("127.0.0.1:1", &[anybody]), Ok(true));
        assert!(tls("http://127.0.0.1:1", &[anybody]).unwrap_err().contains("without TLS"));
        assert!(
            tls("https://127.0.0.1:1", &["--cacert=/nowhere"]).unwrap_err().contains("/nowhere")
        );
    }
}

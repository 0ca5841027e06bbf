//! Serving: connections are accepted, told apart, answered, and drained at the end.
//!
//! HTTP/1.1 and HTTP/2 share a port; the first bytes of a connection tell which it is. So do, if both
//! are configured for one place, connections with TLS and without.
//! Stopping goes in three steps: no new connections, and clients are told to go (GOAWAY); unary
//! calls get a moment to end; then connections are closed, which ends what streams.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tonic::body::Body;

use super::audited::ClientAddress;
use super::dispatch::Services;
use super::handshake::{Handshakes, Opened, Place};
use super::http::Endpoints;
use super::json::{self, JsonGateway};
use super::listen::{Bound, Listener, Metered, Security, Traffic, urls};
use super::messages::Inbound;
use super::told;
use super::transport;
use super::ui;
use crate::auth::CertificateName;
use crate::config::{Config, Keepalive};
use crate::telemetry::Metrics;
use crate::tls::server::ServerTls;
use crate::vital::Vital;

/// How much of requests is taken in ahead of their handlers, for a stream and for a connection.
/// Above the default request limit, so that no request waits for a window update in its middle.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Room for a token of authentication and then some.
const HEADER_BYTES_MAX: u32 = 256 * 1024;
/// Clients that give up many calls at once (timeouts under load) are not attackers yet.
const RESETS_PENDING_MAX: usize = 4096;
/// As in etcd.
const HTTP1_HEADER_TIMEOUT: Duration = Duration::from_secs(300);
/// How long unary calls may take to end once the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(2500);
/// How long what streams may go on after that: for last words, such as a change of health.
const LINGER: Duration = Duration::from_millis(200);
/// How long connections may take to close in the end.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a failed accept, as the usual reason (no file descriptors) does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// What is served.
pub struct App {
    /// The gRPC services.
    pub services: Arc<Services>,
    /// The HTTP endpoints.
    pub endpoints: Endpoints,
    /// The API as JSON, unless it is switched off.
    pub json: Option<JsonGateway>,
}

/// What stands before the services. Until they are there, the endpoints answer by what is known, and
/// gRPC calls wait.
pub struct Gate {
    /// For what is counted on connections.
    pub metrics: Arc<Metrics>,
    /// The HTTP endpoints until then.
    pub starting: Endpoints,
    /// What is served, once it is there.
    pub app: watch::Receiver<Option<Arc<App>>>,
    /// Told if no more connections are accepted because of a panic.
    pub vital: Vital,
}

impl Gate {
    async fn answer(
        &self,
        traffic: Traffic,
        request: Request<Incoming>,
        held: Held,
    ) -> Response<Body> {
        let path = request.uri().path();
        let api = json::is_api(path);
        // Over HTTP/2 etcd speaks gRPC only; the rest is answered here as over HTTP/1.1. Over TLS
        // clients choose HTTP/2 for anything, so that the content tells.
        let grpc = match traffic {
            Traffic::Metrics | Traffic::Http => false,
            Traffic::Grpc => true,
            Traffic::GrpcAndHttp if request.extensions().get::<Secure>().is_some() => {
                request.version() == Version::HTTP_2 && transport::claims_grpc(request.headers())
            }
            Traffic::GrpcAndHttp => {
                let http = request.method() == Method::GET || api || ui::concerns(path);
                request.version() == Version::HTTP_2 && !http
            }
        };
        if grpc {
            return match self.opened().await {
                Some(app) => app.services.call(request.map(Inbound::Network)).await,
                None => tonic::Status::unavailable("the server is stopping").into_http(),
            };
        }
        if api && traffic != Traffic::Metrics {
            let app = self.opened().await;
            if let Some((app, json)) = app.as_ref().and_then(|app| Some((app, app.json.as_ref()?)))
            {
                if let Some(refusal) = app.endpoints.refuse_named(&request) {
                    return refusal;
                }
                let answer = async |request| json.answer(request, held).await;
                return app.endpoints.guard(request, answer).await;
            }
        }
        let app = self.now();
        let endpoints = app.as_ref().map_or(&self.starting, |app| &app.endpoints);
        match traffic {
            Traffic::Metrics => endpoints.metrics_only(&request).await,
            _ => endpoints.client(request).await,
        }
    }

    fn now(&self) -> Option<Arc<App>> {
        self.app.borrow().clone()
    }

    /// Waits for the services; `None` when they will never be there.
    async fn opened(&self) -> Option<Arc<App>> {
        if let Some(app) = self.now() {
            return Some(app);
        }
        let mut app = self.app.clone();
        app.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn unary_in_flight(&self) -> i64 {
        self.now().map_or(0, |app| app.services.unary_in_flight())
    }
}

/// Takes every place that the configuration names.
///
/// # Errors
/// The first place that cannot be listened on.
pub fn bind(config: &Config) -> Result<Vec<Bound>, super::listen::ListenError> {
    let split = !config.listen_client_http.is_empty();
    let client = if split { Traffic::Grpc } else { Traffic::GrpcAndHttp };
    let mut places: Vec<Bound> = Vec::new();
    for (urls, traffic) in [
        (&config.listen_client, client),
        (&config.listen_client_http, Traffic::Http),
        (&config.listen_metrics, Traffic::Metrics),
    ] {
        for url in urls {
            match places.iter_mut().find(|there| there.is_at(url, traffic)) {
                // The same place with another scheme.
                Some(place) => place.security = Security::Either,
                None => places.push(Bound::bind(url, traffic, config.socket)?),
            }
        }
    }
    Ok(places)
}

/// How far the server has come on its way to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    Draining,
    Closing,
}

/// A connection that the end of the server waits for, as long as there is a clone of this.
#[derive(Clone)]
pub struct Held {
    stage: watch::Receiver<Stage>,
    _alive: mpsc::Sender<Infallible>,
}

impl Held {
    /// Ends when connections are to be closed.
    pub async fn closing(&mut self) {
        // Without a server there is nothing to stay for either.
        let _ = self.stage.wait_for(|stage| *stage == Stage::Closing).await;
    }
}

/// A server that accepts connections until it is told to [`Server::stop`].
pub struct Server {
    gate: Arc<Gate>,
    stage: watch::Sender<Stage>,
    /// Gives nothing, but ends once every task has ended.
    ended: mpsc::Receiver<Infallible>,
}

impl Server {
    /// Starts serving on all listeners. Without `tls`, those that need it serve nobody.
    pub fn start(
        config: &Config,
        listeners: Vec<Listener>,
        gate: Gate,
        tls: Option<Arc<ServerTls>>,
    ) -> Server {
        let (stage, watched) = watch::channel(Stage::Serving);
        let (alive, ended) = mpsc::channel(1);
        let gate = Arc::new(gate);
        let handshakes = tls.map(|tls| Handshakes::new(tls, gate.metrics.clone()));
        for listener in listeners {
            let context = ConnectionContext {
                gate: gate.clone(),
                protocol: protocol(
                    listener.traffic,
                    config.limits.max_concurrent_streams,
                    config.keepalive,
                ),
                traffic: listener.traffic,
                security: listener.security,
                handshakes: handshakes.clone().filter(|_| listener.security != Security::Plain),
                tells_clients: config.audit.is_some(),
            };
            let accepting =
                accept_loop(listener, Arc::new(context), watched.clone(), alive.clone());
            gate.vital.spawn("what accepts connections", accepting);
        }
        Server { gate, stage, ended }
    }

    /// Stops serving: ends with every connection closed, after at most three seconds.
    pub async fn stop(self) {
        self.stage.send_replace(Stage::Draining);
        let drained = async {
            while self.gate.unary_in_flight() > 0 {
                tokio::time::sleep(DRAIN_POLL).await;
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            let calls = self.gate.unary_in_flight();
            tracing::warn!(calls, "closing connections with calls that did not end in time");
        }
        self.close().await;
    }

    /// Stops serving what can't be served any more: calls that are under way get no answer. Ends with
    /// every connection closed, after less than a second.
    pub async fn cut_off(self) {
        self.stage.send_replace(Stage::Draining);
        self.close().await;
    }

    async fn close(mut self) {
        if tokio::time::timeout(LINGER, self.ended.recv()).await.is_ok() {
            return;
        }
        self.stage.send_replace(Stage::Closing);
        if tokio::time::timeout(CLOSE_TIMEOUT, self.ended.recv()).await.is_err() {
            tracing::warn!("some connections did not close in time");
        }
    }
}

type Protocol = auto::Builder<TokioExecutor>;

fn protocol(traffic: Traffic, streams_max: Option<u32>, keepalive: Option<Keepalive>) -> Protocol {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HTTP1_HEADER_TIMEOUT);
    let mut http2 = builder.http2();
    http2
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(streams_max)
        .auto_date_header(false)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        // Who is answered before it has sent everything makes such a reset. Counting them would end a
        // connection with all its watches after a thousand refused requests.
        .max_local_error_reset_streams(None);
    if let Some(keepalive) = keepalive {
        http2.keep_alive_interval(keepalive.interval).keep_alive_timeout(keepalive.timeout);
    }
    match traffic {
        Traffic::Grpc => builder.http2_only(),
        _ => builder,
    }
}

/// What all connections of a listener share.
struct ConnectionContext {
    gate: Arc<Gate>,
    protocol: Protocol,
    traffic: Traffic,
    security: Security,
    /// None on a listener without TLS.
    handshakes: Option<Arc<Handshakes>>,
    /// Whether all requests carry where their client is, or only those that get a line in the log: it costs
    /// something.
    tells_clients: bool,
}

fn client_of(connection: &Metered) -> ClientAddress {
    ClientAddress(connection.connection().peer().into())
}

impl ConnectionContext {
    fn tells_client(&self, path: &str) -> bool {
        self.tells_clients || told::concerns(path)
    }
}

/// Among the extensions of a request that came over TLS.
#[derive(Debug, Clone, Copy)]
pub struct Secure;

async fn accept_loop(
    listener: Listener,
    context: Arc<ConnectionContext>,
    mut stage: watch::Receiver<Stage>,
    alive: mpsc::Sender<Infallible>,
) {
    announce(&listener);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stage.changed() => return,
        };
        match accepted {
            Ok(connection) => {
                let connection = Metered::new(connection, context.gate.metrics.clone());
                let held = Held { stage: stage.clone(), _alive: alive.clone() };
                match &context.handshakes {
                    None if context.security != Security::Plain => {}
                    None => {
                        let marks = Marks { tls: None, client: client_of(&connection) };
                        tokio::spawn(serve_connection(context.clone(), connection, marks, held));
                    }
                    Some(handshakes) => {
                        let place = tokio::select! {
                            place = handshakes.place() => place,
                            _ = stage.changed() => return,
                        };
                        tokio::spawn(open_connection(context.clone(), connection, place, held));
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, address = %listener.address, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn announce(listener: &Listener) {
    let traffic = listener.traffic;
    for (address, secure) in urls(&listener.address, listener.security) {
        if secure {
            tracing::info!(%traffic, %address, "serving client traffic securely");
        } else {
            tracing::info!(
                %traffic,
                %address,
                "serving client traffic insecurely; this is strongly discouraged!"
            );
        }
    }
}

/// Serves a connection once it is clear how, and, over TLS, with whom.
async fn open_connection(
    context: Arc<ConnectionContext>,
    connection: Metered,
    place: Place,
    held: Held,
) {
    let Some(handshakes) = &context.handshakes else { return };
    let mut stage = held.stage.clone();
    let client = client_of(&connection);
    let opened = tokio::select! {
        opened = handshakes.open(connection, context.security, place) => opened,
        // Nothing has been asked yet.
        _ = stage.changed() => return,
    };
    match opened {
        None => {}
        Some(Opened::Plain(plain)) => {
            let marks = Marks { tls: None, client };
            serve_connection(context.clone(), plain, marks, held).await;
        }
        Some(Opened::Tls(stream, name)) => {
            let marks = Marks { tls: Some((Secure, name)), client };
            serve_connection(context.clone(), *stream, marks, held).await;
        }
    }
}

/// What requests on a connection are marked with.
struct Marks {
    /// That they came over TLS, and the name in the client's certificate.
    tls: Option<(Secure, Option<CertificateName>)>,
    client: ClientAddress,
}

async fn serve_connection<C>(
    context: Arc<ConnectionContext>,
    connection: C,
    marks: Marks,
    held: Held,
) where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(connection);
    let service = service_fn(|mut request: Request<Incoming>| {
        let (gate, traffic, held) = (context.gate.clone(), context.traffic, held.clone());
        if context.tells_client(request.uri().path()) {
            request.extensions_mut().insert(marks.client.clone());
        }
        if let Some((secure, name)) = &marks.tls {
            request.extensions_mut().insert(*secure);
            if let Some(name) = name {
                request.extensions_mut().insert(name.clone());
            }
        }
        // A connection that may be upgraded is not bound to one version by its protocol.
        let refused = traffic == Traffic::Grpc && request.version() != Version::HTTP_2;
        async move {
            if refused {
                return Err(std::io::Error::other("only gRPC is served here"));
            }
            Ok(gate.answer(traffic, request, held).await)
        }
    });
    let connection = context.protocol.serve_connection_with_upgrades(io, service);
    let mut connection = pin!(connection);
    let mut told = false;
    let mut stage = held.stage.clone();
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(error, "a connection ended with an error");
                }
                return;
            }
            changed = stage.changed() => {
                if changed.is_err() || *stage.borrow_and_update() == Stage::Closing {
                    return;
                }
                if !told {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

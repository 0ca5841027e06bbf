//! From a gRPC request to its service, and back.
//!
//! The services are looked up by the name in the path; there is no router in between. What every
//! call has in common is done here: its form is checked, its deadline kept, its end counted, and
//! errors of the gRPC library are put into etcd's words.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body::Frame;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::messages::{Inbound, Messages, RequestBody};
use super::transport::{self, Refusal};
use crate::telemetry::methods::{self, Flow, Method};
use crate::telemetry::trace::{CallSpan, Traces};
use crate::telemetry::{Gauge, Metrics};

/// The text of a call that took longer than its client allowed.
pub const DEADLINE_TEXT: &str = "context deadline exceeded";
/// Under which clients tell their version.
const CLIENT_VERSION: HeaderName = HeaderName::from_static("client-api-version");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// A gRPC service, whatever its type.
trait AnyService: Send + Sync {
    fn call(&self, request: Request<RequestBody>) -> BoxFuture<Response<Body>, Infallible>;
}

/// What tonic generates for a service.
pub trait GeneratedService:
    Service<
        Request<RequestBody>,
        Response = Response<Body>,
        Error = Infallible,
        Future = BoxFuture<Response<Body>, Infallible>,
    > + NamedService
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> GeneratedService for S where
    S: Service<
            Request<RequestBody>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        > + NamedService
        + Clone
        + Send
        + Sync
        + 'static
{
}

impl<S: GeneratedService> AnyService for S {
    fn call(&self, request: Request<RequestBody>) -> BoxFuture<Response<Body>, Infallible> {
        // Generated services are always ready, and cheap to clone.
        Service::call(&mut self.clone(), request)
    }
}

struct Entry {
    name: &'static str,
    service: Box<dyn AnyService>,
    /// Whether unary calls may wait for other clients.
    waits: bool,
}

/// The gRPC services of the server.
pub struct Services {
    /// In the order in which they were added, the busiest first.
    entries: Vec<Entry>,
    metrics: Arc<Metrics>,
    slow_call: Duration,
    traces: Option<Arc<Traces>>,
    unary_in_flight: Gauge,
}

impl Services {
    /// No services yet. Unary calls taking longer than `slow_call` are logged, unless it is zero; calls
    /// are traced if there are `traces`.
    pub fn new(
        metrics: Arc<Metrics>,
        slow_call: Duration,
        traces: Option<Arc<Traces>>,
    ) -> Services {
        let unary_in_flight = Gauge::default();
        Services { entries: Vec::new(), metrics, slow_call, traces, unary_in_flight }
    }

    /// Adds a generated server. Set its message limits and compression before.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "adding a service is not arithmetic")]
    pub fn add<S: GeneratedService>(mut self, service: S) -> Services {
        self.entries.push(Entry { name: S::NAME, service: Box::new(service), waits: false });
        self
    }

    /// Adds a generated server whose unary calls may wait for other clients, so that nobody should
    /// wait for them to end.
    #[must_use]
    pub fn add_waiting<S: GeneratedService>(mut self, service: S) -> Services {
        self.entries.push(Entry { name: S::NAME, service: Box::new(service), waits: true });
        self
    }

    /// Unary calls that are being answered and do not wait for other clients.
    pub fn unary_in_flight(&self) -> i64 {
        self.unary_in_flight.get()
    }

    /// Answers one gRPC call.
    pub async fn call(&self, request: Request<Inbound>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        if let Err(refusal) = transport::check_call(&parts) {
            return refuse(refusal);
        }
        let content_type = parts.headers.get(header::CONTENT_TYPE).filter(|t| **t != GRPC).cloned();
        let mut response = match self.find(parts.uri.path()) {
            Err(status) => status.into_http(),
            Ok(call) => match transport::timeout(&parts.headers) {
                Err(refusal) => return refuse(refusal),
                Ok(timeout) => self.run(call, timeout, Request::from_parts(parts, body)).await,
            },
        };
        if let Some(content_type) = content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        }
        response
    }

    /// The service and method that a path names.
    fn find(&self, path: &str) -> Result<Call<'_>, Status> {
        let Some((service, method)) = path.strip_prefix('/').unwrap_or(path).rsplit_once('/')
        else {
            return Err(Status::unimplemented(format!("malformed method name: {path:?}")));
        };
        match self.entries.iter().find(|entry| entry.name == service) {
            None => Err(Status::unimplemented(format!("unknown service {service}"))),
            Some(entry) => match methods::find(service, method) {
                None => Err(Status::unimplemented(format!(
                    "unknown method {method} for service {service}"
                ))),
                Some(method) => Ok(Call { entry, method }),
            },
        }
    }

    async fn run(
        &self,
        call: Call<'_>,
        timeout: Option<Duration>,
        request: Request<Inbound>,
    ) -> Response<Body> {
        let started = Instant::now();
        let version = request.headers().get(CLIENT_VERSION).map(HeaderValue::as_bytes);
        self.metrics.grpc.started(call.method, version);
        let span = self.traces.as_ref().map(|traces| traces.begin(call.method, request.headers()));
        let bytes = Arc::new(AtomicU64::new(0));
        let request = request
            .map(|body| RequestBody::new(body, call.method, self.metrics.clone(), bytes.clone()));
        let begun = Begun { method: call.method, started, span };
        let mut ended = Ended { metrics: &self.metrics, call: Some(begun) };
        let drains = call.method.flow == Flow::Unary && !call.entry.waits;
        let _held = drains.then(|| self.unary_in_flight.hold());
        let answer = call.entry.service.call(request);
        let Ok(mut response) = match timeout {
            None => answer.await,
            // Timers are too coarse for it, and a write would be quicker.
            Some(timeout) if started.elapsed() >= timeout => {
                Ok(Status::deadline_exceeded(DEADLINE_TEXT).into_http())
            }
            Some(timeout) => match tokio::time::timeout(timeout, answer).await {
                Ok(response) => response,
                Err(_) => Ok(Status::deadline_exceeded(DEADLINE_TEXT).into_http()),
            },
        };
        let failed = response.headers().get("grpc-status").map(code_of);
        if let Some(code) = failed {
            translate(code, call.method.flow, &mut response);
        }
        if call.method.flow != Flow::Unary
            && failed.is_none()
            && let Some(begun) = ended.call.take()
        {
            let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
            let metrics = self.metrics.clone();
            return response.map(|body| {
                Body::new(StreamBody {
                    body,
                    deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at.into()))),
                    end: Some((metrics, begun)),
                    messages: Messages::default(),
                })
            });
        }
        if failed.is_none() {
            self.metrics.grpc.sent(call.method, 1);
        }
        ended.with(failed.map_or(Code::Ok, |_| code_of_response(&response)));
        self.warn_if_slow(call.method, started, &bytes);
        response
    }

    fn warn_if_slow(&self, method: Method, started: Instant, bytes: &AtomicU64) {
        let took = started.elapsed();
        if took > self.slow_call && !self.slow_call.is_zero() {
            tracing::warn!(
                method = %method,
                ?took,
                expected_duration = ?self.slow_call,
                request_bytes = bytes.load(Ordering::Relaxed),
                "request took longer than expected"
            );
        }
    }
}

struct Call<'a> {
    entry: &'a Entry,
    method: Method,
}

/// A call whose end has not been counted.
struct Begun {
    method: Method,
    started: Instant,
    span: Option<CallSpan>,
}

impl Begun {
    fn end(self, metrics: &Metrics, code: Code) {
        metrics.grpc.handled(self.method, code as i32, self.started.elapsed());
        if let Some(span) = self.span {
            span.end(code as i32);
        }
    }
}

/// Counts the end of a call, also when its future is dropped because the client went away.
struct Ended<'a> {
    metrics: &'a Metrics,
    call: Option<Begun>,
}

impl Ended<'_> {
    fn with(&mut self, code: Code) {
        if let Some(begun) = self.call.take() {
            begun.end(self.metrics, code);
        }
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.with(Code::Cancelled);
    }
}

fn refuse(refusal: Refusal) -> Response<Body> {
    let mut response = refusal.status.into_http();
    *response.status_mut() = refusal.http;
    response
}

fn code_of(value: &HeaderValue) -> Code {
    Code::from_bytes(value.as_bytes())
}

fn code_of_response(response: &Response<Body>) -> Code {
    response.headers().get("grpc-status").map_or(Code::Ok, code_of)
}

/// Whether the gRPC library itself may have ended a call with this code.
fn may_be_the_librarys(code: Code) -> bool {
    use Code::{Internal, OutOfRange, ResourceExhausted, Unimplemented};
    matches!(code, OutOfRange | ResourceExhausted | Unimplemented | Internal)
}

/// Puts an error that the gRPC library made into etcd's words.
fn translate(code: Code, flow: Flow, response: &mut Response<Body>) {
    if !may_be_the_librarys(code) {
        return;
    }
    let Some(status) = Status::from_header_map(response.headers()) else { return };
    if let Some(status) = transport::translate(&status, flow) {
        *response = status.into_http();
    }
}

/// The same for an error that ends a stream.
fn translate_trailers(code: Code, flow: Flow, trailers: &HeaderMap) -> Option<HeaderMap> {
    if !may_be_the_librarys(code) {
        return None;
    }
    let status = transport::translate(&Status::from_header_map(trailers)?, flow)?;
    let mut translated = HeaderMap::new();
    status.add_header(&mut translated).ok()?;
    Some(translated)
}

/// The body of a streamed answer: ends at the call's deadline, and is counted when it ends.
struct StreamBody {
    body: Body,
    deadline: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Until the end has been counted.
    end: Option<(Arc<Metrics>, Begun)>,
    messages: Messages,
}

impl StreamBody {
    fn count(&mut self, code: Code) {
        if let Some((metrics, begun)) = self.end.take() {
            begun.end(&metrics, code);
        }
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.end.is_none() {
            return Poll::Ready(None);
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            self.count(Code::DeadlineExceeded);
            let mut trailers = HeaderMap::new();
            // Adding a status to fresh headers cannot fail on a plain text.
            let _ = Status::deadline_exceeded(DEADLINE_TEXT).add_header(&mut trailers);
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(Ok(frame)) = frame else {
            let code = match &frame {
                Some(Err(status)) => status.code(),
                _ => Code::Ok,
            };
            self.count(code);
            return Poll::Ready(frame);
        };
        let mut frame = frame;
        if let Some(data) = frame.data_ref() {
            let begun = self.messages.count(data);
            if let Some((metrics, call)) = &self.end {
                metrics.grpc.sent(call.method, begun);
            }
        }
        if let Some(trailers) = frame.trailers_ref() {
            let code = trailers.get("grpc-status").map_or(Code::Unknown, code_of);
            let flow = self.end.as_ref().map_or(Flow::BidiStream, |(_, call)| call.method.flow);
            if let Some(translated) = translate_trailers(code, flow, trailers) {
                frame = Frame::trailers(translated);
            }
            self.count(code);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.end.is_none() || self.body.is_end_stream()
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        // The client went away, or the server is stopping.
        self.count(Code::Cancelled);
    }
}

//! `grpc.health.v1`, as etcd answers it: the one entry, with an empty name, is the whole server.

use std::collections::HashMap;
use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, BoxStream, Service};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic_prost::ProstCodec;

/// What a client asks about.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    /// Empty for the whole server.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// What it is told.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct HealthCheckResponse {
    /// See [`ServingStatus`].
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// Asks for everything.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthListRequest {}

/// Everything, by name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthListResponse {
    /// The entries.
    #[prost(map = "string, message", tag = "1")]
    pub statuses: HashMap<String, HealthCheckResponse>,
}

/// Whether a service can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    /// Only told to watchers.
    ServiceUnknown = 3,
}

/// The service.
#[derive(Clone)]
pub struct HealthService {
    status: watch::Receiver<ServingStatus>,
}

impl HealthService {
    /// Follows the status of the server.
    pub fn new(status: watch::Receiver<ServingStatus>) -> HealthService {
        HealthService { status }
    }

    fn current(&self) -> HealthCheckResponse {
        HealthCheckResponse { status: *self.status.borrow() as i32 }
    }
}

impl NamedService for HealthService {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl<B> Service<Request<B>> for HealthService
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            Ok(match method.as_str() {
                "Check" => Grpc::new(ProstCodec::default()).unary(Check(service), request).await,
                "List" => Grpc::new(ProstCodec::default()).unary(List(service), request).await,
                "Watch" => {
                    Grpc::new(ProstCodec::default()).server_streaming(Watch(service), request).await
                }
                _ => Status::unimplemented("").into_http(),
            })
        })
    }
}

struct Check(HealthService);

impl UnaryService<HealthCheckRequest> for Check {
    type Response = HealthCheckResponse;
    type Future = BoxFuture<tonic::Response<HealthCheckResponse>, Status>;

    fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
        let answer = if request.get_ref().service.is_empty() {
            Ok(tonic::Response::new(self.0.current()))
        } else {
            Err(Status::not_found("unknown service"))
        };
        Box::pin(std::future::ready(answer))
    }
}

struct List(HealthService);

impl UnaryService<HealthListRequest> for List {
    type Response = HealthListResponse;
    type Future = BoxFuture<tonic::Response<HealthListResponse>, Status>;

    fn call(&mut self, _: tonic::Request<HealthListRequest>) -> Self::Future {
        let statuses = HashMap::from([(String::new(), self.0.current())]);
        Box::pin(std::future::ready(Ok(tonic::Response::new(HealthListResponse { statuses }))))
    }
}

struct Watch(HealthService);

impl ServerStreamingService<HealthCheckRequest> for Watch {
    type Response = HealthCheckResponse;
    type ResponseStream = BoxStream<HealthCheckResponse>;
    type Future = BoxFuture<tonic::Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
        let stream: Self::ResponseStream = if request.get_ref().service.is_empty() {
            let changes = WatchStream::new(self.0.status.clone());
            Box::pin(changes.map(|status| Ok(HealthCheckResponse { status: status as i32 })))
        } else {
            // A service that may yet appear: said once, and the stream stays open.
            let unknown = ServingStatus::ServiceUnknown as i32;
            let first = tokio_stream::once(Ok(HealthCheckResponse { status: unknown }));
            Box::pin(first.chain(tokio_stream::pending()))
        };
        Box::pin(std::future::ready(Ok(tonic::Response::new(stream))))
    }
}

//! From an HTTP request to a gRPC call in this process, and back.

use super::frames::{Lines, LinesBody, Messages, check};
use super::print::print;
use super::requests::{Requests, Source, single};
use super::timeout::Timeout;
use super::{JsonGateway, status};
use crate::gateway::audited::ClientAddress;
use crate::gateway::dispatch::DEADLINE_TEXT;
use crate::gateway::messages::Inbound;
use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::Full;
use leaseway_proto::schema::{Message, Method};
use std::future::poll_fn;
use std::time::Instant;
use tonic::Status;
use tonic::body::Body;

/// Before the names of headers that are meant for the service.
const FOR_SERVICE: &str = "grpc-metadata-";
/// Before the names under which headers of HTTP itself are passed on.
const OF_HTTP: &str = "grpcgateway-";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Told with answers that begin with a message, as etcd's gateway passes on the headers of the gRPC answer:
/// an error that comes before any message has none.
const ANSWERED_IN: HeaderName = HeaderName::from_static("grpc-metadata-content-type");
/// Answers above this many bytes are put into JSON off the serving threads.
const INLINE_BYTES: usize = 64 * 1024;

/// Headers of HTTP that are passed on.
const PASSED_ON: &[HeaderName] = &[
    header::ACCEPT,
    header::ACCEPT_CHARSET,
    header::ACCEPT_LANGUAGE,
    header::ACCEPT_RANGES,
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::DATE,
    header::EXPECT,
    header::FROM,
    header::HOST,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_UNMODIFIED_SINCE,
    header::MAX_FORWARDS,
    header::ORIGIN,
    header::PRAGMA,
    header::REFERER,
    header::USER_AGENT,
    header::VIA,
    header::WARNING,
];

/// The headers of the call for those of a request, but for its timeout.
pub fn metadata(headers: &HeaderMap) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    for (name, value) in headers {
        if name == header::AUTHORIZATION {
            metadata.append(header::AUTHORIZATION, value.clone());
        }
        let passed_on = match name.as_str().strip_prefix(FOR_SERVICE) {
            Some(name) => (!is_reserved(name)).then(|| HeaderName::try_from(name)),
            None => PASSED_ON
                .contains(name)
                .then(|| HeaderName::try_from(format!("{OF_HTTP}{}", name.as_str()))),
        };
        let text = value.as_bytes().iter().all(|byte| (0x20..0x7f).contains(byte));
        if let (Some(Ok(name)), true) = (passed_on, text) {
            metadata.append(name, value.clone());
        }
    }
    metadata.insert(header::CONTENT_TYPE, GRPC);
    metadata.insert(header::TE, HeaderValue::from_static("trailers"));
    metadata
}

/// Whether a name belongs to the transport, and not to the client.
fn is_reserved(name: &str) -> bool {
    name.starts_with("grpc-")
        || ["content-type", "te", "user-agent", "host", "connection"].contains(&name)
}

/// Calls a method, with the headers of a request, on behalf of `client`.
///
/// # Errors
/// The call's, unless the answer is a stream, which has its errors in it.
pub async fn call(
    gateway: &JsonGateway,
    method: &'static Method,
    headers: &HeaderMap,
    client: Option<ClientAddress>,
    source: Source,
) -> Result<Response<Body>, Status> {
    let (timeout, begun) = (Timeout::of(headers)?, Instant::now());
    let mut metadata = metadata(headers);
    timeout.put_into(&mut metadata);
    let body = if method.many_requests {
        Body::new(Requests::new(source, method.request, gateway.text_max))
    } else {
        let request = single(source, method.request, gateway.text_max).await?;
        Body::new(Full::new(request))
    };
    if timeout.is_over(begun.elapsed()) {
        return Err(Status::deadline_exceeded(DEADLINE_TEXT));
    }
    let mut request = Request::new(Inbound::Local(body));
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = metadata;
    if let Some(client) = client {
        request.extensions_mut().insert(client);
    }
    let path = format!("/{}/{}", method.service, method.name);
    *request.uri_mut() = path.parse().map_err(|_| Status::internal("a method without a path"))?;
    let response = gateway.services.call(request).await;
    if method.many_answers {
        return Ok(stream(response, method.answer).await);
    }
    check(response.headers())?;
    let message = message(response.into_body()).await?;
    Ok(answered(Body::new(Full::from(printed(method.answer, message).await?))))
}

/// An answer with a message, or more.
fn answered(body: Body) -> Response<Body> {
    let mut response = status::answer(StatusCode::OK, Bytes::new());
    *response.body_mut() = body;
    response.headers_mut().insert(ANSWERED_IN, GRPC);
    response
}

/// The one message of an answer.
async fn message(body: Body) -> Result<Bytes, Status> {
    let mut messages = Messages::new(body);
    let mut next = async || poll_fn(|context| messages.poll_next(context)).await;
    let Some(message) = next().await else {
        return Err(Status::internal("an answer without a message"));
    };
    let message = message?;
    // The error may come behind the message.
    match next().await {
        Some(Err(status)) => Err(status),
        _ => Ok(message),
    }
}

async fn printed(shape: &'static Message, message: Bytes) -> Result<Vec<u8>, Status> {
    let inline = message.len() <= INLINE_BYTES;
    let print = move || {
        let mut text = Vec::with_capacity(message.len() * 2);
        print(shape, &message, &mut text).map(|()| text)
    };
    let text = if inline {
        print()
    } else {
        let printing = tokio::task::spawn_blocking(print).await;
        printing.map_err(|error| Status::internal(error.to_string()))?
    };
    text.map_err(|error| Status::internal(error.to_string()))
}

/// The answer to a call with a stream: it begins with the first message, and its HTTP status tells of an
/// error that comes before.
async fn stream(response: Response<Body>, shape: &'static Message) -> Response<Body> {
    if let Err(error) = check(response.headers()) {
        return status::answer(status::http_status(error.code()), status::error_line(&error));
    }
    let mut lines = Lines::new(response.into_body(), shape);
    match poll_fn(|context| lines.poll_next(context)).await {
        Some(Err(error)) => {
            status::answer(status::http_status(error.code()), status::error_line(&error))
        }
        Some(Ok(first)) => answered(Body::new(LinesBody::new(first, lines))),
        None => Response::new(Body::empty()),
    }
}

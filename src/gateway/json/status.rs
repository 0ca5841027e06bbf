//! Errors in JSON: etcd's codes, texts and HTTP statuses.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::json;
use tonic::body::Body;
use tonic::{Code, Status};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The HTTP status that stands for a gRPC code.
pub fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        // Closed by the client: nginx's code, which has no name.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An answer in JSON.
pub fn answer(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// An error. The text is there twice, as `message` and, as older gateways had it, as `error`.
pub fn error(status: &Status) -> Response<Body> {
    let text = status.message();
    let body = json!({ "error": text, "code": status.code() as i32, "message": text });
    let mut response = answer(http_status(status.code()), body.to_string());
    if status.code() == Code::Unauthenticated
        && let Ok(text) = HeaderValue::from_str(text)
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, text);
    }
    response
}

/// An error as the last line of a stream.
pub fn error_line(status: &Status) -> Bytes {
    let error = json!({ "code": status.code() as i32, "message": status.message() });
    format!("{}\n", json!({ "error": error })).into()
}

/// The answer to a path that calls no method.
pub fn not_found() -> Response<Body> {
    error(&Status::not_found("Not Found"))
}

/// The answer to every HTTP method but POST.
pub fn method_not_allowed() -> Response<Body> {
    error(&Status::unimplemented("Method Not Allowed"))
}

/// The error for a text that is longer than `max` bytes; `seen` is its length as far as known.
pub fn too_large(seen: usize, max: usize) -> Status {
    let text = format!("grpc: received message larger than max ({seen} vs. {max})");
    Status::resource_exhausted(text)
}

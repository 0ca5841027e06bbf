//! The API as JSON over HTTP, for clients without gRPC.
//!
//! A request becomes a gRPC call to the services in this process, so that limits, permissions and
//! metrics are theirs. Owns the translation of paths, headers, messages and errors, as etcd's gateway
//! does it; deliberately absent: what any message means.

mod call;
#[cfg(test)]
mod check;
mod frames;
mod parse;
mod paths;
mod print;
mod requests;
mod scan;
mod socket;
mod status;
mod timeout;

#[cfg(test)]
pub use check::{check_message, check_request, check_text, is_request};
pub use status::http_status;

use super::audited::ClientAddress;
use super::dispatch::Services;
use super::http::decode;
use super::serve::Held;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use leaseway_proto::schema;
use requests::Source;
use std::sync::Arc;
use tonic::body::Body;

/// Where the API begins.
pub const PREFIX: &str = "/v3/";
/// Where it once began; taken for the same.
const OLD_PREFIX: &str = "/v3beta/";
/// Bytes of JSON for each byte of a message: base64 needs a third more, and there are names,
/// escapes and spaces.
const JSON_PER_BYTE: usize = 2;

/// Whether a path belongs to the API.
pub fn is_api(path: &str) -> bool {
    path.starts_with(PREFIX) || path.starts_with(OLD_PREFIX)
}

/// Answers requests in JSON.
#[derive(Clone)]
pub struct JsonGateway {
    services: Arc<Services>,
    /// Longest JSON text of one message, in bytes.
    text_max: usize,
}

impl JsonGateway {
    /// A gateway to `services`, which take messages of at most `message_max` bytes.
    pub fn new(services: Arc<Services>, message_max: usize) -> Self {
        Self { services, text_max: message_max.saturating_mul(JSON_PER_BYTE) }
    }

    /// Answers a request to a path of the API. `held` is the connection it came on.
    pub async fn answer(&self, request: Request<Incoming>, held: Held) -> Response<Body> {
        let path = decode(request.uri().path());
        let path = match path.strip_prefix(OLD_PREFIX) {
            Some(rest) => format!("{PREFIX}{rest}"),
            None => path,
        };
        let method = paths::find(&path);
        if socket::is_upgrade(&request) {
            return socket::accept(self, request, method, held);
        }
        let Some(method) = method else { return status::not_found() };
        if request.method() != Method::POST {
            return status::method_not_allowed();
        }
        let (parts, body) = request.into_parts();
        let client = parts.extensions.get().cloned();
        self.respond(method, &parts.headers, client, Source::Http(body)).await
    }

    /// Calls a method with the messages that come from `source`.
    async fn respond(
        &self,
        method: &'static schema::Method,
        headers: &http::HeaderMap,
        client: Option<ClientAddress>,
        source: Source,
    ) -> Response<Body> {
        let result = call::call(self, method, headers, client, source).await;
        result.unwrap_or_else(|error| status::error(&error))
    }
}

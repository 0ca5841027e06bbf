//! A page for people, `/ui`, and the small endpoints under `/ui/api/` that it asks. Both only read.
//!
//! The page is one file without anything from elsewhere; its content security policy names the hashes
//! of its script and its style, and lets it talk to its own server only. Whoever asks an endpoint must
//! send the header [`MARK`]: a page of another origin can't, unless the rules for cross-origin
//! requests allow it that header, and they never do. Who may see what is decided as for gRPC, by the
//! token in the `Authorization` header; there are no cookies.

mod data;
mod keys;

use super::Context;
use super::audited::{Auditor, ClientAddress};
use super::cluster::Members;
use super::error::Error;
use super::json::http_status;
use crate::auth::CertificateName;
use crate::backend::{Log, Sessions};
use crate::storage::Engine;
use crate::telemetry::grpc::code_label;
use crate::watch::Hub;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;

/// Must be among the headers of requests for data; its value does not matter.
pub const MARK: HeaderName = HeaderName::from_static("x-leaseway-ui");
const PAGE: &str = include_str!("page.html");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Whether a path is one of those here.
pub fn concerns(path: &str) -> bool {
    path == "/ui" || path.starts_with("/ui/")
}

/// What is asked, without a body: no request here has one.
pub struct Asked<'a> {
    method: &'a Method,
    path: &'a str,
    query: &'a str,
    headers: &'a HeaderMap,
    client: Option<ClientAddress>,
    certificate: Option<CertificateName>,
}

impl<'a> Asked<'a> {
    /// What a request asks.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            path: request.uri().path(),
            query: request.uri().query().unwrap_or_default(),
            headers: request.headers(),
            client: request.extensions().get().cloned(),
            certificate: request.extensions().get().cloned(),
        }
    }

    /// A parameter that holds bytes, in base64 for URLs; `Some(None)` if it holds something else.
    fn bytes(&self, name: &str) -> Option<Option<Bytes>> {
        use base64::engine::general_purpose::URL_SAFE_NO_PAD;
        self.text(name).map(|text| URL_SAFE_NO_PAD.decode(text).ok().map(Bytes::from))
    }

    /// A parameter, as it is written.
    fn text(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// A request for a service, from whoever asks here.
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let metadata = MetadataMap::from_headers(self.headers.clone());
        let mut request = tonic::Request::from_parts(metadata, http::Extensions::new(), message);
        if let Some(client) = &self.client {
            request.extensions_mut().insert(client.clone());
        }
        if let Some(name) = &self.certificate {
            request.extensions_mut().insert(name.clone());
        }
        request
    }
}

/// An answer on its way.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Response<Body>> + Send + 'a>>;

/// The page and its endpoints.
pub trait Pages: Send + Sync + 'static {
    /// Answers a request whose path [concerns](concerns) them.
    fn answer<'a>(&'a self, asked: Asked<'a>) -> Answer<'a>;
}

/// What the page tells of.
pub struct Parts<L, S> {
    pub context: Arc<Context<L, S>>,
    pub hub: Hub,
    pub engine: Arc<dyn Engine>,
    pub members: Members,
    /// Notes who looks, if there is an audit log.
    pub auditor: Option<Auditor>,
    /// Of this member.
    pub name: String,
    pub client_urls: Vec<String>,
    /// One word for the backend.
    pub backend: &'static str,
}

/// Both of them over a keyspace.
pub struct Ui<L, S> {
    parts: Parts<L, S>,
    policy: HeaderValue,
}

impl<L, S> Ui<L, S> {
    /// Tells of `parts`.
    pub fn new(parts: Parts<L, S>) -> Self {
        Self { parts, policy: policy(PAGE) }
    }

    fn page(&self) -> Response<Body> {
        let mut response = answer(StatusCode::OK, HTML, PAGE.into());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }
}

impl<L: Log, S: Sessions> Pages for Ui<L, S> {
    fn answer<'a>(&'a self, asked: Asked<'a>) -> Answer<'a> {
        Box::pin(async move {
            let Some(endpoint) = asked.path.strip_prefix("/ui/api/") else {
                return match asked.path {
                    "/ui" | "/ui/" if asked.method == Method::GET => self.page(),
                    "/ui" | "/ui/" => failure(StatusCode::METHOD_NOT_ALLOWED, "only GET"),
                    _ => failure(StatusCode::NOT_FOUND, "there is no such page"),
                };
            };
            if !asked.headers.contains_key(MARK) {
                let text = "a request for data needs the header X-Leaseway-Ui";
                return failure(StatusCode::FORBIDDEN, text);
            }
            let wanted = if endpoint == "login" { Method::POST } else { Method::GET };
            if asked.method != wanted {
                return failure(StatusCode::METHOD_NOT_ALLOWED, "another method is needed");
            }
            let told = match endpoint {
                "login" => self.login(&asked).await,
                "status" => self.status(&asked).await,
                "keys" => self.keys(&asked).await,
                "key" => self.key(&asked).await,
                "leases" => self.leases(&asked).await,
                "watchers" => self.watchers(&asked).await,
                "members" => self.members(&asked).await,
                _ => return failure(StatusCode::NOT_FOUND, "there is no such endpoint"),
            };
            match told {
                Ok(value) => answer(StatusCode::OK, JSON, value.to_string().into()),
                Err(status) => refused(&status),
            }
        })
    }
}

fn answer(status: StatusCode, kind: HeaderValue, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn failure(status: StatusCode, text: &str) -> Response<Body> {
    answer(status, JSON, json!({ "error": text }).to_string().into())
}

/// A refusal, and whether logging in (again) may help.
fn refused(status: &Status) -> Response<Body> {
    let anonymous = [Error::UserEmpty, Error::InvalidAuthToken, Error::AuthOldRevision];
    let login = anonymous.iter().any(|error| error.told().1 == status.message());
    let body: Value = json!({
        "error": status.message(),
        "code": code_label(status.code() as i32),
        "login": login,
    });
    answer(http_status(status.code()), JSON, body.to_string().into())
}

/// The page's content security policy: its own script and style, its own server, nothing else.
fn policy(page: &str) -> HeaderValue {
    let text = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(inside(page, "<script>", "</script>")),
        hash(inside(page, "<style>", "</style>")),
    );
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

fn hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("sha256-{}", BASE64.encode(digest))
}

fn inside<'a>(page: &'a str, open: &str, close: &str) -> &'a str {
    let (_, rest) = page.split_once(open).unwrap_or_default();
    rest.split_once(close).map_or("", |(text, _)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_and_one_style_and_nothing_from_elsewhere() {
        for (open, close) in [("<script", "</script>"), ("<style", "</style>")] {
            assert_eq!((PAGE.matches(open).count(), PAGE.matches(close).count()), (1, 1), "{open}");
            let plain = format!("{open}>");
            assert!(inside(PAGE, &plain, close).len() > 100, "{open}");
        }
        let script = inside(PAGE, "<script>", "</script>");
        // Data becomes text nodes; nothing turns text into markup or code.
        for sink in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "setAttribute(\"on",
            "srcdoc",
            "javascript:",
        ] {
            assert!(!script.contains(sink), "{sink}");
        }
        for source in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!PAGE.contains(source), "{source}");
        }
        // The policy lets no attribute be style or script.
        let markup = PAGE.replace(script, "");
        assert!(!markup.contains(" style=") && !markup.contains(" onclick="));
    }

    #[test]
    fn the_policy_names_the_hashes_of_what_it_allows() {
        let policy = policy("<style>a</style><script>b</script>");
        let policy = policy.to_str().expect("text");
        // What `printf a | openssl dgst -sha256 -binary | base64` prints.
        assert!(
            policy.contains("style-src 'sha256-ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs='"),
            "{policy}"
        );
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn paths_that_only_begin_alike_are_not_ours() {
        assert!(concerns("/ui") && concerns("/ui/") && concerns("/ui/api/keys"));
        assert!(!concerns("/uifoo") && !concerns("/") && !concerns("/v3/ui"));
    }
}

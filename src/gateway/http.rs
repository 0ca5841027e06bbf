//! The plain HTTP endpoints: health, version and metrics, with etcd's bodies and headers.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use leaseway_proto::etcdserverpb::AlarmType;
use tonic::body::Body;

use super::serve::Secure;
use super::ui::{self, Pages};
use crate::auth::CertificateName;
use crate::config::{Access, ETCD_CLUSTER_VERSION, ETCD_VERSION};
use crate::keyspace::alarms;
use crate::telemetry::{Metrics, exposition};

/// How long a health check may wait for its read, as in etcd with its default election timeout.
const READ_TIMEOUT: Duration = Duration::from_secs(7);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// A future that a trait object can return.
pub type ReadFuture<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// What health checks need to know of the server.
pub trait HealthState: Send + Sync + 'static {
    /// The numbers of the alarms that are active: also of those that have no meaning here.
    fn alarms(&self) -> Vec<i32>;

    /// Reads a key, from the local state if `serializable`; the error is a text for people.
    fn read(&self, serializable: bool) -> ReadFuture<'_>;

    /// Whether there is nothing to read from yet, which is no reason to end the process.
    fn loading(&self) -> bool {
        false
    }

    /// Whether it matters who asks.
    fn auth_enabled(&self) -> bool {
        false
    }

    /// Called before metrics are shown, to set the gauges that nobody keeps up to date.
    fn refresh_metrics(&self, _metrics: &Metrics) {}
}

/// The endpoints.
pub struct Endpoints {
    state: Arc<dyn HealthState>,
    metrics: Arc<Metrics>,
    access: Access,
    ui: Option<Arc<dyn Pages>>,
}

impl Endpoints {
    /// Endpoints that report on `state`.
    pub fn new(state: Arc<dyn HealthState>, metrics: Arc<Metrics>, access: Access) -> Endpoints {
        Endpoints { state, metrics, access, ui: None }
    }

    /// The same with a page for people, if there is one.
    #[must_use]
    pub fn with_ui(self, ui: Option<Arc<dyn Pages>>) -> Endpoints {
        Endpoints { ui, ..self }
    }

    /// Answers a request on a port for clients.
    pub async fn client<B>(&self, request: Request<B>) -> Response<Body> {
        self.guard(request, async |request| {
            if let Some(ui) = self.ui.as_ref().filter(|_| ui::concerns(request.uri().path())) {
                return ui.answer(ui::Asked::of(&request)).await;
            }
            if request.uri().path() != "/version" {
                return self.common(&request).await;
            }
            match refuse_method(request.method()) {
                Some(response) => response,
                None => answer(StatusCode::OK, Some(JSON), version_json()),
            }
        })
        .await
    }

    /// Refuses a request for the API as JSON whose client has a certificate with a name, while names
    /// count: there the name would not be who asks, and the client should know.
    pub fn refuse_named<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let name = request.extensions().get::<CertificateName>()?;
        let surprising = !name.0.is_empty() && self.state.auth_enabled();
        surprising.then(|| {
            error(
                StatusCode::BAD_REQUEST,
                "CommonName of client sending a request against gateway will be ignored and not \
                 used as expected",
            )
        })
    }

    /// Answers a request on a port for clients by `answer`, if it came to a name under which this server
    /// may be called; lets pages of other origins read the answer.
    pub async fn guard<B>(
        &self,
        request: Request<B>,
        respond: impl AsyncFnOnce(Request<B>) -> Response<Body>,
    ) -> Response<Body> {
        let host = host_name(&request);
        // A page that was rebound to this server could not have got past its certificate.
        let secure = request.extensions().get::<Secure>().is_some();
        if !secure && self.access.hosts.as_ref().is_some_and(|hosts| !hosts.contains(&host)) {
            tracing::warn!(host, "rejecting HTTP request to prevent DNS rebinding attacks");
            return error(StatusCode::MISDIRECTED_REQUEST, &rebinding_text(&host));
        }
        let origin = self.allowed_origin(&request);
        let mut response = match *request.method() {
            Method::OPTIONS => answer(StatusCode::OK, None, String::new()),
            _ => respond(request).await,
        };
        if let Some(origin) = origin {
            add_cors(origin, &mut response);
        }
        response
    }

    /// Answers a request on a port for metrics only.
    pub async fn metrics_only<B>(&self, request: &Request<B>) -> Response<Body> {
        self.common(request).await
    }

    async fn common<B>(&self, request: &Request<B>) -> Response<Body> {
        let path = request.uri().path();
        let kind = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        match path {
            "/metrics" => {
                self.state.refresh_metrics(&self.metrics);
                let kind = HeaderValue::from_static(exposition::CONTENT_TYPE);
                return answer(StatusCode::OK, Some(kind), self.metrics.text());
            }
            "/health" => return self.health(request).await,
            "/livez" | "/readyz" => {
                let excluded = query_set(request, "exclude");
                let checks: Vec<Check> =
                    checks(kind).filter(|c| !excluded.contains(c.name)).collect();
                return self.run_checks(request, kind, &checks).await;
            }
            _ => {}
        }
        let single = checks(kind).find(|check| {
            path.strip_prefix('/').and_then(|p| p.strip_prefix(kind))
                == Some(&format!("/{}", check.name))
        });
        match single {
            Some(check) => self.run_checks(request, kind, &[check]).await,
            None => error(StatusCode::NOT_FOUND, "404 page not found"),
        }
    }

    async fn health<B>(&self, request: &Request<B>) -> Response<Body> {
        if let Some(response) = refuse_method(request.method()) {
            return response;
        }
        let excluded = query_set(request, "exclude");
        let serializable = query(request).find(|(name, _)| name == "serializable");
        let serializable = serializable.is_some_and(|(_, value)| value == "true");
        let counts = |alarm: &i32| !excluded.contains(&*alarms::name(*alarm));
        let alarm = self.state.alarms().into_iter().find(counts);
        let reason = match alarm.map(AlarmType::try_from) {
            Some(Ok(AlarmType::Nospace)) => Some("ALARM NOSPACE".to_owned()),
            Some(Ok(AlarmType::Corrupt)) => Some("ALARM CORRUPT".to_owned()),
            Some(_) => Some("ALARM UNKNOWN".to_owned()),
            None => self.read(serializable).await.err().map(|why| format!("RANGE ERROR:{why}")),
        };
        match reason {
            None => {
                self.metrics.health.success_total.inc();
                let body = "{\"health\":\"true\",\"reason\":\"\"}".to_owned();
                answer(StatusCode::OK, Some(TEXT), body)
            }
            Some(reason) => {
                self.metrics.health.failure_total.inc();
                tracing::warn!(reason, "serving /health false");
                let reason = serde_json::Value::from(reason);
                let body = format!("{{\"health\":\"false\",\"reason\":{reason}}}");
                error(StatusCode::SERVICE_UNAVAILABLE, &body)
            }
        }
    }

    async fn run_checks<B>(
        &self,
        request: &Request<B>,
        kind: &str,
        checks: &[Check],
    ) -> Response<Body> {
        if let Some(response) = refuse_method(request.method()) {
            return response;
        }
        let (mut report, mut failed) = (String::new(), false);
        for check in checks {
            let result = self.run_check(check.test).await;
            self.metrics.health.checked(kind, check.name, result.is_ok());
            match result {
                Ok(()) => report.push_str(&format!("[+]{} ok\n", check.name)),
                Err(why) => {
                    failed = true;
                    report.push_str(&format!("[-]{} failed: {why}\n", check.name));
                }
            }
        }
        if failed {
            tracing::error!(path = request.uri().path(), reason = report, "health check error");
            return error(StatusCode::SERVICE_UNAVAILABLE, &report);
        }
        if !query(request).any(|(name, _)| name == "verbose") {
            report.clear();
        }
        report.push_str("ok\n");
        let mut response = answer(StatusCode::OK, Some(TEXT), report);
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        response
    }

    async fn run_check(&self, test: Test) -> Result<(), String> {
        match test {
            Test::NotCorrupt => match self.state.alarms().contains(&(AlarmType::Corrupt as i32)) {
                true => Err("alarm activated: CORRUPT".into()),
                false => Ok(()),
            },
            // etcd answers nobody until it has loaded everything; a supervisor would give up on it then.
            Test::Alive if self.state.loading() => Ok(()),
            Test::Alive => self.read(true).await,
            Test::Read { serializable } => self.read(serializable).await,
            // There are no learners among single members.
            Test::NotLearner => Ok(()),
        }
    }

    async fn read(&self, serializable: bool) -> Result<(), String> {
        match tokio::time::timeout(READ_TIMEOUT, self.state.read(serializable)).await {
            Ok(result) => result,
            Err(_) => Err("etcdserver: request timed out".into()),
        }
    }

    /// The origin whose pages may read the answer.
    fn allowed_origin<B>(&self, request: &Request<B>) -> Option<HeaderValue> {
        let Some(allowed) = &self.access.cors else { return Some(HeaderValue::from_static("*")) };
        let origin = request.headers().get(header::ORIGIN)?;
        let known = origin.to_str().is_ok_and(|origin| allowed.iter().any(|a| a == origin));
        known.then(|| origin.clone())
    }
}

fn add_cors(origin: HeaderValue, response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"),
    );
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("accept, content-type, authorization"),
    );
}

/// One of the checks behind `/livez` and `/readyz`.
#[derive(Debug, Clone, Copy)]
struct Check {
    name: &'static str,
    test: Test,
}

#[derive(Debug, Clone, Copy)]
enum Test {
    NotCorrupt,
    /// A serializable read, unless it is too early for one.
    Alive,
    Read {
        serializable: bool,
    },
    NotLearner,
}

fn checks(kind: &str) -> impl Iterator<Item = Check> {
    const LIVEZ: &[Check] = &[Check { name: "serializable_read", test: Test::Alive }];
    const READYZ: &[Check] = &[
        Check { name: "data_corruption", test: Test::NotCorrupt },
        Check { name: "serializable_read", test: Test::Read { serializable: true } },
        Check { name: "linearizable_read", test: Test::Read { serializable: false } },
        Check { name: "non_learner", test: Test::NotLearner },
    ];
    let checks = match kind {
        "livez" => LIVEZ,
        "readyz" => READYZ,
        _ => &[],
    };
    checks.iter().copied()
}

fn version_json() -> String {
    format!(
        "{{\"etcdserver\":\"{ETCD_VERSION}\",\"etcdcluster\":\"{ETCD_CLUSTER_VERSION}\",\
         \"storage\":\"{ETCD_CLUSTER_VERSION}\"}}"
    )
}

fn answer(status: StatusCode, content_type: Option<HeaderValue>, body: String) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    if let Some(content_type) = content_type {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    response
}

/// An error as Go's `net/http` writes it.
fn error(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = answer(status, Some(TEXT), format!("{text}\n"));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    response
}

/// The refusal of every method but GET.
fn refuse_method(method: &Method) -> Option<Response<Body>> {
    if method == Method::GET {
        return None;
    }
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
    Some(response)
}

/// The host that the client addressed, without its port.
fn host_name<B>(request: &Request<B>) -> String {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|a| a.as_str())).unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if let Some(inner) = host.strip_prefix('[') {
        return inner.split(']').next().unwrap_or_default().to_owned();
    }
    host.split(':').next().unwrap_or_default().to_owned()
}

fn rebinding_text(host: &str) -> String {
    format!(
        "\netcd received your request, but the Host header was unrecognized.\n\n\
         To fix this, choose one of the following options:\n\
         - Enable TLS, then any HTTPS request will be allowed.\n\
         - Add the hostname you want to use to the whitelist in settings.\n\
         \x20 - e.g. etcd --host-whitelist {host:?}\n\n\
         This requirement has been added to help prevent \"DNS Rebinding\" attacks (CVE-2018-5702).\n"
    )
}

/// The query parameters, decoded.
fn query<B>(request: &Request<B>) -> impl Iterator<Item = (String, String)> {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

fn query_set<B>(request: &Request<B>, wanted: &str) -> BTreeSet<String> {
    query(request)
        .filter(|(name, value)| name == wanted && !value.is_empty())
        .map(|(_, v)| v)
        .collect()
}

/// Undoes percent encoding; what is not encoded properly stays as it is.
pub(super) fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.as_bytes();
    while let Some((&first, rest)) = bytes.split_first() {
        let hex = rest.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        match (first, hex.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                bytes = &rest[2..];
                continue;
            }
            (b'+', _) => out.push(b' '),
            _ => out.push(first),
        }
        bytes = rest;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    /// A server of which nothing can be read, because it is too early or for another reason.
    struct Unreadable {
        loading: bool,
    }

    impl HealthState for Unreadable {
        fn alarms(&self) -> Vec<i32> {
            Vec::new()
        }

        fn read(&self, _serializable: bool) -> ReadFuture<'_> {
            Box::pin(std::future::ready(Err("nothing is there".into())))
        }

        fn loading(&self) -> bool {
            self.loading
        }
    }

    /// A server with these alarms, and nothing else that is wrong.
    struct Alarmed(Vec<i32>);

    impl HealthState for Alarmed {
        fn alarms(&self) -> Vec<i32> {
            self.0.clone()
        }

        fn read(&self, _serializable: bool) -> ReadFuture<'_> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    async fn ask(loading: bool, path: &str) -> (u16, String) {
        ask_of(Unreadable { loading }, path).await
    }

    async fn ask_of(state: impl HealthState, path: &str) -> (u16, String) {
        let access = Access { cors: None, hosts: None };
        let metrics = Arc::new(Metrics::new(false));
        let endpoints = Endpoints::new(Arc::new(state), metrics, access);
        let request = Request::builder().uri(path).body(()).expect("a request");
        let response = endpoints.metrics_only(&request).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn a_server_that_loads_is_alive_and_nothing_can_be_read() {
        assert_eq!(ask(true, "/livez").await, (200, "ok\n".into()));
        let (status, report) = ask(true, "/readyz").await;
        assert_eq!(status, 503);
        for line in [
            "[+]data_corruption ok",
            "[-]serializable_read failed: nothing is there",
            "[-]linearizable_read failed: nothing is there",
        ] {
            assert!(report.contains(line), "{report}");
        }
        assert_eq!(ask(true, "/readyz/serializable_read").await.0, 503);
        assert_eq!(ask(true, "/health?serializable=true").await.0, 503);
    }

    #[tokio::test]
    async fn a_server_that_has_loaded_and_cannot_read_is_not_alive() {
        assert_eq!(ask(false, "/livez").await.0, 503);
        assert_eq!(ask(false, "/readyz").await.0, 503);
    }

    #[tokio::test]
    async fn alarms_without_a_name_count_as_well() {
        for (alarms, path, status, reason) in [
            (vec![7], "/health", 503, "ALARM UNKNOWN"),
            (vec![-7], "/health?exclude=7", 503, "ALARM UNKNOWN"),
            (vec![7, -7], "/health?exclude=7&exclude=-7", 200, ""),
            (vec![1], "/health?exclude=7", 503, "ALARM NOSPACE"),
            (vec![7, 2], "/health?exclude=7", 503, "ALARM CORRUPT"),
            (vec![1], "/health?exclude=NOSPACE", 200, ""),
        ] {
            let health = serde_json::json!({
                "health": if status == 200 { "true" } else { "false" },
                "reason": reason,
            });
            let (code, body) = ask_of(Alarmed(alarms), path).await;
            let told: serde_json::Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!((code, told), (status, health), "{path}");
        }
        assert_eq!(ask_of(Alarmed(vec![7]), "/readyz").await.0, 200);
        assert_eq!(ask_of(Alarmed(vec![2]), "/readyz").await.0, 503);
    }
}

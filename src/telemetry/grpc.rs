//! What is counted for each gRPC method.

use std::time::Duration;

use super::exposition::{Exposition, labels};
use super::instrument::{Counter, DISK_BOUNDS, Histogram, REQUEST_BOUNDS};
use super::methods::{Flow, Method, all};

/// The names of gRPC status codes as label values, by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The name of a gRPC status code, as in labels.
pub fn code_label(code: i32) -> &'static str {
    usize::try_from(code).ok().and_then(|code| CODES.get(code)).copied().unwrap_or("Unknown")
}

/// Versions that clients may call themselves by, besides one for all others.
const CLIENT_VERSIONS: [&str; 11] =
    ["3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "unknown"];

/// What is counted for one method.
#[derive(Debug)]
struct PerMethod {
    started: Counter,
    received: Counter,
    sent: Counter,
    handled: [Counter; CODES.len()],
    taken: Option<Histogram>,
    /// For what etcd calls a request: its time if it failed, and if it succeeded.
    requests: Option<(&'static str, [Histogram; 2])>,
}

/// Counters for each gRPC method.
#[derive(Debug)]
pub struct GrpcMetrics {
    methods: Vec<PerMethod>,
    /// Calls by the client's version, unary ones first.
    clients: [[Counter; CLIENT_VERSIONS.len()]; 2],
}

impl GrpcMetrics {
    /// All zero; with a histogram of times for each method if `extensive`.
    pub fn new(extensive: bool) -> GrpcMetrics {
        let methods = all()
            .map(|(service, method, _)| PerMethod {
                started: Counter::default(),
                received: Counter::default(),
                sent: Counter::default(),
                handled: std::array::from_fn(|_| Counter::default()),
                taken: extensive.then(|| Histogram::new(REQUEST_BOUNDS)),
                requests: request_type(service, method)
                    .map(|name| (name, std::array::from_fn(|_| Histogram::new(DISK_BOUNDS)))),
            })
            .collect();
        let counters = || std::array::from_fn(|_| Counter::default());
        GrpcMetrics { methods, clients: [counters(), counters()] }
    }

    /// Counts a call that begins, of a client that says to be of this version.
    pub fn started(&self, method: Method, client_version: Option<&[u8]>) {
        self.methods[method.index].started.inc();
        let known = |version: &[u8]| CLIENT_VERSIONS.iter().position(|v| v.as_bytes() == version);
        let version = client_version.and_then(known).unwrap_or(CLIENT_VERSIONS.len() - 1);
        self.clients[usize::from(method.flow != Flow::Unary)][version].inc();
    }

    /// Counts messages that came from a client.
    pub fn received(&self, method: Method, messages: u64) {
        self.methods[method.index].received.add(messages);
    }

    /// Counts messages that go to a client.
    pub fn sent(&self, method: Method, messages: u64) {
        self.methods[method.index].sent.add(messages);
    }

    /// Counts a call that ended with the gRPC status `code` after `taken`.
    pub fn handled(&self, method: Method, code: i32, taken: Duration) {
        let per_method = &self.methods[method.index];
        let unknown = 2;
        let code = usize::try_from(code).ok().filter(|code| *code < CODES.len()).unwrap_or(unknown);
        per_method.handled[code].inc();
        if let Some(histogram) = &per_method.taken {
            histogram.observe(taken);
        }
        if let Some((_, by_success)) = &per_method.requests {
            by_success[usize::from(code == 0)].observe(taken);
        }
    }

    /// Appends the `grpc_server_` metrics, by etcd's names.
    pub fn write(&self, out: &mut Exposition) {
        let rows: Vec<(String, &PerMethod)> = all()
            .zip(&self.methods)
            .map(|((service, method, flow), counters)| {
                let text = labels(&[
                    ("grpc_method", method),
                    ("grpc_service", service),
                    ("grpc_type", flow.label()),
                ]);
                (text, counters)
            })
            .collect();
        let name = "grpc_server_handled_total";
        out.header(name, "Calls completed, by status.", "counter");
        for (labels, counters) in &rows {
            for (code, counter) in CODES.iter().zip(&counters.handled) {
                out.sample(name, &format!("grpc_code=\"{code}\",{labels}"), counter.get());
            }
        }
        if self.methods.iter().any(|method| method.taken.is_some()) {
            let name = "grpc_server_handling_seconds";
            out.header(name, "Time from the start of a call to its end.", "histogram");
            for (labels, counters) in &rows {
                if let Some(histogram) = &counters.taken {
                    out.buckets(name, labels, histogram);
                }
            }
        }
        type Count = fn(&PerMethod) -> &Counter;
        let counts: [(&str, &str, Count); 3] = [
            ("grpc_server_msg_received_total", "Messages from clients.", |of| &of.received),
            ("grpc_server_msg_sent_total", "Messages to clients.", |of| &of.sent),
            ("grpc_server_started_total", "Calls started.", |of| &of.started),
        ];
        for (name, help, count) in counts {
            out.header(name, help, "counter");
            for (labels, counters) in &rows {
                out.sample(name, labels, count(counters).get());
            }
        }
        self.write_requests(out);
    }

    /// Appends the metrics under etcd's own names. Only what has happened is listed, as there.
    fn write_requests(&self, out: &mut Exposition) {
        let kinds = ["unary", "stream"].iter().zip(&self.clients);
        let clients: Vec<(String, &Counter)> = kinds
            .flat_map(|(kind, counters)| {
                let named = CLIENT_VERSIONS.iter().zip(counters);
                named.filter(|(_, counter)| counter.get() > 0).map(|(version, counter)| {
                    (labels(&[("client_api_version", version), ("type", kind)]), counter)
                })
            })
            .collect();
        if !clients.is_empty() {
            let name = "etcd_server_client_requests_total";
            out.header(name, "Calls by the version that the client names.", "counter");
            clients.iter().for_each(|(labels, count)| out.sample(name, labels, count.get()));
        }
        let requests = self.methods.iter().filter_map(|method| method.requests.as_ref());
        let requests: Vec<(String, &Histogram)> = requests
            .flat_map(|(kind, by_success)| {
                let named = ["false", "true"].iter().zip(by_success);
                named.filter(|(_, times)| !times.is_empty()).map(|(success, times)| {
                    (labels(&[("success", success), ("type", kind)]), times)
                })
            })
            .collect();
        if !requests.is_empty() {
            let name = "etcd_server_request_duration_seconds";
            out.header(name, "Time from the start of a request to its answer.", "histogram");
            requests.iter().for_each(|(labels, times)| out.buckets(name, labels, times));
        }
    }
}

/// What etcd calls the requests of a method, if they are any to it.
fn request_type(service: &str, method: &'static str) -> Option<&'static str> {
    match (service, method) {
        ("etcdserverpb.KV", "Compact") => Some("Compaction"),
        ("etcdserverpb.KV", "Range" | "Put" | "Txn" | "DeleteRange")
        | ("etcdserverpb.Lease", "LeaseGrant" | "LeaseRevoke")
        | ("etcdserverpb.Maintenance", "Alarm") => Some(method),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::methods::find;
    use super::*;

    #[test]
    fn calls_are_counted_by_status() {
        let metrics = GrpcMetrics::new(true);
        let put = find("etcdserverpb.KV", "Put").expect("exists");
        metrics.started(put, Some(b"3.7"));
        metrics.started(put, Some(b"3.7\n"));
        metrics.received(put, 3);
        metrics.handled(put, 0, Duration::from_millis(3));
        metrics.handled(put, 8, Duration::from_millis(7));
        metrics.handled(put, 99, Duration::ZERO);
        let mut out = Exposition::default();
        metrics.write(&mut out);
        let text = out.into_text();
        let labels = "grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"";
        for line in [
            format!("grpc_server_started_total{{{labels}}} 2"),
            format!("grpc_server_msg_received_total{{{labels}}} 3"),
            format!("grpc_server_msg_sent_total{{{labels}}} 0"),
            format!("grpc_server_handled_total{{grpc_code=\"ResourceExhausted\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"Unknown\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"OK\",{labels}}} 1"),
            format!("grpc_server_handling_seconds_bucket{{{labels},le=\"0.01\"}} 3"),
            "etcd_server_client_requests_total{client_api_version=\"3.7\",type=\"unary\"} 1".into(),
            "etcd_server_client_requests_total{client_api_version=\"unknown\",type=\"unary\"} 1"
                .into(),
            "etcd_server_request_duration_seconds_count{success=\"true\",type=\"Put\"} 1".into(),
            "etcd_server_request_duration_seconds_count{success=\"false\",type=\"Put\"} 2".into(),
        ] {
            assert!(text.lines().any(|have| have == line), "missing: {line}");
        }
        assert!(!text.contains("type=\"Range\""), "nothing has been ranged over");
    }
}

//! The gRPC methods that exist, and what is counted for each.

use std::time::Duration;

use super::exposition::{Exposition, labels};
use super::instrument::{Counter, Histogram, REQUEST_BOUNDS};

/// How messages flow in a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// One request, one answer.
    Unary,
    /// One request, many answers.
    ServerStream,
    /// Many of both.
    BidiStream,
}

impl Flow {
    fn label(self) -> &'static str {
        match self {
            Flow::Unary => "unary",
            Flow::ServerStream => "server_stream",
            Flow::BidiStream => "bidi_stream",
        }
    }
}

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

type Methods = &'static [(&'static str, Flow)];

use Flow::{BidiStream, ServerStream, Unary};

/// Every service with its methods. The busiest come first, as the search is from the front.
const SERVICES: &[(&str, Methods)] = &[
    (
        "etcdserverpb.KV",
        &[
            ("Range", Unary),
            ("Put", Unary),
            ("Txn", Unary),
            ("DeleteRange", Unary),
            ("RangeStream", ServerStream),
            ("Compact", Unary),
        ],
    ),
    ("etcdserverpb.Watch", &[("Watch", BidiStream)]),
    (
        "etcdserverpb.Lease",
        &[
            ("LeaseKeepAlive", BidiStream),
            ("LeaseGrant", Unary),
            ("LeaseRevoke", Unary),
            ("LeaseTimeToLive", Unary),
            ("LeaseLeases", Unary),
        ],
    ),
    (
        "etcdserverpb.Cluster",
        &[
            ("MemberList", Unary),
            ("MemberAdd", Unary),
            ("MemberRemove", Unary),
            ("MemberUpdate", Unary),
            ("MemberPromote", Unary),
        ],
    ),
    (
        "etcdserverpb.Maintenance",
        &[
            ("Status", Unary),
            ("Alarm", Unary),
            ("Hash", Unary),
            ("HashKV", Unary),
            ("Defragment", Unary),
            ("Snapshot", ServerStream),
            ("MoveLeader", Unary),
            ("Downgrade", Unary),
        ],
    ),
    (
        "etcdserverpb.Auth",
        &[
            ("Authenticate", Unary),
            ("AuthStatus", Unary),
            ("AuthEnable", Unary),
            ("AuthDisable", Unary),
            ("UserAdd", Unary),
            ("UserGet", Unary),
            ("UserList", Unary),
            ("UserDelete", Unary),
            ("UserChangePassword", Unary),
            ("UserGrantRole", Unary),
            ("UserRevokeRole", Unary),
            ("RoleAdd", Unary),
            ("RoleGet", Unary),
            ("RoleList", Unary),
            ("RoleDelete", Unary),
            ("RoleGrantPermission", Unary),
            ("RoleRevokePermission", Unary),
        ],
    ),
    (
        "v3electionpb.Election",
        &[
            ("Campaign", Unary),
            ("Proclaim", Unary),
            ("Leader", Unary),
            ("Observe", ServerStream),
            ("Resign", Unary),
        ],
    ),
    ("v3lockpb.Lock", &[("Lock", Unary), ("Unlock", Unary)]),
    ("grpc.health.v1.Health", &[("Check", Unary), ("List", Unary), ("Watch", ServerStream)]),
];

/// A method that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    index: usize,
    /// How its messages flow.
    pub flow: Flow,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match all().nth(self.index) {
            Some((service, method, _)) => write!(f, "/{service}/{method}"),
            None => f.write_str("unknown"),
        }
    }
}

/// The method of this name, if there is one.
pub fn find(service: &str, method: &str) -> Option<Method> {
    let mut base = 0;
    for (name, methods) in SERVICES {
        if *name == service {
            let at = methods.iter().position(|(name, _)| *name == method)?;
            return Some(Method { index: base + at, flow: methods[at].1 });
        }
        base += methods.len();
    }
    None
}

fn all() -> impl Iterator<Item = (&'static str, &'static str, Flow)> {
    SERVICES.iter().flat_map(|(service, methods)| {
        methods.iter().map(move |(method, flow)| (*service, *method, *flow))
    })
}

/// What is counted for one method.
#[derive(Debug)]
struct PerMethod {
    started: Counter,
    handled: [Counter; CODES.len()],
    taken: Option<Histogram>,
}

/// Counters for each gRPC method.
#[derive(Debug)]
pub struct GrpcMetrics {
    methods: Vec<PerMethod>,
}

impl GrpcMetrics {
    /// All zero; with a histogram of times for each method if `extensive`.
    pub fn new(extensive: bool) -> GrpcMetrics {
        let methods = all()
            .map(|_| PerMethod {
                started: Counter::default(),
                handled: std::array::from_fn(|_| Counter::default()),
                taken: extensive.then(|| Histogram::new(REQUEST_BOUNDS)),
            })
            .collect();
        GrpcMetrics { methods }
    }

    /// Counts a call that begins.
    pub fn started(&self, method: Method) {
        self.methods[method.index].started.inc();
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
        let name = "grpc_server_started_total";
        out.header(name, "Calls started.", "counter");
        for (labels, counters) in &rows {
            out.sample(name, labels, counters.started.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_by_its_name_and_no_other() {
        let mut seen = std::collections::BTreeSet::new();
        for (service, name, flow) in all() {
            let method = find(service, name).expect(name);
            assert_eq!(method.flow, flow);
            assert_eq!(method.to_string(), format!("/{service}/{name}"));
            assert!(seen.insert(method.index), "{service}/{name} shares a counter");
        }
        assert_eq!(find("etcdserverpb.KV", "Watch"), None);
        assert_eq!(find("etcdserverpb.Kv", "Range"), None);
    }

    #[test]
    fn calls_are_counted_by_status() {
        let metrics = GrpcMetrics::new(true);
        let put = find("etcdserverpb.KV", "Put").expect("exists");
        metrics.started(put);
        metrics.handled(put, 8, Duration::from_millis(7));
        metrics.handled(put, 99, Duration::ZERO);
        let mut out = Exposition::default();
        metrics.write(&mut out);
        let text = out.into_text();
        let labels = "grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"";
        for line in [
            format!("grpc_server_started_total{{{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"ResourceExhausted\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"Unknown\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"OK\",{labels}}} 0"),
            format!("grpc_server_handling_seconds_bucket{{{labels},le=\"0.01\"}} 2"),
        ] {
            assert!(text.lines().any(|have| have == line), "missing: {line}");
        }
    }
}

//! The gRPC methods that exist.

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
    /// The customary name of the label.
    pub fn label(self) -> &'static str {
        match self {
            Flow::Unary => "unary",
            Flow::ServerStream => "server_stream",
            Flow::BidiStream => "bidi_stream",
        }
    }
}

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
    pub(super) index: usize,
    /// How its messages flow.
    pub flow: Flow,
}

impl Method {
    /// Its service and its own name.
    pub fn names(self) -> (&'static str, &'static str) {
        all().nth(self.index).map_or(("unknown", "unknown"), |(service, name, _)| (service, name))
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (service, name) = self.names();
        write!(f, "/{service}/{name}")
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

/// Service, method and flow of all, in the order of [`Method`]'s indices.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str, Flow)> {
    SERVICES.iter().flat_map(|(service, methods)| {
        methods.iter().map(move |(method, flow)| (*service, *method, *flow))
    })
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
}

//! Which path calls which method, as the annotations of etcd's contract say.

use leaseway_proto::schema::{METHODS, Method};

const KV: &str = "etcdserverpb.KV";
const WATCH: &str = "etcdserverpb.Watch";
const LEASE: &str = "etcdserverpb.Lease";
const CLUSTER: &str = "etcdserverpb.Cluster";
const MAINTENANCE: &str = "etcdserverpb.Maintenance";
const AUTH: &str = "etcdserverpb.Auth";
const LOCK: &str = "v3lockpb.Lock";
const ELECTION: &str = "v3electionpb.Election";

/// Path, service and method. Only streamed ranges have no path.
const PATHS: &[(&str, &str, &str)] = &[
    ("/v3/kv/range", KV, "Range"),
    ("/v3/kv/put", KV, "Put"),
    ("/v3/kv/deleterange", KV, "DeleteRange"),
    ("/v3/kv/txn", KV, "Txn"),
    ("/v3/kv/compaction", KV, "Compact"),
    ("/v3/watch", WATCH, "Watch"),
    ("/v3/lease/grant", LEASE, "LeaseGrant"),
    ("/v3/lease/revoke", LEASE, "LeaseRevoke"),
    ("/v3/kv/lease/revoke", LEASE, "LeaseRevoke"),
    ("/v3/lease/keepalive", LEASE, "LeaseKeepAlive"),
    ("/v3/lease/timetolive", LEASE, "LeaseTimeToLive"),
    ("/v3/kv/lease/timetolive", LEASE, "LeaseTimeToLive"),
    ("/v3/lease/leases", LEASE, "LeaseLeases"),
    ("/v3/kv/lease/leases", LEASE, "LeaseLeases"),
    ("/v3/cluster/member/add", CLUSTER, "MemberAdd"),
    ("/v3/cluster/member/remove", CLUSTER, "MemberRemove"),
    ("/v3/cluster/member/update", CLUSTER, "MemberUpdate"),
    ("/v3/cluster/member/list", CLUSTER, "MemberList"),
    ("/v3/cluster/member/promote", CLUSTER, "MemberPromote"),
    ("/v3/maintenance/alarm", MAINTENANCE, "Alarm"),
    ("/v3/maintenance/status", MAINTENANCE, "Status"),
    ("/v3/maintenance/defragment", MAINTENANCE, "Defragment"),
    ("/v3/maintenance/hash", MAINTENANCE, "Hash"),
    ("/v3/maintenance/hashkv", MAINTENANCE, "HashKV"),
    ("/v3/maintenance/snapshot", MAINTENANCE, "Snapshot"),
    ("/v3/maintenance/transfer-leadership", MAINTENANCE, "MoveLeader"),
    ("/v3/maintenance/downgrade", MAINTENANCE, "Downgrade"),
    ("/v3/auth/enable", AUTH, "AuthEnable"),
    ("/v3/auth/disable", AUTH, "AuthDisable"),
    ("/v3/auth/status", AUTH, "AuthStatus"),
    ("/v3/auth/authenticate", AUTH, "Authenticate"),
    ("/v3/auth/user/add", AUTH, "UserAdd"),
    ("/v3/auth/user/get", AUTH, "UserGet"),
    ("/v3/auth/user/list", AUTH, "UserList"),
    ("/v3/auth/user/delete", AUTH, "UserDelete"),
    ("/v3/auth/user/changepw", AUTH, "UserChangePassword"),
    ("/v3/auth/user/grant", AUTH, "UserGrantRole"),
    ("/v3/auth/user/revoke", AUTH, "UserRevokeRole"),
    ("/v3/auth/role/add", AUTH, "RoleAdd"),
    ("/v3/auth/role/get", AUTH, "RoleGet"),
    ("/v3/auth/role/list", AUTH, "RoleList"),
    ("/v3/auth/role/delete", AUTH, "RoleDelete"),
    ("/v3/auth/role/grant", AUTH, "RoleGrantPermission"),
    ("/v3/auth/role/revoke", AUTH, "RoleRevokePermission"),
    ("/v3/lock/lock", LOCK, "Lock"),
    ("/v3/lock/unlock", LOCK, "Unlock"),
    ("/v3/election/campaign", ELECTION, "Campaign"),
    ("/v3/election/proclaim", ELECTION, "Proclaim"),
    ("/v3/election/leader", ELECTION, "Leader"),
    ("/v3/election/observe", ELECTION, "Observe"),
    ("/v3/election/resign", ELECTION, "Resign"),
];

/// The method that a path calls.
pub fn find(path: &str) -> Option<&'static Method> {
    let (_, service, name) = PATHS.iter().find(|(known, _, _)| *known == path)?;
    METHODS.iter().find(|method| method.service == *service && method.name == *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_method_has_a_path_but_streamed_ranges() {
        let mut reached = BTreeSet::new();
        for (path, service, name) in PATHS {
            let method = find(path).unwrap_or_else(|| panic!("{path} leads nowhere"));
            assert_eq!((method.service, method.name), (*service, *name));
            reached.insert((method.service, method.name));
        }
        for method in METHODS {
            let reachable = reached.contains(&(method.service, method.name));
            assert_eq!(reachable, method.name != "RangeStream", "{}", method.name);
        }
        assert!(find("/v3/kv/range/").is_none() && find("/v3/kv").is_none());
    }
}

//! What a gateway answers that lags behind the log: users and roles have changed, somebody else has been told so, and
//! here it is known only after a barrier.

use super::*;
use crate::auth::credentials::CertificateName;
use crate::backend::ProposeError;
use crate::backend::fake::{go_on, machine_after};
use crate::backend::local::sessions::LocalSessions;
use crate::config::{AuthConfig, Limits, TokenConfig};
use crate::gateway::auth::AuthService;
use crate::gateway::cluster::{ClusterService, Members, SelfInfo};
use crate::gateway::identity::Identity;
use crate::gateway::kv::KvService;
use crate::gateway::lease::LeaseService;
use crate::gateway::maintenance::MaintenanceService;
use crate::gateway::snapshot::Snapshots;
use crate::keyspace::command::internal;
use crate::keyspace::reader::Reader;
use crate::keyspace::view::{Published, View};
use crate::lease::Leases;
use crate::lease::times::Times;
use crate::storage::Engine;
use crate::telemetry::Metrics;
use leaseway_proto::authpb::{Permission, permission::Type};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::log::{AuthEnable, LeaseGrant, UserAdd};
use leaseway_proto::server::etcdserverpb::auth_server::Auth as _;
use leaseway_proto::server::etcdserverpb::cluster_server::Cluster as _;
use leaseway_proto::server::etcdserverpb::kv_server::Kv as _;
use leaseway_proto::server::etcdserverpb::lease_server::Lease as _;
use leaseway_proto::server::etcdserverpb::maintenance_server::Maintenance as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tonic::{Code, Request};

const IDENTITY: Identity = Identity { cluster_id: 11, member_id: 12, raft_term: 13 };
const LEASE: i64 = 7;

/// A log of which a barrier brings the rest, or can't.
struct Lagging {
    view: Arc<View>,
    rest: Option<Published>,
    barriers: AtomicUsize,
}

impl Log for Lagging {
    async fn propose(&self, _: Command) -> Result<Outcome, ProposeError> {
        Err(ProposeError::Stopped)
    }

    async fn barrier(&self) -> Result<(), ProposeError> {
        self.barriers.fetch_add(1, Ordering::Relaxed);
        let rest = self.rest.as_ref().ok_or(ProposeError::TimedOut)?;
        self.view.publish(rest.clone());
        Ok(())
    }

    async fn compacted(&self, _: i64) -> Result<(), ProposeError> {
        Ok(())
    }

    fn pending(&self) -> u64 {
        0
    }
}

/// A gateway, and who asks it.
struct Gateway {
    context: Arc<Context<Lagging, LocalSessions>>,
    engine: Arc<dyn Engine>,
    who: Option<&'static str>,
}

fn user(name: &str) -> Op {
    Op::UserAdd(UserAdd { name: name.into(), no_password: true, ..UserAdd::default() })
}

fn grant(user: &str, role: &str) -> Op {
    let (user, role) = (user.into(), role.into());
    Op::UserGrantRole(pb::AuthUserGrantRoleRequest { user, role })
}

fn revoke(name: &str, role: &str) -> Op {
    let (name, role) = (name.into(), role.into());
    Op::UserRevokeRole(pb::AuthUserRevokeRoleRequest { name, role })
}

fn enable() -> Op {
    Op::AuthEnable(AuthEnable { token_key: vec![7; 32].into() })
}

/// root; ann with the role `r`, for the key `k`, which is on a lease; eve, who is root too.
fn before() -> Vec<Op> {
    let perm =
        Permission { perm_type: Type::Readwrite as i32, key: "k".into(), range_end: "".into() };
    let role = pb::AuthRoleGrantPermissionRequest { name: "r".into(), perm: Some(perm) };
    let lease = LeaseGrant { id: LEASE, ttl: 60, session: 1, marker: String::new() };
    let put = pb::PutRequest { key: "k".into(), lease: LEASE, ..Default::default() };
    vec![
        user("root"),
        grant("root", "root"),
        user("ann"),
        user("eve"),
        Op::RoleAdd(pb::AuthRoleAddRequest { name: "r".into() }),
        Op::RoleGrantPermission(role),
        grant("ann", "r"),
        grant("eve", "root"),
        Op::LeaseGrant(lease),
        Op::Put(put),
    ]
}

impl Gateway {
    /// One that knows of `before`, and will know of `rest`.
    fn new(before: Vec<Op>, rest: Vec<Op>, who: Option<&'static str>) -> Self {
        Self::reaching(before, rest, who, true)
    }

    fn reaching(before: Vec<Op>, rest: Vec<Op>, who: Option<&'static str>, reached: bool) -> Self {
        let (mut machine, engine) = machine_after(before);
        let view = Arc::new(View::new(machine.published()));
        let reader = Reader::new(machine.shared().clone(), engine.clone(), view.clone());
        go_on(&mut machine, &*engine, rest.into_iter().map(internal));
        let rest = reached.then(|| machine.published());
        let log = Arc::new(Lagging { view, rest, barriers: AtomicUsize::new(0) });
        let minute = Duration::from_secs(60);
        let sessions = Arc::new(LocalSessions::new(minute));
        sessions.restore(1, minute, minute);
        let leases = Leases::new(log.clone(), sessions, reader.clone(), 1, Arc::new(Times::new()));
        let config = AuthConfig { token: TokenConfig::Simple { ttl: minute }, bcrypt_cost: 4 };
        let context = Context {
            log,
            reader,
            leases: Arc::new(leases),
            identity: IDENTITY,
            auth: crate::auth::Auth::new(&config).expect("no files"),
            limits: Limits {
                max_request_bytes: 1 << 20,
                max_txn_ops: 128,
                max_concurrent_streams: None,
            },
            quota_bytes: None,
            metrics: Arc::new(Metrics::new(false)),
        };
        Self { context: Arc::new(context), engine, who }
    }

    fn ask<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(name) = self.who {
            request.extensions_mut().insert(CertificateName(name.into()));
        }
        request
    }

    fn credentials(&self) -> Credentials {
        Credentials::of(&self.ask(()))
    }

    fn barriers(&self) -> usize {
        self.context.log.barriers.load(Ordering::Relaxed)
    }

    fn maintenance(&self) -> MaintenanceService<Lagging, LocalSessions> {
        let (engine, reader) = (self.engine.clone(), self.context.reader.clone());
        let snapshots = Snapshots::new(engine.clone(), reader, 12, std::env::temp_dir());
        let shrink = Box::new(|| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(std::future::ready(Ok(())))
        });
        MaintenanceService::new(self.context.clone(), engine, shrink, snapshots)
    }

    async fn call(&self, call: Call) -> Result<(), Status> {
        let context = self.context.clone();
        let (kv, leases) = (KvService::new(context.clone()), LeaseService::new(context.clone()));
        let auth = AuthService::new(context.clone());
        let key = bytes::Bytes::from_static(b"k");
        let range = pb::RangeRequest { key: key.clone(), ..Default::default() };
        let ttl = |keys| self.ask(pb::LeaseTimeToLiveRequest { id: LEASE, keys });
        match call {
            Call::Watch => Ok(Gate::watch(&*context, &self.credentials(), b"k", b"").await?),
            Call::Range => kv.range(self.ask(range)).await.map(drop),
            Call::RangeStream => kv.range_stream(self.ask(range)).await.map(drop),
            Call::Txn => {
                let get = pb::request_op::Request::RequestRange(range);
                let success = vec![pb::RequestOp { request: Some(get) }];
                let txn = pb::TxnRequest { success, ..Default::default() };
                kv.txn(self.ask(txn)).await.map(drop)
            }
            Call::TimeToLive => leases.lease_time_to_live(ttl(false)).await.map(drop),
            Call::TimeToLiveKeys => leases.lease_time_to_live(ttl(true)).await.map(drop),
            Call::Leases => {
                leases.lease_leases(self.ask(pb::LeaseLeasesRequest {})).await.map(drop)
            }
            Call::KeepAlive => {
                // One that is not known here: that is asked for.
                crate::gateway::lease::keep_alive(&context, &self.credentials(), 99).await.map(drop)
            }
            Call::Members => {
                let info = SelfInfo {
                    name: String::new(),
                    client_urls: Vec::new(),
                    peer_urls: Vec::new(),
                };
                let cluster = ClusterService::new(IDENTITY, info, Members::Alone, context);
                let list = self.ask(pb::MemberListRequest { linearizable: true });
                cluster.member_list(list).await.map(drop)
            }
            Call::Alarms => {
                self.maintenance().alarm(self.ask(pb::AlarmRequest::default())).await.map(drop)
            }
            Call::Snapshot => {
                self.maintenance().snapshot(self.ask(pb::SnapshotRequest {})).await.map(drop)
            }
            Call::Users => auth.user_list(self.ask(pb::AuthUserListRequest {})).await.map(drop),
            Call::User => {
                let get = pb::AuthUserGetRequest { name: "root".into() };
                auth.user_get(self.ask(get)).await.map(drop)
            }
            Call::Roles => auth.role_list(self.ask(pb::AuthRoleListRequest {})).await.map(drop),
            Call::Role => {
                let get = pb::AuthRoleGetRequest { role: "r".into() };
                auth.role_get(self.ask(get)).await.map(drop)
            }
        }
    }
}

/// What is answered by a state that holds all that anyone has been told.
#[derive(Clone, Copy, Debug)]
enum Call {
    Watch,
    Range,
    RangeStream,
    Txn,
    TimeToLive,
    TimeToLiveKeys,
    Leases,
    KeepAlive,
    Members,
    Alarms,
    Snapshot,
    Users,
    User,
    Roles,
    Role,
}

/// What anybody may do who is a user.
const USERS: [Call; 4] = [Call::TimeToLive, Call::KeepAlive, Call::Members, Call::Alarms];
/// What concerns keys.
const READERS: [Call; 6] =
    [Call::Watch, Call::Range, Call::RangeStream, Call::Txn, Call::TimeToLiveKeys, Call::Leases];
/// What only root may.
const ADMINS: [Call; 5] = [Call::Snapshot, Call::Users, Call::User, Call::Roles, Call::Role];

fn with_auth() -> Vec<Op> {
    [before(), vec![enable()]].concat()
}

async fn refused(gateway: &Gateway, call: Call, error: Error) {
    let status = gateway.call(call).await.expect_err("refused");
    let (code, text) = error.told();
    assert_eq!((status.code(), status.message()), (code, text), "{call:?}");
    assert_eq!(gateway.barriers(), 1, "{call:?}: one is enough");
}

#[tokio::test]
async fn authentication_that_was_turned_on_elsewhere_is_on() {
    for call in [&USERS[..], &READERS, &ADMINS].concat() {
        let gateway = Gateway::new(before(), vec![enable()], None);
        refused(&gateway, call, Error::UserEmpty).await;
    }
}

#[tokio::test]
async fn what_was_revoked_elsewhere_is_revoked() {
    for call in READERS {
        let gateway = Gateway::new(with_auth(), vec![revoke("ann", "r")], Some("ann"));
        refused(&gateway, call, Error::PermissionDenied).await;
    }
    for call in ADMINS {
        let gateway = Gateway::new(with_auth(), vec![revoke("eve", "root")], Some("eve"));
        refused(&gateway, call, Error::PermissionDenied).await;
    }
}

#[tokio::test]
async fn what_was_granted_elsewhere_is_granted() {
    let early = || [before(), vec![revoke("ann", "r"), enable()]].concat();
    for call in [&USERS[..], &READERS].concat() {
        let gateway = Gateway::new(early(), vec![grant("ann", "r")], Some("ann"));
        let answer = gateway.call(call).await;
        assert!(answer.is_ok(), "{call:?}: {answer:?}");
    }
}

/// What can't be known is not answered: with the text of etcd without a quorum.
#[tokio::test]
async fn nobody_is_let_in_by_what_may_be_over() {
    let all = [&USERS[..], &READERS, &ADMINS].concat();
    for (call, who) in all.iter().flat_map(|call| [(*call, None), (*call, Some("eve"))]) {
        let before = if who.is_some() { with_auth() } else { before() };
        let gateway = Gateway::reaching(before, Vec::new(), who, false);
        let status = gateway.call(call).await.expect_err("no answer");
        let told = (status.code(), status.message());
        assert_eq!(told, (Code::Unavailable, "etcdserver: request timed out"), "{call:?}");
    }
}

#[tokio::test]
async fn what_is_refused_is_asked_for_once() {
    let gateway = Gateway::new(with_auth(), Vec::new(), Some("ann"));
    assert_eq!(gateway.context.admin(&gateway.credentials()).await, Err(Error::PermissionDenied));
    assert_eq!(gateway.barriers(), 1);
    // What is permitted here, and judged again in the log, is not asked for.
    let read = |state: &AuthState, who: Option<&Authority>| state.rights(who).read(b"k", b"");
    gateway.context.permitted(&gateway.credentials(), read).await.expect("permitted");
    assert_eq!(gateway.barriers(), 1);
    let mut request = gateway.ask(());
    request.metadata_mut().insert("token", "unknown".parse().expect("ASCII"));
    let unknown = gateway.context.anybody(&Credentials::of(&request)).await;
    assert_eq!(unknown, Err(Error::InvalidAuthToken));
    assert_eq!(gateway.barriers(), 2);
}

/// Between the barrier of a read and the read itself they may change once more: what counts is the state that is
/// read.
#[tokio::test]
async fn a_read_is_judged_by_the_state_that_it_reads() {
    let gateway = Gateway::new(with_auth(), vec![revoke("ann", "r")], Some("ann"));
    let known = gateway.context.authority(&gateway.credentials()).await.expect("ann");
    let reader = &gateway.context.reader;
    let range = pb::RangeRequest { key: "k".into(), ..Default::default() };
    let get = pb::request_op::Request::RequestRange(range.clone());
    let success = vec![pb::RequestOp { request: Some(get) }];
    let txn = pb::TxnRequest { success, ..Default::default() };
    reader.range(&range, known.as_ref()).expect("permitted");
    reader.txn(&txn, known.as_ref()).expect("permitted");
    reader.pin(&range, known.as_ref()).expect("permitted");
    gateway.context.log.barrier().await.expect("reached");
    assert!(matches!(reader.range(&range, known.as_ref()), Err(error) if error.is_outdated()));
    assert!(matches!(reader.txn(&txn, known.as_ref()), Err(error) if error.is_outdated()));
    assert_eq!(reader.pin(&range, known.as_ref()), Err(Refusal::AuthOldRevision));
    // Then who asks is looked at once more.
    let now = gateway.context.authority(&gateway.credentials()).await.expect("ann");
    assert_eq!(reader.pin(&range, now.as_ref()), Err(Refusal::PermissionDenied));
}

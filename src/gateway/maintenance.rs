//! The Maintenance service, as a single member answers it.

use super::Context;
use super::error::{Error, read_failed};
use super::snapshot::{self, Snapshots};
use super::told::{self, Asker, Defragmentation};
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::config::{ETCD_CLUSTER_VERSION, ETCD_VERSION};
use crate::keyspace::alarms;
use crate::keyspace::auth::AuthState;
use crate::keyspace::command::{AlarmChange, Op, Reply};
use crate::keyspace::hash::hash_store;
use crate::storage::Engine;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::alarm_request::AlarmAction;
use leaseway_proto::etcdserverpb::downgrade_request::DowngradeAction;
use leaseway_proto::server::etcdserverpb::maintenance_server::Maintenance;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::{Request, Response, Status};

/// Bytes that a store without rows uses: a page.
const EMPTY_STORE: i64 = 4096;
/// What etcd calls the cluster's version in downgrade answers.
const CLUSTER_VERSION: &str = "3.7";
/// The only version that etcd would go down to, as major and minor.
const DOWNGRADE_TARGET: (u64, u64) = (3, 6);

/// Gives free space back while service goes on; resolves to whether that worked.
pub type Shrink =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> + Send + Sync>;

/// The Maintenance service.
pub struct MaintenanceService<L, S> {
    context: Arc<Context<L, S>>,
    engine: Arc<dyn Engine>,
    shrink: Shrink,
    snapshots: Snapshots,
}

impl<L, S> MaintenanceService<L, S> {
    /// A service in `context` over its store.
    pub fn new(
        context: Arc<Context<L, S>>,
        engine: Arc<dyn Engine>,
        shrink: Shrink,
        snapshots: Snapshots,
    ) -> Self {
        Self { context, engine, shrink, snapshots }
    }
}

impl<L: Log, S: Sessions> MaintenanceService<L, S> {
    fn downgrade_answer(&self) -> pb::DowngradeResponse {
        let header = Some(self.context.identity.header(self.context.revision()));
        pb::DowngradeResponse { header, version: CLUSTER_VERSION.into() }
    }
}

/// An alarm as etcd prints it in a status' errors.
fn told(alarm: &pb::AlarmMember) -> String {
    let kind = alarms::name(alarm.alarm);
    let member = alarm.member_id;
    if member == 0 { format!("alarm:{kind}") } else { format!("memberID:{member} alarm:{kind}") }
}

async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Status::internal(error.to_string()))
}

/// The `major.minor` of a version given as `x.y` or `x.y.z`.
fn major_minor(version: &str) -> Option<(u64, u64)> {
    let core = version.split(['-', '+']).next()?;
    let numbers: Vec<u64> = core.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [major, minor] | [major, minor, _] => Some((major, minor)),
        _ => None,
    }
}

#[tonic::async_trait]
impl<L: Log, S: Sessions> Maintenance for MaintenanceService<L, S> {
    async fn alarm(
        &self,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        let credentials = Credentials::of(&request);
        let asker = Asker::of(&self.context, &request);
        let request = request.into_inner();
        let raise = match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Activate) => true,
            Ok(AlarmAction::Deactivate) => false,
            action => {
                // An action that is not known is answered as a look, but not to everybody.
                let permit = match action {
                    Ok(_) => AuthState::anybody,
                    Err(_) => AuthState::admin,
                };
                self.context.permitted_now(&credentials, permit).await?;
                let found = self.context.reader.shared().alarms.list(request.alarm);
                self.context.durable(found.position).await?;
                let header = Some(self.context.identity.header(self.context.revision()));
                return Ok(Response::new(pb::AlarmResponse { header, alarms: found.value }));
            }
        };
        self.context.admin(&credentials).await?;
        let none = request.alarm == pb::AlarmType::None as i32;
        let mut response = pb::AlarmResponse::default();
        let mut revision = self.context.revision();
        if !none {
            let (member, alarm) = (request.member_id, request.alarm);
            let change = AlarmChange { raise, member, alarm };
            let outcome = self.context.propose(Op::Alarm(change), &credentials).await?;
            if outcome.changed {
                told::alarm(&change, Some(&asker));
            }
            revision = outcome.revision;
            if let Reply::Alarm(alarms) = outcome.reply.map_err(Error::from)? {
                response.alarms = alarms;
            }
        }
        response.header = Some(self.context.identity.header(revision));
        Ok(Response::new(response))
    }

    async fn status(
        &self,
        request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        self.context.anybody(&Credentials::of(&request)).await?;
        let alarms = self.context.reader.shared().alarms.list(0);
        // Nobody is told of an alarm that a crash could take back.
        self.context.durable(alarms.position).await?;
        let published = self.context.reader.view().now();
        let identity = self.context.identity;
        Ok(Response::new(pb::StatusResponse {
            header: Some(identity.header(published.visible.revision)),
            version: ETCD_VERSION.into(),
            db_size: i64::try_from(self.engine.file_bytes()).unwrap_or(i64::MAX),
            leader: identity.member_id,
            raft_index: published.position + 1,
            raft_term: identity.raft_term,
            raft_applied_index: published.position + 1,
            errors: alarms.value.iter().map(told).collect(),
            db_size_in_use: EMPTY_STORE
                + self.context.reader.shared().row_bytes.load(Ordering::Relaxed),
            is_learner: false,
            storage_version: ETCD_CLUSTER_VERSION.into(),
            db_size_quota: self.context.quota_bytes.unwrap_or(-1),
            downgrade_info: Some(pb::DowngradeInfo::default()),
        }))
    }

    async fn defragment(
        &self,
        request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        self.context.admin(&Credentials::of(&request)).await?;
        let asker = Asker::of(&self.context, &request);
        let begun = Defragmentation::begin(self.engine.file_bytes(), &asker);
        let disk = &self.context.metrics.disk;
        let _inflight = disk.defrag_inflight.hold();
        let done = disk.defrag.time((self.shrink)()).await;
        let error = done.as_ref().err().map(|error| error.told().1);
        begun.end(self.engine.file_bytes(), error);
        done?;
        // etcd leaves the header out here.
        Ok(Response::new(pb::DefragmentResponse::default()))
    }

    async fn hash(
        &self,
        request: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        self.context.admin(&Credentials::of(&request)).await?;
        let engine = self.engine.clone();
        let hashing = off_thread(move || hash_store(&*engine));
        let found = self
            .context
            .metrics
            .keyspace
            .hash
            .time(hashing)
            .await?
            .map_err(|error| read_failed(error.into()))?;
        // The store may be ahead of the log. Nobody is told what is not durable.
        self.context.durable(found.position).await?;
        let header = Some(self.context.identity.header(self.context.revision()));
        Ok(Response::new(pb::HashResponse { header, hash: found.value }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        self.context.admin(&Credentials::of(&request)).await?;
        let revision = request.into_inner().revision;
        let reader = self.context.reader.clone();
        let hashing = off_thread(move || reader.hash_kv(revision));
        let found = self
            .context
            .metrics
            .keyspace
            .hash_revision
            .time(hashing)
            .await?
            .map_err(read_failed)?;
        Ok(Response::new(pb::HashKvResponse {
            header: Some(self.context.identity.header(found.current)),
            hash: found.hash,
            compact_revision: found.compacted,
            hash_revision: found.revision,
        }))
    }

    type SnapshotStream = snapshot::Answers;

    async fn snapshot(
        &self,
        request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        // All keys go out: not to one who was root elsewhere until just now.
        self.context.permitted_now(&Credentials::of(&request), AuthState::admin).await?;
        self.snapshots.send(&Asker::of(&self.context, &request)).await.map(Response::new)
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        self.context.admin(&Credentials::of(&request)).await?;
        // Moving leadership to the leader is no move.
        if request.into_inner().target_id == self.context.identity.member_id {
            return Ok(Response::new(pb::MoveLeaderResponse::default()));
        }
        Err(Error::BadLeaderTransferee.into())
    }

    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        self.context.admin(&Credentials::of(&request)).await?;
        let request = request.into_inner();
        match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Cancel) => Ok(Response::new(self.downgrade_answer())),
            Ok(action) => match major_minor(&request.version) {
                None => Err(Error::WrongDowngradeVersionFormat.into()),
                // Asking whether one could is answered as etcd does; there is nothing to go to.
                Some(DOWNGRADE_TARGET) if action == DowngradeAction::Validate => {
                    Ok(Response::new(self.downgrade_answer()))
                }
                Some(_) => Err(Error::InvalidDowngradeTarget.into()),
            },
            Err(_) => Err(Status::unknown("etcdserver: unknown method")),
        }
    }
}

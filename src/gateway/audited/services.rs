//! Each service's calls, handed on.

use super::{Audited, Auditor, Origin};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::raw::RangeReply;
use leaseway_proto::server::etcdserverpb::auth_server::Auth;
use leaseway_proto::server::etcdserverpb::cluster_server::Cluster;
use leaseway_proto::server::etcdserverpb::kv_server::Kv;
use leaseway_proto::server::etcdserverpb::lease_server::Lease;
use leaseway_proto::server::etcdserverpb::maintenance_server::Maintenance;
use leaseway_proto::server::v3electionpb::election_server::Election;
use leaseway_proto::server::v3lockpb::lock_server::Lock;
use leaseway_proto::{v3electionpb, v3lockpb};
use std::pin::Pin;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// An answer on its way, as the traits of the services have it.
type Answering<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// Unary calls: the method, its name in gRPC, what it takes and gives. Written out as the attribute
/// of the traits would have it, which does not look into macros.
macro_rules! unary {
    ($service:literal: $($method:ident $name:literal $request:ty => $answer:ty),* $(,)?) => {
        $(
            fn $method<'life0, 'async_trait>(
                &'life0 self,
                request: Request<$request>,
            ) -> Answering<'async_trait, $answer>
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                let method = concat!("/", $service, "/", $name);
                Box::pin(self.auditor.unary(method, request, |request| {
                    self.service.$method(request)
                }))
            }
        )*
    };
}

#[tonic::async_trait]
impl<K: Kv> Kv for Audited<K> {
    unary! { "etcdserverpb.KV":
        range "Range" pb::RangeRequest => RangeReply,
        put "Put" pb::PutRequest => pb::PutResponse,
        delete_range "DeleteRange" pb::DeleteRangeRequest => pb::DeleteRangeResponse,
        txn "Txn" pb::TxnRequest => pb::TxnResponse,
        compact "Compact" pb::CompactionRequest => pb::CompactionResponse,
    }

    type RangeStreamStream = K::RangeStreamStream;

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let call = |request| self.service.range_stream(request);
        self.auditor.stream("/etcdserverpb.KV/RangeStream", request, call).await
    }
}

/// Answers of a stream of renewals.
type KeepAlives = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

#[tonic::async_trait]
impl<S: Lease> Lease for Audited<S> {
    unary! { "etcdserverpb.Lease":
        lease_grant "LeaseGrant" pb::LeaseGrantRequest => pb::LeaseGrantResponse,
        lease_revoke "LeaseRevoke" pb::LeaseRevokeRequest => pb::LeaseRevokeResponse,
        lease_time_to_live "LeaseTimeToLive"
            pb::LeaseTimeToLiveRequest => pb::LeaseTimeToLiveResponse,
        lease_leases "LeaseLeases" pb::LeaseLeasesRequest => pb::LeaseLeasesResponse,
    }

    type LeaseKeepAliveStream = KeepAlives;

    /// Each renewal by its answer. That of a refused one does not tell the lease.
    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<KeepAlives>, Status> {
        let (auditor, origin) = (self.auditor.clone(), Origin::of(&request));
        let answers = self.service.lease_keep_alive(request).await?;
        Ok(answers.map(|answers| -> KeepAlives {
            Box::pin(
                answers.then(move |answer| note_renewal(auditor.clone(), origin.clone(), answer)),
            )
        }))
    }
}

async fn note_renewal(
    auditor: Auditor,
    origin: Origin,
    answer: Result<pb::LeaseKeepAliveResponse, Status>,
) -> Result<pb::LeaseKeepAliveResponse, Status> {
    let id = answer.as_ref().map_or(0, |answer| answer.id);
    let asked = pb::LeaseKeepAliveRequest { id };
    auditor.within(KEEP_ALIVE, &origin, asked, answer.as_ref()).await;
    answer
}

#[tonic::async_trait]
impl<M: Maintenance> Maintenance for Audited<M> {
    unary! { "etcdserverpb.Maintenance":
        alarm "Alarm" pb::AlarmRequest => pb::AlarmResponse,
        status "Status" pb::StatusRequest => pb::StatusResponse,
        defragment "Defragment" pb::DefragmentRequest => pb::DefragmentResponse,
        hash "Hash" pb::HashRequest => pb::HashResponse,
        hash_kv "HashKV" pb::HashKvRequest => pb::HashKvResponse,
        move_leader "MoveLeader" pb::MoveLeaderRequest => pb::MoveLeaderResponse,
        downgrade "Downgrade" pb::DowngradeRequest => pb::DowngradeResponse,
    }

    type SnapshotStream = M::SnapshotStream;

    async fn snapshot(
        &self,
        request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let call = |request| self.service.snapshot(request);
        self.auditor.stream("/etcdserverpb.Maintenance/Snapshot", request, call).await
    }
}

#[tonic::async_trait]
impl<C: Cluster> Cluster for Audited<C> {
    unary! { "etcdserverpb.Cluster":
        member_list "MemberList" pb::MemberListRequest => pb::MemberListResponse,
        member_add "MemberAdd" pb::MemberAddRequest => pb::MemberAddResponse,
        member_remove "MemberRemove" pb::MemberRemoveRequest => pb::MemberRemoveResponse,
        member_update "MemberUpdate" pb::MemberUpdateRequest => pb::MemberUpdateResponse,
        member_promote "MemberPromote" pb::MemberPromoteRequest => pb::MemberPromoteResponse,
    }
}

#[tonic::async_trait]
impl<A: Auth> Auth for Audited<A> {
    unary! { "etcdserverpb.Auth":
        auth_enable "AuthEnable" pb::AuthEnableRequest => pb::AuthEnableResponse,
        auth_disable "AuthDisable" pb::AuthDisableRequest => pb::AuthDisableResponse,
        auth_status "AuthStatus" pb::AuthStatusRequest => pb::AuthStatusResponse,
        authenticate "Authenticate" pb::AuthenticateRequest => pb::AuthenticateResponse,
        user_add "UserAdd" pb::AuthUserAddRequest => pb::AuthUserAddResponse,
        user_get "UserGet" pb::AuthUserGetRequest => pb::AuthUserGetResponse,
        user_list "UserList" pb::AuthUserListRequest => pb::AuthUserListResponse,
        user_delete "UserDelete" pb::AuthUserDeleteRequest => pb::AuthUserDeleteResponse,
        user_change_password "UserChangePassword"
            pb::AuthUserChangePasswordRequest => pb::AuthUserChangePasswordResponse,
        user_grant_role "UserGrantRole"
            pb::AuthUserGrantRoleRequest => pb::AuthUserGrantRoleResponse,
        user_revoke_role "UserRevokeRole"
            pb::AuthUserRevokeRoleRequest => pb::AuthUserRevokeRoleResponse,
        role_add "RoleAdd" pb::AuthRoleAddRequest => pb::AuthRoleAddResponse,
        role_get "RoleGet" pb::AuthRoleGetRequest => pb::AuthRoleGetResponse,
        role_list "RoleList" pb::AuthRoleListRequest => pb::AuthRoleListResponse,
        role_delete "RoleDelete" pb::AuthRoleDeleteRequest => pb::AuthRoleDeleteResponse,
        role_grant_permission "RoleGrantPermission"
            pb::AuthRoleGrantPermissionRequest => pb::AuthRoleGrantPermissionResponse,
        role_revoke_permission "RoleRevokePermission"
            pb::AuthRoleRevokePermissionRequest => pb::AuthRoleRevokePermissionResponse,
    }
}

#[tonic::async_trait]
impl<L: Lock> Lock for Audited<L> {
    unary! { "v3lockpb.Lock":
        lock "Lock" v3lockpb::LockRequest => v3lockpb::LockResponse,
        unlock "Unlock" v3lockpb::UnlockRequest => v3lockpb::UnlockResponse,
    }
}

#[tonic::async_trait]
impl<E: Election> Election for Audited<E> {
    unary! { "v3electionpb.Election":
        campaign "Campaign" v3electionpb::CampaignRequest => v3electionpb::CampaignResponse,
        proclaim "Proclaim" v3electionpb::ProclaimRequest => v3electionpb::ProclaimResponse,
        leader "Leader" v3electionpb::LeaderRequest => v3electionpb::LeaderResponse,
        resign "Resign" v3electionpb::ResignRequest => v3electionpb::ResignResponse,
    }

    type ObserveStream = E::ObserveStream;

    async fn observe(
        &self,
        request: Request<v3electionpb::LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let call = |request| self.service.observe(request);
        self.auditor.stream("/v3electionpb.Election/Observe", request, call).await
    }
}

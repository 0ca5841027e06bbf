//! The Lease service.

use super::Context;
use super::error::Error;
use crate::backend::{Log, Sessions};
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::server::etcdserverpb::lease_server::Lease;
use std::pin::Pin;
use std::sync::Arc;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// Answers of a stream of renewals.
type KeepAlives = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

/// What a lease counts for in the quota, in bytes; etcd's figure.
const LEASE_COST: usize = 64;

/// The Lease service over leases on sessions.
pub struct LeaseService<L, S> {
    context: Arc<Context<L, S>>,
}

impl<L, S> LeaseService<L, S> {
    /// A service in `context`.
    pub fn new(context: Arc<Context<L, S>>) -> Self {
        Self { context }
    }
}

#[tonic::async_trait]
impl<L: Log, S: Sessions> Lease for LeaseService<L, S> {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let request = request.into_inner();
        self.context.within_quota(LEASE_COST).await?;
        let granted =
            self.context.leases.grant(request.id, request.ttl).await.map_err(Error::from)?;
        let metrics = &self.context.metrics.lease;
        metrics.granted_total.inc();
        metrics.ttl.observe_seconds(u64::try_from(granted.ttl).unwrap_or(0));
        Ok(Response::new(pb::LeaseGrantResponse {
            header: Some(self.context.identity.header(granted.revision)),
            id: granted.id,
            ttl: granted.ttl,
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = request.into_inner().id;
        let revision = self.context.leases.revoke(id).await.map_err(Error::from)?;
        self.context.metrics.lease.revoked_total.inc();
        let header = Some(self.context.identity.header(revision));
        Ok(Response::new(pb::LeaseRevokeResponse { header }))
    }

    type LeaseKeepAliveStream = KeepAlives;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let context = self.context.clone();
        // One renewal at a time, in the client's order; the next is taken when the answer before it
        // has been.
        let answers = request.into_inner().then(move |request| {
            let context = context.clone();
            async move { keep_alive(&context, request?.id).await }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let found = self.context.leases.time_to_live(id, keys).await.map_err(Error::from)?;
        let header = Some(self.context.identity.header(self.context.revision()));
        Ok(Response::new(match found {
            Some(found) => pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: found.remaining,
                granted_ttl: found.granted,
                keys: found.keys.into_iter().map(Bytes::from).collect(),
            },
            None => pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: -1,
                ..pb::LeaseTimeToLiveResponse::default()
            },
        }))
    }

    async fn lease_leases(
        &self,
        _: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let ids = self.context.leases.all().await.map_err(Error::from)?;
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: Some(self.context.identity.header(self.context.revision())),
            leases: ids.into_iter().map(|id| pb::LeaseStatus { id }).collect(),
        }))
    }
}

async fn keep_alive<L: Log, S: Sessions>(
    context: &Context<L, S>,
    id: i64,
) -> Result<pb::LeaseKeepAliveResponse, Status> {
    // The revision is taken before the renewal, so that no client sees a lease renewed at a
    // revision at which it had ended.
    let header = Some(context.identity.header(context.revision()));
    let ttl = context.leases.keep_alive(id).await.map_err(Error::from)?;
    if ttl > 0 {
        context.metrics.lease.renewed_total.inc();
    }
    Ok(pb::LeaseKeepAliveResponse { header, id, ttl })
}

//! The Lock service.

use super::Context;
use super::queue::{Caller, Queues};
use crate::backend::{Log, Sessions};
use crate::watch::Hub;
use bytes::Bytes;
use leaseway_proto::server::v3lockpb::lock_server::Lock;
use leaseway_proto::v3lockpb as pb;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The Lock service over queues of keys.
pub struct LockService<L, S> {
    queues: Queues<L, S>,
}

impl<L: Log, S: Sessions> LockService<L, S> {
    /// Locks in a keyspace; `hub` tells of its changes.
    pub fn new(context: Arc<Context<L, S>>, hub: Hub) -> Self {
        Self { queues: Queues::new(context, hub) }
    }
}

#[tonic::async_trait]
impl<L: Log, S: Sessions> Lock for LockService<L, S> {
    async fn lock(
        &self,
        request: Request<pb::LockRequest>,
    ) -> Result<Response<pb::LockResponse>, Status> {
        let caller = Caller::of(&request);
        let pb::LockRequest { name, lease } = request.into_inner();
        let lease = self.queues.lease(&caller, lease).await?;
        let prefix = [&name[..], b"/"].concat();
        let place = self.queues.enter(&caller, &prefix, lease, Bytes::new(), true).await?;
        let key = place.key.clone();
        if place.head.as_ref().is_none_or(|head| head.create_revision == place.create_revision) {
            return Ok(Response::new(pb::LockResponse { header: place.header, key }));
        }
        let leaving = self.queues.leave_unless_kept(caller.clone(), &place);
        self.queues.wait(&caller, &prefix, place.create_revision).await?;
        // The lease may have ended before the turn came.
        let own = self.queues.get(&caller, key.clone()).await?;
        if own.kvs.is_empty() {
            return Err(Status::unknown("mutex: session is expired"));
        }
        leaving.keep();
        Ok(Response::new(pb::LockResponse { header: own.header, key }))
    }

    async fn unlock(
        &self,
        request: Request<pb::UnlockRequest>,
    ) -> Result<Response<pb::UnlockResponse>, Status> {
        let caller = Caller::of(&request);
        let header = self.queues.delete(&caller, request.into_inner().key).await?;
        Ok(Response::new(pb::UnlockResponse { header }))
    }
}

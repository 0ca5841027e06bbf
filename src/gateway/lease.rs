//! The Lease service.

use super::Context;
use super::error::Error;
use super::in_order::in_order;
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::keyspace::auth::{AuthState, Authority};
use crate::lease::TimeToLive;
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::server::etcdserverpb::lease_server::Lease;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// Answers of a stream of renewals.
type KeepAlives = Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

/// What a lease counts for in the quota, in bytes; etcd's figure.
const LEASE_COST: usize = 64;

/// How often a lease's keys are looked at again because users and roles change meanwhile.
const ATTEMPTS: usize = 8;

/// How long the answers to other renewals of a stream wait for one, to keep their order.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers renewals in the client's order, but does not wait for one to begin the next. A client has
/// all its leases on one stream, and where sessions are far away each renewal takes a round trip or
/// two: one after the other, a few hundred leases would run out. Nor do they run out because of one
/// whose session has ended, of which it has to be found out first what becomes of its lease.
fn side_by_side<L: Log, S: Sessions>(
    context: Arc<Context<L, S>>,
    credentials: Credentials,
    mut requests: Streaming<pb::LeaseKeepAliveRequest>,
) -> KeepAlives {
    let (begun, answers) = in_order(PATIENCE);
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let (context, credentials) = (context.clone(), credentials.clone());
            let renewal =
                tokio::spawn(async move { keep_alive(&context, &credentials, request?.id).await });
            // Nobody waits for an answer any more.
            if begun.send(renewal).await.is_err() {
                return;
            }
        }
    });
    let answers = ReceiverStream::new(answers)
        .map(|renewed| renewed.unwrap_or_else(|error| Err(Status::internal(error.to_string()))));
    // The first error is the last word.
    Box::pin(until_error(answers))
}

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

impl<L: Log, S: Sessions> LeaseService<L, S> {
    /// What is known of a lease, with its keys, if all of those may be read by whoever asks.
    async fn with_keys(
        &self,
        credentials: &Credentials,
        id: i64,
    ) -> Result<Option<TimeToLive>, Error> {
        for _ in 0..ATTEMPTS {
            let before = self.context.reader.view().auth().revision;
            let found = self.context.leases.time_to_live(id, true).await?;
            let keys = found.as_ref().map_or(&[][..], |found| &found.keys);
            let judged = AtomicU64::new(before);
            let permit = |auth: &AuthState, who: Option<&Authority>| {
                judged.store(auth.revision, Ordering::Relaxed);
                auth.anybody(who)?;
                auth.admin_or(who, |rights| keys.iter().try_for_each(|key| rights.read(key, &[])))
            };
            self.context.judge(credentials, permit)?;
            // Otherwise the keys may be of before a change, and the permission of after it.
            if judged.load(Ordering::Relaxed) == before {
                return Ok(found);
            }
        }
        Err(Error::AuthOldRevision)
    }
}

#[tonic::async_trait]
impl<L: Log, S: Sessions> Lease for LeaseService<L, S> {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let credentials = Credentials::of(&request);
        let request = request.into_inner();
        self.context.within_quota(LEASE_COST).await?;
        let authority = self.context.anybody(&credentials).await?;
        let (id, ttl) = (request.id, request.ttl);
        let granted = self.context.leases.grant(id, ttl, authority.as_ref()).await;
        let granted = granted.map_err(Error::from)?;
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
        let credentials = Credentials::of(&request);
        let id = request.into_inner().id;
        self.context.anybody(&credentials).await?;
        let revoke =
            async |who: Option<Authority>| Ok(self.context.leases.revoke(id, who.as_ref()).await);
        let revoked = self.context.on_behalf(&credentials, revoke).await?;
        let revision = revoked.map_err(Error::from)?;
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
        let credentials = Credentials::of(&request);
        let requests = request.into_inner();
        if self.context.leases.shares_sessions() {
            return Ok(Response::new(side_by_side(context, credentials, requests)));
        }
        // One renewal at a time, in the client's order; the next is taken when the answer before it
        // has been.
        let answers = requests.then(move |request| {
            let (context, credentials) = (context.clone(), credentials.clone());
            async move { keep_alive(&context, &credentials, request?.id).await }
        });
        // The first error is the last word.
        Ok(Response::new(Box::pin(until_error(answers))))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let credentials = Credentials::of(&request);
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let found = if keys {
            self.with_keys(&credentials, id).await?
        } else {
            // Who asks is judged by a state that is as new as the answer.
            let found = self.context.leases.time_to_live(id, false).await.map_err(Error::from)?;
            self.context.judge(&credentials, AuthState::anybody)?;
            found
        };
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
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let credentials = Credentials::of(&request);
        // All leases, or none for whoever may not read each key on them.
        let leases = self.context.reader.leases();
        let permit = |auth: &AuthState, who: Option<&Authority>| {
            auth.anybody(who)?;
            if auth.admin(who).is_ok() {
                return Ok(());
            }
            let all = leases.all().value;
            all.iter().try_for_each(|lease| auth.read_lease(who, leases, lease.id))
        };
        // Behind the barrier that the list waits for.
        let ids = self.context.leases.all().await.map_err(Error::from)?;
        self.context.judge(&credentials, permit)?;
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: Some(self.context.identity.header(self.context.revision())),
            leases: ids.into_iter().map(|id| pb::LeaseStatus { id }).collect(),
        }))
    }
}

/// Ends a stream behind its first error.
fn until_error<T>(
    stream: impl Stream<Item = Result<T, Status>>,
) -> impl Stream<Item = Result<T, Status>> {
    let mut failed = false;
    stream.take_while(move |item| !std::mem::replace(&mut failed, item.is_err()))
}

/// Renews one lease of a stream.
pub(super) async fn keep_alive<L: Log, S: Sessions>(
    context: &Context<L, S>,
    credentials: &Credentials,
    id: i64,
) -> Result<pb::LeaseKeepAliveResponse, Status> {
    let may = |auth: &AuthState, who: Option<&Authority>| {
        auth.anybody(who)?;
        auth.write_lease(who, context.reader.leases(), id)
    };
    if context.reader.view().auth_enabled() {
        context.permitted(credentials, may).await?;
    }
    // The revision is taken before the renewal, so that no client sees a lease renewed at a
    // revision at which it had ended.
    let header = Some(context.identity.header(context.revision()));
    let ttl = context.leases.keep_alive(id).await.map_err(Error::from)?;
    // The renewal has waited for a barrier, or been logged: by now it is known whether they might.
    context.judge(credentials, may)?;
    if ttl > 0 {
        context.metrics.lease.renewed_total.inc();
    }
    Ok(pb::LeaseKeepAliveResponse { header, id, ttl })
}

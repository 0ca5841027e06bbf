//! Queues of keys under a prefix, on which locks and elections stand.
//!
//! Whoever wants the lock puts a key named after its lease under the name of the lock; the key that
//! was created first has it. Everybody else watches one key, the last one that was created before
//! their own, so that an end wakes one of them. Everything goes through the KV and Lease services,
//! on behalf of the caller. Deliberately absent: any state of its own, and the renewal of leases.

mod shared;

use super::authority::Gate;
use super::error::Error;
use super::kv::KvService;
use super::lease::LeaseService;
use super::{Context, identity::Identity};
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::keyspace::range::end_of_prefix;
use crate::watch::{CreateWatcher, Hub, KeyRange, Notice, Notices, What};
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::mvccpb::KeyValue;
use leaseway_proto::server::etcdserverpb::kv_server::Kv;
use leaseway_proto::server::etcdserverpb::lease_server::Lease;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::range_request::{SortOrder, SortTarget};
use prost::Message;
use shared::{Share, SharedKeys};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_stream::StreamExt;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Status};

/// Seconds that a lease lives which a caller without one is given.
const LEASE_SECONDS: i64 = 60;

/// Who called, to ask other services on their behalf.
#[derive(Clone)]
pub struct Caller {
    metadata: MetadataMap,
    extensions: Extensions,
    credentials: Credentials,
}

impl Caller {
    /// The caller of a request.
    pub fn of<T>(request: &Request<T>) -> Self {
        Self {
            metadata: request.metadata().clone(),
            extensions: request.extensions().clone(),
            credentials: Credentials::of(request),
        }
    }

    fn ask<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata.clone(), self.extensions.clone(), message)
    }
}

/// An error as etcd's lock and election services pass it on: they hold a client, whose form of the
/// errors has texts but no codes.
fn passed_on(status: Status) -> Status {
    let known = Error::ALL.iter().any(|error| error.told().1 == status.message());
    if known { Status::unknown(status.message()) } else { status }
}

/// A key in a queue.
#[derive(Clone, Debug)]
pub struct Place {
    /// The key.
    pub key: Bytes,
    /// When it was put; lower is nearer to the head.
    pub create_revision: i64,
    /// Of the answer that told of it.
    pub header: Option<pb::ResponseHeader>,
    /// What was there before with another value.
    pub found: Option<KeyValue>,
    /// The head of the queue, where it was asked for.
    pub head: Option<KeyValue>,
}

/// All queues.
pub struct Queues<L, S> {
    context: Arc<Context<L, S>>,
    kv: Arc<KvService<L, S>>,
    leases: LeaseService<L, S>,
    hub: Hub,
    shared: SharedKeys,
}

impl<L: Log, S: Sessions> Queues<L, S> {
    /// Queues in a keyspace; `hub` tells of its changes.
    pub fn new(context: Arc<Context<L, S>>, hub: Hub) -> Self {
        let kv = Arc::new(KvService::new(context.clone()));
        let leases = LeaseService::new(context.clone());
        Self { context, kv, leases, hub, shared: SharedKeys::default() }
    }

    /// Who answers.
    pub fn identity(&self) -> &Identity {
        &self.context.identity
    }

    /// The lease to use: a new one if none is given. One that is given is neither looked for nor
    /// renewed.
    ///
    /// # Errors
    /// What granting gives.
    pub async fn lease(&self, caller: &Caller, given: i64) -> Result<i64, Status> {
        if given != 0 {
            return Ok(given);
        }
        let request = pb::LeaseGrantRequest { ttl: LEASE_SECONDS, id: 0 };
        let granted = self.leases.lease_grant(caller.ask(request)).await.map_err(passed_on)?;
        Ok(granted.into_inner().id)
    }

    /// Puts the key of a lease in the queue, unless it is there. `with_head` asks for the head of the
    /// queue as of the same moment.
    ///
    /// # Errors
    /// What the transaction gives.
    pub async fn enter(
        &self,
        caller: &Caller,
        prefix: &[u8],
        lease: i64,
        value: Bytes,
        with_head: bool,
    ) -> Result<Place, Status> {
        let sign = if lease < 0 { "-" } else { "" };
        let name = format!("{sign}{:x}", lease.unsigned_abs());
        let key = Bytes::from([prefix, name.as_bytes()].concat());
        let put = put(key.clone(), value, lease);
        let get = range(pb::RangeRequest { key: key.clone(), ..Default::default() });
        let head = with_head.then(|| range(first_created(prefix)));
        let request = pb::TxnRequest {
            compare: vec![created_at(key.clone(), 0)],
            success: [Some(put), head.clone()].into_iter().flatten().collect(),
            failure: [Some(get), head].into_iter().flatten().collect(),
        };
        let answer = self.txn(caller, request).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        let mut answers = answer.responses.into_iter().map(first_row);
        let found = answers.next().flatten().filter(|_| !answer.succeeded);
        Ok(Place {
            key,
            create_revision: found.as_ref().map_or(revision, |kv| kv.create_revision),
            header: answer.header,
            found,
            head: answers.next().flatten(),
        })
    }

    /// Waits until no key is left in the queue that was created before `create_revision`.
    ///
    /// # Errors
    /// What reading and watching give.
    pub async fn wait(
        &self,
        caller: &Caller,
        prefix: &[u8],
        create_revision: i64,
    ) -> Result<(), Status> {
        loop {
            let request = last_created_before(prefix, create_revision);
            let answer = self.range(caller, request).await?;
            let Some(before) = answer.kvs.into_iter().next() else { return Ok(()) };
            let revision = answer.header.map_or(0, |header| header.revision);
            self.wait_for_end(caller, &before.key, revision).await?;
        }
    }

    /// Waits until a key is deleted at `revision` or later, or until it is not known any more whether
    /// it was.
    async fn wait_for_end(&self, caller: &Caller, key: &[u8], revision: i64) -> Result<(), Status> {
        let range = KeyRange::from_request(key, &[]);
        let mut ends = self.watch(caller, key, &[], range, revision, true).await?;
        while let Some(notice) = ends.next().await {
            match notice.what {
                What::Events { .. } | What::Compacted(_) => return Ok(()),
                What::Refused(reason) => return Err(Status::unknown(reason)),
                What::Created | What::Canceled | What::Progress => {}
            }
        }
        Err(passed_on(Error::Stopped.into()))
    }

    /// What happens to keys from a revision on.
    ///
    /// # Errors
    /// The caller may not read them; the server is stopping.
    async fn watch(
        &self,
        caller: &Caller,
        key: &[u8],
        end: &[u8],
        range: KeyRange,
        start_revision: i64,
        ends_only: bool,
    ) -> Result<Notices, Status> {
        let permitted = Gate::watch(&*self.context, &caller.credentials, key, end).await;
        permitted.map_err(|error| passed_on(error.into()))?;
        let stopped = |_| passed_on(Error::Stopped.into());
        let (control, notices) = self.hub.open().map_err(stopped)?;
        let watcher = CreateWatcher {
            range,
            start_revision,
            watch_id: 0,
            prev_kv: false,
            progress_notify: false,
            fragment: false,
            no_put: ends_only,
            no_delete: false,
        };
        control.create(watcher).await.map_err(stopped)?;
        Ok(notices)
    }

    /// What happens to one key from a revision on.
    ///
    /// # Errors
    /// As those of reading it.
    pub async fn follow(
        &self,
        caller: &Caller,
        key: &[u8],
        revision: i64,
    ) -> Result<Notices, Status> {
        let range = KeyRange::from_request(key, &[]);
        self.watch(caller, key, &[], range, revision, false).await
    }

    /// What happens in a queue from a revision on.
    ///
    /// # Errors
    /// As those of reading it.
    pub async fn follow_all(
        &self,
        caller: &Caller,
        prefix: &[u8],
        revision: i64,
    ) -> Result<Notices, Status> {
        let end = end_of_prefix(prefix);
        let range = KeyRange::from_request(prefix, &end);
        self.watch(caller, prefix, &end, range, revision, false).await
    }

    /// The head of a queue, with the header of the answer.
    ///
    /// # Errors
    /// What reading gives.
    pub async fn head(&self, caller: &Caller, prefix: &[u8]) -> Result<pb::RangeResponse, Status> {
        self.range(caller, first_created(prefix)).await
    }

    /// One key.
    ///
    /// # Errors
    /// What reading gives.
    pub async fn get(&self, caller: &Caller, key: Bytes) -> Result<pb::RangeResponse, Status> {
        self.range(caller, pb::RangeRequest { key, ..Default::default() }).await
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// What deleting gives.
    pub async fn delete(
        &self,
        caller: &Caller,
        key: Bytes,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        let request = pb::DeleteRangeRequest { key, ..Default::default() };
        let answer = self.kv.delete_range(caller.ask(request)).await.map_err(passed_on)?;
        Ok(answer.into_inner().header)
    }

    /// Puts a value to a key in a queue, if it is still the one that was created then.
    ///
    /// # Errors
    /// What the transaction gives.
    pub async fn replace(
        &self,
        caller: &Caller,
        key: Bytes,
        create_revision: i64,
        value: Bytes,
        lease: i64,
    ) -> Result<pb::TxnResponse, Status> {
        let request = pb::TxnRequest {
            compare: vec![created_at(key.clone(), create_revision)],
            success: vec![put(key, value, lease)],
            failure: Vec::new(),
        };
        self.txn(caller, request).await
    }

    /// Takes a key out of a queue, if it is still the one that was created then.
    ///
    /// # Errors
    /// What the transaction gives.
    pub async fn leave(
        &self,
        caller: &Caller,
        key: Bytes,
        create_revision: i64,
    ) -> Result<pb::TxnResponse, Status> {
        self.txn(caller, leaving(key, create_revision)).await
    }

    /// Takes a key out of its queue when dropped, unless it is told otherwise or another call of the same
    /// lease has use for the key.
    pub fn leave_unless_kept(&self, caller: Caller, place: &Place) -> Leaving<L, S> {
        let share = self.shared.share(place.key.clone(), place.create_revision);
        Leaving { kv: self.kv.clone(), caller, share, kept: false }
    }

    async fn range(
        &self,
        caller: &Caller,
        request: pb::RangeRequest,
    ) -> Result<pb::RangeResponse, Status> {
        let answer = self.kv.range(caller.ask(request)).await.map_err(passed_on)?;
        let rows = answer.into_inner().encode_to_vec();
        pb::RangeResponse::decode(&rows[..]).map_err(|error| Status::internal(error.to_string()))
    }

    async fn txn(
        &self,
        caller: &Caller,
        request: pb::TxnRequest,
    ) -> Result<pb::TxnResponse, Status> {
        let answer = self.kv.txn(caller.ask(request)).await.map_err(passed_on)?;
        Ok(answer.into_inner())
    }
}

/// A key that leaves its queue when its caller does.
pub struct Leaving<L: Log, S: Sessions> {
    kv: Arc<KvService<L, S>>,
    caller: Caller,
    share: Share,
    kept: bool,
}

impl<L: Log, S: Sessions> Leaving<L, S> {
    /// Lets the key stay.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl<L: Log, S: Sessions> Drop for Leaving<L, S> {
    fn drop(&mut self) {
        if !self.share.end(self.kept) {
            return;
        }
        // Without a runtime the server is at its end, and the lease will do it.
        let Ok(runtime) = Handle::try_current() else { return };
        let (key, create_revision) = self.share.created();
        let (kv, request) = (self.kv.clone(), self.caller.ask(leaving(key, create_revision)));
        runtime.spawn(async move {
            if let Err(error) = kv.txn(request).await {
                tracing::debug!(%error, "a key stays in its queue until its lease ends");
            }
        });
    }
}

/// The events of a notice, decoded.
///
/// # Errors
/// Bytes that are no events.
pub fn events(notice: &Notice) -> Result<Vec<leaseway_proto::mvccpb::Event>, Status> {
    let What::Events { batch, .. } = &notice.what else { return Ok(Vec::new()) };
    let mut events = Vec::with_capacity(batch.pieces().len());
    for piece in batch.pieces() {
        let decoded = pb::WatchResponse::decode(piece.clone())
            .map_err(|error| Status::internal(error.to_string()))?;
        events.extend(decoded.events);
    }
    Ok(events)
}

fn first_created(prefix: &[u8]) -> pb::RangeRequest {
    pb::RangeRequest {
        key: Bytes::copy_from_slice(prefix),
        range_end: end_of_prefix(prefix).into(),
        limit: 1,
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        ..Default::default()
    }
}

fn last_created_before(prefix: &[u8], create_revision: i64) -> pb::RangeRequest {
    pb::RangeRequest {
        sort_order: SortOrder::Descend as i32,
        max_create_revision: create_revision.saturating_sub(1),
        ..first_created(prefix)
    }
}

fn created_at(key: Bytes, revision: i64) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Default::default()
    }
}

fn put(key: Bytes, value: Bytes, lease: i64) -> pb::RequestOp {
    let request = pb::PutRequest { key, value, lease, ..Default::default() };
    pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(request)) }
}

fn range(request: pb::RangeRequest) -> pb::RequestOp {
    pb::RequestOp { request: Some(pb::request_op::Request::RequestRange(request)) }
}

fn leaving(key: Bytes, create_revision: i64) -> pb::TxnRequest {
    let delete = pb::DeleteRangeRequest { key: key.clone(), ..Default::default() };
    let delete = pb::request_op::Request::RequestDeleteRange(delete);
    pb::TxnRequest {
        compare: vec![created_at(key, create_revision)],
        success: vec![pb::RequestOp { request: Some(delete) }],
        failure: Vec::new(),
    }
}

fn first_row(answer: pb::ResponseOp) -> Option<KeyValue> {
    match answer.response {
        Some(pb::response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => None,
    }
}

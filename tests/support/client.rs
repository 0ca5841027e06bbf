//! A client of every service over one connection.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::kv_client::KvClient;
use leaseway_proto::etcdserverpb::lease_client::LeaseClient;
use leaseway_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use leaseway_proto::etcdserverpb::watch_client::WatchClient;
use leaseway_proto::mvccpb::{Event, KeyValue, event::EventType};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::PATIENCE;

/// Starts a range over all keys.
pub const EVERYTHING: &[u8] = b"\0";

/// A connection. Clones share it.
#[derive(Clone)]
pub struct Client {
    pub kv: KvClient<Channel>,
    pub lease: LeaseClient<Channel>,
    pub watch: WatchClient<Channel>,
    pub maintenance: MaintenanceClient<Channel>,
}

impl Client {
    /// Connects. No call takes longer than [`PATIENCE`].
    pub async fn connect(port: u16) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("a URL");
        let channel = endpoint.timeout(PATIENCE).connect().await.expect("connects");
        let size = i32::MAX as usize;
        Client {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(size),
            lease: LeaseClient::new(channel.clone()).max_decoding_message_size(size),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(size),
            maintenance: MaintenanceClient::new(channel),
        }
    }

    /// Puts a key, on a lease unless that is 0; returns the revision.
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        lease: i64,
    ) -> Result<i64, Status> {
        let answer = self.kv.clone().put(put(key, value, lease)).await?;
        Ok(revision(answer.into_inner().header.as_ref()))
    }

    /// Deletes one key; returns the revision.
    pub async fn delete(&self, key: impl Into<Vec<u8>>) -> Result<i64, Status> {
        let answer = self.kv.clone().delete_range(delete(key)).await?;
        Ok(revision(answer.into_inner().header.as_ref()))
    }

    pub async fn txn(&self, request: pb::TxnRequest) -> Result<pb::TxnResponse, Status> {
        Ok(self.kv.clone().txn(request).await?.into_inner())
    }

    pub async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
        Ok(self.kv.clone().range(request).await?.into_inner())
    }

    /// One key, if it exists.
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<KeyValue>, Status> {
        let request = pb::RangeRequest { key: key.into().into(), ..Default::default() };
        Ok(self.range(request).await?.kvs.pop())
    }

    /// All keys at a revision (0: now).
    pub async fn everything(&self, revision: i64) -> Result<pb::RangeResponse, Status> {
        let (key, range_end) = (EVERYTHING.into(), EVERYTHING.into());
        self.range(pb::RangeRequest { key, range_end, revision, ..Default::default() }).await
    }

    /// The current revision.
    pub async fn revision(&self) -> i64 {
        let request =
            pb::RangeRequest { key: EVERYTHING.into(), count_only: true, ..Default::default() };
        let answer = self.range(request).await.expect("an answer");
        revision(answer.header.as_ref())
    }

    pub async fn compact(&self, revision: i64, physical: bool) -> Result<(), Status> {
        let request = pb::CompactionRequest { revision, physical };
        self.kv.clone().compact(request).await.map(|_| ())
    }

    pub async fn hash_kv(&self, revision: i64) -> Result<pb::HashKvResponse, Status> {
        let request = pb::HashKvRequest { revision };
        Ok(self.maintenance.clone().hash_kv(request).await?.into_inner())
    }

    /// Grants a lease with a chosen id (0: the server chooses).
    pub async fn grant(&self, id: i64, ttl: i64) -> Result<pb::LeaseGrantResponse, Status> {
        let request = pb::LeaseGrantRequest { ttl, id };
        Ok(self.lease.clone().lease_grant(request).await?.into_inner())
    }

    /// Revokes a lease; returns the revision.
    pub async fn revoke(&self, id: i64) -> Result<i64, Status> {
        let answer = self.lease.clone().lease_revoke(pb::LeaseRevokeRequest { id }).await?;
        Ok(revision(answer.into_inner().header.as_ref()))
    }

    pub async fn time_to_live(
        &self,
        id: i64,
        keys: bool,
    ) -> Result<pb::LeaseTimeToLiveResponse, Status> {
        let request = pb::LeaseTimeToLiveRequest { id, keys };
        Ok(self.lease.clone().lease_time_to_live(request).await?.into_inner())
    }

    /// Ids of all leases in ascending order.
    pub async fn leases(&self) -> Result<Vec<i64>, Status> {
        let answer = self.lease.clone().lease_leases(pb::LeaseLeasesRequest {}).await?;
        let mut ids: Vec<i64> =
            answer.into_inner().leases.into_iter().map(|lease| lease.id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Renews a lease once; returns its time to live, 0 when it does not live.
    pub async fn keep_alive(&self, id: i64) -> Result<i64, Status> {
        let requests = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
        let mut answers = self.lease.clone().lease_keep_alive(requests).await?.into_inner();
        let answer = within(answers.message()).await?;
        Ok(answer.expect("an answer before the end").ttl)
    }

    /// Watches all keys from a revision (0: from now on).
    pub async fn watch_everything(&self, start_revision: i64) -> Result<Watching, Status> {
        let create = pb::WatchCreateRequest {
            key: EVERYTHING.into(),
            range_end: EVERYTHING.into(),
            start_revision,
            ..Default::default()
        };
        self.watch_with(create).await
    }

    pub async fn watch_with(&self, create: pb::WatchCreateRequest) -> Result<Watching, Status> {
        let (sender, requests) = mpsc::channel(1);
        let request_union = Some(pb::watch_request::RequestUnion::CreateRequest(create));
        sender.send(pb::WatchRequest { request_union }).await.expect("an open stream");
        let answer = self.watch.clone().watch(ReceiverStream::new(requests)).await?;
        let mut answers = answer.into_inner();
        let created = within(answers.message()).await?.expect("an answer before the end");
        assert!(created.created, "{created:?}");
        Ok(Watching { answers, _requests: sender })
    }
}

/// A stream with one watcher.
pub struct Watching {
    answers: Streaming<pb::WatchResponse>,
    _requests: mpsc::Sender<pb::WatchRequest>,
}

impl Watching {
    /// The next answer; `None` when the stream has ended.
    pub async fn next(&mut self) -> Result<Option<pb::WatchResponse>, Status> {
        self.answers.message().await
    }

    /// Events by revision until one of `last` or later has come.
    pub async fn collect_until(&mut self, last: i64) -> BTreeMap<i64, Vec<Event>> {
        let mut revisions: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        while revisions.keys().next_back().is_none_or(|&latest| latest < last) {
            let answer = within(self.next()).await.expect("an open stream").expect("not ended");
            assert!(!answer.canceled, "{answer:?}");
            for event in answer.events {
                let revision = event.kv.as_ref().expect("a key").mod_revision;
                let before = revisions.keys().next_back().copied().unwrap_or(0);
                assert!(revision >= before, "revision {revision} after {before}");
                revisions.entry(revision).or_default().push(event);
            }
        }
        revisions
    }
}

/// Whether an event is a deletion.
pub fn is_delete(event: &Event) -> bool {
    event.r#type == EventType::Delete as i32
}

/// Waits for an answer on a stream for a bounded time.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("an answer in time")
}

/// Asks again until the answer satisfies, for a bounded time.
pub async fn eventually<T, F: Future<Output = T>>(
    patience: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        let answer = ask().await;
        if enough(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn revision(header: Option<&pb::ResponseHeader>) -> i64 {
    header.expect("a header").revision
}

pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: i64) -> pb::PutRequest {
    let (key, value) = (key.into().into(), value.into().into());
    pb::PutRequest { key, value, lease, ..Default::default() }
}

pub fn delete(key: impl Into<Vec<u8>>) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key.into().into(), ..Default::default() }
}

/// An operation of a transaction.
pub fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

/// A transaction's condition: the key was last changed at the revision (0: it does not exist).
pub fn changed_at(key: impl Into<Vec<u8>>, revision: i64) -> pb::Compare {
    pb::Compare {
        result: pb::compare::CompareResult::Equal as i32,
        target: pb::compare::CompareTarget::Mod as i32,
        key: key.into().into(),
        target_union: Some(pb::compare::TargetUnion::ModRevision(revision)),
        ..Default::default()
    }
}

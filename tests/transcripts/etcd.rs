//! Runs transcripts on a real etcd, as its client.

use std::path::Path;
use std::time::Duration;

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::etcdserverpb::response_op::Response;
use leaseway_proto::etcdserverpb::watch_request::RequestUnion;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::parse::Action;
use crate::support::Server;
use crate::support::client::{Client, EVERYTHING, revision, within};
use crate::text;

/// A server, and a watcher of everything that happens on it.
pub struct Driver {
    client: Client,
    watcher: Watcher,
    told: i64,
    _server: Server,
}

impl Driver {
    /// An etcd of its own.
    pub async fn start(binary: &Path) -> Self {
        let server = Server::start_etcd(binary, &["--unsafe-no-fsync"]);
        let client = Client::connect(server.port).await;
        let watcher = Watcher::create(&client, 2, false).await;
        Self { client, watcher, told: 1, _server: server }
    }

    /// Does one step; returns what it answered and which events it had.
    pub async fn run(&mut self, action: &Action) -> String {
        match self.ask(action).await {
            Ok(answer) => {
                let now = self.client.revision().await;
                let events =
                    if now > self.told { self.watcher.until(now).await } else { String::new() };
                self.told = now;
                answer + &events
            }
            Err(status) => text::refused(status.message()),
        }
    }

    async fn ask(&self, action: &Action) -> Result<String, Status> {
        let client = &self.client;
        Ok(match action.clone() {
            Action::Request(request) => text::response(&self.request(request).await?, 0),
            Action::Compact(at) => {
                let request = pb::CompactionRequest { revision: at, physical: true };
                let answer = client.kv.clone().compact(request).await?.into_inner();
                format!("compacted, revision {}\n", revision(answer.header.as_ref()))
            }
            Action::Grant { id, ttl, .. } => {
                let answer = client.grant(id, ttl).await?;
                format!("granted, revision {}\n", revision(answer.header.as_ref()))
            }
            Action::Revoke(id) => format!("revoked, revision {}\n", client.revoke(id).await?),
            Action::Leases => {
                let mut told = String::new();
                for id in client.leases().await? {
                    let lease = client.time_to_live(id, true).await?;
                    told += &text::lease(id, lease.granted_ttl, &lease.keys);
                }
                if told.is_empty() { "no leases\n".into() } else { told }
            }
            Action::Alarm { raise, member, alarm } => {
                text::alarms(&self.alarm(if raise { 1 } else { 2 }, member, alarm).await?)
            }
            Action::Alarms => text::alarms(&self.alarm(0, 0, 0).await?),
            Action::History { from, prev } => Watcher::create(client, from, prev).await.all().await,
            Action::Inner(inner) => unreachable!("no client can ask for {inner:?}"),
        })
    }

    async fn request(&self, request: Request) -> Result<Response, Status> {
        let mut kv = self.client.kv.clone();
        Ok(match request {
            Request::RequestPut(put) => Response::ResponsePut(kv.put(put).await?.into_inner()),
            Request::RequestRange(range) => {
                Response::ResponseRange(kv.range(range).await?.into_inner())
            }
            Request::RequestDeleteRange(delete) => {
                Response::ResponseDeleteRange(kv.delete_range(delete).await?.into_inner())
            }
            Request::RequestTxn(txn) => Response::ResponseTxn(kv.txn(txn).await?.into_inner()),
        })
    }

    async fn alarm(
        &self,
        action: i32,
        member_id: u64,
        alarm: i32,
    ) -> Result<Vec<pb::AlarmMember>, Status> {
        let request = pb::AlarmRequest { action, member_id, alarm };
        Ok(self.client.maintenance.clone().alarm(request).await?.into_inner().alarms)
    }
}

/// A stream with one watcher of all keys.
struct Watcher {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

impl Watcher {
    async fn create(client: &Client, start_revision: i64, prev_kv: bool) -> Self {
        let (requests, receiver) = mpsc::channel(4);
        let create = pb::WatchCreateRequest {
            key: EVERYTHING.into(),
            range_end: EVERYTHING.into(),
            start_revision,
            prev_kv,
            ..Default::default()
        };
        let request_union = Some(RequestUnion::CreateRequest(create));
        requests.send(pb::WatchRequest { request_union }).await.expect("an open stream");
        let answers = client.watch.clone().watch(ReceiverStream::new(receiver)).await;
        let mut watcher = Self { requests, answers: answers.expect("a stream").into_inner() };
        assert!(watcher.next().await.created);
        watcher
    }

    async fn next(&mut self) -> pb::WatchResponse {
        within(self.answers.message()).await.expect("an open stream").expect("not ended")
    }

    /// Events up to a revision that has some.
    async fn until(&mut self, last: i64) -> String {
        let mut told = String::new();
        loop {
            let events = self.next().await.events;
            told.extend(events.iter().map(text::event));
            let latest = events.last().and_then(|event| Some(event.kv.as_ref()?.mod_revision));
            if latest.is_some_and(|latest| latest >= last) {
                return told;
            }
        }
    }

    /// All events there are: those before the answer to a request for progress, which etcd does not
    /// give before everything has been sent.
    async fn all(mut self) -> String {
        let mut told = String::new();
        for _ in 0..1000 {
            let request_union = Some(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
            let _ = self.requests.try_send(pb::WatchRequest { request_union });
            let Ok(answer) =
                tokio::time::timeout(Duration::from_millis(50), self.answers.message()).await
            else {
                continue;
            };
            let answer = answer.expect("an open stream").expect("not ended");
            if answer.canceled {
                return text::refused(&format!(
                    "revisions below {} have been compacted",
                    answer.compact_revision
                ));
            }
            if answer.events.is_empty() {
                return told;
            }
            told.extend(answer.events.iter().map(text::event));
        }
        panic!("no progress is told");
    }
}

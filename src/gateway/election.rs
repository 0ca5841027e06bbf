//! The Election service.

use super::Context;
use super::queue::{Caller, Queues, events};
use crate::backend::{Log, Sessions};
use crate::watch::{Hub, What};
use bytes::Bytes;
use leaseway_proto::etcdserverpb::ResponseHeader;
use leaseway_proto::mvccpb::{KeyValue, event::EventType};
use leaseway_proto::server::v3electionpb::election_server::Election;
use leaseway_proto::v3electionpb as pb;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// The Election service over queues of keys: the head of the queue leads.
pub struct ElectionService<L, S> {
    queues: Arc<Queues<L, S>>,
}

impl<L: Log, S: Sessions> ElectionService<L, S> {
    /// Elections in a keyspace; `hub` tells of its changes.
    pub fn new(context: Arc<Context<L, S>>, hub: Hub) -> Self {
        Self { queues: Arc::new(Queues::new(context, hub)) }
    }

    async fn proclaim_as(
        &self,
        caller: &Caller,
        key: Bytes,
        create_revision: i64,
        value: Bytes,
        lease: i64,
    ) -> Result<Option<ResponseHeader>, Status> {
        let answer = self.queues.replace(caller, key, create_revision, value, lease).await?;
        if answer.succeeded { Ok(answer.header) } else { Err(not_leader()) }
    }
}

fn not_leader() -> Status {
    Status::unknown("election: not leader")
}

fn no_leader_given() -> Status {
    Status::unknown("\"leader\" field must be provided")
}

fn prefix_of(name: &[u8]) -> Vec<u8> {
    [name, b"/"].concat()
}

#[tonic::async_trait]
impl<L: Log, S: Sessions> Election for ElectionService<L, S> {
    async fn campaign(
        &self,
        request: Request<pb::CampaignRequest>,
    ) -> Result<Response<pb::CampaignResponse>, Status> {
        let caller = Caller::of(&request);
        let pb::CampaignRequest { name, lease, value } = request.into_inner();
        let lease = self.queues.lease(&caller, lease).await?;
        let prefix = prefix_of(&name);
        let place = self.queues.enter(&caller, &prefix, lease, value.clone(), false).await?;
        let leaving = self.queues.leave_unless_kept(caller.clone(), &place);
        let (key, rev) = (place.key.clone(), place.create_revision);
        if place.found.is_some_and(|found| found.value != value) {
            self.proclaim_as(&caller, key.clone(), rev, value, lease).await?;
        }
        self.queues.wait(&caller, &prefix, rev).await?;
        leaving.keep();
        let leader = Some(pb::LeaderKey { name, key, rev, lease });
        Ok(Response::new(pb::CampaignResponse { header: place.header, leader }))
    }

    async fn proclaim(
        &self,
        request: Request<pb::ProclaimRequest>,
    ) -> Result<Response<pb::ProclaimResponse>, Status> {
        let caller = Caller::of(&request);
        let pb::ProclaimRequest { leader, value } = request.into_inner();
        let leader = leader.ok_or_else(no_leader_given)?;
        let lease = self.queues.lease(&caller, leader.lease).await?;
        let header = self.proclaim_as(&caller, leader.key, leader.rev, value, lease).await?;
        Ok(Response::new(pb::ProclaimResponse { header }))
    }

    async fn leader(
        &self,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<pb::LeaderResponse>, Status> {
        let caller = Caller::of(&request);
        let prefix = prefix_of(&request.into_inner().name);
        let answer = self.queues.head(&caller, &prefix).await?;
        match answer.kvs.into_iter().next() {
            None => Err(Status::unknown("election: no leader")),
            kv => Ok(Response::new(pb::LeaderResponse { header: answer.header, kv })),
        }
    }

    type ObserveStream = ReceiverStream<Result<pb::LeaderResponse, Status>>;

    async fn observe(
        &self,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let caller = Caller::of(&request);
        let prefix = prefix_of(&request.into_inner().name);
        let (sender, answers) = mpsc::channel(1);
        let observer = Observer { queues: self.queues.clone(), caller, prefix, answers: sender };
        tokio::spawn(async move {
            let gone = observer.answers.clone();
            tokio::select! {
                ended = observer.run() => if let Err(error) = ended {
                    // The stream ends without an error, as etcd's does.
                    tracing::debug!(%error, "the leader can't be observed any more");
                },
                () = gone.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn resign(
        &self,
        request: Request<pb::ResignRequest>,
    ) -> Result<Response<pb::ResignResponse>, Status> {
        let caller = Caller::of(&request);
        let leader = request.into_inner().leader.ok_or_else(no_leader_given)?;
        self.queues.lease(&caller, leader.lease).await?;
        let answer = self.queues.leave(&caller, leader.key, leader.rev).await?;
        Ok(Response::new(pb::ResignResponse { header: answer.header }))
    }
}

/// Tells one client of each leader and of what it proclaims.
struct Observer<L, S> {
    queues: Arc<Queues<L, S>>,
    caller: Caller,
    prefix: Vec<u8>,
    answers: mpsc::Sender<Result<pb::LeaderResponse, Status>>,
}

/// How following one leader ended.
enum Followed {
    /// Its key was deleted.
    Gone,
    /// Nothing more can be said.
    Lost,
}

impl<L: Log, S: Sessions> Observer<L, S> {
    async fn run(&self) -> Result<(), Status> {
        loop {
            let head = self.queues.head(&self.caller, &self.prefix).await?;
            let revision = head.header.map_or(0, |header| header.revision);
            let (header, leader) = match head.kvs.into_iter().next() {
                Some(kv) => (head.header, kv),
                None => match self.first_from(revision).await? {
                    Some(kv) => (Some(self.queues.identity().header(kv.mod_revision)), kv),
                    None => return Ok(()),
                },
            };
            let next = header.map_or(0, |header| header.revision) + 1;
            let key = leader.key.clone();
            if !self.tell(header, leader).await {
                return Ok(());
            }
            match self.follow(&key, next).await? {
                Followed::Gone => {}
                Followed::Lost => return Ok(()),
            }
        }
    }

    /// Waits for the first key in the queue.
    async fn first_from(&self, revision: i64) -> Result<Option<KeyValue>, Status> {
        let mut notices = self.queues.follow_all(&self.caller, &self.prefix, revision).await?;
        while let Some(notice) = notices.next().await {
            if matches!(notice.what, What::Compacted(_) | What::Refused(_)) {
                return Ok(None);
            }
            for event in events(&notice)? {
                if event.r#type() == EventType::Put {
                    return Ok(event.kv);
                }
            }
        }
        Ok(None)
    }

    /// Tells of the values of a leader until its key is deleted.
    async fn follow(&self, key: &[u8], revision: i64) -> Result<Followed, Status> {
        let mut notices = self.queues.follow(&self.caller, key, revision).await?;
        while let Some(notice) = notices.next().await {
            if matches!(notice.what, What::Compacted(_) | What::Refused(_)) {
                return Ok(Followed::Lost);
            }
            let header = Some(self.queues.identity().header(notice.revision));
            for event in events(&notice)? {
                let (EventType::Put, Some(kv)) = (event.r#type(), event.kv) else {
                    return Ok(Followed::Gone);
                };
                if !self.tell(header, kv).await {
                    return Ok(Followed::Lost);
                }
            }
        }
        Ok(Followed::Lost)
    }

    /// Whether the client still listens.
    async fn tell(&self, header: Option<ResponseHeader>, kv: KeyValue) -> bool {
        let answer = pb::LeaderResponse { header, kv: Some(kv) };
        self.answers.send(Ok(answer)).await.is_ok()
    }
}

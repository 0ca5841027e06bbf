//! The leader in use: connections to it, its write stream, and their replacement.
//!
//! An *epoch* is one write stream to one process, from the first write that it committed until it
//! ended. Within an epoch, everything was answered by the same leader. A server ends its write
//! streams when it stops leading, so a put that was committed on a stream proves that the process
//! led the shard all the way since the stream was opened (or led it again, with nobody else having
//! led it in between).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use leaseway_proto::oxia::{PutRequest, WriteRequest};
use prost::Message;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};

use super::address::Address;
use super::discovery::Discovery;
use super::error::{Error, Kind, WriteError};
use super::shard::Assignment;
use super::wire::{Dialect, Dialing, Wire};
use super::writer::{Pending, Writer};

/// Between attempts when none of the candidates leads.
const RETRY: Duration = Duration::from_millis(50);

/// Counts the leaders, connections and write streams that this client has had, from 1: it rises
/// whenever one of them changes. It means nothing outside of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// One epoch.
pub(super) struct Leader {
    pub epoch: Epoch,
    pub shard: i64,
    pub address: Address,
    /// For what is short, and single records, such as a checkpoint's segments: it must never wait behind a scan.
    pub control: Wire,
    /// For what is long: scans, lists and notifications, whose reader may be slow. A connection's
    /// flow control is shared by all calls on it.
    pub bulk: Wire,
    pub writer: Writer,
    /// Set once this leader has said that it doesn't know the call for it.
    no_sessions: AtomicBool,
}

impl Leader {
    /// Whether it's still the one to ask.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.writer.reason() {
            None => Ok(()),
            Some(error) => Err(Error::new(
                Kind::LeaderChanged,
                format!("oxia: the connection to the leader ended: {error}"),
            )),
        }
    }
}

impl Leader {
    /// Notes how a call went. A leader of which a part is lost is of no use: another epoch begins.
    pub(super) fn note(&self, error: Error) -> Error {
        if error.kind == Kind::Lost {
            self.writer.end(&error);
        }
        error
    }

    /// Whether it may know the proposed call for what is known of a session.
    pub(super) fn tells_sessions(&self) -> bool {
        !self.no_sessions.load(Ordering::Relaxed)
    }

    /// Remembers that it doesn't.
    pub(super) fn tells_no_sessions(&self) {
        self.no_sessions.store(true, Ordering::Relaxed);
    }
}

/// What it takes to become connected.
pub(super) struct Connecting {
    pub dialing: Arc<Dialing>,
    pub discovery: Arc<Discovery>,
    pub namespace: MetadataValue<Ascii>,
    pub partition_key: String,
    /// Where the puts go that only prove something.
    pub proof_key: String,
}

impl Connecting {
    /// A put without meaning.
    pub(super) fn proof(&self, shard: i64) -> (WriteRequest, usize) {
        let put = PutRequest {
            key: self.proof_key.clone(),
            value: Bytes::new(),
            partition_key: Some(self.partition_key.clone()),
            ..PutRequest::default()
        };
        let request =
            WriteRequest { shard: Some(shard), puts: vec![put], ..WriteRequest::default() };
        let bytes = request.encoded_len();
        (request, bytes)
    }

    /// Connects to a node and has it commit a write.
    async fn establish(&self, to: &Assignment, epoch: Epoch) -> Result<Leader, Error> {
        let dialect = self.discovery.dialect(&to.leader).unwrap_or(Dialect::V1);
        match self.establish_as(to, epoch, dialect).await {
            Err(error) if error.kind == Kind::Unimplemented => {
                self.establish_as(to, epoch, dialect.other()).await
            }
            done => done,
        }
    }

    async fn establish_as(
        &self,
        to: &Assignment,
        epoch: Epoch,
        dialect: Dialect,
    ) -> Result<Leader, Error> {
        let control = Wire::connect(&self.dialing, &to.leader, dialect).await?;
        let bulk = Wire::connect(&self.dialing, &to.leader, dialect).await?;
        let writer =
            Writer::open(control.clone(), self.namespace.clone(), to.shard, &self.dialing.vital);
        let leader = Leader {
            epoch,
            shard: to.shard,
            address: to.leader.clone(),
            control,
            bulk,
            writer,
            no_sessions: AtomicBool::new(false),
        };
        let committed = self.prove(&leader);
        match tokio::time::timeout(self.dialing.call_timeout, committed).await {
            Ok(Ok(())) => Ok(leader),
            Ok(Err(error)) => {
                leader.writer.end(&error);
                Err(error)
            }
            Err(_) => {
                let error = Error::timeout(&format!("write to {}", to.leader));
                leader.writer.end(&error);
                Err(error)
            }
        }
    }

    /// Hands a put to the leader, at once; resolves when it is committed.
    pub(super) fn prove(&self, leader: &Leader) -> impl Future<Output = Result<(), Error>> + use<> {
        let (request, bytes) = self.proof(leader.shard);
        let sent = leader.writer.send(request, bytes);
        async move {
            let response = match sent {
                Ok(pending) => answer(pending).await,
                Err(error) => Err(error),
            };
            match response {
                Ok(response) if response.puts.len() == 1 && response.puts[0].status == 0 => Ok(()),
                Ok(_) => Err(Error::new(Kind::Protocol, "oxia: a plain put was refused")),
                Err(WriteError::NotSent(error) | WriteError::Unknown(error)) => Err(error),
            }
        }
    }
}

/// Waits for an answer. A writer that vanished without a word leaves the outcome unknown.
pub(super) async fn answer(
    pending: Pending,
) -> Result<leaseway_proto::oxia::WriteResponse, WriteError> {
    pending.await.unwrap_or_else(|_| {
        Err(WriteError::Unknown(Error::new(Kind::Closed, "oxia: the client was closed")))
    })
}

/// The leader in use, if there is one, or why there is none.
pub(super) type Current = Result<Arc<Leader>, Error>;

/// Keeps a leader in use, until it's dropped.
pub(super) async fn supervise(connecting: Arc<Connecting>, current: watch::Sender<Current>) {
    let mut changes = connecting.discovery.changes();
    let mut next = Epoch(1);
    let mut leader: Option<Arc<Leader>> = None;
    loop {
        changes.borrow_and_update();
        let candidates = connecting.discovery.candidates();
        let replaced = match &leader {
            None => search(&connecting, &candidates, next, &current).await,
            // Only the newest opinion is worth a try while there is a leader that works.
            Some(leader) => match candidates.first() {
                Some(first) if first.leader != leader.address || first.shard != leader.shard => {
                    attempt_beside(&connecting, first, next, leader).await
                }
                _ => None,
            },
        };
        if let Some(new) = replaced {
            tracing::info!(leader = %new.address, shard = new.shard, epoch = new.epoch.0,
                dialect = ?new.control.dialect, "connected to the leader of the Oxia shard");
            let new = Arc::new(new);
            next = Epoch(next.0 + 1);
            let _ = current.send_replace(Ok(new.clone()));
            if let Some(old) = leader.replace(new) {
                let why = format!("oxia: the shard is led by another node than {}", old.address);
                old.writer.end(&Error::new(Kind::LeaderChanged, why));
            }
        }
        match &leader {
            None => {
                // Something new, or simply the next round.
                let _ = tokio::time::timeout(RETRY, changes.changed()).await;
            }
            Some(in_use) => {
                tokio::select! {
                    _ = changes.changed() => {}
                    () = in_use.writer.ended() => {
                        let error = in_use.writer.reason().unwrap_or_else(no_leader);
                        tracing::info!(leader = %in_use.address, epoch = in_use.epoch.0, %error,
                            "lost the leader of the Oxia shard");
                        let _ = current.send_replace(Err(Error::new(Kind::NoLeader, error.detail)));
                        leader = None;
                    }
                }
            }
        }
    }
}

pub(super) fn no_leader() -> Error {
    Error::new(Kind::NoLeader, "oxia: the leader of the shard isn't known yet")
}

/// Tries one candidate after the other, and begins again as soon as a better one is heard of.
async fn search(
    connecting: &Connecting,
    candidates: &[Assignment],
    epoch: Epoch,
    current: &watch::Sender<Current>,
) -> Option<Leader> {
    let mut error = connecting.discovery.error();
    for candidate in candidates {
        tokio::select! {
            result = connecting.establish(candidate, epoch) => match result {
                Ok(leader) => return Some(leader),
                Err(failed) => error = Some(failed),
            },
            () = better(&connecting.discovery, candidates) => return None,
        }
    }
    if let Some(error) = error {
        let news = current.borrow().as_ref().err().is_none_or(|old| old.detail != error.detail);
        if news {
            tracing::warn!(%error, "no leader of the Oxia shard");
        }
        // The kind tells a caller what to do; causes that won't pass by themselves keep theirs.
        let kind = match error.kind {
            Kind::NamespaceNotFound | Kind::Unauthenticated | Kind::Protocol => error.kind,
            _ => Kind::NoLeader,
        };
        let _ = current.send_replace(Err(Error::new(kind, error.detail)));
    }
    None
}

/// Tries another node while the one in use goes on; gives up when that one ends.
async fn attempt_beside(
    connecting: &Connecting,
    candidate: &Assignment,
    epoch: Epoch,
    in_use: &Leader,
) -> Option<Leader> {
    tokio::select! {
        result = connecting.establish(candidate, epoch) => match result {
            Ok(leader) => Some(leader),
            Err(error) => {
                tracing::debug!(node = %candidate.leader, %error, "said to lead the shard");
                None
            }
        },
        () = in_use.writer.ended() => None,
        () = better(&connecting.discovery, std::slice::from_ref(candidate)) => None,
    }
}

/// Returns when the most likely leader isn't among those that are being tried.
async fn better(discovery: &Discovery, tried: &[Assignment]) {
    let mut changes = discovery.changes();
    loop {
        let first = discovery.candidates().into_iter().next();
        if first.is_some_and(|first| tried.first() != Some(&first)) {
            return;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

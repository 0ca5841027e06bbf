//! A client of one shard of an Oxia cluster: the shard that a partition key belongs to.
//!
//! It owns the connections, the search for the shard's leader, and the form of every request; what
//! is in the records, and what to do about a failed call, is its users' affair.
//!
//! - [`Client::write`] sends to the leader's one write stream, in the order of the calls, and says of
//!   a failure whether the write may have happened ([`WriteError`]).
//! - [`Client::get`], [`Client::list`] and [`Client::range_scan`] read; each says which leader
//!   answered. [`Client::read_tip_with_proof`] is what linearizability can be built on.
//! - [`Client::create_session`] and what follows: sessions, which nothing here renews by itself.
//! - [`Client::sequence_updates`] and [`Client::notifications`] tell of changes.
//!
//! No call waits for a leader: where there is none, it fails at once with [`Kind::NoLeader`], a write
//! as [`WriteError::NotSent`]. [`Client::wait_for_leader`] waits.
//!
//! # What is never sent
//! Some requests are accepted by a server and then keep the shard from ever having a leader again:
//! entries above 64 MiB, appends with a wrong step or without partition key, range deletes that touch
//! the server's own records. [`WriteBatch`] and [`KeyRange`] have no way to say these. Others stop
//! older servers: more than 1,000 requests in flight and write streams that aren't read; there is one
//! stream, read by a task of its own, with at most 100 in flight.
//!
//! Deliberately absent: retries of writes, timers that renew sessions, any opinion on keys beyond the
//! above, and more than one shard.

mod address;
mod batch;
mod discovery;
mod error;
mod key;
mod leader;
mod reads;
mod sessions;
mod shard;
mod streams;
mod tls;
mod token;
mod wire;
mod writer;

pub use address::Address;
pub use batch::{
    Expect, OPERATIONS_MAX, RECORD_BYTES_MAX, REQUEST_BYTES_MAX, Refusal, Version, WriteBatch,
    WriteResults, Written,
};
pub use error::{Error, Kind, WriteError};
pub use key::{KeyRange, sequence_key, sequence_number};
pub use leader::Epoch;
pub use reads::{At, Comparison, Keys, Record, Records};
pub use sessions::SessionInfo;
pub use streams::{Event, Hint, Notice, Notifications, SequenceUpdates};
pub use tls::Tls;
pub use token::Token;
pub use wire::{Connecting, Dialect, Io, Tcp, Transport};
pub use writer::{IN_FLIGHT_MAX, QUEUED_BYTES_MAX, QUEUED_MAX};

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::vital::Vital;
use prost::Message;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::metadata::{Ascii, MetadataValue};

use discovery::Discovery;
use leader::{Current, Leader};
use wire::Dialing;

/// What a client needs to know.
pub struct Config {
    /// Nodes to begin with, at least one. All are listened to, all the time.
    pub seeds: Vec<Address>,
    /// The namespace; `default` in a cluster that has no other.
    pub namespace: String,
    /// What decides on the shard, and goes with every record.
    pub partition_key: String,
    /// The key of a record without meaning, which is put to prove that a leader leads. Any number
    /// of clients may share it.
    pub proof_key: String,
    /// Sent to the nodes as the name they were called by, in place of their addresses.
    pub authority: Option<String>,
    /// Sent with every call, as `authorization: Bearer …`.
    pub token: Option<Token>,
    /// How nodes are reached: [`Tcp`], or [`Tls`].
    pub transport: Box<dyn Transport>,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long a single answer may take: of a call, or the next part of a longer one. It doesn't
    /// bound a write, whose caller can't learn anything by giving up.
    pub call_timeout: Duration,
    /// Told if a part of the client panics, which would not find or hear a leader any more.
    pub vital: Vital,
}

impl Config {
    /// A configuration without credentials, with 1 s to connect and 5 s for an answer.
    pub fn new(
        seeds: Vec<Address>,
        namespace: impl Into<String>,
        partition_key: impl Into<String>,
        proof_key: impl Into<String>,
    ) -> Config {
        Config {
            seeds,
            namespace: namespace.into(),
            partition_key: partition_key.into(),
            proof_key: proof_key.into(),
            authority: None,
            token: None,
            transport: Box::new(Tcp),
            connect_timeout: Duration::from_secs(1),
            call_timeout: Duration::from_secs(5),
            vital: Vital::default(),
        }
    }
}

/// The newest record of a sequence at some moment after the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Its number; 0 when there is none.
    pub sequence: u64,
    /// The leader that proved it.
    pub epoch: Epoch,
}

/// A client of one shard. Cheap to share behind an [`Arc`]; everything ends when it's dropped.
pub struct Client {
    current: watch::Receiver<Current>,
    connecting: Arc<leader::Connecting>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if let Ok(leader) = &*self.current.borrow() {
            leader.writer.end(&Error::new(Kind::Closed, "oxia: the client was closed"));
        }
    }
}

impl Client {
    /// Starts looking for the leader, and waits for it for a bounded time.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a configuration that can't work; otherwise why there was no leader in
    /// time, after which the client is gone. See [`Client::start`] for going on without one.
    pub async fn connect(config: Config, patience: Duration) -> Result<Client, Error> {
        let client = Client::start(config)?;
        client.wait_for_leader(patience).await?;
        Ok(client)
    }

    /// Starts looking for the leader. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a configuration that can't work.
    pub fn start(config: Config) -> Result<Client, Error> {
        let invalid = |what: &str| Error::new(Kind::Invalid, format!("oxia: {what}"));
        if config.seeds.is_empty() {
            return Err(invalid("no address of a node is configured"));
        }
        key::check_put(&config.proof_key)?;
        let namespace = metadata(&config.namespace).filter(|_| !config.namespace.is_empty());
        let namespace = namespace.ok_or_else(|| invalid("no valid namespace"))?;
        let discovery = Discovery::new(config.namespace, config.partition_key.clone());
        let dialing = Arc::new(Dialing {
            transport: config.transport,
            authority: config.authority,
            token: config.token,
            connect_timeout: config.connect_timeout,
            call_timeout: config.call_timeout,
            vital: config.vital.clone(),
        });
        let connecting = Arc::new(leader::Connecting {
            dialing: dialing.clone(),
            discovery: discovery.clone(),
            namespace,
            partition_key: config.partition_key,
            proof_key: config.proof_key,
        });
        let (publish, current) = watch::channel(Err(leader::no_leader()));
        let tasks = vec![
            config
                .vital
                .spawn("what listens to Oxia's nodes", discovery.run(dialing, config.seeds)),
            config.vital.spawn(
                "what keeps in touch with the Oxia shard's leader",
                leader::supervise(connecting.clone(), publish),
            ),
        ];
        Ok(Client { current, connecting, tasks })
    }

    /// The leader in use.
    fn leader(&self) -> Result<Arc<Leader>, Error> {
        let leader = self.current.borrow().clone()?;
        // The stream may have ended a moment before that was noticed.
        match leader.writer.reason() {
            None => Ok(leader),
            Some(error) => Err(Error::new(Kind::NoLeader, error.detail)),
        }
    }

    /// The leader in use, if it is that of an epoch.
    fn leader_of(&self, epoch: Epoch) -> Result<Arc<Leader>, Error> {
        let leader = self.leader()?;
        if leader.epoch == epoch {
            return Ok(leader);
        }
        Err(Error::new(Kind::LeaderChanged, "oxia: the leader of the shard changed"))
    }

    /// The epoch of the leader in use, if there is one.
    pub fn epoch(&self) -> Option<Epoch> {
        self.leader().ok().map(|leader| leader.epoch)
    }

    /// The leader in use: where it is, which shard it leads, and which name of the contract it knows.
    pub fn leader_address(&self) -> Option<(Address, i64, Dialect)> {
        let leader = self.leader().ok()?;
        Some((leader.address.clone(), leader.shard, leader.control.dialect))
    }

    /// Waits until there is a leader.
    ///
    /// # Errors
    /// Why there was none in time.
    pub async fn wait_for_leader(&self, patience: Duration) -> Result<Epoch, Error> {
        self.wait(patience, |_| true).await
    }

    /// Waits until there is a leader of an epoch above this one.
    ///
    /// # Errors
    /// Why there was none in time.
    pub async fn wait_for_leader_after(
        &self,
        epoch: Epoch,
        patience: Duration,
    ) -> Result<Epoch, Error> {
        self.wait(patience, |found| found > epoch).await
    }

    async fn wait(
        &self,
        patience: Duration,
        wanted: impl Fn(Epoch) -> bool + Send,
    ) -> Result<Epoch, Error> {
        let mut current = self.current.clone();
        let good = |current: &Current| match current {
            Ok(leader) => wanted(leader.epoch) && leader.writer.reason().is_none(),
            Err(_) => false,
        };
        let waited = match tokio::time::timeout(patience, current.wait_for(good)).await {
            Ok(Ok(leader)) => leader.as_ref().map(|leader| leader.epoch).map_err(Error::clone),
            Ok(Err(_)) => Err(Error::new(Kind::Closed, "oxia: the client was closed")),
            Err(_) => Err(Error::timeout("find the leader of the shard")),
        };
        match waited {
            // The reason, where there is one.
            Err(error) if error.kind == Kind::Timeout => Err(match &*self.current.borrow() {
                Err(reason) => reason.clone(),
                Ok(_) => error,
            }),
            waited => waited,
        }
    }

    /// Sends a batch to the leader of the moment. Batches are sent in the order of these calls (not
    /// of their first polls); one that wasn't sent when the leader changes never will be. Dropping
    /// the future takes a batch back only as long as it hasn't been sent.
    ///
    /// # Errors
    /// [`WriteError::NotSent`]: surely not applied, whatever its kind. [`WriteError::Unknown`]: it
    /// may have been applied, or may still be.
    pub fn write(
        &self,
        batch: WriteBatch,
    ) -> impl Future<Output = Result<WriteResults, WriteError>> + Send + use<> {
        finish(
            self.leader().map_err(WriteError::NotSent).and_then(|leader| self.send(leader, batch)),
        )
    }

    /// As [`Client::write`], to the leader of this epoch only.
    ///
    /// # Errors
    /// As [`Client::write`]; [`Kind::LeaderChanged`], not sent, when the epoch is over.
    pub fn write_in(
        &self,
        epoch: Epoch,
        batch: WriteBatch,
    ) -> impl Future<Output = Result<WriteResults, WriteError>> + Send + use<> {
        let leader = self.leader_of(epoch).map_err(WriteError::NotSent);
        finish(leader.and_then(|leader| self.send(leader, batch)))
    }

    fn send(&self, leader: Arc<Leader>, batch: WriteBatch) -> Result<Sent, WriteError> {
        let (request, shape) = batch
            .into_request(leader.shard, &self.connecting.partition_key)
            .map_err(WriteError::NotSent)?;
        let bytes = request.encoded_len();
        let pending = leader.writer.send(request, bytes)?;
        Ok((leader, shape, pending))
    }

    /// Appends one record to a sequence: [`WriteBatch::append`] alone. Returns its number.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn append(
        &self,
        prefix: &str,
        value: bytes::Bytes,
    ) -> impl Future<Output = Result<At<u64>, WriteError>> + Send + use<> {
        let mut batch = WriteBatch::new();
        batch.append(prefix, value);
        let write = self.write(batch);
        async move {
            let results = write.await?;
            match results.puts.as_slice() {
                [Ok(written)] => Ok(At { epoch: results.epoch, value: written.sequence }),
                // An append demands nothing that could be refused.
                _ => Err(WriteError::Unknown(Error::new(
                    Kind::Protocol,
                    "oxia: an append was refused",
                ))),
            }
        }
    }
}

/// A batch that was handed to a leader.
type Sent = (Arc<Leader>, batch::Shape, writer::Pending);

async fn finish(sent: Result<Sent, WriteError>) -> Result<WriteResults, WriteError> {
    let (leader, shape, pending) = sent?;
    let response = leader::answer(pending).await?;
    shape.results(leader.epoch, response).map_err(|error| {
        // Answers and requests no longer match: no later answer would mean anything.
        leader.writer.end(&error);
        WriteError::Unknown(error)
    })
}

fn metadata(text: &str) -> Option<MetadataValue<Ascii>> {
    text.parse().ok()
}

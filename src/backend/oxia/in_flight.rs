//! What this gateway has appended, or is about to, and who waits for it.
//!
//! A batch is noted before it is appended and leaves when its fate is known: applied (its callers
//! are answered), or dead (its commands may be proposed again, under a new number).

use crate::keyspace::command::{Command, Outcome};
use crate::keyspace::gateways::GatewayId;
use leaseway_proto::log::Entry;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Who waits for a command.
pub type Answer = oneshot::Sender<Outcome>;

/// A batch of commands with those who wait for them, in the same order.
#[derive(Debug)]
pub struct Batch {
    /// The entry as it was appended.
    pub entry: Arc<Entry>,
    /// One for each command.
    pub answers: Vec<Answer>,
}

impl Batch {
    /// The commands that somebody still waits for.
    pub fn wanted(self) -> impl Iterator<Item = (Command, Answer)> {
        let entry = self.entry;
        let answers = self.answers.into_iter().enumerate();
        answers
            .filter(|(_, answer)| !answer.is_closed())
            .filter_map(move |(at, answer)| Some((entry.commands.get(at)?.clone(), answer)))
    }
}

/// An entry under an own id that this process did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

#[derive(Debug, Default)]
struct Inner {
    // Every id that this process ever had, with its nonce.
    own: BTreeMap<GatewayId, u64>,
    batches: BTreeMap<(GatewayId, u64), Batch>,
    closed: bool,
}

/// All of them.
#[derive(Debug)]
pub struct InFlight {
    inner: Mutex<Inner>,
    dead: mpsc::UnboundedSender<Batch>,
}

fn key(entry: &Entry) -> Option<(GatewayId, u64)> {
    Some((entry.gateway[..].try_into().ok()?, entry.last_number))
}

impl InFlight {
    /// Nothing yet. Batches that turn out dead are sent to `dead`.
    pub fn new(dead: mpsc::UnboundedSender<Batch>) -> Self {
        Self { inner: Mutex::default(), dead }
    }

    /// Notes an id of this process.
    pub fn own(&self, gateway: GatewayId, nonce: u64) {
        self.inner.lock().own.insert(gateway, nonce);
    }

    /// Notes a batch before it is appended. Once applying has stopped it is dropped, and its callers
    /// learn that there will be no answer.
    pub fn note(&self, batch: Batch) {
        let mut inner = self.inner.lock();
        if let Some(key) = key(&batch.entry).filter(|_| !inner.closed) {
            inner.batches.insert(key, batch);
        }
    }

    /// Takes out who waits for an entry of the log.
    ///
    /// # Errors
    /// The entry bears an own id and was not written here.
    pub fn take(&self, entry: &Entry) -> Result<Option<Batch>, Forged> {
        let Some(key) = key(entry) else { return Ok(None) };
        let mut inner = self.inner.lock();
        match inner.own.get(&key.0) {
            None => Ok(None),
            Some(nonce) if *nonce == entry.nonce => Ok(inner.batches.remove(&key)),
            Some(_) => Err(Forged),
        }
    }

    /// Hands a batch that will never be applied back to whoever proposes.
    pub fn bury(&self, batch: Batch) {
        // Nobody proposes any more: its callers see their answers dropped.
        let _ = self.dead.send(batch);
    }

    /// Drops everything: nothing will be applied any more.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.batches.clear();
    }
}

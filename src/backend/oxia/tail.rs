//! Follows the log: hands its entries to the apply thread, in order and without a gap.
//!
//! An entry that this gateway appended comes from memory once the entries before it are there; all
//! others are read. Hints say that there is something to read, and so do barriers; hints may come early
//! or not at all, so the log is also looked at every [`POLL`].

use super::apply::Ordered;
use super::shard::{Record, Shard, ShardError};
use crate::backend::Halt;
use leaseway_proto::log::Entry;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How often the log is looked at without a hint.
const POLL: Duration = Duration::from_millis(250);
/// Pause before a read that found nothing where a hint said something is, and after a failed one.
const AGAIN: Duration = Duration::from_millis(2);
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// Entries asked for at once.
const READ: usize = 1000;

/// Why the log can't be followed any further.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Entries are missing that were not applied here.
    #[error(
        "the log begins at entry {found}, but entry {wanted} has not been applied here; \
         a newer checkpoint holds what it did"
    )]
    Gap {
        /// What should have come next.
        wanted: u64,
        /// What came.
        found: u64,
    },
    /// An entry that is none.
    #[error("log entry {position} can't be read: {error}")]
    Damaged {
        /// Where.
        position: u64,
        /// Why.
        error: String,
    },
    /// The apply thread has stopped.
    #[error("applying has stopped")]
    Stopped,
}

impl From<Lost> for Halt {
    fn from(lost: Lost) -> Self {
        let trimmed_below = match lost {
            Lost::Gap { found, .. } => Some(found),
            Lost::Damaged { .. } | Lost::Stopped => None,
        };
        Self { reason: lost.to_string(), trimmed_below }
    }
}

/// Follows the log from one position on.
pub struct Tail<S> {
    shard: Arc<S>,
    next: u64,
    // Appended here, waiting for what comes before.
    ahead: BTreeMap<u64, Arc<Entry>>,
    landed: mpsc::Receiver<Ordered>,
    hints: watch::Receiver<u64>,
    proved: watch::Receiver<u64>,
    out: mpsc::Sender<Ordered>,
}

impl<S: Shard> Tail<S> {
    /// Goes on after position `applied`. Own entries arrive on `landed`; `proved` is how far barriers
    /// have proved the log to reach.
    pub fn new(
        shard: Arc<S>,
        applied: u64,
        proved: watch::Receiver<u64>,
        landed: mpsc::Receiver<Ordered>,
        out: mpsc::Sender<Ordered>,
    ) -> Self {
        let hints = shard.hints();
        Self { shard, next: applied + 1, ahead: BTreeMap::new(), landed, hints, proved, out }
    }

    /// Follows until that is no longer possible.
    pub async fn run(mut self) -> Lost {
        match self.follow().await {
            Ok(never) => match never {},
            Err(lost) => lost,
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, Lost> {
        let mut look_at = Instant::now();
        loop {
            let reach = (*self.hints.borrow_and_update()).max(*self.proved.borrow_and_update());
            let hinted = reach >= self.next;
            if hinted || !self.ahead.is_empty() || Instant::now() >= look_at {
                look_at = Instant::now() + self.look(hinted).await?;
            }
            tokio::select! {
                biased;
                own = self.landed.recv() => match own {
                    Some(own) => self.own(own).await?,
                    None => return Err(Lost::Stopped),
                },
                changed = self.hints.changed() => {
                    if changed.is_err() {
                        tokio::time::sleep_until(look_at).await;
                    }
                }
                changed = self.proved.changed() => {
                    if changed.is_err() {
                        return Err(Lost::Stopped);
                    }
                }
                () = tokio::time::sleep_until(look_at) => {}
            }
        }
    }

    /// Reads what there is; returns when to look again if nothing calls for it before.
    async fn look(&mut self, hinted: bool) -> Result<Duration, Lost> {
        let records = match self.shard.read(self.next, READ).await {
            Ok(records) => records,
            Err(error) => {
                self.report(&error);
                return Ok(AFTER_FAILURE);
            }
        };
        let found = !records.is_empty();
        for record in records {
            self.read(record).await?;
        }
        self.drain().await?;
        Ok(match (found, hinted) {
            (true, _) => Duration::ZERO,
            (false, true) => AGAIN,
            (false, false) => POLL,
        })
    }

    fn report(&self, error: &ShardError) {
        tracing::debug!(%error, next = self.next, "cannot read the log");
    }

    async fn read(&mut self, record: Record) -> Result<(), Lost> {
        let position = record.position;
        if position < self.next {
            return Ok(());
        }
        if position > self.next {
            return Err(Lost::Gap { wanted: self.next, found: position });
        }
        let entry = match self.ahead.remove(&position) {
            Some(own) => own,
            None => Arc::new(
                Entry::decode(record.value)
                    .map_err(|error| Lost::Damaged { position, error: error.to_string() })?,
            ),
        };
        self.hand_on(Ordered { position, entry }).await
    }

    async fn own(&mut self, own: Ordered) -> Result<(), Lost> {
        if own.position >= self.next {
            self.ahead.insert(own.position, own.entry);
            self.drain().await?;
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<(), Lost> {
        while let Some(entry) = self.ahead.remove(&self.next) {
            self.hand_on(Ordered { position: self.next, entry }).await?;
        }
        Ok(())
    }

    async fn hand_on(&mut self, ordered: Ordered) -> Result<(), Lost> {
        self.next = ordered.position + 1;
        self.out.send(ordered).await.map_err(|_| Lost::Stopped)
    }
}

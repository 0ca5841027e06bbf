//! Follows the log: hands its entries to the apply thread, in order and without a gap.
//!
//! An entry that this gateway appended comes from memory once the entries before it are there; all
//! others are read. Hints say that there is something to read, and so do barriers; hints may come early
//! or not at all, so the log is also looked at every [`POLL`].

use super::apply::Ordered;
use super::backlog::Entries;
use super::outage::Outage;
use super::shard::{Record, Shard, ShardError};
use crate::backend::Halt;
use leaseway_proto::log::Entry;
use prost::Message;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
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
    out: Entries,
    // Whether there will be any more hints.
    hinted: bool,
    outage: Outage,
}

/// Records on their way.
type Reading = Pin<Box<dyn Future<Output = Result<Vec<Record>, ShardError>> + Send>>;

impl<S: Shard> Tail<S> {
    /// Goes on after position `applied`. Own entries arrive on `landed`; `proved` is how far barriers
    /// have proved the log to reach.
    pub fn new(
        shard: Arc<S>,
        applied: u64,
        proved: watch::Receiver<u64>,
        landed: mpsc::Receiver<Ordered>,
        out: Entries,
    ) -> Self {
        let hints = shard.hints();
        Self {
            shard,
            next: applied + 1,
            ahead: BTreeMap::new(),
            landed,
            hints,
            proved,
            out,
            hinted: true,
            outage: Outage::default(),
        }
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
        let mut reading: Option<Reading> = None;
        loop {
            if reading.is_none() && Instant::now() >= look_at {
                let (shard, next) = (self.shard.clone(), self.next);
                reading = Some(Box::pin(async move { shard.read(next, READ).await }));
            }
            let read = async {
                match &mut reading {
                    Some(reading) => reading.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                own = self.landed.recv() => {
                    self.own(own.ok_or(Lost::Stopped)?).await?;
                    // What lies between is to be read.
                    if !self.ahead.is_empty() {
                        look_at = Instant::now();
                    }
                }
                read = read => {
                    reading = None;
                    let pause = self.take(read).await?;
                    look_at = Instant::now() + pause;
                }
                changed = self.hints.changed(), if self.hinted => match changed {
                    Ok(()) => look_at = self.called(look_at),
                    Err(_) => self.hinted = false,
                },
                changed = self.proved.changed() => {
                    changed.map_err(|_| Lost::Stopped)?;
                    look_at = self.called(look_at);
                }
                () = tokio::time::sleep_until(look_at), if look_at > Instant::now() => {}
            }
        }
    }

    /// Whether something is said to be there that has not been handed on.
    fn more_is_known(&self) -> bool {
        let reach = (*self.hints.borrow()).max(*self.proved.borrow());
        reach >= self.next || !self.ahead.is_empty()
    }

    /// When to look, after word of more.
    fn called(&self, look_at: Instant) -> Instant {
        if self.more_is_known() { Instant::now() } else { look_at }
    }

    /// Hands on what was read; returns when to look again if nothing calls for it before.
    async fn take(&mut self, read: Result<Vec<Record>, ShardError>) -> Result<Duration, Lost> {
        let records = match read {
            Ok(records) => records,
            Err(error) => {
                self.outage.failed("what others write does not arrive", &error);
                return Ok(AFTER_FAILURE);
            }
        };
        self.outage.over();
        let count = records.len();
        for record in records {
            self.read(record).await?;
        }
        self.drain().await?;
        Ok(match (count, self.more_is_known()) {
            (0, true) => AGAIN,
            (0 | 1, false) => POLL,
            // Also after several of which nobody has told: there may be more than one read gives.
            (_, _) => Duration::ZERO,
        })
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

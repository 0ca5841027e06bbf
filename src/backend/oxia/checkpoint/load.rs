//! Loads the newest checkpoint into an empty store.

use super::begin::{POSITION, implied_head};
use super::format::{FORMAT, Unpacker, fingerprint, gateways, unseal};
use super::pin::Pin;
use super::write::{WriteError, read_head};
use crate::backend::oxia::names::Names;
use crate::backend::oxia::outage::Outage;
use crate::backend::oxia::shard::{Record, Shard, ShardError};
use crate::keyspace::gateways::MAX_FEATURE_LEVEL;
use crate::storage::tables::meta;
use crate::storage::{Batch, Durability, Engine, StorageError};
use bytes::Bytes;
use leaseway_proto::log::{CheckpointHead, CheckpointManifest};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Segments asked for ahead.
const AHEAD: usize = 16;
/// Bytes of segments in one commit.
const COMMIT: usize = 8 << 20;
/// Pause before something is asked for again.
const AGAIN: Duration = Duration::from_millis(100);
/// How often the same checkpoint may be found incomplete, or the same gap behind it.
const PATIENCE: u32 = 20;
/// How often the log tells of progress.
const TELL: Duration = Duration::from_secs(2);

/// Why there is nothing to begin with.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// What is there does not fit together, or this version can't read it.
    #[error("{0}")]
    Refused(String),
    /// The local store failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// What became of one attempt.
enum Attempt {
    Loaded,
    /// Something that the head leads to is not there: it may have moved.
    Missing(String),
}

/// Loads from one shard.
pub struct Loader<'a, S> {
    /// Where from.
    pub shard: &'a Arc<S>,
    /// Names of the keyspace.
    pub names: &'a Names,
    /// Keeps what is needed.
    pub pin: &'a Pin<S>,
    /// Told how many bytes have been loaded, and of how many.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

impl<S: Shard> Loader<'_, S> {
    /// Loads the newest checkpoint, if there is one, into a store that `make` makes: an empty one for
    /// each attempt. The log goes on where it ends. Waits for the shard as long as that takes.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub async fn load(
        &self,
        make: impl Fn() -> Result<Arc<dyn Engine>, StorageError>,
    ) -> Result<Arc<dyn Engine>, LoadError> {
        let (mut last, mut attempts) = (None, 0);
        loop {
            let mut head = self.head().await?;
            let first = if head.is_none() { self.record(POSITION).await } else { None };
            // A keyspace that began with an import, and has no later checkpoint.
            head = head.or_else(|| first.as_ref().and_then(implied_head));
            attempts = if head == last { attempts + 1 } else { 1 };
            let engine = make()?;
            let attempt = match &head {
                None => without(first.as_ref()),
                Some(head) => self.try_load(head, &*engine).await?,
            };
            match attempt {
                Attempt::Loaded => return Ok(engine),
                Attempt::Missing(what) if attempts < PATIENCE => {
                    tracing::info!(what, "loading again");
                }
                Attempt::Missing(what) => return Err(LoadError::Refused(what)),
            }
            last = head;
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn head(&self) -> Result<Option<CheckpointHead>, LoadError> {
        let read = || async {
            match read_head(&**self.shard, self.names).await {
                Err(WriteError::Shard(error)) => Err(error),
                told => Ok(told),
            }
        };
        let told = patiently("the head of the checkpoints", read).await;
        Ok(told.map_err(refused)?.map(|(head, _)| head))
    }

    async fn try_load(
        &self,
        head: &CheckpointHead,
        engine: &dyn Engine,
    ) -> Result<Attempt, LoadError> {
        known(head.format)?;
        self.pin.move_to(head.position).await;
        let folder = &head.folder;
        let missing =
            |part: &str| Attempt::Missing(format!("{part} of checkpoint {folder} is missing"));
        let Some(manifest) = fetch(self.shard, self.names.manifest(folder)).await else {
            return Ok(missing("the manifest"));
        };
        let manifest: CheckpointManifest = unseal(manifest).map_err(refused)?;
        check(head, &manifest)?;
        // Before the work as well as after it, when the head may have moved.
        if let Some(missing) = self.behind(head, &manifest).await? {
            return Ok(missing);
        }
        if !self.fill(head, &manifest, engine).await? {
            return Ok(missing("a segment"));
        }
        check_loaded(&manifest, engine)?;
        Ok(self.behind(head, &manifest).await?.unwrap_or(Attempt::Loaded))
    }

    /// What is wrong with the log behind a checkpoint, if anything is.
    async fn behind(
        &self,
        head: &CheckpointHead,
        manifest: &CheckpointManifest,
    ) -> Result<Option<Attempt>, LoadError> {
        let (position, folder) = (head.position, &head.folder);
        let Some(record) = self.record(position).await else {
            return Ok(Some(Attempt::Missing(format!(
                "the log ends before entry {position}, which checkpoint {folder} was made at: \
                 it has been lost"
            ))));
        };
        if record.position != position {
            return Ok(Some(Attempt::Missing(format!(
                "the log begins at entry {}, the newest checkpoint ends at {position}",
                record.position
            ))));
        }
        if fingerprint(&record.value) != manifest.record {
            return Err(LoadError::Refused(format!(
                "log entry {position} is not the one that checkpoint {folder} was made at: \
                 the log is another keyspace's"
            )));
        }
        Ok(None)
    }

    /// Commits all segments; returns whether all of them were there.
    async fn fill(
        &self,
        head: &CheckpointHead,
        manifest: &CheckpointManifest,
        engine: &dyn Engine,
    ) -> Result<bool, LoadError> {
        let mut segments = Segments::new(self.shard, self.names, &head.folder, manifest.segments);
        let mut unpacker = Unpacker::default();
        let (mut batch, mut waiting, mut loaded) = (Batch::default(), 0, 0);
        (self.progress)(0, manifest.bytes);
        let mut rate = Rate::start();
        while let Some(segment) = segments.next().await {
            let Some(segment) = segment else { return Ok(false) };
            waiting += segment.len();
            loaded += segment.len() as u64;
            unpacker.add(segment, &mut batch).map_err(refused)?;
            if waiting >= COMMIT {
                engine.commit(&std::mem::take(&mut batch), Durability::Begun)?;
                waiting = 0;
            }
            (self.progress)(loaded, manifest.bytes);
            self.pin.progress().made();
            rate.tell("loading a checkpoint", loaded, manifest.bytes);
        }
        engine.commit(&batch, Durability::Immediate)?;
        if unpacker.finish().map_err(refused)?.all() != manifest.tallies {
            return Err(LoadError::Refused(format!(
                "checkpoint {} does not hold what its manifest says",
                head.folder
            )));
        }
        Ok(true)
    }

    /// The first log record at or behind a position.
    async fn record(&self, position: u64) -> Option<Record> {
        let read = || async { self.shard.read(position, 1).await };
        patiently("the log", read).await.into_iter().next()
    }
}

/// Without a checkpoint the log must be there from its beginning.
fn without(first: Option<&Record>) -> Attempt {
    match first.map(|record| record.position) {
        None | Some(POSITION) => Attempt::Loaded,
        Some(first) => {
            Attempt::Missing(format!("the log begins at entry {first}, without a checkpoint"))
        }
    }
}

fn refused(error: impl ToString) -> LoadError {
    LoadError::Refused(error.to_string())
}

fn known(format: u32) -> Result<(), LoadError> {
    if format == FORMAT {
        return Ok(());
    }
    Err(refused(format!("checkpoints of format {format} are not known to this version")))
}

fn check(head: &CheckpointHead, manifest: &CheckpointManifest) -> Result<(), LoadError> {
    known(manifest.format)?;
    if manifest.feature_level > MAX_FEATURE_LEVEL {
        return Err(refused(format!(
            "the keyspace is at feature level {}; this version follows up to {MAX_FEATURE_LEVEL}",
            manifest.feature_level
        )));
    }
    if (manifest.position, &manifest.incarnation) != (head.position, &head.incarnation) {
        return Err(refused(format!("checkpoint {} is another keyspace's", head.folder)));
    }
    Ok(())
}

/// Whether the store holds the state that the manifest speaks of.
fn check_loaded(manifest: &CheckpointManifest, engine: &dyn Engine) -> Result<(), LoadError> {
    let snapshot = engine.snapshot()?;
    let state = meta::state(&*snapshot)?;
    let gateways = gateways(&*snapshot)?;
    let incarnation = gateways.founded.map(|founded| founded.incarnation);
    let same = (state.position, state.revision) == (manifest.position, manifest.revision)
        && incarnation.is_some_and(|incarnation| incarnation[..] == manifest.incarnation[..])
        && gateways.feature_level == manifest.feature_level;
    if same { Ok(()) } else { Err(refused("a checkpoint holds another state than it says")) }
}

/// Segments in order, asked for ahead of time.
struct Segments<'a, S> {
    shard: &'a Arc<S>,
    names: &'a Names,
    folder: &'a str,
    count: u32,
    asked: u32,
    coming: VecDeque<JoinHandle<Option<Bytes>>>,
}

impl<S> Drop for Segments<'_, S> {
    fn drop(&mut self) {
        for task in &self.coming {
            task.abort();
        }
    }
}

impl<'a, S: Shard> Segments<'a, S> {
    fn new(shard: &'a Arc<S>, names: &'a Names, folder: &'a str, count: u32) -> Self {
        Self { shard, names, folder, count, asked: 0, coming: VecDeque::new() }
    }

    /// The next one, `Some(None)` if it is missing; `None` after the last.
    async fn next(&mut self) -> Option<Option<Bytes>> {
        while self.asked < self.count && self.coming.len() < AHEAD {
            let (shard, name) = (self.shard.clone(), self.names.segment(self.folder, self.asked));
            self.coming.push_back(tokio::spawn(async move { fetch(&shard, name).await }));
            self.asked += 1;
        }
        let next = self.coming.pop_front()?;
        // A task that failed has brought nothing.
        Some(next.await.ok().flatten())
    }
}

async fn fetch<S: Shard>(shard: &Arc<S>, name: String) -> Option<Bytes> {
    let get = || async { shard.get(&name).await };
    patiently(&name, get).await.map(|found| found.value)
}

/// Asks until there is an answer.
async fn patiently<T, F: Future<Output = Result<T, ShardError>>>(
    what: &str,
    ask: impl Fn() -> F,
) -> T {
    let mut outage = Outage::default();
    loop {
        match ask().await {
            Ok(answer) => {
                outage.over();
                return answer;
            }
            Err(error) => outage.failed(&format!("{what} can't be read"), &error),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Tells of progress in the log, every so often.
pub struct Rate {
    begun: Instant,
    next: Instant,
}

impl Rate {
    /// Begins now.
    pub fn start() -> Self {
        let begun = Instant::now();
        Self { begun, next: begun + TELL }
    }

    /// Tells how far it has come, if it is time to.
    pub fn tell(&mut self, what: &str, done: u64, total: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + TELL;
        let per_s = done as f64 / (now - self.begun).as_secs_f64();
        let percent = done.saturating_mul(100) / total.max(1);
        tracing::info!(percent, done, total, per_s = per_s as u64, "{what}");
    }
}

//! Makes one checkpoint and moves the head to it.

use super::format::{FORMAT, Packer, fingerprint, gateways, seal, unseal};
use crate::backend::oxia::names::Names;
use crate::backend::oxia::shard::{Expected, Shard, ShardError};
use crate::seams;
use crate::storage::tables::meta;
use crate::storage::{Snapshot, StorageError};
use bytes::Bytes;
use leaseway_proto::log::{CheckpointHead, CheckpointManifest};
use std::time::Duration;
use tokio::time::Instant;

/// Attempts at one write before the checkpoint is given up.
pub(super) const ATTEMPTS: u32 = 50;
/// Pause between them.
pub(super) const AGAIN: Duration = Duration::from_millis(200);
/// Segments after which is looked whether somebody was faster.
const LOOK: u32 = 16;
/// A write that took longer than this is followed by a look: who knows what happened meanwhile.
const SLOW: Duration = Duration::from_secs(2);
/// The longest pause between two segments.
const PAUSE: Duration = Duration::from_secs(1);

/// Why there is no new checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody made one of the same or a later position.
    #[error("somebody else made a later checkpoint")]
    Overtaken,
    /// The shard could not be written to for too long.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The local store failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The local state, the log and the head don't belong together.
    #[error("{0}")]
    Foreign(String),
}

/// The head, if there is one, and its version.
///
/// # Errors
/// The shard did not answer, or the record is damaged.
pub async fn read_head<S: Shard>(
    shard: &S,
    names: &Names,
) -> Result<Option<(CheckpointHead, i64)>, WriteError> {
    let Some(found) = shard.get(&names.head()).await? else { return Ok(None) };
    let head: CheckpointHead =
        unseal(found.value).map_err(|damaged| WriteError::Foreign(damaged.to_string()))?;
    Ok(Some((head, found.version)))
}

/// Makes checkpoints of one shard.
pub struct Writer<'a, S> {
    /// Where to.
    pub shard: &'a S,
    /// Names of the keyspace.
    pub names: &'a Names,
    /// How far this gateway has applied the log by now: while that moves, every segment is followed
    /// by a pause half as long as it took, so that a third of the time belongs to the log alone.
    pub applied: &'a (dyn Fn() -> u64 + Sync),
}

/// Asks until there is an answer, for a while.
pub(super) async fn tried<T, F>(ask: impl Fn() -> F) -> Result<T, ShardError>
where
    F: Future<Output = Result<T, ShardError>>,
{
    let mut attempt = 1;
    loop {
        match ask().await {
            Err(error @ (ShardError::NotSent(_) | ShardError::Unknown(_)))
                if attempt < ATTEMPTS =>
            {
                tracing::debug!(%error, "a step of a checkpoint is tried again");
            }
            answer => return answer,
        }
        attempt += 1;
        tokio::time::sleep(AGAIN).await;
    }
}

impl<S: Shard> Writer<'_, S> {
    /// Makes a checkpoint of a snapshot, of a log that begins somewhere at or before the snapshot's
    /// position, and moves the head to it.
    ///
    /// # Errors
    /// See [`WriteError`]. What was written so far is deleted, now or by a later checkpoint.
    pub async fn write(&self, snapshot: &dyn Snapshot) -> Result<CheckpointHead, WriteError> {
        let state = meta::state(snapshot)?;
        let gateways = gateways(snapshot)?;
        let Some(founded) = gateways.founded else {
            return Err(WriteError::Foreign("the keyspace has not been founded".into()));
        };
        let mut head = CheckpointHead {
            format: FORMAT,
            folder: format!("{:020}.{:016x}", state.position, seams::random::<u64>()),
            position: state.position,
            incarnation: Bytes::copy_from_slice(&founded.incarnation),
            log_bytes: gateways.log_bytes,
            bytes: 0,
        };
        self.look(&head).await?;
        let record = self.shard.read(state.position, 1).await?;
        let record = match record.first() {
            Some(record) if record.position == state.position => fingerprint(&record.value),
            // Trimmed, so there is a later checkpoint; or the log is another one.
            _ => return Err(WriteError::Overtaken),
        };
        self.announce(&head).await?;
        match self.fill(snapshot, &mut head, record, &|_| {}).await {
            Ok(()) => {}
            Err(error) => {
                self.discard(&head).await;
                return Err(error);
            }
        }
        match self.move_head(&head).await {
            Ok(()) => Ok(head),
            Err(WriteError::Overtaken) => {
                self.discard(&head).await;
                Err(WriteError::Overtaken)
            }
            // The head may have moved, or may still: then all of it is needed.
            Err(error) => Err(error),
        }
    }

    /// Says that a folder may exist.
    pub(super) async fn announce(&self, head: &CheckpointHead) -> Result<(), WriteError> {
        self.put(self.names.checkpoint(&head.folder), Bytes::new()).await
    }

    /// Writes segments and manifest of a checkpoint at the log record with the fingerprint `record`. `told`
    /// hears how many bytes are written.
    pub(super) async fn fill(
        &self,
        snapshot: &dyn Snapshot,
        head: &mut CheckpointHead,
        record: u64,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), WriteError> {
        let (state, gateways) = (meta::state(snapshot)?, gateways(snapshot)?);
        let mut packer = Packer::default();
        let (mut applied, mut written) = ((self.applied)(), 0);
        loop {
            let number = packer.segments();
            let Some(segment) = packer.next(snapshot)? else { break };
            let (begun, length) = (Instant::now(), segment.len() as u64);
            self.put(self.names.segment(&head.folder, number), segment).await?;
            let took = begun.elapsed();
            written += length;
            told(written);
            if took > SLOW || (number + 1).is_multiple_of(LOOK) {
                self.look(head).await?;
            }
            let now = (self.applied)();
            if std::mem::replace(&mut applied, now) != now {
                tokio::time::sleep((took / 2).min(PAUSE)).await;
            }
        }
        head.bytes = packer.tallies().bytes();
        let manifest = CheckpointManifest {
            format: FORMAT,
            position: head.position,
            revision: state.revision,
            incarnation: head.incarnation.clone(),
            feature_level: gateways.feature_level,
            segments: packer.segments(),
            bytes: head.bytes,
            record,
            tallies: packer.tallies().all(),
        };
        self.put(self.names.manifest(&head.folder), seal(&manifest)).await
    }

    /// Looks whether the head is still behind `head`.
    async fn look(&self, head: &CheckpointHead) -> Result<Option<i64>, WriteError> {
        match read_head(self.shard, self.names).await? {
            None => Ok(None),
            Some((there, _)) if there.incarnation != head.incarnation => {
                Err(WriteError::Foreign("the head is that of another keyspace".into()))
            }
            Some((there, _)) if there.position >= head.position => Err(WriteError::Overtaken),
            Some((_, version)) => Ok(Some(version)),
        }
    }

    /// Writes a record that nobody else writes: again, as long as there is no answer.
    async fn put(&self, name: String, value: Bytes) -> Result<(), WriteError> {
        tried(|| self.shard.put(name.clone(), value.clone(), Expected::Anything)).await?;
        Ok(())
    }

    async fn move_head(&self, head: &CheckpointHead) -> Result<(), WriteError> {
        let mut last = ShardError::NotSent("not tried".into());
        for _ in 0..ATTEMPTS {
            match self.try_to_move_head(head).await {
                Ok(true) => return Ok(()),
                // Somebody else moved it at the same time.
                Ok(false) => continue,
                Err(WriteError::Shard(
                    error @ (ShardError::NotSent(_) | ShardError::Unknown(_)),
                )) => last = error,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(AGAIN).await;
        }
        Err(last.into())
    }

    async fn try_to_move_head(&self, head: &CheckpointHead) -> Result<bool, WriteError> {
        // An earlier attempt may have succeeded without a word.
        if let Some((there, _)) = read_head(self.shard, self.names).await?
            && there.folder == head.folder
        {
            return Ok(true);
        }
        let expected = match self.look(head).await? {
            None => Expected::Absent,
            Some(version) => Expected::Version(version),
        };
        Ok(self.shard.put(self.names.head(), seal(head), expected).await?)
    }

    /// Deletes what can't become the head any more. What fails here is done by a later checkpoint.
    pub(super) async fn discard(&self, head: &CheckpointHead) {
        let deleted = async {
            self.shard.delete_folder(&self.names.segments(&head.folder)).await?;
            self.shard.delete(self.names.checkpoint(&head.folder)).await
        };
        if let Err(error) = deleted.await {
            tracing::info!(%error, folder = head.folder, "cannot delete an unfinished checkpoint yet");
        }
    }
}

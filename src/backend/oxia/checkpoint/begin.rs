//! A keyspace that begins with a checkpoint: that of what was imported.
//!
//! The checkpoint is written first, and counts for nothing. Then the entry that founds the keyspace is
//! appended, with the checkpoint's folder in it. If it becomes the log's first record, the keyspace begins
//! with the checkpoint, for everyone at once; if not, it is somebody else's and the import has failed.
//! There is nothing in between, whenever whoever imports dies. Until there is another checkpoint, the first
//! record stands for the head.

use super::format::{FORMAT, fingerprint};
use super::write::{AGAIN, ATTEMPTS, WriteError, Writer, read_head, tried};
use crate::backend::oxia::shard::{Record, Shard, ShardError, Tip};
use crate::seams;
use crate::storage::Snapshot;
use bytes::Bytes;
use leaseway_proto::log::{CheckpointHead, Entry, Found, entry::Control};
use prost::Message;

/// The position of the entry that founds a keyspace, and of a checkpoint that it begins with.
pub const POSITION: u64 = 1;

/// Why a keyspace does not begin with an import.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// Somebody has begun it before.
    #[error("it is not empty; give one that is, or another name")]
    NotEmpty,
    /// Somebody began it while it was being written.
    #[error("a gateway or another import has begun it meanwhile; give another name")]
    Overtaken,
    /// There was no answer to the last step, so that it may have been done, or may still be.
    #[error(
        "the cluster did not answer to the last step ({0}): the keyspace has now everything or nothing of \
         the import; import again, and if it is not empty then, it has everything"
    )]
    Undecided(ShardError),
    /// The checkpoint could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<ShardError> for BeginError {
    fn from(error: ShardError) -> Self {
        Self::Write(error.into())
    }
}

/// An entry that founds a keyspace with a checkpoint that is still to be made.
pub fn founding() -> (Entry, Found) {
    let found = Found {
        incarnation: Bytes::copy_from_slice(&seams::random::<[u8; 16]>()),
        cluster_id: seams::random::<u64>().max(1),
        checkpoint: format!("{POSITION:020}.{:016x}", seams::random::<u64>()),
    };
    let gateway = Bytes::copy_from_slice(&seams::random::<[u8; 16]>());
    let control = Some(Control::Found(found.clone()));
    (Entry { gateway, control, ..Entry::default() }, found)
}

/// Folder and incarnation of the checkpoint that an entry founds a keyspace with, if it does.
pub fn checkpoint_of(entry: &Entry) -> Option<&Found> {
    match &entry.control {
        Some(Control::Found(found)) if !found.checkpoint.is_empty() => Some(found),
        _ => None,
    }
}

/// The head that a log's first record stands for, while there is no other.
pub fn implied_head(record: &Record) -> Option<CheckpointHead> {
    let entry = Entry::decode(record.value.clone()).ok()?;
    let found = checkpoint_of(&entry).filter(|_| record.position == POSITION)?;
    Some(CheckpointHead {
        format: FORMAT,
        folder: found.checkpoint.clone(),
        position: POSITION,
        incarnation: found.incarnation.clone(),
        log_bytes: record.value.len() as u64,
        bytes: 0,
    })
}

/// What became of an append.
enum Landed {
    First,
    Behind,
    Nowhere,
}

impl<S: Shard> Writer<'_, S> {
    /// Begins an empty keyspace with a snapshot, which must be as of [`POSITION`] and hold the gateways that
    /// there are after `entry`. `told` hears how many bytes are written.
    ///
    /// # Errors
    /// See [`BeginError`]. The keyspace is as it was then, except for [`BeginError::Undecided`].
    pub async fn begin(
        &self,
        snapshot: &dyn Snapshot,
        entry: &Entry,
        told: &(dyn Fn(u64) + Sync),
    ) -> Result<(), BeginError> {
        let value = Bytes::from(entry.encode_to_vec());
        let record = Record { position: POSITION, value };
        let Some(mut head) = implied_head(&record) else {
            return Err(WriteError::Foreign("an entry that founds nothing".into()).into());
        };
        let tip = tried(|| self.shard.proven_tip()).await?;
        if tip.position != 0 || read_head(self.shard, self.names).await?.is_some() {
            return Err(BeginError::NotEmpty);
        }
        // Of imports that did not come to their end, or will not if this one does.
        let folders = self.names.checkpoints();
        let others = tried(|| self.shard.names(&folders)).await?;
        self.announce(&head).await?;
        let print = fingerprint(&record.value);
        if let Err(error) = self.fill(snapshot, &mut head, print, told).await {
            self.discard(&head).await;
            return Err(error.into());
        }
        match self.append_first(&record).await {
            Ok(true) => {
                self.discard_segments(&others).await;
                Ok(())
            }
            Ok(false) => {
                self.discard(&head).await;
                Err(BeginError::Overtaken)
            }
            // The record may be on its way still, and all of it is needed then.
            Err(error) => Err(BeginError::Undecided(error)),
        }
    }

    /// Appends a record until it is known whether the log begins with it. One that lands again, after
    /// an attempt whose answer was lost, has no effect: of what founds a keyspace the first counts.
    async fn append_first(&self, record: &Record) -> Result<bool, ShardError> {
        let mut last = ShardError::NotSent("not tried".into());
        for _ in 0..ATTEMPTS {
            let attempt = async {
                match self.shard.append(record.value.clone()).await {
                    Ok(Tip { position: POSITION, .. }) => return Ok(Landed::First),
                    Ok(_) | Err(ShardError::Unknown(_) | ShardError::NotSent(_)) => {}
                    Err(error) => return Err(error),
                }
                self.landed(record).await
            };
            match attempt.await {
                Ok(Landed::First) => return Ok(true),
                Ok(Landed::Behind) => return Ok(false),
                Ok(Landed::Nowhere) => last = ShardError::Unknown("the log is still empty".into()),
                Err(error @ (ShardError::NotSent(_) | ShardError::Unknown(_))) => last = error,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(AGAIN).await;
        }
        Err(last)
    }

    async fn landed(&self, record: &Record) -> Result<Landed, ShardError> {
        if self.shard.proven_tip().await?.position == 0 {
            return Ok(Landed::Nowhere);
        }
        Ok(match self.shard.read(POSITION, 1).await?.first() {
            Some(first) if first == record => Landed::First,
            // It may have been trimmed already, behind a later checkpoint of the same keyspace.
            Some(first) if first.position > POSITION && self.is_ours(record).await? => {
                Landed::First
            }
            Some(_) => Landed::Behind,
            // The one who answered does not lead any more.
            None => Landed::Nowhere,
        })
    }

    async fn is_ours(&self, record: &Record) -> Result<bool, ShardError> {
        let ours = implied_head(record).map(|head| head.incarnation);
        match read_head(self.shard, self.names).await {
            Ok(head) => Ok(ours.is_some() && head.map(|(head, _)| head.incarnation) == ours),
            Err(WriteError::Shard(error)) => Err(error),
            Err(error) => Err(ShardError::Unknown(error.to_string())),
        }
    }

    /// Deletes what is in other folders. The records that tell of them stay until there is a checkpoint, in case
    /// somebody still writes there.
    async fn discard_segments(&self, others: &[String]) {
        for (folder, _) in others.iter().filter_map(|name| self.names.checkpoint_of(name)) {
            if let Err(error) = self.shard.delete_folder(&self.names.segments(folder)).await {
                tracing::info!(%error, folder, "cannot delete what an earlier import left");
            }
        }
    }
}

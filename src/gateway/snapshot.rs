//! Snapshots of the whole keyspace, sent as etcd's database file.
//!
//! The file is written to disk first, from one storage snapshot, and sent from there: however slow a
//! client reads, the store is not held up by it, and no more than a few pieces of the file are in memory. A
//! part of the disk is left free for the log ([`room`]).

mod room;

use super::error::Error;
use super::told::{self, Asker};
use crate::backend::in_time;
use crate::config::ETCD_CLUSTER_VERSION;
use crate::keyspace::reader::Reader;
use crate::storage::tables::meta;
use crate::storage::{Engine, StorageError};
use crate::transfer::export::{self, ExportError, Origin};
use crate::transfer::temporary;
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use ring::digest::{Context, SHA256};
use room::{Space, Sparing};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Bytes of the file in one answer, as etcd sends them.
const PIECE: usize = 32 * 1024;
/// Bytes that are read at a time.
const READ: usize = 8 * PIECE;
/// Answers that wait for the client.
const AHEAD: usize = 4;
/// Files that are written at a time, each with a thread and a storage snapshot.
const WRITING: usize = 2;

/// The stream of answers.
pub type Answers = ReceiverStream<Result<pb::SnapshotResponse, Status>>;

/// Makes snapshots.
pub struct Snapshots {
    engine: Arc<dyn Engine>,
    reader: Reader,
    origin: Origin,
    folder: PathBuf,
    writing: Arc<Semaphore>,
}

impl Snapshots {
    /// Of a store that is read through `reader`, by a member, with files in `folder` while they are sent.
    pub fn new(engine: Arc<dyn Engine>, reader: Reader, member_id: u64, folder: PathBuf) -> Self {
        let origin = Origin { member_id, storage_version: ETCD_CLUSTER_VERSION };
        Self { engine, reader, origin, folder, writing: Arc::new(Semaphore::new(WRITING)) }
    }

    /// The file piece by piece, and its checksum as the last one.
    ///
    /// # Errors
    /// The file can't be written.
    pub async fn send(&self, asker: &Asker) -> Result<Answers, Status> {
        let permit = self.writing.clone().acquire_owned().await;
        let permit = permit.map_err(|error| Status::unavailable(error.to_string()))?;
        let (engine, folder, origin) = (self.engine.clone(), self.folder.clone(), self.origin);
        let (answers, stream) = mpsc::channel(AHEAD);
        let written = tokio::task::spawn_blocking(move || {
            let written = write(&*engine, &folder, origin);
            drop(permit);
            written
        });
        let written = written.await.map_err(|error| Status::internal(error.to_string()))?;
        let (file, length, position) = written.map_err(|error| {
            tracing::error!(%error, "cannot make a snapshot");
            refused(&error)
        })?;
        // The store may be ahead of the log. Nobody is told what is not durable.
        in_time(self.reader.view().durable(position)).await.map_err(Error::from)?;
        told::snapshot(length, asker);
        tokio::spawn(async move {
            match pass_on(file, length, &answers).await {
                Ok(true) => tracing::info!(bytes = length, "sent a snapshot"),
                Ok(false) => tracing::info!("nobody waits for the snapshot any more"),
                Err(error) => {
                    tracing::error!(%error, "cannot read a snapshot");
                    let _ = answers.send(Err(Status::unknown(error.to_string()))).await;
                }
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// Writes a file; returns it, its length, and the commit that must be durable before it is sent.
fn write(
    engine: &dyn Engine,
    folder: &Path,
    origin: Origin,
) -> Result<(File, u64, u64), ExportError> {
    let file = temporary::file(folder).map_err(|error| {
        let what = format!("cannot make a file in {}: {error}", folder.display());
        std::io::Error::new(error.kind(), what)
    })?;
    let snapshot = engine.snapshot()?;
    let state = meta::state(&*snapshot)?;
    let (file, length) = export::write(&*snapshot, origin, Sparing::new(file, Space::around))?;
    Ok((file.into_inner(), length, state.position))
}

/// Why there is no snapshot, as a client is told.
fn refused(error: &ExportError) -> Status {
    match error {
        ExportError::Storage(StorageError::Closed(_)) => Error::Stopped.into(),
        ExportError::Io(full) if full.kind() == io::ErrorKind::StorageFull => {
            Status::resource_exhausted(format!("no room for a snapshot: {full}"))
        }
        error => Status::unknown(error.to_string()),
    }
}

/// Hands the file to a client. Returns whether it took all of it.
async fn pass_on(
    file: File,
    length: u64,
    answers: &mpsc::Sender<Result<pb::SnapshotResponse, Status>>,
) -> io::Result<bool> {
    let send = |remaining_bytes, blob| {
        let version = ETCD_CLUSTER_VERSION.into();
        answers.send(Ok(pb::SnapshotResponse { header: None, remaining_bytes, blob, version }))
    };
    let file = Arc::new(file);
    let mut context = Context::new(&SHA256);
    let mut at = 0;
    while at < length {
        let bytes = usize::try_from(length - at).map_or(READ, |left| left.min(READ));
        let from = file.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut read = vec![0; bytes];
            from.read_exact_at(&mut read, at).map(|()| Bytes::from(read))
        });
        let mut read = read.await.map_err(io::Error::other)??;
        context.update(&read);
        while !read.is_empty() {
            let piece = read.split_to(read.len().min(PIECE));
            at += piece.len() as u64;
            if send(length - at, piece).await.is_err() {
                return Ok(false);
            }
        }
    }
    let checksum = Bytes::copy_from_slice(context.finish().as_ref());
    Ok(send(0, checksum).await.is_ok())
}

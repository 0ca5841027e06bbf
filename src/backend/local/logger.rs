//! Writes groups to the log on a thread of its own, while the apply thread commits them to the store.
//!
//! Neither has to wait for the other: the store's commit is not durable by itself, and whoever makes the
//! store durable does so between two groups. So whatever of the two is cut off, a start finds a store that
//! is behind the log.

use super::wal::Wal;
use crate::storage::{Batch, Durability, Engine, StorageError};
use leaseway_proto::log::Entry;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Changes of the store from which on its commit takes longer than waking a thread up.
const CHANGES: usize = 8;
/// Bytes of changes likewise.
const BYTES: usize = 16 << 10;

/// The log and its thread. The thread ends when this is dropped.
pub struct Logger {
    wal: Arc<Mutex<Wal>>,
    entries: SyncSender<Entry>,
    written: Receiver<(Result<(), StorageError>, Duration)>,
}

impl Logger {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(wal: Wal) -> std::io::Result<Self> {
        let wal = Arc::new(Mutex::new(wal));
        let (entries, work) = sync_channel::<Entry>(1);
        let (tell, written) = sync_channel(1);
        let appending = wal.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || {
            while let Ok(entry) = work.recv() {
                if tell.send(append(&appending, &entry)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { wal, entries, written })
    }

    /// The log, between two groups.
    pub fn with<T>(&self, work: impl FnOnce(&mut Wal) -> T) -> T {
        work(&mut self.wal.lock())
    }

    /// Makes a group durable in the log and commits it to the store; returns how long the log took. When this
    /// fails, it may be in either.
    ///
    /// # Errors
    /// Storage errors.
    pub fn log_and_commit(
        &self,
        entry: Entry,
        engine: &dyn Engine,
        batch: &Batch,
    ) -> Result<Duration, StorageError> {
        if !is_large(batch) {
            let (result, took) = append(&self.wal, &entry);
            result?;
            engine.commit(batch, Durability::Deferred)?;
            return Ok(took);
        }
        let ended = || StorageError::Closed("the log's thread has ended".into());
        self.entries.send(entry).map_err(|_| ended())?;
        let committed = engine.commit(batch, Durability::Deferred);
        let (logged, took) = self.written.recv().map_err(|_| ended())?;
        logged?;
        committed?;
        Ok(took)
    }
}

fn append(wal: &Mutex<Wal>, entry: &Entry) -> (Result<(), StorageError>, Duration) {
    let started = Instant::now();
    let result = wal.lock().append(entry);
    (result, started.elapsed())
}

fn is_large(batch: &Batch) -> bool {
    let bytes = || {
        let values = batch.changes.iter().filter_map(|change| change.value.as_ref());
        values.map(|value| value.len()).sum::<usize>()
    };
    batch.changes.len() >= CHANGES || bytes() >= BYTES
}

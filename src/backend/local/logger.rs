//! Writes groups to the log on a thread of its own, while the apply thread commits them to the store and
//! applies the commands of the next group.
//!
//! Neither has to wait for the other: the store's commit is not durable by itself, and whoever makes the
//! store durable does so when no group is on its way. So whatever of the two is cut off, a start finds a
//! store that is behind the log.

use super::wal::Wal;
use crate::storage::{Batch, StorageError};
use leaseway_proto::log::Entry;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Changes of the store from which on its commit takes longer than waking a thread up.
const CHANGES: usize = 8;
/// Bytes of changes likewise.
const BYTES: usize = 16 << 10;

/// How long the log took with a group.
type Logged = Result<Duration, StorageError>;

/// The log and its thread. The thread ends when this is dropped.
pub struct Logger {
    wal: Arc<Mutex<Wal>>,
    entries: SyncSender<Entry>,
    written: Receiver<Logged>,
}

impl Logger {
    /// Starts the thread. It calls `done` after each group that it has written, and at its end.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(wal: Wal, done: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let wal = Arc::new(Mutex::new(wal));
        let (entries, work) = sync_channel::<Entry>(1);
        let (tell, written) = sync_channel(1);
        let appending = wal.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || {
            // Also when it panics, for whoever waits for a group then. The sender goes first.
            let done = CallOnDrop(done);
            let tell = tell;
            while let Ok(entry) = work.recv() {
                if tell.send(append(&appending, &entry)).is_err() {
                    return;
                }
                (done.0)();
            }
        })?;
        Ok(Self { wal, entries, written })
    }

    /// The log, between two groups.
    pub fn with<T>(&self, work: impl FnOnce(&mut Wal) -> T) -> T {
        work(&mut self.wal.lock())
    }

    /// Makes a small group durable in the log at once, and returns how long that took. A larger one is given
    /// to the thread, and has to be waited for before the next.
    ///
    /// # Errors
    /// Storage errors, after which it is not known whether the group is in the log.
    pub fn log(&self, entry: Entry, batch: &Batch) -> Result<Option<Duration>, StorageError> {
        if !is_large(batch) {
            return append(&self.wal, &entry).map(Some);
        }
        self.entries.send(entry).map_err(|_| ended())?;
        Ok(None)
    }

    /// Waits until the thread has made its group durable, and returns how long that took.
    ///
    /// # Errors
    /// As [`Logger::log`].
    pub fn wait(&self) -> Logged {
        self.written.recv().map_err(|_| ended())?
    }

    /// The same, if the thread has done so already.
    ///
    /// # Errors
    /// As [`Logger::log`].
    pub fn try_wait(&self) -> Result<Option<Duration>, StorageError> {
        match self.written.try_recv() {
            Ok(logged) => logged.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ended()),
        }
    }
}

struct CallOnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for CallOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn ended() -> StorageError {
    StorageError::Closed("the log's thread has ended".into())
}

fn append(wal: &Mutex<Wal>, entry: &Entry) -> Logged {
    let started = Instant::now();
    wal.lock().append(entry)?;
    Ok(started.elapsed())
}

fn is_large(batch: &Batch) -> bool {
    let bytes = || {
        let values = batch.changes.iter().filter_map(|change| change.value.as_ref());
        values.map(|value| value.len()).sum::<usize>()
    };
    batch.changes.len() >= CHANGES || bytes() >= BYTES
}

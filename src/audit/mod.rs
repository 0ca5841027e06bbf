//! The audit log: who asked for what, and what came of it, one line of JSON each.
//!
//! Lines are made where requests are answered ([`line`]) and put into a bounded queue, from which a
//! thread of its own writes them ([`writer`]). A line is in the queue before its client is answered.
//! When the queue is full, because the disk is slow or full, requests wait for room, but not for
//! ever: after [`PATIENCE`] lines are lost, and counted, until something can be written again.
//! Deliberately absent: values, passwords and tokens, which no line ever has.

pub mod line;
mod writer;

use crate::config::{AuditConfig, AuditLevel};
use crate::telemetry::Metrics;
use crate::vital::Vital;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Notify;
use writer::Output;

/// Bytes of lines that wait to be written; a line that is longer than this waits alone.
const QUEUE_BYTES: usize = 4 << 20;
/// How long a request waits for room in a full queue.
pub const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Queue {
    /// Whole lines, each with its end.
    bytes: Vec<u8>,
    /// Somebody has waited for room in vain, and nothing has been written since.
    stalled: bool,
    /// The file is to be opened anew.
    reopen: bool,
    closed: bool,
}

/// What requests and the writer share.
struct Shared {
    queue: Mutex<Queue>,
    added: Condvar,
    room: Notify,
    capacity: usize,
    patience: Duration,
    metrics: Arc<Metrics>,
}

impl Shared {
    /// Puts a line into the queue, or gives it back if there is no room.
    fn offer(&self, line: String) -> Option<String> {
        let mut queue = self.queue.lock();
        let full = !queue.bytes.is_empty() && queue.bytes.len() + line.len() > self.capacity;
        if full && !queue.stalled && !queue.closed {
            return Some(line);
        }
        if full || queue.closed {
            drop(queue);
            self.metrics.audit.lost_total.inc();
            return None;
        }
        queue.bytes.extend_from_slice(line.as_bytes());
        drop(queue);
        self.added.notify_one();
        self.metrics.audit.lines_total.inc();
        None
    }

    /// Nobody can wait any longer: the line is lost, and those that come next are not waited for.
    fn give_up(&self) {
        self.queue.lock().stalled = true;
        self.metrics.audit.lost_total.inc();
    }
}

/// A line that waits for room. If its request is dropped meanwhile, it is lost, and counted.
struct Waiting<'a> {
    shared: &'a Shared,
    line: Option<String>,
}

impl Waiting<'_> {
    async fn room(&mut self) {
        while let Some(line) = self.line.take() {
            // Made before looking: room that is made from now on wakes it.
            let room = self.shared.room.notified();
            self.line = self.shared.offer(line);
            if self.line.is_some() {
                room.await;
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.line.is_some() {
            self.shared.metrics.audit.lost_total.inc();
        }
    }
}

/// The audit log of a server.
pub struct AuditLog {
    shared: Arc<Shared>,
    level: AuditLevel,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Opens the log and starts its thread, whose panic `vital` is told of.
    ///
    /// # Errors
    /// A file that cannot be opened, with its name; no thread can be started.
    pub fn open(config: &AuditConfig, metrics: Arc<Metrics>, vital: &Vital) -> io::Result<Self> {
        let output = Output::open(&config.output)?;
        Self::start(output, config.level, metrics, vital, (QUEUE_BYTES, PATIENCE))
    }

    fn start(
        output: Output,
        level: AuditLevel,
        metrics: Arc<Metrics>,
        vital: &Vital,
        (capacity, patience): (usize, Duration),
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            added: Condvar::new(),
            room: Notify::new(),
            capacity,
            patience,
            metrics,
        });
        let for_thread = shared.clone();
        let builder = std::thread::Builder::new().name("audit-log".into());
        let watched = vital.guard("the audit log");
        let thread = builder.spawn(move || {
            let _watched = watched;
            writer::run(&for_thread, output);
        })?;
        Ok(Self { shared, level, thread: Mutex::new(Some(thread)) })
    }

    /// Whether a request that only reads gets a line, and not only if it is refused.
    pub fn wants_reads(&self) -> bool {
        self.level == AuditLevel::All
    }

    /// Queues a line, which must end with its only line feed. Waits for room if there is none.
    pub async fn write(&self, line: String) {
        let Some(line) = self.shared.offer(line) else { return };
        let mut waiting = Waiting { shared: &self.shared, line: Some(line) };
        if tokio::time::timeout(self.shared.patience, waiting.room()).await.is_err() {
            waiting.line = None;
            self.shared.give_up();
        }
    }

    /// The same where nobody can wait: without room the line is lost, and counted.
    pub fn write_now(&self, line: String) {
        if self.shared.offer(line).is_some() {
            self.shared.metrics.audit.lost_total.inc();
        }
    }

    /// Opens the file again by its name, as after it was renamed. Renaming is also noticed by itself
    /// with the next line.
    pub fn reopen(&self) {
        self.shared.queue.lock().reopen = true;
        self.shared.added.notify_one();
    }

    /// Writes what is queued and ends the thread. Blocks; what cannot be written at once is lost.
    pub fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.added.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the audit log's thread had panicked");
        }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.added.notify_one();
    }
}

#[cfg(test)]
mod tests;

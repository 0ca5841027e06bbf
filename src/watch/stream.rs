//! The requesting half of a stream.

use super::hub::{Closed, Command, Shared, StreamId};
use super::registry::CreateWatcher;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests of one stream that may be on their way to an answer that the client has not read. More
/// wait, so that a client which asks and never reads is not served for ever.
const REQUESTS_MAX: usize = 16;

/// Sends requests to the hub, in order. Each method waits while too many answers are unread.
pub struct StreamControl {
    stream: StreamId,
    shared: Arc<Shared>,
    requests: Arc<Semaphore>,
}

impl StreamControl {
    pub(super) fn new(stream: StreamId, shared: Arc<Shared>) -> Self {
        Self { stream, shared, requests: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }

    /// Creates a watcher; answered by `Created` or `Refused`.
    pub async fn create(&self, watcher: CreateWatcher) -> Result<(), Closed> {
        let permit = self.permit().await?;
        self.shared.command(Command::Create(self.stream, watcher, permit));
        Ok(())
    }

    /// Answers `Refused` to a request for a watcher.
    pub async fn refuse(&self, reason: &'static str) -> Result<(), Closed> {
        let permit = self.permit().await?;
        self.shared.command(Command::Refuse(self.stream, reason, permit));
        Ok(())
    }

    /// Ends a watcher; answered by `Canceled`, or not at all when there is none.
    pub async fn cancel(&self, watch_id: i64) -> Result<(), Closed> {
        let permit = self.permit().await?;
        self.shared.command(Command::Cancel(self.stream, watch_id, permit));
        Ok(())
    }

    /// Asks for progress; answered by `Progress` for watcher -1, or not at all, as etcd does, when
    /// a watcher of the stream is behind or starts in the future.
    pub async fn progress(&self) -> Result<(), Closed> {
        let permit = self.permit().await?;
        self.shared.command(Command::Progress(self.stream, permit));
        Ok(())
    }

    /// Time for periodic progress of those watchers that asked for it.
    pub fn tick(&self) {
        self.shared.command(Command::Tick(self.stream));
    }

    /// Ends the stream: the answering half ends without what it has not yet sent.
    pub fn close(&self) {
        self.shared.command(Command::Close(self.stream));
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, Closed> {
        self.requests.clone().acquire_owned().await.map_err(|_| Closed)
    }
}

//! Entries that wait to be applied: a queue that is bounded in number and in bytes.
//!
//! While a gateway catches up, the log is read faster than it is applied, and an entry may be a megabyte. Whoever
//! reads ahead waits, until what was read has been applied.

use super::apply::Ordered;
use prost::Message;
use std::sync::Arc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Entries that may wait.
const ENTRIES: usize = 256;
/// Encoded bytes that may wait or be applied, unless a single entry is larger.
const BYTES: u32 = 32 << 20;

/// An entry on its way; it counts until it is dropped.
#[derive(Debug)]
pub struct Waiting {
    /// The entry.
    pub ordered: Ordered,
    /// Its encoded bytes.
    pub bytes: usize,
    _room: Option<OwnedSemaphorePermit>,
}

/// Where entries are put in.
#[derive(Clone, Debug)]
pub struct Entries {
    queue: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
    most: u32,
}

/// Nobody takes entries any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// Makes a queue.
pub fn queue() -> (Entries, Backlog) {
    bounded(ENTRIES, BYTES)
}

fn bounded(entries: usize, most: u32) -> (Entries, Backlog) {
    let (sender, queue) = mpsc::channel(entries);
    let room = Arc::new(Semaphore::new(most as usize));
    (Entries { queue: sender, room, most }, Backlog { queue })
}

impl Entries {
    /// Hands an entry on, once there is room for it. What is larger than the bound goes alone.
    ///
    /// # Errors
    /// See [`Ended`].
    pub async fn send(&self, ordered: Ordered) -> Result<(), Ended> {
        let bytes = ordered.entry.encoded_len();
        let counted = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.most);
        // The queue first: its end is noticed while waiting for it, and gives all room back.
        let place = self.queue.reserve().await.map_err(|_| Ended)?;
        // It fails only if the semaphore is closed, which nobody does.
        let room = self.room.clone().acquire_many_owned(counted).await.ok();
        place.send(Waiting { ordered, bytes, _room: room });
        Ok(())
    }
}

/// Where they are taken out.
#[derive(Debug)]
pub struct Backlog {
    queue: mpsc::Receiver<Waiting>,
}

impl Backlog {
    /// The next one; none at the end.
    pub async fn recv(&mut self) -> Option<Waiting> {
        self.queue.recv().await
    }

    /// The same for a thread.
    pub fn blocking_recv(&mut self) -> Option<Waiting> {
        self.queue.blocking_recv()
    }

    /// The next one if it is there.
    ///
    /// # Errors
    /// There is none now, or ever.
    pub fn try_recv(&mut self) -> Result<Waiting, TryRecvError> {
        self.queue.try_recv()
    }

    /// Takes no more.
    pub fn close(&mut self) {
        self.queue.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::log::Entry;
    use std::time::Duration;

    fn entry(position: u64, bytes: usize) -> Ordered {
        let entry = Entry { gateway: vec![0; bytes].into(), ..Entry::default() };
        Ordered { position, entry: Arc::new(entry) }
    }

    /// Whether it is let in at once.
    async fn fits(entries: &Entries, ordered: Ordered) -> bool {
        tokio::time::timeout(Duration::from_secs(1), entries.send(ordered)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_count_until_they_are_applied() {
        let (entries, mut backlog) = bounded(16, 1_000);
        assert!(fits(&entries, entry(1, 600)).await);
        assert!(fits(&entries, entry(2, 300)).await);
        assert!(!fits(&entries, entry(3, 300)).await, "too much");
        let first = backlog.recv().await.expect("the first");
        assert_eq!((first.ordered.position, first.bytes > 600), (1, true));
        assert!(!fits(&entries, entry(3, 300)).await, "it is only being applied");
        drop(first);
        assert!(fits(&entries, entry(3, 300)).await);

        // One larger than everything waits until it is alone, and is let in.
        let big = entry(4, 5_000);
        assert!(!fits(&entries, big.clone()).await);
        drop((backlog.recv().await, backlog.recv().await));
        assert!(fits(&entries, big).await);
        assert!(!fits(&entries, entry(5, 1)).await);
        assert_eq!(backlog.recv().await.map(|waiting| waiting.ordered.position), Some(4));
        assert!(fits(&entries, entry(5, 1)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_is_noticed_by_whoever_waits_for_room() {
        let (entries, mut backlog) = bounded(16, 1_000);
        entries.send(entry(1, 900)).await.expect("room");
        let waiting = tokio::spawn({
            let entries = entries.clone();
            async move { entries.send(entry(2, 900)).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        backlog.close();
        drop(backlog);
        let waited = tokio::time::timeout(Duration::from_secs(1), waiting).await;
        // It had its place before; nobody will take it.
        let _ = waited.expect("it does not wait for ever").expect("no panic");
        assert_eq!(entries.send(entry(3, 1)).await, Err(Ended));
    }
}

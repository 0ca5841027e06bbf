//! Barriers: what makes a read linearizable.
//!
//! A barrier proves how far the log reached at some moment after it was asked for. Everyone who asks
//! while one is under way shares the next.

use super::shard::Shard;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Pause after a failed attempt.
const AGAIN: Duration = Duration::from_millis(20);
/// Callers that may wait to be let in.
const QUEUE: usize = 65_536;

/// Who waits to learn a position.
type Waiting = oneshot::Sender<u64>;

/// Asks for barriers.
#[derive(Clone, Debug)]
pub struct Barriers {
    queue: mpsc::Sender<Waiting>,
}

impl Barriers {
    /// Starts the task that obtains them. It ends when the last handle is dropped.
    pub fn start<S: Shard>(shard: Arc<S>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(run(shard, waiting));
        Self { queue }
    }

    /// A position that the log had reached by the time of the answer, and that is at or behind
    /// everything that was acknowledged before the call. `None` when nothing is answered any more.
    pub async fn position(&self) -> Option<u64> {
        let (answer, position) = oneshot::channel();
        self.queue.send(answer).await.ok()?;
        position.await.ok()
    }
}

async fn run<S: Shard>(shard: Arc<S>, mut queue: mpsc::Receiver<Waiting>) {
    let mut waiting: Vec<Waiting> = Vec::new();
    loop {
        if waiting.is_empty() {
            match queue.recv().await {
                Some(first) => waiting.push(first),
                None => return,
            }
        }
        // Only those who are here now: the proof begins after they asked.
        while let Ok(more) = queue.try_recv() {
            waiting.push(more);
        }
        match shard.proven_tip().await {
            Ok(position) => {
                for answer in waiting.drain(..) {
                    // Whoever gave up does not need it.
                    let _ = answer.send(position);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "no barrier yet");
                waiting.retain(|answer| !answer.is_closed());
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

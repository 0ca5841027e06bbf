//! Barriers: what makes a read linearizable.
//!
//! A barrier proves how far the log reached at some moment after it was asked for. Everyone who asks
//! while one is under way shares the next.

use super::log::OnTurn;
use super::outage::Outage;
use super::shard::{Shard, Tip};
use crate::seams::{Rule, follows};
use crate::vital::Vital;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// Pause after a failed attempt.
const AGAIN: Duration = Duration::from_millis(20);
/// Callers that may wait to be let in.
const QUEUE: usize = 65_536;

/// Who waits to learn it.
type Waiting = oneshot::Sender<Tip>;

/// Asks for barriers.
#[derive(Clone, Debug)]
pub struct Barriers {
    queue: mpsc::Sender<Waiting>,
}

impl Barriers {
    /// Starts the task that obtains them, and a receiver of the highest position that one proved. The
    /// task ends when the last handle is dropped.
    pub fn start<S: Shard>(
        shard: Arc<S>,
        on_turn: OnTurn,
        vital: &Vital,
    ) -> (Self, watch::Receiver<u64>) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (proved, highest) = watch::channel(0);
        let running = run(shard, waiting, proved, on_turn);
        vital.spawn("what proves how far the log reaches", running);
        (Self { queue }, highest)
    }

    /// How far the log reached at some moment after the call: at least as far as everything that was
    /// acknowledged before it. `None` when nothing is answered any more.
    pub async fn tip(&self) -> Option<Tip> {
        let (answer, tip) = oneshot::channel();
        self.queue.send(answer).await.ok()?;
        tip.await.ok()
    }
}

async fn run<S: Shard>(
    shard: Arc<S>,
    mut queue: mpsc::Receiver<Waiting>,
    proved: watch::Sender<u64>,
    on_turn: OnTurn,
) {
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut outage = Outage::default();
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
        let began = Instant::now();
        match shard.proven_tip().await {
            Ok(tip) => {
                outage.over();
                on_turn(began.elapsed());
                // Those who wait need the log up to there: it is to be read now.
                proved.send_if_modified(|highest| {
                    let higher = tip.position > *highest;
                    *highest = tip.position.max(*highest);
                    higher
                });
                while !follows(Rule::NextBarrier)
                    && let Ok(more) = queue.try_recv()
                {
                    waiting.push(more);
                }
                for answer in waiting.drain(..) {
                    // Whoever gave up does not need it.
                    let _ = answer.send(tip);
                }
            }
            Err(error) => {
                outage.failed("writes, renewals and linearizable reads wait", &error);
                waiting.retain(|answer| !answer.is_closed());
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

//! Barriers: what makes a read linearizable.
//!
//! A barrier proves how far the log reached at some moment after it was asked for. Everyone who asks
//! while one is under way shares the next.
//!
//! An append of this gateway's own that is sent after the question proves the same, and costs nothing
//! more. So who waits when one is sent goes with it ([`Turn::begins`]), and while commands wait
//! behind an append that is on its way, no other proof begins: the next append is one, and comes no
//! later than another would end.

use super::log::OnTurn;
use super::outage::Outage;
use super::shard::{Shard, Tip};
use crate::seams::{Rule, follows};
use crate::vital::Vital;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot, watch};
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
    desk: Arc<Desk>,
}

/// Who waits, between the task that obtains proofs and the appends that are some as well.
#[derive(Debug)]
struct Desk {
    asked: Mutex<Asked>,
    /// Whether an append is on its way or about to be sent.
    appending: AtomicBool,
    /// Rung when that has changed, an append was sent, or somebody waits again.
    turned: Notify,
}

#[derive(Debug)]
struct Asked {
    queue: mpsc::Receiver<Waiting>,
    /// Those whose append has failed them.
    again: Vec<Waiting>,
    /// Nobody is answered any more.
    over: bool,
}

impl Asked {
    /// Only those who are here now: a proof that counts for them begins after they asked.
    fn take(&mut self) -> Vec<Waiting> {
        let mut waiting = std::mem::take(&mut self.again);
        while let Ok(more) = self.queue.try_recv() {
            waiting.push(more);
        }
        waiting
    }
}

impl Desk {
    /// Whether somebody waits; false when nobody ever will.
    async fn somebody_waits(&self) -> bool {
        poll_fn(|context| self.poll_somebody(context)).await
    }

    fn poll_somebody(&self, context: &mut Context<'_>) -> Poll<bool> {
        let mut asked = self.asked.lock();
        if !asked.again.is_empty() {
            return Poll::Ready(true);
        }
        match asked.queue.poll_recv(context) {
            Poll::Ready(Some(first)) => {
                asked.again.push(first);
                Poll::Ready(true)
            }
            Poll::Ready(None) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Tells those who waited when the proof began.
    fn answer(&self, mut waiting: Vec<Waiting>, tip: Tip) {
        if !follows(Rule::NextBarrier) {
            waiting.append(&mut self.asked.lock().take());
        }
        for answer in waiting {
            // Whoever gave up does not need it.
            let _ = answer.send(tip);
        }
    }

    fn again(&self, mut waiting: Vec<Waiting>) {
        waiting.retain(|answer| !answer.is_closed());
        let mut asked = self.asked.lock();
        if !asked.over {
            asked.again.append(&mut waiting);
        }
    }

    fn appending(&self, appending: bool) {
        self.appending.store(appending, Ordering::Release);
        self.turned.notify_one();
    }
}

/// Sends everyone away when the task ends, however it does.
struct Closing(Arc<Desk>);

impl Drop for Closing {
    fn drop(&mut self) {
        let mut asked = self.0.asked.lock();
        asked.over = true;
        asked.queue.close();
        asked.take();
    }
}

/// A time in which one append follows the other. Ends with a drop.
#[derive(Debug)]
pub struct Turn {
    desk: Arc<Desk>,
}

impl Turn {
    /// Takes along all who wait. To be called before an append is sent.
    pub fn begins(&self) -> Riders {
        let waiting = self.desk.asked.lock().take();
        // Whoever comes now may find no command behind this append.
        self.desk.turned.notify_one();
        Riders { desk: self.desk.clone(), waiting }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.desk.appending(false);
    }
}

/// Those for whom an append is a proof. Dropped, they wait for another.
#[derive(Debug)]
pub struct Riders {
    desk: Arc<Desk>,
    waiting: Vec<Waiting>,
}

impl Riders {
    /// The append landed there.
    pub fn arrive(mut self, tip: Tip) {
        self.desk.answer(std::mem::take(&mut self.waiting), tip);
    }
}

impl Drop for Riders {
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            self.desk.again(std::mem::take(&mut self.waiting));
            self.desk.turned.notify_one();
        }
    }
}

/// What the task works with.
pub struct Parts<S> {
    /// Where the log is.
    pub shard: Arc<S>,
    /// Told of each barrier that was a proof of its own.
    pub on_turn: OnTurn,
    /// Whether commands wait to be appended.
    pub commands_wait: Box<dyn Fn() -> bool + Send>,
}

impl Barriers {
    /// Starts the task that obtains them, and a receiver of the highest position that one proved. The
    /// task ends when the last handle is dropped.
    pub fn start<S: Shard>(parts: Parts<S>, vital: &Vital) -> (Self, watch::Receiver<u64>) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let (proved, highest) = watch::channel(0);
        let asked = Asked { queue: waiting, again: Vec::new(), over: false };
        let desk = Arc::new(Desk {
            asked: Mutex::new(asked),
            appending: AtomicBool::new(false),
            turned: Notify::new(),
        });
        let running = run(parts, Closing(desk.clone()), proved);
        vital.spawn("what proves how far the log reaches", running);
        (Self { queue, desk }, highest)
    }

    /// How far the log reached at some moment after the call: at least as far as everything that was
    /// acknowledged before it. `None` when nothing is answered any more.
    pub async fn tip(&self) -> Option<Tip> {
        let (answer, tip) = oneshot::channel();
        self.queue.send(answer).await.ok()?;
        tip.await.ok()
    }

    /// Begins a time of appends, each of which takes along who waits. One at a time.
    pub fn turn(&self) -> Turn {
        self.desk.appending(true);
        Turn { desk: self.desk.clone() }
    }
}

async fn run<S: Shard>(parts: Parts<S>, closing: Closing, proved: watch::Sender<u64>) {
    let Parts { shard, on_turn, commands_wait } = parts;
    let desk = &closing.0;
    let mut outage = Outage::default();
    while desk.somebody_waits().await {
        if desk.appending.load(Ordering::Acquire) && commands_wait() {
            desk.turned.notified().await;
            continue;
        }
        let waiting = desk.asked.lock().take();
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
                desk.answer(waiting, tip);
            }
            Err(error) => {
                outage.failed("writes, renewals and linearizable reads wait", &error);
                desk.again(waiting);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

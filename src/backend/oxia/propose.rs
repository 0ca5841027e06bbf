//! Proposes: packs commands into entries, appends them one after the other, and settles what became
//! of an append whose answer was lost.
//!
//! While an append is on its way, everything that arrives queues for the next one; nothing waits on
//! a timer. One append at a time, so at most one batch is ever in doubt. Then an entry without
//! commands and with a higher number is appended, until one is answered: once that is applied, the
//! batch has been applied too, or never will be ([`crate::keyspace::gateways`]), and its commands are
//! proposed again for those who still wait.

use super::apply::Ordered;
use super::barrier::{Barriers, Turn};
use super::in_flight::{Answer, Batch, InFlight};
use super::join::{Joiner, Membership};
use super::log::OnTurn;
use super::shard::{Shard, ShardError, Tip};
use crate::keyspace::command::Command;
use crate::keyspace::gateways::{GatewayId, Gateways};
use crate::keyspace::view::View;
use crate::seams::{Rule, follows};
use bytes::Bytes;
use leaseway_proto::log::{Entry, entry::Control};
use prost::Message;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Commands in one entry at most.
const ENTRY_COMMANDS: usize = 4096;
/// Encoded bytes of commands in one entry at most, unless a single command is larger.
const ENTRY_BYTES: usize = 1 << 20;
/// Pause after a failed append.
const AGAIN: Duration = Duration::from_millis(20);

/// What is asked of the proposer.
#[derive(Debug)]
pub enum Request {
    /// A command, and who waits for its outcome.
    Command(Box<Command>, Answer),
    /// An entry about gateways; nobody waits for it.
    Control(Control),
}

/// What the proposer works with.
pub struct Parts<S> {
    /// Where entries are appended.
    pub shard: Arc<S>,
    /// What is asked.
    pub queue: mpsc::Receiver<Request>,
    /// Batches that were applied as dead.
    pub dead: mpsc::UnboundedReceiver<Batch>,
    /// Takes entries whose position is known.
    pub landed: mpsc::Sender<Ordered>,
    /// Who waits for what.
    pub in_flight: Arc<InFlight>,
    /// What has been applied.
    pub view: Arc<View>,
    /// Known gateways, as applied.
    pub gateways: watch::Receiver<Gateways>,
    /// How to become a gateway.
    pub joiner: Joiner<S>,
    /// Where the membership is told, once there is one.
    pub membership: watch::Sender<Option<Membership>>,
    /// Who waits for proofs: an append of commands is one.
    pub barriers: Barriers,
    /// Told of each append of commands.
    pub on_append: OnTurn,
}

/// Everything is stopping.
#[derive(Debug)]
pub struct Stopping;

/// Proposes on behalf of this process.
pub struct Proposer<S> {
    parts: Parts<S>,
    me: Option<Membership>,
    number: u64,
    // What comes before the queue: commands that have to be proposed again, and entries about
    // gateways that were met while packing commands.
    again: VecDeque<(Command, Answer)>,
    controls: VecDeque<Control>,
    // While one append of commands follows the other.
    turn: Option<Turn>,
}

impl<S: Shard> Proposer<S> {
    /// Proposes nothing yet; [`Proposer::run`] joins first.
    pub fn new(parts: Parts<S>) -> Self {
        Self {
            parts,
            me: None,
            number: 0,
            again: VecDeque::new(),
            controls: VecDeque::new(),
            turn: None,
        }
    }

    /// Works until the queue is closed or applying has stopped.
    pub async fn run(mut self) {
        while self.step().await.is_ok() {}
    }

    async fn step(&mut self) -> Result<(), Stopping> {
        let me = match &self.me {
            Some(me) if me.lives() && self.is_ours(me.id) => (me.id, me.nonce),
            _ => return self.join().await,
        };
        while let Ok(dead) = self.parts.dead.try_recv() {
            self.again.extend(dead.wanted());
        }
        if let Some(control) = self.controls.pop_front() {
            return self.control(me, control).await;
        }
        if !self.again.is_empty() {
            return self.propose(me, None).await;
        }
        if self.parts.queue.is_empty() {
            self.turn = None;
        }
        let lost = self.me.as_ref().map(Membership::lost);
        tokio::select! {
            biased;
            request = self.parts.queue.recv() => match request {
                Some(Request::Control(control)) => self.control(me, control).await,
                Some(Request::Command(command, answer)) => {
                    self.propose(me, Some((*command, answer))).await
                }
                None => Err(Stopping),
            },
            dead = self.parts.dead.recv() => match dead {
                Some(dead) => {
                    self.again.extend(dead.wanted());
                    Ok(())
                }
                None => Err(Stopping),
            },
            changed = self.parts.gateways.changed() => changed.map_err(|_| Stopping),
            () = async { match lost { Some(lost) => lost.await, None => std::future::pending().await } } => Ok(()),
        }
    }

    fn is_known(&self, id: GatewayId) -> bool {
        self.parts.gateways.borrow().known.contains_key(&id)
    }

    /// Whether entries may be proposed under an id that this process took.
    fn is_ours(&self, id: GatewayId) -> bool {
        self.is_known(id) || !follows(Rule::RegisterFirst)
    }

    /// Whether an id can't have any effect any more.
    fn is_retired(&self, id: GatewayId) -> bool {
        !self.is_known(id) || !follows(Rule::RetireOld)
    }

    /// Becomes a gateway under a new id. Whatever was in doubt under the old one is settled after it.
    async fn join(&mut self) -> Result<(), Stopping> {
        self.turn = None;
        let old = self.me.take();
        let me = self.parts.joiner.join(&self.parts.landed).await?;
        self.number = me.registered_as;
        if let Some(old) = old {
            tracing::warn!("this gateway had been retired; it goes on under a new id");
            old.leave();
            let retire = self.parts.joiner.retirement(old.id);
            let entry = self.entry((me.id, me.nonce), Vec::new(), Some(retire));
            self.append(entry).await?;
        }
        self.parts.membership.send_replace(Some(me.clone()));
        self.me = Some(me);
        Ok(())
    }

    /// The next entry of a gateway, by its id and nonce.
    fn entry(
        &mut self,
        (id, nonce): (GatewayId, u64),
        commands: Vec<Command>,
        control: Option<Control>,
    ) -> Arc<Entry> {
        self.number += commands.len().max(1) as u64;
        let gateway = Bytes::copy_from_slice(&id);
        Arc::new(Entry { gateway, nonce, last_number: self.number, commands, control })
    }

    async fn control(&mut self, me: (GatewayId, u64), control: Control) -> Result<(), Stopping> {
        self.turn = None;
        let entry = self.entry(me, Vec::new(), Some(control));
        self.append(entry).await.map(|_| ())
    }

    async fn propose(
        &mut self,
        me: (GatewayId, u64),
        first: Option<(Command, Answer)>,
    ) -> Result<(), Stopping> {
        let (commands, answers) = self.gather(first);
        if commands.is_empty() {
            self.turn = None;
            return Ok(());
        }
        let (entry, began) = (self.entry(me, commands, None), Instant::now());
        self.parts.in_flight.note(Batch { entry: entry.clone(), answers });
        let turn = self.turn.take().unwrap_or_else(|| self.parts.barriers.turn());
        let riders = turn.begins();
        match self.append(entry.clone()).await? {
            Appended::Landed(tip) => {
                riders.arrive(tip);
                self.turn = Some(turn);
                (self.parts.on_append)(began.elapsed());
                Ok(())
            }
            Appended::Unknown if follows(Rule::Settle) => {
                // What follows may take long: whoever wants a proof gets one of its own.
                drop((riders, turn));
                self.settle(&entry).await
            }
            Appended::No | Appended::Unknown => {
                drop((riders, turn));
                self.propose_again(&entry);
                tokio::time::sleep(AGAIN).await;
                Ok(())
            }
            Appended::Never => {
                // Its callers learn that there will be no answer.
                drop(self.parts.in_flight.take(&entry));
                Ok(())
            }
        }
    }

    /// What goes into the next entry: what must be proposed again, then what is queued.
    fn gather(&mut self, first: Option<(Command, Answer)>) -> (Vec<Command>, Vec<Answer>) {
        let (mut commands, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut next = self.again.pop_front().or(first);
        while let Some((command, answer)) = next.take() {
            // Whoever gave up before it was sent gets what was wanted: nothing happens.
            if !answer.is_closed() {
                bytes += command.encoded_len();
                if bytes > ENTRY_BYTES && !commands.is_empty() {
                    self.again.push_front((command, answer));
                    break;
                }
                commands.push(command);
                answers.push(answer);
            }
            if commands.len() >= ENTRY_COMMANDS {
                break;
            }
            next = self.again.pop_front().or_else(|| self.queued_command());
        }
        (commands, answers)
    }

    /// The next queued request, if it is a command; one about gateways waits for the next entry.
    fn queued_command(&mut self) -> Option<(Command, Answer)> {
        match self.parts.queue.try_recv().ok()? {
            Request::Command(command, answer) => Some((*command, answer)),
            Request::Control(control) => {
                self.controls.push_back(control);
                None
            }
        }
    }

    async fn append(&mut self, entry: Arc<Entry>) -> Result<Appended, Stopping> {
        let appended = self.parts.shard.append(entry.encode_to_vec().into()).await;
        match appended {
            Ok(tip) => {
                let landed = Ordered { position: tip.position, entry };
                self.parts.landed.send(landed).await.map_err(|_| Stopping)?;
                Ok(Appended::Landed(tip))
            }
            Err(ShardError::Unknown(error)) => {
                tracing::info!(error, "an append has no answer; finding out what became of it");
                Ok(Appended::Unknown)
            }
            Err(ShardError::NotSent(error)) => {
                tracing::debug!(error, "an append was not sent");
                Ok(Appended::No)
            }
            Err(error) => {
                tracing::error!(%error, "an append is impossible");
                Ok(Appended::Never)
            }
        }
    }

    fn propose_again(&mut self, entry: &Entry) {
        if let Ok(Some(batch)) = self.parts.in_flight.take(entry) {
            self.again.extend(batch.wanted());
        }
    }

    /// Finds out what became of an append, and proposes its commands again if it is dead.
    async fn settle(&mut self, doubtful: &Entry) -> Result<(), Stopping> {
        loop {
            tokio::time::sleep(AGAIN).await;
            let Some(me) = self.me.clone().filter(|me| me.lives() && self.is_ours(me.id)) else {
                self.join().await?;
                continue;
            };
            // A higher number settles what is in doubt under the same id; under a new one, the old
            // one has to be retired, which settles everything under it.
            let old: Option<GatewayId> =
                doubtful.gateway[..].try_into().ok().filter(|old| *old != me.id);
            let retire = old
                .filter(|_| follows(Rule::RetireOld))
                .map(|old| self.parts.joiner.retirement(old));
            let marker = self.entry((me.id, me.nonce), Vec::new(), retire);
            let Appended::Landed(tip) = self.append(marker).await? else { continue };
            self.parts.view.durable(tip.position).await;
            if old.is_none_or(|old| self.is_retired(old)) {
                self.propose_again(doubtful);
                return Ok(());
            }
        }
    }
}

/// What became of an append.
enum Appended {
    /// It is in the log, there.
    Landed(Tip),
    /// It is not, and never will be.
    No,
    /// It may be, or may get there yet.
    Unknown,
    /// It is not, and can't be as it is.
    Never,
}

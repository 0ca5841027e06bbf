//! The replicated log as a gateway uses it.

use super::apply::{self, Applier, Applying, OnTimed};
use super::barrier::{self, Barriers};
use super::compare::Board;
use super::in_flight::InFlight;
use super::join::{Joiner, Membership};
use super::names::Names;
use super::outage::Outage;
use super::propose::{self, Proposer, Request};
use super::shard::{Means, Shard, Tip};
use super::tail::Tail;
use crate::backend::local::log::Publish;
use crate::backend::{Halt, Log, Pending, ProposeError, answered};
use crate::keyspace::command::{Command, Outcome};
use crate::keyspace::gateways::{Founded, Gateways};
use crate::keyspace::machine::Machine;
use crate::keyspace::view::View;
use crate::seams;
use crate::storage::Engine;
use crate::vital::Vital;
use bytes::Bytes;
use leaseway_proto::log::{Entry, Found, Member, Retire, entry::Control};
use prost::Message;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// Commands that may wait; proposers beyond that wait to be let in.
const QUEUE: usize = 8192;
/// How long leaving may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// Pause after a failed attempt while starting.
const AGAIN: Duration = Duration::from_millis(100);

/// Called once when the log can't be followed any more.
pub type OnStop = Box<dyn FnOnce(Halt) + Send>;

/// Told how long something took that went well.
pub type OnTurn = Box<dyn Fn(Duration) + Send + Sync>;

/// Takes leave of the other gateways.
type Leave = Box<dyn Fn(Membership) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What the log works with.
pub struct Parts<S> {
    /// Where the log is.
    pub shard: Arc<S>,
    /// Names of the keyspace.
    pub names: Names,
    /// The loaded keyspace.
    pub machine: Machine,
    /// Gateways as of the machine's position.
    pub gateways: Gateways,
    /// Where applied groups are kept.
    pub engine: Arc<dyn Engine>,
    /// Where the state is published.
    pub view: Arc<View>,
    /// Who is told of events.
    pub publish: Box<dyn Publish>,
    /// Who keeps the time of leases without a session.
    pub on_timed: OnTimed,
    /// What other gateways are told of this one.
    pub member: Member,
    /// Whether this process has looked after leases whose sessions ended before it came.
    pub settled: watch::Receiver<bool>,
    /// What this gateway asks the others, and answers them.
    pub board: Arc<Board>,
    /// Who is told when it stops by itself, or a part of it panics.
    pub on_stop: OnStop,
    /// Told of each append of commands.
    pub on_append: OnTurn,
    /// Told of each barrier.
    pub on_barrier: OnTurn,
}

/// A log that other gateways append to as well.
pub struct OxiaLog {
    queue: mpsc::Sender<Request>,
    barriers: Barriers,
    view: Arc<View>,
    gateways: watch::Receiver<Gateways>,
    membership: watch::Receiver<Option<Membership>>,
    finished: watch::Receiver<i64>,
    pending: AtomicU64,
    leave: Leave,
    tasks: parking_lot::Mutex<JoinSet<()>>,
}

impl OxiaLog {
    /// Starts to follow the log and to join.
    ///
    /// # Errors
    /// The apply thread could not be started.
    pub fn start<S: Shard>(parts: Parts<S>) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (log, applier) = Self::prepare(parts);
        Ok((log, applier.spawn()?))
    }

    /// Starts to follow the log and to join; applies nothing until the applier is run.
    pub(super) fn prepare<S: Shard>(parts: Parts<S>) -> (Self, Applier) {
        let Parts { shard, names, view, member, on_stop, .. } = parts;
        let position = parts.machine.published().position;
        let (dead, buried) = mpsc::unbounded_channel();
        let in_flight = Arc::new(InFlight::new(dead));
        let on_stop = Arc::new(parking_lot::Mutex::new(Some(on_stop)));
        let stop = move |halt: Halt| {
            if let Some(on_stop) = on_stop.lock().take() {
                on_stop(halt);
            }
        };
        // One that panics must not leave a gateway behind that can't read, write or be reached.
        let vital = Vital::new(stop.clone());
        let (applying, applier) = apply::prepare(apply::Parts {
            machine: parts.machine,
            gateways: parts.gateways,
            engine: parts.engine,
            view: view.clone(),
            publish: parts.publish,
            on_timed: parts.on_timed,
            in_flight: in_flight.clone(),
            on_stop: Box::new(stop.clone()),
        });
        let Applying { entries, gateways, finished } = applying;
        let (landed, own) = mpsc::channel(64);
        let (queue, requests) = mpsc::channel(QUEUE);
        let (membership, joined) = watch::channel(None);
        let ids = in_flight.clone();
        let joiner = Joiner {
            shard: shard.clone(),
            names: names.clone(),
            member,
            view: view.clone(),
            settled: parts.settled,
            board: parts.board,
            on_id: Box::new(move |id, nonce| ids.own(id, nonce)),
            vital: vital.clone(),
        };
        let mut tasks = JoinSet::new();
        let commands = queue.downgrade();
        let waits = move || {
            let queue: Option<mpsc::Sender<Request>> = commands.upgrade();
            queue.is_some_and(|queue| queue.capacity() < queue.max_capacity())
        };
        let proofs = barrier::Parts {
            shard: shard.clone(),
            on_turn: parts.on_barrier,
            commands_wait: Box::new(waits),
        };
        let (barriers, proved) = Barriers::start(proofs, &vital);
        let tail = Tail::new(shard.clone(), position, proved, own, entries);
        let following = async move { stop(tail.run().await.into()) };
        tasks.spawn(vital.watched("what follows the log", following));
        let founded = gateways.clone();
        let proposer = Proposer::new(propose::Parts {
            shard: shard.clone(),
            queue: requests,
            dead: buried,
            landed,
            in_flight,
            view: view.clone(),
            gateways: gateways.clone(),
            joiner,
            membership,
            barriers: barriers.clone(),
            on_append: parts.on_append,
        });
        let keyspace = shard.clone();
        let proposing = async move {
            found(&*keyspace, founded).await;
            proposer.run().await;
        };
        tasks.spawn(vital.watched("what appends to the log", proposing));
        let log = Self {
            queue,
            barriers,
            leave: Box::new(move |me| Box::pin(leave(shard.clone(), names.clone(), me))),
            view,
            gateways,
            membership: joined,
            finished,
            pending: AtomicU64::new(0),
            tasks: parking_lot::Mutex::new(tasks),
        };
        (log, applier)
    }

    /// Waits until the keyspace is founded and this process is a gateway of it, and has applied
    /// everything that was in the log by then.
    ///
    /// # Errors
    /// Everything is stopping.
    pub async fn joined(&self) -> Result<Founded, ProposeError> {
        let mut membership = self.membership.clone();
        membership.wait_for(Option::is_some).await.map_err(|_| ProposeError::Stopped)?;
        let tip = self.barriers.tip().await.ok_or(ProposeError::Stopped)?;
        self.view.durable(tip.position).await;
        self.gateways.borrow().founded.ok_or(ProposeError::Stopped)
    }

    /// Known gateways, renewed when one comes or goes.
    pub fn gateways(&self) -> watch::Receiver<Gateways> {
        self.gateways.clone()
    }

    /// What reads and renewals wait for.
    pub fn barriers(&self) -> Barriers {
        self.barriers.clone()
    }

    /// This process as a gateway, once it is one.
    pub fn membership(&self) -> watch::Receiver<Option<Membership>> {
        self.membership.clone()
    }

    /// Asks for an entry about gateways. It may be lost; ask again while it is wanted.
    pub async fn control(&self, control: Control) {
        // Once everything is stopping, nothing is wanted any more.
        let _ = self.queue.send(Request::Control(control)).await;
    }

    /// Stops following and proposing, and takes leave. What was proposed and not answered may be in
    /// the log or not.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        let me = self.membership.borrow().clone();
        if let Some(me) = me {
            // Without it the others notice after a while.
            let _ = tokio::time::timeout(FAREWELL, (self.leave)(me)).await;
        }
    }
}

impl Log for OxiaLog {
    async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
        let (answer, wait) = oneshot::channel();
        let request = Request::Command(Box::new(command), answer);
        let _pending = Pending::new(&self.pending);
        answered(async {
            self.queue.send(request).await.ok()?;
            wait.await.ok()
        })
        .await
    }

    async fn barrier(&self) -> Result<(), ProposeError> {
        answered(async {
            let tip = self.barriers.tip().await?;
            self.view.durable(tip.position).await;
            Some(())
        })
        .await
    }

    async fn compacted(&self, revision: i64) -> Result<(), ProposeError> {
        let mut finished = self.finished.clone();
        let reached = finished.wait_for(|finished| *finished >= revision).await;
        reached.map(|_| ()).map_err(|_| ProposeError::Stopped)
    }

    fn pending(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }
}

/// Makes a gateway unknown at once, instead of when its session runs out.
async fn leave<S: Shard>(shard: Arc<S>, names: Names, me: Membership) {
    me.leave();
    let gateway = Bytes::copy_from_slice(&me.id);
    let retire = Control::Retire(Retire { gateway: gateway.clone() });
    let entry = Entry { gateway, nonce: me.nonce, control: Some(retire), ..Entry::default() };
    let _ = shard.append(entry.encode_to_vec().into()).await;
    let record = names.gateway(me.id);
    let _ = shard.close_session(me.session, Means::With(&record)).await;
}

/// Founds the keyspace if nobody has yet. Several gateways may try at once: the first one counts.
async fn found<S: Shard>(shard: &S, mut gateways: watch::Receiver<Gateways>) {
    let (mut proposed, mut outage) = (None, Outage::default());
    loop {
        match shard.proven_tip().await {
            Ok(Tip { position: 0, .. }) => {
                let cluster_id = seams::random::<u64>().max(1);
                let incarnation = Bytes::copy_from_slice(&seams::random::<[u8; 16]>());
                let found = Control::Found(Found { incarnation, cluster_id, ..Found::default() });
                let gateway = Bytes::copy_from_slice(&seams::random::<[u8; 16]>());
                let entry = Entry { gateway, control: Some(found), ..Entry::default() };
                // Also without an answer it may be the one that counts.
                proposed = Some(cluster_id);
                if let Err(error) = shard.append(entry.encode_to_vec().into()).await {
                    outage.failed("the keyspace can't be founded yet", &error);
                }
            }
            Ok(_) => break,
            Err(error) => outage.failed("the log can't be reached yet", &error),
        }
        tokio::time::sleep(AGAIN).await;
    }
    outage.over();
    // Its end means that applying has stopped, which is reported elsewhere.
    let Ok(known) = gateways.wait_for(|gateways| gateways.founded.is_some()).await else { return };
    if let Some(cluster_id) = is_founder(proposed, known.founded) {
        tracing::info!(cluster_id = format!("{cluster_id:x}"), "founded the keyspace");
    }
}

/// The id of the keyspace, if the one that counts is the one that was proposed here.
fn is_founder(proposed: Option<u64>, founded: Option<Founded>) -> Option<u64> {
    proposed.filter(|id| founded.is_some_and(|founded| founded.cluster_id == *id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fake::{Nobody, machine_after};
    use crate::backend::oxia::checkpoint::fake::{Fake, Fate};
    use crate::keyspace::command::{Op, internal};
    use leaseway_proto::etcdserverpb::PutRequest;

    /// A log on a shard of its own, which is told of appends and barriers like this. The receiver gets why
    /// it stopped.
    fn follow(on_append: OnTurn, on_barrier: OnTurn) -> (OxiaLog, oneshot::Receiver<Halt>) {
        follow_on(Arc::new(Fake::new()), on_append, on_barrier)
    }

    fn follow_on(
        shard: Arc<Fake>,
        on_append: OnTurn,
        on_barrier: OnTurn,
    ) -> (OxiaLog, oneshot::Receiver<Halt>) {
        let (machine, engine) = machine_after([]);
        let (stop, stopped) = oneshot::channel();
        let (log, applier) = OxiaLog::prepare(Parts {
            shard,
            names: Names::new("test"),
            view: Arc::new(View::new(machine.published())),
            machine,
            gateways: Gateways::default(),
            engine,
            publish: Box::new(Nobody),
            on_timed: Box::new(|_| ()),
            member: Member::default(),
            settled: watch::channel(false).1,
            board: Arc::new(Board::default()),
            on_stop: Box::new(move |halt| drop(stop.send(halt))),
            on_append,
            on_barrier,
        });
        tokio::spawn(applier.run_as_task());
        (log, stopped)
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_panics_stops_it() {
        let panics = || -> OnTurn { Box::new(|_| panic!("for a test")) };
        let goes_on = || -> OnTurn { Box::new(|_| ()) };
        let put = internal(Op::Put(PutRequest { key: "k".into(), ..PutRequest::default() }));

        let (log, stopped) = follow(panics(), goes_on());
        log.joined().await.expect("no command has been appended yet");
        // Its outcome may still be told.
        let _ = log.propose(put.clone()).await;
        let halt = stopped.await.expect("told");
        assert_eq!(halt, Halt::from("what appends to the log has panicked".to_owned()));

        let (log, stopped) = follow(goes_on(), panics());
        assert_eq!(log.joined().await, Err(ProposeError::Stopped));
        let halt = stopped.await.expect("told");
        assert_eq!(halt, Halt::from("what proves how far the log reaches has panicked".to_owned()));

        let (log, mut stopped) = follow(goes_on(), goes_on());
        log.joined().await.expect("joined");
        log.propose(put).await.expect("written");
        assert!(stopped.try_recv().is_err(), "nothing has panicked");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_append_is_the_proof_while_commands_wait() {
        let proofs = Arc::new(AtomicU64::new(0));
        let count = |proofs: &Arc<AtomicU64>| proofs.load(Ordering::Relaxed);
        let counted = proofs.clone();
        let on_barrier: OnTurn = Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let shard = Arc::new(Fake::new());
        let (log, _stopped) = follow_on(shard.clone(), Box::new(|_| ()), on_barrier);
        log.joined().await.expect("joined");
        let before = count(&proofs);
        let log = Arc::new(log);
        let proposed = |key: &'static str| {
            let log = log.clone();
            let put = Op::Put(PutRequest { key: key.into(), ..PutRequest::default() });
            tokio::spawn(async move { log.propose(internal(put)).await })
        };
        let barrier = || {
            let log = log.clone();
            tokio::spawn(async move { log.barrier().await })
        };
        let soon = || tokio::time::sleep(Duration::from_millis(1));

        // Nothing waits behind the append: the proof is one of its own, and does not wait for it.
        shard.doom_append(Fate::Stuck);
        let first = proposed("a");
        soon().await;
        barrier().await.expect("runs").expect("answered");
        assert_eq!(count(&proofs), before + 1);
        assert!(!first.is_finished());

        // A command does: its append is the proof.
        let second = proposed("b");
        soon().await;
        let waits = barrier();
        soon().await;
        assert!(!waits.is_finished(), "the next append has not been sent");
        shard.release();
        for put in [first, second] {
            put.await.expect("runs").expect("written");
        }
        waits.await.expect("runs").expect("answered");
        assert_eq!(count(&proofs), before + 1, "no other one was needed");

        // It fails: there is another.
        shard.doom_append(Fate::Stuck);
        let first = proposed("c");
        soon().await;
        let second = proposed("d");
        soon().await;
        let waits = barrier();
        soon().await;
        shard.doom_append(Fate::Lost);
        shard.release();
        waits.await.expect("runs").expect("answered");
        assert_eq!(count(&proofs), before + 2);
        for put in [first, second] {
            put.await.expect("runs").expect("written");
        }
    }

    #[test]
    fn only_one_of_those_who_tried_has_founded_the_keyspace() {
        let founded = Some(Founded { incarnation: [0; 16], cluster_id: 7 });
        assert_eq!(is_founder(Some(7), founded), Some(7));
        assert_eq!(is_founder(Some(8), founded), None, "another gateway was quicker");
        assert_eq!(is_founder(None, founded), None, "it was there");
        assert_eq!(is_founder(Some(7), None), None);
    }
}

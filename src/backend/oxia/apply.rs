//! Applies the log's entries in order, and answers those who proposed what is in them.
//!
//! What is read from the log is durable already, so a group of entries is applied, committed to the
//! local store without a sync, published, handed to the watchers, and then answered. The local store
//! is a cache: it only has to be right while this process lives.

use super::backlog::{self, Backlog, Entries, Waiting};
use super::checkpoint::begin;
use super::in_flight::InFlight;
use super::log::OnStop;
use crate::backend::compaction::CompactionTold;
use crate::backend::local::log::Publish;
use crate::keyspace::command::Outcome;
use crate::keyspace::error::Refusal;
use crate::keyspace::gateways::{Admission, Gateways};
use crate::keyspace::machine::Machine;
use crate::keyspace::staging::{Staging, Timed};
use crate::keyspace::view::View;
use crate::storage::tables::meta;
use crate::storage::{Durability, Engine, StorageError};
use leaseway_proto::log::Entry;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{oneshot, watch};

/// Entries in one group at most.
const GROUP: usize = 64;
/// Commands in one group at most (one entry more still fits).
const GROUP_COMMANDS: usize = 4096;
/// Encoded bytes in one group at most (one entry more still fits).
const GROUP_BYTES: usize = 4 << 20;
/// Groups after which pages that nobody needs any more are given back for reuse.
const RECLAIM: u32 = 64;
/// Bytes of rows after which they are in any case: until then they stay in memory.
const RECLAIM_BYTES: u64 = 16 << 20;

/// Told which leases without a session were granted, renewed or ended.
pub type OnTimed = Box<dyn Fn(&[Timed]) + Send>;

/// The next entry of the log.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// Its position.
    pub position: u64,
    /// The entry.
    pub entry: Arc<Entry>,
}

/// Why applying stopped for good.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The local store failed.
    #[error("storage failed: {0}")]
    Storage(#[from] StorageError),
    /// The log holds what this version does not know.
    #[error("log entry {0} is of a newer version; this one must be upgraded")]
    Unknown(u64),
    /// Somebody writes under this gateway's id.
    #[error("log entry {0} bears this gateway's id but was not written by it")]
    Forged(u64),
    /// The keyspace began with an import after this gateway had looked what there is to load.
    #[error("the keyspace was imported while this gateway started; it must be started again")]
    Imported,
    /// A bug: what was applied so far is half done.
    #[error("applying log entry {0} failed")]
    Panicked(u64),
}

/// What the thread works with.
pub struct Parts {
    /// The loaded keyspace.
    pub machine: Machine,
    /// Gateways as of the machine's position.
    pub gateways: Gateways,
    /// Where groups are committed.
    pub engine: Arc<dyn Engine>,
    /// Where the state is published.
    pub view: Arc<View>,
    /// Who is told of events.
    pub publish: Box<dyn Publish>,
    /// Who keeps the time of leases without a session.
    pub on_timed: OnTimed,
    /// Who waits for what.
    pub in_flight: Arc<InFlight>,
    /// Called once when applying has stopped by itself.
    pub on_stop: OnStop,
}

/// The other end of what applies.
pub struct Applying {
    /// Takes entries, each one position behind the one before.
    pub entries: Entries,
    /// Gateways, renewed whenever one comes, goes, or the keyspace is founded.
    pub gateways: watch::Receiver<Gateways>,
    /// Revision through which compaction is finished.
    pub finished: watch::Receiver<i64>,
}

/// Makes what applies, and its other end.
pub fn prepare(parts: Parts) -> (Applying, Applier) {
    let (entries, queue) = backlog::queue();
    let (told_gateways, gateways) = watch::channel(parts.gateways.clone());
    let machine = &parts.machine;
    let (compaction, finished) =
        CompactionTold::new(machine.compaction_finished(), machine.compacting());
    let applier = Applier { parts, queue, told_gateways, compaction, at: 0, groups: 0, bytes: 0 };
    (Applying { entries, gateways, finished }, applier)
}

/// Applies what is sent to [`Applying::entries`], until that is dropped.
pub struct Applier {
    parts: Parts,
    queue: Backlog,
    told_gateways: watch::Sender<Gateways>,
    compaction: CompactionTold,
    // Entry that is being applied.
    at: u64,
    // Since pages were last given back.
    groups: u32,
    bytes: u64,
}

/// What a group begins with.
enum Next {
    /// The next entry, once there is one.
    Wait,
    /// This one, or nothing: there is something to compact.
    Now(Option<Waiting>),
}

/// What becomes of the callers of a group once it is published.
#[derive(Default)]
struct Group {
    answers: Vec<(oneshot::Sender<Outcome>, Outcome)>,
    controlled: bool,
}

impl Applier {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn spawn(self) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("apply".into()).spawn(move || self.run())
    }

    fn run(mut self) {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
            while let Some(next) = self.next() {
                let first = match next {
                    Next::Wait => match self.queue.blocking_recv() {
                        Some(first) => Some(first),
                        None => break,
                    },
                    Next::Now(first) => first,
                };
                self.group(first)?;
            }
            Ok(())
        }));
        self.end(outcome);
    }

    /// The same as a task, for simulations, which have one thread only.
    #[cfg(test)]
    pub async fn run_as_task(mut self) {
        while let Some(next) = self.next() {
            let first = match next {
                Next::Wait => match self.queue.recv().await {
                    Some(first) => Some(first),
                    None => break,
                },
                Next::Now(first) => first,
            };
            let group = || self.group(first);
            match std::panic::catch_unwind(AssertUnwindSafe(group)) {
                Ok(Ok(())) => tokio::task::yield_now().await,
                ended => return self.end(ended),
            }
        }
        self.end(Ok(Ok(())));
    }

    /// What the next group begins with; none if there is no next group. A compaction that is under way is
    /// not waited for at the end: whoever begins with a checkpoint compacts anew.
    fn next(&mut self) -> Option<Next> {
        if !self.parts.machine.compacting() {
            return Some(Next::Wait);
        }
        match self.queue.try_recv() {
            Ok(first) => Some(Next::Now(Some(first))),
            Err(TryRecvError::Empty) => Some(Next::Now(None)),
            Err(TryRecvError::Disconnected) => None,
        }
    }

    fn end(mut self, outcome: std::thread::Result<Result<(), Stopped>>) {
        let stopped = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(stopped)) => stopped,
            Err(_) => Stopped::Panicked(self.at),
        };
        self.queue.close();
        self.parts.in_flight.close();
        (self.parts.on_stop)(stopped.to_string().into());
    }

    /// Applies a group, and goes on with a compaction that is under way; without entries, with that alone.
    fn group(&mut self, first: Option<Waiting>) -> Result<(), Stopped> {
        let entries = self.gather(first);
        let last = entries.last().map(|waiting| waiting.ordered.position);
        let position = last.unwrap_or_else(|| self.parts.machine.next_position());
        let mut staging = Staging::new(self.parts.engine.snapshot()?, position);
        let mut group = Group::default();
        for waiting in entries {
            self.apply(&mut staging, &waiting.ordered, &mut group)?;
        }
        let known = self.parts.view.now().visible.compacted;
        self.parts.machine.compaction_step(&mut staging, known)?;
        self.parts.machine.finish_group(&mut staging, last.is_some());
        if last.is_some() {
            meta::put_gateways(&mut staging.batch, &self.parts.gateways.encode());
        }
        if group.controlled {
            // Before the position is published: who waits for that looks here next.
            self.told_gateways.send_replace(self.parts.gateways.clone());
        }
        self.publish(staging)?;
        let machine = &self.parts.machine;
        self.compaction.note(machine.compaction_finished(), machine.compacting());
        for (answer, outcome) in group.answers {
            // Whoever gave up waiting is not told; the command stands.
            let _ = answer.send(outcome);
        }
        Ok(())
    }

    fn gather(&mut self, first: Option<Waiting>) -> Vec<Waiting> {
        let (mut entries, mut commands, mut bytes) = (Vec::new(), 0, 0);
        let mut next = first;
        while let Some(waiting) = next.take() {
            commands += waiting.ordered.entry.commands.len();
            bytes += waiting.bytes;
            entries.push(waiting);
            if entries.len() < GROUP && commands < GROUP_COMMANDS && bytes < GROUP_BYTES {
                next = self.queue.try_recv().ok();
            }
        }
        entries
    }

    fn apply(
        &mut self,
        staging: &mut Staging,
        ordered: &Ordered,
        group: &mut Group,
    ) -> Result<(), Stopped> {
        let Ordered { position, entry } = ordered;
        self.at = *position;
        let unknown = |refusal| match refusal {
            Refusal::UnknownCommand => Stopped::Unknown(*position),
            other => unreachable!("an entry as a whole is not refused for {other}"),
        };
        if self.parts.gateways.founded.is_none() && begin::checkpoint_of(entry).is_some() {
            return Err(Stopped::Imported);
        }
        let admission = self.parts.gateways.admit(entry).map_err(unknown)?;
        let waiting = self.parts.in_flight.take(entry).map_err(|_| Stopped::Forged(*position))?;
        match admission {
            Admission::Done => group.controlled = true,
            Admission::Ignored => {
                if let Some(dead) = waiting {
                    self.parts.in_flight.bury(dead);
                }
            }
            Admission::Apply => {
                let mut answers =
                    waiting.map(|batch| batch.answers).unwrap_or_default().into_iter();
                for command in &entry.commands {
                    let outcome = self.parts.machine.apply(staging, command)?;
                    if outcome.reply == Err(Refusal::UnknownCommand) {
                        return Err(Stopped::Unknown(*position));
                    }
                    group.answers.extend(answers.next().map(|answer| (answer, outcome)));
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, staging: Staging) -> Result<(), Stopped> {
        let parts = &mut self.parts;
        if !staging.timed.is_empty() {
            (parts.on_timed)(&staging.timed);
        }
        self.groups += 1;
        self.bytes += staging.row_bytes.unsigned_abs();
        let (batch, events) = staging.finish();
        let reclaim = self.groups >= RECLAIM || self.bytes >= RECLAIM_BYTES;
        if reclaim {
            (self.groups, self.bytes) = (0, 0);
        }
        let durability = if reclaim { Durability::Begun } else { Durability::Deferred };
        parts.engine.commit(&batch, durability)?;
        let published = parts.machine.published();
        let visible = published.visible;
        parts.view.publish(published);
        parts.publish.publish(events, visible);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fake::{Nobody, machine_after};
    use crate::keyspace::command::Op;
    use bytes::Bytes;
    use leaseway_proto::etcdserverpb::{CompactionRequest, PutRequest};
    use tokio::sync::mpsc;

    /// What applies, on a keyspace in which these have been done.
    fn applier(ops: impl IntoIterator<Item = Op>) -> (Applying, Applier) {
        let (machine, engine) = machine_after(ops);
        let (dead, _) = mpsc::unbounded_channel();
        prepare(Parts {
            view: Arc::new(View::new(machine.published())),
            machine,
            gateways: Gateways::default(),
            engine,
            publish: Box::new(Nobody),
            on_timed: Box::new(|_| ()),
            in_flight: Arc::new(InFlight::new(dead)),
            on_stop: Box::new(|halt| panic!("{}", halt.reason)),
        })
    }

    #[test]
    fn its_end_does_not_wait_for_a_compaction() {
        let put = || Op::Put(PutRequest { key: "k".into(), ..PutRequest::default() });
        let compaction = CompactionRequest { revision: 5_000, physical: false };
        let ops = || std::iter::repeat_with(put).take(5_000).chain([Op::Compact(compaction)]);
        let (Applying { entries, finished, .. }, applier) = applier(ops());
        drop(entries);
        applier.spawn().expect("a thread").join().expect("no panic");
        assert!(*finished.borrow() < 5_000, "its steps were not all made");

        let (Applying { entries, mut finished, .. }, applier) = self::applier(ops());
        let thread = applier.spawn().expect("a thread");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let reached = finished.wait_for(|finished| *finished == 5_000);
        drop(runtime.block_on(reached).expect("until then it goes on by itself"));
        drop(entries);
        thread.join().expect("no panic");
    }

    #[tokio::test]
    async fn a_group_is_bounded_in_bytes_and_takes_one_entry_whatever_its_size() {
        let (Applying { entries, .. }, mut applier) = applier([]);
        for (position, bytes) in [(1, 10), (2, GROUP_BYTES), (3, 10), (4, 2 * GROUP_BYTES), (5, 10)]
        {
            let entry = Entry { gateway: Bytes::from(vec![0; bytes]), ..Entry::default() };
            entries.send(Ordered { position, entry: Arc::new(entry) }).await.expect("room");
        }
        let mut groups = Vec::new();
        while let Ok(first) = applier.queue.try_recv() {
            let group = applier.gather(Some(first));
            groups.push(group.iter().map(|waiting| waiting.ordered.position).collect::<Vec<_>>());
        }
        assert_eq!(groups, [vec![1, 2], vec![3, 4], vec![5]]);
    }
}

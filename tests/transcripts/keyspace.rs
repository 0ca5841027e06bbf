//! Runs transcripts on the machine, over a store in memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use leaseway::gateway::error::Error;
use leaseway::keyspace::command::{
    AlarmChange, Command, LeaseCheckpoint, LeaseExpire, LeaseGrant, LeaseRenewed, LeaseRevoke, Op,
    Outcome, Remaining, Reply, command,
};
use leaseway::keyspace::error::{ReadError, Refusal};
use leaseway::keyspace::event::{EventKind, History, HistoryBudget, RevisionEvents};
use leaseway::keyspace::load::load;
use leaseway::keyspace::machine::Machine;
use leaseway::keyspace::reader::Reader;
use leaseway::keyspace::staging::Staging;
use leaseway::keyspace::view::View;
use leaseway::storage::redb_engine::RedbEngine;
use leaseway::storage::tables::rows;
use leaseway::storage::{Durability, Engine, Table, try_scan};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use leaseway_proto::etcdserverpb::response_op::Response;
use leaseway_proto::mvccpb::{Event, KeyValue, event::EventType};
use prost::Message;

use crate::parse::{Action, Inner};
use crate::text;

/// More steps than the compaction of any transcript takes.
const COMPACTION_STEPS: usize = 100;

/// A keyspace, driven by hand.
pub struct Driver {
    machine: Machine,
    engine: Arc<dyn Engine>,
    view: Arc<View>,
}

impl Driver {
    /// An empty keyspace.
    pub fn new() -> Self {
        let engine: Arc<dyn Engine> = Arc::new(RedbEngine::in_memory().expect("an engine"));
        let machine = load(&*engine.snapshot().expect("a snapshot"), &mut |_| {}).expect("loads");
        let view = Arc::new(View::new(machine.published()));
        Self { machine, engine, view }
    }

    /// Does one step; returns what it answered and which events it had.
    pub fn run(&mut self, action: &Action) -> String {
        match action {
            Action::Request(Request::RequestRange(range)) => self.get(range),
            Action::Leases => self.leases(),
            Action::Alarms => text::alarms(&self.machine.shared().alarms.list(0).value),
            Action::History { from, prev } => self.history(*from, *prev),
            Action::Inner(Inner::Lease(id)) => self.lease(*id),
            Action::Inner(Inner::Rows) => self.rows(),
            Action::Inner(Inner::Restart) => {
                self.machine = self.reloaded();
                let published = self.machine.published();
                assert_eq!(published, self.view.with_auth(), "what was published has been stored");
                format!("revision {}\n", published.visible.revision)
            }
            Action::Inner(Inner::Group(actions)) => self.group(actions),
            single => self.group(std::slice::from_ref(single)),
        }
    }

    /// Fails unless what is stored leads to the same state as what is in memory.
    pub fn check_reload(&mut self) {
        let all =
            pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let state = |driver: &Self| {
            let visible = driver.view.now().visible;
            let at = visible.compacted.max(1)..=visible.revision;
            let pairs =
                at.map(|revision| driver.get(&pb::RangeRequest { revision, ..all.clone() }));
            let pairs: String = pairs.collect();
            (pairs, driver.leases(), driver.machine.shared().leases.all().value)
        };
        let before = state(self);
        self.machine = self.reloaded();
        assert_eq!(before, state(self));
    }

    fn reloaded(&self) -> Machine {
        load(&*self.engine.snapshot().expect("a snapshot"), &mut |_| {}).expect("loads")
    }

    fn reader(&self) -> Reader {
        Reader::new(self.machine.shared().clone(), self.engine.clone(), self.view.clone())
    }

    /// Applies all, commits once, publishes, and lets compaction finish.
    fn group(&mut self, actions: &[Action]) -> String {
        let snapshot = self.engine.snapshot().expect("a snapshot");
        let mut staging = Staging::new(snapshot, self.machine.next_position());
        let mut told = String::new();
        let mut changed = false;
        for action in actions {
            let Some(command) = command_of(action) else {
                told += &self.run(action);
                continue;
            };
            let outcome = self.machine.apply(&mut staging, &command).expect("the store works");
            changed |= outcome.changed;
            told += &outcome_text(action, outcome);
        }
        self.machine.finish_group(&mut staging, changed);
        told += &self.commit(staging);
        for _ in 0..COMPACTION_STEPS {
            if !self.machine.compacting() {
                return told;
            }
            let snapshot = self.engine.snapshot().expect("a snapshot");
            let mut staging = Staging::new(snapshot, self.machine.next_position());
            let known = self.view.now().visible.compacted;
            self.machine.compaction_step(&mut staging, known).expect("the store works");
            self.machine.finish_group(&mut staging, false);
            assert_eq!(self.commit(staging), "", "compaction has no events");
        }
        panic!("compaction does not end");
    }

    fn commit(&mut self, staging: Staging) -> String {
        let (batch, events) = staging.finish();
        self.engine.commit(&batch, Durability::Immediate).expect("the store works");
        self.view.publish(self.machine.published());
        events.iter().map(|events| self.events(events, false)).collect()
    }

    fn get(&self, request: &pb::RangeRequest) -> String {
        match self.reader().range(request, None) {
            Ok(reply) => {
                let reply = pb::RangeResponse::decode(&reply.encode_to_vec()[..]);
                text::response(&Response::ResponseRange(reply.expect("an answer")), 0)
            }
            Err(ReadError::Refused(refusal)) => refused(refusal),
            Err(ReadError::Storage(error)) => panic!("{error}"),
        }
    }

    fn events(&self, revision: &RevisionEvents, prev: bool) -> String {
        let events = revision.events.iter().map(|event| {
            let kind = match event.kind {
                EventKind::Put => EventType::Put,
                EventKind::Delete => EventType::Delete,
            };
            let kv = KeyValue::decode(&event.kv[..]).expect("an encoded pair");
            assert_eq!((&event.key, event.row.main), (&kv.key, revision.revision));
            assert_eq!(event.create, kv.create_revision == kv.mod_revision);
            let before = if prev {
                let kv = self.reader().previous(&event.key, event.row.main).expect("readable");
                kv.map(|kv| KeyValue::decode(&kv[..]).expect("an encoded pair"))
            } else {
                None
            };
            text::event(&Event { r#type: kind as i32, kv: Some(kv), prev_kv: before })
        });
        events.collect()
    }

    fn history(&self, from: i64, prev: bool) -> String {
        let budget = HistoryBudget { bytes: 1 << 20, events: 1000 };
        match self.reader().events(from, i64::MAX, budget) {
            Ok(chunk) => chunk.revisions.iter().map(|events| self.events(events, prev)).collect(),
            Err(error) => text::refused(&error.to_string()),
        }
    }

    fn leases(&self) -> String {
        let table = &self.machine.shared().leases;
        let leases = table.all().value;
        if leases.is_empty() {
            return "no leases\n".into();
        }
        let keys = |id| table.keys(id, None, usize::MAX).value.expect("a living lease");
        leases.iter().map(|lease| text::lease(lease.id, lease.ttl, &keys(lease.id))).collect()
    }

    fn lease(&self, id: i64) -> String {
        match self.machine.shared().leases.get(id).value {
            None => "no such lease\n".into(),
            Some(lease) => format!(
                "ttl={} session={} renewals={} remaining={}\n",
                lease.ttl, lease.session, lease.renewals, lease.remaining
            ),
        }
    }

    fn rows(&self) -> String {
        let mut told = String::new();
        let snapshot = self.engine.snapshot().expect("a snapshot");
        try_scan(&*snapshot, Table::Rows, &[], None, |key, value| {
            let row = rows::decode_row_id(key)?;
            let (kind, kv) = rows::open(key, value)?;
            let kv = KeyValue::decode(kv).expect("an encoded pair");
            let what = match kind {
                EventKind::Put => format!("put {}", text::pair(&kv)),
                EventKind::Delete => format!("delete {}", text::bytes(&kv.key)),
            };
            told += &format!("{}.{} {what}\n", row.main, row.sub);
            Ok(ControlFlow::Continue(()))
        })
        .expect("readable rows");
        if told.is_empty() { "no rows\n".into() } else { told }
    }
}

/// The command that a step logs; `None` for one that only reads.
fn command_of(action: &Action) -> Option<Command> {
    Some(command(match action.clone() {
        Action::Request(Request::RequestPut(put)) => Op::Put(put),
        Action::Request(Request::RequestDeleteRange(delete)) => Op::DeleteRange(delete),
        Action::Request(Request::RequestTxn(txn)) => Op::Txn(txn),
        Action::Compact(revision) => {
            Op::Compact(pb::CompactionRequest { revision, physical: true })
        }
        Action::Grant { id, ttl, session } => {
            Op::LeaseGrant(LeaseGrant { id, ttl, session, marker: String::new() })
        }
        Action::Revoke(id) => Op::LeaseRevoke(LeaseRevoke { id }),
        Action::Alarm { raise, member, alarm } => Op::Alarm(AlarmChange { raise, member, alarm }),
        Action::Inner(Inner::Expire { id, session, renewals }) => {
            Op::LeaseExpire(LeaseExpire { id, session, renewals, marker: String::new() })
        }
        Action::Inner(Inner::Renewed { id, session }) => {
            Op::LeaseRenewed(LeaseRenewed { id, session, marker: String::new() })
        }
        Action::Inner(Inner::Checkpoint { id, session, renewals, seconds }) => {
            let remaining = vec![Remaining { id, session, seconds, renewals }];
            Op::LeaseCheckpoint(LeaseCheckpoint { remaining })
        }
        Action::Request(Request::RequestRange(_))
        | Action::Leases
        | Action::Alarms
        | Action::History { .. }
        | Action::Inner(_) => return None,
    }))
}

fn outcome_text(action: &Action, outcome: Outcome) -> String {
    let Outcome { reply, revision, changed } = outcome;
    let header = Some(pb::ResponseHeader { revision, ..Default::default() });
    match reply {
        Err(refusal) => {
            assert!(!changed, "{action:?} was refused and changed something");
            refused(refusal)
        }
        Ok(Reply::Put(put)) => text::response(&Response::ResponsePut(put), 0),
        Ok(Reply::DeleteRange(delete)) => text::response(&Response::ResponseDeleteRange(delete), 0),
        Ok(Reply::Txn(txn)) => {
            text::response(&Response::ResponseTxn(pb::TxnResponse { header, ..txn }), 0)
        }
        Ok(Reply::Compact(_)) => format!("compacted, revision {revision}\n"),
        Ok(Reply::Alarm(alarms)) => text::alarms(&alarms),
        Ok(Reply::Auth) => format!("changed, revision {revision}\n"),
        Ok(Reply::Lease(effect)) => {
            let what = match action {
                Action::Grant { .. } => "granted",
                Action::Revoke(_) => "revoked",
                _ if !changed => "ignored",
                Action::Inner(Inner::Expire { .. }) => "expired",
                _ => "noted",
            };
            assert!(effect || !changed, "{action:?} says that it had no effect");
            format!("{what}, revision {revision}\n")
        }
    }
}

fn refused(refusal: Refusal) -> String {
    text::refused(Error::from(refusal).told().1)
}

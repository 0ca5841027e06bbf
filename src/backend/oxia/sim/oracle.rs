//! What is true: the log's records applied at the moment at which they land, and what clients were
//! promised. Whatever contradicts it is a violation.

use super::engine::MapEngine;
use crate::keyspace::command::Op;
use crate::keyspace::event::{EventKind, RevisionEvents};
use crate::keyspace::gateways::{Admission, Gateways};
use crate::keyspace::load::load;
use crate::keyspace::machine::Machine;
use crate::keyspace::reader::Reader;
use crate::keyspace::staging::Staging;
use crate::keyspace::view::View;
use crate::storage::{Durability, Engine};
use bytes::Bytes;
use leaseway_proto::log::Entry;
use leaseway_proto::mvccpb::KeyValue;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// What became of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// When its last grant landed.
    pub granted: Option<Instant>,
    /// When its last end landed.
    pub ended: Option<Instant>,
    /// Whether that was an expiry.
    pub expired: bool,
    /// How often it was granted.
    pub lives: u64,
}

/// The state of a key.
type Value = Option<(Bytes, i64)>;

/// The true state.
pub struct Oracle {
    machine: Machine,
    gateways: Gateways,
    engine: Arc<MapEngine>,
    view: Arc<View>,
    /// Reads the true state.
    pub reader: Reader,
    /// Number of records applied.
    pub position: u64,
    /// Events by revision.
    pub events: BTreeMap<i64, RevisionEvents>,
    // Each key's states by revision.
    states: BTreeMap<Bytes, BTreeMap<i64, Value>>,
    values: BTreeSet<Bytes>,
    /// What became of leases.
    pub fates: BTreeMap<i64, Fate>,
    /// Moments before which a lease must not expire.
    pub promises: BTreeMap<i64, Instant>,
    /// When markers of sessions went that ended by themselves or were ended.
    pub gone: BTreeMap<String, Instant>,
    /// From when until when all gateways were cut off, for so long that they notice.
    pub cuts: Vec<(Instant, Instant)>,
    /// What went wrong first.
    pub violation: Option<String>,
}

impl Oracle {
    /// An empty keyspace.
    pub fn new() -> Self {
        let engine = Arc::new(MapEngine::default());
        let snapshot = engine.snapshot().expect("a map");
        let machine = load(&*snapshot, &mut |_| {}).expect("an empty store");
        let view = Arc::new(View::new(machine.published()));
        let reader = Reader::new(machine.shared().clone(), engine.clone(), view.clone());
        Self {
            machine,
            gateways: Gateways::default(),
            engine,
            view,
            reader,
            position: 0,
            events: BTreeMap::new(),
            states: BTreeMap::new(),
            values: BTreeSet::new(),
            fates: BTreeMap::new(),
            promises: BTreeMap::new(),
            gone: BTreeMap::new(),
            cuts: Vec::new(),
            violation: None,
        }
    }

    /// Notes that something is wrong, if nothing was before.
    pub fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// A record landed in the log.
    pub fn land(&mut self, record: &Bytes, now: Instant) {
        self.position += 1;
        let entry = match Entry::decode(record.clone()) {
            Ok(entry) => entry,
            Err(error) => return self.violate(format!("an entry that is none: {error}")),
        };
        let snapshot = self.engine.snapshot().expect("a map");
        let mut staging = Staging::new(snapshot, self.position);
        if self.gateways.admit(&entry) == Ok(Admission::Apply) {
            for command in &entry.commands {
                self.apply(&mut staging, command.op.as_ref(), now, |machine, staging| {
                    machine.apply(staging, command).expect("a map");
                });
            }
        }
        self.machine.finish_group(&mut staging, true);
        let (batch, events) = staging.finish();
        self.engine.commit(&batch, Durability::Deferred).expect("a map");
        self.view.publish(self.machine.published());
        for revision in events {
            self.note(&revision);
            self.events.insert(revision.revision, revision);
        }
    }

    fn apply(
        &mut self,
        staging: &mut Staging,
        op: Option<&Op>,
        now: Instant,
        apply: impl FnOnce(&mut Machine, &mut Staging),
    ) {
        let lease = match op {
            Some(Op::LeaseGrant(grant)) => grant.id,
            Some(Op::LeaseExpire(expire)) => expire.id,
            Some(Op::LeaseRevoke(revoke)) => revoke.id,
            _ => return apply(&mut self.machine, staging),
        };
        let before = self.reader.leases().get(lease).value;
        let lived = before.is_some();
        apply(&mut self.machine, staging);
        let lives = self.reader.leases().get(lease).value.is_some();
        let fate = self.fates.entry(lease).or_default();
        if !lived && lives {
            fate.granted = Some(now);
            fate.lives += 1;
        }
        if lived && !lives {
            let expired = matches!(op, Some(Op::LeaseExpire(_)));
            (fate.ended, fate.expired) = (Some(now), expired);
            let promise = self.promises.remove(&lease);
            if let Some(early) = promise.filter(|promise| expired && *promise > now) {
                let by = op.map(|op| format!("{op:?}")).unwrap_or_default();
                self.violate(format!("lease {lease} expired {:?} early by {by}", early - now));
            }
            // Without a promise nobody was told that it was granted.
            let unspared = before.filter(|lease| expired && promise.is_some() && !lease.spared);
            if unspared.is_some_and(|lease| self.ended_in_a_cut(&lease.marker)) {
                self.violate(format!("lease {lease} expired, but nobody could renew it"));
            }
        }
    }

    fn ended_in_a_cut(&self, marker: &str) -> bool {
        let cut = |gone: &Instant| self.cuts.iter().any(|(from, to)| from < gone && gone <= to);
        self.gone.get(marker).is_some_and(cut)
    }

    fn note(&mut self, revision: &RevisionEvents) {
        for event in revision.events.iter() {
            let states = self.states.entry(event.key.clone()).or_default();
            let before = states.last_key_value().and_then(|(_, value)| value.clone());
            if event.kind == EventKind::Delete {
                states.insert(revision.revision, None);
                continue;
            }
            let value = KeyValue::decode(event.kv.clone()).map(|kv| kv.value).unwrap_or_default();
            states.insert(revision.revision, Some((value.clone(), revision.revision)));
            if event.key.starts_with(b"counter") {
                let (before, after) =
                    (before.map_or(0, |(value, _)| number(&value)), number(&value));
                if after != before + 1 {
                    self.violate(format!("a counter went from {before} to {after}"));
                }
            } else if !self.values.insert(value.clone()) {
                self.violate(format!("{value:?} was put twice"));
            }
        }
    }

    /// A key's value at a revision, and the revision that it was put at.
    pub fn value_at(&self, key: &[u8], revision: i64) -> Value {
        let states = self.states.get(key)?;
        states.range(..=revision).next_back().and_then(|(_, value)| value.clone())
    }

    /// Revisions that a gateway publishes have to be these.
    pub fn compare(&mut self, gateway: usize, published: &[RevisionEvents]) {
        for revision in published {
            let same = self.events.get(&revision.revision).is_some_and(|truth| {
                let keys = |of: &RevisionEvents| -> Vec<_> {
                    of.events.iter().map(|event| (event.row, event.kv.clone())).collect()
                };
                keys(truth) == keys(revision)
            });
            if !same {
                let number = revision.revision;
                self.violate(format!("gateway {gateway} published another revision {number}"));
            }
        }
    }

    /// A lease lives, counted from its grant, since when.
    pub fn lives_since(&self, lease: i64) -> Option<Instant> {
        self.reader.leases().get(lease).value?;
        self.fates.get(&lease)?.granted
    }

    /// Everything that has to be equal between those who applied the same log.
    pub fn digest(reader: &Reader) -> String {
        let hash = reader.hash_kv(0).map_err(|error| error.to_string());
        format!("{hash:?} {:?}", reader.leases().all().value)
    }

    /// The gateways as they truly are.
    pub fn gateways(&self) -> &Gateways {
        &self.gateways
    }
}

/// A counter's value.
pub fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

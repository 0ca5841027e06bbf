//! A history in memory for tests, with the full log kept aside to check against.

use crate::keyspace::event::{
    Event, EventKind, History, HistoryBudget, HistoryChunk, HistoryError, RevisionEvents, RowId,
    Visible,
};
use bytes::Bytes;
use leaseway_proto::mvccpb::{self, KeyValue};
use parking_lot::Mutex;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One change to commit.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(&'static str, Vec<u8>),
    Delete(&'static str),
}

/// An event and what it should carry as `prev_kv`.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub event: Event,
    pub previous: Option<KeyValue>,
}

impl Logged {
    /// As a watcher should see it.
    pub fn plain(&self, prev_kv: bool) -> mvccpb::Event {
        mvccpb::Event {
            r#type: i32::from(self.event.kind == EventKind::Delete),
            kv: KeyValue::decode(self.event.kv.clone()).ok(),
            prev_kv: self.previous.clone().filter(|_| prev_kv),
        }
    }
}

#[derive(Default)]
struct State {
    keys: BTreeMap<Bytes, KeyValue>,
    /// Revisions from 2 on, compacted ones included.
    log: Vec<Vec<Logged>>,
    compacted: i64,
}

impl State {
    fn revision(&self) -> i64 {
        self.log.len() as i64 + 1
    }

    fn at(&self, revision: i64) -> &[Logged] {
        usize::try_from(revision - 2)
            .ok()
            .and_then(|at| self.log.get(at))
            .map_or(&[], Vec::as_slice)
    }
}

#[derive(Default)]
pub(crate) struct FakeHistory {
    state: Mutex<State>,
    /// Added to each read of events, to widen races.
    pub delay_us: AtomicU64,
    /// Reads of events so far.
    pub reads: AtomicU64,
}

impl FakeHistory {
    /// Commits one revision. Changes that do nothing (deleting what is not there) are left out; at
    /// least one must do something.
    pub fn commit(&self, changes: &[Change]) -> RevisionEvents {
        let mut state = self.state.lock();
        let main = state.revision() + 1;
        let mut logged: Vec<Logged> = Vec::new();
        for change in changes {
            let row = RowId { main, sub: logged.len() as u32 };
            let (kind, key, kv, previous) = match change {
                Change::Put(key, value) => {
                    let key = Bytes::from_static(key.as_bytes());
                    let known = state.keys.get(&key);
                    let kv = KeyValue {
                        key: key.clone(),
                        create_revision: known.map_or(main, |kv| kv.create_revision),
                        mod_revision: main,
                        version: known.map_or(1, |kv| kv.version + 1),
                        value: value.clone().into(),
                        lease: 0,
                    };
                    let previous = state.keys.insert(key.clone(), kv.clone());
                    (EventKind::Put, key, kv, previous)
                }
                Change::Delete(key) => {
                    let key = Bytes::from_static(key.as_bytes());
                    let Some(previous) = state.keys.remove(&key) else { continue };
                    let kv =
                        KeyValue { key: key.clone(), mod_revision: main, ..Default::default() };
                    (EventKind::Delete, key, kv, Some(previous))
                }
            };
            let create = kind == EventKind::Put && previous.is_none();
            // A key changed twice in a revision: what was there before the revision counts.
            let previous = previous.filter(|kv| kv.mod_revision < main);
            let kv = kv.encode_to_vec().into();
            logged.push(Logged { event: Event { row, kind, key, kv, create }, previous });
        }
        assert!(!logged.is_empty(), "a revision without events");
        let events = logged.iter().map(|logged| logged.event.clone()).collect();
        state.log.push(logged);
        RevisionEvents { revision: main, events }
    }

    pub fn compact(&self, revision: i64) {
        let mut state = self.state.lock();
        state.compacted = state.compacted.max(revision.min(state.revision()));
    }

    /// Everything ever committed at a revision.
    pub fn logged(&self, revision: i64) -> Vec<Logged> {
        self.state.lock().at(revision).to_vec()
    }
}

impl History for FakeHistory {
    fn visible(&self) -> Visible {
        let state = self.state.lock();
        Visible { revision: state.revision(), compacted: state.compacted }
    }

    fn events(
        &self,
        from: i64,
        to: i64,
        budget: HistoryBudget,
    ) -> Result<HistoryChunk, HistoryError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let compacted = self.state.lock().compacted;
        if from < compacted {
            return Err(HistoryError::Compacted(compacted));
        }
        let delay = self.delay_us.load(Ordering::Relaxed);
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        let (mut count, mut size, mut revisions) = (0, 0, Vec::new());
        for revision in from..=to {
            // Not one snapshot: a compaction in the middle leaves holes, as thinning rows would.
            let state = self.state.lock();
            if revision < state.compacted {
                continue;
            }
            let events: Vec<Event> =
                state.at(revision).iter().map(|logged| logged.event.clone()).collect();
            drop(state);
            count += events.len();
            size += events.iter().map(|event| event.kv.len()).sum::<usize>();
            if !events.is_empty() {
                revisions.push(RevisionEvents { revision, events: events.into() });
            }
            if count >= budget.events || size >= budget.bytes {
                return Ok(HistoryChunk { revisions, through: revision });
            }
        }
        Ok(HistoryChunk { revisions, through: to })
    }

    fn previous(&self, key: &[u8], revision: i64) -> Result<Option<Bytes>, HistoryError> {
        let state = self.state.lock();
        if revision - 1 < state.compacted {
            return Ok(None);
        }
        let logged = state.at(revision).iter().find(|logged| logged.event.key == key);
        let previous = logged.and_then(|logged| logged.previous.as_ref());
        Ok(previous.map(|kv| kv.encode_to_vec().into()))
    }
}

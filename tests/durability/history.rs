//! What clients did and saw, and whether a server that was started again agrees with it.
//!
//! Whoever writes announces the changes of one revision before asking for them, and notes the
//! revision when they are acknowledged. Nobody else writes, so that afterwards the server's history
//! must consist of exactly the acknowledged revisions and some of those that were only announced,
//! each of them whole.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leaseway_proto::mvccpb::{Event, KeyValue};
use tonic::Status;

use crate::support::client::{Client, is_delete};

/// A key's new value and lease; `None` deletes it.
pub type Change = (Vec<u8>, Option<(Vec<u8>, i64)>);
/// The changes of one revision, in the order of the operations.
pub type Changes = Vec<Change>;

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// A grant was sent.
    Asked,
    /// A grant was acknowledged.
    Granted,
    /// A revocation was sent.
    Ending,
    /// A revocation was acknowledged.
    Ended,
}

/// The server has gone and left a request without an answer.
#[derive(Debug)]
pub struct Lost;

/// Changes by the revision that they were acknowledged at.
pub type Acknowledged = BTreeMap<i64, Changes>;

#[derive(Default)]
struct Notes {
    acknowledged: Acknowledged,
    announced: BTreeMap<u64, Changes>,
    seen: BTreeMap<i64, Vec<Change>>,
    leases: BTreeMap<i64, Lease>,
    // Highest revision that any answer carried.
    highest: i64,
    // Compactions that were acknowledged.
    compacted: i64,
}

/// Everything noted since the last start of the server. Clones are the same record.
#[derive(Clone, Default)]
pub struct Record {
    notes: Arc<Mutex<Notes>>,
    count: Arc<AtomicU64>,
    /// The server is about to be ended, or to end: failures are no surprise from here on.
    pub ending: Arc<AtomicBool>,
}

impl Record {
    fn with<T>(&self, act: impl FnOnce(&mut Notes) -> T) -> T {
        act(&mut self.notes.lock().expect("nobody panicked"))
    }

    /// Number of acknowledged changes.
    pub fn acknowledged(&self) -> usize {
        self.with(|notes| notes.acknowledged.len())
    }

    /// Runs a call that makes these changes at the revision that it returns, or, when it returns
    /// none because a condition was not met, makes no change.
    pub async fn attempt(
        &self,
        changes: Changes,
        call: impl Future<Output = Result<Option<i64>, Status>>,
    ) -> Result<Option<i64>, Lost> {
        let ticket = self.count.fetch_add(1, Ordering::Relaxed);
        self.with(|notes| notes.announced.insert(ticket, changes));
        let revision = self.answered(call.await)?;
        self.with(|notes| {
            let changes = notes.announced.remove(&ticket).expect("announced");
            let Some(revision) = revision else { return };
            let other = notes.acknowledged.insert(revision, changes);
            assert_eq!(other, None, "revision {revision} was acknowledged twice");
            notes.highest = notes.highest.max(revision);
        });
        Ok(revision)
    }

    /// The answer, unless the server is ending.
    pub fn answered<T>(&self, result: Result<T, Status>) -> Result<T, Lost> {
        result.map_err(|status| {
            assert!(self.ending.load(Ordering::SeqCst), "failed before the end: {status:?}");
            Lost
        })
    }

    pub fn lease(&self, id: i64, state: Lease) {
        self.with(|notes| notes.leases.insert(id, state));
    }

    pub fn compacted(&self, revision: i64) {
        self.with(|notes| notes.compacted = notes.compacted.max(revision));
    }

    /// A watcher was told of an event: a crash must not take it back.
    pub fn saw_event(&self, event: &Event) {
        let revision = event.kv.as_ref().expect("a key").mod_revision;
        let change = change_of(event);
        self.with(|notes| notes.seen.entry(revision).or_default().push(change));
    }

    /// A reader was shown a row and a revision.
    pub fn saw_row(&self, row: Option<&KeyValue>, revision: i64) {
        self.with(|notes| {
            notes.highest = notes.highest.max(revision);
            if let Some(kv) = row {
                let change = (kv.key.to_vec(), Some((kv.value.to_vec(), kv.lease)));
                notes.seen.entry(kv.mod_revision).or_default().push(change);
            }
        });
    }
}

fn change_of(event: &Event) -> Change {
    let kv = event.kv.as_ref().expect("a key");
    let value = (!is_delete(event)).then(|| (kv.value.to_vec(), kv.lease));
    (kv.key.to_vec(), value)
}

/// A key as the server should show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub value: Vec<u8>,
    pub lease: i64,
    pub created: i64,
    pub modified: i64,
    pub version: i64,
}

/// The whole keyspace as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub rows: BTreeMap<Vec<u8>, Row>,
    pub leases: BTreeSet<i64>,
    pub revision: i64,
    pub compacted: i64,
}

impl Default for Model {
    fn default() -> Self {
        Model { rows: BTreeMap::new(), leases: BTreeSet::new(), revision: 1, compacted: 0 }
    }
}

impl Model {
    /// Applies the changes of the next revision.
    pub fn apply(&mut self, changes: &[Change]) {
        self.revision += 1;
        for (key, value) in changes {
            let Some((value, lease)) = value else {
                self.rows.remove(key).expect("only what exists is deleted");
                continue;
            };
            let before = self.rows.get(key);
            let row = Row {
                value: value.clone(),
                lease: *lease,
                created: before.map_or(self.revision, |row| row.created),
                modified: self.revision,
                version: before.map_or(1, |row| row.version + 1),
            };
            self.rows.insert(key.clone(), row);
        }
    }

    /// Asserts that a server shows these rows at a revision (0: now).
    pub async fn compare(&self, client: &Client, revision: i64, what: &str) {
        let answer = client.everything(revision).await;
        let answer = answer.unwrap_or_else(|status| panic!("{what}: {status:?}"));
        let shown: BTreeMap<Vec<u8>, Row> = answer.kvs.into_iter().map(row_of).collect();
        assert_eq!(shown.len(), self.rows.len(), "{what}: number of keys");
        for (key, row) in &self.rows {
            let key_text = String::from_utf8_lossy(key);
            assert_eq!(shown.get(key), Some(row), "{what}: key {key_text:?}");
        }
    }

    /// Brings the model up to date with what a restarted server holds, checking all of it against
    /// the record.
    pub async fn verify(&mut self, client: &Client, record: &Record, what: &str) {
        let current = client.revision().await;
        let mut notes = record.with(std::mem::take);
        assert!(
            current >= notes.highest.max(self.revision),
            "{what}: revision went back from {} to {current}",
            notes.highest.max(self.revision)
        );
        // What readers saw of earlier times has been verified before.
        notes.seen.retain(|&revision, _| revision > self.revision);
        if current > self.revision {
            let first = self.revision + 1;
            let mut watching = client.watch_everything(first).await.expect("a watch");
            let history = watching.collect_until(current).await;
            assert!(history.keys().copied().eq(first..=current), "{what}: revisions are missing");
            for (revision, events) in history {
                let changes: Changes = events.iter().map(change_of).collect();
                check_revision(&mut notes, revision, &changes, what);
                self.apply(&changes);
            }
        }
        assert!(
            notes.acknowledged.is_empty() && notes.seen.is_empty(),
            "{what}: lost: {:?} {:?}",
            notes.acknowledged,
            notes.seen
        );
        self.compare(client, 0, what).await;
        self.verify_leases(client, &notes, what).await;
        self.verify_compaction(client, &notes, what).await;
    }

    async fn verify_leases(&mut self, client: &Client, notes: &Notes, what: &str) {
        let shown: BTreeSet<i64> = client.leases().await.expect("leases").into_iter().collect();
        for (&id, &state) in &notes.leases {
            let there = shown.contains(&id);
            // A revocation that was not acknowledged happened with all it does, or not at all.
            let holds_keys = self.rows.values().any(|row| row.lease == id);
            match state {
                Lease::Granted => assert!(there, "{what}: lease {id:x} is lost"),
                Lease::Ended => assert!(!there, "{what}: lease {id:x} is back"),
                Lease::Ending => assert_eq!(there, holds_keys, "{what}: lease {id:x} is half gone"),
                Lease::Asked => {}
            }
            if there {
                self.leases.insert(id)
            } else {
                self.leases.remove(&id)
            };
        }
        assert_eq!(shown, self.leases, "{what}: leases");
        for &id in &shown {
            let answer = client.time_to_live(id, true).await.expect("a lease");
            let keys: Vec<&[u8]> = answer.keys.iter().map(|key| &key[..]).collect();
            let attached = self.rows.iter().filter(|(_, row)| row.lease == id);
            let expected: Vec<&[u8]> = attached.map(|(key, _)| &key[..]).collect();
            assert_eq!(keys, expected, "{what}: keys of lease {id:x}");
        }
    }

    async fn verify_compaction(&mut self, client: &Client, notes: &Notes, what: &str) {
        self.compacted = self.compacted.max(notes.compacted);
        if self.compacted > 1 {
            let error = client.everything(self.compacted - 1).await.expect_err("compacted");
            assert_eq!(error.code(), tonic::Code::OutOfRange, "{what}: {error:?}");
        }
    }
}

/// Takes a revision of the server's off the notes.
fn check_revision(notes: &mut Notes, revision: i64, changes: &Changes, what: &str) {
    if let Some(acknowledged) = notes.acknowledged.remove(&revision) {
        assert_eq!(&acknowledged, changes, "{what}: revision {revision} is not what was asked");
    } else {
        let ticket = notes.announced.iter().find(|(_, announced)| *announced == changes);
        let ticket = ticket.map(|(&ticket, _)| ticket);
        let ticket =
            ticket.unwrap_or_else(|| panic!("{what}: nobody asked for {revision}: {changes:?}"));
        notes.announced.remove(&ticket);
    }
    for seen in notes.seen.remove(&revision).unwrap_or_default() {
        assert!(changes.contains(&seen), "{what}: seen at {revision}, now gone: {seen:?}");
    }
}

fn row_of(kv: KeyValue) -> (Vec<u8>, Row) {
    let row = Row {
        value: kv.value.to_vec(),
        lease: kv.lease,
        created: kv.create_revision,
        modified: kv.mod_revision,
        version: kv.version,
    };
    (kv.key.to_vec(), row)
}

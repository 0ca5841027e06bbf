//! Reads that something overtakes between the revision that they take and the snapshot.

use super::*;
use crate::backend::fake::machine_after;
use crate::keyspace::command::{Op, command};
use crate::keyspace::machine::Machine;
use crate::keyspace::staging::Staging;
use crate::storage::{Batch, Durability};
use leaseway_proto::etcdserverpb::request_op::Request;
use parking_lot::Mutex;

/// Does something before it gives the next snapshot.
struct Overtaken {
    engine: Arc<dyn Engine>,
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Engine for Overtaken {
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, StorageError> {
        let before = self.before.lock().take();
        if let Some(before) = before {
            before();
        }
        self.engine.snapshot()
    }

    fn commit(&self, batch: &Batch, durability: Durability) -> Result<(), StorageError> {
        self.engine.commit(batch, durability)
    }

    fn settle(&self) -> Result<(), StorageError> {
        self.engine.settle()
    }

    fn file_bytes(&self) -> u64 {
        self.engine.file_bytes()
    }

    fn shrink(&self) -> Result<(), StorageError> {
        self.engine.shrink()
    }

    fn close(&self) {
        self.engine.close();
    }
}

fn put(key: &'static str) -> Op {
    Op::Put(pb::PutRequest { key: key.into(), value: "v".into(), ..pb::PutRequest::default() })
}

fn compact(revision: i64) -> Op {
    Op::Compact(pb::CompactionRequest { revision, physical: false })
}

/// Does these, and what is to be compacted then.
fn proceed(machine: &mut Machine, engine: &dyn Engine, view: &View, ops: Vec<Op>) {
    let mut ops = ops.into_iter();
    loop {
        let op = ops.next();
        if op.is_none() && !machine.compacting() {
            return;
        }
        let snapshot = engine.snapshot().expect("a snapshot");
        let mut staging = Staging::new(snapshot, machine.next_position());
        let has_command = op.is_some();
        if let Some(op) = op {
            let outcome = machine.apply(&mut staging, &command(op)).expect("applied");
            assert!(outcome.reply.is_ok(), "{outcome:?}");
        }
        let known = view.now().visible.compacted;
        machine.compaction_step(&mut staging, known).expect("a step");
        machine.finish_group(&mut staging, has_command);
        let (batch, _) = staging.finish();
        engine.commit(&batch, Durability::Deferred).expect("a commit");
        view.publish(machine.published());
    }
}

/// What `read` gives when these happen between the revision that it takes and the snapshot, and what it
/// gives again afterwards. Before, `k` is put at 2, 3 and 5, and `j` at 4.
fn overtaken<T>(ops: Vec<Op>, read: impl Fn(&Reader) -> T) -> [T; 2] {
    let (mut machine, engine) = machine_after([put("k"), put("k"), put("j"), put("k")]);
    let view = Arc::new(View::new(machine.published()));
    let (shared, under, published) = (machine.shared().clone(), engine.clone(), view.clone());
    let before: Box<dyn FnOnce() + Send> =
        Box::new(move || proceed(&mut machine, &*under, &published, ops));
    let engine = Arc::new(Overtaken { engine, before: Mutex::new(Some(before)) });
    let reader = Reader::new(shared, engine, view);
    [read(&reader), read(&reader)]
}

#[test]
fn a_hash_that_a_compaction_overtakes_is_exact_or_refused() {
    for revision in [0, 4, 5] {
        let [hash, again] = overtaken(vec![compact(3)], |reader| reader.hash_kv(revision));
        let hash = hash.expect("a hash");
        assert_eq!((hash.compacted, hash.current), (3, 5));
        assert_eq!(hash, again.expect("a hash"), "at {revision}");
    }
    let [hash, _] = overtaken(vec![compact(3)], |reader| reader.hash_kv(2));
    assert!(matches!(hash, Err(ReadError::Refused(Refusal::Compacted))), "{hash:?}");
}

#[test]
fn a_transaction_that_a_compaction_overtakes_is_of_the_newer_revision() {
    let range = |revision| {
        let key = "k".into();
        let range = pb::RangeRequest { key, revision, ..pb::RangeRequest::default() };
        vec![pb::RequestOp { request: Some(Request::RequestRange(range)) }]
    };
    let compare = vec![pb::Compare { key: "j".into(), ..pb::Compare::default() }];
    let txn = |compare: &Vec<pb::Compare>, revision| {
        let (success, failure) = (range(revision), range(revision));
        pb::TxnRequest { compare: compare.clone(), success, failure }
    };
    for request in [txn(&compare, 0), txn(&Vec::new(), 0), txn(&compare, 6)] {
        let [read, again] =
            overtaken(vec![put("j"), put("k"), compact(6)], |reader| reader.txn(&request, None));
        // One that was in the future is not any more.
        let read = read.expect("an answer");
        assert_eq!(read.header.as_ref().map(|header| header.revision), Some(7));
        assert_eq!(read, again.expect("an answer"));
    }
    let gone = txn(&compare, 5);
    let [read, _] =
        overtaken(vec![put("j"), put("k"), compact(6)], |reader| reader.txn(&gone, None));
    assert!(matches!(read, Err(ReadError::Refused(Refusal::Compacted))), "{read:?}");
}

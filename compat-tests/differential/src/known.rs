//! Deliberate differences from etcd, each by name. `docs/differences.md` explains them to users.

use crate::client::{Answer, End};
use crate::compare::Mismatch;
use crate::ops::Op;

/// One declared difference.
struct Known {
    /// Its name in `docs/differences.md`.
    name: &'static str,
    /// Exactly which mismatch it covers.
    covers: fn(&Op, &Answer, &Answer, &Mismatch) -> bool,
}

/// Declared as `catch-up-batches`: a watcher that catches up may get more than this in several
/// answers, divided between revisions, where etcd sends up to a thousand revisions in one. Streams
/// that have carried such an answer are compared revision by revision.
pub const LARGE_BATCH_BYTES: usize = 1 << 20;

const KNOWN: [Known; 4] = [
    // The hash of the storage's own file format, which only equal storages share. HashKV, the hash
    // of the keyspace, is compared exactly.
    Known {
        name: "hash-of-the-storage",
        covers: |op, _, _, mismatch| op.kind() == "Maintenance.Hash" && mismatch.path == "hash",
    },
    // etcd looks at its storage's version every few seconds, and until then a new member tells the
    // version that it was created with.
    Known {
        name: "storage-version-after-start",
        covers: |_, reference, subject, mismatch| {
            let told = |answer: &Answer| {
                let version = answer.message()?.get_field_by_name("storageVersion")?;
                version.as_str().map(str::to_owned)
            };
            let versions = [told(reference), told(subject)];
            let fits = |v: &Option<String>| matches!(v.as_deref(), Some("3.5.0" | "3.7.0"));
            mismatch.path == "storageVersion" && versions.iter().all(fits)
        },
    },
    // At a revision that was compacted, etcd answers with a note from that compaction, made over what
    // lies between it and the one before, as long as the process has it: after a restart the same
    // request gives another hash. Without notes the hash is always that of what can be read.
    Known {
        name: "hash-at-a-compacted-revision",
        covers: |op, reference, subject, _| {
            let field = |answer: &Answer, name| answer.message()?.get_field_by_name(name)?.as_i64();
            let revisions = |a: &Answer| (field(a, "compact_revision"), field(a, "hash_revision"));
            let (etcd, here) = (revisions(reference), revisions(subject));
            op.kind() == "Maintenance.HashKV"
                && here.0.is_some()
                && here.0 == here.1
                && etcd.1 == here.1
                && etcd.0 < etcd.1
        },
    },
    Known {
        name: "no-snapshot-yet",
        covers: |op, _, subject, _| {
            op.kind() == "Maintenance.Snapshot" && matches!(subject.end, End::Failed(12, ..))
        },
    },
];

/// Is the mismatch one of the declared differences?
pub fn covers(op: &Op, reference: &Answer, subject: &Answer, mismatch: &Mismatch) -> bool {
    KNOWN.iter().any(|known| (known.covers)(op, reference, subject, mismatch))
}

/// The names of all declared differences.
pub fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|known| known.name).chain(["catch-up-batches"])
}

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

const KNOWN: [Known; 2] = [
    // The hash of the storage's own file format, which only equal storages share. HashKV, the hash
    // of the keyspace, is compared exactly.
    Known {
        name: "hash-of-the-storage",
        covers: |op, _, _, mismatch| op.kind() == "Maintenance.Hash" && mismatch.path == "hash",
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
    KNOWN.iter().map(|known| known.name)
}

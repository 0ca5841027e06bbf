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

const KNOWN: [Known; 3] = [
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

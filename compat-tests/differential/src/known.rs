//! Deliberate differences from etcd, each by its name in `docs/differences.md`, which explains them to
//! users. What etcd itself does not do the same way twice is in [`UNSETTLED`].

use crate::client::{Answer, End};
use crate::compare::Mismatch;
use crate::ops::Op;
use prost_reflect::DynamicMessage;

/// A call with a difference.
pub struct Case<'a> {
    /// The operation.
    pub op: &'a Op,
    /// etcd's answer.
    pub reference: &'a Answer,
    /// The subject's answer.
    pub subject: &'a Answer,
    /// The revision of the last compaction.
    pub compacted: i64,
}

/// One declared difference.
struct Known {
    /// Its name in `docs/differences.md`.
    name: &'static str,
    /// Exactly which mismatch it covers.
    covers: fn(&Case<'_>, &Mismatch) -> bool,
}

/// Declared as `catch-up-batches`: a watcher that catches up may get more than this in several
/// answers, divided between revisions, where etcd sends up to a thousand revisions in one. Streams
/// that have carried such an answer are compared revision by revision.
pub const LARGE_BATCH_BYTES: usize = 1 << 19;

const KNOWN: [Known; 11] = [
    // The hash of the storage's own file format, which only equal storages share. HashKV, the hash
    // of the keyspace, is compared exactly.
    Known {
        name: "hash",
        covers: |case, mismatch| case.op.kind() == "Maintenance.Hash" && mismatch.path == "hash",
    },
    // At a revision that was compacted, etcd answers with a note from that compaction, made over what
    // lies between it and the one before, as long as the process has it: after a restart the same
    // request gets another hash or an error. Without notes there is only what can be read.
    Known {
        name: "hash-cached",
        covers: |case, _| {
            let (etcd_compacted, etcd_hashed) = hash_revisions(case.reference);
            let is_note =
                etcd_hashed > 0 && etcd_compacted < etcd_hashed && etcd_hashed <= case.compacted;
            let without_note = match &case.subject.end {
                End::Ok => hash_revisions(case.subject) == (etcd_hashed, etcd_hashed),
                End::Failed(11, text, _) => text.ends_with("required revision has been compacted"),
                _ => false,
            };
            case.op.kind() == "Maintenance.HashKV" && is_note && without_note
        },
    },
    // The note of a compaction to revision 0 is found for every request without a revision.
    Known {
        name: "hash-cached",
        covers: |case, _| {
            case.op.kind() == "Maintenance.HashKV" && hash_revisions(case.reference) == (-1, 0)
        },
    },
    // etcd sorts each piece of a stream after it has read one key too many, cuts it, and goes on behind
    // whichever key is then the last.
    Known {
        name: "stream-sort-target",
        covers: |case, _| {
            let target = |request: &DynamicMessage| {
                request.get_field_by_name("sort_target").and_then(|target| target.as_enum_number())
            };
            case.op.kind() == "KV.RangeStream"
                && case.op.request().and_then(target).is_some_and(|target| target != 0)
                && case.subject.end == End::Ok
        },
    },
    // Go reads a field of another type than the declared one as an unknown field.
    Known {
        name: "field-of-another-type",
        covers: |case, _| {
            matches!(case.op, Op::Raw { .. })
                && matches!(&case.subject.end, End::Failed(13, text, _) if text.ends_with("cannot parse invalid wire-format data"))
        },
    },
    Known {
        name: "json-depth",
        covers: |case, _| {
            matches!(case.op, Op::Json(_))
                && matches!(&case.subject.end, End::Failed(3, text, _) if text.ends_with("exceeded max recursion depth"))
        },
    },
    Known {
        name: "json-path",
        covers: |case, _| {
            let strange = |path: &str| path.contains("//") || path.contains("/.");
            matches!(case.op, Op::Json(request) if strange(&request.path))
                && case.reference.http.starts_with("30")
                && case.subject.http.starts_with("404,")
        },
    },
    // The text tells how long the message is, or here the JSON.
    Known {
        name: "json-large",
        covers: |case, _| {
            let too_large = |answer: &Answer| matches!(&answer.end, End::Failed(8, text, _) if text.starts_with("grpc: received message larger than max ("));
            !case.subject.http.is_empty() && too_large(case.reference) && too_large(case.subject)
        },
    },
    // etcd ends without a word where a request can't be read.
    Known {
        name: "json-stream-request",
        covers: |case, _| {
            matches!(case.op, Op::Json(request) if request.path == "/v3/lease/keepalive")
                && case.reference.end == End::Ok
                && matches!(&case.subject.end, End::Failed(3, text, _) if text.starts_with("Failed to decode request"))
        },
    },
    Known {
        name: "downgrade",
        covers: |case, _| {
            let refused = |end: &End| matches!(end, End::Failed(3, text, _) if text == "etcdserver: invalid downgrade target version");
            case.op.kind() == "Maintenance.Downgrade"
                && case.reference.end == End::Ok
                && refused(&case.subject.end)
        },
    },
    Known {
        name: "snapshot",
        // The same content in other pages, so there are more pieces or fewer. Both have to be whole: the
        // checksum, without anything remaining, comes last.
        covers: |case, mismatch| {
            let whole = |answer: &Answer| {
                let remaining =
                    |m: &DynamicMessage| m.get_field_by_name("remaining_bytes")?.as_u64();
                answer.end == End::Ok
                    && answer.messages.len() > 1
                    && answer.messages.last().and_then(remaining) == Some(0)
            };
            case.op.kind() == "Maintenance.Snapshot"
                && whole(case.reference)
                && whole(case.subject)
                && (mismatch.path == "number of messages"
                    || mismatch.path.ends_with("remaining_bytes"))
        },
    },
];

/// Differences that come and go between two etcds.
const UNSETTLED: [Known; 1] = [
    // etcd looks at its storage's version every few seconds, and until then a new member tells the
    // version that it was created with.
    Known {
        name: "storage-version-after-start",
        covers: |case, mismatch| {
            let told = |answer: &Answer| {
                let version = answer.message()?.get_field_by_name("storageVersion")?;
                version.as_str().map(str::to_owned)
            };
            let versions = [told(case.reference), told(case.subject)];
            let fits = |v: &Option<String>| matches!(v.as_deref(), Some("3.5.0" | "3.7.0"));
            mismatch.path == "storageVersion" && versions.iter().all(fits)
        },
    },
];

/// The compacted revision and the hashed one of an answer to HashKV.
fn hash_revisions(answer: &Answer) -> (i64, i64) {
    let field = |name| answer.message().and_then(|m| m.get_field_by_name(name)?.as_i64());
    (field("compact_revision").unwrap_or(0), field("hash_revision").unwrap_or(0))
}

/// Is the mismatch one of the declared differences?
pub fn covers(case: &Case<'_>, mismatch: &Mismatch) -> bool {
    KNOWN.iter().chain(&UNSETTLED).any(|known| (known.covers)(case, mismatch))
}

/// The names of all declared differences.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = KNOWN.iter().map(|known| known.name).collect();
    names.extend(["catch-up-batches", "json-errors"]);
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    #[test]
    fn users_are_told_of_every_difference() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/differences.md");
        let document = std::fs::read_to_string(path).unwrap();
        for name in super::names() {
            assert!(document.contains(&format!("| `{name}` |")), "{name} is not explained");
        }
    }
}

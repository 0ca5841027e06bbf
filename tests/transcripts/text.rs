//! Answers and events as transcripts show them.

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::response_op::Response;
use leaseway_proto::mvccpb::{Event, KeyValue};

use crate::support::client::is_delete;

/// Any answer of the service KV, indented by two spaces for each level of nesting.
pub fn response(response: &Response, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let revision = |header: &Option<pb::ResponseHeader>| header.map_or(0, |header| header.revision);
    let pairs = |word: &str, pairs: &[KeyValue]| -> String {
        pairs.iter().map(|kv| format!("{indent}  {word}{}\n", pair(kv))).collect()
    };
    match response {
        Response::ResponsePut(put) => {
            let before: String =
                put.prev_kv.iter().map(|kv| format!("{indent}  was {}\n", pair(kv))).collect();
            format!("{indent}put, revision {}\n{before}", revision(&put.header))
        }
        Response::ResponseRange(range) => {
            let more = if range.more { ", more" } else { "" };
            let (count, revision) = (range.count, revision(&range.header));
            format!("{indent}{count} found{more}, revision {revision}\n{}", pairs("", &range.kvs))
        }
        Response::ResponseDeleteRange(delete) => {
            let (deleted, revision) = (delete.deleted, revision(&delete.header));
            format!(
                "{indent}{deleted} deleted, revision {revision}\n{}",
                pairs("was ", &delete.prev_kvs)
            )
        }
        Response::ResponseTxn(txn) => {
            let branch = if txn.succeeded { "then" } else { "else" };
            // Only the outermost answer has a revision.
            let revision = match revision(&txn.header) {
                0 => String::new(),
                revision => format!(", revision {revision}"),
            };
            let inner = txn.responses.iter().filter_map(|op| op.response.as_ref());
            let inner: String = inner.map(|op| self::response(op, depth + 1)).collect();
            format!("{indent}{branch}{revision}\n{inner}")
        }
    }
}

/// An event, with what was there before when that was asked for and is known.
pub fn event(event: &Event) -> String {
    let kv = event.kv.as_ref().expect("every event has a key");
    let told = if is_delete(event) {
        assert_eq!((kv.create_revision, kv.version, kv.lease), (0, 0, 0), "{kv:?}");
        format!("event: delete {} mod={}", bytes(&kv.key), kv.mod_revision)
    } else {
        format!("event: put {}", pair(kv))
    };
    let before = event.prev_kv.as_ref().map(|kv| format!(", was {}", pair(kv)));
    format!("{told}{}\n", before.unwrap_or_default())
}

/// A refused request.
pub fn refused(text: &str) -> String {
    format!("refused: {text}\n")
}

/// A lease with its keys.
pub fn lease(id: i64, ttl: i64, keys: &[impl AsRef<[u8]>]) -> String {
    let mut keys: Vec<String> = keys.iter().map(|key| bytes(key.as_ref())).collect();
    keys.sort_unstable();
    let list = if keys.is_empty() { "no keys".into() } else { keys.join(" ") };
    format!("{id} ttl={ttl}: {list}\n")
}

/// Raised alarms, in an order of their own: etcd's is random.
pub fn alarms(alarms: &[pb::AlarmMember]) -> String {
    if alarms.is_empty() {
        return "no alarm\n".into();
    }
    let text = |alarm: &pb::AlarmMember| {
        format!("{} of member {}\n", alarm.alarm().as_str_name(), alarm.member_id)
    };
    let mut alarms: Vec<String> = alarms.iter().map(text).collect();
    alarms.sort_unstable();
    alarms.concat()
}

/// A key with everything about it.
pub fn pair(kv: &KeyValue) -> String {
    let lease = if kv.lease == 0 { String::new() } else { format!(" lease={}", kv.lease) };
    format!(
        "{}={} create={} mod={} version={}{lease}",
        bytes(&kv.key),
        bytes(&kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version
    )
}

/// Bytes as they are written in a transcript.
pub fn bytes(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

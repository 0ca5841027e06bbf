//! Watch streams on both servers, and which part of their answers must be equal.
//!
//! etcd sends the answers of one watcher in order, but gives no order between watchers of a stream,
//! nor between a watcher's events and what concerns the whole stream. So a stream's log is divided
//! into *channels*, and each is compared with its counterpart.

use std::collections::BTreeMap;

use leaseway_proto::etcdserverpb as pb;
use prost::Message;
use prost_reflect::{DynamicMessage, Value};

use crate::bind::Binding;
use crate::compare::{self, Mismatch};
use crate::known;
use crate::schema::Schema;
use crate::stream::{Log, StreamPair};

/// The watcher id of answers that concern no single watcher.
const WHOLE_STREAM: i64 = -1;

/// One watch stream to both servers.
#[derive(Debug)]
pub struct WatchStream {
    /// The connections.
    pub pair: StreamPair,
    /// For every create request in order: is it the tester's own fence?
    pub creates: Vec<bool>,
    /// True after `close`.
    pub closed: bool,
}

/// A request that is always refused at once. As requests of a stream are handled in order, its
/// answer proves that all requests before it have been handled.
pub fn fence() -> DynamicMessage {
    let create = pb::WatchCreateRequest {
        key: "b".into(),
        range_end: "a".into(),
        ..pb::WatchCreateRequest::default()
    };
    let union = pb::watch_request::RequestUnion::CreateRequest(create);
    Schema::known("Watch.Watch").request(&pb::WatchRequest { request_union: Some(union) })
}

/// A part of a stream's answers that has an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// Which watchers were created, in order.
    Created,
    /// Create requests that were refused.
    Refused,
    /// Progress answers for the whole stream.
    Progress,
    /// All about one watcher.
    Watcher(i64),
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Channel::Created => write!(f, "created watchers"),
            Channel::Refused => write!(f, "refused watchers"),
            Channel::Progress => write!(f, "progress"),
            Channel::Watcher(id) => write!(f, "watcher {id}"),
        }
    }
}

/// The channels of a log, normalised; without what depends on batching when `flat`.
pub fn channels(
    log: &Log,
    creates: &[bool],
    binding: &Binding,
    flat: bool,
) -> BTreeMap<Channel, Vec<DynamicMessage>> {
    let mut out: BTreeMap<Channel, Vec<DynamicMessage>> = BTreeMap::new();
    let mut created = 0;
    for message in &log.messages {
        let id = watch_id(message);
        let is_created = flag(message, "created");
        let fence = is_created && creates.get(created).copied().unwrap_or(false);
        created += usize::from(is_created);
        if fence {
            continue;
        }
        let mut message = message.clone();
        binding.normalise(&mut message);
        let channel = match (id, is_created) {
            (WHOLE_STREAM, true) => Channel::Refused,
            (WHOLE_STREAM, false) => Channel::Progress,
            (id, _) => Channel::Watcher(id),
        };
        if is_created {
            let mut order = message.clone();
            order.clear_field_by_name("header");
            out.entry(Channel::Created).or_default().push(order);
        }
        out.entry(channel).or_default().push(message);
    }
    if flat {
        out.remove(&Channel::Progress);
        out.values_mut().for_each(|list| *list = by_revision(std::mem::take(list)));
    }
    out
}

/// The same answers with one message for each revision's events, and without what depends on how
/// they were batched. Only fragments are put together: a revision that is spread over whole answers
/// stays so, as that would be a mistake.
fn by_revision(answers: Vec<DynamicMessage>) -> Vec<DynamicMessage> {
    let mut out: Vec<DynamicMessage> = Vec::new();
    let mut in_fragments = false;
    for answer in answers {
        let events = events(&answer);
        if events.is_empty() {
            out.push(answer);
            continue;
        }
        let mut joinable = in_fragments;
        for event in events {
            let revision = mod_revision(&event);
            let last = out.last_mut().and_then(|m| m.get_field_by_name_mut("events"));
            match last.and_then(|events| events.as_list_mut()) {
                Some(last) if joinable && last.last().map(mod_revision) == Some(revision) => {
                    last.push(event);
                }
                _ => {
                    let mut one = answer.clone();
                    one.clear_field_by_name("header");
                    one.clear_field_by_name("fragment");
                    one.set_field_by_name("events", Value::List(vec![event]));
                    out.push(one);
                }
            }
            joinable = true;
        }
        in_fragments = flag(&answer, "fragment");
    }
    out
}

/// True when a stream has carried more at once than a server may want to put into one answer.
fn is_large(log: &Log) -> bool {
    log.messages.iter().any(|message| message.encoded_len() > known::LARGE_BATCH_BYTES)
}

/// What the comparison of two logs gave.
#[derive(Debug)]
pub enum Verdict {
    /// The same answers.
    Equal,
    /// The same as far as the shorter one goes.
    Incomplete(Mismatch),
    /// They differ.
    Different(Mismatch),
}

/// Compares what both servers have sent on a stream so far.
pub fn compare(stream: &WatchStream, bindings: [&Binding; 2], burst: bool) -> Verdict {
    let (reference, subject) = (stream.pair.reference.log(), stream.pair.subject.log());
    let creates = &stream.creates;
    let verdict = compare_logs(&reference, &subject, creates, bindings, burst);
    let large = is_large(&reference) || is_large(&subject);
    match verdict {
        Verdict::Different(_) if large && !burst => {
            compare_logs(&reference, &subject, creates, bindings, true)
        }
        verdict => verdict,
    }
}

fn compare_logs(
    reference: &Log,
    subject: &Log,
    creates: &[bool],
    bindings: [&Binding; 2],
    flat: bool,
) -> Verdict {
    let left = channels(reference, creates, bindings[0], flat);
    let right = channels(subject, creates, bindings[1], flat);
    let mut incomplete = None;
    let none = Vec::new();
    for channel in left.keys().chain(right.keys()) {
        let (l, r) = (left.get(channel).unwrap_or(&none), right.get(channel).unwrap_or(&none));
        for (index, (l, r)) in l.iter().zip(r).enumerate() {
            if let Some(mut mismatch) = compare::messages(l, r) {
                mismatch.path = format!("{channel}, answer {index}: {}", mismatch.path);
                return Verdict::Different(mismatch);
            }
        }
        if l.len() != r.len() {
            let extra = |list: &[DynamicMessage], other: usize| {
                list.get(other).map_or("nothing more".to_owned(), crate::ops::message_text)
            };
            let path = format!("{channel}, answer {}", l.len().min(r.len()));
            incomplete = Some(Mismatch::new(&path, extra(l, r.len()), extra(r, l.len())));
        }
    }
    if reference.end != subject.end {
        let text = |end| format!("{end:?}");
        let (l, r) = (text(&reference.end), text(&subject.end));
        incomplete = Some(Mismatch::new("end of the stream", l, r));
    }
    incomplete.map_or(Verdict::Equal, Verdict::Incomplete)
}

/// Number of answers to create requests.
pub fn created_count(log: &Log) -> usize {
    log.messages.iter().filter(|m| flag(m, "created")).count()
}

/// The last revision of which a watcher has got all events.
pub fn received_up_to(log: &Log, id: i64) -> i64 {
    let with_events = |m: &&DynamicMessage| watch_id(m) == id && !events(m).is_empty();
    let Some(last) = log.messages.iter().rev().find(with_events) else { return 0 };
    let revision = events(last).last().map_or(0, mod_revision);
    revision - i64::from(flag(last, "fragment"))
}

/// Has the server cancelled the watcher? (A refused request is created and cancelled at once, with the
/// id -1, which a watcher may have as well.)
pub fn is_cancelled(log: &Log, id: i64) -> bool {
    let cancels = |m: &DynamicMessage| flag(m, "canceled") && !flag(m, "created");
    log.messages.iter().any(|m| watch_id(m) == id && cancels(m))
}

/// The watcher that an answer is about.
pub fn watch_id(message: &DynamicMessage) -> i64 {
    message.get_field_by_name("watch_id").and_then(|v| v.as_i64()).unwrap_or(0)
}

/// A field that is true or false.
pub fn flag(message: &DynamicMessage, name: &str) -> bool {
    message.get_field_by_name(name).and_then(|v| v.as_bool()).unwrap_or(false)
}

/// The events of an answer.
pub fn events(message: &DynamicMessage) -> Vec<Value> {
    let events = message.get_field_by_name("events");
    events.and_then(|v| v.as_list().map(<[Value]>::to_vec)).unwrap_or_default()
}

/// The revision of an event.
pub fn mod_revision(event: &Value) -> i64 {
    let kv = event.as_message().and_then(|e| e.get_field_by_name("kv"));
    let revision = kv
        .as_ref()
        .and_then(|kv| kv.as_message())
        .and_then(|kv| kv.get_field_by_name("mod_revision"));
    revision.and_then(|v| v.as_i64()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(texts: &[&str]) -> Log {
        let output = &Schema::known("Watch.Watch").output;
        let parse = |t: &&str| DynamicMessage::parse_text_format(output.clone(), t).unwrap();
        Log { messages: texts.iter().map(parse).collect(), end: None }
    }

    const TWO: &str =
        "header{revision:9},watch_id:3,events:[{kv{mod_revision:5}},{kv{mod_revision:6}}]";

    #[test]
    fn answers_are_divided_and_fences_left_out() {
        let refused = "watch_id:-1,created:true,canceled:true";
        let log = log(&["watch_id:3,created:true", refused, refused, "watch_id:-1", TWO]);
        let channels = channels(&log, &[false, true, false], &Binding::default(), false);
        let lengths: Vec<_> = channels.iter().map(|(c, l)| (*c, l.len())).collect();
        assert_eq!(
            lengths,
            [
                (Channel::Created, 2),
                (Channel::Refused, 1),
                (Channel::Progress, 1),
                (Channel::Watcher(3), 2)
            ]
        );
    }

    #[test]
    fn batching_is_ignored_in_bursts_only() {
        let parts = [
            "header{revision:5},watch_id:3,events:{kv{mod_revision:5}}",
            "header{revision:6},watch_id:3,events:{kv{mod_revision:6}}",
        ];
        let of = |texts: &[&str], burst| channels(&log(texts), &[], &Binding::default(), burst);
        assert_eq!(of(&parts, true), of(&[TWO], true));
        assert_ne!(of(&parts, false), of(&[TWO], false));
    }

    #[test]
    fn only_fragments_of_a_revision_are_put_together() {
        let part = |fragment: bool, key: &str| {
            format!("watch_id:3,fragment:{fragment},events:{{kv{{key:\"{key}\",mod_revision:5}}}}")
        };
        let whole =
            "watch_id:3,events:[{kv{key:\"a\",mod_revision:5}},{kv{key:\"b\",mod_revision:5}}]";
        let of = |texts: &[&str]| channels(&log(texts), &[], &Binding::default(), true);
        assert_eq!(of(&[&part(true, "a"), &part(false, "b")]), of(&[whole]));
        assert_ne!(of(&[&part(false, "a"), &part(false, "b")]), of(&[whole]));
    }

    #[test]
    fn an_unfinished_revision_is_not_received() {
        let text = "watch_id:3,fragment:true,events:{kv{mod_revision:5}}";
        assert_eq!(received_up_to(&log(&[text]), 3), 4);
        assert_eq!(received_up_to(&log(&[TWO]), 3), 6);
        assert_eq!(received_up_to(&log(&[TWO]), 4), 0);
    }
}

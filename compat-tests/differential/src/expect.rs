//! Which events a watcher must get, so that the tester can wait for them instead of sleeping.
//!
//! Nothing is judged by this: it only decides how long to wait before two logs are compared.

use leaseway_proto::etcdserverpb as pb;
use prost_reflect::Value;

use crate::stream::Log;
use crate::watch;

/// An event as the tester's own watcher on the reference saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    revision: i64,
    key: Vec<u8>,
    is_delete: bool,
}

/// All events since the sequence began.
#[derive(Debug, Default)]
pub struct History {
    seen: Vec<Seen>,
    messages_read: usize,
}

impl History {
    /// Takes in what the log has got since the last call.
    pub fn read(&mut self, log: &Log) {
        for message in &log.messages[self.messages_read.min(log.messages.len())..] {
            self.seen.extend(watch::events(message).iter().filter_map(seen));
        }
        self.messages_read = log.messages.len();
    }

    /// To be called when the log begins anew; what was seen is kept.
    pub fn reopen(&mut self) {
        self.messages_read = 0;
    }

    /// The last revision seen.
    pub fn last(&self) -> i64 {
        self.seen.last().map_or(0, |seen| seen.revision)
    }
}

fn seen(event: &Value) -> Option<Seen> {
    let message = event.as_message()?;
    let is_delete = message.get_field_by_name("type")?.as_enum_number()? == 1;
    let kv = message.get_field_by_name("kv")?;
    let key = kv.as_message()?.get_field_by_name("key")?.as_bytes()?.to_vec();
    Some(Seen { revision: watch::mod_revision(event), key, is_delete })
}

/// A live watcher.
#[derive(Debug, Clone)]
pub struct Watcher {
    /// Its id on the stream.
    pub id: i64,
    key: Vec<u8>,
    range_end: Vec<u8>,
    filters: Vec<i32>,
    /// The first revision that it wants.
    start: i64,
    /// It begins in the past and is not known to have caught up.
    pub may_lag: bool,
    /// It began below the compacted revision, and will be cancelled.
    pub doomed: bool,
}

impl Watcher {
    /// The watcher that `request` created at the store's revision `now`.
    pub fn new(id: i64, request: &pb::WatchCreateRequest, now: i64, compacted: i64) -> Watcher {
        let past = request.start_revision != 0 && request.start_revision <= now;
        Watcher {
            id,
            key: if request.key.is_empty() { vec![0] } else { request.key.to_vec() },
            range_end: request.range_end.to_vec(),
            filters: request.filters.clone(),
            start: if request.start_revision == 0 { now + 1 } else { request.start_revision },
            may_lag: past,
            doomed: past && request.start_revision < compacted,
        }
    }

    /// The last revision of which this watcher should have got events.
    pub fn expected(&self, history: &History) -> i64 {
        let wanted = history.seen.iter().rev().find(|seen| self.wants(seen));
        wanted.map_or(0, |seen| seen.revision)
    }

    fn wants(&self, seen: &Seen) -> bool {
        let in_range = match self.range_end.as_slice() {
            [] => seen.key == self.key,
            [0] => seen.key >= self.key,
            end => seen.key >= self.key && seen.key.as_slice() < end,
        };
        let filtered = self.filters.contains(&i32::from(seen.is_delete));
        seen.revision >= self.start && in_range && !filtered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(request: pb::WatchCreateRequest, now: i64) -> i64 {
        let put = |revision, key: &str| Seen { revision, key: key.into(), is_delete: false };
        let delete = Seen { revision: 6, key: "a".into(), is_delete: true };
        let seen = vec![put(4, "a"), put(5, "b"), delete, put(7, "c")];
        let history = History { seen, messages_read: 0 };
        Watcher::new(0, &request, now, 0).expected(&history)
    }

    fn request(key: &'static str, end: &'static str, start: i64) -> pb::WatchCreateRequest {
        let mut request = pb::WatchCreateRequest::default();
        (request.key, request.range_end) = (key.into(), end.into());
        request.start_revision = start;
        request
    }

    #[test]
    fn ranges_starts_and_filters_decide() {
        assert_eq!(expected(request("a", "", 1), 7), 6);
        assert_eq!(expected(request("a", "c", 1), 7), 6);
        assert_eq!(expected(request("a", "\0", 1), 7), 7);
        assert_eq!(expected(request("", "\0", 1), 7), 7);
        assert_eq!(expected(request("a", "", 0), 7), 0);
        assert_eq!(expected(request("a", "", 7), 6), 0);
        let only_puts = pb::WatchCreateRequest { filters: vec![1], ..request("a", "", 1) };
        assert_eq!(expected(only_puts, 7), 4);
    }
}

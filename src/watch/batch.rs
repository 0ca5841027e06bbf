//! Events in their wire encoding, encoded once and shared by all who receive them.

use crate::keyspace::event::{Event, EventKind, History, HistoryError, RevisionEvents};
use bytes::{BufMut, Bytes, BytesMut};
use leaseway_proto::raw::EVENTS_TAG;
use std::sync::Arc;

/// The events of one answer. Watchers that receive the same ones share it.
#[derive(Debug)]
pub struct Batch {
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl Batch {
    /// Each event as a complete `events` field (tag, length, message), in order. Never empty.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Their total length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `None` when there is nothing to send.
    pub(super) fn new(pieces: Vec<Bytes>) -> Option<Arc<Self>> {
        let bytes = pieces.iter().map(Bytes::len).sum();
        (!pieces.is_empty()).then(|| Arc::new(Self { pieces, bytes }))
    }
}

/// What a watcher wants of an event; small enough to be an array index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wants(u8);

impl Wants {
    /// How many there are.
    pub const COUNT: usize = 8;

    pub fn new(prev_kv: bool, no_put: bool, no_delete: bool) -> Self {
        Self(prev_kv as u8 | (no_put as u8) << 1 | (no_delete as u8) << 2)
    }

    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub fn prev_kv(self) -> bool {
        self.0 & 1 != 0
    }

    pub fn accepts(self, kind: EventKind) -> bool {
        match kind {
            EventKind::Put => self.0 & 2 == 0,
            EventKind::Delete => self.0 & 4 == 0,
        }
    }
}

/// A revision whose events are encoded when first needed.
#[derive(Debug)]
pub(super) struct EncodedRevision {
    pub revision: i64,
    pub events: Arc<[Event]>,
    plain: Vec<Option<Bytes>>,
    with_prev: Vec<Option<Bytes>>,
    /// Bytes of keys and values, and of what has been encoded.
    size: usize,
}

impl EncodedRevision {
    pub fn new(source: RevisionEvents) -> Self {
        Self {
            revision: source.revision,
            size: events_size(&source.events),
            events: source.events,
            plain: Vec::new(),
            with_prev: Vec::new(),
        }
    }

    /// Bytes that it holds; grows with what is encoded.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Appends the events at `positions` that are wanted.
    pub fn append(
        &mut self,
        positions: &[u32],
        wants: Wants,
        history: &dyn History,
        pieces: &mut Vec<Bytes>,
    ) -> Result<(), HistoryError> {
        for &position in positions {
            let position = position as usize;
            if wants.accepts(self.events[position].kind) {
                pieces.push(self.encoded(position, wants.prev_kv(), history)?);
            }
        }
        Ok(())
    }

    /// One event in its wire encoding.
    pub fn encoded(
        &mut self,
        position: usize,
        prev_kv: bool,
        history: &dyn History,
    ) -> Result<Bytes, HistoryError> {
        let event = &self.events[position];
        // What was created had nothing before, and what has been compacted is not told any more, even
        // where it is still remembered here.
        let prev_kv = prev_kv && !event.create && event.row.main > history.visible().compacted;
        let made = if prev_kv { &mut self.with_prev } else { &mut self.plain };
        if let Some(Some(bytes)) = made.get(position) {
            return Ok(bytes.clone());
        }
        let previous = if prev_kv { previous(event, history)? } else { None };
        let bytes = encode(event, previous.as_deref());
        if made.is_empty() {
            made.resize(self.events.len(), None);
        }
        made[position] = Some(bytes.clone());
        self.size += bytes.len();
        Ok(bytes)
    }
}

/// Bytes of keys and values of some events, and a little for each.
pub(super) fn events_size(events: &[Event]) -> usize {
    events.iter().map(|event| event.key.len() + event.kv.len() + 64).sum()
}

fn previous(event: &Event, history: &dyn History) -> Result<Option<Bytes>, HistoryError> {
    match history.previous(&event.key, event.row.main) {
        // Compacted away in the meantime: the event is sent without it.
        Err(HistoryError::Compacted(_)) => Ok(None),
        other => other,
    }
}

/// One event as field 11 of a `WatchResponse`: `Event{type=1, kv=2, prev_kv=3}`.
fn encode(event: &Event, previous: Option<&[u8]>) -> Bytes {
    const TYPE_TAG: u8 = 1 << 3;
    const KV_TAG: u8 = 2 << 3 | 2;
    const PREV_KV_TAG: u8 = 3 << 3 | 2;
    let kind_len = match event.kind {
        EventKind::Put => 0,
        EventKind::Delete => 2,
    };
    let field_len = |bytes: &[u8]| 1 + prost::length_delimiter_len(bytes.len()) + bytes.len();
    let body = kind_len + field_len(&event.kv) + previous.map_or(0, field_len);
    let mut out = BytesMut::with_capacity(1 + prost::length_delimiter_len(body) + body);
    let varint = |len: usize, out: &mut BytesMut| {
        prost::encoding::encode_varint(len as u64, out);
    };
    out.put_u8(EVENTS_TAG);
    varint(body, &mut out);
    if event.kind == EventKind::Delete {
        out.put_slice(&[TYPE_TAG, 1]);
    }
    out.put_u8(KV_TAG);
    varint(event.kv.len(), &mut out);
    out.put_slice(&event.kv);
    if let Some(previous) = previous {
        out.put_u8(PREV_KV_TAG);
        varint(previous.len(), &mut out);
        out.put_slice(previous);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::event::RowId;
    use leaseway_proto::etcdserverpb::WatchResponse;
    use leaseway_proto::mvccpb::{self, KeyValue};
    use prost::Message;

    #[test]
    fn encodes_as_the_plain_message() {
        let kv = |value: Vec<u8>| KeyValue {
            key: Bytes::from_static(b"k"),
            value: value.into(),
            mod_revision: 9,
            ..Default::default()
        };
        for (kind, len, prev) in [
            (EventKind::Put, 0, None),
            (EventKind::Put, 300, Some(kv(vec![7; 20_000]))),
            (EventKind::Delete, 0, Some(kv(vec![1]))),
        ] {
            let event = Event {
                row: RowId { main: 9, sub: 0 },
                kind,
                key: Bytes::from_static(b"k"),
                kv: kv(vec![5; len]).encode_to_vec().into(),
                create: false,
            };
            let previous = prev.as_ref().map(Message::encode_to_vec);
            let plain = WatchResponse {
                events: vec![mvccpb::Event {
                    r#type: i32::from(kind == EventKind::Delete),
                    kv: Some(kv(vec![5; len])),
                    prev_kv: prev,
                }],
                ..Default::default()
            };
            assert_eq!(encode(&event, previous.as_deref()), plain.encode_to_vec());
        }
    }
}

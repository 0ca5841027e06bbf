//! Answers whose rows are already in their wire encoding.
//!
//! Each type encodes to exactly the bytes of the message it stands for. Decoding is not offered:
//! clients use the plain messages.

use crate::etcdserverpb::ResponseHeader;
use bytes::{Buf, BufMut, Bytes};
use prost::DecodeError;
use prost::Message;
use prost::encoding::{self, DecodeContext, WireType};

/// Tag of `RangeResponse.kvs` (field 2, length-delimited).
pub const KVS_TAG: u8 = 2 << 3 | 2;
/// Tag of `WatchResponse.events` (field 11, length-delimited).
pub const EVENTS_TAG: u8 = 11 << 3 | 2;

fn header_len(header: &Option<ResponseHeader>) -> usize {
    header.as_ref().map_or(0, |h| encoding::message::encoded_len(1, h))
}

/// The half of [`Message`] that these types do not offer: no field has a type that would be read.
macro_rules! encode_only {
    () => {
        fn merge_field(
            &mut self,
            _: u32,
            _: WireType,
            _: &mut impl Buf,
            _: DecodeContext,
        ) -> Result<(), DecodeError> {
            encoding::check_wire_type(WireType::StartGroup, WireType::EndGroup)
        }

        fn clear(&mut self) {
            *self = Self::default();
        }
    };
}

/// Stands for `RangeResponse`.
#[derive(Clone, Debug, Default)]
pub struct RangeReply {
    pub header: Option<ResponseHeader>,
    /// Concatenated `kvs` fields: tag, length and `KeyValue` of each.
    pub kvs: Bytes,
    pub more: bool,
    pub count: i64,
}

impl Message for RangeReply {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if let Some(header) = &self.header {
            encoding::message::encode(1, header, buf);
        }
        buf.put_slice(&self.kvs);
        if self.more {
            encoding::bool::encode(3, &self.more, buf);
        }
        if self.count != 0 {
            encoding::int64::encode(4, &self.count, buf);
        }
    }

    fn encoded_len(&self) -> usize {
        header_len(&self.header)
            + self.kvs.len()
            + if self.more { encoding::bool::encoded_len(3, &self.more) } else { 0 }
            + if self.count != 0 { encoding::int64::encoded_len(4, &self.count) } else { 0 }
    }

    encode_only!();
}

/// Stands for `RangeStreamResponse`.
#[derive(Clone, Debug, Default)]
pub struct RangeStreamReply {
    pub range_response: RangeReply,
}

impl Message for RangeStreamReply {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encoding::message::encode(1, &self.range_response, buf);
    }

    fn encoded_len(&self) -> usize {
        encoding::message::encoded_len(1, &self.range_response)
    }

    encode_only!();
}

/// Stands for `WatchResponse`.
#[derive(Clone, Debug, Default)]
pub struct WatchReply {
    pub header: Option<ResponseHeader>,
    pub watch_id: i64,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: i64,
    pub cancel_reason: String,
    pub fragment: bool,
    /// Concatenated `events` fields (tag, length and `Event` of each), in shared pieces.
    pub events: Vec<Bytes>,
}

impl Message for WatchReply {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if let Some(header) = &self.header {
            encoding::message::encode(1, header, buf);
        }
        if self.watch_id != 0 {
            encoding::int64::encode(2, &self.watch_id, buf);
        }
        if self.created {
            encoding::bool::encode(3, &self.created, buf);
        }
        if self.canceled {
            encoding::bool::encode(4, &self.canceled, buf);
        }
        if self.compact_revision != 0 {
            encoding::int64::encode(5, &self.compact_revision, buf);
        }
        if !self.cancel_reason.is_empty() {
            encoding::string::encode(6, &self.cancel_reason, buf);
        }
        if self.fragment {
            encoding::bool::encode(7, &self.fragment, buf);
        }
        for piece in &self.events {
            buf.put_slice(piece);
        }
    }

    fn encoded_len(&self) -> usize {
        let int = |tag, v: &i64| if *v != 0 { encoding::int64::encoded_len(tag, v) } else { 0 };
        let flag = |tag, v: &bool| if *v { encoding::bool::encoded_len(tag, v) } else { 0 };
        header_len(&self.header)
            + int(2, &self.watch_id)
            + flag(3, &self.created)
            + flag(4, &self.canceled)
            + int(5, &self.compact_revision)
            + if self.cancel_reason.is_empty() {
                0
            } else {
                encoding::string::encoded_len(6, &self.cancel_reason)
            }
            + flag(7, &self.fragment)
            + self.events.iter().map(Bytes::len).sum::<usize>()
    }

    encode_only!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{RangeResponse, RangeStreamResponse, WatchResponse};
    use crate::mvccpb::{Event, KeyValue};

    fn kv(key: &'static str, value: &'static str) -> KeyValue {
        KeyValue { key: key.into(), value: value.into(), mod_revision: 7, ..Default::default() }
    }

    fn field<M: Message>(tag: u8, message: &M) -> Bytes {
        let mut out = vec![tag];
        out.extend(message.encode_length_delimited_to_vec());
        out.into()
    }

    fn header() -> Option<ResponseHeader> {
        Some(ResponseHeader { cluster_id: u64::MAX, member_id: 2, revision: 3, raft_term: 4 })
    }

    #[test]
    fn range_reply_encodes_as_the_plain_message() {
        let plain = RangeResponse {
            header: header(),
            kvs: vec![kv("a", "1"), kv("b", "")],
            more: true,
            count: 12,
        };
        let kvs = plain.kvs.iter().flat_map(|kv| field(KVS_TAG, kv).to_vec()).collect::<Vec<_>>();
        let raw = RangeReply { header: header(), kvs: kvs.into(), more: true, count: 12 };
        assert_eq!(raw.encode_to_vec(), plain.encode_to_vec());
        let stream = RangeStreamResponse { range_response: Some(plain) };
        assert_eq!(
            RangeStreamReply { range_response: raw }.encode_to_vec(),
            stream.encode_to_vec()
        );
        assert!(RangeReply::default().encode_to_vec().is_empty());
        assert!(RangeReply::decode(&stream.encode_to_vec()[..]).is_err());
    }

    #[test]
    fn watch_reply_encodes_as_the_plain_message() {
        let event = |r#type| Event { r#type, kv: Some(kv("k", "v")), prev_kv: Some(kv("k", "u")) };
        let plain = WatchResponse {
            header: header(),
            watch_id: -1,
            created: true,
            canceled: true,
            compact_revision: 9,
            cancel_reason: "because".into(),
            fragment: true,
            events: vec![event(0), event(1)],
        };
        let raw = WatchReply {
            header: header(),
            watch_id: -1,
            created: true,
            canceled: true,
            compact_revision: 9,
            cancel_reason: "because".into(),
            fragment: true,
            events: plain.events.iter().map(|e| field(EVENTS_TAG, e)).collect(),
        };
        assert_eq!(raw.encode_to_vec(), plain.encode_to_vec());
        assert!(WatchReply::default().encode_to_vec().is_empty());
        assert!(WatchReply::decode(&plain.encode_to_vec()[..]).is_err());
    }
}

//! Keys, a page of a folder at a time: what comes behind the next slash is looked at together.

use super::{Asked, Ui};
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::gateway::error::{Error, read_failed};
use crate::gateway::kv::read_range;
use crate::keyspace::auth::Authority;
use crate::keyspace::error::ReadError;
use crate::keyspace::range::end_of_prefix;
use crate::keyspace::reader::Reader;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::mvccpb::KeyValue;
use prost::Message;
use serde_json::{Value, json};
use tonic::Status;

/// Entries of a page.
const ENTRIES: usize = 100;
/// Keys that are read at once, where keys follow each other.
const AT_ONCE: usize = 8;
/// Bytes of a value that are shown.
const VALUE_BYTES: usize = 64 << 10;
/// Ends a folder's name.
const DELIMITER: u8 = b'/';

/// A page that is looked for.
struct Listing {
    reader: Reader,
    prefix: Bytes,
    range_end: Bytes,
    at: i64,
    /// Whether keys are to be told one by one, whatever is in their names.
    flat: bool,
}

impl Listing {
    /// The page from `cursor` on, and where the next one begins.
    fn page(&self, mut cursor: Bytes) -> Result<(Vec<Value>, Option<Bytes>), ReadError> {
        let mut entries = Vec::new();
        let mut at_once = 1;
        loop {
            let request = pb::RangeRequest {
                key: cursor.clone(),
                range_end: self.range_end.clone(),
                ..pb::RangeRequest::default()
            };
            let piece = self.reader.piece(&request, self.at, at_once)?;
            let found = pb::RangeResponse::decode(piece.kvs).unwrap_or_default().kvs;
            let mut next = piece.next.map(Bytes::from);
            at_once = AT_ONCE;
            for kv in found {
                if entries.len() == ENTRIES {
                    return Ok((entries, Some(kv.key)));
                }
                if let Some(folder) = self.folder(&kv.key) {
                    entries.push(json!({ "folder": BASE64.encode(&folder) }));
                    next = Some(Bytes::from(end_of_prefix(&folder)))
                        .filter(|end| *end != self.range_end);
                    at_once = 1;
                    break;
                }
                entries.push(told(&kv));
            }
            match next {
                Some(next) => cursor = next,
                None => return Ok((entries, None)),
            }
        }
    }

    /// The folder below the prefix that a key is in.
    fn folder(&self, key: &Bytes) -> Option<Bytes> {
        let rest = key.get(self.prefix.len()..).filter(|_| !self.flat)?;
        // A slash at the beginning is part of the folder's name.
        let searched = rest.strip_prefix(&[DELIMITER]).unwrap_or(rest);
        let skipped = rest.len() - searched.len();
        let length = searched.iter().position(|byte| *byte == DELIMITER)? + skipped + 1;
        Some(key.slice(..self.prefix.len() + length))
    }
}

fn told(kv: &KeyValue) -> Value {
    json!({
        "key": BASE64.encode(&kv.key),
        "bytes": kv.value.len(),
        "create_revision": kv.create_revision,
        "mod_revision": kv.mod_revision,
        "version": kv.version,
        "lease": (kv.lease != 0).then(|| format!("{:x}", kv.lease)),
    })
}

impl<L: Log, S: Sessions> Ui<L, S> {
    pub(super) async fn keys(&self, asked: &Asked<'_>) -> Result<Value, Status> {
        let wrong = || Status::invalid_argument("a parameter is not base64");
        let parameter = |name| asked.bytes(name).map(|it| it.ok_or_else(wrong)).transpose();
        let (prefix, after) = (parameter("prefix")?.unwrap_or_default(), parameter("from")?);
        let (flat, counted) = (asked.text("flat") == Some("1"), asked.text("count") == Some("1"));
        let range_end = end_of_prefix(&prefix).into();
        // No key stands for the smallest one.
        let key = if prefix.is_empty() { Bytes::from_static(b"\0") } else { prefix.clone() };
        let request =
            pb::RangeRequest { key: key.clone(), range_end, ..pb::RangeRequest::default() };
        let request = asked.request(request);
        self.noted("/ui/api/keys", request, |request| async move {
            let credentials = Credentials::of(&request);
            let request = request.into_inner();
            let reader = self.parts.context.reader.clone();
            let pin =
                |who: Option<Authority>| std::future::ready(Ok(reader.pin(&request, who.as_ref())));
            let pinned = self.parts.context.on_behalf(&credentials, pin).await?;
            let (at, _) = pinned.map_err(Error::from)?;
            let cursor = after.filter(|after| *after > key).unwrap_or(key);
            let range_end = request.range_end;
            let listing = Listing { reader, prefix, range_end, at, flat };
            let read = tokio::task::spawn_blocking(move || {
                let (entries, next) = listing.page(cursor)?;
                let start = if listing.prefix.is_empty() { &[0][..] } else { &listing.prefix };
                let count = counted.then(|| listing.reader.count(start, &listing.range_end, at));
                Ok::<_, ReadError>((entries, next, count.transpose()?))
            });
            let read = read.await.map_err(|error| Status::internal(error.to_string()))?;
            let (entries, next, count) = read.map_err(read_failed)?;
            let next = next.map(|next| BASE64.encode(next));
            Ok(json!({ "revision": at, "entries": entries, "next": next, "count": count }))
        })
        .await
    }

    pub(super) async fn key(&self, asked: &Asked<'_>) -> Result<Value, Status> {
        let Some(Some(key)) = asked.bytes("key") else {
            return Err(Status::invalid_argument("a key in base64 is needed"));
        };
        let request = asked.request(pb::RangeRequest { key, ..pb::RangeRequest::default() });
        self.noted("/ui/api/key", request, |request| async move {
            let credentials = Credentials::of(&request);
            let request = request.into_inner();
            let reader = &self.parts.context.reader;
            let read = |who: Option<Authority>| read_range(reader, &request, who);
            let read = self.parts.context.on_behalf(&credentials, read).await?;
            let found = pb::RangeResponse::decode(read.map_err(read_failed)?.kvs);
            let Some(kv) = found.unwrap_or_default().kvs.into_iter().next() else {
                return Ok(json!({ "found": false }));
            };
            let mut answer = told(&kv);
            let shown = &kv.value[..kv.value.len().min(VALUE_BYTES)];
            answer["found"] = true.into();
            answer["value"] = BASE64.encode(shown).into();
            answer["shown_bytes"] = shown.len().into();
            Ok(answer)
        })
        .await
    }
}

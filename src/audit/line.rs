//! What a line says, and how.

use crate::telemetry::grpc::code_label;
use crate::telemetry::log::{quoted, timestamp};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};
use tonic::Code;

/// Keys and ranges that a line names at most; of more it tells the number.
const KEYS_MAX: usize = 1000;

/// A key or a range that a request concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// What is done there: `get`, `put`, `delete`, `compare`, `watch` and so on.
    pub action: &'static str,
    /// The key, or the first of a range.
    pub key: Bytes,
    /// As in the request: empty for the key alone, one zero byte for everything from the key on.
    pub range_end: Bytes,
    /// Within a transaction: in which branch, such as `then` or `else.then`; empty outside of one.
    pub branch: String,
}

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Keys and ranges.
    pub keys: Vec<Touched>,
    /// How many more there were.
    pub more_keys: usize,
    /// The lease.
    pub lease: Option<i64>,
    /// What else there is, by name.
    pub details: Vec<(&'static str, String)>,
}

impl Subject {
    /// Adds a key or a range.
    pub fn key(&mut self, action: &'static str, key: &Bytes, range_end: &Bytes, branch: &str) {
        if self.keys.len() == KEYS_MAX {
            self.more_keys += 1;
            return;
        }
        let (key, range_end) = (key.clone(), range_end.clone());
        self.keys.push(Touched { action, key, range_end, branch: branch.to_owned() });
    }

    /// Adds a lease, unless it is none.
    pub fn lease(&mut self, id: i64) {
        self.lease = Some(id).filter(|id| *id != 0).or(self.lease);
    }

    /// Adds something else.
    pub fn detail(&mut self, name: &'static str, value: impl ToString) {
        self.details.push((name, value.to_string()));
    }
}

/// A line's content.
#[derive(Debug)]
pub struct Line<'a> {
    /// When the request came.
    pub time: SystemTime,
    /// Whose token or certificate it had; none while authentication is off.
    pub user: Option<&'a str>,
    /// The common name in the client's certificate.
    pub certificate: Option<&'a str>,
    /// Where the client is.
    pub client: Option<&'a str>,
    /// As in gRPC's path.
    pub method: &'a str,
    /// What it is about.
    pub subject: &'a Subject,
    /// How it was answered.
    pub code: Code,
    /// Why not, if it was refused.
    pub error: &'a str,
    /// The revision in the answer.
    pub revision: Option<i64>,
    /// How long it took.
    pub took: Duration,
}

impl Line<'_> {
    /// The line, with its end.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(256);
        let _ = write!(out, "{{\"time\":\"{}\"", timestamp(self.time));
        let _ = write!(out, ",\"user\":{}", optional(self.user));
        if let Some(name) = self.certificate {
            let _ = write!(out, ",\"certificate\":{}", quoted(name));
        }
        let _ = write!(out, ",\"client\":{}", optional(self.client));
        let _ = write!(out, ",\"method\":{}", quoted(self.method));
        self.subject.write(&mut out);
        let _ = write!(out, ",\"code\":\"{}\"", code_label(self.code as i32));
        if self.code != Code::Ok {
            let _ = write!(out, ",\"error\":{}", quoted(self.error));
        }
        if let Some(revision) = self.revision.filter(|revision| *revision != 0) {
            let _ = write!(out, ",\"revision\":{revision}");
        }
        let _ = write!(out, ",\"took_us\":{}}}", self.took.as_micros());
        out.push('\n');
        out
    }
}

fn optional(text: Option<&str>) -> String {
    text.map_or_else(|| "null".to_owned(), quoted)
}

impl Subject {
    fn write(&self, out: &mut String) {
        if !self.keys.is_empty() {
            out.push_str(",\"keys\":[");
            for (at, touched) in self.keys.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                let _ = write!(out, "{comma}{{\"action\":\"{}\"", touched.action);
                write_key(out, "key", &touched.key);
                if !touched.range_end.is_empty() {
                    write_key(out, "range_end", &touched.range_end);
                }
                if !touched.branch.is_empty() {
                    let _ = write!(out, ",\"branch\":\"{}\"", touched.branch);
                }
                out.push('}');
            }
            out.push(']');
        }
        if self.more_keys > 0 {
            let _ = write!(out, ",\"more_keys\":{}", self.more_keys);
        }
        if let Some(lease) = self.lease {
            // As etcdctl prints it.
            let _ = write!(out, ",\"lease\":\"{lease:x}\"");
        }
        for (name, value) in &self.details {
            let _ = write!(out, ",\"{name}\":{}", quoted(value));
        }
    }
}

/// A key as text, or in base64 under another name if it is none.
fn write_key(out: &mut String, name: &str, key: &[u8]) {
    let _ = match std::str::from_utf8(key) {
        Ok(text) => write!(out, ",\"{name}\":{}", quoted(text)),
        Err(_) => write!(out, ",\"{name}_base64\":\"{}\"", BASE64.encode(key)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn line<'a>(subject: &'a Subject, code: Code, error: &'a str) -> Line<'a> {
        Line {
            time: UNIX_EPOCH + Duration::from_secs(1_795_981_884),
            user: Some("ann"),
            certificate: None,
            client: Some("127.0.0.1:5"),
            method: "/etcdserverpb.KV/Txn",
            subject,
            code,
            error,
            revision: Some(7),
            took: Duration::from_micros(1500),
        }
    }

    #[test]
    fn a_line_is_one_object_whatever_is_in_it() {
        let mut subject = Subject::default();
        subject.key("put", &Bytes::from_static(b"a\n\"\x1b"), &Bytes::new(), "then");
        subject.key("delete", &Bytes::from_static(b"\xff"), &Bytes::from_static(b"\0"), "");
        subject.lease(0x1f);
        subject.lease(0);
        subject.detail("succeeded", true);
        let text = line(&subject, Code::Ok, "").render();
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!({
                "time": "2026-11-29T19:51:24.000000Z",
                "user": "ann",
                "client": "127.0.0.1:5",
                "method": "/etcdserverpb.KV/Txn",
                "keys": [
                    { "action": "put", "key": "a\n\"\u{1b}", "branch": "then" },
                    { "action": "delete", "key_base64": "/w==", "range_end": "\0" },
                ],
                "lease": "1f",
                "succeeded": "true",
                "code": "OK",
                "revision": 7,
                "took_us": 1500,
            })
        );
        let text = line(&Subject::default(), Code::PermissionDenied, "no").render();
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&value["code"], &value["error"]), (&"PermissionDenied".into(), &"no".into()));
    }

    #[test]
    fn the_number_of_keys_is_bounded() {
        let mut subject = Subject::default();
        for _ in 0..KEYS_MAX + 5 {
            subject.key("put", &Bytes::from_static(b"k"), &Bytes::new(), "");
        }
        assert_eq!((subject.keys.len(), subject.more_keys), (KEYS_MAX, 5));
    }
}

//! The API as JSON: how requests are written and answers read. Both are done by an implementation of
//! proto3's JSON that the server under test does not use.

mod exchange;
mod shape;
mod socket;

use bytes::Bytes;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::{Map, Value};

use crate::client::{Answer, End};
use crate::schema::{Method, Schema};
use exchange::Exchanged;

pub use socket::{Socket, run};

/// The paths of each method, as etcd's contract annotates it; the first is the one that is used.
/// Streamed ranges have none.
const PATHS: &[(&str, &[&str])] = &[
    ("KV.Range", &["/v3/kv/range"]),
    ("KV.Put", &["/v3/kv/put"]),
    ("KV.DeleteRange", &["/v3/kv/deleterange"]),
    ("KV.Txn", &["/v3/kv/txn"]),
    ("KV.Compact", &["/v3/kv/compaction"]),
    ("Watch.Watch", &["/v3/watch"]),
    ("Lease.LeaseGrant", &["/v3/lease/grant"]),
    ("Lease.LeaseRevoke", &["/v3/lease/revoke", "/v3/kv/lease/revoke"]),
    ("Lease.LeaseKeepAlive", &["/v3/lease/keepalive"]),
    ("Lease.LeaseTimeToLive", &["/v3/lease/timetolive", "/v3/kv/lease/timetolive"]),
    ("Lease.LeaseLeases", &["/v3/lease/leases", "/v3/kv/lease/leases"]),
    ("Cluster.MemberAdd", &["/v3/cluster/member/add"]),
    ("Cluster.MemberRemove", &["/v3/cluster/member/remove"]),
    ("Cluster.MemberUpdate", &["/v3/cluster/member/update"]),
    ("Cluster.MemberList", &["/v3/cluster/member/list"]),
    ("Cluster.MemberPromote", &["/v3/cluster/member/promote"]),
    ("Maintenance.Alarm", &["/v3/maintenance/alarm"]),
    ("Maintenance.Status", &["/v3/maintenance/status"]),
    ("Maintenance.Defragment", &["/v3/maintenance/defragment"]),
    ("Maintenance.Hash", &["/v3/maintenance/hash"]),
    ("Maintenance.HashKV", &["/v3/maintenance/hashkv"]),
    ("Maintenance.Snapshot", &["/v3/maintenance/snapshot"]),
    ("Maintenance.MoveLeader", &["/v3/maintenance/transfer-leadership"]),
    ("Maintenance.Downgrade", &["/v3/maintenance/downgrade"]),
    ("Auth.AuthEnable", &["/v3/auth/enable"]),
    ("Auth.AuthDisable", &["/v3/auth/disable"]),
    ("Auth.AuthStatus", &["/v3/auth/status"]),
    ("Auth.Authenticate", &["/v3/auth/authenticate"]),
    ("Auth.UserAdd", &["/v3/auth/user/add"]),
    ("Auth.UserGet", &["/v3/auth/user/get"]),
    ("Auth.UserList", &["/v3/auth/user/list"]),
    ("Auth.UserDelete", &["/v3/auth/user/delete"]),
    ("Auth.UserChangePassword", &["/v3/auth/user/changepw"]),
    ("Auth.UserGrantRole", &["/v3/auth/user/grant"]),
    ("Auth.UserRevokeRole", &["/v3/auth/user/revoke"]),
    ("Auth.RoleAdd", &["/v3/auth/role/add"]),
    ("Auth.RoleGet", &["/v3/auth/role/get"]),
    ("Auth.RoleList", &["/v3/auth/role/list"]),
    ("Auth.RoleDelete", &["/v3/auth/role/delete"]),
    ("Auth.RoleGrantPermission", &["/v3/auth/role/grant"]),
    ("Auth.RoleRevokePermission", &["/v3/auth/role/revoke"]),
];

/// The path under which a method answers to JSON.
pub fn path_of(method: &Method) -> Option<&'static str> {
    PATHS.iter().find(|(name, _)| *name == method.name)?.1.first().copied()
}

/// The method that answers under a path.
fn method_at(path: &str) -> Option<&'static Method> {
    let path = unescaped(path.split('?').next().unwrap_or_default());
    let path = path.strip_prefix("/v3beta/").map_or(path.to_owned(), |rest| format!("/v3/{rest}"));
    let (name, _) = PATHS.iter().find(|(_, paths)| paths.contains(&path.as_str()))?;
    Some(Schema::known(name))
}

/// A path without `%2F` and the like.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte.into());
                out.push_str(&part[2..]);
            }
            None => {
                out.push('%');
                out.push_str(part);
            }
        }
    }
    out
}

/// Any HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// GET, POST, ...
    pub verb: String,
    /// With what stands behind a question mark.
    pub path: String,
    /// None is sent if this is empty.
    pub content_type: String,
    /// The body as sent.
    pub body: Bytes,
}

/// Sends any request and reads the answer as what its path should give.
pub async fn send(port: u16, token: Option<&str>, request: &Raw) -> Answer {
    match exchange::exchange(port, token, request).await {
        Ok(exchanged) => answer(&exchanged, method_at(&request.path)),
        Err(error) => Answer::ended(End::Failed(14, error, Bytes::new())),
    }
}

/// Calls a method with `request`.
pub async fn call(port: u16, token: Option<&str>, path: &str, request: &DynamicMessage) -> Answer {
    let raw = Raw {
        verb: "POST".into(),
        path: path.into(),
        content_type: "application/json".into(),
        body: text_of(request).into(),
    };
    send(port, token, &raw).await
}

/// A request in JSON: one of the spellings that mean the same. Which one does not depend on numbers, as
/// these may differ from server to server.
pub fn text_of(message: &DynamicMessage) -> Vec<u8> {
    let text = message.to_text_format();
    let letters = text.bytes().filter(|byte| !byte.is_ascii_digit() && *byte != b'-');
    let spelling = letters.fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let options = SerializeOptions::new()
        .use_proto_field_name(spelling & 1 == 0)
        .use_enum_numbers(spelling & 2 == 0)
        .stringify_64_bit_integers(spelling & 4 == 0)
        .skip_default_fields(spelling & 24 != 0);
    written(message, &options)
}

fn written(message: &DynamicMessage, options: &SerializeOptions) -> Vec<u8> {
    let mut text = serde_json::Serializer::new(Vec::new());
    message
        .serialize_with_options(&mut text, options)
        .expect("messages of the contract have a spelling, and memory takes it");
    text.into_inner()
}

/// Reads a message, and insists on the spelling that etcd uses: names of the contract in its order,
/// 64-bit integers as strings, enum values by name, no fields with their default. Whatever is equal as
/// a message is then equal as text, but for spaces.
fn read(text: &str, output: &MessageDescriptor) -> Result<DynamicMessage, String> {
    let wrong = |error: serde_json::Error| format!("{error} in {text}");
    let mut source = serde_json::Deserializer::from_str(text);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(output.clone(), &mut source, &options)
        .map_err(wrong)?;
    source.end().map_err(wrong)?;
    let usual = written(&message, &SerializeOptions::new().use_proto_field_name(true));
    if shape::of(text.as_bytes()) != shape::of(&usual) {
        return Err(format!("spelled {text} instead of {}", String::from_utf8_lossy(&usual)));
    }
    Ok(message)
}

fn answer(exchanged: &Exchanged, method: Option<&Method>) -> Answer {
    let text = String::from_utf8_lossy(&exchanged.body);
    let (messages, end) = match method {
        Some(method) if method.streams => stream(&text, method),
        Some(method) if exchanged.status == 200 => match read(&text, &method.output) {
            Ok(message) => (vec![message], End::Ok),
            Err(error) => (Vec::new(), End::Unreadable(error)),
        },
        _ => (Vec::new(), failure(&text)),
    };
    Answer { messages, end, http: exchanged.head() }
}

fn stream(text: &str, method: &Method) -> (Vec<DynamicMessage>, End) {
    let mut messages = Vec::new();
    for text in text.split_terminator('\n') {
        match line(text, &method.output) {
            Ok(message) => messages.push(message),
            Err(end) => return (messages, end),
        }
    }
    (messages, End::Ok)
}

/// A line of an answer: a message, or the error that ends the stream.
fn line(text: &str, output: &MessageDescriptor) -> Result<DynamicMessage, End> {
    match text.strip_prefix("{\"result\":").and_then(|text| text.strip_suffix('}')) {
        Some(message) => read(message, output).map_err(End::Unreadable),
        None => match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(mut members) if members.len() == 1 && members["error"].is_object() => {
                Err(failure(&members.remove("error").unwrap_or_default().to_string()))
            }
            _ => Err(failure(text)),
        },
    }
}

/// An error: its code and text, and, as details, whatever else it says. Declared as `json-errors`: the
/// text may be there a second time, as `error`.
fn failure(text: &str) -> End {
    let unreadable = || End::Unreadable(text.to_owned());
    let Ok(mut members) = serde_json::from_str::<Map<String, Value>>(text) else {
        return unreadable();
    };
    let code = members.remove("code").and_then(|code| i32::try_from(code.as_i64()?).ok());
    let message = members.remove("message");
    let (Some(code), Some(Value::String(message))) = (code, message) else { return unreadable() };
    if members.get("error").and_then(Value::as_str) == Some(&message) {
        members.remove("error");
    }
    let details = if members.is_empty() { String::new() } else { Value::from(members).to_string() };
    End::Failed(code, message, details.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_belongs_to_a_method() {
        for (name, paths) in PATHS {
            assert_eq!(path_of(Schema::known(name)), Some(paths[0]));
            for path in *paths {
                assert_eq!(method_at(path).unwrap().name, *name);
            }
        }
        assert_eq!(method_at("/v3beta/kv/range?x").unwrap().name, "KV.Range");
        assert_eq!(method_at("/v3/kv%2F%72ange").unwrap().name, "KV.Range");
        assert!(method_at("/v3/kv").is_none() && method_at("/v3/kv/range%").is_none());
    }

    #[test]
    fn answers_are_held_to_the_usual_spelling() {
        let read = |text| read(text, &Schema::known("KV.Range").output);
        let usual =
            r#"{"header":{"revision":"3"}, "kvs":[{"key":"YQ==","lease":"5"}],"more":true}"#;
        assert!(read(usual).is_ok());
        for other in [
            r#"{"header":{"revision":3}}"#,
            r#"{"more":false}"#,
            r#"{"kvs":[]}"#,
            r#"{"count":"1","more":true}"#,
            r#"{"kvs":[{"modRevision":"5"}]}"#,
            r#"{"kvs":[{"key":"YQ"}],"x":1}"#,
            r#"{"count":"1"} {}"#,
        ] {
            assert!(read(other).is_err(), "{other}");
        }
    }

    #[test]
    fn errors_keep_code_text_and_what_else_they_say() {
        let failed = |code, text: &str, details: &'static str| {
            End::Failed(code, text.into(), Bytes::from_static(details.as_bytes()))
        };
        assert_eq!(failure(r#"{"code":3,"message":"x","error":"x"}"#), failed(3, "x", ""));
        let more = failure(r#"{"code":3,"message":"x","error":"y"}"#);
        assert_eq!(more, failed(3, "x", r#"{"error":"y"}"#));
        assert!(matches!(failure("404 page not found\n"), End::Unreadable(_)));
        let method = Schema::known("Watch.Watch");
        let lines = "{\"result\":{\"created\":true}}\n{\"error\":{\"code\":5,\"message\":\"z\"}}\n";
        let (messages, end) = stream(lines, method);
        assert_eq!((messages.len(), end), (1, failed(5, "z", "")));
    }

    #[test]
    fn all_spellings_mean_the_same() {
        let method = Schema::known("KV.Range");
        let mut seen = std::collections::BTreeSet::new();
        for letter in b'a'..=b'z' {
            let text = format!("key:\"{}\",limit:3,sort_order:DESCEND", char::from(letter));
            let message = DynamicMessage::parse_text_format(method.input.clone(), &text).unwrap();
            let written = String::from_utf8(text_of(&message)).unwrap();
            let mut source = serde_json::Deserializer::from_str(&written);
            let again = DynamicMessage::deserialize(method.input.clone(), &mut source).unwrap();
            assert_eq!(again.to_text_format(), message.to_text_format(), "{written}");
            seen.insert(written.split_once(',').unwrap().1.to_owned());
        }
        assert!(seen.len() > 4, "{seen:?}");
    }
}

//! JSON that is nearly right: requests with values of other types, other names, fields that are there
//! twice, and bytes that are no JSON, under paths that are nearly right.

use prost_reflect::SerializeOptions;
use serde_json::Value;

use super::Generator;
use crate::json::Raw;
use crate::ops::Op;
use crate::schema::Schema;
use crate::token;
use leaseway_proto::etcdserverpb as pb;

/// A JSON text that may be changed into what is none.
enum Node {
    Text(Vec<u8>),
    Object(Vec<(Vec<u8>, Node)>),
    Array(Vec<Node>),
}

/// What a value may be replaced with.
const VALUES: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "1",
    "2",
    "-1",
    "-0",
    "0.0",
    "1.0",
    "2e0",
    "20e-1",
    "1.5",
    "1e1",
    "1E+1",
    "1e20",
    "-1e20",
    "1e400",
    "1e-400",
    "1e99999999999",
    "0e99999999999",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "2147483647",
    "2147483648",
    "4294967296",
    "1.00000000000000000000000",
    "99999999999999999999999999999999999999999999999999",
    "\"\"",
    "\"0\"",
    "\"1\"",
    "\"-1\"",
    "\"01\"",
    "\"+1\"",
    "\" 1\"",
    "\"1 \"",
    "\"1 x\"",
    "\"1,2\"",
    "\"1e1\"",
    "\"1.0\"",
    "\"1.5\"",
    "\"0x1\"",
    "\"1_000\"",
    "\"9223372036854775808\"",
    "\"18446744073709551616\"",
    "\"true\"",
    "\"null\"",
    "\"NaN\"",
    "\"Infinity\"",
    "\"YQ\"",
    "\"YQ==\"",
    "\"YQ=\"",
    "\"YR==\"",
    "\"Y\"",
    "\"Y===\"",
    "\"_-8=\"",
    "\"_-8\"",
    "\"/+8=\"",
    "\"/-8=\"",
    "\"Y Q==\"",
    "\"YQ==\\n\"",
    "\"Y\\r\\nQ==\"",
    "\"\\u0059Q==\"",
    "\"YQ==YQ==\"",
    "\"not base64!\"",
    "\"\u{e9}\"",
    "\"\\ud83d\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ude00\\ud83d\"",
    "\"\\ud83dx\"",
    "\"\\u0000\"",
    "\"\\uD83D\\u00e9\"",
    "\"ASCEND\"",
    "\"ascend\"",
    "\"DESCEND\"",
    "\"NONE\"",
    "\"MOD\"",
    "\"VERSION\"",
    "\"NOPE\"",
    "\"GREATER\"",
    "[]",
    "{}",
    "[{}]",
    "[[]]",
    "[null]",
    "{\"key\":\"YQ==\"}",
    "[\"YQ==\"]",
    "[1,2]",
    "\"\\/\\b\\f\\n\\r\\t\"",
];

/// What is no value, or none that JSON allows.
const MISTAKES: &[&[u8]] = &[
    b"01",
    b"1.",
    b".5",
    b"+1",
    b"0x1",
    b"1e",
    b"1e+",
    b"--1",
    b"-",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"'a'",
    b"nul",
    b"True",
    b"nulll",
    b"truee",
    b"undefined",
    b"a",
    b"\"a",
    b"\"\\x\"",
    b"\"\\u12\"",
    b"\"\\u12G4\"",
    b"\"\t\"",
    b"\"\n\"",
    b"\"\x00\"",
    b"\"\x7f\"",
    b"\"\xff\"",
    b"\"\xc3\"",
    b"\"\xc3\xa9\"",
    b"\"\xed\xa0\x80\"",
    b"",
    b"[1",
    b"[1,]",
    b"{\"a\"}",
    b"{\"a\":}",
    b"{\"a\":1,}",
    b"{,}",
    b"[,]",
    b"{1:2}",
    b"{a:1}",
    b"[1 2]",
    b"1 2",
    b"/*x*/1",
    b"\xef\xbb\xbf1",
    b"\xc2\xa01",
    b"\xff",
];

/// What is put in anywhere by mistake.
const PIECES: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"\\",
    b"\\u",
    b"0",
    b"1",
    b"9",
    b".",
    b"e",
    b"-",
    b"+",
    b" ",
    b"\n",
    b"\r\n",
    b"\t",
    b"null",
    b"true",
    b"false",
    b"\xff",
    b"\x00",
    b"=",
    b"/",
    b"_",
    b"1e20",
    b"\"\"",
    b"{}",
    b"[]",
    b"\\ud83d",
    b"\\ude00",
    b"\xc3\xa9",
    b"\xe2\x80\xa8",
    b"\"key\":\"YQ==\",",
    b"\xad",
    b"\x7f",
    b"'",
    b"#",
];

/// Behind a whole request.
const TRAILING: &[&[u8]] = &[
    b" ",
    b"\n",
    b"x",
    b"{}",
    b"{",
    b"}",
    b"]",
    b",",
    b"\x00",
    b"\xff",
    b"null",
    b"\"",
    b"{\"key\":1}",
];

/// Whole bodies.
const BODIES: &[&[u8]] = &[
    b"",
    b" ",
    b"\n\n",
    b"null",
    b"{}",
    b"[]",
    b"[{}]",
    b"\"\"",
    b"0",
    b"true",
    b"{",
    b"}",
    b"\"",
    b"-",
    b"\x00",
    b"\xef\xbb\xbf{}",
    b"\x0a\x01a",
    b"key=YQ==",
    b" {} ",
    b"{}{}",
    b"nul",
    b"{\"\":1}",
    b"{\"key\"",
    b"{\"key\":",
];

const PATHS: &[&str] = &[
    "/v3/kv/range/",
    "/v3/kv/Range",
    "/v3/kv",
    "/v3/",
    "/v3/kv/range?key=YQ==",
    "/v3/kv/range?",
    "/v3/kv/%72ange",
    "/v3/kv%2Frange",
    "/v3/kv/range%20",
    "/v3/nope",
    "/v3/watch/x",
    "/v3beta/kv/range",
    "/v3alpha/kv/range",
    "/v2/keys",
    "/V3/kv/range",
    "/v3/kv/range:x",
    "/v3/kv/rangestream",
    "/v3/election/nope",
    "/v3/kv//range",
    "/v3//kv/range",
    "/v3/kv/./range",
    "/v3/kv/../kv/range",
];

const VERBS: &[&str] =
    &["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "post", "NOPE"];

const CONTENT_TYPES: &[&str] = &[
    "",
    "application/json",
    "application/json;charset=utf-8",
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/grpc-web",
    "application/x-protobuf",
    "multipart/form-data",
    "nonsense",
    "*/*",
];

impl Generator {
    /// Mostly such a request; sometimes one that is right, so that there is something to see.
    pub(super) fn json_or_write(&mut self) {
        match self.rng.below(100) {
            0..15 => self.write(),
            15..20 => self.grant(),
            20..26 => {
                let path = self.rng.pick(PATHS);
                let body = self.body("KV.Range", 0);
                self.send("POST", path, "application/json", body);
            }
            26..31 => {
                let verb = self.rng.pick(VERBS);
                let body = if self.rng.chance(50) { Vec::new() } else { self.body("KV.Range", 0) };
                self.send(verb, "/v3/kv/range", "application/json", body);
            }
            31..35 => {
                let content_type = self.rng.pick(CONTENT_TYPES);
                let body = self.body("KV.Range", 0);
                self.send("POST", "/v3/kv/range", content_type, body);
            }
            35..42 => {
                let (_, path) = self.target();
                let body = self.rng.pick(BODIES).to_vec();
                self.send("POST", path, "application/json", body);
            }
            42..46 => self.renewals(),
            _ => {
                let (method, path) = self.target();
                let mistakes = self.rng.below(3);
                let mut body = self.body(method, mistakes);
                match self.rng.below(10) {
                    0..2 => self.scratch(&mut body),
                    2 => body.extend_from_slice(self.rng.pick(TRAILING)),
                    _ => {}
                }
                self.send("POST", path, "application/json", body);
            }
        }
    }

    fn send(&mut self, verb: &str, path: &str, content_type: &str, body: Vec<u8>) {
        let request = Raw {
            verb: verb.to_owned(),
            path: path.to_owned(),
            content_type: content_type.to_owned(),
            body: body.into(),
        };
        self.ops.push(Op::Json(request));
    }

    /// Methods that neither end etcd nor make it another one, whatever the request becomes.
    fn target(&mut self) -> (&'static str, &'static str) {
        self.rng.pick(&[
            ("KV.Range", "/v3/kv/range"),
            ("KV.Range", "/v3/kv/range"),
            ("KV.Range", "/v3/kv/range"),
            ("KV.Put", "/v3/kv/put"),
            ("KV.Put", "/v3/kv/put"),
            ("KV.DeleteRange", "/v3/kv/deleterange"),
            ("KV.Txn", "/v3/kv/txn"),
            ("KV.Txn", "/v3/kv/txn"),
            ("KV.Txn", "/v3/kv/txn"),
            ("Lease.LeaseGrant", "/v3/lease/grant"),
            ("Lease.LeaseTimeToLive", "/v3/lease/timetolive"),
            ("Lease.LeaseTimeToLive", "/v3/kv/lease/timetolive"),
            ("Lease.LeaseRevoke", "/v3/lease/revoke"),
            ("Lease.LeaseRevoke", "/v3/kv/lease/revoke"),
            ("Lease.LeaseLeases", "/v3/kv/lease/leases"),
            ("Cluster.MemberPromote", "/v3/cluster/member/promote"),
            ("Auth.UserGet", "/v3/auth/user/get"),
            ("Auth.Authenticate", "/v3/auth/authenticate"),
            ("Maintenance.MoveLeader", "/v3/maintenance/transfer-leadership"),
        ])
    }

    fn template(&mut self, method: &'static str) -> Value {
        let schema = Schema::known(method);
        let request = match method {
            "KV.Range" => schema.request(&self.range()),
            "KV.Put" => schema.request(&self.put()),
            "KV.DeleteRange" => schema.request(&self.delete_range()),
            "KV.Txn" => {
                let txn = self.txn(0);
                // What a change may make of a deleted range is more than etcd can take.
                let text = format!("{txn:?}");
                let harmless = if text.contains("RequestDeleteRange") {
                    let put = pb::request_op::Request::RequestPut(self.put());
                    let success = vec![pb::RequestOp { request: Some(put) }];
                    pb::TxnRequest { success, ..pb::TxnRequest::default() }
                } else {
                    txn
                };
                schema.request(&harmless)
            }
            "Lease.LeaseGrant" => schema.request(&pb::LeaseGrantRequest {
                ttl: self.rng.between(100, 1000),
                id: self.rng.between(1, 9),
            }),
            "Lease.LeaseTimeToLive" => schema
                .request(&pb::LeaseTimeToLiveRequest { id: self.rng.between(1, 9), keys: true }),
            "Lease.LeaseRevoke" => {
                schema.request(&pb::LeaseRevokeRequest { id: self.rng.between(1, 9) })
            }
            "Cluster.MemberPromote" => schema.request(&pb::MemberPromoteRequest { id: 7 }),
            "Maintenance.MoveLeader" => schema.request(&pb::MoveLeaderRequest { target_id: 7 }),
            "Auth.UserGet" => schema.request(&pb::AuthUserGetRequest { name: "ann".into() }),
            "Auth.Authenticate" => schema
                .request(&pb::AuthenticateRequest { name: "ann".into(), password: "annpw".into() }),
            _ => return Value::Object(serde_json::Map::new()),
        };
        let options = SerializeOptions::new()
            .use_proto_field_name(self.rng.chance(70))
            .use_enum_numbers(self.rng.chance(20))
            .stringify_64_bit_integers(self.rng.chance(60))
            .skip_default_fields(self.rng.chance(80));
        request
            .serialize_with_options(serde_json::value::Serializer, &options)
            .expect("messages of the contract have a spelling")
    }

    /// A request with so many changes.
    fn body(&mut self, method: &'static str, changes: usize) -> Vec<u8> {
        let mut root = Node::of(&self.template(method));
        for _ in 0..changes {
            self.change(&mut root);
        }
        let mut body = Vec::new();
        let spaced = self.rng.chance(20);
        root.write(spaced, &mut body);
        body
    }

    fn any_value(&mut self) -> Node {
        match self.rng.below(4) {
            0 => Node::Text(self.rng.pick(MISTAKES).to_vec()),
            _ => Node::Text(self.rng.pick(VALUES).as_bytes().to_vec()),
        }
    }

    fn change(&mut self, root: &mut Node) {
        let at = self.rng.below(root.count());
        if self.rng.chance(45) {
            let new = self.any_value();
            if let Ok(node) = root.nth(at) {
                *node = new;
            }
            return;
        }
        if self.rng.chance(15) {
            if let Ok(node) = root.nth(at) {
                let inner = std::mem::replace(node, Node::Array(Vec::new()));
                *node = match self.rng.below(3) {
                    0 => Node::Array(vec![inner]),
                    1 => Node::Object(vec![(b"\"value\"".to_vec(), inner)]),
                    _ => Node::Text(self.nested()),
                };
            }
            return;
        }
        // Otherwise the members of an object change: the chosen one, or all of it.
        let value = self.any_value();
        let node =
            if matches!(root.nth(at), Ok(Node::Object(_))) { root.nth(at) } else { Ok(root) };
        if let Ok(Node::Object(members)) = node {
            self.change_members(members, value);
        }
    }

    fn change_members(&mut self, members: &mut Vec<(Vec<u8>, Node)>, value: Node) {
        const UNKNOWN: &[&[u8]] = &[
            b"\"x\"",
            b"\"\"",
            b"\"[etcdserverpb.x]\"",
            b"\"key\\u0000\"",
            b"\"@type\"",
            b"\"KEY\"",
            b"\"\xff\"",
        ];
        const KNOWN: &[&[u8]] = &[
            b"\"key\"",
            b"\"range_end\"",
            b"\"rangeEnd\"",
            b"\"\\u006bey\"",
            b"\"limit\"",
            b"\"request_put\"",
            b"\"requestRange\"",
            b"\"mod_revision\"",
            b"\"ID\"",
            b"\"id\"",
            b"\"success\"",
            b"\"sort_target\"",
            b"\"version\"",
            b"\"value\"",
        ];
        let place = self.rng.below(members.len() + 1);
        match self.rng.below(10) {
            0..3 => members.insert(place, (self.rng.pick(UNKNOWN).to_vec(), value)),
            3..6 => members.insert(place, (self.rng.pick(KNOWN).to_vec(), value)),
            6 => {
                if place < members.len() {
                    members.remove(place);
                }
            }
            7..9 => {
                if let Some((name, _)) = members.get_mut(place) {
                    *name = self.other_name(name);
                }
            }
            _ => {
                let Some((name, _)) = members.get(place) else { return };
                let name = if self.rng.chance(50) { self.other_name(name) } else { name.clone() };
                members.push((name, value));
            }
        }
    }

    /// Another spelling of a name, or nearly.
    fn other_name(&mut self, name: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(name).into_owned();
        let changed = match self.rng.below(5) {
            0 => camel_case(&text),
            1 => text.to_uppercase(),
            2 => text.replacen('e', "\\u0065", 1),
            3 => text.replace('_', "-"),
            _ => text.trim_matches('"').to_owned(),
        };
        changed.into_bytes()
    }

    /// Values within each other, around what decoders allow.
    fn nested(&mut self) -> Vec<u8> {
        let (open, close) = self.rng.pick(&[
            ("[", "]"),
            ("{\"a\":", "}"),
            ("{\"request_txn\":{\"success\":[", "]}}"),
        ]);
        let depth = self.rng.pick(&[2, 20, 39, 99]);
        format!(
            "{}{}{}",
            open.repeat(depth),
            if open == "[" { "" } else { "{}" },
            close.repeat(depth)
        )
        .into_bytes()
    }

    /// A few bytes that are taken away, replaced or put in.
    fn scratch(&mut self, body: &mut Vec<u8>) {
        for _ in 0..=self.rng.below(3) {
            let at = self.rng.below(body.len() + 1);
            let end = (at + 1 + self.rng.below(3)).min(body.len());
            let piece = self.rng.pick(PIECES);
            match self.rng.below(4) {
                0 => drop(body.drain(at..end)),
                1 => drop(body.splice(at..end, piece.iter().copied())),
                2 if self.rng.chance(20) => body.truncate(at),
                _ => drop(body.splice(at..at, piece.iter().copied())),
            }
        }
    }

    /// Several requests for a stream, one after the other.
    fn renewals(&mut self) {
        let mut body = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let changes = usize::from(self.rng.chance(30));
            body.extend(self.body("Lease.LeaseRevoke", changes));
            body.extend_from_slice(self.rng.pick(&[&b"\n"[..], b"", b" ", b",", b"\r\n\r\n"]));
        }
        self.send("POST", "/v3/lease/keepalive", "application/json", body);
    }
}

fn camel_case(name: &str) -> String {
    let mut upper = false;
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '_' => upper = true,
            _ if std::mem::take(&mut upper) => out.push(c.to_ascii_uppercase()),
            _ => out.push(c),
        }
    }
    out
}

impl Node {
    /// Numbers that stand for something else are zero: nothing gives them a meaning here.
    fn of(value: &Value) -> Node {
        match value {
            Value::Object(members) => {
                let member = |(name, value): (&String, &Value)| {
                    (format!("\"{name}\"").into(), Node::of(value))
                };
                Node::Object(members.iter().map(member).collect())
            }
            Value::Array(items) => Node::Array(items.iter().map(Node::of).collect()),
            scalar => {
                let text = scalar.to_string();
                let number: Option<i64> = text.trim_matches('"').parse().ok();
                match number.and_then(token::decode) {
                    Some(_) => Node::Text(b"\"0\"".to_vec()),
                    None => Node::Text(text.into_bytes()),
                }
            }
        }
    }

    /// Number of values in it, itself included.
    fn count(&self) -> usize {
        1 + match self {
            Node::Text(_) => 0,
            Node::Object(members) => members.iter().map(|(_, node)| node.count()).sum(),
            Node::Array(items) => items.iter().map(Node::count).sum::<usize>(),
        }
    }

    /// The value number `n`, or by how much there are too few.
    fn nth(&mut self, n: usize) -> Result<&mut Node, usize> {
        let Some(mut left) = n.checked_sub(1) else { return Ok(self) };
        let inner: Box<dyn Iterator<Item = &mut Node>> = match self {
            Node::Text(_) => return Err(left),
            Node::Object(members) => Box::new(members.iter_mut().map(|(_, node)| node)),
            Node::Array(items) => Box::new(items.iter_mut()),
        };
        for node in inner {
            match node.nth(left) {
                Ok(found) => return Ok(found),
                Err(rest) => left = rest,
            }
        }
        Err(left)
    }

    fn write(&self, spaced: bool, out: &mut Vec<u8>) {
        let space: &[u8] = if spaced { b" \n\t" } else { b"" };
        match self {
            Node::Text(text) => out.extend_from_slice(text),
            Node::Object(members) => {
                out.push(b'{');
                for (at, (name, value)) in members.iter().enumerate() {
                    out.extend_from_slice(if at > 0 { b"," } else { b"" });
                    out.extend_from_slice(space);
                    out.extend_from_slice(name);
                    out.extend_from_slice(space);
                    out.push(b':');
                    value.write(spaced, out);
                }
                out.extend_from_slice(space);
                out.push(b'}');
            }
            Node::Array(items) => {
                out.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    out.extend_from_slice(if at > 0 { b"," } else { b"" });
                    item.write(spaced, out);
                }
                out.push(b']');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn unchanged_requests_are_json_and_changed_ones_often_not() {
        let mut generator = Generator::new(Rng::new(4));
        let mut valid = 0;
        for _ in 0..500 {
            let (method, _) = generator.target();
            let body = generator.body(method, 0);
            assert!(serde_json::from_slice::<Value>(&body).is_ok(), "{}", body.escape_ascii());
            let body = generator.body(method, 2);
            valid += usize::from(serde_json::from_slice::<Value>(&body).is_ok());
        }
        assert!((100..450).contains(&valid), "{valid} of 500 are valid");
    }

    #[test]
    fn every_value_is_found_by_its_number() {
        let text = r#"{"a":[1,{"b":2}],"c":[]}"#;
        let mut node = Node::of(&serde_json::from_str(text).unwrap());
        assert_eq!(node.count(), 6);
        assert!((0..6).all(|n| node.nth(n).is_ok()) && node.nth(6).is_err());
        let mut out = Vec::new();
        node.write(false, &mut out);
        assert_eq!(out, text.as_bytes());
    }
}

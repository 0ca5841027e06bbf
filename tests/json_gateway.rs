//! The API as JSON, against recorded answers and against a real etcd: the same requests in the same
//! order to both, and the same answers.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use support::{HttpAnswer, PATIENCE, Server, real_etcd};

/// Sends a body.
fn post(server: &Server, path: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpAnswer {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let extra: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n{extra}\r\n"
    );
    support::exchange_raw(&mut stream, &[head.as_bytes(), body].concat())
}

/// An answer's status and value, without what differs between any two servers.
fn comparable(answer: &HttpAnswer) -> (u16, Value) {
    let lines = answer.body.lines();
    let values = lines.map(|line| serde_json::from_str(line).unwrap_or_else(|_| json!(line)));
    let mut values: Vec<Value> = values.map(normal).collect();
    let value = if values.len() == 1 { values.remove(0) } else { json!(values) };
    (answer.status, value)
}

fn normal(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: serde_json::Map<String, Value> = members
                .into_iter()
                .map(|(name, value)| match &name[..] {
                    "cluster_id" | "member_id" | "raft_term" | "raftTerm" | "raftIndex"
                    | "raftAppliedIndex" | "leader" | "dbSize" | "dbSizeInUse" | "dbSizeQuota"
                    | "hash" | "peerURLs" | "clientURLs" | "memberID" | "compact_hash"
                    | "hash_revision" => (name, json!("differs")),
                    "ID" if value.as_str().is_some_and(|id| id.len() > 8) => {
                        (name, json!("differs"))
                    }
                    _ => (name, normal(value)),
                })
                .collect();
            // Of this gateway, for clients of etcd's older ones.
            if members.get("error").is_some_and(Value::is_string) {
                members.remove("error");
            }
            if let Some(Value::String(text)) = members.get("message") {
                // The space is of one kind or another, by chance.
                let text = text.replace('\u{a0}', " ");
                members.insert("message".to_owned(), json!(text));
            }
            Value::Object(members)
        }
        Value::Array(elements) => Value::Array(elements.into_iter().map(normal).collect()),
        other => other,
    }
}

/// Requests in order, with their bodies.
const REQUESTS: &[(&str, &str)] = &[
    ("/v3/kv/range", r#"{"key":"Zm9v"}"#),
    ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#),
    ("/v3beta/kv/put", r#"{"key":"Zm9v","value":"YmF6","prev_kv":true}"#),
    ("/v3/kv/put", r#"{"key":"Zm9w","value":"","prevKv":true,"unknown":{"deep":[1,2]}}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","range_end":"AA=="}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","rangeEnd":"AA","limit":1}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","rangeEnd":"AA","limit":"1","sort_order":"DESCEND"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","rangeEnd":"AA","sort_order":2,"sort_target":"NONE"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","rangeEnd":"AA","sort_order":7}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":2e0}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":"9007199254740993"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":9007199254740993}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":-1}"#),
    ("/v3/kv/range", r#"{"key":"_-8"}"#),
    ("/v3/kv/range", r#"{"key":"+/8="} and more"#),
    ("/v3/kv/range", r#"{"key":"Zm9v"}{"key":"Zm9w"}"#),
    ("/v3/kv/range", r#"{"key":null,"range_end":null}"#),
    ("/v3/kv/range", ""),
    ("/v3/kv/range", "  \n"),
    ("/v3/kv/range", "{}"),
    ("/v3/kv/range", "null"),
    ("/v3/kv/range", "[]"),
    ("/v3/kv/range", "7"),
    ("/v3/kv/range", "\"a\""),
    ("/v3/kv/range", "{"),
    ("/v3/kv/range", "}"),
    ("/v3/kv/range", "key=Zm9v"),
    ("/v3/kv/range", r#"{"key":}"#),
    ("/v3/kv/range", r#"{"key" "a"}"#),
    ("/v3/kv/range", r#"{"key":"a",}"#),
    ("/v3/kv/range", r#"{'key':"a"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v"#),
    ("/v3/kv/range", r#"{"key":"?"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v="}"#),
    ("/v3/kv/range", r#"{"key":"Zm\n9v"}"#),
    ("/v3/kv/range", r#"{"key":1}"#),
    ("/v3/kv/range", r#"{"key":["Zm9v"]}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","key":"Zm9v"}"#),
    ("/v3/kv/range", r#"{"range_end":"","rangeEnd":""}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":1.5}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":9223372036854775808}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":NaN}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":"NaN"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":"1 2"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":true}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","keys_only":"true"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","keys_only":1}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","sort_order":"SIDEWAYS"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","sort_order":2147483648}"#),
    ("/v3/kv/range", r#"{"key":"\ud83d\ude00"}"#),
    ("/v3/kv/range", r#"{"key":"\ud83d"}"#),
    ("/v3/kv/range", r#"{"[a.b]":1,"@type":"x","key":"Zm9v"}"#),
    (
        "/v3/kv/txn",
        r#"{"compare":[{"key":"Zm9v","target":"VERSION","result":"EQUAL","version":"2"}],
            "success":[{"requestRange":{"key":"Zm9v"}},{"request_put":{"key":"Zm9x","value":"MQ=="}},
                {"request_txn":{"success":[{"request_delete_range":{"key":"Zm9x2222"}}]}}],
            "failure":[{"request_delete_range":{"key":"Zm9v"}}]}"#,
    ),
    (
        "/v3/kv/txn",
        r#"{"compare":[{"key":"Zm9v","target":3,"value":"eA=="}],"failure":[{"request_range":{"key":"Zm9v"}}]}"#,
    ),
    ("/v3/kv/txn", r#"{"compare":[{"key":"Zm9v","version":"1","value":"eA=="}]}"#),
    ("/v3/kv/txn", r#"{"success":[{"request_put":{}}]}"#),
    ("/v3/kv/txn", r#"{"success":[null]}"#),
    ("/v3/kv/txn", r#"{"success":{}}"#),
    ("/v3/kv/txn", r#"{"success":[{}]}"#),
    ("/v3/kv/txn", "{}"),
    ("/v3/kv/deleterange", r#"{"key":"Zm9w","prev_kv":true}"#),
    ("/v3/kv/deleterange", r#"{"key":"Zm9w"}"#),
    ("/v3/kv/compaction", r#"{"revision":"2","physical":true}"#),
    ("/v3/kv/compaction", r#"{"revision":"2"}"#),
    ("/v3/kv/compaction", r#"{"revision":"1000"}"#),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":1}"#),
    ("/v3/lease/grant", r#"{"TTL":"100","ID":"77"}"#),
    ("/v3/lease/grant", r#"{"TTL":100,"ID":77}"#),
    ("/v3/lease/grant", r#"{"TTL":"9000000001"}"#),
    ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmF6","lease":"77"}"#),
    ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmF6","lease":78}"#),
    ("/v3/lease/timetolive", r#"{"ID":"77","keys":true}"#),
    ("/v3/kv/lease/timetolive", r#"{"ID":78}"#),
    ("/v3/lease/leases", "{}"),
    ("/v3/kv/lease/leases", ""),
    ("/v3/lease/keepalive", r#"{"ID":77}"#),
    ("/v3/lease/keepalive", "{\"ID\":77}\n{\"ID\":\"78\"} {}"),
    ("/v3/lease/keepalive", ""),
    ("/v3/lease/revoke", r#"{"ID":"77"}"#),
    ("/v3/kv/lease/revoke", r#"{"ID":"77"}"#),
    ("/v3/cluster/member/list", r#"{"linearizable":true}"#),
    ("/v3/cluster/member/remove", r#"{"ID":"1"}"#),
    ("/v3/cluster/member/remove", r#"{"ID":-1}"#),
    ("/v3/cluster/member/remove", r#"{"ID":"18446744073709551615"}"#),
    ("/v3/maintenance/status", "{}"),
    ("/v3/maintenance/alarm", r#"{"action":"GET"}"#),
    ("/v3/maintenance/alarm", r#"{"action":"ACTIVATE","alarm":"NOSPACE","memberID":"5"}"#),
    ("/v3/maintenance/alarm", r#"{"action":2,"alarm":1,"memberID":5}"#),
    ("/v3/maintenance/hash", "{}"),
    ("/v3/maintenance/hashkv", "{}"),
    ("/v3/maintenance/defragment", "{}"),
    ("/v3/maintenance/transfer-leadership", r#"{"targetID":"1"}"#),
    ("/v3/maintenance/downgrade", r#"{"action":"VALIDATE","version":"x"}"#),
    ("/v3/auth/status", "{}"),
    ("/v3/auth/enable", "{}"),
    ("/v3/auth/authenticate", r#"{"name":"a","password":"b"}"#),
    ("/v3/auth/user/add", r#"{"name":"root","password":"r"}"#),
    ("/v3/auth/user/add", r#"{"name":"root","password":"r"}"#),
    ("/v3/auth/user/add", r#"{"name":"ann","options":{"no_password":true}}"#),
    ("/v3/auth/user/changepw", r#"{"name":"root","password":"s"}"#),
    ("/v3/auth/role/add", r#"{"name":"root"}"#),
    ("/v3/auth/role/grant", r#"{"name":"root","perm":{"permType":"READWRITE","key":"YQ=="}}"#),
    ("/v3/auth/role/get", r#"{"role":"root"}"#),
    ("/v3/auth/role/list", "{}"),
    ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
    ("/v3/auth/user/get", r#"{"name":"root"}"#),
    ("/v3/auth/user/list", "{}"),
    ("/v3/auth/role/add", r#"{"name":"r"}"#),
    ("/v3/auth/role/revoke", r#"{"role":"r","key":"YQ=="}"#),
    ("/v3/auth/user/revoke", r#"{"name":"ann","role":"r"}"#),
    ("/v3/auth/role/delete", r#"{"role":"r"}"#),
    ("/v3/auth/user/delete", r#"{"name":"ann"}"#),
    ("/v3/auth/disable", "{}"),
    ("/v3/lease/grant", r#"{"TTL":"100","ID":"255"}"#),
    ("/v3/lock/lock", r#"{"name":"bA==","lease":"255"}"#),
    ("/v3/lock/lock", r#"{"name":"bA==","lease":"1"}"#),
    ("/v3/lock/unlock", r#"{"key":"bC9mZg=="}"#),
    ("/v3/lock/unlock", "{}"),
    ("/v3/election/leader", r#"{"name":"ZQ=="}"#),
    ("/v3/election/campaign", r#"{"name":"ZQ==","lease":"255","value":"YQ=="}"#),
    ("/v3/election/leader", r#"{"name":"ZQ=="}"#),
    ("/v3/election/proclaim", "{}"),
    ("/v3/election/resign", "{}"),
    ("/v3/", "{}"),
    ("/v3/kv", "{}"),
    ("/v3/kv/range/", "{}"),
    ("/v3/kv/nosuch", "{}"),
    ("/v3/kv/rangestream", "{}"),
    ("/v3alpha/kv/range", "{}"),
];

#[test]
fn answers_are_those_of_a_real_etcd() {
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    let (ours, theirs) =
        (Server::start(&["--bcrypt-cost=4"]), Server::start_etcd(&etcd, &["--bcrypt-cost=4"]));
    let mut different = Vec::new();
    let mut compare = |what: &str, have: HttpAnswer, want: HttpAnswer| {
        for name in ["content-type", "grpc-metadata-content-type", "access-control-allow-origin"] {
            if have.headers.get(name) != want.headers.get(name) {
                different.push(format!("{what}: header {name}\n  {have:?}\n  {want:?}"));
            }
        }
        if comparable(&have) != comparable(&want) {
            different.push(format!("{what}\n  {have:?}\n  {want:?}"));
        }
    };
    for (path, body) in REQUESTS {
        let have = post(&ours, path, &[], body.as_bytes());
        compare(&format!("{path} {body}"), have, post(&theirs, path, &[], body.as_bytes()));
    }
    for body in [&b"{\"key\":\"\xff\"}"[..], b"\xff", b"{\"\xff\":1}", b"{\"key\":\"a\x01\"}"] {
        let have = post(&ours, "/v3/kv/range", &[], body);
        compare(&format!("{body:?}"), have, post(&theirs, "/v3/kv/range", &[], body));
    }
    for (method, path) in [
        ("GET", "/v3/kv/range"),
        ("PUT", "/v3/kv/range"),
        ("DELETE", "/v3/watch"),
        ("OPTIONS", "/v3/kv/range"),
        ("GET", "/v3/nosuch"),
        ("POST", "/v3/kv/r%61nge"),
        ("POST", "/v3/maintenance/status?x=y"),
    ] {
        compare(
            &format!("{method} {path}"),
            ours.http(method, path, &[]),
            theirs.http(method, path, &[]),
        );
    }
    let deep = format!("{{\"x\":{}", "[".repeat(10_000));
    let have = post(&ours, "/v3/kv/range", &[], deep.as_bytes());
    compare("deep", have, post(&theirs, "/v3/kv/range", &[], deep.as_bytes()));
    let large = format!("{{\"key\":\"YQ==\",\"value\":\"{}\"}}", "YWFh".repeat(700_000));
    let have = post(&ours, "/v3/kv/put", &[], large.as_bytes());
    compare("large", have, post(&theirs, "/v3/kv/put", &[], large.as_bytes()));
    let larger = format!("{{\"key\":\"YQ==\",\"value\":\"{}\"}}", "YWFh".repeat(400_000));
    let have = post(&ours, "/v3/kv/put", &[], larger.as_bytes());
    compare("larger", have, post(&theirs, "/v3/kv/put", &[], larger.as_bytes()));
    for (path, body) in TIMED {
        for (timeout, _) in TIMEOUTS {
            let headers = [("Grpc-Timeout", *timeout)];
            let have = post(&ours, path, &headers, body.as_bytes());
            let want = post(&theirs, path, &headers, body.as_bytes());
            compare(&format!("{path} {body} in {timeout:?}"), have, want);
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// What the header of a timeout may hold, and the status of a quick call with it.
const TIMEOUTS: &[(&str, u16)] = &[
    ("1S", 200),
    ("1000000000n", 200),
    ("00000000030S", 200),
    ("+9S", 200),
    ("", 200),
    ("0S", 200),
    ("-0H", 200),
    ("-1S", 504),
    // Over before the call.
    ("1n", 504),
    // Does not fit into 64 bits of nanoseconds.
    ("99999999H", 504),
    ("x", 400),
    ("1", 400),
    ("S", 400),
    ("1s", 400),
    ("1.5S", 400),
    ("9223372036854775808n", 400),
];

const TIMED: &[(&str, &str)] = &[
    ("/v3/kv/range", "{\"key\":\"YQ==\"}"),
    // What can't be read is told first.
    ("/v3/kv/range", "{\"key\":"),
    ("/v3/lease/keepalive", "{\"ID\":1}"),
    ("/v3/maintenance/snapshot", "["),
];

#[test]
fn timeouts_are_those_of_the_gateway_of_etcd() {
    let server = Server::start(&[]);
    for (timeout, status) in TIMEOUTS {
        let headers = [("Grpc-Timeout", *timeout)];
        let answer = post(&server, "/v3/kv/range", &headers, b"{\"key\":\"YQ==\"}");
        assert_eq!(answer.status, *status, "{timeout:?}: {answer:?}");
        let (_, value) = comparable(&answer);
        match status {
            200 => {}
            504 => assert_eq!(value["message"], "context deadline exceeded"),
            _ => assert_eq!(value["message"], json!(format!("invalid grpc-timeout: {timeout}"))),
        }
    }
}

#[test]
fn tokens_come_in_headers() {
    let servers = [
        Some(Server::start(&["--bcrypt-cost=4"])),
        real_etcd().map(|etcd| Server::start_etcd(&etcd, &["--bcrypt-cost=4"])),
    ];
    for server in servers.iter().flatten() {
        let call = |path: &str, headers: &[(&str, &str)], body: Value| {
            let answer = post(server, path, headers, body.to_string().as_bytes());
            let (status, value) = comparable(&answer);
            (status, value, answer.headers.get("www-authenticate").cloned())
        };
        let done = |path: &str, body: Value| assert_eq!(call(path, &[], body).0, 200, "{path}");
        done("/v3/auth/user/add", json!({ "name": "root", "password": "r" }));
        done("/v3/auth/role/add", json!({ "name": "root" }));
        done("/v3/auth/user/grant", json!({ "user": "root", "role": "root" }));
        done("/v3/auth/enable", json!({}));
        let range = json!({ "key": "YQ==" });
        let (status, value, _) = call("/v3/kv/range", &[], range.clone());
        assert_eq!((status, value["code"].as_i64()), (400, Some(3)), "{value}");
        assert_eq!(value["message"], "etcdserver: user name is empty");
        let login = json!({ "name": "root", "password": "r" });
        let (_, value, _) = call("/v3/auth/authenticate", &[], login);
        let token = value["token"].as_str().expect("a token").to_owned();
        let bearer = format!("Bearer {token}");
        for header in [
            ("Authorization", &token),
            ("authorization", &bearer),
            ("Grpc-Metadata-Token", &token),
            ("Grpc-Metadata-Authorization", &token),
        ] {
            let (status, value, _) = call("/v3/kv/range", &[(header.0, header.1)], range.clone());
            assert_eq!(status, 200, "{header:?}: {value}");
        }
        let (status, value, asked) = call("/v3/kv/range", &[("Authorization", "x")], range.clone());
        assert_eq!((status, value["code"].as_i64()), (401, Some(16)));
        assert_eq!(asked.as_deref(), Some("etcdserver: invalid auth token"));
        // An answer that has no message has no headers of gRPC either.
        for (path, body) in [
            ("/v3/maintenance/snapshot", json!({})),
            ("/v3/lease/keepalive", json!({ "ID": 1 })),
            ("/v3/kv/range", range.clone()),
        ] {
            let answer = post(server, path, &[], body.to_string().as_bytes());
            assert_eq!(answer.status, 400, "{path}: {answer:?}");
            let told = answer.headers.get("grpc-metadata-content-type");
            assert_eq!(told, None, "{path}: {answer:?}");
        }
        let (status, value, _) = call("/v3/lock/lock", &[], json!({ "name": "bA==" }));
        assert_eq!((status, value["code"].as_i64()), (500, Some(2)), "{value}");
        let headers = [("Authorization", &token[..])];
        assert_eq!(call("/v3/lock/lock", &headers, json!({ "name": "bA==" })).0, 200);
    }
}

/// A request whose answer comes line by line.
struct Lines {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Lines {
    fn open(server: &Server, path: &str) -> Lines {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sends");
        let reader = BufReader::new(stream.try_clone().expect("second handle"));
        Lines { stream, reader }
    }

    fn send(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.stream.write_all(chunk.as_bytes()).expect("sends");
    }

    fn end(&mut self) {
        self.stream.write_all(b"0\r\n\r\n").expect("sends");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("receives");
        line
    }

    /// The status and headers.
    fn head(&mut self) -> String {
        let mut head = String::new();
        loop {
            let line = self.line();
            if line.trim_end().is_empty() {
                return head.to_ascii_lowercase();
            }
            head.push_str(&line);
        }
    }

    /// The next chunk, which is one line; none at the end.
    fn next(&mut self) -> Option<Value> {
        let length = self.line();
        let length = usize::from_str_radix(length.trim_end(), 16).expect("a length");
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).expect("receives");
        let text = std::str::from_utf8(&chunk).expect("text").strip_suffix("\r\n").expect("whole");
        if text.is_empty() {
            return None;
        }
        let text = text.strip_suffix('\n').expect("a line");
        Some(serde_json::from_str(text).expect("JSON"))
    }
}

#[test]
fn watches_are_lines_in_both_directions() {
    let server = Server::start(&[]);
    let mut lines = Lines::open(&server, "/v3/watch");
    lines.send("{\"create_request\":{\"key\":\"Zm9v\",\"prev_kv\":true}}");
    let head = lines.head();
    assert!(
        head.starts_with("http/1.1 200") && head.contains("content-type: application/json"),
        "{head}"
    );
    let created = lines.next().expect("an answer");
    assert_eq!(created["result"]["created"], json!(true), "{created}");
    assert_eq!(created["result"]["header"]["revision"], json!("1"));
    post(&server, "/v3/kv/put", &[], br#"{"key":"Zm9v","value":"YQ=="}"#);
    let event = lines.next().expect("an answer");
    let want = json!([{ "kv": {
        "key": "Zm9v", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "YQ=="
    } }]);
    assert_eq!(event["result"]["events"], want);
    // Another on the same stream, cut anywhere; and a deletion.
    lines.send(" {\"createRequest\":{\"key\":\"Zm9v\",\"watch_");
    lines.send("id\":7,\"filters\":[\"NOPUT\"]}}\n{\"progress_request\":{}}");
    assert_eq!(lines.next().expect("an answer")["result"]["watch_id"], json!("7"));
    post(&server, "/v3/kv/deleterange", &[], br#"{"key":"Zm9v"}"#);
    let mut deletes = 0;
    while deletes < 2 {
        let answer = lines.next().expect("an answer");
        let events = answer["result"]["events"].as_array().cloned().unwrap_or_default();
        for event in events {
            assert_eq!(event["type"], json!("DELETE"));
            deletes += 1;
        }
    }
    // What is no request ends the stream, and says why.
    lines.send("{\"create_request\":7}");
    let error = lines.next().expect("an answer");
    assert_eq!(error["error"]["code"], json!(3), "{error}");
    assert_eq!(lines.next(), None);
    let answer = post(&server, "/v3/watch", &[], b"{\"create_request\":[]}");
    assert_eq!(answer.status, 400, "{answer:?}");
}

#[test]
fn renewals_and_leaders_are_lines() {
    let server = Server::start(&[]);
    post(&server, "/v3/lease/grant", &[], br#"{"TTL":"50","ID":"9"}"#);
    let mut renewals = Lines::open(&server, "/v3/lease/keepalive");
    renewals.send("{\"ID\":9}");
    renewals.head();
    for round in 0..3 {
        let answer = renewals.next().expect("an answer");
        assert_eq!(answer["result"]["TTL"], json!("50"), "{round}: {answer}");
        renewals.send("{\"ID\":\"9\"}");
    }
    renewals.next().expect("an answer");
    renewals.end();
    assert_eq!(renewals.next(), None);

    let mut leaders = Lines::open(&server, "/v3/election/observe");
    leaders.send("{\"name\":\"ZQ==\"}");
    leaders.end();
    post(&server, "/v3/election/campaign", &[], br#"{"name":"ZQ==","lease":"9","value":"YQ=="}"#);
    leaders.head();
    let leader = leaders.next().expect("an answer");
    assert_eq!(leader["result"]["kv"]["value"], json!("YQ=="), "{leader}");
}

#[test]
fn the_gateway_can_be_switched_off() {
    let servers = [
        Some(Server::start(&["--enable-grpc-gateway=false"])),
        real_etcd().map(|etcd| Server::start_etcd(&etcd, &["--enable-grpc-gateway=false"])),
    ];
    for server in servers.iter().flatten() {
        let answer = post(server, "/v3/kv/range", &[], b"{}");
        assert_eq!((answer.status, &answer.body[..]), (404, "404 page not found\n"));
    }
}

#[test]
fn whoever_goes_away_leaves_no_lock_waiting() {
    let server = Server::start(&[]);
    let count = || {
        let body = br#"{"key":"bC8=","range_end":"bDA=","count_only":true}"#;
        comparable(&post(&server, "/v3/kv/range", &[], body)).1["count"].clone()
    };
    assert_eq!(post(&server, "/v3/lock/lock", &[], br#"{"name":"bA=="}"#).status, 200);
    let mut waiting = Lines::open(&server, "/v3/lock/lock");
    waiting.send("{\"name\":\"bA==\"}");
    waiting.end();
    let deadline = std::time::Instant::now() + PATIENCE;
    let wait_for = |want: Value| {
        while count() != want {
            assert!(std::time::Instant::now() < deadline, "{} keys", count());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    wait_for(json!("2"));
    drop(waiting);
    wait_for(json!("1"));
}

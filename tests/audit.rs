//! The audit log of the real binary: what is in it, and above all what is not.

mod support;

use std::path::{Path, PathBuf};
use std::time::Instant;

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use leaseway_proto::etcdserverpb::kv_client::KvClient;
use leaseway_proto::etcdserverpb::request_op::Request as Op;
use serde_json::{Value, json};
use support::client::{Client, changed_at, delete, op, put};
use support::users::{CHEAP, connect, enable, login, with_token};
use support::{PATIENCE, Server};
use tonic::Code;

/// A server with an audit log, and where that is.
fn audited(flags: &[&str]) -> (Server, PathBuf) {
    // Relative to the directory that the server is started in.
    let flags: Vec<&str> = ["--audit-log=audit.json", CHEAP].iter().chain(flags).copied().collect();
    let server = Server::start(&flags);
    let path = server.dir.path().join("audit.json");
    (server, path)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn lines(path: &Path) -> Vec<Value> {
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    text(path).lines().map(read).collect()
}

/// The lines of a method, once there are so many of them.
fn of_method(path: &Path, method: &str, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = text(path);
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let all = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let found: Vec<Value> = all.filter(|line| line["method"] == method).collect();
        if found.len() >= count {
            return found;
        }
        assert!(Instant::now() < deadline, "{count} lines of {method} wanted:\n{text}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_has_a_line_with_its_keys_and_outcome_and_a_read_has_none() {
    let (mut server, path) = audited(&[]);
    let client = Client::connect(server.port).await;
    let revision = client.put("a/b", "a secret value", 0).await.expect("puts");
    client.get("a/b").await.expect("reads");
    client.grant(0x7b, 60).await.expect("grants");
    client.put(vec![0xff, 0x00], "v", 0x7b).await.expect("puts");
    client.keep_alive(0x7b).await.expect("renews");
    let success =
        vec![op(Op::RequestPut(put("c", "v", 0))), op(Op::RequestDeleteRange(delete("d")))];
    let failure = vec![op(Op::RequestPut(put("e", "v", 0)))];
    let compare = vec![changed_at("a/b", revision)];
    client.txn(pb::TxnRequest { compare, success, failure }).await.expect("changes");
    client.compact(revision, false).await.expect("compacts");
    client.compact(revision, false).await.expect_err("compacted already");
    client.put("", "v", 0).await.expect_err("no key");
    server.stop();

    let all = lines(&path);
    let told: Vec<(&str, &str)> = all
        .iter()
        .map(|line| (line["method"].as_str().expect("text"), line["code"].as_str().expect("text")))
        .collect();
    let want = [
        ("/etcdserverpb.KV/Put", "OK"),
        ("/etcdserverpb.Lease/LeaseGrant", "OK"),
        ("/etcdserverpb.KV/Put", "OK"),
        ("/etcdserverpb.KV/Txn", "OK"),
        ("/etcdserverpb.KV/Compact", "OK"),
        ("/etcdserverpb.KV/Compact", "OutOfRange"),
        ("/etcdserverpb.KV/Put", "InvalidArgument"),
    ];
    assert_eq!(told, want);
    assert_eq!(all[0]["keys"], json!([{ "action": "put", "key": "a/b" }]));
    assert_eq!((&all[0]["user"], &all[0]["revision"]), (&Value::Null, &revision.into()));
    assert!(all[0]["client"].as_str().expect("text").starts_with("127.0.0.1:"), "{}", all[0]);
    assert!(all[0]["took_us"].as_u64().is_some() && all[0].get("error").is_none(), "{}", all[0]);
    assert!(all[0]["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{}", all[0]);
    assert_eq!((&all[1]["lease"], &all[1]["ttl"]), (&"7b".into(), &"60".into()));
    assert_eq!(all[2]["keys"], json!([{ "action": "put", "key_base64": "/wA=" }]));
    assert_eq!(all[2]["lease"], "7b");
    assert_eq!(
        all[3]["keys"],
        json!([
            { "action": "compare", "key": "a/b" },
            { "action": "put", "key": "c", "branch": "then" },
            { "action": "delete", "key": "d", "branch": "then" },
            { "action": "put", "key": "e", "branch": "else" },
        ])
    );
    assert_eq!(all[3]["branch"], "then");
    assert_eq!(all[4]["compact_revision"], revision.to_string());
    assert_eq!(all[6]["error"], "etcdserver: key is not provided");
    assert!(!text(&path).contains("secret"), "{}", text(&path));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_it_was_is_told_and_what_they_know_is_not() {
    let (mut server, path) = audited(&[]);
    let channel = connect(server.port).await;
    enable(&channel).await;
    let root = login(&channel, "root", "rootpw").await.expect("a token");
    let ann = login(&channel, "ann", "annpw").await.expect("a token");
    login(&channel, "ann", "wrong-guess").await.expect_err("another password");
    let mut kv = KvClient::new(channel.clone());
    kv.put(with_token(&ann, put("app/k", "a secret value", 0))).await.expect("puts");
    let refused = kv.put(with_token(&ann, put("other", "v", 0))).await.expect_err("may not");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let range =
        pb::RangeRequest { key: "other".into(), range_end: "x".into(), ..Default::default() };
    kv.range(with_token(&ann, range.clone())).await.expect_err("may not read either");
    kv.range(range).await.expect_err("nobody may not");
    kv.put(with_token("nonsense.token", put("app/k", "v", 0))).await.expect_err("no token");
    let password = pb::AuthUserChangePasswordRequest {
        name: "ann".into(),
        password: "annpw-new".into(),
        ..Default::default()
    };
    let mut auth = AuthClient::new(channel.clone());
    auth.user_change_password(with_token(&root, password)).await.expect("changes");
    let client = Client::connect(server.port).await;
    drop(client.watch_everything(0).await.expect("a stream"));
    server.stop();

    let told: Vec<(String, Value, String)> = lines(&path)
        .iter()
        .skip_while(|line| line["method"] != "/etcdserverpb.Auth/AuthEnable")
        .map(|line| {
            let text = |name: &str| line[name].as_str().expect("text").to_owned();
            (text("method"), line["user"].clone(), text("code"))
        })
        .collect();
    let line = |method: &str, user: Value, code: &str| {
        (format!("/etcdserverpb.{method}"), user, code.to_owned())
    };
    let want = [
        line("Auth/AuthEnable", Value::Null, "OK"),
        line("Auth/Authenticate", Value::Null, "OK"),
        line("Auth/Authenticate", Value::Null, "OK"),
        line("Auth/Authenticate", Value::Null, "InvalidArgument"),
        line("KV/Put", "ann".into(), "OK"),
        line("KV/Put", "ann".into(), "PermissionDenied"),
        line("KV/Range", "ann".into(), "PermissionDenied"),
        line("KV/Range", Value::Null, "InvalidArgument"),
        line("KV/Put", Value::Null, "Unauthenticated"),
        line("Auth/UserChangePassword", "root".into(), "OK"),
        line("Watch/Watch", Value::Null, "InvalidArgument"),
    ];
    assert_eq!(told, want);
    let logins = of_method(&path, "/etcdserverpb.Auth/Authenticate", 3);
    assert_eq!(logins[2]["target_user"], "ann");
    let granted = of_method(&path, "/etcdserverpb.Auth/RoleGrantPermission", 1);
    assert_eq!(
        granted[0]["keys"],
        json!([{ "action": "grant", "key": "app/", "range_end": "app0" }])
    );
    assert_eq!(
        (&granted[0]["permission"], &granted[0]["target_role"]),
        (&"READWRITE".into(), &"app".into())
    );
    let watch = of_method(&path, "/etcdserverpb.Watch/Watch", 1);
    assert_eq!(watch[0]["keys"], json!([{ "action": "watch", "key": "\0", "range_end": "\0" }]));
    let (text, log) = (text(&path), server.log());
    for secret in ["secret", "rootpw", "annpw", "wrong-guess", "nonsense", &root, &ann, "$2b$"] {
        assert!(!text.contains(secret), "{secret} in {text}");
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_have_lines_if_that_is_asked_for() {
    let (server, path) = audited(&["--audit-log-level=all"]);
    let client = Client::connect(server.port).await;
    client.get("k").await.expect("reads");
    client.grant(9, 60).await.expect("grants");
    client.keep_alive(9).await.expect("renews");
    let _watching = client.watch_everything(0).await.expect("a stream");
    let range = of_method(&path, "/etcdserverpb.KV/Range", 1);
    assert_eq!(range[0]["keys"], json!([{ "action": "get", "key": "k" }]));
    assert_eq!(of_method(&path, "/etcdserverpb.Lease/LeaseKeepAlive", 1)[0]["lease"], "9");
    of_method(&path, "/etcdserverpb.Watch/Watch", 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_is_opened_again_after_a_rotation() {
    let (server, path) = audited(&[]);
    let client = Client::connect(server.port).await;
    client.put("first", "v", 0).await.expect("puts");
    of_method(&path, "/etcdserverpb.KV/Put", 1);
    let old = path.with_extension("1");
    std::fs::rename(&path, &old).expect("renames");
    server.signal("HUP");
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < deadline, "no new file:\n{}", server.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    client.put("second", "v", 0).await.expect("puts");
    of_method(&path, "/etcdserverpb.KV/Put", 1);
    assert!(text(&old).contains("first") && !text(&old).contains("second"));
    assert!(text(&path).contains("second") && !text(&path).contains("first"));
}

#[test]
fn a_file_that_cannot_be_opened_stops_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("http://127.0.0.1:{}", support::free_port());
    let ended = support::finish(
        support::leaseway()
            .current_dir(dir.path())
            .args(["--data-dir=data", "--listen-client-urls", &url])
            .args(["--advertise-client-urls", &url, "--audit-log=missing/audit.json"]),
    );
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("audit log missing/audit.json: "), "{}", ended.stderr);
}

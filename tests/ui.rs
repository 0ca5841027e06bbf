//! The page for people and its endpoints, of the real binary.

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use pb::request_op::Request::RequestPut;
use serde_json::{Value, json};
use support::client::Client;
use support::users::{CHEAP, connect, enable, login, with_token};
use support::{HttpAnswer, PATIENCE, Server};
use tokio::sync::oneshot::error::TryRecvError;

const MARK: (&str, &str) = ("X-Leaseway-Ui", "1");

fn ask(server: &Server, path: &str, token: &str) -> (u16, Value) {
    let mut headers = vec![MARK];
    if !token.is_empty() {
        headers.push(("Authorization", token));
    }
    told(&server.http("GET", &format!("/ui/api/{path}"), &headers))
}

fn told(answer: &HttpAnswer) -> (u16, Value) {
    let body = serde_json::from_str(&answer.body);
    (answer.status, body.unwrap_or_else(|error| panic!("{error}: {answer:?}")))
}

fn urlsafe(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn base64(bytes: impl AsRef<[u8]>) -> Value {
    STANDARD.encode(bytes).into()
}

/// The names of the entries of all pages, folders and keys alike.
fn names(server: &Server, query: &str) -> Vec<String> {
    let (mut names, mut from) = (Vec::new(), String::new());
    for _ in 0..100 {
        let (status, page) = ask(server, &format!("keys?{query}{from}"), "");
        assert_eq!(status, 200, "{page}");
        for entry in page["entries"].as_array().expect("entries") {
            let name = entry.get("folder").or(entry.get("key")).and_then(Value::as_str);
            let bytes = STANDARD.decode(name.expect("a name")).expect("base64");
            names.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        match page["next"].as_str() {
            None => return names,
            Some(next) => {
                from = format!("&from={}", urlsafe(STANDARD.decode(next).expect("base64")));
            }
        }
    }
    panic!("the pages do not end");
}

#[test]
fn without_its_flag_there_is_no_page() {
    let server = Server::start(&[]);
    assert_eq!(server.http("GET", "/ui", &[]).status, 404);
    assert_eq!(server.http("GET", "/ui/api/status", &[MARK]).status, 404);
}

#[test]
fn the_page_is_served_with_a_policy_and_only_there() {
    let metrics_port = support::free_port();
    let metrics = format!("http://127.0.0.1:{metrics_port}");
    let server = Server::start(&["--enable-ui", "--listen-metrics-urls", &metrics]);
    let page = server.http("GET", "/ui", &[]);
    assert_eq!(
        (page.status, page.headers["content-type"].as_str()),
        (200, "text/html; charset=utf-8")
    );
    let policy = &page.headers["content-security-policy"];
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    assert_eq!(page.headers["x-frame-options"], "DENY");
    assert!(page.body.starts_with("<!doctype html>"));
    assert_eq!(server.http("POST", "/ui", &[]).status, 405);
    assert_eq!(server.http("GET", "/ui/other", &[]).status, 404);
    assert_eq!(server.http("GET", "/uiother", &[]).status, 404);
    assert_eq!(server.http("GET", "/ui/api/other", &[MARK]).status, 404);
    assert_eq!(server.http("POST", "/ui/api/status", &[MARK]).status, 405);
    assert_eq!(server.http("GET", "/ui/api/login", &[MARK]).status, 405);
    assert_eq!(support::http(metrics_port, "GET", "/ui", &[]).status, 404);
}

#[test]
fn pages_of_other_origins_are_told_nothing() {
    let server = Server::start(&["--enable-ui", "--host-whitelist=localhost"]);
    let bare = server.http("GET", "/ui/api/status", &[("Origin", "http://evil.example")]);
    assert_eq!(bare.status, 403, "without the header that only the own page can send");
    let preflight = [
        ("Origin", "http://evil.example"),
        ("Access-Control-Request-Method", "GET"),
        ("Access-Control-Request-Headers", "x-leaseway-ui"),
    ];
    let answer = server.http("OPTIONS", "/ui/api/status", &preflight);
    let allowed = answer.headers["access-control-allow-headers"].to_ascii_lowercase();
    assert!(!allowed.contains("x-leaseway-ui") && !allowed.contains('*'), "{allowed}");
    let rebound = server.http("GET", "/ui/api/status", &[("Host", "evil.example"), MARK]);
    assert_eq!(rebound.status, 421);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_listed_by_folders_and_pages() {
    let server = Server::start(&["--enable-ui"]);
    let client = Client::connect(server.port).await;
    for number in 0..130 {
        client.put(format!("/registry/pods/ns/{number:03}"), "v", 0).await.expect("puts");
        client.put(format!("flat{number:03}"), "v", 0).await.expect("puts");
    }
    client.put("/registry/events/one", "v", 0).await.expect("puts");
    client.put("/registry/version", "1.2", 0).await.expect("puts");
    client.put("/registry/pods", "beside its folder", 0).await.expect("puts");
    assert_eq!(
        names(&server, &format!("prefix={}", urlsafe("/registry/"))),
        ["/registry/events/", "/registry/pods", "/registry/pods/", "/registry/version"]
    );
    let all = names(&server, "");
    assert_eq!((all.len(), all[0].as_str(), all[130].as_str()), (131, "/registry/", "flat129"));
    let flat = names(&server, &format!("flat=1&prefix={}", urlsafe("/registry/pods/")));
    assert_eq!((flat.len(), flat[129].as_str()), (130, "/registry/pods/ns/129"));
    assert_eq!(names(&server, &format!("prefix={}", urlsafe("nothing/"))), [""; 0]);
    let (_, page) =
        ask(&server, &format!("keys?count=1&prefix={}", urlsafe("/registry/pods/")), "");
    assert_eq!(page["count"], 130);
    assert_eq!(ask(&server, "keys?prefix=!", "").0, 400);

    let (status, key) = ask(&server, &format!("key?key={}", urlsafe("/registry/version")), "");
    assert_eq!((status, &key["value"], &key["bytes"]), (200, &base64("1.2"), &3.into()));
    assert_eq!(
        (&key["found"], &key["version"], &key["lease"]),
        (&true.into(), &1.into(), &Value::Null)
    );
    let (_, missing) = ask(&server, &format!("key?key={}", urlsafe("no")), "");
    assert_eq!(missing, json!({ "found": false }));
    client.put("large", vec![b'x'; 100_000], 0).await.expect("puts");
    let (_, large) = ask(&server, &format!("key?key={}", urlsafe("large")), "");
    assert_eq!((&large["bytes"], &large["shown_bytes"]), (&100_000.into(), &65_536.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_watchers_members_and_figures_are_told() {
    let server = Server::start(&["--enable-ui", "--name=here"]);
    let client = Client::connect(server.port).await;
    client.grant(0x7b, 1000).await.expect("grants");
    client.grant(0x7c, 100).await.expect("grants");
    client.put("k", "v", 0x7b).await.expect("puts");
    let create = pb::WatchCreateRequest {
        key: "a/".into(),
        range_end: "a0".into(),
        start_revision: 1000,
        ..Default::default()
    };
    let _watching = client.watch_with(create).await.expect("a watch");

    let (_, leases) = ask(&server, "leases", "");
    assert_eq!(leases["total"], 2);
    let [first, second] = &leases["leases"].as_array().expect("leases")[..] else {
        panic!("{leases}")
    };
    assert_eq!((&first["id"], &second["id"]), (&"7c".into(), &"7b".into()), "by what is left");
    assert_eq!((&second["ttl"], &second["keys"]), (&1000.into(), &json!([base64("k")])));
    let left = second["remaining_ms"].as_u64().expect("a number");
    assert!((900_000..=1_000_000).contains(&left), "{left}");

    let (_, watchers) = ask(&server, "watchers", "");
    assert_eq!((&watchers["total"], &watchers["revision"]), (&1.into(), &2.into()));
    let watcher = &watchers["watchers"][0];
    assert_eq!(watcher["range"], json!({ "key": base64("a/"), "end": base64("a0") }));
    assert_eq!((&watcher["state"], &watcher["lag"]), (&"live".into(), &(-997).into()));

    let (_, members) = ask(&server, "members", "");
    let member = &members["members"][0];
    assert_eq!((&member["name"], &member["me"]), (&"here".into(), &true.into()));
    assert!(member["position"].as_u64().expect("a number") > 0);

    let (_, status) = ask(&server, "status", "");
    assert_eq!(
        (&status["revision"], &status["keys"], &status["leases"]),
        (&2.into(), &1.into(), &2.into())
    );
    assert_eq!((&status["auth"], &status["user"]), (&false.into(), &Value::Null));
    assert_eq!((&status["backend"], &status["watchers"]), (&"local".into(), &1.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_sees_what_they_may_read() {
    let server = Server::start(&["--enable-ui", CHEAP]);
    let client = Client::connect(server.port).await;
    client.put("app/k", "v", 0).await.expect("puts");
    client.put("other", "v", 0).await.expect("puts");
    client.grant(1, 1000).await.expect("grants");
    client.put("app/l", "v", 1).await.expect("puts");
    let channel = connect(server.port).await;
    enable(&channel).await;

    for path in ["status", "keys", "leases", "watchers", "members", "key?key=YQ"] {
        let (status, answer) = ask(&server, path, "");
        assert_eq!((status, &answer["login"]), (400, &true.into()), "{path}: {answer}");
        assert_eq!(ask(&server, path, "nonsense").0, 401, "{path}");
    }
    let log_in = |name: &str, password: &str| {
        let pair = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
        told(&server.http("POST", "/ui/api/login", &[MARK, ("Authorization", &pair)]))
    };
    let (status, refused) = log_in("ann", "wrong");
    assert_eq!((status, &refused["login"]), (400, &false.into()), "{refused}");
    let token = |name: &str| {
        let (status, given) = log_in(name, &format!("{name}pw"));
        assert_eq!(status, 200, "{given}");
        given["token"].as_str().expect("a token").to_owned()
    };
    let (ann, root) = (token("ann"), token("root"));

    let (_, status) = ask(&server, "status", &ann);
    assert_eq!((&status["user"], &status["auth"]), (&"ann".into(), &true.into()));
    let mine = format!("keys?prefix={}", urlsafe("app/"));
    assert_eq!(ask(&server, &mine, &ann).1["entries"].as_array().map(Vec::len), Some(2));
    for (path, allowed) in [
        ("keys", 403),
        ("watchers", 403),
        ("members", 200),
        (&*format!("keys?prefix={}", urlsafe("app")), 403),
        (&*format!("keys?from={}&prefix={}", urlsafe("other"), urlsafe("app/")), 200),
        (&*format!("key?key={}", urlsafe("other")), 403),
        (&*format!("key?key={}", urlsafe("app/k")), 200),
        // Every key on every lease is hers to read.
        ("leases", 200),
    ] {
        let (status, answer) = ask(&server, path, &ann);
        assert_eq!(status, allowed, "{path}: {answer}");
        assert!(!answer.to_string().contains(&STANDARD.encode("other")), "{path}: {answer}");
        assert_eq!(ask(&server, path, &root).0, 200, "{path}");
    }
    let mut kv = client.kv.clone();
    let put = support::client::put("other", "v", 1);
    kv.put(with_token(&root, put)).await.expect("puts");
    assert_eq!(ask(&server, "leases", &ann).0, 403, "one of the keys on leases is not");
    let grpc = login(&channel, "root", "rootpw").await.expect("a token");
    assert_eq!(ask(&server, "watchers", &format!("Bearer {grpc}")).0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_roles_logs_nobody_out() {
    // So that roles change faster than leases are looked at.
    let server = Server::start(&["--enable-ui", "--unsafe-no-fsync", CHEAP]);
    let client = Client::connect(server.port).await;
    for id in 1..=200 {
        client.grant(id, 1000).await.expect("grants");
        let keys = (0..20).map(|key| support::client::put(format!("app/{id}/{key}"), "v", id));
        let success = keys.map(|put| support::client::op(RequestPut(put))).collect();
        let puts = pb::TxnRequest { success, ..Default::default() };
        client.txn(puts).await.expect("puts");
    }
    let channel = connect(server.port).await;
    enable(&channel).await;
    let ann = login(&channel, "ann", "annpw").await.expect("a token");
    let root = login(&channel, "root", "rootpw").await.expect("a token");
    // Roles change all the time, until this ends.
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let changes = tokio::spawn(async move {
        let mut auth = AuthClient::new(channel);
        let mut made = 0;
        while stopped.try_recv() == Err(TryRecvError::Empty) {
            let name = format!("role{made}");
            let add = with_token(&root, pb::AuthRoleAddRequest { name });
            auth.role_add(add).await.expect("a role");
            made += 1;
        }
        made
    });
    for _ in 0..10 {
        let (status, answer) = ask(&server, "leases", &ann);
        let told = (answer["total"].as_u64(), answer["login"].as_bool());
        match status {
            200 => assert_eq!(told, (Some(200), None)),
            _ => assert_eq!((status, told), (503, (None, Some(false))), "{answer}"),
        }
    }
    stop.send(()).expect("somebody waits");
    assert!(changes.await.expect("changes") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_are_told_with_their_positions() {
    let Some(oxia) = support::oxia::Oxia::start() else { return };
    let backend = format!("--backend=oxia://{}/default?keyspace=ui", oxia.address());
    let start = |name: &str| Server::start(&[&backend, "--enable-ui", "--name", name]);
    let (one, two) = (start("one"), start("two"));
    let client = Client::connect(one.port).await;
    client.grant(5, 100).await.expect("grants");
    client.put("k", "v", 5).await.expect("puts");
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let (status, members) = ask(&two, "members", "");
        assert_eq!(status, 200, "{members}");
        let members = members["members"].as_array().expect("members").clone();
        let position = |name: &str| {
            let member = members.iter().find(|member| member["name"] == name)?;
            member["position"].as_u64()
        };
        if let (Some(one), Some(two)) = (position("one"), position("two"))
            && one == two
        {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{members:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let (_, leases) = ask(&two, "leases", "");
    assert_eq!((&leases["estimated"], &leases["leases"][0]["id"]), (&true.into(), &"5".into()));
}

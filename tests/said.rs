//! What the server's log tells of what administrators and strangers do.

mod support;

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::alarm_request::AlarmAction;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use leaseway_proto::etcdserverpb::kv_client::KvClient;
use leaseway_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use support::users::{CHEAP, connect, enable, login, with_token};
use support::{Server, free_port};

/// The log's lines with a message, as JSON.
fn lines(server: &Server, message: &str) -> Vec<serde_json::Value> {
    let log = server.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(|line: &serde_json::Value| line["msg"] == message).collect()
}

fn one(server: &Server, message: &str) -> serde_json::Value {
    let found = lines(server, message);
    assert_eq!(found.len(), 1, "{message:?} in\n{}", server.log());
    found.into_iter().next().expect("one")
}

fn is_local(line: &serde_json::Value) -> bool {
    line["remote-addr"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:"))
}

#[tokio::test]
async fn changes_of_users_and_failed_logins_say_who_and_from_where() {
    let server = Server::start(&[CHEAP]);
    let channel = connect(server.port).await;
    // While there are no logins, one that fails says nothing about anybody: etcd has no line for it either.
    login(&channel, "ann", "annpw").await.expect_err("authentication is off");
    enable(&channel).await;
    let added = lines(&server, "added a user");
    let names: Vec<_> = added.iter().map(|line| line["user-name"].as_str()).collect();
    assert_eq!(names, [Some("root"), Some("ann")]);
    assert!(added.iter().all(|line| is_local(line) && line.get("requested-by").is_none()));
    let granted = one(&server, "granted/updated a permission to a role");
    assert_eq!(granted["role-name"], "app");
    assert_eq!((&granted["key"], &granted["range-end"]), (&"app/".into(), &"app0".into()));
    assert_eq!(granted["permission-name"], "READWRITE");
    assert!(is_local(&one(&server, "enabled authentication")));

    login(&channel, "ann", "wrong").await.expect_err("another password");
    let failed = one(&server, "invalid authentication was requested");
    assert!(is_local(&failed) && failed["user"] == "ann", "{failed}");

    let root = login(&channel, "root", "rootpw").await.expect("root");
    let mut auth = AuthClient::new(channel.clone());
    let change = pb::AuthUserChangePasswordRequest {
        name: "ann".into(),
        password: "secret word".into(),
        ..Default::default()
    };
    auth.user_change_password(with_token(&root, change)).await.expect("changed");
    assert_eq!(one(&server, "changed a password of a user")["requested-by"], "root");
    // What comes to nothing has no line.
    let ann = login(&channel, "ann", "secret word").await.expect("ann");
    let delete = pb::AuthUserDeleteRequest { name: "root".into() };
    auth.user_delete(with_token(&ann, delete)).await.expect_err("only root may");
    assert_eq!(lines(&server, "deleted a user").len(), 0);
    // Who guesses does not fill the disk.
    for _ in 0..15 {
        login(&channel, &"eve".repeat(10_000), "guess").await.expect_err("nobody");
    }
    let failed = lines(&server, "invalid authentication was requested");
    assert_eq!(failed.len(), 10);
    assert!(failed.iter().all(|line| line.to_string().len() < 1000), "{failed:?}");
    auth.auth_disable(with_token(&root, pb::AuthDisableRequest {})).await.expect("off");
    assert_eq!(one(&server, "disabled authentication")["requested-by"], "root");
    for secret in ["secret word", "annpw", "rootpw", "$2"] {
        assert!(!server.log().contains(secret), "{secret}\n{}", server.log());
    }
}

#[tokio::test]
async fn alarms_compactions_and_defragmentations_have_their_lines() {
    let mut server = Server::start(&["--quota-backend-bytes=20000"]);
    let channel = connect(server.port).await;
    let mut kv = KvClient::new(channel.clone());
    let put = |size: usize| pb::PutRequest {
        key: "k".into(),
        value: vec![b'x'; size].into(),
        ..Default::default()
    };
    for _ in 0..3 {
        kv.put(put(100)).await.expect("room");
    }
    for _ in 0..3 {
        kv.put(put(100_000)).await.expect_err("no room");
    }
    let raised = one(&server, "alarm raised");
    assert_eq!((&raised["alarm"], &raised["level"]), (&"NOSPACE".into(), &"warn".into()));

    let mut maintenance = MaintenanceClient::new(channel);
    let disarm = pb::AlarmRequest {
        action: AlarmAction::Deactivate as i32,
        alarm: pb::AlarmType::Nospace as i32,
        member_id: u64::from_str_radix(raised["from"].as_str().expect("an id"), 16).expect("hex"),
    };
    for _ in 0..2 {
        maintenance.alarm(disarm).await.expect("an answer");
    }
    assert!(is_local(&one(&server, "alarm disarmed")));

    let compact = pb::CompactionRequest { revision: 3, physical: true };
    kv.compact(compact).await.expect("compacted");
    let requested = one(&server, "compaction requested");
    assert!(requested["compact-revision"] == 3 && is_local(&requested), "{requested}");
    let finished = one(&server, "finished scheduled compaction");
    assert!(finished["compact-revision"] == 3 && finished["took"].is_string(), "{finished}");

    maintenance.defragment(pb::DefragmentRequest {}).await.expect("done");
    let begun = one(&server, "defragmenting");
    assert!(begun["current-db-size-bytes"].is_u64() && is_local(&begun), "{begun}");
    let ended = one(&server, "finished defragmenting");
    assert_eq!(ended["db-size-bytes-before"], begun["current-db-size-bytes"]);
    assert!(ended["current-db-size-bytes"].is_u64() && ended["took"].is_string(), "{ended}");
    assert!(is_local(&ended), "{ended}");

    maintenance.snapshot(pb::SnapshotRequest {}).await.expect("sent");
    let sent = one(&server, "sending a snapshot");
    assert!(sent["bytes"].is_u64() && is_local(&sent), "{sent}");
    server.stop();
}

#[test]
fn a_log_on_standard_output_is_json_line_by_line() {
    for outputs in ["stdout", "stderr", "stdout,stderr", "/dev/stdout", "/dev/stderr"] {
        let outputs = &*format!("--log-outputs={outputs}");
        // Both streams are one file here, which is no terminal.
        let mut server = Server::start(&[outputs]);
        server.wait_for_log("serves the etcd");
        server.stop();
        let log = server.log();
        for line in log.lines() {
            let line: Result<serde_json::Value, _> = serde_json::from_str(line);
            assert!(line.is_ok_and(|line| line["msg"].is_string()), "{outputs}:\n{log}");
        }
    }
}

#[test]
fn each_scheme_on_a_shared_port_has_its_own_line() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let port = free_port();
    let (plain, secure) = (format!("http://127.0.0.1:{port}"), format!("https://127.0.0.1:{port}"));
    let both = format!("{plain},{secure}");
    let log = dir.path().join("log");
    let mut child = support::leaseway()
        .current_dir(dir.path())
        .args(["--auto-tls", "--listen-client-urls", &both, "--advertise-client-urls", &both])
        .arg(format!("--log-outputs={}", log.display()))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let deadline = std::time::Instant::now() + support::PATIENCE;
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    while !read().contains("traffic securely") || !read().contains("traffic insecurely") {
        let running = child.try_wait().expect("a child of ours").is_none();
        if !running || std::time::Instant::now() > deadline {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    let log = read();
    let address = |message: &str| {
        let line =
            log.lines().find(|line| line.contains(message)).unwrap_or_else(|| panic!("{log}"));
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["address"].as_str().map(str::to_owned)
    };
    assert_eq!(address("client traffic securely"), Some(secure));
    assert_eq!(address("client traffic insecurely"), Some(plain));
}

#[test]
fn a_start_that_fails_for_a_flag_makes_no_store() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let data = dir.path().join("data");
    let url = format!("http://127.0.0.1:{}", free_port());
    let ended = support::finish(
        support::leaseway()
            .current_dir(dir.path())
            .arg("--auth-token=jwt,sign-method=RS256,priv-key=nowhere.pem")
            .arg(format!("--data-dir={}", data.display()))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url]),
    );
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("nowhere.pem"), "{}", ended.stderr);
    assert!(!data.join("keyspace.redb").exists());
}

//! The metrics page beside etcd's: names, types, labels, and some values.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use leaseway_proto::etcdserverpb as pb;
use support::client::{Client, delete, eventually, op, put};
use support::{PATIENCE, Server, real_etcd};

/// Says which of etcd's metrics are absent, in a table whose first column holds names.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");

/// One metric on a page.
#[derive(Debug, Default, PartialEq)]
struct Metric {
    kind: String,
    /// The names of its labels besides `le`, for each combination that occurs.
    labels: BTreeSet<Vec<String>>,
}

fn page(server: &Server) -> String {
    server.http("GET", "/metrics", &[]).body
}

fn metrics(page: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            current = name.to_owned();
            metrics.entry(current.clone()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') {
            let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
            let names = labels.map_or(Vec::new(), |(labels, _)| label_names(labels));
            metrics.entry(current.clone()).or_default().labels.insert(names);
        }
    }
    metrics
}

fn label_names(labels: &str) -> Vec<String> {
    let pairs = labels.split("\",");
    let names = pairs.filter_map(|pair| pair.split_once("=\"").map(|(name, _)| name.to_owned()));
    let mut names: Vec<String> = names.filter(|name| name != "le").collect();
    names.sort_unstable();
    names
}

/// A sample's value; the labels as they are written on the page.
fn value(page: &str, sample: &str) -> Option<f64> {
    let value = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '))?;
    Some(value.parse().expect("a number"))
}

/// Something of everything.
async fn load(server: &Server) {
    let client = Client::connect(server.port).await;
    let mut watching = client.watch_everything(0).await.expect("watches");
    for key in ["a", "b", "c"] {
        client.put(key, "value", 0).await.expect("puts");
    }
    client.delete("c").await.expect("deletes");
    client.grant(7, 60).await.expect("grants");
    client.keep_alive(7).await.expect("renews");
    client.put("d", "value", 7).await.expect("puts");
    let last = client.revoke(7).await.expect("revokes");
    let success = vec![
        op(pb::request_op::Request::RequestPut(put("e", "v", 0))),
        op(pb::request_op::Request::RequestDeleteRange(delete("b"))),
    ];
    client.txn(pb::TxnRequest { success, ..Default::default() }).await.expect("changes");
    client.everything(0).await.expect("reads");
    client.everything(99).await.expect_err("a revision to come");
    client.hash_kv(0).await.expect("hashes");
    let mut maintenance = client.maintenance.clone();
    maintenance.hash(pb::HashRequest {}).await.expect("hashes");
    maintenance.alarm(pb::AlarmRequest::default()).await.expect("lists alarms");
    client.compact(last, true).await.expect("compacts");
    maintenance.defragment(pb::DefragmentRequest {}).await.expect("defragments");
    watching.collect_until(last + 1).await;
    for path in ["/health", "/readyz", "/livez"] {
        assert_eq!(server.http("GET", path, &[]).status, 200);
    }
    // Calls are counted when they are over: that the client was answered is a moment before.
    let streams = r#"grpc_server_handled_total{grpc_code="OK",grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"}"#;
    let cancelled = streams.replace("\"OK\"", "\"Canceled\"");
    let ended = async || {
        let page = page(server);
        [streams, &cancelled].iter().filter_map(|sample| value(&page, sample)).sum::<f64>()
    };
    eventually(PATIENCE, "the renewals' end", ended, |ended| *ended > 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_is_what_happened() {
    let server = Server::start(&["--metrics=extensive", "--quota-backend-bytes=12345678"]);
    load(&server).await;
    let page = page(&server);
    let grpc = |name: &str, service: &str, method: &str, flow: &str| {
        let labels =
            format!(r#"grpc_method="{method}",grpc_service="{service}",grpc_type="{flow}""#);
        value(&page, &format!("{name}{{{labels}}}"))
    };
    let kv = |name: &str, method: &str| grpc(name, "etcdserverpb.KV", method, "unary");
    let request = |success, kind| {
        let labels = format!(r#"success="{success}",type="{kind}""#);
        value(&page, &format!("etcd_server_request_duration_seconds_count{{{labels}}}"))
    };
    let checks = [
        ("living keys", value(&page, "etcd_debugging_mvcc_keys_total"), 2.0),
        ("puts", value(&page, "etcd_mvcc_put_total"), 5.0),
        ("deletes", value(&page, "etcd_mvcc_delete_total"), 3.0),
        // a, b, c, d with `value`, e with `v`.
        ("put bytes", value(&page, "etcd_debugging_mvcc_total_put_size_in_bytes"), 26.0),
        ("quota", value(&page, "etcd_server_quota_backend_bytes"), 12_345_678.0),
        ("hashes", value(&page, "etcd_mvcc_hash_duration_seconds_count"), 1.0),
        ("hashes of keys", value(&page, "etcd_mvcc_hash_rev_duration_seconds_count"), 1.0),
        ("defragmentations", value(&page, "etcd_disk_backend_defrag_duration_seconds_count"), 1.0),
        ("defragmenting", value(&page, "etcd_disk_defrag_inflight"), 0.0),
        ("puts received", kv("grpc_server_msg_received_total", "Put"), 4.0),
        ("puts answered", kv("grpc_server_msg_sent_total", "Put"), 4.0),
        ("ranges received", kv("grpc_server_msg_received_total", "Range"), 2.0),
        ("ranges answered", kv("grpc_server_msg_sent_total", "Range"), 1.0),
        ("successful ranges", request(true, "Range"), 1.0),
        ("failed ranges", request(false, "Range"), 1.0),
        ("transactions", request(true, "Txn"), 1.0),
        (
            "watch requests",
            grpc("grpc_server_msg_received_total", "etcdserverpb.Watch", "Watch", "bidi_stream"),
            1.0,
        ),
        (
            "renewals answered",
            grpc(
                "grpc_server_msg_sent_total",
                "etcdserverpb.Lease",
                "LeaseKeepAlive",
                "bidi_stream",
            ),
            1.0,
        ),
        (
            "file descriptors",
            value(&page, "os_fd_limit"),
            value(&page, "process_max_fds").expect("told"),
        ),
    ];
    for (what, told, happened) in checks {
        assert_eq!(told, Some(happened), "{what}\n{page}");
    }
    assert!(page.contains("\netcd_server_id{server_id=\""), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn living_keys_are_counted_on_from_a_restart() {
    let mut server = Server::start(&[]);
    let client = Client::connect(server.port).await;
    for key in ["a", "b", "c"] {
        client.put(key, "1", 0).await.expect("puts");
    }
    client.delete("b").await.expect("deletes");
    server.signal("TERM");
    assert_eq!(server.wait().0, Some(0), "{}", server.log());
    server.restart();
    assert_eq!(value(&page(&server), "etcd_debugging_mvcc_keys_total"), Some(2.0));
    let client = Client::connect(server.port).await;
    client.put("b", "1", 0).await.expect("puts");
    client.put("b", "2", 0).await.expect("puts");
    assert_eq!(client.everything(0).await.expect("reads").count, 3);
    assert_eq!(value(&page(&server), "etcd_debugging_mvcc_keys_total"), Some(3.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_types_and_labels_are_etcds() {
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    let ours = Server::start(&["--metrics=extensive"]);
    let theirs = Server::start_etcd(&etcd, &["--metrics=extensive"]);
    load(&ours).await;
    load(&theirs).await;
    let (have, want) = (metrics(&page(&ours)), metrics(&page(&theirs)));
    for (name, metric) in have.iter().filter(|(name, _)| !name.starts_with("leaseway_")) {
        let theirs = want.get(name).unwrap_or_else(|| panic!("etcd has no {name}"));
        assert_eq!(metric, theirs, "{name}");
    }
    let docs = std::fs::read_to_string(DOCS).expect("the list of absent metrics");
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut absent: BTreeMap<&str, usize> =
        rows.filter_map(|row| Some((row.split_once('`')?.0, 0))).collect();
    assert!(!absent.is_empty(), "no table in {DOCS}");
    for name in want.keys() {
        let declared = absent.iter_mut().find(|(pattern, _)| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == *pattern,
        });
        match declared {
            Some((pattern, count)) => {
                assert!(
                    !have.contains_key(name),
                    "{name} is there, and declared absent: {pattern}"
                );
                *count += 1;
            }
            None => assert!(have.contains_key(name), "{name} is absent and not declared"),
        }
    }
    let idle: Vec<_> = absent.iter().filter(|(_, count)| **count == 0).collect();
    assert!(idle.is_empty(), "declared absent, but no metrics of etcd: {idle:?}");
}

#[test]
fn a_sample_is_read_with_its_labels() {
    let page = "# TYPE a counter\na{x=\"1\",le=\"+Inf\"} 2\na{y=\"}\"} 3\n# TYPE b gauge\nb 4\n";
    let metrics = metrics(page);
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(metrics["a"].labels, BTreeSet::from([names(&["x"]), names(&["y"])]));
    assert_eq!(value(page, "b"), Some(4.0));
    assert_eq!(value(page, "a{y=\"}\"}"), Some(3.0));
}

/// The names in a query: what looks like one of a metric.
fn names_in(query: &str) -> impl Iterator<Item = &str> {
    const FAMILIES: [&str; 5] = ["etcd_", "grpc_server_", "leaseway_", "process_", "os_"];
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| FAMILIES.iter().any(|family| word.starts_with(family)))
}

/// All texts under a name, at any depth.
fn texts<'a>(value: &'a serde_json::Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (field, value) in fields {
                found.extend(value.as_str().filter(|_| field == name));
                texts(value, name, found);
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| texts(item, name, found)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_names_metrics_that_there_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/grafana.json");
    let text = std::fs::read_to_string(path).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let (mut queries, mut definitions) = (Vec::new(), Vec::new());
    texts(&dashboard, "expr", &mut queries);
    texts(&dashboard, "definition", &mut definitions);
    assert!(queries.len() > 40 && definitions.len() == 2, "{queries:?} {definitions:?}");
    let server = Server::start(&["--metrics=extensive", "--size-prefixes=a"]);
    load(&server).await;
    let have = metrics(&page(&server));
    for query in queries.iter().chain(&definitions) {
        let mut found = 0;
        for name in names_in(query) {
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
                have.get(name.strip_suffix(end)?).filter(|metric| metric.kind == "histogram")
            });
            assert!(have.contains_key(name) || histogram.is_some(), "no {name}: {query}");
            found += 1;
        }
        assert!(found > 0, "no metric in {query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_below_prefixes_follow_every_change_and_a_restart() {
    let mut server = Server::start(&["--size-prefixes=a/,a/b/,none"]);
    let client = Client::connect(server.port).await;
    client.put("a/1", "12345", 0).await.expect("puts");
    client.put("a/b/2", "123", 0).await.expect("puts");
    client.put("c", "elsewhere", 0).await.expect("puts");
    client.put("a/1", "1", 0).await.expect("puts");
    client.grant(7, 60).await.expect("grants");
    client.put("a/b/3", "x", 7).await.expect("puts");
    let sizes = |server: &Server| {
        let page = page(server);
        ["a/", "a/b/", "none"].map(|prefix| {
            let of = |what: &str| {
                value(&page, &format!("leaseway_prefix_{what}{{prefix=\"{prefix}\"}}"))
            };
            (of("keys").expect("told"), of("bytes").expect("told"))
        })
    };
    assert_eq!(sizes(&server), [(3.0, 18.0), (2.0, 14.0), (0.0, 0.0)]);
    server.signal("TERM");
    assert_eq!(server.wait().0, Some(0), "{}", server.log());
    server.restart();
    assert_eq!(sizes(&server), [(3.0, 18.0), (2.0, 14.0), (0.0, 0.0)]);
    let client = Client::connect(server.port).await;
    client.revoke(7).await.expect("revokes");
    client.delete("a/b/2").await.expect("deletes");
    client.put("a/b/2", "again", 0).await.expect("puts");
    assert_eq!(sizes(&server), [(2.0, 14.0), (1.0, 10.0), (0.0, 0.0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_and_changes_of_users_are_counted() {
    use support::users;
    let server = Server::start(&[users::CHEAP]);
    let channel = users::connect(server.port).await;
    users::login(&channel, "ann", "annpw").await.expect_err("not enabled");
    let revision = value(&page(&server), "etcd_debugging_auth_revision").expect("told");
    users::enable(&channel).await;
    users::login(&channel, "ann", "annpw").await.expect("a token");
    for password in ["wrong", ""] {
        users::login(&channel, "ann", password).await.expect_err("refused");
    }
    let page = page(&server);
    let of = |result: &str| {
        value(&page, &format!("leaseway_authentications_total{{result=\"{result}\"}}"))
    };
    assert_eq!((of("ok"), of("failed")), (Some(1.0), Some(2.0)));
    let later = value(&page, "etcd_debugging_auth_revision").expect("told");
    assert!(later > revision, "{revision} {later}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_request_is_told_with_its_size() {
    let mut server = Server::start(&["--warning-unary-request-duration=1ns"]);
    let client = Client::connect(server.port).await;
    client.put("k", vec![b'x'; 1000], 0).await.expect("puts");
    server.wait_for_log("request took longer than expected");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("KV/Put")).expect("a line");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(line["method"], "/etcdserverpb.KV/Put");
    let bytes = line["request-bytes"].as_u64().expect("a number");
    assert!((1000..1100).contains(&bytes), "{line}");
    assert!(line["took"].is_string() && line["expected-duration"] == "1ns", "{line}");
}

//! The flags of the binary, against their documentation and against a real etcd.

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use leaseway::config::flags::{FLAGS, Group};
use leaseway::config::{help_text, markdown};
use support::{finish, leaseway, real_etcd};

#[test]
fn the_page_about_flags_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/flags.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, markdown()).expect("writable");
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == markdown(), "docs/flags.md is outdated: UPDATE_DOCS=1 cargo test --test flags");
}

/// The flags in a help text: lines that begin with two spaces and two dashes.
fn flags_in(help: &str) -> BTreeSet<String> {
    help.lines()
        .filter_map(|line| line.strip_prefix("  --"))
        .map(|rest| rest.split([' ', '=']).next().unwrap_or_default().to_owned())
        .collect()
}

/// The defaults in a help text: what stands in quotes after the name.
fn defaults_in(help: &str) -> Vec<(String, String)> {
    help.lines()
        .filter_map(|line| line.strip_prefix("  --")?.split_once(" '"))
        .filter_map(|(name, rest)| Some((name.to_owned(), rest.strip_suffix('\'')?.to_owned())))
        .collect()
}

#[test]
fn etcds_help_names_no_flag_that_is_unknown_here() {
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    let help = finish(Command::new(etcd).arg("--help"));
    let theirs = flags_in(&(help.stdout + &help.stderr));
    assert!(theirs.len() > 100, "could not read etcd's help: {theirs:?}");
    let ours = flags_in(&help_text());
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "unknown here: {missing:?}");
    let own = FLAGS.iter().filter(|flag| flag.group == Group::Own).map(|flag| flag.name.to_owned());
    let extra: BTreeSet<String> = ours.difference(&theirs).cloned().collect();
    assert_eq!(extra, own.collect(), "flags that only we have must be declared as such");
}

#[test]
fn defaults_are_etcds_except_where_we_say_so() {
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    /// Same meaning in other words, or differing on purpose (the last).
    const DIFFERENT: &[&str] = &[
        "data-dir",                    // shown as a pattern there
        "initial-cluster",             // follows from the name and the peer URLs
        "max-concurrent-streams",      // shown as a constant there
        "backend-batch-interval",      // shown as empty there
        "backend-bbolt-freelist-type", // shown as what empty means there
        "discovery-insecure-transport",
        "watch-progress-notify-interval", // what Kubernetes sets
    ];
    let help = finish(Command::new(etcd).arg("--help"));
    let ours: Vec<(String, String)> = defaults_in(&help_text());
    for (name, theirs) in defaults_in(&(help.stdout + &help.stderr)) {
        let Some((_, mine)) = ours.iter().find(|(ours, _)| *ours == name) else {
            panic!("--{name} is unknown here")
        };
        if !DIFFERENT.contains(&name.as_str()) {
            assert_eq!(*mine, theirs, "--{name}");
        }
    }
}

#[test]
fn etcd_accepts_and_refuses_the_same_command_lines() {
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    // `--version` ends the process once the flags have been read, so nothing is started.
    for args in [
        &["--nosuch"][..],
        &["-nosuch=1"],
        &["---x"],
        &["--=x"],
        &["--max-txn-ops=abc"],
        &["--max-txn-ops=0x10"],
        &["--max-txn-ops=1_0"],
        &["--max-txn-ops=_1"],
        &["--max-txn-ops=08"],
        &["--quota-backend-bytes=-5"],
        &["--quota-backend-bytes=-"],
        &["--max-concurrent-streams=4294967296"],
        &["--max-request-bytes=99999999999999999999"],
        &["--enable-pprof=maybe"],
        &["--enable-pprof=T"],
        &["--enable-pprof"],
        &["--watch-progress-notify-interval=5"],
        &["--watch-progress-notify-interval=1h5m.5s"],
        &["--watch-progress-notify-interval=-1s"],
        &["--watch-progress-notify-interval=9999999h"],
        &["--listen-client-urls=http://foo"],
        &["--listen-client-urls=ftp://a:1"],
        &["--listen-client-urls=http://127.0.0.1:1/path"],
        &["--listen-client-urls=http://127.0.0.1:1,http://[::1]:2"],
        &["--listen-client-urls=:bad"],
        &["--listen-client-urls=http://::1:2379"],
        &["--listen-client-urls=http://a:b:1"],
        &["--listen-client-urls="],
        &["--cors=bad"],
        &["--cors=*"],
        &["--cors=http://a:1"],
        &["--host-whitelist=a,b"],
        &["--initial-cluster-state=zz"],
        &["--initial-cluster-state=existing"],
        &["--discovery-fallback=proxy"],
        &["--v2-deprecation=gone,write-only"],
        &["--v2-deprecation=zz"],
        &["--feature-gates=Foo=true"],
        &["--feature-gates=CompactHashCheck=true"],
        &["--feature-gates=Foo"],
        &["--v=3", "--vv", "--force"],
        &["extra"],
        &["--listen-client-urls", "--name"],
    ] {
        let mut args = args.to_vec();
        args.insert(0, "--version");
        let theirs = finish(Command::new(&etcd).args(&args));
        let ours = finish(leaseway().args(&args));
        assert_eq!(ours.code, theirs.code, "{args:?}: {ours:?} instead of {theirs:?}");
        if theirs.code == Some(2) {
            let theirs = theirs.stderr.lines().next().unwrap_or_default().to_owned();
            let ours = ours.stderr.lines().next().unwrap_or_default();
            assert_eq!(ours.strip_prefix("leaseway: "), Some(theirs.as_str()), "{args:?}");
        }
    }
}

#[test]
fn etcd_refuses_the_same_contradictions() {
    let Some(etcd) = real_etcd() else {
        eprintln!("skipped: no etcd binary");
        return;
    };
    for args in [
        &["--feature-gates=LeaseCheckpointPersist=true"][..],
        &["--discovery-endpoints=a,,b", "--discovery-token=x"],
        &["--discovery-token=x"],
        &["--initial-advertise-peer-urls=http://:1"],
        &["--listen-client-urls=http://127.0.0.1:1", "--advertise-client-urls=http://:1"],
        &["--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"],
        &["--tls-min-version=TLS1.3", "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
        &["--heartbeat-interval=300"],
        &["--auto-compaction-mode=x"],
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let data = format!("--data-dir={}", dir.path().join("data").display());
        let theirs = finish(Command::new(&etcd).args(args).arg(&data));
        let ours = finish(leaseway().args(args).arg(&data));
        assert_eq!((ours.code, theirs.code), (Some(1), Some(1)), "{args:?}: {theirs:?}");
        let said = ours.stderr.trim_end().strip_prefix("leaseway: ").expect("a reason");
        let said = format!("\"error\":{}", serde_json::Value::from(said));
        let log = theirs.stdout + &theirs.stderr;
        assert!(log.contains(&said), "{args:?}: {said} instead of {log}");
    }
}

#[test]
fn help_and_versions_go_to_standard_output_and_succeed() {
    let version = finish(leaseway().arg("--version"));
    assert_eq!(version.code, Some(0));
    assert_eq!(version.stdout.lines().next(), Some("etcd Version: 3.7.3"));
    assert!(version.stdout.contains(&format!("Leaseway Version: {}", env!("CARGO_PKG_VERSION"))));
    for arg in ["--help", "-h", "-help"] {
        let help = finish(leaseway().arg(arg));
        assert_eq!((help.code, help.stdout.as_str()), (Some(0), help_text().as_str()), "{arg}");
    }
}

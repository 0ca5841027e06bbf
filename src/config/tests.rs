//! The configuration as a function of its inputs.

use super::tls::{CertificateSource, TlsVersions};
use super::*;

fn run(args: &[&str], env: &[(&str, &str)], file: Option<&str>) -> Result<Config, ConfigError> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let read = |_: &str| file.map(String::from).ok_or_else(|| std::io::ErrorKind::NotFound.into());
    match parse(&args, &env, read)? {
        Invocation::Run(config) => Ok(*config),
        other => panic!("expected a configuration, got {other:?}"),
    }
}

fn ok(args: &[&str]) -> Config {
    run(args, &[], None).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

fn err(args: &[&str]) -> ConfigError {
    run(args, &[], None).map(|_| ()).expect_err(&format!("{args:?} should be refused"))
}

fn texts(urls: &[Endpoint]) -> Vec<String> {
    urls.iter().map(Endpoint::to_string).collect()
}

#[test]
fn defaults_are_those_of_etcd() {
    let config = ok(&[]);
    assert_eq!(config.name, "default");
    assert_eq!(config.data_dir, PathBuf::from("default.etcd"));
    assert_eq!(texts(&config.listen_client), ["http://localhost:2379"]);
    assert_eq!(texts(&config.advertise_client), ["http://localhost:2379"]);
    assert_eq!(texts(&config.advertise_peer), ["http://localhost:2380"]);
    assert_eq!(config.limits.max_request_bytes, 1_572_864);
    assert_eq!(config.limits.max_receive_bytes(), 2_097_152);
    assert_eq!(config.limits.max_txn_ops, 128);
    assert_eq!(config.limits.max_concurrent_streams, None);
    assert_eq!(config.quota_backend_bytes, Some(2 << 30));
    assert_eq!(config.auto_compaction, AutoCompaction::Off);
    assert_eq!(config.lease, LeaseLimits { min_ttl_s: 2, max_ttl_s: 9_000_000_000 });
    assert_eq!(config.access, Access { cors: None, hosts: None });
    assert_eq!(config.log.outputs, [LogOutput::Stderr]);
    assert!(config.notes.is_empty(), "{:?}", config.notes);
}

#[test]
fn every_default_passes_its_own_check() {
    for flag in flags::FLAGS {
        if !flag.kind.is_switch() || !flag.default.is_empty() {
            assert_eq!(flag.kind.check(flag.default), Ok(()), "--{}", flag.name);
        }
    }
}

#[test]
fn names_variables_and_keys_are_unique() {
    let count = |names: Vec<String>| names.iter().collect::<std::collections::BTreeSet<_>>().len();
    let all = flags::FLAGS;
    assert_eq!(count(all.iter().map(|f| f.name.to_owned()).collect()), all.len());
    assert_eq!(count(all.iter().map(flags::Flag::variable).collect()), all.len());
    assert_eq!(count(all.iter().map(|f| f.yaml_key().to_owned()).collect()), all.len());
}

#[test]
fn flags_are_written_in_every_way_of_go() {
    for args in [
        &["--name=a"][..],
        &["--name", "a"],
        &["-name=a"],
        &["-name", "a"],
        &["--name=b", "--name=a"],
        &["--pre-vote", "--name=a", "--pre-vote=false", "--pre-vote=T"],
        &["--name=a", "--"],
    ] {
        assert_eq!(ok(args).name, "a", "{args:?}");
    }
    assert_eq!(ok(&["--name=a"]).data_dir, PathBuf::from("a.etcd"));
    assert_eq!(ok(&["--name=x=y"]).name, "x=y");
    assert_eq!(ok(&["--max-txn-ops=0x400"]).limits.max_txn_ops, 1024);
}

#[test]
fn bad_command_lines_exit_with_two_and_etcd_texts() {
    for (args, want) in [
        (&["--nosuch"][..], "flag provided but not defined: -nosuch"),
        (&["-nosuch=1"], "flag provided but not defined: -nosuch"),
        (&["---x"], "bad flag syntax: ---x"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["--max-txn-ops=abc"], "invalid value \"abc\" for flag -max-txn-ops: parse error"),
        (&["--max-txn-ops=-1"], "invalid value \"-1\" for flag -max-txn-ops: parse error"),
        (
            &["--enable-pprof=maybe"],
            "invalid boolean value \"maybe\" for -enable-pprof: parse error",
        ),
        (&["--version=x"], "invalid boolean value \"x\" for -version: parse error"),
        (&["--listen-client-urls"], "flag needs an argument: -listen-client-urls"),
        (
            &["--listen-client-urls=http://foo"],
            "invalid value \"http://foo\" for flag -listen-client-urls: URL address does not have \
             the form \"host:port\": http://foo",
        ),
        (
            &["--initial-cluster-state=zz"],
            "invalid value \"zz\" for flag -initial-cluster-state: invalid value",
        ),
        (
            &["--max-concurrent-streams=-1"],
            "invalid value \"-1\" for flag -max-concurrent-streams: strconv.ParseUint: parsing \
             \"-1\": invalid syntax",
        ),
        (
            &["--watch-progress-notify-interval=5"],
            "invalid value \"5\" for flag -watch-progress-notify-interval: parse error",
        ),
        (
            &["--cors=bad"],
            "invalid value \"bad\" for flag -cors: URL scheme must be http, https, unix, or unixs: bad",
        ),
        (
            &["--max-request-bytes=99999999999999999999"],
            "invalid value \"99999999999999999999\" for flag -max-request-bytes: value out of range",
        ),
        (
            &["--v2-deprecation=zz"],
            "invalid value \"zz\" for flag -v2-deprecation: invalid value \"zz\"",
        ),
    ] {
        let error = err(args);
        assert_eq!((error.message.as_str(), error.exit_code), (want, 2), "{args:?}");
    }
}

#[test]
fn contradictions_exit_with_one() {
    for (args, want) in [
        (&["foo"][..], "\"foo\" is not a valid flag"),
        (&["-"], "\"-\" is not a valid flag"),
        (&["--", "foo"], "\"foo\" is not a valid flag"),
        (&["--pre-vote", "false"], "\"false\" is not a valid flag"),
        (
            &["--listen-client-urls=http://127.0.0.1:1"],
            "--advertise-client-urls is required when --listen-client-urls is set explicitly",
        ),
        (
            &["--listen-client-urls=http://a.example:1", "--advertise-client-urls=http://a:1"],
            "expected IP in URL for binding (http://a.example:1)",
        ),
        (&["--heartbeat-interval=0"], "--heartbeat-interval must be >0 (set to 0ms)"),
        (
            &["--election-timeout=100"],
            "--election-timeout[100ms] should be at least as 5 times as --heartbeat-interval[100ms]",
        ),
        (
            &["--election-timeout=50001"],
            "--election-timeout[50001ms] is too long, and should be set less than 50000ms",
        ),
        (&["--auto-compaction-mode=x"], "unknown auto-compaction-mode \"x\""),
        (
            &["--auto-compaction-retention=zz"],
            "error parsing CompactionRetention: time: invalid duration \"zz\"",
        ),
        (&["--log-level=zz"], "unrecognized level: \"zz\""),
        (&["--log-format=zz"], "unknown log format: zz, supported values json, console"),
        (&["--logger=capnslog"], "--logger=capnslog is removed in v3.5"),
        (&["--log-outputs=default,stderr"], "multi logoutput for \"default\" is not supported yet"),
        (
            &["--enable-log-rotation"],
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ),
        (
            &["--enable-log-rotation", "--log-outputs=a,b"],
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ),
        (
            &[
                "--enable-log-rotation",
                "--log-outputs=a",
                "--log-rotation-config-json={\"maxsize\":true}",
            ],
            "invalid log rotation config: maxsize must be a number, 0 or more",
        ),
        (
            &["--enable-distributed-tracing", "--distributed-tracing-sampling-rate=-1"],
            "distributed tracing configurition is not valid: (tracing sampling rate must be positive)",
        ),
        (
            &["--enable-distributed-tracing", "--distributed-tracing-sampling-rate=1000001"],
            "distributed tracing configurition is not valid: (tracing sampling rate must be less than 1000000)",
        ),
        (&["--discovery-token=a"], "both --discovery-token and --discovery-endpoints must be set"),
        (
            &["--initial-cluster=a=http://h:1,b=http://h:2"],
            "--initial-cluster names 2 members, but this server runs as a single member",
        ),
        (
            &["--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://a:1"],
            "TLS key/cert (--cert-file, --key-file) must be provided for client url https://127.0.0.1:1 with HTTPS scheme",
        ),
        (
            &["--listen-metrics-urls=https://127.0.0.1:1"],
            "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url",
        ),
        (
            &["--listen-metrics-urls=https://127.0.0.1:1", "--cert-file=c"],
            "KeyFile and CertFile must both be present[key: , cert: c]",
        ),
        (
            &["--listen-metrics-urls=https://127.0.0.1:1", "--auto-tls", "--client-key-file=k"],
            "ClientKeyFile and ClientCertFile must both be present or both absent: key: k, cert: ]",
        ),
        (
            &["--listen-metrics-urls=https://127.0.0.1:1", "--auto-tls", "--client-cert-auth"],
            "--client-cert-auth needs --trusted-ca-file: there is nothing else to check client certificates by",
        ),
        (
            &["--listen-metrics-urls=unixs:///m", "--auto-tls", "--self-signed-cert-validity=0"],
            "selfSignedCertValidity is invalid,it should be greater than 0",
        ),
        (
            &["--tls-min-version=TLS1.1"],
            "unexpected TLS version \"TLS1.1\" (must be one of: TLS1.2, TLS1.3)",
        ),
        (
            &["--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"],
            "min version (TLS1.3) is greater than max version (TLS1.2)",
        ),
        (
            &["--tls-min-version=TLS1.3", "--cipher-suites=TLS_RSA_WITH_RC4_128_SHA"],
            "cipher suites cannot be configured when only TLS1.3 is enabled",
        ),
        (&["--cipher-suites=TLS_AES_128_GCM_SHA256,nope"], "unexpected TLS cipher suite \"nope\""),
        (
            &["--tls-max-version=TLS1.2", "--cipher-suites=TLS_RSA_WITH_RC4_128_SHA"],
            "--cipher-suites leaves none that is available for TLS1.2, the only version enabled",
        ),
        (
            &["--backend=oxia://a:1", "--oxia-ca-file=c"],
            "--oxia-ca-file and --oxia-cert-file are for TLS: --backend must begin with oxia+tls://",
        ),
        (
            &["--backend=oxia+tls://a:1", "--oxia-cert-file=c"],
            "--oxia-cert-file and --oxia-key-file belong together",
        ),
        (
            &["--oxia-cert-file=c"],
            "--oxia-cert-file without --backend: name the cluster with --backend \
             oxia://HOST:PORT/NAMESPACE?keyspace=NAME, or say --backend local if the data is to be here",
        ),
        (
            &["--max-session-timeout=1"],
            "--max-session-timeout must be between 2 and 9000000000 seconds (set to 1)",
        ),
    ] {
        let error = err(args);
        assert_eq!((error.message.as_str(), error.exit_code), (want, 1), "{args:?}");
        assert!(!error.message.contains('\n'));
    }
}

#[test]
fn tls_from_flags_and_file() {
    let urls = [
        "--listen-client-urls=https://127.0.0.1:1,http://127.0.0.1:2",
        "--advertise-client-urls=https://a:1",
    ];
    let files = ["--cert-file=c", "--key-file=k", "--trusted-ca-file=t", "--client-cert-auth"];
    let more =
        ["--cipher-suites=TLS_RSA_WITH_AES_256_CBC_SHA,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"];
    let args = [&urls[..], &files, &more, &["--auto-tls", "--client-crl-file=r"]].concat();
    let config = run(&args, &[], None).expect("valid");
    let tls = config.tls.expect("TLS");
    let (certificate, key) = ("c".into(), "k".into());
    assert_eq!(tls.certificate, CertificateSource::Files { certificate, key });
    assert_eq!((tls.trusted_ca, tls.revoked), (Some("t".into()), Some("r".into())));
    assert!(tls.names_users && tls.allowed_hostnames.is_empty());
    assert_eq!(tls.cipher_suites, Some(vec![0xcca8]));
    let said = |text: &str| config.notes.iter().any(|note| note.message.contains(text));
    for text in [
        "ignoring client auto TLS since certs given",
        "ignoring key and cert files",
        "ignoring client cert auth for this URL",
        "weak TLS cipher suites",
    ] {
        assert!(said(text), "{text}: {:?}", config.notes);
    }

    let config = run(&[&urls[..], &["--auto-tls", "--tls-min-version="]].concat(), &[], None);
    let tls = config.expect("valid").tls.expect("TLS");
    let hosts = vec!["127.0.0.1".into(), "127.0.0.1".into()];
    assert_eq!(tls.certificate, CertificateSource::Generated { years: 1, hosts });
    assert_eq!(tls.versions, TlsVersions { tls12: true, tls13: true });

    let file = "\
listen-client-urls: https://127.0.0.1:1
self-signed-cert-validity: 0
tls-min-version: TLS1.3
client-transport-security:
  auto-tls: true
  trusted-ca-file: t
  allowed-hostname: [b, a]
";
    let config = run(&["--config-file=x"], &[], Some(file)).expect("valid");
    let tls = config.tls.expect("TLS");
    assert!(matches!(tls.certificate, CertificateSource::Generated { years: 1, .. }));
    assert_eq!(tls.allowed_hostnames, ["a", "b"]);
    assert_eq!(tls.versions, TlsVersions { tls12: false, tls13: true });
    assert!(!tls.names_users);
    // Files that nobody needs are no reason to stop.
    assert_eq!(run(&["--cert-file=c"], &[], None).expect("valid").tls, None);
}

#[test]
fn a_variable_counts_unless_its_flag_is_given() {
    let config = run(&[], &[("ETCD_NAME", "v"), ("ETCD_MAX_TXN_OPS", "7")], None).expect("valid");
    assert_eq!((config.name.as_str(), config.limits.max_txn_ops), ("v", 7));
    let error = run(&["--name=f"], &[("ETCD_NAME", "")], None).map(|_| ()).expect_err("conflict");
    assert!(error.message.contains("ETCD_NAME") && error.message.contains("shadowed"), "{error}");
    assert_eq!(error.exit_code, 1);
    let error = run(&[], &[("ETCD_MAX_TXN_OPS", "x")], None).map(|_| ()).expect_err("bad number");
    assert_eq!(error.message, "invalid value \"x\" for ETCD_MAX_TXN_OPS: parse error");
    let config = run(&[], &[("ETCD_NAME", ""), ("ETCD_FOO", "secret")], None).expect("valid");
    assert_eq!(config.name, "default");
    let [note] = &config.notes[..] else { panic!("one note expected: {:?}", config.notes) };
    assert_eq!(note.message, "unrecognized environment variable");
    assert!(!format!("{note:?}").contains("secret"));
}

#[test]
fn a_file_replaces_flags_and_variables() {
    let file = "\
name: from-file
listen-client-urls: http://127.0.0.1:1, http://127.0.0.1:2
max-txn-ops: 9
watch-progress-notify-interval: 7000000000
grpc-keepalive-interval: 3s
log-outputs: [stdout, stderr]
peer-transport-security:
  client-cert-auth: true
unknown-key: 1
discovery-config: {secure: {cert: a}}
heartbeat-interval:
";
    let env = [("ETCD_NAME", "env"), ("ETCD_CONFIG_FILE", "x.yaml")];
    let config = run(&["--name=flag"], &env, Some(file)).expect("valid");
    assert_eq!(config.name, "from-file");
    assert_eq!(texts(&config.listen_client), ["http://127.0.0.1:1", "http://127.0.0.1:2"]);
    assert_eq!(config.limits.max_txn_ops, 9);
    assert_eq!(config.watch_progress_notify_interval, Duration::from_secs(7));
    assert_eq!(config.keepalive.expect("on").interval, Duration::from_secs(3));
    assert_eq!(config.log.outputs, [LogOutput::Stderr, LogOutput::Stdout]);
    let messages: Vec<&str> = config.notes.iter().map(|note| note.message.as_str()).collect();
    assert!(messages.contains(&"unrecognized key in the configuration file"), "{messages:?}");
    assert!(messages.contains(&"flag accepted without effect"), "{messages:?}");
    let json = run(&["--config-file=x"], &[], Some("{\"name\": \"j\", \"max-txn-ops\": 3}"));
    assert_eq!(json.expect("JSON is YAML").limits.max_txn_ops, 3);
    assert_eq!(run(&["--config-file=x"], &[], Some("")).expect("empty").name, "default");
}

#[test]
fn a_bad_file_is_named_with_what_is_wrong() {
    for (file, part) in [
        ("name: [a, {b: c}]", "name"),
        ("max-txn-ops: lots", "invalid value \"lots\" for max-txn-ops"),
        ("- a", "expected keys and values"),
        ("a: b: c", "configuration file x.yaml"),
        ("\u{0}", "configuration file x.yaml"),
    ] {
        let error = run(&["--config-file", "x.yaml"], &[], Some(file)).map(|_| ()).expect_err(file);
        assert!(
            error.message.contains(part) && error.message.contains("x.yaml"),
            "{file}: {error}"
        );
        assert_eq!(error.exit_code, 1);
    }
    let error = run(&["--config-file=gone"], &[], None).map(|_| ()).expect_err("missing");
    assert!(error.message.starts_with("configuration file gone: "), "{error}");
}

#[test]
fn the_shortest_lease_follows_the_election_timeout() {
    for (tick, election, want) in
        [("100", "1000", 2), ("100", "5000", 8), ("300", "1500", 3), ("1", "5", 1), ("10", "50", 1)]
    {
        let config = ok(&["--heartbeat-interval", tick, "--election-timeout", election]);
        assert_eq!(config.lease.min_ttl_s, want, "{tick} {election}");
    }
}

#[test]
fn compaction_is_read_as_etcd_reads_it() {
    let of = |mode: &str, retention: &str| {
        ok(&["--auto-compaction-mode", mode, "--auto-compaction-retention", retention])
            .auto_compaction
    };
    assert_eq!(of("periodic", "0"), AutoCompaction::Off);
    assert_eq!(of("periodic", "5"), AutoCompaction::Periodic(Duration::from_secs(5 * 3600)));
    assert_eq!(of("periodic", "5m"), AutoCompaction::Periodic(Duration::from_secs(300)));
    assert_eq!(of("revision", "1000"), AutoCompaction::Revision(1000));
    assert_eq!(of("revision", "1us"), AutoCompaction::Revision(1000));
    for bad in ["-5", "-5m", "9999999999999"] {
        err(&["--auto-compaction-retention", bad]);
    }
}

#[test]
fn quotas_and_keepalives_can_be_turned_off() {
    assert_eq!(ok(&["--quota-backend-bytes=-1"]).quota_backend_bytes, None);
    assert_eq!(ok(&["--quota-backend-bytes=5"]).quota_backend_bytes, Some(5));
    assert_eq!(ok(&["--grpc-keepalive-interval=0"]).keepalive, None);
    assert_eq!(
        ok(&["--watch-progress-notify-interval=1ms"]).watch_progress_notify_interval,
        Duration::from_millis(100)
    );
}

#[test]
fn flags_without_effect_leave_a_note() {
    let config = ok(&["--snapshot-count=5", "--peer-cert-file=a", "--vv", "--name=x"]);
    let flags: Vec<&str> = config.notes.iter().map(|note| note.fields[0].1.as_str()).collect();
    assert_eq!(flags, ["--snapshot-count", "--peer-cert-file", "--vv"]);
    // What is for the other backend.
    for (args, flag) in [
        (&["--checkpoint-log-bytes=5"][..], "--checkpoint-log-bytes"),
        (&["--corrupt-check-time=1h"], "--corrupt-check-time"),
        (&["--backend=oxia://a:1", "--unsafe-no-fsync"], "--unsafe-no-fsync"),
        (&["--backend=local", "--oxia-ca-file=a"], "--oxia-ca-file"),
    ] {
        let config = ok(args);
        let [note] = &config.notes[..] else { panic!("{args:?}: {:?}", config.notes) };
        assert_eq!(note.fields[0].1, flag);
        assert!(!config.unsafe_no_fsync);
    }
    assert_eq!(ok(&["--initial-advertise-peer-urls=http://a:1"]).notes, []);
}

#[test]
fn flags_without_what_makes_them_count_leave_a_note() {
    let urls = ["--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://a:1"];
    let tls = [&urls[..], &["--cert-file=c", "--key-file=k"]].concat();
    let oxia = ["--backend=oxia://a:1"];
    for (context, arg, level) in [
        (&[][..], "--trusted-ca-file=t", Level::Warn),
        (&[], "--client-crl-file=r", Level::Warn),
        (&[], "--client-cert-allowed-hostname=h", Level::Warn),
        (&[], "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", Level::Info),
        (&[], "--tls-min-version=TLS1.3", Level::Info),
        (&[], "--tls-max-version=TLS1.3", Level::Info),
        (&[], "--self-signed-cert-validity=2", Level::Info),
        (&tls, "--client-crl-file=r", Level::Warn),
        (&tls, "--client-cert-allowed-hostname=h", Level::Warn),
        (&tls, "--self-signed-cert-validity=2", Level::Info),
        (&[], "--log-rotation-config-json={}", Level::Info),
        (&[], "--distributed-tracing-address=a:1", Level::Info),
        (&[], "--audit-log-level=all", Level::Warn),
        (&["--auth-token=jwt,sign-method=RS256"], "--auth-token-ttl=5", Level::Warn),
        (&oxia, "--compact-hash-check-time=5s", Level::Info),
    ] {
        let config = ok(&[context, &[arg]].concat());
        let [note] = &config.notes[..] else { panic!("{arg}: {:?}", config.notes) };
        let name = arg.split_once('=').map(|(name, _)| name.to_owned());
        assert_eq!((note.level, Some(&note.fields[0].1)), (level, name.as_ref()), "{arg}");
    }
    // What says no more than the default, and what has all that it needs.
    assert_eq!(ok(&["--tls-min-version=TLS1.2", "--audit-log-level=writes"]).notes, []);
    let more = ["--trusted-ca-file=t", "--client-crl-file=r", "--tls-min-version=TLS1.3"];
    assert_eq!(ok(&[&tls[..], &more].concat()).notes, []);
    let compared = ["--feature-gates=CompactHashCheck=true", "--compact-hash-check-time=5s"];
    assert_eq!(ok(&[&oxia[..], &compared].concat()).notes, []);
}

#[test]
fn feature_gates_without_effect_leave_a_note() {
    let noted = |gates: &str, more: &[&str]| {
        let gates = format!("--feature-gates={gates}");
        let config = ok(&[&[gates.as_str()], more].concat());
        let names = config.notes.iter().map(|note| note.fields[0].1.clone());
        names.collect::<Vec<String>>().join(",")
    };
    let oxia = ["--backend=oxia://a:1"];
    let both = "InitialCorruptCheck=true,PriorityRequest=true";
    assert_eq!(noted(both, &[]), "InitialCorruptCheck,PriorityRequest");
    assert_eq!(noted(both, &oxia), "PriorityRequest");
    assert_eq!(noted("AllAlpha=true", &oxia), "");
    assert_eq!(noted("FastLeaseKeepAlive=true,PriorityRequest=false", &[]), "");
    assert_eq!(noted("FastLeaseKeepAlive=false", &[]), "FastLeaseKeepAlive");
    let error = err(&["--feature-gates=LeaseCheckpointPersist=true"]);
    let want = "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint";
    assert_eq!((error.message.as_str(), error.exit_code), (want, 1));
    let both = "LeaseCheckpoint=true,LeaseCheckpointPersist=true";
    assert_eq!(noted(both, &[]), "LeaseCheckpoint,LeaseCheckpointPersist");
}

#[test]
fn a_slip_of_the_finger_gets_a_hint() {
    let hint = |args: &[&str]| err(args).hint.unwrap_or_default();
    assert_eq!(
        hint(&["--listen-client-url=http://127.0.0.1:1"]),
        "Did you mean --listen-client-urls?"
    );
    assert_eq!(hint(&["imprt"]), "Did you mean the command import?");
    let value = "A value of --auto-tls follows an equals sign: --auto-tls=true";
    assert_eq!(hint(&["--auto-tls", "true"]), value);
    assert_eq!(hint(&["--nosuch"]), "");
}

#[test]
fn help_and_version_win_over_bad_combinations() {
    let read = |_: &str| unreachable!("no file is named");
    let args = ["--heartbeat-interval=0".to_owned(), "--version".to_owned()];
    assert!(matches!(parse(&args, &BTreeMap::new(), read), Ok(Invocation::Version)));
    let args = ["-h".to_owned(), "--nosuch".to_owned()];
    assert!(matches!(parse(&args, &BTreeMap::new(), read), Ok(Invocation::Help)));
    assert!(version_text().starts_with("etcd Version: 3.7.3\n"));
    for flag in flags::FLAGS.iter().filter(|flag| flag.group != flags::Group::Retired) {
        assert!(help_text().contains(&format!("--{} ", flag.name)), "--{}", flag.name);
    }
}

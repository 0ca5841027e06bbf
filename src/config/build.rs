//! From the texts of flags to a [`Config`], with the checks that concern several flags.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::sources::Values;
use super::value::{alpha_gate, parse_duration};
use super::{
    Access, AutoCompaction, Comparisons, Config, ConfigError, Endpoint, Keepalive, LeaseLimits,
    Level, Limits, MetricsDetail, Note, SocketOptions, TracingConfig,
};

/// etcd's bound on the election timeout.
const ELECTION_TIMEOUT_MS_MAX: u64 = 50_000;
/// Above this a quota is allowed but worth a warning.
const QUOTA_BYTES_SUGGESTED_MAX: u64 = 8 * 1024 * 1024 * 1024;
const QUOTA_BYTES_DEFAULT: u64 = 2 * 1024 * 1024 * 1024;
/// Above this a request limit is allowed but worth a warning.
const REQUEST_BYTES_SUGGESTED_MAX: usize = 10 * 1024 * 1024;
/// More often than this, progress notifications would only cost.
const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// etcd's longest lease, in seconds.
const LEASE_TTL_S_MAX: i64 = 9_000_000_000;
/// Prefixes that are counted: each costs a comparison for every key that is written.
const PREFIXES_MAX: usize = 32;
/// Rates of traced calls are of this many.
const CALLS_SAMPLED_MAX: u32 = 1_000_000;
const STORAGE_CACHE_BYTES_MIN: u64 = 1024 * 1024;

pub(super) fn build(
    values: &Values,
    from_file: bool,
    mut notes: Vec<Note>,
) -> Result<Config, ConfigError> {
    let log = super::log::build(values)?;
    let listen_client = listeners(values, "listen-client-urls")?;
    let listen_client_http = listeners(values, "listen-client-http-urls")?;
    let listen_metrics = listeners(values, "listen-metrics-urls")?;
    check_bind(&urls(values, "listen-peer-urls")?)?;
    let advertise_peer = advertised(values, "initial-advertise-peer-urls")?;
    let advertise_client = advertised(values, "advertise-client-urls")?;
    check_cluster(values)?;
    super::idle::check_gates(values)?;
    let lease = lease_limits(values)?;
    let missing_advertise =
        values.is_set("listen-client-urls") && !values.is_set("advertise-client-urls");
    if missing_advertise && !from_file {
        return Err(ConfigError::new(
            "--advertise-client-urls is required when --listen-client-urls is set explicitly",
        ));
    }
    if listen_client.is_empty() {
        return Err(ConfigError::new("--listen-client-urls names nothing to listen on"));
    }
    let listening = super::tls::Listening {
        client: &listen_client,
        client_http: &listen_client_http,
        metrics: &listen_metrics,
    };
    let tls = super::tls::build(values, from_file, &listening, &mut notes)?;
    let name = values.text("name").to_owned();
    let data_dir = match values.text("data-dir") {
        "" => PathBuf::from(format!("{name}.etcd")),
        dir => PathBuf::from(dir),
    };
    let backend = super::backend::build(values, &mut notes)?;
    let unsafe_no_fsync = backend == super::backend::Backend::Local && no_fsync(values, &mut notes);
    let mut config = Config {
        data_dir,
        backend,
        listen_client,
        listen_client_http,
        listen_metrics,
        advertise_client,
        advertise_peer,
        limits: limits(values, &mut notes)?,
        quota_backend_bytes: quota(values, &mut notes),
        auto_compaction: auto_compaction(values, &mut notes)?,
        watch_progress_notify_interval: progress_interval(values, &mut notes),
        lease,
        keepalive: keepalive(values),
        socket: SocketOptions { reuse_port: values.switch("socket-reuse-port") },
        access: access(values),
        json_gateway: values.switch("enable-grpc-gateway"),
        auth: super::auth::build(values, &mut notes)?,
        tls,
        metrics: metrics_detail(values)?,
        log,
        warning_unary_request_duration: values.duration("warning-unary-request-duration"),
        warning_apply_duration: values.duration("warning-apply-duration"),
        unsafe_no_fsync,
        storage_cache_bytes: storage_cache(values)?,
        checkpoint_log_bytes: values.uint("checkpoint-log-bytes"),
        tracing: tracing(values)?,
        audit: super::audit::build(values)?,
        size_prefixes: size_prefixes(values)?,
        enable_ui: values.switch("enable-ui"),
        comparisons: comparisons(values)?,
        name,
        notes: Vec::new(),
    };
    config.notes = notes;
    super::idle::note(values, &mut config);
    Ok(config)
}

fn comparisons(values: &Values) -> Result<Comparisons, ConfigError> {
    let gate = |name| alpha_gate(values.text("feature-gates"), name);
    let (every, after) =
        (values.duration("corrupt-check-time"), values.duration("compact-hash-check-time"));
    if after.is_zero() {
        let given = values.text("compact-hash-check-time");
        let message = format!("--compact-hash-check-time must be >0 (set to {given})");
        return Err(ConfigError::new(message));
    }
    Ok(Comparisons {
        at_start: gate("InitialCorruptCheck"),
        every: (!every.is_zero()).then_some(every),
        after_compactions: gate("CompactHashCheck").then_some(after),
    })
}

fn urls(values: &Values, name: &str) -> Result<Vec<Endpoint>, ConfigError> {
    let text = values.text(name);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    Endpoint::parse_list(text).map_err(|why| ConfigError::new(format!("--{name}: {why}")))
}

/// URLs that this process is to listen on.
fn listeners(values: &Values, name: &str) -> Result<Vec<Endpoint>, ConfigError> {
    let urls = urls(values, name)?;
    check_bind(&urls)?;
    Ok(urls)
}

fn check_bind(urls: &[Endpoint]) -> Result<(), ConfigError> {
    urls.iter().try_for_each(Endpoint::check_bind).map_err(ConfigError::new)
}

fn advertised(values: &Values, name: &str) -> Result<Vec<Endpoint>, ConfigError> {
    let urls = urls(values, name)?;
    urls.iter().try_for_each(Endpoint::check_host).map_err(|why| {
        let form = match name {
            "advertise-client-urls" => {
                "in the format \"host:port\", \"unix:/path/to/socket\" or \"unixs:/path/to/socket\""
            }
            _ => "\"host:port\"",
        };
        ConfigError::new(format!("--{name} {:?} must be {form} ({why})", values.text(name)))
    })?;
    Ok(urls)
}

/// What is said about a cluster must fit a cluster of one.
fn check_cluster(values: &Values) -> Result<(), ConfigError> {
    let bootstraps = ["initial-cluster", "discovery-srv", "discovery-endpoints"];
    if bootstraps.iter().filter(|name| !values.text(name).is_empty()).count() > 1 {
        return Err(ConfigError::new(
            "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
             \"discovery-endpoints\" or \"discovery-srv\"",
        ));
    }
    if values.text("discovery-token").is_empty() != values.text("discovery-endpoints").is_empty() {
        return Err(ConfigError::new(
            "both --discovery-token and --discovery-endpoints must be set",
        ));
    }
    let endpoints = values.text("discovery-endpoints");
    if !endpoints.is_empty() && endpoints.split(',').any(|endpoint| endpoint.trim().is_empty()) {
        return Err(ConfigError::new("--discovery-endpoints must not contain empty endpoints"));
    }
    if values.text("discovery-fallback") == "proxy" {
        return Err(ConfigError::new(
            "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"",
        ));
    }
    let mut names = BTreeSet::new();
    for member in values.text("initial-cluster").split(',').filter(|member| !member.is_empty()) {
        let (name, url) = member.split_once('=').unwrap_or(("", member));
        Endpoint::parse(url)
            .map_err(|why| ConfigError::new(format!("--initial-cluster: {why}")))?;
        names.insert(name.trim());
    }
    if names.len() > 1 {
        // Each process of such a cluster would keep a store of its own and call it the cluster's.
        return Err(ConfigError::new(format!(
            "--initial-cluster names {} members, but this server runs as a single member",
            names.len()
        )));
    }
    Ok(())
}

/// The shortest lease lasts one and a half election timeouts, rounded as etcd rounds it.
fn lease_limits(values: &Values) -> Result<LeaseLimits, ConfigError> {
    let (tick, election) = (values.uint("heartbeat-interval"), values.uint("election-timeout"));
    if tick == 0 {
        return Err(ConfigError::new("--heartbeat-interval must be >0 (set to 0ms)"));
    }
    if election == 0 {
        return Err(ConfigError::new("--election-timeout must be >0 (set to 0ms)"));
    }
    if tick.saturating_mul(5) > election {
        return Err(ConfigError::new(format!(
            "--election-timeout[{election}ms] should be at least as 5 times as \
             --heartbeat-interval[{tick}ms]"
        )));
    }
    if election > ELECTION_TIMEOUT_MS_MAX {
        return Err(ConfigError::new(format!(
            "--election-timeout[{election}ms] is too long, and should be set less than \
             {ELECTION_TIMEOUT_MS_MAX}ms"
        )));
    }
    let min_ms = (3 * (election / tick) / 2) * tick;
    let min_ttl_s = i64::try_from(min_ms.div_ceil(1000)).unwrap_or(i64::MAX);
    let max_ttl_s = values.int("max-session-timeout");
    if !(min_ttl_s..=LEASE_TTL_S_MAX).contains(&max_ttl_s) {
        return Err(ConfigError::new(format!(
            "--max-session-timeout must be between {min_ttl_s} and {LEASE_TTL_S_MAX} seconds \
             (set to {max_ttl_s})"
        )));
    }
    Ok(LeaseLimits { min_ttl_s, max_ttl_s })
}

fn limits(values: &Values, notes: &mut Vec<Note>) -> Result<Limits, ConfigError> {
    let size = |name: &str| {
        // Message lengths on the wire have 32 bits.
        usize::try_from(values.uint(name))
            .ok()
            .filter(|&size| size <= i32::MAX as usize)
            .ok_or_else(|| ConfigError::new(format!("--{name} must be at most {}", i32::MAX)))
    };
    let max_request_bytes = size("max-request-bytes")?;
    if max_request_bytes > REQUEST_BYTES_SUGGESTED_MAX {
        notes.push(
            Note::new(Level::Warn, "exceeded recommended request limit")
                .with("max-request-bytes", max_request_bytes.to_string())
                .with("recommended-request-bytes", REQUEST_BYTES_SUGGESTED_MAX.to_string()),
        );
    }
    let streams = u32::try_from(values.uint("max-concurrent-streams")).unwrap_or(u32::MAX);
    Ok(Limits {
        max_request_bytes,
        max_txn_ops: size("max-txn-ops")?,
        // As in etcd, 0 means no limit.
        max_concurrent_streams: Some(streams)
            .filter(|&streams| streams != u32::MAX && streams != 0),
    })
}

fn quota(values: &Values, notes: &mut Vec<Note>) -> Option<u64> {
    let quota = match values.int("quota-backend-bytes") {
        0 => QUOTA_BYTES_DEFAULT,
        bytes => u64::try_from(bytes).ok()?,
    };
    if quota > QUOTA_BYTES_SUGGESTED_MAX {
        notes.push(
            Note::new(Level::Warn, "quota exceeds the suggested maximum")
                .with("quota-size-bytes", quota.to_string())
                .with("quota-maximum-size-bytes", QUOTA_BYTES_SUGGESTED_MAX.to_string()),
        );
    }
    Some(quota)
}

/// A bare number counts hours or revisions; anything else is a duration, in either mode.
fn auto_compaction(values: &Values, notes: &mut Vec<Note>) -> Result<AutoCompaction, ConfigError> {
    let (mode, retention) =
        (values.text("auto-compaction-mode"), values.text("auto-compaction-retention"));
    let by_revision = match mode {
        "revision" => true,
        "periodic" => false,
        "" => return Err(ConfigError::new("undefined auto-compaction-mode")),
        other => return Err(ConfigError::new(format!("unknown auto-compaction-mode {other:?}"))),
    };
    let retention = if retention.is_empty() { "0" } else { retention };
    let bad = |why: String| ConfigError::new(format!("error parsing CompactionRetention: {why}"));
    let amount = match retention.parse::<i64>() {
        Ok(number) if number >= 0 && by_revision => number,
        Ok(hours) if hours >= 0 => hours
            .checked_mul(3_600_000_000_000)
            .ok_or_else(|| bad(format!("{hours} hours are too many")))?,
        _ => parse_duration(retention).map_err(|why| bad(format!("time: {why}")))?,
    };
    if amount < 0 {
        return Err(bad(format!("{retention:?} is negative")));
    }
    if by_revision && retention.parse::<i64>().is_err() && amount != 0 {
        notes.push(
            Note::new(
                Level::Warn,
                "a duration given as a number of revisions means its nanoseconds, as in etcd; \
                 hardly anything will be compacted",
            )
            .with("auto-compaction-retention", retention)
            .with("revisions", amount.to_string()),
        );
    }
    Ok(match (amount, by_revision) {
        (0, _) => AutoCompaction::Off,
        (revisions, true) => AutoCompaction::Revision(revisions),
        (nanos, false) => AutoCompaction::Periodic(Duration::from_nanos(nanos.unsigned_abs())),
    })
}

fn progress_interval(values: &Values, notes: &mut Vec<Note>) -> Duration {
    let name = "watch-progress-notify-interval";
    let given = values.duration(name);
    if given.is_zero() {
        let default = super::flags::find(name).map_or("", |flag| flag.default);
        return Duration::from_nanos(parse_duration(default).unwrap_or(0).unsigned_abs());
    }
    if given < PROGRESS_INTERVAL_MIN {
        notes.push(
            Note::new(Level::Warn, "adjusted watch progress notify interval to minimum period")
                .with("interval", format!("{given:?}"))
                .with("minimum", format!("{PROGRESS_INTERVAL_MIN:?}")),
        );
    }
    given.max(PROGRESS_INTERVAL_MIN)
}

fn keepalive(values: &Values) -> Option<Keepalive> {
    let interval = values.duration("grpc-keepalive-interval");
    let timeout = values.duration("grpc-keepalive-timeout");
    (!interval.is_zero() && !timeout.is_zero()).then_some(Keepalive { interval, timeout })
}

fn access(values: &Values) -> Access {
    let listed = |name: &str| {
        let list = values.list(name);
        let all = list.iter().all(String::is_empty) || list.iter().any(|item| item == "*");
        (!all).then_some(list)
    };
    Access { cors: listed("cors"), hosts: listed("host-whitelist") }
}

fn metrics_detail(values: &Values) -> Result<MetricsDetail, ConfigError> {
    match values.text("metrics") {
        "extensive" => Ok(MetricsDetail::Extensive),
        // etcd takes every other word for the basic level.
        _ => Ok(MetricsDetail::Basic),
    }
}

fn tracing(values: &Values) -> Result<Option<TracingConfig>, ConfigError> {
    if !values.switch("enable-distributed-tracing") {
        return Ok(None);
    }
    let invalid = |why: String| {
        ConfigError::new(format!("distributed tracing configurition is not valid: ({why})"))
    };
    let rate = values.int("distributed-tracing-sampling-rate");
    if rate < 0 {
        return Err(invalid("tracing sampling rate must be positive".to_owned()));
    }
    let sampled_per_million =
        u32::try_from(rate).ok().filter(|rate| *rate <= CALLS_SAMPLED_MAX).ok_or_else(|| {
            invalid(format!("tracing sampling rate must be less than {CALLS_SAMPLED_MAX}"))
        })?;
    let text = |name: &str| values.text(name).to_owned();
    Ok(Some(TracingConfig {
        address: text("distributed-tracing-address"),
        service_name: text("distributed-tracing-service-name"),
        instance_id: text("distributed-tracing-instance-id"),
        sampled_per_million,
    }))
}

fn no_fsync(values: &Values, notes: &mut Vec<Note>) -> bool {
    let off = values.switch("unsafe-no-fsync");
    if off {
        notes.push(Note::new(
            Level::Warn,
            "running without waiting for the disk: a power cut loses acknowledged writes",
        ));
    }
    off
}

fn storage_cache(values: &Values) -> Result<usize, ConfigError> {
    let bytes = values.uint("storage-cache-bytes");
    usize::try_from(bytes).ok().filter(|_| bytes >= STORAGE_CACHE_BYTES_MIN).ok_or_else(|| {
        ConfigError::new(format!(
            "--storage-cache-bytes must be at least {STORAGE_CACHE_BYTES_MIN} (set to {bytes})"
        ))
    })
}

fn size_prefixes(values: &Values) -> Result<Vec<String>, ConfigError> {
    let prefixes = values.list("size-prefixes");
    if prefixes.len() > PREFIXES_MAX {
        return Err(ConfigError::new(format!(
            "--size-prefixes names {} prefixes; at most {PREFIXES_MAX} are counted",
            prefixes.len()
        )));
    }
    if prefixes.iter().any(String::is_empty) {
        return Err(ConfigError::new("--size-prefixes has an empty entry"));
    }
    Ok(prefixes)
}

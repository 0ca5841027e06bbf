//! Everything that is measured, and under which names.

use super::exposition::{Exposition, labels};
use super::grpc::GrpcMetrics;
use super::instrument::{Counter, DISK_BOUNDS, Gauge, Histogram, LEASE_BOUNDS, REQUEST_BOUNDS};
use super::process;
use crate::config::{ETCD_VERSION, VERSION};

/// All metrics of one server. Call sites use the fields; the names are in [`Metrics::text`].
#[derive(Debug)]
pub struct Metrics {
    pub keyspace: KeyspaceMetrics,
    pub watch: WatchMetrics,
    pub lease: LeaseMetrics,
    pub disk: DiskMetrics,
    pub server: ServerMetrics,
    pub network: NetworkMetrics,
    pub health: HealthMetrics,
    pub grpc: GrpcMetrics,
}

/// Keys, revisions and compaction.
#[derive(Debug, Default)]
pub struct KeyspaceMetrics {
    /// Puts carried out, each in a transaction too.
    pub put_total: Counter,
    /// Deletes carried out, each in a transaction too.
    pub delete_total: Counter,
    /// Ranges answered, each in a transaction too.
    pub range_total: Counter,
    /// Transactions carried out.
    pub txn_total: Counter,
    /// Living keys.
    pub keys: Gauge,
    /// The newest revision.
    pub current_revision: Gauge,
    /// The revision compacted up to.
    pub compact_revision: Gauge,
    /// Revisions removed by compaction.
    pub compacted_total: Counter,
    /// When the last compaction ended, in seconds since 1970.
    pub last_compaction: Gauge,
    /// Bytes put, keys and values.
    pub put_bytes: Gauge,
    /// Size of the stored file.
    pub db_bytes: Gauge,
    /// The part of it that holds data.
    pub db_in_use_bytes: Gauge,
    /// Read transactions that are open.
    pub open_reads: Gauge,
    /// The size at which writes are refused; 0 when never.
    pub quota_bytes: Gauge,
}

/// Watches.
#[derive(Debug, Default)]
pub struct WatchMetrics {
    /// Open watch streams.
    pub streams: Gauge,
    /// Watchers on all streams.
    pub watchers: Gauge,
    /// Watchers that are behind.
    pub slow_watchers: Gauge,
    /// Events handed to streams.
    pub events_total: Counter,
    /// Events that wait to be sent.
    pub pending_events: Gauge,
}

/// Leases.
#[derive(Debug)]
pub struct LeaseMetrics {
    pub granted_total: Counter,
    pub revoked_total: Counter,
    pub renewed_total: Counter,
    pub expired_total: Counter,
    /// Times granted.
    pub ttl: Histogram,
}

/// The disk.
#[derive(Debug)]
pub struct DiskMetrics {
    /// A commit as a whole.
    pub commit: Histogram,
    /// The sync within a commit.
    pub fsync: Histogram,
    /// Defragmentation.
    pub defrag: Histogram,
    /// Sending a snapshot.
    pub snapshot: Histogram,
    /// Whether a defragmentation is under way.
    pub defrag_inflight: Gauge,
}

/// The log of commands, and this member.
#[derive(Debug)]
pub struct ServerMetrics {
    /// 1 when writes can be accepted.
    pub has_leader: Gauge,
    /// 1 when this member orders the log.
    pub is_leader: Gauge,
    pub leader_changes_total: Counter,
    /// Log position that is durable.
    pub committed: Gauge,
    /// Log position that is applied.
    pub applied: Gauge,
    /// Commands waiting for the log.
    pub pending: Gauge,
    /// Commands that failed to enter the log.
    pub failed_total: Counter,
    /// Groups whose application took longer than the warning bound.
    pub slow_applies_total: Counter,
    /// Carrying out one group of commands.
    pub apply: Histogram,
}

/// Bytes on client connections.
#[derive(Debug, Default)]
pub struct NetworkMetrics {
    pub received_bytes_total: Counter,
    pub sent_bytes_total: Counter,
}

/// Health checks over HTTP.
#[derive(Debug, Default)]
pub struct HealthMetrics {
    pub success_total: Counter,
    pub failure_total: Counter,
    checks: Vec<CheckMetrics>,
}

/// One kind of health check.
#[derive(Debug)]
struct CheckMetrics {
    kind: &'static str,
    name: &'static str,
    last: Gauge,
    success_total: Counter,
    error_total: Counter,
}

impl HealthMetrics {
    fn new() -> HealthMetrics {
        let check = |&(kind, name): &(&'static str, &'static str)| CheckMetrics {
            kind,
            name,
            last: Gauge::default(),
            success_total: Counter::default(),
            error_total: Counter::default(),
        };
        let checks = [
            ("livez", "serializable_read"),
            ("readyz", "data_corruption"),
            ("readyz", "serializable_read"),
            ("readyz", "linearizable_read"),
            ("readyz", "non_learner"),
        ];
        HealthMetrics { checks: checks.iter().map(check).collect(), ..HealthMetrics::default() }
    }

    /// Counts one run of a check; a check that is not known is not counted.
    pub fn checked(&self, kind: &str, name: &str, ok: bool) {
        if let Some(check) = self.checks.iter().find(|c| c.kind == kind && c.name == name) {
            check.last.set(i64::from(ok));
            if ok { &check.success_total } else { &check.error_total }.inc();
        }
    }

    fn write(&self, out: &mut Exposition) {
        let name = "etcd_server_health_failures";
        out.counter(name, "Health checks that failed.", &self.failure_total);
        out.counter(
            "etcd_server_health_success",
            "Health checks that passed.",
            &self.success_total,
        );
        if self.checks.iter().all(|check| check.runs() == 0) {
            return;
        }
        let name = "etcd_server_healthcheck";
        out.header(name, "The last result of each kind of health check.", "gauge");
        for check in self.checks.iter().filter(|check| check.runs() > 0) {
            out.sample(
                name,
                &labels(&[("name", check.name), ("type", check.kind)]),
                check.last.get(),
            );
        }
        let name = "etcd_server_healthchecks_total";
        out.header(name, "Health checks of each kind, by result.", "counter");
        for check in &self.checks {
            for (status, counter) in
                [("success", &check.success_total), ("error", &check.error_total)]
            {
                if counter.get() > 0 {
                    let labels =
                        labels(&[("name", check.name), ("status", status), ("type", check.kind)]);
                    out.sample(name, &labels, counter.get());
                }
            }
        }
    }
}

impl CheckMetrics {
    fn runs(&self) -> u64 {
        self.success_total.get() + self.error_total.get()
    }
}

impl Metrics {
    /// All zero; `extensive` adds a histogram for each gRPC method.
    pub fn new(extensive: bool) -> Metrics {
        Metrics {
            keyspace: KeyspaceMetrics::default(),
            watch: WatchMetrics::default(),
            lease: LeaseMetrics {
                granted_total: Counter::default(),
                revoked_total: Counter::default(),
                renewed_total: Counter::default(),
                expired_total: Counter::default(),
                ttl: Histogram::new(LEASE_BOUNDS),
            },
            disk: DiskMetrics {
                commit: Histogram::new(DISK_BOUNDS),
                fsync: Histogram::new(DISK_BOUNDS),
                defrag: Histogram::new(DISK_BOUNDS),
                snapshot: Histogram::new(DISK_BOUNDS),
                defrag_inflight: Gauge::default(),
            },
            server: ServerMetrics {
                has_leader: Gauge::default(),
                is_leader: Gauge::default(),
                leader_changes_total: Counter::default(),
                committed: Gauge::default(),
                applied: Gauge::default(),
                pending: Gauge::default(),
                failed_total: Counter::default(),
                slow_applies_total: Counter::default(),
                apply: Histogram::new(REQUEST_BOUNDS),
            },
            network: NetworkMetrics::default(),
            health: HealthMetrics::new(),
            grpc: GrpcMetrics::new(extensive),
        }
    }

    /// Everything in Prometheus' text format. All names are here, in alphabetical order by part.
    pub fn text(&self) -> String {
        let mut out = Exposition::default();
        self.write_keyspace(&mut out);
        self.write_disk(&mut out);
        self.write_server(&mut out);
        self.health.write(&mut out);
        self.grpc.write(&mut out);
        out.value(
            "leaseway_build_info",
            "1 for the version of this program.",
            "gauge",
            &labels(&[("version", VERSION), ("etcd_version", ETCD_VERSION)]),
            1,
        );
        process::write(&mut out);
        out.into_text()
    }

    fn write_keyspace(&self, out: &mut Exposition) {
        let (keyspace, watch, lease) = (&self.keyspace, &self.watch, &self.lease);
        out.counter("etcd_debugging_lease_granted_total", "Leases granted.", &lease.granted_total);
        out.counter("etcd_debugging_lease_renewed_total", "Leases renewed.", &lease.renewed_total);
        out.counter("etcd_debugging_lease_revoked_total", "Leases revoked.", &lease.revoked_total);
        out.histogram(
            "etcd_debugging_lease_ttl_total",
            "Times of granted leases, in seconds.",
            &lease.ttl,
        );
        out.gauge(
            "etcd_debugging_mvcc_compact_revision",
            "Revision compacted up to.",
            &keyspace.compact_revision,
        );
        out.gauge(
            "etcd_debugging_mvcc_current_revision",
            "Newest revision.",
            &keyspace.current_revision,
        );
        out.counter(
            "etcd_debugging_mvcc_db_compaction_keys_total",
            "Revisions removed by compaction.",
            &keyspace.compacted_total,
        );
        out.gauge(
            "etcd_debugging_mvcc_db_compaction_last",
            "When the last compaction ended, in seconds since 1970.",
            &keyspace.last_compaction,
        );
        out.counter(
            "etcd_debugging_mvcc_events_total",
            "Events handed to watch streams.",
            &watch.events_total,
        );
        out.gauge("etcd_debugging_mvcc_keys_total", "Living keys.", &keyspace.keys);
        out.gauge(
            "etcd_debugging_mvcc_pending_events_total",
            "Events waiting to be sent.",
            &watch.pending_events,
        );
        out.gauge(
            "etcd_debugging_mvcc_slow_watcher_total",
            "Watchers that are behind.",
            &watch.slow_watchers,
        );
        out.gauge(
            "etcd_debugging_mvcc_total_put_size_in_bytes",
            "Bytes put, keys and values.",
            &keyspace.put_bytes,
        );
        out.gauge("etcd_debugging_mvcc_watch_stream_total", "Open watch streams.", &watch.streams);
        out.gauge("etcd_debugging_mvcc_watcher_total", "Watchers.", &watch.watchers);
        out.counter(
            "etcd_debugging_server_lease_expired_total",
            "Leases expired.",
            &lease.expired_total,
        );
        out.gauge(
            "etcd_mvcc_db_open_read_transactions",
            "Open read transactions.",
            &keyspace.open_reads,
        );
        out.gauge(
            "etcd_mvcc_db_total_size_in_bytes",
            "Size of the stored data on disk.",
            &keyspace.db_bytes,
        );
        out.gauge(
            "etcd_mvcc_db_total_size_in_use_in_bytes",
            "The part of it that is in use.",
            &keyspace.db_in_use_bytes,
        );
        out.counter("etcd_mvcc_delete_total", "Deletes carried out.", &keyspace.delete_total);
        out.counter("etcd_mvcc_put_total", "Puts carried out.", &keyspace.put_total);
        out.counter("etcd_mvcc_range_total", "Ranges answered.", &keyspace.range_total);
        out.counter("etcd_mvcc_txn_total", "Transactions carried out.", &keyspace.txn_total);
        out.gauge(
            "etcd_server_quota_backend_bytes",
            "Size at which writes are refused.",
            &keyspace.quota_bytes,
        );
    }

    fn write_disk(&self, out: &mut Exposition) {
        let disk = &self.disk;
        out.histogram(
            "etcd_disk_backend_commit_duration_seconds",
            "Time of a commit.",
            &disk.commit,
        );
        out.histogram(
            "etcd_disk_backend_defrag_duration_seconds",
            "Time of a defragmentation.",
            &disk.defrag,
        );
        out.histogram(
            "etcd_disk_backend_snapshot_duration_seconds",
            "Time of a snapshot.",
            &disk.snapshot,
        );
        out.gauge("etcd_disk_defrag_inflight", "1 while defragmenting.", &disk.defrag_inflight);
        out.histogram(
            "etcd_disk_wal_fsync_duration_seconds",
            "Time until the disk has the log; here the sync within a commit.",
            &disk.fsync,
        );
    }

    fn write_server(&self, out: &mut Exposition) {
        let (server, network) = (&self.server, &self.network);
        out.counter(
            "etcd_network_client_grpc_received_bytes_total",
            "Bytes received on client connections.",
            &network.received_bytes_total,
        );
        out.counter(
            "etcd_network_client_grpc_sent_bytes_total",
            "Bytes sent on client connections.",
            &network.sent_bytes_total,
        );
        out.histogram(
            "leaseway_apply_duration_seconds",
            "Time to carry out a group of commands.",
            &server.apply,
        );
        out.gauge("etcd_server_has_leader", "1 when writes can be accepted.", &server.has_leader);
        out.gauge("etcd_server_is_leader", "1 when this member orders the log.", &server.is_leader);
        out.value("etcd_server_is_learner", "Always 0 here.", "gauge", "", 0);
        out.counter(
            "etcd_server_leader_changes_seen_total",
            "Changes of leader.",
            &server.leader_changes_total,
        );
        out.gauge("etcd_server_proposals_applied_total", "Log position applied.", &server.applied);
        out.gauge(
            "etcd_server_proposals_committed_total",
            "Log position that is durable.",
            &server.committed,
        );
        out.counter(
            "etcd_server_proposals_failed_total",
            "Commands that failed.",
            &server.failed_total,
        );
        out.gauge(
            "etcd_server_proposals_pending",
            "Commands waiting for the log.",
            &server.pending,
        );
        out.counter(
            "etcd_server_slow_apply_total",
            "Groups of commands that took long to carry out.",
            &server.slow_applies_total,
        );
        out.value(
            "etcd_server_version",
            "1 for the etcd version that this server is compatible with.",
            "gauge",
            &labels(&[("server_version", ETCD_VERSION)]),
            1,
        );
        let cluster = ETCD_VERSION.rsplit_once('.').map_or(ETCD_VERSION, |(minor, _)| minor);
        out.value(
            "etcd_cluster_version",
            "1 for the cluster version.",
            "gauge",
            &labels(&[("cluster_version", cluster)]),
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_introduced_once_and_has_a_name_of_the_right_form() {
        let metrics = Metrics::new(true);
        metrics.health.checked("readyz", "data_corruption", true);
        let text = metrics.text();
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(seen.insert(rest.to_owned()), "twice: {rest}");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
                let value = line.rsplit_once(' ').map(|(_, value)| value).unwrap_or_default();
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(text.contains("etcd_server_version{server_version=\"3.7.3\"} 1"));
        assert!(
            text.contains("etcd_server_healthcheck{name=\"data_corruption\",type=\"readyz\"} 1")
        );
    }

    #[test]
    fn two_servers_do_not_share_counters() {
        let (a, b) = (Metrics::new(false), Metrics::new(false));
        a.keyspace.put_total.inc();
        assert!(a.text().contains("\netcd_mvcc_put_total 1\n"));
        assert!(b.text().contains("\netcd_mvcc_put_total 0\n"));
    }
}

//! The names of all metrics, in Prometheus' text format.
//!
//! Those of etcd keep etcd's names and mean what they mean there; our own begin with `leaseway_`. Which
//! of etcd's are missing is a table in `docs/operations.md`, and a test holds both together.

use super::exposition::{Exposition, labels};
use super::metrics::Metrics;
use super::process;
use crate::config::{ETCD_VERSION, VERSION};

impl Metrics {
    /// Everything in Prometheus' text format. All names are here, in alphabetical order by part.
    pub fn text(&self) -> String {
        let mut out = Exposition::default();
        self.write_keyspace(&mut out);
        self.write_disk(&mut out);
        self.write_server(&mut out);
        self.write_tls(&mut out);
        self.write_own(&mut out);
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
        out.gauge(
            "etcd_debugging_auth_revision",
            "Revision of users and roles.",
            &self.auth.revision,
        );
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
            "Bytes put since the start, keys and values.",
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
        out.histogram(
            "etcd_mvcc_hash_duration_seconds",
            "Time to hash the whole store.",
            &keyspace.hash,
        );
        out.histogram(
            "etcd_mvcc_hash_rev_duration_seconds",
            "Time to hash the keyspace at a revision.",
            &keyspace.hash_revision,
        );
        out.counter("etcd_mvcc_put_total", "Puts carried out.", &keyspace.put_total);
        out.counter("etcd_mvcc_range_total", "Range requests.", &keyspace.range_total);
        out.counter("etcd_mvcc_txn_total", "Transaction requests.", &keyspace.txn_total);
        out.gauge(
            "etcd_server_quota_backend_bytes",
            "Size at which writes are refused.",
            &keyspace.quota_bytes,
        );
    }

    fn write_own(&self, out: &mut Exposition) {
        let (audit, auth) = (&self.audit, &self.auth);
        out.counter("leaseway_audit_lines_total", "Lines of the audit log.", &audit.lines_total);
        out.counter(
            "leaseway_audit_lines_lost_total",
            "Lines of the audit log that were lost.",
            &audit.lost_total,
        );
        out.counter(
            "leaseway_audit_write_errors_total",
            "Attempts to write the audit log that failed.",
            &audit.write_errors_total,
        );
        out.header("leaseway_authentications_total", "Logins, by their result.", "counter");
        let results = [("ok", &auth.succeeded_total), ("failed", &auth.failed_total)];
        for (result, counter) in results {
            let labels = labels(&[("result", result)]);
            out.sample("leaseway_authentications_total", &labels, counter.get());
        }
        if let Some(prefixes) = self.prefixes.get() {
            prefixes.write(out);
        }
        out.gauge(
            "leaseway_watch_lag_revisions",
            "Revisions that the watcher furthest behind has not been given.",
            &self.watch.lag,
        );
        // Without Oxia they stay empty.
        out.histogram(
            "leaseway_oxia_append_duration_seconds",
            "Time of an append of commands to the log.",
            &self.oxia.append,
        );
        out.histogram(
            "leaseway_oxia_barrier_duration_seconds",
            "Time to prove how far the log reaches.",
            &self.oxia.barrier,
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
        out.gauge(
            "leaseway_load_bytes",
            "Bytes of a checkpoint loaded at the start.",
            &server.loaded_bytes,
        );
        out.gauge(
            "leaseway_load_bytes_expected",
            "Bytes to load at the start.",
            &server.to_load_bytes,
        );
        out.counter(
            "leaseway_starts_over_total",
            "Times that this process was left behind by the log and started over.",
            &server.started_over_total,
        );
        out.gauge("etcd_server_has_leader", "1 when writes can be accepted.", &server.has_leader);
        if let Some(id) = server.member_id.get() {
            let id = format!("{id:x}");
            let labels = labels(&[("server_id", &id)]);
            out.value("etcd_server_id", "1 for the id of this member.", "gauge", &labels, 1);
        }
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

    fn write_tls(&self, out: &mut Exposition) {
        let tls = &self.tls;
        out.gauge(
            "leaseway_tls_certificate_not_after_seconds",
            "When the server's certificate ends, in seconds since 1970; 0 without TLS.",
            &tls.certificate_not_after,
        );
        out.counter(
            "leaseway_tls_handshakes_failed_total",
            "Connections that ended in their TLS handshake.",
            &tls.failed_handshakes_total,
        );
        out.counter(
            "leaseway_tls_reload_failures_total",
            "Changed files for TLS that could not be used.",
            &tls.reload_failures_total,
        );
        out.counter(
            "leaseway_tls_reloads_total",
            "Changed files for TLS that were taken over.",
            &tls.reloads_total,
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
        a.server.member_id.get_or_init(|| 0xab);
        assert!(a.text().contains("\netcd_server_id{server_id=\"ab\"} 1\n"));
        assert!(!b.text().contains("etcd_server_id"));
        a.keyspace.put_total.inc();
        assert!(a.text().contains("\netcd_mvcc_put_total 1\n"));
        assert!(b.text().contains("\netcd_mvcc_put_total 0\n"));
    }
}

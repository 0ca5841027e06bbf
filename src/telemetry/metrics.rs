//! Everything that is measured. Call sites use the fields; the names are in [`super::text`].

use std::sync::OnceLock;

use super::grpc::GrpcMetrics;
use super::health::HealthMetrics;
use super::instrument::{Counter, DISK_BOUNDS, Gauge, HASH_BOUNDS, Histogram, LEASE_BOUNDS};
use super::prefixes::PrefixSizes;

/// All metrics of one server.
#[derive(Debug)]
pub struct Metrics {
    pub keyspace: KeyspaceMetrics,
    pub watch: WatchMetrics,
    pub lease: LeaseMetrics,
    pub disk: DiskMetrics,
    pub oxia: OxiaMetrics,
    pub server: ServerMetrics,
    pub network: NetworkMetrics,
    pub tls: TlsMetrics,
    pub health: HealthMetrics,
    pub grpc: GrpcMetrics,
    pub audit: AuditMetrics,
    pub auth: AuthMetrics,
    /// How much lies below configured prefixes, if there are any.
    pub prefixes: OnceLock<PrefixSizes>,
}

/// The audit log.
#[derive(Debug, Default)]
pub struct AuditMetrics {
    /// Lines that were queued.
    pub lines_total: Counter,
    /// Lines that were lost.
    pub lost_total: Counter,
    /// Attempts to write that failed.
    pub write_errors_total: Counter,
}

/// Users.
#[derive(Debug, Default)]
pub struct AuthMetrics {
    /// Passwords that were right.
    pub succeeded_total: Counter,
    /// Logins that were refused.
    pub failed_total: Counter,
    /// Revision of users and roles.
    pub revision: Gauge,
}

/// Keys, revisions and compaction.
#[derive(Debug)]
pub struct KeyspaceMetrics {
    /// Puts carried out, each in a transaction too.
    pub put_total: Counter,
    /// Deletes carried out, each in a transaction too.
    pub delete_total: Counter,
    /// Range requests.
    pub range_total: Counter,
    /// Transaction requests.
    pub txn_total: Counter,
    /// Living keys.
    pub keys: Gauge,
    /// The newest revision.
    pub current_revision: Gauge,
    /// The revision compacted up to.
    pub compact_revision: Gauge,
    /// Bytes put since the start, keys and values.
    pub put_bytes: Gauge,
    /// Size of the stored file.
    pub db_bytes: Gauge,
    /// The part of it that holds data.
    pub db_in_use_bytes: Gauge,
    /// The size at which writes are refused; 0 when never.
    pub quota_bytes: Gauge,
    /// Hashing the whole store.
    pub hash: Histogram,
    /// Hashing the keyspace at a revision.
    pub hash_revision: Histogram,
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
    /// Revisions that the watcher furthest behind has not been given.
    pub lag: Gauge,
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
    /// Whether a defragmentation is under way.
    pub defrag_inflight: Gauge,
}

/// What a gateway asks of Oxia.
#[derive(Debug)]
pub struct OxiaMetrics {
    /// An append of commands, until it is answered.
    pub append: Histogram,
    /// A barrier, until it is answered.
    pub barrier: Histogram,
}

/// The log of commands, and this member.
#[derive(Debug, Default)]
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
    /// Commands that failed to enter the log. With a log on this machine that ends the process, so
    /// nobody sees more than 0.
    pub failed_total: Counter,
    /// Groups whose application took longer than the warning bound.
    pub slow_applies_total: Counter,
    /// This member's id, once it is known.
    pub member_id: OnceLock<u64>,
    /// Bytes of a checkpoint that have been loaded at the start.
    pub loaded_bytes: Gauge,
    /// Bytes that there are to load.
    pub to_load_bytes: Gauge,
    /// Times that this process was left behind by the log and started over.
    pub started_over_total: Counter,
}

/// Bytes on client connections.
#[derive(Debug, Default)]
pub struct NetworkMetrics {
    pub received_bytes_total: Counter,
    pub sent_bytes_total: Counter,
}

/// TLS on client connections.
#[derive(Debug, Default)]
pub struct TlsMetrics {
    /// Connections that ended in their handshake.
    pub failed_handshakes_total: Counter,
    /// Changed files that were taken over.
    pub reloads_total: Counter,
    /// Changed files that could not be used.
    pub reload_failures_total: Counter,
    /// When the server's certificate ends, in seconds since 1970; 0 without TLS.
    pub certificate_not_after: Gauge,
}

impl Metrics {
    /// All zero; `extensive` adds a histogram for each gRPC method.
    pub fn new(extensive: bool) -> Metrics {
        Metrics {
            keyspace: KeyspaceMetrics {
                put_total: Counter::default(),
                delete_total: Counter::default(),
                range_total: Counter::default(),
                txn_total: Counter::default(),
                keys: Gauge::default(),
                current_revision: Gauge::default(),
                compact_revision: Gauge::default(),
                put_bytes: Gauge::default(),
                db_bytes: Gauge::default(),
                db_in_use_bytes: Gauge::default(),
                quota_bytes: Gauge::default(),
                hash: Histogram::new(HASH_BOUNDS),
                hash_revision: Histogram::new(HASH_BOUNDS),
            },
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
                defrag_inflight: Gauge::default(),
            },
            oxia: OxiaMetrics {
                append: Histogram::new(DISK_BOUNDS),
                barrier: Histogram::new(DISK_BOUNDS),
            },
            server: ServerMetrics::default(),
            network: NetworkMetrics::default(),
            tls: TlsMetrics::default(),
            health: HealthMetrics::new(),
            grpc: GrpcMetrics::new(extensive),
            audit: AuditMetrics::default(),
            auth: AuthMetrics::default(),
            prefixes: OnceLock::new(),
        }
    }
}

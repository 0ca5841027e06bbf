//! One server put together: the store, the log and sessions on it, the services, the endpoints.

use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leaseway_proto::etcdserverpb::RangeRequest;
use leaseway_proto::server::etcdserverpb::auth_server::AuthServer;
use leaseway_proto::server::etcdserverpb::cluster_server::ClusterServer;
use leaseway_proto::server::etcdserverpb::kv_server::KvServer;
use leaseway_proto::server::etcdserverpb::lease_server::LeaseServer;
use leaseway_proto::server::etcdserverpb::maintenance_server::MaintenanceServer;
use leaseway_proto::server::etcdserverpb::watch_server::WatchServer;
use leaseway_proto::server::v3electionpb::election_server::ElectionServer;
use leaseway_proto::server::v3lockpb::lock_server::LockServer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle as Task;
use tonic::codec::CompressionEncoding;

use crate::audit::AuditLog;
use crate::auth::Auth;
use crate::auto_compaction;
use crate::backend::local::log::{LocalLog, OnCommit, Parts, Publish};
use crate::backend::local::recover::recover;
use crate::backend::local::sessions::LocalSessions;
use crate::backend::local::wal::{self, CAPACITY, Wal};
use crate::backend::{Halt, Log, Sessions};
use crate::config::Config;
use crate::config::backend::Backend;
use crate::data_dir::DataDir;
use crate::gateway::Context;
use crate::gateway::audited::{Audited, Auditor};
use crate::gateway::auth::AuthService;
use crate::gateway::authority::Gate;
use crate::gateway::cluster::{ClusterService, Members, SelfInfo};
use crate::gateway::dispatch::Services;
use crate::gateway::election::ElectionService;
use crate::gateway::error::Error;
use crate::gateway::health::{HealthService, ServingStatus};
use crate::gateway::http::{Endpoints, HealthState, ReadFuture};
use crate::gateway::identity::Identity;
use crate::gateway::json::JsonGateway;
use crate::gateway::kv::KvService;
use crate::gateway::lease::LeaseService;
use crate::gateway::lock::LockService;
use crate::gateway::maintenance::{MaintenanceService, Shrink};
use crate::gateway::serve::App;
use crate::gateway::snapshot::Snapshots;
use crate::gateway::ui;
use crate::gateway::watch::{WatchOptions, WatchService};
use crate::keyspace::auth::GATEWAY;
use crate::keyspace::event::{EventKind, RevisionEvents, Visible};
use crate::keyspace::load::load;
use crate::keyspace::machine::Machine;
use crate::keyspace::reader::Reader;
use crate::keyspace::view::View;
use crate::lease::times::Times;
use crate::lease::{Leases, time_at_start};
use crate::storage::redb_engine::{self, RedbEngine};
use crate::storage::tables::{meta, rows};
use crate::storage::{Durability, Engine, StorageError, Table, try_scan};
use crate::telemetry::Metrics;
use crate::telemetry::prefixes::PrefixSizes;
use crate::telemetry::trace::Traces;
use crate::transfer::target;
use crate::vital::Vital;
use crate::watch::{Hub, Settings};

/// The store's file in the data directory.
pub const STORE: &str = "keyspace.redb";
/// The log's files in the data directory.
pub const LOGS: [&str; 2] = ["log-0", "log-1"];
/// There is no raft; clients want a term that is not 0, and etcd's first one is 2.
const RAFT_TERM: u64 = 2;
/// How often the remaining time of long leases is noted.
const LEASE_CHECKPOINTS: Duration = Duration::from_secs(300);

mod comparing;
pub(crate) mod oxia;

/// Takes no more. An embedded server finishes what was queued; what a gateway had not appended never happens.
type StopLog = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Everything behind the listeners.
pub struct Node {
    /// Why the store stopped by itself, once it has.
    failure: watch::Receiver<Option<Halt>>,
    /// Follows the node's readiness into `grpc.health.v1`.
    serving: watch::Sender<ServingStatus>,
    works: Works,
    tasks: Vec<Task<()>>,
    _failed: watch::Sender<Option<Halt>>,
}

/// What runs on threads of its own, and is ended in order.
struct Works {
    stop_log: StopLog,
    apply: JoinHandle<()>,
    hub: Hub,
    engine: Arc<dyn Engine>,
    observers: Observers,
}

impl Works {
    /// Ends with every thread.
    async fn close(self) {
        let Works { stop_log, apply, hub, engine, observers } = self;
        stop_log().await;
        let closing = tokio::task::spawn_blocking(move || {
            if apply.join().is_err() {
                tracing::error!("the apply thread had panicked");
            }
            hub.close();
            engine.close();
            observers.close();
        });
        if let Err(error) = closing.await {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

/// Who is told of the calls, besides the metrics, and of parts that have panicked.
#[derive(Clone)]
struct Observers {
    audit: Option<Arc<AuditLog>>,
    traces: Option<Arc<Traces>>,
    vital: Vital,
}

impl Observers {
    fn start(config: &Config, metrics: &Arc<Metrics>, vital: Vital) -> Result<Observers, String> {
        let open = |audit| AuditLog::open(audit, metrics.clone(), &vital);
        let audit = config.audit.as_ref().map(open);
        let audit = audit.transpose().map_err(|error| error.to_string())?.map(Arc::new);
        let traces = config.tracing.as_ref().map(Traces::start).transpose()?.map(Arc::new);
        Ok(Observers { audit, traces, vital })
    }

    /// Hands on what has not been yet; blocks for a second at most.
    fn close(self) {
        if let Some(audit) = self.audit {
            audit.close();
        }
        if let Some(traces) = self.traces {
            traces.stop();
        }
    }
}

impl Node {
    /// Opens the store in `dir`, or joins a cluster, and builds the services on it. Called within the
    /// runtime. `vital` is told when a part panics that the server can't do without.
    ///
    /// # Errors
    /// One line saying what cannot be opened and why; or the log of a cluster was trimmed meanwhile beyond
    /// what had been loaded.
    pub async fn open(
        config: &Config,
        dir: &DataDir,
        metrics: Arc<Metrics>,
        vital: Vital,
    ) -> Result<(Node, App), Halt> {
        let observers = Observers::start(config, &metrics, vital)?;
        if let Backend::Oxia(place) = &config.backend {
            return oxia::open(config, place, dir, observers, metrics).await;
        }
        dir.refuse_with(
            oxia::CACHE,
            "it is a gateway's, whose keys are in the cluster that its --backend names",
        )
        .map_err(|error| error.to_string())?;
        target::check(dir.path())?;
        target::tidy(dir.path());
        // Before there is a store: whoever mends a flag finds the directory as it was.
        let auth = Auth::new(&config.auth)?;
        let sync = !config.unsafe_no_fsync;
        let store = Store::open(dir, config.storage_cache_bytes, sync)?;
        count_prefixes(config, &*store.engine, &metrics)
            .map_err(|error| format!("cannot read the store: {error}"))?;
        Self::start(config, store, auth, observers, metrics)
            .map_err(|error| format!("cannot start threads: {error}").into())
    }

    fn start(
        config: &Config,
        store: Store,
        auth: Auth,
        observers: Observers,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<(Node, App)> {
        let Store { engine, wal, machine, identity } = store;
        let view = Arc::new(View::new(machine.published()));
        let shared = machine.shared().clone();
        let reader = Reader::new(shared.clone(), engine.clone(), view.clone());
        let vital = &observers.vital;
        let hub = Hub::start_watched(Arc::new(reader.clone()), Settings::default(), vital)?;
        count_keys(&metrics, &reader);
        let (failed, failure) = watch::channel(None);
        let parts = Parts {
            machine,
            wal,
            engine: engine.clone(),
            view,
            publish: Box::new(Publisher { hub: hub.clone(), metrics: metrics.clone() }),
            on_failure: report(failed.clone()),
            on_commit: observe(metrics.clone(), config.warning_apply_duration),
        };
        let (log, apply) = LocalLog::start(parts)?;
        let log = Arc::new(log);
        let sessions = Arc::new(LocalSessions::new(longest_session(config)));
        for lease in shared.leases.all().value {
            let timeout = Duration::from_secs(u64::try_from(lease.ttl).unwrap_or(0));
            sessions.restore(lease.session, timeout, time_at_start(&lease));
        }
        let times = Arc::new(Times::new());
        let leases =
            Leases::new(log.clone(), sessions, reader.clone(), config.lease.min_ttl_s, times);
        let leases = Arc::new(leases);
        let shrinker = log.clone();
        let shrink: Shrink = Box::new(move || {
            let log = shrinker.clone();
            Box::pin(async move { if log.shrink().await? { Ok(()) } else { Err(Error::Busy) } })
                as _
        });
        let stopping = log.clone();
        let stop_log: StopLog = Box::new(move || Box::pin(async move { stopping.stop().await }));
        let works = Works { stop_log, apply, hub, engine, observers };
        let base = Base { auth, failed, failure, works, metrics };
        let members = Members::Alone;
        let (node, app) = assemble(config, base, log, reader, leases, identity, shrink, members);
        Ok((node, app))
    }

    /// Ends when the store or the log has stopped by itself, with the reason; never otherwise.
    pub async fn failed(&self) -> Halt {
        match halted(self.failure.clone()).await {
            Some(halt) => halt,
            None => std::future::pending().await,
        }
    }

    /// Tells clients that ask that this server is on its way out.
    pub fn announce_stop(&self) {
        self.serving.send_replace(ServingStatus::NotServing);
    }

    /// Closes the store; all connections are closed by now. What was queued in an embedded server is still
    /// committed; what a gateway had not appended is not.
    pub async fn close(self) {
        for task in &self.tasks {
            task.abort();
        }
        self.works.close().await;
    }
}

/// Ends with what stopped by itself; with nothing if that can't happen any more.
async fn halted(mut failure: watch::Receiver<Option<Halt>>) -> Option<Halt> {
    let halt = failure.wait_for(Option::is_some).await.ok()?;
    halt.clone()
}

/// What is in the data directory.
struct Store {
    engine: Arc<dyn Engine>,
    wal: Wal,
    machine: Machine,
    identity: Identity,
}

impl Store {
    fn open(dir: &DataDir, cache_bytes: usize, sync: bool) -> Result<Store, String> {
        Self::open_files(dir.path(), cache_bytes, sync)
            .map_err(|error| not_opened(dir.path(), &error))
    }

    fn open_files(dir: &Path, cache_bytes: usize, sync: bool) -> Result<Store, StorageError> {
        let engine = RedbEngine::open(&dir.join(STORE), cache_bytes, sync)?;
        let missing = LOGS.iter().find(|name| !dir.join(name).exists()).copied();
        let [first, second] = LOGS.map(|name| redb_engine::open_file(&dir.join(name), sync));
        // The files' names must survive a power cut too.
        std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(StorageError::from)?;
        Self::load(Arc::new(engine), [first?, second?], missing)
    }

    /// Loads the store and applies what was logged since its last durable commit. A new store gets
    /// its log first and then its identity: a store with an identity has a log. `missing` is a file of the
    /// log that was not there.
    fn load(
        engine: Arc<dyn Engine>,
        files: wal::Files,
        missing: Option<&str>,
    ) -> Result<Store, StorageError> {
        let started = Instant::now();
        let known = meta::identity(&*engine.snapshot()?)?;
        let mut machine = load(&*engine.snapshot()?, &mut |rows| {
            if rows.is_multiple_of(1_000_000) {
                tracing::info!(rows, "loading the keyspace");
            }
        })?;
        let (identity, wal) = match (known, missing) {
            (Some(_), Some(missing)) => {
                return Err(StorageError::Corrupted(format!(
                    "its log file `{missing}` is missing"
                )));
            }
            (Some(identity), None) => {
                let position = machine.published().position;
                let (mut wal, groups) = Wal::open(files, identity.log_secret, position)?;
                let replayed = groups.len();
                recover(&mut machine, &*engine, &mut wal, groups)?;
                tracing::info!(groups = replayed, "applied the log");
                (identity, wal)
            }
            (None, _) => {
                let identity = random_identity();
                let wal = Wal::create(files, identity.log_secret, CAPACITY)?;
                let mut batch = machine.checkpoint_batch();
                meta::put_identity(&mut batch, identity);
                engine.commit(&batch, Durability::Immediate)?;
                (identity, wal)
            }
        };
        tracing::info!(
            keys = machine.shared().index.len(),
            leases = machine.shared().leases.len(),
            revision = machine.published().visible.revision,
            took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "loaded the keyspace"
        );
        let meta::Identity { cluster_id, member_id, .. } = identity;
        let identity = Identity { cluster_id, member_id, raft_term: RAFT_TERM };
        Ok(Store { engine, wal, machine, identity })
    }
}

/// Why there is no store, and, if it is for want of space, how much is needed where: to free just a little would
/// be in vain.
fn not_opened(dir: &Path, error: &StorageError) -> String {
    let shown = dir.display();
    let why = format!("cannot open the store in {shown}/: {error}");
    if !matches!(error, StorageError::NoSpace(_)) {
        return why;
    }
    let log = LOGS.iter().filter_map(|name| std::fs::metadata(dir.join(name)).ok());
    let log = log.map(|file| file.len()).sum::<u64>().max(2 * CAPACITY as u64).div_ceil(MIB);
    format!(
        "{why}: a start makes room for the log and applies it to the store before anything is served, for which it \
         needs up to {} MiB of free space there; nothing that was acknowledged is lost",
        ROOM_PER_LOG * log
    )
}

const MIB: u64 = 1 << 20;
/// Free space that a start may need, in lengths of the log: the store takes in what is logged, in pages.
const ROOM_PER_LOG: u64 = 2;

/// Bytes of the page cache while a store is only read through.
const READING_CACHE_BYTES: usize = 64 << 20;

/// Opens the store of a server that is stopped, with what its log holds applied to it. Whoever is done with
/// it closes it.
///
/// # Errors
/// One line saying what cannot be opened and why.
pub fn open_stopped(dir: &DataDir) -> Result<(Arc<dyn Engine>, Identity), String> {
    let Store { engine, identity, .. } = Store::open(dir, READING_CACHE_BYTES, true)?;
    Ok((engine, identity))
}

/// Whom a new store is.
pub fn random_identity() -> meta::Identity {
    let random = || rand::random_range(1..=u64::MAX);
    meta::Identity { cluster_id: random(), member_id: random(), log_secret: rand::random() }
}

fn report(failed: watch::Sender<Option<Halt>>) -> Box<dyn FnOnce(&StorageError) + Send> {
    Box::new(move |error| {
        tracing::error!(%error, "storage failed; nothing more is acknowledged");
        failed.send_replace(Some(format!("storage failed: {error}").into()));
    })
}

/// Counts the living keys of a loaded keyspace, before its log runs; from then on the publisher counts.
fn count_keys(metrics: &Metrics, reader: &Reader) {
    // Nothing compacts yet, so this can't fail.
    let living = reader.count(b"\0", b"\0", reader.view().now().visible.revision);
    metrics.keyspace.keys.set(living.map_or(0, |living| living as i64));
}

/// Measures commits; those longer than `slow` are logged, unless it is zero.
fn observe(metrics: Arc<Metrics>, slow: Duration) -> OnCommit {
    Box::new(move |took, synced| {
        if took > slow && !slow.is_zero() {
            metrics.server.slow_applies_total.inc();
            tracing::warn!(?took, expected_duration = ?slow, "apply request took too long");
        }
        metrics.disk.commit.observe(took);
        metrics.disk.fsync.observe(synced);
    })
}

/// Longest timeout that clients may ask for.
fn longest_session(config: &Config) -> Duration {
    Duration::from_secs(u64::try_from(config.lease.max_ttl_s).unwrap_or(0))
}

/// Counts what lies below the configured prefixes, by one more scan of the rows; from then on the
/// publisher counts.
fn count_prefixes(
    config: &Config,
    engine: &dyn Engine,
    metrics: &Metrics,
) -> Result<(), StorageError> {
    if config.size_prefixes.is_empty() {
        return Ok(());
    }
    let sizes = PrefixSizes::new(&config.size_prefixes, rand::random());
    try_scan(&*engine.snapshot()?, Table::Rows, &[], None, |key, value| {
        let (kind, kv) = rows::open(key, value)?;
        let row = rows::summarize(kv)?;
        match kind {
            EventKind::Put => sizes.put(row.key, row.value.len()),
            EventKind::Delete => sizes.delete(row.key),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // Nobody else sets it.
    let _ = metrics.prefixes.set(sizes);
    Ok(())
}

/// Opens the audit log's file again whenever the process is sent SIGHUP.
async fn reopen_on_hangup(audit: Arc<AuditLog>) {
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(error) => {
            tracing::warn!(%error, "SIGHUP will not reopen the audit log");
            return;
        }
    };
    while hangup.recv().await.is_some() {
        tracing::info!("opening the audit log again");
        audit.reopen();
    }
}

/// What a node is made of, whatever its backend.
struct Base {
    auth: Auth,
    failed: watch::Sender<Option<Halt>>,
    failure: watch::Receiver<Option<Halt>>,
    works: Works,
    metrics: Arc<Metrics>,
}

/// Puts the services on a log and sessions.
#[allow(clippy::too_many_arguments)]
fn assemble<L: Log, S: Sessions>(
    config: &Config,
    base: Base,
    log: Arc<L>,
    reader: Reader,
    leases: Arc<Leases<L, S>>,
    identity: Identity,
    shrink: Shrink,
    members: Members,
) -> (Node, App) {
    let Base { auth, failed, failure, works, metrics } = base;
    let (hub, engine) = (works.hub.clone(), works.engine.clone());
    let Observers { audit, traces, vital } = works.observers.clone();
    let expired = metrics.clone();
    let compacting = auto_compaction::run(config.auto_compaction, log.clone(), reader.clone());
    let mut tasks = vec![
        vital.spawn(
            "the expiry of leases",
            leases.clone().run_expiry(move |ended| expired.lease.expired_total.add(ended)),
        ),
        vital.spawn(
            "what notes the remaining time of leases",
            leases.clone().run_checkpoints(LEASE_CHECKPOINTS),
        ),
        vital.spawn("auto compaction", compacting),
    ];
    let quota_bytes = config.quota_backend_bytes.and_then(|quota| i64::try_from(quota).ok());
    metrics.server.member_id.get_or_init(|| identity.member_id);
    metrics.keyspace.quota_bytes.set(quota_bytes.unwrap_or(0));
    let context = Arc::new(Context {
        log,
        reader,
        leases,
        identity,
        auth,
        limits: config.limits,
        quota_bytes,
        metrics: metrics.clone(),
    });
    let (serving, status) = watch::channel(ServingStatus::Serving);
    let auditor = audit.clone().map(|log| Auditor::new(log, context.clone()));
    let services = services(
        config,
        &context,
        &hub,
        &engine,
        status,
        shrink,
        members.clone(),
        &auditor,
        traces,
    );
    let reopening = |audit| vital.spawn("what reopens the audit log", reopen_on_hangup(audit));
    tasks.extend(audit.map(reopening));
    let ui = config.enable_ui.then(|| {
        let state = ui::Parts {
            context: context.clone(),
            hub: hub.clone(),
            engine: engine.clone(),
            members,
            auditor,
            name: config.name.clone(),
            client_urls: config.advertise_client.iter().map(ToString::to_string).collect(),
            backend: config.backend.kind(),
        };
        Arc::new(ui::Ui::new(state)) as Arc<dyn ui::Pages>
    });
    let state = NodeState { context, hub, engine };
    let endpoints =
        Endpoints::new(Arc::new(state), metrics.clone(), config.access.clone()).with_ui(ui);
    let node = Node { failure, serving, works, tasks, _failed: failed };
    let services = Arc::new(services);
    let receive = config.limits.max_receive_bytes();
    let json = config.json_gateway.then(|| JsonGateway::new(services.clone(), receive));
    (node, App { services, endpoints, json })
}

#[allow(clippy::too_many_arguments)]
fn services<L: Log, S: Sessions>(
    config: &Config,
    context: &Arc<Context<L, S>>,
    hub: &Hub,
    engine: &Arc<dyn Engine>,
    status: watch::Receiver<ServingStatus>,
    shrink: Shrink,
    members: Members,
    auditor: &Option<Auditor>,
    traces: Option<Arc<Traces>>,
) -> Services {
    let receive = config.limits.max_receive_bytes();
    macro_rules! limited {
        ($server:ident, $service:expr) => {
            $server::new($service)
                .max_decoding_message_size(receive)
                .max_encoding_message_size(i32::MAX as usize)
                .accept_compressed(CompressionEncoding::Gzip)
        };
    }
    let watch_options = WatchOptions {
        progress_interval: config.watch_progress_notify_interval,
        max_request_bytes: config.limits.max_request_bytes,
    };
    let info = SelfInfo {
        name: config.name.clone(),
        client_urls: config.advertise_client.iter().map(ToString::to_string).collect(),
        peer_urls: config.advertise_peer.iter().map(ToString::to_string).collect(),
    };
    let identity = context.identity;
    let gate: Arc<dyn Gate> = context.clone();
    let (reader, folder) = (context.reader.clone(), config.data_dir.clone());
    let snapshots = Snapshots::new(engine.clone(), reader, identity.member_id, folder);
    let maintenance = MaintenanceService::new(context.clone(), engine.clone(), shrink, snapshots);
    let watching = WatchService::new(hub.clone(), identity, watch_options, gate.clone());
    let slow = config.warning_unary_request_duration;
    let mut services = Services::new(context.metrics.clone(), slow, traces);
    // With an audit log a service is one that notes what it hands on.
    macro_rules! add {
        ($add:ident $server:ident, $service:expr) => {
            services = match auditor.clone() {
                None => services.$add(limited!($server, $service)),
                Some(auditor) => services.$add(limited!($server, Audited::new($service, auditor))),
            };
        };
    }
    add!(add KvServer, KvService::new(context.clone()));
    services = services.add(limited!(WatchServer, watching.audited(auditor.clone())));
    add!(add LeaseServer, LeaseService::new(context.clone()));
    add!(add MaintenanceServer, maintenance);
    add!(add ClusterServer, ClusterService::new(identity, info, members, gate));
    add!(add AuthServer, AuthService::new(context.clone()));
    add!(add_waiting LockServer, LockService::new(context.clone(), hub.clone()));
    add!(add_waiting ElectionServer, ElectionService::new(context.clone(), hub.clone()));
    services.add(HealthService::new(status))
}

/// Hands committed revisions to the watchers, and counts them.
struct Publisher {
    hub: Hub,
    metrics: Arc<Metrics>,
}

impl Publish for Publisher {
    fn publish(&self, revisions: Vec<RevisionEvents>, visible: Visible) {
        let (mut puts, mut put_bytes, mut created, mut deletes) = (0, 0, 0, 0);
        let prefixes = self.metrics.prefixes.get();
        for event in revisions.iter().flat_map(|revision| revision.events.iter()) {
            match event.kind {
                EventKind::Put => {
                    puts += 1;
                    created += i64::from(event.create);
                    let value = rows::summarize(&event.kv).map_or(0, |row| row.value.len());
                    put_bytes += event.key.len() + value;
                    if let Some(prefixes) = prefixes {
                        prefixes.put(&event.key, value);
                    }
                }
                EventKind::Delete => {
                    deletes += 1;
                    if let Some(prefixes) = prefixes {
                        prefixes.delete(&event.key);
                    }
                }
            }
        }
        let keyspace = &self.metrics.keyspace;
        keyspace.put_total.add(puts);
        keyspace.put_bytes.add(put_bytes as i64);
        keyspace.keys.add(created - deletes);
        keyspace.delete_total.add(deletes as u64);
        self.hub.publish(revisions, visible);
    }
}

/// What health checks and the metrics page look at.
struct NodeState<L, S> {
    context: Arc<Context<L, S>>,
    hub: Hub,
    engine: Arc<dyn Engine>,
}

impl<L: Log, S: Sessions> HealthState for NodeState<L, S> {
    fn alarms(&self) -> Vec<i32> {
        let raised = self.context.reader.shared().alarms.list(0).value;
        raised.iter().map(|alarm| alarm.alarm).collect()
    }

    fn read(&self, serializable: bool) -> ReadFuture<'_> {
        Box::pin(async move {
            if !serializable {
                self.context.log.barrier().await.map_err(|error| error.to_string())?;
            }
            let request = RangeRequest { key: "health".into(), ..RangeRequest::default() };
            self.context
                .reader
                .range(&request, Some(&GATEWAY))
                .map(|_| ())
                .map_err(|error| error.to_string())
        })
    }

    fn auth_enabled(&self) -> bool {
        self.context.reader.view().auth_enabled()
    }

    fn refresh_metrics(&self, metrics: &Metrics) {
        use std::sync::atomic::Ordering::Relaxed;
        let published = self.context.reader.view().now();
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        metrics.server.has_leader.set(1);
        metrics.server.is_leader.set(1);
        metrics.server.committed.set(signed(published.position));
        metrics.server.applied.set(signed(published.position));
        metrics.server.pending.set(signed(self.context.log.pending()));
        metrics.keyspace.current_revision.set(published.visible.revision);
        metrics.keyspace.compact_revision.set(published.visible.compacted.max(0));
        let auth = self.context.reader.view().auth().revision;
        metrics.auth.revision.set(signed(auth));
        let shared = self.context.reader.shared();
        metrics.keyspace.db_bytes.set(signed(self.engine.file_bytes()));
        metrics.keyspace.db_in_use_bytes.set(shared.row_bytes.load(Relaxed));
        let watching = self.hub.stats();
        metrics.watch.streams.set(watching.streams());
        metrics.watch.watchers.set(watching.watchers());
        metrics.watch.slow_watchers.set(watching.slow_watchers());
        metrics.watch.lag.set(watching.lag());
        metrics.watch.pending_events.set(watching.events_pending());
        let sent = watching.events_sent();
        let counted = metrics.watch.events_total.get();
        metrics.watch.events_total.add(sent.saturating_sub(counted));
    }
}

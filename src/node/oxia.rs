//! A gateway on an Oxia cluster. Whatever it keeps in its data directory is a cache.

use super::{Base, Publisher, StopLog, assemble, count_keys, longest_session};
use crate::auth::Auth;
use crate::backend::Duty;
use crate::backend::oxia::client::{Client, Config as ClientConfig, RECORD_BYTES_MAX};
use crate::backend::oxia::cluster::ClusterShard;
use crate::backend::oxia::log::{self, OxiaLog};
use crate::backend::oxia::members;
use crate::backend::oxia::names::Names;
use crate::backend::oxia::sessions::{self, OxiaSessions};
use crate::backend::oxia::shard::Shard;
use crate::config::backend::OxiaPlace;
use crate::config::{Config, VERSION};
use crate::data_dir::DataDir;
use crate::gateway::cluster::{ListMembers, Members};
use crate::gateway::error::Error;
use crate::gateway::identity::Identity;
use crate::gateway::maintenance::Shrink;
use crate::gateway::serve::App;
use crate::keyspace::gateways::{Gateways, MAX_FEATURE_LEVEL};
use crate::keyspace::load::load;
use crate::keyspace::reader::Reader;
use crate::keyspace::view::View;
use crate::lease::Leases;
use crate::lease::times::Times;
use crate::node::{Node, RAFT_TERM};
use crate::storage::redb_engine::RedbEngine;
use crate::storage::{Engine, StorageError};
use crate::telemetry::Metrics;
use crate::watch::{Hub, Settings};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::log::Member;
use prost::Message;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The cache's file in the data directory; made anew by each process.
const CACHE: &str = "gateway.redb";
/// Largest request in bytes: the rest of a log record is left to what surrounds it.
const MAX_REQUEST_BYTES: usize = RECORD_BYTES_MAX - (1 << 20);
/// Longest session of an unmodified Oxia server.
const LONGEST_SESSION: Duration = Duration::from_secs(300);

/// Joins the keyspace and builds the services on it. Returns once everything that was in the log has
/// been applied.
pub(super) async fn open(
    config: &Config,
    place: &OxiaPlace,
    dir: &DataDir,
    metrics: Arc<Metrics>,
) -> Result<(Node, App), String> {
    if config.limits.max_request_bytes > MAX_REQUEST_BYTES {
        return Err(format!(
            "--max-request-bytes {} is above {MAX_REQUEST_BYTES}, the most that fits into a log record",
            config.limits.max_request_bytes
        ));
    }
    let names = Names::new(&place.keyspace);
    let client = ClientConfig::new(
        place.seeds.clone(),
        place.namespace.clone(),
        place.keyspace.clone(),
        names.proof(),
    );
    let client = Client::start(client).map_err(|error| format!("--backend: {error}"))?;
    let shard = Arc::new(ClusterShard::new(Arc::new(client), &names));
    let path = dir.path().join(CACHE);
    let engine = cache(config, &path)
        .map_err(|error| format!("cannot make the cache {}: {error}", path.display()))?;
    let member = Member {
        member_id: dir.member_id().map_err(|error| error.to_string())?,
        name: config.name.clone(),
        client_urls: config.advertise_client.iter().map(ToString::to_string).collect(),
        peer_urls: config.advertise_peer.iter().map(ToString::to_string).collect(),
        version: VERSION.into(),
        max_feature_level: MAX_FEATURE_LEVEL,
        ..Member::default()
    };
    let auth = Auth::new(&config.auth)?;
    start(config, shard, names, engine, member, auth, metrics).await
}

/// An empty store: what a process before this one left is not trusted.
fn cache(config: &Config, path: &Path) -> Result<Arc<dyn Engine>, StorageError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(StorageError::Io(error.to_string()));
        }
        _ => {}
    }
    Ok(Arc::new(RedbEngine::open(path, config.storage_cache_bytes, false)?))
}

async fn start<S: Shard>(
    config: &Config,
    shard: Arc<S>,
    names: Names,
    engine: Arc<dyn Engine>,
    member: Member,
    auth: Auth,
    metrics: Arc<Metrics>,
) -> Result<(Node, App), String> {
    let threads = |error| format!("cannot start threads: {error}");
    let stored = |error: StorageError| error.to_string();
    let machine = load(&*engine.snapshot().map_err(stored)?, &mut |_| {}).map_err(stored)?;
    let view = Arc::new(View::new(machine.published()));
    let shared = machine.shared().clone();
    let reader = Reader::new(shared.clone(), engine.clone(), view.clone());
    let hub = Hub::start(Arc::new(reader.clone()), Settings::default()).map_err(threads)?;
    count_keys(&metrics, &reader);
    let (failed, mut failure) = watch::channel(None);
    let times = Arc::new(Times::new());
    let member_id = member.member_id;
    let (timed, told) = (times.clone(), failed.clone());
    let (settled, is_settled) = watch::channel(false);
    let (told_duty, duty) = watch::channel(Duty::Unknown);
    let (log, apply) = OxiaLog::start(log::Parts {
        shard: shard.clone(),
        names: names.clone(),
        machine,
        gateways: Gateways::default(),
        engine: engine.clone(),
        view: view.clone(),
        publish: Box::new(Publisher { hub: hub.clone(), metrics: metrics.clone() }),
        on_timed: Box::new(move |leases| timed.note(leases, &shared.leases)),
        member,
        settled: is_settled,
        on_stop: Box::new(move |reason| {
            tracing::error!(reason, "the log can't be followed any more");
            told.send_replace(Some(reason));
        }),
    })
    .map_err(threads)?;
    let log = Arc::new(log);
    let founded = tokio::select! {
        founded = log.joined() => founded.map_err(|error| error.to_string())?,
        reason = failure.wait_for(Option::is_some) => {
            return Err(reason.map_or_else(|error| error.to_string(), |reason| {
                reason.clone().unwrap_or_default()
            }));
        }
    };
    let identity = Identity { cluster_id: founded.cluster_id, member_id, raft_term: RAFT_TERM };
    let sessions = Arc::new(OxiaSessions::new(sessions::Parts {
        shard: shard.clone(),
        names: names.clone(),
        barriers: log.barriers(),
        view,
        gateways: log.gateways(),
        membership: log.membership(),
        duty,
        settled,
        maximum: longest_session(config),
        longest: LONGEST_SESSION,
    }));
    let leases = Leases::new(log.clone(), sessions, reader.clone(), config.lease.min_ttl_s, times);
    let leases = Arc::new(leases);
    let expired = metrics.clone();
    let unkept =
        leases.clone().run_unkept_expiry(move |ended| expired.lease.expired_total.add(ended));
    let stopping = log.clone();
    let stop_log: StopLog = Box::new(move || Box::pin(async move { stopping.stop().await }));
    let base =
        Base { auth, failed, failure, stop_log, apply, hub, engine: engine.clone(), metrics };
    let looking = members::run(members::Parts {
        shard: shard.clone(),
        names: names.clone(),
        log: log.clone(),
        duty: told_duty,
    });
    let sweeping = leases.clone().run_sweeps();
    let members = Members::Listed(list(shard, names));
    let (mut node, app) =
        assemble(config, base, log, reader, leases, identity, shrinking(engine), members);
    node.tasks.push(tokio::spawn(unkept));
    node.tasks.push(tokio::spawn(looking));
    node.tasks.push(tokio::spawn(sweeping));
    Ok((node, app))
}

/// Gives free space of the cache back to the file system.
fn shrinking(engine: Arc<dyn Engine>) -> Shrink {
    Box::new(move || {
        let engine = engine.clone();
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || engine.shrink()).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(StorageError::Busy)) => Err(Error::Busy),
                Ok(Err(_)) | Err(_) => Err(Error::Stopped),
            }
        })
    })
}

/// The gateways that live now.
fn list<S: Shard>(shard: Arc<S>, names: Names) -> ListMembers {
    Box::new(move || {
        let (shard, folder) = (shard.clone(), names.gateways());
        Box::pin(async move {
            let records = shard.list(&folder).await.map_err(|_| Error::TimedOut)?;
            let members = records.into_iter().filter_map(|record| {
                let member = Member::decode(record.value).ok()?;
                Some(pb::Member {
                    id: member.member_id,
                    name: member.name,
                    peer_ur_ls: member.peer_urls,
                    client_ur_ls: member.client_urls,
                    is_learner: false,
                })
            });
            Ok(members.collect())
        })
    })
}

//! A gateway on an Oxia cluster. Whatever it keeps in its data directory is a cache.

use super::{
    Base, Observers, Publisher, StopLog, Works, assemble, count_keys, count_prefixes, halted,
    longest_session,
};
use crate::auth::Auth;
use crate::backend::oxia::checkpoint::format;
use crate::backend::oxia::checkpoint::keep::{self, keep};
use crate::backend::oxia::checkpoint::load::{LoadError, Loader, Rate};
use crate::backend::oxia::checkpoint::pin::{Pin, Progress};
use crate::backend::oxia::client::{Client, Config as ClientConfig, RECORD_BYTES_MAX, Tls, Token};
use crate::backend::oxia::cluster::ClusterShard;
use crate::backend::oxia::compare::Board;
use crate::backend::oxia::log::{self, OxiaLog};
use crate::backend::oxia::longest;
use crate::backend::oxia::members;
use crate::backend::oxia::names::Names;
use crate::backend::oxia::sessions::{self, OxiaSessions};
use crate::backend::oxia::shard::Shard;
use crate::backend::{Duty, Halt};
use crate::config::backend::OxiaPlace;
use crate::config::{Config, VERSION};
use crate::data_dir::DataDir;
use crate::gateway::cluster::{ListMembers, Living, Members};
use crate::gateway::error::Error;
use crate::gateway::identity::Identity;
use crate::gateway::maintenance::Shrink;
use crate::gateway::serve::App;
use crate::keyspace::gateways::MAX_FEATURE_LEVEL;
use crate::keyspace::load::load;
use crate::keyspace::reader::Reader;
use crate::keyspace::view::View;
use crate::lease::Leases;
use crate::lease::times::Times;
use crate::node::{Node, RAFT_TERM, STORE, comparing};
use crate::storage::redb_engine::RedbEngine;
use crate::storage::{Engine, StorageError};
use crate::telemetry::Metrics;
use crate::watch::{Hub, Settings};
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::log::Member;
use prost::Message;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The cache's file in the data directory; made anew by each process.
pub(crate) const CACHE: &str = "gateway.redb";
/// Largest request in bytes: the rest of a log record is left to what surrounds it.
const MAX_REQUEST_BYTES: usize = RECORD_BYTES_MAX - (1 << 20);
/// How often is looked whether a checkpoint is due.
const LOOK: Duration = Duration::from_secs(1);

/// Joins the keyspace and builds the services on it. Returns once everything that was in the log has
/// been applied.
pub(super) async fn open(
    config: &Config,
    place: &OxiaPlace,
    dir: &DataDir,
    observers: Observers,
    metrics: Arc<Metrics>,
) -> Result<(Node, App), Halt> {
    if config.limits.max_request_bytes > MAX_REQUEST_BYTES {
        return Err(format!(
            "--max-request-bytes {} is above {MAX_REQUEST_BYTES}, the most that fits into a log record",
            config.limits.max_request_bytes
        )
        .into());
    }
    dir.refuse_with(STORE, "it has keys of its own, which a gateway would not serve")
        .map_err(|error| error.to_string())?;
    let names = Names::new(&place.keyspace);
    let mut client = client_config(place, &names)?;
    let vital = observers.vital.clone();
    client.vital = vital.clone();
    let token = client.token.clone().zip(place.token_file.clone());
    let client = Client::start(client).map_err(|error| format!("--backend: {error}"))?;
    if let Some((token, path)) = token {
        // Ends with the runtime, as the client does.
        vital.spawn("what follows the token's file", follow_token(token, path));
    }
    let shard = Arc::new(ClusterShard::new(Arc::new(client), &names));
    let path = dir.path().join(CACHE);
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
    let make = || cache(config, &path);
    let pin = Pin::set(shard.clone(), &names, &member, &vital).await;
    let progress = shown(metrics.clone());
    let loader = Loader { shard: &shard, names: &names, pin: &pin, progress: &progress };
    let engine = loader.load(make).await.map_err(|error| match error {
        LoadError::Storage(error) => format!("cannot fill the cache {}: {error}", path.display()),
        LoadError::Refused(why) => format!("cannot load the keyspace {}: {why}", place.keyspace),
    })?;
    let progress = pin.progress();
    let base = (auth, observers, progress);
    let started = start(config, shard, names, engine, member, base, metrics).await;
    pin.release().await;
    started
}

/// How the cluster is reached.
///
/// # Errors
/// Which file can't be used, and why.
pub(crate) fn client_config(place: &OxiaPlace, names: &Names) -> Result<ClientConfig, String> {
    let mut client = ClientConfig::new(
        place.seeds.clone(),
        place.namespace.clone(),
        place.keyspace.clone(),
        names.proof(),
    );
    client.authority.clone_from(&place.authority);
    if let Some(files) = &place.tls {
        let tls = Tls::new(files.clone(), place.authority.as_deref());
        client.transport = Box::new(tls.map_err(|error| format!("TLS to Oxia: {error}"))?);
    }
    if let Some(path) = &place.token_file {
        client.token = Some(read_token(path).and_then(|text| {
            Token::new(&text)
                .map_err(|error| format!("--oxia-token-file {}: {error}", path.display()))
        })?);
    }
    Ok(client)
}

fn read_token(path: &Path) -> Result<String, String> {
    let failed = |error| format!("--oxia-token-file {}: {error}", path.display());
    std::fs::read_to_string(path).map_err(failed)
}

/// Uses what is in the file, whenever it changes. What can't be used is said once.
async fn follow_token(token: Token, path: PathBuf) {
    let mut seen = read_token(&path);
    loop {
        tokio::time::sleep(LOOK).await;
        let path = path.clone();
        let now = match tokio::task::spawn_blocking(move || read_token(&path)).await {
            Ok(now) => now,
            Err(error) => Err(error.to_string()),
        };
        if now == seen {
            continue;
        }
        let replaced =
            now.clone().and_then(|text| token.replace(&text).map_err(|error| error.to_string()));
        match replaced {
            Ok(()) => tracing::info!("the token for Oxia has changed"),
            Err(error) => tracing::warn!(error, "the new token for Oxia can't be used"),
        }
        seen = now;
    }
}

/// Shows how much has been loaded.
fn shown(metrics: Arc<Metrics>) -> impl Fn(u64, u64) + Send + Sync {
    let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    move |loaded, expected| {
        metrics.server.loaded_bytes.set(signed(loaded));
        metrics.server.to_load_bytes.set(signed(expected));
    }
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
    (auth, observers, progress): (Auth, Observers, Progress),
    metrics: Arc<Metrics>,
) -> Result<(Node, App), Halt> {
    let threads = |error| format!("cannot start threads: {error}");
    let stored = |error: StorageError| error.to_string();
    let snapshot = engine.snapshot().map_err(stored)?;
    let machine = load(&*snapshot, &mut |_| progress.made()).map_err(stored)?;
    let gateways = format::gateways(&*snapshot).map_err(stored)?;
    drop(snapshot);
    count_prefixes(config, &*engine, &metrics).map_err(stored)?;
    let view = Arc::new(View::new(machine.published()));
    let shared = machine.shared().clone();
    let reader = Reader::new(shared.clone(), engine.clone(), view.clone());
    let vital = observers.vital.clone();
    let hub = Hub::start_watched(Arc::new(reader.clone()), Settings::default(), &vital)
        .map_err(threads)?;
    count_keys(&metrics, &reader);
    let (failed, failure) = watch::channel::<Option<Halt>>(None);
    let times = Arc::new(Times::new());
    times.begin(&shared.leases);
    let member_id = member.member_id;
    let (timed, told) = (times.clone(), failed.clone());
    let (settled, is_settled) = watch::channel(false);
    let (told_duty, duty) = watch::channel(Duty::Unknown);
    let board = Arc::new(Board::default());
    let (appends, barriers) = (metrics.clone(), metrics.clone());
    let (log, apply) = OxiaLog::start(log::Parts {
        shard: shard.clone(),
        names: names.clone(),
        machine,
        gateways,
        engine: engine.clone(),
        view: view.clone(),
        publish: Box::new(Publisher { hub: hub.clone(), metrics: metrics.clone() }),
        on_timed: Box::new(move |leases| timed.note(leases, &shared.leases)),
        member,
        settled: is_settled,
        board: board.clone(),
        on_stop: Box::new(move |halt| {
            if halt.trimmed_below.is_none() {
                tracing::error!(reason = halt.reason, "the log can't be followed any more");
            }
            told.send_replace(Some(halt));
        }),
        on_append: Box::new(move |took| appends.oxia.append.observe(took)),
        on_barrier: Box::new(move |took| barriers.oxia.barrier.observe(took)),
    })
    .map_err(threads)?;
    let log = Arc::new(log);
    let stopping = log.clone();
    let stop_log: StopLog = Box::new(move || Box::pin(async move { stopping.stop().await }));
    let works = Works { stop_log, apply, hub: hub.clone(), engine: engine.clone(), observers };
    let joined = tokio::select! {
        // First: what waits for the log may notice its end as well, but not why.
        biased;
        Some(halt) = halted(failure.clone()) => Err(halt),
        founded = log.joined() => founded.map_err(|error| error.to_string().into()),
        never = tell_of_log(&*shard, &view) => match never {},
    };
    let founded = match joined {
        Ok(founded) => founded,
        Err(halt) => {
            works.close().await;
            return Err(halt);
        }
    };
    let (told_living, living) = watch::channel(members::Living::default());
    let comparing = comparing::parts(config, &log, &reader, (board, living, duty.clone()));
    if config.comparisons.at_start {
        let place = (&*shard, &names, &log.barriers());
        if let Err(different) = comparing.at_start(place, member_id).await {
            works.close().await;
            return Err(different.into());
        }
    }
    let keeping_view = view.clone();
    let identity = Identity { cluster_id: founded.cluster_id, member_id, raft_term: RAFT_TERM };
    let maximum = longest_session(config);
    let (told_longest, longest) = watch::channel(longest::unasked(maximum));
    let asked = longest::ask(&*shard, maximum, &told_longest).await;
    let sessions = Arc::new(OxiaSessions::new(sessions::Parts {
        shard: shard.clone(),
        names: names.clone(),
        barriers: log.barriers(),
        view,
        gateways: log.gateways(),
        membership: log.membership(),
        duty,
        settled,
        maximum,
        longest,
    }));
    let leases = Leases::new(log.clone(), sessions, reader.clone(), config.lease.min_ttl_s, times);
    let leases = Arc::new(leases);
    let expired = metrics.clone();
    let unkept =
        leases.clone().run_unkept_expiry(move |ended| expired.lease.expired_total.add(ended));
    let base = Base { auth, failed, failure, works, metrics };
    let looking = members::run(members::Parts {
        shard: shard.clone(),
        names: names.clone(),
        log: log.clone(),
        duty: told_duty,
        living: told_living,
    });
    let membership = log.membership();
    let keeping = keep(Arc::new(keep::Parts {
        shard: shard.clone(),
        names: names.clone(),
        engine: engine.clone(),
        view: keeping_view,
        me: Box::new(move || membership.borrow().as_ref().map(|me| me.id)),
        settings: keep::Settings { log_bytes: config.checkpoint_log_bytes, interval: LOOK },
    }));
    let sweeping = leases.clone().run_sweeps();
    let asking = (!asked).then(|| {
        let asking = longest::ask_until_answered(shard.clone(), maximum, told_longest);
        vital.spawn("what asks how long a session may be", asking)
    });
    let members = Members::Listed(list(shard, names).into());
    let (mut node, app) =
        assemble(config, base, log, reader, leases, identity, shrinking(engine), members);
    node.tasks.extend(asking);
    node.tasks.extend([
        vital.spawn("the expiry of leases without a session", unkept),
        vital.spawn("what looks after the gateways", looking),
        vital.spawn("what compares leases with sessions", sweeping),
        vital.spawn("what looks after checkpoints", keeping),
        vital.spawn("what answers with hashes", comparing.clone().answer()),
        vital.spawn("what compares hashes", comparing.run()),
    ]);
    Ok((node, app))
}

/// Tells of progress through the log behind the checkpoint.
async fn tell_of_log<S: Shard>(shard: &S, view: &View) -> Infallible {
    let begun = view.now().position;
    let mut rate = Rate::start();
    let tip = loop {
        match shard.proven_tip().await {
            Ok(tip) => break tip.position,
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    };
    loop {
        let applied = view.now().position;
        if applied < tip {
            rate.tell("applying the log", applied - begun, tip - begun);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
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
                let record = Member::decode(record.value).ok()?;
                let member = pb::Member {
                    id: record.member_id,
                    name: record.name,
                    peer_ur_ls: record.peer_urls,
                    client_ur_ls: record.client_urls,
                    is_learner: false,
                };
                Some(Living { member, applied: record.applied, version: record.version })
            });
            Ok(members.collect())
        })
    })
}

//! A gateway in the simulation: the product's own parts, without the protocols in front of them.

use super::engine::MapEngine;
use super::shard::SimShard;
use super::world::World;
use crate::backend::Duty;
use crate::backend::local::log::Publish;
use crate::backend::oxia::checkpoint::format;
use crate::backend::oxia::checkpoint::keep::{self, keep};
use crate::backend::oxia::checkpoint::load::Loader;
use crate::backend::oxia::checkpoint::pin::Pin;
use crate::backend::oxia::compare::{self, Board};
use crate::backend::oxia::log::{self, OxiaLog};
use crate::backend::oxia::members::{self, Living};
use crate::backend::oxia::names::Names;
use crate::backend::oxia::sessions::{self, OxiaSessions};
use crate::keyspace::event::{RevisionEvents, Visible};
use crate::keyspace::load::load;
use crate::keyspace::reader::Reader;
use crate::keyspace::view::View;
use crate::lease::Leases;
use crate::lease::times::Times;
use crate::storage::Engine;
use crate::vital::Vital;
use leaseway_proto::log::Member;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The longest session; leases above it are kept by the gateways.
pub const LONGEST: Duration = Duration::from_secs(5);

/// What serves requests.
pub struct Serving {
    /// The log.
    pub log: Arc<OxiaLog>,
    /// Leases.
    pub leases: Arc<Leases<OxiaLog, OxiaSessions<SimShard>>>,
    /// Reads.
    pub reader: Reader,
}

/// One process.
pub struct Gateway {
    /// Its connection.
    pub shard: Arc<SimShard>,
    serving: Arc<OnceLock<Arc<Serving>>>,
    killed: Arc<Notify>,
    tasks: parking_lot::Mutex<JoinSet<()>>,
}

struct Publisher {
    world: Arc<World>,
    gateway: usize,
}

impl Publish for Publisher {
    fn publish(&self, revisions: Vec<RevisionEvents>, visible: Visible) {
        let mut world = self.world.lock();
        world.note("published", self.gateway as u64, visible.revision as u64);
        world.oracle.compare(self.gateway, &revisions);
    }
}

impl Gateway {
    /// Starts one; it serves once it has joined.
    pub fn start(world: &Arc<World>, number: usize) -> Arc<Self> {
        let shard = Arc::new(SimShard::connect(world));
        let killed = world.lock().links[shard.link()].killed.clone();
        let serving = Arc::new(OnceLock::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(world.clone(), number, shard.clone(), serving.clone()));
        Arc::new(Self { shard, serving, killed, tasks: parking_lot::Mutex::new(tasks) })
    }

    /// What serves requests, once it does.
    pub fn serving(&self) -> Option<Arc<Serving>> {
        self.serving.get().cloned()
    }

    /// The answer to a request, as a client gets it; `None` when the gateway is killed before.
    pub async fn answer<T>(&self, world: &World, request: impl Future<Output = T>) -> Option<T> {
        let killed = self.killed.notified();
        if world.lock().links[self.shard.link()].dead {
            return None;
        }
        let answered = async {
            let answer = request.await;
            // A process that stands still answers nobody.
            self.shard.gate().await;
            answer
        };
        tokio::select! {
            biased;
            () = killed => None,
            answer = answered => Some(answer),
        }
    }

    /// Ends it without any warning.
    pub fn kill(&self, world: &World) {
        {
            let mut world = world.lock();
            let link = self.shard.link();
            world.links[link].dead = true;
            world.note("killed", link as u64, 0);
        }
        self.tasks.lock().abort_all();
        self.killed.notify_waiters();
    }
}

async fn serve(
    world: Arc<World>,
    number: usize,
    shard: Arc<SimShard>,
    serving: Arc<OnceLock<Arc<Serving>>>,
) {
    let names = Names::new("sim");
    let member = Member { member_id: number as u64 + 1, ..Member::default() };
    let pin = Pin::set(shard.clone(), &names, &member, &Vital::default()).await;
    let loader = Loader { shard: &shard, names: &names, pin: &pin, progress: &|_, _| {} };
    let make = || Ok(Arc::new(MapEngine::default()) as Arc<dyn Engine>);
    let engine = match loader.load(make).await {
        Ok(engine) => engine,
        Err(error) => {
            return world.lock().oracle.violate(format!("gateway {number} cannot load: {error}"));
        }
    };
    let snapshot = engine.snapshot().expect("a map");
    let machine = load(&*snapshot, &mut |_| {}).expect("a whole checkpoint");
    let gateways = format::gateways(&*snapshot).expect("a whole checkpoint");
    world.lock().note("loaded", number as u64, machine.published().position);
    let view = Arc::new(View::new(machine.published()));
    let shared = machine.shared().clone();
    let reader = Reader::new(shared.clone(), engine.clone(), view.clone());
    let times = Arc::new(Times::measured_by(world.lock().clock()));
    times.begin(&shared.leases);
    let timed = times.clone();
    let (settled, is_settled) = watch::channel(false);
    let (told_duty, duty) = watch::channel(Duty::Unknown);
    let (watched, board) = (duty.clone(), Arc::new(Board::default()));
    let stopped = world.clone();
    let link = shard.link();
    let (log, applier) = OxiaLog::prepare(log::Parts {
        shard: shard.clone(),
        names: names.clone(),
        machine,
        gateways,
        engine: engine.clone(),
        view: view.clone(),
        publish: Box::new(Publisher { world: world.clone(), gateway: number }),
        on_timed: Box::new(move |leases| timed.note(leases, &shared.leases)),
        member,
        settled: is_settled,
        board: board.clone(),
        on_stop: Box::new(move |halt| {
            let mut world = stopped.lock();
            if halt.trimmed_below.is_some() {
                world.links[link].left_behind = true;
            } else if !world.links[link].dead {
                world.oracle.violate(format!("gateway {number} stopped: {}", halt.reason));
            }
        }),
        on_append: Box::new(|_| ()),
        on_barrier: Box::new(|_| ()),
    });
    let log = Arc::new(log);
    let mut tasks = JoinSet::new();
    tasks.spawn(applier.run_as_task());
    if log.joined().await.is_err() {
        return;
    }
    pin.release().await;
    let sessions = Arc::new(OxiaSessions::new(sessions::Parts {
        shard: shard.clone(),
        names: names.clone(),
        barriers: log.barriers(),
        view: view.clone(),
        gateways: log.gateways(),
        membership: log.membership(),
        duty,
        settled,
        maximum: Duration::from_secs(3600),
        longest: watch::channel(LONGEST).1,
    }));
    let leases = Arc::new(Leases::new(log.clone(), sessions, reader.clone(), 2, times));
    tasks.spawn(leases.clone().run_expiry(|_| {}));
    tasks.spawn(leases.clone().run_unkept_expiry(|_| {}));
    tasks.spawn(leases.clone().run_sweeps());
    let membership = log.membership();
    let log_bytes = world.lock().checkpoint_bytes;
    // Where there are none, there is no need to look whether there should be one.
    let interval = Duration::from_millis(if log_bytes == u64::MAX { 10_000 } else { 300 });
    tasks.spawn(keep(Arc::new(keep::Parts {
        shard: shard.clone(),
        names: names.clone(),
        engine,
        view,
        me: Box::new(move || membership.borrow().as_ref().map(|me| me.id)),
        settings: keep::Settings { log_bytes, interval },
    })));
    let (told_living, living) = watch::channel(Living::default());
    if world.lock().compares {
        let comparing = comparing(&world, number, &log, &reader, (board, living, watched));
        tasks.spawn(comparing.clone().answer());
        tasks.spawn(comparing.run());
    }
    tasks.spawn(members::run(members::Parts {
        shard,
        names,
        log: log.clone(),
        duty: told_duty,
        living: told_living,
    }));
    world.lock().note("serves", number as u64, 0);
    // It is set once only: here.
    let _ = serving.set(Arc::new(Serving { log, leases, reader }));
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            world.lock().oracle.violate(format!("gateway {number} panicked: {error}"));
        }
    }
}

/// Compares what is here with the others; a difference is a violation.
fn comparing(
    world: &Arc<World>,
    number: usize,
    log: &OxiaLog,
    reader: &Reader,
    (board, living, duty): (Arc<Board>, watch::Receiver<Living>, watch::Receiver<Duty>),
) -> Arc<compare::Parts> {
    let (membership, hashed, revisions) = (log.membership(), reader.clone(), reader.clone());
    let errs = world.lock().errs && number == 0;
    let (computing, alarmed) = (world.clone(), world.clone());
    Arc::new(compare::Parts {
        board,
        living,
        duty,
        hash: Box::new(move |revision| {
            computing.lock().note("hashed", number as u64, revision as u64);
            let found = hashed.hash_kv(revision).ok();
            let found = found.map(|mut found| {
                found.hash ^= u32::from(errs);
                found
            });
            Box::pin(std::future::ready(found))
        }),
        revisions: Box::new(move || {
            let visible = revisions.view().now().visible;
            (visible.revision, visible.compacted)
        }),
        me: Box::new(move || membership.borrow().as_ref().map(|me| me.id)),
        alarm: Box::new(move |member| {
            alarmed.lock().oracle.violate(format!("an alarm for {member}"));
            Box::pin(std::future::ready(()))
        }),
        settings: compare::Settings {
            every: Some(Duration::from_secs(2)),
            after_compactions: Some(Duration::from_secs(1)),
        },
    })
}

/// Whether a moment has come.
pub fn due(at: Instant) -> bool {
    at <= Instant::now()
}

//! Ends of leases and sessions on a shard on which nothing goes wrong but what the test does itself.

use super::clients::Field;
use super::faults::CALM;
use super::gateway::{Gateway, LONGEST, Serving};
use super::world::World;
use super::{MS, SECOND, tick};
use crate::backend::Log;
use crate::backend::oxia::names::Names;
use crate::backend::oxia::shard::Shard;
use crate::keyspace::command::{LeaseGrant, Op, command};
use crate::seams;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Runs a test with two gateways that have been there for a while.
fn with_two<F: Future<Output = ()>>(test: impl FnOnce(Arc<Field>, Vec<Arc<Serving>>) -> F) {
    let _hold = seams::simulated::hold(1, None);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let world = World::new(1, CALM);
        let mut background = JoinSet::new();
        background.spawn(tick(world.clone()));
        let gateways: Vec<_> = (0..2).map(|number| Gateway::start(&world, number)).collect();
        sleep(40 * SECOND).await;
        let serving = |gateway: &Arc<Gateway>| gateway.serving().expect("it has had 40 s");
        let serve = gateways.iter().map(serving).collect();
        let gateways = parking_lot::Mutex::new(gateways);
        let field = Arc::new(Field { world: world.clone(), gateways });
        timeout(600 * SECOND, test(field, serve)).await.expect("it comes to an end");
        assert_eq!(world.lock().oracle.violation, None);
    });
}

/// A session with a marker, which no lease has; returns its id and the marker.
async fn orphan(field: &Field, bits: u128) -> (u64, String) {
    let shard = field.gateways.lock()[1].shard.clone();
    let session = shard.create_session(500 * SECOND, "lease".into()).await.expect("all is calm");
    let marker = Names::new("sim").marker(session.id, bits);
    let created = shard.create(marker.clone(), Bytes::new(), Some(session)).await;
    assert_eq!(created, Ok(true));
    (session.id, marker)
}

async fn exists(field: &Field, marker: &str) -> bool {
    let shard = field.gateways.lock()[1].shard.clone();
    shard.get(marker).await.expect("all is calm").is_some()
}

#[test]
fn a_session_is_ended_only_when_it_was_without_a_lease_for_long() {
    with_two(|field, serving| async move {
        let (session, marker) = orphan(&field, 7).await;
        let (_, other) = orphan(&field, 8).await;
        // Whoever looks after sessions looks again at each gap.
        for _ in 0..40 {
            field.world.lock().gap();
            sleep(500 * MS).await;
        }
        assert!(exists(&field, &marker).await, "its grant was on its way for 20 s only");
        let grant = LeaseGrant { id: 5, ttl: 500, session, marker: marker.clone() };
        let granted = serving[1].log.propose(command(Op::LeaseGrant(grant))).await;
        assert!(granted.expect("all is calm").reply.is_ok());
        for _ in 0..100 {
            field.world.lock().gap();
            sleep(SECOND).await;
        }
        assert!(exists(&field, &marker).await, "it has a lease");
        assert!(!exists(&field, &other).await, "no lease has it");
    });
}

#[test]
fn ends_do_not_wait_for_the_turns_of_others() {
    const MANY: i64 = 1000;
    for ttl in [2, LONGEST.as_secs() as i64 + 1] {
        with_two(|field, serving| async move {
            let mut grants = JoinSet::new();
            for id in 1..=MANY {
                let serving = serving[0].clone();
                grants.spawn(async move { serving.leases.grant(id, ttl, None).await.map(|_| ()) });
            }
            while let Some(granted) = grants.join_next().await {
                granted.expect("it does not panic").expect("all is calm");
            }
            let granted = Instant::now();
            let left = || field.world.lock().oracle.reader.leases().all().value.len();
            assert!(left() > 0);
            while left() > 0 {
                sleep(20 * MS).await;
            }
            // The half second of one turn, and the rest for the way through the log.
            let took = granted.elapsed();
            let most = Duration::from_secs(ttl.unsigned_abs()) + 900 * MS;
            assert!(took < most, "{MANY} leases of {ttl} s took {took:?}");
        });
    }
}

#[test]
fn a_noted_time_counts_when_it_is_in_the_log_behind_the_checkpoint() {
    const TTL: Duration = Duration::from_secs(100);
    with_two(|field, serving| async move {
        let granted = serving[1].leases.grant(7, TTL.as_secs() as i64, None).await;
        let begun = Instant::now();
        granted.expect("all is calm");
        field.world.lock().oracle.promises.insert(7, begun + TTL);
        sleep(60 * SECOND).await;
        let before = field.world.lock().oracle.position;
        for serving in &serving {
            serving.leases.checkpoint(10 * SECOND).await.expect("all is calm");
        }
        let noted = field.world.lock().oracle.position - before;
        assert_eq!(noted, 1, "only the gateway on duty notes");
        for number in 0..2 {
            let mut gateways = field.gateways.lock();
            gateways[number].kill(&field.world);
            gateways[number] = Gateway::start(&field.world, number);
        }
        let lives = || field.world.lock().oracle.lives_since(7).is_some();
        while lives() {
            sleep(20 * MS).await;
        }
        let took = begun.elapsed();
        assert!(took < TTL + 10 * SECOND, "it ended {took:?} after its grant");
    });
}

//! Many leases that end within a second, while others go on writing.
//!
//! Each lease holds one key. All are renewed in one burst, so that their deadlines are as close
//! together as the renewals were; a watcher sees each key disappear. An operation is one lease that
//! ended, its latency the time from the earliest moment at which it may have ended, which is its
//! last renewal's acknowledgement plus its time to live.

use super::{Extra, Outcome, Unit, extra};
use crate::load::{self, Meter, Operation};
use crate::requests::{self, KeyedRequest, path, prefix_end};
use crate::rows::Sizes;
use crate::servers::Server;
use crate::stats::{Latencies, Recorder};
use crate::wire::{CallError, Caller, Method, Receiver, count_field, frame};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use leaseway_proto::etcdserverpb::watch_create_request::FilterType;
use leaseway_proto::etcdserverpb::watch_request::RequestUnion;
use leaseway_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    PutRequest, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use leaseway_proto::mvccpb::event::EventType;
use prost::Message;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};

const PREFIX: &str = "expiring/";
const WORKERS: usize = 100;
const WRITERS: usize = 10;
/// Puts measured before the first deadline stop this long before it.
const CALM: Duration = Duration::from_millis(500);
const GONE_WITHIN: Duration = Duration::from_secs(180);

/// When a lease was last renewed, as the client saw it.
#[derive(Clone, Copy)]
struct Renewal {
    sent: Instant,
    acknowledged: Instant,
}

pub async fn run(server: &Server, sizes: &Sizes) -> Result<Outcome> {
    let ttl = Duration::from_secs(sizes.lease_seconds);
    let leases = Leases { count: sizes.leases, ttl };
    let began = Instant::now();
    leases.grant(server).await?;
    let mut watch = Watch::open(server).await?;
    let renewals = leases.renew(server).await?;
    ensure!(began.elapsed() < ttl, "{} leases took longer than {ttl:?}", leases.count);

    let first = renewals.values().map(|renewal| renewal.acknowledged).min();
    let last = renewals.values().map(|renewal| renewal.acknowledged).max();
    let (first, last) = first.zip(last).context("no leases")?;
    let (before, during) = (Recorder::new(), Recorder::new());
    let mut tasks = writers(server, &before, &during, sizes).await?;
    let work = async {
        before.start();
        let phases = async {
            sleep_until((first + ttl - CALM).into()).await;
            before.stop();
            sleep_until((first + ttl).into()).await;
            during.start();
            Meter::start(server)
        };
        let watching = async {
            let seen = timeout(ttl + GONE_WITHIN, watch.follow(&renewals, ttl)).await;
            seen.with_context(|| format!("keys left after {GONE_WITHIN:?}"))?
        };
        let (meter, seen) = tokio::try_join!(phases, watching)?;
        // Even when all ended at once, puts are measured for as long as leases were due.
        sleep_until((last + ttl).into()).await;
        during.stop();
        let measured = meter.finish(leases.count as u64, seen.lateness.summary())?;
        Ok((measured, seen))
    };
    let (measured, seen) = load::unless_failed(&mut tasks, work).await?;
    tasks.shutdown().await;
    leases.ensure_gone(server).await?;
    let mut extras = vec![
        extra("deadlines spread over", (last - first).as_secs_f64(), Unit::Seconds),
        extra("all gone after the first deadline", seen.all_gone(first + ttl), Unit::Seconds),
        extra("leases that ended early", seen.early as f64, Unit::Count),
    ];
    extras.extend(put_latencies(&before, &during)?);
    Ok(Outcome { measured, extras })
}

fn put_latencies(before: &Recorder, during: &Recorder) -> Result<Vec<Extra>> {
    let (_, calm) = before.totals_so_far();
    let (_, busy) = during.totals_so_far();
    let (Some(calm), Some(busy)) = (calm, busy) else { bail!("no put ended") };
    Ok(vec![
        extra("put p50 before", calm.p50, Unit::Microseconds),
        extra("put p50 during", busy.p50, Unit::Microseconds),
        extra("put p99 before", calm.p99, Unit::Microseconds),
        extra("put p99 during", busy.p99, Unit::Microseconds),
        extra("longest put during", busy.max, Unit::Microseconds),
    ])
}

#[derive(Clone, Copy)]
struct Leases {
    count: usize,
    ttl: Duration,
}

impl Leases {
    /// Ids are 1 to `count`.
    fn share(self, worker: usize) -> impl Iterator<Item = i64> {
        (worker..self.count).step_by(WORKERS).map(|index| index as i64 + 1)
    }

    async fn grant(self, server: &Server) -> Result<()> {
        let callers = load::connect_for(server, WORKERS).await?;
        let mut tasks = JoinSet::new();
        for worker in 0..WORKERS {
            let mut caller = callers[worker % callers.len()].clone();
            let ttl = self.ttl.as_secs() as i64;
            tasks.spawn(async move {
                let (grant, put) = (Method::new(path::LEASE_GRANT), Method::new(path::PUT));
                for id in self.share(worker) {
                    caller.unary(&grant, frame(&LeaseGrantRequest { ttl, id })).await?;
                    let key = format!("{PREFIX}{id}").into();
                    let attached = PutRequest { key, lease: id, ..Default::default() };
                    caller.unary(&put, frame(&attached)).await?;
                }
                Ok(())
            });
        }
        load::join_all(tasks).await
    }

    async fn renew(self, server: &Server) -> Result<HashMap<i64, Renewal>> {
        let callers = load::connect_for(server, WORKERS).await?;
        let renewals = Arc::new(Mutex::new(HashMap::with_capacity(self.count)));
        let mut tasks = JoinSet::new();
        for worker in 0..WORKERS {
            let caller = callers[worker % callers.len()].clone();
            let renewals = renewals.clone();
            tasks.spawn(async move {
                let done = self.renew_share(caller, worker).await?;
                renewals.lock().unwrap_or_else(PoisonError::into_inner).extend(done);
                Ok(())
            });
        }
        load::join_all(tasks).await?;
        Ok(std::mem::take(&mut *renewals.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    async fn renew_share(
        self,
        mut caller: Caller,
        worker: usize,
    ) -> Result<Vec<(i64, Renewal)>, CallError> {
        let (mut sender, mut receiver) = caller.open(&Method::new(path::LEASE_KEEP_ALIVE)).await?;
        let mut renewals = Vec::new();
        for id in self.share(worker) {
            let sent = Instant::now();
            sender.send(frame(&LeaseKeepAliveRequest { id }))?;
            let answer = receiver.next().await?.unwrap_or_default();
            let answer = LeaseKeepAliveResponse::decode(answer)?;
            if answer.id != id || answer.ttl != self.ttl.as_secs() as i64 {
                return Err(CallError::Unexpected(format!("{answer:?} for lease {id}")));
            }
            renewals.push((id, Renewal { sent, acknowledged: Instant::now() }));
        }
        Ok(renewals)
    }

    /// Neither keys nor leases are left.
    async fn ensure_gone(self, server: &Server) -> Result<()> {
        let mut caller = Caller::connect(server.address()).await?;
        let count = RangeRequest {
            key: PREFIX.into(),
            range_end: prefix_end(PREFIX),
            count_only: true,
            ..Default::default()
        };
        let answer = caller.unary(&Method::new(path::RANGE), frame(&count)).await?;
        let keys = RangeResponse::decode(answer)?.count;
        let list = frame(&LeaseLeasesRequest {});
        let answer = caller.unary(&Method::new(path::LEASE_LEASES), list).await?;
        let leases = count_field(&answer, 2)?;
        ensure!(keys == 0 && leases == 0, "{keys} keys and {leases} leases are left");
        Ok(())
    }
}

/// Sees the keys of the leases disappear.
struct Watch {
    receiver: Receiver,
    _caller: Caller,
    _sender: crate::wire::Sender,
}

/// What the watcher saw.
struct Seen {
    lateness: Latencies,
    /// Leases that ended before their time to live had passed since the renewal was sent.
    early: u64,
    last: Instant,
}

impl Seen {
    fn all_gone(&self, first_deadline: Instant) -> f64 {
        self.last.saturating_duration_since(first_deadline).as_secs_f64()
    }
}

impl Watch {
    async fn open(server: &Server) -> Result<Self> {
        let mut caller = Caller::connect(server.address()).await?;
        let (mut sender, mut receiver) = caller.open(&Method::new(path::WATCH)).await?;
        let create = WatchCreateRequest {
            key: PREFIX.into(),
            range_end: prefix_end(PREFIX),
            // A member of a cluster may not have applied all puts yet when the watch begins there.
            filters: vec![FilterType::Noput as i32],
            ..Default::default()
        };
        let request_union = Some(RequestUnion::CreateRequest(create));
        sender.send(frame(&WatchRequest { request_union }))?;
        let answer = WatchResponse::decode(receiver.next().await?.unwrap_or_default())?;
        ensure!(answer.created, "{answer:?} instead of `created`");
        Ok(Self { receiver, _caller: caller, _sender: sender })
    }

    /// Reads until every key of `renewals` has been deleted, each once.
    async fn follow(&mut self, renewals: &HashMap<i64, Renewal>, ttl: Duration) -> Result<Seen> {
        let mut left = renewals.clone();
        let mut seen = Seen { lateness: Latencies::new(), early: 0, last: Instant::now() };
        while !left.is_empty() {
            let answer = self.receiver.next().await?.context("the watch ended")?;
            let answer = WatchResponse::decode(answer)?;
            ensure!(!answer.canceled, "watch cancelled: {}", answer.cancel_reason);
            seen.last = Instant::now();
            for event in answer.events {
                let key = event.kv.context("an event without a row")?.key;
                ensure!(event.r#type == EventType::Delete as i32, "an event of another kind");
                let renewal = lease_of(&key).and_then(|id| left.remove(&id));
                let renewal = renewal.with_context(|| format!("a second end of {key:?}"))?;
                let due = renewal.acknowledged + ttl;
                seen.lateness.add(seen.last.saturating_duration_since(due));
                seen.early += u64::from(seen.last < renewal.sent + ttl);
            }
        }
        Ok(seen)
    }
}

fn lease_of(key: &Bytes) -> Option<i64> {
    std::str::from_utf8(key).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

/// Clients that put all the time. They report to both recorders; only one of them counts at a
/// time, and the second one's end is theirs.
async fn writers(
    server: &Server,
    before: &Recorder,
    during: &Recorder,
    sizes: &Sizes,
) -> Result<JoinSet<Result<(), CallError>>> {
    let mut tasks = JoinSet::new();
    for (number, caller) in load::connect(server, WRITERS).await?.into_iter().enumerate() {
        let writer = Writer {
            caller,
            method: Method::new(path::PUT),
            put: KeyedRequest::put(requests::value(sizes.value_bytes, number as u64)),
            random: fastrand::Rng::with_seed(number as u64),
            keys: sizes.keys,
            before: before.clone(),
        };
        load::spawn_client(&mut tasks, during, writer);
    }
    Ok(tasks)
}

struct Writer {
    caller: Caller,
    method: Method,
    put: KeyedRequest,
    random: fastrand::Rng,
    keys: u64,
    before: Recorder,
}

impl Operation for Writer {
    async fn perform(&mut self) -> Result<u64, CallError> {
        let began = Instant::now();
        let request = self.put.with_key(self.random.u64(..self.keys));
        self.caller.unary(&self.method, request).await?;
        self.before.record(began.elapsed(), 1);
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_lease_once() {
        let leases = Leases { count: 1_234, ttl: Duration::from_secs(5) };
        let mut ids: Vec<i64> = (0..WORKERS).flat_map(|worker| leases.share(worker)).collect();
        ids.sort_unstable();
        assert_eq!(ids, (1..=1_234).collect::<Vec<_>>());
    }

    #[test]
    fn a_key_names_its_lease() {
        assert_eq!(lease_of(&Bytes::from_static(b"expiring/77")), Some(77));
        assert_eq!(lease_of(&Bytes::from_static(b"expiring/x")), None);
        assert_eq!(lease_of(&Bytes::from_static(b"other/77")), None);
        assert_eq!(lease_of(&Bytes::from_static(b"\xff")), None);
    }
}

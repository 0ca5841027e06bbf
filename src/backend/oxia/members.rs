//! Which gateways live, and which of them looks after things.
//!
//! A gateway's record goes with its session, and its beats rise while it lives; so one that was
//! killed a moment ago has a record, but does not beat. Of those that beat, the one that
//! registered first looks after the others: it retires gateways that are gone, and compares
//! leases with the sessions that exist.
//!
//! If nobody who registered before it was seen to beat, there was a time in which no gateway served.
//! Leases whose session ended then could not have been renewed by anyone.

use super::barrier::Barriers;
use super::join::{BEAT, Membership};
use super::log::OxiaLog;
use super::names::Names;
use super::shard::{Shard, ShardError};
use crate::backend::Duty;
use crate::keyspace::gateways::{GatewayId, Gateways};
use crate::seams::{Rule, follows};
use bytes::Bytes;
use leaseway_proto::log::{Member, Retire, entry::Control};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a gateway may go without a beat and still count as beating.
const SILENCE: Duration = BEAT.saturating_mul(3);
/// A look that took longer than this was not only held up by the shard: this process stood still.
const STOOD_STILL: Duration = SILENCE.saturating_add(BEAT.saturating_mul(2));

/// Living gateways by id.
pub type Living = BTreeMap<GatewayId, Member>;

/// Lists the gateways that have a record.
///
/// # Errors
/// The shard did not answer, or changed its leader meanwhile.
pub async fn list<S: Shard>(
    shard: &S,
    names: &Names,
    barriers: &Barriers,
) -> Result<Living, ShardError> {
    let records = proven(barriers, shard.list(&names.gateways())).await?;
    let member = |record: super::shard::Named| {
        Some((names.gateway_of(&record.name)?, Member::decode(record.value).ok()?))
    };
    Ok(records.into_iter().filter_map(member).collect())
}

/// An answer of a leader that certainly led when it gave it.
///
/// # Errors
/// That of `answer`, and [`ShardError::Unknown`] when the leader changed meanwhile.
pub async fn proven<T>(
    barriers: &Barriers,
    answer: impl Future<Output = Result<T, ShardError>>,
) -> Result<T, ShardError> {
    let stopping = || ShardError::NotSent("stopping".into());
    let before = barriers.tip().await.ok_or_else(stopping)?;
    let answer = answer.await?;
    let after = barriers.tip().await.ok_or_else(stopping)?;
    if before.epoch == after.epoch {
        Ok(answer)
    } else {
        Err(ShardError::Unknown("the leader changed".into()))
    }
}

/// What is known of the beats of others.
#[derive(Debug, Default)]
struct Seen {
    // The last count of each, and when it was first seen; `None` until it has changed.
    beats: BTreeMap<GatewayId, (u64, Option<Instant>)>,
    // Missed in the last look.
    missed: Vec<GatewayId>,
    // Somebody who registered before this process was seen to beat.
    served_before: bool,
}

impl Seen {
    fn look(&mut self, living: &Living, now: Instant) {
        self.beats.retain(|id, _| living.contains_key(id));
        for (id, member) in living {
            let seen = self.beats.entry(*id).or_insert((member.beats, None));
            if seen.0 != member.beats {
                *seen = (member.beats, Some(now));
            }
        }
    }

    /// The gateway that looks after things.
    fn first(&self, me: GatewayId, gateways: &Gateways, now: Instant) -> Option<GatewayId> {
        let beating = |id: &GatewayId| {
            *id == me
                || self.beats.get(id).is_some_and(|(_, changed)| {
                    changed.is_some_and(|changed| now - changed < SILENCE)
                })
        };
        let known = gateways.known.iter().filter(|(id, _)| beating(id));
        known.min_by_key(|(_, gateway)| gateway.order).map(|(id, _)| *id)
    }

    /// Gateways that have had no record twice in a row.
    fn gone(&mut self, living: &Living, gateways: &Gateways) -> Vec<GatewayId> {
        let missing: Vec<GatewayId> =
            gateways.known.keys().filter(|id| !living.contains_key(*id)).copied().collect();
        let twice = missing.iter().filter(|id| self.missed.contains(id)).copied().collect();
        self.missed = missing;
        twice
    }
}

/// What the task works with.
pub struct Parts<S> {
    /// Where the records are.
    pub shard: Arc<S>,
    /// Names of the keyspace.
    pub names: Names,
    /// The log.
    pub log: Arc<OxiaLog>,
    /// Where it is told whose turn it is.
    pub duty: watch::Sender<Duty>,
    /// Where it is told who lives.
    pub living: watch::Sender<Living>,
}

/// The list, unless it takes so long that it has to be looked first whether this gateway is cut off:
/// what asks the shard waits until it is back.
async fn in_time(list: impl Future<Output = Result<Living, ShardError>>) -> Option<Living> {
    let listed = if follows(Rule::NoticesCut) {
        tokio::time::timeout(SILENCE, list).await.ok()?
    } else {
        list.await
    };
    listed.inspect_err(|error| tracing::debug!(%error, "cannot list gateways")).ok()
}

/// Looks after the gateways until the log stops.
pub async fn run<S: Shard>(parts: Parts<S>) {
    let Parts { shard, names, log, duty, living: told } = parts;
    let (barriers, gateways, membership) = (log.barriers(), log.gateways(), log.membership());
    let mut seen = Seen::default();
    let mut since: Option<(GatewayId, Instant)> = None;
    let fresh = || membership.borrow().clone().filter(Membership::is_fresh);
    loop {
        let begun = Instant::now();
        tokio::time::sleep(BEAT).await;
        let listed = match fresh() {
            Some(_) => in_time(list(&*shard, &names, &barriers)).await,
            None => None,
        };
        let now = Instant::now();
        // Looked at again: it may have been cut off while it waited for the list.
        let stood_still = now - begun >= STOOD_STILL && follows(Rule::NoticesCut);
        let Some(me) = fresh().filter(|_| !stood_still) else {
            // It stood still, or was cut off: perhaps nobody served meanwhile.
            since = None;
            duty.send_replace(Duty::Unknown);
            continue;
        };
        let Some(living) = listed else { continue };
        // Under a new id everything is seen anew: this process stood still for a while.
        let (_, begun) = *since.take_if(|(id, _)| *id == me.id).get_or_insert_with(|| {
            seen = Seen::default();
            (me.id, now)
        });
        since = Some((me.id, begun));
        seen.look(&living, now);
        told.send_replace(living.clone());
        let known = gateways.borrow().clone();
        let first = seen.first(me.id, &known, now);
        seen.served_before |= first.is_some_and(|first| first != me.id);
        let decided = now - begun >= SILENCE;
        duty.send_replace(match first {
            Some(first) if first == me.id && decided => {
                for id in seen.gone(&living, &known) {
                    let gateway = Bytes::copy_from_slice(&id);
                    log.control(Control::Retire(Retire { gateway })).await;
                }
                Duty::Mine { spare: !seen.served_before }
            }
            Some(first) if first != me.id => {
                Duty::Other { settled: living.get(&first).is_some_and(|member| member.settled) }
            }
            _ => Duty::Unknown,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::gateways::Gateway;

    fn gateways(ids: &[u8]) -> Gateways {
        let gateway = |order| Gateway { last_number: 1, max_feature_level: 1, order };
        let known = ids.iter().enumerate().map(|(at, id)| ([*id; 16], gateway(at as u64)));
        Gateways { known: known.collect(), ..Gateways::default() }
    }

    fn living(beats: &[(u8, u64)]) -> Living {
        let member = |beats| Member { beats, ..Member::default() };
        beats.iter().map(|(id, beats)| ([*id; 16], member(*beats))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_beats_looks_after_the_others() {
        let (me, known) = ([2; 16], gateways(&[1, 2, 3]));
        let mut seen = Seen::default();
        seen.look(&living(&[(1, 7), (2, 0), (3, 4)]), Instant::now());
        assert_eq!(seen.first(me, &known, Instant::now()), Some(me), "1 was not seen to beat");
        tokio::time::advance(BEAT).await;
        seen.look(&living(&[(1, 8), (2, 1), (3, 5)]), Instant::now());
        assert_eq!(seen.first(me, &known, Instant::now()), Some([1; 16]));
        tokio::time::advance(SILENCE).await;
        seen.look(&living(&[(1, 8), (2, 4)]), Instant::now());
        assert_eq!(seen.first(me, &known, Instant::now()), Some(me), "1 has fallen silent");
    }

    #[test]
    fn a_gateway_is_gone_when_it_was_missed_twice() {
        let (known, mut seen) = (gateways(&[1, 2]), Seen::default());
        assert!(seen.gone(&living(&[(2, 1)]), &known).is_empty());
        assert!(seen.gone(&living(&[(1, 1), (2, 1)]), &known).is_empty());
        assert!(seen.gone(&living(&[(2, 1)]), &known).is_empty());
        assert_eq!(seen.gone(&living(&[(2, 1)]), &known), [[1; 16]]);
    }
}

//! Makes checkpoints when it is time to, trims the log behind them and deletes what is superseded.
//!
//! Every gateway runs this. The one with the lowest id acts; the next one does when the log has
//! grown twice as long as it should, and so on: one that can't do it is in nobody's way, and two at
//! once are harmless ([`super`]).
//!
//! The log is deleted up to where the head and every living gateway have come, and whoever is loading. One that
//! has not come on for minutes although there is a lot to apply does not count any more; it will find a gap, and
//! start over with the newest checkpoint.

use super::format;
use super::write::{WriteError, Writer, read_head};
use crate::backend::oxia::names::Names;
use crate::backend::oxia::outage::Outage;
use crate::backend::oxia::shard::{Named, Shard, ShardError};
use crate::keyspace::gateways::GatewayId;
use crate::keyspace::view::View;
use crate::storage::tables::meta;
use crate::storage::{Engine, StorageError};
use leaseway_proto::log::{CheckpointHead, Member};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What a log record costs besides its content, in bytes.
const RECORD: u64 = 256;
/// Log records deleted by one request: few milliseconds of the server's time.
const TRIM: u64 = 10_000;
/// How long a gateway or a loader may stay where it is before it does not count.
const STUCK: Duration = Duration::from_secs(300);
/// How far the log has to be ahead of it then.
const STUCK_ENTRIES: u64 = 10_000;
/// How long a checkpoint stays after it was superseded: for who has read the head and not said so.
const GRACE: Duration = Duration::from_secs(10);
/// How long a deleted checkpoint's name is remembered, to delete once more what somebody who was
/// paused writes there.
const LINGER: Duration = Duration::from_secs(600);
/// How much less often the others look.
const OTHERS: u32 = 5;
/// How long others wait for a checkpoint that somebody has begun.
const BEGUN: Duration = Duration::from_secs(600);

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Growth of the log, in bytes, after which there is a new checkpoint; more with a large
    /// keyspace, half of its size.
    pub log_bytes: u64,
    /// How often is looked.
    pub interval: Duration,
}

/// What it works with.
pub struct Parts<S> {
    /// Where.
    pub shard: Arc<S>,
    /// Names of the keyspace.
    pub names: Names,
    /// What checkpoints are made of.
    pub engine: Arc<dyn Engine>,
    /// How far the log has been applied.
    pub view: Arc<View>,
    /// This process as a gateway, while it is one.
    pub me: Box<dyn Fn() -> Option<GatewayId> + Send + Sync>,
    /// How.
    pub settings: Settings,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// This gateway's.
    Mine,
    /// That of a gateway with a lower id.
    Others,
}

/// Why one round was not finished.
#[derive(Debug, thiserror::Error)]
pub(super) enum RoundError {
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Keeps checkpoints and log in shape, for ever.
pub async fn keep<S: Shard>(parts: Arc<Parts<S>>) {
    let mut keeper = Keeper::new(parts);
    let mut pause = keeper.parts.settings.interval;
    let mut outage = Outage::default();
    loop {
        tokio::time::sleep(pause).await;
        pause = keeper.parts.settings.interval;
        match keeper.round().await {
            Ok(Turn::Mine) => {}
            Ok(Turn::Others) => pause *= OTHERS,
            Err(RoundError::Write(WriteError::Overtaken)) => {
                tracing::info!("another gateway made a checkpoint meanwhile");
            }
            Err(RoundError::Write(WriteError::Foreign(error))) => {
                tracing::error!(error, "no checkpoint");
            }
            Err(RoundError::Shard(error) | RoundError::Write(WriteError::Shard(error))) => {
                outage.failed("checkpoints are not looked after", &error);
                continue;
            }
            Err(error) => tracing::info!(%error, "cannot look after checkpoints yet"),
        }
        outage.over();
    }
}

/// How far somebody had come when that last changed.
struct Seen {
    come: Come,
    since: Instant,
}

/// How far somebody has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Come {
    applied: u64,
    /// What a loader has loaded, in a measure of its own.
    loaded: u64,
}

impl Come {
    /// What a record tells. The beats of a gateway only say that it lives, those of a loader that it comes on.
    fn told(record: &Named, loads: bool) -> Self {
        // Who can't be understood may need everything.
        let member = Member::decode(record.value.clone()).unwrap_or_default();
        Self { applied: member.applied, loaded: if loads { member.beats } else { 0 } }
    }
}

/// A checkpoint's folder that may exist.
struct Folder {
    since: Instant,
    superseded: Option<Instant>,
    deleted: Option<Instant>,
}

impl Folder {
    fn new() -> Self {
        Self { since: Instant::now(), superseded: None, deleted: None }
    }
}

/// What is true of the shard at one moment.
struct Moment {
    head: Option<CheckpointHead>,
    /// Position of the log's newest record.
    tip: u64,
    /// Living gateways whose id is lower.
    rank: u64,
    /// How far all have come that count.
    applied: u64,
}

/// One gateway's part in it.
pub(super) struct Keeper<S> {
    parts: Arc<Parts<S>>,
    seen: BTreeMap<String, Seen>,
    folders: BTreeMap<String, Folder>,
    // Up to here this process has deleted log records.
    trimmed: u64,
}

impl<S: Shard> Keeper<S> {
    pub(super) fn new(parts: Arc<Parts<S>>) -> Self {
        Self { parts, seen: BTreeMap::new(), folders: BTreeMap::new(), trimmed: 0 }
    }

    /// Looks once, and does what is due.
    pub(super) async fn round(&mut self) -> Result<Turn, RoundError> {
        let Some(me) = (self.parts.me)() else { return Ok(Turn::Others) };
        let Some(mut moment) = self.look(me).await? else { return Ok(Turn::Mine) };
        let mut mine = moment.rank == 0;
        if self.due(&moment)? && !(moment.rank > 0 && self.somebody_is_at_it(&moment).await?) {
            self.write().await?;
            mine = true;
            match self.look(me).await? {
                Some(now) => moment = now,
                None => return Ok(Turn::Mine),
            }
        }
        if !mine {
            return Ok(Turn::Others);
        }
        self.trim(&moment).await?;
        self.clean(&moment).await?;
        Ok(Turn::Mine)
    }

    /// Reads what there is, all of it from a leader that has not been deposed.
    async fn look(&mut self, me: GatewayId) -> Result<Option<Moment>, RoundError> {
        let Parts { shard, names, .. } = &*self.parts;
        let before = shard.proven_tip().await?;
        let gateways = shard.list(&names.gateways()).await?;
        let loaders = shard.list(&names.loaders()).await?;
        let head = read_head(&**shard, names).await?.map(|(head, _)| head);
        let after = shard.proven_tip().await?;
        if before.epoch != after.epoch {
            return Ok(None);
        }
        let own = names.gateway(me);
        let rank = gateways.iter().filter(|record| record.name < own).count() as u64;
        let (now, mut applied, mut seen) = (Instant::now(), u64::MAX, BTreeMap::new());
        let serving = gateways.into_iter().map(|record| (record, false));
        for (record, loads) in serving.chain(loaders.into_iter().map(|record| (record, true))) {
            let come = Come::told(&record, loads);
            let earlier = self.seen.remove(&record.name).filter(|seen| seen.come == come);
            let since = earlier.map_or(now, |seen| seen.since);
            let behind = after.position > come.applied.saturating_add(STUCK_ENTRIES);
            let stuck = now - since > STUCK && behind;
            if !stuck {
                applied = applied.min(come.applied);
            }
            seen.insert(record.name, Seen { come, since });
        }
        self.seen = seen;
        Ok(Some(Moment { head, tip: after.position, rank, applied }))
    }

    /// Whether the log has grown enough for a checkpoint by this gateway.
    fn due(&self, moment: &Moment) -> Result<bool, RoundError> {
        let snapshot = self.parts.engine.snapshot()?;
        let position = meta::state(&*snapshot)?.position;
        let logged = format::gateways(&*snapshot)?.log_bytes;
        let (from, before, size) = match &moment.head {
            None => (0, 0, 0),
            Some(head) => (head.position, head.log_bytes, head.bytes),
        };
        let entries = position.saturating_sub(from);
        let grown = logged.saturating_sub(before).saturating_add(entries.saturating_mul(RECORD));
        let enough = self.parts.settings.log_bytes.max(size / 2);
        Ok(entries > 0 && grown >= enough.saturating_mul(moment.rank + 1))
    }

    /// Whether somebody has begun a later checkpoint than the head's, not too long ago.
    async fn somebody_is_at_it(&mut self, moment: &Moment) -> Result<bool, RoundError> {
        self.look_at_folders().await?;
        let head = moment.head.as_ref().map_or(0, |head| head.position);
        let names = &self.parts.names;
        Ok(self.folders.iter().any(|(name, folder)| {
            let later = names.checkpoint_of(name).is_some_and(|(_, position)| position > head);
            later && folder.since.elapsed() < BEGUN
        }))
    }

    async fn look_at_folders(&mut self) -> Result<(), RoundError> {
        let Parts { shard, names, .. } = &*self.parts;
        let found = shard.names(&names.checkpoints()).await?;
        let mut before = std::mem::take(&mut self.folders);
        let folder = |name: String| {
            let folder = before.remove(&name).unwrap_or_else(Folder::new);
            (name, folder)
        };
        self.folders = found.into_iter().map(folder).collect();
        Ok(())
    }

    async fn write(&self) -> Result<(), RoundError> {
        let begun = Instant::now();
        let Parts { shard, names, engine, view, .. } = &*self.parts;
        let snapshot = engine.snapshot()?;
        let applied = || view.now().position;
        let writer = Writer { shard: &**shard, names, applied: &applied };
        let head = writer.write(&*snapshot).await?;
        tracing::info!(
            position = head.position,
            bytes = head.bytes,
            took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "made a checkpoint"
        );
        Ok(())
    }

    /// Deletes the log before what the head and all who count have come to. The head's own record
    /// stays.
    async fn trim(&mut self, moment: &Moment) -> Result<(), RoundError> {
        let Some(head) = &moment.head else { return Ok(()) };
        let through = head.position.min(moment.applied).min(moment.tip).saturating_sub(1);
        if through <= self.trimmed {
            return Ok(());
        }
        let shard = &self.parts.shard;
        if self.trimmed == 0 {
            let first = shard.read(1, 1).await?.first().map_or(1, |record| record.position);
            self.trimmed = first.saturating_sub(1);
        }
        let begun = self.trimmed;
        while self.trimmed < through {
            let next = through.min(self.trimmed + TRIM);
            shard.trim(next).await?;
            self.trimmed = next;
        }
        if through > begun {
            tracing::info!(entries = through - begun, through, "trimmed the log");
        }
        Ok(())
    }

    /// Deletes checkpoints that can't be or become the head, once nobody loads them any more.
    async fn clean(&mut self, moment: &Moment) -> Result<(), RoundError> {
        let Some(head) = &moment.head else { return Ok(()) };
        self.look_at_folders().await?;
        let Parts { shard, names, .. } = &*self.parts;
        let now = Instant::now();
        let mut gone = Vec::new();
        for (name, state) in &mut self.folders {
            let Some((folder, position)) = names.checkpoint_of(name) else { continue };
            if position > head.position || folder == head.folder {
                continue;
            }
            let since = *state.superseded.get_or_insert(now);
            // One of the head's own position never was the head.
            let loaded = moment.applied <= position && position < head.position;
            if state.deleted.is_none() && !loaded && now - since >= GRACE {
                shard.delete_folder(&names.segments(folder)).await?;
                state.deleted = Some(now);
                tracing::info!(folder, "deleted a checkpoint");
            }
            if state.deleted.is_some_and(|deleted| now - deleted >= LINGER) {
                shard.delete_folder(&names.segments(folder)).await?;
                shard.delete(name.clone()).await?;
                gone.push(name.clone());
            }
        }
        self.folders.retain(|name, _| !gone.contains(name));
        Ok(())
    }
}

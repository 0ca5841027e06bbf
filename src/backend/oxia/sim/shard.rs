//! One gateway's connection to the simulated shard.

use super::state::{Done, State, Write};
use super::world::{Inner, World};
use crate::backend::oxia::shard::{
    Expected, Means, Named, Notice, Record, Session, Shard, ShardError, Tip, Told, Versioned,
};
use crate::seams::{Rule, follows};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// The shard as one gateway sees it.
pub struct SimShard {
    world: Arc<World>,
    link: usize,
    hints: watch::Receiver<u64>,
}

/// What becomes of a write.
#[derive(Clone, Copy)]
enum Fate {
    Fine,
    Lost,
    Dropped,
    Late,
}

/// How often a gateway that stands still looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(500);

fn unknown() -> ShardError {
    ShardError::Unknown("simulated".into())
}

fn not_sent() -> ShardError {
    ShardError::NotSent("simulated".into())
}

impl SimShard {
    /// A connection of a gateway.
    pub fn connect(world: &Arc<World>) -> Self {
        let (link, hints) = world.lock().connect();
        Self { world: world.clone(), link, hints }
    }

    /// Which connection it is.
    pub fn link(&self) -> usize {
        self.link
    }

    /// Waits while the gateway stands still, and returns whether it did; forever once it was killed.
    pub async fn gate(&self) -> bool {
        let mut stood = false;
        loop {
            let (dead, paused) = {
                let world = self.world.lock();
                let link = &world.links[self.link];
                (link.dead, link.paused)
            };
            if dead {
                std::future::pending::<()>().await;
            }
            if paused <= Instant::now() {
                return stood;
            }
            stood = true;
            // It may go on earlier: when everything becomes calm.
            sleep_until(paused.min(Instant::now() + PAUSE)).await;
        }
    }

    async fn write(&self, write: Write) -> Result<Done, ShardError> {
        self.write_in(None, write).await.map(|(done, _)| done)
    }

    /// A write to the leader of a term only, if one is given; returns its leader's as well.
    async fn write_in(&self, only: Option<u64>, write: Write) -> Result<(Done, u64), ShardError> {
        let stood = self.gate().await;
        let (fate, refused, there, back, term) = {
            let mut world = self.world.lock();
            let faults = world.faults;
            let refused = world.happens(faults.refused);
            let fate = if world.happens(faults.lost) {
                Fate::Lost
            } else if world.happens(faults.dropped) {
                Fate::Dropped
            } else if world.happens(if stood { faults.wakes } else { faults.late }) {
                Fate::Late
            } else {
                Fate::Fine
            };
            (fate, refused, world.way(), world.way(), world.believed(self.link))
        };
        let other = only.is_some_and(|only| only != term) && follows(Rule::OwnSession);
        if refused || other {
            sleep(there).await;
            self.gate().await;
            return Err(not_sent());
        }
        // A task of its own: what is on its way arrives even if nobody waits for it any more.
        let (tell, told) = oneshot::channel();
        let (world, link) = (self.world.clone(), self.link);
        tokio::spawn(async move {
            sleep(there).await;
            // Whoever sent it may be gone.
            let _ = tell.send(arrive(&mut world.lock(), link, term, write, fate, back));
        });
        let arrived = told.await.unwrap_or(Err((unknown(), Duration::ZERO)));
        let result = match arrived {
            Ok((done, seen)) => {
                sleep_until(seen.max(Instant::now() + back)).await;
                match done {
                    Done::NoSession => Err(ShardError::SessionNotFound),
                    done => Ok((done, term)),
                }
            }
            Err((error, wait)) => {
                sleep(back + wait).await;
                Err(error)
            }
        };
        self.gate().await;
        result
    }

    async fn was(&self, write: Write) -> Result<bool, ShardError> {
        Ok(self.write(write).await? == Done::Was(true))
    }

    /// Asks the node that leads, or believes to.
    async fn ask<T>(
        &self,
        ask: impl FnOnce(&mut Inner, u64) -> Option<T>,
    ) -> Result<T, ShardError> {
        self.gate().await;
        let (there, back, fails, lost, term) = {
            let mut world = self.world.lock();
            let faults = world.faults;
            let (there, back) = (world.way(), world.way());
            let (fails, lost) = (world.happens(faults.refused), world.happens(faults.lost));
            (there, back, fails, lost, world.believed(self.link))
        };
        sleep(there).await;
        let answer = {
            let mut world = self.world.lock();
            let answer = if fails { None } else { ask(&mut world, term) };
            if answer.is_none() {
                world.disappointed(self.link);
            }
            answer
        };
        sleep(back).await;
        self.gate().await;
        match answer {
            Some(_) if lost => Err(unknown()),
            Some(answer) => Ok(answer),
            None => Err(not_sent()),
        }
    }

    async fn look<T>(&self, look: impl FnOnce(&State) -> T) -> Result<T, ShardError> {
        self.ask(|world, term| world.state(term).map(|state| look(state))).await
    }
}

type Arrived = Result<(Done, Instant), (ShardError, Duration)>;

fn arrive(
    world: &mut Inner,
    link: usize,
    term: u64,
    write: Write,
    fate: Fate,
    lag: Duration,
) -> Arrived {
    if !world.leads(term) {
        // A deposed leader waits for its followers; another node says that it doesn't lead.
        let waits = world.state(term).is_some();
        world.disappointed(link);
        return Err(if waits {
            (unknown(), world.up_to(Duration::from_millis(500)))
        } else if world.happens(500) {
            (not_sent(), Duration::ZERO)
        } else {
            (unknown(), Duration::ZERO)
        });
    }
    match fate {
        Fate::Fine => Ok(world.commit(write, lag)),
        Fate::Lost => {
            world.commit(write, lag);
            Err((unknown(), Duration::ZERO))
        }
        Fate::Dropped => Err((unknown(), Duration::ZERO)),
        Fate::Late => {
            world.land_late(write);
            Err((unknown(), Duration::ZERO))
        }
    }
}

impl Shard for SimShard {
    async fn append(&self, record: Bytes) -> Result<Tip, ShardError> {
        match self.write_in(None, Write::Append(record)).await? {
            (Done::Number(position), epoch) => Ok(Tip { position, epoch }),
            _ => Err(unknown()),
        }
    }

    async fn read(&self, from: u64, most: usize) -> Result<Vec<Record>, ShardError> {
        let records = self.look(|state| state.records(from, most, Instant::now())).await?;
        let record = |(position, value)| Record { position, value };
        Ok(records.into_iter().map(record).collect())
    }

    async fn proven_tip(&self) -> Result<Tip, ShardError> {
        let read = |world: &mut Inner, term| {
            let position = world.state(term)?.tip(Instant::now());
            Some(Tip { position, epoch: term })
        };
        let tip = self.ask(read).await?;
        if follows(Rule::ProvenTip) {
            // An ordinary write through the same leader.
            self.ask(|world, _| world.leads(tip.epoch).then_some(())).await?;
        }
        self.world.lock().note("tip", tip.position, tip.epoch);
        Ok(tip)
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.hints.clone()
    }

    async fn create_session(&self, timeout: Duration, _: String) -> Result<Session, ShardError> {
        match self.write_in(None, Write::Session(timeout)).await? {
            (Done::Number(id), epoch) => Ok(Session { id, epoch }),
            _ => Err(unknown()),
        }
    }

    async fn keep_alive(&self, session: u64) -> Result<u64, ShardError> {
        let lost = {
            let mut world = self.world.lock();
            let lost = world.faults.beat_lost;
            if world.happens(lost) { Some(world.way()) } else { None }
        };
        if let Some(way) = lost {
            sleep(way).await;
            self.gate().await;
            return Err(unknown());
        }
        let beat = |world: &mut Inner, term| Some((world.beat(term, session)?, term));
        match self.ask(beat).await? {
            (true, term) => Ok(term),
            (false, _) => Err(ShardError::SessionNotFound),
        }
    }

    async fn close_session(&self, session: u64, means: Means<'_>) -> Result<(), ShardError> {
        let (only, record) = match means {
            Means::Made(epoch) => (Some(epoch), None),
            Means::With(record) => (None, Some(record.to_owned())),
        };
        let record = record.filter(|_| follows(Rule::OwnSession));
        self.write_in(only, Write::Close(session, record)).await.map(|_| ())
    }

    async fn session(&self, session: u64) -> Result<Option<Told>, ShardError> {
        match self.ask(|world, term| world.session(term, session)).await? {
            Some((timeout, remaining)) => Ok(Some(Told { timeout, remaining })),
            None => Err(ShardError::SessionNotFound),
        }
    }

    async fn create(
        &self,
        name: String,
        value: Bytes,
        session: Option<Session>,
    ) -> Result<bool, ShardError> {
        let only = session.map(|session| session.epoch);
        let id = session.map(|session| session.id);
        let put = Write::Put(name, value, Expected::Absent, id);
        Ok(self.write_in(only, put).await?.0 == Done::Was(true))
    }

    async fn replace(&self, name: String, value: Bytes, session: u64) -> Result<bool, ShardError> {
        let found = self.get(&name).await?;
        let Some(Versioned { version, .. }) = found else { return Ok(false) };
        self.was(Write::Put(name, value, Expected::Version(version), Some(session))).await
    }

    async fn delete(&self, name: String) -> Result<(), ShardError> {
        self.was(Write::Delete(name)).await.map(|_| ())
    }

    async fn list(&self, folder: &str) -> Result<Vec<Named>, ShardError> {
        self.look(|state| {
            let found = state.kept.iter().filter(|(name, _)| name.starts_with(folder));
            found
                .map(|(name, kept)| Named { name: name.clone(), value: kept.value.clone() })
                .collect()
        })
        .await
    }

    async fn get(&self, name: &str) -> Result<Option<Versioned>, ShardError> {
        self.look(|state| {
            let kept = state.kept.get(name)?;
            Some(Versioned { value: kept.value.clone(), version: kept.version })
        })
        .await
    }

    async fn put(
        &self,
        name: String,
        value: Bytes,
        expected: Expected,
    ) -> Result<bool, ShardError> {
        self.was(Write::Put(name, value, expected, None)).await
    }

    async fn names(&self, folder: &str) -> Result<Vec<String>, ShardError> {
        Ok(self.list(folder).await?.into_iter().map(|record| record.name).collect())
    }

    async fn delete_folder(&self, folder: &str) -> Result<(), ShardError> {
        self.was(Write::DeleteFolder(folder.into())).await.map(|_| ())
    }

    async fn trim(&self, through: u64) -> Result<(), ShardError> {
        self.was(Write::Trim(through)).await.map(|_| ())
    }

    async fn notice(&self) -> Result<Notice, ShardError> {
        loop {
            self.gate().await;
            let next = self.world.lock().next_notice(self.link);
            match next {
                Ok(notice) => return Ok(notice),
                Err((Some(at), _)) => sleep_until(at).await,
                Err((None, told)) => told.notified().await,
            }
        }
    }
}

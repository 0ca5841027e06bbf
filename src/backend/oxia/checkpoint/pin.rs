//! A record that says: somebody is loading, and needs the log from here on. It goes with a session.
//!
//! It also tells that the loading comes on, however long it takes: whoever trims does not wait for one that
//! hangs, though its session lives.

use crate::backend::oxia::join::TIMEOUT;
use crate::backend::oxia::names::{Names, hex};
use crate::backend::oxia::outage::Outage;
use crate::backend::oxia::shard::{Means, Shard, ShardError};
use crate::seams;
use crate::vital::Vital;
use leaseway_proto::log::Member;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

const HEARTBEAT: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);

/// Counts what has been loaded; in what unit does not matter. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Some more has been loaded.
    pub fn made(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Keeps whoever trims from deleting what a loader needs, for as long as it lives and comes on.
pub struct Pin<S> {
    record: Arc<Record<S>>,
    progress: Progress,
    heart: JoinHandle<()>,
}

struct Record<S> {
    shard: Arc<S>,
    name: String,
    session: u64,
    // What it holds. One change at a time.
    member: Mutex<Member>,
}

impl<S> Drop for Pin<S> {
    fn drop(&mut self) {
        self.heart.abort();
    }
}

impl<S: Shard> Pin<S> {
    /// Pins everything: the log, the head's checkpoint and those before it. Tries until it is written.
    pub async fn set(shard: Arc<S>, names: &Names, member: &Member, vital: &Vital) -> Self {
        let mut outage = Outage::default();
        loop {
            match Self::try_set(&shard, names, member, vital).await {
                Ok(pin) => {
                    outage.over();
                    return pin;
                }
                Err(error) => outage.failed("the start waits for it", &error),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn try_set(
        shard: &Arc<S>,
        names: &Names,
        member: &Member,
        vital: &Vital,
    ) -> Result<Self, ShardError> {
        let id = seams::random();
        let name = names.loader(id);
        let session = shard.create_session(TIMEOUT, hex(id)).await?;
        let member = Member { applied: 0, beats: 0, ..member.clone() };
        let value = member.encode_to_vec().into();
        if !shard.create(name.clone(), value, Some(session)).await? {
            return Err(ShardError::Refused("a random name is taken".into()));
        }
        let (shard, member, session) = (shard.clone(), Mutex::new(member), session.id);
        let record = Arc::new(Record { shard, name, session, member });
        let progress = Progress::default();
        let heart = vital.spawn("a loader's heart", beat(record.clone(), progress.clone()));
        Ok(Self { record, progress, heart })
    }

    /// Where is counted what has been loaded, which others are told of.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Pins only what comes from `position` on. An earlier pin stays where this fails.
    pub async fn move_to(&self, position: u64) {
        if let Err(error) = self.record.set(|member| member.applied = position).await {
            tracing::debug!(%error, "a loader's record stays as it is");
        }
    }

    /// Lets go. Where that can't be said, the session runs out.
    pub async fn release(self) {
        self.heart.abort();
        let Record { shard, name, session, .. } = &*self.record;
        if let Err(error) = shard.close_session(*session, Means::With(name)).await {
            tracing::debug!(%error, "a loader's session has to run out");
        }
    }
}

impl<S: Shard> Record<S> {
    async fn set(&self, change: impl FnOnce(&mut Member)) -> Result<(), ShardError> {
        let mut member = self.member.lock().await;
        change(&mut member);
        let value = member.encode_to_vec().into();
        self.shard.replace(self.name.clone(), value, self.session).await.map(|_| ())
    }
}

/// Keeps a session alive as long as the record goes with it: afterwards its id may be that of another.
/// Without it others may delete what is needed; that shows when it is missing.
async fn beat<S: Shard>(record: Arc<Record<S>>, progress: Progress) {
    let mut told = 0;
    while record.shard.keep_alive(record.session).await != Err(ShardError::SessionNotFound) {
        tokio::time::sleep(HEARTBEAT).await;
        if record.shard.get(&record.name).await == Ok(None) {
            return;
        }
        let so_far = progress.so_far();
        if so_far != told && record.set(|member| member.beats = so_far).await.is_ok() {
            told = so_far;
        }
    }
}

//! A record that says: somebody is loading, and needs the log from here on. It goes with a session.

use crate::backend::oxia::join::TIMEOUT;
use crate::backend::oxia::names::{Names, hex};
use crate::backend::oxia::outage::Outage;
use crate::backend::oxia::shard::{Means, Shard, ShardError};
use crate::seams;
use crate::vital::Vital;
use leaseway_proto::log::Member;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

const HEARTBEAT: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);

/// Keeps whoever trims from deleting what a loader needs, for as long as it lives.
pub struct Pin<S> {
    shard: Arc<S>,
    name: String,
    member: Member,
    session: u64,
    heart: JoinHandle<()>,
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
        let member = Member { applied: 0, ..member.clone() };
        let value = member.encode_to_vec().into();
        if !shard.create(name.clone(), value, Some(session)).await? {
            return Err(ShardError::Refused("a random name is taken".into()));
        }
        let beating = beat(shard.clone(), session.id, name.clone());
        let heart = vital.spawn("a loader's heart", beating);
        Ok(Self { shard: shard.clone(), name, member, session: session.id, heart })
    }

    /// Pins only what comes from `position` on. An earlier pin stays where this fails.
    pub async fn move_to(&self, position: u64) {
        let member = Member { applied: position, ..self.member.clone() };
        let value = member.encode_to_vec().into();
        if let Err(error) = self.shard.replace(self.name.clone(), value, self.session).await {
            tracing::debug!(%error, "a loader's record stays as it is");
        }
    }

    /// Lets go. Where that can't be said, the session runs out.
    pub async fn release(self) {
        self.heart.abort();
        if let Err(error) = self.shard.close_session(self.session, Means::With(&self.name)).await {
            tracing::debug!(%error, "a loader's session has to run out");
        }
    }
}

/// Keeps a session alive as long as the record goes with it: afterwards its id may be that of another.
/// Without it others may delete what is needed; that shows when it is missing.
async fn beat<S: Shard>(shard: Arc<S>, session: u64, record: String) {
    while shard.keep_alive(session).await != Err(ShardError::SessionNotFound) {
        tokio::time::sleep(HEARTBEAT).await;
        if shard.get(&record).await == Ok(None) {
            return;
        }
    }
}

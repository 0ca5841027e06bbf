//! Becoming a gateway: an id that nobody had before, a record that lives as long as this process
//! does, and then a registration in the log.
//!
//! Nothing is proposed under an id before its registration has been applied. An id whose registration
//! got no answer is given up: nobody knows it, and its record goes with its session.

use super::apply::Ordered;
use super::compare::Board;
use super::names::Names;
use super::outage::Outage;
use super::propose::Stopping;
use super::shard::{Means, Session, Shard, ShardError, Tip};
use crate::keyspace::gateways::{GatewayId, MAX_FEATURE_LEVEL};
use crate::keyspace::view::View;
use crate::seams::{self, Rule, follows};
use crate::vital::Vital;
use bytes::Bytes;
use leaseway_proto::log::{Entry, Member, Register, Retire, entry::Control};
use prost::Message;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How long a gateway counts as living without a heartbeat.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How often it beats: its session is renewed, and its record.
pub const BEAT: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(100);

/// This process as a gateway.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Its id.
    pub id: GatewayId,
    /// Tells its entries from those of somebody else under its id.
    pub nonce: u64,
    /// Number of its registration.
    pub registered_as: u64,
    /// The session that its record goes with.
    pub session: u64,
    alive: watch::Receiver<bool>,
    beaten: watch::Receiver<Instant>,
    stop: Arc<watch::Sender<bool>>,
}

impl Membership {
    /// Whether the session may still live, as far as is known here.
    pub fn lives(&self) -> bool {
        *self.alive.borrow()
    }

    /// Waits until it is known not to live any more.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut alive = self.alive.clone();
        async move {
            // A heart that has stopped without a word is as good as dead.
            let _ = alive.wait_for(|alive| !alive).await;
        }
    }

    /// Whether the heart has just been beating. If not, this process stood still, or was cut off, and
    /// others may have given it up.
    pub fn is_fresh(&self) -> bool {
        self.lives() && self.beaten.borrow().elapsed() < 3 * BEAT
    }

    /// Stops the heartbeats.
    pub fn leave(&self) {
        self.stop.send_replace(true);
    }
}

/// How this process becomes a gateway.
pub struct Joiner<S> {
    /// Where.
    pub shard: Arc<S>,
    /// Names of the keyspace.
    pub names: Names,
    /// What is told of this process; ids are filled in.
    pub member: Member,
    /// What has been applied.
    pub view: Arc<View>,
    /// Whether leases whose sessions ended before this process came have been looked after.
    pub settled: watch::Receiver<bool>,
    /// What this gateway asks the others, and answers them.
    pub board: Arc<Board>,
    /// Called with each id that gets a session, before anything is written under it. All are remembered, so
    /// there is none for an attempt that goes nowhere.
    pub on_id: Box<dyn Fn(GatewayId, u64) + Send + Sync>,
    /// Told if the heart panics.
    pub vital: Vital,
}

impl<S: Shard> Joiner<S> {
    /// An entry that makes a gateway unknown.
    pub fn retirement(&self, id: GatewayId) -> Control {
        Control::Retire(Retire { gateway: Bytes::copy_from_slice(&id) })
    }

    /// Tries until it is a gateway.
    ///
    /// # Errors
    /// Everything is stopping.
    pub async fn join(&self, landed: &mpsc::Sender<Ordered>) -> Result<Membership, Stopping> {
        let mut outage = Outage::default();
        loop {
            match self.try_join(landed).await? {
                Ok(membership) => {
                    outage.over();
                    return Ok(membership);
                }
                Err(error) => outage.failed("this gateway can't join the others yet", &error),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn try_join(
        &self,
        landed: &mpsc::Sender<Ordered>,
    ) -> Result<Result<Membership, ShardError>, Stopping> {
        let id: GatewayId = seams::random();
        let nonce = seams::random();
        let session = match self.shard.create_session(TIMEOUT, super::names::hex(id)).await {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        (self.on_id)(id, nonce);
        let begun = Instant::now();
        match self.register(id, nonce, session).await {
            Ok((position, entry)) => {
                landed.send(Ordered { position, entry }).await.map_err(|_| Stopping)?;
                let membership = self.beat(id, nonce, session.id, begun);
                // Before this has been applied nothing may be proposed under the id.
                self.view.durable(position).await;
                Ok(Ok(membership))
            }
            Err(ShardError::Unknown(_)) if !follows(Rule::RegisterFirst) => {
                Ok(Ok(self.beat(id, nonce, session.id, begun)))
            }
            Err(error) => {
                // If this fails too, the session runs out by itself.
                let means = Means::Made(session.epoch);
                let _ = self.shard.close_session(session.id, means).await;
                Ok(Err(error))
            }
        }
    }

    async fn register(
        &self,
        id: GatewayId,
        nonce: u64,
        session: Session,
    ) -> Result<(u64, Arc<Entry>), ShardError> {
        let gateway = Bytes::copy_from_slice(&id);
        let member = Member { gateway: gateway.clone(), ..self.member.clone() };
        let record = member.encode_to_vec().into();
        if !self.shard.create(self.names.gateway(id), record, Some(session)).await? {
            return Err(ShardError::Refused("this gateway's id is taken".into()));
        }
        let control = Control::Register(Register { max_feature_level: MAX_FEATURE_LEVEL });
        let entry =
            Entry { gateway, nonce, last_number: 1, commands: Vec::new(), control: Some(control) };
        let Tip { position, .. } = self.shard.append(entry.encode_to_vec().into()).await?;
        Ok((position, Arc::new(entry)))
    }

    /// Keeps the session alive, and the record up to date, until it is lost or told to stop.
    fn beat(&self, id: GatewayId, nonce: u64, session: u64, begun: Instant) -> Membership {
        let (tell, alive) = watch::channel(true);
        let (beating, beaten) = watch::channel(begun);
        let (stop, mut stopped) = watch::channel(false);
        let (shard, view, settled) = (self.shard.clone(), self.view.clone(), self.settled.clone());
        let (name, board) = (self.names.gateway(id), self.board.clone());
        let gateway = Bytes::copy_from_slice(&id);
        let mut member = Member { gateway, ..self.member.clone() };
        self.vital.spawn("this gateway's heart", async move {
            let mut next = begun + BEAT;
            loop {
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(next) => {}
                    // The sender's end is the membership's end.
                    _ = stopped.wait_for(|stop| *stop) => break,
                }
                let now = Instant::now();
                next = now + BEAT;
                match shard.keep_alive(session).await {
                    Ok(_) => beating.send_replace(now),
                    Err(ShardError::SessionNotFound) => break,
                    Err(_) => continue,
                };
                member.beats += 1;
                member.applied = view.now().position;
                member.settled = *settled.borrow();
                board.fill(&mut member);
                let record = member.encode_to_vec().into();
                // Without the record the session is gone as well, and its id may be that of another.
                if shard.replace(name.clone(), record, session).await == Ok(false)
                    && shard.get(&name).await == Ok(None)
                {
                    break;
                }
            }
            tell.send_replace(false);
        });
        let stop = Arc::new(stop);
        Membership { id, nonce, registered_as: 1, session, alive, beaten, stop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::oxia::checkpoint::fake::Fake;
    use crate::keyspace::auth::AuthState;
    use crate::keyspace::event::Visible;
    use crate::keyspace::view::Published;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn an_outage_leaves_no_ids_behind() {
        let (shard, ids) = (Arc::new(Fake::new()), Arc::new(AtomicUsize::new(0)));
        shard.refuse_sessions(1_000);
        let visible = Visible { revision: 1, compacted: -1 };
        let published = Published { visible, position: 1, auth: Arc::new(AuthState::default()) };
        let counted = ids.clone();
        let joiner = Joiner {
            shard,
            names: Names::new("test"),
            member: Member::default(),
            view: Arc::new(View::new(published)),
            settled: watch::channel(false).1,
            board: Arc::new(Board::default()),
            on_id: Box::new(move |_, _| {
                counted.fetch_add(1, Ordering::Relaxed);
            }),
            vital: Vital::default(),
        };
        let (landed, _entries) = mpsc::channel(1);
        let membership = joiner.join(&landed).await.expect("joined in the end");
        assert!(membership.lives());
        assert_eq!(ids.load(Ordering::Relaxed), 1);
    }
}

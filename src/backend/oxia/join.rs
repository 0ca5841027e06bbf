//! Becoming a gateway: an id that nobody had before, a record that lives as long as this process
//! does, and then a registration in the log.
//!
//! Nothing is proposed under an id before its registration has been applied. An id whose registration
//! got no answer is given up: nobody knows it, and its record goes with its session.

use super::apply::Ordered;
use super::names::Names;
use super::propose::Stopping;
use super::shard::{Shard, ShardError};
use crate::keyspace::gateways::{GatewayId, MAX_FEATURE_LEVEL};
use crate::keyspace::view::View;
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
const HEARTBEAT: Duration = Duration::from_secs(2);
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
    /// Called with each new id, before anything is written under it.
    pub on_id: Box<dyn Fn(GatewayId, u64) + Send + Sync>,
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
    pub async fn join(
        &self,
        landed: &mpsc::Sender<Ordered>,
        view: &View,
    ) -> Result<Membership, Stopping> {
        loop {
            match self.try_join(landed, view).await? {
                Ok(membership) => return Ok(membership),
                Err(error) => {
                    tracing::info!(%error, "cannot join yet");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    async fn try_join(
        &self,
        landed: &mpsc::Sender<Ordered>,
        view: &View,
    ) -> Result<Result<Membership, ShardError>, Stopping> {
        let id: GatewayId = rand::random();
        let nonce = rand::random();
        (self.on_id)(id, nonce);
        let session = match self.shard.create_session(TIMEOUT, super::names::hex(id)).await {
            Ok(session) => session,
            Err(error) => return Ok(Err(error)),
        };
        let begun = Instant::now();
        match self.register(id, nonce, session).await {
            Ok((position, entry)) => {
                landed.send(Ordered { position, entry }).await.map_err(|_| Stopping)?;
                let (alive, stop) = self.beat(session, begun);
                // Before this has been applied nothing may be proposed under the id.
                view.durable(position).await;
                Ok(Ok(Membership { id, nonce, registered_as: 1, session, alive, stop }))
            }
            Err(error) => {
                // If this fails too, the session runs out by itself.
                let _ = self.shard.close_session(session).await;
                Ok(Err(error))
            }
        }
    }

    async fn register(
        &self,
        id: GatewayId,
        nonce: u64,
        session: u64,
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
        let position = self.shard.append(entry.encode_to_vec().into()).await?;
        Ok((position, Arc::new(entry)))
    }

    /// Keeps the session alive until it is lost or `stop` is told.
    fn beat(
        &self,
        session: u64,
        begun: Instant,
    ) -> (watch::Receiver<bool>, Arc<watch::Sender<bool>>) {
        let (tell, alive) = watch::channel(true);
        let (stop, mut stopped) = watch::channel(false);
        let shard = self.shard.clone();
        tokio::spawn(async move {
            let mut next = begun + HEARTBEAT;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    // The sender's end is the membership's end.
                    _ = stopped.wait_for(|stop| *stop) => break,
                }
                next = Instant::now() + HEARTBEAT;
                if shard.keep_alive(session).await == Err(ShardError::SessionNotFound) {
                    break;
                }
            }
            tell.send_replace(false);
        });
        (alive, Arc::new(stop))
    }
}

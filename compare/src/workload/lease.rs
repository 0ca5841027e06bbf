//! Granting leases and keeping them alive.

use super::Outcome;
use crate::load::{self, Operation, Window};
use crate::requests::path;
use crate::servers::Server;
use crate::wire::{CallError, Caller, Method, Receiver, Sender, frame};
use anyhow::Result;
use bytes::Bytes;
use leaseway_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
};
use prost::Message;

/// Long enough that no lease ends within a row.
const TTL_SECONDS: i64 = 3_600;

pub async fn grant(server: &Server, window: Window, clients: usize) -> Result<Outcome> {
    let callers = load::connect_for(server, clients).await?;
    let request = frame(&LeaseGrantRequest { ttl: TTL_SECONDS, id: 0 });
    let client = |number: usize| Granter {
        caller: callers[number % callers.len()].clone(),
        method: Method::new(path::LEASE_GRANT),
        request: request.clone(),
    };
    let clients = (0..clients).map(client).collect();
    Ok(Outcome::plain(load::closed_loop(server, window, clients).await?))
}

struct Granter {
    caller: Caller,
    method: Method,
    request: Bytes,
}

impl Operation for Granter {
    async fn perform(&mut self) -> Result<u64, CallError> {
        let answer = self.caller.unary(&self.method, self.request.clone()).await?;
        let answer = LeaseGrantResponse::decode(answer)?;
        if answer.id == 0 || answer.ttl < TTL_SECONDS {
            return Err(CallError::Unexpected(format!("lease {} of {} s", answer.id, answer.ttl)));
        }
        Ok(1)
    }
}

pub async fn keep_alive(server: &Server, window: Window, streams: usize) -> Result<Outcome> {
    let mut callers = load::connect_for(server, streams).await?;
    let (grant, keep_alive) = (Method::new(path::LEASE_GRANT), Method::new(path::LEASE_KEEP_ALIVE));
    let mut clients = Vec::with_capacity(streams);
    for number in 0..streams {
        let connection = number % callers.len();
        let caller = &mut callers[connection];
        let id = number as i64 + 1;
        caller.unary(&grant, frame(&LeaseGrantRequest { ttl: TTL_SECONDS, id })).await?;
        let (sender, receiver) = caller.open(&keep_alive).await?;
        clients.push(Renewer::new(id, sender, receiver));
    }
    Ok(Outcome::plain(load::closed_loop(server, window, clients).await?))
}

/// Renews one lease on its own stream.
struct Renewer {
    request: Bytes,
    sender: Sender,
    receiver: Receiver,
}

impl Renewer {
    fn new(id: i64, sender: Sender, receiver: Receiver) -> Self {
        Self { request: frame(&LeaseKeepAliveRequest { id }), sender, receiver }
    }
}

impl Operation for Renewer {
    async fn perform(&mut self) -> Result<u64, CallError> {
        self.sender.send(self.request.clone())?;
        let answer = self.receiver.next().await?;
        let answer = answer.ok_or_else(|| CallError::Unexpected("the stream ended".into()))?;
        let answer = LeaseKeepAliveResponse::decode(answer)?;
        if answer.ttl <= 0 {
            return Err(CallError::Unexpected(format!("lease {} has ended", answer.id)));
        }
        Ok(1)
    }
}

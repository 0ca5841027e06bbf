//! Ranges of many keys, in one answer or streamed.

use super::{Outcome, Unit, extra};
use crate::load::{self, Operation, Window};
use crate::requests::{self, path};
use crate::rows::Sizes;
use crate::servers::Server;
use crate::wire::{CallError, Caller, Method, count_field};
use anyhow::{Result, ensure};
use leaseway_proto::etcdserverpb::RangeStreamResponse;
use prost::Message;

/// Field number of `RangeResponse.kvs`.
const KVS: u32 = 2;

#[derive(Clone, Copy)]
pub struct Shape {
    pub clients: usize,
    /// Keys in each answer.
    pub keys: u64,
    pub streamed: bool,
}

pub async fn run(server: &Server, window: Window, sizes: &Sizes, shape: Shape) -> Result<Outcome> {
    ensure!(shape.keys <= sizes.keys, "a range of {} keys out of {}", shape.keys, sizes.keys);
    load::preload(server, sizes.keys, requests::value(sizes.value_bytes, 0)).await?;
    let callers = load::connect(server, shape.clients).await?;
    let client = |(number, caller)| Client {
        caller,
        method: Method::new(if shape.streamed { path::RANGE_STREAM } else { path::RANGE }),
        random: fastrand::Rng::with_seed(number as u64 + 1),
        starts: sizes.keys - shape.keys + 1,
        shape,
    };
    let clients = callers.into_iter().enumerate().map(client).collect();
    let measured = load::closed_loop(server, window, clients).await?;
    let keys = measured.per_second() * shape.keys as f64;
    let extras = vec![extra("keys read", keys, Unit::PerSecond)];
    Ok(Outcome { measured, extras })
}

struct Client {
    caller: Caller,
    method: Method,
    random: fastrand::Rng,
    /// Number of first keys to choose from.
    starts: u64,
    shape: Shape,
}

impl Operation for Client {
    async fn perform(&mut self) -> Result<u64, CallError> {
        let request = requests::range(self.random.u64(..self.starts), self.shape.keys);
        let found = if self.shape.streamed {
            let mut answers = self.caller.server_stream(&self.method, request).await?;
            let mut found = 0;
            while let Some(answer) = answers.next().await? {
                found += streamed_rows(&answer)?;
            }
            found
        } else {
            count_field(&self.caller.unary(&self.method, request).await?, KVS)?
        };
        if found == self.shape.keys {
            Ok(1)
        } else {
            Err(CallError::Unexpected(format!("{found} keys of {}", self.shape.keys)))
        }
    }
}

fn streamed_rows(answer: &bytes::Bytes) -> Result<u64, CallError> {
    let rows = RangeStreamResponse::decode(answer.clone())?.range_response;
    Ok(rows.map_or(0, |rows| rows.kvs.len() as u64))
}

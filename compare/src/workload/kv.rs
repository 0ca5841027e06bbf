//! Single-key puts and gets on random keys.

use super::{Outcome, Unit, extra};
use crate::load::{self, Operation, Window};
use crate::requests::{self, KeyedRequest, path};
use crate::rows::Sizes;
use crate::servers::{Server, Wait, Waits};
use crate::wire::{CallError, Caller, Method, count_field};
use anyhow::Result;

/// Field number of `RangeResponse.kvs`.
const KVS: u32 = 2;
const READS_PERCENT: u32 = 90;

pub async fn put(
    server: &Server,
    window: Window,
    sizes: &Sizes,
    clients: usize,
) -> Result<Outcome> {
    run(server, window, sizes, clients, Mix { reads_percent: 0, serializable: false }).await
}

pub async fn get(
    server: &Server,
    window: Window,
    sizes: &Sizes,
    clients: usize,
    serializable: bool,
) -> Result<Outcome> {
    load::preload(server, sizes.keys, requests::value(sizes.value_bytes, 0)).await?;
    run(server, window, sizes, clients, Mix { reads_percent: 100, serializable }).await
}

pub async fn mixed(
    server: &Server,
    window: Window,
    sizes: &Sizes,
    clients: usize,
) -> Result<Outcome> {
    load::preload(server, sizes.keys, requests::value(sizes.value_bytes, 0)).await?;
    let mix = Mix { reads_percent: READS_PERCENT, serializable: false };
    run(server, window, sizes, clients, mix).await
}

#[derive(Clone, Copy)]
struct Mix {
    reads_percent: u32,
    serializable: bool,
}

async fn run(
    server: &Server,
    window: Window,
    sizes: &Sizes,
    clients: usize,
    mix: Mix,
) -> Result<Outcome> {
    let callers = load::connect_for(server, clients).await?;
    let put = KeyedRequest::put(requests::value(sizes.value_bytes, 0));
    let get = KeyedRequest::get(mix.serializable);
    let client = |number: usize| Client {
        caller: callers[number % callers.len()].clone(),
        random: fastrand::Rng::with_seed(number as u64 + 1),
        keys: sizes.keys,
        mix,
        put: put.clone(),
        get: get.clone(),
        put_method: Method::new(path::PUT),
        get_method: Method::new(path::RANGE),
    };
    let clients = (0..clients).map(client).collect();
    let before = server.waits().await?;
    let mut outcome = Outcome::plain(load::closed_loop(server, window, clients).await?);
    if let Some((before, after)) = before.zip(server.waits().await?) {
        let mean = |name, wait: fn(Waits) -> Wait| {
            let mean = wait(after).mean_since(wait(before))?;
            Some(extra(name, mean.as_secs_f64() * 1e6, Unit::Microseconds))
        };
        outcome.extras.extend(mean("one append to Oxia (mean)", |waits| waits.append));
        outcome.extras.extend(mean("one barrier of Oxia (mean)", |waits| waits.barrier));
    }
    Ok(outcome)
}

struct Client {
    caller: Caller,
    random: fastrand::Rng,
    keys: u64,
    mix: Mix,
    put: KeyedRequest,
    get: KeyedRequest,
    put_method: Method,
    get_method: Method,
}

impl Operation for Client {
    async fn perform(&mut self) -> Result<u64, CallError> {
        let key = self.random.u64(..self.keys);
        if self.random.u32(..100) < self.mix.reads_percent {
            let answer = self.caller.unary(&self.get_method, self.get.with_key(key)).await?;
            if count_field(&answer, KVS)? != 1 {
                return Err(CallError::Unexpected(format!("key {key} not found")));
            }
        } else {
            self.caller.unary(&self.put_method, self.put.with_key(key)).await?;
        }
        Ok(1)
    }
}

//! Watchers: how fast events reach many of them, and what an idle one costs.

use super::{Outcome, Unit, extra};
use crate::load::{self, Meter, Operation, Window};
use crate::proc;
use crate::requests::{path, prefix_end, value};
use crate::rows::Sizes;
use crate::servers::Server;
use crate::stats::Recorder;
use crate::wire::{CallError, Caller, Method, Receiver, Sender, frame};
use anyhow::{Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use leaseway_proto::etcdserverpb::watch_request::RequestUnion;
use leaseway_proto::etcdserverpb::{PutRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use prost::Message;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior};

/// Connections with one stream each, on which the watchers are spread evenly.
const STREAMS: usize = 10;
const PREFIX: &str = "watched/";
const VALUE_BYTES: usize = 256;
/// Memory settles after this long without work.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
pub struct Pace {
    /// Puts on their way at the same time; the next starts when all watchers have the last.
    pub writers: usize,
    /// Least time between the starts of two puts of a writer; None for as fast as it goes.
    pub every: Option<Duration>,
}

/// All watchers see all puts. An operation is one event that has reached one watcher; its latency
/// counts from the sending of the put.
pub async fn fan_out(
    server: &Server,
    window: Window,
    sizes: &Sizes,
    pace: Pace,
) -> Result<Outcome> {
    let watchers = sizes.watchers;
    ensure!(watchers.is_multiple_of(STREAMS), "{watchers} watchers on {STREAMS} streams");
    let recorder = Recorder::new();
    let board = Arc::new(Board::new(pace.writers, watchers));
    let mut tasks = JoinSet::new();
    for mut caller in load::connect(server, STREAMS).await? {
        let mut stream = WatchStream::open(&mut caller).await?;
        stream.create(watchers / STREAMS, &|_| (PREFIX.into(), prefix_end(PREFIX))).await?;
        let (board, recorder) = (board.clone(), recorder.clone());
        tasks.spawn(async move {
            let _caller = caller;
            stream.follow(&board, &recorder).await
        });
    }
    for (writer, caller) in load::connect(server, pace.writers).await?.into_iter().enumerate() {
        let writer = Writer {
            caller,
            method: Method::new(path::PUT),
            writer,
            ticks: pace.every.map(ticks),
            filler: value(VALUE_BYTES - Stamp::BYTES, 0),
            board: board.clone(),
        };
        // Only deliveries count, so a writer reports to a recorder that nobody reads.
        load::spawn_client(&mut tasks, &Recorder::new(), writer);
    }
    let measured = load::observe(server, window, &recorder, tasks).await?;
    let puts = measured.per_second() / watchers as f64;
    Ok(Outcome { measured, extras: vec![extra("puts", puts, Unit::PerSecond)] })
}

/// Watchers on a key of their own each, and nothing happens. An operation is the creation of one.
pub async fn idle(server: &Server, sizes: &Sizes) -> Result<Outcome> {
    let watchers = sizes.idle_watchers;
    ensure!(watchers.is_multiple_of(STREAMS), "{watchers} watchers on {STREAMS} streams");
    let mut callers = load::connect(server, STREAMS).await?;
    tokio::time::sleep(SETTLE).await;
    let before = proc::memory_of(&server.pids())?;
    let meter = Meter::start(server)?;
    let mut streams = Vec::with_capacity(STREAMS);
    for (number, caller) in callers.iter_mut().enumerate() {
        let mut stream = WatchStream::open(caller).await?;
        let own_key = |watcher| (format!("idle/{number:02}/{watcher:06}").into(), Bytes::new());
        stream.create(watchers / STREAMS, &own_key).await?;
        streams.push(stream);
    }
    let measured = meter.finish(watchers as u64, None)?;
    tokio::time::sleep(SETTLE).await;
    let after = proc::memory_of(&server.pids())?;
    let each = |after: u64, before: u64| (after as f64 - before as f64) / watchers as f64;
    let extras = vec![
        extra("resident per watcher", each(after.resident, before.resident), Unit::Bytes),
        extra("anonymous per watcher", each(after.anonymous, before.anonymous), Unit::Bytes),
    ];
    Ok(Outcome { measured, extras })
}

struct WatchStream {
    sender: Sender,
    receiver: Receiver,
}

impl WatchStream {
    async fn open(caller: &mut Caller) -> Result<Self, CallError> {
        let (sender, receiver) = caller.open(&Method::new(path::WATCH)).await?;
        Ok(Self { sender, receiver })
    }

    /// Creates `count` watchers and waits for all answers. `range` gives the n-th one's key and
    /// range end.
    async fn create(
        &mut self,
        count: usize,
        range: &dyn Fn(usize) -> (Bytes, Bytes),
    ) -> Result<(), CallError> {
        for watcher in 0..count {
            let (key, range_end) = range(watcher);
            let create = WatchCreateRequest { key, range_end, ..Default::default() };
            let request = RequestUnion::CreateRequest(create);
            self.sender.send(frame(&WatchRequest { request_union: Some(request) }))?;
        }
        for _ in 0..count {
            let answer = self.next().await?;
            if !answer.created {
                return Err(CallError::Unexpected(format!("{answer:?} before `created`")));
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<WatchResponse, CallError> {
        let answer = self.receiver.next().await?;
        let answer = answer.ok_or_else(|| CallError::Unexpected("the stream ended".into()))?;
        let answer = WatchResponse::decode(answer)?;
        if answer.canceled {
            let reason = format!("watch cancelled: {}", answer.cancel_reason);
            return Err(CallError::Unexpected(reason));
        }
        Ok(answer)
    }

    async fn follow(mut self, board: &Board, recorder: &Recorder) -> Result<(), CallError> {
        loop {
            let answer = self.next().await?;
            for event in answer.events {
                let stored = event.kv.map(|row| row.value).unwrap_or_default();
                let latency = board.delivered(Stamp::read(&stored)?)?;
                recorder.record(latency, 1);
            }
        }
    }
}

/// A slow delivery moves the ticks after it, so that puts never come in a burst.
fn ticks(every: Duration) -> Interval {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

struct Writer {
    caller: Caller,
    method: Method,
    writer: usize,
    ticks: Option<Interval>,
    filler: Bytes,
    board: Arc<Board>,
}

impl Operation for Writer {
    async fn perform(&mut self) -> Result<u64, CallError> {
        if let Some(ticks) = &mut self.ticks {
            ticks.tick().await;
        }
        let (stamp, all_have_it) = self.board.sending(self.writer);
        let mut value = BytesMut::with_capacity(VALUE_BYTES);
        stamp.write(&mut value);
        value.put_slice(&self.filler);
        let key = format!("{PREFIX}{}", self.writer).into();
        let put = PutRequest { key, value: value.freeze(), ..Default::default() };
        self.caller.unary(&self.method, frame(&put)).await?;
        all_have_it.notified().await;
        Ok(1)
    }
}

/// Says in a value which put it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    writer: usize,
    serial: u64,
}

impl Stamp {
    const BYTES: usize = 16;

    fn write(self, value: &mut BytesMut) {
        value.put_u64(self.writer as u64);
        value.put_u64(self.serial);
    }

    fn read(value: &[u8]) -> Result<Self, CallError> {
        let number = |part: Option<&[u8]>| {
            part.and_then(|part| part.try_into().ok())
                .map(u64::from_be_bytes)
                .ok_or_else(|| CallError::Unexpected("an event without a stamp".into()))
        };
        Ok(Self {
            writer: number(value.get(..8))? as usize,
            serial: number(value.get(8..Self::BYTES))?,
        })
    }
}

/// The puts that are on their way, one for each writer.
struct Board {
    watchers: usize,
    puts: Mutex<Vec<OnTheWay>>,
}

struct OnTheWay {
    serial: u64,
    sent: Instant,
    /// Watchers that do not have it yet.
    missing: usize,
    all_have_it: Arc<Notify>,
}

impl Board {
    fn new(writers: usize, watchers: usize) -> Self {
        let put = || OnTheWay {
            serial: 0,
            sent: Instant::now(),
            missing: 0,
            all_have_it: Arc::new(Notify::new()),
        };
        Self { watchers, puts: Mutex::new((0..writers).map(|_| put()).collect()) }
    }

    fn sending(&self, writer: usize) -> (Stamp, Arc<Notify>) {
        let put = &mut self.puts()[writer];
        put.serial += 1;
        put.sent = Instant::now();
        put.missing = self.watchers;
        (Stamp { writer, serial: put.serial }, put.all_have_it.clone())
    }

    /// Notes that one more watcher has the put; returns the time since it was sent. A put that is
    /// not on its way means an event lost, duplicated or out of order.
    fn delivered(&self, stamp: Stamp) -> Result<Duration, CallError> {
        let mut puts = self.puts();
        let put = puts.get_mut(stamp.writer).filter(|put| put.serial == stamp.serial);
        let put = put.filter(|put| put.missing > 0);
        let put = put.ok_or_else(|| CallError::Unexpected(format!("an event for {stamp:?}")))?;
        put.missing -= 1;
        if put.missing == 0 {
            put.all_have_it.notify_one();
        }
        Ok(put.sent.elapsed())
    }

    fn puts(&self) -> MutexGuard<'_, Vec<OnTheWay>> {
        self.puts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_the_value() {
        let stamp = Stamp { writer: 3, serial: u64::MAX };
        let mut value = BytesMut::new();
        stamp.write(&mut value);
        value.put_slice(b"filler");
        assert_eq!(Stamp::read(&value).unwrap(), stamp);
        assert!(Stamp::read(&value[..15]).is_err());
    }

    #[tokio::test]
    async fn the_board_wakes_a_writer_after_the_last_watcher_and_refuses_duplicates() {
        let board = Board::new(2, 3);
        let (first, all_have_it) = board.sending(1);
        for _ in 0..3 {
            board.delivered(first).unwrap();
        }
        tokio::time::timeout(Duration::from_secs(5), all_have_it.notified()).await.unwrap();
        assert!(board.delivered(first).is_err(), "a fourth delivery to three watchers");
        let (second, _) = board.sending(1);
        assert!(board.delivered(first).is_err(), "an event of the put before");
        board.delivered(second).unwrap();
        assert!(board.delivered(Stamp { writer: 2, serial: 1 }).is_err());
    }
}

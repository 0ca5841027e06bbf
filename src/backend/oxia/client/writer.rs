//! The write stream of one leader: a queue in front, a bounded number in flight, answers in order.
//!
//! A server answers the writes of a stream in the order in which they came, so the n-th answer
//! belongs to the n-th request. What was handed to the transport and has no answer when the stream
//! ends is of unknown outcome; what was still queued has surely not been sent. Nothing is ever moved
//! from one stream to the next.
//!
//! One stream, always read: a server up to 0.16 whose client has stopped reading, or that has more
//! than 1,000 requests in flight, stops for everybody.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use leaseway_proto::oxia::{WriteRequest, WriteResponse};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_stream::Stream;
use tonic::metadata::{Ascii, MetadataValue};

use super::error::{Error, Kind, WriteError};
use super::wire::{WRITE_STREAM, Wire};
use crate::vital::Vital;

/// Requests without an answer, at most.
pub const IN_FLIGHT_MAX: usize = 100;

/// Requests that wait to be sent, at most.
pub const QUEUED_MAX: usize = 1024;

/// Bytes that wait to be sent, at most; a single request may be above it.
pub const QUEUED_BYTES_MAX: usize = 64 << 20;

type Reply = oneshot::Sender<Result<WriteResponse, WriteError>>;

/// An answer to come.
pub(super) type Pending = oneshot::Receiver<Result<WriteResponse, WriteError>>;

struct Queued {
    request: WriteRequest,
    bytes: usize,
    reply: Reply,
}

#[derive(Default)]
struct State {
    queued: VecDeque<Queued>,
    queued_bytes: usize,
    in_flight: VecDeque<Reply>,
    /// Why nothing is sent or answered any more.
    ended: Option<Error>,
    /// Whoever reads the queue, when there was nothing to send.
    reader: Option<Waker>,
}

/// The sending end; the stream ends with it.
pub(super) struct Writer {
    state: Arc<Mutex<State>>,
    ended: watch::Receiver<bool>,
    ending: watch::Sender<bool>,
}

impl Writer {
    /// Opens a stream; the server's refusal shows as the end of it.
    pub(super) fn open(
        wire: Wire,
        namespace: MetadataValue<Ascii>,
        shard: i64,
        vital: &Vital,
    ) -> Writer {
        let state = Arc::new(Mutex::new(State::default()));
        let (ending, ended) = watch::channel(false);
        let writer = Writer { state: state.clone(), ended, ending: ending.clone() };
        let metadata = [("namespace", namespace), ("shard-id", MetadataValue::from(shard))];
        vital.spawn("the write stream to Oxia", async move {
            let mut stop = ending.subscribe();
            let error = tokio::select! {
                error = run(&wire, &metadata, &state) => error,
                () = wait(&mut stop) => Error::new(Kind::Closed, "oxia: closed"),
            };
            end(&state, &error);
            ending.send_replace(true);
        });
        writer
    }

    /// Queues a request; they're sent in the order of these calls. Dropping the answer takes a
    /// request back that hasn't been sent yet.
    ///
    /// # Errors
    /// Always [`WriteError::NotSent`]: the stream has ended, or the queue is full.
    pub(super) fn send(&self, request: WriteRequest, bytes: usize) -> Result<Pending, WriteError> {
        let (reply, pending) = oneshot::channel();
        let mut state = self.state.lock();
        if let Some(error) = &state.ended {
            return Err(WriteError::NotSent(error.clone()));
        }
        let full = state.queued.len() >= QUEUED_MAX
            || (!state.queued.is_empty() && state.queued_bytes + bytes > QUEUED_BYTES_MAX);
        if full {
            let error = Error::new(Kind::Busy, "oxia: too many writes wait to be sent");
            return Err(WriteError::NotSent(error));
        }
        state.queued_bytes += bytes;
        state.queued.push_back(Queued { request, bytes, reply });
        if let Some(reader) = state.reader.take() {
            drop(state);
            reader.wake();
        }
        Ok(pending)
    }

    /// Ends the stream, with this reason for whoever still waits.
    pub(super) fn end(&self, error: &Error) {
        end(&self.state, error);
        self.ending.send_replace(true);
    }

    /// Returns when the stream has ended.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { wait(&mut ended).await }
    }

    /// Why it ended; `None` while it's open.
    pub(super) fn reason(&self) -> Option<Error> {
        self.state.lock().ended.clone()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end(&Error::new(Kind::Closed, "oxia: the write stream was closed"));
    }
}

/// Waits for the sign of the end. A function of its own, so that nobody holds the lock of the sign
/// while acting on it.
async fn wait(ended: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone, which is an end too.
    let _ = ended.wait_for(|ended| *ended).await;
}

/// Runs the stream until it ends; says why it did.
async fn run(
    wire: &Wire,
    metadata: &[(&'static str, MetadataValue<Ascii>)],
    state: &Arc<Mutex<State>>,
) -> Error {
    let outgoing = Outgoing { state: state.clone() };
    // Resolves only with the first answer: a server sends no headers before it.
    let mut answers = match wire.duplex(&WRITE_STREAM, metadata, outgoing).await {
        Ok(answers) => answers,
        Err(status) => return status.into(),
    };
    loop {
        let response: WriteResponse = match answers.message().await {
            Ok(Some(response)) => response,
            Ok(None) => return Error::new(Kind::Unavailable, "oxia: the write stream ended"),
            Err(status) => return status.into(),
        };
        let (reply, reader) = {
            let mut state = state.lock();
            (state.in_flight.pop_front(), state.reader.take())
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        let Some(reply) = reply else {
            return Error::new(Kind::Protocol, "oxia: an answer to no write request");
        };
        // Whoever asked may have gone.
        let _ = reply.send(Ok(response));
    }
}

/// Ends everything that waits, once; a second reason is of no interest.
fn end(state: &Mutex<State>, error: &Error) {
    let (queued, in_flight, reader) = {
        let mut state = state.lock();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(error.clone());
        state.queued_bytes = 0;
        let queued = std::mem::take(&mut state.queued);
        (queued, std::mem::take(&mut state.in_flight), state.reader.take())
    };
    if let Some(reader) = reader {
        reader.wake();
    }
    for queued in queued {
        let _ = queued.reply.send(Err(WriteError::NotSent(error.clone())));
    }
    for reply in in_flight {
        let _ = reply.send(Err(WriteError::Unknown(error.clone())));
    }
}

/// What the transport reads from. To be read is to be sent, as far as anyone can know here.
struct Outgoing {
    state: Arc<Mutex<State>>,
}

impl Stream for Outgoing {
    type Item = WriteRequest;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<WriteRequest>> {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return Poll::Ready(None);
        }
        while state.in_flight.len() < IN_FLIGHT_MAX {
            let Some(queued) = state.queued.pop_front() else { break };
            state.queued_bytes = state.queued_bytes.saturating_sub(queued.bytes);
            if queued.reply.is_closed() {
                continue;
            }
            state.in_flight.push_back(queued.reply);
            return Poll::Ready(Some(queued.request));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;

//! What waits to be sent on one stream: bounded, filled by the hub, drained by the transport.

use super::batch::Batch;
use super::hub::{Command, Shared, StreamId};
use super::stats::Stats;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::Stream;

/// Counted for each notice besides its events.
const NOTICE_BYTES: usize = 96;
/// Notices after which a sleeping reader is woken without waiting for the rest of the round.
const WAKE_AFTER: usize = 32;

/// One answer on a stream, without what every answer has.
#[derive(Debug)]
pub struct Notice {
    /// The watcher, or -1.
    pub watch_id: i64,
    /// For the header; 0 where etcd leaves it 0.
    pub revision: i64,
    /// What is said.
    pub what: What,
}

/// What a [`Notice`] says.
#[derive(Clone, Debug)]
pub enum What {
    /// The watcher exists from here on.
    Created,
    /// It does not, for this reason.
    Refused(&'static str),
    /// The client's cancel was obeyed.
    Canceled,
    /// The watcher ended, since what it needs next lies below this compacted revision.
    Compacted(i64),
    /// Everything up to the notice's revision has been sent.
    Progress,
    /// Events; `fragment` when the client accepts them in pieces.
    Events {
        /// The events.
        batch: Arc<Batch>,
        /// Whether the answer may be cut.
        fragment: bool,
    },
}

impl What {
    fn bytes(&self) -> usize {
        match self {
            What::Events { batch, .. } => batch.bytes(),
            _ => 0,
        }
    }

    fn events(&self) -> usize {
        match self {
            What::Events { batch, .. } => batch.pieces().len(),
            _ => 0,
        }
    }
}

/// How much an outbox takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub bytes: usize,
    pub notices: usize,
}

struct Queued {
    notice: Notice,
    /// The request that this answers; another may come in once the answer is on its way.
    _request: Option<OwnedSemaphorePermit>,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<Queued>,
    bytes: usize,
    /// A watcher was turned away and must hear when there is room.
    wants_room: bool,
    /// Nothing will follow.
    ended: bool,
    waker: Option<Waker>,
}

/// The queue itself.
pub(super) struct Outbox {
    inner: Mutex<Inner>,
    limit: Limit,
    stats: Arc<Stats>,
}

impl Outbox {
    pub fn new(limit: Limit, stats: Arc<Stats>) -> Self {
        Self { inner: Mutex::default(), limit, stats }
    }

    /// Adds an answer to a request, whether there is room or not: their number is bounded by the
    /// permits that requests carry.
    pub fn push_answer(&self, notice: Notice, request: Option<OwnedSemaphorePermit>) {
        self.push(&mut self.inner.lock(), notice, request);
    }

    /// Adds what nobody asked for, if there is room. A batch may exceed the bound in bytes if the
    /// queue is below it, or large ones could never be sent. `watchers` is their number on this
    /// stream: one event for each of them must fit.
    ///
    /// When there is no room, the stream's reader sends [`Command::Room`] once half is free, if
    /// `call_back` is set.
    #[must_use]
    pub fn offer(&self, notice: Notice, watchers: usize, call_back: bool) -> bool {
        let mut inner = self.inner.lock();
        let notices = self.limit.notices.max(2 * watchers);
        if inner.bytes >= self.limit.bytes || inner.queue.len() >= notices {
            inner.wants_room |= call_back;
            return false;
        }
        self.push(&mut inner, notice, None);
        if inner.queue.len() == WAKE_AFTER
            && let Some(waker) = inner.waker.take()
        {
            drop(inner);
            waker.wake();
        }
        true
    }

    fn push(&self, inner: &mut Inner, notice: Notice, request: Option<OwnedSemaphorePermit>) {
        if inner.ended {
            return;
        }
        self.stats.events_queued(notice.what.events());
        inner.bytes += NOTICE_BYTES + notice.what.bytes();
        inner.queue.push_back(Queued { notice, _request: request });
    }

    /// How many answers wait.
    pub fn waiting(&self) -> usize {
        self.inner.lock().queue.len()
    }

    /// Lets the reader know that something was added.
    pub fn wake(&self) {
        let waker = self.inner.lock().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the stream. What has not been taken is discarded.
    pub fn end(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let rest = std::mem::take(&mut inner.queue);
        inner.bytes = 0;
        let waker = inner.waker.take();
        drop(inner);
        self.stats.events_discarded(rest.iter().map(|queued| queued.notice.what.events()).sum());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next notice, and whether the hub must be told of room.
    fn poll_take(&self, context: &mut Context<'_>) -> Poll<(Option<Notice>, bool)> {
        let mut inner = self.inner.lock();
        let Some(queued) = inner.queue.pop_front() else {
            if inner.ended {
                return Poll::Ready((None, false));
            }
            if !inner.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                inner.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        };
        let what = &queued.notice.what;
        inner.bytes -= NOTICE_BYTES + what.bytes();
        let roomy =
            inner.bytes <= self.limit.bytes / 2 && inner.queue.len() <= self.limit.notices / 2;
        let room = roomy && std::mem::take(&mut inner.wants_room);
        if inner.queue.is_empty() && inner.queue.capacity() > 64 {
            // An idle stream keeps no memory of a burst.
            inner.queue = VecDeque::new();
        }
        drop(inner);
        self.stats.events_taken(what.events());
        Poll::Ready((Some(queued.notice), room))
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.end();
    }
}

/// A stream's answers, in order. Ends when the stream is ended by the server. Dropping it closes
/// the stream and frees its watchers.
pub struct Notices {
    pub(super) stream: StreamId,
    pub(super) outbox: Arc<Outbox>,
    pub(super) shared: Arc<Shared>,
}

impl Stream for Notices {
    type Item = Notice;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Notice>> {
        match self.outbox.poll_take(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready((notice, room)) => {
                if room {
                    self.shared.command(Command::Room(self.stream));
                }
                Poll::Ready(notice)
            }
        }
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.outbox.end();
        self.shared.command(Command::Close(self.stream));
    }
}

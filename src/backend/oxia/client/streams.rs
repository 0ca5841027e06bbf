//! What the shard tells by itself: that a sequence has grown, and which keys have changed.
//!
//! Both streams outlive leaders: they go on with the next one, and say what that may have cost.

use std::time::Duration;

use leaseway_proto::oxia::{
    GetSequenceUpdatesRequest, GetSequenceUpdatesResponse, NotificationBatch, NotificationType,
    NotificationsRequest,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::Streaming;

use super::Client;
use super::error::{Error, Kind};
use super::key::sequence_number;
use super::leader::{Current, Epoch, Leader};
use super::wire::{GET_NOTIFICATIONS, GET_SEQUENCE_UPDATES};

/// Before a stream is asked for again.
const RETRY: Duration = Duration::from_millis(50);

/// Batches that are read ahead of whoever takes them.
const AHEAD: usize = 256;

/// The newest number of a sequence, as far as was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The number. It may be told before the record can be read, and numbers are left out.
    pub sequence: u64,
    /// Whose word it is.
    pub epoch: Epoch,
}

/// Hints that a sequence has grown. They may be missing, late, early or repeated.
pub struct SequenceUpdates {
    hints: watch::Receiver<Option<Hint>>,
    task: JoinHandle<()>,
}

impl SequenceUpdates {
    /// The newest hint that wasn't returned yet; `None` when the client was closed. May be dropped
    /// without losing a hint.
    pub async fn next(&mut self) -> Option<Hint> {
        loop {
            self.hints.changed().await.ok()?;
            if let Some(hint) = *self.hints.borrow_and_update() {
                return Some(hint);
            }
        }
    }
}

impl Drop for SequenceUpdates {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How a key changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A record was made, of this version.
    Created(i64),
    /// A record was overwritten with this version.
    Modified(i64),
    /// A record was deleted, by somebody or by its session's end.
    Deleted,
    /// All records from this key up to another (exclusive) were deleted.
    RangeDeleted(String),
}

/// One thing that the notifications tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Everything after this offset will be told.
    From(i64),
    /// What one log entry changed: one event for each key that it touched, in the order of keys.
    Changes {
        /// The entry.
        offset: i64,
        /// The keys.
        events: Vec<(String, Event)>,
    },
    /// What happened between two offsets (both exclusive) may not have been told, and can't be any
    /// more; what was wanted from it must be looked up. The second is below the first when the
    /// shard's log is shorter than it was. Entries that change no key, of which newer servers have
    /// some, may appear as a gap too.
    Gap {
        /// The last entry that was told.
        after: i64,
        /// The next one that can be.
        next: i64,
    },
}

/// Notifications on their way.
pub struct Notifications {
    notices: mpsc::Receiver<Notice>,
    task: JoinHandle<()>,
}

impl Notifications {
    /// The next one; `None` when the client was closed. May be dropped without losing one.
    pub async fn next(&mut self) -> Option<Notice> {
        self.notices.recv().await
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Hints that the sequence of this prefix has grown.
    pub fn sequence_updates(&self, prefix: &str) -> SequenceUpdates {
        let (told, hints) = watch::channel(None);
        let listening = Listening { prefix: prefix.to_owned(), told };
        let task = self.follow_leaders(listening);
        SequenceUpdates { hints, task }
    }

    /// Everything that changes in the shard, of all its users: after an offset, or from now on.
    /// Begins with [`Notice::From`].
    pub fn notifications(&self, after: Option<i64>) -> Notifications {
        let (told, notices) = mpsc::channel(AHEAD);
        let position = Position { last: after, told_start: false, told };
        let task = self.follow_leaders(position);
        Notifications { notices, task }
    }

    fn follow_leaders(&self, what: impl Follow) -> JoinHandle<()> {
        let following = follow_leaders(self.current.clone(), what);
        self.connecting.dialing.vital.spawn("what listens to the Oxia shard's leader", following)
    }
}

/// What is done with one leader until that ends.
trait Follow: Send + 'static {
    fn follow(&mut self, leader: &Leader) -> impl Future<Output = Error> + Send;
}

/// Follows every leader, one after the other, until the client is closed.
async fn follow_leaders(mut current: watch::Receiver<Current>, mut what: impl Follow) {
    loop {
        let leader = match current.wait_for(Result::is_ok).await {
            Ok(leader) => leader.clone(),
            Err(_) => return,
        };
        let Ok(leader) = leader else { continue };
        let error = tokio::select! {
            error = what.follow(&leader) => leader.note(error),
            () = leader.writer.ended() => continue,
        };
        match error.kind {
            Kind::Closed => return,
            Kind::NoNotifications | Kind::Unimplemented => {
                tracing::error!(%error, leader = %leader.address, "the Oxia server refuses a stream");
            }
            _ => tracing::debug!(%error, "a stream from the leader ended"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

struct Listening {
    prefix: String,
    told: watch::Sender<Option<Hint>>,
}

impl Follow for Listening {
    async fn follow(&mut self, leader: &Leader) -> Error {
        let request = GetSequenceUpdatesRequest { shard: leader.shard, key: self.prefix.clone() };
        let call = leader
            .control
            .streaming::<_, GetSequenceUpdatesResponse>(&GET_SEQUENCE_UPDATES, request);
        let mut stream = match call.await {
            Ok(stream) => stream,
            Err(status) => return status.into(),
        };
        loop {
            match stream.message().await {
                Ok(Some(update)) => {
                    let sequence = sequence_number(&self.prefix, &update.highest_sequence_key);
                    if let Some(sequence) = sequence {
                        self.told.send_replace(Some(Hint { sequence, epoch: leader.epoch }));
                    }
                }
                // A deposed leader ends the stream as if there were no more to say.
                Ok(None) => return Error::new(Kind::NotLeader, "oxia: the stream ended"),
                Err(status) => return status.into(),
            }
        }
    }
}

/// How far the notifications have been told.
struct Position {
    last: Option<i64>,
    told_start: bool,
    told: mpsc::Sender<Notice>,
}

impl Follow for Position {
    async fn follow(&mut self, leader: &Leader) -> Error {
        match self.try_follow(leader).await {
            Ok(()) => Error::new(Kind::Closed, "oxia: nobody listens any more"),
            Err(error) => error,
        }
    }
}

impl Position {
    /// Tells what this leader notifies of; `Ok` when nobody listens any more.
    async fn try_follow(&mut self, leader: &Leader) -> Result<(), Error> {
        // Without a start, the server first says where it is. A server that is asked to begin
        // beyond its end would say nothing until it gets there, as if nothing had happened.
        let mut stream = open(leader, None).await?;
        let first = receive(&mut stream).await?;
        let here = first.offset;
        let last = *self.last.get_or_insert(here);
        if !self.told_start {
            self.told_start = true;
            if self.told.send(Notice::From(last)).await.is_err() {
                return Ok(());
            }
        }
        if here < last {
            self.last = Some(here);
            if self.told.send(Notice::Gap { after: last, next: here + 1 }).await.is_err() {
                return Ok(());
            }
        } else if here > last {
            stream = open(leader, Some(last)).await?;
        }
        loop {
            let batch = receive(&mut stream).await?;
            for notice in self.advance(batch) {
                if self.told.send(notice).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// What a batch says beyond what was told.
    fn advance(&mut self, batch: NotificationBatch) -> impl Iterator<Item = Notice> + use<> {
        let last = self.last.unwrap_or(batch.offset - 1);
        let fresh = batch.offset > last;
        let gap =
            (batch.offset > last + 1).then_some(Notice::Gap { after: last, next: batch.offset });
        self.last = Some(last.max(batch.offset));
        let changes =
            fresh.then(|| Notice::Changes { offset: batch.offset, events: events(batch) });
        gap.into_iter().chain(changes)
    }
}

fn events(batch: NotificationBatch) -> Vec<(String, Event)> {
    let mut events: Vec<_> = batch
        .notifications
        .into_iter()
        .map(|(key, notification)| {
            let version = notification.version_id.unwrap_or_default();
            let event = match notification.r#type() {
                NotificationType::KeyCreated => Event::Created(version),
                NotificationType::KeyModified => Event::Modified(version),
                NotificationType::KeyDeleted => Event::Deleted,
                NotificationType::KeyRangeDeleted => {
                    Event::RangeDeleted(notification.key_range_last.unwrap_or_default())
                }
            };
            (key, event)
        })
        .collect();
    // They come as a map, which has no order.
    events.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    events
}

async fn open(leader: &Leader, after: Option<i64>) -> Result<Streaming<NotificationBatch>, Error> {
    let request = NotificationsRequest { shard: leader.shard, start_offset_exclusive: after };
    // Waits for the first one: there is one at once without a start, and one that is known to exist
    // with it.
    let call = leader.bulk.streaming(&GET_NOTIFICATIONS, request);
    match tokio::time::timeout(leader.bulk.call_timeout(), call).await {
        Ok(stream) => Ok(stream?),
        Err(_) => Err(Error::timeout("notify of changes")),
    }
}

async fn receive(stream: &mut Streaming<NotificationBatch>) -> Result<NotificationBatch, Error> {
    match stream.message().await? {
        Some(batch) => Ok(batch),
        None => Err(Error::new(Kind::NotLeader, "oxia: the notifications ended")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaseway_proto::oxia::Notification;

    fn batch(offset: i64, keys: &[(&str, NotificationType)]) -> NotificationBatch {
        let notifications = keys.iter().map(|(key, kind)| {
            let notification = Notification {
                r#type: (*kind).into(),
                version_id: Some(offset),
                key_range_last: None,
            };
            ((*key).to_owned(), notification)
        });
        NotificationBatch { shard: 0, offset, timestamp: 0, notifications: notifications.collect() }
    }

    fn told(position: &mut Position, batch: NotificationBatch) -> Vec<Notice> {
        position.advance(batch).collect()
    }

    #[test]
    fn tells_every_offset_once_and_every_gap() {
        let (sender, _receiver) = mpsc::channel(1);
        let mut position = Position { last: Some(4), told_start: true, told: sender };
        let changes = |offset| Notice::Changes { offset, events: vec![] };
        assert_eq!(told(&mut position, batch(5, &[])), [changes(5)]);
        assert_eq!(told(&mut position, batch(5, &[])), [], "told before");
        assert_eq!(
            told(&mut position, batch(9, &[])),
            [Notice::Gap { after: 5, next: 9 }, changes(9)]
        );
        assert_eq!(position.last, Some(9));
    }

    #[test]
    fn tells_the_keys_in_order() {
        let kinds = [
            ("b", NotificationType::KeyDeleted),
            ("c", NotificationType::KeyModified),
            ("a", NotificationType::KeyCreated),
        ];
        let events = events(batch(7, &kinds));
        let expected = [
            ("a".to_owned(), Event::Created(7)),
            ("b".to_owned(), Event::Deleted),
            ("c".to_owned(), Event::Modified(7)),
        ];
        assert_eq!(events, expected);
    }
}

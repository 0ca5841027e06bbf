//! [`Shard`] on a real cluster.

use super::client::{self, Refusal, WriteError, WriteResults, sequence_key, sequence_number};
use super::client::{
    Client, Comparison, Epoch, Error, Event, Expect, KeyRange, Kind, Notifications, Records,
    WriteBatch,
};
use super::names::Names;
use super::shard::{
    Expected, Means, Named, Notice, Record, Session, Shard, ShardError, Tip, Told, Versioned,
};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

/// The most records that one listing may have.
const LIST: usize = 10_000_000;
/// A portion of a scan from here on is one that the server ended because it was full (it does at 2 MiB and
/// at 1,000 records): more of the range follows.
const FULL_BYTES: usize = 1 << 20;
const FULL_RECORDS: usize = 1000;

/// A keyspace's shard in a cluster.
pub struct ClusterShard {
    client: Arc<Client>,
    log: String,
    hints: watch::Receiver<u64>,
    notifications: Mutex<Notifications>,
    // Whoever reads on from where the last reader stopped goes on with its scan: a new one for each
    // portion would have the server send several that nobody waits for any more.
    unfinished: parking_lot::Mutex<Option<Box<Unfinished>>>,
    listening: JoinHandle<()>,
}

/// A scan of the log with more to come.
struct Unfinished {
    next: u64,
    scan: Records,
}

impl Drop for ClusterShard {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl From<WriteError> for ShardError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::NotSent(error) => match error.kind {
                Kind::Invalid | Kind::TooLarge => Self::Refused(error.to_string()),
                _ => Self::NotSent(error.to_string()),
            },
            WriteError::Unknown(error) => Self::Unknown(error.to_string()),
        }
    }
}

impl From<Error> for ShardError {
    fn from(error: Error) -> Self {
        match error.kind {
            Kind::SessionNotFound => Self::SessionNotFound,
            Kind::Invalid | Kind::TooLarge | Kind::SessionTimeout => {
                Self::Refused(error.to_string())
            }
            _ => Self::Unknown(error.to_string()),
        }
    }
}

/// The server's id of a session. The server counts from 0, which is no session's id here.
fn session_id(session: u64) -> i64 {
    i64::from_ne_bytes(session.wrapping_sub(1).to_ne_bytes())
}

fn own_id(session: i64) -> u64 {
    u64::from_ne_bytes(session.to_ne_bytes()).wrapping_add(1)
}

impl ClusterShard {
    /// The shard of a keyspace, through a client of the keyspace's partition key.
    pub fn new(client: Arc<Client>, names: &Names) -> Self {
        let log = names.log();
        let mut updates = client.sequence_updates(&log);
        let (told, hints) = watch::channel(0);
        let listening = tokio::spawn(async move {
            while let Some(hint) = updates.next().await {
                told.send_if_modified(|newest| {
                    let newer = hint.sequence > *newest;
                    *newest = hint.sequence.max(*newest);
                    newer
                });
            }
        });
        let notifications = Mutex::new(client.notifications(None));
        let unfinished = parking_lot::Mutex::new(None);
        Self { client, log, hints, notifications, unfinished, listening }
    }

    /// The next portion of the log from position `from` on, none at its end.
    async fn portion(&self, from: u64) -> Result<(Vec<Record>, Records), ShardError> {
        let goes_on = |unfinished: &Unfinished| {
            // Of a leader that was replaced there may be nothing more to hear.
            unfinished.next == from && self.client.epoch() == Some(unfinished.scan.epoch())
        };
        let unfinished = self.unfinished.lock().take().filter(|unfinished| goes_on(unfinished));
        if let Some(mut scan) = unfinished.map(|unfinished| unfinished.scan)
            && let Some(portion) = scan.next().await?
        {
            return Ok((self.log_records(portion)?, scan));
        }
        let mut scan = self.client.range_scan(KeyRange::of_sequence(&self.log, from, u64::MAX)?)?;
        let portion = scan.next().await?.unwrap_or_default();
        Ok((self.log_records(portion)?, scan))
    }

    fn log_records(&self, portion: Vec<client::Record>) -> Result<Vec<Record>, ShardError> {
        let record = |client::Record { key, value, .. }| match sequence_number(&self.log, &key) {
            Some(position) => Ok(Record { position, value }),
            None => Err(ShardError::Refused(format!("{key:?} is not a log record"))),
        };
        portion.into_iter().map(record).collect()
    }

    async fn write(&self, batch: WriteBatch, only: Option<Epoch>) -> Result<bool, ShardError> {
        let WriteResults { puts, .. } = match only {
            Some(epoch) => self.client.write_in(epoch, batch).await?,
            None => self.client.write(batch).await?,
        };
        match puts.as_slice() {
            [Ok(_)] => Ok(true),
            [Err(Refusal::Version | Refusal::NotFound)] => Ok(false),
            [Err(Refusal::SessionNotFound)] => Err(ShardError::SessionNotFound),
            [Err(Refusal::Invalid)] => Err(ShardError::Refused("invalid argument".into())),
            _ => Err(ShardError::Unknown("an answer to another request".into())),
        }
    }
}

/// The directory that a folder's name stands for, as the client wants it.
fn directory(folder: &str) -> &str {
    folder.strip_suffix('/').unwrap_or(folder)
}

impl Shard for ClusterShard {
    async fn append(&self, record: Bytes) -> Result<Tip, ShardError> {
        let appended = self.client.append(&self.log, record).await?;
        Ok(Tip { position: appended.value, epoch: appended.epoch.0 })
    }

    async fn read(&self, from: u64, most: usize) -> Result<Vec<Record>, ShardError> {
        if most == 1 {
            // A scan would send all that fits into its window.
            let key = sequence_key(&self.log, from);
            let found = self.client.get(&key, Comparison::Ceiling).await?.value;
            let record = found.filter(|found| sequence_number(&self.log, &found.key).is_some());
            return self.log_records(record.into_iter().collect());
        }
        // One portion, and no more: a thousand large records would be a gigabyte.
        let (mut records, scan) = self.portion(from).await?;
        let bytes: usize = records.iter().map(|record| record.value.len()).sum();
        let full = bytes >= FULL_BYTES || records.len() >= FULL_RECORDS;
        if full
            && records.len() <= most
            && let Some(last) = records.last()
        {
            let unfinished = Unfinished { next: last.position + 1, scan };
            *self.unfinished.lock() = Some(Box::new(unfinished));
        }
        records.truncate(most);
        Ok(records)
    }

    async fn proven_tip(&self) -> Result<Tip, ShardError> {
        let tip = self.client.read_tip_with_proof(&self.log).await?;
        Ok(Tip { position: tip.sequence, epoch: tip.epoch.0 })
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.hints.clone()
    }

    async fn create_session(
        &self,
        timeout: Duration,
        identity: String,
    ) -> Result<Session, ShardError> {
        let made = self.client.create_session(timeout, &identity).await?;
        Ok(Session { id: own_id(made.value), epoch: made.epoch.0 })
    }

    async fn keep_alive(&self, session: u64) -> Result<u64, ShardError> {
        let Epoch(epoch) = self.client.keep_alive(session_id(session)).await?;
        Ok(epoch)
    }

    async fn close_session(&self, session: u64, means: Means<'_>) -> Result<(), ShardError> {
        let id = session_id(session);
        let epoch = match means {
            Means::Made(epoch) => Epoch(epoch),
            Means::With(record) => {
                let found = self.client.get(record, Comparison::Equal).await?;
                // In an epoch no id is given out twice: what it means now it also means below.
                if found.value.is_none_or(|record| record.version.session != Some(id)) {
                    return Ok(());
                }
                found.epoch
            }
        };
        self.client.close_session_in(epoch, id).await?;
        Ok(())
    }

    async fn session(&self, session: u64) -> Result<Option<Told>, ShardError> {
        let told = self.client.get_session(session_id(session)).await?.value;
        Ok(told.map(|told| Told { timeout: told.timeout, remaining: told.remaining }))
    }

    async fn create(
        &self,
        name: String,
        value: Bytes,
        session: Option<Session>,
    ) -> Result<bool, ShardError> {
        let mut batch = WriteBatch::new();
        match session {
            Some(session) => {
                batch.put_ephemeral(name, value, Expect::Absent, session_id(session.id));
            }
            None => batch.put(name, value, Expect::Absent),
        }
        self.write(batch, session.map(|session| Epoch(session.epoch))).await
    }

    async fn replace(&self, name: String, value: Bytes, session: u64) -> Result<bool, ShardError> {
        let found = self.client.get(&name, Comparison::Equal).await?.value;
        let Some(record) = found else { return Ok(false) };
        let expected = Expect::Version(record.version.id);
        let mut batch = WriteBatch::new();
        batch.put_ephemeral(name, value, expected, session_id(session));
        self.write(batch, None).await
    }

    async fn delete(&self, name: String) -> Result<(), ShardError> {
        let mut batch = WriteBatch::new();
        batch.delete(name, Expect::Anything);
        self.client.write(batch).await?;
        Ok(())
    }

    async fn list(&self, folder: &str) -> Result<Vec<Named>, ShardError> {
        let range = KeyRange::children_of(directory(folder))?;
        let records = self.client.range_scan(range)?.all(LIST).await?;
        let named = |record: super::client::Record| Named { name: record.key, value: record.value };
        Ok(records.into_iter().map(named).collect())
    }

    async fn get(&self, name: &str) -> Result<Option<Versioned>, ShardError> {
        let found = self.client.get(name, Comparison::Equal).await?.value;
        Ok(found.map(|record| Versioned { value: record.value, version: record.version.id }))
    }

    async fn put(
        &self,
        name: String,
        value: Bytes,
        expected: Expected,
    ) -> Result<bool, ShardError> {
        let expected = match expected {
            Expected::Anything => Expect::Anything,
            Expected::Absent => Expect::Absent,
            Expected::Version(version) => Expect::Version(version),
        };
        let mut batch = WriteBatch::new();
        batch.put(name, value, expected);
        self.write(batch, None).await
    }

    async fn names(&self, folder: &str) -> Result<Vec<String>, ShardError> {
        let range = KeyRange::children_of(directory(folder))?;
        Ok(self.client.list(range)?.all(LIST).await?)
    }

    async fn delete_folder(&self, folder: &str) -> Result<(), ShardError> {
        let mut batch = WriteBatch::new();
        batch.delete_range(KeyRange::children_of(directory(folder))?);
        self.client.write(batch).await?;
        Ok(())
    }

    async fn trim(&self, through: u64) -> Result<(), ShardError> {
        if through == 0 {
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        batch.delete_range(KeyRange::of_sequence(&self.log, 0, through.saturating_add(1))?);
        self.client.write(batch).await?;
        Ok(())
    }

    async fn notice(&self) -> Result<Notice, ShardError> {
        let mut notifications = self.notifications.lock().await;
        loop {
            let notice = notifications.next().await;
            match notice {
                None => return Err(ShardError::NotSent("the client was closed".into())),
                Some(super::client::Notice::From(_)) => {}
                Some(super::client::Notice::Gap { .. }) => return Ok(Notice::Gap),
                Some(super::client::Notice::Changes { events, .. }) => {
                    let deleted = |(name, event)| (event == Event::Deleted).then_some(name);
                    let names: Vec<String> = events.into_iter().filter_map(deleted).collect();
                    if !names.is_empty() {
                        return Ok(Notice::Deleted(names));
                    }
                }
            }
        }
    }
}

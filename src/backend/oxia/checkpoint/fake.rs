//! A shard in memory, with writes that never come back.

use crate::backend::oxia::shard::{
    Expected, Means, Named, Notice, Record, Session, Shard, ShardError, Tip, Told, Versioned,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It never arrives, and there is never an answer.
    Stuck,
    /// It arrives, and the answer is lost.
    Unanswered,
    /// It does not arrive, and that is not known.
    Lost,
}

#[derive(Debug, Default)]
struct State {
    log: BTreeMap<u64, Bytes>,
    records: BTreeMap<String, (Bytes, i64)>,
    versions: i64,
    sessions: u64,
    // Writes until one meets a fate.
    fate: Option<(u32, Fate)>,
    // What becomes of the next append.
    append_fate: Option<Fate>,
    puts: u32,
    // So many sessions are refused yet.
    refused: u32,
    // Longer ones are too long.
    longest: Option<Duration>,
}

/// One shard for all who share it.
#[derive(Debug)]
pub struct Fake {
    state: Mutex<State>,
    release: watch::Sender<bool>,
    hints: watch::Sender<u64>,
}

impl Fake {
    pub fn new() -> Self {
        Self {
            state: Mutex::default(),
            release: watch::Sender::new(false),
            hints: watch::Sender::new(0),
        }
    }

    /// Appends so many records.
    pub fn log(&self, through: u64) {
        let mut state = self.state.lock();
        let from = state.log.keys().next_back().map_or(1, |last| last + 1);
        for position in from..=through {
            state.log.insert(position, format!("record {position}").into());
        }
    }

    /// Replaces the log by one of another keyspace, or none at all.
    pub fn replace_log(&self, positions: std::ops::RangeInclusive<u64>) {
        let mut state = self.state.lock();
        state.log = positions.map(|at| (at, format!("other {at}").into())).collect();
    }

    /// The log's first and last position.
    pub fn reach(&self) -> (u64, u64) {
        let state = self.state.lock();
        let (first, last) = (state.log.keys().next(), state.log.keys().next_back());
        (first.copied().unwrap_or(0), last.copied().unwrap_or(0))
    }

    /// After `writes` more puts the next meets this fate, once.
    pub fn doom(&self, writes: u32, fate: Fate) {
        let mut state = self.state.lock();
        (state.fate, state.puts) = (Some((writes, fate)), 0);
        self.release.send_replace(false);
    }

    /// The next append meets this fate, once.
    pub fn doom_append(&self, fate: Fate) {
        self.state.lock().append_fate = Some(fate);
        self.release.send_replace(false);
    }

    /// The next so many attempts to start a session fail.
    pub fn refuse_sessions(&self, attempts: u32) {
        self.state.lock().refused = attempts;
    }

    /// Sessions may not be longer than this.
    pub fn limit_sessions(&self, longest: Duration) {
        self.state.lock().longest = Some(longest);
    }

    /// Lets the write that is stuck go on.
    pub fn release(&self) {
        self.state.lock().fate = None;
        self.release.send_replace(true);
    }

    /// All names that begin with `prefix`.
    pub fn beginning_with(&self, prefix: &str) -> Vec<String> {
        let state = self.state.lock();
        state.records.keys().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    /// Changes a record as a fault of the server would.
    pub fn damage(&self, name: &str, change: impl FnOnce(Bytes) -> Bytes) {
        let mut state = self.state.lock();
        let (value, _) = state.records.get_mut(name).expect("a record");
        *value = change(value.clone());
    }

    fn set(&self, name: String, value: Bytes, expected: Expected) -> bool {
        let mut state = self.state.lock();
        let there = state.records.get(&name).map(|(_, version)| *version);
        let good = match expected {
            Expected::Anything => true,
            Expected::Absent => there.is_none(),
            Expected::Version(version) => there == Some(version),
        };
        if good {
            state.versions += 1;
            let version = state.versions;
            state.records.insert(name, (value, version));
        }
        good
    }

    async fn released(&self) {
        let mut released = self.release.subscribe();
        let _ = released.wait_for(|released| *released).await;
    }

    fn next_fate(&self) -> Option<Fate> {
        let mut state = self.state.lock();
        let (left, fate) = state.fate?;
        if state.puts == left {
            state.fate = None;
            return Some(fate);
        }
        state.puts += 1;
        None
    }
}

impl Shard for Fake {
    async fn append(&self, record: Bytes) -> Result<Tip, ShardError> {
        let fate = self.state.lock().append_fate.take();
        match fate {
            Some(Fate::Lost) => return Err(ShardError::Unknown("no answer".into())),
            Some(Fate::Stuck) => self.released().await,
            Some(Fate::Unanswered) | None => {}
        }
        let mut state = self.state.lock();
        let position = state.log.keys().next_back().map_or(1, |last| last + 1);
        state.log.insert(position, record);
        match fate {
            Some(Fate::Unanswered) => Err(ShardError::Unknown("no answer".into())),
            _ => Ok(Tip { position, epoch: 1 }),
        }
    }

    async fn read(&self, from: u64, most: usize) -> Result<Vec<Record>, ShardError> {
        let state = self.state.lock();
        let records = state.log.range(from..).take(most);
        Ok(records
            .map(|(position, value)| Record { position: *position, value: value.clone() })
            .collect())
    }

    async fn proven_tip(&self) -> Result<Tip, ShardError> {
        Ok(Tip { position: self.reach().1, epoch: 1 })
    }

    fn hints(&self) -> watch::Receiver<u64> {
        self.hints.subscribe()
    }

    async fn create_session(&self, timeout: Duration, _: String) -> Result<Session, ShardError> {
        let mut state = self.state.lock();
        if state.longest.is_some_and(|longest| timeout > longest) {
            return Err(ShardError::Refused("invalid session timeout".into()));
        }
        if state.refused > 0 {
            state.refused -= 1;
            return Err(ShardError::NotSent("no leader".into()));
        }
        state.sessions += 1;
        Ok(Session { id: state.sessions, epoch: 1 })
    }

    async fn keep_alive(&self, _: u64) -> Result<u64, ShardError> {
        Ok(1)
    }

    async fn close_session(&self, _: u64, _: Means<'_>) -> Result<(), ShardError> {
        Ok(())
    }

    async fn session(&self, _: u64) -> Result<Option<Told>, ShardError> {
        Ok(None)
    }

    async fn create(
        &self,
        name: String,
        value: Bytes,
        _: Option<Session>,
    ) -> Result<bool, ShardError> {
        Ok(self.set(name, value, Expected::Absent))
    }

    async fn replace(&self, name: String, value: Bytes, _: u64) -> Result<bool, ShardError> {
        Ok(self.set(name, value, Expected::Anything))
    }

    async fn delete(&self, name: String) -> Result<(), ShardError> {
        self.state.lock().records.remove(&name);
        Ok(())
    }

    async fn list(&self, folder: &str) -> Result<Vec<Named>, ShardError> {
        let state = self.state.lock();
        let records = state.records.iter().filter(|(name, _)| name.starts_with(folder));
        Ok(records
            .map(|(name, (value, _))| Named { name: name.clone(), value: value.clone() })
            .collect())
    }

    async fn get(&self, name: &str) -> Result<Option<Versioned>, ShardError> {
        let state = self.state.lock();
        let found = state.records.get(name);
        Ok(found.map(|(value, version)| Versioned { value: value.clone(), version: *version }))
    }

    async fn put(
        &self,
        name: String,
        value: Bytes,
        expected: Expected,
    ) -> Result<bool, ShardError> {
        let unknown = || ShardError::Unknown("no answer".into());
        match self.next_fate() {
            None => Ok(self.set(name, value, expected)),
            Some(Fate::Unanswered) => {
                self.set(name, value, expected);
                Err(unknown())
            }
            Some(Fate::Lost) => Err(unknown()),
            Some(Fate::Stuck) => {
                self.released().await;
                Ok(self.set(name, value, expected))
            }
        }
    }

    async fn names(&self, folder: &str) -> Result<Vec<String>, ShardError> {
        Ok(self.beginning_with(folder))
    }

    async fn delete_folder(&self, folder: &str) -> Result<(), ShardError> {
        self.state.lock().records.retain(|name, _| !name.starts_with(folder));
        Ok(())
    }

    async fn trim(&self, through: u64) -> Result<(), ShardError> {
        let mut state = self.state.lock();
        let newest = state.log.keys().next_back().copied().unwrap_or(0);
        assert!(through < newest, "the newest record must stay");
        state.log.retain(|position, _| *position > through);
        Ok(())
    }

    async fn notice(&self) -> Result<Notice, ShardError> {
        std::future::pending().await
    }
}

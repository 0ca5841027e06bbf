//! What a node of the simulated shard holds.

use crate::backend::oxia::shard::Expected;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A write.
#[derive(Clone, Debug)]
pub enum Write {
    /// To the log.
    Append(Bytes),
    /// A session with this timeout.
    Session(Duration),
    /// The end of a session, if this record goes with it.
    Close(u64, Option<String>),
    /// A record, perhaps of a session.
    Put(String, Bytes, Expected, Option<u64>),
    /// The end of a record.
    Delete(String),
    /// The end of all records whose name begins so.
    DeleteFolder(String),
    /// The end of the log's records up to a position.
    Trim(u64),
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The position or the session.
    Number(u64),
    /// Whether it was as expected.
    Was(bool),
    /// Its session does not live.
    NoSession,
}

/// A record beside the log.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What it holds.
    pub value: Bytes,
    /// Which state of it.
    pub version: i64,
    /// The session that it goes with.
    pub session: Option<u64>,
}

/// A session.
#[derive(Clone, Debug)]
pub struct Session {
    /// How long it lives without a heartbeat.
    pub timeout: Duration,
    /// When it is over.
    pub deadline: Instant,
    /// Its end has been decided on and will be written then.
    pub ends: Option<Instant>,
}

impl Session {
    fn due(&self) -> Instant {
        self.ends.map_or(self.deadline, |ends| ends.max(self.deadline))
    }
}

/// What a node has applied.
#[derive(Clone, Debug)]
pub struct State {
    /// The log from position 1, each with the time from which scans see it.
    pub log: Vec<(Bytes, Instant)>,
    /// The first records, up to this position, are gone.
    pub trimmed: u64,
    /// Records beside it.
    pub kept: BTreeMap<String, Kept>,
    /// Sessions by id.
    pub sessions: BTreeMap<u64, Session>,
    /// Id of the next one.
    pub next_session: u64,
    /// Version of the next record.
    pub next_version: i64,
    /// How much the node's clock gains, as a share of the time that passes.
    pub ahead: f64,
}

impl State {
    /// Position of the newest record that can be seen.
    pub fn tip(&self, now: Instant) -> u64 {
        let unseen = self.log.iter().rev().take_while(|(_, from)| *from > now).count();
        (self.log.len() - unseen) as u64
    }

    /// Records from a position on that can be seen.
    pub fn records(&self, from: u64, most: usize, now: Instant) -> Vec<(u64, Bytes)> {
        let tip = self.tip(now);
        let from = from.max(self.trimmed + 1).max(1);
        (from..=tip).take(most).map(|at| (at, self.log[at as usize - 1].0.clone())).collect()
    }

    /// A heartbeat; returns whether the session is known.
    pub fn beat(&mut self, session: u64, now: Instant) -> bool {
        let Some(found) = self.sessions.get_mut(&session) else { return false };
        if found.ends.is_none() {
            found.deadline = now + found.timeout.div_f64(1.0 + self.ahead);
        }
        true
    }

    /// When a session with this timeout is over that was renewed at some moment.
    pub fn over(&self, timeout: Duration, renewed: Instant) -> Instant {
        renewed + timeout.div_f64(1.0 + self.ahead)
    }

    /// All sessions have their whole time again.
    pub fn start_again(&mut self, now: Instant) {
        for session in self.sessions.values_mut() {
            session.deadline = now + session.timeout.div_f64(1.0 + self.ahead);
            session.ends = None;
        }
    }

    /// Sessions whose end is to be decided on or to be written.
    pub fn due(&self, now: Instant) -> Vec<u64> {
        let due = self.sessions.iter().filter(|(_, session)| session.due() <= now);
        due.map(|(id, _)| *id).collect()
    }

    /// When the next session is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.sessions.values().map(Session::due).min()
    }
}

//! A simulated shard of an Oxia cluster: one history of writes, leaders that come and go, sessions with
//! a clock, and everything that can go wrong between a gateway and it.

use super::oracle::Oracle;
use crate::backend::oxia::shard::{Expected, Notice};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// What may go wrong, and how often. Chances are in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A write has its effect, and the answer is lost.
    pub lost: u32,
    /// A request never arrives, and nobody can tell.
    pub dropped: u32,
    /// A request is surely not sent.
    pub refused: u32,
    /// A write has its effect after its sender was told that there is no answer.
    pub late: u32,
    /// How long after, at most.
    pub late_by: Duration,
    /// Longest way of a request or an answer.
    pub way: Duration,
    /// A way is up to 100 times as long.
    pub slow: u32,
    /// A hint is lost.
    pub hint_lost: u32,
    /// A notice is lost; every other time it is said that it was.
    pub notice_lost: u32,
    /// Time between changes of leader, at most.
    pub leads: Duration,
    /// How long a deposed leader goes on, at most.
    pub deposed: Duration,
    /// Time between pauses of gateways, at most, and how long they last.
    pub pauses: Duration,
    /// Time between kills of gateways, at most.
    pub kills: Duration,
    /// How long a leader takes to write the end of a session that it has decided on, at most.
    pub ending: Duration,
}

/// No fault at all.
pub const CALM: Faults = Faults {
    lost: 0,
    dropped: 0,
    refused: 0,
    late: 0,
    late_by: Duration::ZERO,
    way: Duration::from_millis(2),
    slow: 0,
    hint_lost: 0,
    notice_lost: 0,
    leads: Duration::MAX,
    deposed: Duration::ZERO,
    pauses: Duration::MAX,
    kills: Duration::MAX,
    ending: Duration::ZERO,
};

/// A write.
#[derive(Clone, Debug)]
pub enum Write {
    /// To the log.
    Append(Bytes),
    /// A session with this timeout.
    Session(Duration),
    /// The end of a session.
    Close(u64),
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
    session: Option<u64>,
}

#[derive(Clone, Debug)]
struct Session {
    timeout: Duration,
    deadline: Instant,
    // Its end has been decided on and will be written then.
    ends: Option<Instant>,
}

/// What a node has applied.
#[derive(Clone, Debug)]
pub struct State {
    /// The log from position 1, each with the time from which scans see it.
    log: Vec<(Bytes, Instant)>,
    trimmed: u64,
    /// Records beside it.
    pub kept: BTreeMap<String, Kept>,
    sessions: BTreeMap<u64, Session>,
    next_session: u64,
    next_version: i64,
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
            found.deadline = now + found.timeout;
        }
        true
    }
}

struct Deposed {
    term: u64,
    state: State,
    until: Instant,
}

struct Late {
    at: Instant,
    term: u64,
    write: Write,
}

/// One gateway's connection.
pub struct Link {
    /// Killed: nothing comes or goes any more.
    pub dead: bool,
    /// Stands still until then.
    pub paused: Instant,
    /// Found that the log was trimmed beyond what it has applied, and waits to be started again.
    pub left_behind: bool,
    /// Told when it is killed.
    pub killed: Arc<Notify>,
    believes: u64,
    learns: Instant,
    hints: watch::Sender<u64>,
    notices: VecDeque<(Instant, Notice)>,
    noticed: Arc<Notify>,
}

/// What the simulation consists of, besides the gateways.
pub struct Inner {
    /// The only source of chance.
    pub random: StdRng,
    /// What goes wrong now.
    pub faults: Faults,
    /// The term of the leader.
    pub term: u64,
    leads_from: Instant,
    truth: State,
    deposed: Vec<Deposed>,
    late: Vec<Late>,
    /// Connections, those of killed gateways included.
    pub links: Vec<Link>,
    /// What is true.
    pub oracle: Oracle,
    /// Highest revision that any client has seen.
    pub seen: i64,
    /// Session ids are given out again.
    pub forgets_ids: bool,
    /// Growth of the log after which there is a checkpoint.
    pub checkpoint_bytes: u64,
    /// Nothing goes wrong any more.
    pub is_calm: bool,
    begun: Instant,
    trace: std::hash::DefaultHasher,
    loud: bool,
}

/// The shard.
pub struct World(Mutex<Inner>);

impl World {
    /// An empty one.
    pub fn new(seed: u64, faults: Faults) -> Arc<Self> {
        let now = Instant::now();
        let truth = State {
            log: Vec::new(),
            trimmed: 0,
            kept: BTreeMap::new(),
            sessions: BTreeMap::new(),
            next_session: 1,
            next_version: 1,
        };
        Arc::new(Self(Mutex::new(Inner {
            random: StdRng::seed_from_u64(seed ^ 0x5eed),
            faults,
            term: 1,
            leads_from: now,
            truth,
            deposed: Vec::new(),
            late: Vec::new(),
            links: Vec::new(),
            oracle: Oracle::new(),
            seen: 0,
            forgets_ids: false,
            checkpoint_bytes: u64::MAX,
            is_calm: false,
            begun: now,
            trace: std::hash::DefaultHasher::new(),
            loud: std::env::var_os("LEASEWAY_TRACE").is_some(),
        })))
    }

    /// Everything in it.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl Inner {
    /// Notes what happened.
    pub fn note(&mut self, what: &str, a: u64, b: u64) {
        let at = self.begun.elapsed().as_micros() as u64;
        self.trace.write(what.as_bytes());
        for number in [at, a, b] {
            self.trace.write_u64(number);
        }
        if self.loud {
            println!("{:>9.3} ms {what} {a} {b}", at as f64 / 1000.0);
        }
    }

    /// One number for everything noted so far.
    pub fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// Whether something that happens so many times in a thousand happens.
    pub fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.random.random_range(0..1000) < thousandths
    }

    /// Up to `most`.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX / 2);
        Duration::from_micros(self.random.random_range(0..=most))
    }

    /// How long a request or an answer takes.
    pub fn way(&mut self) -> Duration {
        let factor = if self.happens(self.faults.slow) { 100 } else { 1 };
        self.up_to(self.faults.way * factor)
    }

    /// A new connection; returns its number, and where hints arrive.
    pub fn connect(&mut self) -> (usize, watch::Receiver<u64>) {
        let (hints, receiver) = watch::channel(0);
        let now = Instant::now();
        self.links.push(Link {
            dead: false,
            left_behind: false,
            paused: now,
            killed: Arc::default(),
            believes: self.term,
            learns: now,
            hints,
            notices: VecDeque::new(),
            noticed: Arc::default(),
        });
        (self.links.len() - 1, receiver)
    }

    /// The term of the leader that a gateway believes in.
    pub fn believed(&mut self, link: usize) -> u64 {
        let link = &mut self.links[link];
        if link.learns <= Instant::now() {
            link.believes = self.term;
        }
        link.believes
    }

    /// A request came to nothing: the gateway looks for another leader.
    pub fn disappointed(&mut self, link: usize) {
        if self.happens(600) {
            self.links[link].believes = self.term;
        }
    }

    /// What the node that leads, or believes to lead, in a term has applied.
    pub fn state(&mut self, term: u64) -> Option<&mut State> {
        let now = Instant::now();
        if term == self.term {
            return (now >= self.leads_from).then_some(&mut self.truth);
        }
        let node = self.deposed.iter_mut().find(|node| node.term == term && now < node.until)?;
        Some(&mut node.state)
    }

    /// Whether the leader of a term leads indeed.
    pub fn leads(&self, term: u64) -> bool {
        term == self.term && Instant::now() >= self.leads_from
    }

    /// Something that lands after its sender was told that there is no answer.
    pub fn land_late(&mut self, write: Write) {
        let at = Instant::now() + self.up_to(self.faults.late_by);
        self.late.push(Late { at, term: self.term, write });
    }

    /// A heartbeat at the node that leads, or believes to lead, in a term; `None` without one.
    pub fn beat(&mut self, term: u64, session: u64) -> Option<bool> {
        let (now, leads, vague) = (Instant::now(), self.leads(term), self.happens(500));
        let state = self.state(term)?;
        if leads {
            return Some(state.beat(session, now));
        }
        // A deposed leader ends sessions as well, but only in its own memory.
        let over = state.sessions.get(&session).is_none_or(|session| session.deadline <= now);
        Some(if over && vague { false } else { state.beat(session, now) })
    }

    /// How long a session lives and has left; `None` when it is not known.
    pub fn session(&mut self, term: u64, session: u64) -> Option<Option<(Duration, Duration)>> {
        let now = Instant::now();
        let found = self.state(term)?.sessions.get(&session);
        Some(found.map(|found| (found.timeout, found.deadline.saturating_duration_since(now))))
    }

    /// A write takes effect. Scans see it within `lag`; returns from when on, too.
    pub fn commit(&mut self, write: Write, lag: Duration) -> (Done, Instant) {
        let now = Instant::now();
        let truth = &mut self.truth;
        let done = match write {
            Write::Append(record) => {
                let seen = truth.log.last().map_or(now, |(_, seen)| *seen).max(now + lag);
                truth.log.push((record.clone(), seen));
                let position = truth.log.len() as u64;
                self.oracle.land(&record, now);
                self.note("landed", position, record.len() as u64);
                self.hint(position);
                return (Done::Number(position), seen);
            }
            Write::Session(timeout) => {
                while truth.sessions.contains_key(&truth.next_session) {
                    truth.next_session += 1;
                }
                let id = truth.next_session;
                truth.next_session += 1;
                let session = Session { timeout, deadline: now + timeout, ends: None };
                truth.sessions.insert(id, session);
                self.note("session", id, timeout.as_millis() as u64);
                Done::Number(id)
            }
            Write::Close(session) => {
                self.end(session);
                Done::Was(true)
            }
            Write::Put(name, value, expected, session) => self.put(name, value, expected, session),
            Write::Delete(name) => {
                if self.truth.kept.remove(&name).is_some() {
                    self.tell(vec![name]);
                }
                Done::Was(true)
            }
            Write::DeleteFolder(folder) => {
                truth.kept.retain(|name, _| !name.starts_with(&folder));
                Done::Was(true)
            }
            Write::Trim(through) => {
                let newest = truth.log.len() as u64;
                truth.trimmed = truth.trimmed.max(through.min(newest.saturating_sub(1)));
                Done::Was(true)
            }
        };
        (done, now)
    }

    fn put(
        &mut self,
        name: String,
        value: Bytes,
        expected: Expected,
        session: Option<u64>,
    ) -> Done {
        let truth = &mut self.truth;
        let found = truth.kept.get(&name).map(|kept| kept.version);
        let as_expected = match expected {
            Expected::Anything => true,
            Expected::Absent => found.is_none(),
            Expected::Version(version) => found == Some(version),
        };
        if session.is_some_and(|session| !truth.sessions.contains_key(&session)) {
            return Done::NoSession;
        }
        if as_expected {
            truth.kept.insert(name, Kept { value, version: truth.next_version, session });
            truth.next_version += 1;
        }
        Done::Was(as_expected)
    }

    fn end(&mut self, session: u64) {
        if self.truth.sessions.remove(&session).is_none() {
            return;
        }
        self.note("session ended", session, 0);
        let mut names = Vec::new();
        self.truth.kept.retain(|name, kept| {
            let goes = kept.session == Some(session);
            if goes {
                names.push(name.clone());
            }
            !goes
        });
        if !names.is_empty() {
            self.tell(names);
        }
    }

    fn hint(&mut self, position: u64) {
        for link in 0..self.links.len() {
            if !self.happens(self.faults.hint_lost) {
                self.links[link].hints.send_replace(position);
            }
        }
    }

    fn tell(&mut self, names: Vec<String>) {
        for link in 0..self.links.len() {
            let at = Instant::now() + self.way();
            let notice = if !self.happens(self.faults.notice_lost) {
                Notice::Deleted(names.clone())
            } else if self.happens(500) {
                Notice::Gap
            } else {
                continue;
            };
            let link = &mut self.links[link];
            link.notices.push_back((at, notice));
            link.noticed.notify_one();
        }
    }

    /// The next notice of a link, or when there is one, or who tells when there may be.
    pub fn next_notice(&mut self, link: usize) -> Result<Notice, (Option<Instant>, Arc<Notify>)> {
        let link = &mut self.links[link];
        match link.notices.front() {
            Some((at, _)) if *at <= Instant::now() => link
                .notices
                .pop_front()
                .map(|(_, notice)| notice)
                .ok_or((None, link.noticed.clone())),
            Some((at, _)) => Err((Some(*at), link.noticed.clone())),
            None => Err((None, link.noticed.clone())),
        }
    }

    /// Lets happen what is due.
    pub fn tick(&mut self) {
        let now = Instant::now();
        self.deposed.retain(|node| now < node.until);
        if now < self.leads_from {
            return;
        }
        let (due, later) =
            std::mem::take(&mut self.late).into_iter().partition(|late| late.at <= now);
        self.late = later;
        for late in due {
            let _: &Late = &late;
            if late.term == self.term {
                self.commit(late.write, Duration::ZERO);
            }
        }
        let over: Vec<u64> = self
            .truth
            .sessions
            .iter()
            .filter(|(_, session)| {
                session.deadline <= now && session.ends.is_none_or(|ends| ends <= now)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            let wait = self.up_to(self.faults.ending);
            match self.truth.sessions.get_mut(&id) {
                Some(session) if session.ends.is_none() && !wait.is_zero() => {
                    session.ends = Some(now + wait);
                }
                _ => self.end(id),
            }
        }
    }

    /// Another node leads.
    pub fn depose(&mut self) {
        let now = Instant::now();
        // What was on its way has been replicated or not.
        for late in std::mem::take(&mut self.late) {
            if late.term == self.term && self.happens(400) {
                self.commit(late.write, Duration::ZERO);
            }
        }
        if self.happens(600) {
            let until = now + self.up_to(self.faults.deposed);
            self.deposed.push(Deposed { term: self.term, state: self.truth.clone(), until });
        }
        let most = if self.happens(150) { 2500 } else { 300 };
        self.leads_from = now + self.up_to(Duration::from_millis(most));
        self.term += 1;
        self.note("leads", self.term, 0);
        for session in self.truth.sessions.values_mut() {
            session.deadline = self.leads_from + session.timeout;
            session.ends = None;
        }
        if self.forgets_ids && self.happens(500) {
            self.truth.next_session = 1;
        }
        for link in 0..self.links.len() {
            let most = if self.happens(300) { Duration::ZERO } else { self.faults.deposed };
            self.links[link].learns = now + self.up_to(most);
        }
    }

    /// From now on nothing goes wrong.
    pub fn calm(&mut self) {
        self.faults = CALM;
        self.is_calm = true;
        self.deposed.clear();
        for late in std::mem::take(&mut self.late) {
            if late.term == self.term {
                self.commit(late.write, Duration::ZERO);
            }
        }
        let now = Instant::now();
        for link in &mut self.links {
            link.paused = now;
            link.learns = now;
        }
        self.note("calm", 0, 0);
    }
}

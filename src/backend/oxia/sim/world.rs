//! A simulated shard of an Oxia cluster: one history of writes, leaders that come and go, sessions with
//! a clock, and everything that can go wrong between a gateway and it.

use super::faults::{CALM, Faults};
use super::oracle::Oracle;
use super::state::{Done, Kept, Session, State, Write};
use crate::backend::oxia::shard::{Expected, Notice};
use crate::seams::{Clock, simulated};
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

/// What is due is looked at as often as this, at least. Less than any session lives.
const LONG: Duration = Duration::from_secs(1);

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
    /// How many thousandths of it any clock gains or loses at most.
    pub drift: u32,
    /// Told when something is due earlier than it was.
    pub changed: Arc<Notify>,
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
    /// Gateways compare hashes.
    pub compares: bool,
    /// The first gateway has the hash of something else.
    pub errs: bool,
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
            ahead: 0.0,
        };
        let mut inner = Inner {
            random: StdRng::seed_from_u64(seed ^ 0x5eed),
            faults,
            drift: faults.drift,
            changed: Arc::default(),
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
            compares: false,
            errs: false,
            is_calm: false,
            begun: now,
            trace: std::hash::DefaultHasher::new(),
            loud: std::env::var_os("LEASEWAY_TRACE").is_some(),
        };
        inner.truth.ahead = inner.gain();
        Arc::new(Self(Mutex::new(inner)))
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

    /// How much a clock gains, as a share of the time that passes.
    fn gain(&mut self) -> f64 {
        if self.drift == 0 {
            return 0.0;
        }
        let most = f64::from(self.drift) / 1000.0;
        // Clocks that are as far apart as they may be show the most.
        let share = if self.happens(300) { 1.0 } else { self.random.random_range(0.0..1.0) };
        if self.happens(500) { most * share } else { -most * share }
    }

    /// A gateway's clock.
    pub fn clock(&mut self) -> Clock {
        let (late, late_by) = (self.faults.timer_late, self.faults.timer_late_by);
        simulated::clock((self.gain() * 1e6) as i32, late, late_by)
    }

    /// What is left of a promise of so much time when each clock may run as wrong as it can.
    pub fn at_least(&self, time: Duration) -> Duration {
        time.mul_f64(1.0 - f64::from(self.drift) / 1000.0)
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
        if self.happens(self.faults.looks) {
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
        self.changed.notify_one();
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
                let session = Session { timeout, deadline: truth.over(timeout, now), ends: None };
                truth.sessions.insert(id, session);
                self.note("session", id, timeout.as_millis() as u64);
                Done::Number(id)
            }
            // A leader looks for the record first, and gives out no id twice.
            Write::Close(session, record) => {
                let with = |record| truth.kept.get(&record).and_then(|kept| kept.session);
                if record.is_none_or(|record| with(record) == Some(session)) {
                    self.end(session);
                }
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
            let now = Instant::now();
            self.oracle.gone.extend(names.iter().map(|name| (name.clone(), now)));
            self.tell(names);
        }
    }

    /// All gateways are cut off until then.
    pub fn cut(&mut self, until: Instant) {
        let now = Instant::now();
        for link in &mut self.links {
            link.paused = until;
        }
        self.note("cut", (until - now).as_millis() as u64, 0);
        self.oracle.cuts.push((now, until));
    }

    /// All gateways are told that notices may be missing.
    pub fn gap(&mut self) {
        let now = Instant::now();
        for link in &mut self.links {
            link.notices.push_back((now, Notice::Gap));
            link.noticed.notify_one();
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

    /// Lets happen what is due; returns when something is due next, unless that changes.
    pub fn tick(&mut self) -> Instant {
        let now = Instant::now();
        self.deposed.retain(|node| now < node.until);
        if now < self.leads_from {
            return self.leads_from;
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
        for id in self.truth.due(now) {
            let wait = self.up_to(self.faults.ending);
            match self.truth.sessions.get_mut(&id) {
                Some(session) if session.ends.is_none() && !wait.is_zero() => {
                    session.ends = Some(now + wait);
                }
                _ => self.end(id),
            }
        }
        let late = self.late.iter().map(|late| late.at);
        late.chain(self.truth.next_due()).min().unwrap_or(now + LONG).min(now + LONG)
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
        self.truth.ahead = self.gain();
        self.truth.start_again(self.leads_from);
        self.changed.notify_one();
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
        // One that ends early may have been too short to be noticed.
        self.oracle.cuts.retain(|(_, until)| *until <= now);
        for link in &mut self.links {
            link.paused = now;
            link.learns = now;
        }
        self.changed.notify_one();
        self.note("calm", 0, 0);
    }
}

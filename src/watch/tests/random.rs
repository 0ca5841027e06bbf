//! Random clients against a writer at full speed.
//!
//! Whatever the interleaving, each watcher must see exactly the revisions that it asked for, whole,
//! in order and once, or be told of a compaction that took some of them; and progress must be true.

use super::*;
use crate::watch::fake::Logged;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

const KEYS: [&str; 6] = ["a", "a1", "b", "b/x", "c", "\u{7f}z"];
const REVISIONS: i64 = 1500;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn key(&mut self) -> &'static str {
        KEYS[self.below(KEYS.len() as u64) as usize]
    }
}

/// What a client knows of one of its watchers.
#[derive(Debug)]
struct Seen {
    asked: CreateWatcher,
    /// Everything it should have been sent below this revision, it was sent.
    next: i64,
    dead: bool,
}

impl Seen {
    /// What it should be sent of a revision.
    fn expected(&self, history: &FakeHistory, revision: i64) -> Vec<Logged> {
        let wanted = |logged: &Logged| {
            let put = decode_kind(logged) == 0;
            self.asked.range.contains(&logged.event.key)
                && (!put || !self.asked.no_put)
                && (put || !self.asked.no_delete)
        };
        history.logged(revision).into_iter().filter(wanted).collect()
    }

    /// Nothing was to be sent between the cursor and this revision.
    fn pass(&mut self, history: &FakeHistory, to: i64, why: &str) {
        for revision in self.next..to {
            let missed = self.expected(history, revision);
            assert!(missed.is_empty(), "{why}: revision {revision} is missing: {missed:?}");
        }
        self.next = self.next.max(to);
    }

    fn take(&mut self, history: &FakeHistory, header: i64, batch: &Batch) {
        assert!(!self.dead, "events after the end");
        let events = decode(batch);
        assert!(!events.is_empty());
        let revision = |event: &mvccpb::Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        for run in events.chunk_by(|a, b| revision(a) == revision(b)) {
            let at = revision(&run[0]);
            assert!(at >= self.next, "revision {at} again, or below the start {}", self.next);
            assert!(header >= at);
            self.pass(history, at, "events");
            let expected = self.expected(history, at);
            assert_eq!(run.len(), expected.len(), "part of revision {at}");
            let compacted = history.visible().compacted;
            for (event, logged) in run.iter().zip(&expected) {
                let full = logged.plain(self.asked.prev_kv);
                let thinned = mvccpb::Event { prev_kv: None, ..full.clone() };
                assert!(*event == full || (at <= compacted && *event == thinned), "{event:?}");
            }
            self.next = at + 1;
        }
    }
}

fn decode_kind(logged: &Logged) -> i32 {
    logged.plain(false).r#type
}

struct RandomClient {
    control: StreamControl,
    notices: Notices,
    /// Asked for, not answered yet, in order.
    asked: Vec<CreateWatcher>,
    seen: HashMap<i64, Seen>,
    /// What was visible at the oldest progress request that may still be answered.
    progress: Vec<i64>,
    answers: usize,
}

impl std::fmt::Debug for RandomClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.asked, self.seen)
    }
}

impl RandomClient {
    fn open(hub: &Hub) -> Self {
        let (control, notices) = hub.open().expect("open");
        let (asked, seen, progress) = (Vec::new(), HashMap::new(), Vec::new());
        Self { control, notices, asked, seen, progress, answers: 0 }
    }

    fn act(&mut self, random: &mut Random, history: &FakeHistory) {
        match random.below(20) {
            0..5 => self.create(random, history),
            5 => {
                let id = self.seen.keys().min().copied().unwrap_or(7);
                let _ = poll_once(self.control.cancel(id));
            }
            6..9 => {
                let visible = history.visible().revision;
                if poll_once(self.control.progress()).is_some() {
                    self.progress.push(visible);
                }
            }
            9 => self.control.tick(),
            _ => {
                for _ in 0..random.below(60) {
                    self.read(history);
                }
            }
        }
    }

    fn create(&mut self, random: &mut Random, history: &FakeHistory) {
        let visible = history.visible();
        let start_revision = match random.below(5) {
            0 => 0,
            1 => visible.revision + random.below(4) as i64,
            2 => visible.revision + random.below(50) as i64,
            3 => (visible.compacted - 2 + random.below(100) as i64).max(1),
            _ => 1 + random.below(visible.revision as u64) as i64,
        };
        let range_end = match random.below(3) {
            0 => "",
            1 => "\0",
            _ => "c",
        };
        let asked = CreateWatcher {
            prev_kv: random.one_in(2),
            progress_notify: random.one_in(3),
            fragment: random.one_in(4),
            no_put: random.one_in(6),
            no_delete: random.one_in(6),
            ..watch(random.key(), range_end, start_revision)
        };
        if poll_once(self.control.create(asked.clone())).is_some() {
            self.asked.push(asked);
        }
    }

    /// Reads one notice and checks it. False when there is none.
    fn read(&mut self, history: &FakeHistory) -> bool {
        let Some(notice) = take(&mut self.notices) else { return false };
        let id = notice.watch_id;
        match notice.what {
            What::Created => {
                let asked = self.asked.remove(0);
                let start = asked.start_revision;
                let next = if start == 0 { notice.revision + 1 } else { start };
                assert!(self.seen.insert(id, Seen { asked, next, dead: false }).is_none());
            }
            What::Refused(_) => {
                let asked = self.asked.remove(0);
                assert!(asked.range.is_empty(), "{asked:?}");
            }
            What::Canceled => assert!(self.seen.remove(&id).is_some()),
            What::Compacted(compacted) => {
                assert_eq!(notice.revision, 0);
                let seen = self.seen.get_mut(&id).expect("created before");
                assert!(seen.next < compacted && !seen.dead, "nothing needed was compacted");
                seen.dead = true;
            }
            What::Events { batch, fragment } => {
                let seen = self.seen.get_mut(&id).expect("created before");
                assert_eq!(fragment, seen.asked.fragment);
                seen.take(history, notice.revision, &batch);
            }
            What::Progress if id == -1 => {
                self.answers += 1;
                assert!(notice.revision >= self.progress.remove(0), "less than was visible");
                for seen in self.seen.values_mut() {
                    assert!(!seen.dead && seen.asked.start_revision <= notice.revision);
                    assert!(seen.next <= notice.revision + 1);
                    seen.pass(history, notice.revision + 1, "progress");
                }
            }
            What::Progress => {
                let seen = self.seen.get_mut(&id).expect("created before");
                assert!(seen.asked.progress_notify && !seen.dead);
                seen.pass(history, notice.revision + 1, "periodic progress");
            }
        }
        true
    }

    /// Reads until every watcher has everything up to `revision`, then asks for progress.
    fn finish(&mut self, history: &FakeHistory, revision: i64) {
        let end = Instant::now() + DEADLINE;
        let lacks = |seen: &Seen| {
            let mut rest = seen.next..=revision;
            !seen.dead && rest.any(|revision| !seen.expected(history, revision).is_empty())
        };
        while !self.asked.is_empty() || self.seen.values().any(lacks) {
            if !self.read(history) {
                assert!(Instant::now() < end, "missing at the end: {self:?}");
                std::thread::yield_now();
            }
        }
        while self.read(history) {}
        // The hub may still be moving the last of them: then it stays silent and is asked again.
        let before = self.answers;
        while self.answers == before {
            // A compaction may yet end one that was behind with nothing to be sent.
            let silent = |seen: &Seen| seen.dead || seen.asked.start_revision > revision;
            if self.seen.is_empty() || self.seen.values().any(silent) {
                return;
            }
            assert!(Instant::now() < end, "no progress at the end: {self:?}");
            if poll_once(self.control.progress()).is_some() {
                self.progress.push(revision);
            }
            std::thread::sleep(Duration::from_millis(1));
            while self.read(history) {}
        }
    }
}

/// Commits at random, with some of it not published but left to be read from history.
fn write(history: &FakeHistory, hub: &Hub, mut random: Random) {
    while history.visible().revision < REVISIONS {
        let mut group = Vec::new();
        for _ in 0..1 + random.below(8) {
            let mut changes = vec![Change::Put(random.key(), vec![1; random.below(200) as usize])];
            for _ in 0..random.below(4) {
                let key = random.key();
                let taken =
                    |c: &Change| matches!(c, Change::Put(k, _) | Change::Delete(k) if *k == key);
                if changes.iter().any(taken) {
                    continue;
                }
                changes.push(match random.below(3) {
                    0 => Change::Delete(key),
                    _ => Change::Put(key, vec![2; random.below(50) as usize]),
                });
            }
            group.push(history.commit(&changes));
        }
        if random.one_in(12) {
            group.truncate(group.len() / 2);
        }
        hub.publish(group, history.visible());
        if random.one_in(60) {
            let visible = history.visible();
            let span = (visible.revision - visible.compacted.max(0)) as u64;
            history.compact(visible.compacted.max(0) + random.below(span + 1) as i64);
        }
        if random.one_in(4) {
            std::thread::sleep(Duration::from_micros(random.below(1500)));
        }
    }
    hub.publish(Vec::new(), history.visible());
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..10 {
        random.below(2);
    }
    let settings = Settings {
        outbox_bytes: 1 << (7 + random.below(10)),
        outbox_notices: 1 << random.below(8),
        published_bytes: 1 << (8 + random.below(14)),
        chunk_bytes: 1 << (6 + random.below(12)),
        chunk_events: 1 << random.below(10),
    };
    let history = Arc::new(FakeHistory::default());
    history.delay_us.store(random.below(4) * 200, Ordering::Relaxed);
    let hub = Hub::start(history.clone(), settings).expect("threads");
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = Random(random.below(1 << 50) | 1);
        scope.spawn(|| {
            write(&history, &hub, writer);
            written.store(true, Ordering::Release);
        });
        let mut clients: Vec<RandomClient> = (0..4).map(|_| RandomClient::open(&hub)).collect();
        let end = Instant::now() + DEADLINE;
        while !written.load(Ordering::Acquire) {
            assert!(Instant::now() < end, "the writer is stuck");
            let chosen = random.below(clients.len() as u64) as usize;
            if random.one_in(150) {
                clients[chosen] = RandomClient::open(&hub);
            } else if clients[chosen].seen.len() < 40 {
                clients[chosen].act(&mut random, &history);
            } else {
                clients[chosen].read(&history);
            }
        }
        let revision = history.visible().revision;
        for client in &mut clients {
            client.finish(&history, revision);
        }
        drop(clients);
        wait("everything is freed", || hub.stats().streams() == 0);
        let stats = hub.stats();
        let left = (stats.watchers(), stats.slow_watchers(), stats.events_pending());
        assert_eq!(left, (0, 0, 0));
    });
    hub.close();
}

/// More seeds: `WATCH_SEEDS=1000 cargo test watch`; one seed: `WATCH_SEED=17`.
#[test]
fn random_clients_see_exactly_what_they_asked_for() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("WATCH_SEED") {
        return run(seed);
    }
    for seed in 0..number("WATCH_SEEDS").unwrap_or(10) {
        println!("seed {seed}");
        run(seed);
    }
}

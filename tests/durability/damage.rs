//! Files that are not what was written.
//!
//! A stopped server's files are damaged at one place, and the server is started: it must either say
//! so and end, or serve everything. The only loss that cannot be told from an unfinished write is
//! that of the last records of a log: there, and only there, an earlier revision may come back, and
//! then exactly as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::request_op::Request;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::history::{Changes, Model};
use crate::support::Server;
use crate::support::client::{Client, op, put, revision};

/// The database itself, of which nothing may be lost.
const STORE: &str = "keyspace.redb";
/// Not data: its contents mean nothing.
const LOCK: &str = "LOCK";
const LEASES: [i64; 3] = [7, 8, 9];

type Files = BTreeMap<String, Vec<u8>>;

fn read_files(dir: &Path) -> Files {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("a file"));
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let name = |path: PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    files
        .map(|entry| (name(entry.path()), std::fs::read(entry.path()).expect("readable")))
        .collect()
}

/// Makes a directory hold these files, and writes only what differs.
fn write_files(dir: &Path, files: &Files) {
    let there = read_files(dir);
    for name in there.keys().filter(|name| !files.contains_key(*name)) {
        std::fs::remove_file(dir.join(name)).expect("removable");
    }
    for (name, contents) in
        files.iter().filter(|(name, contents)| there.get(*name) != Some(contents))
    {
        std::fs::write(dir.join(name), contents).expect("writable");
    }
}

/// From the first to behind the last byte that differs; `None` when all are equal.
fn difference(before: &[u8], after: &[u8]) -> Option<Range<usize>> {
    // In pieces, which are compared fast.
    const PIECE: usize = 256;
    let length = before.len().max(after.len());
    let piece = |bytes: &'_ [u8], nth: usize| -> Range<usize> {
        (nth * PIECE).min(bytes.len())..((nth + 1) * PIECE).min(bytes.len())
    };
    let differs = |&nth: &usize| before[piece(before, nth)] != after[piece(after, nth)];
    let first = (0..length.div_ceil(PIECE)).find(differs)?;
    let last = (0..length.div_ceil(PIECE)).rev().find(differs)?;
    let differs = |&at: &usize| before.get(at) != after.get(at);
    let start = (first * PIECE..length).find(differs)?;
    let end = (start..((last + 1) * PIECE).min(length)).rev().find(differs)? + 1;
    Some(start..end)
}

/// What was written, and where in the logs.
#[derive(Default)]
struct Written {
    /// Changes of the revisions from 2 on.
    changes: Vec<Changes>,
    /// For each file but the store, where each of the last revisions stands.
    records: BTreeMap<String, BTreeMap<i64, Range<usize>>>,
    compacted: i64,
    /// The files before the last writes.
    earlier: Files,
    /// The files as they were looked at last.
    files: Files,
}

impl Written {
    fn last(&self) -> i64 {
        self.changes.len() as i64 + 1
    }

    fn model(&self, revision: i64) -> Model {
        let mut model = Model { leases: LEASES.into(), ..Model::default() };
        self.changes[..(revision - 1) as usize].iter().for_each(|changes| model.apply(changes));
        model
    }

    /// Writes one revision.
    async fn write(&mut self, client: &Client, random: &mut StdRng) {
        let model = self.model(self.last());
        let key = |random: &mut StdRng| format!("k{}", random.random_range(0..60)).into_bytes();
        let value = |random: &mut StdRng| {
            let mut value = vec![0; random.random_range(1..2_000)];
            random.fill(&mut value[..]);
            value
        };
        let first = key(random);
        let changes: Changes = if model.rows.contains_key(&first) && random.random_bool(0.2) {
            vec![(first, None)]
        } else if random.random_bool(0.2) {
            let keys = (0..5).map(|_| key(random)).collect::<BTreeSet<_>>();
            keys.into_iter().map(|key| (key, Some((value(random), 0)))).collect()
        } else {
            let lease = if random.random_bool(0.2) { LEASES[random.random_range(0..3)] } else { 0 };
            vec![(first, Some((value(random), lease)))]
        };
        let made = match &changes[..] {
            [(key, None)] => client.delete(key.clone()).await,
            changes => {
                let puts = changes.iter().map(|(key, value)| {
                    let (value, lease) = value.clone().expect("a put");
                    op(Request::RequestPut(put(key.clone(), value, lease)))
                });
                let request = pb::TxnRequest { success: puts.collect(), ..Default::default() };
                client.txn(request).await.map(|answer| revision(answer.header.as_ref()))
            }
        };
        self.changes.push(changes);
        assert_eq!(made.expect("an answer"), self.last());
    }

    /// Finds out where the last revision has been written to.
    fn locate(&mut self, dir: &Path) {
        let now = read_files(dir);
        let last = self.last();
        for (name, contents) in &now {
            if name == STORE || name == LOCK {
                continue;
            }
            let none = Vec::new();
            let before = self.files.get(name).unwrap_or(&none);
            let Some(Range { start, end }) = difference(before, contents) else { continue };
            let records = self.records.entry(name.clone()).or_default();
            if records.values().any(|record| start < record.end) {
                // Begun anew: what it held is in the store.
                records.clear();
            }
            records.insert(last, start..end);
        }
        self.files = now;
    }

    /// The earliest revision that may come back after damage to these bytes.
    fn earliest(&self, file: &str, damaged: &Range<usize>) -> i64 {
        let none = BTreeMap::new();
        let records = self.records.get(file).unwrap_or(&none);
        let hit = |record: &Range<usize>| record.start < damaged.end && damaged.start < record.end;
        // Only when everything from there on is damaged may it be an unfinished write.
        let spared = records.iter().rev().find(|(_, record)| !hit(record));
        match (spared, records.first_key_value()) {
            (Some((&spared, _)), _) => spared,
            (None, Some((&first, _))) => first - 1,
            (None, None) => self.last(),
        }
    }
}

/// One way to damage a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip {
        at: usize,
        bits: u8,
    },
    Fill {
        range: Range<usize>,
        byte: u8,
    },
    Garbage {
        range: Range<usize>,
        seed: u64,
    },
    Truncate {
        to: usize,
    },
    Append {
        length: usize,
        seed: u64,
    },
    Remove,
    /// The file as it was before the last writes.
    Earlier,
}

impl Damage {
    /// Damages one of the files; returns what was hit.
    fn apply(&self, name: &str, files: &mut Files, earlier: &Files) -> Range<usize> {
        let contents = files.get_mut(name).expect("a file");
        let length = contents.len();
        match self.clone() {
            Damage::Flip { at, bits } => {
                contents[at] ^= bits;
                at..at + 1
            }
            Damage::Fill { range, byte } => {
                contents[range.clone()].fill(byte);
                range
            }
            Damage::Garbage { range, seed } => {
                StdRng::seed_from_u64(seed).fill(&mut contents[range.clone()]);
                range
            }
            Damage::Truncate { to } => {
                contents.truncate(to);
                to..length
            }
            Damage::Append { length: more, seed } => {
                contents.resize(length + more, 0);
                StdRng::seed_from_u64(seed).fill(&mut contents[length..]);
                length..length + more
            }
            Damage::Remove => {
                files.remove(name);
                0..0
            }
            Damage::Earlier => {
                contents.clone_from(&earlier[name]);
                0..0
            }
        }
    }

    /// A number of damages to a file, most of them where there is something.
    fn choose(contents: &[u8], random: &mut StdRng, flips: usize) -> Vec<Damage> {
        let length = contents.len();
        if length == 0 {
            return Vec::new();
        }
        let used: Vec<usize> = (0..length).filter(|&at| contents[at] != 0).collect();
        let place = |random: &mut StdRng| {
            let anywhere = used.is_empty() || random.random_bool(0.1);
            if anywhere {
                random.random_range(0..length)
            } else {
                used[random.random_range(0..used.len())]
            }
        };
        let block = |random: &mut StdRng, size: usize| {
            let start = place(random) / size * size;
            start..(start + size).min(length)
        };
        let mut damages = Vec::new();
        for nth in 0..flips {
            // The beginning of a file is special in most formats, and so is its end.
            let at = match nth % 5 {
                0 => random.random_range(0..length.min(400)),
                1 => *used.get(used.len().saturating_sub(1 + nth)).unwrap_or(&0),
                _ => place(random),
            };
            damages.push(Damage::Flip { at, bits: 1 << random.random_range(0..8) });
        }
        for _ in 0..flips / 4 {
            damages.push(Damage::Fill { range: block(random, 512), byte: 0 });
            damages.push(Damage::Garbage { range: block(random, 4096), seed: random.random() });
            damages.push(Damage::Truncate { to: random.random_range(0..length) });
            let end = used.last().map_or(0, |last| last + 1);
            damages
                .push(Damage::Truncate { to: end.saturating_sub(random.random_range(1..3_000)) });
        }
        damages.extend([0, 1, length / 2, length - 1].map(|to| Damage::Truncate { to }));
        damages.push(Damage::Fill { range: 0..length.min(512), byte: 0xff });
        damages.push(Damage::Append { length: 100, seed: random.random() });
        damages.push(Damage::Remove);
        damages
    }
}

/// How a start on damaged files went.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Reported,
    Served,
    Wrong(String),
}

/// Starts the server on its damaged files.
async fn start(server: &mut Server, written: &Written, earliest: i64) -> Outcome {
    if let Err(code) = server.try_restart() {
        let log = server.log();
        let last = log.lines().last().unwrap_or_default();
        let complaints = log.lines().filter(|line| line.contains("\"level\":\"error\"")).count();
        let clear = code == Some(1)
            && complaints == 1
            && last.contains("\"level\":\"error\"")
            && last.contains("data/")
            && !log.contains("stack backtrace");
        return if clear { Outcome::Reported } else { Outcome::Wrong(format!("{code:?}: {log}")) };
    }
    let client = Client::connect(server.port).await;
    let shown = compare(&client, written, earliest).await;
    server.kill();
    match shown {
        Ok(()) => Outcome::Served,
        Err(what) => Outcome::Wrong(format!("{what}\n{}", server.log())),
    }
}

/// Compares everything that a server shows with what was written.
async fn compare(client: &Client, written: &Written, earliest: i64) -> Result<(), String> {
    let failed = |status: tonic::Status| format!("not served: {status:?}");
    let now = client.everything(0).await.map_err(failed)?;
    let current = revision(now.header.as_ref());
    let last = written.last();
    if !(earliest..=last).contains(&current) {
        return Err(format!("revision {current}, written {last}, may be {earliest}"));
    }
    let leases = client.leases().await.map_err(failed)?;
    if leases != LEASES {
        return Err(format!("leases {leases:?}"));
    }
    // Every revision of the history that is left.
    for at in (written.compacted.max(2)..=current).rev().step_by(7) {
        let model = written.model(at);
        let shown = client.everything(at).await.map_err(failed)?;
        let rows = shown.kvs.iter().map(|kv| (&kv.key[..], &kv.value[..], kv.lease, kv.version));
        let expected =
            model.rows.iter().map(|(key, row)| (&key[..], &row.value[..], row.lease, row.version));
        if !rows.eq(expected) {
            return Err(format!("wrong data at revision {at} of {current}"));
        }
    }
    Ok(())
}

/// Writes a history and ends the server, in order or without warning.
async fn prepare(server: &mut Server, random: &mut StdRng) -> Written {
    let mut written = Written::default();
    let client = Client::connect(server.port).await;
    for id in LEASES {
        client.grant(id, 3600).await.expect("a lease");
    }
    for _ in 0..200 {
        written.write(&client, random).await;
    }
    written.compacted = 100;
    client.compact(written.compacted, true).await.expect("compacts");
    server.stop();
    server.restart();
    let client = Client::connect(server.port).await;
    let dir = server.dir.path().join("data");
    written.earlier = read_files(&dir);
    written.files = written.earlier.clone();
    for _ in 0..60 {
        written.write(&client, random).await;
        written.locate(&dir);
    }
    written
}

async fn damage_everything(server: &mut Server, written: &Written, random: &mut StdRng) {
    let dir = server.dir.path().join("data");
    let intact = read_files(&dir);
    assert!(intact.contains_key(STORE), "{:?}", intact.keys());
    let mut wrong = Vec::new();
    let (mut reported, mut served) = (0, 0);
    for (name, contents) in &intact {
        let flips = if name == LOCK { 1 } else { 16 };
        let mut damages = Damage::choose(contents, random, flips);
        if name == STORE {
            damages.push(Damage::Earlier);
        }
        for damage in damages {
            let mut files = intact.clone();
            let damaged = damage.apply(name, &mut files, &written.earlier);
            write_files(&dir, &files);
            let earliest = written.earliest(name, &damaged);
            match start(server, written, earliest).await {
                Outcome::Reported if name == LOCK => wrong.push(format!("{name} {damage:?}")),
                Outcome::Reported => reported += 1,
                Outcome::Served => served += 1,
                Outcome::Wrong(what) => wrong.push(format!("{name} {damage:?}: {what}")),
            }
        }
    }
    println!("{reported} reported, {served} served");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(reported > 10 && served > 0, "{reported} reported, {served} served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_after_an_end_in_order_is_reported_or_harmless() {
    let mut random = StdRng::seed_from_u64(1);
    let mut server = Server::start(&[]);
    let written = prepare(&mut server, &mut random).await;
    server.stop();
    damage_everything(&mut server, &written, &mut random).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_after_kill_9_is_reported_or_harmless() {
    let mut random = StdRng::seed_from_u64(2);
    let mut server = Server::start(&[]);
    let written = prepare(&mut server, &mut random).await;
    server.kill();
    damage_everything(&mut server, &written, &mut random).await;
}

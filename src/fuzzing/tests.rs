//! Each target with its corpus, and with changes of it that a seed decides.

use super::{TARGETS, changes, choice, spelled};
use crate::gateway::json as gateway;
use crate::transfer::bolt;
use crate::transfer::import::ImportError;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::schema::METHODS;
use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::time::{Duration, Instant};

/// Changed inputs for each target.
const CHANGES: u64 = 3000;
/// How many of them are looked at for what they reach.
const ROUNDS: u64 = 500;
/// Valid requests of each method.
const SPELLINGS: u64 = 60;
/// Whatever is left of them after this is left out: the machine may be slow.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Files of etcd's for snapshots: they serve other tests as well.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = match name {
        "snapshot" => root.join("src/transfer/testdata"),
        name => root.join("src/fuzzing/corpus").join(name),
    };
    let entries = std::fs::read_dir(&dir).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| name != "snapshot" || file.extension().is_some_and(|end| end == "db"));
    files.sort();
    let mut inputs: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    if name == "json" {
        // One of every method's.
        let all = (0..METHODS.len()).map(|at| {
            let (text, _) = request_in_json(at, at as u64);
            [&[u8::try_from(at).unwrap()], text.as_bytes()].concat()
        });
        inputs.extend(all);
    }
    inputs
}

/// A valid request of a method's, and the same in its wire encoding.
fn request_in_json(method: usize, seed: u64) -> (String, Vec<u8>) {
    let (mut text, mut wire) = (String::new(), Vec::new());
    let mut random = StdRng::seed_from_u64(seed);
    spelled::message(METHODS[method].request, 0, &mut text, &mut wire, &mut random);
    (text, wire)
}

/// Most inputs of a known form keep it, as nearly every other change breaks it.
fn change(name: &str, input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    match name {
        "requests" if random.random_range(0..8) != 0 && !input.is_empty() => {
            // The first byte says what it is a message to.
            let mut message = input.split_off(1);
            changes::message(&mut message, others, random);
            input.append(&mut message);
        }
        "json" if random.random_range(0..8) != 0 && !input.is_empty() => {
            let mut text = input.split_off(1);
            spelled::change(&mut text, random);
            input.append(&mut text);
        }
        "snapshot" if random.random_range(0..8) != 0 => changes::page(input, random),
        _ => changes::bytes(input, others, random),
    }
}

/// One of the inputs after some changes.
fn changed(seeds: &[Vec<u8>], round: u64, change: impl Fn(&mut Vec<u8>, &mut StdRng)) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(round);
    let mut input = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..random.random_range(1..6) {
        change(&mut input, &mut random);
    }
    input
}

fn run(name: &str) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let seeds = corpus(name);
    assert!(!seeds.is_empty(), "{name} has a corpus");
    seeds.iter().for_each(|seed| target(seed));
    let started = Instant::now();
    let longer = std::env::var("LEASEWAY_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = longer.map_or(TIME_MAX, Duration::from_secs);
    for round in 0.. {
        if started.elapsed() > time || longer.is_none() && round == CHANGES {
            return;
        }
        let input = changed(&seeds, round, |input, random| change(name, input, &seeds, random));
        let outcome = std::panic::catch_unwind(|| target(&input));
        assert!(outcome.is_ok(), "round {round} of {name}: \"{}\"", input.escape_ascii());
    }
}

/// Whether a transaction, put or range is read.
fn request(data: &[u8]) -> Option<bool> {
    let (method, bytes) = choice(data, METHODS)?;
    match method.name {
        "Txn" => Some(pb::TxnRequest::decode(bytes).is_ok()),
        "Put" => Some(pb::PutRequest::decode(bytes).is_ok()),
        "Range" => Some(pb::RangeRequest::decode(bytes).is_ok()),
        _ => None,
    }
}

/// Whether a text is read as a request.
fn text(data: &[u8]) -> Option<bool> {
    let (method, text) = choice(data, METHODS)?;
    Some(gateway::is_request(method.request, text))
}

/// Whether keys of etcd's are found in a database file.
fn database(data: &[u8]) -> Option<bool> {
    let mut file = data.to_vec();
    bolt::reseal(&mut file);
    let keys = || {
        let mut database = bolt::Database::open(file.clone()).ok()?;
        let buckets = database.buckets().ok()?;
        let keys = buckets.iter().find(|bucket| bucket.name == b"key")?;
        let mut found = 0;
        let _ = database.scan::<ImportError>(keys, &mut |_, _| {
            found += 1;
            Ok(())
        });
        (found > 0).then_some(())
    };
    Some(keys().is_some())
}

#[test]
fn json() {
    run("json");
}

/// Every method's requests, however they are spelled, are read as what they say.
#[test]
fn spellings() {
    for (at, method) in METHODS.iter().enumerate() {
        for seed in 0..SPELLINGS {
            let (text, wire) = request_in_json(at, seed);
            gateway::check_request(method.request, text.as_bytes(), &wire);
        }
    }
}

#[test]
fn requests() {
    run("requests");
}

#[test]
fn snapshot() {
    run("snapshot");
}

#[test]
fn log() {
    run("log");
}

#[test]
fn records() {
    run("records");
}

#[test]
fn config() {
    run("config");
}

/// What forms are kept for: most of what is changed is still read, and not refused at its first bytes.
#[test]
fn what_lies_deep_is_reached() {
    let rate = |name: &str, read: fn(&[u8]) -> Option<bool>, keep: bool| {
        let seeds = corpus(name);
        let (mut tried, mut reached) = (0, 0);
        for round in 0..ROUNDS {
            let input = changed(&seeds, round, |input, random| match keep {
                true => change(name, input, &seeds, random),
                false => changes::bytes(input, &seeds, random),
            });
            let outcome = read(&input);
            tried += u64::from(outcome.is_some());
            reached += u64::from(outcome == Some(true));
        }
        100 * reached / tried
    };
    for (name, read) in [("requests", request as fn(&[u8]) -> _), ("snapshot", database)] {
        let (with, without) = (rate(name, read, true), rate(name, read, false));
        assert!(with > 50 && with > 2 * without, "{name}: {with} %, {without} %");
    }
    // Both what is read and what is refused, after it was taken apart.
    let rate = rate("json", text, true);
    assert!((10..90).contains(&rate), "{rate} %");
}

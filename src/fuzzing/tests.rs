//! Each target with its corpus, and with changes of it that a seed decides.

use super::TARGETS;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::time::{Duration, Instant};

/// Changed inputs for each target.
const CHANGES: u64 = 3000;
/// Whatever is left of them after this is left out: the machine may be slow.
const TIME_MAX: Duration = Duration::from_secs(8);
/// Bytes that mean something somewhere.
const BYTES: &[u8] =
    b"\0\x01\x02\x08\x0a\x12\x1a\x22\x7f\x80\xfe\xff\"\\{}[]:,0-9eu=/_ \n#&*|>'!%@";

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
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn change(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    let end = (at + random.random_range(1..9)).min(input.len());
    match random.random_range(0..8) {
        0 => drop(input.drain(at..end)),
        1 => input.truncate(at),
        2 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
        3 => input[at..end].fill(BYTES[random.random_range(0..BYTES.len())]),
        4 => {
            let piece = input[at..end].to_vec();
            drop(input.splice(at..at, piece));
        }
        5 => {
            let other = &others[random.random_range(0..others.len())];
            let from = random.random_range(0..=other.len());
            let to = (from + random.random_range(1..33)).min(other.len());
            drop(input.splice(at..end, other[from..to].iter().copied()));
        }
        6 if at < input.len() => input[at] = random.random(),
        _ => input.insert(at, BYTES[random.random_range(0..BYTES.len())]),
    }
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
        let mut random = StdRng::seed_from_u64(round);
        let mut input = seeds[random.random_range(0..seeds.len())].clone();
        for _ in 0..random.random_range(1..6) {
            change(&mut input, &seeds, &mut random);
        }
        let outcome = std::panic::catch_unwind(|| target(&input));
        assert!(outcome.is_ok(), "round {round} of {name}: \"{}\"", input.escape_ascii());
    }
}

#[test]
fn json() {
    run("json");
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

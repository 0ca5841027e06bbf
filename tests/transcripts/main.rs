//! Transcripts: what the keyspace does, as files to read. `data/README.md` explains their form.
//!
//! Each is run on the machine itself, in memory; what a client could have asked for is run on a real
//! etcd as well, when there is one, so that no transcript can record a bug of ours as right.

#[path = "../support/mod.rs"]
mod support;

mod etcd;
mod keyspace;
mod parse;
mod script;
mod text;

use std::path::{Path, PathBuf};

use parse::Action;
use script::Part;

/// Rewrites the files with what the machine answers, to be reviewed as a diff.
const REWRITE: &str = "LEASEWAY_REWRITE";

fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts/data");
    let entries = std::fs::read_dir(&dir).expect("a folder of transcripts");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    assert!(!files.is_empty(), "no transcripts in {}", dir.display());
    files
}

fn read(path: &Path) -> Vec<Part> {
    script::parse(&std::fs::read_to_string(path).expect("a readable transcript"))
}

/// Runs every step; returns the transcript as it should be, and what differed.
fn replay(
    path: &Path,
    parts: Vec<Part>,
    mut run: impl FnMut(&Action) -> String,
) -> (Vec<Part>, String) {
    let mut differences = String::new();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parts = parts.into_iter().map(|part| {
        let Part::Step { line, input, output: wanted } = part else { return part };
        let action = parse::action(&input).unwrap_or_else(|error| panic!("{name}:{line}: {error}"));
        let output = run(&action);
        if output != wanted {
            differences +=
                &format!("\n{name}:{line}: {input}\n---- should be\n{wanted}---- is\n{output}");
        }
        Part::Step { line, input, output }
    });
    let parts = parts.collect();
    (parts, differences)
}

#[test]
fn the_machine_does_what_the_transcripts_say() {
    let rewrite = std::env::var_os(REWRITE).is_some();
    let mut differences = String::new();
    for path in files() {
        let mut machine = keyspace::Driver::new();
        let (parts, different) = replay(&path, read(&path), |action| machine.run(action));
        machine.check_reload();
        if !rewrite {
            differences += &different;
        } else if !different.is_empty() {
            std::fs::write(&path, script::render(&parts)).expect("a writable transcript");
        }
    }
    assert!(differences.is_empty(), "{differences}\n({REWRITE}=1 rewrites the files)");
}

#[test]
fn a_real_etcd_does_what_the_transcripts_say() {
    let Some(binary) = support::real_etcd() else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut differences = String::new();
    for path in files() {
        let parts = read(&path);
        if !parts.iter().all(asks_as_a_client) {
            continue;
        }
        let mut etcd = runtime.block_on(etcd::Driver::start(&binary));
        let (_, different) = replay(&path, parts, |action| runtime.block_on(etcd.run(action)));
        differences += &different;
    }
    assert!(differences.is_empty(), "{differences}");
}

fn asks_as_a_client(part: &Part) -> bool {
    match part {
        Part::Step { input, .. } => !matches!(parse::action(input), Ok(Action::Inner(_))),
        Part::Text(_) => true,
    }
}

//! A whole run: all sequences, on several pairs of servers at the same time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::cli::Options;
use crate::ops::Sequence;
use crate::report::Difference;
use crate::runner::{self, Outcome};
use crate::servers::{Pair, Programs};
use crate::shrink::{self, Budget};
use crate::{corpus, generate, known};

const SHRINK_BUDGET: Budget = Budget { attempts_max: 400, time_max: Duration::from_secs(60) };

/// What the workers share.
struct Campaign {
    options: Options,
    programs: Programs,
    state: Mutex<State>,
}

struct State {
    corpus: std::vec::IntoIter<Sequence>,
    next_random: u64,
    passed: usize,
    failed: usize,
    /// Number of sequences by the signature of their difference.
    signatures: BTreeMap<String, usize>,
    broken: Vec<String>,
}

/// Runs everything; true when no sequence differs.
pub async fn run(options: Options, programs: Programs) -> Result<bool, String> {
    let sequences = match &options.replay {
        Some(file) => vec![corpus::read(file)?],
        None if options.run_corpus => corpus::load(&options.corpus)?,
        None => Vec::new(),
    };
    let replay = options.replay.is_some();
    let started = Instant::now();
    let state = State {
        corpus: sequences.into_iter(),
        next_random: options.first,
        passed: 0,
        failed: 0,
        signatures: BTreeMap::new(),
        broken: Vec::new(),
    };
    let pairs = if replay { 1 } else { options.pairs };
    let campaign = Arc::new(Campaign { options, programs, state: Mutex::new(state) });
    let mut workers = JoinSet::new();
    for _ in 0..pairs {
        let campaign = campaign.clone();
        workers.spawn(async move { campaign.work().await });
    }
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| e.to_string())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
    loop {
        let finished = tokio::select! {
            finished = workers.join_next() => finished,
            _ = interrupt.recv() => return Err("interrupted".into()),
            _ = terminate.recv() => return Err("interrupted".into()),
        };
        match finished {
            Some(Ok(result)) => result?,
            Some(Err(error)) => return Err(format!("a worker failed: {error}")),
            None => break,
        }
    }
    Ok(campaign.summary(started.elapsed()))
}

impl Campaign {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Sequence> {
        let mut state = self.state();
        if state.signatures.len() >= self.options.failures_max {
            return None;
        }
        if let Some(sequence) = state.corpus.next() {
            return Some(sequence);
        }
        let end = self.options.first.saturating_add(self.options.sequences);
        let random = self.options.run_random && self.options.replay.is_none();
        if !random || state.next_random >= end {
            return None;
        }
        state.next_random += 1;
        Some(generate::sequence(self.options.seed, state.next_random - 1, self.options.json))
    }

    async fn work(&self) -> Result<(), String> {
        let Some(mut sequence) = self.next() else { return Ok(()) };
        let mut pair = Pair::start(self.options.subject, &self.programs).await?;
        loop {
            match runner::run(&sequence, &mut pair, self.options.replay.is_some()).await {
                Outcome::Same => self.state().passed += 1,
                Outcome::Different(difference) => {
                    self.take_note(sequence, *difference, &mut pair).await;
                }
                Outcome::Broken(error) => {
                    let text = format!("{}: {error}\n{}", sequence.name, sequence.to_text());
                    eprintln!("--- no comparison possible: {text}");
                    self.state().broken.push(sequence.name.clone());
                }
            }
            match self.next() {
                Some(next) => sequence = next,
                None => break,
            }
        }
        pair.stop().await;
        Ok(())
    }

    /// Counts a difference; one of a new kind is shrunk, printed and kept.
    async fn take_note(&self, sequence: Sequence, difference: Difference, pair: &mut Pair) {
        let signature = difference.signature();
        let is_new = {
            let mut state = self.state();
            state.failed += 1;
            let count = state.signatures.entry(signature.clone()).or_default();
            *count += 1;
            *count == 1
        };
        if !is_new || self.options.replay.is_some() {
            if self.options.replay.is_some() {
                println!("{}", difference.report(&sequence));
            }
            return;
        }
        let name = sequence.name.clone();
        let programs = &self.programs;
        let subject = self.options.subject;
        let cell = Arc::new(tokio::sync::Mutex::new((pair, difference.clone())));
        let fails = |candidate: Sequence| {
            let (cell, signature) = (cell.clone(), signature.clone());
            async move {
                let mut cell = cell.lock().await;
                let (pair, last) = &mut *cell;
                match runner::run(&candidate, pair, false).await {
                    Outcome::Different(d) if d.signature() == signature => {
                        *last = *d;
                        true
                    }
                    Outcome::Broken(_) => {
                        if let Ok(new) = Pair::start(subject, programs).await {
                            **pair = new;
                        }
                        false
                    }
                    _ => false,
                }
            }
        };
        let reproduced = fails(sequence.clone()).await;
        let small = match reproduced {
            true => shrink::shrink(sequence, SHRINK_BUDGET, fails).await,
            false => sequence,
        };
        let difference = cell.lock().await.1.clone();
        let mut text = difference.report(&small);
        if !reproduced {
            text.push_str("  (did not happen again when the sequence was repeated)\n");
        }
        if !name.is_empty() && reproduced && self.is_generated(&name) {
            match corpus::keep(self.keep_dir(), &small, &difference) {
                Ok(path) => text.push_str(&format!("  kept as {path}\n")),
                Err(error) => text.push_str(&format!("  not kept: {error}\n")),
            }
        }
        println!("{text}");
    }

    fn is_generated(&self, name: &str) -> bool {
        name.starts_with("seed ")
    }

    fn keep_dir(&self) -> &PathBuf {
        self.options.keep.as_ref().unwrap_or(&self.options.corpus)
    }

    fn summary(&self, elapsed: Duration) -> bool {
        let state = self.state();
        println!("declared differences: {}", known::names().join(", "));
        for (signature, count) in &state.signatures {
            println!("{count:5} x {signature}");
        }
        if !state.broken.is_empty() {
            println!("{} without a comparison: {}", state.broken.len(), state.broken.join("; "));
        }
        println!("{:.1} s", elapsed.as_secs_f64());
        // A sequence that could not be compared proves nothing, so it counts as failed.
        let failed = state.failed + state.broken.len();
        println!("{} passed, {} failed", state.passed, failed);
        failed == 0
    }
}

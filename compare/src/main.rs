//! Compares leaseway with etcd: the same load, the same generator, one server after the other.
//!
//! For every row each server starts on an empty directory, is loaded, measured and stopped. Which
//! one comes first changes from row to row and from round to round, so that neither always gets
//! the quieter minute. The generator runs on one thread and reports its own CPU time too.

mod environment;
mod load;
mod options;
mod proc;
mod report;
mod requests;
mod rows;
mod servers;
mod stats;
mod wire;
mod workload;

use anyhow::{Context, Result, bail};
use clap::Parser;
use environment::Environment;
use options::Options;
use report::{Report, Series};
use rows::{Row, Sizes};
use servers::{Product, Program, Server};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use workload::Outcome;

/// Loading, settling, ending and restarting, beside the measured time of a row.
const AROUND_A_ROW: Duration = Duration::from_secs(1_200);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leaseway-compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<()> {
    options.validate()?;
    // An interrupted run drops what it was doing, which kills its server and removes its data.
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = compare(options) => result,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}

async fn compare(options: &Options) -> Result<()> {
    let rows = rows::select(&options.rows, options.is_single())?;
    let mut programs = BTreeMap::new();
    let mut versions = BTreeMap::new();
    for product in &options.servers {
        let program = options.program(*product)?;
        versions.insert(product.name(), servers::version(&program.binary)?);
        programs.insert(*product, program);
    }
    let measured = options.measured();
    let sizes = if options.quick { Sizes::quick(measured) } else { Sizes::full(measured) };
    let scratch = Scratch::create(&options.dir)?;
    let mut report = Report {
        environment: Environment::read(&scratch.0, versions)?,
        seconds: measured.as_secs_f64(),
        rounds: options.rounds,
        quick: options.quick,
        series: series(&rows, programs.keys().copied()),
    };
    for round in 0..options.rounds {
        for (index, row) in rows.iter().enumerate() {
            let mut order: Vec<_> = programs.iter().collect();
            if (index + round as usize) % 2 == 1 {
                order.reverse();
            }
            for (product, program) in order {
                let result = run_row(row, program, &scratch.0, &sizes).await;
                note(&mut report.series, row, *product, result);
            }
        }
        write(options, &report)?;
    }
    print!("{}", report.markdown());
    match report.series.iter().filter(|series| series.failure.is_some()).count() {
        0 => Ok(()),
        failed => bail!("{failed} rows failed"),
    }
}

/// One for each row and server, still without figures.
fn series(rows: &[Row], products: impl Iterator<Item = Product> + Clone) -> Vec<Series> {
    let of_row = |row| products.clone().map(move |product| Series::new(row, product));
    rows.iter().flat_map(of_row).collect()
}

async fn run_row(row: &Row, program: &Program, scratch: &Path, sizes: &Sizes) -> Result<Outcome> {
    // A name of its own: what looks after a cluster of an earlier row may still look for its directory.
    let directory = scratch.join(format!("{}-{}", row.name, program.product.name()));
    let result = run_on_fresh_server(row, program, &directory, sizes).await;
    std::fs::remove_dir_all(&directory)
        .with_context(|| format!("removing {}", directory.display()))?;
    result
}

async fn run_on_fresh_server(
    row: &Row,
    program: &Program,
    directory: &Path,
    sizes: &Sizes,
) -> Result<Outcome> {
    let mut server = Server::start(program, directory).await?;
    let limit = sizes.measured + AROUND_A_ROW;
    let outcome = timeout(limit, workload::run(row.workload, &mut server, sizes)).await;
    let outcome = outcome.with_context(|| format!("not finished within {limit:?}"))?;
    let log = server.log_tail();
    let stopped = server.stop().await;
    let outcome = outcome.with_context(|| format!("the server's log ends with: {log}"))?;
    stopped?;
    Ok(outcome)
}

fn note(all: &mut [Series], row: &Row, product: Product, result: Result<Outcome>) {
    let name = product.name();
    let found = all.iter_mut().find(|series| series.row == row.name && series.server == product);
    let Some(series) = found else { return };
    match result {
        Ok(outcome) => {
            let rate = outcome.measured.per_second();
            eprintln!("{:<22} {name:<9} {rate:>12.1} {}/s", row.name, row.operations);
            series.rounds.push(outcome);
        }
        Err(error) => {
            eprintln!("{:<22} {name:<9} failed: {error:#}", row.name);
            series.failure.get_or_insert(format!("{error:#}"));
        }
    }
}

fn write(options: &Options, report: &Report) -> Result<()> {
    if let Some(path) = &options.out {
        let name = if options.is_single() { "compare" } else { "compare-clusters" };
        let document = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other.with_context(|| format!("reading {}", path.display()))?,
        };
        let document = report::splice(&document, name, &report.markdown())
            .with_context(|| format!("{} has only one marker of two", path.display()))?;
        std::fs::write(path, document).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(report)? + "\n";
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// A directory of this run alone, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn create(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("leaseway-compare-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path.canonicalize()?))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A server that was killed a moment ago may still be writing.
        let mut result = Ok(());
        for _ in 0..20 {
            result = std::fs::remove_dir_all(&self.0);
            if result.is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if let Err(error) = result {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

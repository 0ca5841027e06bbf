//! Results as Markdown and JSON. Pure functions of what was measured.

use crate::environment::Environment;
use crate::rows::Row;
use crate::servers::Product;
use crate::stats::{Latency, median};
use crate::workload::{Outcome, Unit};
use serde::Serialize;
use std::fmt::Write;

const ABSENT: &str = "–";

/// All rounds of one row on one server. `failure` is that of the first round that failed.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    pub row: &'static str,
    pub title: &'static str,
    pub operations: &'static str,
    pub server: Product,
    pub rounds: Vec<Outcome>,
    pub failure: Option<String>,
}

impl Series {
    pub fn new(row: &Row, server: Product) -> Self {
        let Row { name, title, operations, .. } = *row;
        Self { row: name, title, operations, server, rounds: Vec::new(), failure: None }
    }

    /// The median of the rounds.
    fn median(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        median(&self.rounds.iter().filter_map(figure).collect::<Vec<_>>())
    }

    fn per_second(&self) -> Option<f64> {
        self.median(|outcome| Some(outcome.measured.per_second()))
    }

    fn latency(&self, part: impl Fn(&Latency) -> f64) -> Option<f64> {
        self.median(|outcome| outcome.measured.latency_us.as_ref().map(&part))
    }

    fn server_cpu_us(&self) -> Option<f64> {
        self.median(|outcome| Some(outcome.measured.server_cpu_us()))
    }

    fn peak(&self) -> Option<f64> {
        self.median(|outcome| outcome.measured.peak_resident_bytes.map(|bytes| bytes as f64))
    }

    fn extra(&self, name: &str) -> Option<f64> {
        self.median(|outcome| {
            outcome.extras.iter().find(|extra| extra.name == name).map(|extra| extra.value)
        })
    }
}

#[derive(Serialize)]
pub struct Report {
    pub environment: Environment,
    /// Measured seconds of a row.
    pub seconds: f64,
    pub rounds: u32,
    pub quick: bool,
    pub series: Vec<Series>,
}

impl Report {
    pub fn markdown(&self) -> String {
        let mut text = self.circumstances();
        text.push_str(&self.ratios());
        text.push_str(&self.figures());
        text.push_str(&self.extras());
        text.push_str(&self.failures());
        text
    }

    fn circumstances(&self) -> String {
        let Environment { cpus, cpu_model, kernel, fsync_us, versions } = &self.environment;
        let versions: Vec<_> =
            versions.iter().map(|(server, version)| format!("{server} (`{version}`)")).collect();
        let quick = if self.quick { ", quick mode (short rows, small stores)" } else { "" };
        format!(
            "Servers: {}. Machine: {cpus} × {cpu_model}, Linux {kernel}, load generator on the \
             same machine; 4 KiB made durable in {} (median). {:.0} s a row, rounds: {}{quick}.\n",
            versions.join(", "),
            show_micros(*fsync_us),
            self.seconds,
            self.rounds
        )
    }

    /// Rows that both servers have finished, in order: the reference first.
    fn pairs(&self) -> impl Iterator<Item = (&Series, &Series)> {
        let finished = self.series.iter().filter(|series| !series.rounds.is_empty());
        finished.filter_map(move |ours| {
            let reference = ours.server.reference()?;
            let mut others = self.series.iter().filter(|series| !series.rounds.is_empty());
            let theirs = others.find(|other| other.row == ours.row && other.server == reference)?;
            Some((theirs, ours))
        })
    }

    fn ratios(&self) -> String {
        let mut text = String::new();
        for (etcd, leaseway) in self.pairs() {
            if text.is_empty() {
                text.push_str(
                    "\nLeaseway's figure divided by etcd's (throughput: more is better; the \
                     others: less is better):\n\n| row | throughput | p50 | p99 | server CPU an \
                     operation | peak memory |\n|---|---:|---:|---:|---:|---:|\n",
                );
            }
            let ratio = |figure: &dyn Fn(&Series) -> Option<f64>| {
                show_ratio(figure(leaseway), figure(etcd))
            };
            let cells = [
                ratio(&Series::per_second),
                ratio(&|series| series.latency(|latency| latency.p50)),
                ratio(&|series| series.latency(|latency| latency.p99)),
                ratio(&Series::server_cpu_us),
                ratio(&Series::peak),
            ];
            line(&mut text, etcd.title, &cells);
        }
        text
    }

    fn figures(&self) -> String {
        let mut text = String::from(
            "\n| row | server | per second | p50 | p99 | p99.9 | server CPU | server CPU an \
             operation | peak memory | generator CPU an operation |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for series in self.series.iter().filter(|series| !series.rounds.is_empty()) {
            let show = |value: Option<f64>, show: fn(f64) -> String| {
                value.map_or_else(|| ABSENT.to_owned(), show)
            };
            let cpu = series.median(|outcome| Some(outcome.measured.server_cpu_seconds));
            let generator = series.median(|outcome| Some(outcome.measured.generator_cpu_us()));
            let cells = [
                series.server.name().to_owned(),
                show(series.per_second(), show_number) + " " + series.operations,
                show(series.latency(|latency| latency.p50), show_micros),
                show(series.latency(|latency| latency.p99), show_micros),
                show(series.latency(|latency| latency.p999), show_micros),
                show(cpu, |seconds| format!("{seconds:.2} s")),
                show(series.server_cpu_us(), show_micros),
                show(series.peak(), show_bytes),
                show(generator, show_micros),
            ];
            line(&mut text, series.title, &cells);
        }
        text
    }

    fn extras(&self) -> String {
        let mut servers: Vec<_> = self.series.iter().map(|series| series.server).collect();
        servers.sort_unstable();
        servers.dedup();
        let mut text = String::new();
        let mut rows: Vec<_> = Vec::new();
        for series in &self.series {
            if rows.contains(&series.row) {
                continue;
            }
            rows.push(series.row);
            let same_row = || self.series.iter().filter(|other| other.row == series.row);
            let Some(first) = same_row().find_map(|other| other.rounds.first()) else { continue };
            for extra in &first.extras {
                let mut cells = vec![extra.name.to_owned()];
                for server in &servers {
                    let value = same_row()
                        .find(|other| other.server == *server)
                        .and_then(|other| other.extra(extra.name));
                    cells.push(value.map_or(ABSENT.into(), |value| show(value, extra.unit)));
                }
                line(&mut text, series.title, &cells);
            }
        }
        if text.is_empty() {
            return text;
        }
        let names: Vec<_> = servers.iter().map(|server| server.name()).collect();
        let columns = "---:|".repeat(names.len());
        format!("\n| row | measure | {} |\n|---|---|{columns}\n{text}", names.join(" | "))
    }

    fn failures(&self) -> String {
        let mut text = String::new();
        for series in &self.series {
            if let Some(failure) = &series.failure {
                let failure = failure.split_whitespace().collect::<Vec<_>>().join(" ");
                let server = series.server.name();
                // Writing to a string can not fail.
                let _ = write!(text, "\n- {} on {server} failed: {failure}", series.title);
            }
        }
        if text.is_empty() { text } else { text + "\n" }
    }
}

fn line(text: &mut String, title: &str, cells: &[String]) {
    // Writing to a string can not fail.
    let _ = writeln!(text, "| {title} | {} |", cells.join(" | "));
}

fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => show_bytes(value),
        Unit::Count => show_number(value),
        Unit::Microseconds => show_micros(value),
        Unit::Percent => format!("{value:.1}%"),
        Unit::PerSecond => format!("{}/s", show_number(value)),
        Unit::Seconds => format!("{value:.2} s"),
    }
}

fn show_ratio(ours: Option<f64>, theirs: Option<f64>) -> String {
    match ours.zip(theirs) {
        Some((ours, theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
        _ => ABSENT.to_owned(),
    }
}

/// Whole numbers with separators from 100 on, else three digits.
fn show_number(value: f64) -> String {
    if value.abs() < 100.0 {
        let decimals = if value == value.trunc() { 0 } else { 1 + usize::from(value < 10.0) };
        return format!("{value:.decimals$}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut grouped = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn show_micros(micros: f64) -> String {
    match micros {
        micros if micros < 1_000.0 => format!("{micros:.0} µs"),
        micros if micros < 100_000.0 => format!("{:.2} ms", micros / 1e3),
        micros if micros < 10_000_000.0 => format!("{:.0} ms", micros / 1e3),
        micros => format!("{:.1} s", micros / 1e6),
    }
}

fn show_bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes.abs() < 10_240.0 => format!("{bytes:.0} B"),
        bytes if bytes.abs() < 1_048_576.0 => format!("{:.0} KiB", bytes / 1024.0),
        bytes => format!("{:.1} MiB", bytes / 1_048_576.0),
    }
}

/// Puts `tables` between the markers of that name in `document`, or behind it if it has none. None if
/// the markers are out of order or one is missing.
pub fn splice(document: &str, name: &str, tables: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let block = format!("{begin}\n{}\n{end}", tables.trim());
    match (document.find(&begin), document.find(&end)) {
        (None, None) if document.trim().is_empty() => Some(block + "\n"),
        (None, None) => Some(format!("{}\n\n{block}\n", document.trim_end())),
        (Some(from), Some(to)) if from < to => {
            Some(format!("{}{block}{}", &document[..from], &document[to + end.len()..]))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;

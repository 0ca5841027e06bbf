//! Prometheus' text format, version 0.0.4.
//!
//! Written here rather than by a metrics library because etcd's dashboards and alerts rely on
//! etcd's exact names and types, and the libraries follow OpenMetrics: they append `_total` to every
//! counter and cannot express a gauge whose name ends in it, of which etcd has several.

use std::fmt::Write;

use super::instrument::{Counter, Gauge, Histogram};

/// The content type of the text, as etcd declares it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Collects the text.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// The text collected.
    pub fn into_text(self) -> String {
        self.text
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, counter: &Counter) {
        self.header(name, help, "counter");
        self.sample(name, "", counter.get());
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, gauge: &Gauge) {
        self.value(name, help, "gauge", "", gauge.get());
    }

    /// One value computed for this text; `labels` as in [`labels`].
    pub fn value(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        labels: &str,
        value: impl std::fmt::Display,
    ) {
        self.header(name, help, kind);
        self.sample(name, labels, value);
    }

    /// A histogram without labels.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.header(name, help, "histogram");
        self.buckets(name, "", histogram);
    }

    /// The lines that introduce a metric; samples follow.
    pub fn header(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample of the metric introduced last.
    pub fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        if labels.is_empty() {
            let _ = writeln!(self.text, "{name} {value}");
        } else {
            let _ = writeln!(self.text, "{name}{{{labels}}} {value}");
        }
    }

    /// The samples of a histogram introduced last.
    pub fn buckets(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let seen = histogram.snapshot();
        let comma = if labels.is_empty() { "" } else { "," };
        let bounds = seen.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&seen.cumulative) {
            let _ = writeln!(self.text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
        }
        self.sample(&format!("{name}_sum"), labels, seen.sum);
        self.sample(&format!("{name}_count"), labels, seen.count);
    }
}

/// Labels in the form `a="x",b="y"`, with what is special in values escaped.
pub fn labels(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in pairs {
        let comma = if out.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(out, "{comma}{name}=\"{value}\"");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::instrument::REQUEST_BOUNDS;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut out = Exposition::default();
        let counter = Counter::default();
        counter.add(3);
        out.counter("a_total", "Things.", &counter);
        out.value("b", "An odd label.", "gauge", &labels(&[("x", "q\"\\\n"), ("y", "")]), 1);
        let histogram = Histogram::new(&REQUEST_BOUNDS[..1]);
        histogram.observe(std::time::Duration::from_millis(250));
        out.header("c", "Times.", "histogram");
        out.buckets("c", "m=\"p\"", &histogram);
        assert_eq!(
            out.into_text(),
            "# HELP a_total Things.\n# TYPE a_total counter\na_total 3\n\
             # HELP b An odd label.\n# TYPE b gauge\nb{x=\"q\\\"\\\\\\n\",y=\"\"} 1\n\
             # HELP c Times.\n# TYPE c histogram\n\
             c_bucket{m=\"p\",le=\"0.005\"} 0\nc_bucket{m=\"p\",le=\"+Inf\"} 1\n\
             c_sum{m=\"p\"} 0.25\nc_count{m=\"p\"} 1\n"
        );
    }
}

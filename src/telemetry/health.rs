//! What is counted of the health checks over HTTP.

use super::exposition::{Exposition, labels};
use super::instrument::{Counter, Gauge};

/// Health checks over HTTP.
#[derive(Debug, Default)]
pub struct HealthMetrics {
    pub success_total: Counter,
    pub failure_total: Counter,
    checks: Vec<CheckMetrics>,
}

/// One kind of health check.
#[derive(Debug)]
struct CheckMetrics {
    kind: &'static str,
    name: &'static str,
    last: Gauge,
    success_total: Counter,
    error_total: Counter,
}

impl HealthMetrics {
    /// All zero.
    pub fn new() -> HealthMetrics {
        let check = |&(kind, name): &(&'static str, &'static str)| CheckMetrics {
            kind,
            name,
            last: Gauge::default(),
            success_total: Counter::default(),
            error_total: Counter::default(),
        };
        let checks = [
            ("livez", "serializable_read"),
            ("readyz", "data_corruption"),
            ("readyz", "serializable_read"),
            ("readyz", "linearizable_read"),
            ("readyz", "non_learner"),
        ];
        HealthMetrics { checks: checks.iter().map(check).collect(), ..HealthMetrics::default() }
    }

    /// Counts one run of a check; a check that is not known is not counted.
    pub fn checked(&self, kind: &str, name: &str, ok: bool) {
        if let Some(check) = self.checks.iter().find(|c| c.kind == kind && c.name == name) {
            check.last.set(i64::from(ok));
            if ok { &check.success_total } else { &check.error_total }.inc();
        }
    }

    /// Appends the health checks' metrics.
    pub(super) fn write(&self, out: &mut Exposition) {
        let name = "etcd_server_health_failures";
        out.counter(name, "Health checks that failed.", &self.failure_total);
        out.counter(
            "etcd_server_health_success",
            "Health checks that passed.",
            &self.success_total,
        );
        if self.checks.iter().all(|check| check.runs() == 0) {
            return;
        }
        let name = "etcd_server_healthcheck";
        out.header(name, "The last result of each kind of health check.", "gauge");
        for check in self.checks.iter().filter(|check| check.runs() > 0) {
            out.sample(
                name,
                &labels(&[("name", check.name), ("type", check.kind)]),
                check.last.get(),
            );
        }
        let name = "etcd_server_healthchecks_total";
        out.header(name, "Health checks of each kind, by result.", "counter");
        for check in &self.checks {
            for (status, counter) in
                [("success", &check.success_total), ("error", &check.error_total)]
            {
                if counter.get() > 0 {
                    let labels =
                        labels(&[("name", check.name), ("status", status), ("type", check.kind)]);
                    out.sample(name, &labels, counter.get());
                }
            }
        }
    }
}

impl CheckMetrics {
    fn runs(&self) -> u64 {
        self.success_total.get() + self.error_total.get()
    }
}

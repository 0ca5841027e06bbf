//! What the figures depend on: the machine, its disk and the versions.

use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::stats::median;

const PROBE_WRITES: usize = 100;
const PROBE_BYTES: usize = 4_096;

#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    pub cpus: usize,
    pub cpu_model: String,
    pub kernel: String,
    /// Median time to append 4 KiB and make them durable, in microseconds.
    pub fsync_us: f64,
    /// What each server's `--version` begins with.
    pub versions: BTreeMap<&'static str, String>,
}

impl Environment {
    /// Measures the disk of `directory`.
    pub fn read(directory: &Path, versions: BTreeMap<&'static str, String>) -> Result<Self> {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        Ok(Self {
            cpus: std::thread::available_parallelism()?.get(),
            cpu_model: cpu_model(&text("/proc/cpuinfo")),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            fsync_us: fsync_us(directory)?,
            versions,
        })
    }
}

fn cpu_model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = line.and_then(|line| line.split_once(':')).map(|(_, model)| model.trim());
    model.unwrap_or("unknown").to_owned()
}

fn fsync_us(directory: &Path) -> Result<f64> {
    let path = directory.join("fsync-probe");
    let mut file = std::fs::File::create(&path).context("creating the fsync probe")?;
    let mut times = Vec::with_capacity(PROBE_WRITES);
    for _ in 0..PROBE_WRITES {
        let began = Instant::now();
        file.write_all(&[7; PROBE_BYTES])?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    std::fs::remove_file(&path)?;
    median(&times).context("no writes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n";
        assert_eq!(cpu_model(text), "Some CPU @ 2 GHz");
        assert_eq!(cpu_model("processor : 0"), "unknown");
    }

    #[test]
    fn a_disk_can_be_probed_and_is_left_clean() {
        let directory = tempfile::tempdir().unwrap();
        assert!(fsync_us(directory.path()).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

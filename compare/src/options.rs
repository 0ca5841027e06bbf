//! The command line.

use crate::servers::{Product, Program};
use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs the same load on etcd and on leaseway, one after the other, and compares them.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Options {
    /// Rows to run, by name or by beginning (put, get, watch, ...); all if absent
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Servers to run: one etcd and one leaseway; or three etcd members (etcd3), and two gateways on
    /// three Oxia nodes (gateways)
    #[arg(long, value_delimiter = ',', default_value = "etcd,leaseway")]
    pub servers: Vec<Product>,
    /// Script that starts Oxia clusters
    #[arg(long, default_value = "compat-tests/tools/oxia-cluster")]
    oxia_cluster: PathBuf,
    /// Measured time of a row, in seconds [default: 10, with --quick 1]
    #[arg(long)]
    seconds: Option<f64>,
    /// Times that every row is run; the median is reported
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
    /// Short rows and small stores: about two minutes for all
    #[arg(long)]
    pub quick: bool,
    /// Directory for the servers' data, on a real disk
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Markdown file for the tables; only what lies between its markers is replaced
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// File for all figures of all rounds as JSON
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// The etcd to run [default: etcd-v3.7.3/etcd in the tools cache]
    #[arg(long)]
    etcd_bin: Option<PathBuf>,
    /// The leaseway to run
    #[arg(long, default_value = "target/release/leaseway")]
    leaseway_bin: PathBuf,
}

/// A row never takes longer than this besides its preparation.
const SECONDS_MAX: f64 = 3_600.0;
const ROUNDS_MAX: u32 = 100;

impl Options {
    pub fn validate(&self) -> Result<()> {
        let seconds = self.measured().as_secs_f64();
        ensure!(seconds > 0.0, "--seconds must be above 0");
        ensure!((1..=ROUNDS_MAX).contains(&self.rounds), "--rounds must be 1 to {ROUNDS_MAX}");
        ensure_real_disk(&self.dir)
    }

    pub fn measured(&self) -> Duration {
        let seconds = self.seconds.unwrap_or(if self.quick { 1.0 } else { 10.0 });
        Duration::from_secs_f64(if seconds > 0.0 { seconds.min(SECONDS_MAX) } else { 0.0 })
    }

    pub fn program(&self, product: Product) -> Result<Program> {
        let binary = match product {
            Product::Leaseway | Product::Gateways => self.leaseway_bin.clone(),
            Product::Etcd | Product::Etcd3 => match &self.etcd_bin {
                Some(path) => path.clone(),
                None => tools_cache(|name| std::env::var_os(name))
                    .context("none of LEASEWAY_TOOLS_CACHE, XDG_CACHE_HOME and HOME is set")?
                    .join("etcd-v3.7.3/etcd"),
            },
        };
        ensure!(binary.is_file(), "no {} at {}", product.name(), binary.display());
        Ok(Program { product, binary, oxia_cluster: self.oxia_cluster.clone() })
    }

    /// Whether all servers are single processes: some rows are about those.
    pub fn is_single(&self) -> bool {
        self.servers.iter().all(|product| product.is_single())
    }
}

/// Where `compat-tests/tools/build-etcd.sh` leaves what it has built.
fn tools_cache(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("LEASEWAY_TOOLS_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("leaseway")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/leaseway")))
}

/// An fsync costs nothing on a file system in memory, which would make the comparison void.
fn ensure_real_disk(directory: &Path) -> Result<()> {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    let statistics =
        rustix::fs::statfs(directory).with_context(|| format!("--dir {}", directory.display()))?;
    let kind = statistics.f_type as u32;
    ensure!(kind != TMPFS && kind != RAMFS, "{} is not on a disk", directory.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_checked() {
        let parse = |extra: &[&str]| {
            Options::try_parse_from(["leaseway-compare"].iter().chain(extra)).unwrap()
        };
        let options = parse(&["--rows", "put,watch", "--servers", "leaseway", "--seconds", "0.5"]);
        assert_eq!(options.rows, ["put", "watch"]);
        assert_eq!(options.servers, [Product::Leaseway]);
        assert_eq!(options.measured(), Duration::from_millis(500));
        assert!(options.validate().is_ok());
        assert_eq!(parse(&["--quick"]).measured(), Duration::from_secs(1));
        assert_eq!(parse(&["--seconds", "1e300"]).measured(), Duration::from_secs(3_600));
        assert!(parse(&["--seconds", "NaN"]).validate().is_err());
        assert!(parse(&["--rounds", "0"]).validate().is_err());
        assert!(parse(&["--dir", "/no such directory"]).validate().is_err());
    }

    #[test]
    fn the_cache_follows_the_environment() {
        let cache = |variables: &'static [(&str, &str)]| {
            tools_cache(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        assert_eq!(cache(&[("HOME", "/h")]), Some("/h/.cache/leaseway".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Some("/x/leaseway".into()));
        assert_eq!(cache(&[("XDG_CACHE_HOME", ""), ("HOME", "/h")]), cache(&[("HOME", "/h")]));
        assert_eq!(cache(&[("LEASEWAY_TOOLS_CACHE", "/t"), ("HOME", "/h")]), Some("/t".into()));
        assert_eq!(cache(&[]), None);
    }
}

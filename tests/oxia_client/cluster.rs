//! Against a cluster of three real nodes whose leader is killed and paused under load.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leaseway::backend::oxia::client::{
    Address, Client, Config, Epoch, KeyRange, WriteError, sequence_number,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::PATIENCE;
use crate::support::oxia::real_oxia;

/// An election takes a second after a kill and about six after a pause. On a machine with many times
/// more to do than it can, Oxia by itself was seen to need more than 40.
const ELECTION: Duration = Duration::from_secs(150);

/// Three nodes and a coordinator, ended when dropped.
struct Cluster {
    dir: TempDir,
    seeds: Vec<Address>,
}

impl Cluster {
    fn start() -> Option<Cluster> {
        if real_oxia().is_none() {
            eprintln!("skipped: no Oxia server; run compat-tests/tools/build-oxia.sh");
            return None;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut cluster = Cluster { dir, seeds: vec![] };
        let owner = std::process::id().to_string();
        let addresses = cluster.call("start", &["--owner", &owner]);
        let addresses = addresses.lines().map(|line| line.parse().expect("an address"));
        cluster.seeds = addresses.collect();
        Some(cluster)
    }

    /// Calls the script; gives what it printed.
    fn call(&self, command: &str, arguments: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("compat-tests/tools/oxia-cluster");
        let output = Command::new(script)
            .arg(command)
            .arg(self.dir.path())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("the script runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Waits for a leader of a later epoch; shows what the nodes logged if there is none.
    async fn next_leader(&self, client: &Client, after: Epoch) -> Epoch {
        match client.wait_for_leader_after(after, ELECTION).await {
            Ok(epoch) => epoch,
            Err(error) => {
                let mut logs = String::new();
                for name in ["coordinator", "node-1", "node-2", "node-3"] {
                    let log = self.dir.path().join(name).join("log");
                    let log = std::fs::read_to_string(log).unwrap_or_default();
                    let lines: Vec<_> = log.lines().collect();
                    let tail = lines[lines.len().saturating_sub(25)..].join("\n");
                    logs += &format!("--- {name}\n{tail}\n");
                }
                panic!("no new leader after {:?}: {error}\n{logs}", client.leader_address());
            }
        }
    }

    fn leader(&self) -> String {
        self.call("leader", &[]).trim().to_owned()
    }

    async fn client(&self) -> Client {
        let config = Config::new(self.seeds.clone(), "default", "ks", "ks/proof/test");
        Client::connect(config, PATIENCE).await.expect("a leader")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("compat-tests/tools/oxia-cluster");
        let _ = Command::new(script).arg("stop").arg(self.dir.path()).status();
    }
}

/// Appends until told to stop; gives the numbers that were acknowledged, with their values, and how
/// many are in doubt. Stops with a message if a tip is behind what was acknowledged before.
async fn append_and_check(
    client: Client,
    name: u64,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> (BTreeMap<u64, Bytes>, usize) {
    let (mut kept, mut doubtful) = (BTreeMap::new(), 0);
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let value = Bytes::from(format!("{name}/{n}"));
        match client.append("ks/log", value.clone()).await {
            Ok(appended) => {
                kept.insert(appended.value, value);
                acknowledged.fetch_max(appended.value, Ordering::SeqCst);
            }
            Err(WriteError::Unknown(_)) => doubtful += 1,
            Err(WriteError::NotSent(_)) => {
                // Whoever gets no leader in time finds out below.
                let _ = client.wait_for_leader(Duration::from_secs(1)).await;
            }
        }
        let before = acknowledged.load(Ordering::SeqCst);
        if let Ok(tip) = client.read_tip_with_proof("ks/log").await {
            assert!(tip.sequence >= before, "a proven tip {tip:?} behind {before}");
        }
    }
    (kept, doubtful)
}

async fn progress(acknowledged: &AtomicU64, more: u64) {
    let (before, deadline) = (acknowledged.load(Ordering::SeqCst), Instant::now() + ELECTION);
    while acknowledged.load(Ordering::SeqCst) < before + more {
        assert!(Instant::now() < deadline, "no appends succeed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_or_unseen_when_leaders_fail() {
    let Some(cluster) = Cluster::start() else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let watching = cluster.client().await;
    let mut writers = JoinSet::new();
    for name in 0..3 {
        let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
        writers.spawn(append_and_check(cluster.client().await, name, stop, acknowledged));
    }
    progress(&acknowledged, 50).await;

    let first = cluster.leader();
    cluster.call("kill", &[&first]);
    let second = cluster.next_leader(&watching, Epoch(1)).await;
    progress(&acknowledged, 50).await;
    cluster.call("restart", &[&first]);

    // A leader that stands still doesn't hang up; another one is elected meanwhile. When it goes on,
    // it doesn't know that yet, and must not prove anything.
    let paused = cluster.leader();
    cluster.call("pause", &[&paused]);
    let third = cluster.next_leader(&watching, second).await;
    progress(&acknowledged, 50).await;
    cluster.call("resume", &[&paused]);
    progress(&acknowledged, 50).await;
    stop.store(true, Ordering::Relaxed);
    assert!(third > second);

    let (mut kept, mut doubtful) = (BTreeMap::new(), 0);
    for (numbers, more) in writers.join_all().await {
        let expected = kept.len() + numbers.len();
        kept.extend(numbers);
        assert_eq!(kept.len(), expected, "a number was given twice");
        doubtful += more;
    }
    let range = KeyRange::of_sequence("ks/log", 1, u64::MAX).expect("a range");
    let log = watching.range_scan(range).expect("a leader").all(1_000_000).await.expect("read");
    let log: BTreeMap<u64, Bytes> = log
        .into_iter()
        .map(|record| (sequence_number("ks/log", &record.key).expect("a number"), record.value))
        .collect();
    assert_eq!(log.keys().copied().collect::<Vec<_>>(), (1..=log.len() as u64).collect::<Vec<_>>());
    for (number, value) in &kept {
        assert_eq!(log.get(number), Some(value), "{number}");
    }
    let others = log.len() - kept.len();
    assert!(others <= doubtful, "{others} records of {doubtful} whose answer was lost");
}

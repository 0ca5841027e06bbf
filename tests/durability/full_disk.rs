//! A disk that fills up.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use tempfile::TempDir;
use tokio::task::JoinSet;

use super::history::{Lost, Model, Record};
use crate::support::client::Client;
use crate::support::{PATIENCE, Server, leaseway};

/// Clients that write at once.
const WRITERS: usize = 4;
/// What the disk holds.
const SMALL_MIB: usize = 32;

/// A file system in memory, unmounted when dropped.
struct SmallDisk {
    place: TempDir,
}

impl SmallDisk {
    /// Mounts one; says why not.
    fn mount() -> Result<SmallDisk, String> {
        let place = tempfile::tempdir().expect("temporary directory");
        let size = format!("size={SMALL_MIB}m");
        mount(&["-t", "tmpfs", "-o", &size, "none"], place.path())?;
        Ok(SmallDisk { place })
    }

    /// Gives it more space.
    fn grow(&self) {
        mount(&["-o", "remount,size=256m"], self.place.path()).expect("mounted before");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("--lazy").arg(self.place.path()).status();
        assert!(std::thread::panicking() || status.is_ok_and(|status| status.success()));
    }
}

fn mount(args: &[&str], place: &Path) -> Result<(), String> {
    let output = Command::new("mount").args(args).arg(place).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Our binary with no file larger than 24 MiB, and with an error in place of a signal for it.
fn limited() -> Command {
    let mut command = leaseway();
    let binary = command.get_program().to_owned();
    let cleared: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    command = Command::new("sh");
    // In blocks of 512 bytes.
    let script = "trap '' XFSZ && ulimit -f 49152 && exec \"$0\" \"$@\"";
    command.arg("-c").arg(script).arg(binary).stdin(std::process::Stdio::null());
    for name in cleared {
        command.env_remove(name);
    }
    command
}

/// Puts until the server is gone.
async fn fill(port: u16, record: Record, name: String) -> Lost {
    let client = Client::connect(port).await;
    for sent in 0_u64.. {
        let (key, value) = (format!("{name}/{}", sent % 200), format!("{name}/{sent}/"));
        let (key, mut value) = (key.into_bytes(), value.into_bytes());
        value.resize(20_000, b'x');
        let changes = vec![(key.clone(), Some((value.clone(), 0)))];
        let call = async { client.put(key, value, 0).await.map(Some) };
        if let Err(lost) = record.attempt(changes, call).await {
            return lost;
        }
    }
    unreachable!("the disk is finite")
}

/// Asserts that the process has said once, in one line, that something is wrong.
fn assert_one_complaint(server: &Server, parts: &[&str]) {
    let log = server.log();
    let harmless = ["\"level\":\"info\"", "\"level\":\"warn\"", " serves the etcd "];
    let complaints: Vec<&str> =
        log.lines().filter(|line| !harmless.iter().any(|part| line.contains(part))).collect();
    assert_eq!(complaints.len(), 1, "{log}");
    for part in parts {
        assert!(complaints[0].contains(part), "{part:?} is not in {}", complaints[0]);
    }
}

/// Fills the disk of a running server, and starts it again with `more_space`.
async fn until_full(mut server: Server, complaint: &str, more_space: impl FnOnce(&mut Server)) {
    let record = Record::default();
    record.ending.store(true, Ordering::SeqCst);
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        tasks.spawn(fill(server.port, record.clone(), format!("w{writer}")));
    }
    tokio::time::timeout(2 * PATIENCE, tasks.join_all()).await.expect("the disk fills up");
    let (code, _) = server.wait();
    assert_eq!(code, Some(1), "{}", server.log());
    assert_one_complaint(&server, &[complaint]);
    assert!(record.acknowledged() > 100, "only {}", record.acknowledged());

    // With the disk as it is, a start says so or serves what there is; it makes nothing worse.
    match server.try_restart() {
        Ok(()) => server.kill(),
        Err(code) => {
            assert_eq!(code, Some(1), "{}", server.log());
            assert_one_complaint(&server, &[complaint]);
        }
    }
    more_space(&mut server);
    server.restart();
    let client = Client::connect(server.port).await;
    let mut model = Model::default();
    model.verify(&client, &record, "with more space").await;
    let revision = client.put("more", "space", 0).await.expect("writes go on");
    assert_eq!(revision, model.revision + 1);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_the_process_and_loses_nothing() {
    let disk = match SmallDisk::mount() {
        Ok(disk) => disk,
        Err(reason) => {
            println!("skipped: no file system can be mounted here: {reason}");
            return;
        }
    };
    let data_dir = format!("--data-dir={}", disk.place.path().display());
    let server = Server::start(&[&data_dir]);
    until_full(server, "No space left on device", |_| disk.grow()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_refused_ends_the_process_and_loses_nothing() {
    let server = Server::start_through(Box::new(limited), &[]);
    until_full(server, "File too large", |server| server.set_program(Box::new(leaseway))).await;
}

//! The file that is read: a saved snapshot, or the database of an etcd that is stopped.

use super::bolt::{Database, ReadAt};
use super::progress::Progress;
use super::{raft_log, target};
use crate::node;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// A saved snapshot ends with a checksum. What comes before it is whole sectors.
const SECTOR: u64 = 512;
const CHECKSUM: u64 = SHA256_OUTPUT_LEN as u64;
/// What our own stores begin with.
const OWN: [u8; 4] = *b"redb";
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// A file of etcd's that can be read.
pub struct Source {
    /// What is in it.
    pub database: Database<File>,
    /// What it is, for a person.
    pub name: String,
    /// The log of a stopped etcd.
    pub log: RaftLog,
}

/// The log that belongs to a database, if there has to be one.
pub struct RaftLog {
    folder: Option<PathBuf>,
}

/// What is known of a source beforehand, and what of it is not checked.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// A file may come without a checksum.
    pub skip_hash_check: bool,
    /// Where the log is of an etcd that was started with `--wal-dir`.
    pub wal_dir: Option<PathBuf>,
    /// A database may come without its log.
    pub skip_wal_check: bool,
}

impl Source {
    /// Opens a snapshot's file, or a data directory of etcd's.
    ///
    /// # Errors
    /// Why it can't be used, in one line.
    pub fn open(path: &Path, reading: &Reading, progress: &mut Progress) -> Result<Source, String> {
        if reading.wal_dir.is_some() && reading.skip_wal_check {
            return Err("give either --wal-dir or --skip-wal-check".into());
        }
        if path.is_dir() {
            return Self::of_member(path, reading);
        }
        let name = path.display().to_string();
        let failed = |error| format!("cannot read {name}: {error}");
        let file = File::open(path).map_err(failed)?;
        let length = file.length().map_err(failed)?;
        let mut begin = [0; OWN.len()];
        if length > OWN.len() as u64 && file.read_at(0, &mut begin).is_ok() && begin == OWN {
            return Err(format!(
                "{name} is a store of Leaseway's, and no file of etcd's: start leaseway on its directory, or \
                 run leaseway export on it first"
            ));
        }
        if reading.skip_hash_check {
            // It may be etcd's own file, and not a copy.
            lock(&file, &name)?;
            let log = reading.wal_dir.clone().or_else(|| log_beside(path));
            return Self::of_file(file, name, log.filter(|_| !reading.skip_wal_check));
        }
        if reading.wal_dir.is_some() {
            return Err(format!("{name} is a file, and --wal-dir goes with etcd's data directory"));
        }
        if length % SECTOR != CHECKSUM {
            return Err(format!(
                "{name} has no checksum at its end: it is truncated, or it was copied from a data \
                 directory instead of saved as a snapshot (then --skip-hash-check reads it)"
            ));
        }
        let whole = checksum_fits(&file, length - CHECKSUM, progress);
        if !whole.map_err(|error| format!("cannot read {name}: {error}"))? {
            return Err(format!("{name} is damaged: it does not fit the checksum at its end"));
        }
        Self::of_file(file, name, None)
    }

    fn of_member(path: &Path, reading: &Reading) -> Result<Source, String> {
        refuse_own(path)?;
        let member = path.join("member");
        let member = if member.is_dir() { member } else { path.to_owned() };
        let database = member.join("snap").join("db");
        let name = database.display().to_string();
        let file = File::open(&database).map_err(|error| {
            let shown = path.display();
            format!("{shown} is no data directory of etcd: cannot read {name}: {error}")
        })?;
        lock(&file, &name)?;
        let log = reading.wal_dir.clone().unwrap_or_else(|| member.join("wal"));
        Self::of_file(file, name, Some(log).filter(|_| !reading.skip_wal_check))
    }

    fn of_file(file: File, name: String, log: Option<PathBuf>) -> Result<Source, String> {
        let database = Database::open(file).map_err(|error| format!("{name}: {error}"))?;
        Ok(Source { database, name, log: RaftLog { folder: log } })
    }

    /// A file that has just been received from `place`, and fits its checksum.
    ///
    /// # Errors
    /// It is no database file.
    pub fn received(file: File, place: &str) -> Result<Source, String> {
        Self::of_file(file, place.into(), None)
    }
}

/// Makes sure that no etcd writes to its database meanwhile.
fn lock(file: &File, name: &str) -> Result<(), String> {
    match file.try_lock_shared() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(format!("{name} is in use: stop etcd first, or save a snapshot"))
        }
        Err(TryLockError::Error(error)) => Err(format!("cannot lock {name}: {error}")),
    }
}

/// The log beside a database that lies where etcd keeps its own.
fn log_beside(database: &Path) -> Option<PathBuf> {
    let folder = database.parent().filter(|folder| folder.ends_with("snap"))?;
    let log = folder.parent()?.join("wal");
    (database.ends_with("db") && log.is_dir()).then_some(log)
}

/// Says what to do with a data directory of Leaseway's, which is in no need of being imported.
fn refuse_own(path: &Path) -> Result<(), String> {
    let shown = path.display();
    if path.join(node::STORE).exists() {
        return Err(format!(
            "{shown} is a data directory of Leaseway already: start leaseway on it with --data-dir {shown}; \
             to move what is in it, run leaseway export FILE --data-dir {shown} and import FILE"
        ));
    }
    if path.join(node::oxia::CACHE).exists() {
        return Err(format!(
            "{shown} is the cache of a Leaseway gateway, and its keyspace is on Oxia: save a snapshot \
             through a gateway (leaseway export FILE --endpoint URL) and import that"
        ));
    }
    target::check(path)
}

impl RaftLog {
    /// Checks that it has nothing to add to the database, the last command in which has this index.
    ///
    /// # Errors
    /// It has, or can't be read.
    pub fn check(&self, index: u64) -> Result<(), String> {
        let Some(log) = &self.folder else { return Ok(()) };
        let shown = log.display();
        let Some(found) = raft_log::look(log, index).map_err(|error| error.to_string())? else {
            return Err(format!(
                "{shown} has no log of etcd's, which may hold what is not in the database yet: if etcd was started with \
                 --wal-dir, give the same here; with --skip-wal-check the database alone is read"
            ));
        };
        if found.last < index {
            return Err(format!(
                "etcd's log in {shown} ends at entry {}, and what is in the database goes on to {index}: they do not \
                 belong together; with --skip-wal-check the database alone is read",
                found.last
            ));
        }
        match found.behind {
            0 => Ok(()),
            behind => Err(format!(
                "etcd's log in {shown} holds {behind} commands that are not in its database yet, and only the \
                 database is read: start etcd on the directory once more and stop it with SIGTERM, or \
                 save a snapshot"
            )),
        }
    }
}

/// Whether the first `length` bytes fit the checksum behind them.
fn checksum_fits(file: &File, length: u64, progress: &mut Progress) -> std::io::Result<bool> {
    let mut context = Context::new(&SHA256);
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    progress.begin("checking", length);
    while at < length {
        let bytes = usize::try_from(length - at).map_or(PIECE, |left| left.min(PIECE));
        file.read_at(at, &mut piece[..bytes])?;
        context.update(&piece[..bytes]);
        at += bytes as u64;
        progress.reached(at);
    }
    let mut wanted = [0; SHA256_OUTPUT_LEN];
    file.read_at(length, &mut wanted)?;
    Ok(context.finish().as_ref() == wanted)
}

//! The data directory: made when missing, and held by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file that is locked. It stays behind, unlocked, when the process ends in whatever way.
const LOCK_FILE: &str = "LOCK";
/// The file with a gateway's id, in hexadecimal.
const MEMBER_FILE: &str = "member-id";
/// The folder by which a directory of etcd's is known.
const ETCD_FOLDER: &str = "member";

/// A data directory that this process holds.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Locked for as long as it is open.
    lock: File,
}

/// Why a data directory cannot be used. Each text names the directory.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("cannot access data directory {path}: {source}")]
    Access { path: String, source: io::Error },
    #[error("data directory {path} is in use by another process{holder}")]
    InUse { path: String, holder: String },
    #[error(
        "data directory {path} holds the data of an etcd member ({path}/member), which this server \
         does not use as it is: 'leaseway import {path} --data-dir NEW' takes it over"
    )]
    Etcd { path: String },
    #[error(
        "data directory {path} holds data of its own and that of an etcd member ({path}/member), which \
         must have been started there: move {path}/member away"
    )]
    Both { path: String },
    #[error("data directory {path} holds {file}: {why}; choose another --data-dir")]
    Other { path: String, file: String, why: &'static str },
}

impl DataDir {
    /// Makes the directory if need be (readable by its owner only) and takes hold of it.
    ///
    /// # Errors
    /// A directory that cannot be made or written to, is held by another process, or is etcd's.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let shown = path.display().to_string();
        let access = |source| DataDirError::Access { path: shown.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(access)?;
        if path.join(ETCD_FOLDER).is_dir() {
            let ours = path.join(LOCK_FILE).exists();
            let path = shown;
            return Err(if ours {
                DataDirError::Both { path }
            } else {
                DataDirError::Etcd { path }
            });
        }
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join(LOCK_FILE))
            .map_err(access)?;
        let mode = std::fs::metadata(path).map_err(access)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            let mode = format!("{mode:o}");
            tracing::warn!(
                data_dir = shown,
                mode,
                "check file permission: others than its owner have access to the data directory, which \
                 should be of mode 700"
            );
        }
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DataDirError::InUse { path: shown, holder: holder(&mut lock) });
            }
            Err(TryLockError::Error(error)) => return Err(access(error)),
        }
        // For the message that another process may have to show; nothing depends on it.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        Ok(DataDir { path: path.to_owned(), lock })
    }

    /// The id that a gateway with this directory goes by: the same after a restart, as long as the
    /// directory is there. Nothing but names in lists and alarms depends on it.
    ///
    /// # Errors
    /// The file can be neither read nor written.
    pub fn member_id(&self) -> Result<u64, DataDirError> {
        let path = self.path.join(MEMBER_FILE);
        let access = |source| DataDirError::Access { path: path.display().to_string(), source };
        let number = |bytes: Vec<u8>| {
            u64::from_str_radix(String::from_utf8(bytes).ok()?.trim(), 16)
                .ok()
                .filter(|id| *id != 0)
        };
        let known = match std::fs::read(&path) {
            Ok(bytes) => number(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(access(error)),
        };
        if let Some(id) = known {
            return Ok(id);
        }
        let id = rand::random_range(1..=u64::MAX);
        std::fs::write(&path, format!("{id:x}\n")).map_err(access)?;
        Ok(id)
    }

    /// Refuses the directory of a process with another backend, known by `file`: `why` says what would
    /// be wrong.
    ///
    /// # Errors
    /// The file is there, or can't be looked for.
    pub fn refuse_with(&self, file: &str, why: &'static str) -> Result<(), DataDirError> {
        let path = self.path.join(file);
        match path.try_exists() {
            Ok(false) => Ok(()),
            Ok(true) => Err(DataDirError::Other {
                path: self.path.display().to_string(),
                file: file.to_owned(),
                why,
            }),
            Err(source) => Err(DataDirError::Access { path: path.display().to_string(), source }),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What tells later whether the directory is still where it was.
    ///
    /// # Errors
    /// The lock's file can't be looked at.
    pub fn presence(&self) -> io::Result<Presence> {
        let held = self.lock.metadata()?;
        let lock = self.path.join(LOCK_FILE);
        Ok(Presence { lock, device: held.dev(), inode: held.ino() })
    }
}

/// Tells whether a directory that is held is still where it was. Files that are open can be used for as
/// long as the process lives, even when nobody will find them afterwards.
#[derive(Debug)]
pub struct Presence {
    lock: PathBuf,
    device: u64,
    inode: u64,
}

impl Presence {
    /// Whether the path still leads to the file that this process has locked.
    pub fn lasts(&self) -> bool {
        let found = std::fs::metadata(&self.lock);
        found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }
}

/// Who holds the lock, as far as the file says.
fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.take(32).read_to_string(&mut text);
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!(" (process {pid})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_is_made_for_its_owner_and_held_once() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = parent.path().join("a/b");
        let held = DataDir::open(&path).expect("fresh directory");
        let mode = std::fs::metadata(&path).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let error = DataDir::open(&path).expect_err("held").to_string();
        let want = format!("is in use by another process (process {})", std::process::id());
        assert!(error.contains(&want) && error.contains("a/b"), "{error}");
        drop(held);
        DataDir::open(&path).expect("free again");
    }

    #[test]
    fn a_member_keeps_its_id() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let held = DataDir::open(dir.path()).expect("fresh directory");
        let id = held.member_id().expect("written");
        assert_ne!(id, 0);
        assert_eq!(held.member_id().expect("read"), id);
        for nonsense in [&b"nonsense"[..], b"", b"0", b"\xff\xfe"] {
            std::fs::write(dir.path().join(MEMBER_FILE), nonsense).expect("written");
            let id = held.member_id().expect("written anew");
            assert_ne!(id, 0);
            assert_eq!(held.member_id().expect("read"), id);
        }
    }

    #[test]
    fn a_directory_that_is_gone_or_another_one_is_noticed() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let path = parent.path().join("a");
        let held = DataDir::open(&path).expect("fresh directory");
        let presence = held.presence().expect("readable");
        assert!(presence.lasts());
        std::fs::rename(&path, parent.path().join("b")).expect("renamed");
        assert!(!presence.lasts());
        let another = DataDir::open(&path).expect("fresh directory");
        assert!(!presence.lasts());
        assert!(another.presence().expect("readable").lasts());
    }

    #[test]
    fn a_directory_of_etcd_is_left_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(dir.path().join("member")).expect("folder");
        let error = DataDir::open(dir.path()).expect_err("etcd's");
        assert!(matches!(error, DataDirError::Etcd { .. }), "{error}");
        assert!(!dir.path().join(LOCK_FILE).exists());
        std::fs::write(dir.path().join(LOCK_FILE), "").expect("file");
        let error = DataDir::open(dir.path()).expect_err("etcd's as well");
        assert!(matches!(error, DataDirError::Both { .. }), "{error}");
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("file");
        std::fs::write(&path, "").expect("file");
        let error = DataDir::open(&path).expect_err("a file").to_string();
        assert!(
            error.starts_with("cannot access data directory ") && error.contains("file"),
            "{error}"
        );
    }
}

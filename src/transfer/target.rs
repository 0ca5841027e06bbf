//! The data directory that is filled. Everything is made in a folder within it, and moved to its place
//! when it is whole, the store last: whatever stops an import leaves no directory that a server would
//! take for one with data, or for an empty one.

use super::temporary;
use crate::backend::local::wal::{CAPACITY, Wal};
use crate::data_dir::DataDir;
use crate::node::{LOGS, STORE, random_identity};
use crate::storage::redb_engine::{self, RedbEngine};
use crate::storage::tables::meta;
use crate::storage::{Batch, Durability, Engine, StorageError};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

/// The folder in which it is made.
const PARTIAL: &str = "import.partial";
/// What an empty directory may have in it: our lock, and what file systems put into their root.
const IGNORED: [&str; 2] = ["LOCK", "lost+found"];
const CACHE_BYTES: usize = 64 << 20;

/// Makes a store in the directory at `path`, which must be empty or missing, and fills it.
///
/// # Errors
/// Why not, in one line; those of `fill`. The directory is empty then.
pub fn make<T>(
    path: &Path,
    fill: impl FnOnce(&Arc<dyn Engine>) -> Result<T, String>,
) -> Result<T, String> {
    let dir = DataDir::open(path).map_err(|error| error.to_string())?;
    let failed = |error: io::Error| format!("cannot make a store in {}: {error}", path.display());
    clear(path).map_err(failed)?;
    if let Some(name) = occupant(path).map_err(failed)? {
        return Err(format!(
            "data directory {} is not empty (it has {name}); give one that is, or that is not there",
            path.display()
        ));
    }
    let partial = path.join(PARTIAL);
    DirBuilder::new().mode(0o700).create(&partial).map_err(failed)?;
    let made = build(&partial, fill);
    let moved = made.and_then(|made| {
        move_up(&partial, path).map_err(failed)?;
        Ok(made)
    });
    // Only after the error: it is what matters.
    let removed = if moved.is_ok() { remove(&partial) } else { clear(path) }.map_err(failed);
    drop(dir);
    let made = moved?;
    removed?;
    Ok(made)
}

/// Refuses a directory in which an import was begun and not finished.
///
/// # Errors
/// It is one.
pub fn check(path: &Path) -> Result<(), String> {
    if path.join(STORE).exists() || !path.join(PARTIAL).exists() {
        return Ok(());
    }
    Err(format!(
        "an import into data directory {} was begun and not finished: import again, or delete it",
        path.display()
    ))
}

/// Removes what an import has left that was killed right after its store had got to its place.
pub fn tidy(path: &Path) {
    if path.join(STORE).exists()
        && let Err(error) = remove(&path.join(PARTIAL))
    {
        tracing::warn!(%error, path = %path.join(PARTIAL).display(), "cannot remove what an import has left");
    }
}

/// Removes what imports have left that were killed before. What they had moved to its place already goes first: the
/// folder tells that it is theirs.
fn clear(path: &Path) -> io::Result<()> {
    let partial = path.join(PARTIAL);
    if partial.exists() && !path.join(STORE).exists() {
        for name in LOGS {
            match fs::remove_file(path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        remove(&partial)?;
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if temporary::is_left(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Something that is in a directory and does not belong into an empty one.
fn occupant(path: &Path) -> io::Result<Option<String>> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !IGNORED.contains(&name.as_str()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn remove(partial: &Path) -> io::Result<()> {
    match fs::remove_dir_all(partial) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn build<T>(
    partial: &Path,
    fill: impl FnOnce(&Arc<dyn Engine>) -> Result<T, String>,
) -> Result<T, String> {
    let stored = |error: StorageError| error.to_string();
    let store = partial.join(STORE);
    // Synced once, at the end: until then it counts for nothing.
    let engine: Arc<dyn Engine> =
        Arc::new(RedbEngine::open(&store, CACHE_BYTES, false).map_err(stored)?);
    let made = fill(&engine)?;
    let identity = random_identity();
    let mut batch = Batch::default();
    meta::put_identity(&mut batch, identity);
    engine.commit(&batch, Durability::Immediate).map_err(stored)?;
    engine.close();
    let [first, second] = LOGS.map(|name| redb_engine::open_file(&partial.join(name), true));
    let files = [first.map_err(stored)?, second.map_err(stored)?];
    Wal::create(files, identity.log_secret, CAPACITY).map_err(stored)?;
    File::open(&store).and_then(|file| file.sync_all()).map_err(|error| error.to_string())?;
    Ok(made)
}

/// Moves everything to its place. A store that is there has its log there.
fn move_up(partial: &Path, path: &Path) -> io::Result<()> {
    for name in LOGS {
        fs::rename(partial.join(name), path.join(name))?;
    }
    File::open(path)?.sync_all()?;
    fs::rename(partial.join(STORE), path.join(STORE))?;
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_store_is_made_whole_or_not_at_all() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let error = make(&path, |_| Err::<(), _>("no".into())).unwrap_err();
        assert_eq!(error, "no");
        assert_eq!(names(&path), ["LOCK"]);
        assert_eq!(check(&path), Ok(()));

        make(&path, |engine| {
            assert!(check(&path).unwrap_err().contains("not finished"));
            engine.snapshot().map(drop).map_err(|error| error.to_string())
        })
        .unwrap();
        assert_eq!(names(&path), ["LOCK", STORE, LOGS[0], LOGS[1]]);
        let error = make(&path, |_| Ok(())).unwrap_err();
        assert!(error.contains("is not empty"), "{error}");
    }

    #[test]
    fn what_a_killed_import_has_left_is_in_nobodys_way() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let partial = path.join(PARTIAL);
        // Killed while it was filled, between the moves, and by an error after one of them.
        for moved in 0..=LOGS.len() {
            fs::create_dir_all(&partial).unwrap();
            fs::write(partial.join(STORE), "half").unwrap();
            fs::write(path.join("snapshot.tmp.0123456789abcdef"), "").unwrap();
            for (number, name) in LOGS.iter().enumerate() {
                let folder = if number < moved { &path } else { &partial };
                fs::write(folder.join(name), "log").unwrap();
            }
            assert!(check(&path).unwrap_err().contains("import again"));
            assert_eq!(make(&path, |_| Err::<(), _>("no".into())), Err("no".into()));
            assert_eq!(names(&path), ["LOCK"]);
        }
        make(&path, |_| Ok(())).unwrap();
        // Killed when only the folder was still to be removed.
        fs::create_dir(&partial).unwrap();
        assert!(make(&path, |_| Ok(())).unwrap_err().contains("is not empty"));
        assert_eq!(check(&path), Ok(()));
        tidy(&path);
        assert_eq!(names(&path), ["LOCK", STORE, LOGS[0], LOGS[1]]);
    }
}

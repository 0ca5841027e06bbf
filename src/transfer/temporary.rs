//! Files for a while. One alone has no name any more once it is open, so nothing is left of it however the
//! process ends.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What its name begins with for the moment that it has one.
const PREFIX: &str = "snapshot.tmp.";

/// Makes one in `folder`, for its owner only.
///
/// # Errors
/// The operating system's.
pub fn file(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("{PREFIX}{:016x}", rand::random::<u64>()));
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// A folder that goes, with all that is in it, when this is dropped.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes one in `parent`, for its owner only.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!("leaseway.tmp.{:016x}", rand::random::<u64>()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Whatever is in the way, nobody can be told any more.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

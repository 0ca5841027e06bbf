//! A file for a while: it has no name any more once it is open, so nothing is left of it however the process ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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

//! Files for a while. They have no name any more once they are open, so nothing is left of them however the
//! process ends.

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

/// Whether a file of this name was left by a process that was killed in the moment that it had one.
pub fn is_left(name: &str) -> bool {
    name.starts_with(PREFIX)
}

//! The thread that writes the audit log, and the file under it.

use super::Shared;
use crate::config::AuditOutput;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two attempts to write.
const RETRY: Duration = Duration::from_secs(1);

/// Where the lines go.
pub(super) enum Output {
    Stderr,
    File {
        path: PathBuf,
        file: File,
        id: (u64, u64),
    },
    /// Does what a test says.
    #[cfg(test)]
    Fake(FakeWrite),
}

#[cfg(test)]
type FakeWrite = Box<dyn FnMut(&[u8]) -> io::Result<usize> + Send>;

/// Device and inode: what a name refers to.
fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn open(path: &Path) -> io::Result<(File, (u64, u64))> {
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).open(path)?;
    let id = identity(&file.metadata()?);
    Ok((file, id))
}

impl Output {
    /// # Errors
    /// A file that cannot be opened, with its name.
    pub fn open(output: &AuditOutput) -> io::Result<Self> {
        match output {
            AuditOutput::Stderr => Ok(Self::Stderr),
            AuditOutput::File(path) => match open(path) {
                Ok((file, id)) => Ok(Self::File { path: path.clone(), file, id }),
                Err(error) => {
                    let text = format!("audit log {}: {error}", path.display());
                    Err(io::Error::new(error.kind(), text))
                }
            },
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stderr => io::stderr().lock().write(bytes),
            Self::File { file, .. } => file.write(bytes),
            #[cfg(test)]
            Self::Fake(write) => write(bytes),
        }
    }

    /// Opens the file again if `always`, or if its name leads elsewhere by now or nowhere. Returns
    /// whether what follows goes to another file.
    fn follow(&mut self, always: bool) -> io::Result<bool> {
        let Self::File { path, file, id } = self else { return Ok(false) };
        let there = std::fs::metadata(&*path).ok().map(|metadata| identity(&metadata));
        if !always && there == Some(*id) {
            return Ok(false);
        }
        let (opened, now) = open(path)?;
        let moved = now != *id;
        (*file, *id) = (opened, now);
        Ok(moved)
    }

    fn sync(&self) {
        if let Self::File { file, .. } = self
            && let Err(error) = file.sync_data()
        {
            tracing::warn!(%error, path = self.path(), "the audit log was not synced");
        }
    }

    /// The file's name, if it is one.
    fn path(&self) -> Option<String> {
        match self {
            Self::File { path, .. } => Some(path.display().to_string()),
            _ => None,
        }
    }
}

/// Writes until the log is closed and everything is written, or can't be.
pub(super) fn run(shared: &Shared, mut output: Output) {
    let mut batch = Vec::new();
    loop {
        let mut queue = shared.queue.lock();
        while queue.bytes.is_empty() && !queue.reopen && !queue.closed {
            shared.added.wait(&mut queue);
        }
        let reopen = std::mem::take(&mut queue.reopen);
        let closed = queue.closed;
        std::mem::swap(&mut queue.bytes, &mut batch);
        drop(queue);
        shared.room.notify_waiters();
        if reopen && batch.is_empty() {
            let followed = output.follow(true).map(drop);
            report(shared, &output, followed);
        }
        if !batch.is_empty() {
            write_all(shared, &mut output, &batch, reopen);
        } else if closed {
            break;
        }
        batch.clear();
        // An idle log keeps no memory of a burst.
        batch.shrink_to(64 << 10);
    }
    output.sync();
}

fn report(shared: &Shared, output: &Output, result: io::Result<()>) {
    if let Err(error) = result {
        shared.metrics.audit.write_errors_total.inc();
        tracing::error!(%error, path = output.path(), "the audit log cannot be opened again");
    }
}

/// Writes a batch, again and again if need be, until the log is closed.
fn write_all(shared: &Shared, output: &mut Output, batch: &[u8], mut reopen: bool) {
    let (mut written, mut failed) = (0, false);
    while let Err(error) = attempt(output, batch, &mut written, std::mem::take(&mut reopen)) {
        shared.metrics.audit.write_errors_total.inc();
        if !failed {
            failed = true;
            tracing::error!(
                %error,
                path = output.path(),
                "the audit log cannot be written; trying again every second"
            );
        }
        let mut queue = shared.queue.lock();
        if !queue.closed {
            shared.added.wait_for(&mut queue, RETRY);
        }
        reopen |= std::mem::take(&mut queue.reopen);
        if queue.closed {
            drop(queue);
            let lost = batch[written..].iter().filter(|byte| **byte == b'\n').count();
            shared.metrics.audit.lost_total.add(lost as u64);
            tracing::error!(lost, "the audit log ends without its last lines");
            return;
        }
    }
    shared.queue.lock().stalled = false;
    if failed {
        let lost = shared.metrics.audit.lost_total.get();
        tracing::warn!(lost_since_start = lost, "the audit log is written again");
    }
}

/// Goes on with a batch at `written`.
fn attempt(output: &mut Output, batch: &[u8], written: &mut usize, reopen: bool) -> io::Result<()> {
    if output.follow(reopen)? {
        // Another file: the line that is cut is written there from its beginning.
        let before = batch[..*written].iter().rposition(|byte| *byte == b'\n');
        *written = before.map_or(0, |end| end + 1);
    }
    while *written < batch.len() {
        match output.write(&batch[*written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => *written += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

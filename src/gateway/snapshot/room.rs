//! Room on a disk that is not to be filled: the log is on it too, and a server that can't write its log stops.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};

/// Of a large disk, what is left to others at least.
const SPARED_MAX: u64 = 256 << 20;
/// Of a small one, this part of it.
const SPARED_PART: u64 = 16;
/// Bytes written between two looks.
const LOOK: u64 = 1 << 20;

/// What a file system has, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// What may still be written.
    pub free: u64,
}

impl Space {
    /// That of the file system that a file is on.
    ///
    /// # Errors
    /// The operating system's.
    pub fn around(file: &File) -> io::Result<Self> {
        let found = rustix::fs::fstatvfs(file)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Self { total: bytes(found.f_blocks), free: bytes(found.f_bavail) })
    }

    /// What is to be left of it.
    fn spared(self) -> u64 {
        SPARED_MAX.min(self.total / SPARED_PART)
    }
}

/// Writes as long as there is more room than what is left to others; then fails as on a full disk.
pub struct Sparing<W, F> {
    out: W,
    look: F,
    /// Bytes that may be written until the next look.
    until_look: u64,
}

impl<W, F: Fn(&W) -> io::Result<Space>> Sparing<W, F> {
    /// Writes to `out`, around which `look` tells how much room there is.
    pub fn new(out: W, look: F) -> Self {
        Self { out, look, until_look: 0 }
    }

    /// What it writes to.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn check(&mut self) -> io::Result<()> {
        let space = (self.look)(&self.out)?;
        let (free, spared) = (space.free, space.spared());
        if free < spared.saturating_add(LOOK) {
            let what = format!("{free} bytes are free, of which {spared} are kept for the log");
            return Err(io::Error::new(ErrorKind::StorageFull, what));
        }
        self.until_look = LOOK;
        Ok(())
    }
}

impl<W: Write, F: Fn(&W) -> io::Result<Space>> Write for Sparing<W, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.until_look == 0 {
            self.check()?;
        }
        let most = usize::try_from(self.until_look).unwrap_or(usize::MAX).min(bytes.len());
        let written = self.out.write(&bytes[..most])?;
        self.until_look -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Seek, F> Seek for Sparing<W, F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.out.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const MIB: u64 = 1 << 20;

    /// How many bytes fit on a disk with so many MiB, of which so many are free.
    fn fits(total: u64, free: u64) -> (u64, Option<ErrorKind>) {
        let look = |out: &Cursor<Vec<u8>>| {
            let free = (free * MIB).saturating_sub(out.get_ref().len() as u64);
            Ok(Space { total: total * MIB, free })
        };
        let mut out = Sparing::new(Cursor::new(Vec::new()), look);
        let piece = vec![7; 300_000];
        let failed = (0..1000).find_map(|_| out.write_all(&piece).err());
        (out.into_inner().into_inner().len() as u64 / MIB, failed.map(|error| error.kind()))
    }

    #[test]
    fn a_part_of_the_disk_is_left_to_others() {
        let full = Some(ErrorKind::StorageFull);
        assert_eq!(fits(160, 100), (90, full));
        assert_eq!(fits(160, 10), (0, full));
        assert_eq!(fits(1 << 20, 300), (44, full));
        assert_eq!(fits(1 << 20, 256), (0, full));
        assert_eq!(fits(1 << 20, 1 << 19), (286, None), "all of it");
    }

    #[test]
    fn a_file_is_on_some_disk() {
        let file = tempfile::tempfile().expect("a file");
        let space = Space::around(&file).expect("its disk");
        assert!(space.total > 0 && space.free <= space.total, "{space:?}");
    }
}

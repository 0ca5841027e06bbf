//! A disk for tests that loses power.
//!
//! What is written is cached sector by sector until it is synced. A power cut then decides for every
//! sector written since the last sync, independently, whether the disk holds what was there at the
//! sync or any of the contents written since: nothing about the order of writes can be relied on.
//! The file's length is cut down in the same way.

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that reach the disk together.
pub const SECTOR: usize = 512;

#[derive(Debug, Default)]
struct State {
    synced: Vec<u8>,
    current: Vec<u8>,
    // Contents that each sector has had since the last sync, oldest first.
    dirty: BTreeMap<usize, Vec<Vec<u8>>>,
    // Lengths that the file has had since the last sync.
    lengths: Vec<usize>,
}

/// Counts what disks on one supply do, and goes when it is told to.
#[derive(Debug)]
struct Power {
    operations: AtomicU64,
    cut_at: AtomicU64,
}

impl Default for Power {
    fn default() -> Self {
        Self { operations: AtomicU64::new(0), cut_at: AtomicU64::new(u64::MAX) }
    }
}

impl Power {
    fn check(&self, operation: u64) -> Result<(), Error> {
        if operation < self.cut_at.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::BrokenPipe, "no power"))
    }

    fn operate(&self) -> Result<(), Error> {
        self.check(self.operations.fetch_add(1, Ordering::SeqCst))
    }
}

/// A disk; clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    power: Arc<Power>,
}

impl Disk {
    /// A disk that holds `contents`.
    pub fn holding(contents: Vec<u8>) -> Self {
        let state = State { synced: contents.clone(), current: contents, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), power: Arc::default() }
    }

    /// Another, empty disk on the same power supply.
    pub fn beside(&self) -> Self {
        self.beside_holding(Vec::new())
    }

    /// Another disk on the same power supply, which holds `contents`.
    pub fn beside_holding(&self, contents: Vec<u8>) -> Self {
        Self { power: self.power.clone(), ..Self::holding(contents) }
    }

    /// Lets the power go at the `operation`-th write, resize or sync from now (counting from 0) of any
    /// disk on the supply: that one and all later ones fail, and so do reads.
    pub fn cut_after(&self, operation: u64) {
        let now = self.power.operations.load(Ordering::SeqCst);
        self.power.cut_at.store(now + operation, Ordering::SeqCst);
    }

    /// What the disk holds after the power is back; the seed decides what was lost.
    pub fn after_cut(&self, seed: u64) -> Vec<u8> {
        let state = self.state.lock();
        let mut random = StdRng::seed_from_u64(seed);
        let mut pick = |choices: usize| random.random_range(0..=choices);
        let length = match pick(state.lengths.len()) {
            0 => state.synced.len(),
            chosen => state.lengths[chosen - 1],
        };
        let mut contents = state.synced.clone();
        resize(&mut contents, length);
        for (sector, versions) in &state.dirty {
            let chosen = pick(versions.len());
            if chosen == 0 {
                continue;
            }
            let start = sector * SECTOR;
            if let Some(place) = contents.get_mut(start..) {
                let length = place.len().min(SECTOR);
                place[..length].copy_from_slice(&versions[chosen - 1][..length]);
            }
        }
        contents
    }
}

/// Cuts off or fills with zeros; unlike `Vec::resize` fast without optimization, too.
fn resize(contents: &mut Vec<u8>, length: usize) {
    let more = length.saturating_sub(contents.len());
    contents.truncate(length);
    contents.extend_from_slice(&vec![0; more]);
}

impl State {
    fn touch(&mut self, from: usize, to: usize) {
        for sector in from / SECTOR..to.div_ceil(SECTOR) {
            let start = sector * SECTOR;
            let end = (start + SECTOR).min(self.current.len());
            let mut contents = self.current[start..end].to_vec();
            resize(&mut contents, SECTOR);
            self.dirty.entry(sector).or_default().push(contents);
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.state.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let state = self.state.lock();
        self.power.check(self.power.operations.load(Ordering::SeqCst))?;
        let start = offset as usize;
        let found = state.current.get(start..start + out.len());
        out.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        self.power.operate()?;
        let len = len as usize;
        resize(&mut state.current, len);
        state.lengths.push(len);
        let beyond = len.div_ceil(SECTOR);
        state.dirty.retain(|sector, _| *sector < beyond);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        self.power.operate()?;
        let State { synced, current, dirty, lengths } = &mut *state;
        // What was cut off in between is gone, whatever length came after.
        synced.truncate(lengths.iter().copied().min().unwrap_or(usize::MAX));
        resize(synced, current.len());
        for sector in std::mem::take(dirty).into_keys() {
            let start = sector * SECTOR;
            let end = (start + SECTOR).min(current.len());
            if let Some(from) = current.get(start..end) {
                synced[start..end].copy_from_slice(from);
            }
        }
        lengths.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut state = self.state.lock();
        self.power.operate()?;
        let start = offset as usize;
        let end = start + data.len();
        state.current.get_mut(start..end).ok_or(ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        state.touch(start, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_data_survives_and_the_rest_may_go_either_way() {
        let disk = Disk::default();
        disk.set_len(2 * SECTOR as u64).unwrap();
        disk.write(0, b"old").unwrap();
        disk.sync_data().unwrap();
        disk.write(0, b"new").unwrap();
        disk.write(SECTOR as u64, b"second").unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let contents = disk.after_cut(seed);
            seen.insert((contents[..3].to_vec(), contents[SECTOR] == b's'));
        }
        assert_eq!(seen.len(), 4, "all combinations happen: {seen:?}");
        disk.cut_after(0);
        assert!(disk.sync_data().is_err());
        assert!(disk.read(0, &mut [0]).is_err());
    }
}

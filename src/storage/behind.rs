//! A file whose syncs happen behind the writer's back, in order.
//!
//! A sync is only noted down, and so is everything written after it until it has been made: nothing reaches
//! the file before what was to be durable first. So the file is at any time as a file would be whose writer
//! is a little behind, and a power cut leaves of it what a power cut at that moment would leave. Whoever
//! has to know that what was synced is durable waits for it with [`Behind::settle`].
//!
//! Usually a thread works off what has been noted down ([`Behind::work`]). Without one, and in tests that
//! choose the order, that is left to [`Behind::step`] and to those who wait.

use parking_lot::{Condvar, Mutex};
use redb::StorageBackend;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::sync::Arc;

/// Bytes that may wait to be written; a writer that is further ahead waits.
const BYTES: usize = 32 << 20;

/// A handle of the file; clones are the same file.
#[derive(Clone, Debug)]
pub struct Behind {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Box<dyn StorageBackend>,
    state: Mutex<State>,
    /// Held by whoever works something off.
    turn: Mutex<()>,
    noted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What is still to be done, in order; what is being done is the first of it.
    waiting: VecDeque<Operation>,
    /// Bytes of the writes among it.
    bytes: usize,
    /// Number of operations ever noted down, and of those that have been done.
    noted: u64,
    done: u64,
    /// Length of the file as its writer knows it, and as it is.
    length: u64,
    real_length: u64,
    /// What failed, and of which kind: a full disk is told from a broken one.
    failed: Option<(ErrorKind, String)>,
    stopped: bool,
}

#[derive(Clone, Debug)]
enum Operation {
    Write { offset: u64, data: Arc<[u8]> },
    SetLength(u64),
    Sync,
}

impl State {
    fn check(&self) -> Result<(), Error> {
        match &self.failed {
            Some((kind, failed)) => Err(Error::new(*kind, failed.clone())),
            None => Ok(()),
        }
    }

    fn note(&mut self, operation: Operation) {
        if let Operation::Write { data, .. } = &operation {
            self.bytes += data.len();
        }
        self.waiting.push_back(operation);
        self.noted += 1;
    }
}

impl Behind {
    /// A file that is up to date.
    ///
    /// # Errors
    /// Its length can't be found out.
    pub fn new(file: Box<dyn StorageBackend>) -> Result<Self, Error> {
        let length = file.len()?;
        let state = State { length, real_length: length, ..State::default() };
        let (state, turn) = (Mutex::new(state), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { file, state, turn, noted: Condvar::new() }) })
    }

    /// Works off what is noted down until [`Behind::stop`] is called, and then what is left.
    pub fn work(&self) {
        loop {
            let mut state = self.shared.state.lock();
            while state.waiting.is_empty() && !state.stopped {
                self.shared.noted.wait(&mut state);
            }
            if state.waiting.is_empty() || state.failed.is_some() {
                return;
            }
            drop(state);
            self.step();
        }
    }

    /// Ends [`Behind::work`].
    pub fn stop(&self) {
        self.shared.state.lock().stopped = true;
        self.shared.noted.notify_all();
    }

    /// Does the next of what has been noted down. Returns whether there was anything. What fails is told to
    /// everyone who does anything with the file from then on.
    pub fn step(&self) -> bool {
        let _turn = self.shared.turn.lock();
        let next = {
            let state = self.shared.state.lock();
            if state.failed.is_some() {
                return false;
            }
            state.waiting.front().cloned()
        };
        let Some(operation) = next else { return false };
        let file = &self.shared.file;
        let result = match &operation {
            Operation::Write { offset, data } => file.write(*offset, data),
            Operation::SetLength(length) => file.set_len(*length),
            Operation::Sync => file.sync_data(),
        };
        let mut state = self.shared.state.lock();
        if let Err(error) = result {
            state.failed = Some((error.kind(), error.to_string()));
            return false;
        }
        match operation {
            Operation::Write { data, .. } => state.bytes -= data.len(),
            Operation::SetLength(length) => state.real_length = length,
            Operation::Sync => {}
        }
        state.waiting.pop_front();
        state.done += 1;
        true
    }

    /// Waits until everything that was synced so far is durable.
    ///
    /// # Errors
    /// What went wrong with it.
    pub fn settle(&self) -> Result<(), Error> {
        let until = self.shared.state.lock().noted;
        loop {
            let state = self.shared.state.lock();
            state.check()?;
            if state.done >= until {
                return Ok(());
            }
            drop(state);
            self.step();
        }
    }

    /// Notes something down, or does it at once when nothing has to be done before.
    fn order(&self, operation: Operation) -> Result<(), Error> {
        let mut state = self.shared.state.lock();
        state.check()?;
        if let Operation::SetLength(length) = operation {
            state.length = length;
        }
        state.note(operation);
        let full = state.bytes > BYTES;
        drop(state);
        self.shared.noted.notify_all();
        if full { self.settle() } else { Ok(()) }
    }

    fn is_settled(&self) -> Result<bool, Error> {
        let state = self.shared.state.lock();
        state.check()?;
        Ok(state.waiting.is_empty())
    }
}

impl StorageBackend for Behind {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.shared.state.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let end = offset + out.len() as u64;
        let (behind, real_length) = {
            let state = self.shared.state.lock();
            state.check()?;
            if end > state.length {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let meets = |operation: &&Operation| match operation {
                Operation::Write { offset: start, data } => {
                    *start < end && offset < start + data.len() as u64
                }
                Operation::SetLength(length) => *length < end,
                Operation::Sync => false,
            };
            (state.waiting.iter().filter(meets).cloned().collect::<Vec<_>>(), state.real_length)
        };
        // A page is mostly read as it was written.
        if let Some(Operation::Write { offset: start, data }) = behind.last()
            && *start == offset
            && data.len() == out.len()
        {
            out.copy_from_slice(data);
            return Ok(());
        }
        let place = |at: u64| usize::try_from(at.clamp(offset, end) - offset).unwrap_or(0);
        let (old, new) = out.split_at_mut(place(real_length));
        if !old.is_empty() {
            self.shared.file.read(offset, old)?;
        }
        new.fill(0);
        for operation in behind {
            match operation {
                Operation::Write { offset: start, data } => {
                    let (from, to) = (place(start), place(start + data.len() as u64));
                    let skipped = offset.saturating_sub(start) as usize;
                    out[from..to].copy_from_slice(&data[skipped..skipped + to - from]);
                }
                Operation::SetLength(length) => out[place(length)..].fill(0),
                Operation::Sync => {}
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        if self.is_settled()? {
            self.shared.file.set_len(len)?;
            let mut state = self.shared.state.lock();
            (state.length, state.real_length) = (len, len);
            return Ok(());
        }
        self.order(Operation::SetLength(len))
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.order(Operation::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        if self.is_settled()? {
            return self.shared.file.write(offset, data);
        }
        self.order(Operation::Write { offset, data: data.into() })
    }

    fn close(&self) -> Result<(), Error> {
        self.settle()?;
        self.shared.file.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::power_cut::Disk;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn behind(disk: &Disk) -> Behind {
        Behind::new(Box::new(disk.clone())).unwrap()
    }

    #[test]
    fn nothing_overtakes_a_sync() {
        let disk = Disk::holding(vec![b'-'; 2048]);
        let file = behind(&disk);
        file.write(0, b"first").unwrap();
        file.sync_data().unwrap();
        file.write(512, b"second").unwrap();
        file.sync_data().unwrap();
        file.write(1024, b"third").unwrap();
        let held = |at: usize| {
            let mut held: Vec<u8> = (0..32).map(|seed| disk.after_cut(seed)[at]).collect();
            held.sort_unstable();
            held.dedup();
            held
        };
        assert_eq!((held(0), held(512), held(1024)), (b"-f".into(), b"-".into(), b"-".into()));
        assert!(file.step(), "the sync");
        assert_eq!((held(0), held(512), held(1024)), (b"f".into(), b"-".into(), b"-".into()));
        assert!(file.step(), "the write");
        assert_eq!((held(0), held(512), held(1024)), (b"f".into(), b"-s".into(), b"-".into()));
        file.settle().unwrap();
        assert_eq!((held(0), held(512), held(1024)), (b"f".into(), b"s".into(), b"-t".into()));
        assert!(!file.step(), "all done");
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        for seed in 0..50 {
            let random = &mut StdRng::seed_from_u64(seed);
            let mut model = vec![0_u8; 4096];
            let disk = Disk::holding(model.clone());
            let file = behind(&disk);
            for _ in 0..200 {
                let start = random.random_range(0..model.len());
                let end = random.random_range(start..model.len().min(start + 600)) + 1;
                match random.random_range(0..10) {
                    0..4 => {
                        let data = vec![random.random(); end - start];
                        model[start..end].copy_from_slice(&data);
                        file.write(start as u64, &data).unwrap();
                    }
                    4 => file.sync_data().unwrap(),
                    5 => {
                        model.resize(random.random_range(1000..8000), 0);
                        file.set_len(model.len() as u64).unwrap();
                    }
                    6..8 => drop(file.step()),
                    _ => {
                        let mut read = vec![7; end - start];
                        file.read(start as u64, &mut read).unwrap();
                        assert_eq!(read, model[start..end], "seed {seed}");
                    }
                }
                assert_eq!(file.len().unwrap(), model.len() as u64);
            }
            assert!(file.read(model.len() as u64, &mut [0]).is_err(), "behind the end");
            file.sync_data().unwrap();
            file.settle().unwrap();
            assert!(disk.after_cut(seed) == model, "seed {seed}");
        }
    }

    #[test]
    fn a_failure_is_told_to_everyone() {
        let disk = Disk::holding(vec![0; 1024]);
        let file = behind(&disk);
        file.write(0, b"x").unwrap();
        file.sync_data().unwrap();
        disk.cut_after(0);
        file.write(0, b"y").unwrap();
        assert!(!file.step());
        assert!(file.settle().is_err());
        assert!(file.write(0, b"z").is_err() && file.sync_data().is_err());
        assert!(file.read(0, &mut [0]).is_err());
        file.work();
    }

    #[test]
    fn a_thread_works_it_off_and_ends() {
        let disk = Disk::holding(vec![0; 1 << 16]);
        let file = behind(&disk);
        let worker = std::thread::spawn({
            let file = file.clone();
            move || file.work()
        });
        for round in 0..=255_u8 {
            file.write(u64::from(round) * 256, &[round; 256]).unwrap();
            file.sync_data().unwrap();
            if round % 16 == 0 {
                file.settle().unwrap();
                assert_eq!(disk.after_cut(1)[usize::from(round) * 256], round);
            }
        }
        file.stop();
        worker.join().unwrap();
        assert_eq!(disk.after_cut(2)[255 * 256], 255, "stopped when all was done");
    }
}

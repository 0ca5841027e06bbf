//! The log: what makes a group durable before it is answered.
//!
//! Two files, preallocated, each written from the front. They start with a header, written once:
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `leaseway log 2`, a zero byte, and which of the two it is: 0 or 1 |
//! | 16 | the store's secret: random, known to nobody but the store and its log |
//! | 8 | length that the file was made with, little-endian |
//! | 4 | CRC-32C of all that |
//!
//! From byte 64 on come the records, each of one group:
//!
//! | bytes | what |
//! |---|---|
//! | 16 | the secret |
//! | 4 | length of the entry, little-endian |
//! | 8 | position: number of the group, one more than the record's before, little-endian |
//! | 4 | CRC-32C of length, position and entry, little-endian |
//! | n | the entry: `leaseway.log.v1.Entry` |
//!
//! When a file is full, a durable commit of the store is begun (a checkpoint), and writing goes on in the other
//! file meanwhile. That starts at its front, over records of before the last checkpoint, which must be
//! finished by then: nobody needs them any more, and their positions give them away as old. So the valid
//! records of a file are those from the front with rising positions, and the first thing that is none ends
//! them. What stands behind them is the remains of old records, with clients' values in them: the
//! secret keeps a client from making a value that looks like a record. What is needed of both files
//! together are the records behind the store's position, without a gap.
//!
//! A group is written with one write and one sync, and the next one only after that, so a power cut
//! can spoil the last record only, whose group was not answered. A record that is broken although a
//! newer one stands behind it or in the other file is damage, and the log is refused; so is a file that is
//! shorter than it was made.

use crate::keyspace::command::Command;
use crate::storage::StorageError;
use leaseway_proto::log::Entry;
use prost::Message;
use redb::StorageBackend;

/// Length of each of a server's log files; a group that does not fit makes one longer for good.
pub const CAPACITY: usize = 4 << 20;
const MAGIC: [u8; 16] = *b"leaseway log 2\0\0";
/// Bytes before the first record.
const START: usize = 64;
/// Bytes before a record's entry.
const HEADER: usize = 32;

/// What a store and its log know each other by, and nobody else: random.
pub type Secret = [u8; 16];
/// Pieces in which the file is filled when it is made.
const FILL: usize = 1 << 20;

/// The log's files.
pub type Files = [Box<dyn StorageBackend>; 2];

/// The log of a store.
pub struct Wal {
    files: Files,
    secret: Secret,
    lengths: [usize; 2],
    /// Which file is written to, and where.
    current: usize,
    next: usize,
}

/// A group that was logged.
#[derive(Debug, PartialEq)]
pub struct Logged {
    /// Its number.
    pub position: u64,
    /// Its commands, in order.
    pub commands: Vec<Command>,
}

fn io(error: std::io::Error) -> StorageError {
    let text = format!("log file: {error}");
    std::io::Error::new(error.kind(), text).into()
}

fn damaged(what: &str) -> StorageError {
    StorageError::Corrupted(format!("log file: {what}"))
}

fn checksum(length: &[u8], position: &[u8], entry: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(length), position), entry)
}

fn file_header(which: usize, secret: Secret, capacity: usize) -> [u8; START] {
    let mut header = [0; START];
    header[..16].copy_from_slice(&MAGIC);
    header[15] = which as u8;
    header[16..32].copy_from_slice(&secret);
    header[32..40].copy_from_slice(&(capacity as u64).to_le_bytes());
    let sum = crc32c::crc32c(&header[..40]).to_le_bytes();
    header[40..44].copy_from_slice(&sum);
    header
}

/// The secret and the length that a file was made with, if it was finished.
fn made(which: usize, bytes: &[u8]) -> Option<(Secret, usize)> {
    let header: &[u8; START] = bytes.first_chunk()?;
    let secret: Secret = header[16..32].try_into().ok()?;
    let capacity = usize::try_from(u64::from_le_bytes(header[32..40].try_into().ok()?)).ok()?;
    (*header == file_header(which, secret, capacity)).then_some((secret, capacity))
}

/// The record at the front of `bytes`: its position, its entry, and what follows.
fn record(bytes: &[u8], secret: Secret) -> Option<(u64, &[u8], &[u8])> {
    let (header, rest) = bytes.split_at_checked(HEADER)?;
    let (mark, fields) = header.split_at(secret.len());
    let (length, fields) = fields.split_at(4);
    let (position, sum) = fields.split_at(8);
    if mark != secret {
        return None;
    }
    let size = u32::from_le_bytes(length.try_into().ok()?) as usize;
    let (entry, rest) = rest.split_at_checked(size)?;
    let good = checksum(length, position, entry).to_le_bytes() == sum;
    good.then_some((u64::from_le_bytes(position.try_into().ok()?), entry, rest))
}

fn contents(file: &dyn StorageBackend) -> Result<Vec<u8>, StorageError> {
    let mut bytes = vec![0; usize::try_from(file.len().map_err(io)?).unwrap_or(usize::MAX)];
    file.read(0, &mut bytes).map_err(io)?;
    Ok(bytes)
}

/// Makes one of the files.
fn make(
    which: usize,
    file: &dyn StorageBackend,
    secret: Secret,
    capacity: usize,
) -> Result<(), StorageError> {
    let before = contents(file)?;
    if let Some((old, _)) = made(which, &before)
        && let Some(number) = newer(&before, old, 0)
    {
        return Err(damaged(&format!("it holds group {number}, but the store is empty")));
    }
    // Written in full, so that later syncs have no blocks to allocate.
    file.set_len(capacity as u64).map_err(io)?;
    for start in (0..capacity).step_by(FILL) {
        let piece = FILL.min(capacity - start);
        file.write(start as u64, &vec![0; piece]).map_err(io)?;
    }
    file.write(0, &file_header(which, secret, capacity)).map_err(io)?;
    file.sync_data().map_err(io)
}

/// Reads one of the files.
fn checked(
    which: usize,
    file: &dyn StorageBackend,
    secret: Secret,
) -> Result<Vec<u8>, StorageError> {
    let bytes = contents(file)?;
    let length = bytes.len();
    let Some((found, capacity)) = made(which, &bytes) else {
        return Err(damaged("its header is damaged"));
    };
    if found != secret {
        return Err(damaged("it belongs to another store"));
    }
    if length < capacity {
        return Err(damaged(&format!("{length} bytes long instead of {capacity}")));
    }
    Ok(bytes)
}

impl Wal {
    /// Makes the log of a new store in empty or unfinished files. `secret` is the store's, `capacity`
    /// each file's length in bytes.
    ///
    /// # Errors
    /// I/O errors; a file that holds groups of a store that is not there.
    pub fn create(files: Files, secret: Secret, capacity: usize) -> Result<Self, StorageError> {
        for (which, file) in files.iter().enumerate() {
            make(which, &**file, secret, capacity)?;
        }
        Ok(Self { files, secret, lengths: [capacity; 2], current: 0, next: START })
    }

    /// Opens the log of a store that was committed durably at `position`, and returns the groups
    /// logged after it. The caller commits them durably and calls [`Wal::turn`] before it appends.
    ///
    /// # Errors
    /// I/O errors; damage; a log of another store.
    pub fn open(
        files: Files,
        secret: Secret,
        position: u64,
    ) -> Result<(Self, Vec<Logged>), StorageError> {
        let bytes = [checked(0, &*files[0], secret)?, checked(1, &*files[1], secret)?];
        let groups = read([&bytes[0], &bytes[1]], secret, position)?;
        let lengths = [bytes[0].len(), bytes[1].len()];
        // Nothing may be written before everything that is in the files is in the store.
        Ok((Self { files, secret, lengths, current: 0, next: usize::MAX }, groups))
    }

    /// Whether a record of `entry_bytes` fits behind the others. If not, [`Wal::turn`] has to come first.
    pub fn fits(&self, entry_bytes: usize) -> bool {
        let end = self.next.saturating_add(HEADER).saturating_add(entry_bytes);
        self.next == START || end <= self.lengths[self.current]
    }

    /// Goes on at the front of the other file. What is in that one must be durable elsewhere.
    pub fn turn(&mut self) {
        self.current = 1 - self.current;
        self.next = START;
    }

    /// An entry for [`Wal::append`].
    pub fn entry(&self, position: u64, commands: Vec<Command>) -> Entry {
        // The record tells whose the entry is.
        Entry { last_number: position, commands, ..Entry::default() }
    }

    /// Writes a group and makes it durable.
    ///
    /// # Errors
    /// I/O errors, after which what is in the file is not known.
    pub fn append(&mut self, entry: &Entry) -> Result<(), StorageError> {
        let size = entry.encoded_len();
        let length = u32::try_from(size)
            .map_err(|_| StorageError::Io("a group of 4 GiB can't be logged".into()))?
            .to_le_bytes();
        let position = entry.last_number.to_le_bytes();
        let mut bytes = Vec::with_capacity(HEADER + size);
        bytes.extend(self.secret);
        bytes.extend(length);
        bytes.extend(position);
        bytes.extend([0; 4]);
        entry.encode_raw(&mut bytes);
        let sum = checksum(&length, &position, &bytes[HEADER..]).to_le_bytes();
        bytes[HEADER - 4..HEADER].copy_from_slice(&sum);
        let end = self.next.saturating_add(bytes.len());
        let (file, length) = (&self.files[self.current], &mut self.lengths[self.current]);
        if end > *length {
            file.set_len(end as u64).map_err(io)?;
            *length = end;
        }
        file.write(self.next as u64, &bytes).map_err(io)?;
        file.sync_data().map_err(io)?;
        self.next = end;
        Ok(())
    }
}

/// The valid records of a file, and what stands behind them.
fn chain(bytes: &[u8], secret: Secret) -> (Vec<(u64, &[u8])>, &[u8]) {
    let mut records: Vec<(u64, &[u8])> = Vec::new();
    let mut rest = bytes.get(START..).unwrap_or_default();
    while let Some((number, entry, behind)) = record(rest, secret) {
        if records.last().is_some_and(|(last, _)| number != last + 1) {
            break;
        }
        records.push((number, entry));
        rest = behind;
    }
    (records, rest)
}

/// Reads the groups behind `position`.
fn read(files: [&[u8]; 2], secret: Secret, position: u64) -> Result<Vec<Logged>, StorageError> {
    let mut chains = files.map(|bytes| chain(bytes, secret));
    chains.sort_by_key(|(records, _)| records.first().map(|(number, _)| *number));
    let mut groups = Vec::new();
    for (number, entry) in chains.iter().flat_map(|(records, _)| records) {
        if *number <= position {
            continue;
        }
        let expected = position + groups.len() as u64 + 1;
        if *number != expected {
            return Err(damaged(&format!("group {number} follows where {expected} should")));
        }
        let entry = Entry::decode(*entry).map_err(|error| damaged(&error.to_string()))?;
        groups.push(Logged { position: *number, commands: entry.commands });
    }
    let known = position + groups.len() as u64;
    if let Some(number) = chains.iter().find_map(|(_, rest)| newer(rest, secret, known)) {
        return Err(damaged(&format!("group {number} is there but not the one before it")));
    }
    Ok(groups)
}

/// A valid record behind `known`, anywhere.
fn newer(bytes: &[u8], secret: Secret, known: u64) -> Option<u64> {
    let candidates = bytes.windows(secret.len()).enumerate();
    candidates
        .filter(|(_, window)| window[0] == secret[0] && *window == secret)
        .filter_map(|(at, _)| record(&bytes[at..], secret))
        .map(|(number, _, _)| number)
        .find(|number| *number > known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::command::{Op, command};
    use crate::storage::power_cut::Disk;
    use leaseway_proto::etcdserverpb::PutRequest;

    const SECRET: Secret = *b"0123456789abcdef";
    const SMALL: usize = 4096;

    fn group(value: &str) -> Vec<Command> {
        let value = value.to_string().into();
        vec![command(Op::Put(PutRequest { key: "k".into(), value, ..Default::default() }))]
    }

    fn files(disks: &[Disk; 2]) -> Files {
        disks.each_ref().map(|disk| Box::new(disk.clone()) as _)
    }

    fn logged(disks: &[Disk; 2], position: u64) -> Result<Vec<u64>, StorageError> {
        let (_, groups) = Wal::open(files(disks), SECRET, position)?;
        Ok(groups.iter().map(|group| group.position).collect())
    }

    fn append(wal: &mut Wal, positions: std::ops::RangeInclusive<u64>, value: &str) {
        for position in positions {
            wal.append(&wal.entry(position, group(value))).unwrap();
        }
    }

    fn written(groups: u64) -> ([Disk; 2], Wal) {
        let disks = [Disk::default(), Disk::default()];
        let mut wal = Wal::create(files(&disks), SECRET, SMALL).unwrap();
        append(&mut wal, 1..=groups, "value");
        (disks, wal)
    }

    fn flip(disk: &Disk, offset: u64) {
        let mut byte = [0];
        disk.read(offset, &mut byte).unwrap();
        disk.write(offset, &[byte[0] ^ 1]).unwrap();
    }

    #[test]
    fn what_is_logged_comes_back() {
        let (disks, _) = written(3);
        let (_, groups) = Wal::open(files(&disks), SECRET, 1).unwrap();
        let expected = [2, 3].map(|position| Logged { position, commands: group("value") });
        assert_eq!(groups, expected);
        assert!(logged(&disks, 3).unwrap().is_empty());
        assert!(Wal::open(files(&disks), [8; 16], 1).is_err(), "of another store");
        let [first, second] = disks;
        assert!(logged(&[second, first], 1).is_err(), "exchanged files");
    }

    #[test]
    fn the_files_are_written_in_turn() {
        let (disks, mut wal) = written(3);
        wal.turn();
        append(&mut wal, 4..=6, "another");
        assert_eq!(logged(&disks, 0).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(logged(&disks, 3).unwrap(), [4, 5, 6]);
        // The checkpoint of what is in the first file is finished.
        wal.turn();
        append(&mut wal, 7..=7, "longer than before");
        assert_eq!(logged(&disks, 3).unwrap(), [4, 5, 6, 7]);
        assert!(logged(&disks, 2).is_err(), "a store that misses group 3");
        append(&mut wal, 8..=9, "value");
        assert_eq!(logged(&disks, 3).unwrap(), [4, 5, 6, 7, 8, 9]);
        assert_eq!(logged(&disks, 6).unwrap(), [7, 8, 9]);
        wal.turn();
        append(&mut wal, 10..=10, "longer than before");
        assert_eq!(logged(&disks, 6).unwrap(), [7, 8, 9, 10]);
    }

    #[test]
    fn only_the_last_record_may_be_broken() {
        let (disks, mut wal) = written(3);
        let start = START as u64;
        let record = (wal.next as u64 - start) / 3;
        let end = start + 3 * record;
        flip(&disks[0], end - 1);
        assert_eq!(logged(&disks, 0).unwrap(), [1, 2]);
        flip(&disks[0], end - 1);
        for offset in 0..end - record {
            flip(&disks[0], offset);
            let found = logged(&disks, 0);
            assert!(found.is_err(), "byte {offset}: {found:?}");
            flip(&disks[0], offset);
        }
        assert_eq!(logged(&disks, 0).unwrap(), [1, 2, 3]);
        wal.turn();
        append(&mut wal, 4..=5, "value");
        for offset in 0..end {
            flip(&disks[0], offset);
            let found = logged(&disks, 0);
            assert!(found.is_err(), "byte {offset} of the first of two files: {found:?}");
            flip(&disks[0], offset);
        }
        flip(&disks[1], start + 2 * record - 1);
        assert_eq!(logged(&disks, 0).unwrap(), [1, 2, 3, 4]);
        flip(&disks[1], start);
        assert!(logged(&disks, 0).unwrap() == [1, 2, 3]);
        disks[1].set_len(SMALL as u64 - 1).unwrap();
        assert!(logged(&disks, 0).is_err(), "a file cut short");
    }

    #[test]
    fn a_value_can_not_pass_for_a_record() {
        let (disks, wal) = written(1);
        // What a client could make: a whole record, but for the secret.
        let entry = wal.entry(2, group("forged")).encode_to_vec();
        let length = (entry.len() as u32).to_le_bytes();
        let position = 2_u64.to_le_bytes();
        let sum = checksum(&length, &position, &entry).to_le_bytes();
        let parts = [&[7; 16][..], &length, &position, &sum, &entry];
        disks[0].write(wal.next as u64, &parts.concat()).unwrap();
        assert!(logged(&disks, 0).unwrap() == [1]);
        let far = 1_000_u64.to_le_bytes();
        let sum = checksum(&0_u32.to_le_bytes(), &far, &[]).to_le_bytes();
        for disk in &disks {
            disk.write(2_000, &[&[7; 16][..], &[0; 4], &far, &sum].concat()).unwrap();
        }
        assert!(logged(&disks, 0).unwrap() == [1]);
    }

    #[test]
    fn a_log_without_its_store_is_not_wiped() {
        let (disks, _) = written(2);
        assert!(Wal::create(files(&disks), [8; 16], SMALL).is_err());
        assert_eq!(logged(&disks, 0).unwrap(), [1, 2]);
        let (unused, _) = written(0);
        assert!(Wal::create(files(&unused), [8; 16], SMALL).is_ok(), "nothing is lost with it");
    }

    #[test]
    fn a_group_larger_than_the_file() {
        let (disks, mut wal) = written(1);
        let large = "x".repeat(SMALL);
        let entry = wal.entry(2, group(&large));
        assert!(!wal.fits(entry.encoded_len()));
        wal.turn();
        assert!(wal.fits(entry.encoded_len()));
        wal.append(&entry).unwrap();
        assert_eq!(logged(&disks, 0).unwrap(), [1, 2]);
    }
}

//! The log file: what makes a group durable before it is answered.
//!
//! One file, preallocated, written from the front. It starts with a header, written once:
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `leaseway log 1` and two zero bytes |
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
//! When the file is full, the store is committed durably (a checkpoint) and writing starts at the front
//! again, over records that nobody needs any more; their positions give them away as old. So the valid
//! records are those from the front with rising positions, and the first thing that is none ends them.
//! What stands behind them is the remains of old records, with clients' values in them: the secret
//! keeps a client from making a value that looks like a record.
//!
//! A group is written with one write and one sync, and the next one only after that, so a power cut
//! can spoil the last record only, whose group was not answered. A record that is broken although a
//! newer one stands behind it is damage, and the log is refused; so is a file that is shorter than it
//! was made.

use crate::keyspace::command::Command;
use crate::storage::StorageError;
use leaseway_proto::log::Entry;
use prost::Message;
use redb::StorageBackend;

/// Length of a server's log file; a group that does not fit makes it longer for good.
pub const CAPACITY: usize = 1 << 20;
const MAGIC: [u8; 16] = *b"leaseway log 1\0\0";
/// Bytes before the first record.
const START: usize = 64;
/// Bytes before a record's entry.
const HEADER: usize = 32;

/// What a store and its log know each other by, and nobody else: random.
pub type Secret = [u8; 16];
/// Pieces in which the file is filled when it is made.
const FILL: usize = 1 << 20;

/// The log file of a store.
pub struct Wal {
    file: Box<dyn StorageBackend>,
    secret: Secret,
    length: usize,
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
    StorageError::Io(format!("log file: {error}"))
}

fn damaged(what: &str) -> StorageError {
    StorageError::Corrupted(format!("log file: {what}"))
}

fn checksum(length: &[u8], position: &[u8], entry: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(length), position), entry)
}

fn file_header(secret: Secret, capacity: usize) -> [u8; START] {
    let mut header = [0; START];
    header[..16].copy_from_slice(&MAGIC);
    header[16..32].copy_from_slice(&secret);
    header[32..40].copy_from_slice(&(capacity as u64).to_le_bytes());
    let sum = crc32c::crc32c(&header[..40]).to_le_bytes();
    header[40..44].copy_from_slice(&sum);
    header
}

/// The secret and the length that a file was made with, if it was finished.
fn made(bytes: &[u8]) -> Option<(Secret, usize)> {
    let header: &[u8; START] = bytes.first_chunk()?;
    let secret: Secret = header[16..32].try_into().ok()?;
    let capacity = usize::try_from(u64::from_le_bytes(header[32..40].try_into().ok()?)).ok()?;
    (*header == file_header(secret, capacity)).then_some((secret, capacity))
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

impl Wal {
    /// Makes the log of a new store in an empty or unfinished file. `secret` is the store's, `capacity`
    /// the file's length in bytes.
    ///
    /// # Errors
    /// I/O errors; a file that holds groups of a store that is not there.
    pub fn create(
        file: Box<dyn StorageBackend>,
        secret: Secret,
        capacity: usize,
    ) -> Result<Self, StorageError> {
        let before = contents(&*file)?;
        if let Some((old, _)) = made(&before)
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
        file.write(0, &file_header(secret, capacity)).map_err(io)?;
        file.sync_data().map_err(io)?;
        Ok(Self { file, secret, length: capacity, next: START })
    }

    /// Opens the log of a store that was committed durably at `position`, and returns the groups
    /// logged after it.
    ///
    /// # Errors
    /// I/O errors; damage; a log of another store.
    pub fn open(
        file: Box<dyn StorageBackend>,
        secret: Secret,
        position: u64,
    ) -> Result<(Self, Vec<Logged>), StorageError> {
        let bytes = contents(&*file)?;
        let length = bytes.len();
        let Some((found, capacity)) = made(&bytes) else {
            return Err(damaged("its header is damaged"));
        };
        if found != secret {
            return Err(damaged("it belongs to another store"));
        }
        if length < capacity {
            return Err(damaged(&format!("{length} bytes long instead of {capacity}")));
        }
        let (groups, used) = read(&bytes, secret, position)?;
        // Records up to `position` are overwritten, but never ones that are still needed: the
        // caller commits what it got before it appends.
        Ok((Self { file, secret, length, next: used }, groups))
    }

    /// Whether a record of `entry_bytes` fits behind the others. If not, the store must be committed
    /// durably and [`Wal::rewind`] called first.
    pub fn fits(&self, entry_bytes: usize) -> bool {
        self.next == START || self.next + HEADER + entry_bytes <= self.length
    }

    /// Starts at the front again: everything logged so far is durable elsewhere.
    pub fn rewind(&mut self) {
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
        let end = self.next + bytes.len();
        if end > self.length {
            self.file.set_len(end as u64).map_err(io)?;
            self.length = end;
        }
        self.file.write(self.next as u64, &bytes).map_err(io)?;
        self.file.sync_data().map_err(io)?;
        self.next = end;
        Ok(())
    }
}

/// Reads the groups behind `position`, and how far the valid records reach.
fn read(bytes: &[u8], secret: Secret, position: u64) -> Result<(Vec<Logged>, usize), StorageError> {
    let mut groups = Vec::new();
    let mut rest = &bytes[START..];
    let mut last = None;
    while let Some((number, entry, behind)) = record(rest, secret) {
        if last.is_some_and(|last| number != last + 1) {
            break;
        }
        let entry = Entry::decode(entry).map_err(|error| damaged(&error.to_string()))?;
        if number > position {
            let expected = position + groups.len() as u64 + 1;
            if number != expected {
                return Err(damaged(&format!("group {number} follows where {expected} should")));
            }
            groups.push(Logged { position: number, commands: entry.commands });
        }
        last = Some(number);
        rest = behind;
    }
    let known = position + groups.len() as u64;
    if let Some(number) = newer(rest, secret, known) {
        return Err(damaged(&format!("group {number} is there but not the one before it")));
    }
    Ok((groups, bytes.len() - rest.len()))
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

    fn logged(disk: &Disk, position: u64) -> Result<Vec<u64>, StorageError> {
        let (_, groups) = Wal::open(Box::new(disk.clone()), SECRET, position)?;
        Ok(groups.iter().map(|group| group.position).collect())
    }

    fn written(groups: u64) -> (Disk, Wal) {
        let disk = Disk::default();
        let mut wal = Wal::create(Box::new(disk.clone()), SECRET, SMALL).unwrap();
        for position in 1..=groups {
            wal.append(&wal.entry(position, group("value"))).unwrap();
        }
        (disk, wal)
    }

    fn flip(disk: &Disk, offset: u64) {
        let mut byte = [0];
        disk.read(offset, &mut byte).unwrap();
        disk.write(offset, &[byte[0] ^ 1]).unwrap();
    }

    #[test]
    fn what_is_logged_comes_back() {
        let (disk, _) = written(3);
        let (_, groups) = Wal::open(Box::new(disk.clone()), SECRET, 1).unwrap();
        let expected = [2, 3].map(|position| Logged { position, commands: group("value") });
        assert_eq!(groups, expected);
        assert!(logged(&disk, 3).unwrap().is_empty());
        assert!(Wal::open(Box::new(disk), [8; 16], 1).is_err(), "of another store");
    }

    #[test]
    fn old_records_behind_new_ones_are_not_taken() {
        let (disk, mut wal) = written(5);
        wal.rewind();
        wal.append(&wal.entry(6, group("longer than before"))).unwrap();
        assert_eq!(logged(&disk, 5).unwrap(), [6]);
        let mut same = wal;
        same.rewind();
        same.append(&same.entry(7, group("longer than before"))).unwrap();
        assert_eq!(logged(&disk, 6).unwrap(), [7]);
        assert!(logged(&disk, 5).is_err(), "a store that misses group 6");
    }

    #[test]
    fn only_the_last_record_may_be_broken() {
        let (disk, wal) = written(3);
        let start = START as u64;
        let record = (wal.next as u64 - start) / 3;
        let end = start + 3 * record;
        flip(&disk, end - 1);
        assert_eq!(logged(&disk, 0).unwrap(), [1, 2]);
        flip(&disk, end - 1);
        for offset in 0..end - record {
            flip(&disk, offset);
            let found = logged(&disk, 0);
            assert!(found.is_err(), "byte {offset}: {found:?}");
            flip(&disk, offset);
        }
        assert_eq!(logged(&disk, 0).unwrap(), [1, 2, 3]);
        disk.set_len(SMALL as u64 - 1).unwrap();
        assert!(logged(&disk, 0).is_err(), "a file cut short");
    }

    #[test]
    fn a_value_can_not_pass_for_a_record() {
        let (disk, mut wal) = written(1);
        // What a client could make: a whole record, but for the secret.
        let entry = wal.entry(2, group("forged")).encode_to_vec();
        let length = (entry.len() as u32).to_le_bytes();
        let position = 2_u64.to_le_bytes();
        let sum = checksum(&length, &position, &entry).to_le_bytes();
        let parts = [&[7; 16][..], &length, &position, &sum, &entry];
        disk.write(wal.next as u64, &parts.concat()).unwrap();
        assert!(logged(&disk, 0).unwrap() == [1]);
        wal.rewind();
        let far = 1_000_u64.to_le_bytes();
        let sum = checksum(&0_u32.to_le_bytes(), &far, &[]).to_le_bytes();
        disk.write(2_000, &[&[7; 16][..], &[0; 4], &far, &sum].concat()).unwrap();
        assert!(logged(&disk, 0).unwrap() == [1]);
    }

    #[test]
    fn a_log_without_its_store_is_not_wiped() {
        let (disk, _) = written(2);
        assert!(Wal::create(Box::new(disk.clone()), [8; 16], SMALL).is_err());
        assert_eq!(logged(&disk, 0).unwrap(), [1, 2]);
        let (unused, _) = written(0);
        assert!(Wal::create(Box::new(unused), [8; 16], SMALL).is_ok(), "nothing is lost with it");
    }

    #[test]
    fn a_group_larger_than_the_file() {
        let (disk, mut wal) = written(1);
        let large = "x".repeat(SMALL);
        let entry = wal.entry(2, group(&large));
        assert!(!wal.fits(entry.encoded_len()));
        wal.rewind();
        assert!(wal.fits(entry.encoded_len()));
        wal.append(&entry).unwrap();
        assert_eq!(logged(&disk, 1).unwrap(), [2]);
    }
}

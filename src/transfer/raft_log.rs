//! Whether the log of a stopped etcd holds what its database file does not.
//!
//! etcd commits to its database ten times a second, and once more when it is stopped. What was
//! acknowledged since is in the log only. Here the log is not applied, only looked through for that.
//!
//! A log file (`member/wal/*.wal`) is a sequence of records: a length (i64, little-endian; the lowest 56
//! bits, and the lowest three of the highest byte, if the number is negative, for the padding behind) and
//! a message with kind, checksum and data. A length of 0 ends the records of a file. The checksum goes
//! on from record to record, and from file to file.
//!
//! Deliberately absent: what the commands mean.

use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

const ENTRY: i64 = 2;
const CHECKSUM: i64 = 4;
const SNAPSHOT: i64 = 5;
/// Bytes of a record, far above what etcd's largest request leads to.
const RECORD_BYTES_MAX: u64 = 512 << 20;

/// Fields of a command (`InternalRaftRequest`) that leave keys, leases, users and alarms as they are: its
/// id, its header, and what concerns the cluster's members and version. Not those of leases' time: one may say
/// that a lease was renewed of which the database says that it ends soon.
const HARMLESS: [u32; 5] = [1, 100, 1300, 1301, 1302];
/// In commands before 3.6, field 2 is about members and versions as well, in one of two forms: a
/// message, or the method of an old request.
const OLD: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, optional, tag = "1")]
    kind: Option<i64>,
    #[prost(uint32, optional, tag = "2")]
    checksum: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "3")]
    data: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(int32, optional, tag = "1")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "3")]
    index: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    data: Option<Vec<u8>>,
}

/// What a snapshot's record says of it.
#[derive(Clone, PartialEq, Message)]
struct Mark {
    #[prost(uint64, optional, tag = "1")]
    index: Option<u64>,
}

/// What a log has to say of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of commands that are not in the database, and would change something.
    pub behind: usize,
    /// Index of the last entry or snapshot that the log knows of. Whatever is in a database has been in its log before.
    pub last: u64,
}

/// Why the log can't be judged.
#[derive(Debug, thiserror::Error)]
pub enum RaftLogError {
    /// A file can't be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// What is in a file is not what was written.
    #[error("etcd's log is damaged: {path}, {what}")]
    Damaged {
        /// Which file.
        path: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What the log in `folder` has to say of a database whose last command has this index; nothing if there is no log.
///
/// # Errors
/// See [`RaftLogError`].
pub fn look(folder: &Path, index: u64) -> Result<Option<Found>, RaftLogError> {
    let files = files(folder)?;
    if files.is_empty() {
        return Ok(None);
    }
    let (mut checksum, mut last) = (0, 0);
    // Indices of commands found so far, ascending: what a later leader overwrote is taken back.
    let mut behind: Vec<u64> = Vec::new();
    for path in files {
        let mut records = Records::open(&path)?;
        while let Some(record) = records.next(&mut checksum)? {
            if record.kind() == SNAPSHOT {
                let mark = Mark::decode(record.data()).map_err(|_| records.damaged("no mark"))?;
                last = last.max(mark.index());
            }
            if record.kind() != ENTRY {
                continue;
            }
            let entry = Entry::decode(record.data()).map_err(|_| records.damaged("no entry"))?;
            last = last.max(entry.index());
            while behind.last().is_some_and(|last| *last >= entry.index()) {
                behind.pop();
            }
            if entry.index() > index && entry.kind() == 0 && !is_harmless(entry.data()) {
                behind.push(entry.index());
            }
        }
    }
    Ok(Some(Found { behind: behind.len(), last }))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, RaftLogError> {
    let failed = |source| RaftLogError::Io { path: folder.display().to_string(), source };
    let listed = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in listed {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "wal") {
            files.push(path);
        }
    }
    // Their names begin with their number, in hexadecimal of a fixed width.
    files.sort_unstable();
    Ok(files)
}

/// Whether a command leaves what is imported as it is.
fn is_harmless(mut command: &[u8]) -> bool {
    const METHODS: [&[u8]; 6] = [b"GET", b"PUT", b"POST", b"DELETE", b"QGET", b"SYNC"];
    let mut old = false;
    while !command.is_empty() {
        let Ok((tag, wire)) = decode_key(&mut command) else { return false };
        if tag == OLD && wire == WireType::LengthDelimited {
            let Ok(length) = decode_varint(&mut command) else { return false };
            let Some((field, rest)) =
                usize::try_from(length).ok().and_then(|length| command.split_at_checked(length))
            else {
                return false;
            };
            old |= METHODS.contains(&field);
            command = rest;
            continue;
        }
        // What follows the method are the old request's other fields.
        if !old && !HARMLESS.contains(&tag) {
            return false;
        }
        if skip_field(wire, tag, &mut command, DecodeContext::default()).is_err() {
            return false;
        }
    }
    true
}

/// The records of one file.
struct Records {
    path: PathBuf,
    file: BufReader<File>,
    left: u64,
}

impl Records {
    fn open(path: &Path) -> Result<Self, RaftLogError> {
        let failed = |source| RaftLogError::Io { path: path.display().to_string(), source };
        let file = File::open(path).map_err(failed)?;
        let left = file.metadata().map_err(failed)?.len();
        Ok(Self { path: path.to_owned(), file: BufReader::with_capacity(1 << 20, file), left })
    }

    fn damaged(&self, what: &'static str) -> RaftLogError {
        RaftLogError::Damaged { path: self.path.display().to_string(), what }
    }

    fn read(&mut self, bytes: u64) -> Result<Option<Vec<u8>>, RaftLogError> {
        if bytes > self.left {
            return Ok(None);
        }
        let mut read = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let path = || self.path.display().to_string();
        self.file
            .read_exact(&mut read)
            .map_err(|source| RaftLogError::Io { path: path(), source })?;
        self.left -= bytes;
        Ok(Some(read))
    }

    /// The next record. What ends within a record was being written when etcd was killed, and nobody
    /// was told that it had been.
    fn next(&mut self, checksum: &mut u32) -> Result<Option<Record>, RaftLogError> {
        let Some(head) = self.read(8)? else { return Ok(None) };
        let head = u64::from_le_bytes(head.try_into().unwrap_or_default());
        if head == 0 {
            return Ok(None);
        }
        let (length, padding) = (head & ((1 << 56) - 1), (head >> 56) & 7);
        let padding = if head >> 63 == 1 { padding } else { 0 };
        if length > RECORD_BYTES_MAX {
            return Err(self.damaged("a record of impossible length"));
        }
        let Some(bytes) = self.read(length + padding)? else { return Ok(None) };
        // Space that was made but not written to before the power went.
        let torn = bytes.chunks(512).any(|sector| sector.iter().all(|byte| *byte == 0));
        let record = bytes.get(..length as usize).and_then(|bytes| Record::decode(bytes).ok());
        let good = record.as_ref().is_some_and(|record| {
            if record.kind() == CHECKSUM {
                let begins = *checksum == 0 || record.checksum() == *checksum;
                *checksum = record.checksum();
                return begins;
            }
            *checksum = crc32c::crc32c_append(*checksum, record.data());
            record.checksum() == *checksum
        });
        match record {
            Some(record) if good => Ok(Some(record)),
            _ if torn => Ok(None),
            _ => Err(self.damaged("a record that fails its checksum")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log file's bytes, with the checksum that the next one goes on from.
    fn file(checksum: &mut u32, entries: &[(u64, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |kind, checksum, data: Option<Vec<u8>>| {
            let record = Record { kind: Some(kind), checksum: Some(checksum), data };
            let mut record = record.encode_to_vec();
            let (length, padding) = (record.len() as u64, (8 - record.len() % 8) % 8);
            let mark = if padding > 0 { (0x80 | padding as u64) << 56 } else { 0 };
            bytes.extend((length | mark).to_le_bytes());
            record.resize(record.len() + padding, 0);
            bytes.append(&mut record);
        };
        push(CHECKSUM, *checksum, None);
        for (index, data) in entries {
            let entry = Entry { kind: Some(0), index: Some(*index), data: Some(data.to_vec()) };
            let data = entry.encode_to_vec();
            *checksum = crc32c::crc32c_append(*checksum, &data);
            push(ENTRY, *checksum, Some(data));
        }
        bytes
    }

    fn folder(files: &[&[u8]]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (number, bytes) in files.iter().enumerate() {
            fs::write(dir.path().join(format!("{number:016x}-{:016x}.wal", 0)), bytes).unwrap();
        }
        dir
    }

    /// A put, and the announcement of a member.
    const PUT: &[u8] = b"\x08\x01\x22\x03\x0a\x01k";
    const ANNOUNCE: &[u8] = b"\x08\x01\xaa\x51\x00";
    const OLD_ANNOUNCE: &[u8] = b"\x08\x01\x12\x03PUT\x1a\x02/0";
    /// How much is left of a lease.
    const CHECKPOINT: &[u8] = b"\x08\x01\x5a\x00";

    fn behind(dir: &tempfile::TempDir, index: u64) -> usize {
        look(dir.path(), index).unwrap().expect("a log").behind
    }

    #[test]
    fn commands_behind_the_index_are_counted_and_what_was_overwritten_is_not() {
        let mut sum = 0;
        let first = file(&mut sum, &[(4, PUT), (5, PUT), (6, ANNOUNCE), (7, PUT), (8, b"")]);
        let mut second = file(&mut sum, &[(7, OLD_ANNOUNCE), (8, PUT), (9, PUT)]);
        second.resize(second.len() + 100, 0);
        let dir = folder(&[&first, &second]);
        assert_eq!(behind(&dir, 4), 3, "5, 8 and 9");
        assert_eq!(behind(&dir, 8), 1);
        assert_eq!(look(dir.path(), 9).unwrap(), Some(Found { behind: 0, last: 9 }));
        assert_eq!(look(&dir.path().join("none"), 0).unwrap(), None);
        assert_eq!(look(folder(&[]).path(), 0).unwrap(), None);
    }

    #[test]
    fn a_torn_end_is_the_end_and_damage_is_refused() {
        let mut sum = 0;
        let whole = file(&mut sum, &[(1, PUT), (2, PUT)]);
        let torn = folder(&[&whole[..whole.len() - 9]]);
        assert_eq!(behind(&torn, 0), 1);
        let mut flipped = whole.clone();
        flipped[whole.len() - 60] ^= 1;
        let flipped = folder(&[&flipped]);
        let error = look(flipped.path(), 0).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }

    #[test]
    fn only_what_is_known_to_be_harmless_is() {
        assert!(is_harmless(b"") && is_harmless(ANNOUNCE) && is_harmless(OLD_ANNOUNCE));
        for command in [PUT, CHECKPOINT, b"\x08", b"\x12\xff", b"\x32\x00", b"\xc2\x3e\x00"] {
            assert!(!is_harmless(command), "{command:?}");
        }
    }
}

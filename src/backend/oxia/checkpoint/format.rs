//! What is in a checkpoint's records.
//!
//! The rows of all tables, one table after the other, are one stream of bytes, which is cut into
//! segments anywhere. A row is: table (u8), length of the key and of the value (u32 each,
//! little-endian), key, value. A segment is: CRC-32C of the rest, its number (u32 each,
//! little-endian), bytes of the stream. Head and manifest are messages behind a CRC-32C.

use crate::keyspace::gateways::Gateways;
use crate::storage::tables::meta;
use crate::storage::{Batch, Snapshot, StorageError, Table, try_scan};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use leaseway_proto::log::checkpoint_manifest::Tally;
use prost::Message;
use std::ops::ControlFlow;

/// The form that this version writes and reads.
pub const FORMAT: u32 = 1;
/// Bytes of the stream in a segment. Small, so that a log record that waits behind one in the
/// server waits a few milliseconds only.
pub const SEGMENT_BYTES: usize = 512 << 10;

const CHECKSUM: usize = 4;
const ROW_HEADER: usize = 9;

/// Why a record is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(pub String);

fn damaged(what: impl Into<String>) -> Damaged {
    Damaged(what.into())
}

/// A message behind its checksum.
pub fn seal(message: &impl Message) -> Bytes {
    let mut out = BytesMut::with_capacity(CHECKSUM + message.encoded_len());
    out.put_u32_le(0);
    out.put_slice(&message.encode_to_vec());
    sign(out)
}

fn sign(mut out: BytesMut) -> Bytes {
    let sum = crc32c::crc32c(&out[CHECKSUM..]);
    out[..CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    out.freeze()
}

fn verified(mut value: Bytes) -> Result<Bytes, Damaged> {
    if value.len() < CHECKSUM {
        return Err(damaged("a record of a checkpoint is too short"));
    }
    let sum = value.get_u32_le();
    if crc32c::crc32c(&value) != sum {
        return Err(damaged("a record of a checkpoint fails its checksum"));
    }
    Ok(value)
}

/// The message behind a checksum.
///
/// # Errors
/// The bytes are not what was written.
pub fn unseal<M: Message + Default>(value: Bytes) -> Result<M, Damaged> {
    M::decode(verified(value)?).map_err(|error| damaged(error.to_string()))
}

/// Tells a log record from any other at its position.
pub fn fingerprint(record: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(record)
}

/// A table's number in the stream.
fn number(table: Table) -> u8 {
    match table {
        Table::Meta => 1,
        Table::Rows => 2,
        Table::Leases => 3,
        Table::Alarms => 4,
        Table::Users => 5,
        Table::Roles => 6,
    }
}

fn table(number: u8) -> Option<Table> {
    Table::ALL.into_iter().find(|&table| self::number(table) == number)
}

/// How many rows there were of each table, and their checksum.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tallies([Tally; Table::ALL.len()]);

impl Tallies {
    fn add(&mut self, table: Table, row: &[u8]) {
        let tally = &mut self.0[table as usize];
        tally.rows += 1;
        tally.bytes += row.len() as u64;
        tally.checksum = crc32c::crc32c_append(tally.checksum, row);
    }

    /// All of them, in the form of a manifest.
    pub fn all(&self) -> Vec<Tally> {
        Table::ALL
            .into_iter()
            .zip(&self.0)
            .map(|(table, tally)| Tally { table: number(table).into(), ..*tally })
            .collect()
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|tally| tally.bytes).sum()
    }
}

/// Cuts a snapshot into segments.
#[derive(Debug, Default)]
pub struct Packer {
    // Index into `Table::ALL`, and the first key that is still to come.
    table: usize,
    from: Vec<u8>,
    waiting: BytesMut,
    segments: u32,
    tallies: Tallies,
}

impl Packer {
    /// The next segment; `None` when there is no more.
    ///
    /// # Errors
    /// The snapshot can't be read.
    pub fn next(&mut self, snapshot: &dyn Snapshot) -> Result<Option<Bytes>, StorageError> {
        while self.waiting.len() < SEGMENT_BYTES
            && let Some(&table) = Table::ALL.get(self.table)
        {
            self.fill(snapshot, table)?;
        }
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let length = self.waiting.len().min(SEGMENT_BYTES);
        let mut out = BytesMut::with_capacity(2 * CHECKSUM + length);
        out.put_u32_le(0);
        out.put_u32_le(self.segments);
        out.put_slice(&self.waiting.split_to(length));
        self.segments += 1;
        Ok(Some(sign(out)))
    }

    /// Takes rows of one table until a segment is full or the table is at its end.
    fn fill(&mut self, snapshot: &dyn Snapshot, table: Table) -> Result<(), StorageError> {
        let Self { from, waiting, tallies, .. } = self;
        let start = std::mem::take(from);
        try_scan(snapshot, table, &start, None, |key, value| {
            if table == Table::Meta && meta::is_local(key) {
                return Ok(ControlFlow::Continue(()));
            }
            let begun = waiting.len();
            let length = |bytes: &[u8]| {
                u32::try_from(bytes.len())
                    .map_err(|_| StorageError::Corrupted("a row of 4 GiB or more".into()))
            };
            waiting.put_u8(number(table));
            waiting.put_u32_le(length(key)?);
            waiting.put_u32_le(length(value)?);
            waiting.put_slice(key);
            waiting.put_slice(value);
            tallies.add(table, &waiting[begun..]);
            if waiting.len() < SEGMENT_BYTES {
                return Ok(ControlFlow::Continue(()));
            }
            from.extend_from_slice(key);
            from.push(0);
            Ok(ControlFlow::Break(()))
        })?;
        if from.is_empty() {
            self.table += 1;
        }
        Ok(())
    }

    /// Segments so far.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// What was packed.
    pub fn tallies(&self) -> &Tallies {
        &self.tallies
    }
}

/// Takes segments in order and gives back the rows.
#[derive(Debug, Default)]
pub struct Unpacker {
    waiting: BytesMut,
    segments: u32,
    tallies: Tallies,
}

impl Unpacker {
    /// Puts the rows that are whole with the next segment into `batch`.
    ///
    /// # Errors
    /// The segment is damaged, or not the next.
    pub fn add(&mut self, segment: Bytes, batch: &mut Batch) -> Result<(), Damaged> {
        let mut segment = verified(segment)?;
        if segment.len() < 4 || segment.get_u32_le() != self.segments {
            return Err(damaged("a segment of a checkpoint is out of place"));
        }
        self.segments += 1;
        self.waiting.extend_from_slice(&segment);
        while let Some((table, key, value)) = self.row()? {
            batch.put(table, key, value);
        }
        Ok(())
    }

    fn row(&mut self) -> Result<Option<(Table, Bytes, Bytes)>, Damaged> {
        let Some((mut header, _)) = self.waiting.split_at_checked(ROW_HEADER) else {
            return Ok(None);
        };
        let number = header.get_u8();
        let (key, value) = (header.get_u32_le() as usize, header.get_u32_le() as usize);
        let length = ROW_HEADER + key + value;
        if self.waiting.len() < length {
            return Ok(None);
        }
        let table = table(number)
            .ok_or_else(|| damaged(format!("a checkpoint has an unknown table {number}")))?;
        let row = self.waiting.split_to(length).freeze();
        self.tallies.add(table, &row);
        let rest = row.slice(ROW_HEADER..);
        Ok(Some((table, rest.slice(..key), rest.slice(key..))))
    }

    /// Everything that there was.
    ///
    /// # Errors
    /// The last row is incomplete.
    pub fn finish(self) -> Result<Tallies, Damaged> {
        if self.waiting.is_empty() {
            Ok(self.tallies)
        } else {
            Err(damaged("a checkpoint ends within a row"))
        }
    }
}

/// The gateways that are in a snapshot.
///
/// # Errors
/// Damage and I/O errors.
pub fn gateways(snapshot: &dyn Snapshot) -> Result<Gateways, StorageError> {
    match meta::gateways(snapshot)? {
        None => Ok(Gateways::default()),
        Some(stored) => Gateways::decode(&stored)
            .ok_or_else(|| StorageError::Corrupted("the gateways have an impossible form".into())),
    }
}

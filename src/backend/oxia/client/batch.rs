//! One write request: what it may hold, and what came of each part.

use bytes::Bytes;
use leaseway_proto::oxia::{
    DeleteRangeRequest, DeleteRequest, PutRequest, Status, Version as WireVersion, WriteRequest,
    WriteResponse,
};
use prost::Message;

use super::error::{Error, Kind};
use super::key::{self, KeyRange, sequence_number};
use super::leader::Epoch;

/// The largest record, key and value together, in bytes. Alone in a request it must stay below
/// [`REQUEST_BYTES_MAX`].
pub const RECORD_BYTES_MAX: usize = 15 << 20;

/// The largest write request, in bytes as encoded. The server appends a request to its log as one
/// entry, and one entry must fit into a segment of 64 MiB: a larger one is accepted, can never be
/// written, and the shard can't be led by anybody any more.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;

/// The most operations in one request.
pub const OPERATIONS_MAX: usize = 10_000;

/// What a put demands of the record that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Expect {
    /// Nothing.
    #[default]
    Anything,
    /// There is none.
    Absent,
    /// It has this version.
    Version(i64),
}

impl Expect {
    fn wire(self) -> Option<i64> {
        match self {
            Expect::Anything => None,
            Expect::Absent => Some(-1),
            Expect::Version(version) => Some(version),
        }
    }
}

/// Writes to one shard, sent and ordered as one, but **not a transaction**: each has an outcome of
/// its own, and a refused one doesn't keep the others from taking effect. Puts and appends happen
/// in the order in which they were added, then the deletes, then the range deletes.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    puts: Vec<Put>,
    deletes: Vec<DeleteRequest>,
    ranges: Vec<KeyRange>,
    fault: Option<Error>,
}

/// A put or an append, without what the client adds.
#[derive(Clone, Debug)]
struct Put {
    key: String,
    value: Bytes,
    expect: Expect,
    session: Option<i64>,
    append: bool,
}

impl WriteBatch {
    /// Nothing yet.
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Puts a record, which stays until it's deleted. A record that was attached to a session is
    /// detached from it.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Bytes>, expect: Expect) {
        self.add_put(key.into(), value.into(), expect, None);
    }

    /// Puts a record that ends with the session. Refused by the server, with
    /// [`Refusal::SessionNotFound`], when there is no such session; servers up to 0.16 may leave
    /// a record behind that was put while its session was expiring.
    pub fn put_ephemeral(
        &mut self,
        key: impl Into<String>,
        value: impl Into<Bytes>,
        expect: Expect,
        session: i64,
    ) {
        self.add_put(key.into(), value.into(), expect, Some(session));
    }

    fn add_put(&mut self, key: String, value: Bytes, expect: Expect, session: Option<i64>) {
        self.note(key::check_put(&key));
        if matches!(expect, Expect::Version(version) if version < 0) {
            self.note(Err(Error::new(Kind::Invalid, "oxia: a negative version is expected")));
        }
        self.puts.push(Put { key, value, expect, session, append: false });
    }

    /// Appends a record to the sequence of this prefix. It gets the number after that of the
    /// sequence's highest record, and the key [`sequence_key`](super::sequence_key).
    ///
    /// This is the only way to write a record of a sequence. An append without a partition key,
    /// with a step of 0, with fewer steps than earlier ones of its prefix or with an expected
    /// version is an error that the server finds only after the request is in its log; every
    /// leader fails at it again, and the shard is lost.
    pub fn append(&mut self, prefix: impl Into<String>, value: impl Into<Bytes>) {
        let (key, value) = (prefix.into(), value.into());
        self.note(key::check_sequence_prefix(&key));
        self.puts.push(Put { key, value, expect: Expect::Anything, session: None, append: true });
    }

    /// Deletes a record if it has the version that is expected ([`Expect::Absent`] is refused).
    pub fn delete(&mut self, key: impl Into<String>, expect: Expect) {
        let key = key.into();
        self.note(key::check_own(&key));
        if matches!(expect, Expect::Absent | Expect::Version(i64::MIN..0)) {
            self.note(Err(Error::new(Kind::Invalid, "oxia: a delete of what must be absent")));
        }
        self.deletes.push(DeleteRequest {
            key,
            expected_version_id: expect.wire(),
            partition_key: None,
        });
    }

    /// Deletes all records of a range. Those of a session go too, without a word of their keys in
    /// the notifications.
    pub fn delete_range(&mut self, range: KeyRange) {
        self.note(range.check_own());
        self.ranges.push(range);
    }

    /// How many operations it holds.
    pub fn len(&self) -> usize {
        self.puts.len() + self.deletes.len() + self.ranges.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first fault, for when the batch is sent.
    fn note(&mut self, check: Result<(), Error>) {
        if let Err(error) = check {
            self.fault.get_or_insert(error);
        }
    }

    /// The request, with everything checked that could harm the shard.
    pub(super) fn into_request(
        self,
        shard: i64,
        partition_key: &str,
    ) -> Result<(WriteRequest, Shape), Error> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let operations = self.puts.len() + self.deletes.len() + self.ranges.len();
        if operations == 0 {
            return Err(Error::new(Kind::Invalid, "oxia: an empty write request"));
        }
        if operations > OPERATIONS_MAX {
            return Err(Error::new(Kind::TooLarge, "oxia: too many operations in one request"));
        }
        let mut shape = Shape { puts: vec![], deletes: self.deletes.len(), ranges: 0 };
        let mut request = WriteRequest { shard: Some(shard), ..WriteRequest::default() };
        for put in self.puts {
            let bytes = put.key.len() + put.value.len();
            if bytes > RECORD_BYTES_MAX {
                return Err(Error::new(
                    Kind::TooLarge,
                    format!("oxia: a record of {bytes} bytes, above {RECORD_BYTES_MAX}"),
                ));
            }
            shape.puts.push(put.append.then(|| put.key.clone()));
            request.puts.push(PutRequest {
                key: put.key,
                value: put.value,
                expected_version_id: put.expect.wire(),
                session_id: put.session,
                client_identity: None,
                partition_key: Some(partition_key.to_owned()),
                sequence_key_delta: if put.append { vec![1] } else { vec![] },
            });
        }
        for mut delete in self.deletes {
            delete.partition_key = Some(partition_key.to_owned());
            request.deletes.push(delete);
        }
        shape.ranges = self.ranges.len();
        request.delete_ranges.extend(self.ranges.into_iter().map(|range| DeleteRangeRequest {
            start_inclusive: range.start().to_owned(),
            end_exclusive: range.end().to_owned(),
        }));
        let bytes = request.encoded_len();
        if bytes > REQUEST_BYTES_MAX {
            return Err(Error::new(
                Kind::TooLarge,
                format!("oxia: a write request of {bytes} bytes, above {REQUEST_BYTES_MAX}"),
            ));
        }
        Ok((request, shape))
    }
}

/// What a response must look like: for each put, the prefix if it was an append.
#[derive(Debug)]
pub(super) struct Shape {
    puts: Vec<Option<String>>,
    deletes: usize,
    ranges: usize,
}

/// Why the server refused one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A delete of a record that isn't there.
    #[error("no such record")]
    NotFound,
    /// The record isn't as expected.
    #[error("the record has another version")]
    Version,
    /// A put under a session that isn't there.
    #[error("session not found")]
    SessionNotFound,
    /// The server calls an argument invalid.
    #[error("invalid argument")]
    Invalid,
}

/// Which state of a record it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Version {
    /// Differs for every write in the shard, and rises.
    pub id: i64,
    /// How often the record was overwritten.
    pub modifications: i64,
    /// The session that it's attached to.
    pub session: Option<i64>,
    /// When it was written, by the leader's clock, in milliseconds since 1970.
    pub modified_ms: u64,
}

impl From<WireVersion> for Version {
    fn from(version: WireVersion) -> Version {
        Version {
            id: version.version_id,
            modifications: version.modifications_count,
            session: version.session_id,
            modified_ms: version.modified_timestamp,
        }
    }
}

/// What came of a put or an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The record's new version.
    pub version: Version,
    /// The number that an append got; 0 for a put.
    pub sequence: u64,
}

/// What came of each operation of a batch, in the order in which they were added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteResults {
    /// The leader that committed it.
    pub epoch: Epoch,
    /// Of puts and appends.
    pub puts: Vec<Result<Written, Refusal>>,
    /// Of deletes.
    pub deletes: Vec<Result<(), Refusal>>,
    /// Of range deletes.
    pub ranges: Vec<Result<(), Refusal>>,
}

impl Shape {
    /// Reads an answer.
    ///
    /// # Errors
    /// [`Kind::Protocol`] when it isn't the answer to this request: then nothing that comes on this
    /// stream means what it seems to.
    pub(super) fn results(
        &self,
        epoch: Epoch,
        response: WriteResponse,
    ) -> Result<WriteResults, Error> {
        let alike = response.puts.len() == self.puts.len()
            && response.deletes.len() == self.deletes
            && response.delete_ranges.len() == self.ranges;
        if !alike {
            return Err(Error::new(Kind::Protocol, "oxia: an answer to another write request"));
        }
        let mut puts = Vec::with_capacity(self.puts.len());
        for (put, prefix) in response.puts.into_iter().zip(&self.puts) {
            if let Err(refusal) = outcome(put.status)? {
                puts.push(Err(refusal));
                continue;
            }
            let sequence = match prefix {
                None => 0,
                Some(prefix) => {
                    put.key.as_deref().and_then(|key| sequence_number(prefix, key)).ok_or_else(
                        || Error::new(Kind::Protocol, "oxia: an append without number"),
                    )?
                }
            };
            let version = put.version.unwrap_or_default().into();
            puts.push(Ok(Written { version, sequence }));
        }
        let deletes = response.deletes.iter().map(|delete| outcome(delete.status));
        let ranges = response.delete_ranges.iter().map(|range| outcome(range.status));
        Ok(WriteResults {
            epoch,
            puts,
            deletes: deletes.collect::<Result<_, _>>()?,
            ranges: ranges.collect::<Result<_, _>>()?,
        })
    }
}

/// A status of one operation: done, refused, or not understood.
pub(super) fn outcome(status: i32) -> Result<Result<(), Refusal>, Error> {
    Ok(match Status::try_from(status) {
        Ok(Status::Ok) => Ok(()),
        Ok(Status::KeyNotFound) => Err(Refusal::NotFound),
        Ok(Status::UnexpectedVersionId) => Err(Refusal::Version),
        Ok(Status::SessionDoesNotExist) => Err(Refusal::SessionNotFound),
        Ok(Status::InvalidArgument) => Err(Refusal::Invalid),
        Err(_) => return Err(Error::new(Kind::Protocol, "oxia: an unknown status")),
    })
}

#[cfg(test)]
mod tests;

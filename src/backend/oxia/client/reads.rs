//! Reading records and keys.
//!
//! Every answer comes from the leader of one epoch and says which. None of them is linearizable by
//! itself: a leader that was paused and deposed goes on answering from its old state. See
//! [`Client::read_tip_with_proof`].

use std::sync::Arc;

use bytes::Bytes;
use leaseway_proto::oxia::{
    GetRequest, GetResponse, KeyComparisonType, ListRequest, ListResponse, RangeScanRequest,
    RangeScanResponse, ReadRequest, ReadResponse,
};
use tonic::Streaming;

use super::batch::{Refusal, Version, outcome};
use super::error::{Error, Kind};
use super::key::{KeyRange, sequence_key, sequence_number};
use super::leader::{Epoch, Leader};
use super::wire::{LIST, RANGE_SCAN, READ, Wire};
use super::{Client, Tip};

/// Which record to get, compared with the key that is given, in the server's order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The record of this very key.
    Equal,
    /// The highest at or below it.
    Floor,
    /// The lowest at or above it.
    Ceiling,
    /// The highest below it.
    Lower,
    /// The lowest above it.
    Higher,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Bytes,
    /// Which state of it this is.
    pub version: Version,
}

/// An answer, and the leader that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The epoch of the answer.
    pub epoch: Epoch,
    /// The answer.
    pub value: T,
}

impl Client {
    /// One record, if there is one.
    ///
    /// With a comparison other than [`Comparison::Equal`] it may be any record of the shard: of
    /// another directory, another keyspace, or even of the server.
    ///
    /// # Errors
    /// See [`Kind`]; nothing has been changed by any of them.
    pub async fn get(
        &self,
        key: &str,
        comparison: Comparison,
    ) -> Result<At<Option<Record>>, Error> {
        let leader = self.leader()?;
        let value = get(&leader.control, leader.shard, key, comparison, true).await;
        let value = value.map_err(|error| leader.note(error))?;
        Ok(At { epoch: leader.epoch, value })
    }

    /// The keys of a range, in order, in the portions in which the server sends them (up to 2 MiB).
    ///
    /// # Errors
    /// [`Kind::NoLeader`]; what comes later shows in [`Keys::next`].
    pub fn list(&self, range: KeyRange) -> Result<Keys, Error> {
        let leader = self.leader()?;
        let request = ListRequest {
            shard: Some(leader.shard),
            start_inclusive: range.start().to_owned(),
            end_exclusive: range.end().to_owned(),
            // Old servers show the server's own keys anyhow, and skip this field.
            include_internal_keys: range.check_own().is_err(),
            session_id: None,
        };
        Ok(Keys::new(leader, request))
    }

    /// The records of a range, in order, from one state of the shard, in the portions in which the
    /// server sends them (1,000 records, or 2 MiB and one record).
    ///
    /// # Errors
    /// [`Kind::NoLeader`]; what comes later shows in [`Records::next`].
    pub fn range_scan(&self, range: KeyRange) -> Result<Records, Error> {
        let leader = self.leader()?;
        let request = RangeScanRequest {
            shard: Some(leader.shard),
            start_inclusive: range.start().to_owned(),
            end_exclusive: range.end().to_owned(),
            include_internal_keys: range.check_own().is_err(),
        };
        Ok(Records { pages: Pages { leader, state: Some(Paging::Asked(request)) } })
    }

    /// The number of the newest record of a sequence (0 if there is none), with the proof that it was
    /// the newest: whatever was appended and acknowledged to anyone before this call is at or below
    /// it.
    ///
    /// The proof is a put. The tip and the put are both handed to the leader of one epoch, after
    /// this call began, in an epoch that was open before; when the put has been committed in that
    /// epoch, no other node can have committed anything before the call that this leader had not
    /// applied when it read the tip. A put that was in flight before would prove nothing.
    ///
    /// # Errors
    /// [`Kind::LeaderChanged`] and others: nothing is known, ask again.
    pub async fn read_tip_with_proof(&self, prefix: &str) -> Result<Tip, Error> {
        let leader = self.leader()?;
        leader.check()?;
        let proof = self.connecting.prove(&leader);
        let newest = sequence_key(prefix, u64::MAX);
        let both = async {
            let tip = get(&leader.control, leader.shard, &newest, Comparison::Floor, false);
            tokio::try_join!(tip, proof)
        };
        let (record, ()) = match tokio::time::timeout(leader.control.call_timeout(), both).await {
            Ok(both) => both.map_err(|error| leader.note(error))?,
            Err(_) => return Err(Error::timeout("prove the tip of the log")),
        };
        // The put was answered on the epoch's stream. The read could have been answered after the
        // stream's end only by a process that replaced the leader's: this rules that out.
        leader.check()?;
        let sequence = record.and_then(|record| sequence_number(prefix, &record.key)).unwrap_or(0);
        Ok(Tip { sequence, epoch: leader.epoch })
    }
}

/// Gets one record from this very node.
async fn get(
    wire: &Wire,
    shard: i64,
    key: &str,
    comparison: Comparison,
    include_value: bool,
) -> Result<Option<Record>, Error> {
    let comparison_type = match comparison {
        Comparison::Equal => KeyComparisonType::Equal,
        Comparison::Floor => KeyComparisonType::Floor,
        Comparison::Ceiling => KeyComparisonType::Ceiling,
        Comparison::Lower => KeyComparisonType::Lower,
        Comparison::Higher => KeyComparisonType::Higher,
    };
    let get =
        GetRequest { key: key.to_owned(), include_value, comparison_type: comparison_type.into() };
    let request = ReadRequest { shard: Some(shard), gets: vec![get] };
    let read = async {
        let mut answers = wire.streaming::<_, ReadResponse>(&READ, request).await?;
        let mut found = None;
        while let Some(answer) = answers.message().await? {
            found = found.or(answer.gets.into_iter().next());
        }
        Ok::<_, tonic::Status>(found)
    };
    let answer = match tokio::time::timeout(wire.call_timeout(), read).await {
        Ok(answer) => answer?,
        Err(_) => return Err(Error::timeout("get a record")),
    };
    let answer = answer.ok_or_else(|| Error::new(Kind::Protocol, "oxia: a get has no answer"))?;
    match outcome(answer.status)? {
        Ok(()) => Ok(Some(record(answer, Some(key))?)),
        Err(Refusal::NotFound) => Ok(None),
        Err(refusal) => Err(Error::new(Kind::Protocol, format!("oxia: a get: {refusal}"))),
    }
}

/// `asked` is the key to assume where the answer names none.
fn record(response: GetResponse, asked: Option<&str>) -> Result<Record, Error> {
    let key = response.key.or_else(|| asked.map(str::to_owned));
    Ok(Record {
        key: key.ok_or_else(|| Error::new(Kind::Protocol, "oxia: a record without a key"))?,
        value: response.value.unwrap_or_default(),
        version: response.version.unwrap_or_default().into(),
    })
}

/// A call with many answers, made when the first is asked for.
struct Pages<Q, A> {
    leader: Arc<Leader>,
    /// `None` at its end.
    state: Option<Paging<Q, A>>,
}

enum Paging<Q, A> {
    Asked(Q),
    Open(Box<Streaming<A>>),
}

impl<Q, A> Pages<Q, A>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    async fn next(&mut self, method: &super::wire::Method) -> Result<Option<A>, Error> {
        let leader = &self.leader;
        let next = async {
            let mut stream = match self.state.take() {
                None => return Ok(None),
                Some(Paging::Asked(request)) => {
                    Box::new(leader.bulk.streaming(method, request).await?)
                }
                Some(Paging::Open(stream)) => stream,
            };
            let page = stream.message().await?;
            if page.is_some() {
                self.state = Some(Paging::Open(stream));
            }
            Ok::<_, tonic::Status>(page)
        };
        match tokio::time::timeout(leader.bulk.call_timeout(), next).await {
            Ok(page) => page.map_err(|status| leader.note(status.into())),
            Err(_) => Err(Error::timeout("read a range")),
        }
    }
}

/// Records on their way.
pub struct Records {
    pages: Pages<RangeScanRequest, RangeScanResponse>,
}

impl Records {
    /// The leader that answers.
    pub fn epoch(&self) -> Epoch {
        self.pages.leader.epoch
    }

    /// The next portion, never empty; `None` at the end of the range. To be dropped after an error.
    ///
    /// # Errors
    /// See [`Kind`]; the rest of the range is then missing.
    pub async fn next(&mut self) -> Result<Option<Vec<Record>>, Error> {
        while let Some(page) = self.pages.next(&RANGE_SCAN).await? {
            if page.records.is_empty() {
                continue;
            }
            let records = page.records.into_iter().map(|response| {
                if let Err(refusal) = outcome(response.status)? {
                    return Err(Error::new(Kind::Protocol, format!("oxia: a scan: {refusal}")));
                }
                record(response, None)
            });
            return records.collect::<Result<_, _>>().map(Some);
        }
        Ok(None)
    }

    /// All of them, up to a number above which they're [`Kind::TooLarge`].
    ///
    /// # Errors
    /// As [`Records::next`].
    pub async fn all(mut self, most: usize) -> Result<Vec<Record>, Error> {
        let mut all = Vec::new();
        while let Some(mut page) = self.next().await? {
            all.append(&mut page);
            if all.len() > most {
                return Err(Error::new(Kind::TooLarge, format!("oxia: more than {most} records")));
            }
        }
        Ok(all)
    }
}

/// Keys on their way.
pub struct Keys {
    pages: Pages<ListRequest, ListResponse>,
}

impl Keys {
    pub(super) fn new(leader: Arc<Leader>, request: ListRequest) -> Keys {
        Keys { pages: Pages { leader, state: Some(Paging::Asked(request)) } }
    }

    /// The leader that answers.
    pub fn epoch(&self) -> Epoch {
        self.pages.leader.epoch
    }

    /// The next portion, never empty; `None` at the end of the range. To be dropped after an error.
    ///
    /// # Errors
    /// See [`Kind`]; the rest of the range is then missing.
    pub async fn next(&mut self) -> Result<Option<Vec<String>>, Error> {
        while let Some(page) = self.pages.next(&LIST).await? {
            if !page.keys.is_empty() {
                return Ok(Some(page.keys));
            }
        }
        Ok(None)
    }

    /// All of them, up to a number above which they're [`Kind::TooLarge`].
    ///
    /// # Errors
    /// As [`Keys::next`].
    pub async fn all(mut self, most: usize) -> Result<Vec<String>, Error> {
        let mut all = Vec::new();
        while let Some(mut page) = self.next().await? {
            all.append(&mut page);
            if all.len() > most {
                return Err(Error::new(Kind::TooLarge, format!("oxia: more than {most} keys")));
            }
        }
        Ok(all)
    }
}

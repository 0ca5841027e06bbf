//! The KV service.

use super::error::{Error, read_failed};
use super::told::{self, Asker};
use super::{Context, validate};
use crate::auth::Credentials;
use crate::backend::{Log, Sessions};
use crate::keyspace::auth::Authority;
use crate::keyspace::command::{Op, Reply};
use crate::keyspace::error::{ReadError, Refusal};
use crate::keyspace::reader::{Piece, Reader};
use crate::keyspace::txn::is_read_only;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::raw::{RangeReply, RangeStreamReply};
use leaseway_proto::server::etcdserverpb::kv_server::Kv;
use prost::Message;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Keys in the first piece of a streamed range.
const FIRST_PIECE: usize = 10;

/// The KV service over a log and the keyspace's readers.
pub struct KvService<L, S> {
    context: Arc<Context<L, S>>,
}

impl<L, S> KvService<L, S> {
    /// A service in `context`.
    pub fn new(context: Arc<Context<L, S>>) -> Self {
        Self { context }
    }
}

/// Runs a read that may take long off the serving threads.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> Result<Result<T, ReadError>, Status> {
    tokio::task::spawn_blocking(read).await.map_err(|error| match error.try_into_panic() {
        Ok(_) => Status::internal("a read has failed"),
        // The runtime is on its way out.
        Err(_) => Error::Stopped.into(),
    })
}

/// How a reader reads something for somebody.
type Read<Q, T> = fn(&Reader, &Q, Option<&Authority>) -> Result<T, ReadError>;

/// Reads `at_once`, on this thread, if that holds up nothing else; else as `waiting` does, on another.
async fn read<Q: Clone + Send + 'static, T: Send + 'static>(
    reader: &Reader,
    request: &Q,
    who: Option<Authority>,
    (at_once, waiting): (Read<Q, Option<T>>, Read<Q, T>),
) -> Result<Result<T, ReadError>, Status> {
    if let Some(read) = at_once(reader, request, who.as_ref()).transpose() {
        return Ok(read);
    }
    let (reader, request) = (reader.clone(), request.clone());
    blocking(move || waiting(&reader, &request, who.as_ref())).await
}

/// Reads a range: on this thread if that holds up nothing else, and does not wait.
pub(super) async fn read_range(
    reader: &Reader,
    request: &pb::RangeRequest,
    who: Option<Authority>,
) -> Result<Result<RangeReply, ReadError>, Status> {
    read(reader, request, who, (Reader::range_at_once, Reader::range)).await
}

/// The same for a transaction that only reads.
async fn read_txn(
    reader: &Reader,
    request: &pb::TxnRequest,
    who: Option<Authority>,
) -> Result<Result<pb::TxnResponse, ReadError>, Status> {
    read(reader, request, who, (Reader::txn_at_once, Reader::txn)).await
}

impl<L: Log, S: Sessions> KvService<L, S> {
    /// Waits until a read may be answered. A serializable one does not wait, but nobody is told that a
    /// revision lies in the future which somebody has already seen through another gateway.
    async fn read_point(&self, request: &pb::RangeRequest) -> Result<(), Status> {
        if !request.serializable || request.revision > self.context.revision() {
            self.context.log.barrier().await.map_err(Error::from)?;
        }
        Ok(())
    }

    /// Orders a command; returns its reply and the header for it.
    async fn order(
        &self,
        op: Op,
        credentials: &Credentials,
    ) -> Result<(Reply, pb::ResponseHeader), Status> {
        let outcome = self.context.propose(op, credentials).await?;
        let reply = outcome.reply.map_err(Error::from)?;
        Ok((reply, self.context.identity.header(outcome.revision)))
    }
}

fn mismatch() -> Status {
    Status::internal("the log answered another kind of command")
}

#[tonic::async_trait]
impl<L: Log, S: Sessions> Kv for KvService<L, S> {
    async fn range(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<RangeReply>, Status> {
        let credentials = Credentials::of(&request);
        let request = request.into_inner();
        validate::range(&request)?;
        self.context.metrics.keyspace.range_total.inc();
        self.read_point(&request).await?;
        let mut reply = self
            .context
            .on_behalf(&credentials, |who| read_range(&self.context.reader, &request, who))
            .await?
            .map_err(read_failed)?;
        let revision = reply.header.map_or(0, |header| header.revision);
        reply.header = Some(self.context.identity.header(revision));
        Ok(Response::new(reply))
    }

    type RangeStreamStream = ReceiverStream<Result<RangeStreamReply, Status>>;

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let credentials = Credentials::of(&request);
        let request = request.into_inner();
        validate::range_stream(&request)?;
        self.read_point(&request).await?;
        let start = |who: Option<Authority>| {
            let started = Streaming::start(&self.context, request.clone(), who.as_ref());
            std::future::ready(Ok(started))
        };
        let started = self.context.on_behalf(&credentials, start).await?;
        let mut streaming = started.map_err(Error::from)?;
        let identity = self.context.identity;
        // Each piece is about as large as a request may be; one is ready while the client reads
        // another. No thread waits for a client.
        let (pieces, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let step = blocking(move || streaming.next().map(|reply| (reply, streaming))).await;
                let (answer, rest) = match step.and_then(|step| step.map_err(read_failed)) {
                    Ok(((mut reply, last), streaming)) => {
                        let header = reply.header.take();
                        reply.header = header.map(|header| identity.header(header.revision));
                        let reply = RangeStreamReply { range_response: reply };
                        (Ok(reply), (!last).then_some(streaming))
                    }
                    Err(status) => (Err(status), None),
                };
                if pieces.send(answer).await.is_err() {
                    return;
                }
                match rest {
                    Some(rest) => streaming = rest,
                    None => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let credentials = Credentials::of(&request);
        let request = request.into_inner();
        // As with etcd, beyond the quota nobody is told what else is wrong.
        self.context.within_quota(validate::put_cost(&request)).await?;
        validate::put(&request)?;
        validate::size(&request, &self.context.limits)?;
        match self.order(Op::Put(request), &credentials).await? {
            (Reply::Put(mut response), header) => {
                response.header = Some(header);
                Ok(Response::new(response))
            }
            _ => Err(mismatch()),
        }
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let credentials = Credentials::of(&request);
        let request = request.into_inner();
        validate::delete(&request)?;
        validate::size(&request, &self.context.limits)?;
        match self.order(Op::DeleteRange(request), &credentials).await? {
            (Reply::DeleteRange(mut response), header) => {
                response.header = Some(header);
                Ok(Response::new(response))
            }
            _ => Err(mismatch()),
        }
    }

    async fn txn(
        &self,
        request: Request<pb::TxnRequest>,
    ) -> Result<Response<pb::TxnResponse>, Status> {
        let credentials = Credentials::of(&request);
        let request = request.into_inner();
        // Nothing if it only reads.
        self.context.within_quota(validate::txn_cost(&request)).await?;
        validate::txn(&request, self.context.limits.max_txn_ops)?;
        self.context.metrics.keyspace.txn_total.inc();
        if is_read_only(&request) {
            self.context.log.barrier().await.map_err(Error::from)?;
            let read = |who: Option<Authority>| read_txn(&self.context.reader, &request, who);
            let read = self.context.on_behalf(&credentials, read).await?;
            let mut response = read.map_err(read_failed)?;
            let revision = response.header.map_or(0, |header| header.revision);
            response.header = Some(self.context.identity.header(revision));
            return Ok(Response::new(response));
        }
        validate::size(&request, &self.context.limits)?;
        match self.order(Op::Txn(request), &credentials).await? {
            (Reply::Txn(mut response), header) => {
                response.header = Some(header);
                Ok(Response::new(response))
            }
            _ => Err(mismatch()),
        }
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let credentials = Credentials::of(&request);
        let asker = Asker::of(&self.context, &request);
        let request = request.into_inner();
        let physical = request.physical;
        self.context.admin(&credentials).await?;
        match self.order(Op::Compact(request), &credentials).await? {
            (Reply::Compact(revision), header) => {
                told::compaction(revision, physical, &asker);
                if physical {
                    self.context.log.compacted(revision).await.map_err(Error::from)?;
                }
                Ok(Response::new(pb::CompactionResponse { header: Some(header) }))
            }
            _ => Err(mismatch()),
        }
    }
}

/// Reads a range piece by piece at one revision.
struct Streaming {
    reader: Reader,
    /// Bytes that a piece should have; its number of keys is doubled or halved to get near.
    target: usize,
    /// What is still to be read.
    request: pb::RangeRequest,
    at: i64,
    current: i64,
    /// Keys that the limit still allows.
    left: usize,
    /// Keys of the next piece.
    size: usize,
    sent: usize,
}

impl Streaming {
    fn start<L, S>(
        context: &Context<L, S>,
        request: pb::RangeRequest,
        who: Option<&Authority>,
    ) -> Result<Self, Refusal> {
        let reader = context.reader.clone();
        let (at, current) = reader.pin(&request, who)?;
        // etcd takes a negative limit for none, and then sends everything in one piece.
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let left = limit.unwrap_or(usize::MAX);
        let size = if request.limit < 0 { usize::MAX } else { FIRST_PIECE.min(left) };
        let target = context.limits.max_request_bytes;
        Ok(Self { reader, target, request, at, current, left, size, sent: 0 })
    }

    fn header(&self) -> Option<pb::ResponseHeader> {
        Some(pb::ResponseHeader { revision: self.current, ..Default::default() })
    }

    /// The next piece, and whether it is the last one: only that has a header, the whole range's
    /// count and whether the limit cut it.
    fn next(&mut self) -> Result<(RangeReply, bool), ReadError> {
        if self.request.count_only {
            let count = self.rest(&self.request.key)?;
            return Ok((
                RangeReply { header: self.header(), count, ..RangeReply::default() },
                true,
            ));
        }
        let Piece { kvs, len, next } = self.reader.piece(&self.request, self.at, self.size)?;
        self.sent += len;
        self.left -= len;
        let mut reply = RangeReply { kvs, ..RangeReply::default() };
        match next {
            Some(next) if self.left > 0 => {
                let bytes = self.measured(&reply);
                self.size = self.next_size(bytes).min(self.left);
                self.request.key = next.into();
                Ok((reply, false))
            }
            cut => {
                reply.header = self.header();
                reply.more = cut.is_some();
                let rest = cut.map_or(Ok(0), |next| self.rest(&next))?;
                reply.count = self.sent as i64 + rest;
                Ok((reply, true))
            }
        }
    }

    fn rest(&self, from: &[u8]) -> Result<i64, ReadError> {
        Ok(self.reader.count(from, &self.request.range_end, self.at)? as i64)
    }

    /// Size of a piece as etcd measures it: with a header, and the mark that there is more.
    fn measured(&self, reply: &RangeReply) -> usize {
        RangeReply { header: self.header(), more: true, ..reply.clone() }.encoded_len()
    }

    fn next_size(&self, bytes: usize) -> usize {
        let size = match bytes {
            bytes if bytes < self.target / 2 => self.size.saturating_mul(2),
            bytes if bytes > self.target.saturating_mul(2) => self.size / 2,
            _ => self.size,
        };
        size.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::fake::machine_after;
    use crate::keyspace::view::View;
    use crate::storage::StorageError;

    /// A get, and a transaction that only reads.
    #[tokio::test]
    async fn a_read_during_a_defragmentation_does_not_hold_up_its_thread() {
        let put = pb::PutRequest { key: "k".into(), ..pb::PutRequest::default() };
        let (machine, engine) = machine_after([Op::Put(put)]);
        let view = Arc::new(View::new(machine.published()));
        let reader = Reader::new(machine.shared().clone(), engine.clone(), view);
        let request = pb::RangeRequest { key: "k".into(), ..pb::RangeRequest::default() };
        let txn = pb::TxnRequest::default();
        // It waits for this one, for some seconds.
        let held = engine.snapshot().expect("a snapshot");
        let shrinking = std::thread::spawn(move || engine.shrink());
        while !matches!(reader.range_at_once(&request, None), Ok(None)) {
            assert!(!shrinking.is_finished(), "it waits");
            tokio::task::yield_now().await;
        }
        assert!(matches!(reader.txn_at_once(&txn, None), Ok(None)));
        let reads = tokio::spawn(async move {
            let got = read_range(&reader, &request, None).await.expect("it does not panic");
            let read = read_txn(&reader, &txn, None).await.expect("it does not panic");
            (got.map(|got| got.count), read.map(|read| read.succeeded))
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!shrinking.is_finished() && !reads.is_finished(), "this thread goes on");
        drop(held);
        let (got, read) = reads.await.expect("it does not panic");
        assert_eq!((got.expect("a key"), read.expect("an answer")), (1, true));
        let shrunk = shrinking.join().expect("it does not panic");
        assert!(matches!(shrunk, Ok(()) | Err(StorageError::Busy)), "{shrunk:?}");
    }
}

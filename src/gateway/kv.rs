//! The KV service.

use super::error::{Error, read_failed};
use super::{Context, validate};
use crate::backend::{Log, Sessions};
use crate::keyspace::command::{Op, Reply, command};
use crate::keyspace::error::ReadError;
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
/// Ranges asking for more keys than this leave the serving threads while they read.
const INLINE_KEYS: i64 = 64;

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
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result.map_err(read_failed),
        Err(error) => Err(Status::internal(error.to_string())),
    }
}

/// Whether a range may touch many keys.
fn is_long(request: &pb::RangeRequest) -> bool {
    !request.range_end.is_empty() && !(1..=INLINE_KEYS).contains(&request.limit)
}

impl<L: Log, S: Sessions> KvService<L, S> {
    async fn read_point(&self, serializable: bool) -> Result<(), Status> {
        if !serializable {
            self.context.log.barrier().await.map_err(Error::from)?;
        }
        Ok(())
    }

    /// Orders a command; returns its reply and the header for it.
    async fn order(&self, op: Op) -> Result<(Reply, pb::ResponseHeader), Status> {
        let outcome = self.context.log.propose(command(op)).await.map_err(Error::from)?;
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
        let request = request.into_inner();
        validate::range(&request)?;
        self.context.metrics.keyspace.range_total.inc();
        self.read_point(request.serializable).await?;
        let mut reply = if is_long(&request) {
            let reader = self.context.reader.clone();
            blocking(move || reader.range(&request)).await?
        } else {
            self.context.reader.range(&request).map_err(read_failed)?
        };
        let revision = reply.header.map_or(0, |header| header.revision);
        reply.header = Some(self.context.identity.header(revision));
        Ok(Response::new(reply))
    }

    type RangeStreamStream = ReceiverStream<Result<RangeStreamReply, Status>>;

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let request = request.into_inner();
        validate::range_stream(&request)?;
        self.read_point(request.serializable).await?;
        let streaming = Streaming {
            reader: self.context.reader.clone(),
            target: self.context.limits.max_request_bytes,
        };
        let identity = self.context.identity;
        // Two pieces ahead of the client; each is about as large as a request may be.
        let (pieces, stream) = mpsc::channel(2);
        tokio::task::spawn_blocking(move || {
            let told = streaming.run(request, &mut |mut reply: RangeReply| {
                reply.header = reply.header.take().map(|header| identity.header(header.revision));
                pieces.blocking_send(Ok(RangeStreamReply { range_response: reply })).is_ok()
            });
            if let Err(error) = told {
                let _ = pieces.blocking_send(Err(read_failed(error)));
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let request = request.into_inner();
        validate::put(&request)?;
        self.context.within_quota(validate::put_cost(&request)).await?;
        validate::size(&request, &self.context.limits)?;
        match self.order(Op::Put(request)).await? {
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
        let request = request.into_inner();
        validate::delete(&request)?;
        validate::size(&request, &self.context.limits)?;
        match self.order(Op::DeleteRange(request)).await? {
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
        let request = request.into_inner();
        validate::txn(&request, self.context.limits.max_txn_ops)?;
        self.context.metrics.keyspace.txn_total.inc();
        if is_read_only(&request) {
            self.read_point(false).await?;
            let reader = self.context.reader.clone();
            let mut response = blocking(move || reader.txn(&request)).await?;
            let revision = response.header.map_or(0, |header| header.revision);
            response.header = Some(self.context.identity.header(revision));
            return Ok(Response::new(response));
        }
        self.context.within_quota(validate::txn_cost(&request)).await?;
        validate::size(&request, &self.context.limits)?;
        match self.order(Op::Txn(request)).await? {
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
        let request = request.into_inner();
        let physical = request.physical;
        match self.order(Op::Compact(request)).await? {
            (Reply::Compact(revision), header) => {
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
}

impl Streaming {
    /// Sends pieces until the range or the client ends. Only the last one has a header, the whole
    /// range's count and whether the limit cut it.
    fn run(
        &self,
        mut request: pb::RangeRequest,
        send: &mut dyn FnMut(RangeReply) -> bool,
    ) -> Result<(), ReadError> {
        let (at, current) = self.reader.pin(request.revision)?;
        let header = Some(pb::ResponseHeader { revision: current, ..Default::default() });
        if request.count_only {
            let count = self.reader.count(&request.key, &request.range_end, at)? as i64;
            send(RangeReply { header, count, ..RangeReply::default() });
            return Ok(());
        }
        // etcd takes a negative limit for none, and then sends everything in one piece.
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let mut left = limit.unwrap_or(usize::MAX);
        let mut size = if request.limit < 0 { usize::MAX } else { FIRST_PIECE.min(left) };
        let mut sent = 0;
        loop {
            let Piece { kvs, len, next } = self.reader.piece(&request, at, size)?;
            sent += len;
            left -= len;
            let reply = RangeReply { kvs, ..RangeReply::default() };
            let next = match next {
                Some(next) if left > 0 => next,
                cut => {
                    let rest = match &cut {
                        Some(next) => self.reader.count(next, &request.range_end, at)?,
                        None => 0,
                    };
                    let count = (sent + rest) as i64;
                    send(RangeReply { header, more: cut.is_some(), count, ..reply });
                    return Ok(());
                }
            };
            let bytes = self.measured(current, &reply);
            if !send(reply) {
                return Ok(());
            }
            request.key = next.into();
            size = self.next_size(size, bytes).min(left);
        }
    }

    /// Size of a piece as etcd measures it: with a header, and the mark that there is more.
    fn measured(&self, revision: i64, reply: &RangeReply) -> usize {
        let header = Some(pb::ResponseHeader { revision, ..Default::default() });
        RangeReply { header, more: true, ..reply.clone() }.encoded_len()
    }

    fn next_size(&self, size: usize, bytes: usize) -> usize {
        let size = match bytes {
            bytes if bytes < self.target / 2 => size.saturating_mul(2),
            bytes if bytes > self.target.saturating_mul(2) => size / 2,
            _ => size,
        };
        size.max(1)
    }
}

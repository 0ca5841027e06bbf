//! The Watch service: requests to the hub, notices to answers.

use super::audited::{Auditor, Nothing, Origin};
use super::authority::Gate;
use super::error::Error;
use super::identity::Identity;
use crate::auth::Credentials;
use crate::watch::{Batch, CreateWatcher, Hub, KeyRange, Notice, Notices, StreamControl, What};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use leaseway_proto::etcdserverpb::watch_create_request::FilterType;
use leaseway_proto::etcdserverpb::watch_request::RequestUnion;
use leaseway_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use leaseway_proto::raw::WatchReply;
use leaseway_proto::server::etcdserverpb::watch_server::Watch;
use parking_lot::Mutex;
use prost::Message;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

/// How often idle watchers that ask for it are told of progress, unless configured.
pub const PROGRESS_INTERVAL_DEFAULT: Duration = Duration::from_secs(600);
/// The shortest such interval; shorter ones are raised to it.
pub const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// What etcd allows a message on top of the largest request.
const MESSAGE_OVERHEAD: usize = 512 * 1024;

/// Settings of the service.
#[derive(Clone, Copy, Debug)]
pub struct WatchOptions {
    /// Interval of periodic progress. A random part, up to a tenth, is added for each stream, so
    /// that they do not all report at once. Zero stands for the default.
    pub progress_interval: Duration,
    /// Largest request in bytes. For a watcher that accepts fragments, answers of this size and
    /// 512 KiB or more are cut.
    pub max_request_bytes: usize,
}

impl WatchOptions {
    fn fragment_bytes(&self) -> usize {
        self.max_request_bytes.saturating_add(MESSAGE_OVERHEAD)
    }

    fn jittered_interval(&self) -> Duration {
        let interval = if self.progress_interval.is_zero() {
            PROGRESS_INTERVAL_DEFAULT
        } else {
            self.progress_interval.max(PROGRESS_INTERVAL_MIN)
        };
        let random = RandomState::new().hash_one(0u8) % 1000;
        interval + (interval / 10_000) * random as u32
    }
}

/// The service.
pub struct WatchService {
    hub: Hub,
    identity: Identity,
    options: WatchOptions,
    gate: Arc<dyn Gate>,
    auditor: Option<Auditor>,
}

impl WatchService {
    /// Serves the watchers of `hub` to those whom `gate` lets through.
    pub fn new(hub: Hub, identity: Identity, options: WatchOptions, gate: Arc<dyn Gate>) -> Self {
        Self { hub, identity, options, gate, auditor: None }
    }

    /// Has watchers noted in an audit log, if there is one.
    #[must_use]
    pub fn audited(self, auditor: Option<Auditor>) -> Self {
        Self { auditor, ..self }
    }
}

/// How a stream ends when the server ends it. Clients then watch elsewhere, or try again.
fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Replies;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let (control, notices) = self.hub.open().map_err(|_| stopped())?;
        let failure = Arc::new(Mutex::new(None));
        let checks = Checks {
            gate: self.gate.clone(),
            audit: self.auditor.clone().map(|auditor| (auditor, Origin::of(&request))),
            credentials: Credentials::of(&request),
        };
        let requests = Requests {
            checks,
            inbound: request.into_inner(),
            control,
            interval: self.options.jittered_interval(),
            failure: failure.clone(),
        };
        let reader = tokio::spawn(requests.read()).abort_handle();
        Ok(Response::new(Replies {
            notices,
            fragments: None,
            identity: self.identity,
            fragment_bytes: self.options.fragment_bytes(),
            failure,
            ended: false,
            _reader: AbortOnDrop(reader),
        }))
    }
}

/// The inbound half of a stream.
struct Requests {
    checks: Checks,
    inbound: Streaming<WatchRequest>,
    control: StreamControl,
    interval: Duration,
    failure: Arc<Mutex<Option<Status>>>,
}

impl Requests {
    async fn read(self) {
        let Requests { checks, mut inbound, control, interval, failure } = self;
        let mut ticker = tokio::time::interval_at(Instant::now() + interval, interval);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        // A check may have to ask a cluster, which answers many at once as fast as one. What is asked
        // for is done in its order all the same.
        let mut checked = FuturesOrdered::new();
        loop {
            let done = tokio::select! {
                request = inbound.message(), if open && checked.len() < CHECKS_MAX => match request {
                    Ok(Some(request)) => {
                        checked.push_back(checks.check(request));
                        Ok(())
                    }
                    // The client has nothing more to ask, and keeps listening.
                    Ok(None) => {
                        open = false;
                        Ok(())
                    }
                    Err(status) => Err(status),
                },
                Some(request) = checked.next() => match obey(&control, request).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(_closed)) => return,
                    Err(error) => Err(error.into()),
                },
                _ = ticker.tick() => {
                    control.tick();
                    Ok(())
                }
            };
            if let Err(status) = done {
                *failure.lock() = Some(status);
                control.close();
                return;
            }
        }
    }
}

/// Requests of a stream that are checked at a time.
const CHECKS_MAX: usize = 256;

/// A request with what there is against it.
enum Asked {
    Create(WatchCreateRequest, Result<(), Error>),
    /// The server does not know whether there are revisions, or users and roles, that it has not seen.
    Behind(Error),
    Other(WatchRequest),
}

/// Whether a request is to be obeyed.
struct Checks {
    gate: Arc<dyn Gate>,
    audit: Option<(Auditor, Origin)>,
    /// Of the whole stream; looked at anew for each watcher.
    credentials: Credentials,
}

impl Checks {
    async fn check(&self, request: WatchRequest) -> Asked {
        let request = match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => request,
            _ => return Asked::Other(request),
        };
        let permitted = self.permitted(&request).await;
        self.note(&request, permitted).await;
        match permitted {
            Err(error @ (Error::Stopped | Error::TimedOut)) => Asked::Behind(error),
            permitted => Asked::Create(request, permitted),
        }
    }

    /// Why a watcher is not to be, as far as that depends on who asks. Who may watch is seen by a state
    /// with all that anyone has been told of, wherever that was, and "from now on" is after that.
    async fn permitted(&self, request: &WatchCreateRequest) -> Result<(), Error> {
        // Refused whoever asks.
        if request.start_revision < 0 {
            return Ok(());
        }
        // No key stands for the smallest one.
        let key = if request.key.is_empty() { &[0][..] } else { &request.key[..] };
        self.gate.watch(&self.credentials, key, &request.range_end).await
    }

    async fn note(&self, request: &WatchCreateRequest, permitted: Result<(), Error>) {
        let Some((auditor, origin)) = &self.audit else { return };
        let status = permitted.err().map(Status::from);
        let result = status.as_ref().map_or(Ok(&Nothing), Err);
        auditor.within("/etcdserverpb.Watch/Watch", origin, request.clone(), result).await;
    }
}

/// Hands a request on; an error ends the stream with it.
async fn obey(
    control: &StreamControl,
    request: Asked,
) -> Result<Result<(), crate::watch::Closed>, Error> {
    let request = match request {
        Asked::Create(request, Ok(())) => return Ok(control.create(watcher(&request)).await),
        Asked::Create(_, Err(error)) => return Ok(control.refuse(reason(error)).await),
        Asked::Behind(error) => return Err(error),
        Asked::Other(request) => request,
    };
    Ok(match request.request_union {
        Some(RequestUnion::CancelRequest(request)) => control.cancel(request.watch_id).await,
        Some(RequestUnion::ProgressRequest(_)) => control.progress().await,
        // etcd ignores what it does not know.
        Some(RequestUnion::CreateRequest(_)) | None => Ok(()),
    })
}

/// What etcd gives as the reason to whom it does not let watch: the error's text as its gRPC library
/// prints it.
fn reason(error: Error) -> &'static str {
    match error {
        Error::InvalidAuthToken => {
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
        }
        Error::AuthOldRevision => {
            "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old"
        }
        Error::UserEmpty => {
            "rpc error: code = InvalidArgument desc = etcdserver: user name is empty"
        }
        _ => "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
    }
}

fn watcher(request: &WatchCreateRequest) -> CreateWatcher {
    let filtered = |filter: FilterType| request.filters.contains(&(filter as i32));
    CreateWatcher {
        range: KeyRange::from_request(&request.key, &request.range_end),
        start_revision: request.start_revision,
        watch_id: request.watch_id,
        prev_kv: request.prev_kv,
        progress_notify: request.progress_notify,
        fragment: request.fragment,
        no_put: filtered(FilterType::Noput),
        no_delete: filtered(FilterType::Nodelete),
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The outbound half of a stream. When the client is gone the transport drops it, and everything
/// of the stream with it.
pub struct Replies {
    notices: Notices,
    fragments: Option<Fragments>,
    identity: Identity,
    fragment_bytes: usize,
    /// Why the inbound half failed, if it did.
    failure: Arc<Mutex<Option<Status>>>,
    ended: bool,
    _reader: AbortOnDrop,
}

impl Stream for Replies {
    type Item = Result<WatchReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(fragment) = this.fragments.as_mut().and_then(Iterator::next) {
            return Poll::Ready(Some(Ok(fragment)));
        }
        this.fragments = None;
        if this.ended {
            return Poll::Ready(None);
        }
        let Some(notice) = ready!(Pin::new(&mut this.notices).poll_next(context)) else {
            this.ended = true;
            let failure = this.failure.lock().take();
            return Poll::Ready(Some(Err(failure.unwrap_or_else(stopped))));
        };
        let (reply, fragment) = reply(notice, &this.identity);
        if !fragment || reply.events.len() < 2 || reply.encoded_len() < this.fragment_bytes {
            return Poll::Ready(Some(Ok(reply)));
        }
        let fragments = this.fragments.insert(Fragments::new(reply, this.fragment_bytes));
        Poll::Ready(fragments.next().map(Ok))
    }
}

/// The answer for a notice, and whether it may be cut.
fn reply(notice: Notice, identity: &Identity) -> (WatchReply, bool) {
    let mut reply = WatchReply {
        header: Some(identity.header(notice.revision)),
        watch_id: notice.watch_id,
        ..WatchReply::default()
    };
    match notice.what {
        What::Created => reply.created = true,
        What::Refused(reason) => {
            reply.created = true;
            reply.canceled = true;
            reply.cancel_reason = reason.to_owned();
        }
        What::Canceled => reply.canceled = true,
        What::Compacted(revision) => {
            reply.canceled = true;
            reply.compact_revision = revision;
        }
        What::Progress => {}
        What::Events { batch, fragment } => {
            reply.events = Batch::pieces(&batch).to_vec();
            return (reply, fragment);
        }
    }
    (reply, false)
}

/// An answer in pieces: each as many events as stay below the limit, but at least one.
struct Fragments {
    template: WatchReply,
    /// Length of a piece without events.
    base: usize,
    rest: std::vec::IntoIter<Bytes>,
    limit: usize,
}

impl Fragments {
    fn new(mut whole: WatchReply, limit: usize) -> Self {
        let rest = std::mem::take(&mut whole.events).into_iter();
        // Counted for the last piece too, as etcd does.
        whole.fragment = true;
        Self { base: whole.encoded_len(), template: whole, rest, limit }
    }
}

impl Iterator for Fragments {
    type Item = WatchReply;

    fn next(&mut self) -> Option<WatchReply> {
        let mut events = vec![self.rest.next()?];
        let mut size = self.base + events[0].len();
        while let Some(event) = self.rest.as_slice().first() {
            size += event.len();
            if size >= self.limit {
                break;
            }
            events.extend(self.rest.next());
        }
        let fragment = !self.rest.as_slice().is_empty();
        Some(WatchReply { events, fragment, ..self.template.clone() })
    }
}

#[cfg(test)]
mod tests;

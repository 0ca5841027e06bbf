//! Goes on where a snapshot ends: every change at the server that it came from, at the same revision, until it
//! is time to cut over.
//!
//! A watch of all keys brings each change of each revision in order, which is all that a row is made of.
//! Leases, alarms, the compacted revision, users and roles have no revisions, so they are asked for at
//! the end. The hash of everything is compared with the server's before anything counts.
//!
//! Deliberately absent: where the store comes from, and what becomes of it.

use super::import::Summary;
use super::remote::Remote;
use crate::keyspace::load::load;
use crate::keyspace::reader::Reader;
use crate::keyspace::view::View;
use crate::storage::tables::rows::RowId;
use crate::storage::tables::{alarms, leases, meta, rows};
use crate::storage::{Batch, Durability, Engine, StorageError, Table, try_scan};
use futures_util::StreamExt as _;
use leaseway_proto::etcdserverpb as pb;
use leaseway_proto::etcdserverpb::auth_client::AuthClient;
use leaseway_proto::etcdserverpb::kv_client::KvClient;
use leaseway_proto::etcdserverpb::lease_client::LeaseClient;
use leaseway_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use leaseway_proto::etcdserverpb::watch_client::WatchClient;
use leaseway_proto::mvccpb::event::EventType;
use leaseway_proto::mvccpb::{Event, KeyValue};
use pb::watch_request::RequestUnion;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// All keys, as a range's begin and end.
const EVERYTHING: (&[u8], &[u8]) = (b"\0", b"\0");
/// How often the server is asked how far it has told everything.
const ASK: Duration = Duration::from_millis(200);
/// How often is said how far it has come, and looked whether users and roles are as they were.
const TELL: Duration = Duration::from_secs(5);
/// How long the server may be out of reach.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(500);
/// Bytes of rows after which pages are given back for reuse.
const RECLAIM_BYTES: usize = 16 << 20;
/// Bytes of one message: a transaction's changes come in one unless they are cut into pieces.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Leases asked for at the same time.
const LEASES: usize = 32;
/// Seconds that a lease gets that is gone at the server, and whose keys are not yet.
const GONE_TTL: i64 = 1;
/// How often a revision is chosen to cut over at, where the server compacts behind it.
const CUTS: u32 = 5;

/// Follows a server into a store.
pub struct Follow<'a> {
    /// The server that the snapshot came from.
    pub remote: &'a Remote,
    /// The store that it was imported into.
    pub engine: &'a Arc<dyn Engine>,
    /// Whether each lease gets a session of its own.
    pub sessions: bool,
}

/// What has been taken over so far.
struct Progress {
    state: meta::State,
    /// Through here every change has come.
    whole: i64,
    /// The newest row, of a revision that may not be whole yet.
    newest: RowId,
    rows: u64,
    bytes: u64,
    unclaimed: usize,
    /// The server has said that it watches, since that was last looked at.
    watching: bool,
    /// Leases that there were, with their TTLs; without one if they had ended when they were asked for.
    leases: BTreeMap<i64, Option<i64>>,
}

/// How watching ended.
enum Ended {
    /// What it was to last for has come.
    Reached,
    /// It was cut off.
    Lost(Status),
}

fn stored(error: StorageError) -> String {
    format!("cannot write the store: {error}")
}

impl Follow<'_> {
    /// Takes over what comes until it is time to stop, and then up to the revision that the server has by then.
    /// `told` hears how far it is. A second signal gives it up.
    ///
    /// # Errors
    /// Why the store is not what the server has, in one line.
    pub async fn run(
        &self,
        summary: &mut Summary,
        stop: &mut Stop,
        told: &dyn Fn(i64),
    ) -> Result<(), String> {
        let mut progress = self.begin()?;
        self.check_auth().await?;
        told(progress.whole);
        tokio::select! {
            ended = self.watch(&mut progress, None, told) => return ended,
            () = stop.wait() => {}
        }
        let hash = tokio::select! {
            hash = self.cut_over(&mut progress, told) => hash?,
            () = stop.signal() => return Err("given up at a second signal: nothing was imported".into()),
        };
        self.compare(&hash)?;
        summary.rows += progress.rows;
        summary.bytes += progress.bytes;
        summary.leases = progress.leases.len();
        (summary.revision, summary.compacted) = (progress.state.revision, progress.state.compacted);
        Ok(())
    }

    fn begin(&self) -> Result<Progress, String> {
        let snapshot = self.engine.snapshot().map_err(stored)?;
        let state = meta::state(&*snapshot).map_err(stored)?;
        let granted = leases::all(&*snapshot).map_err(stored)?;
        Ok(Progress {
            whole: state.revision,
            newest: RowId { main: state.revision, sub: 0 },
            state,
            rows: 0,
            bytes: 0,
            unclaimed: 0,
            watching: false,
            leases: granted.iter().map(|lease| (lease.id, Some(lease.ttl))).collect(),
        })
    }

    /// Goes on until all changes up to a revision that is current now are there. Returns the server's hash of it.
    async fn cut_over(
        &self,
        progress: &mut Progress,
        told: &dyn Fn(i64),
    ) -> Result<pb::HashKvResponse, String> {
        for _ in 0..CUTS {
            let revision = self.current().await?;
            self.watch(progress, Some(revision), told).await?;
            let ask = pb::HashKvRequest { revision };
            let asked = self.remote.call(ask, |channel, request| async {
                MaintenanceClient::new(channel).hash_kv(request).await
            });
            match asked.await {
                Ok(hash) => {
                    progress.state.revision = revision;
                    self.finish(progress, &hash).await?;
                    return Ok(hash);
                }
                // It was compacted behind the revision; a later one will do.
                Err(status) if status.code() == Code::OutOfRange => {}
                Err(status) => return Err(self.remote.refused(&status)),
            }
        }
        Err(format!("{}: it compacts faster than it can be followed", self.remote.endpoint()))
    }

    /// The server's current revision.
    async fn current(&self) -> Result<i64, String> {
        let (key, range_end) = EVERYTHING;
        let (key, range_end) = (key.into(), range_end.into());
        let ask =
            pb::RangeRequest { key, range_end, limit: 1, keys_only: true, ..Default::default() };
        let answer = self.remote.call(ask, |channel, request| async {
            KvClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).range(request).await
        });
        let answer = answer.await.map_err(|status| self.remote.refused(&status))?;
        answer
            .header
            .map(|header| header.revision)
            .ok_or_else(|| format!("{}: an answer without a revision", self.remote.endpoint()))
    }

    /// Takes over what comes, up to `until` or for ever, through interruptions.
    async fn watch(
        &self,
        progress: &mut Progress,
        until: Option<i64>,
        told: &dyn Fn(i64),
    ) -> Result<(), String> {
        let mut since = Instant::now();
        loop {
            let lost = match self.watch_once(progress, until, told).await? {
                Ended::Reached => return Ok(()),
                Ended::Lost(status) => self.remote.refused(&status),
            };
            if std::mem::take(&mut progress.watching) {
                since = Instant::now();
            }
            if since.elapsed() > PATIENCE {
                return Err(lost);
            }
            eprintln!("leaseway: {lost}; trying again");
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn watch_once(
        &self,
        progress: &mut Progress,
        until: Option<i64>,
        told: &dyn Fn(i64),
    ) -> Result<Ended, String> {
        // What came of a revision that is not whole comes once more.
        progress.newest = RowId { main: progress.whole, sub: 0 };
        let (ask, mut stream) = match self.open_watch(progress.whole + 1).await {
            Ok(opened) => opened,
            Err(status) => return self.judge(status),
        };
        let (mut asking, mut telling) = (tokio::time::interval(ASK), tokio::time::interval(TELL));
        telling.reset();
        let mut heard = Instant::now();
        loop {
            if until.is_some_and(|until| progress.whole >= until) {
                return Ok(Ended::Reached);
            }
            if heard.elapsed() > PATIENCE && until.is_some() {
                return Ok(Ended::Lost(Status::deadline_exceeded("no word of the watch")));
            }
            tokio::select! {
                message = stream.message() => match message {
                    Ok(Some(message)) => {
                        self.take(progress, message, until).await?;
                        heard = Instant::now();
                    }
                    Ok(None) => return Ok(Ended::Lost(Status::unavailable("the watch ended"))),
                    Err(status) => return self.judge(status),
                },
                _ = asking.tick(), if until.is_some() => {
                    let union = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                    // If it is full, enough is on its way; if it is closed, the stream says why.
                    let _ = ask.try_send(pb::WatchRequest { request_union: Some(union) });
                }
                _ = telling.tick() => {
                    told(progress.whole);
                    self.check_auth().await?;
                }
            }
        }
    }

    /// Whether a watch that failed may be tried again.
    fn judge(&self, status: Status) -> Result<Ended, String> {
        match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => {
                Ok(Ended::Lost(status))
            }
            _ => Err(self.remote.refused(&status)),
        }
    }

    async fn open_watch(
        &self,
        start_revision: i64,
    ) -> Result<(mpsc::Sender<pb::WatchRequest>, Streaming<pb::WatchResponse>), Status> {
        // The token may be an old one.
        self.remote.log_in().await.map_err(Status::unavailable)?;
        let (key, range_end) = EVERYTHING;
        let create = pb::WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            start_revision,
            fragment: true,
            ..Default::default()
        };
        let union = RequestUnion::CreateRequest(create);
        let (ask, asked) = mpsc::channel(4);
        // There is room for it.
        let _ = ask.try_send(pb::WatchRequest { request_union: Some(union) });
        let client = WatchClient::new(self.remote.channel());
        let mut client = client.max_decoding_message_size(MESSAGE_BYTES_MAX);
        let opening = client.watch(self.remote.request(ReceiverStream::new(asked)));
        let opened = tokio::time::timeout(PATIENCE, opening).await;
        let opened = opened.map_err(|_| Status::unavailable("no answer to a watch"))??;
        Ok((ask, opened.into_inner()))
    }

    /// Takes over what one message of the watch says.
    async fn take(
        &self,
        progress: &mut Progress,
        message: pb::WatchResponse,
        until: Option<i64>,
    ) -> Result<(), String> {
        let endpoint = self.remote.endpoint();
        if message.compact_revision > progress.whole + 1 {
            return Err(format!(
                "{endpoint} has compacted what was still to come (up to {}): import again",
                message.compact_revision
            ));
        }
        if message.canceled {
            return Err(format!("{endpoint} does not let it watch: {}", message.cancel_reason));
        }
        progress.watching = true;
        let revision = message.header.map_or(0, |header| header.revision);
        if message.events.is_empty() {
            // What its header tells is current, except when it answers that the watch has begun.
            if !message.created && !message.fragment {
                progress.whole = progress.whole.max(revision.min(until.unwrap_or(revision)));
            }
            return Ok(());
        }
        let mut batch = Batch::default();
        for event in message.events {
            let Event { kv: Some(kv), r#type, .. } = event else { continue };
            let main = kv.mod_revision;
            if until.is_some_and(|until| main > until) {
                // All up to there has come before it.
                progress.whole = until.unwrap_or(progress.whole);
                break;
            }
            if main < progress.newest.main || main <= progress.whole && progress.newest.main != main
            {
                return Err(format!("{endpoint}: revision {main} comes out of order"));
            }
            let sub = if main == progress.newest.main { progress.newest.sub + 1 } else { 0 };
            progress.newest = RowId { main, sub };
            self.note_lease(progress, &kv).await?;
            let encoded = encode(progress.newest, r#type, kv)
                .ok_or_else(|| format!("{endpoint}: a change at revision {main} is none"))?;
            progress.rows += 1;
            progress.bytes += encoded.len() as u64;
            progress.unclaimed += encoded.len();
            batch.put(Table::Rows, rows::key(progress.newest).to_vec(), encoded);
        }
        if !message.fragment && until.is_none_or(|until| progress.whole < until) {
            progress.whole = progress.whole.max(progress.newest.main);
        }
        let reclaim = progress.unclaimed >= RECLAIM_BYTES;
        let durability = if reclaim { Durability::Immediate } else { Durability::Deferred };
        if reclaim {
            progress.unclaimed = 0;
        }
        self.engine.commit(&batch, durability).map_err(stored)
    }

    /// Learns the TTL of a lease that is not known yet, while it is there.
    async fn note_lease(&self, progress: &mut Progress, kv: &KeyValue) -> Result<(), String> {
        if kv.lease != 0 && !progress.leases.contains_key(&kv.lease) {
            let ttl = self.granted(kv.lease).await?;
            progress.leases.insert(kv.lease, ttl);
        }
        Ok(())
    }

    /// The TTL that a lease was granted; nothing if it has ended.
    async fn granted(&self, id: i64) -> Result<Option<i64>, String> {
        let ask = pb::LeaseTimeToLiveRequest { id, keys: false };
        let answer = self.remote.call(ask, |channel, request| async {
            LeaseClient::new(channel).lease_time_to_live(request).await
        });
        match answer.await {
            Ok(answer) => Ok(Some(answer.granted_ttl).filter(|ttl| *ttl > 0)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(self.remote.refused(&status)),
        }
    }

    /// Refuses to go on where users or roles are not what was imported.
    async fn check_auth(&self) -> Result<(), String> {
        let answer = self.remote.call(pb::AuthStatusRequest {}, |channel, request| async {
            AuthClient::new(channel).auth_status(request).await
        });
        let now = match answer.await {
            Ok(now) => now,
            // Whether it is there is the watch's concern.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) => {
                return Ok(());
            }
            Err(status) => return Err(self.remote.refused(&status)),
        };
        let snapshot = self.engine.snapshot().map_err(stored)?;
        let before = meta::auth(&*snapshot).map_err(stored)?.unwrap_or_default();
        if (before.enabled, before.revision.max(1)) == (now.enabled, now.auth_revision.max(1)) {
            return Ok(());
        }
        Err(format!(
            "{}: users or roles have been changed since the snapshot (auth revision {}, now {}), which can't be \
             followed: import again",
            self.remote.endpoint(),
            before.revision.max(1),
            now.auth_revision
        ))
    }

    /// Writes what has no revisions, and how far it all is.
    async fn finish(
        &self,
        progress: &mut Progress,
        hash: &pb::HashKvResponse,
    ) -> Result<(), String> {
        self.check_auth().await?;
        let mut batch = Batch::default();
        self.take_alarms(&mut batch).await?;
        self.take_leases(progress, &mut batch).await?;
        if hash.compact_revision > progress.state.compacted {
            progress.state.compacted = hash.compact_revision;
        }
        meta::put_state(&mut batch, &progress.state);
        self.engine.commit(&batch, Durability::Immediate).map_err(stored)
    }

    async fn take_alarms(&self, batch: &mut Batch) -> Result<(), String> {
        let snapshot = self.engine.snapshot().map_err(stored)?;
        for (member, alarm) in alarms::all(&*snapshot).map_err(stored)? {
            alarms::delete(batch, member, alarm);
        }
        // The default action is to tell.
        let answer = self.remote.call(pb::AlarmRequest::default(), |channel, request| async {
            MaintenanceClient::new(channel).alarm(request).await
        });
        let answer = answer.await.map_err(|status| self.remote.refused(&status))?;
        for raised in answer.alarms {
            alarms::put(batch, raised.member_id, raised.alarm);
        }
        Ok(())
    }

    /// Leases are those that the server has, and those that keys hang on. Each has its whole time: it may have been
    /// renewed since the snapshot, and what was noted there of how much is left counts no more.
    async fn take_leases(&self, progress: &mut Progress, batch: &mut Batch) -> Result<(), String> {
        let answer = self.remote.call(pb::LeaseLeasesRequest {}, |channel, request| async {
            LeaseClient::new(channel).lease_leases(request).await
        });
        let answer = answer.await.map_err(|status| self.remote.refused(&status))?;
        let asking = futures_util::stream::iter(answer.leases)
            .map(|lease| async move { (lease.id, self.granted(lease.id).await) });
        let there: Vec<_> = asking.buffer_unordered(LEASES).collect().await;
        let mut granted = BTreeMap::new();
        for (id, ttl) in there {
            if let Some(ttl) = ttl? {
                granted.insert(id, ttl);
            }
        }
        let snapshot = self.engine.snapshot().map_err(stored)?;
        let gone = progress.leases.keys().filter(|id| !granted.contains_key(id)).copied().collect();
        for id in attached(&**self.engine, gone)? {
            // It ended, or was revoked, after the revision that this ends at: it ends here as well.
            granted.insert(id, progress.leases.get(&id).copied().flatten().unwrap_or(GONE_TTL));
        }
        for row in leases::all(&*snapshot).map_err(stored)? {
            if !granted.contains_key(&row.id) {
                leases::delete(batch, row.id);
            }
        }
        for (&id, &ttl) in &granted {
            let session = if self.sessions { rand::random_range(1..=u64::MAX) } else { 0 };
            let (renewals, remaining, spared, marker) = (0, 0, false, String::new());
            leases::put(
                batch,
                &leases::Row { id, ttl, session, renewals, remaining, spared, marker },
            );
        }
        progress.leases = granted.into_iter().map(|(id, ttl)| (id, Some(ttl))).collect();
        Ok(())
    }

    /// Compares what is in the store with the server's hash.
    fn compare(&self, theirs: &pb::HashKvResponse) -> Result<(), String> {
        let snapshot = self.engine.snapshot().map_err(stored)?;
        let machine = load(&*snapshot, &mut |_| {}).map_err(stored)?;
        let view = Arc::new(View::new(machine.published()));
        let reader = Reader::new(machine.shared().clone(), self.engine.clone(), view);
        let ours = reader.hash_kv(0).map_err(|error| error.to_string())?;
        if (ours.hash, ours.compacted.max(0)) == (theirs.hash, theirs.compact_revision.max(0)) {
            return Ok(());
        }
        Err(format!(
            "what came from {} is not what it has: hash {} at revision {}, compacted at {}; there {}, compacted at {}",
            self.remote.endpoint(),
            ours.hash,
            ours.revision,
            ours.compacted,
            theirs.hash,
            theirs.compact_revision
        ))
    }
}

/// A change as a row; nothing if it is none.
fn encode(row: RowId, kind: i32, kv: KeyValue) -> Option<bytes::Bytes> {
    if kv.key.is_empty() {
        return None;
    }
    match EventType::try_from(kind).ok()? {
        EventType::Delete => Some(rows::encode_delete(row, kv.key)),
        EventType::Put => {
            let possible = (1..=row.main).contains(&kv.create_revision) && kv.version >= 1;
            possible.then(|| rows::encode_put(row, &kv))
        }
    }
}

/// Those of some leases that keys hang on.
fn attached(engine: &dyn Engine, leases: BTreeSet<i64>) -> Result<BTreeSet<i64>, String> {
    if leases.is_empty() {
        return Ok(leases);
    }
    let snapshot = engine.snapshot().map_err(stored)?;
    let mut holding: HashMap<Vec<u8>, i64> = HashMap::new();
    let scanned = try_scan(&*snapshot, Table::Rows, &[], None, |key, value| {
        let (_, kv) = rows::open(key, value)?;
        let row = rows::summarize(kv)?;
        match leases.contains(&row.lease) {
            true => holding.insert(row.key.to_vec(), row.lease),
            false => holding.remove(row.key),
        };
        Ok(ControlFlow::Continue(()))
    });
    scanned.map_err(stored)?;
    Ok(holding.into_values().collect())
}

/// What tells to cut over: the end of a process as it is asked for, or ENTER on a terminal.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// From here on these signals do not end the process.
    ///
    /// # Errors
    /// The operating system's.
    pub fn listen() -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("cannot wait for signals: {error}");
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        Ok(Self { interrupt, terminate })
    }

    /// Waits for the next signal.
    async fn signal(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits until it is time.
    async fn wait(&mut self) {
        tokio::select! {
            () = self.signal() => {}
            () = enter() => {}
        }
    }
}

/// Waits for ENTER, where there is somebody who could press it.
async fn enter() {
    let (tell, told) = oneshot::channel();
    if std::io::stdin().is_terminal() {
        // It ends with the process: nothing ends the reading.
        std::thread::spawn(move || {
            if std::io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0) {
                let _ = tell.send(());
            }
        });
        if told.await.is_ok() {
            return;
        }
    }
    std::future::pending().await
}

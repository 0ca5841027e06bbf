//! The streams of a sequence under way: sending on them, waiting for what must come, comparing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leaseway_proto::etcdserverpb as pb;
use prost_reflect::DynamicMessage;

use crate::bind::Binding;
use crate::client::{Answer, End};
use crate::expect::{History, Watcher};
use crate::ops::message_text;
use crate::report::Difference;
use crate::runner::{Run, difference};
use crate::schema::Schema;
use crate::stream::{BiStream, StreamPair, wait_for};
use crate::watch::{self, Verdict, WatchStream};

/// An answer that has not come by then is missing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// A watcher behind the store is looked after ten times a second in etcd.
const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(600);

/// All streams of one sequence.
#[derive(Debug)]
pub struct Streams {
    burst: bool,
    watches: BTreeMap<String, (WatchStream, Vec<Watcher>)>,
    keep_alives: BTreeMap<String, StreamPair>,
    /// The tester's own watcher on the reference, for all keys.
    observer: Option<BiStream>,
    history: History,
}

impl Streams {
    /// No streams yet.
    pub fn new(burst: bool) -> Streams {
        Streams {
            burst,
            watches: BTreeMap::new(),
            keep_alives: BTreeMap::new(),
            observer: None,
            history: History::default(),
        }
    }

    /// Starts to note the reference's events.
    pub async fn observe(&mut self, run: &Run<'_>) -> Result<(), String> {
        let method = Schema::known("Watch.Watch");
        let observer = BiStream::open(&run.pair.reference.client, method);
        observer.send(&create_all(0));
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        if !wait_for(&observer, deadline, |log| !log.messages.is_empty()).await {
            return Err("etcd does not create a watcher".into());
        }
        self.history.reopen();
        self.observer = Some(observer);
        Ok(())
    }

    /// Forgets all streams, as the servers are stopped.
    pub fn drop_all(&mut self) {
        self.watches.clear();
        self.keep_alives.clear();
        self.observer = None;
    }

    /// Sends a request on a watch stream, and waits until both servers have handled it.
    pub async fn watch(
        &mut self,
        run: &Run<'_>,
        name: &str,
        request: &DynamicMessage,
    ) -> Option<Difference> {
        let typed = request.transcode_to::<pb::WatchRequest>().ok()?.request_union;
        if matches!(typed, Some(pb::watch_request::RequestUnion::ProgressRequest(_))) {
            self.catch_up(run).await;
        }
        let (stream, _) = self.watches.entry(name.to_owned()).or_insert_with(|| open(run));
        if stream.closed {
            return None;
        }
        stream.pair.reference.send(&run.bindings[0].request(request));
        stream.pair.subject.send(&run.bindings[1].request(request));
        let is_create = matches!(typed, Some(pb::watch_request::RequestUnion::CreateRequest(_)));
        if is_create {
            stream.creates.push(false);
        } else {
            send_fence(stream);
        }
        if let Some(missing) = await_created(run, stream).await {
            return Some(missing);
        }
        if is_create {
            let start = self.note_watcher(run, name, request);
            // What was there at the beginning is not in the history to wait for.
            if start.is_some_and(|start| start > 0 && start <= run.bindings[0].base) {
                self.catch_up(run).await;
            }
        }
        if let Some(pb::watch_request::RequestUnion::CancelRequest(cancel)) = typed {
            let id = run.bindings[0].number(cancel.watch_id);
            let (_, watchers) = self.watches.get_mut(name)?;
            watchers.retain(|watcher| watcher.id != id);
        }
        None
    }

    /// Remembers the watcher that the last create request made, if it made one; returns its start.
    fn note_watcher(&mut self, run: &Run<'_>, name: &str, request: &DynamicMessage) -> Option<i64> {
        let bound = run.bindings[0].request(request).transcode_to::<pb::WatchRequest>().ok()?;
        let Some(pb::watch_request::RequestUnion::CreateRequest(create)) = bound.request_union
        else {
            return None;
        };
        let (stream, watchers) = self.watches.get_mut(name)?;
        let log = stream.pair.reference.log();
        let answer = log.messages.iter().rfind(|m| watch::flag(m, "created"))?;
        if !watch::flag(answer, "canceled") {
            let id = watch::watch_id(answer);
            watchers.push(Watcher::new(id, &create, run.revision, run.compacted));
        }
        Some(create.start_revision)
    }

    /// Waits until no watcher is behind the store: what a progress request or a compaction does
    /// depends on it.
    pub async fn catch_up(&mut self, run: &Run<'_>) {
        let mut watchers = self.watches.values_mut().flat_map(|(_, watchers)| watchers);
        if self.burst || !watchers.any(|watcher| watcher.may_lag) {
            return;
        }
        // A watcher that begins at an event of the past gets it only when it is looked after, and
        // all that were created before it are looked after in the same round.
        let probes = StreamPair {
            reference: BiStream::open(&run.pair.reference.client, Schema::known("Watch.Watch")),
            subject: BiStream::open(&run.pair.subject.client, Schema::known("Watch.Watch")),
        };
        let request = create_all(run.revision);
        probes.reference.send(&request);
        probes.subject.send(&request);
        probes.wait(CATCH_UP_TIMEOUT, |log| log.messages.len() > 1).await;
        for (_, watchers) in self.watches.values_mut() {
            watchers.iter_mut().for_each(|watcher| watcher.may_lag = false);
        }
    }

    /// Waits for the events and cancellations that must come, then compares all logs. In a burst
    /// this is done only at the end.
    pub async fn settle(&mut self, run: &Run<'_>, at_end: bool) -> Option<Difference> {
        if self.watches.is_empty() || (self.burst && !at_end) {
            return None;
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        if let Some(observer) = &self.observer {
            let last = |log: &crate::stream::Log| {
                let with_events =
                    log.messages.iter().rev().find_map(|m| watch::events(m).last().cloned());
                with_events.as_ref().map_or(0, watch::mod_revision)
            };
            let already = self.history.last();
            let target = run.revision;
            let base = run.bindings[0].base;
            wait_for(observer, deadline, |log| target == base || last(log).max(already) >= target)
                .await;
            self.history.read(&observer.log());
        }
        for (stream, watchers) in self.watches.values_mut() {
            for watcher in watchers.iter_mut() {
                let expected = watcher.expected(&self.history);
                let (id, doomed) = (watcher.id, watcher.doomed);
                let arrived = stream
                    .pair
                    .wait(deadline.saturating_duration_since(Instant::now()), |log| {
                        watch::is_cancelled(log, id)
                            || (!doomed && watch::received_up_to(log, id) >= expected)
                    })
                    .await;
                watcher.may_lag &= !(arrived && expected > 0);
                if !arrived && run.trace {
                    println!("revision {expected} does not arrive at {watcher:?}");
                }
            }
            let log = stream.pair.reference.log();
            watchers.retain(|watcher| !watch::is_cancelled(&log, watcher.id));
        }
        self.compare(run).await
    }

    /// The last comparison, behind a fence on every stream.
    pub async fn finish(&mut self, run: &Run<'_>) -> Option<Difference> {
        for (stream, _) in self.watches.values_mut().filter(|(stream, _)| !stream.closed) {
            send_fence(stream);
            if let Some(missing) = await_created(run, stream).await {
                return Some(missing);
            }
        }
        let difference = self.settle(run, true).await;
        if run.trace {
            for (name, (stream, _)) in &self.watches {
                let (left, right) = logs(run, stream);
                println!("watch {name}\n    etcd    {left}\n    subject {right}");
            }
        }
        difference
    }

    async fn compare(&self, run: &Run<'_>) -> Option<Difference> {
        for (name, (stream, _)) in &self.watches {
            let deadline = Instant::now() + ANSWER_TIMEOUT;
            let mismatch = loop {
                let bindings = [&run.bindings[0], &run.bindings[1]];
                match watch::compare(stream, bindings, self.burst) {
                    Verdict::Equal => break None,
                    Verdict::Different(mismatch) => break Some(mismatch),
                    Verdict::Incomplete(mismatch) if Instant::now() > deadline => {
                        break Some(mismatch);
                    }
                    Verdict::Incomplete(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            };
            if let Some(mismatch) = mismatch {
                let (left, right) = logs(run, stream);
                return Some(difference(format!("watch {name}"), &left, &right, mismatch));
            }
        }
        None
    }

    /// Ends the sending side of a watch stream. etcd does not end its own side then: watchers go
    /// on getting events.
    pub fn close(&mut self, name: &str) {
        if let Some((stream, _)) = self.watches.get_mut(name) {
            stream.pair.reference.close();
            stream.pair.subject.close();
            stream.closed = true;
        }
    }

    /// Sends a request on a keep-alive stream, and takes one answer from each server.
    pub async fn keep_alive(
        &mut self,
        run: &Run<'_>,
        name: &str,
        request: &DynamicMessage,
    ) -> (Answer, Answer) {
        let method = Schema::known("Lease.LeaseKeepAlive");
        let pair = self.keep_alives.entry(name.to_owned()).or_insert_with(|| StreamPair {
            reference: BiStream::open(&run.pair.reference.client, method),
            subject: BiStream::open(&run.pair.subject.client, method),
        });
        let before = pair.reference.log().messages.len();
        pair.reference.send(&run.bindings[0].request(request));
        pair.subject.send(&run.bindings[1].request(request));
        pair.wait(ANSWER_TIMEOUT, |log| log.messages.len() > before || log.end.is_some()).await;
        let answer = |stream: &BiStream| {
            let log = stream.log();
            let messages = log.messages.get(before..).unwrap_or_default().to_vec();
            let silent = messages.is_empty().then_some(End::Timeout);
            Answer { messages, ..Answer::ended(log.end.clone().or(silent).unwrap_or(End::Ok)) }
        };
        (answer(&pair.reference), answer(&pair.subject))
    }
}

fn open(run: &Run<'_>) -> (WatchStream, Vec<Watcher>) {
    let method = Schema::known("Watch.Watch");
    let pair = StreamPair {
        reference: BiStream::open(&run.pair.reference.client, method),
        subject: BiStream::open(&run.pair.subject.client, method),
    };
    (WatchStream { pair, creates: Vec::new(), closed: false }, Vec::new())
}

fn create_all(start_revision: i64) -> DynamicMessage {
    let create = pb::WatchCreateRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        start_revision,
        ..pb::WatchCreateRequest::default()
    };
    let union = pb::watch_request::RequestUnion::CreateRequest(create);
    Schema::known("Watch.Watch").request(&pb::WatchRequest { request_union: Some(union) })
}

fn send_fence(stream: &mut WatchStream) {
    let fence = watch::fence();
    stream.pair.reference.send(&fence);
    stream.pair.subject.send(&fence);
    stream.creates.push(true);
}

/// Waits until all create requests are answered; reports the stream that leaves one unanswered.
async fn await_created(run: &Run<'_>, stream: &WatchStream) -> Option<Difference> {
    let count = stream.creates.len();
    let done = |log: &crate::stream::Log| watch::created_count(log) >= count || log.end.is_some();
    if stream.pair.wait(ANSWER_TIMEOUT, done).await {
        return None;
    }
    let (left, right) = logs(run, stream);
    let bindings = [&run.bindings[0], &run.bindings[1]];
    let (Verdict::Different(mismatch) | Verdict::Incomplete(mismatch)) =
        watch::compare(stream, bindings, true)
    else {
        let counts = (
            watch::created_count(&stream.pair.reference.log()),
            watch::created_count(&stream.pair.subject.log()),
        );
        let mismatch = crate::compare::Mismatch::new("answered creates", counts.0, counts.1);
        return (counts.0 != counts.1).then(|| difference("watch".into(), &left, &right, mismatch));
    };
    Some(difference("watch".into(), &left, &right, mismatch))
}

fn logs(run: &Run<'_>, stream: &WatchStream) -> (String, String) {
    let text = |stream: &BiStream, binding: &Binding| {
        let log = stream.log();
        let messages = log.messages.iter().map(|message| {
            let mut message = message.clone();
            binding.normalise(&mut message);
            format!("{{{}}}", message_text(&message))
        });
        messages.chain(log.end.iter().map(|end| format!("{end:?}"))).collect::<Vec<_>>().join(" ")
    };
    (text(&stream.pair.reference, &run.bindings[0]), text(&stream.pair.subject, &run.bindings[1]))
}

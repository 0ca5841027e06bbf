//! Runs a sequence on both servers, step by step, until the first difference.

use std::time::{Duration, Instant};

use bytes::Bytes;
use leaseway_proto::etcdserverpb as pb;
use prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage};

use crate::bind::Binding;
use crate::client::{Answer, End};
use crate::compare::{self, Mismatch};
use crate::known::{self, Case};
use crate::ops::{Op, Sequence};
use crate::report::{self, Difference};
use crate::schema::Schema;
use crate::servers::Pair;
use crate::streams::Streams;

/// Seconds in which a sequence is certainly over.
const SHORT_TTL: i64 = 60;
/// A lease of the shortest time to live has ended long before.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(15);

/// A compaction of the few keys of a sequence takes milliseconds.
const COMPACTION_TIMEOUT: Duration = Duration::from_millis(500);

/// How a sequence ended.
#[derive(Debug)]
pub enum Outcome {
    /// No difference.
    Same,
    /// The first difference.
    Different(Box<Difference>),
    /// The reference, or the tester, could not go on; nothing is known about the subject.
    Broken(String),
}

/// A sequence under way.
pub struct Run<'a> {
    /// The servers.
    pub pair: &'a mut Pair,
    /// What tokens stand for, on the reference and on the subject.
    pub bindings: [Binding; 2],
    /// The reference's revision, as far as answers have told.
    pub revision: i64,
    /// The revision of the last successful compaction.
    pub compacted: i64,
    /// That compaction may still go on in the background.
    pub compacting: bool,
    /// Print every answer.
    pub trace: bool,
}

/// Runs `sequence`, and afterwards compares the whole visible state.
pub async fn run(sequence: &Sequence, pair: &mut Pair, trace: bool) -> Outcome {
    match run_inner(sequence, pair, trace).await {
        // Nothing is proved by the answers of a server that is no more.
        Ok(_) if !pair.reference.is_running() => {
            pair.clean = false;
            Outcome::Broken(format!("etcd has ended:\n{}", pair.reference.log_tail()))
        }
        Ok(None) => Outcome::Same,
        Ok(Some(difference)) => {
            pair.clean = false;
            Outcome::Different(Box::new(difference))
        }
        Err(error) => {
            pair.clean = false;
            Outcome::Broken(error)
        }
    }
}

async fn run_inner(
    sequence: &Sequence,
    pair: &mut Pair,
    trace: bool,
) -> Result<Option<Difference>, String> {
    let base = match begin(sequence.fresh, pair).await? {
        Ok(base) => base,
        Err(mismatch) => {
            let (left, right) = (mismatch.reference.clone(), mismatch.subject.clone());
            return Ok(Some(difference("reset".into(), &left, &right, mismatch)));
        }
    };
    if sequence.discard || sequence.fresh {
        pair.clean = false;
    }
    let hash_depends_on_leases = sequence.ops.iter().any(uses_generated_lease);
    let binding =
        |member_id| Binding { base, member_id, hash_depends_on_leases, ..Binding::default() };
    let bindings = [binding(pair.reference.member_id), binding(pair.subject.member_id)];
    let compacted = if sequence.fresh { 0 } else { base };
    let mut run = Run { pair, bindings, revision: base, compacted, compacting: false, trace };
    let mut streams = Streams::new(sequence.burst);
    if sequence.ops.iter().any(|op| matches!(op, Op::Watch { .. })) {
        streams.observe(&run).await?;
    }
    let epilogue = epilogue();
    for (index, op) in sequence.ops.iter().chain(&epilogue).enumerate() {
        if index == sequence.ops.len()
            && let Some(difference) = streams.finish(&run).await
        {
            return Ok(Some(Difference { index, ..difference }));
        }
        let difference = match run.step(op, &mut streams).await? {
            Some(difference) => Some(difference),
            None if index < sequence.ops.len() => streams.settle(&run, false).await,
            None => None,
        };
        if let Some(difference) = difference {
            return Ok(Some(Difference { index, operation: op.to_text(), ..difference }));
        }
    }
    Ok(None)
}

/// Brings both servers to where a sequence begins, and says at which revision that is.
async fn begin(fresh: bool, pair: &mut Pair) -> Result<Result<i64, Mismatch>, String> {
    let renewed = fresh || !pair.clean;
    if renewed {
        pair.renew().await?;
    }
    if fresh {
        return Ok(Ok(1));
    }
    let base = crate::reset::reset(pair).await;
    if base.is_ok() || renewed {
        return Ok(base);
    }
    // What the last sequence left is no fault of this one.
    pair.renew().await?;
    Ok(crate::reset::reset(pair).await)
}

/// What a client can see of the state.
fn epilogue() -> Vec<Op> {
    let all = pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    vec![
        Op::call("KV.Range", &all),
        Op::call("Lease.LeaseLeases", &pb::LeaseLeasesRequest {}),
        Op::call("Maintenance.Alarm", &pb::AlarmRequest::default()),
        Op::call("Maintenance.HashKV", &pb::HashKvRequest::default()),
    ]
}

fn uses_generated_lease(op: &Op) -> bool {
    op.request().is_some_and(|request| {
        let text = crate::ops::message_text(request);
        text.contains("lease:$lease")
    })
}

impl Run<'_> {
    async fn step(&mut self, op: &Op, streams: &mut Streams) -> Result<Option<Difference>, String> {
        match op {
            Op::Call { method, request } => {
                if method.name == "KV.Compact" {
                    streams.catch_up(self).await;
                }
                if method.name == "Maintenance.HashKV" && self.compacting {
                    self.await_compaction().await;
                }
                let (left, right) = self.call(&method.path, request, &method.output).await;
                self.learn(request, &left, &right);
                Ok(self.judge(op, left, right))
            }
            Op::Raw { path, body } => {
                let output = &Schema::known("KV.Range").output;
                let (left, right) = tokio::join!(
                    self.pair.reference.client.call(path, body.clone(), output),
                    self.pair.subject.client.call(path, body.clone(), output),
                );
                Ok(self.judge(op, left, right))
            }
            Op::Json(request) => {
                let (left, right) = tokio::join!(
                    self.pair.reference.client.send(request),
                    self.pair.subject.client.send(request),
                );
                self.learn_lease(&left, &right);
                self.learn_revision(&left);
                let short = (short_lease(&left), short_lease(&right));
                let difference = self.judge(op, left, right);
                if let (Some(left), Some(right)) = short {
                    self.revoke(left, right).await;
                }
                Ok(difference)
            }
            Op::Watch { stream, request } => Ok(streams.watch(self, stream, request).await),
            Op::Close { stream } => {
                streams.close(stream);
                Ok(None)
            }
            Op::KeepAlive { stream, request } => {
                let (left, right) = streams.keep_alive(self, stream, request).await;
                Ok(self.judge(op, left, right))
            }
            Op::AwaitExpiry { lease } => self.await_expiry(op, *lease).await,
            Op::As { who } => Ok(self.become_somebody(op, who).await),
            Op::Restart { kill } => {
                streams.drop_all();
                let (reference, subject) = tokio::join!(
                    self.pair.reference.restart(*kill),
                    self.pair.subject.restart(*kill)
                );
                reference?;
                if let Err(error) = subject {
                    let mismatch = Mismatch::new("restart", "started", "failed");
                    return Ok(Some(difference(op.kind(), "started", &error, mismatch)));
                }
                self.bindings[0].member_id = self.pair.reference.member_id;
                self.bindings[1].member_id = self.pair.subject.member_id;
                self.bindings.iter_mut().for_each(|b| b.lease_order_is_arbitrary = true);
                streams.observe(self).await?;
                Ok(None)
            }
        }
    }

    /// The same request to both.
    pub async fn call(
        &self,
        path: &str,
        request: &DynamicMessage,
        output: &prost_reflect::MessageDescriptor,
    ) -> (Answer, Answer) {
        let body = |binding: &Binding| Bytes::from(binding.request(request).encode_to_vec());
        tokio::join!(
            self.pair.reference.client.call(path, body(&self.bindings[0]), output),
            self.pair.subject.client.call(path, body(&self.bindings[1]), output),
        )
    }

    /// Takes note of generated lease ids, the revision, and compactions.
    fn learn(&mut self, request: &DynamicMessage, left: &Answer, right: &Answer) {
        match request.descriptor().name() {
            "LeaseGrantRequest" if number(request, "ID") == 0 => {
                self.learn_lease(left, right);
            }
            "CompactionRequest" if left.end == End::Ok => {
                self.compacted = self.bindings[0].number(number(request, "revision"));
                self.compacting = true;
            }
            _ => {}
        }
        self.learn_revision(left);
    }

    fn learn_lease(&mut self, left: &Answer, right: &Answer) {
        let granted = |answer: &Answer| {
            let message = answer.message()?;
            let id = number(message, "ID");
            (message.descriptor().name() == "LeaseGrantResponse").then_some(id)
        };
        if let (Some(left), Some(right)) = (granted(left), granted(right)) {
            self.bindings[0].leases.push(left);
            self.bindings[1].leases.push(right);
        }
    }

    /// Ends a lease that has just been granted, by its id in each.
    async fn revoke(&self, left: i64, right: i64) {
        let method = Schema::known("Lease.LeaseRevoke");
        let body = |id| Bytes::from(pb::LeaseRevokeRequest { id }.encode_to_vec());
        tokio::join!(
            self.pair.reference.client.call(&method.path, body(left), &method.output),
            self.pair.subject.client.call(&method.path, body(right), &method.output),
        );
    }

    fn learn_revision(&mut self, left: &Answer) {
        for message in &left.messages {
            let header = message.get_field_by_name("header");
            if let Some(header) = header.as_ref().and_then(|h| h.as_message()) {
                self.revision = self.revision.max(number(header, "revision"));
            }
        }
    }

    /// Compares two answers, and says whether the difference is a declared one.
    pub fn judge(&self, op: &Op, left: Answer, right: Answer) -> Option<Difference> {
        let left = normalised(left, &self.bindings[0]);
        let right = normalised(right, &self.bindings[1]);
        if self.trace {
            println!("{}\n    etcd    {}", op.to_text(), report::answer_text(&left));
            println!("    subject {}", report::answer_text(&right));
        }
        let mismatch = compare::answers(&left, &right)?;
        let case = Case { op, reference: &left, subject: &right, compacted: self.compacted };
        if known::covers(&case, &mismatch) {
            return None;
        }
        let (left, right) = (report::answer_text(&left), report::answer_text(&right));
        Some(difference(op.kind(), &left, &right, mismatch))
    }

    /// Waits until the last compaction is done: from then on, etcd answers the hash at its revision
    /// from a note that it has made meanwhile, with the compacted revision of before.
    async fn await_compaction(&mut self) {
        let method = Schema::known("Maintenance.HashKV");
        let request = method.request(&pb::HashKvRequest { revision: self.compacted });
        let deadline = Instant::now() + COMPACTION_TIMEOUT;
        let noted = |answer: &Answer| {
            let revision =
                answer.message().and_then(|m| m.get_field_by_name("compact_revision")?.as_i64());
            revision != Some(self.compacted)
        };
        let body = Bytes::from(request.encode_to_vec());
        while Instant::now() < deadline {
            let client = &self.pair.reference.client;
            if noted(&client.call(&method.path, body.clone(), &method.output).await) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.compacting = false;
    }

    async fn await_expiry(&mut self, op: &Op, lease: i64) -> Result<Option<Difference>, String> {
        let request = pb::LeaseTimeToLiveRequest { id: lease, keys: false };
        let method = Schema::known("Lease.LeaseTimeToLive");
        let deadline = Instant::now() + EXPIRY_TIMEOUT;
        let ended = |answer: &Answer| {
            let ttl = answer.message().and_then(|m| m.get_field_by_name("TTL")?.as_i64());
            ttl == Some(-1)
        };
        loop {
            let request = method.request(&request);
            let (left, right) = self.call(&method.path, &request, &method.output).await;
            if ended(&left) && ended(&right) {
                self.learn(&request, &left, &right);
                return Ok(self.judge(op, left, right));
            }
            if Instant::now() > deadline {
                return match ended(&left) {
                    true => Ok(self.judge(op, left, right)),
                    false => Err(format!("the lease does not end in etcd: {}", op.to_text())),
                };
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }
}

/// The id of a lease that a changed request has been granted, if its time may be over before the sequence is: a
/// moment earlier in one of them.
fn short_lease(answer: &Answer) -> Option<i64> {
    let message = answer.message()?;
    let granted = message.descriptor().name() == "LeaseGrantResponse";
    (granted && number(message, "TTL") < SHORT_TTL).then(|| number(message, "ID"))
}

fn number(message: &DynamicMessage, field: &str) -> i64 {
    message.get_field_by_name(field).and_then(|v| v.as_i64()).unwrap_or(0)
}

fn normalised(mut answer: Answer, binding: &Binding) -> Answer {
    answer.messages.iter_mut().for_each(|message| binding.normalise(message));
    if let End::Failed(_, text, _) = &mut answer.end {
        *text = binding.text(text);
    }
    answer
}

/// A difference whose place in the sequence is filled in later.
pub fn difference(kind: String, left: &str, right: &str, mismatch: Mismatch) -> Difference {
    Difference {
        index: 0,
        operation: "the state after the last operation".into(),
        kind,
        reference: left.to_owned(),
        subject: right.to_owned(),
        mismatch,
    }
}

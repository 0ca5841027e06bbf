//! Watchers that are behind, served from history.
//!
//! A reader thread takes a job: a starting revision, and the watchers whose cursors lie close
//! above it. It reads one bounded chunk of history, and works out what each of them is to be sent.
//! The hub hands that over, so that all changes of watchers stay on one thread.
//!
//! Jobs go through the cursors from the highest to the lowest and then start again: those at the
//! same place share a read, each place is served once in a round, and a watcher that starts far
//! back does not keep the others waiting for more than one chunk.

use super::batch::{Batch, EncodedRevision, Wants};
use super::deliver::Fanout;
use super::hub::Settings;
use super::index::{Index, KeyRange};
use super::registry::State;
use crate::keyspace::event::{History, HistoryBudget, HistoryChunk, HistoryError};
use std::collections::HashMap;
use std::sync::Arc;

/// Watchers in one job.
const WATCHERS_MAX: usize = 1024;
/// Distinct revisions in one answer, as in etcd.
const REVISIONS_MAX: usize = 1000;

struct Member {
    slot: u32,
    generation: u32,
    next: i64,
    wants: Wants,
}

struct JobGroup {
    range: KeyRange,
    members: Vec<Member>,
}

/// What a reader is asked to do.
pub(super) struct Job {
    from: i64,
    /// The hub's revision: history holds at least this.
    tip: i64,
    groups: Vec<JobGroup>,
}

/// One answer to a watcher, and the revision up to which it then has everything.
struct Part {
    through: i64,
    batch: Option<Arc<Batch>>,
}

struct Served {
    slot: u32,
    generation: u32,
    parts: Arc<[Part]>,
}

/// What a reader found.
pub(super) struct Outcome {
    /// For the answers' headers.
    revision: i64,
    through: i64,
    served: Vec<Served>,
    error: Option<HistoryError>,
}

/// Reads one chunk and makes sure that nothing in it can be missing.
pub(super) fn read_history(
    history: &dyn History,
    from: i64,
    to: i64,
    settings: &Settings,
) -> Result<HistoryChunk, HistoryError> {
    let budget = HistoryBudget { bytes: settings.chunk_bytes, events: settings.chunk_events };
    let chunk = history.events(from, to, budget)?;
    // A compaction that passed `from` while events were read may have thinned them out.
    let compacted = history.visible().compacted;
    if from < compacted {
        return Err(HistoryError::Compacted(compacted));
    }
    if chunk.through < from {
        return Err(HistoryError::Storage(format!("no history read from revision {from}")));
    }
    Ok(chunk)
}

impl Fanout {
    /// Takes the next watchers to be served out of the queue. `last` is where the job before
    /// started.
    pub fn next_job(&mut self, last: &mut i64, settings: &Settings) -> Option<Job> {
        let below = self.registry.queued.range(..(*last, 0)).next_back();
        let from = below.or_else(|| self.registry.queued.last())?.0;
        *last = from;
        // No chunk reaches further, except over compacted history.
        let end = from.saturating_add(settings.chunk_events as i64);
        let reached = self.registry.queued.range((from, 0)..(end, 0));
        let slots: Vec<u32> = reached.take(WATCHERS_MAX).map(|(_, slot)| *slot).collect();
        let mut groups: Vec<JobGroup> = Vec::new();
        let mut known = HashMap::new();
        for slot in slots {
            let generation = self.registry.generation(slot);
            let Some(watcher) = self.registry.watcher(slot) else { continue };
            let (next, wants, group) = (watcher.next, watcher.wants, watcher.place.group);
            let Some(range) = self.registry.range(group) else { continue };
            let position = *known.entry(group).or_insert_with(|| {
                groups.push(JobGroup { range: range.clone(), members: Vec::new() });
                groups.len() - 1
            });
            groups[position].members.push(Member { slot, generation, next, wants });
            self.registry.settle(slot, State::Reading, next);
        }
        Some(Job { from, tip: self.revision, groups })
    }

    /// Hands over what a reader found, and decides where each watcher goes from there.
    pub fn apply(&mut self, outcome: Outcome) -> Result<(), HistoryError> {
        let compacted = match outcome.error {
            None => None,
            Some(HistoryError::Compacted(compacted)) => Some(compacted),
            Some(error) => return Err(error),
        };
        let mut resumed = Vec::new();
        for served in &outcome.served {
            let Some(watcher) = self.registry.watcher(served.slot) else { continue };
            let mine = self.registry.generation(served.slot) == served.generation;
            if !mine || watcher.state != State::Reading {
                continue;
            }
            let mut next = watcher.next;
            if let Some(compacted) = compacted.filter(|compacted| next < *compacted) {
                self.registry.kill(served.slot, compacted);
                continue;
            }
            let mut full = false;
            for part in served.parts.iter() {
                full = part
                    .batch
                    .as_ref()
                    .is_some_and(|batch| !self.registry.send(served.slot, outcome.revision, batch));
                if full {
                    break;
                }
                next = next.max(part.through + 1);
            }
            if full {
                self.registry.settle(served.slot, State::Parked, next);
                continue;
            }
            next = next.max(outcome.through + 1);
            // Out of `Reading`, with the cursor where it is now; `resume` decides on the rest.
            self.registry.settle(served.slot, State::Queued, next);
            resumed.push(served.slot);
        }
        self.resume(&resumed)
    }
}

impl Job {
    /// Reads, and works out what each watcher is to be sent.
    pub fn run(self, history: &dyn History, settings: &Settings) -> Outcome {
        let revision = history.visible().revision.max(self.tip);
        let read = read_history(history, self.from, revision, settings);
        let found = read.and_then(|chunk| self.serve(chunk, history, settings));
        match found {
            Ok((through, served)) => Outcome { revision, through, served, error: None },
            Err(error) => {
                let members = self.groups.iter().flat_map(|group| &group.members);
                let served = members.map(|member| member.served(Arc::from([]))).collect();
                Outcome { revision, through: 0, served, error: Some(error) }
            }
        }
    }

    /// Returns the revision up to which everyone is served.
    fn serve(
        &self,
        chunk: HistoryChunk,
        history: &dyn History,
        settings: &Settings,
    ) -> Result<(i64, Vec<Served>), HistoryError> {
        let mut revisions: Vec<EncodedRevision> =
            chunk.revisions.into_iter().map(EncodedRevision::new).collect();
        let hits = self.hits(&revisions);
        let cut = self.encode_with_previous(&mut revisions, &hits, history, settings)?;
        let through = cut.unwrap_or(chunk.through);
        let mut served = Vec::new();
        for (group, hits) in self.groups.iter().zip(&hits) {
            let mut made: HashMap<(i64, Wants), Arc<[Part]>> = HashMap::new();
            for member in &group.members {
                let key = (member.next, member.wants);
                let parts = match made.get(&key) {
                    Some(parts) => parts.clone(),
                    None => {
                        let parts: Arc<[Part]> =
                            parts(&mut revisions, hits, key, through, history)?.into();
                        made.insert(key, parts.clone());
                        parts
                    }
                };
                served.push(member.served(parts));
            }
        }
        Ok((through, served))
    }

    /// For each group, which events (by position) of which revisions (by position).
    fn hits(&self, revisions: &[EncodedRevision]) -> Vec<Vec<(u32, u32)>> {
        let mut index = Index::default();
        for (position, group) in self.groups.iter().enumerate() {
            index.insert(&group.range, position as u32);
        }
        let mut hits: Vec<Vec<(u32, u32)>> = self.groups.iter().map(|_| Vec::new()).collect();
        let mut found = Vec::new();
        for (number, revision) in revisions.iter().enumerate() {
            for (position, event) in revision.events.iter().enumerate() {
                index.find(&event.key, &mut found);
                for slot in found.drain(..) {
                    for &group in index.members(slot) {
                        hits[group as usize].push((number as u32, position as u32));
                    }
                }
            }
        }
        hits
    }

    /// Encodes what is wanted with its previous value. The budget for reading does not count these
    /// values, which may be much larger than the events. Returns where the chunk must end when
    /// they are.
    fn encode_with_previous(
        &self,
        revisions: &mut [EncodedRevision],
        hits: &[Vec<(u32, u32)>],
        history: &dyn History,
        settings: &Settings,
    ) -> Result<Option<i64>, HistoryError> {
        let wanting = self.groups.iter().zip(hits);
        let mut wanted: Vec<(u32, u32)> = wanting
            .filter(|(group, _)| group.members.iter().any(|member| member.wants.prev_kv()))
            .flat_map(|(_, hits)| hits.iter().copied())
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut bytes = 0;
        for run in wanted.chunk_by(|a, b| a.0 == b.0) {
            let revision = &mut revisions[run[0].0 as usize];
            for (_, position) in run {
                bytes += revision.encoded(*position as usize, true, history)?.len();
            }
            if bytes >= settings.chunk_bytes.saturating_mul(2) {
                return Ok(Some(revision.revision));
            }
        }
        Ok(None)
    }
}

impl Member {
    fn served(&self, parts: Arc<[Part]>) -> Served {
        Served { slot: self.slot, generation: self.generation, parts }
    }
}

/// Cuts what a watcher is to be sent, up to revision `last`, into answers of whole revisions.
fn parts(
    revisions: &mut [EncodedRevision],
    hits: &[(u32, u32)],
    (next, wants): (i64, Wants),
    last: i64,
    history: &dyn History,
) -> Result<Vec<Part>, HistoryError> {
    let mut parts = Vec::new();
    let mut pieces = Vec::new();
    let mut through = next - 1;
    let mut count = 0;
    for run in hits.chunk_by(|a, b| a.0 == b.0) {
        let revision = &mut revisions[run[0].0 as usize];
        if revision.revision < next {
            continue;
        }
        if revision.revision > last {
            break;
        }
        if count == REVISIONS_MAX {
            let batch = Batch::new(std::mem::take(&mut pieces));
            parts.push(Part { through, batch });
            count = 0;
        }
        count += 1;
        let positions: Vec<u32> = run.iter().map(|(_, position)| *position).collect();
        revision.append(&positions, wants, history, &mut pieces)?;
        through = revision.revision;
    }
    if count > 0 {
        parts.push(Part { through, batch: Batch::new(pieces) });
    }
    Ok(parts)
}

//! Whether the gateways hold the same keys.
//!
//! Who applied the same log holds the same, unless memory, a disk or a program erred, or somebody changed
//! what is in Oxia. So now and then the gateway that looks after the others asks for everybody's hash at one
//! revision. Question and answers travel in the records that gateways write and read with every beat
//! anyhow, and whoever is asked computes the hash beside serving.
//!
//! Hashes at one revision may be compared when the compacted revision was the same as well; if not,
//! that is left to the next time.
//!
//! Deliberately absent: any decision about who is right. Those in the minority get the alarm; without a majority
//! it is everybody's.

use super::barrier::Barriers;
use super::members::{Living, list};
use super::names::Names;
use super::shard::Shard;
use crate::backend::Duty;
use crate::keyspace::gateways::GatewayId;
use crate::keyspace::hash::HashKv;
use crate::seams;
use leaseway_proto::log::{HashAnswer, HashQuestion, Member};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long answers are waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a gateway that starts waits for them: as long as a request.
const PATIENCE_AT_START: Duration = Duration::from_secs(7);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(200);
/// The most questions that are answered at once.
const QUESTIONS: usize = 4;

/// Computes the hash at a revision, beside everything else; nothing when that is impossible: the revision is
/// compacted, say.
pub type Hash =
    Box<dyn Fn(i64) -> Pin<Box<dyn Future<Output = Option<HashKv>> + Send>> + Send + Sync>;
/// Raises the CORRUPT alarm for a member, 0 for all.
pub type Alarm = Box<dyn Fn(u64) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What this gateway asks and answers, until its next beat.
#[derive(Debug, Default)]
pub struct Board {
    inner: Mutex<(Option<HashQuestion>, Vec<HashAnswer>)>,
}

impl Board {
    /// Writes it into this gateway's record.
    pub fn fill(&self, member: &mut Member) {
        let inner = self.inner.lock();
        member.hash_question = inner.0;
        member.hash_answers.clone_from(&inner.1);
    }

    fn ask(&self, question: Option<HashQuestion>) {
        self.inner.lock().0 = question;
    }
}

/// When hashes are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// So often; never if not given.
    pub every: Option<Duration>,
    /// So often, if there was a compaction since; never if not given.
    pub after_compactions: Option<Duration>,
}

/// What comparing works with.
pub struct Parts {
    /// What is put into this gateway's record.
    pub board: Arc<Board>,
    /// The gateways that have a record, with every look at them.
    pub living: watch::Receiver<Living>,
    /// Hashes of what is here.
    pub hash: Hash,
    /// The revision that has been published here, and the compacted one.
    pub revisions: Box<dyn Fn() -> (i64, i64) + Send + Sync>,
    /// Who looks after the others.
    pub duty: watch::Receiver<Duty>,
    /// This gateway's id, while it is one.
    pub me: Box<dyn Fn() -> Option<GatewayId> + Send + Sync>,
    /// What is done about a difference.
    pub alarm: Alarm,
    /// When.
    pub settings: Settings,
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// As many as answered hold the same.
    Same(usize),
    /// These members hold something else than most.
    Minority(Vec<u64>),
    /// There are differences, and no majority.
    Split,
}

/// One gateway's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    member: u64,
    answer: HashAnswer,
}

/// Judges answers that may be compared, of `gateways` in all.
fn judge(told: &[Told], gateways: usize) -> Verdict {
    let mut by_hash: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for Told { member, answer } in told {
        by_hash.entry(answer.hash).or_default().push(*member);
    }
    if by_hash.len() <= 1 {
        return Verdict::Same(told.len());
    }
    let most = by_hash.iter().find(|(_, members)| members.len() > gateways / 2);
    match most.map(|(hash, _)| *hash) {
        Some(right) => {
            by_hash.remove(&right);
            Verdict::Minority(by_hash.into_values().flatten().collect())
        }
        None => Verdict::Split,
    }
}

/// The answers to a question, and how many gateways have given none yet.
fn answers(living: &Living, id: u64) -> (Vec<Told>, usize) {
    let answer = |member: &Member| {
        let answer = member.hash_answers.iter().find(|answer| answer.id == id).copied()?;
        Some(Told { member: member.member_id, answer })
    };
    let told: Vec<Told> = living.values().filter_map(answer).collect();
    let silent = living.len() - told.len();
    (told, silent)
}

/// Those that may be compared with an answer.
fn comparable(told: Vec<Told>, with: HashAnswer) -> Vec<Told> {
    let same = |told: &Told| {
        told.answer.revision == with.revision
            && told.answer.compact_revision == with.compact_revision
    };
    told.into_iter().filter(same).collect()
}

fn shown(told: &[Told]) -> String {
    let each = told.iter().map(|told| format!("{:x}: {}", told.member, told.answer.hash));
    each.collect::<Vec<_>>().join(", ")
}

impl Parts {
    /// Answers questions until the gateway stops.
    pub async fn answer(self: Arc<Self>) {
        let mut living = self.living.clone();
        while living.changed().await.is_ok() {
            let now = living.borrow_and_update().clone();
            self.answer_all(&now).await;
        }
    }

    /// Answers what is asked now. What is not asked any more is forgotten.
    async fn answer_all(&self, living: &Living) {
        let asked: Vec<HashQuestion> =
            living.values().filter_map(|member| member.hash_question).take(QUESTIONS).collect();
        let ids: BTreeSet<u64> = asked.iter().map(|question| question.id).collect();
        self.board.inner.lock().1.retain(|answer| ids.contains(&answer.id));
        for HashQuestion { id, revision } in asked {
            let known = self.board.inner.lock().1.iter().any(|answer| answer.id == id);
            // What has not been applied here yet is looked at again with the next beat.
            if known || (self.revisions)().0 < revision {
                continue;
            }
            let answer = self.hash_at(id, revision).await;
            self.board.inner.lock().1.push(answer);
        }
    }

    async fn hash_at(&self, id: u64, revision: i64) -> HashAnswer {
        match (self.hash)(revision).await {
            Some(found) => HashAnswer {
                id,
                revision: found.revision,
                compact_revision: found.compacted,
                hash: found.hash,
            },
            // One that can't be compared.
            None => HashAnswer { id, revision: -1, ..HashAnswer::default() },
        }
    }

    /// Compares when it is time to, while this gateway looks after the others; until it stops.
    pub async fn run(self: Arc<Self>) {
        let Settings { every, after_compactions } = self.settings;
        let begun = Instant::now();
        let mut due = every.map(|every| begun + every);
        let mut due_after_compaction = after_compactions.map(|every| begun + every);
        let mut compared_at = 0;
        while let Some(next) = due.into_iter().chain(due_after_compaction).min() {
            tokio::time::sleep_until(next).await;
            let (revision, compacted) = (self.revisions)();
            let regular = due.is_some_and(|due| due <= next);
            let mine = matches!(*self.duty.borrow(), Duty::Mine { .. });
            let wanted = regular || compacted > compared_at;
            if mine && wanted && self.compare(revision).await {
                compared_at = compacted;
            }
            let now = Instant::now();
            let put_off = |due: Option<Instant>, every: Option<Duration>| match (due, every) {
                (Some(due), Some(every)) if due <= now => Some(now + every),
                _ => due,
            };
            due = put_off(due, every);
            due_after_compaction = put_off(due_after_compaction, after_compactions);
        }
    }

    /// Compares hashes at a revision; returns whether everybody's could be compared.
    async fn compare(&self, revision: i64) -> bool {
        let Some(me) = (self.me)() else { return false };
        let id = seams::random();
        self.board.ask(Some(HashQuestion { id, revision }));
        let living = self.answered(id).await;
        self.board.ask(None);
        let Some(own) = living
            .get(&me)
            .and_then(|member| member.hash_answers.iter().find(|answer| answer.id == id).copied())
            .filter(|own| own.revision == revision)
        else {
            tracing::info!(revision, "this gateway has no hash to compare with");
            return false;
        };
        let (told, _) = answers(&living, id);
        let told = comparable(told, own);
        let skipped = living.len() - told.len();
        match judge(&told, living.len()) {
            Verdict::Same(gateways) => {
                tracing::info!(
                    revision,
                    compact_revision = own.compact_revision,
                    gateways,
                    skipped,
                    "compared the gateways' hashes: they hold the same"
                );
            }
            Verdict::Minority(members) => {
                self.tell(&own, &told, "gateways hold something else than most of them");
                for member in members {
                    (self.alarm)(member).await;
                }
            }
            Verdict::Split => {
                self.tell(&own, &told, "gateways hold different things, and no majority the same");
                (self.alarm)(0).await;
            }
        }
        skipped == 0
    }

    fn tell(&self, at: &HashAnswer, told: &[Told], what: &str) {
        let HashAnswer { revision, compact_revision, .. } = *at;
        let hashes = shown(told);
        tracing::error!(revision, compact_revision, hashes, "data corruption: {what}");
    }

    /// Waits until everybody has answered, or has had time to; returns who lives then.
    async fn answered(&self, id: u64) -> Living {
        let mut living = self.living.clone();
        let all = async {
            loop {
                // The end of the one who looks is the end of everything.
                if living.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                let (told, silent) = answers(&living.borrow_and_update(), id);
                if !told.is_empty() && silent == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(PATIENCE, all).await;
        self.living.borrow().clone()
    }

    /// Compares what a gateway holds with what the others do, before it serves. Those that do not answer, or
    /// have compacted less or more, are passed over. It answers nobody itself before that: one that is about to
    /// end for what it holds must not be the reason for an alarm.
    ///
    /// # Errors
    /// Somebody holds something else.
    pub async fn at_start<S: Shard>(
        &self,
        (shard, names, barriers): (&S, &Names, &Barriers),
        member: u64,
    ) -> Result<(), String> {
        tracing::info!(member = format!("{member:x}"), "comparing the gateways' hashes");
        let (revision, _) = (self.revisions)();
        let id = seams::random();
        let own = self.hash_at(id, revision).await;
        self.board.ask(Some(HashQuestion { id, revision }));
        let end = Instant::now() + PATIENCE_AT_START;
        let mut told = Vec::new();
        let mut silent = 0;
        while Instant::now() < end {
            if let Ok(living) = list(shard, names, barriers).await {
                let me = (self.me)();
                let others: Living =
                    living.into_iter().filter(|(other, _)| Some(*other) != me).collect();
                (told, silent) = answers(&others, id);
                if silent == 0 {
                    break;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        self.board.ask(None);
        let all = told.len();
        let told = comparable(told, own);
        let skipped = silent + all - told.len();
        let different: Vec<Told> =
            told.into_iter().filter(|told| told.answer.hash != own.hash).collect();
        if different.is_empty() {
            tracing::info!(gateways = all, skipped, "this gateway holds what the others hold");
            return Ok(());
        }
        let mut hashes = different;
        hashes.push(Told { member, answer: own });
        self.tell(&own, &hashes, "this gateway holds something else than others");
        Err(format!("{member:x} found data inconsistency with peers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(hashes: &[(u64, u32)]) -> Vec<Told> {
        let answer = |hash| HashAnswer { id: 1, revision: 5, compact_revision: 2, hash };
        hashes.iter().map(|&(member, hash)| Told { member, answer: answer(hash) }).collect()
    }

    #[test]
    fn the_minority_differs() {
        assert_eq!(judge(&told(&[(1, 7), (2, 7), (3, 7)]), 3), Verdict::Same(3));
        assert_eq!(judge(&told(&[(1, 7)]), 3), Verdict::Same(1));
        assert_eq!(judge(&told(&[(1, 7), (2, 8), (3, 7)]), 3), Verdict::Minority(vec![2]));
        let three = told(&[(1, 9), (2, 8), (3, 7), (4, 7), (5, 7)]);
        assert_eq!(judge(&three, 5), Verdict::Minority(vec![2, 1]));
    }

    #[test]
    fn without_a_majority_of_all_nobody_is_right() {
        assert_eq!(judge(&told(&[(1, 7), (2, 8)]), 2), Verdict::Split);
        // The third has not answered, or can't be compared.
        assert_eq!(judge(&told(&[(1, 7), (2, 8)]), 3), Verdict::Split);
        assert_eq!(judge(&told(&[(1, 7), (2, 7), (3, 8)]), 4), Verdict::Split);
    }

    #[test]
    fn only_hashes_of_the_same_may_be_compared() {
        let mut all = told(&[(1, 7), (2, 8), (3, 8), (4, 7)]);
        all[1].answer.compact_revision = 3;
        all[2].answer.revision = -1;
        let with = all[0].answer;
        assert_eq!(comparable(all, with), told(&[(1, 7), (4, 7)]));
    }
}

//! Which row holds a key at a revision: every key with all revisions that a reader may still ask for.
//!
//! One key's life, step by step, with what its [`Entry`] holds (`older | latest`, `x` a tombstone):
//!
//! ```text
//! put at 2            | 2 (create 2, version 1)
//! put at 5          2 | 5 (create 2, version 2)
//! delete at 6     2 5 | 6x
//! put at 9     2 5 6x | 9 (create 9, version 1)
//! trim at 5      5 6x | 9      5 is what a read at 5 sees
//! trim at 6        6x | 9      a tombstone exactly at the bound stays: a watch may start there
//! trim at 7           | 9
//! ```
//!
//! Revisions above the published one are staged: they are inserted while their commit is under way,
//! and readers, who ask at published revisions, do not see them.
//!
//! The lock is held for at most [`CHUNK`] keys at a time and never over I/O.

use super::event::RowId;
use super::range::KeyRange;
use parking_lot::RwLock;
use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ops::Bound;

/// Keys visited under one hold of the lock.
pub const CHUNK: usize = 1024;

/// The newest state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latest {
    /// Row with the state.
    pub row: RowId,
    /// Revision that created the key; 0 for a tombstone.
    pub create: i64,
    /// Puts since then, from 1; 0 for a tombstone.
    pub version: i64,
    /// Lease the key hangs on, or 0.
    pub lease: i64,
}

impl Latest {
    /// Whether the key exists.
    pub fn alive(&self) -> bool {
        self.version != 0
    }
}

/// An earlier state of a key: its row, and whether it was a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Older {
    main: i64,
    // Sub-revision shifted left by one, lowest bit set for a put.
    tagged: u32,
}

impl Older {
    fn new(latest: &Latest) -> Self {
        Self { main: latest.row.main, tagged: latest.row.sub << 1 | u32::from(latest.alive()) }
    }
    fn row(self) -> RowId {
        RowId { main: self.main, sub: self.tagged >> 1 }
    }
    fn alive(self) -> bool {
        self.tagged & 1 == 1
    }
}

#[derive(Debug)]
struct Entry {
    latest: Latest,
    // Goes at the front when trimmed, a portion at a time.
    older: VecDeque<Older>,
}

impl Entry {
    /// Makes `latest` the newest state; returns the one before.
    fn replace(&mut self, latest: Latest) -> Latest {
        let before = std::mem::replace(&mut self.latest, latest);
        debug_assert!(latest.row > before.row, "rows of a key only grow");
        self.older.push_back(Older::new(&before));
        before
    }

    /// The row that holds the key at `revision`, if it existed then.
    fn at(&self, revision: i64) -> Option<RowId> {
        if self.latest.row.main <= revision {
            return self.latest.alive().then_some(self.latest.row);
        }
        let older = self.older.get(self.seen(revision).checked_sub(1)?)?;
        older.alive().then(|| older.row())
    }

    /// How many of the older states are not newer than `revision`.
    fn seen(&self, revision: i64) -> usize {
        self.older.partition_point(|older| older.main <= revision)
    }

    /// Drops, oldest first and at most `most` rows, what no read at `bound` or later can see.
    fn trim(&mut self, bound: i64, most: usize, dropped: &mut Vec<RowId>) -> AfterTrim {
        let goes = |main: i64, alive: bool| !alive && main < bound;
        let passed = self.latest.row.main <= bound;
        let unseen = if passed {
            self.older.len()
        } else {
            let seen = self.seen(bound);
            match seen.checked_sub(1).and_then(|newest| self.older.get(newest)) {
                Some(newest) if goes(newest.main, newest.alive()) => seen,
                Some(_) => seen - 1,
                None => 0,
            }
        };
        let drained = unseen.min(most);
        dropped.extend(self.older.drain(..drained).map(Older::row));
        if self.older.capacity() > 2 * self.older.len() + 8 {
            self.older.shrink_to_fit();
        }
        if drained < unseen {
            return AfterTrim::More;
        }
        if passed && goes(self.latest.row.main, self.latest.alive()) {
            dropped.push(self.latest.row);
            return AfterTrim::Gone;
        }
        AfterTrim::Done
    }
}

/// What is left of a key after a step of trimming.
enum AfterTrim {
    /// Nothing more to drop for now.
    Done,
    /// The step's limit was reached first.
    More,
    /// The key has no history left.
    Gone,
}

/// What [`Index::latest_in`] yields for a living key.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its newest state.
    pub latest: Latest,
}

/// A read asked for a revision whose history has been trimmed.
#[derive(Debug, PartialEq, Eq)]
pub struct Trimmed;

#[derive(Debug, Default)]
struct Inner {
    keys: BTreeMap<Box<[u8]>, Entry>,
    trimmed: i64,
}

/// The index. One writer (the apply thread), any number of readers.
#[derive(Debug, Default)]
pub struct Index {
    inner: RwLock<Inner>,
}

/// Rows of a range at a revision.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RangeRows {
    /// The rows in key order, up to the limit.
    pub rows: Vec<RowId>,
    /// How many keys the range holds, whatever the limit.
    pub count: usize,
}

impl Index {
    /// An empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys with any history.
    pub fn len(&self) -> usize {
        self.inner.read().keys.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Newest state of a key, tombstones included, staged revisions included.
    pub fn latest(&self, key: &[u8]) -> Option<Latest> {
        self.inner.read().keys.get(key).map(|entry| entry.latest)
    }

    /// Makes `latest` the newest state of a key; its row must be newer than all before. Returns the
    /// state that it replaces, a tombstone included.
    pub fn insert(&self, key: &[u8], latest: Latest) -> Option<Latest> {
        self.update(key, |_| latest)
    }

    /// Like [`Index::insert`], with the new state computed from the old one under one lock.
    pub fn update(
        &self,
        key: &[u8],
        next: impl FnOnce(Option<&Latest>) -> Latest,
    ) -> Option<Latest> {
        let mut inner = self.inner.write();
        if let Some(entry) = inner.keys.get_mut(key) {
            let latest = next(Some(&entry.latest));
            return Some(entry.replace(latest));
        }
        let latest = next(None);
        inner.keys.insert(key.into(), Entry { latest, older: VecDeque::new() });
        None
    }

    /// Like [`Index::insert`], faster when most keys are new: for loading.
    pub fn load(&self, key: &[u8], latest: Latest) -> Option<Latest> {
        match self.inner.write().keys.entry(key.into()) {
            btree_map::Entry::Occupied(mut entry) => Some(entry.get_mut().replace(latest)),
            btree_map::Entry::Vacant(place) => {
                place.insert(Entry { latest, older: VecDeque::new() });
                None
            }
        }
    }

    /// The row that holds `key` at `revision`.
    ///
    /// # Errors
    /// [`Trimmed`] when that revision's history is no longer complete.
    pub fn get(&self, key: &[u8], revision: i64) -> Result<Option<RowId>, Trimmed> {
        let inner = self.inner.read();
        if inner.trimmed > revision {
            return Err(Trimmed);
        }
        Ok(inner.keys.get(key).and_then(|entry| entry.at(revision)))
    }

    /// Rows of a range at `revision`: the first `limit` of them (0: all), and how many there are in
    /// all if `count_all`, else how many were looked at.
    ///
    /// # Errors
    /// [`Trimmed`] when that revision's history is, or while reading becomes, incomplete.
    pub fn range(
        &self,
        range: KeyRange<'_>,
        revision: i64,
        limit: usize,
        count_all: bool,
    ) -> Result<RangeRows, Trimmed> {
        let mut out = RangeRows::default();
        if let KeyRange::One(key) = range {
            out.rows.extend(self.get(key, revision)?);
            out.count = out.rows.len();
            return Ok(out);
        }
        let limit = if limit == 0 { usize::MAX } else { limit };
        self.walk(range, revision, |_, entry| {
            if out.rows.len() >= limit && !count_all {
                return false;
            }
            if let Some(row) = entry.at(revision) {
                out.count += 1;
                if out.rows.len() < limit {
                    out.rows.push(row);
                }
            }
            true
        })?;
        Ok(out)
    }

    /// How many keys a range holds at `revision`.
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn count(&self, range: KeyRange<'_>, revision: i64) -> Result<usize, Trimmed> {
        let mut count = 0;
        self.walk(range, revision, |_, entry| {
            count += usize::from(entry.at(revision).is_some());
            true
        })?;
        Ok(count)
    }

    /// How many keys of a range have any history, which is no fewer than it holds at any revision; at
    /// most `most`.
    pub fn named(&self, range: KeyRange<'_>, most: usize) -> usize {
        let Some(bounds) = range.bounds(None) else { return 0 };
        self.inner.read().keys.range::<[u8], _>(bounds).take(most).count()
    }

    /// Visits the living keys of a range in their newest (also staged) state, in order, until
    /// `visit` returns false. For the writer only: it sees its own staged changes.
    pub fn latest_in(&self, range: KeyRange<'_>, mut visit: impl FnMut(Found<'_>) -> bool) {
        let walked = self.walk(range, i64::MAX, |key, entry| {
            !entry.latest.alive() || visit(Found { key, latest: entry.latest })
        });
        debug_assert!(walked.is_ok(), "nothing is trimmed beyond the newest revision");
    }

    /// Visits a range chunk by chunk, so that the lock is never held for long.
    fn walk(
        &self,
        range: KeyRange<'_>,
        revision: i64,
        mut visit: impl FnMut(&[u8], &Entry) -> bool,
    ) -> Result<(), Trimmed> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let inner = self.inner.read();
            if inner.trimmed > revision {
                return Err(Trimmed);
            }
            let Some(bounds) = range.bounds(after.as_deref()) else { return Ok(()) };
            let mut visited = 0;
            let mut last = None;
            for (key, entry) in inner.keys.range::<[u8], _>(bounds) {
                if !visit(key, entry) {
                    return Ok(());
                }
                visited += 1;
                if visited == CHUNK {
                    last = Some(key.to_vec());
                    break;
                }
            }
            drop(inner);
            match last {
                Some(key) => after = Some(key),
                None => return Ok(()),
            }
        }
    }

    /// From now on no read below `bound` is complete; call it before the first [`Index::trim`] with
    /// that bound.
    pub fn begin_trim(&self, bound: i64) {
        let mut inner = self.inner.write();
        inner.trimmed = inner.trimmed.max(bound);
    }

    /// Trims keys behind `after` to `bound`, collecting the rows that go: at most [`CHUNK`] keys, and
    /// not many more than `rows` rows. Returns where to go on, or `None` at the end.
    pub fn trim(
        &self,
        bound: i64,
        after: Option<&[u8]>,
        rows: usize,
        dropped: &mut Vec<RowId>,
    ) -> Option<Box<[u8]>> {
        let mut inner = self.inner.write();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut gone: Vec<Box<[u8]>> = Vec::new();
        let mut cursor = None;
        let mut previous = after;
        let range = inner.keys.range_mut::<[u8], _>((start, Bound::Unbounded));
        for (visited, (key, entry)) in range.enumerate() {
            if visited == CHUNK || dropped.len() >= rows {
                cursor = Some(previous.unwrap_or_default().into());
                break;
            }
            match entry.trim(bound, rows - dropped.len(), dropped) {
                AfterTrim::Done => {}
                AfterTrim::Gone => gone.push(key.clone()),
                AfterTrim::More => {
                    cursor = Some(previous.unwrap_or_default().into());
                    break;
                }
            }
            previous = Some(key);
        }
        for key in gone {
            inner.keys.remove(&key);
        }
        cursor
    }

    /// Visits, for every key, the row that a read at `revision` finds (living keys only).
    ///
    /// # Errors
    /// As [`Index::range`].
    pub fn rows_at(&self, revision: i64, mut visit: impl FnMut(RowId)) -> Result<(), Trimmed> {
        self.walk(KeyRange::From(b""), revision, |_, entry| {
            if let Some(row) = entry.at(revision) {
                visit(row);
            }
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(main: i64, create: i64, version: i64) -> Latest {
        Latest { row: RowId { main, sub: 0 }, create, version, lease: 0 }
    }

    fn tombstone(main: i64) -> Latest {
        put(main, 0, 0)
    }

    fn example() -> Index {
        let index = Index::new();
        for latest in [put(2, 2, 1), put(5, 2, 2), tombstone(6), put(9, 9, 1)] {
            index.insert(b"k", latest);
        }
        index
    }

    fn seen(index: &Index) -> Vec<Option<i64>> {
        (1..=10).map(|at| index.get(b"k", at).ok().flatten().map(|row| row.main)).collect()
    }

    fn trimmed(bound: i64) -> (Vec<i64>, Vec<Option<i64>>) {
        let index = example();
        index.begin_trim(bound);
        let mut dropped = Vec::new();
        assert!(index.trim(bound, None, 100, &mut dropped).is_none());
        (dropped.iter().map(|row| row.main).collect(), seen(&index))
    }

    #[test]
    fn the_life_of_a_key() {
        let (two, five, nine) = (Some(2), Some(5), Some(9));
        let all = [None, two, two, two, five, None, None, None, nine, nine];
        assert_eq!(seen(&example()), all);
        assert_eq!(trimmed(5).0, [2]);
        assert_eq!(trimmed(5).1[4..], all[4..]);
        assert_eq!(trimmed(6).0, [2, 5], "a tombstone at the bound stays");
        assert_eq!(trimmed(7).0, [2, 5, 6]);
        assert_eq!(trimmed(7).1[6..], all[6..]);
        assert_eq!(trimmed(9).0, [2, 5, 6]);
    }

    #[test]
    fn a_tombstone_ends_the_key_when_passed() {
        let index = Index::new();
        index.insert(b"k", put(2, 2, 1));
        index.insert(b"k", tombstone(3));
        let mut dropped = Vec::new();
        index.trim(3, None, 100, &mut dropped);
        assert_eq!((dropped.len(), index.len()), (1, 1));
        index.trim(4, None, 100, &mut dropped);
        assert_eq!((dropped.len(), index.len()), (2, 0));
    }

    #[test]
    fn several_changes_in_one_revision() {
        let index = Index::new();
        index.insert(b"k", put(2, 2, 1));
        let row = |sub| RowId { main: 3, sub };
        index.insert(b"k", Latest { row: row(0), create: 0, version: 0, lease: 0 });
        index.insert(b"k", Latest { row: row(1), create: 3, version: 1, lease: 0 });
        assert_eq!(index.get(b"k", 3), Ok(Some(row(1))));
        let mut dropped = Vec::new();
        index.trim(3, None, 100, &mut dropped);
        assert_eq!(dropped, [RowId { main: 2, sub: 0 }, row(0)]);
        assert_eq!(index.get(b"k", 3), Ok(Some(row(1))), "the key survives its own compaction");
    }

    #[test]
    fn named_are_all_that_have_a_history_up_to_so_many() {
        let index = Index::new();
        for (main, key) in [(2, b"a"), (3, b"b"), (4, b"c")] {
            index.insert(key, put(main, main, 1));
        }
        index.insert(b"b", tombstone(5));
        let named = |range, most| index.named(range, most);
        assert_eq!(named(KeyRange::From(b"\0"), 10), 3);
        assert_eq!(named(KeyRange::From(b"\0"), 2), 2);
        assert_eq!(named(KeyRange::Between(b"b", b"c"), 10), 1);
        assert_eq!(named(KeyRange::Between(b"c", b"b"), 10), 0);
        assert_eq!(named(KeyRange::One(b"c"), 10), 1);
    }

    #[test]
    fn ranges_longer_than_a_chunk() {
        let index = Index::new();
        let keys = 3 * CHUNK + 7;
        for i in 0..keys {
            let key = format!("{i:06}");
            index.insert(key.as_bytes(), put(i as i64 + 2, i as i64 + 2, 1));
        }
        let all = KeyRange::From(b"\0");
        let found = index.range(all, i64::MAX - 1, 0, true).unwrap();
        assert_eq!((found.rows.len(), found.count), (keys, keys));
        let some = index.range(all, i64::MAX - 1, 5, true).unwrap();
        assert_eq!((some.rows.len(), some.count), (5, keys));
        assert_eq!(index.range(all, 11, 0, true).unwrap().count, 10);
        assert_eq!(index.count(KeyRange::Between(b"000100", b"002100"), i64::MAX - 1), Ok(2000));
        let mut cursor = None;
        let mut dropped = Vec::new();
        let mut steps = 0;
        loop {
            cursor = index.trim(1, cursor.as_deref(), CHUNK, &mut dropped);
            steps += 1;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((steps, dropped.len()), (4, 0));
        let hot = b"000001";
        for main in 0..20 {
            index.insert(hot, put(1_000_000 + main, 3, 2 + main));
        }
        dropped.clear();
        let cursor = index.trim(2_000_000, None, 15, &mut dropped);
        assert_eq!((cursor.as_deref(), dropped.len()), (Some(&b"000000"[..]), 15));
        index.trim(2_000_000, cursor.as_deref(), 15, &mut dropped);
        assert_eq!(dropped.len(), 15, "the step's bound counts what was dropped before");
        dropped.clear();
        index.trim(2_000_000, cursor.as_deref(), 15, &mut dropped);
        assert_eq!(dropped.len(), 5);
        index.begin_trim(20);
        assert_eq!(index.get(b"000000", 19), Err(Trimmed));
        assert_eq!(index.range(all, 19, 0, true), Err(Trimmed));
    }
}

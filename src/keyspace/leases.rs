//! The lease table with its shadow-key index: which keys hang on which lease.
//!
//! Written by the apply thread only. A change is visible here a moment before its commit; whatever
//! is read comes as [`Positioned`] with the position that must be durable before it is told.

use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A value read from state that may run ahead of the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positioned<T> {
    /// The value.
    pub value: T,
    /// The commit that must have succeeded before the value may leave the process.
    pub position: u64,
}

/// A living lease, without its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Lease id; never 0.
    pub id: i64,
    /// Granted seconds.
    pub ttl: i64,
    /// Session that keeps its time; 0 when the gateways keep it by logged renewals.
    pub session: u64,
    /// How many renewals have been logged.
    pub renewals: u64,
    /// Remaining seconds as last noted; 0 when never noted.
    pub remaining: i64,
    /// Was given a new session because nobody could have renewed it, and has not been renewed since.
    pub spared: bool,
    /// Name of the session's marker record; empty without one.
    pub marker: String,
}

/// What keeps a lease's time. Backends may give the id of a session that has ended to a new one, so that
/// the id alone does not tell which session is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The session's id; 0 when the gateways keep the time by logged renewals.
    pub session: u64,
    /// Name of the session's marker record; empty without one.
    pub marker: String,
}

impl Lease {
    /// What keeps its time.
    pub fn keeper(&self) -> Keeper {
        Keeper { session: self.session, marker: self.marker.clone() }
    }
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    keys: BTreeSet<Box<[u8]>>,
}

#[derive(Debug, Default)]
struct Inner {
    leases: BTreeMap<i64, Held>,
    // Sessions with their leases, without leases that have none. A lease whose session has ended may still be
    // there when the id is given out again.
    by_session: BTreeSet<(u64, i64)>,
    position: u64,
}

impl Inner {
    fn index_session(&mut self, session: u64, lease: i64) {
        if session != 0 {
            self.by_session.insert((session, lease));
        }
    }

    fn forget_session(&mut self, session: u64, lease: i64) {
        self.by_session.remove(&(session, lease));
    }
}

/// All living leases.
#[derive(Debug, Default)]
pub struct LeaseTable {
    inner: RwLock<Inner>,
}

impl LeaseTable {
    /// Number of leases.
    pub fn len(&self) -> usize {
        self.inner.read().leases.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A lease, if it lives.
    pub fn get(&self, id: i64) -> Positioned<Option<Lease>> {
        let inner = self.inner.read();
        let value = inner.leases.get(&id).map(|held| held.lease.clone());
        Positioned { value, position: inner.position }
    }

    /// The living leases that have a session of this id: one, unless the id was given out again.
    pub fn of_session(&self, session: u64) -> Positioned<Vec<Lease>> {
        let inner = self.inner.read();
        let ids = inner.by_session.range((session, i64::MIN)..=(session, i64::MAX));
        let leases = ids.filter_map(|(_, id)| inner.leases.get(id));
        let value = leases.map(|held| held.lease.clone()).collect();
        Positioned { value, position: inner.position }
    }

    /// A lease's session, if the lease lives: the part that a renewal needs.
    pub fn session(&self, id: i64) -> Positioned<Option<(u64, i64)>> {
        let inner = self.inner.read();
        let value = inner.leases.get(&id).map(|held| (held.lease.session, held.lease.ttl));
        Positioned { value, position: inner.position }
    }

    /// What keeps a lease's time, and its TTL in seconds.
    pub fn keeper(&self, id: i64) -> Positioned<Option<(Keeper, i64)>> {
        let inner = self.inner.read();
        let value = inner.leases.get(&id).map(|held| (held.lease.keeper(), held.lease.ttl));
        Positioned { value, position: inner.position }
    }

    /// Whether a renewal has to be logged because of what is noted about the lease: a remaining time,
    /// or that it was spared.
    pub fn has_notes(&self, id: i64) -> bool {
        let inner = self.inner.read();
        inner.leases.get(&id).is_some_and(|held| held.lease.remaining != 0 || held.lease.spared)
    }

    /// All leases, by id.
    pub fn all(&self) -> Positioned<Vec<Lease>> {
        let inner = self.inner.read();
        let value = inner.leases.values().map(|held| held.lease.clone()).collect();
        Positioned { value, position: inner.position }
    }

    /// Keys attached to a lease in order, at most `limit`, behind `after` when given; `None` when
    /// the lease does not live.
    pub fn keys(
        &self,
        id: i64,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Positioned<Option<Vec<Box<[u8]>>>> {
        let inner = self.inner.read();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let value = inner.leases.get(&id).map(|held| {
            held.keys.range::<[u8], _>((start, Bound::Unbounded)).take(limit).cloned().collect()
        });
        Positioned { value, position: inner.position }
    }

    /// Number of keys attached to a lease; 0 when it does not live.
    pub fn key_count(&self, id: i64) -> usize {
        self.inner.read().leases.get(&id).map_or(0, |held| held.keys.len())
    }

    /// Whether any of a lease's keys lies in one of `ranges`: from a key on, up to an end if given.
    pub fn any_key_in<'r>(
        &self,
        id: i64,
        ranges: impl Iterator<Item = (&'r [u8], Option<&'r [u8]>)>,
    ) -> bool {
        let inner = self.inner.read();
        let Some(held) = inner.leases.get(&id).filter(|held| !held.keys.is_empty()) else {
            return false;
        };
        let mut ranges = ranges.filter(|(start, end)| end.is_none_or(|end| *start < end));
        ranges.any(|(start, end)| {
            let end = end.map_or(Bound::Unbounded, Bound::Excluded);
            held.keys.range::<[u8], _>((Bound::Included(start), end)).next().is_some()
        })
    }

    /// Whether a lease lives, staged changes included. For the writer.
    pub(super) fn lives(&self, id: i64) -> bool {
        self.inner.read().leases.contains_key(&id)
    }

    pub(super) fn grant(&self, lease: Lease, position: u64) {
        let mut inner = self.inner.write();
        inner.position = position;
        inner.index_session(lease.session, lease.id);
        inner.leases.insert(lease.id, Held { lease, keys: BTreeSet::new() });
    }

    /// Ends a lease; returns it and its keys in order.
    pub(super) fn end(&self, id: i64, position: u64) -> Option<(Lease, BTreeSet<Box<[u8]>>)> {
        let mut inner = self.inner.write();
        let held = inner.leases.remove(&id)?;
        inner.forget_session(held.lease.session, id);
        inner.position = position;
        Some((held.lease, held.keys))
    }

    /// Changes a lease in place; returns it as it is afterwards.
    pub(super) fn change(
        &self,
        id: i64,
        position: u64,
        change: impl FnOnce(&mut Lease) -> bool,
    ) -> Option<Lease> {
        let mut inner = self.inner.write();
        let held = inner.leases.get_mut(&id)?;
        let before = held.lease.session;
        let changed = change(&mut held.lease).then(|| held.lease.clone());
        if let Some(lease) = &changed {
            inner.position = position;
            inner.forget_session(before, id);
            inner.index_session(lease.session, id);
        }
        changed
    }

    /// Moves a key from lease `from` to lease `to` (0: none).
    pub(super) fn move_key(&self, key: &[u8], from: i64, to: i64, position: u64) {
        if from == to {
            return;
        }
        let mut inner = self.inner.write();
        inner.position = position;
        if let Some(held) = inner.leases.get_mut(&from) {
            held.keys.remove(key);
        }
        if let Some(held) = inner.leases.get_mut(&to) {
            held.keys.insert(key.into());
        }
    }
}

//! Which watchers want a key.
//!
//! Watchers of the same key or range form a group. Groups of single keys are found by hash, groups
//! of ranges through an interval map.

use super::interval::IntervalMap;
use std::collections::HashMap;
use std::sync::Arc;

/// Where a watched range ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeEnd {
    /// The range is its start alone.
    Single,
    /// Before this key.
    Before(Arc<[u8]>),
    /// With the last key.
    Open,
}

/// The keys that a watcher wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub start: Arc<[u8]>,
    /// Where it ends.
    pub end: RangeEnd,
}

impl KeyRange {
    /// From the two fields of a request. An empty key stands for the lowest one; an empty end for
    /// the key alone; an end of one zero byte for everything from the key on.
    ///
    /// The bytes are copied: those of a request share the buffer of the whole connection.
    pub fn from_request(key: &[u8], range_end: &[u8]) -> Self {
        let start = if key.is_empty() { &[0][..] } else { key };
        let end = match range_end {
            [] => RangeEnd::Single,
            [0] => RangeEnd::Open,
            end => RangeEnd::Before(Arc::from(end)),
        };
        Self { start: Arc::from(start), end }
    }

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        matches!(&self.end, RangeEnd::Before(end) if self.start >= *end)
    }

    /// Whether `key` is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            RangeEnd::Single => self.start.as_ref() == key,
            RangeEnd::Before(end) => self.start.as_ref() <= key && key < end.as_ref(),
            RangeEnd::Open => self.start.as_ref() <= key,
        }
    }
}

/// Members of a group. Most groups have one, which needs no allocation.
#[derive(Debug)]
enum Members {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Debug)]
struct Group {
    range: KeyRange,
    members: Members,
}

/// Number of a group in an [`Index`]. Used again once the group has lost its last member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u32);

/// A member's place: kept by the member, needed to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The group.
    pub group: GroupId,
    /// Position in the group.
    pub position: u32,
}

/// Groups of watchers by what they watch. Members are numbers that mean something to the owner.
#[derive(Debug, Default)]
pub struct Index {
    groups: Vec<Option<Group>>,
    free: Vec<u32>,
    singles: HashMap<Arc<[u8]>, u32>,
    ranges: IntervalMap,
}

impl Index {
    /// Adds a member. The range must not be empty.
    pub fn insert(&mut self, range: &KeyRange, member: u32) -> Place {
        let known = match &range.end {
            RangeEnd::Single => self.singles.get(&range.start).copied(),
            RangeEnd::Before(end) => self.ranges.get(&range.start, Some(end)),
            RangeEnd::Open => self.ranges.get(&range.start, None),
        };
        if let Some(slot) = known
            && let Some(Some(group)) = self.groups.get_mut(slot as usize)
        {
            let position = group.members.push(member);
            return Place { group: GroupId(slot), position };
        }
        let group = Group { range: range.clone(), members: Members::One(member) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.groups[slot as usize] = Some(group);
                slot
            }
            None => {
                self.groups.push(Some(group));
                (self.groups.len() - 1) as u32
            }
        };
        match &range.end {
            RangeEnd::Single => {
                self.singles.insert(range.start.clone(), slot);
            }
            RangeEnd::Before(end) => {
                self.ranges.insert(range.start.clone(), Some(end.clone()), slot);
            }
            RangeEnd::Open => self.ranges.insert(range.start.clone(), None, slot),
        }
        Place { group: GroupId(slot), position: 0 }
    }

    /// Removes the member at `place`. Returns the member that has moved to this place, if any.
    pub fn remove(&mut self, place: Place) -> Option<u32> {
        let slot = place.group.0;
        let group = self.groups.get_mut(slot as usize)?.as_mut()?;
        match group.members.remove(place.position) {
            Removed::Last => {
                let range = self.groups[slot as usize].take().map(|group| group.range)?;
                self.free.push(slot);
                match &range.end {
                    RangeEnd::Single => {
                        self.singles.remove(&range.start);
                    }
                    RangeEnd::Before(end) => self.ranges.remove(&range.start, Some(end)),
                    RangeEnd::Open => self.ranges.remove(&range.start, None),
                }
                None
            }
            Removed::Moved(moved) => Some(moved),
            Removed::Nothing => None,
        }
    }

    /// Appends the groups that hold `key`, each once.
    pub fn find(&self, key: &[u8], found: &mut Vec<u32>) {
        if let Some(slot) = self.singles.get(key) {
            found.push(*slot);
        }
        self.ranges.stab(key, found);
    }

    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.groups.len()
    }

    /// The members of a group that [`Self::find`] has found.
    pub fn members(&self, slot: u32) -> &[u32] {
        match self.groups.get(slot as usize) {
            Some(Some(group)) => group.members.as_slice(),
            _ => &[],
        }
    }

    /// What a group watches.
    pub fn range(&self, group: GroupId) -> Option<&KeyRange> {
        self.groups.get(group.0 as usize)?.as_ref().map(|group| &group.range)
    }
}

enum Removed {
    Last,
    Moved(u32),
    Nothing,
}

impl Members {
    fn as_slice(&self) -> &[u32] {
        match self {
            Members::One(member) => std::slice::from_ref(member),
            Members::Many(members) => members,
        }
    }

    /// Returns the position.
    fn push(&mut self, member: u32) -> u32 {
        match self {
            Members::One(first) => {
                *self = Members::Many(vec![*first, member]);
                1
            }
            Members::Many(members) => {
                members.push(member);
                (members.len() - 1) as u32
            }
        }
    }

    fn remove(&mut self, position: u32) -> Removed {
        match self {
            Members::One(_) => Removed::Last,
            Members::Many(members) => {
                let position = position as usize;
                if position >= members.len() {
                    return Removed::Nothing;
                }
                members.swap_remove(position);
                if members.is_empty() {
                    return Removed::Last;
                }
                if members.capacity() > 4 * members.len() {
                    members.shrink_to(2 * members.len());
                }
                members.get(position).map_or(Removed::Nothing, |moved| Removed::Moved(*moved))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_fields_become_ranges() {
        let range = KeyRange::from_request;
        assert!(range(b"a", b"").contains(b"a"));
        assert!(!range(b"a", b"").contains(b"a\0"));
        assert!(range(b"", b"").contains(b"\0"));
        assert!(range(b"", b"\0").contains(b"\xff\xff"));
        assert!(range(b"b", b"\0").contains(b"c"));
        assert!(!range(b"b", b"\0").contains(b"a"));
        assert!(range(b"a", b"c").contains(b"b") && !range(b"a", b"c").contains(b"c"));
        assert!(range(b"a", b"a").is_empty() && range(b"b", b"a").is_empty());
        assert!(!range(b"a", b"\0").is_empty() && !range(b"a", b"").is_empty());
    }

    #[test]
    fn members_move_and_groups_go() {
        let mut index = Index::default();
        let range = KeyRange::from_request(b"a", b"b");
        let places: Vec<Place> = (0..3).map(|member| index.insert(&range, member)).collect();
        let mut found = Vec::new();
        index.find(b"a1", &mut found);
        assert_eq!(found.len(), 1);
        assert_eq!(index.members(found[0]), [0, 1, 2]);
        assert_eq!(index.remove(places[0]), Some(2));
        assert_eq!(index.remove(places[1]), None);
        assert_eq!(index.members(found[0]), [2]);
        assert_eq!(index.remove(places[0]), None);
        assert!(index.is_empty());
        found.clear();
        index.find(b"a1", &mut found);
        assert!(found.is_empty());
    }
}

//! Which of many key ranges hold a key.
//!
//! A treap ordered by (start, end), in which every node knows the node with the greatest end below
//! it. A subtree whose greatest end is not above the key is skipped, so that a lookup costs
//! O(log n) and a little for each match, whatever ranges clients choose. Priorities come from a
//! generator with a random seed: clients cannot choose ranges that unbalance it.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// "No node".
const NIL: u32 = u32::MAX;

/// End of a range, exclusive; `None` is above every key.
pub type End = Option<Arc<[u8]>>;

#[derive(Debug)]
struct Node {
    start: Arc<[u8]>,
    end: End,
    value: u32,
    priority: u32,
    left: u32,
    right: u32,
    /// The node of this subtree whose end is greatest.
    greatest: u32,
}

/// A map from distinct ranges to numbers.
#[derive(Debug)]
pub struct IntervalMap {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: u32,
    random: u64,
}

fn compare_ends(a: Option<&[u8]>, b: Option<&[u8]>) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.cmp(b),
    }
}

impl Default for IntervalMap {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NIL,
            // Zero is the one state that xorshift cannot leave.
            random: RandomState::new().hash_one(0u8) | 1,
        }
    }
}

impl IntervalMap {
    /// The value of exactly this range.
    pub fn get(&self, start: &[u8], end: Option<&[u8]>) -> Option<u32> {
        let mut at = self.root;
        while at != NIL {
            let node = self.node(at);
            at = match self.compare(start, end, at) {
                Ordering::Equal => return Some(node.value),
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
            };
        }
        None
    }

    /// Adds a range that is not in the map yet.
    pub fn insert(&mut self, start: Arc<[u8]>, end: End, value: u32) {
        debug_assert!(self.get(&start, end.as_deref()).is_none());
        let priority = self.next_random();
        let node = Node { start, end, value, priority, left: NIL, right: NIL, greatest: NIL };
        let new = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.update(new);
        self.root = self.insert_below(self.root, new);
    }

    /// Removes a range, if it is there.
    pub fn remove(&mut self, start: &[u8], end: Option<&[u8]>) {
        let (root, removed) = self.remove_below(self.root, start, end);
        self.root = root;
        if removed == NIL {
            return;
        }
        let node = self.node_mut(removed);
        // The slot stays; what it holds of the client's bytes does not.
        node.start = Arc::from(&[][..]);
        node.end = None;
        self.free.push(removed);
        if self.root == NIL {
            self.nodes = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Appends the values of all ranges that hold `key`.
    pub fn stab(&self, key: &[u8], found: &mut Vec<u32>) {
        self.stab_below(self.root, key, found);
    }

    fn stab_below(&self, mut at: u32, key: &[u8], found: &mut Vec<u32>) {
        while at != NIL {
            let node = self.node(at);
            if !self.ends_above(node.greatest, key) {
                return;
            }
            self.stab_below(node.left, key, found);
            if node.start.as_ref() > key {
                return;
            }
            if self.ends_above(at, key) {
                found.push(node.value);
            }
            at = node.right;
        }
    }

    fn ends_above(&self, at: u32, key: &[u8]) -> bool {
        self.node(at).end.as_deref().is_none_or(|end| end > key)
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    /// How a range compares to the one at a node.
    fn compare(&self, start: &[u8], end: Option<&[u8]>, at: u32) -> Ordering {
        let node = self.node(at);
        start.cmp(&node.start).then_with(|| compare_ends(end, node.end.as_deref()))
    }

    fn compare_nodes(&self, a: u32, b: u32) -> Ordering {
        let node = self.node(a);
        self.compare(&node.start, node.end.as_deref(), b)
    }

    /// Computes `greatest` anew from the children.
    fn update(&mut self, at: u32) {
        let mut greatest = at;
        for child in [self.node(at).left, self.node(at).right] {
            if child != NIL {
                let candidate = self.node(child).greatest;
                let (a, b) =
                    (self.node(candidate).end.as_deref(), self.node(greatest).end.as_deref());
                if compare_ends(a, b) == Ordering::Greater {
                    greatest = candidate;
                }
            }
        }
        self.node_mut(at).greatest = greatest;
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NIL {
            return new;
        }
        if self.node(new).priority > self.node(at).priority {
            let (left, right) = self.split(at, new);
            let node = self.node_mut(new);
            (node.left, node.right) = (left, right);
            self.update(new);
            return new;
        }
        if self.compare_nodes(new, at) == Ordering::Less {
            let left = self.insert_below(self.node(at).left, new);
            self.node_mut(at).left = left;
        } else {
            let right = self.insert_below(self.node(at).right, new);
            self.node_mut(at).right = right;
        }
        self.update(at);
        at
    }

    /// Splits a subtree into what lies below and what lies above `pivot`.
    fn split(&mut self, at: u32, pivot: u32) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        if self.compare_nodes(at, pivot) == Ordering::Less {
            let (low, high) = self.split(self.node(at).right, pivot);
            self.node_mut(at).right = low;
            self.update(at);
            (at, high)
        } else {
            let (low, high) = self.split(self.node(at).left, pivot);
            self.node_mut(at).left = high;
            self.update(at);
            (low, at)
        }
    }

    /// Joins two subtrees, all of `left` below all of `right`.
    fn join(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL {
            return right;
        }
        if right == NIL {
            return left;
        }
        if self.node(left).priority > self.node(right).priority {
            let joined = self.join(self.node(left).right, right);
            self.node_mut(left).right = joined;
            self.update(left);
            left
        } else {
            let joined = self.join(left, self.node(right).left);
            self.node_mut(right).left = joined;
            self.update(right);
            right
        }
    }

    /// Returns the subtree without the range, and the node taken out.
    fn remove_below(&mut self, at: u32, start: &[u8], end: Option<&[u8]>) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        let (left, right) = (self.node(at).left, self.node(at).right);
        let removed = match self.compare(start, end, at) {
            Ordering::Equal => return (self.join(left, right), at),
            Ordering::Less => {
                let (left, removed) = self.remove_below(left, start, end);
                self.node_mut(at).left = left;
                removed
            }
            Ordering::Greater => {
                let (right, removed) = self.remove_below(right, start, end);
                self.node_mut(at).right = right;
                removed
            }
        };
        self.update(at);
        (at, removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn bytes(text: &[u8]) -> Arc<[u8]> {
        Arc::from(text)
    }

    fn range() -> impl Strategy<Value = (Vec<u8>, Option<Vec<u8>>)> {
        let key = || prop::collection::vec(0u8..4, 0..4);
        (key(), prop::option::weighted(0.8, key()))
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_finds(
            steps in prop::collection::vec((range(), any::<bool>()), 1..120),
            probes in prop::collection::vec(prop::collection::vec(0u8..4, 0..5), 1..40),
        ) {
            let mut map = IntervalMap::default();
            let mut model = BTreeMap::new();
            for (number, ((start, end), add)) in steps.into_iter().enumerate() {
                let known = model.get(&(start.clone(), end.clone())).copied();
                prop_assert_eq!(map.get(&start, end.as_deref()), known);
                if add && known.is_none() {
                    map.insert(bytes(&start), end.as_deref().map(bytes), number as u32);
                    model.insert((start, end), number as u32);
                } else if !add {
                    map.remove(&start, end.as_deref());
                    model.remove(&(start, end));
                }
            }
            for probe in probes {
                let mut found = Vec::new();
                map.stab(&probe, &mut found);
                found.sort_unstable();
                let mut expected: Vec<u32> = model
                    .iter()
                    .filter(|((s, e), _)| *s <= probe && e.as_ref().is_none_or(|e| *e > probe))
                    .map(|(_, value)| *value)
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn sorted_insertion_stays_shallow_and_empties() {
        let mut map = IntervalMap::default();
        let key = |n: u32| n.to_be_bytes();
        for n in 0..20_000u32 {
            map.insert(bytes(&key(n)), Some(bytes(&key(n + 1))), n);
        }
        fn depth(map: &IntervalMap, at: u32) -> usize {
            if at == NIL {
                return 0;
            }
            1 + depth(map, map.node(at).left).max(depth(map, map.node(at).right))
        }
        assert!(depth(&map, map.root) < 100, "{}", depth(&map, map.root));
        let mut found = Vec::new();
        map.stab(&key(777), &mut found);
        assert_eq!(found, [777]);
        for n in 0..20_000u32 {
            map.remove(&key(n), Some(&key(n + 1)));
        }
        assert_eq!(map.root, NIL);
        assert!(map.nodes.is_empty());
    }
}

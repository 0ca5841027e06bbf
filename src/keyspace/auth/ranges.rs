//! Sets of keys as permissions grant them.

use crate::keyspace::range::KeyRange;
use bytes::Bytes;
use leaseway_proto::authpb::Permission;

/// A union of key ranges: sorted, and merged where they overlap or touch, so that a request is
/// covered by the union exactly if it is covered by one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRanges(Vec<Interval>);

/// `start <= key < end`; no end is none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    start: Bytes,
    end: Option<Bytes>,
}

impl Interval {
    fn granted(permission: &Permission) -> Self {
        let start = permission.key.clone();
        let end = match &permission.range_end[..] {
            // One key: everything from it to the smallest key behind it.
            [] => Some([&start[..], &[0]].concat().into()),
            [0] => None,
            _ => Some(permission.range_end.clone()),
        };
        Self { start, end }
    }

    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// Whether an end lies at or behind another one.
fn reaches(end: Option<&Bytes>, other: Option<&[u8]>) -> bool {
    match (end, other) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(end), Some(other)) => &end[..] >= other,
    }
}

impl KeyRanges {
    /// The union of what some permissions grant.
    pub fn union<'p>(granted: impl Iterator<Item = &'p Permission>) -> Self {
        let mut intervals: Vec<Interval> =
            granted.map(Interval::granted).filter(|interval| !interval.is_empty()).collect();
        intervals.sort_by(|a, b| a.start.cmp(&b.start));
        let mut merged: Vec<Interval> = Vec::with_capacity(intervals.len());
        for next in intervals {
            match merged.last_mut() {
                Some(last) if reaches(last.end.as_ref(), Some(&next.start)) => {
                    if !reaches(last.end.as_ref(), next.end.as_deref()) {
                        last.end = next.end;
                    }
                }
                _ => merged.push(next),
            }
        }
        Self(merged)
    }

    /// Whether every key of `range` lies in the union. A range that holds no key is taken for its
    /// start, as in etcd.
    pub fn cover(&self, range: KeyRange<'_>) -> bool {
        let key = range.start();
        let after = self.0.partition_point(|interval| &interval.start[..] <= key);
        let Some(candidate) = after.checked_sub(1).and_then(|at| self.0.get(at)) else {
            return false;
        };
        let end = candidate.end.as_ref();
        let holds_start = end.is_none_or(|end| key < &end[..]);
        holds_start
            && match range {
                KeyRange::One(_) => true,
                KeyRange::From(_) => end.is_none(),
                KeyRange::Between(_, wanted) => reaches(end, Some(wanted)),
            }
    }

    /// What lies outside of the union, in order: from a key on, up to an end if there is one.
    pub fn gaps(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let starts = std::iter::once(Some(&[][..])).chain(self.0.iter().map(|i| i.end.as_deref()));
        let ends = self.0.iter().map(|i| Some(&i.start[..])).chain(std::iter::once(None));
        starts.zip(ends).filter_map(|(start, end)| Some((start?, end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permission(key: &[u8], end: &[u8]) -> Permission {
        Permission {
            perm_type: 0,
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::copy_from_slice(end),
        }
    }

    fn ranges(granted: &[(&[u8], &[u8])]) -> KeyRanges {
        let granted: Vec<Permission> = granted.iter().map(|(k, e)| permission(k, e)).collect();
        KeyRanges::union(granted.iter())
    }

    #[test]
    fn unions_are_merged() {
        let both = ranges(&[(b"c", b"e"), (b"a", b"c")]);
        assert!(both.cover(KeyRange::Between(b"a", b"e")));
        assert!(both.cover(KeyRange::One(b"d\xff")));
        assert!(!both.cover(KeyRange::One(b"e")));
        assert!(!both.cover(KeyRange::Between(b"a", b"e\0")));
        let apart = ranges(&[(b"a", b"b"), (b"c", b"e")]);
        assert!(!apart.cover(KeyRange::Between(b"a", b"e")));
        // A key and what begins right behind it touch.
        let touching = ranges(&[(b"a", b""), (b"a\0", b"b")]);
        assert!(touching.cover(KeyRange::Between(b"a", b"b")));
    }

    #[test]
    fn one_key_is_not_the_rest() {
        let one = ranges(&[(b"k", b"")]);
        assert!(one.cover(KeyRange::One(b"k")));
        assert!(!one.cover(KeyRange::From(b"k")));
        assert!(!one.cover(KeyRange::One(b"k\0")));
        assert!(one.cover(KeyRange::Between(b"k", b"k\0")));
        assert!(!one.cover(KeyRange::Between(b"k", b"k\0\0")));
        let all = ranges(&[(b"\0", b"\0")]);
        assert!(all.cover(KeyRange::From(b"\0")));
        assert!(all.cover(KeyRange::Between(b"a", b"b")));
        let some = ranges(&[(b"m", b"\0")]);
        assert!(some.cover(KeyRange::From(b"m")));
        assert!(!some.cover(KeyRange::From(b"l")));
    }

    #[test]
    fn ranges_without_keys_are_their_start() {
        let some = ranges(&[(b"b", b"d")]);
        assert!(some.cover(KeyRange::Between(b"c", b"a")));
        assert!(!some.cover(KeyRange::Between(b"e", b"a")));
        assert!(!ranges(&[(b"d", b"b")]).cover(KeyRange::One(b"c")));
        assert!(!ranges(&[]).cover(KeyRange::One(b"c")));
    }

    #[test]
    fn gaps_are_the_rest() {
        let some = ranges(&[(b"b", b"d"), (b"f", b"\0")]);
        let gaps: Vec<_> = some.gaps().collect();
        assert_eq!(gaps, [(&b""[..], Some(&b"b"[..])), (&b"d"[..], Some(&b"f"[..]))]);
        let none: Vec<_> = ranges(&[]).0;
        assert!(none.is_empty());
        assert_eq!(ranges(&[]).gaps().collect::<Vec<_>>(), [(&b""[..], None)]);
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0_u8..3, 1..3)
    }

    fn end() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0_u8..3, 0..3)
    }

    proptest! {
        /// Against the definition: every key of a small universe, one by one.
        #[test]
        fn covers_what_the_parts_cover(
            granted in prop::collection::vec((key(), end()), 0..5),
            asked in (key(), end()),
        ) {
            let granted: Vec<Permission> = granted.iter().map(|(k, e)| permission(k, e)).collect();
            let union = KeyRanges::union(granted.iter());
            let asked = KeyRange::new(&asked.0, &asked.1);
            let mut universe: Vec<Vec<u8>> = vec![];
            for a in 0..4_u8 {
                universe.push(vec![a]);
                for b in 0..4_u8 {
                    universe.push(vec![a, b]);
                    universe.extend((0..4_u8).map(|c| vec![a, b, c]));
                }
            }
            let allowed = |key: &[u8]| {
                granted.iter().any(|p| KeyRange::new(&p.key, &p.range_end).contains(key))
            };
            let inside: Vec<_> = universe.iter().filter(|key| asked.contains(key)).collect();
            if inside.is_empty() {
                prop_assert_eq!(union.cover(asked), allowed(asked.start()));
            } else {
                // The universe is finite: from some key on it can't tell an end from none.
                let whole = inside.iter().all(|key| allowed(key));
                prop_assert!(whole || !union.cover(asked));
                let bounded = !matches!(asked, KeyRange::From(_));
                let exact = |end: &[u8]| end.len() <= 3 && end.iter().all(|byte| *byte < 3);
                if let (true, KeyRange::Between(_, end)) = (bounded, asked) && exact(end) && whole {
                    prop_assert!(union.cover(asked), "{asked:?} {granted:?}");
                }
            }
            for key in &universe {
                let gap = union.gaps().any(|(start, end)| {
                    &key[..] >= start && end.is_none_or(|end| &key[..] < end)
                });
                prop_assert_eq!(gap, !allowed(key));
            }
        }
    }
}

//! Key ranges as etcd's requests spell them.

use std::ops::Bound;

/// Bounds for a lookup in an ordered map of byte keys.
pub type KeyBounds<'b> = (Bound<&'b [u8]>, Bound<&'b [u8]>);

/// A set of keys: one key, everything from a key on, or a half-open interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRange<'a> {
    /// Just this key.
    One(&'a [u8]),
    /// This key and every greater one.
    From(&'a [u8]),
    /// `start <= key < end`; empty when `end <= start`.
    Between(&'a [u8], &'a [u8]),
}

impl<'a> KeyRange<'a> {
    /// From a request's `key` and `range_end`: an empty end means one key, a single zero byte
    /// everything from `key` on.
    pub fn new(key: &'a [u8], range_end: &'a [u8]) -> Self {
        match range_end {
            [] => Self::One(key),
            [0] => Self::From(key),
            end => Self::Between(key, end),
        }
    }

    /// The smallest key that may be in the range.
    pub fn start(&self) -> &'a [u8] {
        match self {
            Self::One(key) | Self::From(key) | Self::Between(key, _) => key,
        }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => key == *one,
            Self::From(start) => key >= *start,
            Self::Between(start, end) => key >= *start && key < *end,
        }
    }

    /// Bounds for an ordered map, starting behind `after` when given; `None` for the empty range.
    pub fn bounds<'b>(&self, after: Option<&'b [u8]>) -> Option<KeyBounds<'b>>
    where
        'a: 'b,
    {
        let start = after.map_or(Bound::Included(self.start()), Bound::Excluded);
        let end = match *self {
            Self::One(key) => Bound::Included(key),
            Self::From(_) => Bound::Unbounded,
            Self::Between(_, end) => Bound::Excluded(end),
        };
        let empty = match (start, end) {
            (Bound::Included(start), Bound::Excluded(end)) => end <= start,
            (Bound::Excluded(start), Bound::Excluded(end) | Bound::Included(end)) => end <= start,
            _ => false,
        };
        (!empty).then_some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling() {
        assert_eq!(KeyRange::new(b"a", b""), KeyRange::One(b"a"));
        assert_eq!(KeyRange::new(b"a", b"\0"), KeyRange::From(b"a"));
        assert_eq!(KeyRange::new(b"a", b"c"), KeyRange::Between(b"a", b"c"));
        assert!(KeyRange::new(b"b", b"a").bounds(None).is_none());
        assert!(KeyRange::new(b"a", b"a").bounds(None).is_none());
        assert!(KeyRange::new(b"a", b"").bounds(Some(b"a")).is_none());
        assert!(KeyRange::new(b"a", b"b").bounds(Some(b"a")).is_some());
        assert!(!KeyRange::new(b"b", b"a").contains(b"a"));
        assert!(KeyRange::new(b"a", b"\0").contains(b"\xff"));
    }
}

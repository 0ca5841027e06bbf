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

/// The end of the range of all keys that begin with `prefix`, as requests spell it: the first key that
/// does not, or a single zero byte if every greater key does.
pub fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte != 0xff).map_or(0, |at| at + 1);
    let mut end = prefix[..kept].to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0),
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_byte_can_still_rise() {
        for (prefix, end) in
            [(&b"a/"[..], &b"a0"[..]), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")]
        {
            assert_eq!(end_of_prefix(prefix), end, "{prefix:?}");
        }
    }

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

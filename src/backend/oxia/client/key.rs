//! Keys: what may be written, sequence keys, and ranges that can't leave their directory.

use super::error::{Error, Kind};

/// What the server's own records begin with.
pub(super) const INTERNAL: &str = "__oxia";

/// Sorts after every other character that a key's last part can begin with.
const LAST: char = '\u{10FFFF}';

/// Digits of a sequence number within a key.
const DIGITS: usize = 20;

fn invalid(why: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, why)
}

/// The key of the record with this number: `prefix-00000000000000000042`.
pub fn sequence_key(prefix: &str, number: u64) -> String {
    format!("{prefix}-{number:020}")
}

/// The number in a key of [`sequence_key`]; `None` when it's no key of this sequence.
pub fn sequence_number(prefix: &str, key: &str) -> Option<u64> {
    let digits = key.strip_prefix(prefix)?.strip_prefix('-')?;
    let whole = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    whole.then(|| digits.parse().ok())?
}

/// Whether a key could be taken for a record of some sequence.
fn looks_like_a_sequence_key(key: &str) -> bool {
    key.rsplit_once('-').is_some_and(|(_, digits)| {
        digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Whether a key may be written or deleted by this client.
pub(super) fn check_own(key: &str) -> Result<(), Error> {
    if key.is_empty() {
        return Err(invalid("oxia: an empty key"));
    }
    // The server keeps sessions and notifications there and trusts what it finds.
    if key.starts_with(INTERNAL) {
        return Err(invalid(format!("oxia: {key:?} belongs to the server")));
    }
    Ok(())
}

/// Whether a key may be put other than by an append. The server continues a sequence from the
/// highest key that it finds: a plain put of number 5,000 would make the next append 5,001.
pub(super) fn check_put(key: &str) -> Result<(), Error> {
    check_own(key)?;
    if looks_like_a_sequence_key(key) {
        return Err(invalid(format!("oxia: {key:?} looks like a record of a sequence")));
    }
    Ok(())
}

/// Whether a sequence may live under a prefix. The server takes whatever lies between the prefix
/// and the highest possible number for the sequence's newest record, so the prefix must leave no
/// doubt about where it ends.
pub(super) fn check_sequence_prefix(prefix: &str) -> Result<(), Error> {
    check_own(prefix)?;
    if prefix.ends_with('-') || prefix.ends_with('/') || looks_like_a_sequence_key(prefix) {
        return Err(invalid(format!("oxia: {prefix:?} can't be the prefix of a sequence")));
    }
    Ok(())
}

/// Keys from a start (inclusive) to an end (exclusive), all in one directory: they are alike up to
/// their last `/`, and have no `/` after it.
///
/// Oxia's order is hierarchical, in newer versions it can be set, and in some of them keys with
/// fewer `/` come first wherever they belong. A range between two keys of one directory means the
/// same in all of them. A range from one directory to another may hold anything, `__oxia/` and with
/// it every session included: deleting such a range leaves a shard that can't start any more. That
/// is why there is no way to build one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    start: String,
    end: String,
}

impl KeyRange {
    /// All keys directly below `directory`, written without a `/` at its end.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for an empty directory, or one that ends in `/`.
    pub fn children_of(directory: &str) -> Result<KeyRange, Error> {
        KeyRange::within(directory, "", &LAST.to_string())
    }

    /// The keys directly below `directory` whose last part lies between `from` and `to` (exclusive).
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a directory as above, for parts with a `/`, and if nothing lies between.
    pub fn within(directory: &str, from: &str, to: &str) -> Result<KeyRange, Error> {
        if directory.is_empty() || directory.ends_with('/') {
            return Err(invalid(format!("oxia: {directory:?} is no directory")));
        }
        if from.contains('/') || to.contains('/') || from >= to {
            return Err(invalid(format!("oxia: no range from {from:?} to {to:?}")));
        }
        Ok(KeyRange { start: format!("{directory}/{from}"), end: format!("{directory}/{to}") })
    }

    /// The records of a sequence from one number to another (exclusive).
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a prefix without a directory, and for an empty range.
    pub fn of_sequence(prefix: &str, from: u64, to: u64) -> Result<KeyRange, Error> {
        check_sequence_prefix(prefix)?;
        let Some((directory, name)) = prefix.rsplit_once('/') else {
            return Err(invalid(format!("oxia: the sequence {prefix:?} is in no directory")));
        };
        KeyRange::within(directory, &sequence_key(name, from), &sequence_key(name, to))
    }

    /// The first key that belongs to it, if there is such a record.
    pub fn start(&self) -> &str {
        &self.start
    }

    /// The first key that doesn't belong to it any more.
    pub fn end(&self) -> &str {
        &self.end
    }

    /// Whether it may be deleted: not what belongs to the server.
    pub(super) fn check_own(&self) -> Result<(), Error> {
        check_own(&self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_keys() {
        let key = sequence_key("ks/log", 42);
        assert_eq!(key, "ks/log-00000000000000000042");
        assert_eq!(sequence_number("ks/log", &key), Some(42));
        assert_eq!(sequence_number("ks/log", &sequence_key("ks/log", u64::MAX)), Some(u64::MAX));
        for other in ["ks/log", "ks/log-", "ks/log-42", "ks/lo-00000000000000000042"] {
            assert_eq!(sequence_number("ks/log", other), None, "{other}");
        }
        assert_eq!(sequence_number("ks/log", "ks/log-99999999999999999999"), None, "above 64 bits");
        assert_eq!(sequence_number("ks/log", "ks/log-+0000000000000000042"), None, "a sign");
    }

    #[test]
    fn refuses_keys_that_harm() {
        for key in ["", "__oxia/session/0", "__oxia", "ks/log-00000000000000000042"] {
            assert_eq!(check_put(key).map_err(|error| error.kind), Err(Kind::Invalid), "{key}");
        }
        for key in ["ks/log-42", "ks/x", "_oxia/x"] {
            assert_eq!(check_put(key), Ok(()), "{key}");
        }
        for prefix in ["", "ks/", "ks/log-", "__oxia/x", "ks/log-00000000000000000042"] {
            assert!(check_sequence_prefix(prefix).is_err(), "{prefix}");
        }
    }

    #[test]
    fn ranges_stay_in_their_directory() {
        let all = KeyRange::children_of("ks/marker").expect("a range");
        assert_eq!((all.start(), all.end()), ("ks/marker/", "ks/marker/\u{10FFFF}"));
        let some = KeyRange::of_sequence("ks/log", 1, 10).expect("a range");
        assert_eq!(some.start(), "ks/log-00000000000000000001");
        assert_eq!(some.end(), "ks/log-00000000000000000010");
        assert!(KeyRange::children_of("").is_err());
        assert!(KeyRange::children_of("ks/").is_err());
        assert!(KeyRange::within("ks", "b", "a").is_err(), "nothing in between");
        assert!(KeyRange::within("ks", "a", "b/c").is_err(), "another directory");
        assert!(KeyRange::of_sequence("log", 1, 10).is_err(), "no directory");
        assert!(KeyRange::of_sequence("ks/log", 10, 10).is_err(), "empty");
        let internal = KeyRange::children_of("__oxia/session").expect("may be read");
        assert!(internal.check_own().is_err(), "but not deleted");
    }
}

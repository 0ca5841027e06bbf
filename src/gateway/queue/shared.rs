//! Keys that several calls wait with: all calls of one lease for one lock have the same.
//!
//! A call that goes away takes its key along, but not from under another that waits with it or has got
//! what it waited for. What is known is what happens in this process.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A key, and when it was created.
type Created = (Bytes, i64);

/// Keys that calls of this process wait with.
#[derive(Clone, Debug, Default)]
pub struct SharedKeys(Arc<Mutex<HashMap<Created, Users>>>);

/// Who waits with a key.
#[derive(Debug, Default)]
struct Users {
    calls: usize,
    /// One has got what it waited for, and its client has the key now.
    kept: bool,
}

/// One call that waits with a key. Has to be ended by [`Share::end`].
#[derive(Debug)]
pub struct Share {
    keys: SharedKeys,
    created: Created,
}

impl SharedKeys {
    /// One more call waits with a key that was created then.
    pub fn share(&self, key: Bytes, create_revision: i64) -> Share {
        let created = (key, create_revision);
        self.0.lock().entry(created.clone()).or_default().calls += 1;
        Share { keys: self.clone(), created }
    }
}

impl Share {
    /// The key and its creation.
    pub fn created(&self) -> (Bytes, i64) {
        self.created.clone()
    }

    /// The call waits no more; `kept` if its client has the key now. Returns whether nobody has use for
    /// the key any more.
    pub fn end(&self, kept: bool) -> bool {
        let mut keys = self.keys.0.lock();
        let Some(users) = keys.get_mut(&self.created) else { return false };
        users.kept |= kept;
        users.calls -= 1;
        let (last, kept) = (users.calls == 0, users.kept);
        if last {
            keys.remove(&self.created);
        }
        last && !kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(keys: &SharedKeys) -> [Share; 3] {
        [2, 2, 9].map(|created| keys.share(Bytes::from_static(b"l/7"), created))
    }

    #[test]
    fn the_last_one_takes_the_key_along() {
        let keys = SharedKeys::default();
        let [one, two, later] = three(&keys);
        assert!(!one.end(false), "another waits with it");
        assert!(later.end(false), "that was another key of the name");
        assert!(two.end(false));
        assert!(keys.0.lock().is_empty());
    }

    #[test]
    fn nobody_takes_the_key_of_one_who_has_it() {
        let keys = SharedKeys::default();
        let [one, two, later] = three(&keys);
        assert!(!one.end(true));
        assert!(!two.end(false), "the first one has the lock");
        assert!(later.end(false));
        // Whoever comes then finds out anew.
        let [one, two, _] = three(&keys);
        assert!(!two.end(false));
        assert!(one.end(false));
    }
}

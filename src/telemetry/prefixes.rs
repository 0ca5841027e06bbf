//! How much lies below some prefixes: living keys, and the bytes of their keys and values.
//!
//! What a key adds is remembered under a hash of it, about 20 bytes for each key below a prefix, so
//! that replacing or deleting it need not look for the value that was there. A collision of hashes
//! would make the numbers wrong by one key; among ten million keys one is to be expected in every
//! 370,000 servers.

use super::exposition::{Exposition, labels};
use super::instrument::Gauge;
use parking_lot::Mutex;
use std::collections::HashMap;
use twox_hash::XxHash3_64;

#[derive(Debug, Default)]
struct Prefix {
    text: String,
    keys: Gauge,
    bytes: Gauge,
}

/// Sizes by prefix. A key below several of them counts for each.
#[derive(Debug)]
pub struct PrefixSizes {
    prefixes: Vec<Prefix>,
    /// Bytes of living keys and their values, by a hash of the key.
    sizes: Mutex<HashMap<u64, u64>>,
    seed: u64,
}

impl PrefixSizes {
    /// Nothing below any of `prefixes` yet; `seed` is for the hash, and best random.
    pub fn new(prefixes: &[String], seed: u64) -> Self {
        let prefix = |text: &String| Prefix { text: text.clone(), ..Prefix::default() };
        let prefixes = prefixes.iter().map(prefix).collect();
        Self { prefixes, sizes: Mutex::default(), seed }
    }

    /// A key got a value of `value_bytes`, whether or not it existed before.
    pub fn put(&self, key: &[u8], value_bytes: usize) {
        if !self.concerns(key) {
            return;
        }
        let size = (key.len() + value_bytes) as u64;
        let before = self.sizes.lock().insert(self.hash(key), size);
        self.change(key, i64::from(before.is_none()), signed(size) - before.map_or(0, signed));
    }

    /// A key was deleted.
    pub fn delete(&self, key: &[u8]) {
        if !self.concerns(key) {
            return;
        }
        if let Some(size) = self.sizes.lock().remove(&self.hash(key)) {
            self.change(key, -1, -signed(size));
        }
    }

    fn concerns(&self, key: &[u8]) -> bool {
        self.prefixes.iter().any(|prefix| key.starts_with(prefix.text.as_bytes()))
    }

    fn hash(&self, key: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(self.seed, key)
    }

    fn change(&self, key: &[u8], keys: i64, bytes: i64) {
        for prefix in &self.prefixes {
            if key.starts_with(prefix.text.as_bytes()) {
                prefix.keys.add(keys);
                prefix.bytes.add(bytes);
            }
        }
    }

    /// Appends the metrics.
    pub(super) fn write(&self, out: &mut Exposition) {
        let mut family = |name: &str, help: &str, value: fn(&Prefix) -> i64| {
            out.header(name, help, "gauge");
            for prefix in &self.prefixes {
                out.sample(name, &labels(&[("prefix", &prefix.text)]), value(prefix));
            }
        };
        let help = "Bytes of living keys below a prefix and of their values.";
        family("leaseway_prefix_bytes", help, |prefix| prefix.bytes.get());
        family("leaseway_prefix_keys", "Living keys below a prefix.", |prefix| prefix.keys.get());
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(sizes: &PrefixSizes) -> Vec<(i64, i64)> {
        sizes.prefixes.iter().map(|prefix| (prefix.keys.get(), prefix.bytes.get())).collect()
    }

    #[test]
    fn what_a_key_adds_goes_with_it() {
        let sizes = PrefixSizes::new(&["/a/".into(), "/a/b/".into()], 1);
        sizes.put(b"/a/x", 10);
        sizes.put(b"/a/b/y", 5);
        sizes.put(b"/other", 100);
        assert_eq!(told(&sizes), [(2, 25), (1, 11)]);
        sizes.put(b"/a/x", 1);
        assert_eq!(told(&sizes), [(2, 16), (1, 11)]);
        sizes.delete(b"/a/b/y");
        sizes.delete(b"/a/b/y");
        sizes.delete(b"/other");
        assert_eq!(told(&sizes), [(1, 5), (0, 0)]);
        let mut out = Exposition::default();
        sizes.write(&mut out);
        let text = out.into_text();
        assert!(text.contains("leaseway_prefix_bytes{prefix=\"/a/\"} 5\n"), "{text}");
        assert!(text.contains("leaseway_prefix_keys{prefix=\"/a/b/\"} 0\n"), "{text}");
    }
}

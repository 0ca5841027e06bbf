//! Whether every page of a redb file is what was written, found out faster than redb does.
//!
//! redb's own check on opening reads all pages twice through its cache, on one thread. This one reads each
//! page once and shares the work among threads. It starts at the commit slot, whose checksum covers the
//! checksums of the trees' roots, and each page holds those of its children: if all of them match, then the
//! trees are what the last durable commit wrote, and so are the table of free pages and everything else
//! that redb will go by.
//!
//! Only a file whose last commit was made in two phases can be judged so: after one in a single phase, a slot
//! or page that does not match may also mean that the commit was cut short. Whatever is not as expected
//! here, an unknown layout included, is left to redb's own check: this file may cost time, never data.
//!
//! What is relied on of the format (version 3, redb's `docs/design.md`), numbers little-endian:
//!
//! | what | where |
//! |---|---|
//! | header | magic (9), flags (1), 2 spare, page size, region header pages, pages in a region (4 each); two slots at 64 and 192 |
//! | slot, 128 bytes | version (1), has user tree (1), has system tree (1), 5 spare, user root (32), system root (32), 40 more, checksum (16) |
//! | root | page (8), checksum (16), length (8) |
//! | page number | index (20 bits), region (20 bits), 19 spare, order (5 bits): 2^order pages of the page size |
//! | branch | 2 (1), spare, keys (2), 4 spare, checksums (16 each) of keys + 1 children, their numbers (8 each), ends of keys (4 each, unless of fixed width), keys |
//! | leaf | 1 (1), spare, pairs (2), ends of keys, ends of values (4 each, unless of fixed width), keys, values |
//! | table | kind (1), length (8), has root (1), root (32), fixed key width and fixed value width (1 + 4 each), more |

use redb::StorageBackend;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use twox_hash::XxHash3_128;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
const VERSION: u8 = 3;
const PRIMARY: u8 = 1;
const TWO_PHASE: u8 = 4;
const UNFLUSHED: u8 = 8;
const HEADER: usize = 320;
const SLOT: usize = 128;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// A table with one value a key.
const PLAIN: u8 = 3;
/// No tree is as deep as this.
const DEPTH: usize = 32;
/// Subtrees into which the work is cut before it is shared.
const PIECES: usize = 64;
/// More threads only wait for the disk.
const THREADS: usize = 4;

/// Whether the file is whole, by its checksums. `false` says nothing: redb has to look.
pub fn is_whole(file: &dyn StorageBackend) -> bool {
    Check::new(file).and_then(|(check, roots)| check.trees(&roots)).is_some()
}

/// A page, and what its checksum has to be.
#[derive(Clone, Copy)]
struct Node {
    number: u64,
    checksum: u128,
    depth: usize,
}

/// Widths of a table's keys and values, where they are fixed.
#[derive(Clone, Copy, Default)]
struct Widths {
    key: Option<usize>,
    value: Option<usize>,
}

struct Check<'a> {
    file: &'a dyn StorageBackend,
    length: u64,
    page: u64,
    region_header: u64,
    region: u64,
}

/// The number of `N` bytes at `at`.
fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..)?.first_chunk().copied()
}

fn number(from: &[u8], at: usize) -> Option<usize> {
    bytes(from, at).map(|bytes| u32::from_le_bytes(bytes) as usize)
}

fn node(from: &[u8], at: usize) -> Option<Node> {
    let number = u64::from_le_bytes(bytes(from, at)?);
    Some(Node { number, checksum: u128::from_le_bytes(bytes(from, at + 8)?), depth: 0 })
}

/// A root that is there if the byte at `flag` says so.
fn root(from: &[u8], flag: usize, at: usize) -> Option<Option<Node>> {
    match from.get(flag)? {
        0 => Some(None),
        _ => node(from, at).map(Some),
    }
}

/// A width that is there if the byte at `at` says so.
fn width(from: &[u8], at: usize) -> Option<Option<usize>> {
    match from.get(at)? {
        0 => Some(None),
        _ => number(from, at + 1).map(Some),
    }
}

fn pairs(page: &[u8]) -> Option<usize> {
    bytes(page, 2).map(u16::from_le_bytes).map(usize::from)
}

/// How much of a leaf its checksum covers.
fn leaf_end(page: &[u8], widths: Widths) -> Option<usize> {
    let pairs = pairs(page)?;
    let last = pairs.checked_sub(1)?;
    match (widths.key, widths.value) {
        (None, None) => number(page, 4 + 4 * pairs + 4 * last),
        (Some(_), None) => number(page, 4 + 4 * last),
        (None, Some(value)) => Some(number(page, 4 + 4 * last)? + pairs * value),
        (Some(key), Some(value)) => Some(4 + pairs * (key + value)),
    }
}

/// How much of a branch its checksum covers.
fn branch_end(page: &[u8], widths: Widths) -> Option<usize> {
    let keys = pairs(page)?;
    let last = keys.checked_sub(1)?;
    let ends = 8 + 24 * (keys + 1);
    match widths.key {
        Some(key) => Some(ends + keys * key),
        None => number(page, ends + 4 * last),
    }
}

fn matches(page: &[u8], end: usize, checksum: u128) -> bool {
    page.get(..end).is_some_and(|covered| XxHash3_128::oneshot(covered) == checksum)
}

/// The children of a branch.
fn children(page: &[u8], depth: usize) -> Option<Vec<Node>> {
    let count = pairs(page)? + 1;
    let child = |nth: usize| {
        let checksum = u128::from_le_bytes(bytes(page, 8 + 16 * nth)?);
        let number = u64::from_le_bytes(bytes(page, 8 + 16 * count + 8 * nth)?);
        Some(Node { number, checksum, depth: depth + 1 })
    };
    (0..count).map(child).collect()
}

/// The values of a leaf whose keys and values have no fixed width.
fn values(page: &[u8]) -> Option<Vec<&[u8]>> {
    let pairs = pairs(page)?;
    let mut start = number(page, 4 + 4 * pairs.checked_sub(1)?)?;
    let mut values = Vec::with_capacity(pairs);
    for nth in 0..pairs {
        let end = number(page, 4 + 4 * pairs + 4 * nth)?;
        values.push(page.get(start..end)?);
        start = end;
    }
    Some(values)
}

impl<'a> Check<'a> {
    /// Reads the header; returns the roots of the trees of tables as well.
    fn new(file: &'a dyn StorageBackend) -> Option<(Self, Vec<Node>)> {
        let length = file.len().ok()?;
        let mut header = [0; HEADER];
        if length < HEADER as u64 || file.read(0, &mut header).is_err() || header[..9] != MAGIC {
            return None;
        }
        let flags = header[9];
        if flags & TWO_PHASE == 0 || flags & UNFLUSHED != 0 {
            return None;
        }
        let slot = &header[64 + SLOT * usize::from(flags & PRIMARY)..][..SLOT];
        let checksum = u128::from_le_bytes(bytes(slot, SLOT - 16)?);
        if slot[0] != VERSION || !matches(slot, SLOT - 16, checksum) {
            return None;
        }
        let roots = [root(slot, 1, 8)?, root(slot, 2, 40)?];
        let [page, region_header, region_pages] =
            [number(&header, 12)?, number(&header, 16)?, number(&header, 20)?].map(|n| n as u64);
        if !(512..=1 << 16).contains(&page) || !page.is_power_of_two() {
            return None;
        }
        let region_header = region_header * page;
        let region = region_header + region_pages * page;
        let check = Self { file, length, page, region_header, region };
        Some((check, roots.into_iter().flatten().collect()))
    }

    /// Reads a page.
    fn read(&self, number: u64, page: &mut Vec<u8>) -> Option<()> {
        let order = number >> 59;
        let index = number & (0xf_ffff_u64.checked_shr(order as u32)?);
        let region = (number >> 20) & 0xf_ffff;
        let size = self.page.checked_mul(1_u64.checked_shl(order as u32)?)?;
        let within = self.region_header + index.checked_mul(size)?;
        let start = self.page.checked_add(region.checked_mul(self.region)?)?.checked_add(within)?;
        if start.checked_add(size)? > self.length {
            return None;
        }
        page.resize(usize::try_from(size).ok()?, 0);
        self.file.read(start, page).ok()
    }

    /// Reads a page and compares its checksum; returns its children.
    fn visit(&self, node: Node, widths: Widths, page: &mut Vec<u8>) -> Option<Vec<Node>> {
        self.read(node.number, page)?;
        let (end, children) = match *page.first()? {
            LEAF => (leaf_end(page, widths)?, Vec::new()),
            BRANCH if node.depth < DEPTH => {
                (branch_end(page, widths)?, children(page, node.depth)?)
            }
            _ => return None,
        };
        matches(page, end, node.checksum).then_some(children)
    }

    /// Checks trees of tables and all their tables.
    fn trees(&self, roots: &[Node]) -> Option<()> {
        for root in roots {
            let mut tables = Vec::new();
            let mut page = Vec::new();
            let mut open = vec![*root];
            while let Some(node) = open.pop() {
                let children = self.visit(node, Widths::default(), &mut page)?;
                if children.is_empty() {
                    for table in values(&page)? {
                        let widths = Widths { key: width(table, 42)?, value: width(table, 47)? };
                        let root = root_of(table)?;
                        tables.extend(root.map(|root| (root, widths)));
                    }
                }
                open.extend(children);
            }
            for (root, widths) in tables {
                self.table(root, widths)?;
            }
        }
        Some(())
    }

    /// Checks one table's tree.
    fn table(&self, root: Node, widths: Widths) -> Option<()> {
        // The upper levels here, what is below them shared.
        let mut pieces = vec![root];
        let mut page = Vec::new();
        while (1..PIECES).contains(&pieces.len()) {
            let mut below = Vec::new();
            for node in &pieces {
                below.extend(self.visit(*node, widths, &mut page)?);
            }
            pieces = below;
        }
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
        let (next, broken) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            let mut page = Vec::new();
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let whole = self.subtree(*piece, widths, &mut page, &broken);
                if whole.is_none() {
                    broken.store(true, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            // Threads that can't be started are done without.
            for _ in 1..threads.min(pieces.len()) {
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        (!broken.into_inner()).then_some(())
    }

    fn subtree(
        &self,
        root: Node,
        widths: Widths,
        page: &mut Vec<u8>,
        broken: &AtomicBool,
    ) -> Option<()> {
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            if broken.load(Ordering::Relaxed) {
                return None;
            }
            let children = self.visit(node, widths, page)?;
            // In the order of the file, mostly.
            open.extend(children.into_iter().rev());
        }
        Some(())
    }
}

/// The root of a table, if it has rows, from its definition.
fn root_of(table: &[u8]) -> Option<Option<Node>> {
    if *table.first()? != PLAIN {
        return None;
    }
    root(table, 9, 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::power_cut::Disk;
    use crate::storage::redb_engine::RedbEngine;
    use crate::storage::{Batch, Durability, Engine, Table};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::ops::ControlFlow;

    const CACHE: usize = 1 << 20;

    type Rows = Vec<(Vec<u8>, Vec<u8>)>;

    fn batch(random: &mut StdRng, round: u64) -> Batch {
        let mut batch = Batch::default();
        for nth in 0..200_u64 {
            let length = if nth == 7 { 20_000 } else { random.random_range(0..300) };
            let key = [round.to_be_bytes(), nth.to_be_bytes()].concat();
            batch.put(Table::Rows, key, vec![nth as u8; length]);
            if random.random_bool(0.3) {
                let key = [random.random_range(0..=round), nth].map(u64::to_be_bytes).concat();
                batch.delete(Table::Rows, key);
            }
        }
        batch.put(Table::Meta, &b"state"[..], round.to_be_bytes().to_vec());
        batch.put(Table::Leases, round.to_be_bytes().to_vec(), &b"lease"[..]);
        batch
    }

    /// What a store holds, and its file: closed in order, or cut off after its last commits.
    fn written(closed: bool) -> (Rows, Vec<u8>) {
        let random = &mut StdRng::seed_from_u64(4);
        let disk = Disk::default();
        let engine = RedbEngine::with_backend(disk.clone(), CACHE).unwrap();
        for round in 0..30 {
            engine.commit(&batch(random, round), Durability::Deferred).unwrap();
            if round % 7 == 0 {
                engine.commit(&Batch::default(), Durability::Immediate).unwrap();
            }
        }
        engine.commit(&Batch::default(), Durability::Immediate).unwrap();
        let rows = contents(&engine);
        if closed {
            engine.close();
        } else {
            engine.commit(&batch(random, 30), Durability::Deferred).unwrap();
        }
        (rows, disk.after_cut(9))
    }

    fn contents(engine: &RedbEngine) -> Rows {
        let snapshot = engine.snapshot().unwrap();
        let mut rows = Vec::new();
        for table in [Table::Meta, Table::Rows, Table::Leases] {
            let scan = snapshot.scan(table, &[], None, &mut |key, value| {
                rows.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            });
            scan.unwrap();
        }
        rows
    }

    #[test]
    fn a_file_is_whole_however_the_process_ended() {
        for closed in [true, false] {
            let (rows, file) = written(closed);
            assert!(rows.len() > 3_000);
            assert!(is_whole(&Disk::holding(file.clone())), "closed: {closed}");
            let engine = RedbEngine::with_backend(Disk::holding(file), CACHE).unwrap();
            assert!(contents(&engine) == rows, "closed: {closed}");
        }
        assert!(!is_whole(&Disk::default()));
    }

    #[test]
    fn what_passes_is_undamaged() {
        let random = &mut StdRng::seed_from_u64(5);
        let (rows, file) = written(true);
        let used: Vec<usize> = (0..file.len()).filter(|&at| file[at] != 0).collect();
        let (mut found, mut opened) = (0, 0);
        for nth in 0..200 {
            let mut damaged = file.clone();
            let at = match nth % 4 {
                0 => random.random_range(0..HEADER),
                _ => used[random.random_range(0..used.len())],
            };
            damaged[at] ^= 1 << random.random_range(0..8);
            if !is_whole(&Disk::holding(damaged.clone())) {
                found += 1;
                continue;
            }
            // The slot of the commit before may still be refused.
            if let Ok(engine) = RedbEngine::with_backend(Disk::holding(damaged), CACHE) {
                assert!(contents(&engine) == rows, "byte {at}");
                opened += 1;
            }
        }
        // What passes are free pages, spare bytes and the slot of the commit before.
        assert!(found > 50 && opened > 10, "{found} found, {opened} opened");
    }
}

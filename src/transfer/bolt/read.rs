//! Reading: one page at a time, each at most once, nothing believed.

use super::{
    BRANCH, BUCKET_HEADER, BoltError, ELEMENT, IS_BUCKET, LEAF, MAGIC, META, META_BODY,
    PAGE_HEADER, VERSION, fnv64a,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Smallest and largest page size: what machines that etcd runs on have.
const PAGE_SIZES: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
/// Levels of a tree; one of 2^64 keys has fewer.
const DEPTH_MAX: usize = 64;
/// Bytes of a page with all that belongs to it: far above what etcd's largest request leads to.
const PAGE_BYTES_MAX: u64 = 512 << 20;

/// Where bytes are read from.
pub trait ReadAt {
    /// Length in bytes.
    ///
    /// # Errors
    /// The operating system's.
    fn length(&self) -> io::Result<u64>;

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// The operating system's, and the end of the file within.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = self.get(from..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// What is called with each key and value.
pub type Visit<'a, E> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), E>;
/// The same with an element's flags.
type VisitLeaf<'a, E> = &'a mut dyn FnMut(u32, &[u8], &[u8]) -> Result<(), E>;

/// A database file, as of its newest complete transaction.
pub struct Database<R> {
    file: R,
    meta: Meta,
    /// A bit for each page that has been read, so that none is read twice.
    seen: Vec<u64>,
    page: Vec<u8>,
}

/// A bucket of the file's root.
#[derive(Debug)]
pub struct Bucket {
    /// Its name.
    pub name: Vec<u8>,
    root: u64,
    /// The only page of a small bucket.
    inline: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    page_size: usize,
    root: u64,
    /// Number of pages.
    pages: u64,
    transaction: u64,
}

impl<R: ReadAt> Database<R> {
    /// Finds the newest complete transaction.
    ///
    /// # Errors
    /// Neither meta is whole, or the file is shorter than it says.
    pub fn open(file: R) -> Result<Self, BoltError> {
        let length = file.length()?;
        let first = meta_at(&file, 0)?.filter(|meta| meta.page_size != 0);
        // Where the second one is depends on the page size, which a broken first one can't tell.
        let sizes = match first {
            Some(meta) => vec![meta.page_size],
            None => PAGE_SIZES.to_vec(),
        };
        let mut metas: Vec<Meta> = first.into_iter().collect();
        for size in sizes {
            let second = meta_at(&file, size as u64)?;
            metas.extend(second.filter(|meta| meta.page_size == size));
        }
        let newest = metas.into_iter().max_by_key(|meta| meta.transaction);
        let meta = newest.ok_or(BoltError::NotBolt)?;
        let wanted = meta.pages.saturating_mul(meta.page_size as u64);
        if wanted > length {
            return Err(BoltError::Truncated { found: length, wanted });
        }
        let words = usize::try_from(meta.pages / 64 + 1).map_err(|_| BoltError::NotBolt)?;
        Ok(Self { file, meta, seen: vec![0; words], page: Vec::new() })
    }

    /// Bytes of the file that the database takes.
    pub fn bytes(&self) -> u64 {
        self.meta.pages * self.meta.page_size as u64
    }

    /// The file.
    pub fn file(&self) -> &R {
        &self.file
    }

    /// The buckets at the root, in their names' order. Can be asked for once.
    ///
    /// # Errors
    /// I/O errors and damage.
    pub fn buckets(&mut self) -> Result<Vec<Bucket>, BoltError> {
        let root = self.meta.root;
        let mut buckets = Vec::new();
        self.walk(root, &mut |flags, name, value| {
            let damaged = |what| BoltError::Damaged { page: root, what };
            if flags != IS_BUCKET {
                return Err(damaged("leads to a key outside of any bucket"));
            }
            let (header, inline) =
                value.split_at_checked(BUCKET_HEADER).ok_or(damaged("leads to no bucket"))?;
            let place = u64_at(header, 0);
            if place != 0 && !inline.is_empty() {
                return Err(damaged("leads to a bucket in two places"));
            }
            buckets.push(Bucket { name: name.to_vec(), root: place, inline: inline.to_vec() });
            Ok(())
        })?;
        Ok(buckets)
    }

    /// Visits a bucket's keys and values in order. Each bucket can be scanned once.
    ///
    /// # Errors
    /// The visitor's, I/O errors and damage: what was visited until then counts for nothing.
    pub fn scan<E: From<BoltError>>(
        &mut self,
        bucket: &Bucket,
        visit: Visit<'_, E>,
    ) -> Result<(), E> {
        let place = bucket.root;
        let mut flat = |flags: u32, key: &[u8], value: &[u8]| {
            if flags != 0 {
                let what = "leads to a bucket within a bucket";
                return Err(BoltError::Damaged { page: place, what }.into());
            }
            visit(key, value)
        };
        if place != 0 {
            return self.walk(place, &mut flat);
        }
        let page = Page { number: 0, bytes: &bucket.inline };
        page.whole()?;
        if page.kind() != LEAF {
            return Err(page.damaged("is within a bucket, and no leaf").into());
        }
        page.leaf(&mut Vec::new(), &mut flat)
    }

    /// Visits the leaves of a tree from the left to the right.
    fn walk<E: From<BoltError>>(&mut self, root: u64, visit: VisitLeaf<'_, E>) -> Result<(), E> {
        let mut last = Vec::new();
        // Pages still to be read, the next one at the end.
        let mut open = vec![(root, 0)];
        while let Some((number, depth)) = open.pop() {
            if depth > DEPTH_MAX {
                return Err(BoltError::Damaged { page: number, what: "lies too deep" }.into());
            }
            self.load(number)?;
            let page = Page { number, bytes: &self.page };
            match page.kind() {
                LEAF => page.leaf(&mut last, visit)?,
                BRANCH => {
                    let from = open.len();
                    page.branch(|child| open.push((child, depth + 1)))?;
                    open[from..].reverse();
                }
                _ => return Err(page.damaged("is neither branch nor leaf").into()),
            }
        }
        Ok(())
    }

    /// Reads a page and all that belongs to it into `self.page`.
    fn load(&mut self, number: u64) -> Result<(), BoltError> {
        let damaged = |what| BoltError::Damaged { page: number, what };
        if number < 2 || number >= self.meta.pages {
            return Err(damaged("lies outside of the file"));
        }
        let size = self.meta.page_size;
        self.page.resize(size, 0);
        let offset = number * size as u64;
        self.file.read_at(offset, &mut self.page)?;
        let overflow = u64::from(u32_at(&self.page, 12));
        if u64_at(&self.page, 0) != number {
            return Err(damaged("has another number"));
        }
        if overflow >= self.meta.pages - number {
            return Err(damaged("goes beyond the end of the file"));
        }
        let bytes = (overflow + 1).saturating_mul(size as u64);
        if bytes > PAGE_BYTES_MAX {
            return Err(damaged("is too large"));
        }
        for part in number..=number + overflow {
            let (word, bit) = ((part / 64) as usize, 1 << (part % 64));
            let seen = self.seen.get_mut(word).ok_or(damaged("lies outside of the file"))?;
            if *seen & bit != 0 {
                return Err(damaged("is used twice"));
            }
            *seen |= bit;
        }
        if overflow > 0 {
            self.page.resize(bytes as usize, 0);
            self.file.read_at(offset + size as u64, &mut self.page[size..])?;
        }
        Page { number, bytes: &self.page }.whole()
    }
}

/// A page in memory. What reads elements checks where they lie.
struct Page<'a> {
    number: u64,
    bytes: &'a [u8],
}

impl<'a> Page<'a> {
    fn damaged(&self, what: &'static str) -> BoltError {
        BoltError::Damaged { page: self.number, what }
    }

    /// Checks that header and elements are there.
    fn whole(&self) -> Result<(), BoltError> {
        if self.bytes.len() < PAGE_HEADER || self.bytes.len() < PAGE_HEADER + self.count() * ELEMENT
        {
            return Err(self.damaged("has more elements than it has room for"));
        }
        Ok(())
    }

    fn kind(&self) -> u16 {
        u16_at(self.bytes, 8)
    }

    fn count(&self) -> usize {
        usize::from(u16_at(self.bytes, 10))
    }

    /// `length` bytes at `place`, counted from an element.
    fn piece(&self, element: usize, place: u64, length: u64) -> Result<&'a [u8], BoltError> {
        let from = element as u64 + place;
        let piece = usize::try_from(from).ok().zip(usize::try_from(from + length).ok());
        let piece = piece.and_then(|(from, to)| self.bytes.get(from..to));
        piece.ok_or_else(|| self.damaged("has an element outside of it"))
    }

    fn branch(&self, mut child: impl FnMut(u64)) -> Result<(), BoltError> {
        if self.count() == 0 {
            return Err(self.damaged("is a branch that leads nowhere"));
        }
        let mut last: Option<&[u8]> = None;
        for at in (0..self.count()).map(|index| PAGE_HEADER + index * ELEMENT) {
            let [place, length] = [0, 4].map(|field| u64::from(u32_at(self.bytes, at + field)));
            let key = self.piece(at, place, length)?;
            if last.is_some_and(|last| last >= key) {
                return Err(self.damaged("is not in order"));
            }
            last = Some(key);
            child(u64_at(self.bytes, at + 8));
        }
        Ok(())
    }

    /// Visits a leaf's elements. `last` is the last key before them.
    fn leaf<E: From<BoltError>>(
        &self,
        last: &mut Vec<u8>,
        visit: VisitLeaf<'_, E>,
    ) -> Result<(), E> {
        // Elements that share their bytes would make a small file look large.
        let mut room = self.bytes.len() as u64;
        for at in (0..self.count()).map(|index| PAGE_HEADER + index * ELEMENT) {
            let flags = u32_at(self.bytes, at);
            let [place, key_length, value_length] =
                [4, 8, 12].map(|field| u64::from(u32_at(self.bytes, at + field)));
            room = room
                .checked_sub(key_length + value_length)
                .ok_or_else(|| self.damaged("has elements that overlap"))?;
            let key = self.piece(at, place, key_length)?;
            let value = self.piece(at, place + key_length, value_length)?;
            // No key is empty, so the first one is above nothing.
            if key <= &last[..] {
                return Err(self.damaged("is not in order").into());
            }
            last.clear();
            last.extend_from_slice(key);
            visit(flags, key, value)?;
        }
        Ok(())
    }
}

/// The meta in the page at `offset`, if it is one and passes its checksum.
fn meta_at(file: &impl ReadAt, offset: u64) -> Result<Option<Meta>, BoltError> {
    let mut page = [0; PAGE_HEADER + META_BODY + 8];
    match file.read_at(offset, &mut page) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let meta = &page[PAGE_HEADER..];
    let page_size = u32_at(meta, 8) as usize;
    let good = u16_at(&page, 8) == META
        && u32_at(meta, 0) == MAGIC
        && u32_at(meta, 4) == VERSION
        && PAGE_SIZES.contains(&page_size)
        && u64_at(meta, META_BODY) == fnv64a(&meta[..META_BODY]);
    Ok(good.then(|| Meta {
        page_size,
        root: u64_at(meta, 16),
        pages: u64_at(meta, 40),
        transaction: u64_at(meta, 48),
    }))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

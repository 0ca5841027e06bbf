//! Writing: a whole file from sorted keys, front to back.
//!
//! Of each bucket's tree one page a level is open at a time. A page that is full is written and becomes
//! an element of the level above, so a file of any size is written in little memory. The metas, at the
//! front, are written last: until then the file is none.

use super::{
    BRANCH, BUCKET_HEADER, ELEMENT, FREE_LIST, IS_BUCKET, LEAF, MAGIC, META, META_BODY,
    PAGE_HEADER, VERSION, fnv64a,
};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

/// Page size of the files that are written.
const PAGE: usize = 4096;
/// Pages before the first bucket: two metas and the free list.
const FIRST: u64 = 3;
/// The free list's page.
const FREE_LIST_PAGE: u64 = 2;
const BUFFER: usize = 1 << 20;

/// Writes a database file.
pub struct Writer<W: Write + Seek> {
    out: Pages<W>,
    /// The root, where buckets are the values.
    root: Tree,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a file in `out`, which must be empty.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(out: W) -> io::Result<Self> {
        let mut out = Pages { out: BufWriter::with_capacity(BUFFER, out), next: 0 };
        for _ in 0..FIRST {
            out.write(&mut vec![0; PAGE_HEADER])?;
        }
        Ok(Self { out, root: Tree::default() })
    }

    /// Writes a bucket. `fill` puts its keys, in ascending order. Buckets themselves come in their names'
    /// order, and nothing is empty but values.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn bucket<E: From<io::Error>>(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut Filling<'_, W>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut filling = Filling { out: &mut self.out, tree: Tree::default() };
        fill(&mut filling)?;
        let mut value = vec![0; BUCKET_HEADER];
        match filling.tree.finish(filling.out)? {
            Some(root) => value[..8].copy_from_slice(&root.to_le_bytes()),
            // A bucket without keys is a page without elements, within the value.
            None => value.extend(header(0, LEAF, 0, 0)),
        }
        self.root.put(&mut self.out, IS_BUCKET, name.as_bytes(), &value)?;
        Ok(())
    }

    /// Ends the file. Returns what it was written to, and its length.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        let root = match self.root.finish(&mut self.out)? {
            Some(root) => root,
            None => self.out.write(&mut header(0, LEAF, 0, 0).to_vec())?,
        };
        let pages = self.out.next;
        let mut out = self.out.out;
        out.seek(SeekFrom::Start(0))?;
        for number in 0..2 {
            out.write_all(&meta(number, root, pages))?;
        }
        out.write_all(&header(FREE_LIST_PAGE, FREE_LIST, 0, 0))?;
        out.seek(SeekFrom::End(0))?;
        let out = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((out, pages * PAGE as u64))
    }
}

/// A bucket that is being written.
pub struct Filling<'a, W: Write + Seek> {
    out: &'a mut Pages<W>,
    tree: Tree,
}

impl<W: Write + Seek> Filling<'_, W> {
    /// Puts a key, which is above all before it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.tree.put(self.out, 0, key, value)
    }
}

/// The file, written page by page.
struct Pages<W: Write + Seek> {
    out: BufWriter<W>,
    next: u64,
}

impl<W: Write + Seek> Pages<W> {
    /// Writes a page with its header still to be numbered; returns the number.
    fn write(&mut self, bytes: &mut Vec<u8>) -> io::Result<u64> {
        let number = self.next;
        let pages = bytes.len().div_ceil(PAGE);
        let overflow = u32::try_from(pages - 1).map_err(io::Error::other)?;
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[12..16].copy_from_slice(&overflow.to_le_bytes());
        bytes.resize(pages * PAGE, 0);
        self.out.write_all(bytes)?;
        self.next += pages as u64;
        Ok(number)
    }
}

/// The open pages of a tree.
#[derive(Default)]
struct Tree {
    leaf: Open,
    /// From the level above the leaves upwards.
    branches: Vec<Open>,
}

/// A page that is being filled.
#[derive(Default)]
struct Open {
    /// Flags or page number, length of the key, length of the value.
    elements: Vec<(u64, u32, u32)>,
    /// Keys and values one after the other.
    data: Vec<u8>,
}

impl Open {
    fn has_room(&self, bytes: usize) -> bool {
        PAGE_HEADER + (self.elements.len() + 1) * ELEMENT + self.data.len() + bytes <= PAGE
    }

    fn push(&mut self, about: u64, key: &[u8], value: &[u8]) -> io::Result<()> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
        self.elements.push((about, length(key)?, length(value)?));
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        Ok(())
    }

    fn first_key(&self) -> &[u8] {
        let length = self.elements.first().map_or(0, |(_, key, _)| *key as usize);
        &self.data[..length]
    }

    /// The page's bytes; the page is empty afterwards.
    fn take(&mut self, kind: u16) -> io::Result<Vec<u8>> {
        let count = self.elements.len();
        let count_field = u16::try_from(count).map_err(io::Error::other)?;
        let mut bytes = header(0, kind, count_field, 0).to_vec();
        let mut place = count * ELEMENT;
        for (index, (about, key, value)) in self.elements.drain(..).enumerate() {
            let from_element = u32::try_from(place - index * ELEMENT).map_err(io::Error::other)?;
            if kind == BRANCH {
                bytes.extend(from_element.to_le_bytes());
                bytes.extend(key.to_le_bytes());
                bytes.extend(about.to_le_bytes());
            } else {
                bytes.extend((about as u32).to_le_bytes());
                bytes.extend(from_element.to_le_bytes());
                bytes.extend(key.to_le_bytes());
                bytes.extend(value.to_le_bytes());
            }
            place += key as usize + value as usize;
        }
        bytes.append(&mut self.data);
        Ok(bytes)
    }
}

impl Tree {
    fn put<W: Write + Seek>(
        &mut self,
        out: &mut Pages<W>,
        flags: u32,
        key: &[u8],
        value: &[u8],
    ) -> io::Result<()> {
        if !self.leaf.elements.is_empty() && !self.leaf.has_room(key.len() + value.len()) {
            self.close_leaf(out)?;
        }
        self.leaf.push(flags.into(), key, value)
    }

    fn close_leaf<W: Write + Seek>(&mut self, out: &mut Pages<W>) -> io::Result<()> {
        let first = self.leaf.first_key().to_vec();
        let number = out.write(&mut self.leaf.take(LEAF)?)?;
        self.lead_to(out, 0, &first, number)
    }

    /// Adds a page that has been written to a level of branches.
    fn lead_to<W: Write + Seek>(
        &mut self,
        out: &mut Pages<W>,
        level: usize,
        key: &[u8],
        number: u64,
    ) -> io::Result<()> {
        if self.branches.len() == level {
            self.branches.push(Open::default());
        }
        let open = &self.branches[level];
        // A branch that leads to one page only would make no tree end, however long the keys.
        if open.elements.len() >= 2 && !open.has_room(key.len()) {
            self.close_branch(out, level)?;
        }
        self.branches[level].push(number, key, &[])
    }

    fn close_branch<W: Write + Seek>(
        &mut self,
        out: &mut Pages<W>,
        level: usize,
    ) -> io::Result<()> {
        let first = self.branches[level].first_key().to_vec();
        let number = out.write(&mut self.branches[level].take(BRANCH)?)?;
        self.lead_to(out, level + 1, &first, number)
    }

    /// Writes what is open; returns the root's page, or nothing if the tree has no keys.
    fn finish<W: Write + Seek>(&mut self, out: &mut Pages<W>) -> io::Result<Option<u64>> {
        if self.leaf.elements.is_empty() {
            return Ok(None);
        }
        self.close_leaf(out)?;
        let mut level = 0;
        loop {
            // The top level is the root itself, unless it leads to one page, which is the root then.
            let top = level + 1 == self.branches.len();
            match self.branches[level].elements[..] {
                [(number, _, _)] if top => return Ok(Some(number)),
                _ => self.close_branch(out, level)?,
            }
            level += 1;
        }
    }
}

fn header(number: u64, kind: u16, count: u16, overflow: u32) -> [u8; PAGE_HEADER] {
    let mut bytes = [0; PAGE_HEADER];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..10].copy_from_slice(&kind.to_le_bytes());
    bytes[10..12].copy_from_slice(&count.to_le_bytes());
    bytes[12..].copy_from_slice(&overflow.to_le_bytes());
    bytes
}

/// A meta's page. The number is that of its transaction as well.
fn meta(number: u64, root: u64, pages: u64) -> Vec<u8> {
    let mut bytes = header(number, META, 0, 0).to_vec();
    for field in [MAGIC, VERSION, PAGE as u32, 0] {
        bytes.extend(field.to_le_bytes());
    }
    for field in [root, 0, FREE_LIST_PAGE, pages, number] {
        bytes.extend(field.to_le_bytes());
    }
    debug_assert_eq!(bytes.len(), PAGE_HEADER + META_BODY);
    let sum = fnv64a(&bytes[PAGE_HEADER..]);
    bytes.extend(sum.to_le_bytes());
    bytes.resize(PAGE, 0);
    bytes
}

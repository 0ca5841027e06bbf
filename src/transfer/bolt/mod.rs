//! bbolt's file format: the part that etcd's database file needs.
//!
//! A file is a sequence of pages of one size. All numbers are little-endian.
//!
//! | page | content |
//! |---|---|
//! | 0, 1 | metas: which of the two is newer and passes its checksum tells where everything else is |
//! | branch | keys, each with the page that holds what is from that key on |
//! | leaf | keys with values; a value may be a bucket, that is the root of another tree |
//! | free list | pages that nobody uses; its place in the meta is all ones where it was not written |
//!
//! A page starts with its number (u64), its kind (u16), its number of elements (u16) and how many more
//! pages belong to it (u32). Elements of 16 bytes follow: of a branch the key's place, its length (u32
//! each) and a page number (u64); of a leaf flags, the key's place, its length and the value's
//! (u32 each). Places are counted from the element itself; a value stands behind its key.
//!
//! A bucket is a root page (u64) and a sequence number (u64). A small one has root 0, and its only
//! page follows right there, within the value.
//!
//! Deliberately absent: changing a file in place, and what the keys mean.

mod read;
mod write;

#[cfg(test)]
mod tests;

pub use read::{Bucket, Database, ReadAt, Visit};
pub use write::{Filling, Writer};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// Bytes before a page's elements.
const PAGE_HEADER: usize = 16;
/// Bytes of an element, in branches and leaves alike.
const ELEMENT: usize = 16;
/// Bytes of a bucket before an inline page.
const BUCKET_HEADER: usize = 16;
/// Bytes of a meta before its checksum, which takes 8 more.
const META_BODY: usize = 56;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// Flag of a leaf's element whose value is a bucket.
const IS_BUCKET: u32 = 0x01;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// There is no meta in it that passes its checksum.
    #[error("this is no database file of etcd, or its beginning is damaged")]
    NotBolt,
    /// There is less of it than it says.
    #[error("the file is truncated: it has {found} bytes of {wanted}")]
    Truncated {
        /// Bytes that are there.
        found: u64,
        /// Bytes that there should be.
        wanted: u64,
    },
    /// A page is not what it should be.
    #[error("the file is damaged: page {page} {what}")]
    Damaged {
        /// The page's number.
        page: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// FNV-1a, 64 bits: the checksum of metas.
fn fnv64a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Makes the checksums of both metas right, wherever the second one is. For the fuzz targets.
#[cfg(test)]
pub fn reseal(file: &mut [u8]) {
    let mut places = vec![0];
    places.extend((9..=16).map(|bits| 1_usize << bits));
    for place in places {
        let start = place + PAGE_HEADER;
        let Some(meta) = file.get_mut(start..start + META_BODY + 8) else { return };
        if meta[..4] == MAGIC.to_le_bytes() {
            let sum = fnv64a(&meta[..META_BODY]).to_le_bytes();
            meta[META_BODY..].copy_from_slice(&sum);
        }
    }
}

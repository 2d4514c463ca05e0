//! LMDB: a database in one file.
//!
//! The file consists of pages of one size. The first two pages tell where the root of the main tree is. The page that
//! was written by the later transaction counts. A branch page leads to others. A leaf page has keys with their values,
//! in the order of the keys. A long value is in pages of its own, which follow each other. It is read as one piece.
//!
//! All branches and leaves are read. If the pages below a branch follow each other, they are read together.
//!
//! Values of keys such as `__len__` or `__keys__` are what programs note of their data. They are no samples.
//!
//! The layout is that of `mdb.c` of LMDB 0.9 on 64-bit machines with little-endian numbers.

use std::ops::Range;

use super::{FileBytes, check_count};
use crate::error::{Error, Result};
use crate::order::samplers::wrong;

const MAGIC: u32 = 0xbeef_c0de;
const VERSION: u32 = 1;

/// Bytes of a page before its entries.
const PAGE_HEADER: usize = 16;

/// Bytes of an entry before its key.
const NODE_HEADER: usize = 8;

/// Bytes of a meta page that are read, and where in them its fields are.
const META_BYTES: u64 = 152;
const MAGIC_AT: usize = 16;
const VERSION_AT: usize = 20;
const PAGE_SIZE_AT: usize = 40;
const ENTRIES_AT: usize = 120;
const ROOT_AT: usize = 128;
const TRANSACTION_AT: usize = 144;

/// The root of an empty tree.
const NO_PAGE: u64 = u64::MAX;

/// Kinds of pages.
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// Entries of a leaf: a long value, a tree of its own, several values of one key.
const LONG: u16 = 1;
const TREE: u16 = 2;
const SEVERAL: u16 = 4;

/// Deeper trees are broken: LMDB has 32 levels.
const DEPTH_MAX: usize = 32;

/// So many pages are read at once.
const RUN_MAX: usize = 256;

/// The shortest name of a note has a letter between its underscores.
const NOTE_MIN: usize = 5;

/// What a meta page says.
struct Meta {
    page_bytes: u64,
    entries: u64,
    root: u64,
    transaction: u64,
}

/// The ranges of the values of a database, sorted by their keys.
pub(super) fn samples(file: &FileBytes) -> Result<Vec<Range<u64>>> {
    let first = Meta::read(file, 0)?;
    let second = Meta::read(file, first.page_bytes)?;
    let latest = if second.transaction > first.transaction { second } else { first };
    let mut walk = Walk {
        file,
        page_bytes: latest.page_bytes,
        pages_left: file.size() / latest.page_bytes,
        entries: 0,
        samples: Vec::new(),
    };
    if latest.root != NO_PAGE {
        walk.pages(&[latest.root], 0)?;
    }
    if walk.entries != latest.entries {
        let Walk { entries, .. } = walk;
        return Err(wrong(format!(
            "it has {entries} values, and says that it has {}",
            latest.entries
        ))
        .hint(WHOLE));
    }
    Ok(walk.samples)
}

impl Meta {
    fn read(file: &FileBytes, at: u64) -> Result<Self> {
        let page = file.read_at(at, META_BYTES)?;
        if (u32_at(&page, MAGIC_AT), u32_at(&page, VERSION_AT)) != (Some(MAGIC), Some(VERSION)) {
            return Err(wrong(format!(
                "it is no database of LMDB 0.9: byte {at} begins no such page"
            )));
        }
        let page_bytes = u32_at(&page, PAGE_SIZE_AT).unwrap_or(0).into();
        if !(256..=1 << 16).contains(&page_bytes) {
            return Err(broken(at, "it has pages of a wrong size"));
        }
        let number = |at| u64_at(&page, at).unwrap_or(NO_PAGE);
        Ok(Meta {
            page_bytes,
            entries: number(ENTRIES_AT),
            root: number(ROOT_AT),
            transaction: number(TRANSACTION_AT),
        })
    }
}

/// A walk through the pages of a tree.
struct Walk<'f> {
    file: &'f FileBytes,
    page_bytes: u64,
    /// If more pages are visited than the file has, they lead around.
    pages_left: u64,
    /// Values so far, with notes.
    entries: u64,
    samples: Vec<Range<u64>>,
}

impl Walk<'_> {
    /// Goes through pages, and what is below them.
    fn pages(&mut self, numbers: &[u64], depth: usize) -> Result<()> {
        let follow = |a: &u64, b: &u64| a.checked_add(1) == Some(*b);
        for run in numbers.chunk_by(follow).flat_map(|run| run.chunks(RUN_MAX)) {
            let at = self.start_of(run[0])?;
            if depth > DEPTH_MAX {
                return Err(broken(at, "its pages lead around"));
            }
            let pages = self.file.read_at(at, run.len() as u64 * self.page_bytes)?;
            for (number, page) in run.iter().zip(pages.chunks(self.page_bytes as usize)) {
                self.page(*number, page, depth)?;
            }
        }
        Ok(())
    }

    fn page(&mut self, number: u64, page: &[u8], depth: usize) -> Result<()> {
        let at = number * self.page_bytes;
        let left = self.pages_left.checked_sub(1);
        self.pages_left = left.ok_or_else(|| broken(at, "its pages lead around"))?;
        let cut = || broken(at, "a page is broken");
        if u64_at(page, 0) != Some(number) {
            return Err(cut());
        }
        let kind = u16_at(page, 10).ok_or_else(cut)? & (BRANCH | LEAF);
        let lower = usize::from(u16_at(page, 12).ok_or_else(cut)?);
        let mut nodes = Vec::new();
        for place in (PAGE_HEADER..lower).step_by(2) {
            let node = usize::from(u16_at(page, place).ok_or_else(cut)?);
            nodes.push(Node::parse(page, node).ok_or_else(cut)?);
        }
        match kind {
            BRANCH => self.pages(&nodes.iter().map(Node::child).collect::<Vec<_>>(), depth + 1),
            LEAF => nodes.iter().try_for_each(|node| self.value(at, node)),
            _ => Err(cut()),
        }
    }

    /// Adds the value of an entry of the leaf at `page`.
    fn value(&mut self, page: u64, node: &Node<'_>) -> Result<()> {
        if node.flags & (TREE | SEVERAL) != 0 {
            return Err(wrong(format!(
                "at byte {page} it has a database of a name, or several values of a key"
            ))
            .hint("belady reads the main database, with one value for each key"));
        }
        self.entries += 1;
        let is_long_enough = node.key.len() >= NOTE_MIN;
        if is_long_enough && node.key.starts_with(b"__") && node.key.ends_with(b"__") {
            return Ok(());
        }
        let start = match node.flags & LONG {
            0 => page + node.value as u64,
            _ => {
                let number = node.long.ok_or_else(|| broken(page, "a page is broken"))?;
                self.start_of(number)? + PAGE_HEADER as u64
            }
        };
        self.samples.push(start..start + u64::from(node.low));
        check_count(self.samples.len() as u64)
    }

    fn start_of(&self, number: u64) -> Result<u64> {
        let at = number.checked_mul(self.page_bytes).filter(|at| *at < self.file.size());
        at.ok_or_else(|| self.file.is_cut(format!("its page {number} is missing")))
    }
}

/// An entry of a page.
struct Node<'p> {
    /// Of a leaf: bytes of the value. Of a branch: the lower part of a page's number.
    low: u32,
    flags: u16,
    key: &'p [u8],
    /// Where the value begins in the page.
    value: usize,
    /// The first page of a long value.
    long: Option<u64>,
}

impl<'p> Node<'p> {
    fn parse(page: &'p [u8], at: usize) -> Option<Self> {
        let low = u32_at(page, at)?;
        let (flags, key_bytes) = (u16_at(page, at + 4)?, usize::from(u16_at(page, at + 6)?));
        let value = at + NODE_HEADER + key_bytes;
        let key = page.get(at + NODE_HEADER..value)?;
        Some(Node { low, flags, key, value, long: u64_at(page, value) })
    }

    /// The page that an entry of a branch leads to. Its number has 48 bits, the highest where a leaf has flags.
    fn child(&self) -> u64 {
        u64::from(self.low) | u64::from(self.flags) << 32
    }
}

/// What may help if a file is damaged.
const WHOLE: &str = "is it a whole copy, made while nobody wrote to it?";

fn broken(at: u64, what: &str) -> Error {
    wrong(format!("{what}, at byte {at}")).hint(WHOLE)
}

fn u16_at(page: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*page.get(at..)?.first_chunk()?))
}

fn u32_at(page: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*page.get(at..)?.first_chunk()?))
}

fn u64_at(page: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*page.get(at..)?.first_chunk()?))
}

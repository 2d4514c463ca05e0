//! The numbers that all rooms of belady use for files, blocks and streams.
//!
//! A **file** is a row of the catalog. It is cached in **blocks** of [`BLOCK_BYTES`]. A small file is one
//! block, so in most datasets a block and a sample are the same. A **sample** is what a job reads at once: a
//! file, or a byte range of a file. If an order reads ranges of a large file, each block of that file follows a
//! sample. Such a block is a **slice**. A **stream** is one reader of the dataset with its own order: a job, a rank
//! or a loader.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Size of a block in bytes: the unit of fetching and caching inside large files.
///
/// It is large enough that a source which seeks still streams. It is small enough that a random 4 KiB read
/// into a large file costs little more than the read itself.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// The unit that files of the store and journals are laid out in, that disks are read and written in past
/// the page cache, and that parts of a block are counted in. It is the format's unit, the same on all
/// machines, and not the kernel's page: a page of the kernel is one or several of these
/// (`page_size::page_bytes`).
pub const PAGE_BYTES: u64 = 4096;

/// Consecutive pages of a block, of [`PAGE_BYTES`] each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first page, counted from the start of the block.
    pub first: u16,
    pub count: u16,
}

impl PageRange {
    /// The pages that a byte range of a block lies in.
    pub fn covering(bytes: &Range<u64>) -> Self {
        let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
        PageRange { first: first as u16, count: end.saturating_sub(first) as u16 }
    }

    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Whether other pages are among these.
    pub fn has(self, others: PageRange) -> bool {
        let end = |pages: PageRange| u32::from(pages.first) + u32::from(pages.count);
        self.first <= others.first && end(others) <= end(self)
    }

    /// Where the pages begin, in bytes from the start of the block.
    pub fn offset(self) -> u64 {
        u64::from(self.first) * PAGE_BYTES
    }

    pub fn bytes(self) -> u64 {
        u64::from(self.count) * PAGE_BYTES
    }
}

/// Row of a regular file, directory or other node in the catalog. Dense from 0. A slice of a large file has such a
/// number, too. No row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// A block of a file's content. Dense from 0 over the whole dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId(pub u32);

/// One reader of the dataset with an order of its own. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamId(pub u16);

/// The bit that is set in the number of a slice, and in no row of the catalog.
const SLICE_BIT: u32 = 1 << 31;

impl FileId {
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The slice that a block of a large file is.
    pub fn slice(block: BlockId) -> Self {
        FileId(block.0 | SLICE_BIT)
    }

    /// The block that a slice is. `None` for a row of the catalog.
    pub fn as_slice(self) -> Option<BlockId> {
        (self.0 & SLICE_BIT != 0).then_some(BlockId(self.0 & !SLICE_BIT))
    }
}

impl BlockId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StreamId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

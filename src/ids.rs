//! The numbers by which the rooms of belady speak of things.
//!
//! A **file** is a row of the catalog. A file is cached in **blocks** of [`BLOCK_BYTES`]: a small
//! file is one block, so for most datasets a block and a sample are the same thing. What a job
//! reads at once is a **sample**: a file, or a byte range of one. A **stream** is one reader of
//! the dataset with an order of its own: a job, a rank, a loader.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Size of a block in bytes: the unit of fetching and caching inside large files.
///
/// Large enough that a source which seeks still streams, small enough that a random 4 KiB read
/// into a large file does not cost much more than itself.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// Size of a page of the kernel's page cache in bytes; residency is charged in whole pages.
pub const PAGE_BYTES: u64 = 4096;

/// Pages of a block that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first, counted from the start of the block.
    pub first: u16,
    pub count: u16,
}

impl PageRange {
    /// The pages that bytes of a block lie in, counted from the start of the block.
    pub fn covering(bytes: &Range<u64>) -> Self {
        let (first, end) = (bytes.start / PAGE_BYTES, bytes.end.div_ceil(PAGE_BYTES));
        PageRange { first: first as u16, count: end.saturating_sub(first) as u16 }
    }

    /// The pages, one after the other.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Where they begin, in bytes from the start of the block.
    pub fn offset(self) -> u64 {
        u64::from(self.first) * PAGE_BYTES
    }

    pub fn bytes(self) -> u64 {
        u64::from(self.count) * PAGE_BYTES
    }
}

/// Row of a regular file, directory or other node in the catalog. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// A block of a file's content. Dense from 0 over the whole dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId(pub u32);

/// One reader of the dataset with an order of its own. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamId(pub u16);

impl FileId {
    /// The row as an index into a table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl BlockId {
    /// The block as an index into a table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StreamId {
    /// The stream as an index into a table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

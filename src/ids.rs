//! The numbers by which the rooms of belady speak of things.
//!
//! A **file** is a row of the catalog. A file is cached in **blocks** of [`BLOCK_BYTES`]: a small
//! file is one block, so for most datasets a block and a sample are the same thing. What a job
//! reads at once is a **sample**: a file, or a byte range of one. A **stream** is one reader of
//! the dataset with an order of its own: a job, a rank, a loader.

use serde::{Deserialize, Serialize};

/// Size of a block in bytes: the unit of fetching and caching inside large files.
///
/// Large enough that a source which seeks still streams, small enough that a random 4 KiB read
/// into a large file does not cost much more than itself.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// Size of a page of the kernel's page cache in bytes; residency is charged in whole pages.
pub const PAGE_BYTES: u64 = 4096;

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

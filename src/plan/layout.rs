//! Cuts files into blocks.
//!
//! Files and blocks are dense numbers. A file owns the consecutive blocks `first .. first + count`; an
//! empty file owns none. A file that outgrows its blocks gets new ones at the end and leaves its old ones
//! behind, so that the numbers of all other blocks stay.

use crate::ids::{BLOCK_BYTES, BlockId, FileId, PAGE_BYTES};

/// Bytes of a block's record in a tier below RAM, with its share of the dead records of the index.
const RECORD_BYTES: u64 = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    first: u32,
    count: u32,
    size: u64,
}

/// The blocks of each file, and their lengths.
#[derive(Clone, Debug)]
pub struct Layout {
    files: Vec<Extent>,
    file_of: Vec<FileId>,
    /// Bytes of a page of the kernel.
    page_bytes: u64,
    /// Bytes of page cache and blocks of all files together.
    pages_bytes: u64,
    counted: u64,
    /// Number of changes: of two layouts, the one with more is the later one.
    changes: u64,
}

impl Layout {
    /// Lays out files of these sizes in bytes, numbered in this order, on a machine with pages of
    /// [`PAGE_BYTES`]: for simulations, which are the same on all machines.
    pub fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        Self::with_pages(PAGE_BYTES, sizes)
    }

    /// The same on a machine with pages of this size.
    pub fn with_pages(page_bytes: u64, sizes: impl IntoIterator<Item = u64>) -> Self {
        let mut layout = Layout {
            files: Vec::new(),
            file_of: Vec::new(),
            page_bytes,
            pages_bytes: 0,
            counted: 0,
            changes: 0,
        };
        for size in sizes {
            layout.push(size);
        }
        layout
    }

    /// Adds a file of `size` bytes at the end.
    pub fn push(&mut self, size: u64) -> FileId {
        let file = FileId(self.files.len() as u32);
        self.files.push(Extent::default());
        self.resize(file, size);
        file
    }

    /// Changes the size of a file. Its blocks keep their numbers if they suffice.
    pub fn resize(&mut self, file: FileId, size: u64) {
        self.changes += 1;
        let count = u32::try_from(size.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX);
        let extent = &mut self.files[file.index()];
        let pages = |size: u64| size.next_multiple_of(self.page_bytes);
        self.pages_bytes = self.pages_bytes - pages(extent.size) + pages(size);
        self.counted = self.counted - u64::from(extent.count) + u64::from(count);
        if count > extent.count {
            extent.first = self.file_of.len() as u32;
            self.file_of.extend(std::iter::repeat_n(file, count as usize));
        }
        extent.count = count;
        extent.size = size;
    }

    pub fn is_later(&self, than: &Layout) -> bool {
        self.changes > than.changes
    }

    /// The files whose blocks or sizes differ in a later layout.
    pub fn moved(&self, later: &Layout) -> Vec<FileId> {
        let differs = |(index, pair): (usize, (&Extent, &Extent))| {
            (pair.0 != pair.1).then_some(FileId(index as u32))
        };
        self.files.iter().zip(&later.files).enumerate().filter_map(differs).collect()
    }

    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Number of blocks, with those that shrunk or moved files have left behind.
    pub fn blocks(&self) -> usize {
        self.file_of.len()
    }

    /// The blocks of a file, in the order of its bytes.
    pub fn blocks_of(
        &self,
        file: FileId,
    ) -> impl ExactSizeIterator<Item = BlockId> + Clone + use<> {
        let extent = self.files.get(file.index()).copied().unwrap_or_default();
        (extent.first..extent.first + extent.count).map(BlockId)
    }

    /// The blocks that hold a byte range of a file; a range past its end holds none.
    pub fn blocks_in(
        &self,
        file: FileId,
        offset: u64,
        length: u64,
    ) -> impl ExactSizeIterator<Item = BlockId> + Clone + use<> {
        let extent = self.files.get(file.index()).copied().unwrap_or_default();
        let end = offset.saturating_add(length).min(extent.size);
        let (from, to) =
            if offset >= end { (0, 0) } else { (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES)) };
        (extent.first + from as u32..extent.first + to as u32).map(BlockId)
    }

    /// Whether the block exists and its file has not left it behind.
    pub fn has(&self, block: BlockId) -> bool {
        block.index() < self.blocks() && self.range(block).1 > 0
    }

    pub fn file_of(&self, block: BlockId) -> FileId {
        self.file_of[block.index()]
    }

    /// Offset in its file and length of a block, in bytes. Both are 0 if its file has left it behind.
    pub fn range(&self, block: BlockId) -> (u64, u64) {
        let extent = self.files[self.file_of(block).index()];
        let Some(nth) = block.0.checked_sub(extent.first).filter(|nth| *nth < extent.count) else {
            return (0, 0);
        };
        let offset = u64::from(nth) * BLOCK_BYTES;
        (offset, (extent.size - offset).min(BLOCK_BYTES))
    }

    /// Bytes of page cache that a block takes: whole pages.
    pub fn pages_bytes(&self, block: BlockId) -> u64 {
        self.range(block).1.next_multiple_of(self.page_bytes)
    }

    /// Bytes that a block takes in a tier below RAM: whole units of the store, and its record.
    pub fn stored_bytes(&self, block: BlockId) -> u64 {
        self.range(block).1.next_multiple_of(PAGE_BYTES) + RECORD_BYTES
    }

    pub fn pages_bytes_of_all(&self) -> u64 {
        self.pages_bytes
    }

    /// Most bytes that all blocks would take in a tier below RAM.
    pub fn stored_bytes_of_all(&self) -> u64 {
        let stored = |extent: &Extent| {
            let headers = u64::from(extent.count) * (RECORD_BYTES + PAGE_BYTES);
            extent.size + headers
        };
        self.files.iter().map(stored).sum()
    }

    /// Mean bytes of page cache that a file takes, at least one page.
    pub fn mean_file_bytes(&self) -> u64 {
        self.mean_over(self.files.len() as u64)
    }

    /// Mean of [`pages_bytes`](Self::pages_bytes) over all blocks, at least one page.
    pub fn mean_pages_bytes(&self) -> u64 {
        self.mean_over(self.counted)
    }

    fn mean_over(&self, count: u64) -> u64 {
        self.pages_bytes.checked_div(count).unwrap_or_default().max(self.page_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_one_block_and_empty_ones_none() {
        let layout = Layout::new([10, 0, BLOCK_BYTES, BLOCK_BYTES + 1]);
        assert_eq!(layout.blocks(), 4);
        assert_eq!(layout.blocks_of(FileId(0)).collect::<Vec<_>>(), [BlockId(0)]);
        assert_eq!(layout.blocks_of(FileId(1)).len(), 0);
        assert_eq!(layout.blocks_of(FileId(3)).collect::<Vec<_>>(), [BlockId(2), BlockId(3)]);
        assert_eq!(layout.range(BlockId(3)), (BLOCK_BYTES, 1));
        assert_eq!(layout.pages_bytes(BlockId(3)), PAGE_BYTES);
    }

    #[test]
    fn a_range_covers_its_blocks_and_stops_at_the_end() {
        let layout = Layout::new([3 * BLOCK_BYTES]);
        let blocks = |o, l| layout.blocks_in(FileId(0), o, l).map(|b| b.0).collect::<Vec<_>>();
        assert_eq!(blocks(0, 1), [0]);
        assert_eq!(blocks(BLOCK_BYTES - 1, 2), [0, 1]);
        assert_eq!(blocks(2 * BLOCK_BYTES, u64::MAX), [2]);
        assert!(blocks(3 * BLOCK_BYTES, 1).is_empty());
    }

    #[test]
    fn the_whole_is_the_sum_of_its_files() {
        let mut layout = Layout::new([10, BLOCK_BYTES + 1, 0]);
        assert_eq!(layout.pages_bytes_of_all(), BLOCK_BYTES + 2 * PAGE_BYTES);
        assert_eq!(layout.mean_pages_bytes(), (BLOCK_BYTES + 2 * PAGE_BYTES) / 3);
        layout.resize(FileId(1), 5 * PAGE_BYTES);
        layout.resize(FileId(0), 0);
        assert_eq!(layout.pages_bytes_of_all(), 5 * PAGE_BYTES);
        assert_eq!(layout.mean_pages_bytes(), 5 * PAGE_BYTES);
    }

    #[test]
    fn ram_is_charged_in_pages_of_the_kernel_and_the_store_in_units_of_its_own() {
        let layout = Layout::with_pages(64 << 10, [10, BLOCK_BYTES + 1]);
        assert_eq!(layout.pages_bytes(BlockId(0)), 64 << 10);
        assert_eq!(layout.pages_bytes_of_all(), BLOCK_BYTES + 2 * (64 << 10));
        assert_eq!(layout.stored_bytes(BlockId(0)), PAGE_BYTES + RECORD_BYTES);
    }

    #[test]
    fn a_file_that_grows_moves_and_one_that_shrinks_stays() {
        let mut layout = Layout::new([10, 10]);
        layout.resize(FileId(0), 2 * BLOCK_BYTES);
        assert_eq!(layout.blocks_of(FileId(0)).map(|b| b.0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(layout.range(BlockId(0)), (0, 0), "the old block is left behind");
        let has: Vec<bool> = (0..5).map(|block| layout.has(BlockId(block))).collect();
        assert_eq!(has, [false, true, true, true, false]);
        layout.resize(FileId(0), 5);
        assert_eq!(layout.blocks_of(FileId(0)).map(|b| b.0).collect::<Vec<_>>(), [2]);
        assert_eq!(layout.range(BlockId(1)), (0, 10), "the neighbour keeps its number");
    }
}

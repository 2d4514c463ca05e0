//! Cuts files into blocks.
//!
//! Files and blocks are dense numbers. A file owns the consecutive blocks `first .. first + count`; an
//! empty file owns none. A file that outgrows its blocks gets new ones at the end and leaves its old ones
//! behind, so that the numbers of all other blocks stay.
//!
//! The size of a file may be a guess, until the file was read. If it then has as many blocks as was guessed, what they
//! take in RAM and in a store is counted by the guess as before. So a planner may go on with an earlier layout.

use super::parted::Parted;
use crate::ids::{BLOCK_BYTES, BlockId, FileId, PAGE_BYTES};

/// Bytes of a block's record in a tier below RAM, with its share of the dead records of the index.
const RECORD_BYTES: u64 = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    first: u32,
    count: u32,
    size: u64,
    /// The size by which the blocks are counted.
    counted: u64,
}

impl Extent {
    /// Offset and length of the nth block of a file of so many bytes.
    fn range(nth: u32, size: u64) -> (u64, u64) {
        let offset = u64::from(nth) * BLOCK_BYTES;
        (offset, size.saturating_sub(offset).min(BLOCK_BYTES))
    }

    /// Which block of the file it is.
    fn nth(&self, block: BlockId) -> Option<u32> {
        block.0.checked_sub(self.first).filter(|nth| *nth < self.count)
    }
}

fn blocks_in_all(size: u64) -> u32 {
    u32::try_from(size.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX)
}

/// The blocks of each file, and their lengths. A clone shares most of them.
#[derive(Clone, Debug)]
pub struct Layout {
    files: Parted<Extent>,
    file_of: Parted<FileId>,
    /// Bytes of a page of the kernel.
    page_bytes: u64,
    /// Bytes, bytes of page cache and blocks of all files together.
    bytes: u64,
    pages_bytes: u64,
    blocks_counted: u64,
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
            files: Parted::default(),
            file_of: Parted::default(),
            page_bytes,
            bytes: 0,
            pages_bytes: 0,
            blocks_counted: 0,
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
        let (count, mut extent) = (blocks_in_all(size), self.files[file.index()]);
        let pages = |size: u64| size.next_multiple_of(self.page_bytes);
        self.bytes = self.bytes - extent.counted + size;
        self.pages_bytes = self.pages_bytes - pages(extent.counted) + pages(size);
        self.blocks_counted = self.blocks_counted - u64::from(extent.count) + u64::from(count);
        if count > extent.count {
            extent.first = self.file_of.len() as u32;
            (0..count).for_each(|_| self.file_of.push(file));
        }
        *self.files.at_mut(file.index()) = Extent { count, size, counted: size, ..extent };
    }

    /// Sets the size of a file of which it was a guess. Returns whether the file has other blocks than before.
    pub fn set_size(&mut self, file: FileId, size: u64) -> bool {
        if blocks_in_all(size) != self.files[file.index()].count {
            self.resize(file, size);
            return true;
        }
        self.changes += 1;
        self.files.at_mut(file.index()).size = size;
        false
    }

    pub fn is_later(&self, than: &Layout) -> bool {
        self.changes > than.changes
    }

    /// The files whose blocks, or the sizes by which they are counted, differ in a later layout.
    pub fn moved(&self, later: &Layout) -> Vec<FileId> {
        let blocks = |it: &Extent| (it.first, it.count, it.counted);
        let differs = |(index, pair): (usize, (&Extent, &Extent))| {
            (blocks(pair.0) != blocks(pair.1)).then_some(FileId(index as u32))
        };
        self.files.iter().zip(later.files.iter()).enumerate().filter_map(differs).collect()
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
        let extent = self.extent_of(block);
        extent.nth(block).map_or((0, 0), |nth| Extent::range(nth, extent.size))
    }

    /// The bytes by which a block is counted.
    fn counted(&self, block: BlockId) -> u64 {
        let extent = self.extent_of(block);
        extent.nth(block).map_or(0, |nth| Extent::range(nth, extent.counted).1)
    }

    fn extent_of(&self, block: BlockId) -> Extent {
        self.files[self.file_of(block).index()]
    }

    /// Bytes of page cache that a block takes: whole pages.
    pub fn pages_bytes(&self, block: BlockId) -> u64 {
        self.counted(block).next_multiple_of(self.page_bytes)
    }

    /// Bytes that a block takes in a tier below RAM: whole units of the store, and its record.
    pub fn stored_bytes(&self, block: BlockId) -> u64 {
        self.counted(block).next_multiple_of(PAGE_BYTES) + RECORD_BYTES
    }

    /// Bytes of all files.
    pub fn bytes_of_all(&self) -> u64 {
        self.bytes
    }

    pub fn pages_bytes_of_all(&self) -> u64 {
        self.pages_bytes
    }

    /// Most bytes that all blocks would take in a tier below RAM.
    pub fn stored_bytes_of_all(&self) -> u64 {
        self.bytes + self.blocks_counted * (RECORD_BYTES + PAGE_BYTES)
    }

    /// Mean bytes of page cache that a file takes, at least one page.
    pub fn mean_file_bytes(&self) -> u64 {
        self.mean_over(self.files.len() as u64)
    }

    /// Mean of [`pages_bytes`](Self::pages_bytes) over all blocks, at least one page.
    pub fn mean_pages_bytes(&self) -> u64 {
        self.mean_over(self.blocks_counted)
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
    fn a_size_that_was_guessed_is_set_in_place() {
        let guessed = Layout::new([100, BLOCK_BYTES + 1]);
        let mut known = guessed.clone();
        assert!(!known.set_size(FileId(0), PAGE_BYTES + 1), "it has one block, as was guessed");
        assert_eq!(known.range(BlockId(0)), (0, PAGE_BYTES + 1));
        assert_eq!(known.pages_bytes(BlockId(0)), PAGE_BYTES, "it is counted as before");
        assert_eq!(known.stored_bytes(BlockId(0)), guessed.stored_bytes(BlockId(0)));
        assert_eq!(known.pages_bytes_of_all(), guessed.pages_bytes_of_all());
        assert!(known.is_later(&guessed) && guessed.moved(&known).is_empty());
        let asked: Vec<_> = known.blocks_in(FileId(0), PAGE_BYTES, 1).collect();
        assert_eq!(
            (asked, guessed.blocks_in(FileId(0), PAGE_BYTES, 1).len()),
            (vec![BlockId(0)], 0)
        );
        for (file, size, blocks) in
            [(FileId(1), 7, 1), (FileId(0), 3 * BLOCK_BYTES, 3), (FileId(0), 0, 0)]
        {
            let before = known.clone();
            assert!(known.set_size(file, size));
            assert_eq!((known.blocks_of(file).len(), before.moved(&known)), (blocks, vec![file]));
        }
        assert_eq!(known.pages_bytes_of_all(), PAGE_BYTES);
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

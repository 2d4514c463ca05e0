//! Cuts files into blocks.
//!
//! Files and blocks are dense numbers. A file owns the consecutive blocks `first .. first + count`; an
//! empty file owns none. A file that outgrows its blocks gets new ones at the end and leaves its old ones
//! behind, so that the numbers of all other blocks stay.
//!
//! A large file may be cut where its samples begin and end (`cuts`). Then each of its blocks is a *slice*. It is
//! read by itself, as a small file is.
//!
//! The size of a file may be a guess, until the file was read. If it then has as many blocks as was guessed, what they
//! take in RAM and in a store is counted by the guess as before. So a planner may go on with an earlier layout.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::cuts::Cuts;
use super::parted::Parted;
use crate::ids::{BLOCK_BYTES, BlockId, FileId, PAGE_BYTES, PageRange};
use crate::order::{Order, SampleTable};

/// Bytes of a block's record in a tier below RAM, with its share of the dead records of the index.
const RECORD_BYTES: u64 = 128;

/// As many blocks can have numbers of slices.
const SLICES_MAX: u64 = 1 << 31;

/// Blocks that files may have left behind by cuts, beside four times as many as there are.
const LEFT_BEHIND_MAX: u64 = 1 << 22;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    first: u32,
    count: u32,
    size: u64,
    /// The size by which the blocks are counted.
    counted: u64,
    is_cut: bool,
    /// Whether it lies right behind the file before it in number, in a larger file of the source.
    is_behind: bool,
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
    /// The cuts of the files that are cut.
    cuts: Arc<BTreeMap<FileId, Arc<Cuts>>>,
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
            cuts: Arc::default(),
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
        if count > extent.count || extent.is_cut {
            extent.first = self.add_blocks(file, count);
            Arc::make_mut(&mut self.cuts).remove(&file);
        }
        *self.files.at_mut(file.index()) =
            Extent { first: extent.first, count, size, counted: size, ..Extent::default() };
    }

    /// Numbers new blocks of a file. Returns the first number.
    fn add_blocks(&mut self, file: FileId, count: u32) -> u32 {
        let first = self.file_of.len() as u32;
        (0..count).for_each(|_| self.file_of.push(file));
        first
    }

    /// Cuts each file of several blocks where the samples of an order begin and end, and leaves its old blocks
    /// behind. Returns the files that have other blocks than before. `is_sized` says of a file whether its size is
    /// known.
    pub fn cut_along(&mut self, order: &Order, is_sized: impl Fn(FileId) -> bool) -> Vec<FileId> {
        let SampleTable::Ranges(ranges) = order.samples() else { return Vec::new() };
        let mut samples: BTreeMap<FileId, Vec<Range<u64>>> = BTreeMap::new();
        for range in ranges.iter().filter(|range| self.size_of(range.file) > BLOCK_BYTES) {
            let bytes = range.offset..range.offset.saturating_add(range.length);
            samples.entry(range.file).or_default().push(bytes);
        }
        samples.retain(|file, samples| is_sized(*file) && self.cut(*file, std::mem::take(samples)));
        samples.into_keys().collect()
    }

    fn size_of(&self, file: FileId) -> u64 {
        self.files.get(file.index()).map_or(0, |extent| extent.size)
    }

    fn cut(&mut self, file: FileId, samples: Vec<Range<u64>>) -> bool {
        let Extent { size, counted, .. } = self.files[file.index()];
        if counted != size {
            self.resize(file, size);
        }
        let count = self.files[file.index()].count;
        let earlier = self.cuts.get(&file);
        // A file that is one sample is read from its start to its end.
        let is_whole = samples.iter().any(|sample| sample.start == 0 && sample.end >= size);
        let cuts = Cuts::along(samples, size, self.page_bytes, earlier.map(Arc::as_ref));
        let is_new = |cuts: &Cuts| earlier.is_none_or(|earlier| **earlier != *cuts);
        let numbers = |cuts: &Cuts| self.file_of.len() as u64 + u64::from(cuts.blocks());
        let most = SLICES_MAX.min(5 * self.blocks_counted + LEFT_BEHIND_MAX);
        let is_fit = |cuts: &Cuts| !is_whole && is_new(cuts) && numbers(cuts) <= most;
        let Some(cuts) = cuts.filter(is_fit) else { return false };
        self.changes += 1;
        self.blocks_counted = self.blocks_counted - u64::from(count) + u64::from(cuts.blocks());
        let (first, count) = (self.add_blocks(file, cuts.blocks()), cuts.blocks());
        *self.files.at_mut(file.index()) =
            Extent { first, count, size, counted: size, is_cut: true, is_behind: false };
        Arc::make_mut(&mut self.cuts).insert(file, Arc::new(cuts));
        true
    }

    /// Notes which files lie right behind the file before them in number, in a larger file of the source. Says whether
    /// that is news.
    pub fn set_neighbours(&mut self, is_behind: impl Fn(FileId) -> bool) -> bool {
        let all = (0..self.files.len() as u32).map(FileId);
        let is_new = |file: &FileId| self.files[file.index()].is_behind != is_behind(*file);
        let changed: Vec<FileId> = all.filter(is_new).collect();
        for file in &changed {
            self.files.at_mut(file.index()).is_behind ^= true;
        }
        self.changes += u64::from(!changed.is_empty());
        !changed.is_empty()
    }

    /// Whether a block lies right behind the block before it in number: in the same file, or as the only block of a
    /// file that lies behind another one of one block.
    pub(super) fn is_behind_another(&self, block: BlockId) -> bool {
        let before = block.0.checked_sub(1).map(BlockId);
        let Some(before) = before.filter(|before| self.has(*before) && self.has(block)) else {
            return false;
        };
        let [one, other] = [before, block].map(|block| self.file_of(block));
        let [extent, next] = [before, block].map(|block| self.extent_of(block));
        let are_small = (extent.count, next.count) == (1, 1);
        one == other || one.0 + 1 == other.0 && are_small && next.is_behind
    }

    /// Whether a block is the first one of its file.
    pub(super) fn begins_file(&self, block: BlockId) -> bool {
        self.extent_of(block).first == block.0
    }

    fn cuts_of(&self, file: FileId) -> Option<&Cuts> {
        let is_cut = self.files.get(file.index()).is_some_and(|extent| extent.is_cut);
        if is_cut { self.cuts.get(&file).map(Arc::as_ref) } else { None }
    }

    pub fn is_cut(&self, file: FileId) -> bool {
        self.cuts_of(file).is_some()
    }

    pub(super) fn has_slices(&self) -> bool {
        !self.cuts.is_empty()
    }

    /// The slice that a block is, or else the file of the block.
    pub fn unit_of(&self, block: BlockId) -> FileId {
        let file = self.file_of(block);
        if self.is_cut(file) { FileId::slice(block) } else { file }
    }

    /// All files that are not cut, and all slices.
    pub(super) fn units(&self) -> impl Iterator<Item = FileId> + '_ {
        let files = (0..self.files.len() as u32).map(FileId).filter(|file| !self.is_cut(*file));
        let slices = self.cuts.keys().flat_map(|file| {
            let extent = self.files[file.index()];
            (extent.first..extent.first + extent.count).map(BlockId)
        });
        files.chain(slices.map(FileId::slice))
    }

    /// The pages of a slice without those that the slices before and after it have as well, if these are `there`.
    /// `None` if the block is no slice, or if no page is left.
    pub fn pages_without(&self, block: BlockId, there: [bool; 2]) -> Option<PageRange> {
        let nth = self.extent_of(block).nth(block)?;
        let (pages, shared) = self.cuts_of(self.file_of(block))?.pages(nth);
        let [before, after] = [0, 1].map(|side| if there[side] { shared[side] } else { 0 });
        let count = pages.checked_sub(before + after).filter(|count| *count > 0)?;
        let units = (self.page_bytes / PAGE_BYTES) as u32;
        Some(PageRange { first: (before * units) as u16, count: (count * units) as u16 })
    }

    /// How many blocks of its file, or of its slice, lie before a block.
    pub(super) fn nth_of(&self, block: BlockId) -> u32 {
        let extent = self.extent_of(block);
        if extent.is_cut { 0 } else { extent.nth(block).unwrap_or_default() }
    }

    /// Bytes from the start of a block to its probe, the page that is left out so that the block's read is seen. The
    /// probe of a slice is its first page that no other slice has. The probe of another block of a large file is its
    /// first page. A file's first block has none, since the open of the file is seen.
    pub fn probe_in(&self, block: BlockId) -> Option<u64> {
        if self.is_cut(self.file_of(block)) {
            return self.pages_without(block, [true; 2]).map(|own| own.offset());
        }
        self.extent_of(block).nth(block).filter(|nth| *nth > 0).map(|_| 0)
    }

    /// Bytes of pages that a slice shares with the slices before and after it.
    pub(crate) fn shared_beside(&self, block: BlockId) -> [u64; 2] {
        let nth = self.extent_of(block).nth(block);
        let shared =
            nth.zip(self.cuts_of(self.file_of(block))).map(|(nth, cuts)| cuts.pages(nth).1);
        shared.unwrap_or_default().map(|pages| u64::from(pages) * self.page_bytes)
    }

    /// The slices before and after a slice.
    pub(crate) fn neighbours(&self, block: BlockId) -> [Option<BlockId>; 2] {
        let extent = self.extent_of(block);
        let is_one = |block: &BlockId| extent.nth(*block).is_some();
        [block.0.checked_sub(1), block.0.checked_add(1)].map(|it| it.map(BlockId).filter(is_one))
    }

    /// Sets the size of a file of which it was a guess. Returns whether the file has other blocks than before.
    pub fn set_size(&mut self, file: FileId, size: u64) -> bool {
        let extent = self.files[file.index()];
        if blocks_in_all(size) != extent.count || extent.is_cut {
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

    /// The blocks of a file, in the order of its bytes, or the block that a slice is.
    pub fn blocks_of(
        &self,
        file: FileId,
    ) -> impl ExactSizeIterator<Item = BlockId> + Clone + use<> {
        let blocks = match file.as_slice() {
            Some(block) => block.0..block.0 + 1,
            None => {
                let extent = self.files.get(file.index()).copied().unwrap_or_default();
                extent.first..extent.first + extent.count
            }
        };
        blocks.map(BlockId)
    }

    /// The blocks that hold a byte range of a file; a range past its end holds none.
    pub fn blocks_in(
        &self,
        file: FileId,
        offset: u64,
        length: u64,
    ) -> impl ExactSizeIterator<Item = BlockId> + Clone + use<> {
        let extent = self.files.get(file.index()).copied().unwrap_or_default();
        let bytes = offset..offset.saturating_add(length).min(extent.size);
        let nths = match self.cuts_of(file) {
            _ if bytes.is_empty() => 0..0,
            Some(cuts) => cuts.blocks_in(&bytes),
            None => (offset / BLOCK_BYTES) as u32..bytes.end.div_ceil(BLOCK_BYTES) as u32,
        };
        (extent.first + nths.start..extent.first + nths.end).map(BlockId)
    }

    /// The slice before a slice, if it holds this byte range of the file as well.
    pub fn also_in(&self, block: BlockId, range: &Range<u64>) -> Option<BlockId> {
        let is_slice = self.is_cut(self.file_of(block));
        let before = if is_slice { self.neighbours(block)[0]? } else { return None };
        let (offset, length) = self.range(before);
        (offset <= range.start && range.end <= offset + length).then_some(before)
    }

    /// The blocks that hold a byte range of a file, each with the bytes of the range that are read from it, counted
    /// from its start. A byte that two blocks hold is read from the second one.
    pub fn pieces(&self, file: FileId, range: &Range<u64>) -> Vec<(BlockId, Range<u64>)> {
        let length = range.end.saturating_sub(range.start);
        let blocks = self.blocks_in(file, range.start, length);
        let mut starts = blocks.clone().skip(1).map(|next| self.range(next).0);
        let piece = |block: BlockId| {
            let (offset, length) = self.range(block);
            let end = starts.next().unwrap_or(offset + length).min(range.end);
            (block, range.start.max(offset) - offset..end - offset)
        };
        blocks.map(piece).collect()
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
        let (extent, cuts) = (self.extent_of(block), self.cuts_of(self.file_of(block)));
        let range = |nth| match cuts {
            Some(cuts) => cuts.range(nth, extent.size),
            None => Extent::range(nth, extent.size),
        };
        extent.nth(block).map_or((0, 0), range)
    }

    /// The bytes by which a block is counted.
    fn counted(&self, block: BlockId) -> u64 {
        let extent = self.extent_of(block);
        if extent.is_cut {
            return self.range(block).1;
        }
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
    use crate::order::FileRange;

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

    fn order_of(ranges: &[(u32, u64, u64)]) -> Order {
        let range = |&(file, offset, length): &(u32, u64, u64)| FileRange {
            file: FileId(file),
            offset,
            length,
        };
        let table = SampleTable::Ranges(ranges.iter().map(range).collect());
        let epoch: Arc<[u32]> = (0..ranges.len() as u32).collect();
        Order::listed("ranges", vec![epoch], table).unwrap()
    }

    #[test]
    fn a_large_file_is_cut_along_the_samples_of_an_order() {
        let mut layout = Layout::new([10, 3 * BLOCK_BYTES, BLOCK_BYTES + 1]);
        let before = layout.clone();
        let order = order_of(&[(0, 0, 5), (1, 5000, 5000), (1, 10_000, 90_000), (2, 0, u64::MAX)]);
        assert_eq!(
            layout.cut_along(&order, |_| true),
            [FileId(1)],
            "the others are small, or one sample"
        );
        assert!(layout.is_later(&before) && before.moved(&layout) == [FileId(1)]);
        let first = layout.blocks_of(FileId(1)).next().unwrap();
        let sample = BlockId(first.0 + 1);
        assert_eq!(layout.range(sample), (PAGE_BYTES, 2 * PAGE_BYTES));
        assert_eq!(layout.blocks_in(FileId(1), 5000, 5000).collect::<Vec<_>>(), [sample]);
        assert_eq!(
            (layout.file_of(sample), layout.unit_of(sample)),
            (FileId(1), FileId::slice(sample))
        );
        assert_eq!(layout.unit_of(BlockId(0)), FileId(0));
        assert!(layout.blocks_of(FileId::slice(sample)).eq([sample]));
        let without = |there| layout.pages_without(sample, there);
        assert_eq!(without([true, true]), Some(PageRange { first: 0, count: 1 }));
        assert_eq!(without([true, false]), Some(PageRange { first: 0, count: 2 }));
        assert_eq!(layout.pages_without(BlockId(0), [false, false]), None, "it is no slice");
        assert_eq!(layout.probe_in(sample), Some(0), "its second page is shared");
        let of_whole = layout.blocks_of(FileId(2)).map(|block| layout.probe_in(block));
        assert_eq!(of_whole.collect::<Vec<_>>(), [None, Some(0)], "an open shows the first one");
        assert_eq!(layout.probe_in(BlockId(0)), None);
        assert_eq!(layout.range(BlockId(1)), (0, 0), "its file has left it behind");
        assert_eq!(layout.also_in(BlockId(sample.0 + 1), &(9_000..9_001)), Some(sample));
        assert_eq!(layout.also_in(BlockId(sample.0 + 1), &(9_000..19_001)), None);
        let pieces = layout.pieces(FileId(1), &(9_000..20_000));
        assert_eq!(
            pieces[0],
            (BlockId(sample.0 + 1), 9_000 - 2 * PAGE_BYTES..20_000 - 2 * PAGE_BYTES)
        );
        let pieces = layout.pieces(FileId(1), &(1_000..20_000));
        assert_eq!(
            pieces,
            [
                (first, 1_000..PAGE_BYTES),
                (sample, 0..PAGE_BYTES),
                (BlockId(sample.0 + 1), 0..20_000 - 2 * PAGE_BYTES)
            ]
        );
        assert_eq!(layout.units().filter(|unit| unit.as_slice().is_none()).count(), 2);
        assert_eq!(layout.pages_bytes_of_all(), before.pages_bytes_of_all());
        assert_eq!(layout.shared_beside(sample), [0, PAGE_BYTES], "the samples share a page");
        assert!(layout.cut_along(&order, |_| true).is_empty(), "it is cut already");
        let mut guessed = before.clone();
        assert!(guessed.cut_along(&order, |_| false).is_empty(), "its size is a guess");
        layout.resize(FileId(1), 2 * BLOCK_BYTES);
        assert!(!layout.is_cut(FileId(1)) && layout.blocks_of(FileId(1)).len() == 2);
        assert_eq!(layout.range(sample), (0, 0));
        assert_eq!(layout.pages_bytes_of_all(), before.pages_bytes_of_all() - BLOCK_BYTES);
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
    fn files_lie_behind_each_other_as_long_as_they_stay_as_they_are() {
        let mut layout = Layout::new([10, BLOCK_BYTES + 1, 0, 10, 10, 10]);
        let behind = |layout: &Layout| -> Vec<u32> {
            (0..10).filter(|block| layout.is_behind_another(BlockId(*block))).collect()
        };
        assert_eq!(behind(&layout), [2], "a file lies in one piece");
        let before = layout.clone();
        assert!(layout.set_neighbours(|file| file.0 != 4) && layout.is_later(&before));
        assert!(before.moved(&layout).is_empty());
        // The empty file has no block, and so the file behind it follows none.
        assert_eq!(behind(&layout), [2, 5]);
        assert!(!layout.set_neighbours(|file| file.0 != 4));
        layout.resize(FileId(0), 3 * BLOCK_BYTES);
        assert_eq!(behind(&layout), [2, 5, 7, 8], "its blocks have other numbers");
        layout.resize(FileId(5), 9);
        assert_eq!(behind(&layout), [2, 7, 8], "it is another version");
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

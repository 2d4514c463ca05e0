//! Checksums of what was handed out: of blocks, and of pages of blocks that are read in parts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ids::{BLOCK_BYTES, BlockId, PAGE_BYTES, PageRange};
use crate::sync::{Mutex, RwLock};

/// By block, the CRC-32C of its bytes that were handed out last. It takes four bytes a block, up to the
/// last block that has one. 0 stands for none, and a checksum of 0 is taken for 1. Threads set checksums
/// without waiting for each other.
#[derive(Debug, Default)]
pub(super) struct Sums(RwLock<Vec<AtomicU32>>);

impl Sums {
    fn get(&self, block: BlockId) -> u32 {
        let sums = self.0.read();
        sums.get(block.index()).map_or(0, |sum| sum.load(Ordering::Acquire))
    }

    /// Whether a block has a checksum.
    pub(super) fn has(&self, block: BlockId) -> bool {
        self.get(block) != 0
    }

    /// Whether this is the checksum of a block.
    pub(super) fn is(&self, block: BlockId, sum: u32) -> bool {
        self.get(block) == sum.max(1)
    }

    /// Sets the checksum of a block.
    pub(super) fn set(&self, block: BlockId, sum: u32) {
        let sums = self.0.read();
        if let Some(slot) = sums.get(block.index()) {
            return slot.store(sum.max(1), Ordering::Release);
        }
        drop(sums);
        let mut sums = self.0.write();
        let length = sums.len().max((block.index() + 1).next_power_of_two());
        sums.resize_with(length, AtomicU32::default);
        sums[block.index()].store(sum.max(1), Ordering::Release);
    }

    /// A block has no checksum any more.
    pub(super) fn forget(&self, block: BlockId) {
        let sums = self.0.read();
        if let Some(slot) = sums.get(block.index()) {
            slot.store(0, Ordering::Release);
        }
    }
}

const PAGES: usize = (BLOCK_BYTES / PAGE_BYTES) as usize;

/// Blocks whose pages may have checksums.
const BLOCKS_MAX: usize = 4096;

/// Consecutive pages of a block, each with the CRC-32C of its bytes, of which 0 is taken for 1.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    first: u16,
    sums: Vec<u32>,
}

impl Pages {
    /// Those of these bytes of a block; without `pages` they are all of it.
    pub(super) fn of(pages: Option<PageRange>, bytes: &[u8]) -> Self {
        let sum = |page: &[u8]| crc32c::crc32c(page).max(1);
        let sums = bytes.chunks(PAGE_BYTES as usize).map(sum).collect();
        Pages { first: pages.map_or(0, |pages| pages.first), sums }
    }

    fn each(&self) -> impl Iterator<Item = (usize, u32)> {
        (usize::from(self.first)..PAGES).zip(self.sums.iter().copied())
    }
}

/// By block, the checksums of its pages that were handed out last; 0 stands for none.
type Blocks = BTreeMap<BlockId, Box<[u32; PAGES]>>;

/// The checksums of pages that were handed out of blocks that are read in parts: a kibibyte for each such
/// block, of at most [`BLOCKS_MAX`]. Of a file with more blocks than are compared none are kept.
#[derive(Debug, Default)]
pub(super) struct PageSums(Mutex<Blocks>);

impl PageSums {
    /// Whether a page of the block has a checksum.
    pub(super) fn has(&self, block: BlockId) -> bool {
        self.0.lock().contains_key(&block)
    }

    /// Whether none of these pages has another checksum than this.
    pub(super) fn agree(&self, block: BlockId, pages: &Pages) -> bool {
        let blocks = self.0.lock();
        let Some(known) = blocks.get(&block) else { return true };
        pages.each().all(|(page, sum)| known[page] == 0 || known[page] == sum)
    }

    /// Notes checksums of a block, which is one of these of its file: `most` of them may have some. Says
    /// whether there is room.
    pub(super) fn note(
        &self,
        block: BlockId,
        pages: &Pages,
        of: Range<BlockId>,
        most: usize,
    ) -> bool {
        let mut blocks = self.0.lock();
        let is_new = !blocks.contains_key(&block);
        if is_new && (blocks.len() >= BLOCKS_MAX || blocks.range(of).count() >= most) {
            return false;
        }
        let known = blocks.entry(block).or_insert_with(|| Box::new([0; PAGES]));
        pages.each().for_each(|(page, sum)| known[page] = sum);
        true
    }

    /// A block has no checksums any more.
    pub(super) fn forget(&self, block: BlockId) {
        self.0.lock().remove(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_checksum_that_was_set_last() {
        let (sums, block) = (Sums::default(), BlockId(70));
        assert!(!sums.has(block) && !sums.is(block, 0));
        for sum in [7, 0] {
            sums.set(block, sum);
            assert!(sums.has(block) && sums.is(block, sum) && !sums.is(block, 8));
        }
        assert!(!sums.has(BlockId(69)));
        sums.forget(block);
        sums.forget(BlockId(1000));
        assert!(!sums.has(block));
    }

    fn pages(first: u16, bytes: &[u8]) -> Pages {
        Pages::of(Some(PageRange { first, count: 1 }), bytes)
    }

    #[test]
    fn pages_are_compared_with_those_that_were_noted() {
        let (sums, block, file) = (PageSums::default(), BlockId(7), BlockId(6)..BlockId(9));
        assert!(sums.agree(block, &pages(3, b"any")) && !sums.has(block));
        assert!(sums.note(block, &pages(3, b"some"), file.clone(), 1));
        assert!(sums.has(block) && sums.agree(block, &pages(3, b"some")));
        assert!(!sums.agree(block, &pages(3, b"same")) && sums.agree(block, &pages(4, b"same")));
        let mut whole = vec![0; 5 * PAGE_BYTES as usize];
        assert!(!sums.agree(block, &Pages::of(None, &whole)));
        let page = whole[3 * PAGE_BYTES as usize..4 * PAGE_BYTES as usize].to_vec();
        assert!(sums.note(block, &pages(3, &page), file.clone(), 1));
        assert!(sums.agree(block, &Pages::of(None, &whole)));
        whole[3 * PAGE_BYTES as usize] = 1;
        assert!(!sums.agree(block, &Pages::of(None, &whole)));
        assert!(!sums.note(BlockId(8), &pages(0, b"more"), file, 1), "its file has one");
        sums.forget(block);
        assert!(!sums.has(block));
    }

    #[test]
    fn there_is_an_end_to_the_memory_that_they_take() {
        let sums = PageSums::default();
        let note = |block: u32| {
            let of = BlockId(block)..BlockId(block + 1);
            sums.note(BlockId(block), &pages(0, b"page"), of, 9)
        };
        assert!((0..BLOCKS_MAX as u32).all(note));
        assert!(!note(BLOCKS_MAX as u32) && note(0));
        sums.forget(BlockId(5));
        assert!(note(BLOCKS_MAX as u32));
    }
}

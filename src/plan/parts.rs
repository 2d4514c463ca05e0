//! Accounts for the pages in RAM of blocks that are read in parts (`divided`).
//!
//! A part is charged to RAM by its pages, beside kept and staged blocks, and gives way to both. If RAM is
//! full, the parts that came first go, one section of a block at a time. The planner does not know how
//! often a page is used, since reads that find it are not seen.
//!
//! If orders cover few of the reads, parts have a small share of RAM. There, blocks that this epoch has read
//! give way to them. Otherwise a mapping's pages would be dropped before they are used, and fetched again and
//! again.

use std::collections::BTreeMap;

use crate::ids::{BlockId, PAGE_BYTES, PageRange};

pub(super) const BLOCK_PAGES: u64 = crate::ids::BLOCK_BYTES / PAGE_BYTES;

/// Pages of a section, which are dropped together: as many as the kernel reads ahead by default.
const SECTION_PAGES: u16 = 32;

const SECTIONS: usize = (BLOCK_PAGES as usize).div_ceil(SECTION_PAGES as usize);

/// Most bytes of parts for which blocks that this epoch has read give way: a section for each of 32 readers,
/// and at most one in `USED_PART` bytes of RAM.
const USED_MAX: u64 = 32 * SECTION_PAGES as u64 * PAGE_BYTES;
const USED_PART: u64 = 8;

/// The pages of a section of a block that were read.
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    /// One bit a page.
    pages: u32,
    /// Its place in the queue, if it has any page.
    place: u64,
}

impl Section {
    fn bytes(self) -> u64 {
        u64::from(self.pages.count_ones()) * PAGE_BYTES
    }
}

#[derive(Debug, Default)]
pub(super) struct Parts {
    blocks: BTreeMap<BlockId, [Section; SECTIONS]>,
    /// The sections that have pages, by block and section number, in the order of their first pages.
    queue: BTreeMap<u64, (BlockId, usize)>,
    next_place: u64,
    pub(super) bytes: u64,
}

impl Parts {
    /// Adds pages of a block. Returns the bytes of this block's parts.
    pub(super) fn add(&mut self, block: BlockId, pages: PageRange) -> u64 {
        let sections = self.blocks.entry(block).or_default();
        for page in pages.iter().filter(|page| u64::from(*page) < BLOCK_PAGES) {
            let number = usize::from(page / SECTION_PAGES);
            let section = &mut sections[number];
            if section.pages == 0 {
                section.place = self.next_place;
                self.queue.insert(self.next_place, (block, number));
                self.next_place += 1;
            }
            let bit = 1 << (page % SECTION_PAGES);
            self.bytes += if section.pages & bit == 0 { PAGE_BYTES } else { 0 };
            section.pages |= bit;
        }
        sections.iter().map(|section| section.bytes()).sum()
    }

    /// Removes all parts of a block.
    pub(super) fn forget(&mut self, block: BlockId) {
        for section in self.blocks.remove(&block).into_iter().flatten() {
            if section.pages != 0 {
                self.queue.remove(&section.place);
                self.bytes -= section.bytes();
            }
        }
    }

    /// Removes the section that came first.
    pub(super) fn pop(&mut self) -> Option<(BlockId, PageRange)> {
        let (_, (block, number)) = self.queue.pop_first()?;
        let sections = self.blocks.get_mut(&block)?;
        self.bytes -= std::mem::take(&mut sections[number]).bytes();
        if sections.iter().all(|section| section.pages == 0) {
            self.blocks.remove(&block);
        }
        Some((block, PageRange { first: number as u16 * SECTION_PAGES, count: SECTION_PAGES }))
    }

    /// The bytes of parts for which kept blocks leave room, in RAM of this capacity.
    pub(super) fn reserved(&self, capacity: u64) -> u64 {
        self.bytes.min(USED_MAX).min(capacity / USED_PART)
    }
}

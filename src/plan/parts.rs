//! What RAM has of blocks that are read in parts (`divided`).
//!
//! A part is charged to RAM by its pages, beside what is kept and staged, and gives way to both. If RAM is
//! full, those go that came first, a section of a block at a time. How often pages are used is not known:
//! reads that find them are not seen. If hardly an order is followed, a little of RAM is theirs: what this
//! epoch has read gives way to them there. A map whose pages are dropped before they are used asks for
//! them again and again.

use std::collections::BTreeMap;

use crate::ids::{BlockId, PAGE_BYTES, PageRange};

/// Pages of a whole block.
pub(super) const BLOCK_PAGES: u64 = crate::ids::BLOCK_BYTES / PAGE_BYTES;

/// Pages of a section of a block, which are dropped together: what the kernel reads ahead by default.
const SECTION_PAGES: u16 = 32;

const SECTIONS: usize = (BLOCK_PAGES as usize).div_ceil(SECTION_PAGES as usize);

/// Bytes that parts have in place of what this epoch has read, a section for each of some readers; and no
/// more than one in so many of RAM.
const USED_MAX: u64 = 32 * SECTION_PAGES as u64 * PAGE_BYTES;
const USED_PART: u64 = 8;

/// The pages of a section of a block that were read.
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    /// A bit for each page.
    pages: u32,
    /// Its place in the queue of all sections, if it has any page.
    place: u64,
}

impl Section {
    fn bytes(self) -> u64 {
        u64::from(self.pages.count_ones()) * PAGE_BYTES
    }
}

/// What RAM has in parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The sections of each block that has any part.
    blocks: BTreeMap<BlockId, [Section; SECTIONS]>,
    /// The sections that have pages, by block and number, in the order of the first ones.
    queue: BTreeMap<u64, (BlockId, usize)>,
    /// The place of the next section in the queue.
    next_place: u64,
    /// Bytes of all parts.
    pub(super) bytes: u64,
}

impl Parts {
    /// Notes pages of a block. Says how many bytes of it there are.
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

    /// A block has no parts any more.
    pub(super) fn forget(&mut self, block: BlockId) {
        for section in self.blocks.remove(&block).into_iter().flatten() {
            if section.pages != 0 {
                self.queue.remove(&section.place);
                self.bytes -= section.bytes();
            }
        }
    }

    /// Takes the section that came first: its block, and where it lies.
    pub(super) fn pop(&mut self) -> Option<(BlockId, PageRange)> {
        let (_, (block, number)) = self.queue.pop_first()?;
        let sections = self.blocks.get_mut(&block)?;
        self.bytes -= std::mem::take(&mut sections[number]).bytes();
        if sections.iter().all(|section| section.pages == 0) {
            self.blocks.remove(&block);
        }
        Some((block, PageRange { first: number as u16 * SECTION_PAGES, count: SECTION_PAGES }))
    }

    /// The bytes that nothing else is kept in place of, in RAM of this capacity.
    pub(super) fn used(&self, capacity: u64) -> u64 {
        self.bytes.min(USED_MAX).min(capacity / USED_PART)
    }
}

//! Fetches only the requested pages of large files that are read at random.
//!
//! 1. A file of several blocks is fetched by whole blocks until a read jumps: RAM does not have the block
//!    before the one that is read. From then on the file is read *in parts* ([`Action::InParts`]): only the
//!    pages that the kernel asks for are fetched. A file stays whole if RAM or a tier below has room for all
//!    the data, or if an order that is followed has the block. A read of the last block is no jump: archives
//!    and tables have their directory there, and are read from their start to their end after it.
//! 2. If half of a block has come in scattered parts, and a tier below RAM has room for it, the tier loads
//!    the whole block. RAM keeps only the parts: if samples are read once an epoch in a random order, blocks
//!    that came lately have more unread samples than blocks that stay for good.
//! 3. Reads that follow each other for the length of a block are sequential. Then the next block is fetched
//!    ahead, and the file is read by whole blocks again, as it is once there is room for all the data.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::event::Action;
use super::parts::BLOCK_PAGES;
use super::staging::Stager;
use super::warm::Warming;
use crate::ids::{BlockId, FileId, PageRange};

/// Most places in a file where reads go on at the same time.
const PLACES_MAX: usize = 16;

/// Most files that are read in parts.
const FILES_MAX: usize = 4096;

/// Runs of pages of a file that were read one after the other, the latest run last.
#[derive(Debug, Default)]
struct Runs(VecDeque<Range<u64>>);

impl Runs {
    /// Adds read pages. Returns the length of their run. The kernel's read-ahead may ask for the pages of a run
    /// in any order.
    fn note_read(&mut self, first: u64, count: u64) -> u64 {
        let mut run = first..first + count;
        self.0.retain(|other| {
            let adjoins = other.end == run.start || run.end == other.start;
            if adjoins {
                run = run.start.min(other.start)..run.end.max(other.end);
            }
            !adjoins
        });
        if self.0.len() == PLACES_MAX {
            self.0.pop_front();
        }
        let length = run.end - run.start;
        self.0.push_back(run);
        length
    }

    /// The most of these pages that are in one run.
    fn longest_in(&self, pages: Range<u64>) -> u64 {
        let within =
            |run: &Range<u64>| run.end.min(pages.end).saturating_sub(run.start.max(pages.start));
        self.0.iter().map(within).max().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(super) struct Divided(BTreeMap<FileId, Runs>);

impl Divided {
    pub(super) fn has(&self, file: FileId) -> bool {
        self.0.contains_key(&file)
    }

    /// A read found no pages of a block, which is fetched whole. If the read has jumped there, the next reads of
    /// the file are in parts.
    pub(super) fn divide_if_jumped(
        &mut self,
        block: BlockId,
        stager: &Stager,
        actions: &mut Vec<Action>,
    ) {
        let ledger = &stager.ledger;
        let file = ledger.layout.file_of(block);
        if ledger.layout.is_cut(file) {
            return;
        }
        let mut blocks = ledger.layout.blocks_of(file);
        let count = blocks.len() as u32;
        let nth = block.0 - blocks.next().map_or(block.0, |first| first.0);
        let at_an_end = nth == 0 || nth + 1 == count;
        if at_an_end || self.has(file) || stager.forecast.is_foreseen(block) {
            return;
        }
        if !ledger.is_here(BlockId(block.0 - 1)) && !ledger.has_room_for_all() {
            if self.0.len() == FILES_MAX
                && let Some((&first, _)) = self.0.first_key_value()
            {
                self.join(first, actions);
            }
            self.0.insert(file, Runs::default());
            actions.push(Action::InParts { file, on: true });
        }
    }

    /// Pages of a block have been asked for.
    pub(super) fn note_read(
        &mut self,
        block: BlockId,
        pages: PageRange,
        stager: &mut Stager,
        warming: &mut Warming,
        actions: &mut Vec<Action>,
    ) {
        let ledger = &mut stager.ledger;
        ledger.counters.parts += 1;
        ledger.counters.source_bytes += pages.bytes();
        let file = ledger.layout.file_of(block);
        let first = ledger.layout.blocks_of(file).next().unwrap_or(block);
        let start = u64::from(block.0 - first.0) * BLOCK_PAGES;
        let mut runs = self.0.get_mut(&file);
        let page = start + u64::from(pages.first);
        let run = runs.as_mut().map_or(0, |runs| runs.note_read(page, pages.count.into()));
        let longest = runs.map_or(0, |runs| runs.longest_in(start..start + BLOCK_PAGES));
        let bytes = if ledger.is_here(block) { 0 } else { ledger.parts.add(block, pages) };
        let block_bytes = ledger.layout.pages_bytes(block);
        let is_sequential = run >= BLOCK_PAGES;
        if is_sequential {
            stager.stage_following(block, actions);
        }
        // Before the block's end, its pages would be fetched again with the rest of it.
        let at_end = pages.offset() + pages.bytes() >= block_bytes;
        let is_foreseen = stager.forecast.is_foreseen(block);
        if is_sequential && at_end || is_foreseen || stager.ledger.has_room_for_all() {
            self.join(file, actions);
        } else if 2 * bytes >= block_bytes
            && 2 * longest < BLOCK_PAGES
            && stager.may_complete(block)
        {
            warming.wanted(&[block], &stager.ledger);
        }
    }

    /// Has a file read by whole blocks again.
    pub(super) fn join(&mut self, file: FileId, actions: &mut Vec<Action>) {
        if self.0.remove(&file).is_some() {
            actions.push(Action::InParts { file, on: false });
        }
    }
}

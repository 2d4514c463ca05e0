//! Large files that are read at random: what is asked for is fetched, and no more.
//!
//! 1. A file of several blocks is fetched by whole blocks until a read jumps: it is of a block of which
//!    RAM does not have the one before. From then on the file is read *in parts*
//!    ([`Action::InParts`]): the source is asked for the pages that the kernel asks for. That is not so
//!    if RAM or a tier below has room for all the data, or if an order that is followed has the block.
//!    A read of the last block is no jump: archives and tables have their directory there, and are read
//!    from their start to their end after it.
//! 2. A part is charged to RAM by its pages, beside what is kept and staged, and gives way to both. If
//!    RAM is full, those go that came first, a section of a block at a time. How often pages are used is
//!    not known: reads that find them are not seen. If hardly an order is followed, a little of RAM is theirs:
//!    what this epoch has read gives way to them there. A map whose pages are dropped before they are used
//!    asks for them again and again.
//! 3. If half of a block has come in parts, here and there, and a tier below RAM has room to keep all of
//!    it, it is fetched whole. RAM gets no more than the parts: where samples are read once an epoch in
//!    a random order, what came lately has more left to read than what stays for good.
//! 4. Reads that follow each other for the length of a block are sequential. The next block is fetched
//!    ahead, and from there on the file is read by whole blocks again. So it is if there comes to be
//!    room for all the data.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::Planner;
use super::event::Action;
use super::policy::NextUse;
use super::residency::RAM;
use super::stream::Stream;
use crate::ids::{BLOCK_BYTES, BlockId, FileId, PAGE_BYTES, PageRange};

/// Pages of a whole block.
const BLOCK_PAGES: u64 = BLOCK_BYTES / PAGE_BYTES;

/// Pages of a section of a block, which are dropped together: what the kernel reads ahead by default.
const SECTION_PAGES: u16 = 32;

/// Sections of a block.
const SECTIONS: usize = (BLOCK_PAGES as usize).div_ceil(SECTION_PAGES as usize);

/// Bytes that parts have in place of what this epoch has read, a section for each of some readers; and no
/// more than one in so many of RAM.
const USED_MAX: u64 = 32 * SECTION_PAGES as u64 * PAGE_BYTES;
const USED_PART: u64 = 8;

/// Places in a file where reads may go on at the same time.
const PLACES_MAX: usize = 16;

/// Files read in parts of which the places are known.
const FILES_MAX: usize = 4096;

/// Pages of a file that were read one after the other, in the latest places where reads go on, the
/// latest last.
#[derive(Debug, Default)]
struct Runs(VecDeque<Range<u64>>);

impl Runs {
    /// Pages are read. Says how many have followed each other there. What the kernel reads ahead may
    /// be asked for out of its order.
    fn read(&mut self, first: u64, count: u64) -> u64 {
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

    /// The most pages of these that have followed each other.
    fn longest_in(&self, pages: Range<u64>) -> u64 {
        let within =
            |run: &Range<u64>| run.end.min(pages.end).saturating_sub(run.start.max(pages.start));
        self.0.iter().map(within).max().unwrap_or_default()
    }
}

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
    /// The files that are read in parts.
    files: BTreeMap<FileId, Runs>,
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
    /// Whether a file is read in parts.
    pub(super) fn has(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Notes pages of a block. Says how many bytes of it there are.
    fn add(&mut self, block: BlockId, pages: PageRange) -> u64 {
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
    fn pop(&mut self) -> Option<(BlockId, PageRange)> {
        let (_, (block, number)) = self.queue.pop_first()?;
        let sections = self.blocks.get_mut(&block)?;
        self.bytes -= std::mem::take(&mut sections[number]).bytes();
        if sections.iter().all(|section| section.pages == 0) {
            self.blocks.remove(&block);
        }
        Some((block, PageRange { first: number as u16 * SECTION_PAGES, count: SECTION_PAGES }))
    }
}

impl Planner {
    /// A read has found nothing of a block, which is fetched whole: the next ones of its file are read in
    /// parts if it has jumped there.
    pub(super) fn divide_if_jumped(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let file = self.layout.file_of(block);
        let mut blocks = self.layout.blocks_of(file);
        let count = blocks.len() as u32;
        let nth = block.0 - blocks.next().map_or(block.0, |first| first.0);
        let at_an_end = nth == 0 || nth + 1 == count;
        if at_an_end || self.parts.has(file) || self.is_foreseen(block) {
            return;
        }
        let behind = BlockId(block.0 - 1);
        let follows = self.residency.is_in(behind, RAM) || self.residency.is_fetching(behind);
        if !follows && !self.has_room_for_all() {
            if self.parts.files.len() == FILES_MAX
                && let Some((&first, _)) = self.parts.files.first_key_value()
            {
                self.join_parts(first, actions);
            }
            self.parts.files.insert(file, Runs::default());
            actions.push(Action::InParts { file, on: true });
        }
    }

    /// A part of a block has been asked for.
    pub(super) fn part(
        &mut self,
        block: BlockId,
        task: u32,
        pages: PageRange,
        actions: &mut Vec<Action>,
    ) {
        let file = self.layout.file_of(block);
        self.reads_for_sure(task, file, actions);
        self.pass(block, task, actions);
        self.counters.parts += 1;
        self.counters.source_bytes += pages.bytes();
        let first = self.layout.blocks_of(file).next().unwrap_or(block);
        let start = u64::from(block.0 - first.0) * BLOCK_PAGES;
        let mut runs = self.parts.files.get_mut(&file);
        let page = start + u64::from(pages.first);
        let run = runs.as_mut().map_or(0, |runs| runs.read(page, pages.count.into()));
        let longest = runs.map_or(0, |runs| runs.longest_in(start..start + BLOCK_PAGES));
        let there = self.residency.is_in(block, RAM) || self.residency.is_fetching(block);
        let bytes = if there { 0 } else { self.parts.add(block, pages) };
        let is_sequential = run >= BLOCK_PAGES;
        if is_sequential && self.settings.prefetch {
            let next = self.layout.blocks_of(file).find(|next| next.0 == block.0 + 1);
            next.iter().for_each(|next| _ = self.try_stage(*next, actions));
        }
        // Else the pages of the block that were read would be fetched again with the rest of it.
        let at_end = pages.offset() + pages.bytes() >= self.layout.pages_bytes(block);
        if is_sequential && at_end || self.is_foreseen(block) || self.has_room_for_all() {
            self.join_parts(file, actions);
        } else if 2 * bytes >= self.layout.pages_bytes(block) && 2 * longest < BLOCK_PAGES {
            self.complete(block, actions);
        }
    }

    /// A file is read by whole blocks again.
    pub(super) fn join_parts(&mut self, file: FileId, actions: &mut Vec<Action>) {
        if self.parts.files.remove(&file).is_some() {
            actions.push(Action::InParts { file, on: false });
        }
    }

    /// Whether an order that is followed has the block.
    pub(super) fn is_foreseen(&self, block: BlockId) -> bool {
        let has = |stream: &Stream| stream.is_following() && stream.contains(block);
        self.streams.iter().flatten().any(has)
    }

    /// Whether RAM or a tier below has room for all the data.
    fn has_room_for_all(&self) -> bool {
        let all = self.layout.pages_bytes_of_all();
        self.mirrored || all + self.window.bytes() <= self.settings.tiers[RAM].capacity
    }

    /// Brings the rest of a block, if a tier below RAM has room to keep it.
    fn complete(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let bytes = self.layout.stored_bytes(block);
        let has_room = |tier: usize| {
            self.is_worth_it(tier)
                && self.residency.kept[tier] + bytes <= self.settings.tiers[tier].capacity
        };
        let below = (RAM + 1..self.settings.tiers.len()).any(has_room);
        if below && self.settings.prefetch && self.residency.place(block).is_none() {
            self.wanted(&[block]);
            self.warm(actions);
        }
    }

    /// The bytes of parts that nothing is kept in place of.
    pub(super) fn parts_used(&self) -> u64 {
        let most = USED_MAX.min(self.settings.tiers[RAM].capacity / USED_PART);
        if self.blind { self.parts.bytes.min(most) } else { 0 }
    }

    /// Drops a block that this epoch has read, the one that is read last of all. Says whether there is one.
    fn drop_what_was_read(&mut self, actions: &mut Vec<Action>) -> bool {
        let victim = self.policies[RAM].victim(NextUse::At(self.unread.now()));
        victim.iter().for_each(|block| {
            self.policies[RAM].remove(*block);
            self.drop_pages(*block, actions);
        });
        victim.is_some()
    }

    /// Has parts go as long as they take more than is left of RAM.
    pub(super) fn fit_parts(&mut self, actions: &mut Vec<Action>) {
        let capacity = self.settings.tiers[RAM].capacity;
        while self.parts.bytes > 0
            && self.residency.kept[RAM] + self.residency.staged + self.parts.bytes > capacity
        {
            if self.parts.bytes <= self.parts_used() && self.drop_what_was_read(actions) {
                continue;
            }
            let Some((block, pages)) = self.parts.pop() else { return };
            self.counters.dropped += 1;
            self.residency.start_drop(block, self.layout.pages_bytes(block));
            actions.push(Action::DropParts { block, pages });
        }
    }
}

//! Fits the window: the part of RAM for blocks that are staged ahead of their read and not kept.
//!
//! 1. The window has the bytes that are set. If none are set, it begins with [`BLOCKS`] blocks of mean size,
//!    or fewer large ones: their transfer takes longer than the source's latency. It is never less than what
//!    the fetches that the source serves at once need (`limiter`), and some blocks for each reader of large files.
//! 2. A foreseen read that found no pages is *late*. If the window was full of unread blocks shortly before,
//!    it is too narrow: loaders ask for many samples at once, or a fetch took much longer than most. While the
//!    share of late reads is above [`TOO_MANY`], each one widens the window, up to a quarter of RAM. RAM keeps
//!    fewer blocks then. If the slowest fetches need a wider window, [`HARDLY_ANY`] is enough, and each late
//!    read widens it more.
//! 3. While the share is below [`HARDLY_ANY`], each read in time takes back a part of what was added. So the bytes
//!    that one busy moment has added are gone soon.
//! 4. The window is also widened if blocks in use of large files have no room in it.
//!
//! Late reads do not count while the source is busy, since a wider window would not help. Nor do they count
//! at the start of an epoch, when workers ask for all their batches at once: room for these would help once
//! an epoch, and cost kept blocks all the time.

use crate::limiter::FetchLimits;

/// Blocks of mean size in the window at the start: as many as are in flight on a source with a latency of
/// tens of milliseconds, and few compared with any share that is worth keeping.
const BLOCKS: u64 = 40;

/// Most bytes of the window at the start, unless one block has more.
const BEGUN_MAX: u64 = 8 << 20;

/// Blocks that a reader of large files needs there: the one that it reads, the one before, of which it may not have read
/// all, and the next one.
const BLOCKS_OF_READER: u64 = 3;

/// The window has at most one in this many bytes of RAM.
const RAM_PART: u64 = 4;

/// Reads over which the share of late reads is smoothed.
const SMOOTHED: f64 = 512.0;

/// The window is widened above the first share of late reads, and narrows below the second.
const TOO_MANY: f64 = 1.0 / 12.0;
const HARDLY_ANY: f64 = 1.0 / 512.0;

/// Blocks by which a late read widens it, or this part of what the slowest fetches need beyond it.
const WIDER: u64 = 2;
const WIDER_PART: u64 = 16;

/// Reads in time that narrow it by one block, or this part of what was added, whichever is more.
const NARROWER: u64 = 128;
const NARROWER_PART: u64 = 2_048;

/// The most bytes that may be staged ahead if RAM has so many, unless that is configured.
pub fn most_ahead(ram: u64) -> u64 {
    ram / RAM_PART
}

#[derive(Debug, Default)]
pub(super) struct Window {
    /// Its bytes, if they are configured.
    set: Option<u64>,
    /// As in [`fit`](Self::fit).
    block: u64,
    ram: u64,
    /// Bytes that the fetches under way need, and bytes with which the slowest ones are in time.
    ahead: u64,
    lead: u64,
    /// Tasks that read large files of orders.
    readers: u64,
    /// Bytes added since the start.
    added: u64,
    /// Share of late reads, smoothed.
    late: f64,
}

impl Window {
    pub(super) fn new(set: Option<u64>) -> Self {
        Window { set, ..Window::default() }
    }

    /// `block`: mean bytes of a block. `ram`: bytes of RAM.
    pub(super) fn fit(&mut self, block: u64, ram: u64) {
        (self.block, self.ram) = (block, ram);
        self.bound_added();
    }

    /// The source was timed.
    pub(super) fn limit(&mut self, limits: &FetchLimits) {
        (self.ahead, self.lead) = (limits.ahead_bytes, limits.lead_bytes);
        self.bound_added();
    }

    /// So many tasks read large files of orders. Returns whether it is wider.
    pub(super) fn fit_readers(&mut self, readers: u32) -> bool {
        let before = self.bytes();
        self.readers = u64::from(readers);
        self.bound_added();
        self.bytes() > before
    }

    fn bound_added(&mut self) {
        self.added = self.added.min(self.most() - self.begun());
    }

    pub(super) fn bytes(&self) -> u64 {
        self.set.map_or_else(|| self.begun() + self.added, |set| set.min(self.ram))
    }

    fn begun(&self) -> u64 {
        let blocks = (BLOCKS * self.block).min(BEGUN_MAX.max(self.block));
        let read = self.readers * BLOCKS_OF_READER * self.block;
        blocks.min(self.ram).max(self.ahead.max(read).min(most_ahead(self.ram)))
    }

    /// Bytes with which the slowest fetches are in time.
    pub(super) fn lead(&self) -> u64 {
        self.lead
    }

    /// The most bytes it can have.
    pub(super) fn most(&self) -> u64 {
        self.begun().max(most_ahead(self.ram))
    }

    /// Widens it for readers of large files. Returns whether it is wider.
    pub(super) fn widen(&mut self) -> bool {
        let before = self.added;
        if self.set.is_none() {
            self.add(self.block);
        }
        self.added > before
    }

    fn add(&mut self, bytes: u64) {
        self.added = (self.added + bytes).min(self.most() - self.begun());
    }

    /// A read was foreseen. `late`: it found no pages, and a wider window might have helped.
    pub(super) fn note_read(&mut self, late: bool) {
        self.late += (f64::from(u8::from(late)) - self.late) / SMOOTHED;
        let wanted = self.lead.saturating_sub(self.bytes());
        let tolerated = if wanted > 0 { HARDLY_ANY } else { TOO_MANY };
        if late && self.late > tolerated {
            self.add((WIDER * self.block).max(wanted / WIDER_PART));
        } else if self.late < HARDLY_ANY {
            self.added -= (self.added / NARROWER_PART).max(self.block / NARROWER).min(self.added);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1 << 10;
    const MB: u64 = 1 << 20;

    fn limits(ahead_bytes: u64, lead_bytes: u64) -> FetchLimits {
        FetchLimits { fetches: 8, ahead_bytes, lead_bytes }
    }

    fn window(block: u64, ram: u64) -> Window {
        let mut window = Window::new(None);
        window.fit(block, ram);
        window
    }

    #[test]
    fn it_begins_with_some_small_blocks_and_few_large_ones() {
        assert_eq!(window(100 * KB, 100 * MB).bytes(), 40 * 100 * KB);
        assert_eq!(window(MB, 100 * MB).bytes(), 8 * MB);
        assert_eq!(window(100 * KB, MB).bytes(), MB, "all of RAM");
        let mut set = Window::new(Some(64 * MB));
        set.fit(100 * KB, 100 * MB);
        (0..10_000).for_each(|_| set.note_read(true));
        assert_eq!(set.bytes(), 64 * MB);
    }

    #[test]
    fn it_is_widened_up_to_a_quarter_of_ram_and_narrows_again() {
        let mut window = window(100 * KB, 100 * MB);
        let begun = window.bytes();
        (0..10_000).for_each(|read| window.note_read(read % 5 == 0));
        assert_eq!(window.bytes(), 25 * MB);
        window.fit(100 * KB, 40 * MB);
        assert_eq!(window.bytes(), 10 * MB);
        (0..100_000).for_each(|_| window.note_read(false));
        assert_eq!(window.bytes(), begun);
    }

    #[test]
    fn one_burst_of_late_reads_is_forgotten_within_some_thousand_reads() {
        let mut window = window(100 * KB, 100 * MB);
        let begun = window.bytes();
        (0..200).for_each(|_| window.note_read(true));
        let widened = window.bytes() - begun;
        assert!(widened > 20 * MB);
        (0..7_000).for_each(|_| window.note_read(false));
        assert!(window.bytes() - begun < widened / 5, "{}", window.bytes() - begun);
    }

    #[test]
    fn a_few_late_reads_do_not_widen_it() {
        let mut window = window(100 * KB, 100 * MB);
        let begun = window.bytes();
        (0..100_000).for_each(|read| window.note_read(read % 1_000 < 30));
        assert_eq!(window.bytes(), begun);
    }

    #[test]
    fn it_holds_what_the_fetches_at_once_need_within_a_quarter_of_ram() {
        let mut window = window(100 * KB, 100 * MB);
        let begun = window.bytes();
        window.limit(&limits(10 * MB, 0));
        assert_eq!(window.bytes(), 10 * MB);
        window.limit(&limits(90 * MB, 0));
        assert_eq!(window.bytes(), 25 * MB);
        window.limit(&limits(MB, 0));
        assert_eq!(window.bytes(), begun);
    }

    #[test]
    fn a_few_late_reads_widen_it_until_the_slowest_fetches_are_in_time() {
        let mut window = window(100 * KB, 100 * MB);
        window.limit(&limits(0, 15 * MB));
        (0..100_000).for_each(|read| window.note_read(read % 1_000 < 30));
        assert!((15 * MB..16 * MB).contains(&window.bytes()), "{}", window.bytes());
    }
}

//! How much of RAM is the window: what is staged ahead of its read and not kept.
//!
//! 1. It is what is set, or begins with [`BLOCKS`] blocks of mean size; of large blocks fewer
//!    are enough, since their bytes take longer than the source's answer.
//! 2. A read that an order foresaw and that found nothing is *late*. If the window was full not long
//!    before, of what had come and was not read yet, it is too narrow: loaders ask for many samples at
//!    once. As long as more than a few reads are late in this way, each of them widens it, up to a
//!    quarter of RAM. What it takes is not kept.
//! 3. As long as hardly any read is late, it narrows again, slowly.
//! 4. It is widened, too, if what is in use of large files that are read has no room in it.
//!
//! Reads that are late while the source has all it can do say nothing: a wider window would not help. Nor
//! do those at the start of an epoch, when workers ask for all their batches at once. To have these ready
//! would help once in an epoch, and take their bytes from the cache all along.

/// Blocks of mean size in the window to begin with: as many as are in flight on a source with tens of
/// milliseconds, and few against any share that is worth keeping.
const BLOCKS: u64 = 40;

/// Bytes beyond which the window does not begin with more than one block.
const BEGUN_MAX: u64 = 8 << 20;

/// The part of RAM that it may grow to.
const RAM_PART: u64 = 4;

/// Over so many reads the share of late ones is smoothed.
const SMOOTHED: f64 = 512.0;

/// The shares of late reads above which the window is widened, and below which it narrows.
const TOO_MANY: f64 = 1.0 / 12.0;
const HARDLY_ANY: f64 = 1.0 / 512.0;

/// Blocks by which a late read widens it, and reads that take one block of that back.
const WIDER: u64 = 2;
const NARROWER: u64 = 128;

/// The window of a planner.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Its bytes, if these are set.
    set: Option<u64>,
    /// Mean bytes of a block, and bytes of RAM.
    block: u64,
    ram: u64,
    /// Bytes that have been added to those that it began with.
    added: u64,
    /// The smoothed share of late reads.
    late: f64,
}

impl Window {
    /// A window of so many bytes, or as wide as it has to be.
    pub(super) fn new(set: Option<u64>) -> Self {
        Window { set, ..Window::default() }
    }

    /// Blocks have this mean size, and RAM so many bytes.
    pub(super) fn fit(&mut self, block: u64, ram: u64) {
        (self.block, self.ram) = (block, ram);
        self.added = self.added.min(self.most().saturating_sub(self.begun()));
    }

    pub(super) fn bytes(&self) -> u64 {
        self.set.map_or_else(|| self.begun() + self.added, |set| set.min(self.ram))
    }

    fn begun(&self) -> u64 {
        let blocks = (BLOCKS * self.block).min(BEGUN_MAX.max(self.block));
        blocks.min(self.ram)
    }

    /// Its bytes at its widest.
    pub(super) fn most(&self) -> u64 {
        self.begun().max(self.ram / RAM_PART)
    }

    /// Readers of large files have more in use than it has room for. Says whether it is wider now.
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

    /// An order had a read just here. `late`: it found nothing, which a wider window might have helped.
    pub(super) fn read(&mut self, late: bool) {
        self.late += (f64::from(u8::from(late)) - self.late) / SMOOTHED;
        if late && self.late > TOO_MANY {
            self.add(WIDER * self.block);
        } else if self.late < HARDLY_ANY {
            self.added = self.added.saturating_sub(self.block / NARROWER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1 << 10;
    const MB: u64 = 1 << 20;

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
        (0..10_000).for_each(|_| set.read(true));
        assert_eq!(set.bytes(), 64 * MB);
    }

    #[test]
    fn it_is_widened_up_to_a_quarter_of_ram_and_narrows_again() {
        let mut window = window(100 * KB, 100 * MB);
        let begun = window.bytes();
        (0..10_000).for_each(|read| window.read(read % 5 == 0));
        assert_eq!(window.bytes(), 25 * MB);
        window.fit(100 * KB, 40 * MB);
        assert_eq!(window.bytes(), 10 * MB);
        (0..100_000).for_each(|_| window.read(false));
        assert_eq!(window.bytes(), begun);
    }

    #[test]
    fn a_few_late_reads_do_not_widen_it() {
        let mut window = window(100 * KB, 100 * MB);
        let begun = window.bytes();
        (0..100_000).for_each(|read| window.read(read % 1_000 < 30));
        assert_eq!(window.bytes(), begun);
    }
}

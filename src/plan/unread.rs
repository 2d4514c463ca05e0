//! What this epoch has read, where no order is known, and what is still to be read.
//!
//! A training job reads each file once an epoch. So an epoch is over when files are read a second
//! time; what has been read is expected in the next epoch, and what was read in the epoch before
//! and not in this one is expected in this one. In the first epoch the files around those read are:
//! a dataset's files lie side by side, and what nobody reads from lies elsewhere.
//!
//! Fetching what is unread in place of what has been read, in any order, finds `x (1 + ln 1/x)` of
//! an epoch's files in a cache for the share `x`, where never evicting finds `x`, at the same
//! number of fetches. Where files are read several times an epoch, by several jobs or as a sampler
//! draws them, that is no use: nothing is expected then.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::ids::BlockId;

/// So many of so many reads are second reads of an epoch where another one has begun: fewer are put
/// down to a file looked at twice, or to an indexer.
const AGAIN: usize = 24;
const RECENT: usize = 32;

/// Reads that found nothing, until somebody counts as going through the files.
const MISSED_MIN: u32 = 64;

/// Blocks that lie side by side: where one is read the others are expected too.
const AROUND: u32 = 64;

/// The epoch in which each block was read last, epochs counted from 1.
#[derive(Debug)]
pub(super) struct Unread {
    last_read: Vec<u16>,
    epoch: u16,
    /// The latest reads, and whether they were second ones of the epoch.
    recent: VecDeque<(BlockId, bool)>,
    /// Reads of this epoch, first and second ones.
    reads: [u32; 2],
    /// Whether files were read once in the epoch before.
    once: bool,
    /// Whether something was read of each run of [`AROUND`] blocks.
    known: Vec<bool>,
    missed: u32,
    /// The runs that are yet to be gone through in this epoch, and up to where the first has been.
    runs: VecDeque<u32>,
    within: u32,
}

impl Unread {
    pub(super) fn new(blocks: usize) -> Self {
        let mut unread = Unread {
            last_read: Vec::new(),
            epoch: 1,
            recent: VecDeque::new(),
            reads: [0; 2],
            once: true,
            known: Vec::new(),
            missed: 0,
            runs: VecDeque::new(),
            within: 0,
        };
        unread.grow(blocks);
        unread
    }

    pub(super) fn grow(&mut self, blocks: usize) {
        if blocks > self.last_read.len() {
            self.last_read.resize(blocks, 0);
            self.known.resize(blocks.div_ceil(AROUND as usize), false);
        }
    }

    /// The block was read. Says whether blocks are expected at other times than before.
    pub(super) fn read(&mut self, block: BlockId) -> bool {
        let regular = self.is_regular();
        let last = &mut self.last_read[block.index()];
        let again = *last >= self.epoch;
        *last = self.epoch;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((block, again));
        self.reads[usize::from(again)] += 1;
        let begins = self.recent.iter().filter(|(_, again)| *again).count() >= AGAIN;
        if begins {
            self.once = self.is_once();
            self.reads = [0; 2];
            self.epoch = self.epoch.saturating_add(1);
            for (block, _) in self.recent.drain(..).filter(|(_, again)| *again) {
                self.last_read[block.index()] = self.epoch;
            }
            let known = (0..).zip(&self.known).filter(|(_, known)| **known);
            self.runs = known.map(|(run, _)| run).collect();
            self.within = 0;
        }
        begins || self.is_regular() != regular
    }

    /// Whether files are read once in this epoch, but for some: those read again are too few, or
    /// have just begun another one.
    fn is_once(&self) -> bool {
        let [first, second] = self.reads;
        second <= 2 * RECENT as u32 + first / 8
    }

    /// Whether that is so, and was in the epoch before.
    fn is_regular(&self) -> bool {
        self.once && self.is_once()
    }

    /// Whether the block is still to be read in this epoch.
    fn is_expected(&self, block: BlockId) -> bool {
        self.last_read.get(block.index()).is_some_and(|last| *last == self.epoch - 1)
    }

    /// A read of the block found nothing: somebody wants its bytes.
    pub(super) fn missed(&mut self, block: BlockId) {
        self.missed = self.missed.saturating_add(1);
        let run = block.0 / AROUND;
        if !std::mem::replace(&mut self.known[run as usize], true) {
            self.runs.push_back(run);
        }
    }

    /// Number of the epoch in which the block is expected next.
    pub(super) fn next_epoch(&self, block: BlockId) -> u64 {
        let last = self.last_read[block.index()];
        let wait = match last.cmp(&(self.epoch - 1)) {
            Ordering::Greater => 1,
            Ordering::Equal if self.is_regular() => 0,
            // What was read before counts like the rest where there are no epochs to speak of.
            _ if last > 0 && !self.is_regular() => 1,
            // Nobody may ever read it.
            _ => 2,
        };
        u64::from(self.epoch) + wait
    }

    /// The next block that is still to be read in this epoch, until it is [passed](Self::pass).
    pub(super) fn candidate(&mut self) -> Option<BlockId> {
        if self.missed < MISSED_MIN || !self.is_regular() {
            return None;
        }
        while let Some(run) = self.runs.front() {
            while self.within < AROUND {
                let block = BlockId(run * AROUND + self.within);
                if self.is_expected(block) {
                    return Some(block);
                }
                self.within += 1;
            }
            self.runs.pop_front();
            self.within = 0;
        }
        None
    }

    /// The candidate is fetched, or needs not be.
    pub(super) fn pass(&mut self) {
        self.within += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is fetched as long as something is.
    fn fetched(unread: &mut Unread) -> Vec<u32> {
        let next = |unread: &mut Unread| {
            let block = unread.candidate();
            unread.pass();
            block.map(|block| block.0)
        };
        std::iter::from_fn(|| next(unread)).collect()
    }

    #[test]
    fn an_epoch_ends_when_files_are_read_again() {
        let mut unread = Unread::new(100);
        for block in 0..100 {
            assert_eq!(unread.next_epoch(BlockId(block)), 1);
            _ = unread.read(BlockId(block));
            assert_eq!(unread.next_epoch(BlockId(block)), 2);
        }
        for block in 0..AGAIN as u32 {
            _ = unread.read(BlockId(block));
        }
        assert_eq!(unread.next_epoch(BlockId(50)), 2, "unread in the second epoch");
        assert_eq!(unread.next_epoch(BlockId(0)), 3, "read in it");
        assert_eq!(unread.next_epoch(BlockId(AGAIN as u32 - 1)), 3, "read in it");
    }

    #[test]
    fn a_few_second_reads_are_no_new_epoch() {
        let mut unread = Unread::new(1_000);
        for block in 0..1_000 {
            _ = unread.read(BlockId(block));
            _ = unread.read(BlockId(block / 2));
        }
        assert_eq!(unread.next_epoch(BlockId(999)), 2);
    }

    #[test]
    fn what_lies_around_is_expected_in_the_first_epoch_and_what_was_read_in_the_next() {
        let mut unread = Unread::new(10_000);
        for block in (0..MISSED_MIN).map(|number| BlockId(2 * number)) {
            assert_eq!(unread.candidate(), None);
            _ = unread.read(block);
            unread.missed(block);
        }
        let odd: Vec<u32> = (0..MISSED_MIN).map(|number| 2 * number + 1).collect();
        assert_eq!(fetched(&mut unread), odd);
        for block in (0..MISSED_MIN).map(|number| BlockId(2 * number)) {
            _ = unread.read(block);
        }
        assert_eq!(unread.next_epoch(BlockId(0)), 3);
        assert!(fetched(&mut unread).is_empty(), "all was read again, and no other ever was");
    }
}

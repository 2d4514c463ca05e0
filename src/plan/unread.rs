//! What this epoch has read, where no order is known, and what is still to be read.
//!
//! A training job reads each file once an epoch. So an epoch is over when files are read a second
//! time, more of them than a pass on the side would read; what has been read is expected in the next
//! epoch, and what was read in the epoch before and not in this one is expected in this one. In the
//! first epoch the files around those read are: a dataset's files lie side by side, and what nobody
//! reads from lies elsewhere. Of those no more are fetched than were read, twice over: whoever reads
//! a part of them only, wants the others never.
//!
//! A job may be stopped within an epoch, or resumed within one. Then the next epoch reads what this
//! one has read and what it has not, in no order. If second reads were rare and are frequent now,
//! another epoch has begun. What the one before still lacked is expected in it, too.
//!
//! Files that are read at the end of each epoch (`late`) are fetched last, and dropped for those that are
//! read before. A validation's files would else take room in the cache during the training.
//!
//! Fetching what is unread in place of what has been read, in any order, finds `x (1 + ln 1/x)` of
//! an epoch's files in a cache for the share `x`, where never evicting finds `x`, at the same
//! number of fetches. Where files are read several times an epoch, by several jobs or as a sampler
//! draws them, or others each epoch, that is no use: nothing is expected then, and what is kept stays
//! as long as it may be read again. To keep what was read last would find less there: see the rows
//! "auto, blind" and "lru, blind" of `tests/golden/policies.txt`.

use std::collections::VecDeque;

use super::late::Late;
use crate::ids::BlockId;

/// Second reads that show that another epoch has begun: fewer are put down to a file looked at
/// twice, or to an indexer.
const AGAIN: u32 = 24;

/// Another one has begun, too, only after so many such reads for what was left of this one, and for
/// all blocks there are: a validation is read several times in an epoch, and each new epoch has all
/// that is kept weighed anew.
const LEFT_PART: u32 = 4;
const BLOCKS_PART: usize = 256;

/// An epoch may have begun at a second read if at least one read in [`AGAIN_PART`] after it is a second
/// read, too. It has not if [`OTHERS_MAX`] other reads have come since that was so.
const AGAIN_PART: u32 = 8;
const OTHERS_MAX: u32 = 128;

/// How many times as frequent second reads are in an epoch that has begun within another one, as
/// they were before: those that were, and a few. Where samples are drawn anew for each read, they are
/// twice as frequent.
const FREQUENT: u64 = 4;
const FEW: u64 = 6;

/// Reads out of line that are overlooked, and one for so many others.
const OVERLOOKED: u32 = 64;
const OVERLOOKED_PART: u32 = 8;

/// Reads that found nothing, until somebody counts as going through the files.
const MISSED_MIN: u32 = 64;

/// Blocks that lie side by side: where one is read the others are expected too.
const AROUND: u32 = 64;

/// How many blocks that nobody ever read are fetched for each that is read for the first time, after
/// some.
const GUESSES: u32 = 2;
const GUESSES_MIN: u32 = 64;

/// The epoch in which each block was read last, epochs counted from 1.
#[derive(Debug)]
pub(super) struct Unread {
    last_read: Vec<u16>,
    epoch: u16,
    reads: Reads,
    next: Next,
    /// Blocks of the epoch before that are still to be read in this one; in the first, how many
    /// have been.
    left: u32,
    /// Blocks that the epoch before has read.
    before: u32,
    /// Whether the epoch before ended before all was read.
    cut: bool,
    /// Whether files have been read once in this epoch, and were in the one before, but for a few.
    regular: [bool; 2],
    /// Whether something was read of each run of [`AROUND`] blocks.
    known: Vec<bool>,
    missed: u32,
    /// Whether what nobody ever read is expected where others around it were read: no epoch has been
    /// seen from its beginning to its end.
    guessing: bool,
    /// Blocks that were read for the first time of all while that was so, and those fetched for it.
    discovered: u32,
    guesses: u32,
    /// The runs that are yet to be gone through in this epoch, and up to where the first has been;
    /// and whether this time what is read late is fetched.
    runs: VecDeque<u32>,
    within: u32,
    ending: bool,
    late: Late,
}

/// Reads of an epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// First ones of blocks that the epoch before has read; in the first epoch, all first ones.
    expected: u32,
    /// First ones of others that were expected because no epoch has been seen whole.
    guessed: u32,
    /// First ones of others.
    unexpected: u32,
    /// Second ones, but for those that may be of the next epoch.
    second: u32,
}

impl Reads {
    fn first(&self) -> u32 {
        self.expected + self.guessed + self.unexpected
    }
}

/// The latest reads, from the second read with which the next epoch may have begun.
#[derive(Debug, Default)]
struct Next {
    reads: Vec<BlockId>,
    /// How many of them are second ones.
    again: u32,
    /// Others that may come until it is known that no epoch has begun here.
    others: u32,
}

impl Next {
    /// Takes a read; gives the number of second reads that turn out to be of this epoch.
    fn read(&mut self, block: BlockId, again: bool) -> u32 {
        if again {
            self.again += 1;
            self.others = (self.others + AGAIN_PART - 1).min(OTHERS_MAX);
        } else {
            self.others = self.others.saturating_sub(1);
        }
        if self.others == 0 {
            return self.clear();
        }
        self.reads.push(block);
        0
    }

    /// No epoch has begun here. Gives the number of second reads.
    fn clear(&mut self) -> u32 {
        std::mem::take(self).again
    }

    /// Whether about all reads are second ones: the epoch before has read all there is.
    fn is_dense(&self) -> bool {
        8 * self.again as usize >= 7 * self.reads.len()
    }

    /// Whether another epoch has begun here, after these reads.
    fn has_begun(&self, before: Reads) -> bool {
        let (again, reads) = (u64::from(self.again), self.reads.len() as u64);
        let (second, all) = (u64::from(before.second), u64::from(before.first() + before.second));
        4 * again >= 3 * reads || again * all >= FREQUENT * (second + FEW) * reads
    }
}

impl Unread {
    pub(super) fn new(blocks: usize) -> Self {
        let mut unread = Unread {
            last_read: Vec::new(),
            epoch: 1,
            reads: Reads::default(),
            next: Next::default(),
            left: 0,
            before: 0,
            cut: false,
            regular: [true; 2],
            known: Vec::new(),
            missed: 0,
            guessing: true,
            discovered: 0,
            guesses: 0,
            runs: VecDeque::new(),
            within: 0,
            ending: false,
            late: Late::default(),
        };
        unread.grow(blocks);
        unread
    }

    pub(super) fn grow(&mut self, blocks: usize) {
        if blocks > self.last_read.len() {
            self.last_read.resize(blocks, 0);
            self.known.resize(blocks.div_ceil(AROUND as usize), false);
            self.late.grow(blocks);
        }
    }

    /// The block was read. Says whether blocks are expected at other times than before.
    pub(super) fn read(&mut self, block: BlockId) -> bool {
        let last = std::mem::replace(&mut self.last_read[block.index()], self.epoch);
        let again = last == self.epoch;
        self.count(last);
        if !again {
            self.late.read(block);
        }
        self.reads.second += self.next.read(block, again);
        if self.next.again >= self.needed() {
            if self.next.has_begun(self.before_next()) {
                self.begin();
                return true;
            }
            self.reads.second += self.next.clear();
        }
        let regular = self.is_regular();
        self.regular[0] &= self.is_once();
        regular != self.is_regular()
    }

    /// Counts a read of a block that was read last in this epoch.
    fn count(&mut self, last: u16) {
        let discovered = u32::from(last == 0 && self.guessing);
        self.discovered += discovered;
        if last == self.epoch {
            return;
        }
        if last == self.epoch - 1 {
            self.reads.expected += 1;
            self.left =
                if self.epoch == 1 { self.reads.expected } else { self.left.saturating_sub(1) };
        } else {
            self.reads.guessed += discovered;
            self.reads.unexpected += 1 - discovered;
        }
    }

    /// Second reads that show that another epoch has begun.
    fn needed(&self) -> u32 {
        // What the epoch before has read may be a part of what this one reads.
        let (first, expected) = (u64::from(self.reads.first()), u64::from(self.reads.expected));
        let left = u64::from(self.left) * first.max(1) / expected.max(1);
        let left = left.min(self.last_read.len() as u64) as u32;
        AGAIN.max(left / LEFT_PART).max((self.last_read.len() / BLOCKS_PART) as u32)
    }

    /// What this epoch has read before the next one may have begun.
    fn before_next(&self) -> Reads {
        let fresh = self.next.reads.len() as u32 - self.next.again;
        let expected = self.reads.expected.saturating_sub(fresh);
        Reads { expected, ..self.reads }
    }

    /// Blocks that an epoch reads: the one before, or this one so far.
    pub(super) fn size(&self) -> u32 {
        self.before.max(self.reads.first())
    }

    /// Another epoch has begun.
    fn begin(&mut self) {
        let cut = !self.next.is_dense();
        // Where one epoch after the other seems to be cut, others are read in each.
        self.regular = [!(cut && self.cut), self.regular[0] && self.is_once()];
        self.before = self.before_next().first();
        self.reads = Reads::default();
        let begun = std::mem::take(&mut self.next).reads;
        self.late.begin(&begun, !cut);
        if self.epoch == u16::MAX {
            self.forget();
        }
        if cut && self.epoch > 1 {
            let lacked = self.last_read.iter_mut().filter(|last| **last == self.epoch - 1);
            lacked.for_each(|last| *last = self.epoch);
        }
        self.guessing &= cut;
        self.cut = cut;
        self.epoch += 1;
        for block in begun {
            let last = std::mem::replace(&mut self.last_read[block.index()], self.epoch);
            self.reads.expected += u32::from(last < self.epoch);
        }
        let left = self.last_read.iter().filter(|last| **last == self.epoch - 1);
        self.left = left.count() as u32;
        self.go_through(false);
    }

    /// Goes through what is expected from its beginning.
    fn go_through(&mut self, ending: bool) {
        let known = (0..).zip(&self.known).filter(|(_, known)| **known);
        self.runs = known.map(|(run, _)| run).collect();
        (self.within, self.ending) = (0, ending);
    }

    /// Counts epochs from a small number again.
    fn forget(&mut self) {
        for last in &mut self.last_read {
            *last = match self.epoch - *last {
                0 => 3,
                1 => 2,
                _ if *last > 0 => 1,
                _ => 0,
            };
        }
        self.epoch = 3;
    }

    /// Whether files are read once in this epoch, and those that were in the one before, but for
    /// some: those read again are few, or have just begun another one.
    fn is_once(&self) -> bool {
        let Reads { expected, guessed, unexpected, mut second } = self.reads;
        if !self.next.has_begun(self.before_next()) {
            second += self.next.again;
        }
        second <= OVERLOOKED + self.reads.first() / OVERLOOKED_PART
            && unexpected <= OVERLOOKED + expected + guessed
    }

    /// Whether that is so, and was in the epoch before.
    fn is_regular(&self) -> bool {
        self.regular == [true; 2]
    }

    /// Whether nobody ever read the block, and it may yet be read.
    fn is_guess(&self, block: BlockId) -> bool {
        self.guessing && self.last_read.get(block.index()) == Some(&0)
    }

    /// Whether the block is still to be read in this epoch.
    fn is_expected(&self, block: BlockId) -> bool {
        let before = self.last_read.get(block.index()) == Some(&(self.epoch - 1));
        before || self.is_guess(block)
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
    fn next_epoch(&self, block: BlockId) -> u64 {
        let last = self.last_read[block.index()];
        let wait = match () {
            () if last == self.epoch => 1,
            () if self.is_regular() && self.is_expected(block) => 0,
            // What was read before counts like the rest where there are no epochs to speak of.
            () if last > 0 && !self.is_regular() => 1,
            // Nobody may ever read it.
            () => 2,
        };
        u64::from(self.epoch) + wait
    }

    /// When what is read now is expected, next to others: with the first of this epoch.
    pub(super) fn now(&self) -> u64 {
        2 * u64::from(self.epoch)
    }

    /// When the block is expected next, next to others: with those of an epoch's end after the rest.
    pub(super) fn next_read(&self, block: BlockId) -> u64 {
        let epoch = self.next_epoch(block);
        let late = epoch == u64::from(self.epoch) && self.late.has(block);
        2 * epoch + u64::from(late)
    }

    /// The next block that is still to be read in this epoch, until it is [passed](Self::pass).
    pub(super) fn candidate(&mut self) -> Option<BlockId> {
        let guesses = GUESSES_MIN.saturating_add(self.discovered.saturating_mul(GUESSES));
        let may_guess = self.guesses < guesses;
        if self.missed < MISSED_MIN || !self.is_regular() || self.epoch == 1 && !may_guess {
            return None;
        }
        loop {
            while let Some(run) = self.runs.front() {
                while self.within < AROUND {
                    let block = BlockId(run * AROUND + self.within);
                    let due = self.ending || !self.late.has(block);
                    if due && self.is_expected(block) && (may_guess || !self.is_guess(block)) {
                        return Some(block);
                    }
                    self.within += 1;
                }
                self.runs.pop_front();
                self.within = 0;
            }
            if self.ending || !self.late.any() {
                return None;
            }
            self.go_through(true);
        }
    }

    /// The candidate is fetched, or needs not be.
    pub(super) fn pass(&mut self, fetched: bool) {
        let run = self.runs.front().copied().unwrap_or_default();
        let guess = self.is_guess(BlockId(run * AROUND + self.within));
        self.guesses += u32::from(fetched && guess);
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
            unread.pass(block.is_some());
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
        for block in 0..=AGAIN {
            _ = unread.read(BlockId(block));
        }
        assert_eq!(unread.next_epoch(BlockId(50)), 2, "unread in the second epoch");
        assert_eq!(unread.next_epoch(BlockId(0)), 3, "read in it");
        assert_eq!(unread.next_epoch(BlockId(AGAIN - 1)), 3, "read in it");
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

    /// Reads what there is of a training epoch, with a validation after each quarter.
    fn train(unread: &mut Unread, files: u32, validation: u32) {
        for quarter in 0..4 {
            for file in 0..files / 4 {
                _ = unread.read(BlockId(4 * file + quarter));
            }
            for file in files..files + validation {
                _ = unread.read(BlockId(file));
            }
        }
    }

    #[test]
    fn a_validation_within_an_epoch_is_no_other_epoch() {
        let mut unread = Unread::new(3_000);
        for epoch in 1..5 {
            train(&mut unread, 2_000, 80);
            assert!((epoch..=epoch + 1).contains(&unread.epoch), "{}", unread.epoch);
            assert!(unread.is_regular());
        }
    }

    #[test]
    fn who_reads_a_few_files_of_many_is_not_given_the_others() {
        let mut unread = Unread::new(200_000);
        let mut given = 0;
        for epoch in 0..3 {
            for number in 0..2_000u32 {
                let block = BlockId(number.wrapping_mul(79_999) % 200_000);
                _ = unread.read(block);
                unread.missed(block);
                given += fetched(&mut unread).len();
            }
            let most = (GUESSES_MIN + 2_000 * GUESSES) as usize + epoch * 2_000;
            assert!(given <= most, "epoch {epoch}: {given}");
        }
    }

    #[test]
    fn where_each_epoch_draws_other_files_nothing_is_expected() {
        let mut unread = Unread::new(8_000);
        for epoch in 0..6u32 {
            for number in 0..1_000u32 {
                let drawn = (number + 1_000 * epoch).wrapping_mul(0x9e37_79b1) >> 29;
                let block = BlockId(8 * number + drawn);
                _ = unread.read(block);
                unread.missed(block);
            }
        }
        assert!(!unread.is_regular() && unread.candidate().is_none());
    }

    #[test]
    fn a_short_loop_over_many_files_begins_few_epochs() {
        let mut unread = Unread::new(1 << 20);
        let changes = (0..100_000).filter(|number| unread.read(BlockId(number % 32))).count();
        assert!(changes < 30, "{changes}");
    }

    #[test]
    fn epochs_are_counted_without_end() {
        let mut unread = Unread::new(100);
        for block in 0..80 {
            _ = unread.read(BlockId(block));
        }
        for number in 0..4_000_000u32 {
            _ = unread.read(BlockId(number % 64));
        }
        let [now, next] = [70, 63].map(|block| unread.next_epoch(BlockId(block)));
        assert!(now >= next, "what is not read any more is not expected soon");
    }
}

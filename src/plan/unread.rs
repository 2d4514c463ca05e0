//! Predicts the reads of an epoch whose order is unknown, from the blocks that were read so far.
//!
//! A training job reads each file once an epoch. So another epoch has begun if files are read a second time,
//! more of them than a pass on the side would read. Blocks that the previous epoch has read are expected in
//! this one until it has read them, and then in the next one. In the first epoch, files around the read ones
//! are expected: the files of a dataset lie side by side, and files that no job reads lie elsewhere. At most
//! twice as many of them are fetched as were read, since a job may need only a part of the files.
//!
//! A job may be stopped or resumed within an epoch. Then the next epoch reads files that this one has read
//! and files that it has not. So another epoch has also begun if second reads were rare and become frequent.
//! Blocks that the ended epoch has not read are expected in it, too.
//!
//! Files that are read at the end of each epoch (`late`) are fetched last, and dropped for others. Otherwise
//! a validation's files would take room in the cache during the training.
//!
//! A cache for the share `x` of an epoch's files finds `x (1 + ln 1/x)` of them if unread files are fetched
//! in place of read ones, in any order. Without eviction it finds `x`, with as many fetches. If files are
//! read several times an epoch (by several jobs, or as a sampler draws them), or if each epoch reads other
//! files, this does not help. Then no file is expected, and kept blocks stay as long as they may be read
//! again. Keeping the last read files would find less: see the rows "auto, blind" and "lru, blind" of
//! `tests/golden/policies.txt`.

use std::collections::VecDeque;

use super::late::Late;
use crate::ids::BlockId;

/// Second reads that show that another epoch has begun. Fewer come from files that are looked at twice, or
/// from an indexer.
const AGAIN: u32 = 24;

/// At least one second read is needed for `LEFT_PART` unread blocks of this epoch, since a validation is read
/// several times in an epoch; and one for `BLOCKS_PART` blocks in all, since each new epoch has all kept
/// blocks weighed anew.
const LEFT_PART: u32 = 4;
const BLOCKS_PART: usize = 256;

/// An epoch may have begun at a second read if one in `AGAIN_PART` reads after it is a second read, too. At
/// most `OTHERS_MAX` other reads may come in a row.
const AGAIN_PART: u32 = 8;
const OTHERS_MAX: u32 = 128;

/// An epoch has begun within another one if second reads become `FREQUENT` times as frequent, with `FEW`
/// added to those before. If samples are drawn anew for each read, they become twice as frequent.
const FREQUENT: u64 = 4;
const FEW: u64 = 6;

/// Irregular reads that are overlooked, and one more second read for `OVERLOOKED_PART` first reads.
const OVERLOOKED: u32 = 64;
const OVERLOOKED_PART: u32 = 8;

/// Reads that find no pages before blocks are fetched ahead.
const MISSED_MIN: u32 = 64;

/// Blocks of a *run*: if one of them is read, the others are expected too.
const AROUND: u32 = 64;

/// Guesses (fetches of blocks that were never read) for each block that is read for the first time, beside
/// the first `GUESSES_MIN`.
const GUESSES: u32 = 2;
const GUESSES_MIN: u32 = 64;

#[derive(Debug)]
pub(super) struct Unread {
    /// By block, the epoch in which it was read last, from 1; 0 if it was never read.
    last_read: Vec<u16>,
    epoch: u16,
    reads: Reads,
    next: PossibleStart,
    /// Blocks of the previous epoch that this one has not read. In the first epoch: blocks that it has read.
    left: u32,
    /// Blocks that the previous epoch has read.
    before: u32,
    /// Whether the previous epoch ended early.
    cut: bool,
    /// Whether files are [read once](Self::is_once) in this epoch, and in the previous one.
    regular: [bool; 2],
    /// By run of [`AROUND`] blocks, whether a read of it found no pages.
    known: Vec<bool>,
    missed: u32,
    /// Whether blocks that were never read are expected: no epoch has been seen whole.
    guessing: bool,
    /// Blocks that were read for the first time while guessing, and fetched guesses.
    first_reads: u32,
    guesses: u32,
    cursor: Cursor,
    late: Late,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    /// First reads of blocks of the previous epoch. In the first epoch: all first reads.
    expected: u32,
    /// First reads of other blocks that were never read, while guessing.
    guessed: u32,
    /// All other first reads.
    unexpected: u32,
    /// Second reads, without those in `PossibleStart`.
    second: u32,
}

impl Reads {
    fn first(&self) -> u32 {
        self.expected + self.guessed + self.unexpected
    }
}

/// The latest reads, from the second read on at which the next epoch may have begun.
#[derive(Debug, Default)]
struct PossibleStart {
    reads: Vec<BlockId>,
    /// Second reads among them.
    again: u32,
    /// Other reads that may still come, until no epoch has begun here.
    others: u32,
}

impl PossibleStart {
    /// Returns the second reads that turn out to belong to this epoch.
    fn note_read(&mut self, block: BlockId, again: bool) -> u32 {
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

    /// No epoch has begun here. Returns the second reads.
    fn clear(&mut self) -> u32 {
        std::mem::take(self).again
    }

    /// Whether nearly all reads are second reads: the ended epoch has read all files.
    fn is_dense(&self) -> bool {
        8 * self.again as usize >= 7 * self.reads.len()
    }

    /// Whether another epoch has begun, after the reads `before`.
    fn has_begun(&self, before: Reads) -> bool {
        let (again, reads) = (u64::from(self.again), self.reads.len() as u64);
        let (second, all) = (u64::from(before.second), u64::from(before.first() + before.second));
        4 * again >= 3 * reads || again * all >= FREQUENT * (second + FEW) * reads
    }
}

/// The place of the search for expected blocks, which goes through runs block by block.
#[derive(Debug, Default)]
struct Cursor {
    /// The runs that are left.
    runs: VecDeque<u32>,
    /// The offset in the first one.
    within: u32,
    /// Whether late blocks are included.
    with_late: bool,
}

impl Cursor {
    /// The block at this place.
    fn block(&self) -> Option<BlockId> {
        self.runs.front().map(|run| BlockId(run * AROUND + self.within))
    }

    fn advance(&mut self) {
        self.within += 1;
        if self.within == AROUND {
            self.runs.pop_front();
            self.within = 0;
        }
    }
}

impl Unread {
    pub(super) fn new(blocks: usize) -> Self {
        let mut unread = Unread {
            last_read: Vec::new(),
            epoch: 1,
            reads: Reads::default(),
            next: PossibleStart::default(),
            left: 0,
            before: 0,
            cut: false,
            regular: [true; 2],
            known: Vec::new(),
            missed: 0,
            guessing: true,
            first_reads: 0,
            guesses: 0,
            cursor: Cursor::default(),
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

    /// Counts a read. Returns whether blocks are expected at other times than before.
    pub(super) fn note_read(&mut self, block: BlockId) -> bool {
        let last = std::mem::replace(&mut self.last_read[block.index()], self.epoch);
        let again = last == self.epoch;
        self.count(last);
        if !again {
            self.late.note_read(block);
        }
        self.reads.second += self.next.note_read(block, again);
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

    /// `last`: the epoch in which the block was read before.
    fn count(&mut self, last: u16) {
        let first_reads = u32::from(last == 0 && self.guessing);
        self.first_reads += first_reads;
        if last == self.epoch {
            return;
        }
        if last == self.epoch - 1 {
            self.reads.expected += 1;
            self.left =
                if self.epoch == 1 { self.reads.expected } else { self.left.saturating_sub(1) };
        } else {
            self.reads.guessed += first_reads;
            self.reads.unexpected += 1 - first_reads;
        }
    }

    /// Second reads that are needed to show that another epoch has begun.
    fn needed(&self) -> u32 {
        // The previous epoch may have read only a part of this one's blocks.
        let (first, expected) = (u64::from(self.reads.first()), u64::from(self.reads.expected));
        let left = u64::from(self.left) * first.max(1) / expected.max(1);
        let left = left.min(self.last_read.len() as u64) as u32;
        AGAIN.max(left / LEFT_PART).max((self.last_read.len() / BLOCKS_PART) as u32)
    }

    /// This epoch's reads before the next one may have begun.
    fn before_next(&self) -> Reads {
        let fresh = self.next.reads.len() as u32 - self.next.again;
        let expected = self.reads.expected.saturating_sub(fresh);
        Reads { expected, ..self.reads }
    }

    /// Blocks that an epoch reads: the previous one, or this one so far.
    pub(super) fn size(&self) -> u32 {
        self.before.max(self.reads.first())
    }

    /// Another epoch has begun.
    fn begin(&mut self) {
        let cut = !self.next.is_dense();
        // If two epochs in a row seem to be cut, each epoch reads other files.
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
        self.start_search(false);
    }

    /// Starts a new search for expected blocks.
    fn start_search(&mut self, with_late: bool) {
        let known = (0..).zip(&self.known).filter(|(_, known)| **known);
        let runs = known.map(|(run, _)| run).collect();
        self.cursor = Cursor { runs, within: 0, with_late };
    }

    /// Numbers the epochs anew; this one becomes 3.
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

    /// Whether this epoch reads the files of the previous one, and each once, with few exceptions. Second reads
    /// that have just begun another epoch are none.
    fn is_once(&self) -> bool {
        let Reads { expected, guessed, unexpected, mut second } = self.reads;
        if !self.next.has_begun(self.before_next()) {
            second += self.next.again;
        }
        second <= OVERLOOKED + self.reads.first() / OVERLOOKED_PART
            && unexpected <= OVERLOOKED + expected + guessed
    }

    fn is_regular(&self) -> bool {
        self.regular == [true; 2]
    }

    /// Whether the block was never read, but is expected.
    fn is_guess(&self, block: BlockId) -> bool {
        self.guessing && self.last_read.get(block.index()) == Some(&0)
    }

    fn is_expected(&self, block: BlockId) -> bool {
        let before = self.last_read.get(block.index()) == Some(&(self.epoch - 1));
        before || self.is_guess(block)
    }

    /// A read of the block found no pages: a job needs its bytes.
    pub(super) fn missed(&mut self, block: BlockId) {
        self.missed = self.missed.saturating_add(1);
        let run = block.0 / AROUND;
        if !std::mem::replace(&mut self.known[run as usize], true) {
            self.cursor.runs.push_back(run);
        }
    }

    /// Number of the epoch in which the block is expected next.
    fn next_epoch(&self, block: BlockId) -> u64 {
        let last = self.last_read[block.index()];
        let wait = match () {
            () if last == self.epoch => 1,
            () if self.is_regular() && self.is_expected(block) => 0,
            // If epochs are irregular, all blocks that were read before count the same.
            () if last > 0 && !self.is_regular() => 1,
            // It may never be read.
            () => 2,
        };
        u64::from(self.epoch) + wait
    }

    /// This moment on the scale of [`next_read`](Self::next_read).
    pub(super) fn now(&self) -> u64 {
        2 * u64::from(self.epoch)
    }

    /// When the block is expected next: twice its epoch, and one more for late blocks of this epoch.
    pub(super) fn next_read(&self, block: BlockId) -> u64 {
        let epoch = self.next_epoch(block);
        let late = epoch == u64::from(self.epoch) && self.late.has(block);
        2 * epoch + u64::from(late)
    }

    /// The next block that is expected in this epoch, until it is [passed](Self::pass).
    pub(super) fn candidate(&mut self) -> Option<BlockId> {
        let guesses = GUESSES_MIN.saturating_add(self.first_reads.saturating_mul(GUESSES));
        let may_guess = self.guesses < guesses;
        if self.missed < MISSED_MIN || !self.is_regular() || self.epoch == 1 && !may_guess {
            return None;
        }
        loop {
            while let Some(block) = self.cursor.block() {
                let due = self.cursor.with_late || !self.late.has(block);
                if due && self.is_expected(block) && (may_guess || !self.is_guess(block)) {
                    return Some(block);
                }
                self.cursor.advance();
            }
            if self.cursor.with_late || !self.late.any() {
                return None;
            }
            self.start_search(true);
        }
    }

    /// Goes on from the candidate.
    pub(super) fn pass(&mut self, fetched: bool) {
        let is_guess = self.cursor.block().is_some_and(|block| self.is_guess(block));
        self.guesses += u32::from(fetched && is_guess);
        self.cursor.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fetches all candidates.
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
            _ = unread.note_read(BlockId(block));
            assert_eq!(unread.next_epoch(BlockId(block)), 2);
        }
        for block in 0..=AGAIN {
            _ = unread.note_read(BlockId(block));
        }
        assert_eq!(unread.next_epoch(BlockId(50)), 2, "unread in the second epoch");
        assert_eq!(unread.next_epoch(BlockId(0)), 3, "read in it");
        assert_eq!(unread.next_epoch(BlockId(AGAIN - 1)), 3, "read in it");
    }

    #[test]
    fn a_few_second_reads_are_no_new_epoch() {
        let mut unread = Unread::new(1_000);
        for block in 0..1_000 {
            _ = unread.note_read(BlockId(block));
            _ = unread.note_read(BlockId(block / 2));
        }
        assert_eq!(unread.next_epoch(BlockId(999)), 2);
    }

    #[test]
    fn what_lies_around_is_expected_in_the_first_epoch_and_what_was_read_in_the_next() {
        let mut unread = Unread::new(10_000);
        for block in (0..MISSED_MIN).map(|number| BlockId(2 * number)) {
            assert_eq!(unread.candidate(), None);
            _ = unread.note_read(block);
            unread.missed(block);
        }
        let odd: Vec<u32> = (0..MISSED_MIN).map(|number| 2 * number + 1).collect();
        assert_eq!(fetched(&mut unread), odd);
        for block in (0..MISSED_MIN).map(|number| BlockId(2 * number)) {
            _ = unread.note_read(block);
        }
        assert_eq!(unread.next_epoch(BlockId(0)), 3);
        assert!(fetched(&mut unread).is_empty(), "all was read again, and no other ever was");
    }

    /// Reads a training epoch, with a validation after each quarter.
    fn train(unread: &mut Unread, files: u32, validation: u32) {
        for quarter in 0..4 {
            for file in 0..files / 4 {
                _ = unread.note_read(BlockId(4 * file + quarter));
            }
            for file in files..files + validation {
                _ = unread.note_read(BlockId(file));
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
                _ = unread.note_read(block);
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
                _ = unread.note_read(block);
                unread.missed(block);
            }
        }
        assert!(!unread.is_regular() && unread.candidate().is_none());
    }

    #[test]
    fn a_short_loop_over_many_files_begins_few_epochs() {
        let mut unread = Unread::new(1 << 20);
        let changes = (0..100_000).filter(|number| unread.note_read(BlockId(number % 32))).count();
        assert!(changes < 30, "{changes}");
    }

    #[test]
    fn epochs_are_counted_without_end() {
        let mut unread = Unread::new(100);
        for block in 0..80 {
            _ = unread.note_read(BlockId(block));
        }
        for number in 0..4_000_000u32 {
            _ = unread.note_read(BlockId(number % 64));
        }
        let [now, next] = [70, 63].map(|block| unread.next_epoch(BlockId(block)));
        assert!(now >= next, "what is not read any more is not expected soon");
    }
}

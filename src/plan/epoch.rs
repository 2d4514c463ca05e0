//! Indexes one epoch of an order: at which position is a block read next, and what is the lowest position not
//! yet reached?

use crate::ids::BlockId;
use crate::track::{BitSet, Sequence};

/// Open positions that are examined, about, to see whether an epoch is nearly over.
const EXAMINED_MAX: u32 = 4096;

/// Blocks at an epoch's start that are compared with opens that an order does not explain.
pub(super) const HEAD: usize = 4096;

/// The first blocks of an epoch, sorted, each with its first position.
#[derive(Clone, Debug, Default)]
pub(super) struct Head(Vec<(u32, u32)>);

impl Head {
    fn of(blocks: &[u32]) -> Self {
        let mut head: Vec<(u32, u32)> = blocks.iter().take(HEAD).copied().zip(0..).collect();
        head.sort_unstable();
        head.dedup_by_key(|(block, _)| *block);
        Head(head)
    }

    pub(super) fn position(&self, block: BlockId) -> Option<u32> {
        let found = self.0.binary_search_by_key(&block.0, |(block, _)| *block).ok()?;
        Some(self.0[found].1)
    }
}

/// The blocks of one epoch in the order of their reads. A position becomes *staged* (the planner has looked
/// at it, and fetched its block if RAM lacked it), *checked* (shortly before its read) and *reached* (read).
#[derive(Debug, Default)]
pub(super) struct Epoch {
    blocks: Sequence,
    head: Head,
    reached: BitSet,
    /// Reached positions whose reads were not seen.
    assumed: BitSet,
    /// Includes all reached positions.
    staged: BitSet,
    checked: BitSet,
    low: u32,
    left: u32,
    /// Positions staged and not reached.
    ahead: u32,
}

impl Epoch {
    pub(super) fn new(blocks: Vec<u32>) -> Self {
        let left = blocks.len() as u32;
        let head = Head::of(&blocks);
        Epoch { blocks: Sequence::new(blocks), head, left, ..Epoch::default() }
    }

    /// The same epoch if its samples have other blocks: for each sample those of before, and those of now. A sample
    /// of which all blocks were read stays read. Also returns where each sample began, and where it begins now.
    pub(super) fn laid_out<I: ExactSizeIterator<Item = BlockId>>(
        &self,
        samples: impl Iterator<Item = (I, I)>,
    ) -> (Self, Vec<(u32, u32)>) {
        let (mut blocks, mut starts, mut read, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (before, now) in samples {
            let (begun, end) = (blocks.len() as u32, at + before.len() as u32);
            let is_read = end > at && (at..end).all(|position| self.is_reached(position));
            starts.push((at, begun));
            blocks.extend(now.map(|block| block.0));
            if is_read {
                read.extend(begun..blocks.len() as u32);
            }
            at = end;
        }
        let mut epoch = Epoch::new(blocks);
        if at != self.len() {
            // It was made when the samples had other blocks than those. What was read of it is not known.
            read.clear();
        }
        read.into_iter().for_each(|position| epoch.reach(position));
        (epoch, starts)
    }

    pub(super) fn len(&self) -> u32 {
        self.blocks.len()
    }

    /// Positions not yet reached.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// The lowest position not yet reached.
    pub(super) fn low(&self) -> u32 {
        self.low
    }

    /// Whether the epoch has the block, reached or not.
    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.blocks.place(block.0).is_some()
    }

    pub(super) fn block_at(&self, position: u32) -> Option<BlockId> {
        self.blocks.at(position).map(BlockId)
    }

    pub(super) fn ahead(&self) -> u32 {
        self.ahead
    }

    pub(super) fn is_reached(&self, position: u32) -> bool {
        self.reached.has(position)
    }

    pub(super) fn has_seen(&self, position: u32) -> bool {
        position < self.len() && self.is_reached(position) && !self.assumed.has(position)
    }

    fn find(&self, block: BlockId, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        self.blocks.places(block.0).find(|position| wanted(*position))
    }

    /// The first position where the block is still to be read.
    pub(super) fn next(&self, block: BlockId) -> Option<u32> {
        self.find(block, |position| !self.is_reached(position))
    }

    /// The first position from `from` on where the block is still to be read; `None` if no block repeats.
    pub(super) fn again_from(&self, block: BlockId, from: u32) -> Option<u32> {
        let open = |position: u32| position >= from && !self.is_reached(position);
        self.find(block, open).filter(|_| self.blocks.repeats())
    }

    /// The first position where the block is still to be staged.
    pub(super) fn next_unstaged(&self, block: BlockId) -> Option<u32> {
        self.find(block, |position| !self.staged.has(position))
    }

    /// Whether the block has been staged for a read that is still to come.
    pub(super) fn is_pending(&self, block: BlockId) -> bool {
        let pending = |position| self.staged.has(position) && !self.is_reached(position);
        self.find(block, pending).is_some()
    }

    pub(super) fn unstaged_from(&self, from: u32) -> Option<u32> {
        Some(self.staged.first_free(from)).filter(|&position| position < self.len())
    }

    pub(super) fn stage(&mut self, position: u32) {
        self.ahead += u32::from(self.staged.insert(position));
    }

    /// Whether few positions are left, as far as can be seen if most reads are `unseen`. A loader may leave out
    /// a batch.
    pub(super) fn is_nearly_over(&self, unseen: impl Fn(BlockId) -> bool) -> bool {
        let most = 8 + self.len() / 50;
        if self.left <= most {
            return true;
        }
        // One of sixteen files is a probe, so some of many open positions can be seen.
        let most_seen = 8 + most.min(EXAMINED_MAX) / 16;
        if self.left > 64 + 32 * most_seen {
            return false;
        }
        let open = |&position: &u32| !self.is_reached(position);
        let seen = |position: u32| self.block_at(position).is_some_and(|block| !unseen(block));
        let mut left = (self.low..self.len()).filter(open).filter(|&position| seen(position));
        left.nth(most_seen as usize).is_none()
    }

    /// Reaches the `unseen` open positions just before a position, and adds their blocks to `passed`.
    pub(super) fn pass(
        &mut self,
        position: u32,
        unseen: impl Fn(BlockId) -> bool,
        passed: &mut Vec<BlockId>,
    ) {
        for before in (self.low..position).rev() {
            match self.block_at(before) {
                Some(block) if unseen(block) && !self.is_reached(before) => {
                    passed.push(block);
                    self.assume(before);
                }
                _ => return,
            }
        }
    }

    /// A reader has gone on from a position. If the order has the sample several times in a row there, all these
    /// reads are over, though perhaps only the first was seen. Adds the others to `passed`.
    pub(super) fn pass_repeats(&mut self, position: u32, passed: &mut Vec<BlockId>) {
        let Some(block) = self.block_at(position) else { return };
        let mut next = position + 1;
        while self.block_at(next) == Some(block) {
            if !self.is_reached(next) {
                passed.push(block);
                self.assume(next);
            }
            next += 1;
        }
    }

    /// Reaches the lowest open positions below `position` while they are `unseen`, and adds their blocks to
    /// `passed`.
    pub(super) fn pass_lowest(
        &mut self,
        position: u32,
        unseen: impl Fn(BlockId) -> bool,
        passed: &mut Vec<BlockId>,
    ) {
        while self.low < position
            && let Some(block) = self.block_at(self.low).filter(|block| unseen(*block))
        {
            passed.push(block);
            self.assume(self.low);
        }
    }

    /// The position up to which reads may have come: the first one from `from` on that is not `unseen`.
    pub(super) fn end_of_reads(&self, from: u32, unseen: impl Fn(BlockId) -> bool) -> u32 {
        let is_seen = |position: &u32| !self.block_at(*position).is_some_and(&unseen);
        (from..self.len()).find(is_seen).unwrap_or(self.len())
    }

    /// Reaches a position whose read was not seen.
    fn assume(&mut self, position: u32) {
        self.assumed.insert(position);
        self.reach(position);
    }

    /// A position of the block that counts as reached though its read was not seen.
    pub(super) fn assumed(&self, block: BlockId) -> Option<u32> {
        self.find(block, |position| self.assumed.has(position))
    }

    /// The read of a position is seen. Returns whether it was assumed before.
    pub(super) fn confirm(&mut self, position: u32) -> bool {
        self.assumed.remove(position)
    }

    /// Whether the block is among the first `count` of the epoch.
    pub(super) fn starts_with(&self, block: BlockId, count: u32) -> bool {
        self.blocks.place(block.0).is_some_and(|position| position < count)
    }

    /// Makes the next read of a block unstaged. Returns its position if it was staged.
    pub(super) fn unstage(&mut self, block: BlockId) -> Option<u32> {
        let position = self.next(block).filter(|position| self.staged.has(*position))?;
        self.staged.remove(position);
        self.ahead -= 1;
        Some(position)
    }

    pub(super) fn reach(&mut self, position: u32) {
        if self.is_reached(position) {
            return;
        }
        self.stage(position);
        self.reached.insert(position);
        self.ahead -= 1;
        self.left -= 1;
        while self.low < self.len() && self.is_reached(self.low) {
            self.low += 1;
        }
        // Assumed positions stay among those of their block: `assumed` looks for them.
        if !self.assumed.has(position) {
            self.blocks.leave_out(position);
        }
    }

    /// Marks positions as checked. Adds the blocks that were neither checked nor reached to `due`.
    pub(super) fn check(&mut self, positions: std::ops::Range<u32>, due: &mut Vec<BlockId>) {
        let end = positions.end.min(self.len());
        let mut from = positions.start;
        loop {
            from = self.checked.first_free(from);
            if from >= end {
                return;
            }
            self.checked.insert(from);
            due.extend(self.block_at(from).filter(|_| !self.is_reached(from)));
        }
    }

    /// Gives up the lowest open positions while more than `most` past them are reached, since a loader may have
    /// skipped them. Adds their blocks to `over`.
    pub(super) fn give_up_stragglers(&mut self, most: u32, over: &mut Vec<BlockId>) {
        let past = |epoch: &Self| epoch.len() - epoch.left - epoch.low;
        while past(self) > most {
            self.give_up_lowest(over);
        }
    }

    /// Reaches the lowest open position and adds its block to `over`.
    pub(super) fn give_up_lowest(&mut self, over: &mut Vec<BlockId>) {
        if let Some(block) = self.block_at(self.low) {
            over.push(block);
            self.reach(self.low);
        }
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    pub(super) fn start(&self, count: usize) -> &[u32] {
        &self.blocks.items()[..count.min(self.blocks.len() as usize)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_permutation() {
        let mut epoch = Epoch::new(vec![3, 1, 0]);
        assert_eq!(epoch.next(BlockId(1)), Some(1));
        assert_eq!(epoch.next(BlockId(2)), None);
        assert_eq!(epoch.next(BlockId(99)), None);
        epoch.reach(1);
        assert_eq!((epoch.low(), epoch.left()), (0, 2));
        epoch.reach(0);
        epoch.reach(0);
        assert_eq!((epoch.low(), epoch.left()), (2, 1));
        assert_eq!(epoch.next(BlockId(1)), None);
    }

    #[test]
    fn each_position_is_checked_once() {
        let mut epoch = Epoch::new(vec![3, 1, 0, 4]);
        let mut due = Vec::new();
        epoch.reach(1);
        epoch.check(0..2, &mut due);
        epoch.check(1..9, &mut due);
        assert_eq!(due, [BlockId(3), BlockId(0), BlockId(4)]);
    }

    #[test]
    fn what_is_checked_is_found_across_words() {
        let mut epoch = Epoch::new((0..200).collect());
        let mut due = Vec::new();
        epoch.check(60..70, &mut due);
        epoch.check(0..130, &mut due);
        epoch.check(0..500, &mut due);
        let expected = (60..70).chain(0..60).chain(70..200).map(BlockId);
        assert!(due.into_iter().eq(expected));
    }

    #[test]
    fn a_head_has_the_first_position_of_a_block_whatever_has_been_read() {
        let mut epoch = Epoch::new(vec![5, 3, 5, 1]);
        epoch.reach(0);
        let found = [5, 3, 1, 0, 9].map(|block| epoch.head().position(BlockId(block)));
        assert_eq!(found, [Some(0), Some(1), Some(3), None, None]);
        let long = Epoch::new((0..5000).collect());
        let found = [4095, 4096].map(|block| long.head().position(BlockId(block)));
        assert_eq!(found, [Some(4095), None]);
    }

    #[test]
    fn repeats_are_found_in_turn() {
        let mut epoch = Epoch::new(vec![2, 0, 2, 2, 1]);
        assert_eq!(epoch.next(BlockId(2)), Some(0));
        assert_eq!(epoch.again_from(BlockId(2), 1), Some(2));
        epoch.reach(0);
        epoch.reach(3);
        assert_eq!(epoch.next(BlockId(2)), Some(2));
        assert_eq!(epoch.again_from(BlockId(2), 3), None);
        epoch.reach(2);
        assert_eq!(epoch.next(BlockId(2)), None);
        assert!(epoch.contains(BlockId(2)));
    }

    #[test]
    fn staged_is_between_unknown_and_reached() {
        let mut epoch = Epoch::new((0..200).collect());
        assert_eq!(epoch.unstaged_from(0), Some(0));
        (0..130).for_each(|position| epoch.stage(position));
        assert_eq!((epoch.unstaged_from(3), epoch.ahead()), (Some(130), 130));
        assert!(epoch.is_pending(BlockId(7)));
        epoch.reach(7);
        epoch.reach(150);
        assert!(!epoch.is_pending(BlockId(7)) && !epoch.is_pending(BlockId(140)));
        assert_eq!(epoch.next_unstaged(BlockId(140)), Some(140));
        assert_eq!(epoch.next_unstaged(BlockId(150)), None);
        assert_eq!((epoch.unstaged_from(150), epoch.ahead()), (Some(151), 129));
        (130..200).for_each(|position| epoch.stage(position));
        assert_eq!(epoch.unstaged_from(0), None);
    }
}

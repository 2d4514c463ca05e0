//! Finds the blocks that each epoch reads at its end: a validation's, if the training's order is unknown.

use crate::ids::BlockId;

/// Parts of an epoch, and the most and fewest parts that its end has.
const PARTS: usize = 256;
const END_MAX: usize = PARTS / 2;
const END_MIN: usize = PARTS / 32;

/// The least share, in quarters, of an end's reads that were at the end of the previous epoch, too. If each
/// epoch is shuffled as a whole, the share is only as large as the end.
const SAME: u64 = 3;

#[derive(Debug, Default)]
pub(super) struct Late {
    /// By block, the number of its read in this epoch, from 1; 0 if there was none.
    reads: Vec<u32>,
    count: u32,
    /// By block, the part of the previous epoch in which it was read.
    parts: Vec<u8>,
    late: Vec<bool>,
    any: bool,
}

impl Late {
    pub(super) fn grow(&mut self, blocks: usize) {
        self.reads.resize(blocks, 0);
        self.parts.resize(blocks, 0);
        self.late.resize(blocks, false);
    }

    /// A block was read for the first time in this epoch.
    pub(super) fn note_read(&mut self, block: BlockId) {
        self.count += 1;
        self.reads[block.index()] = self.count;
    }

    pub(super) fn has(&self, block: BlockId) -> bool {
        self.late.get(block.index()) == Some(&true)
    }

    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Another epoch has begun, with reads of `begun`. The ended epoch tells nothing unless it was `whole`.
    pub(super) fn begin(&mut self, begun: &[BlockId], whole: bool) {
        let total = u64::from(self.count).max(1);
        let mut ends = [0u64; PARTS];
        for (read, part) in self.reads.iter_mut().zip(&mut self.parts) {
            let now = u64::from(read.saturating_sub(1)) * PARTS as u64 / total;
            let both = u64::from(*part).min(now);
            ends[both as usize] += 1;
            // From here on, `reads` holds the earlier of the two parts in which the block was read.
            *read = both as u32;
            *part = if whole { now as u8 } else { 0 };
        }
        let from = end(&ends, total).filter(|_| whole);
        self.any = from.is_some();
        for (late, both) in self.late.iter_mut().zip(&mut self.reads) {
            *late = from.is_some_and(|from| *both as usize >= from);
            *both = 0;
        }
        self.count = 0;
        for &block in begun {
            if self.reads[block.index()] == 0 {
                self.note_read(block);
            }
        }
    }
}

/// The part where the end of an epoch of `total` reads begins, if the previous epoch had the same blocks at
/// its end. `ends` counts the blocks by the earlier of the two parts in which they were read.
fn end(ends: &[u64; PARTS], total: u64) -> Option<usize> {
    let same = |from: &usize| {
        let both: u64 = ends[*from..].iter().sum();
        4 * both * PARTS as u64 >= SAME * total * (PARTS - from) as u64
    };
    (PARTS - END_MAX..=PARTS - END_MIN).find(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::samplers::torch::{generator, randperm};

    /// How many of the other blocks and of the `fixed` ones are late, after epochs that read the last `fixed` of
    /// 1,000 blocks in the same order at the end.
    fn late(fixed: u32) -> (usize, usize) {
        let mut late = Late::default();
        late.grow(1_000);
        for epoch in 0..3 {
            late.begin(&[], true);
            let shuffled = randperm(1_000 - fixed, &mut generator(epoch));
            shuffled
                .into_iter()
                .chain(1_000 - fixed..1_000)
                .for_each(|b| late.note_read(BlockId(b)));
        }
        late.begin(&[BlockId(0)], true);
        let of = |blocks: std::ops::Range<u32>| blocks.filter(|b| late.has(BlockId(*b))).count();
        (of(0..1_000 - fixed), of(1_000 - fixed..1_000))
    }

    #[test]
    fn what_is_read_last_again_and_again_is_late() {
        assert_eq!(late(0), (0, 0));
        for fixed in [50, 200, 400] {
            let (others, validation) = late(fixed);
            assert!(validation == fixed as usize && others < 40, "{fixed}: {others}");
        }
    }
}

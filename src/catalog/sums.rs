//! A checksum for each block, which threads set without waiting for each other.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ids::BlockId;
use crate::sync::RwLock;

/// By block, the CRC-32C of its bytes that were handed out last. It takes four bytes a block, up to the
/// last block that has one. 0 stands for none, and a checksum of 0 is taken for 1.
#[derive(Debug, Default)]
pub(super) struct Sums(RwLock<Vec<AtomicU32>>);

impl Sums {
    fn get(&self, block: BlockId) -> u32 {
        let sums = self.0.read();
        sums.get(block.index()).map_or(0, |sum| sum.load(Ordering::Acquire))
    }

    /// Whether a block has a checksum.
    pub(super) fn has(&self, block: BlockId) -> bool {
        self.get(block) != 0
    }

    /// Whether this is the checksum of a block.
    pub(super) fn is(&self, block: BlockId, sum: u32) -> bool {
        self.get(block) == sum.max(1)
    }

    /// Sets the checksum of a block.
    pub(super) fn set(&self, block: BlockId, sum: u32) {
        let sums = self.0.read();
        if let Some(slot) = sums.get(block.index()) {
            return slot.store(sum.max(1), Ordering::Release);
        }
        drop(sums);
        let mut sums = self.0.write();
        let length = sums.len().max((block.index() + 1).next_power_of_two());
        sums.resize_with(length, AtomicU32::default);
        sums[block.index()].store(sum.max(1), Ordering::Release);
    }

    /// A block has no checksum any more.
    pub(super) fn forget(&self, block: BlockId) {
        let sums = self.0.read();
        if let Some(slot) = sums.get(block.index()) {
            slot.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_checksum_that_was_set_last() {
        let (sums, block) = (Sums::default(), BlockId(70));
        assert!(!sums.has(block) && !sums.is(block, 0));
        for sum in [7, 0] {
            sums.set(block, sum);
            assert!(sums.has(block) && sums.is(block, sum) && !sums.is(block, 8));
        }
        assert!(!sums.has(BlockId(69)));
        sums.forget(block);
        sums.forget(BlockId(1000));
        assert!(!sums.has(block));
    }
}

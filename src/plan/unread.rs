//! What this epoch has read, where no order is known.
//!
//! A training job reads each file once an epoch. So an epoch is over when files are read a second
//! time, and what has been read is expected in the next epoch, what has not in this one.

use crate::ids::BlockId;

/// Second reads within an epoch that are put down to something else than its end: a file looked
/// at twice, an indexer.
const SECOND_READS: u32 = 16;

/// The epoch in which each block was read last, epochs counted from 1.
#[derive(Debug)]
pub(super) struct Unread {
    last_read: Vec<u16>,
    epoch: u16,
    first_reads: u32,
    second_reads: u32,
}

impl Unread {
    pub(super) fn new(blocks: usize) -> Self {
        Unread { last_read: vec![0; blocks], epoch: 1, first_reads: 0, second_reads: 0 }
    }

    pub(super) fn grow(&mut self, blocks: usize) {
        if blocks > self.last_read.len() {
            self.last_read.resize(blocks, 0);
        }
    }

    /// The block was read.
    pub(super) fn read(&mut self, block: BlockId) {
        let last = &mut self.last_read[block.index()];
        if *last < self.epoch {
            self.first_reads += 1;
            *last = self.epoch;
            return;
        }
        self.second_reads += 1;
        if self.second_reads > SECOND_READS.max(self.first_reads / 8) {
            self.epoch = self.epoch.saturating_add(1);
            (self.first_reads, self.second_reads) = (0, 0);
            *last = self.epoch;
        }
    }

    /// Number of the epoch in which the block is expected next.
    pub(super) fn next_epoch(&self, block: BlockId) -> u64 {
        u64::from(self.epoch) + u64::from(self.last_read[block.index()] >= self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_ends_when_files_are_read_again() {
        let mut unread = Unread::new(100);
        for block in 0..100 {
            assert_eq!(unread.next_epoch(BlockId(block)), 1);
            unread.read(BlockId(block));
            assert_eq!(unread.next_epoch(BlockId(block)), 2);
        }
        for block in 0..=SECOND_READS {
            unread.read(BlockId(block));
        }
        assert_eq!(unread.next_epoch(BlockId(50)), 2, "unread in the second epoch");
        assert_eq!(unread.next_epoch(BlockId(SECOND_READS)), 3, "read in it");
    }
}

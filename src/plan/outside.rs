//! Slices that no order has, and that readers come back to: the header of a container, or nodes of its index.
//!
//! An order tells when samples are read. It does not tell that a loader looks at an index before each of them. A slice
//! outside of all orders that is read a second time is expected again. So RAM keeps it before all others, as far as
//! such slices take a small part of it.

use std::collections::BTreeMap;

use crate::ids::BlockId;

/// Slices whose reads are counted.
const COUNTED_MAX: usize = 1 << 16;

/// Slices that are expected take at most one in so many bytes of RAM.
const RAM_PART: u64 = 16;

#[derive(Debug, Default)]
pub(super) struct Outside {
    /// The slices that were read, and whether each of them is expected.
    read: BTreeMap<BlockId, bool>,
    /// Bytes of those that are expected.
    bytes: u64,
}

impl Outside {
    /// A slice of so many bytes was read that no order has. RAM has `ram` bytes.
    pub(super) fn note_read(&mut self, block: BlockId, bytes: u64, ram: u64) {
        if self.read.len() >= COUNTED_MAX {
            self.read.retain(|_, is_expected| *is_expected);
        }
        let has_room = self.bytes + bytes <= ram / RAM_PART;
        match self.read.get_mut(&block) {
            Some(is_expected) if !*is_expected && has_room => {
                *is_expected = true;
                self.bytes += bytes;
            }
            Some(_) => {}
            None => _ = self.read.insert(block, false),
        }
    }

    pub(super) fn is_expected(&self, block: BlockId) -> bool {
        self.read.get(&block).is_some_and(|is_expected| *is_expected)
    }

    /// Files have other blocks.
    pub(super) fn clear(&mut self) {
        *self = Outside::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_again_is_expected_as_long_as_there_is_room() {
        let mut outside = Outside::default();
        let mut read = |block: u32| {
            outside.note_read(BlockId(block), 100, 16 * 250);
            outside.is_expected(BlockId(block))
        };
        assert_eq!([read(1), read(1), read(1)], [false, true, true]);
        assert_eq!([read(2), read(2), read(3), read(3)], [false, true, false, false]);
        outside.clear();
        assert!(!outside.is_expected(BlockId(1)));
    }

    #[test]
    fn those_that_were_read_once_are_forgotten_if_there_are_many() {
        let mut outside = Outside::default();
        (0..2).for_each(|_| outside.note_read(BlockId(0), 1, 1 << 20));
        (1..=COUNTED_MAX as u32).for_each(|block| outside.note_read(BlockId(block), 1, 1 << 20));
        assert!(outside.read.len() < 10 && outside.is_expected(BlockId(0)));
    }
}

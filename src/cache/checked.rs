//! When each block was last known to be in the page cache.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::ids::BlockId;

/// For how long nothing is taken to get lost: the kernel takes single pages back at a low rate,
/// and a look at a block costs a request.
const TRUSTED_FOR: Duration = Duration::from_secs(2);

/// Milliseconds from the start to the last look at each block, counted from 1; 0 for never.
pub(super) struct Checked {
    start: Instant,
    looks: RwLock<Vec<AtomicU32>>,
}

impl Default for Checked {
    fn default() -> Self {
        Checked { start: Instant::now(), looks: RwLock::default() }
    }
}

impl Checked {
    fn now(&self) -> u32 {
        // Wraps after 50 days, which costs one look too many.
        self.start.elapsed().as_millis() as u32 | 1
    }

    /// The block is whole at this moment.
    pub(super) fn note(&self, block: BlockId) {
        let now = self.now();
        let looks = self.looks.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(look) = looks.get(block.index()) {
            return look.store(now, Ordering::Relaxed);
        }
        drop(looks);
        let mut looks = self.looks.write().unwrap_or_else(PoisonError::into_inner);
        let length = looks.len().max((block.index() + 1).next_power_of_two());
        looks.resize_with(length, AtomicU32::default);
        looks[block.index()].store(now, Ordering::Relaxed);
    }

    /// Whether the last look was long ago.
    pub(super) fn is_due(&self, block: BlockId) -> bool {
        let looks = self.looks.read().unwrap_or_else(PoisonError::into_inner);
        let last = looks.get(block.index()).map_or(0, |look| look.load(Ordering::Relaxed));
        last == 0 || self.now().wrapping_sub(last) > TRUSTED_FOR.as_millis() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_due_until_it_is_noted() {
        let checked = Checked::default();
        assert!(checked.is_due(BlockId(1000)));
        checked.note(BlockId(1000));
        assert!(!checked.is_due(BlockId(1000)) && checked.is_due(BlockId(999)));
    }
}

//! When each block was last known to be in the page cache.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::ids::BlockId;
use crate::sync::{Mutex, RwLock};

/// For how long nothing is taken to get lost: the kernel takes single pages back at a low rate,
/// and a look at a block costs a request.
const TRUSTED_FOR: Duration = Duration::from_secs(2);

/// Looks in a row, and looks a second in the long run: a few percent of a core. If a reader is faster
/// than that, little gets lost between two of its reads.
const LOOKS_MAX: f64 = 256.0;
const LOOKS_PER_SECOND: f64 = 4000.0;

/// Milliseconds from the start to the last look at each block, counted from 1; 0 for never.
pub(super) struct Checks {
    start: Instant,
    looks: RwLock<Vec<AtomicU32>>,
    /// Looks that may be taken now, and as of when.
    allowed: Mutex<(f64, Instant)>,
}

impl Default for Checks {
    fn default() -> Self {
        let now = Instant::now();
        Checks { start: now, looks: RwLock::default(), allowed: Mutex::new((LOOKS_MAX, now)) }
    }
}

impl Checks {
    fn millis(&self, now: Instant) -> u32 {
        // Wraps after 50 days, which costs one look too many, as does a note later than this.
        now.saturating_duration_since(self.start).as_millis() as u32 | 1
    }

    /// The block is whole `now`.
    pub(super) fn note(&self, block: BlockId, now: Instant) {
        let now = self.millis(now);
        let looks = self.looks.read();
        if let Some(look) = looks.get(block.index()) {
            return look.store(now, Ordering::Relaxed);
        }
        drop(looks);
        let mut looks = self.looks.write();
        let length = looks.len().max((block.index() + 1).next_power_of_two());
        looks.resize_with(length, AtomicU32::default);
        looks[block.index()].store(now, Ordering::Relaxed);
    }

    /// The block is not whole any more. Says whether it was noted before.
    pub(super) fn forget(&self, block: BlockId) -> bool {
        let looks = self.looks.read();
        looks.get(block.index()).is_some_and(|look| look.swap(0, Ordering::Relaxed) != 0)
    }

    /// Whether the block was whole when it was looked at last.
    pub(super) fn is_noted(&self, block: BlockId) -> bool {
        let looks = self.looks.read();
        looks.get(block.index()).is_some_and(|look| look.load(Ordering::Relaxed) != 0)
    }

    /// Counts another look `now`, unless looks would cost too much. Says whether it may be taken.
    pub(super) fn take_look(&self, now: Instant) -> bool {
        let mut allowed = self.allowed.lock();
        let earned = now.saturating_duration_since(allowed.1).as_secs_f64() * LOOKS_PER_SECOND;
        *allowed = ((allowed.0 + earned).min(LOOKS_MAX), now);
        let may = allowed.0 >= 1.0;
        allowed.0 -= f64::from(u8::from(may));
        may
    }

    /// Whether the last look is long ago `now`.
    pub(super) fn is_due(&self, block: BlockId, now: Instant) -> bool {
        let looks = self.looks.read();
        let last = looks.get(block.index()).map_or(0, |look| look.load(Ordering::Relaxed));
        last == 0 || self.millis(now).wrapping_sub(last) > TRUSTED_FOR.as_millis() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_a_row_are_bounded() {
        let checks = Checks::default();
        let mut now = checks.start;
        let mut taken = || {
            let taken = std::iter::from_fn(|| checks.take_look(now).then_some(())).count();
            now += Duration::from_millis(16);
            taken
        };
        assert_eq!([taken(), taken(), taken()], [256, 64, 64]);
    }

    #[test]
    fn a_block_is_due_until_it_is_noted_and_when_that_is_long_ago() {
        let checks = Checks::default();
        let (noted, other, now) = (BlockId(1000), BlockId(999), checks.start);
        assert!(checks.is_due(noted, now));
        checks.note(noted, now);
        let soon = now + TRUSTED_FOR;
        assert!(!checks.is_due(noted, soon) && checks.is_due(other, soon));
        assert!(checks.is_due(noted, soon + Duration::from_millis(2)), "it may be lost by then");
        assert!(checks.forget(noted) && !checks.forget(noted) && !checks.forget(other));
        assert!(checks.is_due(noted, now));
    }
}

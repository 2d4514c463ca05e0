//! Goes through the epochs of a sampler.

use std::fmt;

/// The epochs of a [`Sampler`](super::Sampler), in sequence and without end.
///
/// Each costs one permutation. That holds even if one generator draws all epochs, so that epoch `k` by itself
/// would cost all epochs before it.
pub struct Positions {
    running: Box<dyn Running>,
    next: u64,
}

/// Makes the epochs of a sampler.
pub(super) trait Running: Boxed + Send + Sync {
    /// The positions of epoch `k`, which must be the next.
    fn epoch(&mut self, k: u64) -> Vec<u32>;

    /// Skips epochs. Does nothing if `epoch` needs no earlier calls.
    fn skip(&mut self, _count: u64) {}
}

/// For samplers whose epochs depend only on their numbers.
impl<F: Fn(u64) -> Vec<u32> + Clone + Send + Sync + 'static> Running for F {
    fn epoch(&mut self, k: u64) -> Vec<u32> {
        self(k)
    }
}

/// Clones a `Running` in its box.
pub(super) trait Boxed {
    fn boxed(&self) -> Box<dyn Running>;
}

impl<R: Running + Clone + 'static> Boxed for R {
    fn boxed(&self) -> Box<dyn Running> {
        Box::new(self.clone())
    }
}

impl Positions {
    /// From the stream's epoch `from` on. `start` is `before` epochs before the stream's first.
    pub(super) fn new(start: impl Running + 'static, before: u32, from: u32) -> Self {
        let mut positions = Positions { running: Box::new(start), next: 0 };
        positions.skip_epochs(u64::from(before) + u64::from(from));
        positions
    }

    /// Skips epochs, at less than the cost of making them if possible.
    pub fn skip_epochs(&mut self, count: u64) {
        self.running.skip(count);
        self.next = self.next.saturating_add(count);
    }
}

impl Iterator for Positions {
    type Item = Vec<u32>;

    /// The next epoch's positions. Never `None`.
    fn next(&mut self) -> Option<Vec<u32>> {
        let positions = self.running.epoch(self.next);
        self.next = self.next.saturating_add(1);
        Some(positions)
    }
}

impl Clone for Positions {
    fn clone(&self) -> Self {
        Positions { running: self.running.boxed(), next: self.next }
    }
}

impl fmt::Debug for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epochs from {} on", self.next)
    }
}

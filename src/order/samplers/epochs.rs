//! Goes through the epochs of a sampler.

use std::fmt;

/// The epochs of a [`Sampler`](super::Sampler), each as its positions, in sequence and without end.
///
/// Each costs one permutation. That holds even if one generator draws all epochs, so that epoch `k` by itself
/// would cost all epochs before it.
pub struct SamplerEpochs {
    running: Box<dyn RunningSampler>,
    next: u64,
}

/// A sampler on its way through its epochs.
pub(super) trait RunningSampler: CloneBoxed + Send + Sync {
    /// The positions of epoch `k`, which must be the next.
    fn epoch(&mut self, k: u64) -> Vec<u32>;

    /// Skips epochs. Does nothing if `epoch` needs no earlier calls.
    fn skip(&mut self, _count: u64) {}
}

/// For samplers whose epochs depend only on their numbers.
impl<F: Fn(u64) -> Vec<u32> + Clone + Send + Sync + 'static> RunningSampler for F {
    fn epoch(&mut self, k: u64) -> Vec<u32> {
        self(k)
    }
}

/// Clones a boxed [`RunningSampler`].
pub(super) trait CloneBoxed {
    fn clone_boxed(&self) -> Box<dyn RunningSampler>;
}

impl<R: RunningSampler + Clone + 'static> CloneBoxed for R {
    fn clone_boxed(&self) -> Box<dyn RunningSampler> {
        Box::new(self.clone())
    }
}

impl SamplerEpochs {
    /// The epochs from number 0 on.
    pub(super) fn new(running: impl RunningSampler + 'static) -> Self {
        SamplerEpochs { running: Box::new(running), next: 0 }
    }

    /// The epochs after the next `count`. Skipping an epoch costs less than making it, if possible.
    pub fn skip_epochs(mut self, count: u32) -> Self {
        self.running.skip(count.into());
        self.next = self.next.saturating_add(count.into());
        self
    }
}

impl Iterator for SamplerEpochs {
    type Item = Vec<u32>;

    /// The next epoch's positions. Never `None`.
    fn next(&mut self) -> Option<Vec<u32>> {
        let positions = self.running.epoch(self.next);
        self.next = self.next.saturating_add(1);
        Some(positions)
    }
}

impl Clone for SamplerEpochs {
    fn clone(&self) -> Self {
        SamplerEpochs { running: self.running.clone_boxed(), next: self.next }
    }
}

impl fmt::Debug for SamplerEpochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epochs from {} on", self.next)
    }
}

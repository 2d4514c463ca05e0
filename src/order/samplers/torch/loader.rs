//! Loaders that draw all epochs from one generator.

use rand_mt::Mt;

use super::{discard, randperm, randperm_outputs, with_replacement};
use crate::order::samplers::epochs::RunningSampler;

/// 32-bit outputs for the 64-bit base seed that a `DataLoader` draws for its workers.
pub(super) const BASE_SEED_OUTPUTS: u64 = 2;

/// A generator and what one loader draws from it, after some epochs.
#[derive(Clone, Debug)]
pub(super) struct Loader<D> {
    rng: Mt,
    draw: D,
    /// Outputs to skip before the next epoch.
    before: u64,
    /// Outputs to skip before each later epoch.
    between: u64,
}

/// What one epoch takes from the generator.
pub(super) trait EpochDraw: Clone + Send + Sync + 'static {
    /// The epoch's positions.
    fn positions(&self, rng: &mut Mt) -> Vec<u32>;

    /// How many 32-bit outputs of the generator an epoch consumes.
    fn outputs(&self) -> u64;
}

impl<D: EpochDraw> Loader<D> {
    pub(super) fn new(rng: Mt, draw: D, [before, between]: [u64; 2]) -> Self {
        Loader { rng, draw, before, between }
    }

    /// Outputs from here to those of the epoch after `count` more epochs.
    pub(super) fn outputs_before(&self, count: u64) -> u64 {
        let each = self.draw.outputs().saturating_add(self.between);
        self.before.saturating_add(each.saturating_mul(count))
    }
}

impl<D: EpochDraw> RunningSampler for Loader<D> {
    fn epoch(&mut self, _k: u64) -> Vec<u32> {
        discard(&mut self.rng, std::mem::replace(&mut self.before, self.between));
        self.draw.positions(&mut self.rng)
    }

    fn skip(&mut self, count: u64) {
        if count > 0 {
            let outputs = self.outputs_before(count).saturating_sub(self.between);
            discard(&mut self.rng, outputs);
            self.before = self.between;
        }
    }
}

/// Equally likely positions of `n` samples: a permutation, or each drawn from all.
#[derive(Clone, Debug)]
pub(super) struct Uniform {
    pub(super) n: u32,
    pub(super) replacement: bool,
}

impl EpochDraw for Uniform {
    fn positions(&self, rng: &mut Mt) -> Vec<u32> {
        if self.replacement { with_replacement(self.n, rng) } else { randperm(self.n, rng) }
    }

    fn outputs(&self) -> u64 {
        if self.replacement { self.n.into() } else { randperm_outputs(self.n) }
    }
}

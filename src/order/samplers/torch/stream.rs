//! Samplers whose epochs come one after the other out of one generator.

use rand_mt::Mt;

use super::weighted::Multinomial;
use super::{discard, generator, randperm, randperm_draws, with_replacement};
use crate::error::Result;
use crate::order::samplers::keys::{Field, Key, check_positive};

/// Draws of the 64-bit base seed that a `DataLoader` takes for its workers.
pub(super) const BASE_SEED_DRAWS: u64 = 2;

/// `DataLoader(shuffle=True, generator=torch.Generator().manual_seed(seed))`.
///
/// The loader, its `RandomSampler` and all epochs draw from this one generator. Every epoch has to
/// be read to its end: a loop that breaks off early draws less and shifts the epochs after it.
///
/// In the order of the draws: the base seed of the workers, the permutation, and at the end of the
/// epoch another permutation of which `RandomSampler` uses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Random {
    /// What the generator was seeded with.
    pub seed: u64,
    /// Epochs that the generator has given before the stream's first, in the same process.
    pub epoch: u32,
    /// Whether the loader keeps its workers: it then draws their base seed once, not every epoch.
    pub persistent_workers: bool,
    /// `RandomSampler(replacement=True)`: as many samples as there are, any of them repeated.
    pub replacement: bool,
}

impl Random {
    /// A loader with this seed, from its first epoch on, without persistent workers.
    pub fn new(seed: u64) -> Self {
        Random { seed, ..Random::default() }
    }

    /// The loader over `n` samples, before its first epoch.
    pub(in crate::order::samplers) fn start(&self, n: u32) -> Loader {
        let draws = if self.replacement { Draws::WithReplacement } else { Draws::Permutation };
        let unused = if self.replacement { 0 } else { randperm_draws(n) };
        let base = if self.persistent_workers { 0 } else { BASE_SEED_DRAWS };
        Loader::new(generator(self.seed), n, draws, [BASE_SEED_DRAWS, unused + base])
    }

    pub(in crate::order::samplers) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::required("seed", Field::U64(&mut self.seed)),
            Key::new("epoch", Field::U32(&mut self.epoch)),
            Key::new("persistent_workers", Field::Bool(&mut self.persistent_workers)),
            Key::new("replacement", Field::Bool(&mut self.replacement)),
        ]
    }
}

/// `DataLoader(shuffle=True)` after `torch.manual_seed(seed)`: the sampler of every epoch seeds a
/// generator of its own with a number that it draws from the process's default generator.
///
/// What else the process draws in between decides which numbers those are: `position` and
/// `stride` count 32-bit outputs of the default generator. Model initialisation on the CPU moves
/// `position`; each further loader that is gone through once an epoch adds 2 to `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultGenerator {
    /// What `torch.manual_seed` was given.
    pub seed: u64,
    /// Which output, from 0, is the low half of the first epoch's seed: 3 when nothing is drawn
    /// before the loader, whose workers' base seed takes two.
    pub position: u64,
    /// From one epoch's seed to the next: 4; with persistent workers 2. Not 0.
    pub stride: u64,
    /// Epochs before the stream's first.
    pub epoch: u32,
    /// `RandomSampler(replacement=True)`
    pub replacement: bool,
}

impl Default for DefaultGenerator {
    /// A loader that is the first and the only one to draw.
    fn default() -> Self {
        DefaultGenerator { seed: 0, position: 3, stride: 4, epoch: 0, replacement: false }
    }
}

impl DefaultGenerator {
    pub(in crate::order::samplers) fn start(&self, n: u32) -> Loader {
        let draws = Draws::Seed { replacement: self.replacement };
        Loader::new(generator(self.seed), n, draws, [self.position, self.stride - 1])
    }

    pub(in crate::order::samplers) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::required("seed", Field::U64(&mut self.seed)),
            Key::new("position", Field::U64(&mut self.position)),
            Key::new("stride", Field::U64(&mut self.stride)),
            Key::new("epoch", Field::U32(&mut self.epoch)),
            Key::new("replacement", Field::Bool(&mut self.replacement)),
        ]
    }

    pub(in crate::order::samplers) fn validate(&self) -> Result<()> {
        check_positive("stride", self.stride)
    }
}

/// `SubsetRandomSampler`: every epoch the next permutation of its generator, which is the
/// process's default one unless the script gives it another. What it is a subset of, `split=` of
/// the spec says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsetRandom {
    /// What the generator was seeded with.
    pub seed: u64,
    /// Outputs drawn before the first permutation: 2, the base seed, in a `DataLoader` that draws
    /// from the same generator; 0 where the sampler has its own.
    pub position: u64,
    /// Outputs drawn between two permutations, by the same reasons.
    pub gap: u64,
    /// Epochs before the stream's first.
    pub epoch: u32,
}

impl Default for SubsetRandom {
    /// The sampler of a loader, both with the default generator, the only one to draw from it.
    fn default() -> Self {
        SubsetRandom { seed: 0, position: BASE_SEED_DRAWS, gap: BASE_SEED_DRAWS, epoch: 0 }
    }
}

impl SubsetRandom {
    pub(in crate::order::samplers) fn start(&self, n: u32) -> Loader {
        Loader::new(generator(self.seed), n, Draws::Permutation, [self.position, self.gap])
    }

    pub(in crate::order::samplers) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::required("seed", Field::U64(&mut self.seed)),
            Key::new("position", Field::U64(&mut self.position)),
            Key::new("gap", Field::U64(&mut self.gap)),
            Key::new("epoch", Field::U32(&mut self.epoch)),
        ]
    }
}

/// torchdata's `StatefulDataLoader(shuffle=True)` after `torch.manual_seed(seed)`: its sampler
/// seeds a generator when it is constructed, and all epochs are that generator's permutations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stateful {
    /// What `torch.manual_seed` was given.
    pub seed: u64,
    /// Which output of the default generator, from 0, is the low half of the sampler's seed: 1
    /// when nothing is drawn before.
    pub position: u64,
    /// How many permutations an epoch draws, of which it uses the last: 1, or 2 if there are workers.
    /// Not 0.
    pub stride: u64,
    /// Epochs before the stream's first.
    pub epoch: u32,
}

impl Default for Stateful {
    /// The sampler is the first to draw, and there are no workers.
    fn default() -> Self {
        Stateful { seed: 0, position: 1, stride: 1, epoch: 0 }
    }
}

impl Stateful {
    pub(in crate::order::samplers) fn start(&self, n: u32) -> Loader {
        let mut default = generator(self.seed);
        discard(&mut default, self.position);
        let unused = randperm_draws(n).saturating_mul(self.stride - 1);
        Loader::new(Mt::new(default.next_u32()), n, Draws::Permutation, [unused, unused])
    }

    pub(in crate::order::samplers) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::required("seed", Field::U64(&mut self.seed)),
            Key::new("position", Field::U64(&mut self.position)),
            Key::new("stride", Field::U64(&mut self.stride)),
            Key::new("epoch", Field::U32(&mut self.epoch)),
        ]
    }

    pub(in crate::order::samplers) fn validate(&self) -> Result<()> {
        check_positive("stride", self.stride)
    }
}

/// A generator with what one loader draws from it, after some epochs.
#[derive(Clone, Debug)]
pub struct Loader {
    rng: Mt,
    n: u32,
    draws: Draws,
    /// Outputs to pass over before the next epoch.
    before: u64,
    /// Outputs to pass over from then on.
    between: u64,
}

/// What an epoch takes from the generator.
#[derive(Clone, Debug)]
pub(super) enum Draws {
    Permutation,
    WithReplacement,
    /// The seed of a generator of its own.
    Seed {
        replacement: bool,
    },
    Weighted(Multinomial),
}

impl Loader {
    pub(super) fn new(rng: Mt, n: u32, draws: Draws, [before, between]: [u64; 2]) -> Self {
        Loader { rng, n, draws, before, between }
    }

    /// The next epoch's positions.
    pub fn next_epoch(&mut self) -> Vec<u32> {
        self.pass_over();
        match &self.draws {
            Draws::Permutation => randperm(self.n, &mut self.rng),
            Draws::WithReplacement => with_replacement(self.n, &mut self.rng),
            Draws::Seed { replacement } => {
                let mut own = Mt::new(self.rng.next_u32());
                if *replacement {
                    with_replacement(self.n, &mut own)
                } else {
                    randperm(self.n, &mut own)
                }
            }
            Draws::Weighted(draws) => draws.draw(&mut self.rng),
        }
    }

    /// Goes past so many epochs without making them.
    pub fn skip_epochs(&mut self, count: u64) {
        if count > 0 {
            let outputs = self.outputs_before(count).saturating_sub(self.between);
            discard(&mut self.rng, outputs);
            self.before = self.between;
        }
    }

    /// Outputs from here to those of the epoch after `count` more.
    pub(in crate::order::samplers) fn outputs_before(&self, count: u64) -> u64 {
        let each = self.draws.outputs(self.n).saturating_add(self.between);
        self.before.saturating_add(each.saturating_mul(count))
    }

    fn pass_over(&mut self) {
        discard(&mut self.rng, std::mem::replace(&mut self.before, self.between));
    }
}

impl Draws {
    fn outputs(&self, n: u32) -> u64 {
        match self {
            Draws::Permutation => randperm_draws(n),
            Draws::WithReplacement => n.into(),
            Draws::Seed { .. } => 1,
            Draws::Weighted(draws) => draws.outputs(),
        }
    }
}

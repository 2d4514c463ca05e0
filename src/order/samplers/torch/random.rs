//! A `DataLoader` with a generator of its own.

use super::loader::{BASE_SEED_OUTPUTS, Loader, Uniform};
use super::{generator, randperm_outputs};
use crate::order::samplers::keys::SEED;
use crate::order::samplers::{SamplerEpochs, Sampling};

sampler! {
    name: "torch-random",
    about: "torch DataLoader(shuffle=True, generator=G), G seeded with seed",

    /// `DataLoader(shuffle=True, generator=torch.Generator().manual_seed(seed))`.
    ///
    /// The loader, its `RandomSampler` and all epochs draw from this one generator. Every epoch must be read
    /// to its end: a loop that ends early draws less and shifts the epochs after it.
    ///
    /// An epoch draws in this order: the base seed of the workers, the permutation, and at the end another
    /// permutation that `RandomSampler` does not use.
    #[derive(Copy)]
    pub struct Random {
        /// The generator's seed.
        pub seed: u64 = 0 => SEED,
        /// Epochs drawn from the generator before the stream's first, in the same process.
        pub epoch: u32 = 0,
        /// Whether the loader keeps its workers. It then draws their base seed only once.
        pub persistent_workers: bool = false,
        /// `RandomSampler(replacement=True)`: as many positions as samples, with repetition.
        pub replacement: bool = false,
    }
}

impl Random {
    /// A loader with this seed and default parameters.
    pub fn new(seed: u64) -> Self {
        Random { seed, ..Random::default() }
    }

    fn loader(&self, n: u32) -> Loader<Uniform> {
        let unused = if self.replacement { 0 } else { randperm_outputs(n) };
        let base = if self.persistent_workers { 0 } else { BASE_SEED_OUTPUTS };
        let draw = Uniform { n, replacement: self.replacement };
        Loader::new(generator(self.seed), draw, [BASE_SEED_OUTPUTS, unused + base])
    }
}

impl Sampling for Random {
    fn draws_with_replacement(&self) -> bool {
        self.replacement
    }

    fn draws_before(&self, n: u32, k: u32) -> u64 {
        self.loader(n).outputs_before(u64::from(self.epoch) + u64::from(k))
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        SamplerEpochs::new(self.loader(n)).skip_epochs(self.epoch)
    }
}

//! `torch.utils.data.SubsetRandomSampler`.

use super::generator;
use super::loader::{BASE_SEED_OUTPUTS, Loader, Uniform};
use crate::order::samplers::keys::SEED;
use crate::order::samplers::{SamplerEpochs, Sampling};

sampler! {
    name: "torch-subset-random",
    about: "torch SubsetRandomSampler over split=; position and gap count outputs before and \
            between its permutations (0 and 0 with a generator of its own)",

    /// `SubsetRandomSampler`: every epoch is the next permutation of its generator. That is the process's
    /// default generator, unless the script gives another. The spec's `split=` gives the subset.
    ///
    /// The defaults are right if the sampler and its loader draw from the default generator, and no other
    /// code does.
    #[derive(Copy)]
    pub struct SubsetRandom {
        /// The generator's seed.
        pub seed: u64 = 0 => SEED,
        /// Outputs drawn before the first permutation: 2 for the base seed if a `DataLoader` draws from the
        /// same generator, 0 if the sampler has its own.
        pub position: u64 = BASE_SEED_OUTPUTS,
        /// Outputs drawn between two permutations, for the same reasons.
        pub gap: u64 = BASE_SEED_OUTPUTS,
        /// Epochs before the stream's first.
        pub epoch: u32 = 0,
    }
}

impl SubsetRandom {
    fn loader(&self, n: u32) -> Loader<Uniform> {
        let draw = Uniform { n, replacement: false };
        Loader::new(generator(self.seed), draw, [self.position, self.gap])
    }
}

impl Sampling for SubsetRandom {
    fn draws_before(&self, n: u32, k: u32) -> u64 {
        self.loader(n).outputs_before(u64::from(self.epoch) + u64::from(k))
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        SamplerEpochs::new(self.loader(n)).skip_epochs(self.epoch)
    }
}

//! A `DataLoader` with the process's default generator.

use rand_mt::Mt;

use super::generator;
use super::loader::{EpochDraw, Loader, Uniform};
use crate::error::Result;
use crate::order::samplers::keys::{SEED, check_positive};
use crate::order::samplers::{SamplerEpochs, Sampling};

sampler! {
    name: "torch-default",
    about: "torch DataLoader(shuffle=True) after manual_seed(seed); position and stride count \
            the default generator's outputs",

    /// `DataLoader(shuffle=True)` after `torch.manual_seed(seed)`. In every epoch the sampler seeds its own
    /// generator with a number drawn from the process's default generator.
    ///
    /// Other draws of the process decide which numbers these are. `position` and `stride` count 32-bit
    /// outputs of the default generator. Model initialisation on the CPU moves `position`. Each further
    /// loader that is read once an epoch adds 2 to `stride`.
    ///
    /// By default no other code draws.
    #[derive(Copy)]
    pub struct DefaultGenerator {
        /// The argument of `torch.manual_seed`.
        pub seed: u64 = 0 => SEED,
        /// Which output, from 0, is the low half of the first epoch's seed. It is 3 if nothing is drawn
        /// before the loader, because the workers' base seed takes two.
        pub position: u64 = 3,
        /// Outputs from one epoch's seed to the next: 4, or 2 with persistent workers. Not 0.
        pub stride: u64 = 4,
        /// Epochs before the stream's first.
        pub epoch: u32 = 0,
        /// `RandomSampler(replacement=True)`
        pub replacement: bool = false,
    }
}

impl DefaultGenerator {
    fn loader(&self, n: u32) -> Loader<Seeded> {
        let draw = Seeded(Uniform { n, replacement: self.replacement });
        Loader::new(generator(self.seed), draw, [self.position, self.stride - 1])
    }
}

impl Sampling for DefaultGenerator {
    fn validate(&self) -> Result<()> {
        check_positive("stride", self.stride)
    }

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

/// Draws an epoch from its own generator, seeded by the loader's generator.
#[derive(Clone, Debug)]
struct Seeded(Uniform);

impl EpochDraw for Seeded {
    fn positions(&self, rng: &mut Mt) -> Vec<u32> {
        self.0.positions(&mut Mt::new(rng.next_u32()))
    }

    fn outputs(&self) -> u64 {
        1
    }
}

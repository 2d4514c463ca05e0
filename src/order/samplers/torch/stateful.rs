//! torchdata's `StatefulDataLoader`.

use rand_mt::Mt;

use super::loader::{Loader, Uniform};
use super::{discard, generator, randperm_outputs};
use crate::error::Result;
use crate::order::samplers::keys::{SEED, check_positive};
use crate::order::samplers::{SamplerEpochs, Sampling};

sampler! {
    name: "torch-stateful",
    about: "torchdata StatefulDataLoader(shuffle=True); stride=2 if it has workers, \
            epoch=1 if persistent ones",

    /// torchdata's `StatefulDataLoader(shuffle=True)` after `torch.manual_seed(seed)`. Its sampler seeds a
    /// generator at construction, and all epochs are permutations of that generator.
    ///
    /// By default the sampler draws first, and there are no workers.
    #[derive(Copy)]
    pub struct Stateful {
        /// The argument of `torch.manual_seed`.
        pub seed: u64 = 0 => SEED,
        /// Which output of the default generator, from 0, is the low half of the sampler's seed: 1 if nothing
        /// is drawn before.
        pub position: u64 = 1,
        /// Permutations that an epoch draws. It uses the last. 1, or 2 with workers. Not 0.
        pub stride: u64 = 1,
        /// Epochs before the stream's first.
        pub epoch: u32 = 0,
    }
}

impl Sampling for Stateful {
    fn validate(&self) -> Result<()> {
        check_positive("stride", self.stride)
    }

    fn draws_before(&self, n: u32, k: u32) -> u64 {
        // This makes no loader, because making it takes draws.
        let epochs = u64::from(self.epoch) + u64::from(k);
        let each = u64::from(n).saturating_mul(self.stride);
        epochs.saturating_mul(each).saturating_add(self.position)
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let mut default = generator(self.seed);
        discard(&mut default, self.position);
        let unused = randperm_outputs(n).saturating_mul(self.stride - 1);
        let draw = Uniform { n, replacement: false };
        let loader = Loader::new(Mt::new(default.next_u32()), draw, [unused, unused]);
        SamplerEpochs::new(loader).skip_epochs(self.epoch)
    }
}

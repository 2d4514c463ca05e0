//! torchdata's `StatefulDataLoader`.

use rand_mt::Mt;

use super::loader::{Loader, Uniform};
use super::{discard, generator, randperm_draws};
use crate::error::Result;
use crate::order::samplers::keys::{SEED, check_positive};
use crate::order::samplers::{Positions, Sampling};

sampler! {
    name: "torch-stateful",
    about: "torchdata StatefulDataLoader(shuffle=True); stride=2 if it has workers, \
            epoch=1 if persistent ones",

    /// torchdata's `StatefulDataLoader(shuffle=True)` after `torch.manual_seed(seed)`: its sampler
    /// seeds a generator when it is constructed, and all epochs are that generator's permutations.
    ///
    /// By default the sampler is the first to draw, and there are no workers.
    #[derive(Copy)]
    pub struct Stateful {
        /// What `torch.manual_seed` was given.
        pub seed: u64 = 0 => SEED,
        /// Which output of the default generator, from 0, is the low half of the sampler's seed: 1
        /// when nothing is drawn before.
        pub position: u64 = 1,
        /// How many permutations an epoch draws, of which it uses the last: 1, or 2 if there are
        /// workers. Not 0.
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
        // The loader is not asked: to make it, one has to draw.
        let epochs = u64::from(self.epoch) + u64::from(k);
        let each = u64::from(n).saturating_mul(self.stride);
        epochs.saturating_mul(each).saturating_add(self.position)
    }

    fn epochs(&self, n: u32, from: u32) -> Positions {
        let mut default = generator(self.seed);
        discard(&mut default, self.position);
        let unused = randperm_draws(n).saturating_mul(self.stride - 1);
        let draws = Uniform { n, replacement: false };
        let loader = Loader::new(Mt::new(default.next_u32()), draws, [unused, unused]);
        Positions::new(loader, self.epoch, from)
    }
}

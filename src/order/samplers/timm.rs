//! timm's `RepeatAugSampler` (of DeiT): gives each sample several times, to different processes.

use super::keys::{check_positive, check_rank};
use super::torch::{generator, randperm};
use super::{SamplerEpochs, Sampling};
use crate::error::Result;

sampler! {
    name: "timm-repeat-aug",
    about: "timm RepeatAugSampler",

    /// `RepeatAugSampler`: a permutation seeded with the epoch alone, each element `repeats` times in a row.
    /// The rank takes every `world`-th element, up to a limit.
    ///
    /// The defaults are timm's, with one process.
    #[derive(Copy)]
    pub struct RepeatAug {
        /// The stream's first argument of `set_epoch`.
        pub epoch: u64 = 0,
        /// Number of processes. Not 0.
        pub world: u32 = 1,
        /// This stream's process, below `world`.
        pub rank: u32 = 0,
        /// The sampler's `num_repeats`. Not 0.
        pub repeats: u32 = 3,
        /// The number of samples is rounded down to a multiple of this. 0: it is not rounded.
        pub selected_round: u32 = 256,
        /// The limit is the rounded number divided by this. 0: by `world`.
        pub selected_ratio: u32 = 0,
        /// Whether the sampler shuffles.
        pub shuffle: bool = true,
    }
}

impl RepeatAug {
    /// The rank's positions in the stream's epoch `k` over `n` samples. Some occur twice.
    fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        let repeats = u64::from(self.repeats);
        let total = u64::from(n) * repeats;
        let (rank, world) = (u64::from(self.rank), u64::from(self.world));
        let places =
            (0..u64::from(self.epoch_len(n, k))).map(|i| (rank + i * world) % total / repeats);
        if !self.shuffle {
            return places.map(|place| place as u32).collect();
        }
        let seed = self.epoch.wrapping_add(k.into());
        let perm = randperm(n, &mut generator(seed));
        places.map(|place| perm[place as usize]).collect()
    }
}

impl Sampling for RepeatAug {
    fn validate(&self) -> Result<()> {
        check_rank(self.rank, self.world)?;
        check_positive("repeats", self.repeats.into())
    }

    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        let ratio = if self.selected_ratio == 0 { self.world } else { self.selected_ratio };
        let selected = match self.selected_round {
            0 => n.div_ceil(ratio),
            round => n / round * round / ratio,
        };
        let share = (u64::from(n) * u64::from(self.repeats)).div_ceil(self.world.into());
        u64::from(selected).min(share) as u32
    }

    fn repeats(&self, _n: u32) -> bool {
        self.repeats > 1
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let sampler = *self;
        SamplerEpochs::new(move |k| sampler.epoch(n, k as u32))
    }
}

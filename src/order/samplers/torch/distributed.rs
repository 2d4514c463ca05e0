//! `torch.utils.data.DistributedSampler`.

use super::{generator, randperm};
use crate::error::Result;
use crate::order::samplers::keys::check_rank;
use crate::order::samplers::{SamplerEpochs, Sampling};

sampler! {
    name: "torch-distributed",
    about: "torch DistributedSampler",

    /// `torch.utils.data.DistributedSampler` with its constructor's arguments.
    ///
    /// Epoch `k` is a permutation seeded with `seed + epoch + k`. It is padded with its own beginning (or,
    /// with `drop_last`, cut) to a multiple of `world`. The rank takes every `world`-th element from `rank`
    /// on.
    ///
    /// The defaults are torch's, with one process and with `set_epoch` called.
    #[derive(Copy)]
    pub struct Distributed {
        /// The sampler's `seed`.
        pub seed: u64 = 0,
        /// The stream's first argument of `set_epoch`.
        pub epoch: u64 = 0,
        /// The sampler's `num_replicas`: processes that share the epoch. Not 0.
        pub world: u32 = 1,
        /// This stream's process, below `world`.
        pub rank: u32 = 0,
        /// Whether the epoch is cut to a multiple of `world` instead of padded.
        pub drop_last: bool = false,
        /// Whether the sampler shuffles.
        pub shuffle: bool = true,
        /// Whether the script calls `set_epoch`. If not, every epoch repeats the first.
        pub set_epoch: bool = true,
    }
}

impl Distributed {
    /// The rank's positions in the stream's epoch `k` over `n` samples: `epoch_len` numbers
    /// below `n`, none twice.
    pub fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        // The padding repeats the permutation as often as necessary. So a place beyond the end holds the
        // element at that place modulo n.
        let (n64, world) = (u64::from(n), u64::from(self.world));
        let places =
            (0..u64::from(self.epoch_len(n, k))).map(|i| (u64::from(self.rank) + i * world) % n64);
        if !self.shuffle {
            return places.map(|place| place as u32).collect();
        }
        let later = if self.set_epoch { u64::from(k) } else { 0 };
        let seed = self.seed.wrapping_add(self.epoch).wrapping_add(later);
        let perm = randperm(n, &mut generator(seed));
        if self.world == 1 {
            return perm;
        }
        places.map(|place| perm[place as usize]).collect()
    }
}

impl Sampling for Distributed {
    fn validate(&self) -> Result<()> {
        check_rank(self.rank, self.world)
    }

    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        // With `drop_last`, nothing is left of a dataset that is smaller than the world.
        if self.drop_last { n / self.world } else { n.div_ceil(self.world) }
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let sampler = *self;
        SamplerEpochs::new(move |k| sampler.epoch(n, k as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_goes_round_a_dataset_smaller_than_the_world() {
        let ranks: Vec<_> = (0..8)
            .map(|rank| Distributed { world: 8, rank, shuffle: false, ..Distributed::default() })
            .collect();
        let read: Vec<_> = ranks.iter().flat_map(|s| s.epoch(3, 0)).collect();
        assert_eq!(read, [0, 1, 2, 0, 1, 2, 0, 1]);
        let none = Distributed { drop_last: true, ..ranks[0] };
        assert!(none.epoch(3, 0).is_empty());
    }

    #[test]
    fn without_set_epoch_every_epoch_is_the_first() {
        let sampler = Distributed { set_epoch: false, epoch: 3, ..Distributed::default() };
        assert_eq!(sampler.epoch(100, 5), sampler.epoch(100, 0));
        let calling = Distributed { set_epoch: true, ..sampler };
        assert_eq!(sampler.epoch(100, 0), calling.epoch(100, 0));
        assert_ne!(calling.epoch(100, 1), calling.epoch(100, 0));
    }
}

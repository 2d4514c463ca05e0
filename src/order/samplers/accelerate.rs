//! Hugging Face accelerate: `SeedableRandomSampler` and the batches that each process gets.

use super::keys::{SEED, check_positive, check_rank, wrong};
use super::torch::{generator, randperm};
use super::{SamplerEpochs, Sampling};
use crate::error::Result;

sampler! {
    name: "accelerate",
    about: "accelerate's seedable sampler, a process's batches",

    /// A prepared `DataLoader(shuffle=True)` with a seedable sampler: `use_seedable_sampler=True`.
    ///
    /// Epoch `k` is a permutation seeded with `seed + epoch + k`. Its batches go to the processes in turn
    /// (`BatchSamplerShard`).
    ///
    /// The defaults are accelerate's, with one process.
    #[derive(Copy)]
    pub struct Accelerate {
        /// The sampler's `data_seed`. If it is not set, the process's `torch.initial_seed()`.
        pub seed: u64 = 0 => SEED,
        /// The sampler's epoch number at the stream's first epoch.
        pub epoch: u64 = 0,
        /// Number of processes. Not 0.
        pub world: u32 = 1,
        /// This stream's process, below `world`.
        pub rank: u32 = 0,
        /// The loader's batch size as the script sets it. Not 0.
        pub batch_size: u32 = 1,
        /// Whether each batch is divided among the processes. Otherwise it goes to one process.
        pub split_batches: bool = false,
        /// Whether the last round is filled up with samples from the epoch's beginning.
        pub even_batches: bool = true,
        /// Whether a last batch that is not full is dropped.
        pub drop_last: bool = false,
        /// Whether the loader shuffles.
        pub shuffle: bool = true,
    }
}

impl Accelerate {
    /// How many positions this process gets in an epoch over `n` samples.
    fn len(&self, n: u32) -> u64 {
        let (n, batch, world, rank) = self.shape(n);
        let round = batch * world;
        if self.drop_last {
            n / round * batch
        } else if self.fills_last_round() {
            n.div_ceil(round) * batch
        } else {
            n / round * batch + (n % round).saturating_sub(rank * batch).min(batch)
        }
    }

    /// This process's positions in the stream's epoch `k` over `n` samples.
    pub fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        let len = self.len(n);
        let (n64, batch, world, rank) = self.shape(n);
        let places = (0..len).map(|i| {
            let place = (i / batch * world + rank) * batch + i % batch;
            // The filling repeats the samples of the first round.
            if place < n64 { place } else { (place - n64) % n64.min(batch * world) }
        });
        if !self.shuffle {
            return places.map(|place| place as u32).collect();
        }
        let seed = self.seed.wrapping_add(self.epoch).wrapping_add(k.into());
        let perm = randperm(n, &mut generator(seed));
        places.map(|place| perm[place as usize]).collect()
    }

    /// Number of samples, size of the batches that the processes take in turn, `world` and `rank`. A divided
    /// batch counts as `world` smaller batches.
    fn shape(&self, n: u32) -> (u64, u64, u64, u64) {
        let divided = if self.split_batches { self.world } else { 1 };
        let batch = self.batch_size / divided;
        (n.into(), batch.into(), self.world.into(), self.rank.into())
    }

    /// Whether the last round is filled up. A single process reads its batches as they are.
    fn fills_last_round(&self) -> bool {
        self.even_batches && !self.drop_last && self.world > 1
    }
}

impl Sampling for Accelerate {
    fn validate(&self) -> Result<()> {
        check_rank(self.rank, self.world)?;
        check_positive("batch_size", self.batch_size.into())?;
        if self.split_batches && !self.batch_size.is_multiple_of(self.world) {
            let (batch, world) = (self.batch_size, self.world);
            let message = format!("batch_size={batch} cannot be split among {world} processes");
            return Err(wrong(message).hint("with split_batches it has to be a multiple of world"));
        }
        Ok(())
    }

    fn validate_for(&self, n: u32) -> Result<()> {
        let len = self.len(n);
        if self.repeats(n) && len > 4 * u64::from(n) + 1_000_000 {
            let message =
                format!("batch_size={} would fill {n} samples up to {len}", self.batch_size);
            return Err(wrong(message).hint("the batch size counts samples"));
        }
        Ok(())
    }

    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        self.len(n).min(u32::MAX.into()) as u32
    }

    fn repeats(&self, n: u32) -> bool {
        let (n, batch, world, _) = self.shape(n);
        self.fills_last_round() && n % (batch * world) != 0
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let sampler = *self;
        SamplerEpochs::new(move |k| sampler.epoch(n, k as u32))
    }
}

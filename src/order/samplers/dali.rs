//! NVIDIA DALI's `fn.readers.file`, as in DALI 2.0. Later versions shuffle after an epoch by another rule.
//! `checkpointing` follows DALI's source (`FileLabelLoaderBase::Reset`). The rest is compared with what DALI
//! read.

use rand_mt::Mt;

use super::epochs::RunningSampler;
use super::keys::{check_rank, wrong};
use super::{SamplerEpochs, Sampling, libstdcxx};
use crate::error::Result;
use crate::order::index::Sorting;

/// DALI's seed for shuffles of the list, whatever the pipeline's seed.
const LIST_SEED: u32 = 524_287;

sampler! {
    name: "dali",
    about: "DALI fn.readers.file; world and rank are its shards",

    /// `fn.readers.file(random_shuffle, shuffle_after_epoch, ...)`: which files it reads when.
    ///
    /// An epoch reads one shard of a list, and the next epoch the next shard. The buffer of `initial_fill`
    /// samples changes the order in which samples leave the reader, but not the order of the file reads.
    ///
    /// The defaults are DALI's: nothing is shuffled.
    #[derive(Copy)]
    pub struct Dali {
        /// Whether the list is shuffled once.
        pub random_shuffle: bool = false,
        /// Whether the list is shuffled before every epoch. The reader then keeps its shard.
        pub shuffle_after_epoch: bool = false,
        /// With `shuffle_after_epoch`: whether every epoch shuffles the original list
        /// (`enable_checkpointing`), not the list that the last epoch left.
        pub checkpointing: bool = false,
        /// Whether the reader keeps its shard.
        pub stick_to_shard: bool = false,
        /// `num_shards`. Not 0.
        pub world: u32 = 1,
        /// `shard_id`, below `world`.
        pub rank: u32 = 0,
        /// Epochs before the stream's first.
        pub epoch: u32 = 0,
    }
}

impl Dali {
    /// The range of the list that an epoch reads. `epoch` is DALI's number.
    fn shard(&self, n: u32, epoch: u64) -> [u32; 2] {
        let (n, world) = (u64::from(n), u64::from(self.world));
        let moved = if self.stick_to_shard || self.shuffle_after_epoch { 0 } else { epoch };
        let shard = (u64::from(self.rank) + moved) % world;
        [shard, shard + 1].map(|shard| (n * shard / world) as u32)
    }
}

impl Sampling for Dali {
    fn sorting(&self) -> Sorting {
        Sorting::Dali
    }

    fn validate(&self) -> Result<()> {
        let exclusive =
            [("random_shuffle", self.random_shuffle), ("stick_to_shard", self.stick_to_shard)];
        if let Some((name, _)) = exclusive.iter().find(|(_, set)| *set && self.shuffle_after_epoch)
        {
            return Err(wrong(format!("DALI refuses shuffle_after_epoch with {name}")));
        }
        check_rank(self.rank, self.world)
    }

    fn validate_for(&self, n: u32) -> Result<()> {
        if self.world <= n {
            return Ok(());
        }
        Err(wrong(format!("{} shards of {n} samples leave some shards empty", self.world)))
    }

    fn epoch_len(&self, n: u32, k: u32) -> u32 {
        // Shards differ in length by at most one.
        let [from, to] = self.shard(n, u64::from(self.epoch) + u64::from(k));
        to - from
    }

    fn draws_before(&self, n: u32, k: u32) -> u64 {
        if self.shuffle_after_epoch && !self.checkpointing {
            (u64::from(self.epoch) + u64::from(k)).saturating_mul(n.into())
        } else {
            0
        }
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let mut list: Vec<u32> = (0..n).collect();
        if self.random_shuffle {
            libstdcxx::shuffle(&mut list, &mut Mt::new(LIST_SEED));
        }
        let running = RunningDali { dali: *self, list, shuffled: 0 };
        SamplerEpochs::new(running).skip_epochs(self.epoch)
    }
}

/// A running [`Dali`]: its list after some epochs.
#[derive(Clone)]
struct RunningDali {
    dali: Dali,
    list: Vec<u32>,
    /// How many epochs the list has been shuffled for.
    shuffled: u64,
}

impl RunningSampler for RunningDali {
    fn epoch(&mut self, epoch: u64) -> Vec<u32> {
        if self.dali.shuffle_after_epoch {
            self.shuffle_for(epoch + 1);
        }
        let [from, to] = self.dali.shard(self.list.len() as u32, epoch);
        self.list[from as usize..to as usize].to_vec()
    }
}

impl RunningDali {
    fn shuffle_for(&mut self, epochs: u64) {
        if self.dali.checkpointing {
            self.list = (0..self.list.len() as u32).collect();
            self.shuffled = epochs - 1;
        }
        while self.shuffled < epochs {
            self.shuffled += 1;
            let seed = LIST_SEED.wrapping_add(self.shuffled as u32);
            libstdcxx::shuffle(&mut self.list, &mut Mt::new(seed));
        }
    }
}

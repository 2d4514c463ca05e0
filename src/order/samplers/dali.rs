//! NVIDIA DALI's `fn.readers.file`, as DALI 2.0 has it. Later versions shuffle after an epoch by
//! another rule. `checkpointing` follows DALI's source (`FileLabelLoaderBase::Reset`); the rest is
//! compared with what DALI read.

use rand_mt::Mt;

use super::keys::{Field, Key, check_rank, wrong};
use super::libstdcxx;
use crate::error::Result;

/// What DALI seeds its shuffles of the list with, whatever the pipeline's seed.
const LIST_SEED: u32 = 524_287;

/// `fn.readers.file(random_shuffle, shuffle_after_epoch, ...)`: which files it reads when.
///
/// The reader goes through its shard of a list, and on to the next shard in the next epoch. The
/// buffer of `initial_fill` samples changes only the order in which they leave the reader, not
/// that in which their files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dali {
    /// Whether the list is shuffled once.
    pub random_shuffle: bool,
    /// Whether the list is shuffled before every epoch; the reader then stays with its shard.
    pub shuffle_after_epoch: bool,
    /// With `shuffle_after_epoch`: every epoch shuffles the list as it was at first
    /// (`enable_checkpointing`), not as the last epoch left it.
    pub checkpointing: bool,
    /// Whether the reader stays with its shard.
    pub stick_to_shard: bool,
    /// `num_shards`. Not 0.
    pub world: u32,
    /// `shard_id`, below `world`.
    pub rank: u32,
    /// Epochs before the stream's first.
    pub epoch: u32,
}

impl Default for Dali {
    /// DALI's defaults: nothing is shuffled.
    fn default() -> Self {
        Dali {
            random_shuffle: false,
            shuffle_after_epoch: false,
            checkpointing: false,
            stick_to_shard: false,
            world: 1,
            rank: 0,
            epoch: 0,
        }
    }
}

impl Dali {
    /// How many positions the stream's epoch `k` over `n` samples has: shards differ by one.
    pub fn epoch_len(&self, n: u32, k: u32) -> u32 {
        let [from, to] = self.shard(n, k);
        to - from
    }

    /// The list of `n` samples before its first epoch.
    pub(super) fn start(&self, n: u32) -> Reading {
        let mut list: Vec<u32> = (0..n).collect();
        if self.random_shuffle {
            libstdcxx::shuffle(&mut list, &mut Mt::new(LIST_SEED));
        }
        Reading { dali: *self, list, shuffled: 0, k: 0 }
    }

    /// The places of the list that epoch `k` reads.
    fn shard(&self, n: u32, k: u32) -> [u32; 2] {
        let (n, world) = (u64::from(n), u64::from(self.world));
        let moved = if self.stick_to_shard || self.shuffle_after_epoch {
            0
        } else {
            u64::from(self.epoch) + u64::from(k)
        };
        let shard = (u64::from(self.rank) + moved) % world;
        [shard, shard + 1].map(|shard| (n * shard / world) as u32)
    }

    /// Random draws before epoch `k`, at least.
    pub(super) fn draws_before(&self, n: u32, k: u32) -> u64 {
        if self.shuffle_after_epoch && !self.checkpointing {
            (u64::from(self.epoch) + u64::from(k)).saturating_mul(n.into())
        } else {
            0
        }
    }

    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::new("random_shuffle", Field::Bool(&mut self.random_shuffle)),
            Key::new("shuffle_after_epoch", Field::Bool(&mut self.shuffle_after_epoch)),
            Key::new("checkpointing", Field::Bool(&mut self.checkpointing)),
            Key::new("stick_to_shard", Field::Bool(&mut self.stick_to_shard)),
            Key::new("world", Field::U32(&mut self.world)),
            Key::new("rank", Field::U32(&mut self.rank)),
            Key::new("epoch", Field::U32(&mut self.epoch)),
        ]
    }

    pub(super) fn validate(&self) -> Result<()> {
        let exclusive =
            [("random_shuffle", self.random_shuffle), ("stick_to_shard", self.stick_to_shard)];
        if let Some((name, _)) = exclusive.iter().find(|(_, set)| *set && self.shuffle_after_epoch)
        {
            return Err(wrong(format!("DALI refuses shuffle_after_epoch with {name}")));
        }
        check_rank(self.rank, self.world)
    }

    pub(super) fn check(&self, n: u32) -> Result<()> {
        if self.world <= n {
            return Ok(());
        }
        Err(wrong(format!("{} shards of {n} samples leave some shards empty", self.world)))
    }
}

/// A running [`Dali`]: its list after some epochs.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    dali: Dali,
    list: Vec<u32>,
    /// Epochs that the list has been shuffled for.
    shuffled: u64,
    k: u32,
}

impl Reading {
    /// The next epoch's positions.
    pub(super) fn next_epoch(&mut self) -> Vec<u32> {
        let epoch = u64::from(self.dali.epoch) + u64::from(self.k);
        if self.dali.shuffle_after_epoch {
            self.shuffle_for(epoch + 1);
        }
        let [from, to] = self.dali.shard(self.list.len() as u32, self.k);
        self.k = self.k.wrapping_add(1);
        self.list[from as usize..to as usize].to_vec()
    }

    /// Goes past so many epochs.
    pub(super) fn skip_epochs(&mut self, count: u64) {
        self.k = self.k.wrapping_add(count as u32);
    }

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

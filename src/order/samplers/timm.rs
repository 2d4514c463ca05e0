//! timm's `RepeatAugSampler` (of DeiT): each sample several times, on different processes.

use super::keys::{Field, Key, check_positive, check_rank};
use super::torch::{generator, randperm};
use crate::error::Result;

/// `RepeatAugSampler`: a permutation seeded with the epoch alone, each element `repeats` times in
/// a row, of which the rank takes every `world`-th, and no more than a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatAug {
    /// What the first epoch of the stream gives `set_epoch`.
    pub epoch: u64,
    pub world: u32,
    /// The process of this stream, below `world`.
    pub rank: u32,
    /// The sampler's `num_repeats`. Not 0.
    pub repeats: u32,
    /// The number of samples is rounded down to a multiple of this; 0: it is not.
    pub selected_round: u32,
    /// That number is divided by this; 0: by `world`.
    pub selected_ratio: u32,
    /// Whether the sampler shuffles at all.
    pub shuffle: bool,
}

impl Default for RepeatAug {
    /// timm's defaults, in a world of one.
    fn default() -> Self {
        RepeatAug {
            epoch: 0,
            world: 1,
            rank: 0,
            repeats: 3,
            selected_round: 256,
            selected_ratio: 0,
            shuffle: true,
        }
    }
}

impl RepeatAug {
    /// How many positions the rank gets in an epoch over `n` samples.
    pub fn epoch_len(&self, n: u32) -> u32 {
        let ratio = if self.selected_ratio == 0 { self.world } else { self.selected_ratio };
        let selected = match self.selected_round {
            0 => n.div_ceil(ratio),
            round => n / round * round / ratio,
        };
        let share = (u64::from(n) * u64::from(self.repeats)).div_ceil(self.world.into());
        u64::from(selected).min(share) as u32
    }

    /// The rank's positions in the stream's epoch `k` over `n` samples; some stand twice.
    pub fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        let repeats = u64::from(self.repeats);
        let total = u64::from(n) * repeats;
        let (rank, world) = (u64::from(self.rank), u64::from(self.world));
        let places =
            (0..u64::from(self.epoch_len(n))).map(|i| (rank + i * world) % total / repeats);
        if !self.shuffle {
            return places.map(|place| place as u32).collect();
        }
        let seed = self.epoch.wrapping_add(k.into());
        let perm = randperm(n, &mut generator(seed));
        places.map(|place| perm[place as usize]).collect()
    }

    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::new("epoch", Field::U64(&mut self.epoch)),
            Key::new("world", Field::U32(&mut self.world)),
            Key::new("rank", Field::U32(&mut self.rank)),
            Key::new("repeats", Field::U32(&mut self.repeats)),
            Key::new("selected_round", Field::U32(&mut self.selected_round)),
            Key::new("selected_ratio", Field::U32(&mut self.selected_ratio)),
            Key::new("shuffle", Field::Bool(&mut self.shuffle)),
        ]
    }

    pub(super) fn validate(&self) -> Result<()> {
        check_rank(self.rank, self.world)?;
        check_positive("repeats", self.repeats.into())
    }
}

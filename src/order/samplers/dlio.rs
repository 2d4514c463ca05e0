//! DLIO, the storage benchmark of MLPerf: its own orders, as `dlio_benchmark` of 2025 and 2026
//! makes them for files of one sample each.

use rand_mt::Mt;

use super::keys::{Field, Key, check_positive, check_rank, wrong};
use super::numpy;
use crate::error::Result;

/// How DLIO reads: its `data_loader_sampler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// From a shuffled list of files.
    Iterative,
    /// By the numbers of samples.
    Index,
}

impl Reads {
    pub(super) const WORDS: [(&str, Reads); 2] =
        [("iterative", Reads::Iterative), ("index", Reads::Index)];
}

/// A run of DLIO.
///
/// `iterative` (the TensorFlow loader): the list of files is shuffled in place before every epoch,
/// by numpy seeded with `seed + epoch`, on top of what the epochs before made of it. A rank reads
/// one file at its own place of the list and then the list from its second file on, as many as its
/// share has.
///
/// `index` (the PyTorch and DALI loaders): a rank reads its share, a run of neighbours, in the
/// order of the list, whatever the shuffles are set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dlio {
    pub seed: u64,
    /// DLIO's number of the stream's first epoch; it counts from 1.
    pub epoch: u32,
    pub world: u32,
    /// The process of this stream, below `world`.
    pub rank: u32,
    /// Which way it reads.
    pub sampler: Reads,
    /// Whether files are shuffled; DLIO does whenever its configuration has the key at all.
    pub file_shuffle: bool,
    /// Whether the epoch's number is added to the seed.
    pub seed_change_epoch: bool,
}

impl Default for Dlio {
    /// DLIO's defaults, in a world of one, with files shuffled.
    fn default() -> Self {
        Dlio {
            seed: 123,
            epoch: 1,
            world: 1,
            rank: 0,
            sampler: Reads::Iterative,
            file_shuffle: true,
            seed_change_epoch: true,
        }
    }
}

impl Dlio {
    /// How many positions the rank gets in an epoch over `n` samples.
    pub fn epoch_len(&self, n: u32) -> u32 {
        let share = u64::from(n.div_ceil(self.world));
        (u64::from(n).saturating_sub(share * u64::from(self.rank))).min(share) as u32
    }

    /// The list of `n` files before the first epoch.
    pub(super) fn start(&self, n: u32) -> Run {
        Run { dlio: *self, list: (0..n).collect(), shuffled: 0, k: 0 }
    }

    fn shuffles(&self) -> bool {
        self.file_shuffle && self.sampler == Reads::Iterative
    }

    /// Random draws before epoch `k`, at least.
    pub(super) fn draws_before(&self, n: u32, k: u32) -> u64 {
        let epochs = u64::from(self.epoch) + u64::from(k);
        if self.shuffles() { epochs.saturating_mul(n.into()) } else { 0 }
    }

    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        vec![
            Key::new("seed", Field::U64(&mut self.seed)),
            Key::new("epoch", Field::U32(&mut self.epoch)),
            Key::new("world", Field::U32(&mut self.world)),
            Key::new("rank", Field::U32(&mut self.rank)),
            Key::new("sampler", Field::Reads(&mut self.sampler)),
            Key::new("file_shuffle", Field::Bool(&mut self.file_shuffle)),
            Key::new("seed_change_epoch", Field::Bool(&mut self.seed_change_epoch)),
        ]
    }

    pub(super) fn validate(&self) -> Result<()> {
        check_positive("epoch", self.epoch.into())?;
        if self.seed > u32::MAX.into() {
            return Err(wrong(format!("seed={}: numpy refuses 2^32 and more", self.seed)));
        }
        check_rank(self.rank, self.world)
    }
}

/// A running [`Dlio`]: its list after some epochs.
#[derive(Clone, Debug)]
pub(super) struct Run {
    dlio: Dlio,
    list: Vec<u32>,
    /// The last epoch, by DLIO's numbers, that the list has been shuffled for.
    shuffled: u64,
    k: u32,
}

impl Run {
    /// The next epoch's positions.
    pub(super) fn next_epoch(&mut self) -> Vec<u32> {
        let epoch = u64::from(self.dlio.epoch) + u64::from(self.k);
        self.k = self.k.wrapping_add(1);
        while self.dlio.shuffles() && self.shuffled < epoch {
            self.shuffled += 1;
            let added = if self.dlio.seed_change_epoch { self.shuffled } else { 0 };
            let mut rng = Mt::new(self.dlio.seed.wrapping_add(added) as u32);
            numpy::shuffle(&mut self.list, || rng.next_u32());
        }
        let (n, len) = (self.list.len() as u32, self.dlio.epoch_len(self.list.len() as u32));
        let (rank, world) = (self.dlio.rank, self.dlio.world);
        if self.dlio.sampler == Reads::Index {
            let from = u64::from(n.div_ceil(world)) * u64::from(rank);
            return self.list.iter().skip(from as usize).take(len as usize).copied().collect();
        }
        let own = if n == 0 { 0 } else { n / world % n * rank };
        let places = std::iter::once(own).chain(1..n).take(len as usize);
        places.map(|place| self.list[place as usize]).collect()
    }

    /// Goes past so many epochs.
    pub(super) fn skip_epochs(&mut self, count: u64) {
        self.k = self.k.wrapping_add(count as u32);
    }
}

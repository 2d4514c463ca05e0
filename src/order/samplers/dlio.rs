//! DLIO, the storage benchmark of MLPerf: its own orders, as `dlio_benchmark` of 2025 and 2026
//! makes them for files of one sample each.

use rand_mt::Mt;

use super::keys::{Words, check_positive, check_rank, wrong};
use super::positions::Running;
use super::{Positions, Sampling, numpy};
use crate::error::Result;

/// How DLIO reads: its `data_loader_sampler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// From a shuffled list of files.
    Iterative,
    /// By the numbers of samples.
    Index,
}

impl Words for Reads {
    const WORDS: &'static [(&'static str, Self)] =
        &[("iterative", Reads::Iterative), ("index", Reads::Index)];
}

sampler! {
    name: "dlio",
    about: "the DLIO benchmark; epoch counts from 1",

    /// A run of DLIO.
    ///
    /// `iterative` (the TensorFlow loader): the list of files is shuffled in place before every
    /// epoch, by numpy seeded with `seed + epoch`, on top of what the epochs before made of it. A
    /// rank reads one file at its own place of the list and then the list from its second file on,
    /// as many as its share has.
    ///
    /// `index` (the PyTorch and DALI loaders): a rank reads its share, a run of neighbours, in the
    /// order of the list, whatever the shuffles are set to.
    ///
    /// Its defaults are DLIO's, in a world of one, with files shuffled.
    #[derive(Copy)]
    pub struct Dlio {
        /// `train.seed`
        pub seed: u64 = 123,
        /// DLIO's number of the stream's first epoch; it counts from 1.
        pub epoch: u32 = 1,
        /// Processes. Not 0.
        pub world: u32 = 1,
        /// The process of this stream, below `world`.
        pub rank: u32 = 0,
        /// Which way it reads.
        pub sampler: Reads = Reads::Iterative,
        /// Whether files are shuffled; DLIO does whenever its configuration has the key at all.
        pub file_shuffle: bool = true,
        /// Whether the epoch's number is added to the seed.
        pub seed_change_epoch: bool = true,
    }
}

impl Dlio {
    fn shuffles(&self) -> bool {
        self.file_shuffle && self.sampler == Reads::Iterative
    }
}

impl Sampling for Dlio {
    fn validate(&self) -> Result<()> {
        check_positive("epoch", self.epoch.into())?;
        if self.seed > u32::MAX.into() {
            return Err(wrong(format!("seed={}: numpy refuses 2^32 and more", self.seed)));
        }
        check_rank(self.rank, self.world)
    }

    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        let share = u64::from(n.div_ceil(self.world));
        (u64::from(n).saturating_sub(share * u64::from(self.rank))).min(share) as u32
    }

    fn draws_before(&self, n: u32, k: u32) -> u64 {
        let epochs = u64::from(self.epoch) + u64::from(k);
        if self.shuffles() { epochs.saturating_mul(n.into()) } else { 0 }
    }

    fn epochs(&self, n: u32, from: u32) -> Positions {
        let run = Run { dlio: *self, list: (0..n).collect(), shuffled: 0 };
        Positions::new(run, self.epoch, from)
    }
}

/// A running [`Dlio`]: its list after some epochs.
#[derive(Clone)]
struct Run {
    dlio: Dlio,
    list: Vec<u32>,
    /// The last epoch, by DLIO's numbers, that the list has been shuffled for.
    shuffled: u64,
}

impl Running for Run {
    fn epoch(&mut self, epoch: u64) -> Vec<u32> {
        while self.dlio.shuffles() && self.shuffled < epoch {
            self.shuffled += 1;
            let added = if self.dlio.seed_change_epoch { self.shuffled } else { 0 };
            let mut rng = Mt::new(self.dlio.seed.wrapping_add(added) as u32);
            numpy::shuffle(&mut self.list, || rng.next_u32());
        }
        let n = self.list.len() as u32;
        let len = self.dlio.epoch_len(n, 0);
        let (rank, world) = (self.dlio.rank, self.dlio.world);
        if self.dlio.sampler == Reads::Index {
            let from = u64::from(n.div_ceil(world)) * u64::from(rank);
            return self.list.iter().skip(from as usize).take(len as usize).copied().collect();
        }
        let own = if n == 0 { 0 } else { n / world % n * rank };
        let places = std::iter::once(own).chain(1..n).take(len as usize);
        places.map(|place| self.list[place as usize]).collect()
    }
}

//! DLIO, MLPerf's storage benchmark: its own orders, as `dlio_benchmark` of 2025 and 2026 makes them for
//! files with one sample each.

use rand_mt::Mt;

use super::epochs::RunningSampler;
use super::keys::{Words, check_positive, check_rank, wrong};
use super::{SamplerEpochs, Sampling, numpy};
use crate::error::Result;

/// How DLIO reads: its `data_loader_sampler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlioSampler {
    /// From a shuffled list of files.
    Iterative,
    /// By the numbers of samples.
    Index,
}

impl Words for DlioSampler {
    const WORDS: &'static [(&'static str, Self)] =
        &[("iterative", DlioSampler::Iterative), ("index", DlioSampler::Index)];
}

sampler! {
    name: "dlio",
    about: "the DLIO benchmark; epoch counts from 1",

    /// A run of DLIO.
    ///
    /// `iterative` (the TensorFlow loader): before every epoch numpy, seeded with `seed + epoch`, shuffles
    /// the list of files that the last epoch left. A rank reads one file at its own place of the list. Then
    /// it reads the list from its second file on, until it has as many files as its share.
    ///
    /// `index` (the PyTorch and DALI loaders): a rank reads its share, a contiguous range, in the order of
    /// the list. Shuffle settings have no effect.
    ///
    /// The defaults are DLIO's, with one process and files shuffled.
    #[derive(Copy)]
    pub struct Dlio {
        /// `train.seed`
        pub seed: u64 = 123,
        /// DLIO's number of the stream's first epoch; it counts from 1.
        pub epoch: u32 = 1,
        /// Number of processes. Not 0.
        pub world: u32 = 1,
        /// This stream's process, below `world`.
        pub rank: u32 = 0,
        pub sampler: DlioSampler = DlioSampler::Iterative,
        /// Whether files are shuffled. DLIO shuffles if its configuration has the key, whatever its value.
        pub file_shuffle: bool = true,
        /// Whether the epoch's number is added to the seed.
        pub seed_change_epoch: bool = true,
    }
}

impl Dlio {
    fn shuffles(&self) -> bool {
        self.file_shuffle && self.sampler == DlioSampler::Iterative
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

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let running = RunningDlio { dlio: *self, list: (0..n).collect(), shuffled: 0 };
        SamplerEpochs::new(running).skip_epochs(self.epoch)
    }
}

/// A running [`Dlio`]: its list after some epochs.
#[derive(Clone)]
struct RunningDlio {
    dlio: Dlio,
    list: Vec<u32>,
    /// The last epoch, by DLIO's number, that the list has been shuffled for.
    shuffled: u64,
}

impl RunningSampler for RunningDlio {
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
        if self.dlio.sampler == DlioSampler::Index {
            let from = u64::from(n.div_ceil(world)) * u64::from(rank);
            return self.list.iter().skip(from as usize).take(len as usize).copied().collect();
        }
        let own = if n == 0 { 0 } else { n / world % n * rank };
        let places = std::iter::once(own).chain(1..n).take(len as usize);
        places.map(|place| self.list[place as usize]).collect()
    }
}

//! `keras.utils.image_dataset_from_directory`, as in Keras 3.15 with TensorFlow 2.21.

use super::keys::{Fraction, Words, check_positive, wrong};
use super::numpy::{random_state_below, random_state_permutation};
use super::tensorflow::{buffered, epoch_seeds, seeds};
use super::{SamplerEpochs, Sampling};
use crate::error::Result;
use crate::order::index::Sorting;

/// Without a seed, Keras draws one below this.
const SEED_BOUND: u32 = 1_000_000;

const SEEDS: &str = "seed= is the loader's, graph_seed= that of keras.utils.set_random_seed";

/// The parts that `validation_split` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// The beginning of the list.
    Training,
    /// The end of the list.
    Validation,
}

impl Words for Subset {
    const WORDS: &'static [(&'static str, Self)] =
        &[("training", Subset::Training), ("validation", Subset::Validation)];
}

sampler! {
    name: "keras",
    about: "keras image_dataset_from_directory(seed=seed)",

    /// `image_dataset_from_directory(seed=seed)`. numpy shuffles the list of paths once, and the list is
    /// divided. In every epoch, the part passes through a `tf.data` shuffle buffer of eight batches.
    ///
    /// Opens overlap, because several threads read the images.
    ///
    /// The defaults are Keras's. One of the two seeds must be given.
    #[derive(Copy)]
    pub struct Keras {
        /// The seed of numpy's shuffle and of the buffer. None: the first number that numpy draws after
        /// `set_random_seed`.
        pub seed: Option<u64> = None,
        /// The argument of `keras.utils.set_random_seed` or `tf.random.set_seed`. None: neither was called.
        pub graph_seed: Option<u64> = None,
        /// Samples in a batch. Not 0.
        pub batch_size: u32 = 32,
        /// Whether anything is shuffled.
        pub shuffle: bool = true,
        /// Whether paths go through the buffer before they are read. If decoded images do instead (Keras 2),
        /// files are read in the order of the list.
        pub buffer: bool = true,
        /// The fraction for validation: the end of the list.
        pub validation_split: Fraction = Fraction::ZERO,
        pub subset: Subset = Subset::Training,
        /// Epochs before the stream's first.
        pub epoch: u32 = 0,
    }
}

impl Keras {
    /// The positions of the stream's epoch `k` over `n` samples.
    fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        let len = self.epoch_len(n, k);
        let from = if self.subset == Subset::Training { 0 } else { n - len };
        if !self.shuffle {
            return (from..from + len).collect();
        }
        let seed = self.drawn_seed();
        let list = random_state_permutation(n, seed as u32);
        let part = &list[from as usize..][..len as usize];
        if !self.buffer {
            return part.to_vec();
        }
        let pair = epoch_seeds(seeds(self.graph_seed, seed), Some(self.epoch.wrapping_add(k)));
        buffered(len, self.batch_size.saturating_mul(8), pair, |at| part[at as usize])
    }

    fn drawn_seed(&self) -> u64 {
        let draw = || random_state_below(SEED_BOUND, self.graph_seed.unwrap_or(0) as u32).into();
        self.seed.unwrap_or_else(draw)
    }
}

impl Sampling for Keras {
    fn sorting(&self) -> Sorting {
        Sorting::Keras
    }

    fn validate(&self) -> Result<()> {
        let (key, seed) = match (self.seed, self.graph_seed) {
            (Some(seed), _) => ("seed", seed),
            (None, Some(seed)) => ("graph_seed", seed),
            (None, None) => return Err(wrong("a seed is missing").hint(SEEDS)),
        };
        if self.shuffle && seed > u32::MAX.into() {
            return Err(wrong(format!("{key}={seed}: numpy refuses 2^32 and more")));
        }
        check_positive("batch_size", self.batch_size.into())
    }

    fn epoch_len(&self, n: u32, _k: u32) -> u32 {
        let validation = self.validation_split.floor_of(n);
        match (self.validation_split == Fraction::ZERO, self.subset) {
            (true, _) => n,
            // If no sample is for validation, `paths[-0:]` gives validation all paths and training none.
            (_, Subset::Training) if validation == 0 => 0,
            (_, Subset::Validation) if validation == 0 => n,
            (_, Subset::Training) => n - validation,
            (_, Subset::Validation) => validation,
        }
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let sampler = *self;
        SamplerEpochs::new(move |k| sampler.epoch(n, k as u32))
    }
}

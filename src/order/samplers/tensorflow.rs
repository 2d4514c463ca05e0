//! `tf.data.Dataset.shuffle` and functions built on it, as in TensorFlow 2.

use super::keys::{check_positive, wrong};
use super::{SamplerEpochs, Sampling, python};
use crate::error::Result;

/// The graph seed if only the operation has a seed.
const DEFAULT_GRAPH_SEED: u64 = 87_654_321;

/// Seeds are taken modulo this.
const SEED_BOUND: u64 = (1 << 31) - 1;

sampler! {
    name: "tf-shuffle",
    about: "tf.data shuffle(buffer, seed); without buffer= also list_files(seed=seed)",

    /// `dataset.shuffle(buffer, seed)`; with a buffer of the whole dataset also `list_files(seed=..)`.
    ///
    /// Every epoch begins with a buffer filled in index order. Each draw takes a sample from the buffer, and
    /// the next of the index takes its place.
    ///
    /// By default every epoch shuffles the whole dataset anew.
    #[derive(Copy)]
    pub struct TfShuffle {
        /// The operation's `seed`. None: the first seed that the graph seed gives an operation.
        pub seed: Option<u64> = None,
        /// The argument of `tf.random.set_seed`. None: it was not called.
        pub graph_seed: Option<u64> = None,
        /// Samples in the buffer. None: all of them. Not 0.
        pub buffer: Option<u32> = None,
        /// Whether epochs differ (`reshuffle_each_iteration`).
        pub reshuffle: bool = true,
        /// Epochs before the stream's first.
        pub epoch: u32 = 0,
    }
}

impl TfShuffle {
    /// The positions of the stream's epoch `k` over `n` samples: a permutation of `0..n`.
    fn epoch(&self, n: u32, k: u32) -> Vec<u32> {
        let pair = seeds(self.graph_seed, self.operation_seed());
        let epoch = self.reshuffle.then(|| self.epoch.wrapping_add(k));
        buffered(n, self.buffer.unwrap_or(n), epoch_seeds(pair, epoch), |at| at)
    }

    fn operation_seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| {
            // An eager operation's seed is `random.Random(graph_seed).randint(0, 2**31 - 1)`.
            python::below(1 << 31, &mut python::seeded(self.graph_seed.unwrap_or(0))).into()
        })
    }
}

impl Sampling for TfShuffle {
    fn validate(&self) -> Result<()> {
        if self.seed.is_none() && self.graph_seed.is_none() {
            let error = wrong("a seed is missing");
            return Err(
                error.hint("seed= is the shuffle's, graph_seed= that of tf.random.set_seed")
            );
        }
        check_positive("buffer", self.buffer.unwrap_or(1).into())
    }

    fn epochs(&self, n: u32) -> SamplerEpochs {
        let sampler = *self;
        SamplerEpochs::new(move |k| sampler.epoch(n, k as u32))
    }
}

/// `tensorflow.random_seed.get_seed`: the pair of seeds of an operation.
pub(super) fn seeds(graph: Option<u64>, operation: u64) -> [u64; 2] {
    let pair = [graph.unwrap_or(DEFAULT_GRAPH_SEED) % SEED_BOUND, operation % SEED_BOUND];
    // TensorFlow reads two zeroes as no seed.
    if pair == [0, 0] { [0, SEED_BOUND] } else { pair }
}

/// The pair of one epoch. If epochs differ, it is the next two numbers of the operation's generator.
pub(super) fn epoch_seeds(pair: [u64; 2], epoch: Option<u32>) -> [u64; 2] {
    let Some(epoch) = epoch else { return pair };
    let block = Philox::new(pair).block(u64::from(epoch) / 2);
    let at = epoch as usize % 2 * 2;
    [block[at].into(), block[at + 1].into()]
}

/// The output of a shuffle buffer whose input is `at(0)`, `at(1)`, ... `at(n - 1)`.
pub(super) fn buffered(n: u32, buffer: u32, pair: [u64; 2], at: impl Fn(u32) -> u32) -> Vec<u32> {
    let size = buffer.min(n);
    let mut ring: Vec<u32> = (0..size).map(&at).collect();
    let mut rng = Philox::new(pair);
    (0..n)
        .map(|start| {
            let inside = size.min(n - start);
            let chosen = (u64::from(start) + u64::from(rng.next_u32() % inside)) % u64::from(size);
            let oldest = start % size;
            let element = ring[chosen as usize];
            ring.swap(chosen as usize, oldest as usize);
            if inside == size && size < n - start {
                ring[oldest as usize] = at(start + size);
            }
            element
        })
        .collect()
}

/// Philox4x32-10 (Salmon et al. 2011) as TensorFlow seeds it: the first seed is the key, the second seed is
/// the high half of the counter.
struct Philox {
    pair: [u64; 2],
    given: u64,
    block: [u32; 4],
}

impl Philox {
    fn new(pair: [u64; 2]) -> Self {
        Philox { pair, given: 0, block: [0; 4] }
    }

    fn next_u32(&mut self) -> u32 {
        let at = (self.given % 4) as usize;
        if at == 0 {
            self.block = self.block(self.given / 4);
        }
        self.given += 1;
        self.block[at]
    }

    /// The four outputs for one value of the counter's low half.
    fn block(&self, low: u64) -> [u32; 4] {
        let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
        let ([a, b], [c, d]) = (halves(low), halves(self.pair[1]));
        let (mut counter, mut key) = ([a, b, c, d], halves(self.pair[0]));
        for _ in 0..10 {
            let [low0, high0] = halves(u64::from(counter[0]) * 0xd251_1f53);
            let [low1, high1] = halves(u64::from(counter[2]) * 0xcd9e_8d57);
            counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
            key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        }
        counter
    }
}

//! The samplers of other libraries than torch, with popular seeds and the parameters of tutorials.

use crate::order::samplers::{
    Algorithm, Dali, Distributed, Keras, PythonSeed, Sampler, Shuffle, Stateful, TfShuffle,
};

/// Batches of Keras's loader that are tried, its own default first.
const BATCHES: [u32; 6] = [32, 64, 16, 128, 8, 256];

/// How many of these are tried for scripts that seed everything.
const BATCHES_SEEDED: usize = 3;

/// Shuffle buffers of `tf.data` that are tried, besides one for the whole dataset.
const BUFFERS: [u32; 3] = [1_000, 1_024, 10_000];

const ALGORITHMS: [Algorithm; 3] =
    [Algorithm::NumpyRandomState, Algorithm::Python, Algorithm::NumpyGenerator];

/// All samplers that are tried with these seeds. They differ in their first epochs. What Keras keeps for
/// validation shows only at the end of an epoch, and its list without a buffer is numpy's.
pub(super) fn samplers(seeds: &[u32]) -> Vec<Sampler> {
    let dali = Dali { random_shuffle: true, ..Dali::default() };
    let of_seed = |&seed: &u32| {
        let seed = u64::from(seed);
        // Only an own seed, a seed for everything too, and only a seed for everything.
        let seeds = [(Some(seed), None), (Some(seed), Some(seed)), (None, Some(seed))];
        let keras = seeds.map(|(seed, graph_seed)| Keras { seed, graph_seed, ..Keras::default() });
        let batches = keras.into_iter().flat_map(|keras| {
            let many = if keras.graph_seed.is_none() { BATCHES.len() } else { BATCHES_SEEDED };
            BATCHES.into_iter().take(many).map(move |batch_size| Keras { batch_size, ..keras })
        });
        let whole = TfShuffle { seed: Some(seed), ..TfShuffle::default() };
        let buffers = BUFFERS.map(|buffer| TfShuffle { buffer: Some(buffer), ..whole });
        let of_graph = TfShuffle { graph_seed: Some(seed), ..TfShuffle::default() };
        let of_both = TfShuffle { graph_seed: Some(seed), ..whole };
        let lists = ALGORITHMS
            .map(|algorithm| Shuffle { seed: PythonSeed::Number(seed), ..Shuffle::new(algorithm) });
        let keras = batches.map(Sampler::Keras);
        let tensorflow =
            [whole, of_graph, of_both].into_iter().chain(buffers).map(Sampler::TfShuffle);
        keras.chain(tensorflow).chain(lists.into_iter().map(Sampler::Shuffle))
    };
    // Without workers its first epoch has a seed that torch's default generator draws.
    let stateful = |&seed: &u32| {
        Sampler::TorchStateful(Stateful { seed: seed.into(), stride: 2, ..Stateful::default() })
    };
    let first = std::iter::once(Sampler::Dali(dali)).chain(seeds.iter().map(stateful));
    first.chain(seeds.iter().flat_map(of_seed)).collect()
}

/// The lists that scripts shuffle with these seeds and then split, as torch's `random_split`, the splits of
/// numpy, scikit-learn and `datasets`, and Python's `shuffle` do.
pub(super) fn lists(seeds: &[u32]) -> Vec<Sampler> {
    let of_seed = |&seed: &u32| {
        let seed = u64::from(seed);
        let torch = Sampler::TorchDistributed(Distributed { seed, ..Distributed::default() });
        let others = ALGORITHMS
            .map(|algorithm| Shuffle { seed: PythonSeed::Number(seed), ..Shuffle::new(algorithm) });
        std::iter::once(torch).chain(others.map(Sampler::Shuffle))
    };
    seeds.iter().flat_map(of_seed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_another_first_epoch() {
        let n = 20_000;
        let epochs: Vec<Vec<u32>> = samplers(&[7])
            .iter()
            .map(|sampler| {
                assert!(sampler.check(n).is_ok(), "{sampler}");
                sampler.epochs(n).next().unwrap()
            })
            .collect();
        for (at, epoch) in epochs.iter().enumerate() {
            assert!(epochs[..at].iter().all(|before| before[..300] != epoch[..300]), "{at}");
        }
    }
}

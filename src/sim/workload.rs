//! Makes orders to simulate: access patterns of training jobs, from a seed.
//!
//! An order without samples or epochs is an error.

use std::sync::Arc;

use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::error::Result;
use crate::order::{Order, SampleTable};

fn listed(name: &str, epochs: Vec<Arc<[u32]>>) -> Result<Arc<Order>> {
    Order::listed(name, epochs, SampleTable::Files).map(Arc::new)
}

/// A fresh permutation of `samples` for each of `epochs`.
pub fn permutations(samples: u32, epochs: u32, seed: u64) -> Result<Arc<Order>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let epoch = || {
        let mut order: Vec<u32> = (0..samples).collect();
        order.shuffle(&mut rng);
        order.into()
    };
    listed("permutations", std::iter::repeat_with(epoch).take(epochs as usize).collect())
}

/// A fresh permutation of all samples for each of `epochs`, divided among readers that take so many samples each.
pub fn divided(shares: &[u32], epochs: u32, seed: u64) -> Result<Vec<Arc<Order>>> {
    let whole = permutations(shares.iter().sum(), epochs, seed)?;
    let mut end = 0;
    let mut part = |share: u32| {
        let begin = end;
        end += share as usize;
        let of = |epoch| whole.epoch(epoch)[begin..end].into();
        listed("a part of permutations", (0..epochs).map(of).collect())
    };
    shares.iter().map(|share| part(*share)).collect()
}

/// Draws with replacement. The hot samples are the first ones, a fraction `hot_samples` of all. A fraction
/// `hot_draws` of the draws comes from them.
pub fn weighted(
    samples: u32,
    epochs: u32,
    hot_samples: f64,
    hot_draws: f64,
    seed: u64,
) -> Result<Arc<Order>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let hot = (f64::from(samples) * hot_samples) as u32;
    let hot = hot.clamp(1, samples.saturating_sub(1).max(1));
    let mut draw = || match rng.random_bool(hot_draws) {
        true => rng.random_range(0..hot),
        false => rng.random_range(hot.min(samples - 1)..samples),
    };
    let epochs = (0..epochs).map(|_| (0..samples).map(|_| draw()).collect()).collect();
    listed("weighted draws", epochs)
}

/// A permutation of the new samples. After every `new_in_batch` of them follow `old_in_batch` draws from
/// `buffer` old ones. Old samples are numbered after the new ones.
pub fn rehearsal(
    samples: u32,
    buffer: u32,
    new_in_batch: usize,
    old_in_batch: usize,
    epochs: u32,
    seed: u64,
) -> Result<Arc<Order>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut epoch = || {
        let mut order: Vec<u32> = (0..samples).collect();
        order.shuffle(&mut rng);
        let capacity = order.len() * (new_in_batch + old_in_batch) / new_in_batch.max(1);
        let mut mixed = Vec::with_capacity(capacity);
        for batch in order.chunks(new_in_batch.max(1)) {
            mixed.extend_from_slice(batch);
            mixed.extend((0..old_in_batch).map(|_| samples + rng.random_range(0..buffer.max(1))));
        }
        mixed.into()
    };
    listed("rehearsal mix", (0..epochs).map(|_| epoch()).collect())
}

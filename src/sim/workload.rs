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

/// Draws with replacement. `share` of them come from the first `hot` part of the samples.
pub fn weighted(samples: u32, epochs: u32, hot: f64, share: f64, seed: u64) -> Result<Arc<Order>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let hot = ((f64::from(samples) * hot) as u32).clamp(1, samples.saturating_sub(1).max(1));
    let mut draw = || match rng.random_bool(share) {
        true => rng.random_range(0..hot),
        false => rng.random_range(hot.min(samples - 1)..samples),
    };
    let epochs = (0..epochs).map(|_| (0..samples).map(|_| draw()).collect()).collect();
    listed("weighted draws", epochs)
}

/// A permutation of the new samples. After every `fresh` of them follow `rehearsed` draws from `buffer` old
/// ones. Old samples are numbered after the new ones.
pub fn rehearsal(
    samples: u32,
    buffer: u32,
    fresh: usize,
    rehearsed: usize,
    epochs: u32,
    seed: u64,
) -> Result<Arc<Order>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut epoch = || {
        let mut order: Vec<u32> = (0..samples).collect();
        order.shuffle(&mut rng);
        let mut mixed = Vec::with_capacity(order.len() * (fresh + rehearsed) / fresh.max(1));
        for batch in order.chunks(fresh.max(1)) {
            mixed.extend_from_slice(batch);
            mixed.extend((0..rehearsed).map(|_| samples + rng.random_range(0..buffer.max(1))));
        }
        mixed.into()
    };
    listed("rehearsal mix", (0..epochs).map(|_| epoch()).collect())
}

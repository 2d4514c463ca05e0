//! How long samples need a processor.
//!
//! If all samples needed the same time, workers would soon take turns without ever waiting for each other. In reality files
//! differ, reads differ, and the kernel gives a processor away for a while. Queueing theory's model of machines that share
//! repairmen has times that are spread exponentially, and gives measured waits back. So the times of a batch's samples are
//! spread like this. Their sum is the same for each batch: no batch is late by chance.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

/// The times of one reader's samples, in microseconds.
pub(super) struct Runs {
    /// Those of a batch, in ascending order.
    times: Vec<u64>,
    chance: ChaCha8Rng,
}

impl Runs {
    /// Batches of so many samples that take so long on average.
    pub(super) fn new(mean: u64, batch: u32, seed: u64) -> Self {
        let count = if mean > 0 { batch.max(1) } else { 0 };
        let spread = |nth: u32| -(1.0 - (f64::from(nth) + 0.5) / f64::from(count)).ln();
        let sum: f64 = (0..count).map(spread).sum();
        let all = mean as f64 * f64::from(count);
        let times = (0..count).map(|nth| (spread(nth) / sum * all) as u64).collect();
        Runs { times, chance: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The times of a batch's samples. Empty if they need no processor.
    pub(super) fn batch(&mut self) -> Vec<u64> {
        let mut times = self.times.clone();
        times.shuffle(&mut self.chance);
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_take_the_same_time_and_their_samples_do_not() {
        let mut runs = Runs::new(8_000, 64, 1);
        let (first, second) = (runs.batch(), runs.batch());
        assert_ne!(first, second);
        let sum: u64 = first.iter().sum();
        assert!(sum == second.iter().sum::<u64>() && sum.abs_diff(8_000 * 64) <= 64, "{sum}");
        let short = first.iter().filter(|time| **time < 8_000).count();
        assert!((38..=42).contains(&short), "63 of 100 are shorter than the mean: {short}");
        assert!(Runs::new(0, 64, 1).batch().is_empty());
        assert_eq!(Runs::new(500, 1, 1).batch(), [500]);
    }
}

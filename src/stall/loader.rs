//! The loader in virtual time, as PyTorch's `DataLoader` works.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Batches that each worker may make ahead of the trainer, as PyTorch has it by default (`prefetch_factor`).
pub const AHEAD: usize = 2;

/// A loader and its trainer. Times are seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loader {
    pub workers: usize,
    pub batches: usize,
    /// The time from the start of the epoch until a worker begins its first batch.
    pub starting: f64,
    /// The time that a worker takes for a batch, the mean.
    pub work: f64,
    /// The standard deviation of that, as a share of it.
    pub spread: f64,
    /// The time that the trainer takes for a batch.
    pub step: f64,
}

/// How an epoch went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    pub seconds: f64,
    /// The time that the trainer waited for batches.
    pub waited: f64,
}

impl Loader {
    /// One epoch. Batch `k` is the task of worker `k` modulo their number. A worker gets it as soon as the trainer has taken
    /// the batch [`AHEAD`] times the number of workers before. The trainer takes batches in their order.
    pub fn run(&self) -> Run {
        // The width of an even distribution with this standard deviation.
        let half = self.spread * 3.0_f64.sqrt();
        let mut chance = ChaCha8Rng::seed_from_u64(0);
        self.run_with(|_| self.work * (1.0 + half * chance.random_range(-1.0..1.0)))
    }

    /// The same with a time of its own for each batch.
    pub fn run_with(&self, mut work: impl FnMut(usize) -> f64) -> Run {
        let workers = self.workers.max(1);
        let ahead = AHEAD * workers;
        let mut free = vec![self.starting; workers];
        let mut taken = vec![0.0; self.batches];
        let (mut trainer, mut waited) = (0.0_f64, 0.0);
        for batch in 0..self.batches {
            let granted = batch.checked_sub(ahead).map_or(0.0, |before| taken[before]);
            let worker = &mut free[batch % workers];
            *worker = worker.max(granted) + work(batch);
            waited += (*worker - trainer).max(0.0);
            taken[batch] = trainer.max(*worker);
            trainer = taken[batch] + self.step;
        }
        Run { seconds: trainer, waited }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: Loader =
        Loader { workers: 2, batches: 100, starting: 0.0, work: 0.0, spread: 0.0, step: 0.0 };

    #[test]
    fn the_slower_one_of_trainer_and_workers_decides() {
        let slow_steps = Loader { work: 0.1, step: 1.0, ..LOADER }.run();
        assert!(
            (slow_steps.seconds - 100.1).abs() < 1e-9 && (slow_steps.waited - 0.1).abs() < 1e-9
        );
        let slow_work = Loader { work: 1.0, step: 0.1, ..LOADER }.run();
        // Both workers make 50 batches. The trainer takes the last two one after the other.
        assert!((slow_work.seconds - 50.2).abs() < 1e-9, "{slow_work:?}");
        let more = Loader { workers: 4, work: 1.0, step: 0.1, ..LOADER }.run();
        assert!((more.seconds - 25.4).abs() < 1e-9, "{more:?}");
    }

    #[test]
    fn a_batch_that_is_late_holds_up_those_behind_it() {
        let even = Loader { work: 1.0, ..LOADER }.run();
        let uneven = LOADER.run_with(|batch| if batch % 10 == 0 { 5.5 } else { 0.5 });
        assert!((even.seconds - 50.0).abs() < 1e-9);
        assert!(uneven.seconds > 60.0, "the mean is the same: {uneven:?}");
    }

    #[test]
    fn batches_of_different_length_take_longer_in_their_order() {
        let even = Loader { workers: 4, work: 1.0, ..LOADER };
        let spread = Loader { spread: 0.15, ..even };
        let longer = spread.run().seconds / even.run().seconds;
        assert!((1.01..1.15).contains(&longer), "{longer}");
    }

    #[test]
    fn an_empty_loader_takes_no_time() {
        let nothing = Loader { workers: 0, batches: 0, ..LOADER }.run();
        assert_eq!(nothing, Run::default());
    }
}

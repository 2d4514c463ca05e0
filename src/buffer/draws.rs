//! The samples that are shown again in an epoch, in their order, known ahead.
//!
//! Draws go in rounds. Each round shows every sample once, so the counts of two samples never differ by more
//! than one. The first round is a random permutation. Each later round draws from a window that slides over
//! the round before: at place `j`, the candidates are the samples that stood at `j + n - distance` or
//! earlier. So two draws of one sample are at least `distance` apart. Renaming samples changes nothing else,
//! so no sample is favoured.

use super::counter_rng::{CounterRng, Purpose};
use super::members::SampleId;

/// The draws of an epoch from a fixed set of samples.
///
/// [`EpochDraws::at`] depends only on the seed, the epoch, the samples and `k`.
pub struct EpochDraws {
    samples: Vec<SampleId>,
    distance: usize,
    seed: u64,
    epoch: u64,
    rng: CounterRng,
    round: u64,
    order: Vec<SampleId>,
}

impl EpochDraws {
    /// The draws of an epoch. No sample repeats within `distance` consecutive draws. With fewer samples than
    /// that, a sample repeats only after all others.
    pub fn new(
        seed: u64,
        epoch: u64,
        samples: impl IntoIterator<Item = SampleId>,
        distance: usize,
    ) -> EpochDraws {
        let mut samples: Vec<SampleId> = samples.into_iter().collect();
        samples.sort_unstable();
        samples.dedup();
        let rng = CounterRng::new(seed, Purpose::Draws, epoch);
        let distance = distance.min(samples.len());
        let mut draws =
            EpochDraws { order: Vec::new(), samples, distance, seed, epoch, rng, round: 0 };
        draws.restart();
        draws
    }

    fn restart(&mut self) {
        self.rng = CounterRng::new(self.seed, Purpose::Draws, self.epoch);
        self.round = 0;
        self.order.clone_from(&self.samples);
        self.rng.shuffle(&mut self.order);
    }

    fn advance(&mut self) {
        let window = self.order.len() - self.distance + 1;
        let mut entering = std::mem::take(&mut self.order).into_iter();
        let mut open: Vec<SampleId> = entering.by_ref().take(window).collect();
        while !open.is_empty() {
            self.order.push(open.swap_remove(self.rng.index(open.len())));
            open.extend(entering.next());
        }
        self.round += 1;
    }

    /// Draw `k` of the epoch, from 0. `None` if there are no samples.
    ///
    /// Draws in sequence take O(1) each. A draw of an earlier round takes O(k).
    pub fn at(&mut self, k: u64) -> Option<SampleId> {
        let n = self.samples.len() as u64;
        let (round, place) = (k.checked_div(n)?, k % n);
        if round < self.round {
            self.restart();
        }
        while self.round < round {
            self.advance();
        }
        self.order.get(place as usize).copied()
    }
}

/// How many draws a mix has: `replay` for each `batch` of its `new` samples. A batch of 0 counts as 1.
pub fn replay_count(new: u64, batch: u32, replay: u32) -> u64 {
    let count = u128::from(new) * u128::from(replay) / u128::from(batch.max(1));
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::tests::chi_square::uniform;
    use super::super::tests::{buffer_of, fill};
    use super::super::{Capacity, Policy};
    use super::*;

    fn draws(n: u32, distance: usize, epoch: u64) -> EpochDraws {
        EpochDraws::new(11, epoch, (0..n).map(SampleId), distance)
    }

    #[test]
    fn a_draw_is_the_same_whenever_it_is_asked_for() {
        let mut straight = draws(50, 20, 3);
        let expected: Vec<_> = (0..500).map(|k| straight.at(k)).collect();
        let mut other = draws(50, 20, 3);
        for k in [499, 3, 3, 120, 119, 0, 251, 499] {
            assert_eq!(other.at(k as u64), expected[k]);
        }
        let next: Vec<_> = (0..500).map(|k| draws(50, 20, 4).at(k)).collect();
        assert_ne!(next, expected, "another epoch has other draws");
        let backwards = EpochDraws::new(11, 3, (0..50).rev().map(SampleId), 20).at(77);
        assert_eq!(backwards, expected[77]);
    }

    /// Classes of 100, 37 and no samples: sizes at which Neomem's draws were 3 to 1.
    #[test]
    fn inclusion_is_even_over_uneven_classes() {
        let mut buffer = buffer_of(Policy::Reservoir, Capacity::Samples(200), 1);
        fill(&mut buffer, &[(0, 100), (1, 37)]);
        let samples = buffer.members().map(|member| member.sample);
        let mut draws = EpochDraws::new(5, 0, samples, 7);
        let mut counts = vec![0_u64; 137];
        for k in 0..1_000_000 {
            counts[draws.at(k).unwrap().0 as usize] += 1;
        }
        let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
        println!("draw.max_over_min = {:.4}", *most as f64 / *least as f64);
        assert!(*most as f64 <= 1.1 * *least as f64, "{most} {least}");
    }

    #[test]
    fn nothing_repeats_within_the_distance() {
        for (n, distance) in [(137, 7), (20, 19), (20, 20), (5, 7), (64, 56), (3, 0), (1, 4)] {
            let mut draws = draws(n, distance, 0);
            let mut last: HashMap<SampleId, u64> = HashMap::new();
            for k in 0..5000 {
                let sample = draws.at(k).unwrap();
                let gap = last.insert(sample, k).map_or(u64::MAX, |before| k - before);
                assert!(gap >= distance.min(n as usize) as u64, "{n} {distance}: {gap} at {k}");
            }
        }
        assert_eq!(draws(0, 3, 0).at(0), None);
    }

    /// At any place of an epoch each sample is equally likely, also just after the border of two rounds.
    #[test]
    fn each_sample_is_as_likely_at_each_place() {
        for place in [0, 9, 10, 14, 29, 30, 101] {
            let mut counts = vec![0; 10];
            for epoch in 0..5000 {
                counts[draws(10, 6, epoch).at(place).unwrap().0 as usize] += 1;
            }
            uniform(&format!("draw {place} of 10 samples"), &counts);
        }
    }

    #[test]
    fn a_mix_has_so_many_draws_for_each_batch() {
        assert_eq!([56, 111, 0].map(|new| replay_count(new, 56, 7)), [7, 13, 0]);
        assert_eq!((replay_count(u64::MAX, 1, u32::MAX), replay_count(3, 0, 1)), (u64::MAX, 3));
    }
}

//! A counter-based random generator: each decision has its own random numbers.
//!
//! ChaCha8 (Bernstein 2008) is a function of a key and a counter. The key is made of the seed and the
//! purpose. The number of the decision selects the stream. So no state passes from one decision to the next,
//! and each decision can be made ahead or repeated.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// What random numbers are needed for. The values of these variants must stay the same, so that results can
/// be reproduced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// The rank of an offered sample.
    Rank = 1,
    /// The victims of an offered sample.
    Offer = 2,
    /// The draws of an epoch.
    Draws = 3,
    Sleep = 4,
    /// The samples of a supply.
    Supply = 5,
    /// The order in which the samples of ordinals are due.
    Ordinals = 6,
    /// The victims when the capacity shrinks.
    Resize = 7,
    /// The node that a sample is read from, of those that keep it.
    Keeper = 8,
}

/// The random numbers of one decision.
pub(super) struct CounterRng(ChaCha8Rng);

impl CounterRng {
    pub(super) fn new(seed: u64, purpose: Purpose, number: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8] = purpose as u8;
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(number);
        CounterRng(generator)
    }

    /// Any 64-bit number.
    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, uniform (Lemire 2019). 0 if `n` is 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        loop {
            let product = u128::from(self.next()) * u128::from(n);
            if n == 0 || product as u64 >= n.wrapping_neg() % n {
                return (product >> 64) as u64;
            }
        }
    }

    /// An index of a list of this length.
    pub(super) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Shuffles a list (Fisher-Yates).
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chi_square::uniform;
    use super::*;

    #[test]
    fn a_decision_has_its_own_numbers_whenever_it_is_made() {
        let of = |seed, purpose, number| CounterRng::new(seed, purpose, number).next();
        assert_eq!(of(1, Purpose::Rank, 2), of(1, Purpose::Rank, 2));
        let others = [
            of(1, Purpose::Rank, 2),
            of(2, Purpose::Rank, 2),
            of(1, Purpose::Offer, 2),
            of(1, Purpose::Rank, 1 << 40),
        ];
        assert!((1..4).all(|other| others[..other].iter().all(|one| *one != others[other])));
    }

    /// Reproducibility needs these numbers: every version must give the same.
    #[test]
    fn the_numbers_stay_what_they_are() {
        let mut rng = CounterRng::new(7, Purpose::Draws, 3);
        let first: Vec<u64> = (0..4).map(|_| rng.below(1000)).collect();
        assert_eq!(first, [619, 353, 291, 605]);
    }

    #[test]
    fn each_number_below_a_bound_is_as_likely() {
        let mut rng = CounterRng::new(1, Purpose::Draws, 0);
        let mut counts = vec![0; 37];
        (0..100_000).for_each(|_| counts[rng.index(37)] += 1);
        uniform("below 37", &counts);
        assert_eq!((rng.below(1), rng.below(0)), (0, 0));
        let mut list: Vec<u32> = (0..100).collect();
        rng.shuffle(&mut list);
        assert!(!list.is_sorted());
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<_>>());
    }
}

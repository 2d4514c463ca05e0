//! The beginning of a permutation, without the rest.

use std::collections::HashMap;

use rand_mt::Mt;

use super::LARGE;

/// The elements of [`randperm`](super::randperm) in sequence, each at the cost of one draw. The shuffle walks
/// forward, so the elements behind it are final.
///
/// A map holds the elements that were swapped out of their place, at most one for each element given. For
/// more than a small part of `n`, the whole permutation is cheaper.
#[derive(Clone, Debug)]
pub struct RandpermHead {
    rng: Mt,
    n: u32,
    next: u32,
    /// The element at each place that does not hold its own number.
    moved: HashMap<u32, u32>,
}

impl RandpermHead {
    /// The permutation of `0..n` that `rng` draws. `None` from 214,748,364 elements on: torch shuffles these
    /// inside out, so no element is final before the last draw.
    pub fn new(n: u32, rng: Mt) -> Option<Self> {
        (n < LARGE).then(|| RandpermHead { rng, n, next: 0, moved: HashMap::new() })
    }
}

impl Iterator for RandpermHead {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let at = self.next;
        if at >= self.n {
            return None;
        }
        self.next += 1;
        let own = self.moved.remove(&at).unwrap_or(at);
        if self.next == self.n {
            // The last element has nothing to be swapped with, and takes no draw.
            return Some(own);
        }
        let chosen = at + self.rng.next_u32() % (self.n - at);
        if chosen == at {
            Some(own)
        } else {
            Some(self.moved.insert(chosen, own).unwrap_or(chosen))
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.n - self.next) as usize;
        (left, Some(left))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{generator, randperm};
    use super::*;

    #[test]
    fn the_head_is_the_beginning_of_the_permutation() {
        for n in [0, 1, 2, 3, 10, 1000, 70_000] {
            for seed in 0..5 {
                let whole = randperm(n, &mut generator(seed));
                let head = RandpermHead::new(n, generator(seed)).unwrap();
                assert!(head.clone().eq(whole.iter().copied()), "{n} {seed}");
                assert!(head.take(7).eq(whole.into_iter().take(7)), "{n} {seed}");
            }
        }
        assert!(RandpermHead::new(LARGE, generator(0)).is_none());
        assert_eq!(RandpermHead::new(LARGE - 1, generator(0)).unwrap().take(100).count(), 100);
    }
}

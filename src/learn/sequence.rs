//! Samples in an order, and the place of each.

use std::sync::Arc;

const NONE: u32 = u32::MAX;

/// Samples in an order, and the way back: 8 bytes a sample.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    samples: Arc<[u32]>,
    /// By sample, its first place.
    places: Vec<u32>,
}

impl Sequence {
    pub(super) fn new(samples: Arc<[u32]>) -> Self {
        let count = samples.iter().max().map_or(0, |&most| most as usize + 1);
        let mut places = vec![NONE; count];
        for (place, &sample) in samples.iter().enumerate().rev() {
            places[sample as usize] = place as u32;
        }
        Sequence { samples, places }
    }

    /// Number of places.
    pub(super) fn len(&self) -> u32 {
        self.samples.len() as u32
    }

    pub(super) fn samples(&self) -> &Arc<[u32]> {
        &self.samples
    }

    pub(super) fn place(&self, sample: u32) -> Option<u32> {
        self.places.get(sample as usize).copied().filter(|&place| place != NONE)
    }
}

/// A set of small numbers, a bit each.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    pub(super) fn has(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// How many of the numbers in a range there are.
    pub(super) fn count(&self, range: std::ops::Range<u32>) -> u32 {
        let (from, to) = (range.start as usize / 64, range.end.div_ceil(64) as usize);
        let words = self.words.iter().take(to).skip(from);
        let all: u32 = words.map(|word| word.count_ones()).sum();
        let outside = (from as u32 * 64..range.start).chain(range.end..to as u32 * 64);
        all - outside.filter(|&number| self.has(number)).count() as u32
    }

    /// Adds a number; false if it was there already.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        let fresh = !self.has(number);
        let word = number as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (number % 64);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_way_back() {
        let sequence = Sequence::new(Arc::from([7, 2, 9, 2]));
        assert_eq!(sequence.len(), 4);
        assert_eq!([7, 2, 9].map(|sample| sequence.place(sample)), [Some(0), Some(1), Some(2)]);
        assert_eq!((sequence.place(0), sequence.place(u32::MAX)), (None, None));
        assert_eq!(Sequence::new(Arc::from([])).place(0), None);
    }

    #[test]
    fn bits_know_what_they_were_told() {
        let mut bits = Bits::default();
        assert!(bits.insert(70) && bits.insert(0) && !bits.insert(70));
        assert!(bits.has(0) && bits.has(70) && !bits.has(1) && !bits.has(9_999));
        assert!([0, 1, 64, 127].into_iter().all(|number| bits.insert(number) == (number > 0)));
        let count = |from, to| bits.count(from..to);
        assert_eq!([count(0, 1), count(1, 70), count(1, 71), count(65, 127)], [1, 2, 3, 1]);
        assert_eq!([count(0, 9_999), count(128, 500), count(5, 5)], [5, 0, 0]);
    }
}

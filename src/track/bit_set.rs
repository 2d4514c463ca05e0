//! A set of small numbers, such as places.

/// A set of small numbers, a bit each.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    pub(crate) fn has(&self, number: u32) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds a number. Says whether it was not there.
    pub(crate) fn insert(&mut self, number: u32) -> bool {
        let word = number as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let before = self.words[word];
        self.words[word] |= 1 << (number % 64);
        self.words[word] != before
    }

    /// Removes a number. Says whether it was there.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        let had = self.has(number);
        if had {
            self.words[number as usize / 64] &= !(1 << (number % 64));
        }
        had
    }

    /// How many numbers of a range are in the set.
    pub(crate) fn count(&self, range: std::ops::Range<u32>) -> u32 {
        let (from, to) = (range.start as usize / 64, range.end.div_ceil(64) as usize);
        let words = self.words.iter().take(to).skip(from);
        let all: u32 = words.map(|word| word.count_ones()).sum();
        let outside = (from as u32 * 64..range.start).chain(range.end..to as u32 * 64);
        all - outside.filter(|&number| self.has(number)).count() as u32
    }

    /// The first number from `from` on that is not in the set.
    pub(crate) fn first_free(&self, from: u32) -> u32 {
        let mut nth = from as usize / 64;
        let Some(word) = self.words.get(nth) else { return from };
        let mut free = !word & (u64::MAX << (from % 64));
        while free == 0 {
            nth += 1;
            free = !self.words.get(nth).copied().unwrap_or_default();
        }
        nth as u32 * 64 + free.trailing_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_and_go() {
        let mut bits = BitSet::default();
        assert!(bits.insert(70) && bits.insert(0) && !bits.insert(70));
        assert!(bits.has(0) && bits.has(70) && !bits.has(1) && !bits.has(9_999));
        assert!([0, 1, 64, 127].into_iter().all(|number| bits.insert(number) == (number > 0)));
        let count = |from, to| bits.count(from..to);
        assert_eq!([count(0, 1), count(1, 70), count(1, 71), count(65, 127)], [1, 2, 3, 1]);
        assert_eq!([count(0, 9_999), count(128, 500), count(5, 5)], [5, 0, 0]);
        assert!(bits.remove(64) && !bits.remove(64) && !bits.remove(9_999) && !bits.has(64));
    }

    #[test]
    fn the_first_free_number_is_found_across_words() {
        let mut bits = BitSet::default();
        assert_eq!([0, 63, 900].map(|from| bits.first_free(from)), [0, 63, 900]);
        (3..130).for_each(|number| _ = bits.insert(number));
        assert_eq!([0, 3, 64, 129, 130].map(|from| bits.first_free(from)), [0, 130, 130, 130, 130]);
        (130..192).for_each(|number| _ = bits.insert(number));
        assert_eq!([3, 191, 500].map(|from| bits.first_free(from)), [192, 192, 500]);
    }
}

//! Which places of an order one rank of a job reads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::track::BitSet;

/// How many ranks there may be.
pub(super) const RANKS_MAX: u32 = 1024;

/// Which places of an order are a rank's: in blocks of `block` places, every `stride`th block from
/// `first` on. `DistributedSampler` deals out single places, accelerate's loaders whole batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) block: u32,
    pub(super) stride: u32,
    pub(super) first: u32,
}

impl Share {
    pub(super) const WHOLE: Share = Share { block: 1, stride: 1, first: 0 };

    /// The narrowest share of single places that has these, but for a few: a rank's last round is
    /// filled up with places of others.
    pub(super) fn of(places: &[u32]) -> Share {
        let mut counts = [0u32; RANKS_MAX as usize];
        for stride in (2..=RANKS_MAX).rev() {
            let counts = &mut counts[..stride as usize];
            counts.fill(0);
            places.iter().for_each(|place| counts[(place % stride) as usize] += 1);
            let most = (0..stride).max_by_key(|&first| counts[first as usize]);
            let first =
                most.filter(|&most| 20 * counts[most as usize] as usize >= 19 * places.len());
            if let Some(first) = first.filter(|_| places.len() > 1) {
                return Share { block: 1, stride, first };
            }
        }
        Share::WHOLE
    }

    /// The share that has about all that was read of a range and of which about all was read, where
    /// that is less than the whole: known as soon as two of its blocks lie between two holes each.
    pub(super) fn of_blocks(read: &BitSet, range: Range<u32>) -> Option<Share> {
        if range.is_empty() {
            return None;
        }
        let all = read.count(range.clone());
        if 4 * u64::from(all) >= 3 * u64::from(range.end - range.start) {
            return None;
        }
        let mut holes: Vec<Range<u32>> = Vec::new();
        let mut from = range.start;
        for place in range.clone().filter(|place| read.has(*place)) {
            holes.extend((place > from).then_some(from..place));
            from = place + 1;
        }
        // Some reads may not have been seen.
        let longest = holes.iter().map(|hole| hole.len()).max()?;
        holes.retain(|hole| 2 * hole.len() > longest);
        let gap = commonest(holes.iter().map(|hole| hole.end - hole.start))?;
        let block = commonest(holes.windows(2).map(|pair| pair[1].start - pair[0].end))?;
        let stride = gap / block + 1;
        if gap % block != 0 || stride > RANKS_MAX {
            return None;
        }
        let share = Share { block, stride, first: holes[0].end / block % stride };
        let in_share = range.clone().filter(|place| share.has(*place));
        let of_it = in_share.filter(|place| read.has(*place)).count() as u64;
        let there = u64::from(share.count(range));
        (20 * of_it >= 19 * u64::from(all) && 10 * of_it >= 9 * there).then_some(share)
    }

    pub(super) fn has(self, place: u32) -> bool {
        place / self.block % self.stride == self.first
    }

    /// Whether the last round of so many places is filled up with this one.
    pub(super) fn is_filled_with(self, place: u32, places: u32) -> bool {
        let last = places % self.round();
        let filled = last > 0 && place < self.round() - last;
        filled && places.checked_add(place).is_some_and(|place| self.has(place))
    }

    /// How many places of a range it has.
    pub(super) fn count(self, range: Range<u32>) -> u32 {
        let below = |end: u32| {
            let rest = (end % self.round()).saturating_sub(self.block * self.first);
            end / self.round() * self.block + rest.min(self.block)
        };
        below(range.end) - below(range.start)
    }

    /// How many places a rank has of so many.
    pub(super) fn len_of(self, places: u32) -> u32 {
        if self.stride == 1 { places } else { places.div_ceil(self.round()) * self.block }
    }

    /// The share of a whole epoch; the last round is filled up from the beginning, as
    /// `DistributedSampler` and accelerate do.
    pub(super) fn of_epoch(self, samples: &Arc<[u32]>) -> Arc<[u32]> {
        if self.stride == 1 || samples.is_empty() {
            return Arc::clone(samples);
        }
        let (len, block, round) = (samples.len(), self.block as usize, self.round() as usize);
        let place = |at: usize| {
            let place = at / block * round + self.first as usize * block + at % block;
            if place < len { place } else { (place - len) % len.min(round) }
        };
        let places = (0..self.len_of(len as u32) as usize).map(place);
        places.map(|place| samples[place]).collect()
    }

    /// Places after which it goes on with the first rank.
    pub(super) fn round(self) -> u32 {
        self.block.saturating_mul(self.stride)
    }
}

/// What most of these are, if that are two at least.
fn commonest(numbers: impl Iterator<Item = u32>) -> Option<u32> {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    let (number, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    (count > 1).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::samplers::Accelerate;
    use crate::order::samplers::torch::Distributed;

    fn read(places: impl IntoIterator<Item = u32>) -> BitSet {
        let mut bits = BitSet::default();
        places.into_iter().for_each(|place| _ = bits.insert(place));
        bits
    }

    #[test]
    fn a_share_is_that_of_the_samplers() {
        for n in [1, 5, 16, 97, 1_000] {
            let all: Arc<[u32]> = (0..n).collect();
            for (world, rank, block) in [(2, 0, 1), (2, 1, 4), (3, 2, 8), (8, 5, 1), (7, 6, 16)] {
                let share = Share { block, stride: world, first: rank };
                let own = share.of_epoch(&all);
                let batches = Accelerate {
                    world,
                    rank,
                    batch_size: block,
                    shuffle: false,
                    ..Accelerate::default()
                };
                assert_eq!(*own, batches.epoch(n, 0), "{share:?} of {n}");
                assert_eq!(share.len_of(n) as usize, own.len());
                let filled = (0..n).filter(|place| share.is_filled_with(*place, n)).count();
                let has = (0..n).filter(|place| share.has(*place)).count();
                assert!(n < world * block || has + filled == own.len(), "{share:?} of {n}");
                assert_eq!(share.count(0..n) as usize, has, "{share:?} of {n}");
                if block == 1 {
                    let places =
                        Distributed { world, rank, shuffle: false, ..Distributed::default() };
                    assert_eq!(*own, places.epoch(n, 0));
                }
            }
        }
    }

    #[test]
    fn blocks_are_known_from_the_second_one() {
        let share = Share { block: 16, stride: 4, first: 2 };
        let of = |end: u32| Share::of_blocks(&read((32..end).filter(|p| share.has(*p))), 32..end);
        // The first three blocks, and the beginning of the fourth.
        assert_eq!((of(176), of(225)), (None, Some(share)));
        let all = |one_in: u32| {
            let seen = (32..2_000).filter(|place| share.has(*place) && place * 7 % one_in != 0);
            Share::of_blocks(&read(seen), 32..2_000)
        };
        assert_eq!(all(50), Some(share));
        // Half of it was read, or all of everything, or what has no rule.
        assert_eq!(all(2), None);
        assert_eq!(Share::of_blocks(&read(0..500), 0..500), None);
        let rare = read((0..2_000).filter(|place| place * place % 7 == 2));
        assert_eq!(Share::of_blocks(&rare, 0..2_000), None);
        assert_eq!(Share::of_blocks(&BitSet::default(), 0..0), None);
    }
}

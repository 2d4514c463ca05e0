//! Samples for whoever asks for one at any time, a fresh one for each taking.
//!
//! A sample is *dealt* first, when a reader looks a name up, and *taken* when it opens what it found;
//! what is never opened comes *back*. As [`Draws`](super::Draws), what is taken goes in rounds: each
//! round takes every sample once, and two takings of one sample are `distance` apart at least. It
//! differs in that readers decide over the order in which samples are taken, and that the buffer
//! may change at any time.

use std::collections::{HashMap, HashSet, VecDeque};

use super::luck::{Luck, Purpose};
use super::members::SampleId;

/// A sample, and the taking before which it may not be taken again.
type Resting = (SampleId, u64);

/// Samples to be taken one after the other.
///
/// The same seed, samples and calls in the same order give the same samples. A call takes O(1), but
/// for [`renew`](Supply::renew).
pub struct Supply {
    distance: usize,
    luck: Luck,
    all: HashSet<SampleId>,
    /// Samples of this round that may be dealt.
    open: Vec<SampleId>,
    /// Samples of this round that are still too close to their last taking, the longest ago first.
    rest: VecDeque<Resting>,
    /// Samples that this round has taken, in this order.
    taken: VecDeque<Resting>,
    /// Samples that are dealt and not taken: how many times, and the round of the first.
    dealt: HashMap<SampleId, (u32, u64)>,
    /// Samples that a round ended without: the next one takes them twice.
    owed: HashSet<SampleId>,
    round: u64,
    takings: u64,
}

impl Supply {
    /// A supply without samples; `number` tells those of one seed apart. No sample is taken twice
    /// within any `distance` takings that follow each other, as long as those that are dealt and not
    /// taken leave others; with fewer samples than that, it comes again after all others.
    pub fn new(seed: u64, number: u64, distance: usize) -> Supply {
        let luck = Luck::new(seed, Purpose::Supply, number);
        let (all, open, rest, taken, dealt, owed) = Default::default();
        Supply { distance, luck, all, open, rest, taken, dealt, owed, round: 0, takings: 0 }
    }

    /// Has these samples from now on. One that is new has its place in this round like the others:
    /// it is taken in it as likely as the round has samples left.
    pub fn renew(&mut self, samples: impl IntoIterator<Item = SampleId>) {
        let mut samples: Vec<SampleId> = samples.into_iter().collect();
        samples.sort_unstable();
        samples.dedup();
        let left = (self.open.len() + self.rest.len()) as u64;
        let round = left + self.taken.len() as u64;
        let before = std::mem::replace(&mut self.all, samples.iter().copied().collect());
        self.open.retain(|sample| self.all.contains(sample));
        self.rest.retain(|(sample, _)| self.all.contains(sample));
        self.taken.retain(|(sample, _)| self.all.contains(sample));
        self.owed.retain(|sample| self.all.contains(sample));
        for sample in samples.into_iter().filter(|sample| !before.contains(sample)) {
            if self.dealt.contains_key(&sample) {
                continue;
            }
            if round == 0 || self.luck.below(round) < left {
                self.open.push(sample);
            } else {
                self.taken.push_front((sample, 0));
            }
        }
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Lets those in that have rested; `distance` counts without the sample itself.
    fn admit(&mut self) {
        let rested = self.rest.iter().take_while(|(_, from)| *from <= self.takings).count();
        self.open.extend(self.rest.drain(..rested).map(|(sample, _)| sample));
    }

    /// Begins the next round; what this one still had to take is owed.
    fn begin_round(&mut self) {
        self.round += 1;
        self.owed.extend(self.rest.iter().map(|(sample, _)| *sample));
        self.rest.append(&mut self.taken);
        self.rest.make_contiguous().sort_by_key(|(_, from)| *from);
    }

    /// Deals a sample; none where there are none.
    pub fn deal(&mut self) -> Option<SampleId> {
        self.admit();
        if self.open.is_empty() {
            self.begin_round();
            self.admit();
        }
        let sample = if self.open.is_empty() {
            // All others are dealt: the one of the longest rest, or one that is dealt twice.
            let rested = self.rest.pop_front().map(|(sample, _)| sample);
            rested.or_else(|| self.dealt.keys().min().copied())?
        } else {
            self.open.swap_remove(self.luck.index(self.open.len()))
        };
        self.dealt.entry(sample).or_insert((0, self.round)).0 += 1;
        Some(sample)
    }

    /// Takes a sample out of those that are dealt. Says whether it counts: it may be dealt once
    /// more, or be no sample any more.
    fn settle(&mut self, sample: SampleId) -> bool {
        let Some((times, round)) = self.dealt.get_mut(&sample) else { return false };
        *times -= 1;
        if *times > 0 {
            return false;
        }
        let late = *round < self.round;
        self.dealt.remove(&sample);
        let held = self.all.contains(&sample);
        if held && late {
            self.owed.insert(sample);
        }
        held
    }

    /// A sample that was dealt is taken.
    pub fn take(&mut self, sample: SampleId) {
        self.takings += 1;
        if self.settle(sample) {
            let distance = self.distance.min(self.all.len()).saturating_sub(1) as u64;
            let resting = (sample, self.takings + distance);
            if self.owed.remove(&sample) {
                self.rest.push_back(resting);
            } else {
                self.taken.push_back(resting);
            }
        }
    }

    /// A sample that was dealt will not be taken.
    pub fn give_back(&mut self, sample: SampleId) {
        if self.settle(sample) {
            self.open.push(sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chi_square::uniform;
    use super::*;

    fn supply(n: u32, distance: usize) -> Supply {
        let mut supply = Supply::new(3, 0, distance);
        supply.renew((0..n).map(SampleId));
        supply
    }

    fn take(supply: &mut Supply) -> u32 {
        let sample = supply.deal().unwrap();
        supply.take(sample);
        sample.0
    }

    #[test]
    fn each_round_takes_every_sample_once() {
        for (n, distance) in [(50, 20), (50, 50), (50, 1), (50, 0), (50, 200), (1, 5)] {
            let mut supply = supply(n, distance);
            for _ in 0..20 {
                let mut round: Vec<u32> = (0..n).map(|_| take(&mut supply)).collect();
                round.sort_unstable();
                assert!(round.into_iter().eq(0..n), "{n} {distance}");
            }
        }
        assert_eq!(supply(0, 3).deal(), None);
    }

    /// Readers that look names up and never open what they find, or much later.
    #[test]
    fn nothing_repeats_within_the_distance_whatever_readers_do() {
        for (n, distance, hands) in [(137, 64, 16), (40, 20, 8), (20, 12, 7), (9, 4, 4)] {
            let mut supply = supply(n, distance);
            let mut luck = Luck::new(1, Purpose::Offer, 9);
            let (mut held, mut last) = (Vec::new(), HashMap::new());
            for _ in 0..20_000 {
                if held.len() < hands {
                    held.push(supply.deal().unwrap());
                }
                let sample: SampleId = held.swap_remove(luck.index(held.len()));
                match luck.below(4) {
                    0 => supply.give_back(sample),
                    1 => held.push(sample),
                    _ => {
                        supply.take(sample);
                        let now = supply.takings;
                        let gap = last.insert(sample, now).map_or(u64::MAX, |before| now - before);
                        assert!(gap >= distance as u64, "{n} {distance}: {gap}");
                    }
                }
            }
        }
    }

    /// Each is taken as often as the others although many are dealt and come back, and the first
    /// taking of a supply is any of them.
    #[test]
    fn no_sample_is_favoured() {
        let mut counts = vec![0; 30];
        let mut supply = supply(30, 10);
        for turn in 0..60_000 {
            let dealt: Vec<SampleId> = (0..3).map(|_| supply.deal().unwrap()).collect();
            counts[dealt[turn % 3].0 as usize] += 1;
            for (at, sample) in dealt.into_iter().enumerate() {
                if at == turn % 3 { supply.take(sample) } else { supply.give_back(sample) }
            }
        }
        let (most, least) = (*counts.iter().max().unwrap(), *counts.iter().min().unwrap());
        // A sample may be owed more than once, and be given it once.
        assert!(most - least <= 20, "{counts:?}");
        let mut first = vec![0; 10];
        for number in 0..5000 {
            let mut supply = Supply::new(7, number, 4);
            supply.renew((0..10).map(SampleId));
            first[take(&mut supply) as usize] += 1;
        }
        uniform("the first of ten", &first);
    }

    #[test]
    fn a_buffer_that_changes_is_followed() {
        let mut supply = supply(10, 3);
        for _ in 0..5 {
            take(&mut supply);
        }
        let held = supply.deal().unwrap();
        supply.renew((5..20).map(SampleId));
        supply.take(held);
        let mut seen: Vec<u32> = (0..40).map(|_| take(&mut supply)).collect();
        assert!(seen.iter().all(|sample| (5..20).contains(sample)));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), supply.len()), (15, 15));
        supply.renew([]);
        assert_eq!((supply.deal(), supply.is_empty()), (None, true));
        // All are dealt: there is one for everybody nonetheless.
        supply.renew([SampleId(1)]);
        assert_eq!((supply.deal(), supply.deal()), (Some(SampleId(1)), Some(SampleId(1))));
        supply.take(SampleId(1));
        supply.give_back(SampleId(1));
        assert_eq!(supply.deal(), Some(SampleId(1)));
    }

    /// Newcomers have their chance in the round that they come in.
    #[test]
    fn newcomers_are_taken_in_proportion_to_what_is_left_of_the_round() {
        let mut counts = [0; 2];
        for number in 0..2000 {
            let mut supply = Supply::new(5, number, 1);
            supply.renew((0..8).map(SampleId));
            for _ in 0..4 {
                take(&mut supply);
            }
            supply.renew((0..9).map(SampleId));
            let left = supply.open.len();
            assert!(left == 4 || left == 5);
            counts[left - 4] += 1;
        }
        uniform("half a round is left", &counts);
    }
}

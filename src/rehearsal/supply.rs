//! Samples for whoever asks for one at any time, a fresh one for each taking.
//!
//! A sample is *dealt* first, when a reader looks a name up, and *taken* when it opens what it found;
//! what is never opened comes *back*. As [`Draws`](super::Draws), what is taken goes in rounds: each
//! round takes every sample once, and two takings of one sample are `distance` apart at least. It
//! differs in that readers decide over the order in which samples are taken, and that the buffer
//! may change at any time. What is dealt next is drawn ahead, so that it can be fetched before.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::luck::{Luck, Purpose};
use super::members::SampleId;

/// Samples that are drawn ahead of their deals.
pub const AHEAD: usize = 32;

/// What comes back is dealt again after so many others at most, but for what chance decides.
const SOON: usize = 4;

/// A sample, and the taking before which it may not be taken again.
type Resting = (SampleId, u64);

/// A sample that was dealt to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deal {
    /// Which.
    pub sample: SampleId,
    number: u64,
    /// The taking before which it could not be taken again if it were taken next.
    from: u64,
}

/// A sample in the hands of readers.
struct Hand {
    /// To whom it was dealt, the latest last; not empty.
    deals: Vec<Deal>,
    /// None of them has taken it since it was dealt first.
    waits: bool,
    /// The round in which it began to wait.
    round: u64,
}

/// Samples to be taken one after the other.
///
/// The same seed, samples and calls in the same order give the same samples. A call takes O(log n),
/// but for [`renew`](Supply::renew), and for the taking of what had been given back or taken before.
pub struct Supply {
    distance: usize,
    luck: Luck,
    all: HashSet<SampleId>,
    /// Samples of this round that are dealt next, the first one first.
    next: VecDeque<SampleId>,
    /// Further ones that may be dealt.
    open: Vec<SampleId>,
    /// Samples of this round that are still too close to their last taking, the longest ago first.
    rest: VecDeque<Resting>,
    /// Samples that this round has taken, in this order.
    taken: VecDeque<Resting>,
    /// Samples that are dealt; those that wait to be taken are in none of the lists above.
    dealt: HashMap<SampleId, Hand>,
    /// The latest deals of those, by their numbers.
    waiting: BTreeMap<u64, Deal>,
    /// Samples that a round ended without: the next one takes them twice.
    owed: HashSet<SampleId>,
    round: u64,
    takings: u64,
    deals: u64,
}

impl Supply {
    /// A supply without samples; `number` tells those of one seed apart. No sample is taken twice
    /// within any `distance` takings that follow each other, as long as those that are dealt and not
    /// taken leave others; with fewer samples than that, it comes again after all others but one:
    /// were there no choice at all, what is always given back would never be taken.
    pub fn new(seed: u64, number: u64, distance: usize) -> Supply {
        let luck = Luck::new(seed, Purpose::Supply, number);
        let (all, next, open, rest, taken, dealt) = Default::default();
        let (waiting, owed, round, takings, deals) = Default::default();
        Supply {
            distance,
            luck,
            all,
            next,
            open,
            rest,
            taken,
            dealt,
            waiting,
            owed,
            round,
            takings,
            deals,
        }
    }

    /// Has these samples from now on. One that is new has its place in this round like the others:
    /// it is taken in it as likely as the round has samples left.
    pub fn renew(&mut self, samples: impl IntoIterator<Item = SampleId>) {
        let mut samples: Vec<SampleId> = samples.into_iter().collect();
        samples.sort_unstable();
        samples.dedup();
        let left = (self.next.len() + self.open.len() + self.rest.len()) as u64;
        let round = left + self.taken.len() as u64;
        let before = std::mem::replace(&mut self.all, samples.iter().copied().collect());
        let all = &self.all;
        self.next.retain(|sample| all.contains(sample));
        self.open.retain(|sample| all.contains(sample));
        self.rest.retain(|(sample, _)| all.contains(sample));
        self.taken.retain(|(sample, _)| all.contains(sample));
        self.dealt.retain(|sample, _| all.contains(sample));
        self.waiting.retain(|_, deal| all.contains(&deal.sample));
        self.owed.retain(|sample| all.contains(sample));
        for sample in samples.into_iter().filter(|sample| !before.contains(sample)) {
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

    /// The taking before which what is taken next may not be taken again.
    fn rests_until(&self) -> u64 {
        self.takings + self.distance.min(self.all.len().saturating_sub(1)).max(1) as u64
    }

    /// Lets those in that have rested.
    fn admit(&mut self) {
        let rested = self.rest.iter().take_while(|(_, from)| *from <= self.takings).count();
        self.open.extend(self.rest.drain(..rested).map(|(sample, _)| sample));
    }

    /// Draws ahead, among those that have rested.
    fn draw_ahead(&mut self) {
        self.admit();
        while self.next.len() < AHEAD && !self.open.is_empty() {
            self.next.push_back(self.open.swap_remove(self.luck.index(self.open.len())));
        }
    }

    /// What is taken next, as far as that is decided, the soonest first: what is in the hands of
    /// readers, what is dealt next, and what may be when it has rested. At the end of a round that is
    /// less than [`AHEAD`].
    pub fn upcoming(&self) -> impl Iterator<Item = SampleId> {
        let waiting = self.waiting.values().map(|deal| deal.sample);
        let rest = self.rest.iter().map(|(sample, _)| *sample);
        waiting.chain(self.next.iter().copied()).chain(rest).take(AHEAD)
    }

    /// Begins the next round; what this one still had to take is owed.
    fn begin_round(&mut self) {
        self.round += 1;
        self.owed.extend(self.rest.iter().map(|(sample, _)| *sample));
        self.rest.append(&mut self.taken);
        self.rest.make_contiguous().sort_by_key(|(_, from)| *from);
    }

    /// The sample whose last taking is the longest ago, where what is dealt counts as taken then:
    /// whoever looked a name up that long ago is the least likely to open what it found.
    fn longest_ago(&mut self) -> Option<SampleId> {
        let rests = self.rest.front().map(|(_, from)| *from);
        let waits = self.waiting.first_key_value().map(|(_, deal)| deal.from);
        match (rests, waits) {
            // What was taken next was dealt before.
            (Some(rests), waits) if waits.is_none_or(|waits| rests < waits) => {
                self.rest.pop_front().map(|(sample, _)| sample)
            }
            _ => self.waiting.pop_first().map(|(_, deal)| deal.sample),
        }
    }

    /// Deals a sample; none where there are none.
    pub fn deal(&mut self) -> Option<Deal> {
        self.draw_ahead();
        if self.next.is_empty() && !self.taken.is_empty() {
            self.begin_round();
            self.draw_ahead();
        }
        // One of two: the first of what a name is looked up for twice always comes back.
        let either = self.luck.index(self.next.len().min(2));
        let sample = self.next.remove(either).or_else(|| self.longest_ago())?;
        self.deals += 1;
        let deal = Deal { sample, number: self.deals, from: self.rests_until() };
        let (deals, round) = (Vec::new(), self.round);
        let hand = self.dealt.entry(sample).or_insert(Hand { deals, waits: false, round });
        if !hand.waits {
            (hand.waits, hand.round) = (true, round);
        }
        hand.deals.push(deal);
        self.waiting.insert(deal.number, deal);
        Some(deal)
    }

    /// Whom a sample was dealt to lets go of it. Says in which round it began to wait, if it did so and
    /// does no more.
    fn let_go(&mut self, deal: Deal, taken: bool) -> Option<u64> {
        let hand = self.dealt.get_mut(&deal.sample)?;
        let at = hand.deals.iter().rposition(|of| *of == deal)?;
        let latest = hand.deals.last()?.number;
        hand.deals.remove(at);
        let (before, round) = (hand.deals.last().copied(), hand.round);
        let waited = hand.waits;
        hand.waits &= !taken;
        if before.is_none() {
            self.dealt.remove(&deal.sample);
        }
        if waited {
            self.waiting.remove(&latest);
        }
        match before {
            // It waits for the others still.
            Some(before) if waited && !taken => {
                self.waiting.insert(before.number, before);
                None
            }
            _ => waited.then_some(round),
        }
    }

    /// A sample that was dealt is taken.
    pub fn take(&mut self, deal: Deal) {
        let sample = deal.sample;
        let resting = (sample, self.rests_until());
        self.takings += 1;
        let waited = self.let_go(deal, true);
        if !self.all.contains(&sample) {
            return;
        }
        let mut again = waited.is_some_and(|round| round < self.round);
        if waited.is_none() {
            // It had been given back, or this is not the first one to take it.
            let other = |(other, _): &Resting| *other != sample;
            let resting = self.rest.len();
            self.rest.retain(other);
            self.taken.retain(other);
            self.next.retain(|other| *other != sample);
            self.open.retain(|other| *other != sample);
            again = self.rest.len() < resting;
        }
        if self.owed.remove(&sample) || again {
            self.rest.push_back(resting);
        } else {
            self.taken.push_back(resting);
        }
    }

    /// A sample that was dealt will not be taken.
    pub fn give_back(&mut self, deal: Deal) {
        if let Some(round) = self.let_go(deal, false) {
            if round < self.round {
                self.owed.insert(deal.sample);
            }
            // Soon, for it may have been fetched, but not always where it was.
            let place = self.luck.index(self.next.len().min(SOON) + 1);
            self.next.insert(place, deal.sample);
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
        let deal = supply.deal().unwrap();
        supply.take(deal);
        deal.sample.0
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

    /// What is taken is what was drawn ahead for it, also where names are looked up twice, but for the
    /// first of a round.
    #[test]
    fn what_comes_next_is_known_ahead() {
        for (n, distance) in [(200, 20), (40, 40)] {
            let (mut supply, mut ahead) = (supply(n, distance), HashSet::new());
            let mut unforeseen = 0;
            for _ in 0..10 * n {
                let looked = supply.deal().unwrap();
                let found = supply.deal().unwrap();
                supply.give_back(looked);
                supply.take(found);
                unforeseen += u32::from(!ahead.contains(&found.sample));
                ahead = supply.upcoming().collect();
            }
            assert!(unforeseen <= 40, "{unforeseen} of {}", 10 * n);
        }
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
                let deal: Deal = held.swap_remove(luck.index(held.len()));
                match luck.below(4) {
                    0 => supply.give_back(deal),
                    1 => held.push(deal),
                    _ => {
                        supply.take(deal);
                        let now = supply.takings;
                        let gap =
                            last.insert(deal.sample, now).map_or(u64::MAX, |before| now - before);
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
            let dealt: Vec<Deal> = (0..3).map(|_| supply.deal().unwrap()).collect();
            counts[dealt[turn % 3].sample.0 as usize] += 1;
            for (at, deal) in dealt.into_iter().enumerate() {
                if at == turn % 3 { supply.take(deal) } else { supply.give_back(deal) }
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
        let dealt = [supply.deal().unwrap(), supply.deal().unwrap()];
        assert_eq!(dealt.map(|deal| deal.sample.0), [1, 1]);
        supply.take(dealt[0]);
        supply.give_back(dealt[1]);
        assert_eq!(take(&mut supply), 1);
    }

    /// Names that readers look up. As with the kernel, what was found behind a name and not taken
    /// stays dealt until that is looked up again; then it is looked up twice.
    struct Names {
        supply: Supply,
        found: Vec<Option<Deal>>,
        /// What was found first is given back after the second look.
        late: bool,
    }

    impl Names {
        fn new(supply: Supply, names: usize, late: bool) -> Names {
            Names { supply, found: vec![None; names], late }
        }

        fn look(&mut self, name: usize) -> Deal {
            if let Some(before) = self.found[name].take() {
                let first = self.supply.deal().unwrap();
                let gone = [before, first];
                if !self.late {
                    gone.into_iter().for_each(|deal| self.supply.give_back(deal));
                }
                self.found[name] = self.supply.deal();
                if self.late {
                    gone.into_iter().for_each(|deal| self.supply.give_back(deal));
                }
            } else {
                self.found[name] = self.supply.deal();
            }
            self.found[name].unwrap()
        }

        /// Gives back what is behind names.
        fn give_up(&mut self) {
            let found = self.found.iter_mut().filter_map(Option::take);
            found.for_each(|deal| self.supply.give_back(deal));
        }

        /// What was opened stays behind the name as well.
        fn open(&mut self, name: usize) -> u32 {
            let found = self.look(name);
            self.supply.take(found);
            found.sample.0
        }
    }

    /// Opens few names many times; each sample must be found as often as the others, and come again
    /// after nearly all of them.
    #[track_caller]
    fn open_few(mut names: Names, held: std::ops::Range<u32>) {
        let n = held.len();
        let (mut counts, mut last) = (HashMap::<u32, u32>::new(), HashMap::new());
        for turn in 0..100 * n {
            let sample = names.open(turn % 8);
            *counts.entry(sample).or_default() += 1;
            let gap = last.insert(sample, turn).map_or(usize::MAX, |before| turn - before);
            // One is in the hands of the reader besides.
            assert!(gap >= n - 2, "{sample} of {n} after {gap}");
        }
        let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
        assert!(counts.keys().all(|sample| held.contains(sample)), "{counts:?}");
        assert!(counts.len() == n && most - least <= 5, "{counts:?}");
    }

    /// More names than samples, all of them looked at, and few of them opened from then on: all that
    /// can be found are, and at last what was never opened is given back.
    #[test]
    fn what_is_looked_at_and_never_opened_is_drawn_like_the_rest() {
        for (n, late) in [(50, false), (50, true), (30, false), (30, true), (63, true)] {
            let mut names = Names::new(supply(n, 64), 64, late);
            (0..64).for_each(|name| _ = names.look(name));
            let found: HashSet<u32> =
                (0..2 * n as usize).map(|turn| names.open(turn % 8)).collect();
            assert!(found.len() + 1 >= n as usize, "{found:?} of {n}");
            names.give_up();
            open_few(names, 0..n);
        }
    }

    /// Half of what was dealt and not taken is replaced by other samples.
    #[test]
    fn what_is_held_no_more_is_not_dealt() {
        for late in [false, true] {
            let mut names = Names::new(supply(50, 64), 64, late);
            (0..64).for_each(|name| _ = names.look(name));
            names.supply.renew((25..75).map(SampleId));
            assert!((0..200).all(|turn| (25..75).contains(&names.open(turn % 8))));
            names.give_up();
            open_few(names, 25..75);
        }
    }

    /// Who had been given up on comes nonetheless, or two take the same.
    #[test]
    fn a_taking_counts_whoever_comes() {
        let mut supply = supply(10, 10);
        let late = supply.deal().unwrap();
        supply.give_back(late);
        supply.take(late);
        assert!((0..9).all(|_| take(&mut supply) != late.sample.0), "it was taken");
        let mut one = Supply::new(3, 0, 2);
        one.renew((0..3).map(SampleId));
        let dealt: Vec<Deal> = (0..4).map(|_| one.deal().unwrap()).collect();
        assert_eq!(dealt[0].sample, dealt[3].sample, "the one that waits for the longest");
        one.take(dealt[0]);
        one.take(dealt[1]);
        one.take(dealt[3]);
        one.give_back(dealt[2]);
        assert_eq!(take(&mut one), dealt[2].sample.0);
        let others = HashSet::from([take(&mut one), take(&mut one)]);
        assert_eq!(others, HashSet::from([dealt[0].sample.0, dealt[1].sample.0]));
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
            let left = supply.next.len() + supply.open.len();
            assert!(left == 4 || left == 5);
            counts[left - 4] += 1;
        }
        uniform("half a round is left", &counts);
    }
}

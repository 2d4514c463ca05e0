//! Samples for whoever asks for one at any time, a fresh one for each taking.
//!
//! A sample is *dealt* first, when a reader looks a name up, and *taken* when it opens what it found;
//! what is never opened comes *back*. As [`Draws`](super::Draws), what is taken goes in rounds: each
//! round takes every sample once, and two takings of one sample are `distance` apart at least. It
//! differs in that readers decide over the order in which samples are taken, and that the buffer
//! may change at any time. What is dealt next is drawn ahead, so that it can be fetched before.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::counter_rng::{CounterRng, Purpose};
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
    rng: CounterRng,
    /// Those that there are, each with the number of its latest deal; 0: of none.
    all: HashMap<SampleId, u64>,
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
        let rng = CounterRng::new(seed, Purpose::Supply, number);
        let (all, next, open, rest, taken, dealt) = Default::default();
        let (waiting, owed, round, takings, deals) = Default::default();
        Supply {
            distance,
            rng,
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
        let before = std::mem::take(&mut self.all);
        let latest = |sample| (sample, before.get(&sample).copied().unwrap_or(0));
        self.all = samples.iter().copied().map(latest).collect();
        let all = &self.all;
        self.next.retain(|sample| all.contains_key(sample));
        self.open.retain(|sample| all.contains_key(sample));
        self.rest.retain(|(sample, _)| all.contains_key(sample));
        self.taken.retain(|(sample, _)| all.contains_key(sample));
        self.dealt.retain(|sample, _| all.contains_key(sample));
        self.waiting.retain(|_, deal| all.contains_key(&deal.sample));
        self.owed.retain(|sample| all.contains_key(sample));
        for sample in samples.into_iter().filter(|sample| !before.contains_key(sample)) {
            if round == 0 || self.rng.below(round) < left {
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
            self.next.push_back(self.open.swap_remove(self.rng.index(self.open.len())));
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
        let either = self.rng.index(self.next.len().min(2));
        let sample = self.next.remove(either).or_else(|| self.longest_ago())?;
        self.deals += 1;
        let deal = Deal { sample, number: self.deals, from: self.rests_until() };
        self.all.entry(sample).and_modify(|latest| *latest = deal.number);
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

    /// Whether the sample of a deal has been dealt to somebody else since.
    pub fn was_dealt_again(&self, deal: Deal) -> bool {
        self.all.get(&deal.sample).is_some_and(|latest| *latest != deal.number)
    }

    /// A sample that was dealt is taken.
    pub fn take(&mut self, deal: Deal) {
        let sample = deal.sample;
        let resting = (sample, self.rests_until());
        self.takings += 1;
        let waited = self.let_go(deal, true);
        if !self.all.contains_key(&sample) {
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
            let place = self.rng.index(self.next.len().min(SOON) + 1);
            self.next.insert(place, deal.sample);
        }
    }
}

#[cfg(test)]
mod tests;

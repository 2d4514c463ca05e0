//! Supplies samples to readers that ask at any time, a new sample for each taking.
//!
//! A sample is *dealt* when a reader looks a name up. It is *taken* when the reader opens what it found. A
//! sample that is dealt and never opened is *given back*. As with [`Draws`](super::Draws), takings go in
//! rounds: each round takes every sample once, and two takings of one sample are at least `distance` apart.
//! Unlike with draws, readers decide in which order samples are taken, and the buffer may change at any time.
//! The next deals are drawn ahead, so that they can be prefetched.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::counter_rng::{CounterRng, Purpose};
use super::members::SampleId;

/// How many samples are drawn ahead of their deals.
pub const AHEAD: usize = 32;

/// A sample that is given back has at most this many samples before it in the queue.
const SOON: usize = 4;

/// A sample, and the number of the taking before which it may not be taken again.
type Resting = (SampleId, u64);

/// A sample that was dealt to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deal {
    pub sample: SampleId,
    number: u64,
    /// The taking before which the sample may not be taken again, if it is taken next.
    from: u64,
}

/// A sample with open deals: neither taken nor given back.
struct Hand {
    /// The open deals, the latest last. Not empty.
    deals: Vec<Deal>,
    /// Whether the sample was dealt and no reader has taken it since.
    waits: bool,
    /// The round in which that wait began.
    round: u64,
}

/// A supply of samples, to be taken one after the other.
///
/// The same seed, samples and sequence of calls give the same samples. A call takes O(log n). Exceptions are
/// [`renew`](Supply::renew), and taking a sample that was given back or taken before.
pub struct Supply {
    distance: usize,
    rng: CounterRng,
    /// All samples, each with the number of its latest deal. 0: it has none.
    all: HashMap<SampleId, u64>,
    /// Samples of this round that are dealt next, in this order.
    next: VecDeque<SampleId>,
    /// Further samples of this round that may be dealt.
    open: Vec<SampleId>,
    /// Samples of this round that are too close to their last taking. The longest ago comes first.
    rest: VecDeque<Resting>,
    /// Samples that this round has taken, in this order.
    taken: VecDeque<Resting>,
    /// Samples with open deals. If such a sample waits to be taken, it is in none of the lists above.
    dealt: HashMap<SampleId, Hand>,
    /// The latest deals of the samples that wait, by number.
    waiting: BTreeMap<u64, Deal>,
    /// Samples that a round ended without. The next round takes them twice.
    owed: HashSet<SampleId>,
    round: u64,
    takings: u64,
    deals: u64,
}

impl Supply {
    /// A supply without samples. `number` distinguishes supplies of one seed.
    ///
    /// No sample is taken twice within `distance` consecutive takings, if samples other than the dealt ones
    /// are left. With fewer samples than `distance`, a sample comes again after all others except one.
    /// Without that exception the order would be fixed, and a sample that is always given back would never be
    /// taken.
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

    /// Replaces the set of samples. A new sample gets a place in this round: it is still taken in it with a
    /// probability equal to the share of the round that is left.
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

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The taking before which the sample that is taken next may not be taken again.
    fn rests_until(&self) -> u64 {
        self.takings + self.distance.min(self.all.len().saturating_sub(1)).max(1) as u64
    }

    /// Makes the samples that have rested available.
    fn admit(&mut self) {
        let rested = self.rest.iter().take_while(|(_, from)| *from <= self.takings).count();
        self.open.extend(self.rest.drain(..rested).map(|(sample, _)| sample));
    }

    /// Draws the next deals from the samples that have rested.
    fn draw_ahead(&mut self) {
        self.admit();
        while self.next.len() < AHEAD && !self.open.is_empty() {
            self.next.push_back(self.open.swap_remove(self.rng.index(self.open.len())));
        }
    }

    /// The samples that are taken next, as far as that is decided, the soonest first: dealt samples that
    /// wait, the next deals, and samples that still rest. At the end of a round these may be fewer than
    /// [`AHEAD`].
    pub fn upcoming(&self) -> impl Iterator<Item = SampleId> {
        let waiting = self.waiting.values().map(|deal| deal.sample);
        let rest = self.rest.iter().map(|(sample, _)| *sample);
        waiting.chain(self.next.iter().copied()).chain(rest).take(AHEAD)
    }

    /// Begins the next round. The samples that this round did not take are owed.
    fn begin_round(&mut self) {
        self.round += 1;
        self.owed.extend(self.rest.iter().map(|(sample, _)| *sample));
        self.rest.append(&mut self.taken);
        self.rest.make_contiguous().sort_by_key(|(_, from)| *from);
    }

    /// The sample whose last taking is the longest ago. A dealt sample counts as taken at its deal: the
    /// reader that looked a name up the longest ago is the least likely to open what it found.
    fn longest_ago(&mut self) -> Option<SampleId> {
        let rests = self.rest.front().map(|(_, from)| *from);
        let waits = self.waiting.first_key_value().map(|(_, deal)| deal.from);
        match (rests, waits) {
            // If both are equal, the deal came before the taking.
            (Some(rests), waits) if waits.is_none_or(|waits| rests < waits) => {
                self.rest.pop_front().map(|(sample, _)| sample)
            }
            _ => self.waiting.pop_first().map(|(_, deal)| deal.sample),
        }
    }

    /// Deals a sample. `None` if the supply has none.
    pub fn deal(&mut self) -> Option<Deal> {
        self.draw_ahead();
        if self.next.is_empty() && !self.taken.is_empty() {
            self.begin_round();
            self.draw_ahead();
        }
        // One of the first two, by chance: if a name is looked up twice, its first deal always comes back.
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

    /// Ends a deal. Returns the round in which the sample began to wait, if it waited and does no more.
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
            // It still waits for the readers of other deals.
            Some(before) if waited && !taken => {
                self.waiting.insert(before.number, before);
                None
            }
            _ => waited.then_some(round),
        }
    }

    /// Whether the sample of a deal was dealt to another reader since.
    pub fn was_dealt_again(&self, deal: Deal) -> bool {
        self.all.get(&deal.sample).is_some_and(|latest| *latest != deal.number)
    }

    /// The reader of a deal takes the sample.
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
            // It had been given back, or another reader took it first.
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

    /// The reader of a deal will not take the sample.
    pub fn give_back(&mut self, deal: Deal) {
        if let Some(round) = self.let_go(deal, false) {
            if round < self.round {
                self.owed.insert(deal.sample);
            }
            // Soon, because it may have been fetched, but not always at the same place.
            let place = self.rng.index(self.next.len().min(SOON) + 1);
            self.next.insert(place, deal.sample);
        }
    }
}

#[cfg(test)]
mod tests;

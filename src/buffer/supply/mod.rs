//! Supplies samples to readers that ask at any time, a new sample for each taking.
//!
//! A sample is *reserved* when a reader looks a name up. It is *taken* when the reader opens what it found. A
//! reservation without an open is *released*. As with [`EpochDraws`](super::EpochDraws), takings go in rounds:
//! each round takes every sample once, and two takings of one sample are at least `distance` apart. Unlike
//! with draws, readers decide in which order samples are taken, and the buffer may change at any time. The
//! next samples are drawn ahead, so that they can be prefetched.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::counter_rng::{CounterRng, Purpose};
use super::members::SampleId;

/// How many samples are drawn ahead of their reservations.
pub const AHEAD: usize = 32;

/// A sample that is released has at most this many samples before it in the queue.
const SOON: usize = 4;

/// A sample, and the number of the taking before which it may not be taken again.
type Resting = (SampleId, u64);

/// A sample that was reserved for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub sample: SampleId,
    number: u64,
    /// The taking before which the sample may not be taken again, if it is taken next.
    from: u64,
}

/// A sample with open reservations: neither taken nor released.
struct OpenReservations {
    /// The open reservations, the latest last. Not empty.
    reservations: Vec<Reservation>,
    /// Whether the sample was reserved and no reader has taken it since.
    waits: bool,
    /// The round in which that wait began.
    round: u64,
}

/// A supply of samples, to be taken one after the other.
///
/// The same seed, samples and sequence of calls give the same samples. A call takes O(log n). Exceptions are
/// [`renew`](Supply::renew), and taking a sample that was released or taken before.
pub struct Supply {
    distance: usize,
    rng: CounterRng,
    /// All samples, each with the number of its latest reservation. 0: it has none.
    all: HashMap<SampleId, u64>,
    /// Samples of this round that are reserved next, in this order.
    next: VecDeque<SampleId>,
    /// Further samples of this round that may be reserved.
    open: Vec<SampleId>,
    /// Samples of this round that are too close to their last taking. The longest ago comes first.
    resting: VecDeque<Resting>,
    /// Samples that this round has taken, in this order.
    taken: VecDeque<Resting>,
    /// Samples with open reservations. If such a sample waits to be taken, it is in none of the lists above.
    reserved: HashMap<SampleId, OpenReservations>,
    /// The latest reservations of the samples that wait, by number.
    waiting: BTreeMap<u64, Reservation>,
    /// Samples that an earlier round did not take. This round takes them twice.
    missed: HashSet<SampleId>,
    round: u64,
    takings: u64,
    reservations: u64,
}

impl Supply {
    /// A supply without samples. `number` distinguishes supplies of one seed.
    ///
    /// No sample is taken twice within `distance` consecutive takings, if samples other than the reserved
    /// ones are left. With fewer samples than `distance`, a sample comes again after all others except one.
    /// Without that exception the order would be fixed, and a sample that is always released would never be
    /// taken.
    pub fn new(seed: u64, number: u64, distance: usize) -> Supply {
        let rng = CounterRng::new(seed, Purpose::Supply, number);
        let (all, next, open, resting, taken, reserved) = Default::default();
        let (waiting, missed, round, takings, reservations) = Default::default();
        Supply {
            distance,
            rng,
            all,
            next,
            open,
            resting,
            taken,
            reserved,
            waiting,
            missed,
            round,
            takings,
            reservations,
        }
    }

    /// Replaces the set of samples. A new sample gets a place in this round: it is still taken in it with a
    /// probability equal to the share of the round that is left.
    pub fn renew(&mut self, samples: impl IntoIterator<Item = SampleId>) {
        let mut samples: Vec<SampleId> = samples.into_iter().collect();
        samples.sort_unstable();
        samples.dedup();
        let left = (self.next.len() + self.open.len() + self.resting.len()) as u64;
        let round = left + self.taken.len() as u64;
        let before = std::mem::take(&mut self.all);
        let latest = |sample| (sample, before.get(&sample).copied().unwrap_or(0));
        self.all = samples.iter().copied().map(latest).collect();
        let all = &self.all;
        self.next.retain(|sample| all.contains_key(sample));
        self.open.retain(|sample| all.contains_key(sample));
        self.resting.retain(|(sample, _)| all.contains_key(sample));
        self.taken.retain(|(sample, _)| all.contains_key(sample));
        self.reserved.retain(|sample, _| all.contains_key(sample));
        self.waiting.retain(|_, reservation| all.contains_key(&reservation.sample));
        self.missed.retain(|sample| all.contains_key(sample));
        for sample in samples.into_iter().filter(|sample| !before.contains_key(sample)) {
            if round == 0 || self.rng.below(round) < left {
                self.open.push(sample);
            } else {
                self.taken.push_front((sample, 0));
            }
        }
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
        let rested = self.resting.iter().take_while(|(_, from)| *from <= self.takings).count();
        self.open.extend(self.resting.drain(..rested).map(|(sample, _)| sample));
    }

    /// Draws the next reservations from the samples that have rested.
    fn draw_ahead(&mut self) {
        self.admit();
        while self.next.len() < AHEAD && !self.open.is_empty() {
            self.next.push_back(self.open.swap_remove(self.rng.index(self.open.len())));
        }
    }

    /// The samples that are taken next, as far as that is decided, the soonest first: reserved samples that
    /// wait, the next samples, and samples that still rest. At the end of a round these may be fewer than
    /// [`AHEAD`].
    pub fn upcoming(&self) -> impl Iterator<Item = SampleId> {
        let waiting = self.waiting.values().map(|reservation| reservation.sample);
        let resting = self.resting.iter().map(|(sample, _)| *sample);
        waiting.chain(self.next.iter().copied()).chain(resting).take(AHEAD)
    }

    /// Begins the next round. The samples that this round did not take are missed.
    fn begin_round(&mut self) {
        self.round += 1;
        self.missed.extend(self.resting.iter().map(|(sample, _)| *sample));
        self.resting.append(&mut self.taken);
        self.resting.make_contiguous().sort_by_key(|(_, from)| *from);
    }

    /// Takes out the sample whose last taking is the longest ago. A reserved sample counts as taken when it
    /// was reserved: the reader that looked a name up the longest ago is the least likely to open it.
    fn pop_longest_ago(&mut self) -> Option<SampleId> {
        let rests = self.resting.front().map(|(_, from)| *from);
        let waits = self.waiting.first_key_value().map(|(_, reservation)| reservation.from);
        match (rests, waits) {
            // If both are equal, the reservation came before the taking.
            (Some(rests), waits) if waits.is_none_or(|waits| rests < waits) => {
                self.resting.pop_front().map(|(sample, _)| sample)
            }
            _ => self.waiting.pop_first().map(|(_, reservation)| reservation.sample),
        }
    }

    /// Reserves a sample. `None` if the supply has none.
    pub fn reserve(&mut self) -> Option<Reservation> {
        self.draw_ahead();
        if self.next.is_empty() && !self.taken.is_empty() {
            self.begin_round();
            self.draw_ahead();
        }
        // One of the first two, by chance: if a name is looked up twice, its first sample always comes back.
        let either = self.rng.index(self.next.len().min(2));
        let sample = self.next.remove(either).or_else(|| self.pop_longest_ago())?;
        self.reservations += 1;
        let reservation =
            Reservation { sample, number: self.reservations, from: self.rests_until() };
        self.all.entry(sample).and_modify(|latest| *latest = reservation.number);
        let (reservations, round) = (Vec::new(), self.round);
        let open = self.reserved.entry(sample).or_insert(OpenReservations {
            reservations,
            waits: false,
            round,
        });
        if !open.waits {
            (open.waits, open.round) = (true, round);
        }
        open.reservations.push(reservation);
        self.waiting.insert(reservation.number, reservation);
        Some(reservation)
    }

    /// Ends a reservation. Returns the round in which the sample began to wait, if it does not wait any more.
    fn end(&mut self, reservation: Reservation, taken: bool) -> Option<u64> {
        let open = self.reserved.get_mut(&reservation.sample)?;
        let at = open.reservations.iter().rposition(|of| *of == reservation)?;
        let latest = open.reservations.last()?.number;
        open.reservations.remove(at);
        let (before, round) = (open.reservations.last().copied(), open.round);
        let waited = open.waits;
        open.waits &= !taken;
        if before.is_none() {
            self.reserved.remove(&reservation.sample);
        }
        if waited {
            self.waiting.remove(&latest);
        }
        match before {
            // It still waits for the readers of other reservations.
            Some(before) if waited && !taken => {
                self.waiting.insert(before.number, before);
                None
            }
            _ => waited.then_some(round),
        }
    }

    /// Whether the sample of a reservation was reserved for another reader since.
    pub fn was_reserved_again(&self, reservation: Reservation) -> bool {
        self.all.get(&reservation.sample).is_some_and(|latest| *latest != reservation.number)
    }

    /// The reader of a reservation takes the sample.
    pub fn take(&mut self, reservation: Reservation) {
        let sample = reservation.sample;
        let resting = (sample, self.rests_until());
        self.takings += 1;
        let waited = self.end(reservation, true);
        if !self.all.contains_key(&sample) {
            return;
        }
        let mut again = waited.is_some_and(|round| round < self.round);
        if waited.is_none() {
            // It had been released, or another reader took it first.
            let other = |(other, _): &Resting| *other != sample;
            let before = self.resting.len();
            self.resting.retain(other);
            self.taken.retain(other);
            self.next.retain(|other| *other != sample);
            self.open.retain(|other| *other != sample);
            again = self.resting.len() < before;
        }
        if self.missed.remove(&sample) || again {
            self.resting.push_back(resting);
        } else {
            self.taken.push_back(resting);
        }
    }

    /// The reader of a reservation will not take the sample.
    pub fn release(&mut self, reservation: Reservation) {
        if let Some(round) = self.end(reservation, false) {
            if round < self.round {
                self.missed.insert(reservation.sample);
            }
            // Soon, because it may have been fetched, but not always at the same place.
            let place = self.rng.index(self.next.len().min(SOON) + 1);
            self.next.insert(place, reservation.sample);
        }
    }
}

#[cfg(test)]
mod tests;

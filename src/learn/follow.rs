//! A loader's place in an order that it is known to read.

use std::sync::Arc;

use super::attempt::Attempt;
use super::evidence::{STEP_MAX, Steps, Weight};
use super::origin::{Law, Origin};
use super::share::Share;
use crate::track::{BitSet, Reader, Readers, Sequence};

/// How much more is opened that is not where the order has it than is, until it is given up: in
/// opens.
const OUTSIDE_MAX: f64 = 32.0;

/// Bits that an open counts for or against the order at most.
const BITS_MAX: f64 = 4.0;

/// At the end of an order as it was read before, the samples that it lacks which show that the epoch
/// goes on.
const LACKED_MIN: u32 = 4;

/// How many samples the workers of a loader may have ahead of the slowest, of one rank's: two
/// batches of 64 of 8 workers.
const AHEAD: u32 = 1024;

/// From how many places on a share is believed: more than the workers of a loader read ahead by
/// themselves when their batches are of one sample.
const SHARED_MIN: u32 = 24;

/// After how many reads it is looked whether they are of a share; later after a quarter of them more.
const LOOK_AFTER: u32 = 16;

/// Of so many reads at least one is seen.
const SEEN_MIN: u32 = 64;

/// From how many bits on one reader's opens say by themselves that it reads the order.
const BITS_MIN: f64 = 10.0;

/// The part of an order's places that its readers may be apart, if it is as it was read before. A few
/// readers that each go through a part of it are at least twice as far apart.
const APART_PART: u32 = 8;

/// From how many opens on it is known whether they are.
const TOGETHER_MIN: u32 = 8;

/// The share, in quarters, that is read of what lies between two opens of an index order.
const DENSE: u32 = 3;

/// How far a reader may step back: threads of one reader that overtake each other.
const BACK: u32 = 16;

/// What an open is to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is where the order has it.
    Next,
    /// It is in the order, but not here.
    Outside,
    /// It is not of this order's samples.
    Elsewhere,
}

/// An order and what has been read of it.
#[derive(Debug)]
pub(super) struct FollowedOrder {
    pub(super) sequence: Arc<Sequence>,
    /// Number of the index; none for an order that is as it was read before.
    pub(super) index: Option<usize>,
    pub(super) origin: Origin,
    pub(super) law: Law,
    read: BitSet,
    matched: u32,
    /// The highest place that was read, and what that was at first; and the lowest one.
    front: u32,
    start: u32,
    low: u32,
    /// With the only open of each that has made no other.
    readers: Readers<Option<u32>>,
    steps: Steps,
    /// Opens that are not where the order has them, less those that made up for them.
    outside: f64,
    /// Such opens since all were made up for, and how many of them were of samples that had been read.
    strays: u32,
    again: u32,
    /// Of an order as it was read before: samples that it lacks.
    lacked: u32,
    share: Share,
    /// How many places it was told from.
    shared: u32,
    /// After how many reads to look again whether it is narrower.
    look_at: u32,
}

impl FollowedOrder {
    /// Takes up an order with what was read of it; `weight` is what that says for the order.
    pub(super) fn new(
        sequence: Arc<Sequence>,
        (index, origin, law): (Option<usize>, Origin, Law),
        attempt: &Attempt,
        weight: &Weight,
    ) -> Self {
        let mut follow = FollowedOrder {
            sequence,
            index,
            origin: origin.clone(),
            law,
            read: BitSet::default(),
            matched: 0,
            front: 0,
            start: 0,
            low: 0,
            readers: Readers::default(),
            steps: weight.steps.clone(),
            outside: 0.0,
            again: 0,
            lacked: 0,
            strays: 0,
            share: Share::WHOLE,
            shared: 0,
            look_at: LOOK_AFTER,
        };
        let mut all = Vec::new();
        let most = weight.readers.iter().copied().fold(0.0, f64::max);
        let readers = attempt.readers().iter().zip(&weight.readers);
        for (reader, _) in readers.filter(|(_, bits)| **bits >= BITS_MIN.min(most)) {
            all.extend(reader.samples.iter().filter_map(|&sample| follow.sequence.place(sample)));
            if let Some(last) = follow.sequence.place(reader.last) {
                follow.readers.add(Reader { number: reader.number, last, note: None });
                follow.front = follow.front.max(last);
            }
        }
        follow.start = follow.front;
        follow.low = all.iter().copied().min().unwrap_or(0);
        // In the order of arrival nobody has every so manyth place.
        if !origin.is_as_seen() {
            follow.share = Share::of(&all);
            follow.shared = all.len() as u32;
        }
        for &sample in attempt.log() {
            if let Some(place) = follow.sequence.place(sample) {
                follow.matched += u32::from(follow.read.insert(place));
            }
        }
        follow.narrow();
        follow
    }

    /// Looks whether those who read go through a share in blocks, which shows when they have come to
    /// their second ones. Says whether they do and it was not known.
    pub(super) fn narrow(&mut self) -> bool {
        let may_be = self.share == Share::WHOLE && !self.origin.is_as_seen();
        if !may_be || self.matched < self.look_at {
            return false;
        }
        self.look_at = self.matched + (self.matched / 4).max(LOOK_AFTER);
        let Some(behind) = self.readers.hindmost(Option::is_none) else { return false };
        let Some(share) = Share::of_blocks(&self.read, self.low..behind) else { return false };
        self.inherit(share);
        true
    }

    /// Takes over the share of an epoch before, which does not change.
    pub(super) fn inherit(&mut self, share: Share) {
        self.share = share;
        self.shared = SHARED_MIN;
    }

    /// Whether about all was read of what lies between the first and the last open of each reader
    /// that reads the order: `attempt` and `weight` are what it was taken up with. Who reads, in the
    /// order of names, one file in ten goes forward too; to foresee all ten would be of no use.
    pub(super) fn is_dense(&self, attempt: &Attempt, weight: &Weight) -> bool {
        let (mut there, mut read) = (0, 0);
        let most = weight.readers.iter().copied().fold(0.0, f64::max);
        let readers = attempt.readers().iter().zip(&weight.readers);
        for (reader, _) in readers.filter(|(_, bits)| **bits >= BITS_MIN.min(most)) {
            let places = || reader.samples.iter().filter_map(|&sample| self.sequence.place(sample));
            if let (Some(low), Some(high)) = (places().min(), places().max()) {
                there += self.share.count(low..high + 1);
                read += self.read.count(low..high + 1);
            }
        }
        4 * read >= DENSE * there
    }

    /// Whether those who read are near each other, but for a few, so that what comes next is read
    /// next: `attempt` is what it was taken up with. Readers that go through a part of it each, side by
    /// side, go forward too.
    pub(super) fn is_together(&self, attempt: &Attempt) -> bool {
        let readers = attempt.readers().iter();
        let places = readers.filter_map(|reader| {
            let last = self.sequence.place(reader.last)?;
            Some((last.abs_diff(self.front) <= self.apart(), reader.samples.len()))
        });
        let (near, far): (Vec<_>, Vec<_>) = places.partition(|(is_near, _)| *is_near);
        let opens = |of: &[(bool, usize)]| of.iter().map(|(_, opens)| opens).sum::<usize>();
        let enough = attempt.opens() >= TOGETHER_MIN;
        enough && near.len() > far.len() && opens(&near) >= 3 * opens(&far)
    }

    /// Whether enough was seen to say what the share is: not one worker's of batches of one.
    pub(super) fn knows_share(&self) -> bool {
        self.share.stride == 1 || self.shared >= SHARED_MIN
    }

    /// A reader opened a sample.
    pub(super) fn see(&mut self, reader: u32, sample: u32) -> Seen {
        let Some(place) = self.sequence.place(sample) else { return Seen::Elsewhere };
        let read = self.read.has(place);
        let shared = self.share.has(place);
        let filled = || self.share.is_filled_with(place, self.sequence.len());
        if (read || !shared) && self.is_near_end() && filled() {
            return Seen::Next;
        }
        let unread = f64::from(self.sequence.len().saturating_sub(self.matched).max(2));
        let bits = match self.readers.get(reader) {
            _ if read || !shared => None,
            Some(at) if (at.last + 1..=at.last.saturating_add(STEP_MAX)).contains(&place) => {
                Some((self.steps.take(place - at.last) * unread).log2())
            }
            // Threads of one reader overtake each other.
            Some(at) if place + self.back() >= at.last => Some(0.0),
            Some(_) => None,
            None => (place.abs_diff(self.front) <= self.apart()).then_some(0.0),
        };
        let Some(bits) = bits else {
            // Half of a wider share would make up for the other half.
            self.outside += if shared { 1.0 } else { 2.0 };
            self.again += u32::from(read);
            self.strays += 1;
            return Seen::Outside;
        };
        // A step that the readers do not take as a rule is no better than none.
        let against = if bits < 0.0 { 1.0 } else { -(bits / BITS_MAX).min(1.0) };
        self.outside = (self.outside + against).max(0.0);
        self.strays += u32::from(against > 0.0);
        if self.outside == 0.0 {
            (self.again, self.lacked, self.strays) = (0, 0, 0);
        }
        self.read.insert(place);
        self.matched += 1;
        if bits >= 0.0 {
            self.front = self.front.max(place);
        }
        match self.readers.get_mut(reader) {
            Some(at) => (at.last, at.note) = (at.last.max(place), None),
            None => self.readers.add(Reader { number: reader, last: place, note: Some(sample) }),
        }
        Seen::Next
    }

    /// The loader opened one of its samples: counts it where an order as it was read before lacks it.
    pub(super) fn note_lack(&mut self, sample: u32) {
        if self.origin.is_as_seen() && self.sequence.place(sample).is_none() {
            self.outside += 1.0;
            self.lacked += 1;
            self.strays += 1;
        }
    }

    /// The open before, if it was the reader's first and has been taken for one of the order: the
    /// next one showed that it was not.
    pub(super) fn take_back(&mut self, reader: u32) -> Option<u32> {
        let only = self.readers.get(reader)?.note?;
        self.readers.remove(reader);
        Some(only)
    }

    /// How far a reader may step back.
    fn back(&self) -> u32 {
        let Share { block, stride, .. } = self.share;
        BACK * stride + block * (stride - 1)
    }

    /// How far readers may be apart.
    fn ahead(&self) -> u32 {
        AHEAD * self.share.stride
    }

    /// How far from the others a reader may begin.
    fn apart(&self) -> u32 {
        if self.origin.is_as_seen() { self.sequence.len() / APART_PART } else { self.ahead() }
    }

    /// A reader has ended.
    pub(super) fn leave(&mut self, reader: u32) {
        self.readers.remove(reader);
    }

    /// Whether too much is opened that is not where the order has it.
    pub(super) fn is_lost(&self) -> bool {
        self.outside >= OUTSIDE_MAX || self.lacked >= LACKED_MIN && self.is_at_end()
    }

    /// Whether it is an order as it was read before, of an epoch that goes on after it or has other
    /// samples, too.
    pub(super) fn is_surpassed(&self) -> bool {
        2 * self.lacked > self.strays && 8 * self.again < self.strays
    }

    /// Whether half as much is.
    pub(super) fn is_half_lost(&self) -> bool {
        self.outside >= OUTSIDE_MAX / 2.0
    }

    /// Whether all that was opened elsewhere has been made up for.
    pub(super) fn is_found_again(&self) -> bool {
        self.outside == 0.0
    }

    /// Whether some reader may have come to the end.
    fn is_near_end(&self) -> bool {
        self.front.saturating_add(self.ahead()) >= self.sequence.len()
    }

    /// Whether the order is read almost to its end.
    pub(super) fn is_at_end(&self) -> bool {
        let near = self.ahead().min(self.sequence.len() / 8);
        self.front.saturating_add(near) >= self.sequence.len()
    }

    /// Whether the end of the epoch is near, or samples are read again.
    pub(super) fn is_over(&self) -> bool {
        let way = (self.front - self.start.min(self.front)) / self.share.stride;
        self.is_near_end() && self.matched >= way / SEEN_MIN || 2 * self.again >= self.strays
    }

    /// Whether a sample has been read.
    pub(super) fn has_read(&self, sample: u32) -> bool {
        self.sequence.place(sample).is_some_and(|place| self.read.has(place))
    }

    /// Number of samples read.
    pub(super) fn matched(&self) -> u32 {
        self.matched
    }

    /// The loader's share of the order.
    pub(super) fn share(&self) -> Share {
        self.share
    }

    /// What has been read of it, in its order.
    pub(super) fn done(&self) -> Arc<[u32]> {
        let samples = self.sequence.items().iter().zip(0..);
        samples.filter(|(_, place)| self.read.has(*place)).map(|(sample, _)| *sample).collect()
    }

    /// What is left to be read of the epoch, from where the readers are.
    pub(super) fn rest(&self) -> Arc<[u32]> {
        let behind = self.readers.hindmost(|_| true).unwrap_or(self.front);
        // In the beginning, workers may not have begun yet.
        let begins = self.matched <= AHEAD;
        let low = if begins { behind.saturating_sub(self.ahead()) } else { behind };
        let (len, share) = (self.sequence.len(), self.share);
        let own = (low..len).filter(|place| share.has(*place));
        let filled = (0..len.min(share.round()))
            .filter(|place| share.is_filled_with(*place, len))
            .filter(|place| *place < low || !share.has(*place));
        let unread = own.chain(filled).filter(|place| !self.read.has(*place));
        let samples = self.sequence.items();
        unread.map(|place| samples[place as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::evidence::weigh;
    use super::*;

    fn follow(readers: &[(u32, &[u32])], len: u32) -> FollowedOrder {
        let mut attempt = Attempt::default();
        for (reader, samples) in readers {
            for &sample in *samples {
                attempt.note(0, *reader, sample, true);
            }
        }
        let sequence = Arc::new(Sequence::new((0..len).collect::<Vec<u32>>()));
        let order = (Some(0), Origin::Sequential, Law::Same);
        let weight = weigh(attempt.samples(), len, |sample| sequence.place(sample));
        FollowedOrder::new(Arc::clone(&sequence), order, &attempt, &weight)
    }

    #[test]
    fn workers_are_followed_through_their_batches() {
        let mut follow = follow(&[(1, &[0, 1, 2]), (2, &[8, 9])], 1_000);
        assert_eq!(follow.rest()[..4], [3, 4, 5, 6]);
        for batch in 0..20 {
            for at in 0..8 {
                let place = batch * 8 + at;
                if ![0, 1, 2, 8, 9].contains(&place) {
                    assert_eq!(follow.see(1 + batch % 2, place), Seen::Next, "{place}");
                }
            }
        }
        assert_eq!(follow.matched(), 160);
        assert_eq!(follow.share(), Share::WHOLE);
        assert!(!follow.is_lost() && follow.rest()[..2] == [160, 161]);
    }

    #[test]
    fn a_rank_has_its_share() {
        let mut follow = follow(&[(1, &[3, 11, 19]), (2, &[515, 523])], 1_021);
        assert_eq!(follow.share(), Share { block: 1, stride: 8, first: 3 });
        assert!(!follow.knows_share());
        assert_eq!(follow.rest()[..3], [27, 35, 43]);
        let whole = follow.share().of_epoch(&(0..1_021).collect());
        assert_eq!((whole.len(), whole[0], whole[127]), (128, 3, 1_019));
        assert_eq!(follow.see(2, 524), Seen::Outside);
        assert_eq!(follow.see(2, 531), Seen::Next);
    }

    #[test]
    fn another_order_is_noticed_after_some_opens() {
        let mut follow = follow(&[(1, &[0, 1, 2, 3])], 50_000);
        let mut jumps = (1..).map(|i: u32| i * i * 7_919 % 50_000);
        let opens = (1..500).find(|_| {
            follow.see(1, jumps.next().unwrap_or(0));
            follow.is_lost()
        });
        assert!(opens.is_some_and(|opens| opens <= 60), "{opens:?}");
        assert!(!follow.is_over());
    }

    #[test]
    fn an_epoch_that_is_over_is_told_from_another_order() {
        let all: Vec<u32> = (0..100).collect();
        let mut follow = follow(&[(1, &all)], 100);
        assert!(follow.rest().is_empty());
        (0..32).for_each(|sample| _ = follow.see(1, sample * 3));
        assert!(follow.is_lost() && follow.is_over());
        assert_eq!(follow.see(1, 100), Seen::Elsewhere);
    }
}

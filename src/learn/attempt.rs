//! What a loader has read of an epoch whose order is not known, and where the next epoch begins.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::track::{BitSet, Sequence};

/// How many opens of a reader are weighed.
const WEIGHED: usize = 48;

/// How many readers are told apart in one epoch.
const READERS_MAX: usize = 64;

/// Second opens of samples, among so many recent opens, that show that another epoch has begun.
const AGAIN: usize = 8;
const RECENT: usize = 24;

/// What one reader has read of the epoch.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) number: u32,
    pub(super) samples: Vec<u32>,
    pub(super) last: u32,
    gone: bool,
}

/// The opens of an epoch as far as they are unexplained.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    readers: Vec<Reader>,
    /// Samples in the order of their first opens, and which they are.
    log: Vec<u32>,
    read: BitSet,
    recent: VecDeque<Recent>,
    opens: u32,
    exact: u32,
    began_ms: u64,
    last_ms: u64,
    /// Whether a sample was opened twice though the epoch went on.
    pub(super) repeats: bool,
}

#[derive(Clone, Copy, Debug)]
struct Recent {
    reader: u32,
    sample: u32,
    exact: bool,
    again: bool,
    /// Whether it was the reader's first.
    first: bool,
}

impl Attempt {
    /// Notes an open. Gives the epoch that is over if the open shows that another one has begun:
    /// this attempt then holds what is known to be of the new one.
    pub(super) fn note(
        &mut self,
        at_ms: u64,
        reader: u32,
        sample: u32,
        exact: bool,
    ) -> Option<Attempt> {
        let known = self.readers.iter().any(|known| known.number == reader);
        // Loaders without persistent workers start new ones for each epoch.
        if !known && self.is_left() {
            let over = std::mem::take(self);
            self.add(at_ms, Recent { reader, sample, exact, again: false, first: true });
            return Some(over);
        }
        let again = self.read.has(sample);
        self.add(at_ms, Recent { reader, sample, exact, again, first: true });
        let agains = self.recent.iter().filter(|recent| recent.again).count();
        self.repeats |= again;
        (agains >= AGAIN).then(|| self.split(at_ms))
    }

    /// A sample that was noted turns out to have been read for sure.
    pub(super) fn prove(&mut self, sample: u32) {
        if self.read.has(sample) {
            self.exact = self.exact.saturating_add(1);
        }
    }

    fn add(&mut self, at_ms: u64, open: Recent) {
        if self.opens == 0 {
            self.began_ms = at_ms;
        }
        self.last_ms = at_ms;
        self.opens = self.opens.saturating_add(1);
        self.exact = self.exact.saturating_add(u32::from(open.exact));
        if self.read.insert(open.sample) {
            self.log.push(open.sample);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        let known = self.readers.iter().any(|reader| reader.number == open.reader);
        let first = open.first && !known && self.make_room();
        self.recent.push_back(Recent { first, ..open });
        if !known && self.make_room() {
            let Recent { reader: number, sample: last, .. } = open;
            self.readers.push(Reader { number, samples: Vec::new(), last, gone: false });
        }
        if let Some(reader) = self.readers.iter_mut().find(|reader| reader.number == open.reader) {
            reader.last = open.sample;
            if reader.samples.len() < WEIGHED {
                reader.samples.push(open.sample);
            }
        }
    }

    /// Makes room for another reader, at the cost of one that has ended if need be. There is none if too
    /// many are at work: those that came first are enough to go by.
    fn make_room(&mut self) -> bool {
        if self.readers.len() == READERS_MAX
            && let Some(gone) = self.readers.iter().position(|reader| reader.gone)
        {
            self.readers.remove(gone);
        }
        self.readers.len() < READERS_MAX
    }

    /// Begins anew with what is of the new epoch: from the first second open on, and all of a
    /// reader that is new. Gives the epoch that is over.
    fn split(&mut self, at_ms: u64) -> Attempt {
        let mut over = std::mem::take(self);
        let begin = over.recent.iter().position(|open| open.again).unwrap_or(0);
        let is_new =
            |reader: u32| over.recent.iter().any(|open| open.first && open.reader == reader);
        for (at, open) in over.recent.iter().enumerate() {
            if at >= begin || is_new(open.reader) {
                self.add(at_ms, Recent { again: false, ..*open });
            }
        }
        // What is of the new epoch must not be compared with itself.
        let fresh = over.recent.iter().filter(|open| !open.again && self.read.has(open.sample));
        let fresh: Vec<u32> = fresh.map(|open| open.sample).collect();
        over.log.retain(|sample| !fresh.contains(sample));
        over
    }

    /// A reader has ended.
    pub(super) fn leave(&mut self, number: u32) {
        for reader in self.readers.iter_mut().filter(|reader| reader.number == number) {
            reader.gone = true;
        }
    }

    /// What the reader opened here was nothing to go by: it goes on with what is known.
    pub(super) fn forget(&mut self, number: u32) {
        self.readers.retain(|reader| reader.number != number);
    }

    /// What all readers opened here was nothing to go by.
    pub(super) fn forget_all(&mut self) {
        self.readers.clear();
    }

    /// Whether all who opened something have ended.
    pub(super) fn is_left(&self) -> bool {
        !self.readers.is_empty() && self.readers.iter().all(|reader| reader.gone)
    }

    /// Whether nothing was opened.
    pub(super) fn is_empty(&self) -> bool {
        self.opens == 0
    }

    pub(super) fn readers(&self) -> &[Reader] {
        &self.readers
    }

    /// The first opens of each reader.
    pub(super) fn samples(&self) -> impl Iterator<Item = &[u32]> + Clone {
        self.readers.iter().map(|reader| reader.samples.as_slice())
    }

    /// Samples in the order of their first opens.
    pub(super) fn log(&self) -> &[u32] {
        &self.log
    }

    /// The log, cut where some readers had read their last before all others read their first. Loaders
    /// that are read in turn have workers of their own: one to train and one to validate.
    pub(super) fn turns(&self) -> Vec<&[u32]> {
        let sequence = self.sequence();
        let within = |reader: &Reader| {
            let first = reader.samples.first().and_then(|sample| sequence.place(*sample))?;
            Some((first, sequence.place(reader.last)?))
        };
        let mut all: Vec<(u32, u32)> = self.readers.iter().filter_map(within).collect();
        all.sort_unstable();
        let (mut turns, mut begin, mut end) = (Vec::new(), 0, 0);
        for (first, last) in all {
            if first > end && end > 0 {
                turns.push(&self.log[begin..first as usize]);
                begin = first as usize;
            }
            end = end.max(last);
        }
        turns.push(&self.log[begin..]);
        turns
    }

    /// Number of opens.
    pub(super) fn opens(&self) -> u32 {
        self.opens
    }

    /// Number of opens whose bytes were asked for.
    pub(super) fn exact(&self) -> u32 {
        self.exact
    }

    /// Whether enough is known of each reader, or after a while of most, to look for its order.
    pub(super) fn is_ripe(&self) -> bool {
        let each = self.readers.iter().filter(|reader| !reader.gone).all(|r| r.samples.len() >= 4);
        let known: usize = self.readers.iter().map(|reader| reader.samples.len()).sum();
        self.opens >= 8 && each || self.opens >= 128 && known >= 4 * self.readers.len()
    }

    /// Milliseconds that so many further opens will take as it goes.
    pub(super) fn milliseconds(&self, opens: u32) -> u64 {
        let took = self.last_ms.saturating_sub(self.began_ms);
        took.saturating_mul(u64::from(opens)) / u64::from(self.opens.max(1))
    }

    /// The order in which the samples were first opened.
    pub(super) fn sequence(&self) -> Arc<Sequence> {
        Arc::new(Sequence::new(self.log.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        attempt: &mut Attempt,
        reader: u32,
        samples: impl IntoIterator<Item = u32>,
    ) -> Option<Attempt> {
        samples.into_iter().filter_map(|sample| attempt.note(0, reader, sample, true)).last()
    }

    #[test]
    fn an_epoch_ends_when_samples_are_read_again() {
        let mut attempt = Attempt::default();
        assert!(read(&mut attempt, 1, 0..100).is_none());
        assert!(read(&mut attempt, 2, 100..200).is_none());
        let over = read(&mut attempt, 1, (40..60).rev()).unwrap();
        assert_eq!(over.log().len(), 200);
        assert_eq!(
            attempt.samples().next(),
            Some(
                [59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40]
                    .as_slice()
            )
        );
    }

    #[test]
    fn an_epoch_ends_when_all_its_workers_have_left() {
        let mut attempt = Attempt::default();
        read(&mut attempt, 1, 0..10);
        read(&mut attempt, 2, 10..20);
        attempt.leave(1);
        assert!(read(&mut attempt, 2, 20..22).is_none());
        attempt.leave(2);
        assert!(read(&mut attempt, 3, [500]).is_some());
        assert_eq!((attempt.opens(), attempt.readers().len()), (1, 1));
    }

    #[test]
    fn new_workers_are_of_the_new_epoch_whole() {
        let mut attempt = Attempt::default();
        read(&mut attempt, 1, 0..50);
        // The first two had been missed in the old epoch.
        let over = read(&mut attempt, 2, [900, 901].into_iter().chain(0..8)).unwrap();
        assert_eq!(over.log().len(), 50);
        assert_eq!(attempt.readers()[0].samples, [900, 901, 0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn of_many_readers_the_first_are_followed() {
        let mut attempt = Attempt::default();
        for sample in 0..1_280 {
            assert!(attempt.note(0, sample % 128, sample, true).is_none());
        }
        assert_eq!(attempt.readers().len(), READERS_MAX);
        assert!(attempt.samples().all(|samples| samples.len() == 10));
        attempt.leave(5);
        attempt.note(0, 100, 5_000, true);
        let kept: Vec<u32> = attempt.readers().iter().map(|reader| reader.number).collect();
        assert!(kept.contains(&100) && !kept.contains(&5), "{kept:?}");
    }

    #[test]
    fn loaders_that_are_read_in_turn_are_told_apart_by_their_workers() {
        let mut attempt = Attempt::default();
        for sample in 0..80 {
            attempt.note(0, sample % 4, sample, true);
        }
        assert_eq!(attempt.turns(), [&(0..80).collect::<Vec<u32>>()]);
        for sample in 80..100 {
            attempt.note(0, 4 + sample % 2, sample, true);
        }
        assert_eq!(
            attempt.turns(),
            [&(0..80).collect::<Vec<u32>>()[..], &(80..100).collect::<Vec<u32>>()]
        );
        attempt.note(0, 2, 100, true);
        assert_eq!(attempt.turns().len(), 1, "one of the first goes on");
    }

    #[test]
    fn a_few_repeats_are_no_new_epoch() {
        let mut attempt = Attempt::default();
        for sample in 0..1_000 {
            assert!(attempt.note(0, 1, sample, true).is_none());
            if sample % 10 == 9 {
                assert!(attempt.note(0, 1, sample - 9, true).is_none());
            }
        }
        assert!(attempt.repeats);
    }
}

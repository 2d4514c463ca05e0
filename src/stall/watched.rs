//! What was seen of one worker.

use super::{Lane, Looks, State};

/// A first batch that takes longer, in seconds, is measured well enough by looks that are less frequent.
const FIRST_BATCH_MAX: f64 = 5.0;

/// What the kernel has counted for a worker since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Seconds on a processor, and seconds waiting for one.
    pub run_s: f64,
    pub queued_s: f64,
    /// Bytes read and written, pipes and caches included. `None` if that may not be known.
    pub bytes: Option<(u64, u64)>,
}

/// Sums what is seen of one worker. Times are seconds of one clock.
#[derive(Clone, Debug)]
pub struct Watched {
    /// When it started, or when it was seen first.
    pub since: f64,
    /// When it was seen last.
    pub until: f64,
    pub looks: Looks,
    pub lane: Lane,
    is_whole: bool,
    first: Counters,
    last: Counters,
    first_read: Option<f64>,
    /// The bytes that it wrote to hand its first batch over.
    per_batch: Option<u64>,
    /// Whether its counters have been read.
    is_counted: bool,
    /// The bytes that it had written at the last look.
    written: u64,
    /// Whether it has used no processor between the last two readings of its counters.
    stands_still: bool,
}

impl Watched {
    /// A worker that is seen first at `now` and started at `born`. `counted`: what it had done by then, unless all of it is
    /// to count.
    pub fn new(born: f64, now: f64, counted: Option<Counters>) -> Self {
        let since = if counted.is_some() { now } else { born };
        let first = counted.unwrap_or_default();
        let written = first.bytes.map_or(0, |(_, written)| written);
        Watched {
            since,
            until: since,
            looks: Looks::default(),
            lane: Lane::default(),
            is_whole: counted.is_none(),
            first,
            last: first,
            first_read: None,
            per_batch: None,
            is_counted: counted.is_some(),
            written,
            stands_still: false,
        }
    }

    /// Its next epoch begins. Returns what was seen in the last one.
    pub fn begin_again(&mut self) -> Watched {
        let before = self.clone();
        self.since = self.until;
        self.looks = Looks::default();
        self.lane = Lane::default();
        self.is_whole = true;
        self.first = self.last;
        // It has started long ago.
        self.first_read = Some(self.since);
        before
    }

    /// A look has found it in a state.
    pub fn look(&mut self, now: f64, state: State) {
        let seconds = (now - self.until).max(0.0);
        self.looks.add(state, seconds);
        self.lane.add(state, seconds);
        self.until = now;
    }

    /// Its counters have been read. A worker that has handed its first batch over writes a few times at once, so the bytes
    /// of a batch are known when it pauses.
    pub fn count(&mut self, now: f64, counters: Counters) {
        self.is_counted = true;
        self.stands_still = self.last.run_s >= counters.run_s;
        self.last = counters;
        let Some((read, written)) = counters.bytes else { return };
        if self.first_read.is_none() && read > self.first.bytes.map_or(0, |(read, _)| read) {
            self.first_read = Some(now);
        }
        let before = std::mem::replace(&mut self.written, written);
        let since = written - self.first.bytes.map_or(0, |(_, written)| written).min(written);
        if self.per_batch.is_none() && since > 0 && written == before {
            self.per_batch = Some(since);
        }
    }

    /// Whether it was seen from its start.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Seconds in which it was looked at.
    pub fn seconds(&self) -> f64 {
        self.until - self.since
    }

    /// Whether it has handed a batch over, or a part of one.
    pub fn has_written(&self) -> bool {
        self.bytes().is_some_and(|(_, written)| written > 0)
    }

    /// Whether it is new and has not handed its first batch over.
    pub fn makes_its_first_batch(&self) -> bool {
        self.per_batch.is_none() && self.is_whole() && self.seconds() < FIRST_BATCH_MAX
    }

    /// Whether it has used no processor between the last two readings of its counters.
    pub fn stands_still(&self) -> bool {
        self.stands_still
    }

    pub fn run_s(&self) -> f64 {
        (self.last.run_s - self.first.run_s).max(0.0)
    }

    pub fn queued_s(&self) -> f64 {
        (self.last.queued_s - self.first.queued_s).max(0.0)
    }

    /// Seconds from its start to the first byte that it reads. 0 if its start was not seen.
    pub fn starting_s(&self) -> f64 {
        let first_read = self.first_read.filter(|_| self.is_whole());
        first_read.map_or(0.0, |read| read - self.since)
    }

    /// Bytes read and written since it is watched. `None` if that may not be known.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        if !self.is_counted {
            return Some((0, 0));
        }
        let ((read, written), first) = (self.last.bytes?, self.first.bytes.unwrap_or_default());
        Some((read.saturating_sub(first.0), written.saturating_sub(first.1)))
    }

    /// The bytes that it writes for a batch.
    pub fn per_batch(&self) -> Option<u64> {
        self.per_batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(run_s: f64, read: u64, written: u64) -> Counters {
        Counters { run_s, queued_s: 0.0, bytes: Some((read, written)) }
    }

    #[test]
    fn a_look_stands_for_the_time_since_the_last_one() {
        let mut worker = Watched::new(10.0, 10.5, None);
        worker.look(10.5, State::Runs);
        worker.look(10.75, State::Fetches);
        worker.look(11.0, State::Fetches);
        assert_eq!((worker.looks.runs, worker.looks.fetches), (0.5, 0.5));
        assert_eq!((worker.since, worker.until), (10.0, 11.0));
    }

    #[test]
    fn what_a_batch_takes_is_known_when_the_worker_has_written_the_first_one() {
        let mut worker = Watched::new(0.0, 0.0, None);
        for (now, read, written) in [(0.1, 0, 0), (0.2, 100, 0), (0.3, 200, 4), (0.4, 250, 580)] {
            worker.count(now, counters(0.0, read, written));
            assert_eq!(worker.per_batch(), None, "{now}");
        }
        worker.count(0.5, counters(0.0, 300, 580));
        worker.count(0.6, counters(0.0, 400, 1159));
        assert_eq!((worker.per_batch(), worker.starting_s()), (Some(580), 0.2));
        assert_eq!(worker.bytes(), Some((400, 1159)));
    }

    #[test]
    fn a_worker_that_is_kept_has_several_epochs() {
        let mut worker = Watched::new(0.0, 0.0, None);
        worker.look(1.0, State::Fetches);
        for (now, read, written) in [(0.9, 100, 580), (1.0, 150, 580)] {
            worker.count(now, counters(0.5, read, written));
        }
        let before = worker.begin_again();
        assert_eq!(
            (before.bytes(), before.run_s(), before.seconds()),
            (Some((150, 580)), 0.5, 1.0)
        );
        assert_eq!((worker.bytes(), worker.run_s(), worker.seconds()), (Some((0, 0)), 0.0, 0.0));
        worker.look(3.0, State::Runs);
        worker.count(3.0, counters(1.5, 400, 1740));
        assert_eq!((worker.bytes(), worker.run_s()), (Some((250, 1160)), 1.0));
        assert_eq!((worker.looks.fetches, worker.looks.runs), (0.0, 2.0));
        assert_eq!((worker.per_batch(), worker.starting_s()), (Some(580), 0.0));
        assert!(worker.is_whole() && !worker.makes_its_first_batch());
    }

    #[test]
    fn what_a_worker_did_before_it_was_seen_does_not_count() {
        let mut worker = Watched::new(0.0, 7.0, Some(counters(5.0, 1000, 90)));
        worker.count(8.0, counters(5.5, 1200, 90));
        assert_eq!((worker.since, worker.run_s(), worker.starting_s()), (7.0, 0.5, 0.0));
        assert_eq!((worker.bytes(), worker.per_batch()), (Some((200, 0)), None));
    }
}

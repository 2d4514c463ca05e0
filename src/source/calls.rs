//! Calls of one kind: how many are under way, and how many the source serves best.
//!
//! No call waits here. Who makes many calls keeps to [`Calls::at_once`]. These are scans and sweeps, and sources that
//! make many requests of their own. Calls for readers do not keep to it. If a directory is read for a reader, its names
//! count. A single name that is looked up does not count.
//!
//! A call that has been under way for [`HELD_UP`] may hang, and does not count against the limit. Otherwise a part of
//! the source that hangs would stop all others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::prompt::is_prompt;
use crate::limiter::{Answer, Limiter};
use crate::sync::Mutex;

/// From then on a call under way does not count against the limit.
pub const HELD_UP: Duration = Duration::from_secs(2);

/// If names are asked for one after the other, the first call is for so many of them, and later ones are for as many
/// as take about this time. The limit is found from many answers, and a call that takes long is one that hangs.
const NAMES_OF_FIRST_CALL: usize = 8;
const CALL_S: f64 = 0.1;

/// Above this multiple of the limit, it is exceeded.
const EXCEEDED: f64 = 1.5;

/// Calls under way.
#[derive(Default)]
pub struct UnderWay {
    /// When each began, by its number. Later ones have higher numbers.
    pub began: BTreeMap<u64, Instant>,
    begun: u64,
    /// How many of them were held up when that was counted last.
    held_up: u32,
}

impl UnderWay {
    /// A call begins, and has this number.
    pub fn begin(&mut self, at: Instant) -> u64 {
        let number = self.begun;
        self.begun += 1;
        self.began.insert(number, at);
        number
    }

    pub fn end(&mut self, number: u64) {
        self.began.remove(&number);
    }

    pub fn count(&self) -> u32 {
        self.began.len() as u32
    }

    pub fn held_up(&self) -> u32 {
        self.held_up
    }

    /// Those that count against the limit.
    pub fn counted(&self) -> u32 {
        self.count().saturating_sub(self.held_up)
    }

    /// Counts those that are held up. Returns whether that is another number than before.
    pub fn count_held_up(&mut self) -> bool {
        let held_up = self.began.values().take_while(|began| began.elapsed() >= HELD_UP).count();
        let before = std::mem::replace(&mut self.held_up, held_up as u32);
        before != self.held_up
    }
}

struct State {
    limiter: Limiter,
    under_way: UnderWay,
    /// Seconds for one name, of late; none if nothing was answered yet.
    name_s: Option<f64>,
}

impl State {
    /// Whether clearly more calls are under way than the limit allows: calls for readers, or for the first names of a
    /// directory that is listed. Their answers say little about the limit.
    fn is_exceeded(&self) -> bool {
        f64::from(self.under_way.counted()) > EXCEEDED * f64::from(self.limiter.limit())
    }
}

/// The calls of one kind.
pub struct Calls {
    started: Instant,
    state: Mutex<State>,
}

/// A call under way.
pub struct Call<'a> {
    calls: &'a Calls,
    number: u64,
    began: Instant,
}

impl Calls {
    pub fn new(limiter: Limiter) -> Self {
        let state = State { limiter, under_way: UnderWay::default(), name_s: None };
        Calls { started: Instant::now(), state: Mutex::new(state) }
    }

    pub fn begin(&self) -> Call<'_> {
        let began = Instant::now();
        let number = self.state.lock().under_way.begin(began);
        Call { calls: self, number, began }
    }

    /// How many the source serves best at once.
    pub fn limit(&self) -> u32 {
        self.state.lock().limiter.limit()
    }

    /// How many may be under way: those that are held up do not count.
    pub fn at_once(&self) -> u32 {
        let mut state = self.state.lock();
        state.under_way.count_held_up();
        let limit = state.limiter.limit();
        // If most calls take that long, it is how the source is.
        limit.saturating_add(state.under_way.held_up().min(limit))
    }

    /// How many names one call is to be for.
    pub fn names_of_a_call(&self) -> usize {
        let name_s = self.state.lock().name_s;
        // A quotient beyond all numbers is the largest one.
        name_s.map_or(NAMES_OF_FIRST_CALL, |name_s| ((CALL_S / name_s) as usize).max(1))
    }
}

impl Call<'_> {
    /// The source has answered about so many names. It took so many requests, one after the other.
    pub fn answered(self, names: usize, requests: usize) {
        let latency = self.began.elapsed();
        let mut state = self.calls.state.lock();
        let name_s = latency.as_secs_f64() / names.max(1) as f64;
        state.name_s = Some(state.name_s.map_or(name_s, |before| (before + name_s) / 2.0));
        state.under_way.count_held_up();
        if is_prompt(latency, names) || state.is_exceeded() {
            return;
        }
        let answer = Answer {
            at_us: self.calls.started.elapsed().as_micros() as u64,
            latency_us: latency.as_micros() as u64,
            bytes: names as u64,
            in_flight: state.under_way.counted(),
            requests: requests as u32,
        };
        state.limiter.answered(&answer);
    }

    /// The source has said that it is overloaded.
    pub fn overloaded(self) {
        let mut state = self.calls.state.lock();
        let at_us = self.calls.started.elapsed().as_micros() as u64;
        state.limiter.overloaded(at_us);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.calls.state.lock().under_way.end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Manners;

    fn calls() -> Calls {
        Calls::new(Limiter::of_metadata(128, Manners::Fair))
    }

    fn long_ago() -> Instant {
        Instant::now().checked_sub(HELD_UP).unwrap()
    }

    #[test]
    fn a_call_that_hangs_leaves_its_place_to_another() {
        let calls = calls();
        let (hangs, other) = (calls.begin(), calls.begin());
        let began = |call: &Call, at| calls.state.lock().under_way.began.insert(call.number, at);
        // Longer than any machine stands still.
        let later = Instant::now() + Duration::from_secs(3600);
        began(&hangs, later);
        began(&other, later);
        assert_eq!(calls.at_once(), 16);
        began(&hangs, long_ago());
        assert_eq!((calls.at_once(), calls.limit()), (17, 16));
        assert_eq!(calls.state.lock().under_way.counted(), 1);
        drop((hangs, other));
        assert_eq!(calls.at_once(), 16);
        assert_eq!(calls.state.lock().under_way.count(), 0);
    }

    #[test]
    fn a_slow_source_is_asked_for_few_names_in_a_call_and_memory_for_all() {
        let calls = calls();
        assert_eq!(calls.names_of_a_call(), NAMES_OF_FIRST_CALL);
        let mut slow = calls.begin();
        slow.began = long_ago();
        slow.answered(4, 4);
        assert_eq!(calls.names_of_a_call(), 1);
        calls.state.lock().name_s = Some(0.0);
        assert_eq!(calls.names_of_a_call(), usize::MAX);
    }

    #[test]
    fn what_others_ask_for_beyond_the_limit_says_nothing_about_it() {
        let answer = |others: usize| {
            let calls = calls();
            let _others: Vec<_> = (0..others).map(|_| calls.begin()).collect();
            let mut slow = calls.begin();
            // The first answer over a long link raises the limit.
            slow.began = long_ago();
            slow.answered(1, 1);
            calls.limit()
        };
        assert_eq!([answer(15), answer(24)], [32, 16]);
    }

    #[test]
    fn what_comes_from_memory_says_nothing_about_the_source() {
        let calls = calls();
        // So many names that no machine is too slow.
        (0..1000).for_each(|_| calls.begin().answered(100_000_000, 100_000_000));
        assert_eq!((calls.limit(), calls.state.lock().limiter.rate()), (16, 0.0));
    }
}

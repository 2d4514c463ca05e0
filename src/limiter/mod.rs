//! How much is asked of a source at once, by how it answers.
//!
//! The shell times each read of the source and tells a [`Meter`]. The [`Limiter`] in it finds how many reads may be
//! under way. The planner hears of it as [`FetchLimits`], together with the bytes that have to be staged ahead so
//! that this number of fetches can be under way, and so that the slowest ones are in time.

mod cap;
mod concurrency;
mod hedges;
mod tail;
#[cfg(test)]
mod tests;

pub use cap::RateCap;
pub use concurrency::Limiter;
pub use hedges::Hedges;
use tail::Tail;

use crate::config::Manners;

/// The window holds this multiple of the fetches under way: blocks that have arrived wait for their reads there.
const AHEAD: u64 = 2;

/// A fetch as slow as the tail is in time if blocks are staged for this multiple of its latency.
const LEAD: f64 = 2.0;

/// Answers over which the mean size of an answer is smoothed.
const SMOOTHED: f64 = 64.0;

/// Limits that differ by less than one in this number of what the planner knows are not worth an event.
const WORTH_TELLING: u64 = 8;

/// A latency beyond an hour counts as an hour.
pub const LATENCY_US_MAX: u64 = 3_600_000_000;

/// One answer of the source to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When it came, in microseconds of a clock that never goes back.
    pub at_us: u64,
    pub latency_us: u64,
    pub bytes: u64,
    /// Reads under way when it came, with its own.
    pub in_flight: u32,
}

/// What the answers of the source say about fetching ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchLimits {
    /// Fetches from the source that may be under way at once. With 0, none begins for now.
    pub fetches: u32,
    /// Bytes that have to be staged ahead so that this number can be under way.
    pub ahead_bytes: u64,
    /// Bytes that have to be staged ahead so that a fetch as slow as one in a thousand is in time.
    pub lead_bytes: u64,
}

impl FetchLimits {
    /// The mean bytes of a fetch.
    pub fn mean_bytes(&self) -> u64 {
        self.ahead_bytes / AHEAD / u64::from(self.fetches.max(1))
    }
}

/// Takes the answers of a source to reads, and finds its limits.
#[derive(Debug)]
pub struct Meter {
    limiter: Limiter,
    tail: Tail,
    /// Mean bytes of an answer.
    mean_bytes: f64,
    told: FetchLimits,
}

impl Meter {
    /// A meter that never asks for more than `most` fetches at once.
    pub fn new(most: u32, manners: Manners) -> Self {
        let limiter = Limiter::new(most, manners);
        let told = FetchLimits { fetches: limiter.limit(), ..FetchLimits::default() };
        Meter { limiter, tail: Tail::default(), mean_bytes: 0.0, told }
    }

    /// The limits that were told last.
    pub fn limits(&self) -> FetchLimits {
        self.told
    }

    /// Bytes a second that the source has given of late.
    pub fn rate(&self) -> f64 {
        self.limiter.rate()
    }

    /// The source has answered. Returns the limits if they have changed clearly.
    pub fn answered(&mut self, answer: &Answer) -> Option<FetchLimits> {
        let weight = if self.mean_bytes == 0.0 { 1.0 } else { 1.0 / SMOOTHED };
        self.mean_bytes += (answer.bytes as f64 - self.mean_bytes) * weight;
        self.tail.add(answer);
        self.limiter.answered(answer);
        self.changed()
    }

    /// The source has said that it is overloaded. Returns the limits if they have changed clearly.
    pub fn overloaded(&mut self, at_us: u64) -> Option<FetchLimits> {
        self.limiter.overloaded(at_us);
        self.changed()
    }

    fn changed(&mut self) -> Option<FetchLimits> {
        let fetches = self.limiter.limit();
        let lead_s = LEAD * self.tail.latency_us() as f64 / 1e6;
        let found = FetchLimits {
            fetches,
            ahead_bytes: AHEAD * (f64::from(fetches) * self.mean_bytes) as u64,
            lead_bytes: (self.rate() * lead_s) as u64,
        };
        let differs = |a: u64, b: u64| a.abs_diff(b) * WORTH_TELLING > b;
        let changed = found.fetches != self.told.fetches
            || differs(found.ahead_bytes, self.told.ahead_bytes)
            || differs(found.lead_bytes, self.told.lead_bytes);
        self.told = if changed { found } else { self.told };
        changed.then_some(found)
    }
}

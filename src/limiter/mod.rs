//! How much is asked of a source at once, by how it answers.
//!
//! The shell times each read of the source and tells a [`Meter`]. The [`Limiter`] in it finds how many reads may be
//! under way. The planner hears of it as [`FetchLimits`], together with the bytes that have to be staged ahead so
//! that this number of fetches can be under way, and so that the slowest ones are in time.
//!
//! Two more limiters find how many listings and how many calls for attributes may be under way ([`MetadataLimits`]).
//! They differ from reads and from each other by orders of magnitude, and are answered by other servers.

mod cap;
mod concurrency;
mod hedges;
mod line;
mod tail;
#[cfg(test)]
mod tests;

use crate::ids::BLOCK_BYTES;
pub use cap::RateCap;
pub use concurrency::Limiter;
pub use hedges::Hedges;
use line::Line;
use tail::Tail;

use crate::config::Manners;

/// The window holds this multiple of the fetches under way: blocks that have arrived wait for their reads there.
const AHEAD: u64 = 2;

/// A fetch as slow as the tail is in time if blocks are staged for this multiple of its latency.
const LEAD: f64 = 2.0;

/// As many fetches may be under way at least, however few of them have room in RAM.
const WITH_LITTLE_ROOM: u32 = 32;

/// Answers over which the mean size of an answer is smoothed.
const SMOOTHED: f64 = 64.0;

/// Limits that differ by less than one in this number of what the planner knows are not worth an event.
const WORTH_TELLING: u64 = 8;

/// So many listings, and so many calls for attributes, are under way before anything is known.
const START_OF_METADATA: u32 = 16;

/// A latency beyond an hour counts as an hour.
pub const LATENCY_US_MAX: u64 = 3_600_000_000;

/// One answer of the source: to a read, a listing, or a call for attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When it came, in microseconds of a clock that never goes back.
    pub at_us: u64,
    pub latency_us: u64,
    /// Of a listing and of a call for attributes: the number of names.
    pub bytes: u64,
    /// Calls of its kind under way when it came, with its own.
    pub in_flight: u32,
    /// How many requests, one after the other, it took.
    pub requests: u32,
}

/// How many calls for names and attributes a source serves best at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataLimits {
    /// Directories that are listed.
    pub lists: u32,
    /// Calls for the attributes of names.
    pub stats: u32,
}

impl Default for MetadataLimits {
    fn default() -> Self {
        MetadataLimits { lists: START_OF_METADATA, stats: START_OF_METADATA }
    }
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
    /// The most fetches at once, bytes of the largest window, and the most fetches that were last found to have room
    /// there.
    most: u32,
    room: u64,
    bound: u32,
    tail: Tail,
    /// Mean bytes of an answer, at most those of a block.
    mean_bytes: f64,
    /// Microseconds of answers, by their bytes.
    growth: Line,
    told: FetchLimits,
}

impl Meter {
    /// A meter that never asks for more than `most` fetches at once.
    pub fn new(most: u32, manners: Manners) -> Self {
        let limiter = Limiter::new(most, manners);
        let told = FetchLimits { fetches: limiter.limit(), ..FetchLimits::default() };
        let (tail, growth, room) = (Tail::default(), Line::default(), u64::MAX);
        Meter { limiter, most, room, bound: most, tail, mean_bytes: 0.0, growth, told }
    }

    /// The same if the window has at most so many bytes. Once RAM keeps all that it has room for, more fetches than have
    /// room in the window are never under way, and the limiter would not learn that fewer are enough.
    pub fn within(self, room: u64) -> Self {
        Meter { room, ..self }
    }

    /// The limits that were told last.
    pub fn limits(&self) -> FetchLimits {
        self.told
    }

    /// Seconds by which a read takes longer for each byte. `None` if that cannot be told from the reads so far.
    pub fn seconds_per_byte(&self) -> Option<f64> {
        self.growth.slope().map(|us| us / 1e6)
    }

    /// Bytes a second that the source has given of late.
    pub fn rate(&self) -> f64 {
        self.limiter.rate()
    }

    /// The source has answered. Returns the limits if they have changed clearly.
    pub fn answered(&mut self, answer: &Answer) -> Option<FetchLimits> {
        let weight = if self.mean_bytes == 0.0 { 1.0 } else { 1.0 / SMOOTHED };
        // The window holds blocks. Longer requests bring blocks that are kept.
        let bytes = answer.bytes.min(BLOCK_BYTES) as f64;
        self.mean_bytes += (bytes - self.mean_bytes) * weight;
        self.tail.add(answer);
        self.growth.add(answer.bytes as f64, answer.latency_us as f64);
        let with_room = (self.room / AHEAD) as f64 / self.mean_bytes.max(1.0);
        let bound = (with_room as u32).max(WITH_LITTLE_ROOM).min(self.most);
        if u64::from(bound.abs_diff(self.bound)) * WORTH_TELLING > u64::from(self.bound) {
            self.bound = bound;
            self.limiter.bound(bound, answer.at_us);
        }
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

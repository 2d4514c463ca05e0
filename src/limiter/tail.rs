//! The slowest answers of the last while.

use hdrhistogram::Histogram;

use super::{Answer, LATENCY_US_MAX};

/// The share of answers that are faster than the tail.
const QUANTILE: f64 = 0.999;

/// Answers between two looks at the tail.
const LOOK_AFTER: u64 = 1000;

/// How long answers count at least: a tail is rare by its nature.
const PERIOD_US: u64 = 30_000_000;

/// Latencies of two periods: the present one, and the one before it.
#[derive(Debug)]
pub(super) struct Tail {
    /// `None` if there is no memory.
    present: Option<Histogram<u32>>,
    before: Option<Histogram<u32>>,
    began_us: u64,
    latency_us: u64,
}

impl Default for Tail {
    fn default() -> Self {
        // Two digits: a latency within one in a hundred.
        let histogram = || Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).ok();
        Tail { present: histogram(), before: histogram(), began_us: 0, latency_us: 0 }
    }
}

impl Tail {
    pub(super) fn add(&mut self, answer: &Answer) {
        let (Some(present), Some(before)) = (&mut self.present, &mut self.before) else { return };
        present.saturating_record(answer.latency_us);
        if !present.len().is_multiple_of(LOOK_AFTER) {
            return;
        }
        let tail = |histogram: &Histogram<u32>| histogram.value_at_quantile(QUANTILE);
        self.latency_us = tail(present).max(tail(before));
        if answer.at_us.saturating_sub(self.began_us) > PERIOD_US {
            std::mem::swap(present, before);
            present.reset();
            self.began_us = answer.at_us;
        }
    }

    /// The latency that one answer in a thousand exceeds; 0 as long as too few answers are known.
    pub(super) fn latency_us(&self) -> u64 {
        self.latency_us
    }
}

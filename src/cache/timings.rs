//! How long things of one kind took since the start.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::limiter::LATENCY_US_MAX;
use crate::sync::Mutex;

/// Times since the start, in microseconds, each within one in a hundred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latencies {
    pub count: u64,
    /// The sum of all.
    pub total_us: u64,
    /// What half of them did not exceed, and 90, 99 and 99.9 of 100.
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

impl Latencies {
    /// The mean, in seconds. `None` if there were none.
    pub fn mean_s(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total_us as f64 / 1e6 / self.count as f64)
    }
}

struct Taken {
    histogram: Histogram<u64>,
    total: Duration,
}

/// Collects times. `None` if there is no memory.
pub struct Timings(Option<Mutex<Taken>>);

impl Default for Timings {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).ok();
        Timings(histogram.map(|histogram| Mutex::new(Taken { histogram, total: Duration::ZERO })))
    }
}

impl Timings {
    /// Something took so long.
    pub fn note(&self, took: Duration) {
        self.note_all(took, 1);
    }

    /// So many things took so long each.
    pub(super) fn note_all(&self, each: Duration, count: u32) {
        if let Some(taken) = &self.0 {
            let mut taken = taken.lock();
            let us = u64::try_from(each.as_micros()).unwrap_or(u64::MAX);
            taken.histogram.saturating_record_n(us, u64::from(count));
            taken.total = taken.total.saturating_add(each.saturating_mul(count));
        }
    }

    pub fn latencies(&self) -> Latencies {
        let Some(taken) = &self.0 else { return Latencies::default() };
        let taken = taken.lock();
        let histogram = &taken.histogram;
        Latencies {
            count: histogram.len(),
            total_us: u64::try_from(taken.total.as_micros()).unwrap_or(u64::MAX),
            p50_us: histogram.value_at_quantile(0.5),
            p90_us: histogram.value_at_quantile(0.9),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }

    /// The time that a share of them did not exceed, if there are at least so many.
    pub(super) fn at(&self, share: f64, at_least: u64) -> Option<Duration> {
        let histogram = &self.0.as_ref()?.lock().histogram;
        let tells = histogram.len() >= at_least;
        tells.then(|| Duration::from_micros(histogram.value_at_quantile(share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_and_summed_with_their_tail() {
        let timings = Timings::default();
        assert_eq!(timings.latencies(), Latencies::default());
        timings.note_all(Duration::from_micros(100), 98);
        timings.note(Duration::from_millis(20));
        assert_eq!(timings.at(0.5, 100), None, "too few");
        timings.note(Duration::from_secs(9000));
        let Latencies { count, total_us, p50_us, p90_us, p99_us, p999_us, max_us } =
            timings.latencies();
        assert_eq!((count, total_us), (100, 98 * 100 + 20_000 + 9_000_000_000));
        assert_eq!((p50_us, p90_us), (100, 100));
        assert!((20_000..20_200).contains(&p99_us), "{p99_us}");
        assert!((3_600_000_000..3_700_000_000).contains(&p999_us), "an hour is the longest");
        assert_eq!(p999_us, max_us);
        assert_eq!(timings.at(0.5, 100), Some(Duration::from_micros(100)));
    }
}

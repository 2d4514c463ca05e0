//! What a mount gave over the time of an epoch, at a limited number of moments.

use serde::{Deserialize, Serialize};

use super::Meters;

/// Moments that are kept. If there would be more, every second one goes.
const POINTS_MAX: usize = 128;

/// Seconds from one moment to the next one at first.
const EVERY: f64 = 0.2;

/// What the mount had given at a moment, since the start of the epoch. Times are seconds, the others bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    pub at: f64,
    pub source_bytes: u64,
    pub disk_bytes: u64,
    pub member_bytes: u64,
    /// What is staged ahead of the readers at this moment.
    pub staged_bytes: u64,
    /// In how many seconds they will have read that. `None` if it is not known.
    pub lead_s: Option<f64>,
}

/// The moments of an epoch, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    every: f64,
    points: Vec<Point>,
}

impl Default for Series {
    fn default() -> Self {
        Series { every: EVERY, points: Vec::new() }
    }
}

impl Series {
    /// At this time of the epoch, the mount has counted so much since its start.
    pub fn note(&mut self, at: f64, counted: &Meters) {
        if self.points.last().is_some_and(|last| at < last.at + self.every) {
            return;
        }
        if self.points.len() >= POINTS_MAX {
            let mut is_kept = false;
            self.points.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.every *= 2.0;
        }
        self.points.push(Point {
            at,
            source_bytes: counted.source_bytes,
            disk_bytes: counted.disk_bytes,
            member_bytes: counted.member_bytes,
            staged_bytes: counted.staged_bytes,
            lead_s: counted.lead_s,
        });
    }

    pub fn points(&self) -> &[Point] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_epoch_has_as_many_points_as_a_short_one() {
        let mut series = Series::default();
        for tick in 0..100_000_u64 {
            let counted = Meters { source_bytes: tick * 1000, ..Meters::default() };
            series.note(tick as f64 / 50.0, &counted);
        }
        let points = series.points();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&points.len()), "{}", points.len());
        assert_eq!(points[0], Point::default());
        let longest = points.windows(2).map(|pair| pair[1].at - pair[0].at).fold(0.0, f64::max);
        assert!(longest <= 2_000.0 / 31.0, "{longest}");
        let is_even = |point: &Point| (point.source_bytes as f64 - point.at * 50_000.0).abs() < 1.0;
        assert!(points.iter().all(is_even));
    }
}

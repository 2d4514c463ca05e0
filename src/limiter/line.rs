//! How the time of a read grows with its bytes.

/// A straight line through many points, by least squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Line {
    count: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

/// With fewer points the line tells nothing.
const COUNT_MIN: f64 = 100.0;

impl Line {
    pub(super) fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// By how much `y` grows with `x`. `None` if there are few points, or all have nearly the same `x`.
    pub(super) fn slope(&self) -> Option<f64> {
        let (mean, spread) = (self.x / self.count, self.xx / self.count);
        let variance = spread - mean * mean;
        let tells = self.count >= COUNT_MIN && variance > spread * 1e-4;
        tells.then(|| (self.xy / self.count - mean * self.y / self.count) / variance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_found_beside_noise() {
        let mut line = Line::default();
        for i in 0..200 {
            assert!(line.slope().is_none() || i >= 100);
            let (x, noise) = (f64::from(i % 50) * 1000.0, f64::from(i * 7919 % 13) - 6.0);
            line.add(x, 5000.0 + 0.25 * x + noise);
        }
        assert!((line.slope().unwrap() - 0.25).abs() < 0.001, "{line:?}");
        let mut same = Line::default();
        (0..200).for_each(|_| same.add(110_000.0, 7.0));
        assert_eq!(same.slope(), None);
    }
}

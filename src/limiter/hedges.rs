//! How often a read that is late may be asked for a second time.
//!
//! Some answers of a store over a network come much later than most. A second request for the same bytes is mostly
//! answered sooner (Dean and Barroso, "The Tail at Scale", 2013). But if all of a store is slow, second requests make
//! it slower. So there is at most one for a hundred reads, and only a few of them at once.

/// Second requests for one read.
const SHARE: f64 = 0.01;

/// The most that are saved up.
const SAVED_MAX: f64 = 8.0;

/// The second requests that may be made.
#[derive(Debug, Default)]
pub struct Hedges {
    saved: f64,
    taken: u64,
}

impl Hedges {
    /// A read was answered.
    pub fn answered(&mut self) {
        self.saved = (self.saved + SHARE).min(SAVED_MAX);
    }

    /// Takes one of them, if there is one.
    pub fn take(&mut self) -> bool {
        let may = self.saved >= 1.0;
        if may {
            self.saved -= 1.0;
            self.taken += 1;
        }
        may
    }

    /// How many were taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_for_a_hundred_reads_and_few_at_once() {
        let mut hedges = Hedges::default();
        assert!(!hedges.take());
        let mut taken_after = |reads: u32| {
            (0..reads).for_each(|_| hedges.answered());
            std::iter::from_fn(|| hedges.take().then_some(())).count()
        };
        assert_eq!([taken_after(99), taken_after(2), taken_after(205)], [0, 1, 2]);
        assert_eq!(taken_after(1_000_000), SAVED_MAX as usize);
    }
}

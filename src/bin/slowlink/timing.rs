//! When bytes leave, and when they arrive. Pure: the time is an argument.
//!
//! A direction of the link is a queue that all connections share. [`RateClock`] knows when it is through with
//! all bytes that it was given so far. New bytes leave one transfer after that.
//!
//! What has left travels on its own. [`Arrivals`] adds the delay and jitter. Jitter alone would let bytes
//! overtake those before them. TCP hands bytes to a reader in order only, so bytes of a connection arrive no
//! earlier than those before them.

use std::num::NonZeroU64;
use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// A time since the start of the link, or a length of time, in nanoseconds.
pub(crate) type Nanos = u64;

/// A duration in nanoseconds. One of centuries is cut.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// The queue of one direction of the link.
#[derive(Debug)]
pub(crate) struct RateClock {
    /// Bytes a second, if there is a limit.
    rate: Option<NonZeroU64>,
    busy_until: Nanos,
}

impl RateClock {
    /// An idle direction.
    pub(crate) fn new(rate: Option<NonZeroU64>) -> Self {
        Self { rate, busy_until: 0 }
    }

    /// When the last of some bytes leaves, if they join the queue now.
    pub(crate) fn depart(&mut self, now: Nanos, bytes: usize) -> Nanos {
        let transfer = self.rate.map_or(0, |rate| transfer_time(bytes, rate));
        self.busy_until = self.busy_until.max(now).saturating_add(transfer);
        self.busy_until
    }

    /// Forgets all bytes that wait.
    pub(crate) fn clear(&mut self) {
        self.busy_until = 0;
    }
}

/// How long bytes take at a rate. Rounded up, so that no number of small transfers exceeds the rate.
fn transfer_time(bytes: usize, rate: NonZeroU64) -> Nanos {
    let exact = (bytes as u128 * 1_000_000_000).div_ceil(u128::from(rate.get()));
    Nanos::try_from(exact).unwrap_or(Nanos::MAX)
}

/// The arrivals of one direction of a connection.
pub(crate) struct Arrivals {
    delay: Nanos,
    jitter: Nanos,
    chance: ChaCha8Rng,
    last: Nanos,
}

impl Arrivals {
    /// Each `stream` of a seed has its own chance.
    pub(crate) fn new(delay: Nanos, jitter: Nanos, seed: u64, stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&stream.to_le_bytes());
        Self { delay, jitter, chance: ChaCha8Rng::from_seed(key), last: 0 }
    }

    /// When bytes arrive that have left at a time. To be asked in the order of the bytes.
    pub(crate) fn arrive(&mut self, departed: Nanos) -> Nanos {
        let jitter = self.chance.random_range(0..=self.jitter);
        let alone = departed.saturating_add(self.delay).saturating_add(jitter);
        self.last = alone.max(self.last);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn clock(rate: u64) -> RateClock {
        RateClock::new(NonZeroU64::new(rate))
    }

    #[test]
    fn bytes_leave_one_after_the_other_at_the_rate() {
        let mut clock = clock(1000);
        assert_eq!(clock.depart(0, 500), SECOND / 2);
        assert_eq!(clock.depart(0, 500), SECOND);
        assert_eq!(clock.depart(SECOND / 2, 1000), 2 * SECOND);
        // Nothing waits for the end of a stream, but it leaves after the bytes.
        assert_eq!(clock.depart(SECOND, 0), 2 * SECOND);
    }

    #[test]
    fn idle_time_is_not_saved() {
        let mut clock = clock(1000);
        clock.depart(0, 1000);
        assert_eq!(clock.depart(10 * SECOND, 1000), 11 * SECOND);
        assert_eq!(clock.depart(10 * SECOND, 1000), 12 * SECOND);
    }

    #[test]
    fn a_cleared_queue_is_idle() {
        let mut clock = clock(1000);
        clock.depart(0, 5000);
        clock.clear();
        assert_eq!(clock.depart(SECOND, 1000), 2 * SECOND);
    }

    #[test]
    fn without_a_rate_bytes_leave_at_once() {
        let mut clock = clock(0);
        assert_eq!(clock.depart(7, usize::MAX), 7);
        assert_eq!(clock.depart(7, 1), 7);
    }

    #[test]
    fn small_transfers_do_not_exceed_the_rate() {
        let mut clock = clock(3 * SECOND);
        for _ in 1..9000 {
            clock.depart(0, 1);
        }
        assert!(clock.depart(0, 1) >= 3000);
    }

    #[test]
    fn times_beyond_all_bounds_are_cut() {
        let mut slow = clock(1);
        assert_eq!(slow.depart(0, usize::MAX), Nanos::MAX);
        assert_eq!(slow.depart(0, 1), Nanos::MAX);
        assert_eq!(Arrivals::new(Nanos::MAX, Nanos::MAX, 0, 0).arrive(9), Nanos::MAX);
        assert_eq!(nanos(Duration::MAX), Nanos::MAX);
    }

    #[test]
    fn without_jitter_the_delay_is_exact() {
        let mut arrivals = Arrivals::new(50, 0, 1, 1);
        assert_eq!([0, 1, 1, 9].map(|at| arrivals.arrive(at)), [50, 51, 51, 59]);
    }

    #[test]
    fn jitter_is_uniform_up_to_its_limit() {
        let mut arrivals = Arrivals::new(50, 99, 1, 1);
        // So far apart that none waits for the one before it.
        let late: Vec<Nanos> =
            (0..10_000).map(|nth| arrivals.arrive(nth * 1000) - nth * 1000 - 50).collect();
        assert_eq!((late.iter().min(), late.iter().max()), (Some(&0), Some(&99)));
        let mean = late.iter().sum::<Nanos>() as f64 / 10_000.0;
        assert!((mean - 49.5).abs() < 2.0, "{mean}");
    }

    #[test]
    fn nothing_overtakes() {
        let mut arrivals = Arrivals::new(50, 1000, 1, 1);
        let times: Vec<Nanos> = (0..1000).map(|at| arrivals.arrive(at)).collect();
        assert!(times.is_sorted());
        assert!(times.iter().zip(0..).all(|(time, at)| (at + 50..=at + 1050).contains(time)));
    }

    #[test]
    fn seed_and_stream_decide_the_jitter() {
        let times = |seed, stream| {
            let mut arrivals = Arrivals::new(0, SECOND, seed, stream);
            [0; 4].map(|_: u8| arrivals.arrive(0))
        };
        assert_eq!(times(1, 2), times(1, 2));
        assert_ne!(times(1, 2), times(2, 2));
        assert_ne!(times(1, 2), times(1, 1));
    }
}

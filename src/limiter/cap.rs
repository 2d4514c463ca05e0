//! A hard cap on the bytes a second that are asked of a source.

/// Bytes of this time may be asked for at once.
const BURST_US: u64 = 100_000;

/// After a pause, bytes of this time may be asked for in addition: a job that waits for something else now and then still has
/// its rate on average.
const IDLE_US: u64 = 500_000;

/// Bytes are paid for with time. What was asked for in advance is paid for before anything else is fetched ahead.
#[derive(Debug)]
pub struct RateCap {
    bytes_per_s: u64,
    /// When all bytes that were asked for are paid for, in microseconds of a clock that never goes back.
    paid_us: u64,
}

impl RateCap {
    /// A cap of this many bytes a second, which are not 0.
    pub fn new(bytes_per_s: u64) -> Self {
        RateCap { bytes_per_s, paid_us: 0 }
    }

    /// From now on the cap is this many bytes a second, which are not 0. Debts of before are paid at that rate, too.
    pub fn set_rate(&mut self, now_us: u64, bytes_per_s: u64) {
        let unpaid = u128::from(self.pause_us(now_us)) * u128::from(self.bytes_per_s);
        let pause_us = u64::try_from(unpaid / u128::from(bytes_per_s.max(1))).unwrap_or(u64::MAX);
        if pause_us > 0 {
            self.paid_us = now_us.saturating_add(pause_us);
        }
        self.bytes_per_s = bytes_per_s;
    }

    /// Bytes are asked for, whoever wants them.
    pub fn take(&mut self, now_us: u64, bytes: u64) {
        let cost_us = u128::from(bytes) * 1_000_000 / u128::from(self.bytes_per_s.max(1));
        let cost_us = u64::try_from(cost_us).unwrap_or(u64::MAX);
        self.paid_us = self.paid_us.max(now_us.saturating_sub(IDLE_US)).saturating_add(cost_us);
    }

    /// How many fetches of so many bytes keep the rate, if each takes so long.
    pub fn fetches(&self, mean_bytes: u64, latency_us: u64) -> u32 {
        let ahead_us = latency_us.saturating_mul(2).max(BURST_US);
        let bytes = u128::from(self.bytes_per_s) * u128::from(ahead_us) / 1_000_000;
        let fetches = bytes / u128::from(mean_bytes.max(1));
        u32::try_from(fetches).unwrap_or(u32::MAX).max(1)
    }

    /// For how many microseconds nothing may be fetched ahead.
    pub fn pause_us(&self, now_us: u64) -> u64 {
        self.paid_us.saturating_sub(now_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fetches as many bytes ahead as the cap allows, and returns how many in a time.
    fn fetched(cap: &mut RateCap, demand: u64, until_us: u64) -> u64 {
        let (mut now_us, mut bytes) = (BURST_US, 0);
        while now_us < until_us {
            cap.take(now_us, demand);
            if cap.pause_us(now_us) == 0 {
                cap.take(now_us, 100_000);
                bytes += 100_000;
            } else {
                now_us += 1000;
            }
        }
        bytes
    }

    #[test]
    fn no_more_is_fetched_than_the_cap_allows_however_large_the_parts_are() {
        for rate in [1_000_000, 50_000_000, 3_000_000_000] {
            let bytes = fetched(&mut RateCap::new(rate), 0, 10_000_000 + BURST_US);
            let share = bytes as f64 / (10.0 * rate as f64);
            assert!((0.99..=1.13).contains(&share), "{rate}: {share}");
        }
    }

    #[test]
    fn the_rate_can_be_changed() {
        let mut cap = RateCap::new(1_000_000);
        cap.take(0, 1_000_000);
        assert_eq!(cap.pause_us(0), 1_000_000);
        cap.set_rate(0, 10_000_000);
        assert_eq!(cap.pause_us(0), 100_000, "what is left to pay");
        (0..5).for_each(|_| cap.take(1_000_000, 1_000_000));
        assert_eq!(cap.pause_us(1_000_000), 0, "half a second without a fetch is made up for");
        cap.take(1_000_000, 1_000_000);
        assert_eq!(cap.pause_us(1_000_000), 100_000);
        cap.set_rate(1_000_000, 1);
        assert_eq!(cap.pause_us(1_000_000), 1_000_000_000_000);
    }

    #[test]
    fn no_more_fetches_are_under_way_than_the_rate_needs() {
        let cap = RateCap::new(20_000_000);
        assert_eq!(cap.fetches(1 << 20, 1000), 1, "a burst of a tenth of a second");
        assert_eq!(cap.fetches(20_000, 100_000), 200, "twice rate times latency");
        assert_eq!(cap.fetches(0, u64::MAX), u32::MAX);
    }

    #[test]
    fn what_readers_wait_for_counts_and_never_overflows() {
        let mut cap = RateCap::new(1_000_000);
        assert!(fetched(&mut cap, 500, 10_000_000) < 6_000_000, "half of it goes to readers");
        cap.take(10_000_000, u64::MAX);
        cap.take(10_000_000, u64::MAX);
        assert!(cap.pause_us(10_000_000) > 0);
    }
}

//! Servers of one kind that serve in the order of arrival: the source's, or a machine's processors.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A number of servers. The last one is slower if the number is not whole.
pub(super) struct Pool {
    count: usize,
    /// When each server that was used is free.
    free_at: BinaryHeap<Reverse<u64>>,
    /// The speed of the slower one, and when it is free.
    slower: Option<(f64, u64)>,
}

/// A slower server than this is none.
const SPEED_MIN: f64 = 0.05;

impl Pool {
    pub(super) fn new(count: f64) -> Self {
        let speed = count.fract();
        let slower = (speed >= SPEED_MIN).then_some((speed, 0));
        let count = count as usize + usize::from(count < 1.0 && slower.is_none());
        Pool { count, free_at: BinaryHeap::new(), slower }
    }

    /// Serves for so many microseconds by the server that is done first. Returns when it is done.
    pub(super) fn serve(&mut self, now: u64, us: u64) -> u64 {
        let free_at = match self.free_at.peek() {
            _ if self.count == 0 => None,
            Some(Reverse(at)) if self.free_at.len() >= self.count => Some(now.max(*at)),
            _ => Some(now),
        };
        let done = free_at.map(|at| at + us);
        if let Some((speed, free_at)) = &mut self.slower {
            let slowly = now.max(*free_at) + (us as f64 / *speed) as u64;
            if done.is_none_or(|done| slowly < done) {
                *free_at = slowly;
                return slowly;
            }
        }
        let done = done.unwrap_or(now + us);
        if self.free_at.len() >= self.count {
            self.free_at.pop();
        }
        // Of a number that cannot be counted, all are free.
        if self.count < u32::MAX as usize {
            self.free_at.push(Reverse(done));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served<const N: usize>(count: f64, each: u64) -> [u64; N] {
        let mut pool = Pool::new(count);
        std::array::from_fn(|_| pool.serve(0, each))
    }

    #[test]
    fn whoever_comes_later_waits_for_a_server() {
        assert_eq!(served(2.0, 10), [10, 10, 20, 20, 30]);
        assert_eq!(served(f64::from(u32::MAX), 10), [10, 10, 10]);
    }

    #[test]
    fn half_a_server_takes_twice_as_long() {
        assert_eq!(served(1.5, 10), [10, 20, 20, 30, 40, 40]);
        assert_eq!(served(0.5, 10), [20, 40]);
        assert_eq!(served(0.0, 10), [10, 20], "there is one at least");
    }

    #[test]
    fn a_server_that_is_free_begins_at_once() {
        let mut pool = Pool::new(1.0);
        assert_eq!((pool.serve(0, 10), pool.serve(50, 10)), (10, 60));
    }
}

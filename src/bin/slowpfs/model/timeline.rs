//! The reservations of one server, or of the link.
//!
//! An operation gets its completion time when it arrives, but it reaches a server only after its latency. So
//! reservations are not made in the order in which they begin. A request with a long latency books time far
//! ahead, and later requests must be able to use the idle time before it. So a timeline keeps all busy
//! intervals, not only the last busy moment.

use super::Nanos;

/// Busy intervals from now on: sorted, disjoint, not touching.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    busy: Vec<(Nanos, Nanos)>,
}

impl Timeline {
    /// Drops intervals that are over at `now`. No later booking begins before them.
    pub(crate) fn prune(&mut self, now: Nanos) {
        let over = self.busy.partition_point(|&(_, end)| end <= now);
        if over > 0 {
            self.busy.drain(..over);
        }
    }

    /// The first moment at or after `at` from which the server is idle for `len`.
    pub(crate) fn fit(&self, at: Nanos, len: Nanos) -> Nanos {
        let mut start = at;
        for &(begin, end) in &self.busy {
            if end <= start {
                continue;
            }
            if start.saturating_add(len) <= begin {
                break;
            }
            start = end;
        }
        start
    }

    /// Uses `len` of idle time from `at` on, in pieces if necessary. Returns when that is done.
    ///
    /// The link does this: it never idles while a transfer waits, and booked transfers keep their times. If
    /// transfers reach it in the order of their booking, it is plain FIFO.
    pub(crate) fn fill(&mut self, at: Nanos, len: Nanos) -> Nanos {
        if len == 0 {
            return at;
        }
        let (mut left, mut cursor) = (len, at);
        for &(begin, end) in &self.busy {
            if end <= cursor {
                continue;
            }
            let idle = begin.saturating_sub(cursor);
            if idle >= left {
                break;
            }
            left -= idle;
            cursor = end;
        }
        let done = cursor.saturating_add(left);
        self.occupy(at, done);
        done
    }

    /// Marks all of `[start, end)` busy.
    pub(crate) fn occupy(&mut self, start: Nanos, end: Nanos) {
        if start >= end {
            return;
        }
        let first = self.busy.partition_point(|&(_, e)| e < start);
        let last = self.busy.partition_point(|&(b, _)| b <= end);
        let mut union = (start, end);
        if let (Some(low), Some(high)) = (self.busy.get(first), self.busy[..last].last())
            && first < last
        {
            union = (start.min(low.0), end.max(high.1));
        }
        self.busy.splice(first..last.max(first), [union]);
    }
}

//! How much page cache fits at this moment, while limits and everybody's use of memory change.
//!
//! A limit holds for processes and page cache together. What matters is what cannot be had back:
//! *taken* is the use of memory less the pages of files. Those pages can be given up at any time,
//! and belady's own are among them: they are in the use as well and cancel out, so the answer does
//! not depend on how much of the budget is filled. An eighth of each limit is kept in reserve.
//!
//! ```text
//! fits = least of (limit − limit/8 − taken), over each cgroup above the daemon and the machine
//! ```
//!
//! A budget that does not fit shrinks at once, to a sixteenth less than fits. It grows when it
//! could do so by a sixteenth, or to what is configured, for [`CALM_LOOKS`] looks in a row, to what
//! was possible at the worst of them. Between the two lies a band of an eighth in which it stays.

use super::resolve::RESERVED_PERCENT;
use super::units::{Bytes, share};

/// Looks in a row at which a larger budget must fit before it is taken.
const CALM_LOOKS: u32 = 10;

/// One limit and what is used of it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whose limit, in words.
    pub what: String,
    /// The limit.
    pub limit: u64,
    /// Bytes that cannot be had back: everything but the pages of files.
    pub taken: u64,
}

impl Reading {
    fn reserve(&self) -> u64 {
        share(RESERVED_PERCENT, self.limit)
    }

    /// Bytes of page cache that belady may have here in all.
    pub fn fits(&self) -> u64 {
        self.limit.saturating_sub(self.reserve()).saturating_sub(self.taken)
    }

    fn explain(&self) -> String {
        let human = |bytes| Bytes(bytes).human();
        format!(
            "{} has {}, of which processes take {} and {} are kept in reserve",
            self.what,
            human(self.limit),
            human(self.taken),
            human(self.reserve())
        )
    }
}

/// The budget of the RAM tier over time.
#[derive(Clone, Debug)]
pub struct Budget {
    configured: u64,
    present: u64,
    reduced: Option<String>,
    /// Looks in a row at which more would have fitted, and the least of it.
    calm: (u32, u64),
}

impl Budget {
    /// A budget of `present` bytes where `configured` are wanted.
    pub fn new(configured: u64, present: u64) -> Self {
        Budget { configured, present: present.min(configured), reduced: None, calm: (0, u64::MAX) }
    }

    /// Bytes that the tier may hold at this moment.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// Bytes that are wanted.
    pub fn configured(&self) -> u64 {
        self.configured
    }

    /// Why the budget is less than configured; none where it is not.
    pub fn reduced(&self) -> Option<&str> {
        self.reduced.as_deref().filter(|_| self.present < self.configured)
    }

    /// Takes a look at the limits. Says whether the budget has changed.
    pub fn look(&mut self, readings: &[Reading]) -> bool {
        let Some(tightest) = readings.iter().min_by_key(|reading| reading.fits()) else {
            return false;
        };
        let fits = tightest.fits();
        let before = self.present;
        let target = (fits - fits / 16).min(self.configured);
        let worth = target == self.configured || target >= before + before / 16;
        if fits < before {
            self.present = target;
            self.calm = (0, u64::MAX);
        } else if target > before && worth {
            self.calm = (self.calm.0 + 1, self.calm.1.min(target));
            if self.calm.0 == CALM_LOOKS {
                self.present = self.calm.1;
                self.calm = (0, u64::MAX);
            }
        } else {
            self.calm = (0, u64::MAX);
        }
        if self.present != before || self.reduced.is_none() {
            self.reduced = Some(tightest.explain());
        }
        self.present != before
    }
}

//! Computes how much page cache fits at this moment, while limits and the use of memory change, and how much
//! of a disk, by the same rules.
//!
//! A limit holds for processes and page cache together. *Taken* is the memory that cannot be given up: the
//! use of memory less the pages of files. belady's own pages are pages of files and cancel out, so the result
//! does not depend on how much of the budget is filled. An eighth of each limit is kept in reserve.
//!
//! ```text
//! fits = least of (limit − limit/8 − taken), over each cgroup above the daemon and the machine
//! ```
//!
//! For a disk, the limit is its size, *taken* is what others have there, and the reserve is seven eighths of
//! `cache.min-free`, with an eighth of slack.
//!
//! Bytes on their way are not page cache: they are in the memory of the daemon while they are fetched,
//! answered, pushed and stored. They may take half of what fits, but no more than is useful.
//!
//! The memory that the kernel needs for each file that it knows counts as well. It is not page cache, so it
//! is subtracted from the configured budget, in steps of a 64th: less is not worth a change.
//!
//! A budget that does not fit shrinks at once, to a sixteenth less than fits. It grows if it could grow by a
//! sixteenth, or to what is wanted, at [`LARGER_LOOKS`] looks in a row. It then grows to the least that was
//! possible at these looks. Between the two lies a band of an eighth in which the budget stays.

use super::resolve::RESERVED_PERCENT;
use super::units::{Bytes, share};

/// Looks in a row at which a larger budget must fit before it is taken.
const LARGER_LOOKS: u32 = 10;

/// The smallest step, in bytes, in which the kernel's nodes are subtracted from the budget.
const NODES_STEP_MIN: u64 = 8 << 20;

/// The most and the least bytes that may be on their way, whatever fits.
const MOVING_MAX: u64 = 256 << 20;
const MOVING_MIN: u64 = 4 << 20;

/// Bytes that may be on their way if memory allows, however small the RAM budget is.
const MOVING_ENOUGH: u64 = 32 << 20;

/// One limit and what is used of it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whose limit, in words.
    pub what: String,
    pub limit: u64,
    /// Bytes that cannot be given up: all but the pages of files; on a disk, the bytes of others.
    pub taken: u64,
    pub reserve: u64,
}

impl Reading {
    pub fn memory(what: impl Into<String>, limit: u64, taken: u64) -> Self {
        Reading { what: what.into(), limit, taken, reserve: share(RESERVED_PERCENT, limit) }
    }

    /// The limit of a store that takes `own` bytes of this memory, if its filesystem is in memory. The store
    /// and all that others take may have half of the limit.
    pub fn to_store(&self, own: u64) -> Self {
        let taken = self.taken.saturating_sub(own);
        Reading { what: self.what.clone(), limit: self.limit, taken, reserve: self.limit / 2 }
    }

    /// Bytes that belady may have here in all.
    pub fn fits(&self) -> u64 {
        self.limit.saturating_sub(self.reserve).saturating_sub(self.taken)
    }

    fn explain(&self) -> String {
        let human = |bytes| Bytes(bytes).human();
        format!(
            "{} has {}, of which others take {} and {} are kept in reserve",
            self.what,
            human(self.limit),
            human(self.taken),
            human(self.reserve)
        )
    }
}

#[derive(Clone, Debug)]
pub struct Budget {
    configured: u64,
    present: u64,
    reduced: Option<String>,
    /// Looks in a row at which more would have fitted, and the least of it.
    larger_looks: (u32, u64),
    /// Bytes that fitted at the last look, even beyond what is wanted.
    room: u64,
}

impl Budget {
    /// A budget of `present` bytes if `configured` bytes are wanted.
    pub fn new(configured: u64, present: u64) -> Self {
        let present = present.min(configured);
        Budget { configured, present, reduced: None, larger_looks: (0, u64::MAX), room: present }
    }

    pub fn present(&self) -> u64 {
        self.present
    }

    pub fn configured(&self) -> u64 {
        self.configured
    }

    /// The most bytes of a file that a user names, or of what users write: a quarter of what fitted at the
    /// last look. What is made of the bytes takes memory, too.
    pub fn for_a_file(&self) -> u64 {
        self.room / 4
    }

    /// The most bytes that may be on their way at this moment, if `moving` are at the last look.
    pub fn moving(&self, moving: u64) -> u64 {
        let worth = (self.configured / 2).clamp(MOVING_ENOUGH, MOVING_MAX);
        worth.min(self.room.saturating_add(moving) / 2).max(MOVING_MIN)
    }

    /// Why the budget is less than configured; `None` if it is not.
    pub fn reduced(&self) -> Option<&str> {
        self.reduced.as_deref().filter(|_| self.present < self.configured)
    }

    /// Bytes that are wanted while the kernel's nodes take `nodes` bytes. They are at least half of what is
    /// configured, since nothing can be read ahead without a budget. They are not raised for less than half a
    /// step.
    fn wanted(&self, nodes: u64) -> u64 {
        let step = (self.configured / 64).max(NODES_STEP_MIN);
        let less = |nodes: u64| self.configured.saturating_sub(nodes / step * step);
        let least = less(nodes.saturating_add(step / 2)).max(self.present).min(less(nodes));
        least.max(self.configured / 2)
    }

    /// Fits the budget to the limits, and to the bytes that the kernel takes for the files that it knows.
    /// Returns whether the budget has changed.
    pub fn fit(&mut self, readings: &[Reading], nodes: u64) -> bool {
        let wanted = self.wanted(nodes);
        let tightest = readings.iter().min_by_key(|reading| reading.fits());
        self.room = tightest.map_or(self.room, Reading::fits);
        let fits = tightest.map_or(self.present, Reading::fits).min(wanted);
        let before = self.present;
        // A budget keeps some distance from a limit that it reaches, but none from what is wanted.
        let with_slack = |limit: &Reading| match limit.fits() < before || before < wanted {
            true => limit.fits() - limit.fits() / 16,
            false => limit.fits(),
        };
        let target = tightest.map_or(fits, with_slack).min(wanted);
        let is_worth_it = target == wanted || target >= before + before / 16;
        let (looks, least) = self.larger_looks;
        self.larger_looks = (0, u64::MAX);
        if fits < before {
            self.present = target;
        } else if target > before && is_worth_it {
            if looks + 1 == LARGER_LOOKS {
                self.present = least.min(target);
            } else {
                self.larger_looks = (looks + 1, least.min(target));
            }
        }
        if self.present != before || self.reduced.is_none() {
            let of_nodes =
                || format!("the kernel takes {} for files it knows", Bytes(nodes).human());
            let limit = tightest.filter(|tightest| tightest.fits() <= wanted);
            self.reduced = match (limit, wanted < self.configured) {
                (Some(limit), _) => Some(limit.explain()),
                (None, true) => Some(of_nodes()),
                (None, false) => tightest.map(Reading::explain),
            };
        }
        self.present != before
    }
}

//! Handles loaders that open files long before they read them, as loaders do that map files.
//!
//! 1. If opens cause no requests, a task counts as done with a file when it is seen at another one. A loader
//!    that maps files looks up a thousand of them before it touches a page of the first.
//! 2. [`Event::Touched`](super::Event::Touched) shows this, if the file was left before, was in RAM then, and
//!    a new open would have been seen. The *lag* is the number of opens between leaving and touching. Files
//!    of several blocks show none: one that is kept open may be read at any place.
//! 3. Once a lag is known, a file counts as open and unread until it is touched or that many opens have
//!    followed. Its staged blocks stay as long as the window has room.
//! 4. If the window is narrower than the lag, it would drop blocks before they are read. Then nothing is
//!    staged for orders.
//! 5. The touches of a task are forgotten when it ends, and all touches when no task is left, since other
//!    loaders may come.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::ids::FileId;

/// Touches that show a lag. A few others come from lost pages, or from the kernel's read-ahead after the
/// reader has gone on.
const TOUCHES_MIN: u32 = 16;

/// Lags are counted by powers of two. A lag of `1 << LAGS` opens or more is not counted.
const LAGS: usize = 13;

/// Touches by the power of two of their lag.
type Touches = [u32; LAGS];

#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) task: u32,
    /// In ticks of the planner.
    pub(super) at: u64,
    /// Whether RAM had it, so that only a touch shows a later read.
    pub(super) there: bool,
}

#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Files that were left and not opened again. Each open looks here; a tree would be slower.
    left: HashMap<FileId, Left>,
    touches: Touches,
    lag: u64,
    /// Touches by running task: the one that had left the file or, if it has ended, the one that touched it.
    shown_by: BTreeMap<u32, Touches>,
    /// Files that are held open, oldest first, and the ticks at which they were left.
    held: VecDeque<(FileId, u64)>,
    touching: BTreeSet<FileId>,
}

impl Mapped {
    /// The most opens between leaving a file and reading it; 0 if no lag is known.
    pub(super) fn lag(&self) -> u64 {
        self.lag
    }

    fn find_lag(&mut self) {
        let mut touches = 0;
        let enough = |power: &usize| {
            touches += self.touches[*power];
            touches >= TOUCHES_MIN
        };
        self.lag = (0..LAGS).rev().find(enough).map_or(0, |power| 1 << power);
    }

    pub(super) fn opened(&mut self, file: FileId) {
        self.left.remove(&file);
    }

    pub(super) fn leaves(&mut self, file: FileId, left: Left) {
        self.left.insert(file, left);
        if self.left.len() > 2 << LAGS {
            self.left.retain(|_, other| other.at + (1 << LAGS) > left.at);
        }
    }

    pub(super) fn left_at(&self, file: FileId) -> Option<u64> {
        self.left.get(&file).map(|left| left.at)
    }

    pub(super) fn take_left(&mut self, file: FileId) -> Option<Left> {
        let known = self.lag() > 0;
        self.left.remove(&file).filter(|left| left.there || known)
    }

    /// Counts a touch `lag` opens after a task left the file.
    pub(super) fn count_touch(&mut self, task: u32, lag: u64) {
        if lag < 1 << LAGS {
            let power = lag.max(1).next_power_of_two().trailing_zeros() as usize;
            let power = power.min(LAGS - 1);
            self.touches[power] += 1;
            self.shown_by.entry(task).or_default()[power] += 1;
            self.find_lag();
        }
    }

    /// The file counts as open until its task leaves it. Returns whether it was held.
    pub(super) fn hold_until_touched(&mut self, file: FileId) -> bool {
        self.touching.insert(file);
        let held = self.held.iter().position(|(held, _)| *held == file);
        held.is_some_and(|at| self.held.remove(at).is_some())
    }

    /// A task leaves a file. Returns whether the file was being touched.
    pub(super) fn stop_touching(&mut self, file: FileId) -> bool {
        self.touching.remove(&file)
    }

    pub(super) fn hold(&mut self, file: FileId, at: u64) {
        self.held.push_back((file, at));
    }

    /// Lets go of the file held longest, if that is longer than the lag.
    pub(super) fn let_oldest_go(&mut self, now: u64) -> Option<FileId> {
        let &(file, at) = self.held.front()?;
        if self.lag > 0 && at + self.lag >= now {
            return None;
        }
        self.held.pop_front();
        Some(file)
    }

    /// Lets go of the file held longest of those that match.
    pub(super) fn release(&mut self, matches: impl Fn(FileId) -> bool) -> Option<FileId> {
        let at = self.held.iter().position(|(file, _)| matches(*file))?;
        self.held.remove(at).map(|(file, _)| file)
    }

    /// Forgets everything. Returns the files that were held.
    pub(super) fn forget(&mut self) -> impl Iterator<Item = FileId> + use<> {
        std::mem::take(self).held.into_iter().map(|(file, _)| file)
    }

    pub(super) fn ended(&mut self, task: u32) {
        let shown = self.shown_by.remove(&task).unwrap_or_default();
        for (touches, shown) in self.touches.iter_mut().zip(shown) {
            *touches -= shown;
        }
        self.find_lag();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches a file at the tick `now`. Returns whether it had been left.
    fn touch(mapped: &mut Mapped, file: u32, now: u64) -> bool {
        let left = mapped.take_left(FileId(file));
        left.iter().for_each(|left| mapped.count_touch(left.task, now - left.at));
        left.is_some()
    }

    /// Two tasks have left a thousand files.
    fn mapped() -> Mapped {
        let mut mapped = Mapped::default();
        for file in 0..1_000 {
            let left = Left { task: file % 2, at: u64::from(file), there: true };
            mapped.leaves(FileId(file), left);
        }
        mapped
    }

    #[test]
    fn a_lag_is_what_many_touches_show() {
        let mut mapped = mapped();
        for file in 0..15 {
            assert!(touch(&mut mapped, file, 1_000));
        }
        assert_eq!(mapped.lag(), 0);
        for file in 500..520 {
            assert!(touch(&mut mapped, file, u64::from(file) + 1));
        }
        assert_eq!(mapped.lag(), 1, "of the others there are too few");
        assert!(touch(&mut mapped, 15, 1_000));
        assert_eq!(mapped.lag(), 1 << 10);
        assert!(!touch(&mut mapped, 15, 1_001), "it was not opened again");
        mapped.opened(FileId(16));
        assert!(!touch(&mut mapped, 16, 1_001), "it was");
    }

    #[test]
    fn what_a_task_s_files_have_shown_goes_with_it() {
        let mut mapped = mapped();
        for file in 0..40 {
            touch(&mut mapped, file, 1_000);
        }
        for (task, lag) in [(2, 1 << 10), (0, 1 << 10), (0, 1 << 10), (1, 0)] {
            mapped.ended(task);
            assert_eq!(mapped.lag(), lag, "{task} has ended");
        }
    }
}

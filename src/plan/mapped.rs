//! Loaders that open files long before they read them, as those do that map them.
//!
//! 1. Where an open is no request, a task is done with a file, as far as can be seen, when it is seen at
//!    another one. Who maps files looks a thousand of them up before he touches a page of the first.
//! 2. That shows in reads of files that had been there, of which each open would have been seen, and
//!    that were left before: [`Event::Touched`](super::Event::Touched). How many opens later they come
//!    is the *lag* of the loader.
//! 3. From then on a file counts as open, and as not read, until it is touched or so many opens have
//!    followed. What is staged for it stays as long as the window has room.
//! 4. A window that is narrower than the lag would drop what is staged before it is read. Then nothing
//!    is staged for orders.
//! 5. When all tasks have ended it is forgotten: others may come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Planner;
use super::event::Action;
use super::residency::RAM;
use crate::ids::FileId;

/// So many touches show a lag: a few pages get lost, or are read ahead by the kernel, when their reader
/// has gone on.
const TOUCHES_MIN: u32 = 16;

/// Lags are told apart by powers of two up to this one, which is the longest.
const LAGS: usize = 13;

/// A file that was left.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// The planner's tick then.
    at: u64,
    /// Whether RAM had it, so that nothing was to be read of it but by touching it.
    there: bool,
}

/// What was opened and may not have been read.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Files that were left and not opened again.
    left: BTreeMap<FileId, Left>,
    /// By the power of two, touches that came so many opens after.
    touches: [u32; LAGS],
    /// Files that are held open though they were left, the first first, and at which tick.
    held: VecDeque<(FileId, u64)>,
    /// Files that are being touched.
    touching: BTreeSet<FileId>,
}

impl Mapped {
    /// How many opens later a file is read at most; 0 as long as nothing is known of that.
    pub(super) fn lag(&self) -> u64 {
        let mut touches = 0;
        let enough = |power: &usize| {
            touches += self.touches[*power];
            touches >= TOUCHES_MIN
        };
        (0..LAGS).rev().find(enough).map_or(0, |power| 1 << power)
    }

    /// A file is opened.
    pub(super) fn opened(&mut self, file: FileId) {
        self.left.remove(&file);
    }

    /// A file is left at a tick, and RAM has it or not.
    fn leaves(&mut self, file: FileId, at: u64, there: bool) {
        self.left.insert(file, Left { at, there });
        if self.left.len() > 2 << LAGS {
            self.left.retain(|_, left| left.at + (1 << LAGS) > at);
        }
    }

    /// A file is touched at a tick. Says whether it was opened before, and left.
    fn touched(&mut self, file: FileId, now: u64) -> bool {
        let known = self.lag() > 0;
        let Some(left) = self.left.remove(&file).filter(|left| left.there || known) else {
            return false;
        };
        let lag = (now - left.at).max(1);
        if left.there && lag < 1 << LAGS {
            let power = lag.next_power_of_two().trailing_zeros() as usize;
            self.touches[power.min(LAGS - 1)] += 1;
        }
        true
    }
}

impl Planner {
    /// A task reads pages of a file that the kernel does not have. It may have opened it long ago.
    pub(super) fn touched(&mut self, task: u32, file: FileId, actions: &mut Vec<Action>) {
        if self.seen_at.get(&task) == Some(&file) {
            return;
        }
        let since = self.mapped.left.get(&file).map_or(0, |left| left.at);
        let block = self.layout.blocks_of(file).next();
        let seen = block.is_some_and(|block| !self.sight().may_miss(block, since));
        if !seen || !self.mapped.touched(file, self.ticks) {
            return self.seen(task, file, actions);
        }
        // It is open as long as the task is at it.
        self.hold(file);
        self.mapped.touching.insert(file);
        if let Some(at) = self.mapped.held.iter().position(|(held, _)| *held == file) {
            self.mapped.held.remove(at);
            self.read_at_last(file, actions);
        }
        if let Some(before) = self.seen_at.insert(task, file) {
            self.leave(before, actions);
        }
    }

    /// A task is done with a file, or seems to be.
    pub(super) fn leave(&mut self, file: FileId, actions: &mut Vec<Action>) {
        if self.mapped.touching.remove(&file) {
            return self.closed(file, actions);
        }
        if let Some(block) = self.layout.blocks_of(file).next() {
            let there = self.residency.is_in(block, RAM) || self.residency.is_fetching(block);
            self.mapped.leaves(file, self.ticks, there);
        }
        if self.mapped.lag() == 0 || self.seen_at.is_empty() {
            return self.closed(file, actions);
        }
        self.mapped.held.push_back((file, self.ticks));
    }

    /// A file that was held open is read, or will not be any more.
    fn read_at_last(&mut self, file: FileId, actions: &mut Vec<Action>) {
        if let Some(block) = self.layout.blocks_of(file).next()
            && !self.parts.has(file)
        {
            self.count(block);
        }
        self.closed(file, actions);
    }

    /// Lets go of files that are held open for too long.
    pub(super) fn let_go(&mut self, actions: &mut Vec<Action>) {
        if self.seen_at.is_empty() {
            // Others may come.
            for (file, _) in std::mem::take(&mut self.mapped).held {
                self.read_at_last(file, actions);
            }
            return;
        }
        let lag = self.mapped.lag();
        while let Some(&(file, at)) = self.mapped.held.front()
            && at + lag < self.ticks
        {
            self.mapped.held.pop_front();
            self.read_at_last(file, actions);
        }
        let is_staged = |planner: &Self, file: FileId| {
            planner.layout.blocks_of(file).any(|block| planner.residency.is_staged(block))
        };
        while self.residency.staged > self.window.bytes()
            && let Some(at) = self.mapped.held.iter().position(|(file, _)| is_staged(self, *file))
            && let Some((file, _)) = self.mapped.held.remove(at)
        {
            self.read_at_last(file, actions);
        }
    }

    /// Whether what is staged for orders would be dropped before it is read.
    pub(super) fn lags_too_far(&self) -> bool {
        self.mapped.lag().saturating_mul(self.layout.mean_pages_bytes()) > self.window.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_what_many_touches_show() {
        let mut mapped = Mapped::default();
        for file in (0..1_000).map(FileId) {
            mapped.leaves(file, u64::from(file.0), true);
        }
        for file in (0..15).map(FileId) {
            assert!(mapped.touched(file, 1_000));
        }
        assert_eq!(mapped.lag(), 0);
        for file in (500..520).map(FileId) {
            assert!(mapped.touched(file, u64::from(file.0) + 1));
        }
        assert_eq!(mapped.lag(), 1, "of the others there are too few");
        assert!(mapped.touched(FileId(15), 1_000));
        assert_eq!(mapped.lag(), 1 << 10);
        assert!(!mapped.touched(FileId(15), 1_001), "it was not opened again");
        mapped.opened(FileId(16));
        assert!(!mapped.touched(FileId(16), 1_001), "it was");
    }
}

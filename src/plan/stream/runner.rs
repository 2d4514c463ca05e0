//! The tasks that read the current epoch, and what comes near as they go on.

use super::{SPAN_MIN, Stream};
use crate::ids::BlockId;
use crate::plan::visibility::Sight;

/// How many runners are told apart: more workers than that stage in plain order.
const RUNNERS_MAX: usize = 64;

/// From how many reads on that were seen, for each worker, there is no other worker: of what is
/// trusted only probes are seen, so that many more may have been read.
const SIGHTED_MIN: u64 = 32;

/// How many positions past a runner are checked: far enough that what is missing can still be
/// fetched, near enough that little gets lost after.
const CHECK_AHEAD: u32 = 128;

/// From how many sightings on it counts how far a runner is from others: who goes through the files
/// by names is taken for a reader of the order for some.
const SPREAD_MIN: u32 = 16;

/// The most that runners are said to be apart.
const SPREAD_MAX: u32 = 1 << 14;

/// Where a task stands, and up to where it has been staged ahead of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runner {
    pub(super) task: u32,
    pub(super) last: u32,
    pub(super) cursor: u32,
    sightings: u32,
}

impl Stream {
    /// A task stands at a position of the current epoch.
    pub(super) fn run(&mut self, task: u32, position: u32) {
        self.foremost = self.foremost.max(position + 1);
        let ahead = position + 1..position + 1 + CHECK_AHEAD;
        let into_next = ahead.end.saturating_sub(self.current.len());
        self.current.check(ahead, &mut self.due);
        self.next.check(0..into_next, &mut self.due);
        while self.lit < position.saturating_add(self.outlook()) {
            let block = self.block_at(self.lit);
            self.near.extend(block);
            self.lit += 1;
        }
        if let Some(runner) = self.runners.iter_mut().find(|runner| runner.task == task) {
            // Within a batch the runner goes on; at the next one it starts again behind it.
            runner.cursor = runner.cursor.max(position + 1);
            self.current.pass_repeats(runner.last, &mut self.passed);
            runner.last = position;
            runner.sightings += 1;
            return self.note_spread(position);
        }
        if self.runners.len() == RUNNERS_MAX {
            let last = self.runners.iter().enumerate().min_by_key(|(_, runner)| runner.last);
            if let Some((index, _)) = last {
                self.runners.swap_remove(index);
            }
        }
        self.workers = self.workers.max(self.runners.len() as u32 + 1);
        self.runners.push(Runner { task, last: position, cursor: position + 1, sightings: 1 });
    }

    /// A runner is at a position: how far it is from the hindmost.
    fn note_spread(&mut self, position: u32) {
        let known = self.runners.iter().filter(|runner| runner.sightings >= SPREAD_MIN);
        let hindmost = known.map(|runner| runner.last).min().unwrap_or(position);
        let spread = position.saturating_sub(hindmost).min(SPREAD_MAX);
        self.spread = self.spread.max(spread);
    }

    /// Whether the current epoch has been read so little that its readers may still ask for all that they
    /// may ask for at once.
    pub(in crate::plan) fn is_starting(&self) -> bool {
        self.foremost < SPAN_MIN.min(self.current.len() / 2)
    }

    /// Whether a task reads the current epoch.
    pub(in crate::plan) fn is_read(&self) -> bool {
        !self.runners.is_empty()
    }

    /// The most tasks that have read an epoch at once.
    pub(in crate::plan) fn workers(&self) -> u32 {
        self.workers
    }

    /// How far past the lowest open position a read is still believed. Half as far past it that one
    /// is given up: more than tasks of one job have been seen to run ahead of each other.
    pub(super) fn span(&self) -> u32 {
        SPAN_MIN.max(4 * self.spread)
    }

    /// How many positions past the foremost runner, and of an epoch's start, probes are tracked: more than
    /// are read before that has been done by workers that are far apart. Among few probes whoever
    /// goes through the files by names would seem to go forward in the order.
    pub(super) fn outlook(&self) -> u32 {
        SPAN_MIN.max(2 * self.spread)
    }

    /// Whether the block is read soon, as far as is known.
    pub(in crate::plan) fn is_near(&self, block: BlockId) -> bool {
        if let Some(position) = self.current.next(block) {
            return position < self.lit;
        }
        let lit = self.lit.checked_sub(self.current.len());
        lit.is_some_and(|lit| self.next.next(block).is_some_and(|position| position < lit))
    }

    /// The current epoch has just begun.
    pub(super) fn restart(&mut self) {
        self.runners.clear();
        self.foremost = 0;
        self.lit = self.outlook();
        let next = self.next.start(self.lit.saturating_sub(self.current.len()) as usize);
        let near = self.current.start(self.lit as usize).iter().chain(next);
        self.near.extend(near.copied().map(BlockId));
    }

    /// Adds the blocks that have come near since the last call: what is read soon, or early in an epoch.
    pub(in crate::plan) fn take_near(&mut self, near: &mut Vec<BlockId>) {
        near.append(&mut self.near);
    }

    /// The position that all workers have come by, if that can be told.
    fn passed_by_all(&self) -> Option<u32> {
        let all = self.runners.len() as u32 >= self.workers
            && self.sighted >= SIGHTED_MIN * (u64::from(self.workers) + 1);
        // Where blocks repeat, a worker may have been taken to stand where another one reads.
        let known = all && self.is_permutation() && !self.diverged;
        self.runners.iter().map(|runner| runner.last).min().filter(|_| known)
    }

    /// What all workers have come by and may have been read without being seen has been.
    pub(super) fn pass_behind(&mut self, sight: Sight<'_>) {
        if let Some(position) = self.passed_by_all() {
            let unseen = |block| sight.may_miss(block, self.began);
            self.current.pass_lowest(position, unseen, &mut self.passed);
        }
    }

    /// Gives up the lowest open position if all workers have come by: it has been read without
    /// being seen, or never will be. Says whether it was.
    pub(in crate::plan) fn give_up_behind(&mut self) -> bool {
        let low = self.current.low();
        if self.passed_by_all().is_none_or(|position| position <= low) {
            return false;
        }
        self.current.give_up_lowest(&mut self.over);
        true
    }

    /// A task has ended.
    pub(in crate::plan) fn leave(&mut self, task: u32) {
        self.runners.retain(|runner| runner.task != task);
    }

    /// The blocks that have become due to be checked since the last call.
    pub(in crate::plan) fn take_due(&mut self) -> impl Iterator<Item = BlockId> + '_ {
        self.due.drain(..)
    }
}

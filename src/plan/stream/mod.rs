//! Where one reader stands in its order.
//!
//! 1. A stream holds its current epoch and the next one, indexed ([`Epoch`]).
//! 2. Each open is mapped to the nearest position not yet reached, within a span that covers what
//!    a loader's workers run ahead of each other. The next epoch is looked at only when the
//!    current one is all but over, since a loader finishes an epoch before it starts another.
//!    Whether the open counts as the read of that position is for its [task](super::task).
//! 3. An open that no such position explains, or that no trusted task made, is a *stray*, unless
//!    another stream expects it. Strays that follow each other as the first positions of an epoch do
//!    mean that the job started there (again): the stream is anchored anew. Nothing but strays means
//!    that the order is wrong: the stream has *diverged* and predicts nothing until it is anchored
//!    again. For that only strays count that read for sure: a name may be looked up by whoever lists
//!    a directory.
//! 4. Blocks are staged in the order in which they are expected to be read. A loader's workers read
//!    batches at the same time, each from its own position on; so the next block to stage is the
//!    one that is nearest ahead of the *runner* behind it.
//! 5. Opens of trusted files are not seen. Such positions count as reached when the next one that
//!    can be seen is, or the epoch is over. Of a sample that is read several times in a row only the
//!    first open may be seen: the others count as reached when its reader has gone on.
//! 6. As a runner goes on, what it reads next is due to be checked: it may have been staged long
//!    ago.
//! 7. Blocks whose reads are over, or will not come, are left in `over` for the planner to settle.

mod anchor;
mod runner;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::BlockId;
use crate::order::{EpochIter, Order, SampleTable};
use crate::plan::epoch::{Epoch, Head};
use crate::plan::layout::Layout;
use crate::plan::visibility::Sight;
use anchor::Stray;
use runner::Runner;

/// How far past the lowest open position a read is still believed at least: more than 8 workers with
/// two batches of 256 each run ahead.
const SPAN_MIN: u32 = 4096;

/// How many of an epoch's first opens are seen, whatever is kept: enough to notice that it starts.
const HEAD_SEEN: u32 = 32;

/// The end of an order is near when so many positions of the last epoch are left, or one of so
/// many.
const ENDING_MIN: u32 = 64;
const ENDING_PART: u32 = 16;

/// How far ahead of a task a sample that repeats is looked for: more than 64 workers with batches of one.
const AGAIN_MAX: u32 = 64;

/// A stream's order and the place of its reader in it.
pub(in crate::plan) struct Stream {
    order: Arc<Order>,
    /// The epochs after the next one.
    epochs: EpochIter,
    number: u32,
    current: Epoch,
    next: Epoch,
    first_head: Head,
    /// Where each task that reads the current epoch stands, and up to where it has been staged.
    runners: Vec<Runner>,
    /// The most that there were in an epoch.
    workers: u32,
    /// Past the last position of the current epoch that was seen to be read.
    foremost: u32,
    /// Up to where the current and the next epoch have been staged, runners aside.
    cursors: (u32, u32),
    /// The candidate: whether it is in the next epoch, and its position.
    chosen: (bool, u32),
    strays: VecDeque<Stray>,
    /// Strays that read, since the last open that was where the order has it.
    astray: u32,
    diverged: bool,
    /// Positions of all epochs before the current one.
    base: u64,
    /// Blocks whose staged reads are over.
    over: Vec<BlockId>,
    /// Blocks whose reads were not seen.
    passed: Vec<BlockId>,
    /// Blocks to be checked before they are read.
    due: Vec<BlockId>,
    /// How far apart they have been at most, in positions.
    spread: u32,
    /// Up to which position of the current epoch, and beyond it of the next, probes are tracked.
    lit: u32,
    /// Blocks that have come near.
    near: Vec<BlockId>,
    matched: u64,
    strayed: u64,
    /// Whether its epochs are numbered as its reader has them.
    told: bool,
    /// Whether another epoch has begun since that was asked last.
    turned: bool,
    /// Of those matched, how many were seen.
    sighted: u64,
    /// Planner ticks between two opens of this stream, smoothed.
    pace: f64,
    last_tick: u64,
    /// The planner's tick at which the current epoch began.
    began: u64,
}

/// What is told about a stream in `status`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StreamStatus {
    /// The order in plain words.
    pub order: String,
    /// Number of the current epoch, from 0.
    pub epoch: u32,
    /// Lowest position of the current epoch not yet read.
    pub position: u32,
    /// Positions of the current epoch.
    pub length: u32,
    /// Reads to come that are staged: in RAM or on their way there.
    pub ahead: u64,
    /// Whether what is read is still what the order says.
    pub following: bool,
    /// Opens that were where the order had them.
    pub opens_predicted: u64,
    /// Of these, how many were seen; the others were of what the kernel opens by itself.
    pub opens_seen: u64,
    /// Opens of the order's samples that were not.
    pub opens_strayed: u64,
}

fn expand(order: &Order, epochs: &mut EpochIter, layout: &Layout) -> Epoch {
    let samples = order.samples();
    let ids = epochs.next().unwrap_or_default();
    let mut blocks = Vec::with_capacity(ids.len());
    for &id in ids.iter() {
        let sample = samples.get(id);
        let length = sample.length.unwrap_or(u64::MAX);
        blocks.extend(layout.blocks_in(sample.file, sample.offset, length).map(|block| block.0));
    }
    Epoch::new(blocks, layout.blocks())
}

impl Stream {
    pub(in crate::plan) fn new(order: Arc<Order>, layout: &Layout) -> Self {
        let mut epochs = order.epochs(0);
        let current = expand(&order, &mut epochs, layout);
        let next = expand(&order, &mut epochs, layout);
        Stream {
            epochs,
            first_head: current.head().clone(),
            number: 0,
            current,
            next,
            order,
            runners: Vec::new(),
            workers: 0,
            foremost: 0,
            cursors: (0, 0),
            chosen: (false, 0),
            strays: VecDeque::new(),
            astray: 0,
            diverged: false,
            base: 0,
            over: Vec::new(),
            passed: Vec::new(),
            due: Vec::new(),
            spread: 0,
            lit: SPAN_MIN,
            near: Vec::new(),
            matched: 0,
            strayed: 0,
            told: true,
            turned: false,
            sighted: 0,
            pace: 1.0,
            last_tick: 0,
            began: 0,
        }
    }

    /// With what has been counted of the stream that it takes the place of. Its workers are still
    /// there, though none of them has been seen in this order yet.
    pub(in crate::plan) fn counted_on(self, before: Option<&Stream>) -> Self {
        let told = false;
        let Some(&Stream { matched, strayed, sighted, workers, spread, .. }) = before else {
            return Stream { told, ..self };
        };
        Stream { matched, strayed, sighted, workers, spread, told, ..self }
    }

    /// Whether it was told, and its reader is followed.
    pub(in crate::plan) fn is_told(&self) -> bool {
        self.told && !self.diverged
    }

    /// The number of the epoch, where it has begun since the last call.
    pub(in crate::plan) fn take_turn(&mut self) -> Option<u32> {
        std::mem::take(&mut self.turned).then_some(self.number)
    }

    pub(in crate::plan) fn status(&self) -> StreamStatus {
        let ahead = u64::from(self.current.ahead()) + u64::from(self.next.ahead());
        StreamStatus {
            order: self.order.describe().to_string(),
            epoch: self.number,
            position: self.current.low(),
            length: self.current.len(),
            ahead: if self.diverged { 0 } else { ahead },
            following: !self.diverged,
            opens_predicted: self.matched,
            opens_seen: self.sighted,
            opens_strayed: self.strayed,
        }
    }

    /// Whether what is known of the order is nearly over: what is read next may be anything.
    pub(in crate::plan) fn is_ending(&self) -> bool {
        let near = ENDING_MIN.max(self.current.len() / ENDING_PART);
        self.order.ends() && self.next.len() == 0 && self.current.left() <= near
    }

    pub(in crate::plan) fn is_permutation(&self) -> bool {
        self.order.is_permutation()
    }

    /// Whether its samples are ranges of files.
    pub(in crate::plan) fn is_ranged(&self) -> bool {
        matches!(self.order.samples(), SampleTable::Ranges(_))
    }

    pub(in crate::plan) fn is_following(&self) -> bool {
        !self.diverged
    }

    /// The position, counted over all epochs, at which a read of the block now would be believed,
    /// and how far past the lowest open position that is.
    pub(in crate::plan) fn sighting(&self, block: BlockId, sight: Sight<'_>) -> Option<(u64, u32)> {
        if self.diverged {
            return None;
        }
        let low = self.current.low();
        let open = [self.current.assumed(block), self.current.next(block)].into_iter().flatten();
        if let Some(position) = open.min_by_key(|position| position.abs_diff(low)) {
            let far = position.saturating_sub(low);
            return (far <= self.span()).then_some((self.base + u64::from(position), far));
        }
        let position = self.next.next(block)?;
        let since = self.began;
        if !self.current.is_nearly_over(|block| sight.misses(block, since)) {
            return None;
        }
        let far = self.current.len() - low + position;
        let absolute = self.base + u64::from(self.current.len()) + u64::from(position);
        (position <= self.span()).then_some((absolute, far))
    }

    /// Where a task that has come to `last` reads a block that the order has several times, both counted
    /// over all epochs: shortly after, and not where another task is to read it.
    pub(in crate::plan) fn again_after(&self, last: u64, block: BlockId) -> Option<u64> {
        let from = u32::try_from(last.checked_sub(self.base)?).ok()?.checked_add(1)?;
        let position = self.current.again_from(block, from)?;
        (position - from < AGAIN_MAX).then_some(self.base + u64::from(position))
    }

    /// Whether a read of the block has been counted without being seen.
    pub(in crate::plan) fn has_assumed(&self, block: BlockId) -> bool {
        self.current.assumed(block).is_some()
    }

    /// Whether a read at a position, counted over all epochs, has been seen.
    pub(in crate::plan) fn has_seen(&self, absolute: u64) -> bool {
        let position = absolute.checked_sub(self.base).map(|position| position as u32);
        position.is_some_and(|position| self.current.has_seen(position))
    }

    /// Positions of the current epoch.
    pub(in crate::plan) fn len(&self) -> u32 {
        self.current.len()
    }

    /// How far a position is from an earlier one, both counted over all epochs: what is not seen
    /// between them is no distance.
    pub(in crate::plan) fn distance(&self, from: u64, to: u64, sight: Sight<'_>) -> u64 {
        if to - from > u64::from(self.span()) {
            return to - from;
        }
        let seen = |position: &u64| {
            let block = self.block_at(position.saturating_sub(self.base) as u32);
            block.is_none_or(|block| !sight.misses(block, self.began))
        };
        // Where it arrives counts, also where the file is no longer watched.
        (from + 1..to).filter(seen).count() as u64 + 1
    }

    /// Whether the order ever reads the block.
    pub(in crate::plan) fn contains(&self, block: BlockId) -> bool {
        self.current.contains(block) || self.next.contains(block)
    }

    /// The block at a position counted from the start of the current epoch.
    fn block_at(&self, position: u32) -> Option<BlockId> {
        match position.checked_sub(self.current.len()) {
            None => self.current.block_at(position),
            Some(position) => self.next.block_at(position),
        }
    }

    /// The sample at a position, counted over all epochs, has been opened by a trusted task.
    pub(in crate::plan) fn reach(&mut self, absolute: u64, task: u32, tick: u64, sight: Sight<'_>) {
        let Some(position) = absolute.checked_sub(self.base) else { return };
        let length = u64::from(self.current.len());
        let (since, mut counted) = (self.began, false);
        if position < length {
            let position = position as u32;
            counted = self.current.confirm(position);
            let block = self.current.block_at(position);
            self.strays.retain(|stray| Some(stray.block) != block);
            self.over.extend(block);
            self.current.reach(position);
            self.current.pass(position, |block| sight.misses(block, since), &mut self.passed);
            self.run(task, position);
            self.pass_behind(sight);
            self.current.give_up_stragglers(self.span() / 2, &mut self.over);
        } else if position - length < u64::from(self.next.len()) {
            let position = (position - length) as u32;
            self.over.extend(self.next.block_at(position));
            self.next.reach(position);
            self.next.pass(position, |block| sight.misses(block, since), &mut self.passed);
            // What the loader left unread (drop_last) must not hold the epoch open.
            if self.next.len() - self.next.left() >= 4 {
                self.roll(sight);
                self.run(task, position);
            }
        }
        if self.current.left() == 0 {
            self.roll(sight);
        }
        self.matched += u64::from(!counted);
        self.sighted += 1;
        self.astray = 0;
        let ticks = tick.saturating_sub(self.last_tick).min(1 << 20) as f64;
        if self.last_tick > 0 {
            self.pace += (ticks - self.pace) / 64.0;
        }
        self.last_tick = tick;
    }

    /// The last reader of a file has closed it: with its first block all that follow it in the
    /// order have been read.
    pub(in crate::plan) fn finish_sample(
        &mut self,
        blocks: impl ExactSizeIterator<Item = BlockId>,
        sight: Sight<'_>,
    ) {
        if blocks.len() < 2 || self.diverged {
            return;
        }
        for block in blocks.skip(1) {
            let before = BlockId(block.0 - 1);
            if let Some(position) = self.current.next(block)
                && position > 0
                && self.current.block_at(position - 1) == Some(before)
                && self.current.is_reached(position - 1)
            {
                self.current.reach(position);
            }
        }
        if self.current.left() == 0 {
            self.roll(sight);
        }
    }

    /// Adds the blocks whose staged reads are over since the last call.
    pub(in crate::plan) fn take_over(&mut self, over: &mut Vec<BlockId>) {
        over.append(&mut self.over);
    }

    /// Adds the blocks that have been read without being seen since the last call.
    pub(in crate::plan) fn take_passed(&mut self, passed: &mut Vec<BlockId>) {
        self.matched += self.passed.len() as u64;
        passed.append(&mut self.passed);
    }

    /// Whether the block is among those that show that an epoch starts: the next, or the first.
    pub(in crate::plan) fn is_in_head(&self, block: BlockId) -> bool {
        let first = || self.first_head.position(block);
        self.next.starts_with(block, HEAD_SEEN) || first().is_some_and(|at| at < HEAD_SEEN)
    }

    fn roll(&mut self, sight: Sight<'_>) {
        self.number += 1;
        self.turned = true;
        let since = self.began;
        // The job may have ended the epoch early: nothing beyond counts as read.
        let end = self.current.end_of_reads(self.foremost, |block| sight.misses(block, since));
        self.began = self.last_tick;
        while self.current.left() > 0 {
            let unseen = |block| sight.may_miss(block, since);
            self.current.pass_lowest(end, unseen, &mut self.passed);
            self.current.give_up_lowest(&mut self.over);
        }
        self.base += u64::from(self.current.len());
        let next = expand(&self.order, &mut self.epochs, sight.layout);
        self.current = std::mem::replace(&mut self.next, next);
        self.strays.iter_mut().for_each(|stray| stray.again = false);
        self.restart();
        self.cursors = (self.cursors.1, 0);
    }

    /// The next block to stage, and how soon it is read: positions past the runner behind it.
    pub(in crate::plan) fn candidate(&mut self) -> Option<(BlockId, u64)> {
        if self.diverged {
            return None;
        }
        let current = &self.current;
        let mut best: Option<(u32, u32)> = None;
        let mut offer = |cursor: &mut u32, from: u32| {
            if let Some(position) = current.unstaged_from(*cursor) {
                *cursor = position;
                let soon = position - from;
                best = Some(best.map_or((soon, position), |best| best.min((soon, position))));
            } else {
                *cursor = current.len();
            }
        };
        offer(&mut self.cursors.0, current.low());
        for runner in &mut self.runners {
            offer(&mut runner.cursor, runner.last);
        }
        if let Some((soon, position)) = best {
            self.chosen = (false, position);
            return Some((current.block_at(position)?, u64::from(soon)));
        }
        let position = self.next.unstaged_from(self.cursors.1)?;
        self.cursors.1 = position;
        self.chosen = (true, position);
        let far = u64::from(current.len() - current.low()) + u64::from(position);
        Some((self.next.block_at(position)?, far))
    }

    /// Marks what is staged as expected, in the order of its reads from the start. `look` says of a
    /// block whether it is staged, and whether it lies too far ahead. What lies within the workers'
    /// spread is never too far: one may be there while another is still at the start.
    pub(in crate::plan) fn expect_staged(&mut self, mut look: impl FnMut(BlockId) -> (bool, bool)) {
        let mut looked_at = 0;
        for epoch in [&mut self.current, &mut self.next] {
            for position in epoch.low()..epoch.len() {
                let (is_staged, is_far) = epoch.block_at(position).map_or((false, true), &mut look);
                if is_far && looked_at >= self.spread {
                    return;
                }
                if is_staged {
                    epoch.stage(position);
                }
                looked_at += 1;
            }
        }
    }

    /// The candidate has been staged or needs not be.
    pub(in crate::plan) fn advance(&mut self) {
        let (in_next, position) = self.chosen;
        if in_next { self.next.stage(position) } else { self.current.stage(position) }
    }

    /// What was staged of the block is gone: its next reads are candidates again.
    pub(in crate::plan) fn unstage(&mut self, block: BlockId) {
        if let Some(position) = self.current.unstage(block) {
            self.cursors.0 = self.cursors.0.min(position);
        }
        if let Some(position) = self.next.unstage(block) {
            self.cursors.1 = self.cursors.1.min(position);
        }
    }

    /// Positions of the current epoch from the lowest that was not read.
    pub(in crate::plan) fn left(&self) -> u32 {
        self.current.len() - self.current.low()
    }

    /// Whether the block has been staged for a read that is still to come.
    pub(in crate::plan) fn is_pending(&self, block: BlockId) -> bool {
        !self.diverged && (self.current.is_pending(block) || self.next.is_pending(block))
    }

    /// In how many ticks, and how many epochs from now, the block is read next; with `unstaged`
    /// only reads count for which it has not been staged yet.
    pub(in crate::plan) fn next_use(&self, block: BlockId, unstaged: bool) -> Option<(u64, u64)> {
        if self.diverged {
            return None;
        }
        let next = if unstaged { Epoch::next_unstaged } else { Epoch::next };
        let low = self.current.low();
        let ticks = |positions: u64| (positions as f64 * self.pace) as u64;
        if let Some(position) = next(&self.current, block) {
            return Some((ticks(u64::from(position.saturating_sub(low))), 0));
        }
        let left = u64::from(self.current.len() - low);
        let Some(position) = next(&self.next, block) else {
            // After all that is known, it is read some time.
            let after = ticks(left + u64::from(self.next.len()));
            return (self.order.ends() && !unstaged).then_some((after, 2));
        };
        Some((ticks(left + u64::from(position)), 1))
    }

    /// Number of the current epoch.
    pub(in crate::plan) fn number(&self) -> u32 {
        self.number
    }
}

//! Where the readers of one order stand in it.
//!
//! 1. A stream holds the current epoch of its order and the next one, indexed by block ([`Epochs`]).
//! 2. Each open is mapped to the nearest position that was not reached, within a span that covers how far
//!    the workers of a loader run ahead of each other. The next epoch is looked at only if the current one
//!    is nearly over, since a loader finishes an epoch before it starts another. The
//!    [task](super::task) decides whether the open counts as the read of that position.
//! 3. An open is a *stray* if no such position explains it, or if its task is not trusted, unless another
//!    stream expects it. If strays follow each other as the first positions of an epoch do, the job has
//!    started there, and the stream starts there too. If there are only strays, the order is wrong: the
//!    stream has *diverged*, and predicts nothing until it finds a start ([`Strays`]). Only strays that
//!    read count for that: a task that lists a directory looks names up and reads nothing.
//! 4. Blocks are staged in the order in which they will be read. The workers of a loader read batches at
//!    the same time, each from its own position on. So the next block to stage is the one that is nearest
//!    ahead of the [runner](Runners) behind it. Of large files it is known how far a runner is in a file, and
//!    where it will go on after its batch ([`Lanes`]).
//! 5. Opens of untracked files are not seen. Such positions count as reached if the next position that can
//!    be seen is reached, or if the epoch is over. If a sample is read several times in a row, only the
//!    first open may be seen: the others count as reached when its reader has gone on.
//! 6. As a runner goes on, the blocks that it reads next are due to be checked: they may have been staged
//!    long ago. If the source may need longer to give a lost block again, blocks are checked that early, too.
//! 7. What the planner has to do about all this is left in [`News`].

mod epochs;
mod lanes;
mod runners;
mod strays;

use std::ops::Range;
use std::sync::Arc;

use crate::ids::BlockId;
use crate::order::{Order, SampleTable};
use crate::plan::epoch::Epoch;
use crate::plan::layout::Layout;
use crate::plan::visibility::Sight;
use epochs::{Epochs, Position};
use lanes::Lanes;
use runners::{Runners, SPAN_MIN};
use strays::{Start, Strays};

/// How many of an epoch's first opens are seen in any case: enough to notice that it starts.
const HEAD_SEEN: u32 = 32;

/// The end of an order is near if this many positions of the last epoch are left, or this part of it.
const ENDING_MIN: u32 = 64;
const ENDING_PART: u32 = 16;

/// How far ahead of a task a sample that repeats is looked for, in positions: more than 64 workers with
/// batches of one.
const AGAIN_MAX: u32 = 64;

/// The fewest positions past a runner that are checked, and their part of the lead: far enough that a lost block
/// can still be fetched, near enough that few are lost afterwards.
const CHECK_AHEAD_MIN: u32 = 128;
const CHECK_LEAD_PART: u32 = 4;

/// An order, and where its readers stand.
pub(in crate::plan) struct Stream {
    epochs: Epochs,
    runners: Runners,
    lanes: Lanes,
    strays: Strays,
    /// Up to where the current and the next epoch have been staged, apart from the runners.
    staged_to: (u32, u32),
    /// The block to stage next.
    chosen: Position,
    /// Up to which position, from the start of the current epoch on, probes are tracked.
    near_to: u32,
    /// How many positions past a runner are read while a slow fetch takes, and up to where blocks have been
    /// checked that early.
    lead: u32,
    checked_to: u32,
    pub(in crate::plan) news: News,
    counts: Counts,
    pace: Pace,
    /// The planner's tick at which the current epoch began.
    began: u64,
    /// Whether its epochs have the numbers that its reader gives them.
    is_told: bool,
}

/// What has come of a stream's progress, until the planner takes it.
#[derive(Default)]
pub(in crate::plan) struct News {
    /// Blocks whose staged reads are over, or will not come.
    pub(in crate::plan) over: Vec<BlockId>,
    /// Blocks that were read without being seen.
    passed: Vec<BlockId>,
    /// Blocks to be checked before they are read.
    pub(in crate::plan) due: Vec<BlockId>,
    /// Blocks that are read soon, or early in an epoch that has begun.
    pub(in crate::plan) near: Vec<BlockId>,
    /// The number of the epoch that has begun.
    pub(in crate::plan) began: Option<u32>,
}

/// Opens of the order's samples.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Those that were where the order has them, seen or not, and those of them that were seen.
    matched: u64,
    seen: u64,
    strayed: u64,
    /// Epochs that began after another one.
    begun: u32,
}

/// How fast the stream is read.
struct Pace {
    /// Planner ticks between two opens of the stream, smoothed.
    ticks: f64,
    last_tick: u64,
}

impl Pace {
    fn note(&mut self, tick: u64) {
        let ticks = tick.saturating_sub(self.last_tick).min(1 << 20) as f64;
        if self.last_tick > 0 {
            self.ticks += (ticks - self.ticks) / 64.0;
        }
        self.last_tick = tick;
    }
}

/// What is told about a stream in `status`.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct StreamStatus {
    /// The order in plain words; empty if none is followed.
    pub order: String,
    /// Number of the current epoch, from 0.
    pub epoch: u32,
    /// Lowest position of the current epoch not yet read.
    pub position: u32,
    /// Position of the current epoch up to which all reads to come are staged.
    pub front: u32,
    /// Positions of the current epoch.
    pub length: u32,
    /// A task that reads the current epoch, 0 if none was seen yet, and how many epochs were seen to begin after another one.
    #[serde(skip)]
    pub reader: u32,
    #[serde(skip)]
    pub begun: u32,
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

impl StreamStatus {
    /// Whether there is no order to tell about.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl Stream {
    pub(in crate::plan) fn new(order: Arc<Order>, layout: &Layout) -> Self {
        let mut stream = Stream {
            epochs: Epochs::new(order, layout),
            runners: Runners::default(),
            lanes: Lanes::default(),
            strays: Strays::default(),
            staged_to: (0, 0),
            chosen: Position::Current(0),
            near_to: SPAN_MIN,
            lead: 0,
            checked_to: 0,
            news: News::default(),
            counts: Counts::default(),
            pace: Pace { ticks: 1.0, last_tick: 0 },
            began: 0,
            is_told: true,
        };
        stream.find_lanes(layout);
        stream
    }

    /// The current epoch has just begun, or files have other blocks.
    fn find_lanes(&mut self, layout: &Layout) {
        if !self.is_ranged() {
            let Epochs { current, next, .. } = &self.epochs;
            self.lanes.restart(current, next, layout, self.runners.workers);
        }
    }

    /// Takes over the counts of the stream that it replaces. The workers of that stream are still there,
    /// though this order has seen none of them.
    pub(in crate::plan) fn counted_on(mut self, before: Option<&Stream>, layout: &Layout) -> Self {
        self.is_told = false;
        if let Some(before) = before {
            self.counts = before.counts;
            self.runners.workers = before.runners.workers;
            self.runners.spread = before.runners.spread;
            self.lanes.know(&before.lanes);
            self.find_lanes(layout);
        }
        self
    }

    /// Whether the order was told, and its reader is followed.
    pub(in crate::plan) fn is_told(&self) -> bool {
        self.is_told && self.is_following()
    }

    pub(in crate::plan) fn status(&self) -> StreamStatus {
        let Epochs { order, number, current, next, .. } = &self.epochs;
        let ahead = u64::from(current.ahead()) + u64::from(next.ahead());
        StreamStatus {
            order: order.describe().to_string(),
            epoch: *number,
            position: current.low(),
            front: current.unstaged_from(current.low()).unwrap_or(current.len()),
            length: current.len(),
            reader: self.runners.readers.all().first().map_or(0, |reader| reader.number),
            begun: self.counts.begun,
            ahead: if self.is_following() { ahead } else { 0 },
            following: self.is_following(),
            opens_predicted: self.counts.matched,
            opens_seen: self.counts.seen,
            opens_strayed: self.counts.strayed,
        }
    }

    /// Whether the known part of the order is nearly over: any file may be read next.
    pub(in crate::plan) fn is_ending(&self) -> bool {
        let Epochs { order, current, next, .. } = &self.epochs;
        let near = ENDING_MIN.max(current.len() / ENDING_PART);
        order.ends() && next.len() == 0 && current.left() <= near
    }

    pub(in crate::plan) fn is_permutation(&self) -> bool {
        self.epochs.order.is_permutation()
    }

    /// Whether its samples are ranges of files.
    pub(in crate::plan) fn is_ranged(&self) -> bool {
        matches!(self.epochs.order.samples(), SampleTable::Ranges(_))
    }

    pub(in crate::plan) fn is_following(&self) -> bool {
        !self.strays.diverged
    }

    /// Whether a task reads the current epoch.
    pub(in crate::plan) fn is_read(&self) -> bool {
        !self.runners.readers.all().is_empty()
    }

    /// Whether so little of the current epoch has been read that its readers may still ask for all that they
    /// may ask for at once.
    pub(in crate::plan) fn is_starting(&self) -> bool {
        self.runners.foremost < SPAN_MIN.min(self.epochs.current.len() / 2)
    }

    /// Whether its samples are files that have several blocks.
    pub(in crate::plan) fn reads_large_files(&self) -> bool {
        self.lanes.are_wide
    }

    /// The most tasks that have read an epoch at once.
    pub(in crate::plan) fn workers(&self) -> u32 {
        self.runners.workers
    }

    /// Number of the current epoch.
    pub(in crate::plan) fn number(&self) -> u32 {
        self.epochs.number
    }

    /// Positions of the current epoch.
    pub(in crate::plan) fn len(&self) -> u32 {
        self.epochs.current.len()
    }

    /// Positions of the current epoch from the lowest that was not reached.
    pub(in crate::plan) fn left(&self) -> u32 {
        self.epochs.left()
    }

    /// Whether the order reads the block in the current or the next epoch.
    pub(in crate::plan) fn contains(&self, block: BlockId) -> bool {
        self.epochs.contains(block)
    }

    /// The absolute position at which a read of the block now would be believed, and how far past the lowest
    /// open position that is.
    pub(in crate::plan) fn sighting(&self, block: BlockId, sight: Sight<'_>) -> Option<(u64, u32)> {
        if !self.is_following() {
            return None;
        }
        let Epochs { current, next, .. } = &self.epochs;
        let (low, span) = (current.low(), self.runners.span());
        let open = [current.assumed(block), current.next(block)].into_iter().flatten();
        if let Some(position) = open.min_by_key(|position| position.abs_diff(low)) {
            let far = position.saturating_sub(low);
            let absolute = self.epochs.absolute(Position::Current(position));
            return (far <= span).then_some((absolute, far));
        }
        let position = next.next(block)?;
        if !current.is_nearly_over(sight.missed_since(self.began)) {
            return None;
        }
        let absolute = self.epochs.absolute(Position::Next(position));
        (position <= span).then_some((absolute, self.left() + position))
    }

    /// The absolute position where a task that has come to `last` reads a block that the order has several
    /// times: shortly after, and not where another task is to read it.
    pub(in crate::plan) fn again_after(&self, last: u64, block: BlockId) -> Option<u64> {
        let Position::Current(last) = self.epochs.position(last)? else { return None };
        let position = self.epochs.current.again_from(block, last + 1)?;
        let is_near = position - last <= AGAIN_MAX;
        is_near.then(|| self.epochs.absolute(Position::Current(position)))
    }

    /// Whether a read of the block has been counted without being seen.
    pub(in crate::plan) fn has_assumed(&self, block: BlockId) -> bool {
        self.epochs.current.assumed(block).is_some()
    }

    /// Whether a read at an absolute position has been seen.
    pub(in crate::plan) fn has_seen(&self, absolute: u64) -> bool {
        let Some(Position::Current(position)) = self.epochs.position(absolute) else {
            return false;
        };
        self.epochs.current.has_seen(position)
    }

    /// The block at an absolute position.
    pub(in crate::plan) fn block_at(&self, absolute: u64) -> Option<BlockId> {
        self.epochs.position(absolute).and_then(|position| self.epochs.block_at(position))
    }

    /// Whether the block was read in this epoch, and is not to be read in it any more.
    pub(in crate::plan) fn has_passed(&self, block: BlockId) -> bool {
        self.epochs.current.contains(block) && self.epochs.current.next(block).is_none()
    }

    /// Whether a read at an absolute position leaves out blocks of its file that lie before it: the reader has jumped, or
    /// its open of the file does not count. `may_be_read`: whether a block may have been read without being counted.
    pub(in crate::plan) fn leaves_out(
        &self,
        absolute: u64,
        sight: Sight<'_>,
        may_be_read: impl Fn(BlockId) -> bool,
    ) -> bool {
        let (epoch, position) = match self.epochs.position(absolute) {
            Some(Position::Current(position)) => (&self.epochs.current, position),
            Some(Position::Next(position)) => (&self.epochs.next, position),
            None => return true,
        };
        let Some(block) = epoch.block_at(position) else { return true };
        let nth = sight.layout.nth_of(block);
        if self.is_ranged() || nth == 0 {
            return false;
        }
        for back in 1..=nth.min(position) {
            if epoch.is_reached(position - back) {
                return false;
            }
            if !may_be_read(BlockId(block.0 - back)) {
                return true;
            }
        }
        // Its open does not count, unless it was not seen.
        !sight.misses(BlockId(block.0 - nth), self.began)
    }

    /// How far an absolute position is from an earlier one. Positions between them whose opens are not seen
    /// do not count.
    pub(in crate::plan) fn distance(&self, from: u64, to: u64, sight: Sight<'_>) -> u64 {
        if to - from > u64::from(self.runners.span()) {
            return to - from;
        }
        let missed = sight.missed_since(self.began);
        let seen = |position: &u64| {
            let position = self.epochs.position(*position);
            position.and_then(|at| self.epochs.block_at(at)).is_none_or(|block| !missed(block))
        };
        // The last position counts in any case: the task was seen there.
        (from + 1..to).filter(seen).count() as u64 + 1
    }

    /// Whether the block is among those that show that an epoch starts: the next one, or the first.
    pub(in crate::plan) fn is_in_head(&self, block: BlockId) -> bool {
        let first = || self.epochs.first_head.position(block);
        self.epochs.next.starts_with(block, HEAD_SEEN) || first().is_some_and(|at| at < HEAD_SEEN)
    }

    /// Whether the block is read soon, as far as is known.
    pub(in crate::plan) fn is_near(&self, block: BlockId) -> bool {
        let Epochs { current, next, .. } = &self.epochs;
        if let Some(position) = current.next(block) {
            return position < self.near_to;
        }
        let near_to = self.near_to.checked_sub(current.len());
        near_to.is_some_and(|near_to| next.next(block).is_some_and(|position| position < near_to))
    }

    /// A trusted task has opened the sample at an absolute position.
    pub(in crate::plan) fn reach(&mut self, absolute: u64, task: u32, tick: u64, sight: Sight<'_>) {
        let Some(position) = self.epochs.position(absolute) else { return };
        self.news.over.extend(self.epochs.block_at(position));
        let counted = match position {
            Position::Current(position) => self.reach_current(position, task, sight),
            Position::Next(position) => self.reach_next(position, task, sight),
        };
        if self.epochs.current.left() == 0 {
            self.begin_next(sight);
        }
        self.counts.matched += u64::from(!counted);
        self.counts.seen += 1;
        self.strays.forgive();
        self.pace.note(tick);
    }

    /// Says whether the read was counted before, without being seen.
    fn reach_current(&mut self, position: u32, task: u32, sight: Sight<'_>) -> bool {
        let current = &mut self.epochs.current;
        let counted = current.confirm(position);
        self.strays.explained(current.block_at(position));
        current.reach(position);
        current.pass(position, sight.missed_since(self.began), &mut self.news.passed);
        self.run(task, position, sight);
        self.pass_behind(sight);
        let most = self.runners.span() / 2;
        self.epochs.current.give_up_stragglers(most, &mut self.news.over);
        counted
    }

    fn reach_next(&mut self, position: u32, task: u32, sight: Sight<'_>) -> bool {
        let next = &mut self.epochs.next;
        next.reach(position);
        next.pass(position, sight.missed_since(self.began), &mut self.news.passed);
        // A loader that drops its last batch must not hold the epoch open.
        if next.len() - next.left() >= 4 {
            self.begin_next(sight);
            self.run(task, position, sight);
        }
        false
    }

    /// A slow fetch takes as long as so many positions are read.
    pub(in crate::plan) fn set_lead(&mut self, positions: u32) {
        self.lead = positions;
    }

    /// A task stands at a position of the current epoch.
    fn run(&mut self, task: u32, position: u32, sight: Sight<'_>) {
        let Stream { epochs, runners, lanes, news, .. } = self;
        runners.foremost = runners.foremost.max(position + 1);
        let check_ahead = CHECK_AHEAD_MIN.max(self.lead / CHECK_LEAD_PART);
        let ahead = position + 1..(position + 1).saturating_add(check_ahead);
        let into_next = ahead.end.saturating_sub(epochs.current.len());
        let early = self.checked_to.max(ahead.end)..ahead.start.saturating_add(self.lead);
        self.checked_to = self.checked_to.max(early.end);
        news.due.extend(early.filter_map(|at| epochs.block_from_start(at)));
        epochs.current.check(ahead, &mut news.due);
        epochs.next.check(0..into_next, &mut news.due);
        let near_to = position.saturating_add(runners.outlook());
        news.near.extend((self.near_to..near_to).filter_map(|at| epochs.block_from_start(at)));
        self.near_to = self.near_to.max(near_to);
        let before = runners.readers.get(task).map(|it| (it.last, it.note.lane_end));
        let lane_end =
            lanes.step(position, before, (&epochs.current, sight.layout), runners.workers);
        if let Some(before) = runners.step(task, position, lane_end) {
            epochs.current.pass_repeats(before, &mut news.passed);
        }
    }

    /// The last reader of a file has closed it: with its first block all blocks that follow it in the order
    /// have been read.
    pub(in crate::plan) fn finish_sample(
        &mut self,
        blocks: impl ExactSizeIterator<Item = BlockId>,
        sight: Sight<'_>,
    ) {
        if blocks.len() < 2 || !self.is_following() {
            return;
        }
        let current = &mut self.epochs.current;
        for block in blocks.skip(1) {
            let before = BlockId(block.0 - 1);
            if let Some(position) = current.next(block)
                && position > 0
                && current.block_at(position - 1) == Some(before)
                && current.is_reached(position - 1)
            {
                current.reach(position);
            }
        }
        if current.left() == 0 {
            self.begin_next(sight);
        }
    }

    /// Gives the blocks that were read without being seen, and counts them.
    pub(in crate::plan) fn take_passed(&mut self) -> impl Iterator<Item = BlockId> + '_ {
        self.counts.matched += self.news.passed.len() as u64;
        self.news.passed.drain(..)
    }

    /// The current epoch is over: the next one is the current one now.
    fn begin_next(&mut self, sight: Sight<'_>) {
        let current = &mut self.epochs.current;
        // The job may have ended the epoch early: no position beyond counts as read.
        let end = current.end_of_reads(self.runners.foremost, sight.missed_since(self.began));
        while current.left() > 0 {
            let unseen = |block| sight.may_miss(block, self.began);
            current.pass_lowest(end, unseen, &mut self.news.passed);
            current.give_up_lowest(&mut self.news.over);
        }
        self.began = self.pace.last_tick;
        self.epochs.go_on(sight.layout);
        self.counts.begun += 1;
        self.news.began = Some(self.epochs.number);
        self.strays.restart();
        self.restart((self.staged_to.1, 0), sight.layout);
    }

    /// The current epoch has just begun.
    fn restart(&mut self, staged_to: (u32, u32), layout: &Layout) {
        self.runners.restart();
        self.find_lanes(layout);
        self.checked_to = 0;
        self.near_to = self.runners.outlook();
        self.staged_to = staged_to;
        let Epochs { current, next, .. } = &self.epochs;
        let next = next.start(self.near_to.saturating_sub(current.len()) as usize);
        let near = current.start(self.near_to as usize).iter().chain(next);
        self.news.near.extend(near.copied().map(BlockId));
    }

    /// Files have other blocks in `layout` than `before`. Its readers go on where they are.
    pub(in crate::plan) fn lay_out(&mut self, before: &Layout, layout: &Layout) {
        let foremost = self.runners.foremost;
        let starts = self.epochs.lay_out(before, layout);
        let sample = starts.partition_point(|(before, _)| *before <= foremost).saturating_sub(1);
        self.restart((0, 0), layout);
        self.runners.foremost = starts.get(sample).map_or(0, |(_, now)| *now);
    }

    /// The position that all workers have come by, if that can be told.
    fn passed_by_all(&self) -> Option<u32> {
        // If blocks repeat, a worker may have been taken to stand where another one reads.
        let is_sure = self.is_permutation() && self.is_following();
        self.runners.hindmost(self.counts.seen).filter(|_| is_sure)
    }

    /// Counts as read what all workers have come by and may have read without being seen.
    fn pass_behind(&mut self, sight: Sight<'_>) {
        if let Some(position) = self.passed_by_all() {
            let unseen = |block| sight.may_miss(block, self.began);
            self.epochs.current.pass_lowest(position, unseen, &mut self.news.passed);
        }
    }

    /// Gives up the lowest open position if all workers have come by: it was read without being seen, or
    /// never will be read. Says whether it was given up.
    pub(in crate::plan) fn give_up_behind(&mut self) -> bool {
        let low = self.epochs.current.low();
        if self.passed_by_all().is_none_or(|position| position <= low) {
            return false;
        }
        self.epochs.current.give_up_lowest(&mut self.news.over);
        true
    }

    /// A task has ended.
    pub(in crate::plan) fn leave(&mut self, task: u32) {
        self.runners.readers.remove(task);
    }

    /// The block is in the order, but its open is no read of a position that is due. Says whether the job
    /// has started another epoch by it.
    pub(in crate::plan) fn stray(&mut self, block: BlockId, sight: Sight<'_>) -> bool {
        self.counts.strayed += 1;
        let current = &self.epochs.current;
        let due = current.next(block).or_else(|| current.assumed(block));
        self.strays.note(block, due.is_none(), self.runners.workers);
        match self.strays.start(&self.epochs) {
            None => return false,
            // What is staged for it stays.
            Some(Start::Next) => self.begin_next(sight),
            Some(Start::First) => self.start_at(0, sight.layout),
            Some(Start::Current) => self.start_at(self.epochs.number, sight.layout),
        }
        for block in self.strays.resolve() {
            if let Some(position) = self.epochs.current.next(block) {
                self.epochs.current.reach(position);
            }
        }
        true
    }

    fn start_at(&mut self, number: u32, layout: &Layout) {
        self.epochs.start_at(number, layout);
        self.restart((0, 0), layout);
    }

    /// This many strays were where the order has them: that shows only when their task is trusted.
    pub(in crate::plan) fn explain(&mut self, opens: usize) {
        self.counts.strayed = self.counts.strayed.saturating_sub(opens as u64);
    }

    /// A stray was a read. Says whether the order is given up. `walking`: its task goes through directories.
    pub(in crate::plan) fn mistrust(&mut self, task: u32, walking: bool) -> bool {
        // A task that reads other samples says little about those that read for the stream.
        let own = !self.is_read() || self.runners.readers.get(task).is_some();
        self.strays.weigh(own && !walking, self.runners.workers)
    }

    /// The next block to stage, and how soon it is read: positions past the runner behind it. `kept`: whether RAM keeps a
    /// block, so that its read may be unseen.
    pub(in crate::plan) fn candidate(
        &mut self,
        kept: impl Fn(BlockId) -> bool,
    ) -> Option<(BlockId, u64)> {
        if !self.is_following() {
            return None;
        }
        let Epochs { current, next, .. } = &self.epochs;
        let mut best: Option<(u32, u32)> = None;
        let mut offer = |staged_to: &mut u32, from: u32| {
            if let Some(position) = current.unstaged_from(*staged_to) {
                *staged_to = position;
                let soon = position - from;
                best = Some(best.map_or((soon, position), |best| best.min((soon, position))));
            } else {
                *staged_to = current.len();
            }
        };
        offer(&mut self.staged_to.0, current.low());
        for runner in self.runners.readers.all_mut() {
            offer(&mut runner.note.staged_to, runner.last);
        }
        if let Some(in_order) = best {
            best = self.in_coming_lanes(kept).into_iter().chain([in_order]).min();
        }
        if let Some((soon, position)) = best {
            self.chosen = Position::Current(position);
            return Some((current.block_at(position)?, u64::from(soon)));
        }
        let in_order = next.unstaged_from(self.staged_to.1)?;
        self.staged_to.1 = in_order;
        let in_lanes = self.lanes.of_next.iter().filter_map(|lane| in_lane(next, lane, 0));
        let position = in_lanes.min().map_or(in_order, |(_, position)| position);
        self.chosen = Position::Next(position);
        Some((next.block_at(position)?, u64::from(self.left()) + u64::from(position)))
    }

    /// The first block to stage of the lanes that workers take next: how soon it is read, and its position.
    fn in_coming_lanes(&self, kept: impl Fn(BlockId) -> bool) -> Option<(u32, u32)> {
        let (current, coming) = (&self.epochs.current, &self.lanes.coming);
        coming.iter().find_map(|lane| in_lane(current, lane, 0))?;
        let is_seen = |position| !current.block_at(position).is_some_and(&kept);
        let left = self.runners.left_in_lanes(is_seen);
        coming.iter().zip(left).filter_map(|(lane, left)| in_lane(current, lane, left)).min()
    }

    /// The candidate has been staged or needs not be.
    pub(in crate::plan) fn advance(&mut self) {
        match self.chosen {
            Position::Current(position) => self.epochs.current.stage(position),
            Position::Next(position) => self.epochs.next.stage(position),
        }
    }

    /// Marks what is staged as expected, in the order of its reads from the start. `look` says of a
    /// block whether it is staged, and whether it lies too far ahead. A block within the workers' spread is
    /// never too far: one worker may be there while another is still at the start.
    pub(in crate::plan) fn expect_staged(&mut self, mut look: impl FnMut(BlockId) -> (bool, bool)) {
        let mut looked_at = 0;
        for epoch in [&mut self.epochs.current, &mut self.epochs.next] {
            for position in epoch.low()..epoch.len() {
                let (is_staged, is_far) = epoch.block_at(position).map_or((false, true), &mut look);
                if is_far && looked_at >= self.runners.spread {
                    return;
                }
                if is_staged {
                    epoch.stage(position);
                }
                looked_at += 1;
            }
        }
    }

    /// What was staged of the block is gone: its next reads are candidates again.
    pub(in crate::plan) fn unstage(&mut self, block: BlockId) {
        let (current, next) = &mut self.staged_to;
        if let Some(position) = self.epochs.current.unstage(block) {
            *current = position.min(*current);
        }
        if let Some(position) = self.epochs.next.unstage(block) {
            *next = position.min(*next);
        }
    }

    /// Whether the block has been staged for a read that is still to come.
    pub(in crate::plan) fn is_pending(&self, block: BlockId) -> bool {
        let Epochs { current, next, .. } = &self.epochs;
        self.is_following() && (current.is_pending(block) || next.is_pending(block))
    }

    /// In how many ticks, and how many epochs from now, the block is read next; with `unstaged`
    /// only reads count for which it has not been staged yet.
    pub(in crate::plan) fn next_use(&self, block: BlockId, unstaged: bool) -> Option<(u64, u64)> {
        if !self.is_following() {
            return None;
        }
        let Epochs { order, current, next, .. } = &self.epochs;
        let find = if unstaged { Epoch::next_unstaged } else { Epoch::next };
        let ticks = |positions: u64| (positions as f64 * self.pace.ticks) as u64;
        if let Some(position) = find(current, block) {
            return Some((ticks(u64::from(position.saturating_sub(current.low()))), 0));
        }
        let left = u64::from(self.left());
        let Some(position) = find(next, block) else {
            // It is read some time after all that is known.
            let after = ticks(left + u64::from(next.len()));
            return (order.ends() && !unstaged).then_some((after, 2));
        };
        Some((ticks(left + u64::from(position)), 1))
    }
}

/// The first block of a lane that is to be staged: how soon it is read, if its worker has so many blocks `left` of the
/// lane before, and its position.
fn in_lane(epoch: &Epoch, lane: &Range<u32>, left: u32) -> Option<(u32, u32)> {
    let position = epoch.unstaged_from(lane.start).filter(|position| *position < lane.end)?;
    Some((left + position - lane.start, position))
}

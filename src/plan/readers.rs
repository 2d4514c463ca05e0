//! Follows the readers: which files they hold open, and where they are in the orders.
//!
//! 1. A task is seen at a file. The file counts as open until the task is seen at another one, or longer if
//!    files are read long after they were opened (`mapped`).
//! 2. The open moves its stream, once the task is trusted to read for it (`task`, `crowd`). An open that no
//!    order explains counts against the orders.
//! 3. A slice of a large file is not opened. Its first request shows that its task has come to it, as an open does.
//! 4. In another large file, reads that find no pages show the task's place, and so do reads of pages that were left
//!    out. If an order reads the file whole, blocks behind the task are settled, and a read that leaves out blocks
//!    before it shows no place. If no order has the file and reads that find no pages jump, it is read in parts
//!    (`divided`).

use std::collections::HashSet;

use super::divided::Divided;
use super::event::Action;
use super::ledger::Ledger;
use super::mapped::{Left, Mapped};
use super::residency::RAM;
use super::staging::Stager;
use super::stream::Stream;
use super::task::{Stray, Task};
use super::tasks::Tasks;
use super::visibility::Visibility;
use super::warm::Warming;
use crate::ids::{BlockId, FileId, PageRange, StreamId};

/// A second open of a file is a read of the order if the order has the file within this many positions.
pub(super) const DUE: u32 = 8;

/// The kernel reads ahead, so a task may still be in the block before the one of which the kernel asks for pages. It has
/// left the blocks behind that are so many before.
const READ_AHEAD: u32 = 2;

#[derive(Default)]
pub(super) struct Readers {
    pub(super) tasks: Tasks,
    mapped: Mapped,
    pub(super) divided: Divided,
    /// Open large files whose readers have returned to what they had read.
    read_again: HashSet<FileId>,
}

pub(super) struct Context<'a> {
    pub(super) stager: &'a mut Stager,
    pub(super) visibility: &'a Visibility,
    pub(super) actions: &'a mut Vec<Action>,
}

impl Readers {
    pub(super) fn opened(&mut self, task: u32, file: FileId, at: &mut Context<'_>) {
        self.looked_up(task, file, at);
        self.reads_for_sure(task, file, at);
    }

    pub(super) fn seen(&mut self, task: u32, file: FileId, at: &mut Context<'_>) {
        let before = self.tasks.come_to(task, file);
        if before == Some(file) {
            return;
        }
        // First, so that closing the other file does not drop this one.
        self.mapped.opened(file);
        self.looked_up(task, file, at);
        if let Some(before) = before {
            self.leave(task, before, at);
        }
    }

    pub(super) fn touched(&mut self, task: u32, file: FileId, at: &mut Context<'_>) {
        if self.tasks.place(task) == Some(file) {
            return;
        }
        let ledger = &at.stager.ledger;
        let mut blocks = ledger.layout.blocks_of(file);
        let is_small = blocks.len() == 1;
        let since = self.mapped.left_at(file).unwrap_or_default();
        let sight = at.visibility.sight(&ledger.layout);
        let is_seen = blocks.next().is_some_and(|block| !sight.may_miss(block, since));
        let left = if is_seen { self.mapped.take_left(file) } else { None };
        let Some(left) = left else { return self.seen(task, file, at) };
        if left.there && is_small {
            let runs = self.tasks.place(left.task).is_some();
            let lag = at.stager.forecast.ticks - left.at;
            self.mapped.count_touch(if runs { left.task } else { task }, lag);
        }
        at.stager.ledger.open(file);
        if self.mapped.hold_until_touched(file) {
            self.read_at_last(file, at);
        }
        if let Some(before) = self.tasks.come_to(task, file) {
            self.leave(task, before, at);
        }
    }

    pub(super) fn left(&mut self, task: u32, at: &mut Context<'_>) {
        self.mapped.ended(task);
        at.stager.forecast.streams_mut().for_each(|stream| stream.leave(task));
        if let Some(file) = self.tasks.end(task) {
            self.leave(task, file, at);
        }
    }

    /// A task seems to be done with a file.
    fn leave(&mut self, task: u32, file: FileId, at: &mut Context<'_>) {
        if self.mapped.stop_touching(file) {
            return self.closed(file, at);
        }
        let Stager { ledger, forecast, .. } = &mut *at.stager;
        if let Some(block) = ledger.layout.blocks_of(file).next() {
            let there = ledger.is_here(block);
            self.mapped.leaves(file, Left { task, at: forecast.ticks, there });
        }
        if self.mapped.lag() == 0 || self.tasks.are_none() {
            return self.closed(file, at);
        }
        self.mapped.hold(file, forecast.ticks);
    }

    /// A file that was held open is read, or not expected to be read any more.
    fn read_at_last(&mut self, file: FileId, at: &mut Context<'_>) {
        if at.stager.ledger.layout.is_cut(file) {
            return;
        }
        if let Some(block) = at.stager.ledger.layout.blocks_of(file).next()
            && !self.divided.has(file)
        {
            at.stager.count(block);
        }
        self.closed(file, at);
    }

    /// Lets go of files that are held longer than the lag, or do not fit into the window.
    pub(super) fn release_overdue(&mut self, at: &mut Context<'_>) {
        if self.tasks.are_none() {
            for file in self.mapped.forget() {
                self.read_at_last(file, at);
            }
            return;
        }
        while let Some(file) = self.mapped.let_oldest_go(at.stager.forecast.ticks) {
            self.read_at_last(file, at);
        }
        let next = |readers: &mut Self, Ledger { residency, layout, window, .. }: &Ledger| {
            let is_staged = |file| layout.blocks_of(file).any(|block| residency.is_staged(block));
            let over = residency.staged > window.bytes();
            if over { readers.mapped.release(is_staged) } else { None }
        };
        while let Some(file) = next(self, &at.stager.ledger) {
            self.read_at_last(file, at);
        }
    }

    /// Whether blocks staged for orders would be dropped before their reads.
    pub(super) fn lag_too_far(&self, ledger: &Ledger) -> bool {
        let bytes = ledger.layout.mean_pages_bytes();
        self.mapped.lag().saturating_mul(bytes) > ledger.window.bytes()
    }

    /// A task opens a file, or only asks for its attributes.
    fn looked_up(&mut self, task: u32, file: FileId, at: &mut Context<'_>) {
        let Stager { ledger, forecast, .. } = &mut *at.stager;
        ledger.open(file);
        let Some(block) = ledger.layout.blocks_of(file).next() else { return };
        forecast.ticks += 1;
        // The open of a file that is read in parts does not tell which pages will be read.
        let in_parts = self.divided.has(file);
        // If the read was assumed before, it was counted then.
        if !in_parts && !forecast.streams().any(|stream| stream.has_assumed(block)) {
            count_open(block, ledger);
        }
        let mut reader = self.tasks.take(task);
        // A loader may open a file twice (to look at its header, say). That is one read, unless the order
        // has the file again near here.
        let sight = at.visibility.sight(&ledger.layout);
        let again = reader.note_open(block);
        let due = |(id, stream): (StreamId, &Stream)| {
            let sighting = stream.sighting(block, sight);
            sighting.is_some_and(|(position, far)| far < DUE || reader.is_near(id, position))
        };
        if !again || forecast.numbered().any(due) {
            // A file that may be read later is counted at its read.
            if !in_parts && self.mapped.lag() == 0 {
                at.stager.count(block);
            }
            self.follow(task, &mut reader, block, at);
        }
        self.tasks.put(task, reader);
    }

    fn follow(&mut self, task: u32, reader: &mut Task, block: BlockId, at: &mut Context<'_>) {
        let Stager { ledger, forecast, .. } = &*at.stager;
        let ranged = |stream: &Stream| stream.is_ranged() && stream.contains(block);
        let blocks = ledger.layout.blocks_of(ledger.layout.unit_of(block)).len() as u64;
        // The open of a large file does not tell which range will be read.
        if blocks > 1 && forecast.streams().any(ranged) {
            return;
        }
        let expected = expecting(reader, block, at);
        let reached = expected.and_then(|id| self.reach(id, task, reader, (block, blocks), at));
        if expected.is_none() {
            reader.strays();
        }
        reader.stray = reached.is_none().then_some(Stray { block, expected });
        if let Some(starting) = reached {
            let helps = !starting && at.stager.would_have_helped(block);
            at.stager.foreseen(helps, at.actions);
        }
        let (mut changed, mut over) = (false, Vec::new());
        let Stager { ledger, forecast, .. } = &mut *at.stager;
        let sight = at.visibility.sight(&ledger.layout);
        for (id, stream) in forecast.numbered_mut() {
            let strays = reader.stray.is_some_and(|stray| stray.concerns(id));
            if strays && stream.contains(block) {
                changed |= stream.stray(block, sight);
            }
            over.append(&mut stream.news.over);
        }
        if changed {
            at.stager.look_anew(at.actions);
        }
        over.into_iter().for_each(|block| finish(block, at));
    }

    /// If the task is trusted, counts its open as a read of the stream, with earlier opens that were pending.
    /// Returns whether the stream was just starting. `blocks` is the number of the file's blocks.
    fn reach(
        &mut self,
        id: StreamId,
        task: u32,
        reader: &mut Task,
        (block, blocks): (BlockId, u64),
        at: &mut Context<'_>,
    ) -> Option<bool> {
        let Stager { ledger, forecast, .. } = &mut *at.stager;
        let (sight, ticks) = (at.visibility.sight(&ledger.layout), forecast.ticks);
        let stream = forecast.stream_mut(id)?;
        let (position, _) = stream.sighting(block, sight)?;
        let distance = |from, to| stream.distance(from, to, sight);
        let known = (stream.len(), stream.workers());
        let again = reader.place(id).and_then(|last| stream.again_after(last, block));
        let position = again.unwrap_or(position);
        let mut positions = reader.note_open_at(id, position, known, blocks, distance);
        if positions.is_empty() && reader.is_new() {
            positions =
                self.tasks.crowd.note_open_at(id, position, (stream.len(), blocks), distance);
        }
        // The crowd may have counted some of the earlier positions already.
        positions.retain(|earlier| *earlier == position || !stream.has_seen(*earlier));
        stream.explain(positions.len().saturating_sub(1));
        let starting = stream.is_starting();
        for position in &positions {
            stream.reach(*position, task, ticks, sight);
        }
        (!positions.is_empty()).then_some(starting)
    }

    /// The task has read the file that it opened last. If that open was a stray, the orders lose trust, but only
    /// little if the task walks through directories.
    fn reads_for_sure(&mut self, task: u32, file: FileId, at: &mut Context<'_>) {
        let Some(reader) = self.tasks.known(task) else { return };
        let Stager { ledger, forecast, .. } = &mut *at.stager;
        let of_file = |stray: &mut Stray| ledger.layout.unit_of(stray.block) == file;
        let Some(stray) = reader.stray.take_if(of_file) else { return };
        let (mut changed, walking) = (false, reader.is_walking());
        for (id, stream) in forecast.numbered_mut() {
            if stray.concerns(id) && stream.contains(stray.block) {
                changed |= stream.mistrust(task, walking);
            }
        }
        if changed {
            at.stager.look_anew(at.actions);
        }
    }

    /// If a block is a slice, a read of it shows that its task has come to it.
    fn come_to_slice(&mut self, block: BlockId, task: u32, at: &mut Context<'_>) {
        let unit = at.stager.ledger.layout.unit_of(block);
        if unit.as_slice().is_none() {
            return;
        }
        if self.tasks.place(task) != Some(unit) && !at.stager.forecast.is_foreseen(block) {
            let Stager { ledger, forecast, .. } = &mut *at.stager;
            let (bytes, ram) = (ledger.layout.pages_bytes(block), ledger.capacity(RAM));
            forecast.outside.note_read(block, bytes, ram);
        }
        self.seen(task, unit, at);
    }

    pub(super) fn probed(&mut self, block: BlockId, task: u32, at: &mut Context<'_>) {
        self.come_to_slice(block, task, at);
        self.reads_for_sure(task, at.stager.ledger.layout.unit_of(block), at);
        self.pass(block, task, 1, at);
        self.read_on(block, at);
    }

    pub(super) fn joined(&mut self, block: BlockId, task: u32, at: &mut Context<'_>) {
        self.come_to_slice(block, task, at);
        self.pass_within(block, task, at);
        self.read_on(block, at);
    }

    /// A read has joined the fetch of a block, as others may have done before. The first block of a file was passed
    /// when the file was opened, and a range when it was missed.
    fn pass_within(&mut self, block: BlockId, task: u32, at: &mut Context<'_>) {
        let Stager { ledger, forecast, .. } = &*at.stager;
        let is_ranged = |stream: &Stream| stream.is_ranged() && stream.contains(block);
        if ledger.layout.probe_in(block).is_some() && !forecast.streams().any(is_ranged) {
            self.pass(block, task, READ_AHEAD, at);
        }
    }

    fn read_on(&self, block: BlockId, at: &mut Context<'_>) {
        if !at.stager.forecast.is_foreseen(block) {
            at.stager.read_on(block, at.actions);
        }
    }

    pub(super) fn missed(&mut self, block: BlockId, task: u32, at: &mut Context<'_>) {
        self.come_to_slice(block, task, at);
        self.reads_for_sure(task, at.stager.ledger.layout.unit_of(block), at);
        self.note_return(block, at);
        self.pass(block, task, READ_AHEAD, at);
        let Stager { ledger, forecast, .. } = &mut *at.stager;
        forecast.unread.missed(block);
        ledger.residency.mark_unread(block, false);
        if ledger.residency.is_fetching(block) {
            return self.read_on(block, at);
        }
        if ledger.residency.is_in(block, RAM) {
            ledger.counters.lost += 1;
            ledger.refetch(block);
        } else {
            ledger.counters.demanded += 1;
            self.divided.divide_if_jumped(block, at.stager, at.actions);
            at.stager.ledger.start_fetch(block, &at.stager.forecast);
        }
        // Ranges of a file are not read in the order of their offsets.
        if !at.stager.forecast.is_of_range(block) {
            at.stager.read_on(block, at.actions);
        }
    }

    /// If a reader returns to a block of an open large file that an order has it read once, the file's other blocks
    /// stay until it is closed.
    fn note_return(&mut self, block: BlockId, at: &Context<'_>) {
        let Stager { ledger, forecast, .. } = &*at.stager;
        let file = ledger.layout.unit_of(block);
        let has_passed = |stream: &Stream| !stream.is_ranged() && stream.has_passed(block);
        let is_large = ledger.layout.blocks_of(file).len() > 1;
        if is_large && ledger.has_open(file) && forecast.streams().any(has_passed) {
            self.read_again.insert(file);
        }
    }

    pub(super) fn part(
        &mut self,
        block: BlockId,
        task: u32,
        pages: PageRange,
        warming: &mut Warming,
        at: &mut Context<'_>,
    ) {
        self.reads_for_sure(task, at.stager.ledger.layout.unit_of(block), at);
        self.pass(block, task, READ_AHEAD, at);
        self.divided.note_read(block, pages, at.stager, warming, at.actions);
    }

    /// A large file may be opened once and read at many places. Then the reads that are seen show the task's position.
    /// The positions between two of them were read unseen. In a file that is read whole, the task has left the blocks
    /// behind that are so many before this one.
    fn pass(&mut self, block: BlockId, task: u32, behind: u32, at: &mut Context<'_>) {
        let Stager { ledger, forecast, .. } = &mut *at.stager;
        let file = ledger.layout.unit_of(block);
        if ledger.layout.blocks_of(file).len() < 2 {
            return;
        }
        let (mut reader, mut over, mut goes_on) = (self.tasks.take(task), Vec::new(), false);
        let (sight, ticks) = (at.visibility.sight(&ledger.layout), forecast.ticks);
        let residency = &ledger.residency;
        for (id, stream) in forecast.numbered_mut() {
            let before = reader.place(id).and_then(|last| stream.block_at(last));
            // Several requests may read a block.
            let sighting = stream.sighting(block, sight).filter(|_| before != Some(block));
            let Some((position, far)) = sighting else { continue };
            // The reads of blocks that are kept may be unseen.
            let uncounted = &reader.uncounted;
            let may_be_read = |block| residency.is_kept(block) || uncounted.contains(&block);
            if stream.leaves_out(position, sight, may_be_read) {
                reader.note_uncounted(block);
                continue;
            }
            goes_on |= !stream.is_ranged();
            over.extend(before.filter(|_| stream.is_ranged()));
            let low = position - u64::from(far);
            for position in reader.reads(id, position, low) {
                stream.reach(position, task, ticks, sight);
            }
            over.append(&mut stream.news.over);
        }
        self.tasks.put(task, reader);
        // The task is still at the last one.
        for block in over.into_iter().filter(|it| *it != block) {
            let Ledger { layout, .. } = &at.stager.ledger;
            let file = layout.unit_of(block);
            if layout.blocks_of(file).len() > 1 || !at.stager.ledger.has_open(file) {
                at.stager.settle(block, at.actions);
            }
        }
        // Other readers of the file may be behind this one.
        let is_alone = at.stager.ledger.is_open_once(file);
        if goes_on && is_alone && !self.read_again.contains(&file) {
            at.stager.settle_behind(block, behind, at.actions);
        }
    }

    pub(super) fn closed(&mut self, file: FileId, at: &mut Context<'_>) {
        // It may have been cut since it was opened.
        if !at.stager.ledger.close(file) {
            return;
        }
        self.read_again.remove(&file);
        if at.stager.ledger.layout.is_cut(file) {
            return;
        }
        finish_sample(file, at);
        for block in at.stager.ledger.layout.blocks_of(file) {
            at.stager.settle(block, at.actions);
            at.stager.ledger.touch(block, &at.stager.forecast);
        }
        at.stager.ledger.note_tracking_due(file);
    }
}

fn count_open(block: BlockId, ledger: &mut Ledger) {
    ledger.counters.opens += 1;
    if ledger.residency.is_in(block, RAM) {
        ledger.counters.hits += 1;
    } else if ledger.residency.is_fetching(block) {
        ledger.counters.late += 1;
    } else {
        ledger.counters.cold += 1;
    }
}

/// The task's own stream if it expects the block, otherwise the stream that expects it soonest.
fn expecting(reader: &Task, block: BlockId, at: &Context<'_>) -> Option<StreamId> {
    let Stager { ledger, forecast, .. } = &*at.stager;
    let sight = at.visibility.sight(&ledger.layout);
    let sighting = |stream: &Stream| stream.sighting(block, sight);
    let is_own = |id: &StreamId| forecast.stream(*id).and_then(sighting).is_some();
    reader.stream.filter(is_own).or_else(|| {
        let far = |(id, stream)| Some((sighting(stream)?.1, id));
        forecast.numbered().filter_map(far).min().map(|(_, id)| id)
    })
}

/// The read for which a block was staged is over.
fn finish(block: BlockId, at: &mut Context<'_>) {
    let ledger = &mut at.stager.ledger;
    ledger.residency.mark_unread(block, false);
    let file = ledger.layout.unit_of(block);
    if ledger.has_open(file) {
        return;
    }
    // Closed before its task was trusted: the rest of the sample is over too.
    finish_sample(file, at);
    for block in at.stager.ledger.layout.blocks_of(file) {
        at.stager.settle(block, at.actions);
    }
}

/// With the first block of a large file, the blocks that follow it in an order have been read.
fn finish_sample(file: FileId, at: &mut Context<'_>) {
    let Stager { ledger, forecast, .. } = &mut *at.stager;
    let sight = at.visibility.sight(&ledger.layout);
    for stream in forecast.streams_mut() {
        stream.finish_sample(ledger.layout.blocks_of(file), sight);
    }
}

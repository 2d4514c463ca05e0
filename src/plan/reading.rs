//! What readers do, and what that says about where they stand.

use super::event::Action;
use super::residency::RAM;
use super::stream::Stream;
use super::task::{Stray, Task};
use super::{DUE, Planner};
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId, StreamId};

impl Planner {
    /// A task opens a file, unless it is just where it was seen before.
    pub(super) fn seen(&mut self, task: u32, file: FileId, actions: &mut Vec<Action>) {
        let before = self.readers.come_to(task, file);
        if before == Some(file) {
            return;
        }
        // In this order, so that what is being opened does not make room for what is closed.
        self.mapped.opened(file);
        self.looked_up(task, file, actions);
        if let Some(before) = before {
            self.leave(task, before, actions);
        }
    }

    /// A task has ended.
    pub(super) fn left(&mut self, task: u32, actions: &mut Vec<Action>) {
        self.mapped.ended(task);
        for stream in self.streams.iter_mut().flatten() {
            stream.leave(task);
        }
        if let Some(file) = self.readers.end(task) {
            self.leave(task, file, actions);
        }
    }

    /// A block in the trust gear has been read, as the opens about it show.
    pub(super) fn passed(&mut self, block: BlockId) {
        self.counters.opens += 1;
        self.counters.hits += 1;
        self.ticks += 1;
        self.residency.mark_unread(block, false);
        self.count(block);
        // What is being read is no victim.
        if !self.readers.has_open(self.layout.file_of(block)) {
            self.touch(block);
        }
    }

    /// Counts a read for the epoch.
    pub(super) fn count(&mut self, block: BlockId) {
        let changed = self.unread.read(block);
        if changed && (self.blind || self.is_blind()) && self.policy == PolicyKind::UnreadFirst {
            self.choose_policy();
        }
    }

    pub(super) fn opened(&mut self, task: u32, file: FileId, actions: &mut Vec<Action>) {
        self.looked_up(task, file, actions);
        self.reads_for_sure(task, file, actions);
    }

    /// A task opens a file, or only asks for its attributes.
    fn looked_up(&mut self, task: u32, file: FileId, actions: &mut Vec<Action>) {
        self.hold(file);
        let Some(block) = self.layout.blocks_of(file).next() else { return };
        self.ticks += 1;
        let counted = self.streams.iter().flatten().any(|stream| stream.has_assumed(block));
        // To open a file that is read in parts says nothing of what is read of it.
        let in_parts = self.parts.has(file);
        self.counters.opens += u64::from(!counted && !in_parts);
        if counted || in_parts {
            // Seen after all, or not to be counted.
        } else if self.residency.is_in(block, RAM) {
            self.counters.hits += 1;
        } else if self.residency.is_fetching(block) {
            self.counters.late += 1;
        } else {
            self.counters.cold += 1;
        }
        let mut reader = self.readers.take(task);
        // A loader may open a file twice (to look at its header, say): one read all the same,
        // unless the order has the second one just here.
        let sight = self.sight();
        let again = reader.opens(block);
        let due = |(index, stream): (usize, &Option<Stream>)| {
            let sighting = stream.as_ref().and_then(|stream| stream.sighting(block, sight));
            sighting.is_some_and(|(position, far)| {
                far < DUE || reader.is_near(StreamId(index as u16), position)
            })
        };
        if !again || self.streams.iter().enumerate().any(due) {
            // What may be read later counts then.
            if !in_parts && self.mapped.lag() == 0 {
                self.count(block);
            }
            self.follow(task, &mut reader, block, actions);
        }
        self.readers.put(task, reader);
    }

    /// A file is open. What is being read is no victim, though its next use may well be the farthest.
    pub(super) fn hold(&mut self, file: FileId) {
        self.readers.open(file);
        for block in self.layout.blocks_of(file) {
            self.policies[RAM].remove(block);
            self.residency.mark_unread(block, false);
        }
    }

    /// Moves the stream that the open belongs to: the task's own where it can be, else the one
    /// that expects the block soonest.
    fn follow(&mut self, task: u32, reader: &mut Task, block: BlockId, actions: &mut Vec<Action>) {
        let sight = self.sight();
        let sighting = |index: usize| self.streams.get(index)?.as_ref()?.sighting(block, sight);
        let own = reader.stream.filter(|stream| sighting(stream.index()).is_some());
        let expecting = || {
            (0..self.streams.len())
                .filter_map(|index| sighting(index).map(|(_, far)| (far, index)))
                .min()
                .map(|(_, index)| StreamId(index as u16))
        };
        let (mut read, mut starting) = (false, false);
        let ranged = |stream: &Stream| stream.is_ranged() && stream.contains(block);
        let blocks = self.layout.blocks_of(self.layout.file_of(block)).len() as u64;
        // Opening a large file does not say which range of it will be read.
        if blocks > 1 && self.streams.iter().flatten().any(ranged) {
            return;
        }
        let expected = own.or_else(expecting);
        if let Some(id) = expected
            && let Some((position, _)) = sighting(id.index())
            && let Some(stream) = self.streams[id.index()].as_mut()
        {
            let sight = self.visibility.sight(&self.layout);
            let distance = |from, to| stream.distance(from, to, sight);
            let known = (stream.len(), stream.workers());
            let again = reader.place(id).and_then(|last| stream.again_after(last, block));
            let position = again.unwrap_or(position);
            let mut positions = reader.sees(id, position, known, blocks, distance);
            if positions.is_empty() && reader.is_new() {
                positions = self.readers.crowd.sees(id, position, stream.len(), distance);
            }
            // Of a task that has just been trusted the crowd may have counted some.
            positions.retain(|earlier| *earlier == position || !stream.has_seen(*earlier));
            stream.explain(positions.len().saturating_sub(1));
            starting = stream.is_starting();
            for position in positions {
                stream.reach(position, task, self.ticks, sight);
                read = true;
            }
        } else {
            reader.strays();
        }
        reader.stray = (!read).then_some(Stray { block, expected });
        if read {
            // So many reads further a wider window would have reached.
            let reach = self.window.most() / self.layout.mean_file_bytes();
            let was_full = self.full_at.is_some_and(|at| self.ticks - at <= reach);
            let has_time = self.residency.fetching < self.settings.inflight_max;
            let helps = was_full && has_time && !starting && !self.residency.is_in(block, RAM);
            self.foreseen(helps, actions);
        }
        let mut changed = false;
        let mut over = Vec::new();
        let sight = self.visibility.sight(&self.layout);
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let Some(stream) = stream else { continue };
            let strays = reader.stray.is_some_and(|stray| stray.concerns(index));
            if strays && stream.contains(block) {
                changed |= stream.stray(block, sight);
            }
            stream.take_over(&mut over);
        }
        if changed {
            self.choose_policy();
            self.sweep(actions);
        }
        for block in over {
            self.residency.mark_unread(block, false);
            let file = self.layout.file_of(block);
            if self.readers.has_open(file) {
                continue;
            }
            // Closed before its task was trusted: the rest of the sample is over too.
            self.finish_sample(file);
            for block in self.layout.blocks_of(file) {
                self.settle(block, actions);
            }
        }
    }

    /// The last open of a task was that of a reader. If no order has it there, that is held against
    /// the orders, though not much if the task reads one directory after the other.
    pub(super) fn reads_for_sure(&mut self, task: u32, file: FileId, actions: &mut Vec<Action>) {
        let Some(reader) = self.readers.known(task) else { return };
        let of_file = |stray: &mut Stray| self.layout.file_of(stray.block) == file;
        let Some(stray) = reader.stray.take_if(of_file) else { return };
        let (mut changed, walking) = (false, reader.is_walking());
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let concerned = stream.as_mut().filter(|stream| stream.contains(stray.block));
            if let Some(stream) = concerned.filter(|_| stray.concerns(index)) {
                changed |= stream.mistrust(task, walking);
            }
        }
        if changed {
            self.choose_policy();
            self.sweep(actions);
        }
    }

    /// Pages of a block in RAM are gone, and nobody has missed them yet.
    pub(super) fn lost(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if !self.residency.is_in(block, RAM) || self.residency.is_fetching(block) {
            return;
        }
        self.counters.restored += 1;
        self.refetch(block);
        actions.push(Action::Fetch { block, from: self.nearest(block) });
    }

    /// What is charged stays so; until it is there again it is no victim.
    fn refetch(&mut self, block: BlockId) {
        self.counters.refetched_bytes += self.layout.range(block).1;
        self.policies[RAM].remove(block);
        self.residency.restart_fetch(block);
    }

    /// A read waits for a block that is on its way.
    pub(super) fn joined(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if !self.is_foreseen(block) {
            self.read_on(block, actions);
        }
    }

    pub(super) fn missed(&mut self, block: BlockId, task: u32, actions: &mut Vec<Action>) {
        self.reads_for_sure(task, self.layout.file_of(block), actions);
        self.pass(block, task, actions);
        self.unread.missed(block);
        self.residency.mark_unread(block, false);
        if self.residency.is_fetching(block) {
            return self.joined(block, actions);
        }
        if self.residency.is_in(block, RAM) {
            self.counters.lost += 1;
            self.refetch(block);
        } else {
            self.counters.demanded += 1;
            self.divide_if_jumped(block, actions);
            self.start_fetch(block, actions);
        }
        self.read_on(block, actions);
    }

    /// A large file's descriptor may be opened once and read all over: there it is the reads that
    /// find nothing which show where their task stands. What the order has between two of them has
    /// been read without being seen.
    pub(super) fn pass(&mut self, block: BlockId, task: u32, actions: &mut Vec<Action>) {
        if self.layout.blocks_of(self.layout.file_of(block)).len() < 2 {
            return;
        }
        let mut reader = self.readers.take(task);
        let mut over = Vec::new();
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let Some(stream) = stream else { continue };
            let sight = self.visibility.sight(&self.layout);
            let Some((position, far)) = stream.sighting(block, sight) else { continue };
            let low = position - u64::from(far);
            for position in reader.reads(StreamId(index as u16), position, low) {
                stream.reach(position, task, self.ticks, sight);
            }
            stream.take_over(&mut over);
        }
        self.readers.put(task, reader);
        for block in over {
            let file = self.layout.file_of(block);
            if self.layout.blocks_of(file).len() > 1 || !self.readers.has_open(file) {
                self.settle(block, actions);
            }
        }
    }

    pub(super) fn closed(&mut self, file: FileId, actions: &mut Vec<Action>) {
        if !self.readers.close(file) {
            return;
        }
        self.finish_sample(file);
        for block in self.layout.blocks_of(file) {
            self.settle(block, actions);
            self.touch(block);
        }
        self.regear(file, actions);
    }

    /// With a large file's first block all that follow it in an order have been read.
    fn finish_sample(&mut self, file: FileId) {
        let sight = self.visibility.sight(&self.layout);
        for stream in self.streams.iter_mut().flatten() {
            stream.finish_sample(self.layout.blocks_of(file), sight);
        }
    }
}

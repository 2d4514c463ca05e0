//! What goes into RAM ahead of its read, and where it goes after it.
//!
//! Of all streams the block that is read soonest is staged next. A stream that nobody reads at the
//! moment, as of a validation loader, is taken to begin when those that are read end their epochs:
//! until then it has no part in the window that others need.

use super::Planner;
use super::event::{Action, Place};
use super::policy::NextUse;
use super::residency::RAM;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId};

/// How many blocks are fetched ahead inside a file that is read from its start to its end: where the file
/// is left after two of its blocks, twice what was read is fetched for nothing.
const SEQUENTIAL_AHEAD: u32 = 4;

/// Bytes that wait to be written to tiers below RAM, beyond which nothing more is: a disk that is slower
/// than the source must not fill memory.
const PLACING_MAX: u64 = 96 << 20;

/// Bytes that wait or are on their way to, beyond which nothing is fetched ahead where all is to be
/// stored. Well below the others: what readers fetch meanwhile is stored, too.
const HOLD_AT: u64 = 64 << 20;

impl Planner {
    /// Settles every staged block that nobody holds open, and puts every file into its gear: what
    /// they were staged for has changed.
    pub(super) fn sweep(&mut self, actions: &mut Vec<Action>) {
        for block in (0..self.layout.blocks() as u32).map(BlockId) {
            if self.residency.is_staged(block) && !self.readers.has_open(self.layout.file_of(block))
            {
                self.settle(block, actions);
            }
        }
        self.regear_all(actions);
    }

    /// A large file that is read from its start to its end has its next blocks fetched, and what
    /// lies behind is done with.
    pub(super) fn read_on(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let file = self.layout.file_of(block);
        let blocks = self.layout.blocks_of(file);
        let nth = block.0 - blocks.clone().next().map_or(block.0, |first| first.0);
        if blocks.len() < 2 || nth == 0 {
            return;
        }
        let behind = BlockId(block.0 - 1);
        if !self.residency.is_in(behind, RAM) && !self.residency.is_fetching(behind) {
            return;
        }
        for back in 2..=nth.min(2 * SEQUENTIAL_AHEAD) {
            self.settle(BlockId(block.0 - back), actions);
        }
        if self.settings.prefetch {
            for ahead in blocks.skip(nth as usize + 1).take(SEQUENTIAL_AHEAD as usize) {
                self.stage_next(ahead, actions);
            }
        }
    }

    /// Fetches a block that a reader is about to come to. If there is no room for it, and hardly an order
    /// is followed, it is kept in place of what this epoch has read.
    fn stage_next(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let replaces = !self.try_stage(block, actions)
            && self.policy == PolicyKind::UnreadFirst
            && self.blind
            && self.may_fetch_more()
            && self.may_stay(block)
            && !self.residency.is_dropping(block);
        if replaces && self.make_way(block, NextUse::At(self.unread.now()), actions) {
            self.fetch_ahead(block, true, actions);
        }
    }

    /// Offers a block that will not stay in RAM to the tiers below.
    pub(super) fn place(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let bytes = self.layout.stored_bytes(block);
        if self.residency.placing_bytes + bytes > PLACING_MAX {
            return;
        }
        if self.residency.place(block).is_some() || self.residency.is_placing(block) {
            return;
        }
        let next = self.next_use(block, true);
        if let Some(tier) = self.room_below(block, next, actions) {
            self.residency.start_place(block, tier, bytes);
            actions.push(Action::Place { block, tier });
        }
    }

    /// The first tier below RAM that has room for a block which is read next then, or makes some.
    pub(super) fn room_below(
        &mut self,
        block: BlockId,
        next: NextUse,
        actions: &mut Vec<Action>,
    ) -> Option<usize> {
        let bytes = self.layout.stored_bytes(block);
        for tier in RAM + 1..self.settings.tiers.len() {
            let capacity = self.settings.tiers[tier].capacity;
            if bytes > capacity || !self.is_worth_it(tier) {
                continue;
            }
            if self.residency.kept[tier] + bytes > capacity {
                let Some(victim) = self.policies[tier].victim(next) else { continue };
                self.policies[tier].remove(victim);
                self.residency.displace(victim, tier, self.layout.stored_bytes(victim));
                actions.push(Action::Displace { block: victim, tier });
            }
            if self.residency.kept[tier] + bytes <= capacity {
                return Some(tier);
            }
        }
        None
    }

    /// Where files that are held open have been read past the budget, has the window take more of it, or
    /// drops what was staged first.
    pub(super) fn make_room(&mut self, actions: &mut Vec<Action>) {
        self.fit_parts(actions);
        let capacity = self.settings.tiers[RAM].capacity;
        while self.residency.kept[RAM] + self.residency.staged > capacity.max(self.window.bytes())
            && let Some(block) = self.arrivals.pop_front()
        {
            let file = self.layout.file_of(block);
            let small = self.layout.blocks_of(file).len() < 2;
            // A small file is being read at this moment; its close settles it.
            if small || !self.residency.is_staged(block) || !self.residency.is_in(block, RAM) {
                continue;
            }
            // Of a large one that is open it may be what is read next, if no order says more.
            let needed = self.readers.has_open(file) && !self.is_foreseen(block);
            if needed && self.window.widen() {
                self.arrivals.push_front(block);
                self.fit_kept(RAM, actions);
            } else {
                self.drop_pages(block, actions);
            }
        }
    }

    /// Decides about a staged block that nobody holds open: it waits for the reads it was staged
    /// for, stays, or goes.
    pub(super) fn settle(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if !self.residency.is_in(block, RAM) || !self.residency.is_staged(block) {
            return;
        }
        // The budget is hard: readers may have fetched more than the window has room for.
        let within =
            self.residency.kept[RAM] + self.residency.staged <= self.settings.tiers[RAM].capacity;
        if within && self.streams.iter().flatten().any(|stream| stream.is_pending(block)) {
            return;
        }
        let bytes = self.layout.pages_bytes(block);
        let next = self.next_use(block, false);
        if self.may_stay(block) && self.make_way(block, next, actions) {
            self.residency.keep(block, bytes);
            self.policies[RAM].touch(block, next);
            self.regear(self.layout.file_of(block), actions);
        } else {
            self.drop_pages(block, actions);
        }
    }

    /// Has RAM keep a block that is expected at `next`, in place of others as the policy says.
    /// Says whether there is room.
    fn make_way(&mut self, block: BlockId, next: NextUse, actions: &mut Vec<Action>) -> bool {
        while !self.has_room(block, self.residency.kept[RAM])
            && self.has_room(block, 0)
            && let Some(victim) = self.policies[RAM].victim(next)
        {
            self.policies[RAM].remove(victim);
            self.drop_pages(victim, actions);
        }
        self.has_room(block, self.residency.kept[RAM])
    }

    pub(super) fn drop_pages(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        self.counters.dropped += 1;
        if self.residency.is_unread(block) {
            let below = self.residency.place(block).is_some() || self.residency.is_placing(block);
            self.counters.wasted_bytes += if below { 0 } else { self.layout.range(block).1 };
            self.residency.mark_unread(block, false);
        }
        self.residency.start_drop(block, self.layout.pages_bytes(block));
        // Seen again before its pages are gone.
        self.regear(self.layout.file_of(block), actions);
        actions.push(Action::Drop { block });
    }

    /// Whether RAM can keep the block beside so much that it keeps already.
    fn has_room(&self, block: BlockId, kept: u64) -> bool {
        let bytes = self.layout.pages_bytes(block);
        let own = if self.residency.is_staged(block) { bytes } else { 0 };
        // Readers may have had more staged than the window has room for.
        let beside = self.window.bytes().max(self.residency.staged - own);
        self.policy != PolicyKind::None
            && kept + bytes + beside + self.parts_used() <= self.settings.tiers[RAM].capacity
    }

    /// Whether RAM would keep a block that is fetched now.
    pub(super) fn can_be_kept(&self, block: BlockId) -> bool {
        self.may_stay(block) && self.has_room(block, self.residency.kept[RAM])
    }

    /// Charges a block whose fetch begins, as kept if RAM has room for it.
    pub(super) fn start_fetch(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let bytes = self.layout.pages_bytes(block);
        let keep = self.can_be_kept(block);
        self.parts.forget(block);
        self.residency.start_fetch(block, bytes, !keep);
        self.regear(self.layout.file_of(block), actions);
    }

    /// Whether RAM may keep a block: what a tier below keeps alone stays there.
    pub(super) fn may_stay(&self, block: BlockId) -> bool {
        let below = self.nearest(block) != Place::Source || self.residency.is_placing(block);
        self.mirrored || !below
    }

    /// Whether a block takes less time from a tier below RAM than from the source.
    pub(super) fn is_worth_it(&self, tier: usize) -> bool {
        let block_us = self.settings.tiers[tier].block_us;
        self.settings.source_us.is_none_or(|source_us| block_us < source_us)
    }

    /// Where a block is fetched from.
    pub(super) fn nearest(&self, block: BlockId) -> Place {
        let tier = self.residency.place(block).filter(|tier| self.is_worth_it(*tier));
        tier.map_or(Place::Source, Place::Tier)
    }

    /// Fetches ahead until the fetches under way or the window are at their limit.
    pub(super) fn stage(&mut self, actions: &mut Vec<Action>) {
        if !self.settings.prefetch || self.settings.start_at_open && self.counters.opens == 0 {
            return;
        }
        let in_time = !self.lags_too_far();
        while self.may_fetch_more() {
            let wait = self.left_to_readers();
            let nearest = self
                .streams
                .iter_mut()
                .enumerate()
                .filter_map(|(index, stream)| {
                    let stream = stream.as_mut().filter(|_| in_time)?;
                    let (block, distance) = stream.candidate()?;
                    let wait = if stream.is_read() { 0 } else { wait };
                    Some((distance + wait, index, block))
                })
                .min();
            let Some((distance, index, block)) = nearest else {
                return self.stage_unread(actions);
            };
            if !self.try_stage(block, actions) {
                if self.give_up_behind(actions) {
                    continue;
                }
                if distance < wait {
                    self.take_back_early(actions);
                }
                if !self.residency.is_dropping(block) && self.waits_for_readers() {
                    self.full_at = Some(self.ticks);
                }
                return;
            }
            if let Some(stream) = self.streams[index].as_mut() {
                stream.advance();
                if !stream.is_read() && self.residency.is_staged(block) {
                    self.note_early(index, block);
                }
            }
        }
    }

    /// Whether most of what is staged has arrived and is not read yet, so that the source could do more.
    fn waits_for_readers(&self) -> bool {
        let coming = u64::from(self.residency.fetching) * self.layout.mean_pages_bytes();
        2 * coming < self.window.bytes()
    }

    /// How many reads it takes until the streams that are read are at the end of their epochs: others,
    /// a validation loader's say, begin then, as far as can be told.
    fn left_to_readers(&self) -> u64 {
        let read = self.streams.iter().flatten().filter(|stream| stream.is_read());
        read.map(|stream| u64::from(stream.left())).max().unwrap_or_default()
    }

    fn note_early(&mut self, index: usize, block: BlockId) {
        // What has been read or given up since is no longer of interest.
        if self.early.len() == self.early.capacity() {
            let idle = |index: usize| self.streams[index].as_ref().is_some_and(|s| !s.is_read());
            let residency = &self.residency;
            self.early.retain(|&(index, block)| residency.is_staged(block) && idle(index));
        }
        self.early.push((index, block));
    }

    /// The window is full, and what is read sooner has no room in it: what was staged for streams that
    /// nobody reads even now goes, and is a candidate again.
    fn take_back_early(&mut self, actions: &mut Vec<Action>) {
        for (index, block) in std::mem::take(&mut self.early) {
            let idle = self.streams[index].as_mut().filter(|stream| !stream.is_read());
            let Some(stream) = idle.filter(|_| self.residency.is_staged(block)) else { continue };
            if self.residency.is_fetching(block) {
                self.early.push((index, block));
            } else if !self.readers.has_open(self.layout.file_of(block)) {
                stream.unstage(block);
                self.settle(block, actions);
            }
        }
    }

    /// Whether another fetch may be under way. Where a tier below takes everything, none begins that
    /// it would not be able to take in time: it would be fetched from the source again.
    pub(super) fn may_fetch_more(&self) -> bool {
        let coming = u64::from(self.residency.fetching) * self.layout.mean_pages_bytes();
        self.residency.fetching < self.settings.inflight_max
            && !(self.mirrored && self.residency.placing_bytes + coming > HOLD_AT)
    }

    /// Where hardly an order is followed, fetches what this epoch has not read, in place of what it
    /// has.
    fn stage_unread(&mut self, actions: &mut Vec<Action>) {
        if self.policy != PolicyKind::UnreadFirst || !self.blind {
            return;
        }
        while self.may_fetch_more()
            && let Some(block) = self.unread.candidate()
        {
            let there = self.residency.is_in(block, RAM) || self.residency.is_fetching(block);
            // A large file is read from where its reader is.
            let small = self.layout.blocks_of(self.layout.file_of(block)).len() == 1;
            let wanted = small
                && self.layout.has(block)
                && !there
                && !self.residency.is_dropping(block)
                && self.may_stay(block);
            if wanted {
                if !self.make_way(block, self.next_use(block, false), actions) {
                    return;
                }
                self.fetch_ahead(block, true, actions);
            }
            self.unread.pass(wanted);
        }
    }

    /// The window is full: what lies behind all readers need not wait there any longer.
    fn give_up_behind(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut over = Vec::new();
        for stream in self.streams.iter_mut().flatten() {
            if stream.give_up_behind() {
                stream.take_over(&mut over);
            }
        }
        let any = !over.is_empty();
        for block in over {
            if !self.readers.has_open(self.layout.file_of(block)) {
                self.settle(block, actions);
            }
        }
        any
    }

    /// The kernel reads a file by itself: RAM needs nothing of it.
    pub(super) fn lent(&mut self, file: FileId, actions: &mut Vec<Action>) {
        self.lent.insert(file);
        for block in self.layout.blocks_of(file) {
            if self.can_go(block) {
                self.give_up(block, RAM, actions);
            }
        }
    }

    /// Whether the kernel reads a file by itself: it was lent, and a tier below has all of it still.
    fn is_lent(&self, file: FileId) -> bool {
        let below = |block| self.residency.place(block).is_some();
        self.lent.contains(&file) && self.layout.blocks_of(file).all(below)
    }

    /// Fetches a block if RAM does not have it; false where it must wait for room.
    pub(super) fn try_stage(&mut self, block: BlockId, actions: &mut Vec<Action>) -> bool {
        if self.residency.is_dropping(block) {
            return false;
        }
        let bytes = self.layout.pages_bytes(block);
        if self.residency.is_in(block, RAM) || self.residency.is_fetching(block) || bytes == 0 {
            return true;
        }
        if self.is_lent(self.layout.file_of(block)) {
            return true;
        }
        let keep = self.can_be_kept(block);
        let window = self.window.bytes();
        let taken = self.residency.staged + self.residency.dropping;
        if !keep && taken + bytes > window {
            // What can never fit is left to its reader.
            return bytes > window;
        }
        self.fetch_ahead(block, keep, actions);
        true
    }

    /// Begins to fetch a block, which is kept or staged.
    fn fetch_ahead(&mut self, block: BlockId, keep: bool, actions: &mut Vec<Action>) {
        self.parts.forget(block);
        self.residency.start_fetch(block, self.layout.pages_bytes(block), !keep);
        // Before the fetch, which makes the kernel know the file.
        self.regear(self.layout.file_of(block), actions);
        self.counters.prefetched += 1;
        let from = self.nearest(block);
        // Of what is open nobody sees which blocks are read.
        let seen = !self.readers.has_open(self.layout.file_of(block));
        self.residency.mark_unread(block, seen && from == Place::Source);
        actions.push(Action::Fetch { block, from });
    }
}

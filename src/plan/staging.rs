//! Fetches blocks into RAM ahead of their reads (*staging*), and decides where they go after their reads.
//!
//! A block that RAM has room to keep is charged as kept. Other blocks are charged as *staged* for one read. After
//! its read a staged block is *settled*: it is kept, or it goes.
//!
//! Of the next blocks of all streams, the one with the soonest read is fetched next. A stream that is not being
//! read (*idle*), a validation loader's say, is expected to begin when the other streams have ended their epochs.
//! Its blocks are dropped if a block that is read sooner needs the room.
//!
//! If a tier shrinks or the window is widened, blocks have to go. Kept blocks must fit beside the window. They go
//! by the policy, as if a block that is read at this moment came in; if the policy names none, the last blocks of
//! the dataset go. If RAM itself has shrunk, staged blocks go too, farthest read first.
//!
//! A kept block cannot be dropped while it is being fetched or read. It is then charged as staged, and settled
//! when it has arrived or its file is closed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::event::{Action, Place, Settings};
use super::forecast::Forecast;
use super::layout::Layout;
use super::ledger::Ledger;
use super::policy::NextUse;
use super::residency::RAM;
use super::stream::Stream;
use crate::ids::{BlockId, FileId, StreamId};
use crate::limiter::FetchLimits;

/// Blocks that are fetched ahead in a file that is read from its start on. If the file is left after two
/// blocks, twice the bytes read are fetched for nothing.
const SEQUENTIAL_AHEAD: u32 = 4;

pub(super) struct Stager {
    pub(super) ledger: Ledger,
    pub(super) forecast: Forecast,
    prefetch: bool,
    start_at_open: bool,
    /// The last tick at which a block had no room in a window full of unread blocks.
    full_at: Option<u64>,
    /// Blocks that arrived as staged, oldest first. Some may no longer be staged.
    arrivals: VecDeque<BlockId>,
    /// Blocks that were staged for idle streams.
    early: Vec<(StreamId, BlockId)>,
    /// Whether all files have to be decided about again (`visibility`).
    pub(super) all_tracking_due: bool,
}

impl Stager {
    pub(super) fn new(settings: &Settings, layout: &Arc<Layout>) -> Self {
        let mut stager = Stager {
            ledger: Ledger::new(settings, layout),
            forecast: Forecast::new(settings.policy, layout),
            prefetch: settings.prefetch,
            start_at_open: settings.start_at_open,
            full_at: None,
            arrivals: VecDeque::new(),
            early: Vec::new(),
            all_tracking_due: false,
        };
        stager.choose_policy();
        stager
    }

    pub(super) fn lay_out(&mut self, layout: &Arc<Layout>) {
        self.ledger.lay_out(layout);
        self.forecast.lay_out(layout);
    }

    /// Follows a stream. Its order may be told anew, with more epochs, while it is being read: it takes over
    /// staged blocks that it would soon stage itself. Its first samples may have been read.
    pub(super) fn follow(&mut self, id: StreamId, mut stream: Stream, actions: &mut Vec<Action>) {
        let (ledger, mut taken) = (&self.ledger, 0);
        stream.expect_staged(|block| {
            let is_staged = ledger.residency.is_staged(block);
            if is_staged || !ledger.residency.is_in(block, RAM) {
                taken += ledger.layout.pages_bytes(block);
            }
            (is_staged, taken > 2 * ledger.window.bytes())
        });
        stream.set_lead(ledger.lead_blocks());
        self.forecast.set(id, Some(stream));
        self.look_anew(actions);
    }

    pub(super) fn withdraw(&mut self, id: StreamId, actions: &mut Vec<Action>) {
        self.forecast.set(id, None);
        self.look_anew(actions);
    }

    /// Orders have come or gone: weighs kept blocks and settles staged ones anew.
    pub(super) fn look_anew(&mut self, actions: &mut Vec<Action>) {
        self.choose_policy();
        for block in self.ledger.blocks() {
            self.settle_closed(block, actions);
        }
        self.all_tracking_due = true;
    }

    fn choose_policy(&mut self) {
        self.forecast.choose_policy();
        self.ledger.weigh_anew(&self.forecast);
    }

    pub(super) fn count(&mut self, block: BlockId) {
        if self.forecast.count(block) {
            self.choose_policy();
        }
    }

    /// A block has been read unseen, as the opens around it show.
    pub(super) fn passed(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        self.ledger.counters.opens += 1;
        self.ledger.counters.hits += 1;
        self.forecast.ticks += 1;
        self.ledger.residency.mark_unread(block, false);
        self.count(block);
        // A block that is being read is not evicted.
        self.ledger.touch_closed(block, &self.forecast);
        self.settle_closed(block, actions);
    }

    pub(super) fn limit_fetches(&mut self, limits: FetchLimits, actions: &mut Vec<Action>) {
        let before = self.ledger.window.bytes();
        self.ledger.limit_fetches(limits);
        let lead = self.ledger.lead_blocks();
        self.forecast.streams_mut().for_each(|stream| stream.set_lead(lead));
        if self.ledger.window.bytes() > before {
            self.fit_kept(RAM, actions);
        }
    }

    /// A read was foreseen. `late`: as in [`Window::note_read`](super::window::Window::note_read).
    pub(super) fn foreseen(&mut self, late: bool, actions: &mut Vec<Action>) {
        let before = self.ledger.window.bytes();
        self.ledger.window.note_read(late);
        if self.ledger.window.bytes() > before {
            self.fit_kept(RAM, actions);
        }
    }

    /// Whether a wider window would have had the block that is read: RAM lacks it, more fetches could have begun,
    /// and the window was full within as many reads as the widest one holds.
    pub(super) fn would_have_helped(&self, block: BlockId) -> bool {
        let reach = self.ledger.window.most() / self.ledger.layout.mean_file_bytes();
        let was_full = self.full_at.is_some_and(|at| self.forecast.ticks - at <= reach);
        let more = self.ledger.fetches_left() > 0 && self.ledger.may_fetch(block);
        was_full && more && !self.ledger.residency.is_in(block, RAM)
    }

    /// A block has arrived, of which so many bytes were fetched.
    pub(super) fn arrived(
        &mut self,
        block: BlockId,
        (from, bytes): (Place, u64),
        actions: &mut Vec<Action>,
    ) {
        let ledger = &mut self.ledger;
        match from {
            Place::Source => ledger.counters.source_bytes += bytes,
            Place::Tier(_) => ledger.counters.tier_bytes += bytes,
            Place::Member => {
                ledger.counters.member_bytes += bytes;
                ledger.residency.mark_unread(block, false);
            }
        }
        if !ledger.residency.is_fetching(block) {
            return;
        }
        ledger.residency.finish_fetch(block);
        if !matches!(from, Place::Tier(_)) && ledger.is_to_be_placed(block) {
            ledger.place(block, &self.forecast, actions);
        }
        if !ledger.residency.is_staged(block) {
            return ledger.touch_closed(block, &self.forecast);
        }
        while self.arrivals.front().is_some_and(|&first| !ledger.residency.is_staged(first)) {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(block);
        self.make_room(actions);
        self.settle_closed(block, actions);
    }

    /// If readers of open files have exceeded the budget, kept blocks give way or the window is widened, or else the blocks
    /// staged first are dropped.
    fn make_room(&mut self, actions: &mut Vec<Action>) {
        self.ledger.fit_parts(&self.forecast, actions);
        let over = |ledger: &Ledger| {
            let used = ledger.residency.kept[RAM] + ledger.residency.staged;
            used > ledger.capacity(RAM).max(ledger.window.bytes())
        };
        while over(&self.ledger)
            && let Some(block) = self.arrivals.pop_front()
        {
            let Ledger { residency, layout, .. } = &self.ledger;
            let file = layout.unit_of(block);
            let small = layout.blocks_of(file).len() < 2;
            // A small file is being read. Its close settles it.
            if small || !residency.is_staged(block) || !residency.is_in(block, RAM) {
                continue;
            }
            // A block of an open large file may be read next.
            if self.ledger.has_open(file) && self.make_room_for_reader(block, actions) {
                self.arrivals.push_front(block);
            } else {
                self.drop_unread(block, actions);
            }
        }
    }

    /// Makes room for a block that a reader of an open file may read next. If an order has the block, a kept block gives
    /// way, and the window stays as it is. Else the window is widened. Says whether there may be room now.
    fn make_room_for_reader(&mut self, block: BlockId, actions: &mut Vec<Action>) -> bool {
        if !self.forecast.is_foreseen(block) {
            let is_wider = self.ledger.window.widen();
            if is_wider {
                self.fit_kept(RAM, actions);
            }
            return is_wider;
        }
        let is_bounded = self.ledger.residency.staged <= self.ledger.window.most();
        let victim = self.ledger.victim(RAM).filter(|_| is_bounded);
        if let Some(victim) = victim {
            self.give_up(victim, RAM, actions);
        }
        victim.is_some()
    }

    /// Settles a block if its file is closed.
    pub(super) fn settle_closed(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if self.ledger.residency.is_staged(block)
            && !self.ledger.has_open(self.ledger.layout.unit_of(block))
        {
            self.settle(block, actions);
        }
    }

    /// Decides about a staged block that no reader is at: it waits for its reads, is kept, or goes.
    pub(super) fn settle(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let Stager { ledger, forecast, .. } = self;
        let residency = &ledger.residency;
        if !residency.is_in(block, RAM) || !residency.is_staged(block) {
            return;
        }
        // The budget is hard, and readers may have fetched more than the window holds.
        let within = residency.kept[RAM] + residency.staged <= ledger.capacity(RAM);
        if within && forecast.streams().any(|stream| stream.is_pending(block)) {
            return;
        }
        let next = forecast.next_use(block, false);
        if ledger.may_stay(block) && ledger.make_way(block, next, forecast, actions) {
            ledger.keep(block);
            ledger.touch(block, forecast);
        } else {
            self.drop_unread(block, actions);
        }
    }

    /// Fetches a block if RAM lacks it. Returns false if the block must wait for room.
    pub(super) fn try_stage(&mut self, block: BlockId, actions: &mut Vec<Action>) -> bool {
        let Stager { ledger, forecast, .. } = self;
        if ledger.is_dropping(block) {
            return false;
        }
        let bytes = ledger.layout.pages_bytes(block);
        if ledger.is_here(block)
            || bytes == 0
            || ledger.is_passed_through(ledger.layout.unit_of(block))
        {
            return true;
        }
        let keep = ledger.can_be_kept(block, forecast);
        let window = ledger.window.bytes();
        let taken = ledger.residency.staged + ledger.residency.dropping;
        if !keep && taken + bytes > window {
            // A block that never fits is left to its reader.
            return bytes > window;
        }
        match keep {
            true => ledger.fetch_run(block, forecast, actions),
            false => ledger.fetch_ahead(block, false, actions),
        }
        true
    }

    /// If a large file is read from its start on, fetches its next blocks and settles those behind.
    pub(super) fn read_on(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let blocks = self.ledger.layout.blocks_of(self.ledger.layout.unit_of(block));
        let nth = self.ledger.layout.nth_of(block);
        if blocks.len() < 2 || nth == 0 || !self.ledger.is_here(BlockId(block.0 - 1)) {
            return;
        }
        self.settle_behind(block, 2, actions);
        if self.prefetch && !self.ledger.is_paused() {
            for ahead in blocks.skip(nth as usize + 1).take(SEQUENTIAL_AHEAD as usize) {
                self.stage_next(ahead, actions);
            }
        }
    }

    /// Settles blocks of a large file that a reader has left behind, from so many before the block where it is.
    pub(super) fn settle_behind(&mut self, block: BlockId, from: u32, actions: &mut Vec<Action>) {
        let nth = self.ledger.layout.nth_of(block);
        for back in from..=nth.min(2 * SEQUENTIAL_AHEAD) {
            self.settle(BlockId(block.0 - back), actions);
        }
    }

    /// Fetches a block that a reader reaches next. If there is no room and orders say too little, it is kept in
    /// place of a block that this epoch has read.
    fn stage_next(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if self.try_stage(block, actions) {
            return;
        }
        let Stager { ledger, forecast, .. } = self;
        let replaces = forecast.is_unread_first()
            && ledger.may_fetch_more()
            && ledger.may_stay(block)
            && !ledger.is_dropping(block);
        let next = NextUse::At(forecast.unread.now());
        if replaces && ledger.make_way(block, next, forecast, actions) {
            ledger.fetch_ahead(block, true, actions);
        }
    }

    /// Fetches the block after one that is read in parts, one after the other.
    pub(super) fn stage_following(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let mut blocks = self.ledger.layout.blocks_of(self.ledger.layout.unit_of(block));
        let next = blocks.find(|next| next.0 == block.0 + 1);
        if let Some(next) = next.filter(|_| self.prefetch && !self.ledger.is_paused()) {
            self.try_stage(next, actions);
        }
    }

    /// Whether a tier below RAM may load a block that has come in parts.
    pub(super) fn may_complete(&self, block: BlockId) -> bool {
        let ledger = &self.ledger;
        self.prefetch && ledger.residency.place(block).is_none() && ledger.has_room_below(block)
    }

    /// Fetches ahead up to the limits of the fetches under way and of the window. `in_time`: blocks of orders
    /// would stay until their reads.
    pub(super) fn stage(&mut self, in_time: bool, actions: &mut Vec<Action>) {
        let waits = self.start_at_open && self.ledger.counters.opens == 0;
        if !self.prefetch || waits {
            return;
        }
        let reads_large = |stream: &&Stream| stream.is_following() && stream.reads_large_files();
        let of_large = self.forecast.streams().filter(reads_large);
        let readers = of_large.map(|stream| stream.workers()).sum();
        if self.ledger.window.fit_readers(readers) {
            self.fit_kept(RAM, actions);
        }
        while self.ledger.may_fetch_more() {
            let wait = self.forecast.left_to_readers();
            let residency = &self.ledger.residency;
            let kept = |block| residency.is_kept(block);
            let candidates = self.forecast.numbered_mut().filter(|_| in_time);
            let nearest = candidates.filter_map(|(id, stream)| {
                let (block, distance) = stream.candidate(kept)?;
                Some((distance + if stream.is_read() { 0 } else { wait }, id, block))
            });
            let Some((distance, id, block)) = nearest.min() else {
                return self.stage_unread(actions);
            };
            if !self.ledger.is_here(block) && !self.ledger.may_fetch(block) {
                return;
            }
            if self.try_stage(block, actions) {
                self.staged(id, block);
            } else if !self.give_up_behind(actions) {
                return self.wait(block, distance < wait, actions);
            }
        }
    }

    /// A stream's next block is here, or being fetched.
    fn staged(&mut self, id: StreamId, block: BlockId) {
        let Some(stream) = self.forecast.stream_mut(id) else { return };
        stream.advance();
        if stream.is_read() || !self.ledger.residency.is_staged(block) {
            return;
        }
        // Forgets blocks that were read or given up.
        if self.early.len() == self.early.capacity() {
            let (forecast, residency) = (&self.forecast, &self.ledger.residency);
            let idle = |id| forecast.stream(id).is_some_and(|stream| !stream.is_read());
            self.early.retain(|&(id, block)| residency.is_staged(block) && idle(id));
        }
        self.early.push((id, block));
    }

    /// A block has to wait for room in the window. `soon`: it is read before those staged for idle streams.
    fn wait(&mut self, block: BlockId, soon: bool, actions: &mut Vec<Action>) {
        if soon {
            self.take_back_early(actions);
        }
        if !self.ledger.is_dropping(block) && self.ledger.waits_for_readers() {
            self.full_at = Some(self.forecast.ticks);
        }
    }

    /// A block that is read sooner has no room: drops the blocks staged for streams that are still idle. They
    /// become candidates again.
    fn take_back_early(&mut self, actions: &mut Vec<Action>) {
        for (id, block) in std::mem::take(&mut self.early) {
            let Ledger { residency, layout, .. } = &self.ledger;
            let idle = self.forecast.stream_mut(id).filter(|stream| !stream.is_read());
            let Some(stream) = idle.filter(|_| residency.is_staged(block)) else { continue };
            if residency.is_fetching(block) {
                self.early.push((id, block));
            } else if !self.ledger.has_open(layout.unit_of(block)) {
                stream.unstage(block);
                self.settle(block, actions);
            }
        }
    }

    /// If orders say too little, fetches blocks that this epoch has not read in place of read ones.
    fn stage_unread(&mut self, actions: &mut Vec<Action>) {
        let Stager { ledger, forecast, .. } = self;
        if !forecast.is_unread_first() {
            return;
        }
        while ledger.may_fetch_more()
            && let Some(block) = forecast.unread.candidate()
        {
            // A large file is fetched only ahead of its reader.
            let small = ledger.layout.blocks_of(ledger.layout.unit_of(block)).len() == 1;
            let wanted = small
                && ledger.layout.has(block)
                && !ledger.is_here(block)
                && !ledger.is_dropping(block)
                && ledger.may_stay(block);
            if wanted {
                let next = forecast.next_use(block, false);
                if !ledger.may_fetch(block) || !ledger.make_way(block, next, forecast, actions) {
                    return;
                }
                ledger.fetch_ahead(block, true, actions);
            }
            forecast.unread.pass(wanted);
        }
    }

    /// The window is full: gives up staged blocks behind all readers. Returns whether there were any.
    fn give_up_behind(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut over = Vec::new();
        for stream in self.forecast.streams_mut() {
            if stream.give_up_behind() {
                over.append(&mut stream.news.over);
            }
        }
        let any = !over.is_empty();
        over.into_iter().for_each(|block| self.settle_closed(block, actions));
        any
    }

    pub(super) fn note_passthrough(&mut self, file: FileId, actions: &mut Vec<Action>) {
        self.ledger.note_passthrough(file);
        for block in self.ledger.layout.blocks_of(file) {
            if self.ledger.can_go(block) {
                self.give_up(block, RAM, actions);
            }
        }
    }

    pub(super) fn resized(&mut self, tier: usize, capacity: u64, actions: &mut Vec<Action>) {
        if self.ledger.resize(tier, capacity) {
            self.fit_kept(tier, actions);
            if tier == RAM {
                self.unstage(actions);
            }
        }
    }

    /// Gives up blocks that a tier keeps beyond its capacity, of which the window has its part in RAM.
    fn fit_kept(&mut self, tier: usize, actions: &mut Vec<Action>) {
        let window = if tier == RAM { self.ledger.window.bytes() } else { 0 };
        let over = |ledger: &Ledger| ledger.residency.kept[tier] + window > ledger.capacity(tier);
        while over(&self.ledger)
            && let Some(victim) = self.ledger.victim(tier)
        {
            self.give_up(victim, tier, actions);
        }
        for block in self.ledger.blocks().rev() {
            if !over(&self.ledger) {
                break;
            }
            let residency = &self.ledger.residency;
            let kept = residency.is_in(block, tier) || tier == RAM && residency.is_fetching(block);
            if kept && !(tier == RAM && residency.is_staged(block)) {
                self.give_up(block, tier, actions);
            }
        }
    }

    pub(super) fn give_up(&mut self, block: BlockId, tier: usize, actions: &mut Vec<Action>) {
        if tier != RAM {
            self.ledger.displace(block, tier, actions);
        } else if self.ledger.can_go(block) {
            self.drop_unread(block, actions);
        } else {
            self.ledger.unkeep(block);
        }
    }

    fn unstage(&mut self, actions: &mut Vec<Action>) {
        let over = |ledger: &Ledger| {
            ledger.residency.kept[RAM] + ledger.residency.staged > ledger.capacity(RAM)
        };
        if !over(&self.ledger) {
            return;
        }
        let ledger = &self.ledger;
        let may_go = |block: &BlockId| ledger.residency.is_staged(*block) && ledger.can_go(*block);
        let soonest = |block| (self.forecast.soonest(block).unwrap_or(u64::MAX), block);
        let mut staged: Vec<_> = ledger.blocks().filter(may_go).map(soonest).collect();
        staged.sort_unstable();
        while over(&self.ledger)
            && let Some((_, block)) = staged.pop()
        {
            self.drop_unread(block, actions);
        }
    }

    /// Drops a block. If a stream waits for it, it is staged again when its turn comes.
    fn drop_unread(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        self.ledger.drop_pages(block, actions);
        self.forecast.streams_mut().for_each(|stream| stream.unstage(block));
    }
}

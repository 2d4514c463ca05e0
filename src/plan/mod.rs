//! The planner: what is fetched, kept and dropped, and when. Events in, actions out.
//!
//! In the order it happens:
//!
//! 1. A [`Stream`](stream) is given an order. Its cursor runs ahead of its reader; each block that
//!    it meets and that RAM does not hold becomes a [`Action::Fetch`], many under way at once.
//!    Where RAM has room to keep the block it is charged as *kept* and the cursor may run through
//!    the whole epoch; else it is *staged*, and the staged bytes are bounded by the window.
//! 2. What arrives from the source and will not stay in RAM is offered to the tiers below
//!    ([`Action::Place`]), where it stays. Where a tier below holds all the data, everything is
//!    offered to it: the kernel may take pages back at any time, and so nothing is fetched from
//!    the source twice.
//! 3. An open moves the stream's position. A read that finds nothing ([`Event::Missed`]) is
//!    already being fetched by the shell when the planner hears of it: the planner only accounts
//!    for it. A read never waits for the planner.
//! 4. When the last handle of a file is closed and no staged read of it is left, the policy weighs
//!    the block against what is kept: it is kept, in place of another perhaps, or dropped.
//!
//! The policy follows from what is known ([`PolicyKind::Auto`]). One stream that reads everything
//! once an epoch, or no order at all: unread first, which keeps a fixed share and never churns, for
//! nothing can do better there. Several streams or repeats: Bélády's rule over the nearest next use
//! of all streams.
//!
//! The planner is total: it never fails, never blocks, and any sequence of events leaves its
//! accounts true.

mod epoch;
mod layout;
mod policy;
mod residency;
mod stream;
mod task;
mod unread;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{BlockId, FileId, StreamId};
use crate::order::Order;
pub use layout::Layout;
use policy::{Belady, Lru, Minio, NextUse, Policy};
pub use residency::RAM;
use residency::Residency;
use stream::Stream;
pub use stream::StreamStatus;
use task::Task;
use unread::Unread;

/// How many blocks are fetched ahead inside a file that is read from its start to its end.
const SEQUENTIAL_AHEAD: u32 = 4;

/// Within how many positions a second open of a file is taken for the read that the order has.
const DUE: u32 = 8;

/// How many tasks are remembered with the stream that they read for.
const TASKS_MAX: usize = 4096;

/// Which blocks stay when a tier is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// The best for what is known about the order.
    #[default]
    Auto,
    /// Evict what is read again last.
    Belady,
    /// Evict what was read longest ago.
    Lru,
    /// Keep what came first.
    Minio,
    /// Evict what this epoch has read already.
    UnreadFirst,
    /// Keep nothing but the window.
    None,
}

/// One tier of the cache, from the fastest to the slowest; the first is RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Bytes it may hold.
    pub capacity: u64,
}

/// What the planner is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tiers, RAM first. A tier below may fail, vanish or not have what it should: the shell
    /// then reads the source and says so with an event.
    pub tiers: Vec<Tier>,
    /// Which blocks stay.
    pub policy: PolicyKind,
    /// Whether anything is fetched before it is asked for.
    pub prefetch: bool,
    /// Fetches under way at once.
    pub inflight_max: u32,
    /// Bytes staged ahead and not kept; none: [`WINDOW_BLOCKS`] blocks of mean size.
    pub window_bytes: Option<u64>,
    /// Whether prefetching waits for the first open.
    pub start_at_open: bool,
}

/// Blocks of mean size in the window where its bytes are not set: as many as are in flight on a
/// source with tens of milliseconds, and few against any share that is worth keeping.
pub const WINDOW_BLOCKS: u64 = 28;

/// Where a block is fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The source.
    Source,
    /// A tier below RAM.
    Tier(usize),
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A stream's order is known.
    Ordered {
        /// The stream.
        stream: StreamId,
        /// Its order.
        order: Arc<Order>,
    },
    /// A stream's order is withdrawn.
    Withdrawn {
        /// The stream.
        stream: StreamId,
    },
    /// A task opened a file to read it.
    Opened {
        /// Thread id of the reader.
        task: u32,
        /// The file.
        file: FileId,
    },
    /// A read found no pages; the shell has begun a fetch, or joined one.
    Missed {
        /// The block read.
        block: BlockId,
    },
    /// The last handle of a file was closed.
    Closed {
        /// The file.
        file: FileId,
    },
    /// A fetch has ended and the block's pages are in RAM.
    Arrived {
        /// The block.
        block: BlockId,
        /// Where its bytes came from.
        from: Place,
    },
    /// A fetch has ended without bytes.
    Failed {
        /// The block.
        block: BlockId,
    },
    /// The pages of a block have been dropped.
    Dropped {
        /// The block.
        block: BlockId,
    },
    /// A copy has been written to a tier below RAM, or could not be.
    Placed {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: usize,
        /// Whether the copy is there.
        done: bool,
    },
    /// A tier does not have what it should.
    NotHere {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: usize,
    },
    /// A tier has another capacity from now on; 0: it is gone with all that it held.
    Resized {
        /// The tier.
        tier: usize,
        /// Bytes.
        capacity: u64,
    },
    /// Files were added or changed. What is cached of the changed ones is void.
    Changed {
        /// The layout with the new files and sizes.
        layout: Arc<Layout>,
        /// The files that changed.
        files: Vec<FileId>,
    },
}

/// What the shell is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bring a block into RAM.
    Fetch {
        /// The block.
        block: BlockId,
        /// Where it is.
        from: Place,
    },
    /// Drop a block's pages.
    Drop {
        /// The block.
        block: BlockId,
    },
    /// Write a copy of a block that has just arrived to a tier below RAM.
    Place {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: usize,
    },
    /// Give up a block's copy in a tier below RAM.
    Displace {
        /// The block.
        block: BlockId,
        /// The tier.
        tier: usize,
    },
}

/// What has been decided and seen so far; all are totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Opens of files that have content.
    pub opens: u64,
    /// Opens whose first block was in RAM.
    pub hits: u64,
    /// Opens whose first block was on its way.
    pub late: u64,
    /// Opens whose first block nobody had asked for.
    pub cold: u64,
    /// Blocks fetched ahead of their read.
    pub prefetched: u64,
    /// Blocks fetched because a read waited.
    pub demanded: u64,
    /// Blocks whose pages the kernel had taken back before they were read.
    pub lost: u64,
    /// Fetches that failed.
    pub failed: u64,
    /// Blocks dropped or evicted from RAM.
    pub dropped: u64,
    /// Blocks written to tiers below RAM.
    pub placed: u64,
    /// Bytes that came from the source.
    pub source_bytes: u64,
    /// Bytes that came from tiers below RAM.
    pub tier_bytes: u64,
}

/// Bytes that are charged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounts {
    /// Kept bytes by tier, RAM first.
    pub kept: Vec<u64>,
    /// Bytes staged in RAM for the coming reads.
    pub staged: u64,
    /// Bytes being dropped.
    pub dropping: u64,
    /// Bytes of the window.
    pub window: u64,
    /// Fetches under way.
    pub fetching: u32,
}

/// The owner of all decisions about one source's blocks.
pub struct Planner {
    settings: Settings,
    layout: Arc<Layout>,
    residency: Residency,
    streams: Vec<Option<Stream>>,
    /// What is kept, by tier, as the policy in force sees it.
    policies: Vec<Box<dyn Policy>>,
    policy: PolicyKind,
    /// Open handles of each open file.
    open: BTreeMap<FileId, u32>,
    /// The stream that a task reads for, and its last few blocks.
    tasks: BTreeMap<u32, Task>,
    unread: Unread,
    window: u64,
    /// Whether a tier below RAM has room for all the data.
    mirrored: bool,
    ticks: u64,
    counters: Counters,
}

impl Planner {
    /// A planner for files of this layout.
    pub fn new(settings: Settings, layout: Arc<Layout>) -> Self {
        let residency = Residency::new(layout.blocks(), settings.tiers.len());
        let mut planner = Planner {
            residency,
            streams: Vec::new(),
            policies: Vec::new(),
            policy: PolicyKind::None,
            open: BTreeMap::new(),
            tasks: BTreeMap::new(),
            unread: Unread::new(layout.blocks()),
            window: 0,
            mirrored: false,
            ticks: 0,
            counters: Counters::default(),
            settings,
            layout,
        };
        planner.size_tiers();
        planner.choose_policy();
        planner
    }

    /// Takes one event and appends what is to be done to `actions`.
    pub fn apply(&mut self, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Ordered { stream, order } => {
                let follower = Stream::new(order, &self.layout);
                if self.streams.len() <= stream.index() {
                    self.streams.resize_with(stream.index() + 1, || None);
                }
                self.streams[stream.index()] = Some(follower);
                self.choose_policy();
                self.sweep(actions);
            }
            Event::Withdrawn { stream } => {
                if let Some(slot) = self.streams.get_mut(stream.index()) {
                    *slot = None;
                }
                self.choose_policy();
                self.sweep(actions);
            }
            Event::Opened { task, file } => self.opened(task, file, actions),
            Event::Missed { block } => self.missed(block, actions),
            Event::Closed { file } => self.closed(file, actions),
            Event::Arrived { block, from } => self.arrived(block, from, actions),
            Event::Failed { block } => {
                self.counters.failed += 1;
                self.residency.forget(block, self.layout.pages_bytes(block));
            }
            Event::Dropped { block } => {
                self.residency.finish_drop(block, self.layout.pages_bytes(block));
            }
            Event::Placed { block, tier, done } => self.placed(block, tier, done),
            Event::NotHere { block, tier } => {
                self.policies[tier].remove(block);
                self.residency.displace(block, tier, self.layout.range(block).1);
            }
            Event::Resized { tier, capacity } => self.resized(tier, capacity, actions),
            Event::Changed { layout, files } => self.changed(layout, &files, actions),
        }
        self.stage(actions);
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What is charged at this moment.
    pub fn accounts(&self) -> Accounts {
        Accounts {
            kept: self.residency.kept.clone(),
            staged: self.residency.staged,
            dropping: self.residency.dropping,
            window: self.window,
            fetching: self.residency.fetching,
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// Where each stream stands.
    pub fn streams(&self) -> impl Iterator<Item = (StreamId, StreamStatus)> + '_ {
        self.streams.iter().enumerate().filter_map(|(index, stream)| {
            stream.as_ref().map(|stream| (StreamId(index as u16), stream.status()))
        })
    }

    fn opened(&mut self, task: u32, file: FileId, actions: &mut Vec<Action>) {
        *self.open.entry(file).or_default() += 1;
        let Some(block) = self.layout.blocks_of(file).next() else { return };
        self.counters.opens += 1;
        self.ticks += 1;
        if self.residency.is_in(block, RAM) {
            self.counters.hits += 1;
        } else if self.residency.is_fetching(block) {
            self.counters.late += 1;
        } else {
            self.counters.cold += 1;
        }
        if self.tasks.len() > TASKS_MAX {
            self.tasks.clear();
        }
        let mut reader = self.tasks.remove(&task).unwrap_or_default();
        // A loader may open a file twice (to look at its header, say): one read all the same,
        // unless the order has the second one just here.
        let due = |stream: &Stream| stream.sighting(block).is_some_and(|(_, far)| far < DUE);
        if !reader.opens(block) || self.streams.iter().flatten().any(due) {
            self.unread.read(block);
            self.follow(&mut reader, block, actions);
            self.touch(block);
        }
        self.tasks.insert(task, reader);
    }

    /// Moves the stream that the open belongs to: the task's own where it can be, else the one
    /// that expects the block soonest.
    fn follow(&mut self, reader: &mut Task, block: BlockId, actions: &mut Vec<Action>) {
        let sighting = |index: usize| self.streams.get(index)?.as_ref()?.sighting(block);
        let own = reader.stream.filter(|stream| sighting(stream.index()).is_some());
        let expecting = || {
            (0..self.streams.len())
                .filter_map(|index| sighting(index).map(|(_, far)| (far, index)))
                .min()
                .map(|(_, index)| StreamId(index as u16))
        };
        let mut read = false;
        if let Some(id) = own.or_else(expecting)
            && let Some((position, _)) = sighting(id.index())
            && let Some(stream) = self.streams[id.index()].as_mut()
        {
            for position in reader.sees(id, position, stream.len()) {
                stream.reach(position, self.ticks, &self.layout);
                read = true;
            }
        } else {
            reader.strays();
        }
        let mut changed = false;
        let mut over = Vec::new();
        for stream in self.streams.iter_mut().flatten() {
            if !read && stream.contains(block) {
                changed |= stream.stray(block, &self.layout);
            }
            over.append(&mut stream.take_over());
        }
        if changed {
            self.choose_policy();
            self.sweep(actions);
        }
        for block in over {
            if !self.open.contains_key(&self.layout.file_of(block)) {
                self.settle(block, actions);
            }
        }
    }

    /// Settles every staged block that nobody holds open: what they were staged for has changed.
    fn sweep(&mut self, actions: &mut Vec<Action>) {
        for block in (0..self.layout.blocks() as u32).map(BlockId) {
            if self.residency.is_staged(block)
                && !self.open.contains_key(&self.layout.file_of(block))
            {
                self.settle(block, actions);
            }
        }
    }

    fn missed(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if self.residency.is_fetching(block) {
            return;
        }
        if self.residency.is_in(block, RAM) {
            self.counters.lost += 1;
            self.residency.restart_fetch(block);
        } else {
            self.counters.demanded += 1;
            self.start_fetch(block);
        }
        self.read_on(block, actions);
    }

    /// A large file that is read from its start to its end has its next blocks fetched, and what
    /// lies behind is done with.
    fn read_on(&mut self, block: BlockId, actions: &mut Vec<Action>) {
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
                self.try_stage(ahead, actions);
            }
        }
    }

    fn closed(&mut self, file: FileId, actions: &mut Vec<Action>) {
        match self.open.get_mut(&file) {
            Some(handles) if *handles > 1 => {
                *handles -= 1;
                return;
            }
            _ => self.open.remove(&file),
        };
        for block in self.layout.blocks_of(file) {
            self.settle(block, actions);
        }
    }

    fn arrived(&mut self, block: BlockId, from: Place, actions: &mut Vec<Action>) {
        let bytes = self.layout.range(block).1;
        match from {
            Place::Source => self.counters.source_bytes += bytes,
            Place::Tier(_) => self.counters.tier_bytes += bytes,
        }
        if !self.residency.is_fetching(block) {
            return;
        }
        self.residency.finish_fetch(block);
        if from == Place::Source && (self.mirrored || self.residency.is_staged(block)) {
            self.place(block, actions);
        }
        if self.residency.is_staged(block) {
            if !self.open.contains_key(&self.layout.file_of(block)) {
                self.settle(block, actions);
            }
        } else {
            self.touch(block);
        }
    }

    /// Offers a block that will not stay in RAM to the tiers below.
    fn place(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let bytes = self.layout.range(block).1;
        if self.residency.place(block).is_some() || self.residency.is_placing(block) || bytes == 0 {
            return;
        }
        let next = self.next_use(block, true);
        for tier in RAM + 1..self.settings.tiers.len() {
            let capacity = self.settings.tiers[tier].capacity;
            if bytes > capacity {
                continue;
            }
            if self.residency.kept[tier] + bytes > capacity {
                let Some(victim) = self.policies[tier].victim(next) else { continue };
                self.policies[tier].remove(victim);
                self.residency.displace(victim, tier, self.layout.range(victim).1);
                actions.push(Action::Displace { block: victim, tier });
            }
            if self.residency.kept[tier] + bytes <= capacity {
                self.residency.start_place(block, tier, bytes);
                actions.push(Action::Place { block, tier });
                return;
            }
        }
    }

    fn placed(&mut self, block: BlockId, tier: usize, done: bool) {
        if !self.residency.is_placing(block) {
            return;
        }
        self.residency.finish_place(block, tier, self.layout.range(block).1, done);
        if done {
            self.counters.placed += 1;
            let next = self.next_use(block, false);
            self.policies[tier].touch(block, next);
        }
    }

    /// Decides about a staged block that nobody holds open: it waits for the reads it was staged
    /// for, stays, or goes.
    fn settle(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if !self.residency.is_in(block, RAM)
            || !self.residency.is_staged(block)
            || self.streams.iter().flatten().any(|stream| stream.is_pending(block))
        {
            return;
        }
        let bytes = self.layout.pages_bytes(block);
        let next = self.next_use(block, false);
        if self.may_stay(block) {
            if !self.has_room(bytes)
                && bytes + self.window <= self.settings.tiers[RAM].capacity
                && let Some(victim) = self.policies[RAM].victim(next)
            {
                self.policies[RAM].remove(victim);
                self.drop_pages(victim, actions);
            }
            if self.has_room(bytes) {
                self.residency.keep(block, bytes);
                self.policies[RAM].touch(block, next);
                return;
            }
        }
        self.drop_pages(block, actions);
    }

    fn drop_pages(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        self.counters.dropped += 1;
        self.residency.start_drop(block, self.layout.pages_bytes(block));
        actions.push(Action::Drop { block });
    }

    /// Whether RAM can keep so many bytes more beside its window.
    fn has_room(&self, bytes: u64) -> bool {
        self.policy != PolicyKind::None
            && self.residency.kept[RAM] + bytes + self.window <= self.settings.tiers[RAM].capacity
    }

    /// Charges a block whose fetch begins, as kept if RAM has room for it.
    fn start_fetch(&mut self, block: BlockId) {
        let bytes = self.layout.pages_bytes(block);
        let keep = self.may_stay(block) && self.has_room(bytes);
        self.residency.start_fetch(block, bytes, !keep);
    }

    /// Whether RAM may keep a block: what a tier below keeps alone stays there.
    fn may_stay(&self, block: BlockId) -> bool {
        let below = self.residency.place(block).is_some() || self.residency.is_placing(block);
        self.mirrored || !below
    }

    /// Fetches ahead until the fetches under way or the window are at their limit.
    fn stage(&mut self, actions: &mut Vec<Action>) {
        if !self.settings.prefetch || self.settings.start_at_open && self.counters.opens == 0 {
            return;
        }
        while self.residency.fetching < self.settings.inflight_max {
            let nearest = self
                .streams
                .iter_mut()
                .enumerate()
                .filter_map(|(index, stream)| {
                    let (block, distance) = stream.as_mut()?.candidate()?;
                    Some((distance, index, block))
                })
                .min();
            let Some((_, index, block)) = nearest else { return };
            if !self.try_stage(block, actions) {
                return;
            }
            if let Some(stream) = self.streams[index].as_mut() {
                stream.advance();
            }
        }
    }

    /// Fetches a block if RAM does not have it; false where it must wait for room.
    fn try_stage(&mut self, block: BlockId, actions: &mut Vec<Action>) -> bool {
        if self.residency.is_dropping(block) {
            return false;
        }
        let bytes = self.layout.pages_bytes(block);
        if self.residency.is_in(block, RAM) || self.residency.is_fetching(block) || bytes == 0 {
            return true;
        }
        let keep = self.may_stay(block) && self.has_room(bytes);
        if !keep && self.residency.staged + self.residency.dropping + bytes > self.window {
            // What can never fit is left to its reader.
            return bytes > self.window;
        }
        self.residency.start_fetch(block, bytes, !keep);
        self.counters.prefetched += 1;
        let from = self.residency.place(block).map_or(Place::Source, Place::Tier);
        actions.push(Action::Fetch { block, from });
        true
    }

    fn next_use(&self, block: BlockId, past_cursor: bool) -> NextUse {
        if !self.streams.iter().flatten().any(Stream::is_following) {
            return NextUse::At(self.unread.next_epoch(block));
        }
        self.streams
            .iter()
            .flatten()
            .filter_map(|stream| {
                let (ticks, epochs) = stream.next_use(block, past_cursor)?;
                let by_epoch = self.policy == PolicyKind::UnreadFirst;
                Some(if by_epoch {
                    u64::from(stream.number()) + epochs
                } else {
                    self.ticks + ticks
                })
            })
            .min()
            .map_or(NextUse::Never, NextUse::At)
    }

    /// Tells the policies of the tiers that keep the block when it is read next.
    fn touch(&mut self, block: BlockId) {
        let next = self.next_use(block, false);
        for tier in 0..self.settings.tiers.len() {
            let kept = tier != RAM || !self.residency.is_staged(block);
            if kept && self.residency.is_in(block, tier) {
                self.policies[tier].touch(block, next);
            }
        }
    }

    fn resized(&mut self, tier: usize, capacity: u64, actions: &mut Vec<Action>) {
        self.settings.tiers[tier].capacity = capacity;
        if tier != RAM {
            if capacity == 0 {
                self.residency.clear_tier(tier);
                self.choose_policy();
            }
            self.size_tiers();
            return;
        }
        self.size_tiers();
        let excess: Vec<BlockId> = {
            let mut over = (self.residency.kept[RAM] + self.window).saturating_sub(capacity);
            let layout = &self.layout;
            self.residency
                .kept_in(RAM)
                .take_while(|&block| {
                    let take = over > 0;
                    over = over.saturating_sub(layout.pages_bytes(block));
                    take
                })
                .collect()
        };
        for block in excess {
            self.policies[RAM].remove(block);
            self.drop_pages(block, actions);
        }
    }

    fn changed(&mut self, layout: Arc<Layout>, files: &[FileId], actions: &mut Vec<Action>) {
        for block in files.iter().flat_map(|&file| self.layout.blocks_of(file)) {
            self.residency.forget(block, self.layout.pages_bytes(block));
            self.residency.finish_drop(block, self.layout.pages_bytes(block));
            for tier in 0..self.settings.tiers.len() {
                self.policies[tier].remove(block);
                if tier != RAM {
                    self.residency.displace(block, tier, self.layout.range(block).1);
                    actions.push(Action::Displace { block, tier });
                }
            }
        }
        self.layout = layout;
        self.size_tiers();
        self.residency.grow(self.layout.blocks());
        self.unread.grow(self.layout.blocks());
    }

    fn size_tiers(&mut self) {
        let total = self.layout.total_bytes();
        self.mirrored = self.settings.tiers[RAM + 1..].iter().any(|tier| tier.capacity >= total);
        let auto = WINDOW_BLOCKS * self.layout.mean_pages_bytes();
        let wanted = self.settings.window_bytes.unwrap_or(auto);
        self.window = wanted.min(self.settings.tiers[RAM].capacity);
    }

    /// Settles on a policy for what is known, and shows it everything that is kept.
    fn choose_policy(&mut self) {
        let following: Vec<&Stream> =
            self.streams.iter().flatten().filter(|stream| stream.is_following()).collect();
        self.policy = match (self.settings.policy, following.as_slice()) {
            (PolicyKind::Auto, []) => PolicyKind::UnreadFirst,
            (PolicyKind::Auto, [one]) if one.is_permutation() => PolicyKind::UnreadFirst,
            (PolicyKind::Auto, _) => PolicyKind::Belady,
            (set, _) => set,
        };
        let policy: fn() -> Box<dyn Policy> = match self.policy {
            PolicyKind::Lru => || Box::new(Lru::default()),
            PolicyKind::Minio | PolicyKind::None => || Box::new(Minio),
            _ => || Box::new(Belady::default()),
        };
        self.policies = self.settings.tiers.iter().map(|_| policy()).collect();
        for tier in 0..self.settings.tiers.len() {
            let kept: Vec<BlockId> = self.residency.kept_in(tier).collect();
            for block in kept {
                let next = self.next_use(block, false);
                self.policies[tier].touch(block, next);
            }
        }
    }
}

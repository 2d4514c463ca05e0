//! The planner: what is fetched, kept and dropped, and when. Events in, actions out.
//!
//! In the order it happens:
//!
//! 1. A stream is given an order. Ahead of its reader, each block that RAM does not
//!    hold becomes an [`Action::Fetch`], soonest use first, many under way at once. Where RAM has
//!    room to keep the block it is charged as *kept*, and staging may run through the whole epoch;
//!    else it is *staged* for its read alone, and such bytes are bounded by the window.
//! 2. What arrives from the source and will not stay in RAM is offered to the tiers below
//!    ([`Action::Place`]), where it stays. Where a tier below holds all the data, everything is
//!    offered to it: the kernel may take pages back at any time, and so nothing is fetched from
//!    the source twice.
//! 3. An open moves the stream's position. A read that finds nothing ([`Event::Missed`]) is
//!    already being fetched by the shell when the planner hears of it: the planner only accounts
//!    for it. A read never waits for the planner.
//! 4. The kernel may take any page back at any time. What is read soon is checked
//!    ([`Action::Check`]) and fetched again where it got lost.
//! 5. When the last handle of a file is closed and no staged read of it is left, the policy weighs
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
mod event;
mod layout;
mod policy;
mod residency;
mod resize;
mod staging;
mod stream;
mod task;
mod unread;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::ids::{BlockId, FileId, StreamId};
pub use event::{
    Accounts, Action, Counters, Event, Place, PolicyKind, Settings, Tier, WINDOW_BLOCKS,
};
pub use layout::Layout;
use policy::{Belady, Lru, Minio, NextUse, Policy};
pub use residency::RAM;
use residency::Residency;
use stream::Stream;
pub use stream::StreamStatus;
use task::Task;
use unread::Unread;

/// Within how many positions a second open of a file is taken for the read that the order has.
const DUE: u32 = 8;

/// How many tasks are remembered with the stream that they read for.
const TASKS_MAX: usize = 4096;

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
    /// Blocks that arrived to be staged, oldest first; what has become of them since is not noted.
    arrivals: VecDeque<BlockId>,
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
            arrivals: VecDeque::new(),
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
        // A block of a file that has grown may be read before the growth is told.
        if event.block().is_some_and(|block| !self.residency.knows(block)) {
            return;
        }
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
            Event::Missed { block, task } => self.missed(block, task, actions),
            Event::Closed { file } => self.closed(file, actions),
            Event::Arrived { block, from } => self.arrived(block, from, actions),
            Event::Failed { block } => {
                self.counters.failed += 1;
                self.residency.forget(block, self.layout.pages_bytes(block));
            }
            Event::Lost { block } => self.lost(block, actions),
            Event::Dropped { block } => {
                self.residency.finish_drop(block, self.layout.pages_bytes(block));
            }
            Event::Placed { block, tier, done } => self.placed(block, tier, done),
            Event::NotHere { block, tier } => {
                self.policies[tier].remove(block);
                self.residency.displace(block, tier, self.layout.stored_bytes(block));
            }
            Event::Resized { tier, capacity } => self.resized(tier, capacity, actions),
            Event::Changed { layout, files } => self.changed(layout, &files, actions),
        }
        for stream in self.streams.iter_mut().flatten() {
            let in_ram = |block: &BlockId| self.residency.is_in(*block, RAM);
            let due = stream.take_due().into_iter().filter(in_ram);
            actions.extend(due.map(|block| Action::Check { block }));
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
        // What is being read is no victim, though its next use may well be the farthest.
        for block in self.layout.blocks_of(file) {
            self.policies[RAM].remove(block);
        }
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
            self.follow(task, &mut reader, block, actions);
        }
        self.tasks.insert(task, reader);
    }

    /// Moves the stream that the open belongs to: the task's own where it can be, else the one
    /// that expects the block soonest.
    fn follow(&mut self, task: u32, reader: &mut Task, block: BlockId, actions: &mut Vec<Action>) {
        let sighting = |index: usize| self.streams.get(index)?.as_ref()?.sighting(block);
        let own = reader.stream.filter(|stream| sighting(stream.index()).is_some());
        let expecting = || {
            (0..self.streams.len())
                .filter_map(|index| sighting(index).map(|(_, far)| (far, index)))
                .min()
                .map(|(_, index)| StreamId(index as u16))
        };
        let mut read = false;
        let ranged = |stream: &Stream| stream.is_ranged() && stream.contains(block);
        let blocks = self.layout.blocks_of(self.layout.file_of(block)).len() as u64;
        // Opening a large file does not say which range of it will be read.
        if blocks > 1 && self.streams.iter().flatten().any(ranged) {
            return;
        }
        if let Some(id) = own.or_else(expecting)
            && let Some((position, _)) = sighting(id.index())
            && let Some(stream) = self.streams[id.index()].as_mut()
        {
            for position in reader.sees(id, position, stream.len(), blocks) {
                stream.reach(position, task, self.ticks, &self.layout);
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
            let file = self.layout.file_of(block);
            if self.open.contains_key(&file) {
                continue;
            }
            // Closed before its task was trusted: the rest of the sample is over too.
            for stream in self.streams.iter_mut().flatten() {
                stream.finish_sample(self.layout.blocks_of(file), &self.layout);
            }
            for block in self.layout.blocks_of(file) {
                self.settle(block, actions);
            }
        }
    }

    /// Pages of a block in RAM are gone, and nobody has missed them yet.
    fn lost(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if !self.residency.is_in(block, RAM) || self.residency.is_fetching(block) {
            return;
        }
        self.counters.restored += 1;
        self.residency.restart_fetch(block);
        let from = self.residency.place(block).map_or(Place::Source, Place::Tier);
        actions.push(Action::Fetch { block, from });
    }

    fn missed(&mut self, block: BlockId, task: u32, actions: &mut Vec<Action>) {
        self.pass(block, task, actions);
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

    /// A large file's descriptor may be opened once and read all over: there it is the reads that
    /// find nothing which show where their task stands. What the order has between two of them has
    /// been read without being seen.
    fn pass(&mut self, block: BlockId, task: u32, actions: &mut Vec<Action>) {
        if self.layout.blocks_of(self.layout.file_of(block)).len() < 2 {
            return;
        }
        let mut reader = self.tasks.remove(&task).unwrap_or_default();
        let mut over = Vec::new();
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let Some(stream) = stream else { continue };
            let Some((position, far)) = stream.sighting(block) else { continue };
            let low = position - u64::from(far);
            for position in reader.reads(StreamId(index as u16), position, low) {
                stream.reach(position, task, self.ticks, &self.layout);
            }
            over.append(&mut stream.take_over());
        }
        self.tasks.insert(task, reader);
        for block in over {
            let file = self.layout.file_of(block);
            if self.layout.blocks_of(file).len() > 1 || !self.open.contains_key(&file) {
                self.settle(block, actions);
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
        for stream in self.streams.iter_mut().flatten() {
            stream.finish_sample(self.layout.blocks_of(file), &self.layout);
        }
        for block in self.layout.blocks_of(file) {
            self.settle(block, actions);
            self.touch(block);
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
            while self.arrivals.front().is_some_and(|&first| !self.residency.is_staged(first)) {
                self.arrivals.pop_front();
            }
            self.arrivals.push_back(block);
            self.make_room(actions);
            if !self.open.contains_key(&self.layout.file_of(block)) {
                self.settle(block, actions);
            }
        } else if !self.open.contains_key(&self.layout.file_of(block)) {
            self.touch(block);
        }
    }

    fn placed(&mut self, block: BlockId, tier: usize, done: bool) {
        if !self.residency.is_placing(block) {
            return;
        }
        self.residency.finish_place(block, self.layout.stored_bytes(block), done);
        if done {
            self.counters.placed += 1;
            let next = self.next_use(block, false);
            self.policies[tier].touch(block, next);
        }
    }

    fn next_use(&self, block: BlockId, unstaged: bool) -> NextUse {
        if !self.streams.iter().flatten().any(Stream::is_following) {
            return NextUse::At(self.unread.next_epoch(block));
        }
        self.streams
            .iter()
            .flatten()
            .filter_map(|stream| {
                let (ticks, epochs) = stream.next_use(block, unstaged)?;
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

    /// Tells the policies of the tiers that keep the block when it is read next; in RAM only once
    /// nobody has it open.
    fn touch(&mut self, block: BlockId) {
        let next = self.next_use(block, false);
        for tier in 0..self.settings.tiers.len() {
            let kept = tier != RAM || !self.residency.is_staged(block);
            if kept && self.residency.is_in(block, tier) {
                self.policies[tier].touch(block, next);
            }
        }
    }

    fn changed(&mut self, layout: Arc<Layout>, files: &[FileId], actions: &mut Vec<Action>) {
        let later = layout.is_later(&self.layout);
        // Another change may be in this layout already, and its own event on the way.
        let moved = if later { self.layout.moved(&layout) } else { Vec::new() };
        for &file in files.iter().chain(&moved) {
            for block in self.layout.blocks_of(file) {
                self.void(block, actions);
            }
        }
        if later {
            self.layout = layout;
            self.size_tiers();
            self.residency.grow(self.layout.blocks());
            self.unread.grow(self.layout.blocks());
        }
    }

    /// Nothing that is known of a block is true any more.
    fn void(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let (pages, stored) = (self.layout.pages_bytes(block), self.layout.stored_bytes(block));
        self.residency.forget(block, pages);
        self.residency.finish_drop(block, pages);
        self.residency.finish_place(block, stored, false);
        for tier in 0..self.settings.tiers.len() {
            self.policies[tier].remove(block);
            if tier != RAM {
                self.residency.displace(block, tier, stored);
                actions.push(Action::Displace { block, tier });
            }
        }
    }

    fn size_tiers(&mut self) {
        let total = self.layout.stored_bytes_of_all();
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
                if tier == RAM && self.open.contains_key(&self.layout.file_of(block)) {
                    continue;
                }
                let next = self.next_use(block, false);
                self.policies[tier].touch(block, next);
            }
        }
    }
}

//! The planner: what is fetched, kept and dropped, and when. Events in, actions out.
//!
//! In the order it happens:
//!
//! 1. A stream is given an order. Ahead of its reader, each block that RAM does not
//!    hold becomes an [`Action::Fetch`], soonest use first, many under way at once. Where RAM has
//!    room to keep the block it is charged as *kept*, and staging may run through the whole epoch;
//!    else it is *staged* for its read alone, and such bytes are bounded by the `window`.
//! 2. What arrives from the source and will not stay in RAM is offered to the tiers below
//!    ([`Action::Place`]), where it stays. Where a tier below holds all the data, everything is
//!    offered to it: the kernel may take pages back at any time, and so nothing is fetched from
//!    the source twice. While much waits to be written there, nothing is fetched ahead.
//! 3. An open moves the stream's position. A read that finds nothing ([`Event::Missed`]) is
//!    already being fetched by the shell when the planner hears of it: the planner only accounts
//!    for it. A read never waits for the planner.
//! 4. The kernel may take any page back at any time. What is read soon is checked
//!    ([`Action::Check`]) and fetched again where it got lost.
//!    Who maps files opens them long before he reads them (`mapped`).
//! 5. When the last handle of a file is closed and no staged read of it is left, the policy weighs
//!    the block against what is kept: it is kept, in place of another perhaps, or dropped.
//!
//! 6. Where no order is followed, or only those of a small part of what is read (a validation's,
//!    say), what this epoch has not read yet is fetched in place of what it has, in no particular
//!    order (`unread`).
//! 7. Of a large file that is read at random only what is asked for is fetched (`parts`).
//!
//! The policy follows from what is known ([`PolicyKind::Auto`]). One stream that reads everything
//! once an epoch, or no order at all: unread first, which keeps a fixed share and never churns, for
//! nothing can do better there. Several streams or repeats: Bélády's rule over the nearest next use
//! of all streams.
//!
//! The planner is total: it never fails, never blocks, and any sequence of events leaves its
//! accounts true.

mod crowd;
mod epoch;
mod event;
mod late;
mod layout;
mod mapped;
mod parts;
mod policy;
mod published;
mod readers;
mod reading;
mod residency;
mod resize;
mod staging;
mod stream;
mod task;
mod unread;
mod visibility;
mod warm;
mod window;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

pub use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId, StreamId};
pub use event::{Accounts, Action, Counters, Event, Place, Settings, Tier};
pub use layout::Layout;
use mapped::Mapped;
use parts::Parts;
use policy::{Belady, Lru, Minio, NextUse, Policy};
pub(crate) use published::Published;
use readers::Readers;
pub use residency::RAM;
use residency::Residency;
use stream::Stream;
pub use stream::StreamStatus;
use unread::Unread;
use visibility::Visibility;
pub use warm::Standing;
use warm::Warming;
use window::Window;

/// Within how many positions a second open of a file is taken for the read that the order has.
const DUE: u32 = 8;

/// The owner of all decisions about one source's blocks.
pub struct Planner {
    settings: Settings,
    layout: Arc<Layout>,
    residency: Residency,
    streams: Vec<Option<Stream>>,
    /// What is kept, by tier, as the policy in force sees it.
    policies: Vec<Box<dyn Policy>>,
    policy: PolicyKind,
    readers: Readers,
    mapped: Mapped,
    visibility: Visibility,
    /// Whether a stream is at the end of what is known of its order.
    ending: bool,
    unread: Unread,
    /// Whether `unread` says what is read next, and not the orders.
    blind: bool,
    window: Window,
    /// At which tick a fetch last waited for room in the window, and that for readers.
    full_at: Option<u64>,
    /// Blocks that arrived to be staged, oldest first; what has become of them since is not noted.
    arrivals: VecDeque<BlockId>,
    /// What was staged for streams that nobody read then, and for which.
    early: Vec<(usize, BlockId)>,
    /// Whether a tier below RAM has room for all the data.
    mirrored: bool,
    ticks: u64,
    warming: Warming,
    parts: Parts,
    /// Files that were lent. Some may not be all there any more.
    lent: BTreeSet<FileId>,
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
            readers: Readers::default(),
            mapped: Mapped::default(),
            visibility: Visibility::new(&settings, layout.files()),
            ending: false,
            unread: Unread::new(layout.blocks()),
            blind: true,
            window: Window::new(settings.window_bytes),
            full_at: None,
            arrivals: VecDeque::new(),
            early: Vec::new(),
            mirrored: false,
            ticks: 0,
            warming: Warming::default(),
            parts: Parts::default(),
            lent: BTreeSet::new(),
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
        // A block of a file that has grown may be read before the growth is told, and one that its file
        // left behind may be told of after it.
        if event.block().is_some_and(|block| !self.layout.has(block)) {
            return;
        }
        match event {
            Event::Ordered { stream, order } => {
                self.ordered(stream, Stream::new(order, &self.layout), actions);
            }
            Event::Continued { stream, order } => {
                let before = self.streams.get(stream.index()).and_then(Option::as_ref);
                let follower = Stream::new(order, &self.layout).counted_on(before);
                self.ordered(stream, follower, actions);
            }
            Event::Withdrawn { stream } => {
                if let Some(slot) = self.streams.get_mut(stream.index()) {
                    *slot = None;
                }
                self.choose_policy();
                self.sweep(actions);
            }
            Event::Opened { task, file } => self.opened(task, file, actions),
            Event::Seen { task, file } => self.seen(task, file, actions),
            Event::Touched { task, file } => self.touched(task, file, actions),
            Event::Left { task } => self.left(task, actions),
            Event::Missed { block, task } => self.missed(block, task, actions),
            Event::Joined { block, .. } => self.joined(block, actions),
            Event::Part { block, task, pages } => self.part(block, task, pages, actions),
            Event::Closed { file } => self.closed(file, actions),
            Event::Arrived { block, from } => self.arrived(block, from, actions),
            Event::Failed { block } => {
                self.counters.failed += 1;
                self.residency.forget(block, self.layout.pages_bytes(block));
                self.regear(self.layout.file_of(block), actions);
            }
            Event::Lost { block } => self.lost(block, actions),
            Event::Dropped { block } => {
                self.residency.finish_drop(block, self.layout.pages_bytes(block));
            }
            Event::Placed { block, tier, done } => self.placed(block, tier, done),
            Event::Found { tier, blocks } => self.found(tier, &blocks, actions),
            Event::NotHere { block, tier } => {
                self.policies[tier].remove(block);
                self.residency.displace(block, tier, self.layout.stored_bytes(block));
            }
            Event::Lent { file } => self.lent(file, actions),
            Event::Wanted { blocks } => self.wanted(&blocks),
            Event::Unwanted { blocks } => self.unwanted(&blocks, actions),
            Event::Withheld { file } => self.withhold(file, true, actions),
            Event::Released { file } => self.withhold(file, false, actions),
            Event::Resized { tier, capacity } => self.resized(tier, capacity, actions),
            Event::Changed { layout, files } => self.changed(layout, &files, actions),
        }
        self.let_go(actions);
        self.follow_up(actions);
        self.stage(actions);
        self.warm(actions);
        self.fit_parts(actions);
    }

    fn ordered(&mut self, stream: StreamId, mut follower: Stream, actions: &mut Vec<Action>) {
        if self.streams.len() <= stream.index() {
            self.streams.resize_with(stream.index() + 1, || None);
        }
        self.hand_on_staged(&mut follower);
        self.streams[stream.index()] = Some(follower);
        self.choose_policy();
        self.sweep(actions);
    }

    /// An order may be told anew, with more epochs, while it is being read. The new stream expects what is
    /// staged already, as far as it would soon stage that itself. Its first samples may have been read.
    fn hand_on_staged(&self, follower: &mut Stream) {
        let mut taken = 0;
        follower.expect_staged(|block| {
            let is_staged = self.residency.is_staged(block);
            if is_staged || !self.residency.is_in(block, RAM) {
                taken += self.layout.pages_bytes(block);
            }
            (is_staged, taken > 2 * self.window.bytes())
        });
    }

    /// What has come of the streams' progress.
    fn follow_up(&mut self, actions: &mut Vec<Action>) {
        let (mut passed, mut turning) = (Vec::new(), Vec::new());
        for stream in self.streams.iter_mut().flatten() {
            stream.take_passed(&mut passed);
            let in_ram = |block: &BlockId| self.residency.is_in(*block, RAM);
            let due = stream.take_due().filter(in_ram);
            actions.extend(due.map(|block| Action::Check { block }));
            stream.take_near(&mut turning);
        }
        for block in passed {
            self.passed(block);
            if !self.readers.has_open(self.layout.file_of(block)) {
                self.settle(block, actions);
            }
        }
        for block in turning {
            self.regear(self.layout.file_of(block), actions);
        }
        let told = self.streams.iter().flatten().filter(|stream| stream.is_told());
        let longest = told.map(Stream::len).max();
        for stream in self.streams.iter_mut().flatten() {
            let main = stream.is_told() && Some(stream.len()) == longest;
            actions
                .extend(stream.take_turn().filter(|_| main).map(|epoch| Action::Began { epoch }));
        }
        let ending = self.streams.iter().flatten().any(Stream::is_ending);
        if ending && !self.ending {
            self.regear_all(actions);
        }
        self.ending = ending;
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
            parts: self.parts.bytes,
            dropping: self.residency.dropping,
            window: self.window.bytes(),
            fetching: self.residency.fetching,
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// The tasks that hold a file open as far as can be told.
    pub fn tasks(&self) -> impl Iterator<Item = u32> + '_ {
        self.readers.tasks()
    }

    /// Number of files in the trust gear.
    pub fn trusted_files(&self) -> u64 {
        self.visibility.unseen()
    }

    /// Where each stream stands.
    pub fn streams(&self) -> impl Iterator<Item = (StreamId, StreamStatus)> + '_ {
        self.streams.iter().enumerate().filter_map(|(index, stream)| {
            stream.as_ref().map(|stream| (StreamId(index as u16), stream.status()))
        })
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
            if !self.readers.has_open(self.layout.file_of(block)) {
                self.settle(block, actions);
            }
        } else if !self.readers.has_open(self.layout.file_of(block)) {
            self.touch(block);
        }
    }

    fn placed(&mut self, block: BlockId, tier: usize, done: bool) {
        if !self.residency.is_placing(block) {
            return;
        }
        self.warming.loaded(block);
        self.residency.finish_place(block, self.layout.stored_bytes(block), done);
        if done {
            self.counters.placed += 1;
            let next = self.next_use(block, false);
            self.policies[tier].touch(block, next);
        }
    }

    /// What a tier has held since before the start counts like what was placed there.
    fn found(&mut self, tier: usize, blocks: &[BlockId], actions: &mut Vec<Action>) {
        let Some(Tier { capacity, .. }) = self.settings.tiers.get(tier).copied() else { return };
        for &block in blocks {
            let known = self.layout.has(block) && !self.residency.is_in(block, tier);
            if !known || tier == RAM || self.residency.is_placing(block) {
                continue;
            }
            let bytes = self.layout.stored_bytes(block);
            if self.residency.kept[tier] + bytes > capacity {
                actions.push(Action::Displace { block, tier });
                continue;
            }
            self.residency.start_place(block, tier, bytes);
            self.residency.finish_place(block, bytes, true);
            let next = self.next_use(block, false);
            self.policies[tier].touch(block, next);
        }
    }

    fn next_use(&self, block: BlockId, unstaged: bool) -> NextUse {
        if self.blind {
            // A large file is read as a whole.
            let first = self.layout.blocks_of(self.layout.file_of(block)).next();
            return NextUse::At(self.unread.next_read(first.unwrap_or(block)));
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
            self.visibility.renew(file);
            self.join_parts(file, actions);
            for block in self.layout.blocks_of(file) {
                self.void(block, actions);
            }
        }
        if later {
            self.layout = layout;
            self.size_tiers();
            self.residency.grow(self.layout.blocks());
            self.unread.grow(self.layout.blocks());
            self.visibility.grow(self.layout.files());
        }
    }

    /// Nothing that is known of a block is true any more.
    fn void(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let (pages, stored) = (self.layout.pages_bytes(block), self.layout.stored_bytes(block));
        self.parts.forget(block);
        self.residency.forget(block, pages);
        self.residency.finish_drop(block, pages);
        self.residency.finish_place(block, stored, false);
        self.warming.loaded(block);
        for tier in 0..self.settings.tiers.len() {
            self.policies[tier].remove(block);
            if tier != RAM {
                self.residency.displace(block, tier, stored);
                actions.push(Action::Displace { block, tier });
            }
        }
        self.regear(self.layout.file_of(block), actions);
    }

    fn size_tiers(&mut self) {
        let total = self.layout.stored_bytes_of_all();
        let tiers = &self.settings.tiers;
        let takes_all = |tier: usize| self.is_worth_it(tier) && tiers[tier].capacity >= total;
        self.mirrored = (RAM + 1..tiers.len()).any(takes_all);
        self.window.fit(self.layout.mean_pages_bytes(), self.settings.tiers[RAM].capacity);
    }

    /// Whether the orders that are followed say too little of what is read: none, or of less than
    /// half of what an epoch reads. What else is read is not what is never read.
    fn is_blind(&self) -> bool {
        let following = self.streams.iter().flatten().filter(|stream| stream.is_following());
        let none = following.clone().next().is_none();
        none || 2 * following.map(|stream| u64::from(stream.len())).sum::<u64>()
            < u64::from(self.unread.size())
    }

    /// Settles on a policy for what is known, and shows it everything that is kept.
    fn choose_policy(&mut self) {
        self.blind = self.is_blind();
        let following: Vec<&Stream> =
            self.streams.iter().flatten().filter(|stream| stream.is_following()).collect();
        let before = self.policy;
        self.policy = match (self.settings.policy, following.as_slice()) {
            (PolicyKind::Auto, _) if self.blind => PolicyKind::UnreadFirst,
            (PolicyKind::Auto, [one]) if one.is_permutation() => PolicyKind::UnreadFirst,
            (PolicyKind::Auto, _) => PolicyKind::Belady,
            (set, _) => set,
        };
        // These weigh no order, and what they know besides is nowhere else.
        let same = self.policy == before && self.policies.len() == self.settings.tiers.len();
        if same && matches!(self.policy, PolicyKind::Lru | PolicyKind::Minio) {
            return;
        }
        let policy: fn() -> Box<dyn Policy> = match self.policy {
            PolicyKind::Lru => || Box::new(Lru::default()),
            PolicyKind::Minio | PolicyKind::None => || Box::new(Minio),
            _ => || Box::new(Belady::default()),
        };
        self.policies = self.settings.tiers.iter().map(|_| policy()).collect();
        for tier in 0..self.settings.tiers.len() {
            let kept: Vec<BlockId> = self.residency.kept_in(tier).collect();
            for block in kept {
                if tier == RAM && self.readers.has_open(self.layout.file_of(block)) {
                    continue;
                }
                let next = self.next_use(block, false);
                self.policies[tier].touch(block, next);
            }
        }
    }
}

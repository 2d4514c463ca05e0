//! Accounts for the blocks that RAM and the tiers below hold, and evicts blocks.
//!
//! 1. Blocks are charged to their tiers ([`Residency`]), and pages of blocks that are read in parts beside
//!    them ([`Parts`]). The blocks of an open file are not evicted from RAM.
//! 2. Each tier's policy weighs the kept blocks by their next reads.
//! 3. RAM keeps a block if it has room beside the window, or makes room by dropping blocks that are read
//!    later. It keeps no block that a tier below keeps, unless that tier has room for all the data.
//! 4. A block that arrives from the source and will not stay in RAM is written to the first tier below that
//!    has room or makes room.
//! 5. A tier below RAM may be the *home* of blocks: other nodes of a cluster ask for them there. It keeps them before
//!    all others, which have only the room that these leave.
//!
//! Slices of a large file share pages. RAM has such a page once: it is charged with one of its slices that are there,
//! and it is not fetched with a slice if another one has it there.
//!
//! A change of a file's blocks in RAM is noted: it may change whether the file is tracked (`visibility`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::event::{Accounts, Action, Counters, Place, Settings, Tier};
use super::forecast::Forecast;
use super::layout::Layout;
use super::parts::Parts;
use super::policy::{Belady, Lru, Minio, NextUse, Policy};
use super::residency::{Asked, RAM, Residency};
use super::runs;
use super::window::Window;
use crate::config::PolicyKind;
use crate::ids::{BlockId, FileId, PageRange};
use crate::limiter::FetchLimits;

/// Most bytes that wait to be written to tiers below RAM: a disk that is slower than the source must not
/// fill memory.
const PLACING_MAX: u64 = 96 << 20;

/// If all data is stored, nothing is fetched ahead while more bytes than this wait to be written or are
/// being fetched. It is well below [`PLACING_MAX`], because blocks that readers fetch are stored too.
const HOLD_AT: u64 = 64 << 20;

/// Fetches under way at once that keep a local disk busy.
const TIER_FETCHES: u32 = 32;

/// When a block is read next that a tier keeps for other nodes: no block of this node is read sooner.
const FOR_OTHERS: NextUse = NextUse::At(1);

pub(super) struct Ledger {
    pub(super) layout: Arc<Layout>,
    pub(super) residency: Residency,
    pub(super) parts: Parts,
    pub(super) window: Window,
    pub(super) counters: Counters,
    tiers: Vec<Tier>,
    source_us: Option<u64>,
    inflight_max: u32,
    request_bytes: u64,
    /// Most fetches from the source under way at once.
    source_fetches_max: u32,
    /// By tier.
    policies: Vec<Box<dyn Policy>>,
    policy: PolicyKind,
    /// Whether a tier below RAM has room for all the data.
    all_fits_below: bool,
    /// Handles by open file.
    open: BTreeMap<FileId, u32>,
    /// Files that the kernel reads by itself. A tier may have lost blocks of some.
    passed_through: BTreeSet<FileId>,
    /// Files for which it is to be decided again whether they are tracked.
    tracking_due: Vec<FileId>,
    /// Slices whose readers have gone on.
    left: Vec<FileId>,
}

/// A policy of a kind, without blocks.
fn of_kind(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Lru => Box::new(Lru::default()),
        PolicyKind::Minio | PolicyKind::None => Box::new(Minio),
        _ => Box::new(Belady::default()),
    }
}

fn asked_of(place: Place) -> Asked {
    if place == Place::Source { Asked::Source } else { Asked::Below }
}

impl Ledger {
    pub(super) fn new(settings: &Settings, layout: &Arc<Layout>) -> Self {
        let mut ledger = Ledger {
            layout: Arc::clone(layout),
            residency: Residency::new(layout.blocks(), settings.tiers.len()),
            parts: Parts::default(),
            window: Window::new(settings.window_bytes),
            counters: Counters::default(),
            tiers: settings.tiers.clone(),
            source_us: settings.source_us,
            inflight_max: settings.inflight_max,
            request_bytes: settings.request_bytes,
            source_fetches_max: settings.inflight_max,
            policies: Vec::new(),
            policy: PolicyKind::None,
            all_fits_below: false,
            open: BTreeMap::new(),
            passed_through: BTreeSet::new(),
            tracking_due: Vec::new(),
            left: Vec::new(),
        };
        ledger.size_tiers();
        ledger
    }

    pub(super) fn lay_out(&mut self, layout: &Arc<Layout>) {
        self.layout = Arc::clone(layout);
        self.residency.grow(layout.blocks());
        self.size_tiers();
    }

    /// Returns whether the tier exists.
    pub(super) fn resize(&mut self, tier: usize, capacity: u64) -> bool {
        let Some(resized) = self.tiers.get_mut(tier) else { return false };
        resized.capacity = capacity;
        self.size_tiers();
        true
    }

    fn size_tiers(&mut self) {
        let total = self.layout.stored_bytes_of_all();
        let takes_all = |tier: usize| self.is_worth_it(tier) && self.tiers[tier].capacity >= total;
        self.all_fits_below = self.tiers_below().any(takes_all);
        self.window.fit(self.layout.mean_pages_bytes(), self.capacity(RAM));
    }

    pub(super) fn accounts(&self) -> Accounts {
        Accounts {
            kept: self.residency.kept.clone(),
            staged: self.residency.staged,
            parts: self.parts.bytes,
            dropping: self.residency.dropping,
            window: self.window.bytes(),
            fetching: self.residency.fetching,
        }
    }

    pub(super) fn capacity(&self, tier: usize) -> u64 {
        self.tiers[tier].capacity
    }

    pub(super) fn tiers_below(&self) -> std::ops::Range<usize> {
        RAM + 1..self.tiers.len()
    }

    pub(super) fn blocks(&self) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        (0..self.layout.blocks() as u32).map(BlockId)
    }

    pub(super) fn take_tracking_due(&mut self) -> Vec<FileId> {
        std::mem::take(&mut self.tracking_due)
    }

    /// Notes that it is to be decided again whether the file is tracked.
    pub(super) fn note_tracking_due(&mut self, file: FileId) {
        if self.tracking_due.last() != Some(&file) {
            self.tracking_due.push(file);
        }
    }

    /// Takes the slices whose readers have gone on, and which are in RAM.
    pub(super) fn take_left(&mut self) -> Vec<FileId> {
        let mut left = std::mem::take(&mut self.left);
        left.retain(|slice| slice.as_slice().is_some_and(|it| self.residency.is_in(it, RAM)));
        left
    }

    /// A file is cut now. Its handles say nothing of its slices.
    pub(super) fn forget_open(&mut self, file: FileId) {
        self.open.remove(&file);
    }

    fn note_change(&mut self, block: BlockId) {
        self.note_tracking_due(self.layout.unit_of(block));
    }

    pub(super) fn has_open(&self, file: FileId) -> bool {
        self.open.contains_key(&file)
    }

    /// Whether a file is open once.
    pub(super) fn is_open_once(&self, file: FileId) -> bool {
        self.open.get(&file) == Some(&1)
    }

    /// Opens a handle of a file. A block that is being read must not be evicted, though its next use may well be
    /// the farthest.
    pub(super) fn open(&mut self, file: FileId) {
        *self.open.entry(file).or_default() += 1;
        for block in self.layout.blocks_of(file) {
            self.policies[RAM].remove(block);
            self.residency.mark_unread(block, false);
        }
    }

    /// Closes a handle of a file. Returns whether it was the last one.
    pub(super) fn close(&mut self, file: FileId) -> bool {
        let is_last = self.open.get(&file).is_none_or(|handles| *handles == 1);
        if is_last {
            self.open.remove(&file);
            self.left.extend(file.as_slice().map(FileId::slice));
        } else if let Some(handles) = self.open.get_mut(&file) {
            *handles -= 1;
        }
        is_last
    }

    #[cfg(test)]
    pub(super) fn open_files(&self) -> usize {
        self.open.len()
    }

    pub(super) fn weigh_anew(&mut self, forecast: &Forecast) {
        let policy = forecast.policy();
        let same = policy == self.policy && self.policies.len() == self.tiers.len();
        if !same {
            self.policy = policy;
            self.policies = self.tiers.iter().map(|_| of_kind(policy)).collect();
        }
        for tier in 0..self.tiers.len() {
            let kind = self.policy_of(tier);
            // These policies ignore orders, and a new instance would lose what LRU has recorded.
            if !same || !matches!(kind, PolicyKind::Lru | PolicyKind::Minio) {
                self.weigh_kept(tier, forecast);
            }
        }
    }

    /// The policy of a tier. Whatever is configured, what is kept for other nodes stays.
    fn policy_of(&self, tier: usize) -> PolicyKind {
        if self.residency.is_home(tier) { PolicyKind::Belady } else { self.policy }
    }

    /// Tells a new policy of a tier of all that the tier keeps.
    fn weigh_kept(&mut self, tier: usize, forecast: &Forecast) {
        self.policies[tier] = of_kind(self.policy_of(tier));
        for block in self.residency.kept_in(tier) {
            if tier != RAM || !self.open.contains_key(&self.layout.unit_of(block)) {
                let next = self.next_use_in(tier, block, forecast, false);
                self.policies[tier].touch(block, next);
            }
        }
    }

    /// When a block of a tier is read next.
    fn next_use_in(
        &self,
        tier: usize,
        block: BlockId,
        forecast: &Forecast,
        unstaged: bool,
    ) -> NextUse {
        match self.residency.has_home_in(block, tier) {
            true => FOR_OTHERS,
            false => forecast.next_use(block, unstaged),
        }
    }

    /// See [`Event::Homed`](super::Event::Homed).
    pub(super) fn set_home(&mut self, tier: usize, blocks: &[BlockId], forecast: &Forecast) {
        if !self.tiers_below().contains(&tier) {
            return;
        }
        let known = blocks.iter().copied().filter(|block| self.layout.has(*block));
        let (known, layout) = (known.collect::<Vec<_>>(), Arc::clone(&self.layout));
        self.residency.set_home(tier, &known, |block| layout.stored_bytes(block));
        self.weigh_kept(tier, forecast);
    }

    /// Tells the policies of the tiers that keep the block when it is read next. Its file must be closed.
    pub(super) fn touch(&mut self, block: BlockId, forecast: &Forecast) {
        for tier in 0..self.tiers.len() {
            let kept = tier != RAM || !self.residency.is_staged(block);
            if kept && self.residency.is_in(block, tier) {
                let next = self.next_use_in(tier, block, forecast, false);
                self.policies[tier].touch(block, next);
            }
        }
    }

    pub(super) fn touch_closed(&mut self, block: BlockId, forecast: &Forecast) {
        if !self.has_open(self.layout.unit_of(block)) {
            self.touch(block, forecast);
        }
    }

    /// Whether a tier below RAM is faster than the source.
    fn is_worth_it(&self, tier: usize) -> bool {
        let block_us = self.tiers[tier].block_us;
        self.source_us.is_none_or(|source_us| block_us < source_us)
    }

    pub(super) fn nearest(&self, block: BlockId) -> Place {
        let tier = self.residency.place(block).filter(|tier| self.is_worth_it(*tier));
        tier.map_or(Place::Source, Place::Tier)
    }

    /// Whether a tier below RAM has a block, or is being given it.
    fn is_below(&self, block: BlockId) -> bool {
        self.residency.place(block).is_some() || self.residency.is_placing(block)
    }

    /// Whether a block that arrives from the source is offered to the tiers below.
    pub(super) fn is_to_be_placed(&self, block: BlockId) -> bool {
        self.all_fits_below || self.residency.has_home(block) || self.residency.is_staged(block)
    }

    pub(super) fn place(&mut self, block: BlockId, forecast: &Forecast, actions: &mut Vec<Action>) {
        let bytes = self.layout.stored_bytes(block);
        if !self.may_place(block) || self.is_below(block) {
            return;
        }
        if let Some(tier) = self.room_below(block, forecast, true, actions) {
            self.residency.start_place(block, tier, bytes);
            actions.push(Action::Place { block, tier });
        }
    }

    /// Whether memory has room for a block that waits to be written to a tier below RAM.
    fn may_place(&self, block: BlockId) -> bool {
        self.residency.placing_bytes + self.layout.stored_bytes(block) <= PLACING_MAX
    }

    /// Whether a block is to be copied to the tier that is its home. `None` if that is to be decided later.
    pub(super) fn is_missed_at_home(&self, block: BlockId) -> Option<bool> {
        let is_missed = self.residency.has_home(block) && !self.is_below(block);
        (!is_missed || self.may_place(block)).then_some(is_missed)
    }

    /// Has a block copied to a tier below RAM by this action. Returns whether a tier has room or makes room.
    pub(super) fn copy_below(
        &mut self,
        block: BlockId,
        action: fn(BlockId, usize) -> Action,
        forecast: &Forecast,
        actions: &mut Vec<Action>,
    ) -> bool {
        let room = self.room_below(block, forecast, false, actions);
        if let Some(tier) = room {
            self.residency.start_place(block, tier, self.layout.stored_bytes(block));
            actions.push(action(block, tier));
        }
        room.is_some()
    }

    /// The first tier below RAM that has room or makes room.
    fn room_below(
        &mut self,
        block: BlockId,
        forecast: &Forecast,
        unstaged: bool,
        actions: &mut Vec<Action>,
    ) -> Option<usize> {
        self.tiers_below().find(|&tier| {
            let next = self.next_use_in(tier, block, forecast, unstaged);
            self.is_worth_it(tier) && self.make_room_in(tier, block, next, actions)
        })
    }

    /// Evicts blocks by the tier's policy until there is room. Returns whether there is.
    fn make_room_in(
        &mut self,
        tier: usize,
        block: BlockId,
        next: NextUse,
        actions: &mut Vec<Action>,
    ) -> bool {
        let (bytes, capacity) = (self.layout.stored_bytes(block), self.room_for(block, tier));
        while bytes <= capacity
            && self.residency.kept[tier] + bytes > capacity
            && let Some(victim) = self.policies[tier].victim(next)
        {
            self.displace(victim, tier, actions);
        }
        self.residency.kept[tier] + bytes <= capacity
    }

    /// Bytes that a tier below RAM may hold with a block. Those whose home it is leave the rest to others. If it
    /// holds more than that, one of the others may take the place of another.
    fn room_for(&self, block: BlockId, tier: usize) -> u64 {
        let capacity = self.capacity(tier);
        match self.residency.has_home_in(block, tier) {
            true => capacity,
            false => {
                let left = capacity.saturating_sub(self.residency.expected(tier));
                left.max(self.residency.kept[tier].min(capacity))
            }
        }
    }

    /// Whether a tier below RAM has room for a block without an eviction.
    pub(super) fn has_room_below(&self, block: BlockId) -> bool {
        let bytes = self.layout.stored_bytes(block);
        self.tiers_below().any(|tier| {
            let room = self.room_for(block, tier);
            self.is_worth_it(tier) && self.residency.kept[tier] + bytes <= room
        })
    }

    /// Gives up a copy in a tier below RAM.
    pub(super) fn displace(&mut self, block: BlockId, tier: usize, actions: &mut Vec<Action>) {
        self.not_here(block, tier);
        actions.push(Action::Displace { block, tier });
    }

    /// A tier below RAM does not have a block.
    pub(super) fn not_here(&mut self, block: BlockId, tier: usize) {
        self.policies[tier].remove(block);
        self.residency.displace(block, tier, self.layout.stored_bytes(block));
    }

    /// See [`Event::Placed`](super::Event::Placed).
    pub(super) fn placed(&mut self, block: BlockId, tier: usize, done: bool, forecast: &Forecast) {
        if !self.residency.is_placing(block) {
            return;
        }
        self.residency.finish_place(block, self.layout.stored_bytes(block), done);
        if done {
            self.counters.placed += 1;
            let next = self.next_use_in(tier, block, forecast, false);
            self.policies[tier].touch(block, next);
        }
    }

    /// A tier held these blocks before the start. They count as placed there.
    pub(super) fn found(
        &mut self,
        tier: usize,
        blocks: &[BlockId],
        forecast: &Forecast,
        actions: &mut Vec<Action>,
    ) {
        if !self.tiers_below().contains(&tier) {
            return;
        }
        for &block in blocks {
            let known = self.layout.has(block) && !self.residency.is_in(block, tier);
            if !known || self.residency.is_placing(block) {
                continue;
            }
            let bytes = self.layout.stored_bytes(block);
            let next = self.next_use_in(tier, block, forecast, false);
            if !self.make_room_in(tier, block, next, actions) {
                actions.push(Action::Displace { block, tier });
                continue;
            }
            self.residency.start_place(block, tier, bytes);
            self.residency.finish_place(block, bytes, true);
            self.policies[tier].touch(block, next);
        }
    }

    /// Whether RAM or a tier below has room for all the data.
    pub(super) fn has_room_for_all(&self) -> bool {
        let all = self.layout.pages_bytes_of_all();
        self.all_fits_below || all + self.window.bytes() <= self.capacity(RAM)
    }

    /// Whether RAM can keep the block beside `kept` bytes.
    fn has_room(&self, block: BlockId, kept: u64, forecast: &Forecast) -> bool {
        let bytes = self.bytes_to_keep(block);
        let own = if self.residency.is_staged(block) { self.ram_bytes(block) } else { 0 };
        // Readers may have caused more staged bytes than the window has.
        let beside = self.window.bytes().max(self.residency.staged - own);
        let parts = self.parts_used(forecast);
        forecast.policy() != PolicyKind::None && kept + bytes + beside + parts <= self.capacity(RAM)
    }

    fn parts_used(&self, forecast: &Forecast) -> u64 {
        if forecast.orders_say_little() { self.parts.reserved(self.capacity(RAM)) } else { 0 }
    }

    /// Whether RAM may keep a block, as far as the tiers below are concerned.
    pub(super) fn may_stay(&self, block: BlockId) -> bool {
        let below = self.nearest(block) != Place::Source || self.residency.is_placing(block);
        self.all_fits_below || !below
    }

    /// Whether RAM would keep a block if it were fetched.
    pub(super) fn can_be_kept(&self, block: BlockId, forecast: &Forecast) -> bool {
        self.may_stay(block) && self.has_room(block, self.residency.kept[RAM], forecast)
    }

    /// Drops kept blocks by the policy until RAM has room for `block`. Returns whether it has.
    pub(super) fn make_way(
        &mut self,
        block: BlockId,
        next: NextUse,
        forecast: &Forecast,
        actions: &mut Vec<Action>,
    ) -> bool {
        while !self.has_room(block, self.residency.kept[RAM], forecast)
            && self.has_room(block, 0, forecast)
            && let Some(victim) = self.policies[RAM].victim(next)
        {
            self.drop_kept(victim, actions);
        }
        self.has_room(block, self.residency.kept[RAM], forecast)
    }

    fn drop_kept(&mut self, victim: BlockId, actions: &mut Vec<Action>) {
        self.policies[RAM].remove(victim);
        self.drop_pages(victim, actions);
    }

    /// The block that a tier evicts first for one that is read at this moment.
    pub(super) fn victim(&self, tier: usize) -> Option<BlockId> {
        self.policies[tier].victim(NextUse::At(0))
    }

    pub(super) fn keep(&mut self, block: BlockId) {
        self.change(block, |residency| residency.keep(block));
        self.note_change(block);
    }

    pub(super) fn unkeep(&mut self, block: BlockId) {
        self.policies[RAM].remove(block);
        self.change(block, |residency| residency.unkeep(block));
        self.note_change(block);
    }

    pub(super) fn drop_pages(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        self.counters.dropped += 1;
        if self.residency.is_unread(block) {
            let wasted = if self.is_below(block) { 0 } else { self.layout.range(block).1 };
            self.counters.wasted_bytes += wasted;
            self.residency.mark_unread(block, false);
        }
        self.policies[RAM].remove(block);
        let bytes = self.layout.pages_bytes(block);
        self.change(block, |residency| residency.start_drop(block, bytes));
        self.note_change(block);
        match self.drop_of(block) {
            Some(action) => actions.push(action),
            None => self.dropped(block),
        }
    }

    /// The action that drops the pages of a block. Pages that a neighbouring slice in RAM also has stay. `None` if
    /// all pages stay.
    fn drop_of(&self, block: BlockId) -> Option<Action> {
        if self.layout.unit_of(block).as_slice().is_none() {
            return Some(Action::Drop { block });
        }
        let is_there = |slice: Option<BlockId>| slice.is_some_and(|slice| self.is_here(slice));
        let there = self.layout.neighbours(block).map(is_there);
        let pages = self.layout.pages_without(block, there)?;
        Some(Action::DropParts { block, pages })
    }

    /// Bytes that a block in RAM is charged with. A page that it shares with a slice beside it is charged once:
    /// with the one that is kept, or else with the first of them.
    fn ram_bytes(&self, block: BlockId) -> u64 {
        let (residency, is_staged) = (&self.residency, self.residency.is_staged(block));
        let mut bytes = self.layout.pages_bytes(block);
        let shared = self.layout.shared_beside(block);
        for (beside, shared) in self.slices_beside(block).into_iter().zip(shared) {
            let Some(beside) = beside.filter(|beside| self.is_here(*beside)) else { continue };
            let is_before = beside < block;
            let is_charged = match (residency.is_staged(beside), is_staged) {
                (false, true) => true,
                (true, false) => false,
                _ => is_before,
            };
            bytes -= if is_charged { shared } else { 0 };
        }
        bytes
    }

    /// Bytes that are kept in RAM beside others if a block is kept.
    fn bytes_to_keep(&self, block: BlockId) -> u64 {
        let is_kept = |slice: Option<BlockId>| {
            slice.is_some_and(|it| self.is_here(it) && !self.residency.is_staged(it))
        };
        let kept = self.slices_beside(block).map(is_kept).into_iter();
        let shared = kept.zip(self.layout.shared_beside(block)).filter(|(is_kept, _)| *is_kept);
        self.layout.pages_bytes(block) - shared.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// The slices that a slice shares pages with.
    fn slices_beside(&self, block: BlockId) -> [Option<BlockId>; 2] {
        let shared = self.layout.shared_beside(block);
        match shared {
            [0, 0] => [None; 2],
            _ => self.layout.neighbours(block),
        }
    }

    /// Changes where a block is, and what is charged for it and the slices beside it.
    fn change(&mut self, block: BlockId, change: impl FnOnce(&mut Residency)) {
        let [before, after] = self.slices_beside(block);
        let blocks = [before, Some(block), after];
        self.charge_all(blocks, Residency::charge_less);
        change(&mut self.residency);
        self.charge_all(blocks, Residency::charge_more);
    }

    /// Charges those of these blocks that are in RAM, or does not charge them any more.
    fn charge_all(
        &mut self,
        blocks: [Option<BlockId>; 3],
        charge: fn(&mut Residency, BlockId, u64),
    ) {
        for block in blocks.into_iter().flatten() {
            if self.is_here(block) {
                let bytes = self.ram_bytes(block);
                charge(&mut self.residency, block, bytes);
            }
        }
    }

    /// The pages of a block that are to be fetched, if slices beside it have others of them in RAM. `None`: all.
    fn pages_to_fetch(&self, block: BlockId) -> Option<PageRange> {
        self.layout.unit_of(block).as_slice()?;
        let is_there = |it: Option<BlockId>| it.is_some_and(|it| self.residency.is_in(it, RAM));
        let there = self.layout.neighbours(block).map(is_there);
        if there == [false; 2] { None } else { self.layout.pages_without(block, there) }
    }

    /// Whether pages of a block are being dropped.
    pub(super) fn is_dropping(&self, block: BlockId) -> bool {
        let is_dropping = |block: BlockId| self.residency.is_dropping(block);
        let shares = || self.layout.unit_of(block).as_slice().is_some();
        let neighbours = || self.layout.neighbours(block).into_iter().flatten();
        is_dropping(block) || shares() && neighbours().any(is_dropping)
    }

    pub(super) fn dropped(&mut self, block: BlockId) {
        self.residency.finish_drop(block, self.layout.pages_bytes(block));
    }

    /// Whether a block is in RAM or being fetched.
    pub(super) fn is_here(&self, block: BlockId) -> bool {
        self.residency.is_in(block, RAM) || self.residency.is_fetching(block)
    }

    /// Whether a block can be dropped from RAM. Readers of an open large file may be at another block.
    pub(super) fn can_go(&self, block: BlockId) -> bool {
        let file = self.layout.unit_of(block);
        let read = self.has_open(file) && self.layout.blocks_of(file).len() < 2;
        self.residency.is_in(block, RAM) && !self.residency.is_fetching(block) && !read
    }

    /// Whether another fetch may begin. A block that a mirroring tier could not store in time would be fetched
    /// from the source again.
    pub(super) fn may_fetch_more(&self) -> bool {
        let coming = u64::from(self.residency.fetching) * self.layout.mean_pages_bytes();
        self.fetches_left() > 0
            && !(self.all_fits_below && self.residency.placing_bytes + coming > HOLD_AT)
    }

    pub(super) fn fetches_left(&self) -> u32 {
        let most = self.source_fetches_max.max(TIER_FETCHES.min(self.inflight_max));
        most.saturating_sub(self.residency.requests)
    }

    /// Whether the place that a block comes from can take another fetch.
    pub(super) fn may_fetch(&self, block: BlockId) -> bool {
        self.nearest(block) != Place::Source
            || self.residency.requests_to_source < self.source_fetches_max
    }

    /// Whether no fetch from the source may begin.
    pub(super) fn is_paused(&self) -> bool {
        self.source_fetches_max == 0
    }

    /// See [`Event::Limited`](super::Event::Limited).
    pub(super) fn limit_fetches(&mut self, limits: FetchLimits) {
        self.source_fetches_max = limits.fetches.min(self.inflight_max);
        self.window.limit(&limits);
    }

    /// Blocks that are read while the slowest fetches take.
    pub(super) fn lead_blocks(&self) -> u32 {
        let blocks = self.window.lead() / self.layout.mean_pages_bytes();
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Whether most of the window has arrived and is unread, so that the source could do more.
    pub(super) fn waits_for_readers(&self) -> bool {
        let coming = u64::from(self.residency.fetching) * self.layout.mean_pages_bytes();
        2 * coming < self.window.bytes()
    }

    /// Charges a fetch that a reader waits for.
    pub(super) fn start_fetch(&mut self, block: BlockId, forecast: &Forecast) {
        let keep = self.can_be_kept(block, forecast);
        self.charge(block, keep, asked_of(self.nearest(block)));
    }

    pub(super) fn fetch_ahead(&mut self, block: BlockId, keep: bool, actions: &mut Vec<Action>) {
        let from = self.nearest(block);
        self.charge_ahead(block, keep, asked_of(from));
        actions.push(Action::Fetch { block, from, pages: self.pages_to_fetch(block) });
    }

    /// Fetches a block to keep it, and with the same request those beside it that RAM keeps as well.
    pub(super) fn fetch_run(
        &mut self,
        block: BlockId,
        forecast: &Forecast,
        actions: &mut Vec<Action>,
    ) {
        let run = self.run_around(block, forecast);
        if run.len() == 1 {
            return self.fetch_ahead(block, true, actions);
        }
        let mut asked = Asked::Source;
        for block in run.clone().map(BlockId) {
            self.charge_ahead(block, true, asked);
            asked = Asked::WithAnother;
        }
        actions.push(Action::FetchRun { first: BlockId(run.start), count: run.len() as u32 });
    }

    /// The blocks that come with one request: those beside a block, if RAM has room for all the data.
    fn run_around(&self, block: BlockId, forecast: &Forecast) -> std::ops::Range<u32> {
        let kept = self.residency.kept[RAM];
        let most = runs::most_bytes(self.request_bytes, kept);
        if self.nearest(block) != Place::Source || !self.has_room_for_all() {
            return block.0..block.0 + 1;
        }
        let may_join = |block: BlockId, beside: u64| {
            !self.is_here(block)
                && !self.is_dropping(block)
                && !self.is_passed_through(self.layout.unit_of(block))
                && self.nearest(block) == Place::Source
                && self.may_stay(block)
                && forecast.is_foreseen(block)
                && self.has_room(block, kept + beside, forecast)
        };
        let is_behind = |block| self.comes_with_the_one_before(block, forecast);
        let bytes_of = |block| self.layout.pages_bytes(block);
        runs::around(block, most, is_behind, bytes_of, may_join)
    }

    /// Whether a block lies behind the one before it, and one request can bring both. Of a large file, that is so if an
    /// order reads ranges of it.
    fn comes_with_the_one_before(&self, block: BlockId, forecast: &Forecast) -> bool {
        self.layout.is_behind_another(block)
            && (self.layout.begins_file(block) || forecast.is_of_range(block))
    }

    fn charge_ahead(&mut self, block: BlockId, keep: bool, asked: Asked) {
        self.charge(block, keep, asked);
        self.counters.prefetched += 1;
        // It is not seen which blocks of an open file are read.
        let seen = !self.has_open(self.layout.unit_of(block));
        self.residency.mark_unread(block, seen && asked != Asked::Below);
    }

    fn charge(&mut self, block: BlockId, keep: bool, asked: Asked) {
        self.parts.forget(block);
        self.change(block, |residency| residency.start_fetch(block, !keep, asked));
        self.note_change(block);
    }

    /// A charged block is fetched again, and not evicted until it has arrived.
    pub(super) fn refetch(&mut self, block: BlockId) {
        self.counters.refetched_bytes += self.layout.range(block).1;
        self.policies[RAM].remove(block);
        self.residency.restart_fetch(block, asked_of(self.nearest(block)));
    }

    pub(super) fn failed(&mut self, block: BlockId) {
        self.counters.failed += 1;
        self.change(block, |residency| residency.forget(block));
        self.note_change(block);
    }

    /// A check found pages of a block gone before a read missed them.
    pub(super) fn lost(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        if !self.residency.is_in(block, RAM) || self.residency.is_fetching(block) {
            return;
        }
        self.counters.restored += 1;
        self.refetch(block);
        actions.push(Action::Fetch { block, from: self.nearest(block), pages: None });
    }

    /// Drops parts until they fit beside kept and staged blocks.
    pub(super) fn fit_parts(&mut self, forecast: &Forecast, actions: &mut Vec<Action>) {
        let others = |ledger: &Self| ledger.residency.kept[RAM] + ledger.residency.staged;
        while self.parts.bytes > 0 && others(self) + self.parts.bytes > self.capacity(RAM) {
            // Blocks that this epoch has read go first, the one with the latest next read before all.
            let now = NextUse::At(forecast.unread.now());
            if self.parts.bytes <= self.parts_used(forecast)
                && let Some(victim) = self.policies[RAM].victim(now)
            {
                self.drop_kept(victim, actions);
                continue;
            }
            let Some((block, pages)) = self.parts.pop() else { return };
            self.drop_part(block, pages, actions);
        }
    }

    fn drop_part(&mut self, block: BlockId, pages: PageRange, actions: &mut Vec<Action>) {
        self.counters.dropped += 1;
        let bytes = self.layout.pages_bytes(block);
        self.residency.start_drop(block, bytes);
        actions.push(Action::DropParts { block, pages });
    }

    pub(super) fn note_passthrough(&mut self, file: FileId) {
        self.passed_through.insert(file);
    }

    /// Whether the kernel reads a file by itself, and a tier below still has all of it.
    pub(super) fn is_passed_through(&self, file: FileId) -> bool {
        let below = |block| self.residency.place(block).is_some();
        self.passed_through.contains(&file) && self.layout.blocks_of(file).all(below)
    }

    /// Forgets a block whose file has changed.
    pub(super) fn void(&mut self, block: BlockId, actions: &mut Vec<Action>) {
        let (pages, stored) = (self.layout.pages_bytes(block), self.layout.stored_bytes(block));
        self.parts.forget(block);
        self.change(block, |residency| residency.forget(block));
        self.residency.finish_drop(block, pages);
        self.residency.finish_place(block, stored, false);
        self.policies[RAM].remove(block);
        for tier in self.tiers_below() {
            self.displace(block, tier, actions);
        }
        self.note_change(block);
    }
}

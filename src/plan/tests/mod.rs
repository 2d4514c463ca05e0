//! Tests the planner against a model of the world, under any sequence of events.

mod home;
mod large;
mod mapped;
mod parts;
mod staging;
mod streams;
mod tracker;
mod unread;
mod warm;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ids::{BLOCK_BYTES, BlockId, FileId, PAGE_BYTES, PageRange, StreamId};
use crate::order::samplers::torch::{generator, randperm};
use crate::order::{FileRange, Order, SampleTable};

const FILES: u32 = 24;

/// The file of three blocks.
const LARGE: FileId = FileId(7);

fn layout() -> Arc<Layout> {
    // Small files, an empty one, and one of three blocks. Most of them lie behind the one before them.
    let size = |file: u32| match file {
        5 => 0,
        7 => 3 * BLOCK_BYTES - 100,
        _ => 1000 + u64::from(file) * 700,
    };
    let mut layout = Layout::new((0..FILES).map(size));
    layout.set_neighbours(|file| !file.0.is_multiple_of(6));
    Arc::new(layout)
}

fn settings(ram: u64, disk: Option<u64>, policy: PolicyKind) -> Settings {
    let mut tiers = vec![Tier { capacity: ram, block_us: 0 }];
    tiers.extend(disk.map(|capacity| Tier { capacity, block_us: 0 }));
    Settings {
        tiers,
        source_us: None,
        policy,
        prefetch: true,
        inflight_max: 4,
        window_bytes: Some(ram / 4),
        request_bytes: 8 << 20,
        start_at_open: false,
        may_untrack: false,
        withheld: false,
    }
}

fn order(seed: u32) -> Arc<Order> {
    let epoch = |k: u32| (0..FILES).map(|i| (i * 7 + seed + k * 5) % FILES).collect();
    Arc::new(Order::listed("test", vec![epoch(0), epoch(1)], SampleTable::Files).unwrap())
}

/// Ranges of [`LARGE`] of so many bytes, in a mixed order.
fn ranges(bytes: u64) -> Arc<Order> {
    let count = 3 * BLOCK_BYTES / bytes;
    let range = |nth| FileRange { file: LARGE, offset: nth * bytes, length: bytes };
    let table = SampleTable::Ranges((0..count).map(range).collect());
    let epochs = [3, 4].map(|seed| randperm(count as u32, &mut generator(seed)).into());
    Arc::new(Order::listed("ranges", epochs.into(), table).unwrap())
}

/// The planner, with a world that carries out its actions, some of them late.
struct World {
    planner: Planner,
    settings: Settings,
    layout: Arc<Layout>,
    fetching: BTreeSet<BlockId>,
    /// Blocks that readers wait for.
    awaited: BTreeSet<BlockId>,
    /// Blocks of which a page was left out. They are no slices.
    probes: BTreeSet<BlockId>,
    /// The pages that are fetched of slices, if these are not all of theirs.
    trimmed: BTreeMap<BlockId, PageRange>,
    dropping: BTreeSet<BlockId>,
    placing: Vec<(BlockId, usize)>,
    pages: BTreeSet<BlockId>,
    /// Pages that were read in parts, by block.
    parts: BTreeMap<BlockId, BTreeSet<u16>>,
    /// Pages of [`LARGE`], if it is cut.
    of_slices: BTreeSet<u64>,
    in_parts: BTreeSet<FileId>,
    /// Blocks that their files have left behind.
    left_behind: Vec<BlockId>,
    /// Whether [`LARGE`] was ever cut.
    was_cut: bool,
    open: BTreeMap<FileId, u32>,
    seen: BTreeMap<u32, FileId>,
    untracked: BTreeSet<FileId>,
    began: Vec<u32>,
    /// Blocks that were checked.
    checked: Vec<BlockId>,
    fetched: u64,
}

impl World {
    fn new(settings: Settings) -> Self {
        let layout = layout();
        World {
            planner: Planner::new(settings.clone(), layout.clone()),
            settings,
            layout,
            fetching: BTreeSet::new(),
            awaited: BTreeSet::new(),
            probes: BTreeSet::new(),
            trimmed: BTreeMap::new(),
            dropping: BTreeSet::new(),
            placing: Vec::new(),
            pages: BTreeSet::new(),
            parts: BTreeMap::new(),
            of_slices: BTreeSet::new(),
            in_parts: BTreeSet::new(),
            left_behind: Vec::new(),
            was_cut: false,
            open: BTreeMap::new(),
            seen: BTreeMap::new(),
            untracked: BTreeSet::new(),
            began: Vec::new(),
            checked: Vec::new(),
            fetched: 0,
        }
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.planner.apply(event, &mut actions);
        for action in actions {
            match action {
                Action::Fetch { block, pages, .. } => {
                    assert!(self.layout.has(block), "{block:?} is no file's");
                    self.trimmed.remove(&block);
                    self.trimmed.extend(pages.map(|pages| (block, pages)));
                    assert!(!self.pages.contains(&block), "{block:?} is in RAM");
                    assert!(self.fetching.insert(block), "{block:?} is fetched twice at once");
                    self.parts.remove(&block);
                }
                Action::FetchRun { first, count } => {
                    let run = (first.0..first.0 + count).map(BlockId);
                    assert!(count > 1 && self.layout.has(first));
                    for block in run {
                        assert!(
                            block == first || self.layout.is_behind_another(block),
                            "{block:?}"
                        );
                        assert!(!self.pages.contains(&block), "{block:?} is in RAM");
                        assert!(self.fetching.insert(block), "{block:?} is fetched twice at once");
                        self.trimmed.remove(&block);
                        self.parts.remove(&block);
                    }
                }
                Action::Untrack { file } => assert!(self.untracked.insert(file), "{file:?}"),
                Action::Track { file } if file.as_slice().is_some() => {
                    self.untracked.remove(&file);
                }
                Action::Track { file } => assert!(self.untracked.remove(&file), "{file:?}"),
                Action::Check { block } => {
                    assert!(self.pages.contains(&block) || self.fetching.contains(&block));
                    self.checked.push(block);
                }
                Action::Drop { block } => {
                    let file = self.layout.file_of(block);
                    let large = self.layout.blocks_of(file).len() > 1;
                    // Handles of a file that was cut are forgotten.
                    let may_be_open = large || file == LARGE && self.was_cut;
                    assert!(may_be_open || !self.open.contains_key(&file), "{block:?} is in use");
                    self.pages.remove(&block);
                    self.probes.remove(&block);
                    self.parts.remove(&block);
                    self.dropping.insert(block);
                }
                Action::DropParts { block, pages } if self.is_slice(block) => {
                    assert!(self.pages.remove(&block), "{block:?}");
                    let first = self.layout.range(block).0 / PAGE_BYTES;
                    pages
                        .iter()
                        .for_each(|page| _ = self.of_slices.remove(&(first + u64::from(page))));
                    self.dropping.insert(block);
                }
                Action::DropParts { block, pages } => {
                    let parts = self.parts.get_mut(&block).unwrap();
                    let before = parts.len();
                    pages.iter().for_each(|page| _ = parts.remove(&page));
                    assert!(parts.len() < before, "{block:?} has nothing there");
                    self.dropping.insert(block);
                }
                Action::InParts { file, on: true } => assert!(self.in_parts.insert(file)),
                Action::InParts { file, on: false } => assert!(self.in_parts.remove(&file)),
                Action::Place { block, tier }
                | Action::Load { block, tier }
                | Action::Take { block, tier } => {
                    assert!(self.layout.has(block), "{block:?} is no file's");
                    assert!(self.placing.iter().all(|(placing, _)| *placing != block));
                    self.placing.push((block, tier));
                }
                Action::Began { epoch } => self.began.push(epoch),
                Action::Displace { .. } => {}
            }
        }
        self.forget_shared();
    }

    fn is_slice(&self, block: BlockId) -> bool {
        self.layout.unit_of(block).as_slice().is_some()
    }

    /// Of a slice whose pages are all those of other slices as well, nothing is dropped.
    fn forget_shared(&mut self) {
        if !self.layout.is_cut(LARGE) {
            return;
        }
        let is_here = |block: BlockId| self.planner.stager.ledger.is_here(block);
        let is_gone = |block: &&BlockId| self.is_slice(**block) && !is_here(**block);
        let gone: Vec<BlockId> = self.pages.iter().filter(is_gone).copied().collect();
        for block in gone {
            assert!(self.layout.pages_without(block, [true; 2]).is_none(), "{block:?}");
            self.pages.remove(&block);
        }
    }

    /// A read finds no pages of a block.
    fn miss(&mut self, block: BlockId, task: u32) {
        self.fetching.insert(block);
        self.awaited.insert(block);
        self.probes.remove(&block);
        self.trimmed.remove(&block);
        self.parts.remove(&block);
        self.tell(Event::Missed { block, task });
    }

    /// A read of pages of a block, if its file is read in parts.
    fn read_part(&mut self, block: BlockId, task: u32, first: u16, count: u16) {
        let there = self.pages.contains(&block) || self.fetching.contains(&block);
        if !there && self.in_parts.contains(&self.layout.file_of(block)) {
            let pages = PageRange { first, count };
            self.parts.entry(block).or_default().extend(pages.iter());
            self.tell(Event::Part { block, task, pages });
        }
    }

    fn open(&mut self, task: u32, file: FileId) {
        *self.open.entry(file).or_default() += 1;
        self.tell(Event::Opened { task, file });
        self.read(task, file);
    }

    /// A task goes to a file and leaves the one before.
    fn move_to(&mut self, task: u32, file: FileId) {
        let before = self.seen.insert(task, file);
        if before != Some(file) {
            before.into_iter().for_each(|before| self.release(before));
            *self.open.entry(file).or_default() += 1;
        }
    }

    /// A task looks a file up without reading it.
    fn look_up(&mut self, task: u32, file: FileId) {
        self.move_to(task, file);
        self.tell(Event::Seen { task, file });
    }

    fn see(&mut self, task: u32, file: FileId) {
        self.look_up(task, file);
        self.read(task, file);
    }

    /// A task reads a file that it may have opened before.
    fn touch(&mut self, task: u32, file: FileId) {
        self.move_to(task, file);
        self.tell(Event::Touched { task, file });
        self.read(task, file);
    }

    fn read(&mut self, task: u32, file: FileId) {
        self.layout.clone().blocks_of(file).for_each(|block| self.read_block(block, task));
    }

    /// A task reads a block of a file that is not cut.
    fn read_block(&mut self, block: BlockId, task: u32) {
        if self.fetching.contains(&block) {
            self.awaited.insert(block);
            self.tell(Event::Joined { block, task });
        } else if !self.pages.contains(&block) {
            self.miss(block, task);
        } else if self.probes.remove(&block) {
            self.tell(Event::Probed { block, task });
        }
    }

    fn leave(&mut self, task: u32) {
        self.seen.remove(&task).into_iter().for_each(|file| self.release(file));
        self.tell(Event::Left { task });
    }

    fn release(&mut self, file: FileId) {
        let handles = self.open.get_mut(&file).unwrap();
        *handles -= 1;
        if *handles == 0 {
            self.open.remove(&file);
        }
    }

    fn close(&mut self, file: FileId) {
        if self.seen.values().filter(|&&seen| seen == file).count() as u32
            == self.open.get(&file).copied().unwrap_or_default()
        {
            return;
        }
        if let Some(handles) = self.open.get_mut(&file) {
            *handles -= 1;
            if *handles == 0 {
                self.open.remove(&file);
            }
            self.tell(Event::Closed { file });
        }
    }

    fn arrive(&mut self, nth: usize, failed: bool) {
        let Some(&block) = self.fetching.iter().nth(nth % self.fetching.len().max(1)) else {
            return;
        };
        self.fetching.remove(&block);
        let is_awaited = self.awaited.remove(&block);
        if failed {
            return self.tell(Event::Failed { block });
        }
        self.fetched += 1;
        self.pages.insert(block);
        if !is_awaited && !self.is_slice(block) && self.layout.probe_in(block).is_some() {
            self.probes.insert(block);
        }
        let (mut pages, trimmed) = (self.pages_of(block), self.trimmed.remove(&block));
        if let Some(trimmed) = trimmed {
            pages.start += u64::from(trimmed.first);
            pages.end = pages.start + u64::from(trimmed.count);
        }
        let bytes = (pages.end - pages.start) * PAGE_BYTES;
        if self.is_slice(block) {
            self.of_slices.extend(pages);
        }
        self.tell(Event::Arrived { block, from: Place::Source, bytes });
    }

    /// The kernel takes pages back, and a check finds that out.
    fn lose(&mut self, nth: usize) {
        let Some(&block) = self.pages.iter().nth(nth % self.pages.len().max(1)) else { return };
        self.pages.remove(&block);
        self.probes.remove(&block);
        self.tell(Event::Lost { block });
        assert!(self.fetching.contains(&block), "{block:?} is fetched again");
    }

    /// The pages of a slice, counted from the start of its file.
    fn pages_of(&self, slice: BlockId) -> Range<u64> {
        let (offset, length) = self.layout.range(slice);
        offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES)
    }

    /// An order reads ranges of the large file, which is cut along them.
    fn cut(&mut self, stream: u16, bytes: u64) {
        let order = ranges(bytes);
        let before = self.layout.clone();
        let mut layout = Layout::clone(&before);
        for file in layout.cut_along(&order, |_| true) {
            self.was_cut = true;
            self.forget(&before, file);
            self.left_behind.extend(before.blocks_of(file));
            self.layout = Arc::new(layout.clone());
            self.tell(Event::Changed { layout: self.layout.clone(), files: vec![file] });
        }
        self.tell(Event::Ordered { stream: StreamId(stream), order });
    }

    /// What was held and under way of a file is gone.
    fn forget(&mut self, layout: &Layout, file: FileId) {
        for block in layout.blocks_of(file) {
            self.pages.remove(&block);
            self.probes.remove(&block);
            self.awaited.remove(&block);
            self.parts.remove(&block);
            self.fetching.remove(&block);
            self.dropping.remove(&block);
            self.placing.retain(|(placing, _)| *placing != block);
        }
        if file == LARGE {
            self.of_slices.clear();
        }
    }

    /// A task reads a range of the large file.
    fn read_range(&mut self, task: u32, offset: u64, length: u64) {
        if !self.layout.is_cut(LARGE) {
            return;
        }
        for block in self.layout.clone().blocks_in(LARGE, offset, length) {
            match (self.pages.contains(&block), self.fetching.contains(&block)) {
                (true, _) if self.untracked.contains(&FileId::slice(block)) => {}
                (true, _) => self.tell(Event::Probed { block, task }),
                (false, true) => self.tell(Event::Joined { block, task }),
                (false, false) => self.miss(block, task),
            }
        }
    }

    /// A file changes at the source. Its fetches, drops and writes under way end without an event.
    fn change(&mut self, file: FileId, size: u64) {
        let mut layout = Layout::clone(&self.layout);
        self.forget(&layout, file);
        let before = layout.blocks_of(file);
        layout.resize(file, size);
        self.left_behind.extend(before.filter(|block| !layout.has(*block)));
        self.layout = Arc::new(layout);
        let layout = self.layout.clone();
        self.tell(Event::Changed { layout, files: vec![file] });
    }

    /// Events about a block come after its file has left it behind.
    fn tell_late(&mut self, nth: usize) {
        let Some(&block) = self.left_behind.get(nth % self.left_behind.len().max(1)) else {
            return;
        };
        self.tell(Event::Missed { block, task: 0 });
        self.tell(Event::Joined { block, task: 0 });
        self.tell(Event::Probed { block, task: 0 });
        self.tell(Event::Part { block, task: 0, pages: PageRange { first: 0, count: 1 } });
    }

    fn finish(&mut self, done: bool) {
        if let Some(block) = self.dropping.pop_last() {
            self.tell(Event::Dropped { block });
        }
        if let Some((block, tier)) = self.placing.pop() {
            self.tell(Event::Placed { block, tier, done });
        }
    }

    /// The planner's accounts are equal to what the world holds.
    fn check(&self) {
        let accounts = self.planner.accounts();
        let bytes = |blocks: &mut dyn Iterator<Item = BlockId>| -> u64 {
            blocks.map(|block| self.layout.pages_bytes(block)).sum()
        };
        let is_slice = |it: &&BlockId| self.layout.is_cut(LARGE) && self.is_slice(**it);
        let here = || self.pages.iter().chain(&self.fetching);
        let of_slices = here().filter(is_slice).flat_map(|slice| self.pages_of(*slice));
        let of_slices = of_slices.collect::<BTreeSet<u64>>().len() as u64 * PAGE_BYTES;
        let held = of_slices + bytes(&mut here().filter(|it| !is_slice(it)).copied());
        for slice in self.pages.iter().filter(is_slice) {
            let has_all = self.pages_of(*slice).all(|page| self.of_slices.contains(&page));
            assert!(has_all, "{slice:?} has lost a page to a slice beside it");
        }
        let parts: usize = self.parts.values().map(BTreeSet::len).sum();
        assert_eq!(accounts.parts, parts as u64 * PAGE_BYTES);
        assert_eq!(accounts.kept[RAM] + accounts.staged, held);
        assert_eq!(accounts.dropping, bytes(&mut self.dropping.iter().copied()));
        assert_eq!(accounts.fetching as usize, self.fetching.len());
        for file in &self.untracked {
            let there = |block| self.pages.contains(&block) || self.fetching.contains(&block);
            assert!(self.layout.blocks_of(*file).all(there), "{file:?} is untracked");
            assert!(!self.planner.visibility.is_withheld(*file), "{file:?} is withheld");
        }
        let files = self.untracked.iter().filter(|file| file.as_slice().is_none());
        assert_eq!(self.planner.untracked_files(), files.count() as u64);
        let capacity = self.planner.stager.ledger.capacity(RAM);
        assert!(accounts.kept[RAM] + accounts.window <= capacity || accounts.kept[RAM] == 0);
        let used = accounts.kept[RAM] + accounts.staged + accounts.parts;
        assert!(used <= capacity || accounts.parts == 0);
    }

    /// All tasks end, all files are closed, and everything under way ends.
    fn settle(&mut self) {
        for task in self.seen.clone().into_keys() {
            self.leave(task);
        }
        for file in self.open.clone().into_iter().flat_map(|(f, n)| (0..n).map(move |_| f)) {
            self.close(file);
        }
        for _ in 0..10_000 {
            self.arrive(0, false);
            self.finish(true);
            if self.fetching.is_empty() && self.dropping.is_empty() && self.placing.is_empty() {
                return;
            }
        }
        panic!("the planner never rests");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open(u32, u32),
    Close(u32),
    Arrive(usize, bool),
    Finish(bool),
    Order(u16, u32),
    Withdraw(u16),
    Change(u32, u64),
    TellLate(usize),
    NotHere(u32),
    Found(u32),
    Lose(usize),
    See(u32, u32),
    LookUp(u32, u32),
    Touch(u32, u32),
    Leave(u32),
    Resize(usize, u64),
    Want(u32),
    Unwant(u32),
    Home(usize, u32),
    Give(u32),
    Withhold(u32, bool),
    Jump(u32, u32),
    Part(u32, u32, u16, u16),
    Cut(u16, u64),
    ReadRange(u32, u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u32, 0..FILES).prop_map(|(task, file)| Step::Open(task, file)),
        6 => (0..FILES).prop_map(Step::Close),
        8 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(n, f)| Step::Arrive(n, f)),
        6 => any::<bool>().prop_map(Step::Finish),
        1 => (0..2u16, 0..FILES).prop_map(|(stream, seed)| Step::Order(stream, seed)),
        1 => (0..2u16).prop_map(Step::Withdraw),
        1 => (0..FILES, 0..3 * BLOCK_BYTES).prop_map(|(file, size)| Step::Change(file, size)),
        1 => any::<usize>().prop_map(Step::TellLate),
        1 => (0..FILES).prop_map(Step::NotHere),
        1 => (0..FILES).prop_map(Step::Found),
        1 => any::<usize>().prop_map(Step::Lose),
        4 => (10..14u32, 0..FILES).prop_map(|(task, file)| Step::See(task, file)),
        2 => (10..14u32, 0..FILES).prop_map(|(task, file)| Step::LookUp(task, file)),
        4 => (10..14u32, 0..FILES).prop_map(|(task, file)| Step::Touch(task, file)),
        1 => (10..14u32).prop_map(Step::Leave),
        1 => (0..3usize, 0..4_000_000u64).prop_map(|(tier, bytes)| Step::Resize(tier, bytes)),
        2 => (0..FILES).prop_map(Step::Want),
        1 => (0..FILES).prop_map(Step::Unwant),
        1 => (0..3usize, 0..FILES).prop_map(|(tier, first)| Step::Home(tier, first)),
        2 => (0..FILES).prop_map(Step::Give),
        4 => (0..FILES, any::<bool>()).prop_map(|(file, on)| Step::Withhold(file, on)),
        2 => (0..4u32, 0..3u32).prop_map(|(task, nth)| Step::Jump(task, nth)),
        6 => (0..4u32, 0..3u32, 0..250u16, 1..256u16)
            .prop_map(|(task, nth, first, count)| Step::Part(task, nth, first, count.min(256 - first))),
        1 => (0..2u16, 3_000..400_000u64).prop_map(|(stream, bytes)| Step::Cut(stream, bytes)),
        8 => (0..4u32, 0..3 * BLOCK_BYTES, 1..200_000u64)
            .prop_map(|(task, offset, bytes)| Step::ReadRange(task, offset, bytes)),
    ]
}

fn policy() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![
        Just(PolicyKind::Auto),
        Just(PolicyKind::Belady),
        Just(PolicyKind::Lru),
        Just(PolicyKind::Minio),
        Just(PolicyKind::UnreadFirst),
        Just(PolicyKind::None),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_is_true_under_any_events(
        steps in prop::collection::vec(step(), 1..200),
        policy in policy(),
        ram in prop_oneof![Just(0u64), Just(1), Just(4096), 0..4_000_000u64],
        disk in prop::option::of(0..4_000_000u64),
        withheld in any::<bool>(),
    ) {
        let plan = Settings { may_untrack: true, withheld, ..settings(ram, disk, policy) };
        let mut world = World::new(plan);
        for step in steps {
            match step {
                Step::Open(task, file) => world.open(task, FileId(file)),
                Step::Close(file) => world.close(FileId(file)),
                Step::Arrive(nth, failed) => world.arrive(nth, failed),
                Step::Finish(done) => world.finish(done),
                Step::Order(stream, seed) => {
                    world.tell(Event::Ordered { stream: StreamId(stream), order: order(seed) });
                }
                Step::Withdraw(stream) => {
                    world.tell(Event::Withdrawn { stream: StreamId(stream) });
                }
                Step::Change(file, size) => world.change(FileId(file), size),
                Step::TellLate(nth) => world.tell_late(nth),
                Step::NotHere(block) if disk.is_some() => {
                    world.tell(Event::NotHere { block: BlockId(block), tier: 1 });
                }
                Step::NotHere(_) => {}
                Step::Found(first) => {
                    let blocks = (first..first + 5).map(BlockId).collect();
                    world.tell(Event::Found { tier: 1, blocks });
                }
                Step::Lose(nth) => world.lose(nth),
                Step::See(task, file) => world.see(task, FileId(file)),
                Step::LookUp(task, file) => world.look_up(task, FileId(file)),
                Step::Touch(task, file) => world.touch(task, FileId(file)),
                Step::Leave(task) => world.leave(task),
                Step::Resize(tier, capacity) => world.tell(Event::Resized { tier, capacity }),
                Step::Want(first) => {
                    let blocks = (first..first + 5).map(BlockId).collect();
                    world.tell(Event::Wanted { blocks });
                }
                Step::Unwant(first) => {
                    let blocks = (first..first + 5).map(BlockId).collect();
                    world.tell(Event::Unwanted { blocks });
                }
                Step::Home(tier, first) => {
                    let blocks = (first..first + 5).map(BlockId).collect();
                    world.tell(Event::Homed { tier, blocks });
                }
                Step::Give(first) => {
                    let blocks = (first..first + 5).map(BlockId).collect();
                    world.tell(Event::Given { blocks });
                }
                Step::Withhold(file, true) => {
                    world.tell(Event::Withheld { file: FileId(file) });
                }
                Step::Withhold(file, false) => {
                    world.tell(Event::Released { file: FileId(file) });
                }
                Step::Cut(stream, bytes) => world.cut(stream, bytes),
                Step::ReadRange(task, offset, bytes) => world.read_range(task, offset, bytes),
                Step::Jump(task, nth) => {
                    let block = world.layout.blocks_of(LARGE).nth(nth as usize);
                    if let Some(block) = block.filter(|block| !world.pages.contains(block)) {
                        world.miss(block, task);
                    }
                }
                Step::Part(task, nth, first, count) => {
                    if let Some(block) = world.layout.blocks_of(LARGE).nth(nth as usize) {
                        world.read_part(block, task, first, count);
                    }
                }
            }
            world.check();
        }
        // Tasks that have read ranges are at slices.
        (0..4).for_each(|task| world.tell(Event::Left { task }));
        world.settle();
        world.check();
        let accounts = world.planner.accounts();
        let capacity = world.planner.stager.ledger.capacity(RAM);
        prop_assert!(accounts.kept[RAM] + accounts.staged <= capacity);
    }
}

#[test]
fn a_read_that_is_told_of_when_its_file_has_left_the_block_behind_is_nothing() {
    for size in [4 * BLOCK_BYTES, 100] {
        let mut world = World::new(settings(4_000_000, None, PolicyKind::Auto));
        world.change(LARGE, size);
        assert!(world.left_behind.len() >= 2);
        (0..3).for_each(|nth| world.tell_late(nth));
        world.check();
    }
}

fn shuffled(files: u32, seed: u64) -> Arc<[u32]> {
    randperm(files, &mut generator(seed)).into()
}

fn read_all(world: &mut World, task: u32, files: impl Iterator<Item = u32>) {
    for file in files {
        world.open(task, FileId(file));
        while !world.fetching.is_empty() {
            world.arrive(0, false);
        }
        world.close(FileId(file));
        while !world.dropping.is_empty() || !world.placing.is_empty() {
            world.finish(true);
        }
    }
}

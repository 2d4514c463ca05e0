//! The planner against a model of the world, under any sequence of events.

mod streams;
mod tracker;
mod warm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ids::BLOCK_BYTES;
use crate::order::Order;
use crate::order::SampleTable;
use crate::order::samplers::torch::{generator, randperm};

const FILES: u32 = 24;

fn layout() -> Arc<Layout> {
    // Small files, an empty one, and one of three blocks.
    let size = |file: u32| match file {
        5 => 0,
        7 => 3 * BLOCK_BYTES - 100,
        _ => 1000 + u64::from(file) * 700,
    };
    Arc::new(Layout::new((0..FILES).map(size)))
}

fn settings(ram: u64, disk: Option<u64>, policy: PolicyKind) -> Settings {
    let mut tiers = vec![Tier { capacity: ram }];
    tiers.extend(disk.map(|capacity| Tier { capacity }));
    Settings {
        tiers,
        policy,
        prefetch: true,
        inflight_max: 4,
        window_bytes: Some(ram / 4),
        start_at_open: false,
        gears: false,
    }
}

fn order(seed: u32) -> Arc<Order> {
    let epoch = |k: u32| (0..FILES).map(|i| (i * 7 + seed + k * 5) % FILES).collect();
    Arc::new(Order::listed("test", vec![epoch(0), epoch(1)], SampleTable::Files).unwrap())
}

/// The planner with a world that does what it says, some of it late.
struct World {
    planner: Planner,
    layout: Arc<Layout>,
    fetching: BTreeSet<BlockId>,
    dropping: BTreeSet<BlockId>,
    placing: Vec<(BlockId, usize)>,
    pages: BTreeSet<BlockId>,
    open: BTreeMap<FileId, u32>,
    seen: BTreeMap<u32, FileId>,
    trusted: BTreeSet<FileId>,
    fetched: u64,
}

impl World {
    fn new(settings: Settings) -> Self {
        let layout = layout();
        World {
            planner: Planner::new(settings, layout.clone()),
            layout,
            fetching: BTreeSet::new(),
            dropping: BTreeSet::new(),
            placing: Vec::new(),
            pages: BTreeSet::new(),
            open: BTreeMap::new(),
            seen: BTreeMap::new(),
            trusted: BTreeSet::new(),
            fetched: 0,
        }
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.planner.apply(event, &mut actions);
        for action in actions {
            match action {
                Action::Fetch { block, .. } => {
                    assert!(!self.pages.contains(&block), "{block:?} is in RAM");
                    assert!(self.fetching.insert(block), "{block:?} is fetched twice at once");
                }
                Action::Trust { file } => assert!(self.trusted.insert(file), "{file:?}"),
                Action::Watch { file } => assert!(self.trusted.remove(&file), "{file:?}"),
                Action::Check { block } => {
                    assert!(self.pages.contains(&block) || self.fetching.contains(&block));
                }
                Action::Drop { block } => {
                    let file = self.layout.file_of(block);
                    let large = self.layout.blocks_of(file).len() > 1;
                    assert!(large || !self.open.contains_key(&file), "{block:?} is in use");
                    self.pages.remove(&block);
                    self.dropping.insert(block);
                }
                Action::Place { block, tier } | Action::Load { block, tier } => {
                    assert!(self.placing.iter().all(|(placing, _)| *placing != block));
                    self.placing.push((block, tier));
                }
                Action::Displace { .. } => {}
            }
        }
    }

    fn open(&mut self, task: u32, file: FileId) {
        *self.open.entry(file).or_default() += 1;
        self.tell(Event::Opened { task, file });
        for block in self.layout.clone().blocks_of(file) {
            if !self.pages.contains(&block) {
                self.fetching.insert(block);
                self.tell(Event::Missed { block, task });
            }
        }
    }

    /// A task is seen at a file, and at no other any more.
    fn see(&mut self, task: u32, file: FileId) {
        let before = self.seen.insert(task, file);
        if before != Some(file) {
            before.into_iter().for_each(|before| self.release(before));
            *self.open.entry(file).or_default() += 1;
        }
        self.tell(Event::Seen { task, file });
        for block in self.layout.clone().blocks_of(file) {
            if !self.pages.contains(&block) {
                self.fetching.insert(block);
                self.tell(Event::Missed { block, task });
            }
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
        if failed {
            return self.tell(Event::Failed { block });
        }
        self.fetched += 1;
        self.pages.insert(block);
        self.tell(Event::Arrived { block, from: Place::Source });
    }

    /// The kernel takes pages back, and a look finds that out.
    fn lose(&mut self, nth: usize) {
        let Some(&block) = self.pages.iter().nth(nth % self.pages.len().max(1)) else { return };
        self.pages.remove(&block);
        self.tell(Event::Lost { block });
        assert!(self.fetching.contains(&block), "{block:?} is fetched again");
    }

    /// A file changes at the source: what is under way of it ends without a word.
    fn change(&mut self, file: FileId, size: u64) {
        let mut layout = Layout::clone(&self.layout);
        for block in layout.blocks_of(file) {
            self.pages.remove(&block);
            self.fetching.remove(&block);
            self.dropping.remove(&block);
            self.placing.retain(|(placing, _)| *placing != block);
        }
        layout.resize(file, size);
        self.layout = Arc::new(layout);
        let layout = self.layout.clone();
        self.tell(Event::Changed { layout, files: vec![file] });
    }

    fn finish(&mut self, done: bool) {
        if let Some(block) = self.dropping.pop_last() {
            self.tell(Event::Dropped { block });
        }
        if let Some((block, tier)) = self.placing.pop() {
            self.tell(Event::Placed { block, tier, done });
        }
    }

    /// The ledger knows exactly what the world holds.
    fn check(&self) {
        let accounts = self.planner.accounts();
        let bytes = |blocks: &mut dyn Iterator<Item = BlockId>| -> u64 {
            blocks.map(|block| self.layout.pages_bytes(block)).sum()
        };
        let held = bytes(&mut self.pages.iter().chain(&self.fetching).copied());
        assert_eq!(accounts.kept[RAM] + accounts.staged, held);
        assert_eq!(accounts.dropping, bytes(&mut self.dropping.iter().copied()));
        assert_eq!(accounts.fetching as usize, self.fetching.len());
        for file in &self.trusted {
            let there = |block| self.pages.contains(&block) || self.fetching.contains(&block);
            assert!(self.layout.blocks_of(*file).all(there), "{file:?} is trusted");
        }
        assert_eq!(self.planner.trusted_files(), self.trusted.len() as u64);
        let capacity = self.planner.settings.tiers[RAM].capacity;
        assert!(accounts.kept[RAM] + accounts.window <= capacity || accounts.kept[RAM] == 0);
    }

    /// Everything under way ends and everyone goes home.
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
    NotHere(u32),
    Found(u32),
    Lose(usize),
    See(u32, u32),
    Leave(u32),
    Resize(usize, u64),
    Want(u32),
    Unwant(u32),
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
        1 => (0..FILES).prop_map(Step::NotHere),
        1 => (0..FILES).prop_map(Step::Found),
        1 => any::<usize>().prop_map(Step::Lose),
        4 => (10..14u32, 0..FILES).prop_map(|(task, file)| Step::See(task, file)),
        1 => (10..14u32).prop_map(Step::Leave),
        1 => (0..3usize, 0..4_000_000u64).prop_map(|(tier, bytes)| Step::Resize(tier, bytes)),
        2 => (0..FILES).prop_map(Step::Want),
        1 => (0..FILES).prop_map(Step::Unwant),
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
    ) {
        let mut plan = settings(ram, disk, policy);
        plan.gears = true;
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
            }
            world.check();
        }
        world.settle();
        world.check();
        let accounts = world.planner.accounts();
        let capacity = world.planner.settings.tiers[RAM].capacity;
        prop_assert!(accounts.kept[RAM] + accounts.staged <= capacity);
    }
}

/// A reader that follows its order finds every sample staged, whatever the cache's size, and the
/// source is read once for each sample that is not kept.
#[test]
fn a_known_order_is_staged_ahead_of_its_reader() {
    for share in [0, 10, 50, 200] {
        let layout = layout();
        let total: u64 = (0..FILES)
            .flat_map(|f| layout.blocks_of(FileId(f)))
            .map(|block| layout.pages_bytes(block))
            .sum();
        let mut plan = settings(total * share / 100, None, PolicyKind::Auto);
        plan.window_bytes = Some(2 << 20);
        let mut world = World::new(plan);
        let order = order(3);
        world.tell(Event::Ordered { stream: StreamId(0), order: order.clone() });
        for epoch in 0..4 {
            for &file in order.epoch(epoch).iter() {
                while !world.fetching.is_empty() || !world.dropping.is_empty() {
                    world.arrive(0, false);
                    world.finish(true);
                }
                world.open(1, FileId(file));
                world.close(FileId(file));
                world.check();
            }
        }
        world.settle();
        let counters = world.planner.counters();
        let (streams, _) = world.planner.streams().next().unwrap();
        assert_eq!(streams, StreamId(0));
        if share == 200 {
            assert_eq!(world.fetched, 25, "everything once: 22 small files and three blocks");
            assert_eq!(counters.dropped, 0);
        }
        if share >= 50 {
            assert!(counters.cold <= 2, "{share} %: {counters:?}");
        }
    }
}

/// A budget that shrinks keeps what is read next; one that grows back is filled again.
#[test]
fn a_smaller_budget_gives_up_what_is_read_last() {
    for policy in [PolicyKind::Belady, PolicyKind::Lru, PolicyKind::Minio, PolicyKind::Auto] {
        let layout = Arc::new(Layout::new((0..100).map(|_| 4096)));
        let mut plan = settings(200 * 4096, None, policy);
        plan.window_bytes = Some(10 * 4096);
        let mut world = World::new(plan.clone());
        world.planner = Planner::new(plan, layout.clone());
        world.layout = layout;
        let epochs = vec![(0..100).collect()];
        let order = Order::listed("test", epochs, SampleTable::Files).unwrap();
        world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
        while !world.fetching.is_empty() {
            world.arrive(0, false);
        }
        assert_eq!(world.pages.len(), 100);
        world.open(1, FileId(99));
        let capacity = 40 * 4096;
        world.tell(Event::Resized { tier: RAM, capacity });
        world.check();
        assert!(world.pages.len() <= 41, "{policy:?}: {} blocks", world.pages.len());
        assert!(world.pages.contains(&BlockId(99)), "it is being read");
        if policy == PolicyKind::Belady {
            assert!((0..29).all(|block| world.pages.contains(&BlockId(block))));
        }
        world.close(FileId(99));
        world.settle();
        world.check();
        let accounts = world.planner.accounts();
        assert!(accounts.kept[RAM] + accounts.staged <= capacity, "{policy:?}: {accounts:?}");
        if policy == PolicyKind::Belady {
            // What was given up is fetched again ahead of its read.
            let cold = world.planner.counters().cold;
            for file in 0..99 {
                world.settle();
                assert!(world.pages.contains(&BlockId(file)), "{file}");
                read_all(&mut world, 1, std::iter::once(file));
            }
            assert_eq!(world.planner.counters().cold, cold);
        }
        world.tell(Event::Resized { tier: RAM, capacity: 200 * 4096 });
        read_all(&mut world, 1, 0..100);
        assert_eq!(world.pages.len(), 100, "{policy:?}");
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

/// Ranges of one large file, read by way of a descriptor that stays open: most reads are not seen.
#[test]
fn ranges_of_a_large_file_are_staged_as_they_are_read() {
    let blocks = 600;
    let layout = Arc::new(Layout::new([u64::from(blocks) * BLOCK_BYTES]));
    let range = |block: u32| crate::order::Range {
        file: FileId(0),
        offset: u64::from(block) * BLOCK_BYTES + 10,
        length: 1000,
    };
    let epoch = shuffled(blocks, 4);
    let ranges = SampleTable::Ranges((0..blocks).map(range).collect());
    let order = Order::listed("test", vec![epoch.clone()], ranges).unwrap();
    let mut plan = settings(100 * BLOCK_BYTES, None, PolicyKind::Auto);
    plan.window_bytes = Some(40 * BLOCK_BYTES);
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    world.tell(Event::Opened { task: 1, file: FileId(0) });
    let mut misses = 0;
    for &block in epoch.iter() {
        while !world.fetching.is_empty() || !world.dropping.is_empty() {
            world.arrive(0, false);
            world.finish(true);
        }
        if !world.pages.contains(&BlockId(block)) {
            misses += 1;
            world.fetching.insert(BlockId(block));
            world.tell(Event::Missed { block: BlockId(block), task: 1 });
        }
        world.check();
    }
    assert!(misses <= 40, "{misses} of {blocks} ranges were waited for");
}

#[test]
fn what_a_tier_holds_at_the_start_is_known_and_within_its_capacity() {
    let stored = layout().stored_bytes(BlockId(0)) + layout().stored_bytes(BlockId(1));
    let mut planner = Planner::new(settings(1 << 20, Some(stored), PolicyKind::Auto), layout());
    let mut actions = Vec::new();
    let blocks = vec![BlockId(0), BlockId(1), BlockId(2), BlockId(0), BlockId(1000)];
    planner.apply(Event::Found { tier: 1, blocks }, &mut actions);
    assert_eq!(actions, [Action::Displace { block: BlockId(2), tier: 1 }]);
    assert_eq!(planner.accounts().kept[1], stored);
    actions.clear();
    planner.apply(Event::Ordered { stream: StreamId(0), order: order(0) }, &mut actions);
    let from = |block| Action::Fetch { block: BlockId(block), from: Place::Tier(1) };
    assert!(actions.contains(&from(0)), "{actions:?}");
}

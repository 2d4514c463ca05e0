//! Which blocks are staged, kept and given up, step by step.

use std::sync::Arc;

use super::*;
use crate::limiter::FetchLimits;

/// A reader that follows its order finds every sample staged, whatever the cache's size. The source is read
/// once for each sample that is not kept.
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

/// If a tier is no faster than the source, its blocks are fetched from the source, and none is placed there.
#[test]
fn a_tier_that_is_no_faster_than_the_source_is_left_alone() {
    for (block_us, source_us, used) in
        [(99, Some(100), true), (100, Some(100), false), (500, None, true)]
    {
        let mut plan = settings(1 << 20, Some(64 << 20), PolicyKind::Auto);
        plan.tiers[1].block_us = block_us;
        plan.source_us = source_us;
        let mut planner = Planner::new(plan, layout());
        let (mut actions, found) = (Vec::new(), BlockId(3));
        planner.apply(Event::Found { tier: 1, blocks: vec![found] }, &mut actions);
        planner.apply(Event::Ordered { stream: StreamId(0), order: order(3) }, &mut actions);
        let from = if used { Place::Tier(1) } else { Place::Source };
        assert!(
            actions.contains(&Action::Fetch { block: found, from, pages: None }),
            "{actions:?}"
        );
        let block = BlockId(0);
        let fetch = Action::Fetch { block, from: Place::Source, pages: None };
        assert!(actions.contains(&fetch), "{actions:?}");
        actions.clear();
        planner.apply(Event::Arrived { block, from: Place::Source, bytes: 1 }, &mut actions);
        assert_eq!(actions.contains(&Action::Place { block, tier: 1 }), used, "{actions:?}");
    }
}

/// A budget that shrinks keeps the blocks that are read next. One that grows back is filled again.
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
            // A block that was given up is fetched again ahead of its read.
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

/// Ranges of one large file are read through a descriptor that stays open. Most reads are not seen.
#[test]
fn ranges_of_a_large_file_are_staged_as_they_are_read() {
    let blocks = 600;
    let layout = Arc::new(Layout::new([u64::from(blocks) * BLOCK_BYTES]));
    let range = |block: u32| crate::order::FileRange {
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

/// The disk writes one sample each time a reader waits for the source.
#[test]
fn nothing_is_fetched_so_far_ahead_of_a_disk_that_it_could_not_be_stored() {
    let files = 300;
    let layout = Arc::new(Layout::new((0..files).map(|_| BLOCK_BYTES)));
    let plan = settings(40 * BLOCK_BYTES, Some(layout.stored_bytes_of_all()), PolicyKind::Auto);
    let epoch = shuffled(files, 3);
    let order = Order::listed("test", vec![epoch.clone()], SampleTable::Files).unwrap();
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    let mut waited = 0;
    for &file in epoch.iter() {
        if !world.pages.contains(&BlockId(file)) {
            waited += 1;
            if !world.placing.is_empty() {
                let (block, tier) = world.placing.remove(0);
                world.tell(Event::Placed { block, tier, done: true });
            }
        }
        world.open(1, FileId(file));
        while !world.fetching.is_empty() {
            world.arrive(0, false);
        }
        world.close(FileId(file));
        while let Some(block) = world.dropping.pop_last() {
            world.tell(Event::Dropped { block });
        }
        let (residency, block) = (&world.planner.stager.ledger.residency, BlockId(file));
        assert!(residency.is_placing(block) || residency.place(block) == Some(1), "{file}");
        world.check();
    }
    assert!(waited > 100, "{waited} of {files} were waited for");
    world.settle();
    let stored = |file| world.planner.standing(BlockId(file)) == Standing::Tier(1);
    assert_eq!((0..files).filter(|file| stored(*file)).count(), files as usize);
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
    let from = |block| Action::Fetch { block: BlockId(block), from: Place::Tier(1), pages: None };
    assert!(actions.contains(&from(0)), "{actions:?}");
}

/// A smaller cache disk keeps the blocks that a known order reads first, not those that are found first.
#[test]
fn a_smaller_tier_keeps_what_is_read_soonest_of_what_it_holds() {
    let layout = Arc::new(Layout::new((0..100).map(|_| 4096)));
    let stored = layout.stored_bytes(BlockId(0));
    let mut planner =
        Planner::new(settings(0, Some(10 * stored), PolicyKind::Belady), layout.clone());
    let mut actions = Vec::new();
    let order = Order::listed("test", vec![(0..100).collect()], SampleTable::Files).unwrap();
    planner.apply(Event::Ordered { stream: StreamId(0), order: Arc::new(order) }, &mut actions);
    actions.clear();
    let blocks = (0..100).rev().map(BlockId).collect();
    planner.apply(Event::Found { tier: 1, blocks }, &mut actions);
    let kept = (0..100).filter(|file| planner.standing(BlockId(*file)) == Standing::Tier(1));
    assert_eq!(kept.collect::<Vec<u32>>(), (0..10).collect::<Vec<u32>>());
    assert_eq!(planner.accounts().kept[1], 10 * stored);
    let displaced = actions.iter().filter(|action| matches!(action, Action::Displace { .. }));
    assert_eq!(displaced.count(), 90);
}

/// Readers may fetch more than the window holds. A block that is dropped for this is staged again before its
/// read.
#[test]
fn a_block_that_is_dropped_over_the_budget_is_staged_again() {
    let layout = Arc::new(Layout::new((0..100).map(|_| 4096)));
    let mut plan = settings(10 * 4096, None, PolicyKind::Belady);
    plan.window_bytes = Some(10 * 4096);
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    let order = Order::listed("test", vec![(0..100).collect()], SampleTable::Files).unwrap();
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    while !world.fetching.is_empty() {
        world.arrive(0, false);
    }
    let staged = world.pages.len();
    assert!(staged >= 8, "{staged}");
    // Another task opens files far ahead: all of them are in RAM beside the window.
    for file in 50..60 {
        world.open(7, FileId(file));
    }
    // A task that does not read for the order opens a file of the window and closes it.
    world.open(8, FileId(3));
    world.close(FileId(3));
    for file in 50..60 {
        world.close(FileId(file));
    }
    world.settle();
    let cold = world.planner.counters().cold;
    for file in 0..40 {
        world.settle();
        read_all(&mut world, 1, std::iter::once(file));
    }
    assert_eq!(world.planner.counters().cold, cold, "each was staged before its read");
}

/// The source is asked for as much at once as it serves best. What a tier below holds is fetched besides.
#[test]
fn fetches_from_the_source_are_limited_and_those_from_a_tier_are_not() {
    let mut plan = settings(64 << 20, Some(64 << 20), PolicyKind::Auto);
    plan.inflight_max = 64;
    let mut planner = Planner::new(plan, layout());
    let mut actions = Vec::new();
    let files = vec![Arc::from([0, 1, 2, 3, 4, 6, 8, 9])];
    let order = Arc::new(Order::listed("test", files, SampleTable::Files).unwrap());
    // Each of the first files is the block of its number.
    let first: Vec<BlockId> = (0..4).map(BlockId).collect();
    planner.apply(Event::Found { tier: 1, blocks: vec![first[0], first[2]] }, &mut actions);
    let limits = |fetches| FetchLimits { fetches, ..FetchLimits::default() };
    planner.apply(Event::Limited(limits(1)), &mut actions);
    planner.apply(Event::Ordered { stream: StreamId(0), order }, &mut actions);
    let fetch = |n: usize, from| Action::Fetch { block: first[n], from, pages: None };
    let wanted = [fetch(0, Place::Tier(1)), fetch(1, Place::Source), fetch(2, Place::Tier(1))];
    assert_eq!(actions, wanted);
    actions.clear();
    planner.apply(Event::Limited(limits(3)), &mut actions);
    let more = actions.iter().filter(|action| matches!(action, Action::Fetch { .. })).count();
    assert_eq!(more, 2, "{actions:?}");
    actions.clear();
    planner.apply(Event::Failed { block: first[1] }, &mut actions);
    let more = actions.iter().filter(|action| matches!(action, Action::Fetch { .. })).count();
    assert_eq!(more, 1, "{actions:?}");
}

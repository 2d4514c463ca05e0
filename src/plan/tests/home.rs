//! A tier below RAM that keeps blocks for other nodes, too.

use super::*;

const BLOCKS: u32 = 100;

/// Room for so many blocks on disk, and none in RAM.
fn world(disk: u64, policy: PolicyKind) -> World {
    let layout = Arc::new(Layout::new((0..BLOCKS).map(|_| 4096)));
    let plan = settings(0, Some(disk * layout.stored_bytes(BlockId(0))), policy);
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    world
}

fn blocks(range: std::ops::Range<u32>) -> Vec<BlockId> {
    range.map(BlockId).collect()
}

fn give(world: &mut World, range: std::ops::Range<u32>) {
    world.tell(Event::Given { blocks: blocks(range) });
    world.settle();
    world.check();
}

/// How many of these blocks the disk has.
fn stored(world: &World, range: std::ops::Range<u32>) -> usize {
    let is_stored = |block: &u32| world.planner.standing(BlockId(*block)) == Standing::Tier(1);
    range.filter(is_stored).count()
}

#[test]
fn what_is_kept_for_others_displaces_what_is_kept_for_this_node() {
    for policy in [PolicyKind::Auto, PolicyKind::Lru, PolicyKind::Minio] {
        let mut world = world(30, policy);
        read_all(&mut world, 1, 0..30);
        assert_eq!(stored(&world, 0..30), 30, "{policy:?}");
        world.tell(Event::Homed { tier: 1, blocks: blocks(50..70) });
        give(&mut world, 50..70);
        assert_eq!((stored(&world, 0..30), stored(&world, 50..70)), (10, 20), "{policy:?}");
        read_all(&mut world, 1, 30..50);
        assert_eq!(stored(&world, 50..70), 20, "{policy:?}: they stay");
        // Another node is their home.
        world.tell(Event::Homed { tier: 1, blocks: blocks(70..100) });
        give(&mut world, 70..100);
        assert_eq!((stored(&world, 0..70), stored(&world, 70..100)), (0, 30), "{policy:?}");
    }
}

#[test]
fn room_is_left_for_what_others_will_give() {
    let mut world = world(30, PolicyKind::Auto);
    world.tell(Event::Homed { tier: 1, blocks: blocks(50..70) });
    read_all(&mut world, 1, 0..40);
    assert_eq!(stored(&world, 0..40), 10);
    // This node reads what it keeps for others: nobody needs to give it.
    read_all(&mut world, 1, 50..60);
    give(&mut world, 60..70);
    assert_eq!((stored(&world, 0..40), stored(&world, 50..70)), (10, 20));
}

#[test]
fn what_has_no_room_is_left_where_it_is() {
    let mut world = world(30, PolicyKind::Auto);
    give(&mut world, 0..10);
    assert_eq!(stored(&world, 0..BLOCKS), 0, "its home is elsewhere");
    world.tell(Event::Homed { tier: 1, blocks: blocks(0..90) });
    give(&mut world, 0..BLOCKS + 5);
    assert_eq!((stored(&world, 0..90), world.fetched), (30, 0));
    let capacity = 10 * world.layout.stored_bytes(BlockId(0));
    world.tell(Event::Resized { tier: 1, capacity });
    assert_eq!(stored(&world, 0..90), 10, "less fits on the disk");
    give(&mut world, 0..90);
    assert_eq!(stored(&world, 0..90), 10);
    // A copy that was lost is made when the block is given again.
    let there = (0..90).find(|block| stored(&world, *block..block + 1) == 1).unwrap();
    world.tell(Event::NotHere { block: BlockId(there), tier: 1 });
    assert_eq!(stored(&world, 0..90), 9);
    give(&mut world, there..there + 1);
    assert_eq!(stored(&world, there..there + 1), 1);
}

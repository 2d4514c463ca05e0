//! Blocks that a warm-up asks for, or that are to be given up.

use super::*;

const BLOCKS: u32 = 100;

fn world(ram: u64, disk: Option<u64>) -> World {
    let layout = Arc::new(Layout::new((0..BLOCKS).map(|_| 4096)));
    let stored = layout.stored_bytes(BlockId(0));
    let plan = settings(ram * 4096, disk.map(|blocks| blocks * stored), PolicyKind::Auto);
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    world
}

fn want(world: &mut World, blocks: std::ops::Range<u32>) {
    world.tell(Event::Wanted { blocks: blocks.map(BlockId).collect() });
    world.settle();
    world.check();
}

fn standing(world: &World, standing: Standing) -> usize {
    (0..BLOCKS).filter(|block| world.planner.standing(BlockId(*block)) == standing).count()
}

#[test]
fn what_is_wanted_goes_to_disk_then_to_ram_and_the_rest_is_not_fetched() {
    let mut world = world(40, Some(60));
    want(&mut world, 0..BLOCKS);
    // The window is a quarter of RAM.
    let ram = 40 * 3 / 4;
    assert_eq!((standing(&world, Standing::Tier(1)), standing(&world, Standing::Ram)), (60, ram));
    assert_eq!(standing(&world, Standing::Refused), BLOCKS as usize - 60 - ram);
    assert_eq!(world.pages.len(), ram, "what goes to disk leaves RAM alone");
    assert_eq!(world.planner.counters().prefetched, ram as u64);
    let again = world.fetched;
    want(&mut world, 0..90);
    assert_eq!(world.fetched, again, "what is here is not fetched again");
}

#[test]
fn without_a_disk_ram_keeps_what_is_wanted() {
    let mut world = world(400, None);
    want(&mut world, 10..20);
    assert_eq!((standing(&world, Standing::Ram), standing(&world, Standing::Away)), (10, 90));
    assert!((10..20).all(|block| world.pages.contains(&BlockId(block))));
}

#[test]
fn what_ram_keeps_is_there_while_a_copy_goes_to_disk() {
    let mut world = world(400, Some(200));
    world.open(1, FileId(0));
    world.arrive(0, false);
    assert_eq!((world.placing.len(), world.planner.standing(BlockId(0))), (1, Standing::Ram));
    world.settle();
    assert_eq!(world.planner.standing(BlockId(0)), Standing::Tier(1));
}

#[test]
fn loads_under_way_are_bounded_and_readers_go_first() {
    let mut world = world(0, Some(200));
    world.tell(Event::Wanted { blocks: (0..BLOCKS).map(BlockId).collect() });
    assert_eq!(world.placing.len(), 4);
    assert_eq!(standing(&world, Standing::Coming), BLOCKS as usize);
    world.open(1, FileId(50));
    world.close(FileId(50));
    world.tell(Event::Unwanted { blocks: (10..BLOCKS).map(BlockId).collect() });
    world.settle();
    assert_eq!(standing(&world, Standing::Tier(1)), 10 + 1, "one was read and stored for that");
}

#[test]
fn what_is_not_wanted_goes_unless_it_is_read() {
    let mut world = world(200, Some(30));
    want(&mut world, 0..BLOCKS);
    assert_eq!((standing(&world, Standing::Tier(1)), standing(&world, Standing::Ram)), (30, 70));
    world.open(1, FileId(99));
    world.tell(Event::Unwanted { blocks: (20..BLOCKS + 7).map(BlockId).collect() });
    world.finish(true);
    world.check();
    assert_eq!((standing(&world, Standing::Tier(1)), standing(&world, Standing::Ram)), (20, 1));
    world.close(FileId(99));
    world.settle();
    world.check();
}

#[test]
fn a_load_that_fails_is_away_and_can_be_wanted_again() {
    let mut world = world(0, Some(200));
    world.tell(Event::Wanted { blocks: vec![BlockId(0)] });
    world.finish(false);
    assert_eq!(world.planner.standing(BlockId(0)), Standing::Away);
    want(&mut world, 0..1);
    assert_eq!(world.planner.standing(BlockId(0)), Standing::Tier(1));
}

#[test]
fn what_the_kernel_reads_by_itself_is_not_staged_as_long_as_all_of_it_is_there() {
    // File 7 is large; the world has no more files.
    let mut world = World::new(settings(1 << 24, Some(1 << 24), PolicyKind::Auto));
    let file = FileId(7);
    let blocks: Vec<BlockId> = world.layout.blocks_of(file).collect();
    world.tell(Event::Found { tier: 1, blocks: blocks.clone() });
    world.tell(Event::PassedThrough { file });
    world.tell(Event::Ordered { stream: StreamId(0), order: order(0) });
    world.settle();
    world.check();
    assert!(!blocks.iter().any(|block| world.pages.contains(block)));
    assert_eq!(world.pages.len(), FILES as usize - 2, "all others but the empty one");
    world.tell(Event::NotHere { block: blocks[1], tier: 1 });
    world.tell(Event::Ordered { stream: StreamId(0), order: order(0) });
    world.settle();
    assert!(blocks.iter().all(|block| world.pages.contains(block)));
}

#[test]
fn what_a_file_has_left_behind_is_not_wanted_any_more() {
    let mut world = World::new(settings(40 * 4096, Some(8 * BLOCK_BYTES), PolicyKind::Auto));
    let large = world.layout.blocks_of(LARGE);
    // Before it, as many blocks are wanted as are loaded at once.
    let blocks = (0..4).map(BlockId).chain(large.clone()).collect();
    world.tell(Event::Wanted { blocks });
    world.change(LARGE, 100);
    world.settle();
    let standing: Vec<Standing> = large.map(|block| world.planner.standing(block)).collect();
    assert_eq!(standing, [Standing::Tier(1), Standing::Away, Standing::Away]);
}

//! Large files that are read at random.

use super::*;

/// A dataset of one file of `blocks` blocks, and RAM for `ram` blocks.
fn world(blocks: u64, ram: u64) -> World {
    let mut world = World::new(settings(ram * BLOCK_BYTES, None, PolicyKind::Auto));
    world.layout = Arc::new(Layout::new([blocks * BLOCK_BYTES]));
    world.planner = Planner::new(world.settings.clone(), world.layout.clone());
    world
}

const FILE: FileId = FileId(0);

pub(super) fn arrive_all(world: &mut World) {
    while !world.fetching.is_empty() {
        world.arrive(0, false);
    }
    while !world.dropping.is_empty() || !world.placing.is_empty() {
        world.finish(true);
    }
}

#[test]
fn a_jump_divides_a_file_that_ram_cannot_hold() {
    for (ram, divided) in [(8, true), (32, false)] {
        let mut world = world(16, ram);
        world.miss(BlockId(0), 1);
        world.miss(BlockId(1), 1);
        assert!(world.in_parts.is_empty(), "it goes on where it was");
        world.miss(BlockId(9), 1);
        assert_eq!(world.in_parts.contains(&FILE), divided, "RAM for {ram}");
    }
}

#[test]
fn a_file_is_whole_again_when_ram_can_hold_it() {
    let mut world = world(16, 8);
    world.miss(BlockId(9), 1);
    world.tell(Event::Resized { tier: RAM, capacity: 32 * BLOCK_BYTES });
    assert!(world.in_parts.contains(&FILE));
    world.read_part(BlockId(15), 1, 0, 256);
    assert!(world.in_parts.is_empty(), "also by a read of its end");
}

#[test]
fn an_order_that_is_followed_has_its_blocks_fetched_whole() {
    let mut world = world(16, 8);
    let order = Order::listed("test", vec![vec![0].into()], SampleTable::Files).unwrap();
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    world.miss(BlockId(9), 1);
    assert!(world.in_parts.is_empty());
}

/// Rows of four pages of a file of 16 blocks are read twice. RAM has room for half of the file.
#[test]
fn random_rows_cost_their_own_bytes() {
    let mut world = world(16, 8);
    world.miss(BlockId(9), 1);
    arrive_all(&mut world);
    let rows = randperm(16 * 64, &mut generator(1));
    let (mut asked, mut fetched) = (0, 0);
    for _ in 0..2 {
        for row in &rows {
            let (block, first) = (BlockId(row / 64), row % 64 * 4);
            let has = |page: &u16| world.parts.get(&block).is_some_and(|set| set.contains(page));
            asked += 4;
            if world.pages.contains(&block) || (first as u16..first as u16 + 4).all(|p| has(&p)) {
                continue;
            }
            fetched += 4;
            world.read_part(block, 1, first as u16, 4);
            arrive_all(&mut world);
            world.check();
        }
    }
    let whole = world.fetched * 256;
    assert!(fetched + whole < asked, "{fetched} pages and {whole} in blocks, of {asked}");
}

#[test]
fn reads_that_follow_each_other_end_it() {
    let mut world = world(16, 8);
    world.miss(BlockId(9), 1);
    for piece in 0..8u16 {
        assert!(world.in_parts.contains(&FILE), "{piece}");
        // Two readers.
        world.read_part(BlockId(2), 1, 32 * piece, 32);
        world.read_part(BlockId(5), 2, 16 * piece, 8);
    }
    assert!(world.in_parts.is_empty());
    assert!(world.fetching.contains(&BlockId(3)), "what follows is fetched");
}

#[test]
fn the_sections_that_came_first_give_way() {
    let mut world = world(16, 2);
    world.miss(BlockId(9), 1);
    world.tell(Event::Failed { block: BlockId(9) });
    world.fetching.clear();
    // Two sections of each of four blocks, then the other sections of the first block.
    for block in 0..4 {
        world.read_part(BlockId(block), 1, 70, 52);
    }
    let (front, back) = (0..64, 128..256);
    for piece in front.chain(back).step_by(32) {
        world.read_part(BlockId(0), 1, piece, 32);
        world.check();
    }
    world.read_part(BlockId(3), 2, 200, 56);
    let left = |world: &World| {
        [0, 1, 2, 3, 5].map(|block| world.parts.get(&BlockId(block)).map_or(0, BTreeSet::len))
    };
    assert_eq!(left(&world), [244, 52, 52, 108, 0], "there is room for two blocks");
    world.read_part(BlockId(5), 1, 0, 250);
    assert_eq!(left(&world), [192, 0, 0, 56, 250], "also of block 0 what came first");
    world.check();
}

#[test]
fn a_block_of_which_half_has_come_is_fetched_whole_if_a_tier_below_ram_can_keep_it() {
    for (disk, whole) in [(None, false), (Some(4 * BLOCK_BYTES), true), (Some(0), false)] {
        let mut world = world(16, 8);
        world.planner =
            Planner::new(settings(8 * BLOCK_BYTES, disk, PolicyKind::Auto), world.layout.clone());
        world.miss(BlockId(9), 1);
        arrive_all(&mut world);
        world.read_part(BlockId(2), 1, 0, 100);
        assert!(world.placing.is_empty());
        world.read_part(BlockId(2), 1, 200, 28);
        assert_eq!(world.placing.contains(&(BlockId(2), 1)), whole, "{disk:?}");
        assert!(!world.fetching.contains(&BlockId(2)), "{disk:?}");
        world.check();
    }
}

#[test]
fn a_little_of_ram_is_for_parts_where_the_rest_was_read() {
    let mut world = world(16, 8);
    let small = (0..8).map(|_| BLOCK_BYTES);
    world.layout = Arc::new(Layout::new(std::iter::once(16 * BLOCK_BYTES).chain(small)));
    let plan = settings(8 * BLOCK_BYTES, None, PolicyKind::Auto);
    let plan = Settings { window_bytes: Some(0), ..plan };
    world.planner = Planner::new(plan, world.layout.clone());
    for file in (1..9).map(FileId) {
        world.open(1, file);
        arrive_all(&mut world);
        world.close(file);
        arrive_all(&mut world);
    }
    world.miss(BlockId(9), 1);
    arrive_all(&mut world);
    let kept = world.pages.len();
    for block in [2, 4, 6, 11, 13] {
        world.read_part(BlockId(block), 1, 0, 64);
        arrive_all(&mut world);
        world.check();
    }
    let parts: usize = world.parts.values().map(BTreeSet::len).sum();
    assert!(parts >= 256, "an eighth of RAM: {parts} pages");
    assert!(world.pages.len() < kept && !world.pages.is_empty(), "{} of {kept}", world.pages.len());
}

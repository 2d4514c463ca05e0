//! Loaders that look names up long before they read the files, as loaders do that map files.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::parts::arrive_all;
use super::*;

const FILES: u32 = 1_000;

/// The loader's task that maps files, and the one that reads them.
const MAPS: u32 = 1;
const READS: u32 = 2;

/// Files of these sizes, and a planner that chooses the bytes of its window.
fn world(ram: u64, sizes: impl IntoIterator<Item = u64>) -> World {
    let layout = Arc::new(Layout::new(sizes));
    let plan = settings(ram, None, PolicyKind::Auto);
    let plan = Settings { window_bytes: None, may_untrack: true, inflight_max: 32, ..plan };
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    world
}

/// Files of a page each; RAM has room for half of them.
fn pages() -> World {
    world(u64::from(FILES) / 2 * 4096, (0..FILES).map(|_| 4096))
}

/// Tells an order whose epochs are all the same.
fn tell(world: &mut World, names: &Arc<[u32]>) {
    let order = Order::listed("test", vec![names.clone(); 5], SampleTable::Files).unwrap();
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
}

/// A task opens a file. This is seen if the file is tracked.
fn look_up(world: &mut World, task: u32, file: u32) {
    if !world.untracked.contains(&FileId(file)) {
        world.look_up(task, FileId(file));
    }
}

/// A loader that maps files ahead, and reads the mapped ones in random order.
struct Loader {
    mapped: Vec<u32>,
    choice: ChaCha8Rng,
}

impl Loader {
    fn new() -> Self {
        Loader { mapped: Vec::new(), choice: ChaCha8Rng::seed_from_u64(1) }
    }

    /// Maps these files, and reads mapped ones until `ahead` are left.
    fn go_on(&mut self, world: &mut World, names: &[u32], ahead: usize) {
        for &file in names {
            look_up(world, MAPS, file);
            self.mapped.push(file);
            while self.mapped.len() > ahead {
                let file = self.mapped.swap_remove(self.choice.random_range(0..self.mapped.len()));
                if !world.pages.contains(&BlockId(file)) {
                    world.touch(READS, FileId(file));
                }
                arrive_all(world);
            }
            world.check();
        }
    }
}

/// Fetches by epoch for a loader that has `ahead` files mapped ahead.
fn fetched_by(ahead: usize, is_told: bool) -> Vec<u64> {
    let (mut world, mut loader, names) = (pages(), Loader::new(), shuffled(FILES, 7));
    if is_told {
        tell(&mut world, &names);
    }
    let epoch = |epoch| {
        let before = world.fetched;
        loader.go_on(&mut world, &names, if epoch == 4 { 0 } else { ahead });
        world.fetched - before
    };
    let epochs = (0..5).map(epoch).collect();
    world.settle();
    world.check();
    epochs
}

fn lags_too_far(world: &World) -> bool {
    world.planner.readers.lag_too_far(&world.planner.stager.ledger)
}

#[test]
fn what_is_mapped_is_not_dropped_before_it_is_read() {
    let least = u64::from(FILES) / 2;
    for (ahead, is_told) in [(20, false), (300, false), (20, true), (300, true)] {
        let epochs = fetched_by(ahead, is_told);
        println!("{ahead} ahead, told {is_told}: {epochs:?}");
        for fetched in &epochs[1..4] {
            assert!(fetched * 100 <= least * 130, "{ahead} ahead, told {is_told}: {epochs:?}");
        }
        assert!(epochs[0] * 100 <= u64::from(FILES) * 120, "{ahead}, told {is_told}: {epochs:?}");
    }
}

/// Another task that is still there shows no lag.
#[test]
fn an_order_is_staged_when_those_who_mapped_files_have_ended() {
    let (mut world, names) = (pages(), shuffled(FILES, 7));
    world.look_up(9, FileId(0));
    Loader::new().go_on(&mut world, &names, 300);
    assert!(lags_too_far(&world));
    let held = world.planner.stager.ledger.open_files();
    [MAPS, READS].into_iter().for_each(|task| world.leave(task));
    assert_eq!(
        (held > 100, world.planner.stager.ledger.open_files()),
        (true, 1),
        "the others are not held"
    );
    tell(&mut world, &names);
    arrive_all(&mut world);
    for &file in &names[..500] {
        look_up(&mut world, 3, file);
        assert!(world.pages.contains(&BlockId(file)), "{file} was not fetched ahead");
        arrive_all(&mut world);
    }
}

/// A table in which samples are looked up, say. Its reader faults single pages in.
#[test]
fn a_large_file_that_is_kept_open_is_no_loader_that_maps_its_files() {
    const BLOCKS: u64 = 64;
    let (table, names) = (FileId(FILES), shuffled(FILES, 7));
    let sizes = (0..FILES).map(|_| 100_000).chain([BLOCKS * BLOCK_BYTES]);
    let mut world = world(50 << 20, sizes);
    tell(&mut world, &names);
    world.look_up(9, table);
    world.miss(BlockId(FILES), 9);
    arrive_all(&mut world);
    let mut choice = ChaCha8Rng::seed_from_u64(1);
    for (nth, &file) in names.iter().cycle().take(5 * names.len()).enumerate() {
        look_up(&mut world, READS, file);
        world.read(READS, FileId(file));
        arrive_all(&mut world);
        if nth % 100 == 0 {
            let block = BlockId(FILES + choice.random_range(0..BLOCKS as u32));
            world.move_to(READS, table);
            world.tell(Event::Touched { task: READS, file: table });
            world.read_part(block, READS, choice.random_range(0..256), 1);
            arrive_all(&mut world);
        }
        world.check();
        assert!(!lags_too_far(&world), "after {nth} reads");
    }
}

//! Loaders that look names up long before they read the files, as those do that map them.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;

const FILES: u32 = 1_000;

/// A loader that has so many files mapped ahead, and reads them in any order. RAM has room for half.
fn fetched_by(ahead: usize, told: bool) -> Vec<u64> {
    let layout = Arc::new(Layout::new((0..FILES).map(|_| 4096)));
    let plan = settings(u64::from(FILES) / 2 * 4096, None, PolicyKind::Auto);
    let plan = Settings { window_bytes: None, gears: true, inflight_max: 32, ..plan };
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    let names = shuffled(FILES, 7);
    if told {
        let order = Order::listed("test", vec![names.clone(); 5], SampleTable::Files).unwrap();
        world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    }
    let mut choice = ChaCha8Rng::seed_from_u64(1);
    let mut mapped: Vec<u32> = Vec::new();
    let mut epochs = vec![0];
    for epoch in 0..5 {
        for &file in names.iter() {
            if !world.trusted.contains(&FileId(file)) {
                world.look_up(1, FileId(file));
            }
            mapped.push(file);
            let over = if epoch == 4 { 0 } else { ahead };
            while mapped.len() > over {
                let file = mapped.swap_remove(choice.random_range(0..mapped.len()));
                if !world.pages.contains(&BlockId(file)) {
                    world.touch(2, FileId(file));
                }
                while !world.fetching.is_empty() {
                    world.arrive(0, false);
                }
                while !world.dropping.is_empty() {
                    world.finish(true);
                }
            }
            world.check();
        }
        epochs.push(world.fetched);
    }
    world.settle();
    world.check();
    epochs.windows(2).map(|epoch| epoch[1] - epoch[0]).collect()
}

#[test]
fn what_is_mapped_is_not_dropped_before_it_is_read() {
    let least = u64::from(FILES) / 2;
    for (ahead, told) in [(20, false), (300, false), (20, true), (300, true)] {
        let epochs = fetched_by(ahead, told);
        println!("{ahead} ahead, told {told}: {epochs:?}");
        for fetched in &epochs[1..4] {
            assert!(fetched * 100 <= least * 130, "{ahead} ahead, told {told}: {epochs:?}");
        }
        assert!(epochs[0] * 100 <= u64::from(FILES) * 120, "{ahead}, told {told}: {epochs:?}");
    }
}

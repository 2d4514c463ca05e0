//! How many files are found in epochs of unknown order.

use super::*;

const FILES: u32 = 2_000;

/// A planner that is told no order. RAM holds half of the files.
fn world() -> World {
    let settings = settings(u64::from(FILES) / 2 * 4096, None, PolicyKind::Auto);
    let layout = Arc::new(Layout::new((0..FILES).map(|_| 1000)));
    let mut world = World::new(settings.clone());
    world.planner = Planner::new(settings, layout.clone());
    world.layout = layout;
    world
}

/// Reads these epochs. Returns the share of hits in each.
fn found<'e>(epochs: impl IntoIterator<Item = &'e [u32]>) -> Vec<f64> {
    let mut world = world();
    let share = |epoch: &[u32]| {
        let before = world.planner.counters().hits;
        read_all(&mut world, 1, epoch.iter().copied());
        (world.planner.counters().hits - before) as f64 / epoch.len() as f64
    };
    epochs.into_iter().map(share).collect()
}

#[test]
fn a_job_that_is_resumed_within_an_epoch_finds_as_much_as_another() {
    let epochs: Vec<Arc<[u32]>> = (0..5).map(|epoch| shuffled(FILES, epoch)).collect();
    for skipped in [0, 200, 500, 800, 1_000, 1_200, 1_600, 1_800] {
        let first = std::iter::once(&epochs[0][skipped..]);
        let found = found(first.chain(epochs[1..].iter().map(|epoch| &epoch[..])));
        assert!(found[1..].iter().all(|share| *share > 0.64), "{skipped}: {found:.2?}");
    }
}

#[test]
fn a_job_that_is_stopped_within_an_epoch_spoils_none_after_it() {
    let epochs: Vec<Arc<[u32]>> = (0..5).map(|epoch| shuffled(FILES, epoch)).collect();
    for read in [200, 800, 1_000, 1_600] {
        let mut parts: Vec<&[u32]> = epochs.iter().map(|epoch| &epoch[..]).collect();
        parts[1] = &parts[1][..read];
        let found = found(parts);
        assert!(found[2..].iter().all(|share| *share > 0.64), "{read}: {found:.2?}");
    }
}

/// A validation's files are all in RAM when it begins, and take no room before.
#[test]
fn a_validation_takes_no_room_from_the_training() {
    let train = FILES / 5 * 4;
    let mut all: Vec<u32> = shuffled(FILES, 77).to_vec();
    let validation = all.split_off(train as usize);
    let training = |epoch| shuffled(train, epoch).iter().map(|at| all[*at as usize]).collect();
    let epochs: Vec<Vec<u32>> = (0..6).map(training).collect();
    let parts = epochs.iter().flat_map(|epoch| [&epoch[..], &validation[..]]);
    let found = found(parts);
    // RAM has room for half of all files: five eighths of the training's, without the window.
    for epoch in found[4..].chunks(2) {
        assert!(epoch[0] > 0.8 && epoch[1] > 0.95, "{found:.2?}");
    }
}

/// A file that has shrunk to one block has left another block behind.
#[test]
fn what_a_file_has_left_behind_is_not_fetched() {
    let mut world = world();
    let size = |file| if file == 9 { 2 * BLOCK_BYTES } else { 1000 };
    world.layout = Arc::new(Layout::new((0..FILES).map(size)));
    world.planner = Planner::new(world.settings.clone(), world.layout.clone());
    world.change(FileId(9), 1000);
    read_all(&mut world, 1, 20..200);
    assert!(world.pages.contains(&BlockId(9)), "what lies around what was read is fetched");
}

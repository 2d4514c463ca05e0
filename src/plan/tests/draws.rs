//! What rehearsal shows next is read ahead, in a part of the window.

use super::*;

/// A window that has room for `draws` pages of what is drawn.
fn world(draws: u64) -> World {
    World::new(settings(16 * draws * 4096, None, PolicyKind::None))
}

fn draw(sample: u32) -> Draw {
    Draw { buffer: 0, sample: SampleId(sample) }
}

/// Samples of a page each are shown next, from `first` on, and `opened` was.
fn show(world: &mut World, by: u64, opened: Option<u32>, first: u32) {
    let next = (first..first + 12).map(|sample| (draw(sample), 4096)).collect();
    let drawn = Box::new(Drawn { by, opened: opened.map(draw), next });
    world.tell(Event::Drawn { drawn });
}

#[test]
fn draws_are_read_ahead_of_their_opens() {
    let mut world = world(6);
    show(&mut world, 1, None, 0);
    for opened in 0..50 {
        while !world.readying.is_empty() {
            world.ready(true);
        }
        world.check();
        assert_eq!(world.planner.draws.bytes, 6 * 4096, "as many as there is room for");
        show(&mut world, 1, Some(opened), opened + 1);
    }
    let counters = world.planner.counters();
    assert_eq!((counters.draws_ready, counters.draws_late, counters.draws_cold), (50, 0, 0));
    assert_eq!(counters.draws_ahead, 56, "each is read once");
    // Nobody shows anything any more.
    let drawn = Box::new(Drawn { by: 1, opened: None, next: Vec::new() });
    world.tell(Event::Drawn { drawn });
    assert_eq!((world.planner.draws.bytes, world.planner.accounts().staged), (0, 0));
}

#[test]
fn an_open_is_counted_by_what_it_finds() {
    let mut world = world(6);
    show(&mut world, 1, Some(99), 0);
    assert_eq!(world.readying.len(), 4, "so many at once");
    show(&mut world, 1, Some(0), 1);
    world.ready(true);
    world.ready(false);
    show(&mut world, 1, Some(1), 2);
    let counters = world.planner.counters();
    assert_eq!((counters.draws_ready, counters.draws_late, counters.draws_cold), (0, 1, 2));
    world.check();
}

/// Streams have the rest of the window: who draws and stops does not starve them.
#[test]
fn draws_and_streams_share_the_window() {
    let mut world = world(2);
    (1..4).for_each(|by| show(&mut world, by, None, 100 * by as u32));
    assert_eq!(world.planner.draws.bytes, 2 * 4096, "a quarter of it");
    world.tell(Event::Ordered { stream: StreamId(0), order: order(3) });
    let accounts = world.planner.accounts();
    assert!(accounts.fetching == 2 && accounts.staged <= accounts.window, "{accounts:?}");
    world.check();
    // With less room what was read ahead is not counted on.
    world.tell(Event::Resized { tier: RAM, capacity: 4096 });
    assert_eq!(world.planner.draws.bytes, 0);
    world.check();
}

/// Of supplies that show the same samples each is charged once, until none shows it.
#[test]
fn a_sample_of_two_supplies_is_charged_once() {
    let mut world = world(12);
    show(&mut world, 1, None, 0);
    show(&mut world, 2, None, 0);
    while !world.readying.is_empty() {
        world.ready(true);
    }
    assert_eq!(world.planner.counters().draws_ahead, 12);
    show(&mut world, 1, None, 20);
    assert_eq!(world.planner.draws.bytes, 12 * 4096, "the other one shows them still");
    show(&mut world, 2, None, 20);
    world.check();
    assert!(world.planner.draws.ahead().all(|draw| (20..32).contains(&draw.sample.0)));
}

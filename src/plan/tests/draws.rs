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

/// Who falls silent leaves half of the part at once, and all of it in the end.
#[test]
fn who_falls_silent_makes_room() {
    let mut world = world(6);
    let all_ready = |world: &mut World| {
        while !world.readying.is_empty() {
            world.ready(true);
        }
        world.check();
    };
    let of = |world: &World, samples: std::ops::Range<u32>| {
        world.planner.draws.ahead().filter(|draw| samples.contains(&draw.sample.0)).count()
    };
    show(&mut world, 1, None, 1000);
    all_ready(&mut world);
    assert_eq!(of(&world, 1000..2000), 6);
    show(&mut world, 2, None, 0);
    all_ready(&mut world);
    assert_eq!((of(&world, 0..1000), of(&world, 1000..2000)), (3, 3));
    let soonest = |n: u32| world.planner.draws.ahead().any(|ahead| ahead == draw(1000 + n));
    assert!((0..3).all(soonest), "the farthest go");
    for opened in 0..300 {
        show(&mut world, 2, Some(opened), opened + 1);
        all_ready(&mut world);
    }
    assert_eq!((of(&world, 0..1000), of(&world, 1000..2000)), (6, 0));
    let counters = world.planner.counters();
    assert_eq!((counters.draws_ready, counters.draws_cold), (300, 0));
    assert_eq!(counters.draws_ahead, 12 + 300, "none is read twice");
}

/// Many classes that are read in turns: each is remembered.
#[test]
fn many_lists_are_remembered() {
    let mut world = world(60);
    for opened in 0..5 {
        for class in 0..20 {
            let first = 100 * class;
            let before = (opened > 0).then(|| first + opened - 1);
            show(&mut world, class.into(), before, first + opened);
            while !world.readying.is_empty() {
                world.ready(true);
            }
            world.check();
        }
    }
    assert_eq!(world.planner.counters().draws_ready, 4 * 20);
    assert_eq!(world.planner.counters().draws_cold, 0);
}

/// Streams fill what one read leaves free; a draw of more pages gets its room nevertheless.
#[test]
fn large_draws_are_not_starved() {
    let plan =
        Settings { window_bytes: Some(24 * 4096), ..settings(24 * 4096, None, PolicyKind::None) };
    let layout = Arc::new(Layout::new((0..100).map(|_| 4096)));
    let mut world = World::new(plan.clone());
    world.planner = Planner::new(plan, layout.clone());
    world.layout = layout;
    let epochs = vec![(0..100).collect()];
    let order = Order::listed("test", epochs, SampleTable::Files).unwrap();
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    while !world.fetching.is_empty() {
        world.arrive(0, false);
    }
    assert_eq!(world.planner.accounts().staged, 24 * 4096, "the window is full");
    let next = (0..3).map(|sample| (draw(sample), 5 * 4096)).collect();
    world.tell(Event::Drawn { drawn: Box::new(Drawn { by: 1, opened: None, next }) });
    assert!(world.readying.is_empty());
    read_all(&mut world, 1, 0..10);
    assert_eq!(world.readying, [draw(0)]);
    world.ready(true);
    read_all(&mut world, 1, 10..50);
    assert_eq!(world.planner.draws.bytes, 5 * 4096, "the part has room for one");
    let accounts = world.planner.accounts();
    assert_eq!(accounts.staged, 24 * 4096, "streams have the rest: {accounts:?}");
    world.check();
}

/// What its reader does not know any more is tried again when it is told of anew, not before.
#[test]
fn a_draw_that_is_not_known_any_more_is_not_failed() {
    let mut world = world(6);
    let only = || Box::new(Drawn { by: 1, opened: None, next: vec![(draw(0), 4096)] });
    world.tell(Event::Drawn { drawn: only() });
    assert_eq!(std::mem::take(&mut world.readying), [draw(0)]);
    world.tell(Event::Readied { draw: draw(0), done: None });
    assert!(world.readying.is_empty() && world.planner.draws.bytes == 0);
    world.check();
    world.tell(Event::Drawn { drawn: only() });
    world.ready(true);
    // What was asked for twice is there all the same.
    world.tell(Event::Readied { draw: draw(0), done: Some(false) });
    assert_eq!(world.planner.draws.bytes, 4096);
    world.check();
}

/// Another budget costs only what has no room any more, the farthest.
#[test]
fn another_budget_leaves_what_has_room() {
    let mut world = world(6);
    show(&mut world, 1, None, 0);
    while !world.readying.is_empty() {
        world.ready(true);
    }
    world.tell(Event::Resized { tier: RAM, capacity: 100 * 6 * 4096 });
    assert_eq!(world.planner.counters().draws_ahead, 6);
    world.tell(Event::Resized { tier: RAM, capacity: 4 * 3 * 4096 });
    assert_eq!(world.planner.draws.ahead().collect::<Vec<_>>(), [draw(0), draw(1), draw(2)]);
    world.check();
}

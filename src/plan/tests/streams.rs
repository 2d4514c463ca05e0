//! Which opens a stream counts as reads of its order, and when it gives the order up.

use super::parts::arrive_all;
use super::*;
use crate::limiter::FetchLimits;
use crate::order::samplers::torch::{Distributed, Weighted, Weights};
use crate::order::samplers::{RepeatAug, Sampler};

/// A planner that has been told four epochs, with `pages` pages of RAM.
fn world(files: u32, pages: u64) -> World {
    world_of(files, pages, (0..4).map(|epoch| shuffled(files, epoch)).collect())
}

fn world_of(files: u32, pages: u64, epochs: Vec<Arc<[u32]>>) -> World {
    let order = Order::listed("test", epochs, SampleTable::Files).unwrap();
    let mut world = untold(files, settings(pages * 4096, None, PolicyKind::Auto));
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    world
}

fn untold(files: u32, settings: Settings) -> World {
    let layout = Arc::new(Layout::new((0..files).map(|_| 1000)));
    let mut world = World::new(settings.clone());
    world.planner = Planner::new(settings, layout.clone());
    world.layout = layout;
    world
}

#[test]
fn an_order_that_is_not_followed_is_given_up_and_found_again() {
    let files = 2000;
    let mut world = world(files, 100);
    let following = |world: &World| world.planner.streams().next().unwrap().1.following;
    read_all(&mut world, 1, shuffled(files, 0).iter().copied().take(50));
    assert!(following(&world));
    // A different shuffle.
    read_all(&mut world, 2, shuffled(files, 99).iter().copied().take(1500));
    assert!(!following(&world), "{:?}", world.planner.streams().next());
    // The job starts again from its first epoch.
    read_all(&mut world, 3, shuffled(files, 0).iter().copied().take(60));
    let status = world.planner.streams().next().unwrap().1;
    assert!(status.following);
    assert_eq!((status.epoch, status.position), (0, 60));
}

#[test]
fn epochs_of_the_longest_order_that_was_told_are_said() {
    let files = 2_000;
    let mut world = world(files, 100);
    let epochs = vec![(0..100).collect::<Arc<[u32]>>(); 4];
    let order = Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap());
    world.tell(Event::Ordered { stream: StreamId(1), order });
    for epoch in 0..3 {
        read_all(&mut world, 1, shuffled(files, epoch).iter().copied());
        read_all(&mut world, 2, 0..100);
    }
    assert_eq!(world.began, [1, 2, 3]);
    // The epochs of a learnt order have no known numbers.
    let epochs = (0..3).map(|epoch| shuffled(files, 50 + epoch)).collect();
    let order = Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap());
    world.tell(Event::Continued { stream: StreamId(0), order });
    world.tell(Event::Withdrawn { stream: StreamId(1) });
    read_all(&mut world, 1, shuffled(files, 50).iter().copied());
    assert_eq!(world.began, [1, 2, 3]);
}

/// `BURST` reads are made before a fetch arrives: at the start of each epoch, or all the time. The source
/// takes `inflight_max` fetches at once.
#[test]
fn bursts_widen_the_window_unless_an_epoch_begins_or_the_source_is_busy() {
    const FILES: u32 = 2_000;
    const BURST: usize = 128;
    let widened = |all_along: bool, inflight_max: u32| {
        let plan = settings(1_000 * 4096, None, PolicyKind::Auto);
        let plan = Settings { window_bytes: None, inflight_max, ..plan };
        let mut world = untold(FILES, plan);
        let epochs = (0..5).map(|epoch| shuffled(FILES, epoch)).collect();
        let order = Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap());
        world.tell(Event::Ordered { stream: StreamId(0), order });
        let (before, mut hits) = (world.planner.accounts().window, 0);
        for epoch in 0..4 {
            hits = world.planner.counters().hits;
            let all = shuffled(FILES, epoch);
            let (start, rest) = all.split_at(BURST);
            let rest = rest.chunks(if all_along { BURST } else { 1 });
            for burst in std::iter::once(start).chain(rest) {
                for &file in burst {
                    world.open(1, FileId(file));
                    world.close(FileId(file));
                }
                while !world.fetching.is_empty() || !world.dropping.is_empty() {
                    world.arrive(0, false);
                    world.finish(true);
                }
            }
        }
        let late = u64::from(FILES) - (world.planner.counters().hits - hits);
        (world.planner.accounts().window - before, late)
    };
    assert_eq!(widened(false, 32).0, 0);
    assert_eq!(widened(true, 4).0, 0);
    // RAM keeps half of the blocks of a burst, and the window begins with 40.
    let needed = (BURST as u64 / 2 - 40) * 4096;
    let (found, late) = widened(true, 32);
    assert!((needed * 3 / 4..needed * 4).contains(&found), "{found}");
    assert!(late < u64::from(FILES) / 12, "{late} reads of the last epoch were late");
}

#[test]
fn an_order_that_goes_on_keeps_its_count_and_its_reader() {
    let files = 2000;
    let mut world = world(files, 100);
    let epoch = shuffled(files, 0);
    read_all(&mut world, 1, epoch.iter().copied().take(500));
    let rest: Arc<[u32]> = epoch[500..].into();
    let known = vec![rest, shuffled(files, 7)];
    let order = Arc::new(Order::listed("test", known, SampleTable::Files).unwrap());
    world.tell(Event::Continued { stream: StreamId(0), order });
    read_all(&mut world, 1, epoch[500..].iter().copied());
    read_all(&mut world, 1, shuffled(files, 7).iter().copied().take(100));
    let status = world.planner.streams().next().unwrap().1;
    assert!(status.following, "{status:?}");
    assert_eq!((status.epoch, status.position), (1, 100));
    assert_eq!((status.opens_predicted, status.opens_strayed), (2100, 0));
}

#[test]
fn what_is_staged_is_not_dropped_when_an_order_is_told_anew() {
    let files = 2_000;
    let mut world = world(files, 400);
    let epoch = shuffled(files, 0);
    // RAM and the window are full.
    read_all(&mut world, 1, epoch.iter().copied());
    let next = shuffled(files, 1);
    read_all(&mut world, 1, next.iter().copied().take(500));
    arrive_all(&mut world);
    let (staged, wasted) = (world.planner.accounts().staged, world.planner.counters().wasted_bytes);
    assert!(staged > 10 * PAGE_BYTES, "{staged}");
    let order = |seen: usize, then: u64| {
        let epochs = vec![next[seen..].into(), shuffled(files, then)];
        Arc::new(Order::listed("anew", epochs, SampleTable::Files).unwrap())
    };
    world.tell(Event::Continued { stream: StreamId(0), order: order(490, 2) });
    assert_eq!(world.planner.counters().wasted_bytes, wasted);
    assert_eq!(world.planner.accounts().staged, staged);
    world.check();
    // The staged blocks are of no use for another order.
    let order = Order::listed("other", vec![shuffled(files, 7)], SampleTable::Files).unwrap();
    world.tell(Event::Continued { stream: StreamId(0), order: Arc::new(order) });
    assert!(world.planner.accounts().staged < staged / 2);
}

#[test]
fn where_an_order_ends_everything_is_watched_and_nothing_guessed() {
    let files = 2000;
    let settings = settings(4000 * 4096, None, PolicyKind::Auto);
    let mut world = untold(files, Settings { may_untrack: true, ..settings });
    let known = vec![shuffled(files, 0)];
    let order = Order::listed("test", known, SampleTable::Files).unwrap().ending();
    world.tell(Event::Ordered { stream: StreamId(0), order: Arc::new(order) });
    let epoch = shuffled(files, 0);
    read_all(&mut world, 1, epoch.iter().copied().take(1500));
    assert!(world.untracked.len() > 1000, "{}", world.untracked.len());
    read_all(&mut world, 1, epoch[1500..1950].iter().copied());
    assert_eq!(world.untracked.len(), 0);
    read_all(&mut world, 1, epoch[1950..].iter().copied());
    let fetched = world.fetched;
    // An epoch of unknown order: all files are kept from the first one.
    read_all(&mut world, 2, shuffled(files, 5).iter().copied());
    assert_eq!((world.fetched, world.untracked.len()), (fetched, 0));
    let order = Arc::new(Order::listed("test", vec![epoch], SampleTable::Files).unwrap());
    world.tell(Event::Continued { stream: StreamId(0), order });
    assert!(world.untracked.len() > 1000, "{}", world.untracked.len());
}

#[test]
fn an_order_that_comes_too_late_is_followed_when_it_is_told_again() {
    let files = 20_000;
    let mut world = world(files, 100);
    let epoch = shuffled(files, 0);
    let known = |from: usize| {
        let epochs = vec![epoch[from..].into(), shuffled(files, 7)];
        let order = Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap());
        Event::Continued { stream: StreamId(0), order }
    };
    let status = |world: &World| world.planner.streams().next().unwrap().1;
    world.tell(known(0));
    read_all(&mut world, 1, epoch[5_000..7_000].iter().copied());
    assert!(!status(&world).following, "{:?}", status(&world));
    world.tell(known(7_000));
    read_all(&mut world, 1, epoch[7_000..8_000].iter().copied());
    let status = status(&world);
    assert!(status.following, "{status:?}");
    assert_eq!((status.epoch, status.position), (0, 1_000));
}

#[test]
fn what_was_read_longest_ago_outlives_no_order() {
    let layout = Arc::new(Layout::new((0..5).map(|_| 1000)));
    let settings = Settings { prefetch: false, ..settings(6 * 4096, None, PolicyKind::Lru) };
    let mut world = World::new(settings.clone());
    world.planner = Planner::new(settings, layout.clone());
    world.layout = layout;
    read_all(&mut world, 1, [3, 0, 1, 2].into_iter());
    let order = Order::listed("test", vec![(0..5).collect()], SampleTable::Files).unwrap();
    world.tell(Event::Continued { stream: StreamId(0), order: Arc::new(order) });
    let before = world.pages.clone();
    read_all(&mut world, 1, [4].into_iter());
    let gone: Vec<&BlockId> = before.difference(&world.pages).collect();
    assert_eq!(gone, [&BlockId(3)], "{before:?}");
}

#[test]
fn a_reader_on_the_side_does_not_move_the_stream() {
    let files = 3000;
    let mut world = world(files, 8000);
    let epoch = shuffled(files, 0);
    for position in 0..1000 {
        read_all(&mut world, 1, std::iter::once(epoch[position]));
        // Another task checksums the tree, three files at a time.
        read_all(&mut world, 2, (0..3).map(|i| (position as u32 * 3 + i) % files));
    }
    let status = world.planner.streams().next().unwrap().1;
    assert!(status.following, "{status:?}");
    assert_eq!((status.epoch, status.position), (0, 1000));
}

#[test]
fn an_order_outlives_whoever_walks_through_the_directories() {
    let files = 3000;
    let mut world = world(files, 8000);
    // Directories of a hundred, not in the order of their names.
    let walk = || (0..30).rev().flat_map(|directory| directory * 100..(directory + 1) * 100);
    for epoch in 0..3 {
        let task = 10 * epoch;
        read_all(&mut world, task + 1, walk());
        read_all(&mut world, task + 2, shuffled(files, u64::from(epoch)).iter().copied());
        world.leave(task + 2);
        let status = world.planner.streams().next().unwrap().1;
        assert!(status.following, "{status:?}");
        // By chance a few steps of the walk match the order. An order that a long walk has put in doubt
        // is found again within a few opens.
        let read = u64::from(files * (epoch + 1));
        let found = 20 * u64::from(epoch + 1);
        let range = read - found..read + read / 100;
        assert!(range.contains(&status.opens_predicted), "{status:?}");
    }
}

#[test]
fn an_order_that_was_given_up_before_its_first_epoch_is_found() {
    let files = 3000;
    let mut world = world(files, 8000);
    read_all(&mut world, 1, shuffled(files, 77).iter().copied());
    assert!(!world.planner.streams().next().unwrap().1.following);
    read_all(&mut world, 2, shuffled(files, 0).iter().copied().take(100));
    let status = world.planner.streams().next().unwrap().1;
    assert!(status.following, "{status:?}");
    assert_eq!((status.epoch, status.position), (0, 100));
}

#[test]
fn names_that_are_only_looked_up_say_nothing_against_an_order() {
    let files = 3000;
    let mut world = world(files, 8000);
    read_all(&mut world, 1, shuffled(files, 0).iter().copied());
    world.leave(1);
    for &file in shuffled(files, 55).iter() {
        world.see(2, FileId(file));
    }
    read_all(&mut world, 3, shuffled(files, 1).iter().copied());
    let status = world.planner.streams().next().unwrap().1;
    assert!(status.following && status.opens_strayed > 1000, "{status:?}");
    assert!(status.opens_predicted + 100 > u64::from(2 * files), "{status:?}");
}

#[test]
fn what_nobody_saw_is_not_counted_as_seen() {
    let files = 3000;
    let settings = settings(8000 * 4096, None, PolicyKind::Auto);
    let mut world = untold(files, Settings { may_untrack: true, ..settings });
    let epochs = (0..4).map(|epoch| shuffled(files, epoch)).collect();
    let order = Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap());
    world.tell(Event::Ordered { stream: StreamId(0), order });
    for epoch in 0..2 {
        // The kernel opens untracked files without a request.
        for &file in shuffled(files, epoch).iter() {
            if !world.untracked.contains(&FileId(file)) {
                read_all(&mut world, 1, std::iter::once(file));
            }
        }
    }
    let status = world.planner.streams().next().unwrap().1;
    let read = u64::from(2 * files);
    assert!(status.following && status.opens_predicted + 300 > read, "{status:?}");
    assert!((100..read / 2).contains(&status.opens_seen), "{status:?}");
}

#[test]
fn what_is_withheld_is_watched_until_it_is_released() {
    let files = 1000;
    let settings = settings(8000 * 4096, None, PolicyKind::Auto);
    let mut world = untold(files, Settings { may_untrack: true, withheld: true, ..settings });
    let epochs = (0..3).map(|epoch| shuffled(files, epoch)).collect();
    let order = Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap());
    world.tell(Event::Ordered { stream: StreamId(0), order });
    read_all(&mut world, 1, shuffled(files, 0).iter().copied());
    assert_eq!((world.untracked.len(), world.planner.untracked_files()), (0, 0));
    for file in (0..files).map(FileId) {
        world.tell(Event::Released { file });
    }
    let trusted = world.untracked.clone();
    assert!(trusted.len() > files as usize / 2, "{}", trusted.len());
    assert_eq!(world.planner.untracked_files(), trusted.len() as u64);
    let one = *trusted.first().unwrap();
    world.tell(Event::Withheld { file: one });
    assert!(!world.untracked.contains(&one));
    world.tell(Event::Released { file: one });
    assert_eq!(world.untracked, trusted);
    // A file that does not exist.
    world.tell(Event::Released { file: FileId(files) });
}

#[test]
fn what_is_fetched_for_reads_that_do_not_come_is_counted() {
    let files = 2_000;
    let wasted = |read: Arc<[u32]>| {
        let mut world = world_of(files, 100, vec![shuffled(files, 0), shuffled(files, 1)]);
        read_all(&mut world, 1, read.iter().copied());
        world.planner.counters()
    };
    let right = wasted(shuffled(files, 0));
    // Only blocks of the next epoch's beginning are left, which may be dropped.
    assert_eq!(right.wasted_bytes, 0, "{right:?}");
    let begun: Vec<u32> = shuffled(files, 0)[..100].to_vec();
    let other = shuffled(files, 99);
    let left = wasted(begun.iter().chain(other.iter()).copied().collect());
    assert!(left.wasted_bytes >= 20 * 1000, "{left:?}");
    assert!(left.wasted_bytes <= left.prefetched * 1000, "{left:?}");
}

#[test]
fn workers_that_read_in_the_order_of_names_are_followed() {
    for (files, workers, batch) in [(10_000u32, 4u32, 32u32), (6000, 2, 64), (3000, 4, 32)] {
        let mut world = world_of(files, 20_000, (0..2).map(|_| (0..files).collect()).collect());
        for epoch in 0..2 {
            for round in 0..files.div_ceil(workers * batch) {
                for place in 0..batch {
                    for worker in 0..workers {
                        let file = (round * workers + worker) * batch + place;
                        if file < files {
                            read_all(&mut world, 10 * epoch + worker, std::iter::once(file));
                        }
                    }
                }
            }
            let status = world.planner.streams().next().unwrap().1;
            assert!(status.following && status.epoch <= epoch + 1, "{status:?}");
            let read = u64::from(files * (epoch + 1));
            assert!(status.opens_predicted + 200 > read, "{status:?}");
        }
    }
}

/// The order of a validation says nothing about the training. The training finds as much as if no order were
/// known.
#[test]
fn the_order_of_a_part_does_not_blind_the_rest() {
    let (train, all) = (1_800, 2_000);
    let plan = settings(u64::from(all) / 2 * 4096, None, PolicyKind::Auto);
    let mut world = untold(all, Settings { may_untrack: true, ..plan });
    let validation: Arc<[u32]> = (train..all).collect();
    let hits = |world: &World| world.planner.counters().hits;
    let mut found = 0;
    for epoch in 0..4 {
        let before = hits(&world);
        read_all(&mut world, 1, shuffled(train, epoch).iter().copied());
        found = hits(&world) - before;
        if epoch == 0 {
            let epochs = vec![Arc::clone(&validation); 4];
            let order = Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap());
            world.tell(Event::Ordered { stream: StreamId(0), order });
        }
        for &file in validation.iter() {
            if !world.untracked.contains(&FileId(file)) {
                read_all(&mut world, 2, std::iter::once(file));
            }
        }
        // Each read of the training is seen.
        assert!(world.untracked.iter().all(|file| file.0 >= train), "{:?}", world.untracked);
    }
    assert!(found > u64::from(train) * 3 / 4, "{found} of {train} in the last epoch");
    let status = world.planner.streams().next().unwrap().1;
    assert!(status.following && status.opens_predicted > 3 * 200, "{status:?}");
}

/// A validation loader reads between the epochs of the training.
#[test]
fn a_stream_that_nobody_reads_leaves_the_window_to_one_that_is_read() {
    const FILES: u32 = 2_000;
    const VALIDATION: u32 = 200;
    let window = Some(40 * 4096);
    let plan = settings(80 * 4096, None, PolicyKind::Auto);
    let mut world = untold(FILES + VALIDATION, Settings { window_bytes: window, ..plan });
    let tell = |world: &mut World, stream, epochs| {
        let order = Order::listed("test", epochs, SampleTable::Files).unwrap();
        world.tell(Event::Ordered { stream: StreamId(stream), order: Arc::new(order) });
    };
    let validation: Arc<[u32]> = (FILES..FILES + VALIDATION).collect();
    tell(&mut world, 0, vec![validation.clone(); 3]);
    read_all(&mut world, 1, validation.iter().copied());
    // Its next epoch is expected. The training's order becomes known after that.
    world.leave(1);
    for epoch in 0..2 {
        let order = shuffled(FILES, epoch);
        tell(&mut world, 1, vec![order.clone(), shuffled(FILES, epoch + 1)]);
        let before = world.planner.counters().cold;
        read_all(&mut world, 2, order.iter().copied());
        let training = world.planner.counters().cold - before;
        assert!(training < 80, "{epoch}: {training} of {FILES} were not there");
        world.leave(2);
        read_all(&mut world, 3, validation.iter().copied());
        world.leave(3);
    }
}

/// Workers from the task `first` on read an epoch in batches of 32, and end.
fn read_in_batches(world: &mut World, epoch: &[u32], workers: usize, first: u32, opens: bool) {
    for round in epoch.chunks(32 * workers) {
        for place in 0..32 {
            for (task, batch) in (first..).zip(round.chunks(32)) {
                let Some(&file) = batch.get(place) else { continue };
                if opens {
                    read_all(world, task, std::iter::once(file));
                } else {
                    world.see(task, FileId(file));
                    while !world.fetching.is_empty() {
                        world.arrive(0, false);
                    }
                    while !world.dropping.is_empty() || !world.placing.is_empty() {
                        world.finish(true);
                    }
                }
            }
        }
    }
    (first..).take(workers).for_each(|task| world.leave(task));
}

/// torch's `WeightedRandomSampler`: a fifth of the samples makes 60 % of an epoch, and some samples are
/// missing.
#[test]
fn samples_that_are_drawn_by_their_weights_are_followed_from_epoch_to_epoch() {
    const FILES: u32 = 2_000;
    let weights: Vec<f64> = (0..FILES).map(|file| if file % 5 == 0 { 6.0 } else { 1.0 }).collect();
    let sampler = Weighted { seed: 3, weights: Weights::of("w", &weights), ..Weighted::default() };
    let files: Vec<FileId> = (0..FILES).map(FileId).collect();
    let order = Order::drawn(Sampler::TorchWeighted(sampler), &files, "path order").unwrap();
    for opens in [false, true] {
        for workers in [1, 4, 16] {
            let mut world = untold(FILES, settings(300 * 4096, None, PolicyKind::Auto));
            let order = Arc::new(order.clone());
            world.tell(Event::Ordered { stream: StreamId(0), order: Arc::clone(&order) });
            for (number, epoch) in (0..4).zip(order.epochs(0)) {
                read_in_batches(&mut world, &epoch, workers, 100 * number + 1, opens);
            }
            let status = world.planner.streams().next().unwrap().1;
            let case = format!("opens {opens}, {workers} workers: {status:?}");
            assert!(status.following && status.epoch >= 3, "{case}");
            let length = u64::from(FILES);
            let predicted = status.opens_predicted;
            assert!((4 * length * 9 / 10..=4 * length).contains(&predicted), "{case}");
            let cold = world.planner.counters().cold;
            assert!(cold < 4 * length / 20, "{cold} reads found nothing, {case}");
        }
    }
}

/// timm's `RepeatAugSampler`: each sample comes three times in a row, sometimes across two batches. If opens
/// cause no requests, a task is seen at a file only once.
#[test]
fn samples_that_are_read_several_times_in_a_row_hold_no_epoch_open() {
    const FILES: u32 = 2_000;
    let sampler = Sampler::TimmRepeatAug(RepeatAug::default());
    let epochs: Vec<Vec<u32>> = sampler.epochs(FILES).take(4).collect();
    let length = epochs[0].len() as u64;
    for opens in [false, true] {
        for workers in [1, 4, 16] {
            let orders = epochs.iter().map(|epoch| epoch.as_slice().into()).collect();
            let mut world = world_of(FILES, 300, orders);
            for (number, epoch) in (0..).zip(&epochs[..3]) {
                read_in_batches(&mut world, epoch, workers, 100 * number + 1, opens);
            }
            let status = world.planner.streams().next().unwrap().1;
            let case = format!("opens {opens}, {workers} workers: {status:?}");
            assert!(status.following && status.epoch >= 2, "{case}");
            let predicted = status.opens_predicted;
            assert!((2 * length + length * 9 / 10..=3 * length).contains(&predicted), "{case}");
            let counted = world.planner.counters().opens;
            assert!(25 * counted <= 26 * 3 * length, "{counted} opens counted, {case}");
        }
    }
}

/// Two ranks of a job have a stream each. One has ended; the other goes on with new workers, whose first
/// opens are trusted only later.
#[test]
fn opens_that_one_order_foresaw_say_nothing_against_another() {
    const FILES: u32 = 2_000;
    const EPOCHS: u32 = 6;
    let rank = |rank| Distributed { world: 2, rank, ..Distributed::default() };
    let mut world = untold(FILES, settings(8_000 * 4096, None, PolicyKind::Auto));
    for stream in 0..2 {
        let epochs = (0..EPOCHS).map(|epoch| rank(stream).epoch(FILES, epoch).into()).collect();
        let order = Order::listed("test", epochs, SampleTable::Files).unwrap();
        let stream = StreamId(stream as u16);
        world.tell(Event::Ordered { stream, order: Arc::new(order) });
    }
    for stream in 0..2 {
        for epoch in 0..EPOCHS - 1 {
            let all = rank(stream).epoch(FILES, epoch);
            for round in all.chunks(16 * 8) {
                for place in 0..8 {
                    for (worker, batch) in (0..).zip(round.chunks(8)) {
                        let task = 1_000 * (stream + 1) + 16 * epoch + worker;
                        read_all(&mut world, task, batch.get(place).copied().into_iter());
                    }
                }
            }
            (0..16).for_each(|worker| world.leave(1_000 * (stream + 1) + 16 * epoch + worker));
        }
    }
    for (stream, status) in world.planner.streams() {
        assert!(status.following, "{stream:?}: {status:?}");
        assert!(status.opens_strayed <= 60, "{stream:?}: {status:?}");
    }
}

/// Half of the data is kept and opened without a request. Each epoch's order is told anew after the epoch has
/// begun, as for a learnt order, or all epochs are told at the start.
#[test]
fn each_open_is_counted_once() {
    const FILES: u32 = 1_000;
    const EPOCHS: u64 = 8;
    // After this many opens of an epoch, its order from open 8 on is told. `None`: all told at the start.
    for known_after in [Some(8), Some(300), None] {
        for workers in [1, 4, 8] {
            let plan = settings(u64::from(FILES) / 2 * 4096, None, PolicyKind::Auto);
            let window = Some(60 * 4096);
            let mut world =
                untold(FILES, Settings { may_untrack: true, window_bytes: window, ..plan });
            let order = |epochs: Vec<Arc<[u32]>>| {
                Arc::new(Order::listed("test", epochs, SampleTable::Files).unwrap())
            };
            let stream = StreamId(0);
            if known_after.is_none() {
                let order = order((0..EPOCHS + 1).map(|epoch| shuffled(FILES, epoch)).collect());
                world.tell(Event::Ordered { stream, order });
            }
            for epoch in 0..EPOCHS {
                let all = shuffled(FILES, epoch);
                let mut read = 0;
                for round in all.chunks(16 * workers) {
                    for place in 0..16 {
                        for (worker, batch) in (0..).zip(round.chunks(16)) {
                            let Some(&file) = batch.get(place) else { continue };
                            if Some(read) == known_after {
                                let known = vec![all[8..].into(), shuffled(FILES, epoch + 1)];
                                world.tell(Event::Continued { stream, order: order(known) });
                            }
                            read += 1;
                            if !world.untracked.contains(&FileId(file)) {
                                world.see(100 * epoch as u32 + worker + 1, FileId(file));
                            }
                            while !world.fetching.is_empty() {
                                world.arrive(0, false);
                            }
                            while !world.dropping.is_empty() {
                                world.finish(true);
                            }
                        }
                    }
                }
                (0..workers as u32).for_each(|one| world.leave(100 * epoch as u32 + one + 1));
            }
            let (counted, read) = (world.planner.counters().opens, EPOCHS * u64::from(FILES));
            let case =
                format!("known after {known_after:?}, {workers} workers: {counted} of {read}");
            assert!((read * 98 / 100..=read * 101 / 100).contains(&counted), "{case}");
        }
    }
}

/// A block that the kernel has taken back has to be fetched again before it is read, however long that takes.
#[test]
fn blocks_are_checked_as_early_as_a_slow_fetch_needs() {
    let files = 3000;
    let order = shuffled(files, 0);
    // How often the block at each position was checked when the first ones had been read.
    let (read, last) = (40, 39);
    let checked = |lead_blocks: u64| {
        let mut world = world(files, 4000);
        let limits = FetchLimits { fetches: 8, lead_bytes: lead_blocks * 4096, ahead_bytes: 0 };
        world.tell(Event::Limited(limits));
        world.settle();
        read_all(&mut world, 1, order.iter().copied().take(read));
        let times = |file: &u32| {
            let block = world.layout.blocks_of(FileId(*file)).next();
            world.checked.iter().filter(|checked| Some(**checked) == block).count()
        };
        order.iter().map(times).collect::<Vec<_>>()
    };
    let near = checked(0);
    assert_eq!([near[last + 1], near[last + 128], near[last + 129]], [1, 1, 0]);
    let far = checked(200);
    assert_eq!([far[last + 128], far[last + 129], far[last + 200], far[last + 201]], [2, 1, 1, 0]);
    // A quarter of the way they are checked again.
    let farther = checked(1000);
    assert_eq!([farther[last + 251], farther[last + 1000], farther[last + 1001]], [1, 1, 0]);
    assert!(farther[last + 1] == 1 && farther[last + 250] == 2);
}

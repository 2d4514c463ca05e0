use std::sync::Arc;

use super::*;
use crate::ids::FileId;
use crate::order::{FileRange, SampleTable};
use crate::plan::{PolicyKind, Tier};

const SAMPLES: u32 = 10_000;

/// Equal samples of one page, fetched on demand only, in no time: the assumptions of theory.
fn theory(readers: Vec<Arc<Order>>, share: f64, policy: PolicyKind, epochs: u32) -> Report {
    let ram = (f64::from(SAMPLES) * share) as u64 * 4096;
    let readers = readers
        .into_iter()
        .map(|order| Reader {
            order,
            workers: 1,
            batch: 1,
            think_us: 1,
            run_us: 0,
            step_us: 0,
            ahead: 0,
        })
        .collect();
    run(&Scenario {
        layout: Arc::new(Layout::new((0..SAMPLES).map(|_| 4096))),
        readers,
        known: true,
        epochs,
        settings: Settings {
            tiers: vec![Tier { capacity: ram, block_us: 0 }],
            source_us: None,
            policy,
            prefetch: false,
            inflight_max: 1,
            window_bytes: Some(0),
            request_bytes: 8 << 20,
            start_at_open: false,
            may_untrack: false,
            withheld: false,
        },
        machine: Machine::default(),
        source: SourceModel::INSTANT,
        manners: None,
        vanish: None,
    })
}

fn assert_near(name: &str, got: f64, wanted: f64) {
    println!("{name}: {got:.3} (theory {wanted})");
    assert!((got - wanted).abs() <= 0.01, "{name}: {got:.4} instead of {wanted}");
}

#[test]
fn one_job_gains_nothing_over_a_fixed_share() {
    let one = || vec![workload::permutations(SAMPLES, 8, 1).unwrap()];
    for share in [0.2, 0.5, 0.8] {
        for policy in [PolicyKind::Minio, PolicyKind::Belady, PolicyKind::Auto] {
            let report = theory(one(), share, policy, 8);
            assert_near(&format!("{policy:?} {share}"), report.hit_ratio(1), share);
        }
    }
    assert_near("lru .5", theory(one(), 0.5, PolicyKind::Lru, 8).hit_ratio(1), 0.154);
    assert_near("lru .8", theory(one(), 0.8, PolicyKind::Lru, 8).hit_ratio(1), 0.480);
}

#[test]
fn three_jobs_gain_from_their_orders() {
    let jobs = || (1..=3).map(|seed| workload::permutations(SAMPLES, 8, seed).unwrap()).collect();
    let hits = |policy| theory(jobs(), 0.2, policy, 8).hit_ratio(1);
    assert_near("belady", hits(PolicyKind::Belady), 0.492);
    assert_near("auto", hits(PolicyKind::Auto), 0.492);
    assert_near("minio", hits(PolicyKind::Minio), 0.200);
    assert_near("lru", hits(PolicyKind::Lru), 0.140);
}

#[test]
fn a_weighted_sampler_gains_from_its_order() {
    let order = || vec![workload::weighted(SAMPLES, 8, 0.2, 0.6, 7).unwrap()];
    let hits = |policy| theory(order(), 0.2, policy, 8).hit_ratio(1);
    assert_near("belady", hits(PolicyKind::Belady), 0.688);
    assert_near("minio", hits(PolicyKind::Minio), 0.359);
}

/// A job at four fifths of the source's bandwidth, with 56 new and 7 old samples in a batch. New samples are in
/// RAM when they are read. Old samples lie elsewhere, and have places in the order.
#[test]
fn the_new_samples_of_a_mix_are_in_ram_in_time() {
    const NEW: u32 = 56 * 60;
    const BYTES: u64 = 112_283;
    let source = SourceModel { latency_us: 5_000, servers: 64, bandwidth: 200_000_000 };
    let waits = |known: bool| {
        let think_us = transfer_us(BYTES, source.bandwidth) * 10 / 8;
        let order = workload::rehearsal(NEW, 500, 56, 7, 3, 1).unwrap();
        let report = run(&Scenario {
            layout: Arc::new(Layout::new((0..NEW).map(|_| BYTES))),
            readers: vec![Reader {
                order,
                workers: 1,
                batch: 63,
                think_us,
                run_us: 0,
                step_us: 0,
                ahead: 0,
            }],
            known,
            epochs: 3,
            settings: Settings {
                tiers: vec![Tier { capacity: u64::from(NEW) * BYTES / 20, block_us: 0 }],
                source_us: None,
                policy: PolicyKind::Auto,
                prefetch: true,
                inflight_max: 32,
                window_bytes: None,
                request_bytes: 8 << 20,
                start_at_open: false,
                may_untrack: false,
                withheld: false,
            },
            machine: Machine::default(),
            source,
            manners: None,
            vanish: None,
        });
        let steady = report.after(1);
        assert_eq!((steady.reads, steady.blocks), (2 * 63 * 60, 2 * u64::from(NEW)));
        steady.stall_us as f64 / (report.elapsed_us - report.epochs[0].end_us) as f64
    };
    let (told, untold) = (waits(true), waits(false));
    println!("waits: {told:.4} of the time, {untold:.4} where the order is not told");
    assert!(told <= 0.02 && untold >= 0.5, "{told} {untold}");
}

/// A source that also serves other clients.
const BUSY: SourceModel = SourceModel { latency_us: 8_450, servers: 16, bandwidth: 200_000_000 };

fn with_ram(capacity: u64) -> Settings {
    Settings {
        tiers: vec![Tier { capacity, block_us: 0 }],
        source_us: None,
        policy: PolicyKind::Auto,
        prefetch: true,
        inflight_max: 32,
        window_bytes: None,
        request_bytes: 8 << 20,
        start_at_open: false,
        may_untrack: false,
        withheld: false,
    }
}

const LARGE_FILES: u32 = 64;
const BLOCKS: u32 = 8;

/// Blocks that Bélády's rule fetches if RAM has room for `room` blocks.
fn ideal(order: &Order, epochs: u32, room: usize) -> u64 {
    let files = (0..epochs).flat_map(|epoch| order.epoch(epoch).to_vec());
    let blocks: Vec<u32> = files.flat_map(|file| file * BLOCKS..(file + 1) * BLOCKS).collect();
    let mut next = vec![usize::MAX; blocks.len()];
    let mut last = std::collections::BTreeMap::new();
    for at in (0..blocks.len()).rev() {
        next[at] = last.insert(blocks[at], at).unwrap_or(usize::MAX);
    }
    let mut kept = std::collections::BTreeMap::new();
    let mut fetched = 0;
    for (at, &block) in blocks.iter().enumerate() {
        fetched += u64::from(kept.insert(block, next[at]).is_none());
        if kept.len() > room {
            let farthest = kept.iter().max_by_key(|(_, next)| **next).map(|(block, _)| *block);
            farthest.iter().for_each(|block| _ = kept.remove(block));
        }
    }
    fetched
}

/// Files of eight blocks, read from start to end, with RAM for half of them.
#[test]
fn large_files_cost_little_more_than_they_must() {
    const EPOCHS: u32 = 3;
    let layout = Arc::new(Layout::new((0..LARGE_FILES).map(|_| u64::from(BLOCKS) << 20)));
    let all = layout.blocks() as u64;
    let order = workload::permutations(LARGE_FILES, EPOCHS, 1).unwrap();
    let least = ideal(&order, EPOCHS, layout.blocks() / 2);
    assert_eq!(least, 2 * all, "half of the data again in each epoch");
    for (known, workers) in [true, false].into_iter().flat_map(|k| [1, 4, 8].map(|w| (k, w))) {
        for policy in [PolicyKind::Auto, PolicyKind::Belady] {
            let order = Arc::clone(&order);
            let reader = Reader {
                order,
                workers,
                batch: 4,
                think_us: 20_000,
                run_us: 0,
                step_us: 0,
                ahead: 0,
            };
            let report = run(&Scenario {
                layout: Arc::clone(&layout),
                readers: vec![reader],
                known,
                epochs: EPOCHS,
                settings: Settings { policy, ..with_ram(layout.pages_bytes_of_all() / 2) },
                machine: Machine::default(),
                source: BUSY,
                manners: None,
                vanish: None,
            });
            let fetched = report.after(0).source_reads;
            let epochs =
                report.epochs.iter().map(|epoch| (epoch.source_reads, epoch.end_us / 1000));
            let epochs: Vec<_> = epochs.collect();
            println!("known {known}, {workers} workers, {policy:?}: {epochs:?}");
            assert!(fetched * 100 <= least * 110, "{fetched} of {least} blocks");
            // The first epoch fetches each byte once, and the start of the next epoch.
            let first = report.epochs[0].source_reads;
            assert!(first <= all + if known { 64 } else { 0 }, "{first} of {all} blocks");
        }
    }
}

/// 8 workers ask for 8 batches each when an epoch begins. Prefetching these costs the epoch no time, and
/// their bytes take no room from the cache.
#[test]
fn the_first_batches_of_an_epoch_take_nothing_from_the_cache() {
    const BLOCK: u64 = 110_592;
    let order = workload::permutations(2_000, 6, 1).unwrap();
    let epochs = |window_bytes: Option<u64>| -> Vec<_> {
        let order = Arc::clone(&order);
        let report = run(&Scenario {
            layout: Arc::new(Layout::new((0..2_000).map(|_| 110_000))),
            readers: vec![Reader {
                order,
                workers: 8,
                batch: 4,
                think_us: 200,
                run_us: 0,
                step_us: 4_000,
                ahead: 8,
            }],
            known: true,
            epochs: 6,
            settings: Settings { window_bytes, ..with_ram(1_000 * BLOCK) },
            machine: Machine::default(),
            source: BUSY,
            manners: None,
            vanish: None,
        });
        let epochs = report.epochs.iter();
        epochs.map(|epoch| (epoch.end_us, epoch.source_reads, epoch.waits)).collect()
    };
    let (narrow, wide) = (epochs(Some(40 * BLOCK)), epochs(Some(250 * BLOCK)));
    println!("{narrow:?}\n{wide:?}");
    for (narrow, wide) in narrow.iter().zip(&wide).skip(1) {
        assert_eq!(narrow.0, wide.0, "the time");
        assert!(narrow.1 + 100 < wide.1 && narrow.2 > wide.2 + 60);
    }
    assert_eq!(epochs(None), narrow);
}

/// Files of 20 KB behind 100 ms and 200 Mb/s, read once in a known order. Returns how many times as long it takes
/// as the link needs for the bytes.
fn far_epoch(manners: Option<Manners>, inflight_max: u32) -> f64 {
    const FILES: u32 = 12_000;
    let source = SourceModel { latency_us: 100_000, servers: u32::MAX, bandwidth: 25_000_000 };
    let order = workload::permutations(FILES, 1, 1).unwrap();
    let reader =
        Reader { order, workers: 4, batch: 32, think_us: 0, run_us: 0, step_us: 0, ahead: 0 };
    let report = run(&Scenario {
        layout: Arc::new(Layout::new((0..FILES).map(|_| 20_000))),
        readers: vec![reader],
        known: true,
        epochs: 1,
        settings: Settings {
            tiers: vec![Tier { capacity: 128 << 20, block_us: 0 }],
            source_us: None,
            policy: PolicyKind::Auto,
            prefetch: true,
            inflight_max,
            window_bytes: None,
            request_bytes: 8 << 20,
            start_at_open: false,
            may_untrack: false,
            withheld: false,
        },
        machine: Machine::default(),
        source,
        manners,
        vanish: None,
    });
    let link_us = f64::from(FILES) * transfer_us(20_000, source.bandwidth) as f64;
    report.elapsed_us as f64 / link_us
}

#[test]
fn a_long_link_is_filled_without_a_setting() {
    let fixed = far_epoch(None, 32);
    for manners in [Manners::Fair, Manners::Polite] {
        let found = far_epoch(Some(manners), 1024);
        println!("{manners:?}: {found:.2} times the link's time, {fixed:.2} with 32 fetches");
        assert!(found < 1.25, "{manners:?}: {found}");
    }
}

/// Samples of this size are read in a random order that is told, with RAM for half of them. Gives the share of the
/// data that an epoch after the first one reads, and its seconds: as files of their own, and as ranges of one file.
fn of_one_file(sample_bytes: u64, may_untrack: bool) -> [(f64, f64); 2] {
    const COUNT: u32 = 1_000;
    const EPOCHS: u32 = 6;
    let all = u64::from(COUNT) * sample_bytes;
    let files = workload::permutations(COUNT, EPOCHS, 7).unwrap();
    let range = |nth: u32| FileRange {
        file: FileId(0),
        offset: u64::from(nth) * sample_bytes,
        length: sample_bytes,
    };
    let table = SampleTable::Ranges((0..COUNT).map(range).collect());
    let epochs = (0..EPOCHS).map(|epoch| files.epoch(epoch)).collect();
    let ranges = Order::listed("ranges", epochs, table).unwrap();
    let mut cut = Layout::new([all]);
    assert_eq!(cut.cut_along(&ranges, |_| true), [FileId(0)]);
    let layouts = [Layout::new((0..COUNT).map(|_| sample_bytes)), cut];
    let orders = [files, Arc::new(ranges)];
    let mut runs = layouts.into_iter().zip(orders).map(|(layout, order)| {
        let reader = Reader {
            order,
            workers: 4,
            batch: 8,
            think_us: 2_000,
            run_us: 0,
            step_us: 0,
            ahead: 0,
        };
        let report = run(&Scenario {
            layout: Arc::new(layout),
            readers: vec![reader],
            known: true,
            epochs: EPOCHS,
            settings: Settings { may_untrack, ..with_ram(all / 2) },
            machine: Machine::default(),
            source: BUSY,
            manners: None,
            vanish: None,
        });
        let (steady, count) = (report.after(2), f64::from(EPOCHS - 2));
        let seconds = (report.elapsed_us - report.epochs[1].end_us) as f64 / 1e6 / count;
        (steady.source_bytes as f64 / count / all as f64, seconds)
    });
    [runs.next().unwrap(), runs.next().unwrap()]
}

/// Samples share pages with their neighbours. A page of two samples is read with each of them, unless RAM has the
/// other one.
#[test]
fn samples_of_a_file_that_is_cut_cost_what_files_of_their_own_cost() {
    for (sample_bytes, with_pages) in [(99_000, 1.01), (20_000, 1.12)] {
        for may_untrack in [false, true] {
            let [(files, files_s), (cut, cut_s)] = of_one_file(sample_bytes, may_untrack);
            println!(
                "{sample_bytes} {may_untrack}: {files:.3} {files_s:.2} s, {cut:.3} {cut_s:.2} s"
            );
            assert!(cut <= with_pages * files, "{cut} of the bytes instead of {files}");
            assert!(cut_s <= 1.1 * files_s, "{cut_s} s instead of {files_s}");
        }
    }
}

/// All epochs of an order whose samples lie in larger files of the source, with requests of so many bytes at most.
fn read_from_large_files(
    layout: Layout,
    order: Arc<Order>,
    ram: u64,
    request_bytes: u64,
) -> Report {
    let epochs = order.epochs_listed().unwrap();
    let reader =
        Reader { order, workers: 8, batch: 8, think_us: 0, run_us: 0, step_us: 0, ahead: 0 };
    run(&Scenario {
        layout: Arc::new(layout),
        readers: vec![reader],
        known: true,
        settings: Settings { request_bytes, may_untrack: true, ..with_ram(ram) },
        epochs,
        machine: Machine::default(),
        source: SourceModel { latency_us: 5_000, bandwidth: 100_000_000, servers: 8 },
        manners: None,
        vanish: None,
    })
}

/// An epoch of samples of 99,000 bytes in files of 64, which an order reads at random. Gives the requests to the
/// source, its bytes over all data, and the seconds.
fn of_shards(ram_part: f64, request_bytes: u64) -> [(f64, f64, f64); 2] {
    const SHARDS: u64 = 128;
    const EACH: u64 = 64;
    const SAMPLE: u64 = 99_000;
    let count = (SHARDS * EACH) as u32;
    let all = u64::from(count) * SAMPLE;
    let range = |nth: u64| FileRange {
        file: FileId((nth / EACH) as u32),
        offset: nth % EACH * SAMPLE,
        length: SAMPLE,
    };
    let table = SampleTable::Ranges((0..u64::from(count)).map(range).collect());
    let samples = workload::permutations(count, 2, 7).unwrap();
    let epochs = (0..2).map(|epoch| samples.epoch(epoch)).collect();
    let order = Arc::new(Order::listed("ranges", epochs, table).unwrap());
    let mut layout = Layout::new((0..SHARDS).map(|_| EACH * SAMPLE));
    if ram_part < 1.0 {
        assert_eq!(layout.cut_along(&order, |_| true).len() as u64, SHARDS);
    }
    let ram = (all as f64 * ram_part) as u64;
    let report = read_from_large_files(layout, order, ram, request_bytes);
    let epochs = [report.epochs[0], report.epochs[1]];
    let begun = [0, epochs[0].end_us];
    let of = |nth: usize| {
        let EpochReport { source_reads, source_bytes, end_us, .. } = epochs[nth];
        let seconds = (end_us - begun[nth]) as f64 / 1e6;
        (source_reads as f64 / f64::from(count), source_bytes as f64 / all as f64, seconds)
    };
    [of(0), of(1)]
}

/// Samples that lie beside each other are read with one request, if RAM keeps them.
#[test]
fn samples_side_by_side_are_read_together() {
    let [(together, bytes, _), _] = of_shards(1.2, 8 << 20);
    println!("RAM for all: {together:.4} requests a sample, {bytes:.3} of the bytes");
    assert!(together <= 1.0 / 32.0 && bytes <= 1.02, "{together} {bytes}");
    let half = [8 << 20, 0].map(|request_bytes| of_shards(0.5, request_bytes));
    println!("RAM for half, together and not: {half:.3?}");
    let [[_, steady], [_, alone]] = half;
    assert!(steady.1 <= 1.01 * alone.1 && steady.2 <= 1.01 * alone.2, "{half:?}");
}

/// The first epoch of files of 99,000 bytes. At the source, 64 of them at a time lie one behind the other. Gives the
/// requests a file, and the seconds.
fn of_members(request_bytes: u64) -> (f64, f64) {
    const FILES: u32 = 8192;
    let mut layout = Layout::new((0..FILES).map(|_| 99_000));
    assert!(layout.set_neighbours(|file| !file.0.is_multiple_of(64)));
    let ram = layout.pages_bytes_of_all() / 5 * 6;
    let order = workload::permutations(FILES, 1, 7).unwrap();
    let report = read_from_large_files(layout, order, ram, request_bytes);
    let EpochReport { source_reads, source_bytes, end_us, .. } = report.epochs[0];
    assert_eq!(source_bytes, u64::from(FILES) * 99_000);
    (source_reads as f64 / f64::from(FILES), end_us as f64 / 1e6)
}

/// Files that lie one behind the other in an archive are read with one request, if RAM keeps them.
#[test]
fn files_that_lie_behind_each_other_are_read_together() {
    let [(requests, together), (each, alone)] = [8 << 20, 0].map(of_members);
    println!("{requests:.4} requests a file in {together:.2} s, {each:.4} in {alone:.2} s");
    assert!(requests <= 1.0 / 16.0 && each >= 1.0, "{requests} {each}");
    assert!(together <= 1.02 * alone, "{together} s instead of {alone}");
}

/// Files of 8 MiB, whose order is known, at a source whose link is slower than their readers: the source gives hardly
/// more than RAM cannot keep.
#[test]
fn large_files_of_a_known_order_cost_what_ram_cannot_keep() {
    const FILES: u32 = 64;
    let source = SourceModel { latency_us: 5_000, servers: 64, bandwidth: 200_000_000 };
    for batch in [1, 4] {
        let layout = Arc::new(Layout::new((0..FILES).map(|_| 8 << 20)));
        let all = layout.pages_bytes_of_all();
        let settings = Settings { may_untrack: true, ..with_ram(all / 2) };
        let report = run(&Scenario {
            layout,
            readers: vec![Reader {
                order: workload::permutations(FILES, 6, 1).unwrap(),
                workers: 4,
                batch,
                think_us: 10_000,
                run_us: 0,
                step_us: 0,
                ahead: 0,
            }],
            known: true,
            epochs: 6,
            settings,
            machine: Machine::default(),
            source,
            manners: Some(Manners::Polite),
            vanish: None,
        });
        let shares = report.epochs.iter().map(|it| it.source_bytes as f64 / all as f64);
        let shares: Vec<f64> = shares.collect();
        println!("batches of {batch}: {shares:.3?}");
        // The last epoch has what is staged for another one.
        assert!(shares[0] < 1.03 && shares[1..5].iter().all(|share| *share < 0.56), "{batch}");
    }
}

use std::sync::Arc;

use super::*;
use crate::plan::{PolicyKind, Tier};

const SAMPLES: u32 = 10_000;

/// Equal samples of one page, demand only, no time: what theory speaks of.
fn theory(readers: Vec<Arc<Order>>, share: f64, policy: PolicyKind, epochs: u32) -> Report {
    let ram = (f64::from(SAMPLES) * share) as u64 * 4096;
    let readers = readers
        .into_iter()
        .map(|order| Reader { order, workers: 1, batch: 1, think_us: 1 })
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
            start_at_open: false,
            gears: false,
        },
        source: SourceModel::INSTANT,
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
            assert_near(&format!("{policy:?} {share}"), report.hit_share(1), share);
        }
    }
    assert_near("lru .5", theory(one(), 0.5, PolicyKind::Lru, 8).hit_share(1), 0.154);
    assert_near("lru .8", theory(one(), 0.8, PolicyKind::Lru, 8).hit_share(1), 0.480);
}

#[test]
fn three_jobs_gain_from_their_orders() {
    let jobs = || (1..=3).map(|seed| workload::permutations(SAMPLES, 8, seed).unwrap()).collect();
    let hits = |policy| theory(jobs(), 0.2, policy, 8).hit_share(1);
    assert_near("belady", hits(PolicyKind::Belady), 0.492);
    assert_near("auto", hits(PolicyKind::Auto), 0.492);
    assert_near("minio", hits(PolicyKind::Minio), 0.200);
    assert_near("lru", hits(PolicyKind::Lru), 0.140);
}

#[test]
fn a_weighted_sampler_gains_from_its_order() {
    let order = || vec![workload::weighted(SAMPLES, 8, 0.2, 0.6, 7).unwrap()];
    let hits = |policy| theory(order(), 0.2, policy, 8).hit_share(1);
    assert_near("belady", hits(PolicyKind::Belady), 0.688);
    assert_near("minio", hits(PolicyKind::Minio), 0.359);
}

/// A job at four fifths of the source's bandwidth, b = 56 and r = 7: what is new is there when it is read.
/// What is old lies elsewhere, and has its places in the order.
#[test]
fn the_new_samples_of_a_mix_are_there_in_time() {
    const NEW: u32 = 56 * 60;
    const BYTES: u64 = 112_283;
    let source = SourceModel { latency_us: 5_000, slots: 64, bandwidth: 200_000_000 };
    let waits = |known: bool| {
        let think_us = source.passing_us(BYTES) * 10 / 8;
        let order = workload::rehearsal(NEW, 500, 56, 7, 3, 1).unwrap();
        let report = run(&Scenario {
            layout: Arc::new(Layout::new((0..NEW).map(|_| BYTES))),
            readers: vec![Reader { order, workers: 1, batch: 63, think_us }],
            known,
            epochs: 3,
            settings: Settings {
                tiers: vec![Tier { capacity: u64::from(NEW) * BYTES / 20, block_us: 0 }],
                source_us: None,
                policy: PolicyKind::Auto,
                prefetch: true,
                inflight_max: 32,
                window_bytes: None,
                start_at_open: false,
                gears: false,
            },
            source,
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

//! Golden figures of the planner: every workload, policy and cache size in virtual time, compared with
//! `tests/golden/policies.txt`. A change in planning shows as a diff there. `UPDATE_GOLDEN=1` takes it.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use belady::order::Order;
use belady::plan::{Layout, PolicyKind, Settings, Tier};
use belady::sim::{Machine, Reader, Report, Scenario, SourceModel, run, workload};

const SAMPLES: u32 = 2_000;
const SAMPLE_BYTES: u64 = 110_000;
const EPOCHS: u32 = 4;

/// A source that gives 16 readers 200 MB/s at 8.45 ms.
const BUSY: SourceModel = SourceModel { latency_us: 8_450, servers: 16, bandwidth: 200_000_000 };

fn workloads() -> Vec<(&'static str, Vec<Arc<Order>>)> {
    let shuffled = |seed| workload::permutations(SAMPLES, EPOCHS, seed).expect("samples");
    let weighted = workload::weighted(SAMPLES, EPOCHS, 0.2, 0.6, 1).expect("samples");
    let rehearsal = workload::rehearsal(SAMPLES, SAMPLES, 56, 7, EPOCHS, 1).expect("samples");
    vec![
        ("one job", vec![shuffled(1)]),
        ("three jobs", (1..=3).map(shuffled).collect()),
        ("weighted", vec![weighted]),
        ("rehearsal", vec![rehearsal]),
    ]
}

/// What the planner knows of the order and fetches ahead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    /// The order is known.
    Known,
    /// The order is not known: the planner fetches what is unread.
    Unread,
    /// The planner fetches nothing ahead.
    Blind,
}

fn scenario(orders: &[Arc<Order>], policy: PolicyKind, share: u64, ahead: Ahead) -> Scenario {
    let files = if orders[0].is_permutation() { SAMPLES } else { 2 * SAMPLES };
    let layout = Arc::new(Layout::new((0..files).map(|_| SAMPLE_BYTES)));
    let total = layout.mean_pages_bytes() * u64::from(SAMPLES);
    let reader = |order: &Arc<Order>| Reader {
        order: Arc::clone(order),
        workers: 2,
        batch: 64,
        think_us: 1_000,
        run_us: 0,
        step_us: 0,
        ahead: 0,
    };
    Scenario {
        layout,
        readers: orders.iter().map(reader).collect(),
        known: ahead == Ahead::Known,
        epochs: EPOCHS,
        settings: Settings {
            tiers: vec![Tier { capacity: total * share / 100, block_us: 0 }],
            source_us: Some(BUSY.read_us(SAMPLE_BYTES)),
            policy,
            prefetch: ahead != Ahead::Blind,
            inflight_max: 32,
            window_bytes: None,
            request_bytes: 8 << 20,
            start_at_open: true,
            may_untrack: false,
            withheld: false,
        },
        machine: Machine::default(),
        source: BUSY,
        manners: None,
        vanish: None,
    }
}

fn line(name: &str, policy: &str, share: u64, report: &Report) -> String {
    let steady = report.after(1);
    let epochs = u64::from(EPOCHS) - 1;
    format!(
        "{name:<12}{policy:<14}{share:>4} %{:>9.3}{:>10}{:>12}{:>12}\n",
        report.hit_ratio(1),
        steady.source_reads / epochs,
        steady.stall_us / epochs / 1000,
        report.elapsed_us / 1000,
    )
}

#[test]
fn figures_are_as_they_were() {
    let mut table = format!(
        "{:<12}{:<14}{:>6}{:>9}{:>10}{:>12}{:>12}\n",
        "workload", "policy", "cache", "hits", "reads", "stall ms", "total ms"
    );
    let policies = [
        (PolicyKind::Auto, "auto", Ahead::Known),
        (PolicyKind::Belady, "belady", Ahead::Known),
        (PolicyKind::Minio, "minio", Ahead::Known),
        (PolicyKind::Lru, "lru, blind", Ahead::Blind),
        (PolicyKind::Auto, "auto, blind", Ahead::Blind),
        (PolicyKind::Auto, "unread set", Ahead::Unread),
    ];
    for (name, orders) in workloads() {
        for share in [0, 20, 50] {
            for (policy, label, ahead) in policies {
                let report = run(&scenario(&orders, policy, share, ahead));
                let _ = write!(table, "{}", line(name, label, share, &report));
            }
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/policies.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &table).expect("the golden file can be written");
    }
    let wanted = fs::read_to_string(&golden).unwrap_or_default();
    assert!(table == wanted, "the figures have changed (UPDATE_GOLDEN=1 takes them):\n{table}");
}

/// With no order known, a cache for the share `x` of the data finds `x (1 + ln 1/x)` of an epoch by fetching
/// unread samples, if the source is fast enough. It fetches no more than the cache does not hold.
#[test]
fn the_unread_set_finds_what_it_should() {
    let order = workload::permutations(SAMPLES, EPOCHS, 3).expect("samples");
    for (share, hits) in [(20, 0.522), (50, 0.846), (80, 0.979)] {
        let mut scenario = scenario(&[Arc::clone(&order)], PolicyKind::Auto, share, Ahead::Unread);
        scenario.readers[0].think_us = 10_000;
        let report = run(&scenario);
        // The window and the blocks being read take a part of a small cache.
        let steady = report.after(1);
        let found = steady.hits as f64 / steady.reads as f64;
        assert!((hits - 0.05..hits + 0.02).contains(&found), "{share} %: {found}");
        let reads = steady.source_reads / (u64::from(EPOCHS) - 1);
        let most = u64::from(SAMPLES) * (100 - share + 4) / 100;
        assert!(reads <= most, "{share} %: {reads} reads of {most}");
    }
}

/// The same scenario gives the same result, and another seed another one.
#[test]
fn one_seed_is_one_world() {
    let world = |seed| {
        let order = workload::permutations(SAMPLES, EPOCHS, seed).expect("samples");
        run(&scenario(&[order], PolicyKind::Belady, 20, Ahead::Known))
    };
    assert_eq!(world(1), world(1));
    assert_ne!(world(1).digest, world(2).digest);
}

/// RAM never holds more than its budget, plus the readers' own fetches for a moment.
#[test]
fn the_budget_of_ram_is_kept() {
    for (name, orders) in workloads() {
        for share in [0, 1, 20, 50, 120] {
            let scenario = scenario(&orders, PolicyKind::Auto, share, Ahead::Known);
            let budget = scenario.settings.tiers[0].capacity;
            let readers = orders.len() as u64 * 2;
            let report = run(&scenario);
            let most = budget + readers * SAMPLE_BYTES.next_multiple_of(4096);
            assert!(report.ram_bytes_max <= most, "{name} {share} %: {}", report.ram_bytes_max);
        }
    }
}

/// One job over RAM for a tenth of the data, a fast tier for 30 % and a third tier for 40 %. A block takes
/// `third_us` from the third tier.
fn three_tiers(third_us: u64) -> Scenario {
    let order = workload::permutations(SAMPLES, EPOCHS, 5).expect("samples");
    let mut scenario = scenario(&[order], PolicyKind::Auto, 10, Ahead::Known);
    let total = scenario.layout.mean_pages_bytes() * u64::from(SAMPLES);
    let tier = |share, block_us| Tier { capacity: total * share / 100, block_us };
    scenario.settings.tiers.extend([tier(30, 100), tier(40, third_us)]);
    scenario
}

/// A slow third tier that vanishes midway costs only fetches from the source.
#[test]
fn a_tier_that_vanishes_is_done_without() {
    let whole = run(&three_tiers(100));
    assert!(whole.hit_ratio(1) > 0.75, "three tiers hold 80 %: {}", whole.hit_ratio(1));
    let mut with = three_tiers(8_000);
    let slow = run(&with);
    assert!(slow.hit_ratio(1) > 0.75, "faster than the source all the same");
    assert!(slow.after(1).stall_us > whole.after(1).stall_us, "the third tier is slow");
    with.vanish = Some((2, u64::from(SAMPLES) * 2));
    let broken = run(&with);
    assert_eq!(broken.after(0).reads, u64::from(SAMPLES * EPOCHS), "every sample was read");
    let epoch = |report: &Report, epoch: usize| report.epochs[epoch].source_reads;
    assert_eq!(epoch(&broken, 1), epoch(&whole, 1));
    assert!(epoch(&broken, 2) > epoch(&whole, 2) + u64::from(SAMPLES) / 4);
    assert!(epoch(&broken, 3) <= epoch(&whole, 3) + u64::from(SAMPLES) / 10, "it fills again");
}

/// A tier that is slower than the source is not used: readers wait less than with it.
#[test]
fn a_tier_that_is_slower_than_the_source_is_not_used() {
    let mut with = three_tiers(50_000);
    let left_alone = run(&with);
    with.settings.source_us = None;
    let used = run(&with);
    assert!(used.hit_ratio(1) > 0.75 && left_alone.hit_ratio(1) < 0.45);
    let (before, after) = (used.after(1).stall_us, left_alone.after(1).stall_us);
    assert!(after < before, "{after} us instead of {before}");
    with.settings.tiers.pop();
    assert_eq!(run(&with), left_alone, "it is as if it were not there");
}

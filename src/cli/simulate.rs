//! `belady simulate`: what cache sizes and policies would give, in virtual time.

use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;

use super::{say, say_json};
use crate::config::{Bytes, Size};
use crate::error::{Error, ErrorKind, Result};
use crate::order::Order;
use crate::plan::{Layout, PolicyKind, Settings, Tier};
use crate::sim::{Reader, Scenario, SourceModel, run as simulate, workload};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Every sample once an epoch, shuffled anew
    Shuffle,
    /// 20 % of the samples drawn 60 % of the time, with replacement
    Weighted,
    /// 56 new samples, then 7 of old ones, and so on
    Rehearsal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyArg {
    Belady,
    Lru,
    Minio,
    UnreadFirst,
    None,
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What the jobs read
    #[arg(long, value_enum, default_value_t = Workload::Shuffle)]
    workload: Workload,
    /// Samples of the dataset
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=20_000_000))]
    samples: u32,
    /// Bytes of a sample
    #[arg(long, default_value = "110KB")]
    sample_size: Bytes,
    /// Jobs that read at the same time, each in an order of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Workers of a job
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: u32,
    /// Samples of a batch
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Epochs; the first is cold and not counted
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1000))]
    epochs: u32,
    /// Cache sizes, as bytes or share of the data
    #[arg(long, value_delimiter = ',', default_value = "20%,50%,80%")]
    cache: Vec<Size>,
    /// Policies to compare
    #[arg(long, value_enum, value_delimiter = ',', default_value = "belady,lru,minio,none")]
    policy: Vec<PolicyArg>,
    /// Fetch only what is asked for
    #[arg(long)]
    no_prefetch: bool,
    /// Do not tell the planner the orders
    #[arg(long)]
    unknown: bool,
    /// Microseconds that a read keeps the source busy
    #[arg(long, default_value_t = 8_450)]
    latency_us: u64,
    /// Reads that the source does at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    /// Bytes per second of the source; 0: no limit
    #[arg(long, default_value = "200MB")]
    bandwidth: Bytes,
    /// Microseconds that a worker spends on a sample
    #[arg(long, default_value_t = 1_000)]
    think_us: u64,
    /// Seed of the orders
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the table: an epoch in the steady state.
#[derive(Debug, Serialize)]
struct Row {
    policy: PolicyKind,
    cache_bytes: u64,
    /// Share of the reads that cost the source nothing.
    hits: f64,
    source_reads: f64,
    source_bytes: f64,
    /// Seconds that each worker waited, and that the epoch took.
    stall_s: f64,
    epoch_s: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let orders =
        (0..args.jobs).map(|job| order(args, u64::from(job))).collect::<Result<Vec<_>>>()?;
    let bytes = args.sample_size.0.max(1);
    let count = 1 + orders.iter().flat_map(|order| order.epoch(0).to_vec()).max().unwrap_or(0);
    let count = count.max(args.samples);
    let layout = Arc::new(Layout::new((0..count).map(|_| bytes)));
    let total = layout.mean_pages_bytes() * u64::from(count);
    let mut rows = Vec::new();
    for cache in &args.cache {
        let capacity = cache.of(total).ok_or_else(|| {
            Error::new(ErrorKind::Usage, "--cache auto means nothing here; write a size or a share")
        })?;
        for &policy in &args.policy {
            rows.push(row(args, &orders, &layout, capacity, policy));
        }
    }
    if args.json {
        say_json(&rows);
    } else {
        print_table(args, &rows, total);
    }
    Ok(())
}

fn order(args: &Args, job: u64) -> Result<Arc<Order>> {
    let (samples, seed) = (args.samples, args.seed.wrapping_mul(1_000).wrapping_add(job));
    match args.workload {
        Workload::Shuffle => workload::permutations(samples, args.epochs, seed),
        Workload::Weighted => workload::weighted(samples, args.epochs, 0.2, 0.6, seed),
        Workload::Rehearsal => workload::rehearsal(samples, samples, 56, 7, args.epochs, seed),
    }
}

fn row(
    args: &Args,
    orders: &[Arc<Order>],
    layout: &Arc<Layout>,
    capacity: u64,
    policy: PolicyArg,
) -> Row {
    let policy = match policy {
        PolicyArg::Belady => PolicyKind::Belady,
        PolicyArg::Lru => PolicyKind::Lru,
        PolicyArg::Minio => PolicyKind::Minio,
        PolicyArg::UnreadFirst => PolicyKind::UnreadFirst,
        PolicyArg::None => PolicyKind::None,
    };
    let reader = |order: &Arc<Order>| Reader {
        order: Arc::clone(order),
        workers: args.workers,
        batch: args.batch,
        think_us: args.think_us,
    };
    let report = simulate(&Scenario {
        layout: Arc::clone(layout),
        readers: orders.iter().map(reader).collect(),
        known: !args.unknown,
        epochs: args.epochs,
        settings: Settings {
            gears: false,
            tiers: vec![Tier { capacity }],
            policy,
            prefetch: !args.no_prefetch,
            inflight_max: 32,
            window_bytes: None,
            start_at_open: false,
        },
        source: SourceModel {
            latency_us: args.latency_us,
            slots: args.slots,
            bandwidth: args.bandwidth.0,
        },
        vanish: None,
    });
    let steady = report.after(1);
    let epochs = f64::from(args.epochs - 1);
    let workers = f64::from(args.workers) * f64::from(args.jobs);
    Row {
        policy,
        cache_bytes: capacity,
        hits: report.hit_share(1),
        source_reads: steady.source_reads as f64 / epochs,
        source_bytes: steady.source_bytes as f64 / epochs,
        stall_s: steady.stall_us as f64 / epochs / workers / 1e6,
        epoch_s: report.elapsed_us as f64 / f64::from(args.epochs) / 1e6,
    }
}

fn print_table(args: &Args, rows: &[Row], total: u64) {
    say(format!(
        "{} samples of {}, {} job(s) of {} workers; epochs 2 to {}, seed {}",
        args.samples,
        args.sample_size.human(),
        args.jobs,
        args.workers,
        args.epochs,
        args.seed,
    ));
    say(format!(
        "{:<8}{:<14}{:>7}{:>14}{:>14}{:>10}{:>10}",
        "cache", "policy", "hits", "source reads", "source bytes", "stall s", "epoch s"
    ));
    for row in rows {
        let policy = serde_json::to_value(row.policy).unwrap_or_default();
        say(format!(
            "{:<8}{:<14}{:>7.3}{:>14.0}{:>14}{:>10.2}{:>10.2}",
            format!("{:.0} %", 100.0 * row.cache_bytes as f64 / total as f64),
            policy.as_str().unwrap_or_default(),
            row.hits,
            row.source_reads,
            Bytes(row.source_bytes as u64).human(),
            row.stall_s,
            row.epoch_s,
        ));
    }
}

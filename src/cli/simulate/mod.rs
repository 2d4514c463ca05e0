//! `belady simulate`: compares cache sizes and policies in virtual time.

mod nodes;
mod nopfs;

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::value::{self, StrDeserializer};
use serde::{Deserialize, Serialize};

use super::order::resolved;
use super::report;
use super::{say, say_json};
use crate::config::{Bytes, Size, View};
use crate::engine::resolve_order;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::order::{Entry, Listing, Order};
use crate::plan::{Layout, PolicyKind, Settings, Tier};
use crate::sim::{Machine, Reader, Scenario, SourceModel, run as simulate, workload};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Every sample once an epoch, shuffled anew
    Shuffle,
    /// 20 % of the samples drawn 60 % of the time, with replacement
    Weighted,
    /// 56 new samples, then 7 of old ones, and so on
    Rehearsal,
}

/// The policies that can be simulated: all that have a name of their own.
const POLICIES: [&str; 5] = ["belady", "lru", "minio", "unread-first", "none"];

fn policies() -> impl TypedValueParser<Value = PolicyKind> {
    let named = |name: String| PolicyKind::deserialize(StrDeserializer::<value::Error>::new(&name));
    PossibleValuesParser::new(POLICIES).try_map(named)
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What the jobs read
    #[arg(long, value_enum, default_value_t = Workload::Shuffle)]
    workload: Workload,
    /// What a job reads instead: a file, or a sampler as for `belady mount`; for several jobs given
    /// several times
    #[arg(long, value_name = "FILE|SPEC", conflicts_with_all = ["workload", "jobs"])]
    order: Vec<String>,
    /// The dataset of these orders, a source or a mount; without it, --samples samples without names
    #[arg(long, requires = "order", conflicts_with_all = ["samples", "sample_size"])]
    dataset: Option<PathBuf>,
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
    /// Size of a cache disk below it, as bytes or share of the data; none if left out
    #[arg(long)]
    disk: Option<Size>,
    /// Microseconds that a sample takes from that disk, which is not used if the source is faster
    #[arg(long, default_value_t = 300, requires = "disk")]
    disk_us: u64,
    /// Policies to compare
    #[arg(long, value_parser = policies(), value_delimiter = ',', default_value = "belady,lru,minio,none")]
    policy: Vec<PolicyKind>,
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
    /// Repeat what a report tells: the JSON of `belady report` or of `belady run --report`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "order", "nodes"])]
    from: Option<PathBuf>,
    /// With --from: tell how long an epoch would take with this, as ram=50%,workers=8
    #[arg(long, value_name = "CHANGES", requires = "from")]
    what_if: Vec<String>,
    #[command(flatten)]
    cluster: nodes::Cluster,
    #[command(flatten)]
    comparison: nopfs::Comparison,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the table: a mean epoch after the first.
#[derive(Debug, Serialize)]
struct Row {
    policy: PolicyKind,
    cache_bytes: u64,
    /// Share of the reads that did not need the source.
    hits: f64,
    source_reads: f64,
    source_bytes: f64,
    /// Seconds that each worker waited, and that the epoch took.
    stall_s: f64,
    epoch_s: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    if let Some(path) = &args.from {
        return report::repeat(path, &args.what_if, args.json);
    }
    if args.comparison.nopfs {
        return nopfs::run(args);
    }
    if let Some(count) = args.cluster.nodes {
        return nodes::run(args, count);
    }
    let (orders, layout) = match args.order.as_slice() {
        [] => workload_orders(args)?,
        given => given_orders(args, given)?,
    };
    let bytes = |flag: &str, size: &Size, all: u64| {
        let message = format!("--{flag} auto means nothing here; write a size or a share");
        size.of(all).ok_or_else(|| Error::new(ErrorKind::Usage, message))
    };
    let disk = args.disk.as_ref().map(|disk| bytes("disk", disk, layout.stored_bytes_of_all()));
    let disk = disk.transpose()?.map(|capacity| Tier { capacity, block_us: args.disk_us });
    let mut rows = Vec::new();
    for cache in &args.cache {
        let capacity = bytes("cache", cache, layout.pages_bytes_of_all())?;
        let ram = Tier { capacity, block_us: 0 };
        for &policy in &args.policy {
            let tiers = std::iter::once(ram).chain(disk).collect();
            rows.push(row(args, &orders, &layout, tiers, policy));
        }
    }
    if args.json {
        say_json(&rows);
    } else {
        print_table(args, &orders, &layout, &rows);
    }
    Ok(())
}

/// The orders of the jobs, and the layout of the dataset.
type Work = (Vec<Arc<Order>>, Arc<Layout>);

/// The orders of the workload, and at least as many samples as they name.
fn workload_orders(args: &Args) -> Result<Work> {
    let orders =
        (0..args.jobs).map(|job| order(args, u64::from(job))).collect::<Result<Vec<_>>>()?;
    let named = orders.iter().flat_map(|order| order.ids()).max().map_or(0, |last| last + 1);
    Ok((orders, uniform_layout(args, named.max(args.samples))))
}

/// Samples of the same size.
fn uniform_layout(args: &Args, count: u32) -> Arc<Layout> {
    let bytes = args.sample_size.0.max(1);
    Arc::new(Layout::new((0..count).map(|_| bytes)))
}

/// The given orders, over the dataset, or over `--samples` images of one class.
fn given_orders(args: &Args, given: &[String]) -> Result<Work> {
    if let Some(dataset) = &args.dataset {
        let mut layout = Arc::new(Layout::new([]));
        let mut orders = Vec::new();
        for text in given {
            let resolved = resolved(text, (dataset.as_path(), View::Directory))?;
            layout = resolved.layout;
            orders.push(Arc::new(resolved.order));
        }
        return Ok((orders, layout));
    }
    let paths: Vec<String> = (0..args.samples).map(|nth| format!("0/{nth:08}.jpg")).collect();
    let size = args.sample_size.0.max(1);
    let entries = (0..).zip(&paths);
    let entries =
        entries.map(|(nth, path)| Entry { path: path.as_bytes(), file: FileId(nth), size });
    let listing = Listing::new(entries.collect());
    let order = |text: &String| resolve_order(text, &listing).map(Arc::new);
    let orders = given.iter().map(order).collect::<Result<Vec<_>>>()?;
    Ok((orders, uniform_layout(args, args.samples)))
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
    tiers: Vec<Tier>,
    policy: PolicyKind,
) -> Row {
    let reader = |order: &Arc<Order>| Reader {
        order: Arc::clone(order),
        workers: args.workers,
        batch: args.batch,
        think_us: args.think_us,
        run_us: 0,
        step_us: 0,
        ahead: 0,
    };
    let (latency_us, servers, bandwidth) = (args.latency_us, args.slots, args.bandwidth.0);
    let source = SourceModel { latency_us, servers, bandwidth };
    let cache_bytes = tiers.first().map_or(0, |ram| ram.capacity);
    let report = simulate(&Scenario {
        layout: Arc::clone(layout),
        readers: orders.iter().map(reader).collect(),
        known: !args.unknown,
        epochs: args.epochs,
        settings: Settings {
            may_untrack: false,
            withheld: false,
            tiers,
            source_us: Some(source.read_us(layout.mean_pages_bytes())),
            policy,
            prefetch: !args.no_prefetch,
            inflight_max: 32,
            window_bytes: None,
            request_bytes: 8 << 20,
            start_at_open: false,
        },
        machine: Machine::default(),
        source,
        manners: None,
        vanish: None,
    });
    let steady = report.after(1);
    let epochs = f64::from(args.epochs - 1);
    let workers = f64::from(args.workers) * orders.len() as f64;
    let cold_us = report.epochs.first().map_or(0, |epoch| epoch.end_us);
    Row {
        policy,
        cache_bytes,
        hits: report.hit_ratio(1).max(0.0),
        source_reads: steady.source_reads as f64 / epochs,
        source_bytes: steady.source_bytes as f64 / epochs,
        stall_s: steady.stall_us as f64 / epochs / workers / 1e6,
        epoch_s: steady.end_us.saturating_sub(cold_us) as f64 / epochs / 1e6,
    }
}

fn print_table(args: &Args, orders: &[Arc<Order>], layout: &Layout, rows: &[Row]) {
    let total = layout.pages_bytes_of_all();
    for order in orders.iter().filter(|_| !args.order.is_empty()) {
        say(order.describe());
    }
    say(format!(
        "{} files, {}, {} job(s) of {} workers; epochs 2 to {}, seed {}",
        layout.files(),
        Bytes(total).human(),
        orders.len(),
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

//! `belady simulate --nodes`: where the nodes of a cluster find their samples.

use std::time::Instant;

use serde::Serialize;

use super::super::{say, say_json};
use super::Args;
use crate::cluster::{Member, Plan, Samples, View, mix};
use crate::error::{Error, ErrorKind, Result};
use crate::sim::nodes::{Job, Placing, Shares};
use crate::sim::workload;

/// Options that say something of one node and its cache.
pub(super) const OF_ONE_NODE: [&str; 15] = [
    "workload",
    "order",
    "jobs",
    "workers",
    "batch",
    "cache",
    "disk",
    "disk_us",
    "policy",
    "no_prefetch",
    "unknown",
    "latency_us",
    "slots",
    "bandwidth",
    "think_us",
];

/// Nodes that share what they hold.
#[derive(Debug, clap::Args)]
pub(super) struct Cluster {
    /// Nodes of a cluster that share what they hold, each with one rank of the job
    #[arg(
        long,
        value_parser = clap::value_parser!(u16).range(2..=4096),
        conflicts_with_all = OF_ONE_NODE
    )]
    pub(super) nodes: Option<u16>,
    /// What all nodes hold together, in multiples of the data
    #[arg(
        long,
        requires = "nodes",
        conflicts_with_all = OF_ONE_NODE,
        value_delimiter = ',',
        default_value = "0.25,0.8,1,2"
    )]
    held: Vec<f64>,
    /// Weights of the nodes, in turn: with 1,3 every second node holds three times as much
    #[arg(
        long,
        requires = "nodes",
        conflicts_with_all = OF_ONE_NODE,
        value_delimiter = ',',
        default_value = "1"
    )]
    capacities: Vec<u32>,
    /// Groups of nodes, such as racks
    #[arg(
        long,
        requires = "nodes",
        conflicts_with_all = OF_ONE_NODE,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    groups: u32,
    /// Only compute the homes of all samples, as each node does, and say how long that takes
    #[arg(long, requires = "nodes", conflicts_with_all = OF_ONE_NODE)]
    plan: bool,
}

/// The plan that each node computes.
#[derive(Debug, Serialize)]
struct Planned {
    nodes: u16,
    held: f64,
    samples: u32,
    plan_s: f64,
    /// The same for all nodes.
    digest: String,
}

/// One line of the table: a mean epoch after the first.
#[derive(Debug, Serialize)]
struct Row {
    nodes: u16,
    held: f64,
    placing: Placing,
    #[serde(flatten)]
    shares: Shares,
}

/// Simulates all placings with all sizes.
pub(super) fn run(args: &Args, nodes: u16) -> Result<()> {
    let hashes: Vec<u64> = (0..u64::from(args.samples)).map(mix).collect();
    let bytes = u32::try_from(args.sample_size.0.max(1)).map_err(|_| {
        Error::new(ErrorKind::Usage, "--sample-size: samples of 4 GiB or more are not simulated")
    })?;
    let bytes = vec![bytes; hashes.len()];
    let samples = Samples { hashes: &hashes, bytes: &bytes };
    let views = args.cluster.held.iter().map(|held| Ok((held, view(args, nodes, *held)?)));
    if args.cluster.plan {
        let planned = |(held, view): (&f64, View)| {
            let (began, plan) = (Instant::now(), Plan::new(&view, samples));
            let (plan_s, digest) = (began.elapsed().as_secs_f64(), plan.digest());
            let digest = format!("{digest:016x}");
            Planned { nodes, held: *held, samples: args.samples, plan_s, digest }
        };
        let planned = views.map(|view| view.map(planned)).collect::<Result<Vec<_>>>()?;
        print_plans(&planned, args.json);
        return Ok(());
    }
    let order = workload::permutations(args.samples, args.epochs, args.seed)?;
    let epochs: Vec<_> = (0..args.epochs).map(|epoch| order.epoch(epoch)).collect();
    let mut rows = Vec::new();
    for (held, view) in views.collect::<Result<Vec<_>>>()? {
        let job = Job { view: &view, samples, epochs: &epochs };
        rows.extend(Placing::ALL.map(|placing| Row {
            nodes,
            held: *held,
            placing,
            shares: job.run(placing),
        }));
    }
    if args.json {
        say_json(&rows);
    } else {
        print_table(args, nodes, &rows);
    }
    Ok(())
}

/// Nodes that hold so many times the data together.
fn view(args: &Args, nodes: u16, held: f64) -> Result<View> {
    let weights = args.cluster.capacities.iter().copied().cycle().take(usize::from(nodes));
    let sum: u64 = weights.clone().map(u64::from).sum();
    if !held.is_finite() || held < 0.0 || sum == 0 {
        let message = "--held is a number of at least 0, and one of --capacities is at least 1";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let data = f64::from(args.samples) * args.sample_size.0.max(1) as f64;
    let member = |(nth, weight): (u32, u32)| Member {
        id: mix(u64::from(nth) << 32),
        capacity: (data * held * f64::from(weight) / sum as f64) as u64,
        disk: 0,
        seed: 0,
        group: nth % args.cluster.groups,
    };
    Ok(View::new((0..).zip(weights).map(member).collect()))
}

fn print_plans(planned: &[Planned], json: bool) {
    if json {
        return say_json(&planned);
    }
    for Planned { nodes, held, samples, plan_s, digest } in planned {
        say(format!(
            "{samples} samples, {nodes} nodes that hold {held} times the data: each plans for \
             {plan_s:.2} s, and finds {digest}"
        ));
    }
}

fn print_table(args: &Args, nodes: u16, rows: &[Row]) {
    say(format!(
        "{} samples, {nodes} nodes; epochs 2 to {}, seed {}",
        args.samples, args.epochs, args.seed,
    ));
    say(format!(
        "{:<8}{:<14}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "held", "placing", "local", "near", "remote", "source", "moved"
    ));
    for Row { held, placing, shares, .. } in rows {
        let name = serde_json::to_value(placing).unwrap_or_default();
        let Shares { local, near, remote, source, moved } = shares;
        say(format!(
            "{held:<8}{:<14}{local:>8.3}{near:>8.3}{remote:>8.3}{source:>8.3}{moved:>8.3}",
            name.as_str().unwrap_or_default(),
        ));
    }
}

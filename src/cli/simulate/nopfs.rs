//! `belady simulate --nopfs`: the scenarios and policies of NoPFS.

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::super::{say, say_json};
use super::Args;
use super::nodes::OF_ONE_NODE;
use crate::error::Result;
use crate::sim::nopfs::{Job, Machine, Outcome, Policy, Scenario};

/// Samples that are simulated at most.
const SAMPLES_MAX: u32 = 20_000;

/// The comparison of NoPFS.
#[derive(Debug, clap::Args)]
pub(super) struct Comparison {
    /// Compare the policies of NoPFS in its six scenarios, by its own model of storage
    #[arg(long, conflicts_with_all = OF_ONE_NODE, conflicts_with_all = ["nodes", "from", "samples", "sample_size", "seed"])]
    pub(super) nopfs: bool,
    /// What a node trains, in MB/s; 64 is that of the paper
    #[arg(
        long,
        requires = "nopfs",
        value_name = "MB/S",
        value_delimiter = ',',
        default_value = "64,320",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    compute: Vec<u32>,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    scenario: &'static str,
    nodes: usize,
    /// MB/s of a node.
    compute: u32,
    policy: Policy,
    /// The time of all epochs, and that over the bound. `None` if the data does not fit.
    #[serde(flatten)]
    outcome: Option<Outcome>,
    x_bound: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let computes = &args.comparison.compute;
    let runs = Scenario::ALL.len() * computes.len() * (1 + Policy::ALL.len());
    let style = ProgressStyle::with_template("simulating {bar} {pos} of {len} runs");
    let bar = ProgressBar::new(runs as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut rows = Vec::new();
    for scenario in &Scenario::ALL {
        for compute in computes {
            rows.extend(of_scenario(scenario, *compute, args.epochs, &bar)?);
        }
    }
    bar.finish_and_clear();
    if args.json {
        say_json(&rows);
    } else {
        print_table(args, &rows);
    }
    Ok(())
}

fn of_scenario(
    scenario: &Scenario,
    compute: u32,
    epochs: u32,
    bar: &ProgressBar,
) -> Result<Vec<Row>> {
    let machine = Machine::of_paper(f64::from(compute));
    let job = Job::new(scenario, &machine, epochs, SAMPLES_MAX)?;
    let run = |policy| {
        let outcome = job.run(policy);
        bar.inc(1);
        outcome
    };
    let bound = run(Policy::Perfect).map_or(f64::NAN, |outcome| outcome.seconds);
    let row = |policy| {
        let outcome = run(policy);
        let x_bound = outcome.map(|outcome| outcome.seconds / bound);
        Row { scenario: scenario.name, nodes: scenario.nodes, compute, policy, outcome, x_bound }
    };
    Ok(Policy::ALL.map(row).into())
}

fn print_table(args: &Args, rows: &[Row]) {
    say(format!(
        "{} epochs. x bound: the time of all epochs over that of a job that never waits; source: what \
         the parallel filesystem gets of the reads after the first epoch",
        args.epochs
    ));
    say(format!(
        "{:<15}{:>6}{:>6}  {:<22}{:>9}{:>9}{:>8}",
        "scenario", "nodes", "MB/s", "policy", "hours", "x bound", "source"
    ));
    for Row { scenario, nodes, compute, policy, outcome, x_bound } in rows {
        let name = serde_json::to_value(policy).unwrap_or_default();
        let name = name.as_str().unwrap_or_default();
        let begin = format!("{scenario:<15}{nodes:>6}{compute:>6}  {name:<22}");
        let (Some(Outcome { seconds, source, reads_all }), Some(x_bound)) = (outcome, x_bound)
        else {
            say(format!("{begin}  the data does not fit"));
            continue;
        };
        let note = if *reads_all { "" } else { "  reads a part of the data" };
        let hours = seconds / 3600.0;
        say(format!("{begin}{hours:>9.3}{x_bound:>9.2}{source:>8.3}{note}"));
    }
}

//! torture: injects faults for hours, and judges every byte, error and wait.
//!
//! A tool for tests. A run is a sequence of scenarios. The seed and the scenario's number decide the mount, its
//! readers and its faults ([`plan`]). A scenario leaves nothing behind.
//!
//! 1. [`source`] writes files whose bytes tell their file and content ([`history`]), and [`disk`] makes a
//!    cache disk. [`belady`] mounts. [`workers`] read, list and change files.
//! 2. [`injector`] makes the faults. [`restarts`] kills and remounts.
//! 3. [`history`] judges the bytes that were read, [`fault_log`] the errors, and [`watch`] the waits.
//!    [`baseline`] measures how long operations without belady wait on this machine.
//! 4. [`final_check`] reads all files when the faults are over. [`stats`] counts.
//!
//! [`workspace`] ends every process and mount that is left, also after a signal.

mod baseline;
mod belady;
mod cgroup;
mod cli;
mod clock;
mod diagnose;
mod disk;
mod fault_log;
mod final_check;
mod history;
mod injector;
mod map;
mod mounts;
mod plan;
mod process;
mod restarts;
mod run;
mod scenario;
mod source;
mod stats;
mod target;
mod watch;
mod watchdog;
mod workers;
mod workspace;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use nix::sys::resource::{Resource, setrlimit};

use baseline::Baseline;
use cli::{Cli, Command};
use clock::{nanos, now};
use mounts::Connections;
use plan::{Kind, Plan};
use run::Run;
use stats::Stats;
use watchdog::Watchdog;
use workspace::Workspace;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Command::Victim { root, seed }) => workers::read_for_ever(root, *seed),
        Some(Command::Mapper) => workers::map_for_ever().map(|()| true),
        None => run(&cli),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("torture: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs scenarios until the time is over. Returns whether nothing was wrong.
fn run(cli: &Cli) -> io::Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        return Err(io::Error::other("it mounts filesystems and disks: run it as root"));
    }
    cli.check().map_err(io::Error::other)?;
    // A daemon that aborts leaves no core file.
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let seed = cli.seed.unwrap_or_else(|| plan::mix(u64::from(std::process::id()), 0) >> 32);
    let limit = nanos(Duration::from_secs_f64(cli.hang));
    let (workspace, stats) = (Arc::new(Workspace::new()?), Arc::<Stats>::default());
    let watchdog = Watchdog::start(&workspace, limit)?;
    let (baseline, threads) = Baseline::start(workspace.run_dir())?;
    let connections = Connections::mount(workspace.run_dir().join("connections"));
    let run = Run {
        seed,
        limit,
        stats: Arc::clone(&stats),
        workspace: Arc::clone(&workspace),
        baseline: Arc::clone(&baseline),
        connections,
        stop: watchdog.stop(),
    };
    let began = now();
    let result = match cli.scenario {
        Some(number) => run_scenario(&run, &watchdog, number),
        None => run_scenarios(cli, &run, &watchdog),
    };
    baseline.stop();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    drop(run);
    workspace.clear();
    let counts = stats.counts();
    if cli.json {
        println!("{}", counts.json(seed, now() - began));
    } else {
        counts.print(seed, now() - began);
    }
    result.map(|()| counts.all_failures() == 0)
}

fn run_scenario(run: &Run, watchdog: &Watchdog, number: u64) -> io::Result<()> {
    let plan = Plan::draw(run.seed, number);
    watchdog.begin(&plan);
    let result = run.execute(&plan);
    watchdog.end();
    run.workspace.clear();
    result
}

/// Runs scenarios until the time is over and there were enough cycles and kills.
fn run_scenarios(cli: &Cli, run: &Run, watchdog: &Watchdog) -> io::Result<()> {
    let until = now() + nanos(Duration::from_secs_f64(cli.minutes * 60.0));
    for number in 0.. {
        let kind = Kind::of(number);
        let is_wanted = {
            let counts = run.stats.counts();
            let is_missing = match kind {
                Kind::Cycles => counts.cycles < cli.cycles,
                Kind::Kills => counts.kills < cli.kills,
                Kind::Faults => false,
            };
            let is_enough = counts.cycles >= cli.cycles && counts.kills >= cli.kills;
            if now() >= until && is_enough {
                return Ok(());
            }
            now() < until || is_missing
        };
        if watchdog.is_stopping() {
            return Ok(());
        }
        if is_wanted && cli.kind.is_none_or(|wanted| wanted == kind) {
            run_scenario(run, watchdog, number)?;
        }
    }
    Ok(())
}

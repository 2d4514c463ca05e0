//! torture: hours of faults and abuse, and a verdict on every byte, error and wait.
//!
//! A tool for tests. A run is a sequence of episodes. The seed and the episode's number decide the mount, its
//! readers and its troubles ([`plan`]). An episode leaves nothing behind.
//!
//! 1. [`source`] writes files whose bytes tell their file and content ([`shadow`]), and [`disk`] makes a
//!    cache disk. [`belady`] mounts. [`actors`] read, list and change files.
//! 2. [`lanes`] makes the troubles. [`rounds`] kills and remounts.
//! 3. [`shadow`] judges the bytes that were read, [`excuse`] the errors, and [`watch`] the waits.
//!    [`yardstick`] measures how long operations without belady wait on this machine.
//! 4. [`settle`] checks all files when the troubles are over. [`tally`] counts.
//!
//! [`ground`] ends every process and mount that is left, also after a signal.

mod actors;
mod belady;
mod cgroup;
mod cli;
mod clock;
mod diagnose;
mod disk;
mod episode;
mod excuse;
mod ground;
mod lanes;
mod map;
mod mounts;
mod plan;
mod process;
mod rounds;
mod settle;
mod shadow;
mod source;
mod stage;
mod tally;
mod target;
mod watch;
mod watchdog;
mod yardstick;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use nix::sys::resource::{Resource, setrlimit};

use cli::{Cli, Command};
use clock::{nanos, now};
use episode::Run;
use ground::Ground;
use mounts::Connections;
use plan::{Kind, Plan};
use tally::Tally;
use watchdog::Watchdog;
use yardstick::Yardstick;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Command::Victim { root, seed }) => actors::read_for_ever(root, *seed),
        Some(Command::Mapper) => actors::map_for_ever().map(|()| true),
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

/// Plays episodes until the time is over. Returns whether nothing was wrong.
fn run(cli: &Cli) -> io::Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        return Err(io::Error::other("it mounts filesystems and disks: run it as root"));
    }
    cli.is_possible().map_err(io::Error::other)?;
    // A daemon that aborts leaves no core file.
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let seed = cli.seed.unwrap_or_else(|| plan::mix(u64::from(std::process::id()), 0) >> 32);
    let limit = nanos(Duration::from_secs_f64(cli.hang));
    let (ground, tally) = (Arc::new(Ground::new()?), Arc::<Tally>::default());
    let watchdog = Watchdog::start(&ground, limit)?;
    let (yardstick, measuring) = Yardstick::start(ground.beside())?;
    let connections = Connections::at(ground.beside().join("connections"));
    let run = Run {
        seed,
        limit,
        tally: Arc::clone(&tally),
        ground: Arc::clone(&ground),
        yardstick: Arc::clone(&yardstick),
        connections,
        stop: watchdog.stop(),
    };
    let began = now();
    let played = match cli.episode {
        Some(number) => play(&run, &watchdog, number),
        None => play_on(cli, &run, &watchdog),
    };
    yardstick.stop();
    measuring.into_iter().for_each(|thread| drop(thread.join()));
    drop(run);
    ground.clear();
    let counts = tally.counts();
    if cli.json {
        println!("{}", counts.json(seed, now() - began));
    } else {
        counts.print(seed, now() - began);
    }
    played.map(|()| counts.wrong_in_all() == 0)
}

fn play(run: &Run, watchdog: &Watchdog, number: u64) -> io::Result<()> {
    let plan = Plan::draw(run.seed, number);
    watchdog.begin(&plan);
    let played = run.play(&plan);
    watchdog.end();
    run.ground.clear();
    played
}

/// Plays episodes until the time is over and there were enough cycles and kills.
fn play_on(cli: &Cli, run: &Run, watchdog: &Watchdog) -> io::Result<()> {
    let until = now() + nanos(Duration::from_secs_f64(cli.minutes * 60.0));
    for number in 0.. {
        let kind = Kind::of(number);
        let is_wanted = {
            let counts = run.tally.counts();
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
            play(run, watchdog, number)?;
        }
    }
    Ok(())
}

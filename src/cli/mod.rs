//! The command line: one verb a file.
//!
//! A verb parses its arguments, asks the rooms below and prints. Results go to stdout, everything else to
//! stderr. The exit code is that of the kind of the [`Error`]: 2 usage, 3 configuration or order, 4 source, 5
//! cache, 6 mount, 7 timeout, 8 busy, 1 a fault of belady.

mod apart;
mod cache;
mod catalog;
mod cluster;
mod config;
mod doctor;
mod examples;
mod mount;
mod order;
mod rehearse;
mod report;
mod run;
mod runner;
mod scan;
mod settings;
mod simulate;
mod status;
mod terminal;
mod top;
mod trace;
mod umount;
mod warmup;
mod watcher;
mod whole_file;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::control;
use crate::error::{self, Error, ErrorKind};
use crate::mount::{WATCHER, absolute};
use crate::sandbox;
use terminal::{say, say_data, say_json, warn};

/// Reads training data ahead of the loader, in the order the loader will read it.
#[derive(Debug, Parser)]
#[command(name = "belady", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Mount a dataset; returns when it serves
    Mount(mount::Args),
    /// End a mount
    Umount(umount::Args),
    /// Run a command with datasets mounted for it alone
    Run(run::Args),
    /// Show what mounts are doing
    Status(status::Args),
    /// Show what a mount and its loaders do, live
    Top(top::Args),
    /// Write what happens at a mount, for a viewer such as Perfetto
    Trace(trace::Args),
    /// Say why training is slow: what its workers and its trainer wait for
    Report(report::Args),
    /// Fetch samples before a job reads them, or evict them
    Warmup(warmup::Args),
    /// Show, check and set access orders
    #[command(subcommand)]
    Order(order::Verb),
    /// Show and check settings
    #[command(subcommand)]
    Config(config::Verb),
    /// Show, check and delete what cache directories hold
    #[command(subcommand)]
    Cache(cache::Verb),
    /// Export and import the catalog of a source, for other nodes and jobs
    #[command(subcommand)]
    Catalog(catalog::Verb),
    /// Show, fill and draw from rehearsal buffers
    #[command(subcommand)]
    Rehearse(rehearse::Verb),
    /// Show the nodes of a mount's cluster
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// Check what a mount needs on this machine, with the fix for what is missing
    Doctor(doctor::Args),
    /// Try cache sizes and policies in virtual time
    Simulate(simulate::Args),
    /// Watch over a daemon
    #[command(name = WATCHER, hide = true)]
    Watcher(watcher::Args),
    /// Run a command on inputs
    #[command(name = sandbox::VERB, hide = true)]
    Runner(runner::Args),
}

pub fn main() -> ExitCode {
    outlive_file_limits();
    let matches = examples::add(Cli::command()).try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(wrong) if wrong.use_stderr() => return misused(&wrong),
        Err(help) => help.exit(),
    };
    let result = match cli.verb {
        Verb::Mount(args) => mount::run(&args),
        Verb::Umount(args) => umount::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Trace(args) => trace::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Warmup(args) => warmup::run(&args),
        Verb::Order(verb) => order::run(&verb),
        Verb::Config(verb) => config::run(&verb),
        Verb::Cache(verb) => cache::run(&verb),
        Verb::Catalog(verb) => catalog::run(&verb),
        Verb::Rehearse(verb) => rehearse::run(&verb),
        Verb::Cluster(verb) => cluster::run(&verb),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Simulate(args) => simulate::run(&args),
        Verb::Watcher(args) => watcher::run(&args),
        Verb::Runner(args) => runner::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// The given mount point, or that of the only mount.
fn mount_point_of(given: Option<&Path>) -> error::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(absolute(given));
    }
    let mounts = control::all_mounts()?;
    let points: Vec<String> =
        mounts.iter().map(|(_, note)| note.mountpoint.display().to_string()).collect();
    match mounts.as_slice() {
        [(_, note)] => Ok(note.mountpoint.clone()),
        [] => Err(Error::new(ErrorKind::Mount, "nothing is mounted")
            .hint("`belady mount SOURCE MOUNTPOINT` mounts a dataset")),
        _ => Err(Error::new(ErrorKind::Usage, "there are several mounts")
            .hint(format!("name one of them: {}", points.join(", ")))),
    }
}

/// Makes a write beyond `ulimit -f` fail with `EFBIG` instead of ending the process.
fn outlive_file_limits() {
    // SAFETY: no handler is set that could run.
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    debug_assert!(ignored.is_ok());
}

/// Prints what is wrong with a command line. Its words may be names of files, so they are escaped.
fn misused(wrong: &clap::Error) -> ExitCode {
    warn(wrong.render().to_string().trim_end());
    ExitCode::from(u8::try_from(wrong.exit_code()).unwrap_or(u8::MAX))
}

fn fail(error: &Error) -> ExitCode {
    warn(format!("belady: {error}"));
    ExitCode::from(error.kind().exit_code())
}

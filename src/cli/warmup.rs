//! `belady warmup`: brings samples here before a job starts, or evicts them after it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::scan::await_scan;
use super::settings::absolute_order;
use super::{say, say_json, warn};
use crate::config::{Bytes, Period};
use crate::control::{self, Request};
use crate::engine::{Pace, Progress, Selection, Tally};
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::mount::absolute;

/// How often the daemon is asked for the progress of a warm-up.
const ASK_PROGRESS_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// The samples that an order's first epoch reads: a file, or a sampler
    #[arg(long, value_name = "FILE|SPEC", group = "choice")]
    order: Option<String>,
    /// The files that this file names, one a line; `-` is stdin, a directory stands for all below it
    #[arg(long, value_name = "FILE", group = "choice")]
    files_from: Option<PathBuf>,
    /// The files that a pattern matches, as `train/**/*.jpg`; all files if nothing is chosen
    #[arg(long, value_name = "PATTERN", group = "choice")]
    glob: Option<String>,
    /// Fetch no more than this a second, as 500MB
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["check", "evict"])]
    rate: Option<Rate>,
    /// Fetch nothing more after this time, as 10m; fetches under way have 5s more
    #[arg(long, value_name = "TIME", conflicts_with_all = ["check", "evict"])]
    deadline: Option<Period>,
    /// Only say how much is in RAM and on the cache disk
    #[arg(long)]
    check: bool,
    /// Evict from RAM and the cache disk; the source is not touched
    #[arg(long, conflicts_with = "check")]
    evict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Bytes a second: a size, with or without `/s`.
#[derive(Clone, Copy, Debug)]
struct Rate(u64);

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.strip_suffix("/s").unwrap_or(text).parse()? {
            Bytes(0) => Err(Error::new(ErrorKind::Usage, "nothing can be fetched at this rate")),
            Bytes(rate) => Ok(Rate(rate)),
        }
    }
}

impl Args {
    fn chosen(&self) -> Result<Selection> {
        Ok(match (&self.order, &self.files_from, &self.glob) {
            (Some(order), _, _) => Selection::Order(absolute_order(order)?),
            (_, Some(path), _) => Selection::Files(read_list(path)?),
            (_, _, Some(pattern)) => Selection::Glob(pattern.clone()),
            _ => Selection::All,
        })
    }
}

/// Reads a list of names. The command reads it, since the daemon must not wait for a pipe.
fn read_list(path: &Path) -> Result<Vec<u8>> {
    match path.as_os_str() == "-" {
        true => input::read_stdin(&Limits::LIST),
        false => input::read(path, &Limits::LIST),
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let begun = Instant::now();
    let mountpoint = absolute(&args.mountpoint);
    let chosen = args.chosen()?;
    let left = |deadline: Period| deadline.0.saturating_sub(begun.elapsed());
    await_scan(&mountpoint, args.deadline.map(left))?;
    let progress = match (args.check, args.evict) {
        (true, _) => ask(&mountpoint, &Request::CountHere { chosen })?,
        (_, true) => ask(&mountpoint, &Request::Evict { chosen })?,
        _ => {
            let deadline_s = args.deadline.map(|deadline| left(deadline).as_secs_f64());
            let pace = Pace { rate: args.rate.map(|rate| rate.0), deadline_s };
            let number = ask(&mountpoint, &Request::Warmup { chosen, pace })?;
            follow(&mountpoint, number)?
        }
    };
    match (args.json, args.check, args.evict) {
        (true, _, _) => say_json(&progress),
        (_, true, _) => say(here(&progress)),
        (_, _, true) => say(format!("before: {}\n{}", counted(progress.already), here(&progress))),
        _ => say(ended(&progress)),
    }
    if args.check || args.evict { Ok(()) } else { verdict(&progress) }
}

/// Warms up all of a mount, for a time.
pub(super) fn stage(mountpoint: &Path, deadline: Duration) -> Result<()> {
    let begun = Instant::now();
    if let Err(error) = await_scan(mountpoint, Some(deadline)) {
        warn(format!("belady: {}: {error}", mountpoint.display()));
        return Ok(());
    }
    let left = deadline.saturating_sub(begun.elapsed());
    let pace = Pace { rate: None, deadline_s: Some(left.as_secs_f64()) };
    let number = ask(mountpoint, &Request::Warmup { chosen: Selection::All, pace })?;
    let progress = follow(mountpoint, number)?;
    warn(ended(&progress));
    Ok(())
}

pub(super) fn ask<T: DeserializeOwned>(mountpoint: &Path, request: &Request) -> Result<T> {
    understood(control::ask(mountpoint, request)?)
}

/// An answer as what it is expected to be.
pub(super) fn understood<T: DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer).map_err(|error| {
        Error::new(ErrorKind::Mount, format!("the daemon's answer: {error}"))
            .hint("the mount is of another version of belady")
    })
}

/// Shows a bar until the end of a warm-up.
fn follow(mountpoint: &Path, number: u64) -> Result<Progress> {
    let style = ProgressStyle::with_template(
        "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left; {msg}",
    );
    let bar = ProgressBar::new(0);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    loop {
        let progress: Progress = ask(mountpoint, &Request::WarmupProgress { number })?;
        bar.set_length(progress.chosen.bytes);
        bar.set_position(progress.chosen.bytes.saturating_sub(progress.waiting.bytes));
        bar.set_message(format!("{} samples wait", progress.waiting.blocks));
        if progress.done {
            bar.finish_and_clear();
            return Ok(progress);
        }
        std::thread::sleep(ASK_PROGRESS_EVERY);
    }
}

fn counted(Tally { blocks, bytes }: Tally) -> String {
    format!("{blocks} samples, {}", Bytes(bytes).human())
}

fn here(progress: &Progress) -> String {
    let missing = missing(progress);
    let (chosen, ram, disk) =
        (counted(progress.chosen), counted(progress.ram), counted(progress.disk));
    format!("of {chosen} in {} files: {ram} in RAM; {disk} on disk{missing}", progress.files)
}

fn missing(progress: &Progress) -> String {
    match progress.missing {
        0 => String::new(),
        1 => "; 1 name is not in the dataset".into(),
        names => format!("; {names} names are not in the dataset"),
    }
}

fn ended(progress: &Progress) -> String {
    let mut words = format!(
        "of {}: {} fetched, {} here before",
        counted(progress.chosen),
        counted(progress.fetched),
        counted(progress.already),
    );
    let others = [
        (progress.unfit, "have no room in RAM or on disk"),
        (progress.failed, "could not be fetched or stored"),
        (progress.late, "not within the time"),
        (progress.waiting, "not before it broke off"),
        (progress.gone, "gone again"),
    ];
    for (tally, what) in others.into_iter().filter(|(tally, _)| tally.blocks > 0) {
        words += &format!("; {} {what}", counted(tally));
    }
    words + &missing(progress)
}

/// Returns an error if not everything is here.
fn verdict(progress: &Progress) -> Result<()> {
    let Progress { failed, late, unfit, gone, .. } = progress;
    if failed.blocks > 0 {
        let message = format!("{} could not be fetched or stored", counted(*failed));
        Err(Error::new(ErrorKind::Source, message).hint("`belady status` and the log say more"))
    } else if late.blocks > 0 {
        let message = format!("{} have not come within the time", counted(*late));
        let hint =
            "what has come stays: begin it again, with a longer --deadline or a higher --rate";
        Err(Error::new(ErrorKind::Timeout, message).hint(hint))
    } else if progress.broken {
        let message = match progress.waiting.blocks {
            0 => "it could not be counted in the end what is here".into(),
            _ => format!("it broke off before {} came", counted(progress.waiting)),
        };
        Err(Error::new(ErrorKind::Mount, message)
            .hint("the mount ends or does not answer, or this command stood still for long"))
    } else if unfit.blocks > 0 {
        let message = format!("{} have no room in RAM or on disk", counted(*unfit));
        let hint = "they come from the source when they are read; more --ram or --disk would hold \
                    them, --evict makes room";
        Err(Error::new(ErrorKind::Cache, message).hint(hint))
    } else if gone.blocks > 0 {
        let message = format!("{} came and are gone again", counted(*gone));
        let hint = "others took their room, or somebody evicted them";
        Err(Error::new(ErrorKind::Cache, message).hint(hint))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_not_here_is_no_success() {
        let some = Tally { blocks: 1, bytes: 5 };
        let whole = Progress { chosen: some, fetched: some, disk: some, ..Progress::default() };
        assert_eq!(verdict(&whole), Ok(()));
        for (progress, kind) in [
            (Progress { failed: some, late: some, ..whole.clone() }, ErrorKind::Source),
            (Progress { late: some, gone: some, ..whole.clone() }, ErrorKind::Timeout),
            (Progress { waiting: some, broken: true, ..whole.clone() }, ErrorKind::Mount),
            (Progress { broken: true, ..whole.clone() }, ErrorKind::Mount),
            (Progress { unfit: some, ..whole.clone() }, ErrorKind::Cache),
            (Progress { gone: some, ..whole.clone() }, ErrorKind::Cache),
        ] {
            let error = verdict(&progress).unwrap_err();
            assert_eq!(error.kind(), kind, "{progress:?}");
            assert!(error.to_string().contains("hint: "), "{error}");
        }
    }
}

//! `belady report`: why a training job is slow.

mod judged;
mod now;
mod page;
mod text;

use std::path::{Path, PathBuf};

use super::warmup::understood;
use super::whole_file::replace;
use super::{say, say_json, warn};
use crate::control::{self, Request};
use crate::engine::Profile;
use crate::error::{Error, ErrorKind, Result};
use crate::input::{self, Limits};
use crate::mount::absolute;
use crate::whatif::Change;
pub(super) use judged::Report;
pub(super) use now::LoaderNow;
pub(super) use text::text;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted; all mounts if left out
    mountpoint: Option<PathBuf>,
    /// Tell only of so many of the latest epochs of each loader
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: Option<u32>,
    /// Tell how long an epoch would take with this, as ram=50%,workers=8; may be given several times
    #[arg(long, value_name = "CHANGES")]
    what_if: Vec<String>,
    /// Tell of the mount that has ended last, or of the last one at MOUNTPOINT
    #[arg(long)]
    last: bool,
    /// Write it as a page for a browser into this file, with drawings
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON: an object for one mount, a list for all
    #[arg(long)]
    json: bool,
}

/// Asks the daemon of a mount for its report: of so many of the latest epochs of each trainer, or of all.
pub(super) fn ask(mountpoint: &Path, epochs: Option<u32>) -> Result<Report> {
    understood::<Profile>(control::ask(mountpoint, &Request::Report { epochs })?).map(Report::of)
}

pub(super) fn run(args: &Args) -> Result<()> {
    let changes = parsed(&args.what_if)?;
    let mountpoint = args.mountpoint.as_deref().map(absolute);
    let mut reports = match (&mountpoint, args.last) {
        (_, true) => {
            let mut profile = control::kept_profile(mountpoint.as_deref())?;
            profile.seen.keep_latest(args.epochs);
            vec![Report::of(profile)]
        }
        (Some(mountpoint), false) => vec![ask(mountpoint, args.epochs)?],
        (None, false) => all(args.epochs)?,
    };
    reports.iter_mut().for_each(|report| report.predict(&changes));
    if !args.json {
        if reports.is_empty() {
            say("nothing is mounted; `belady report --last` tells of the mount that ended last");
        }
        reports.iter().for_each(|report| say(text(report).trim_end()));
    } else if args.mountpoint.is_some() || args.last {
        reports.iter().for_each(say_json);
    } else {
        say_json(&reports);
    }
    args.html.as_deref().map_or(Ok(()), |path| write_page(path, &reports))
}

/// Writes a page for a browser. What is said of it goes to stderr, as the report itself goes to stdout.
pub(super) fn write_page(path: &Path, reports: &[Report]) -> Result<()> {
    let refuse = |error: std::io::Error| {
        Error::new(ErrorKind::Usage, format!("{}: {error}", path.display()))
            .hint("give a file that can be written with --html")
    };
    let page = page::page(reports);
    replace(path, refuse, |out| out.write_all(page.as_bytes()).map_err(refuse))?;
    warn(format!("belady: {} is written", path.display()));
    Ok(())
}

/// The changes of `--what-if`.
pub(super) fn parsed(what_if: &[String]) -> Result<Vec<Vec<Change>>> {
    what_if.iter().map(|text| Change::parse_all(text)).collect()
}

/// The reports of all mounts. A daemon that is dead has none.
fn all(epochs: Option<u32>) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for (directory, note) in control::all_mounts()? {
        let request = Request::Report { epochs };
        match control::call(&directory.socket(), &request).and_then(understood::<Profile>) {
            Ok(profile) => reports.push(Report::of(profile)),
            Err(error) => warn(format!("{}: {error}", note.mountpoint.display())),
        }
    }
    Ok(reports)
}

/// Simulates what a written report tells of.
pub(super) fn repeat(path: &Path, what_if: &[String], json: bool) -> Result<()> {
    let changes = parsed(what_if)?;
    let refuse = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Usage, format!("{}: {error}", path.display()))
            .hint("give the JSON of `belady report` or of `belady run --report`")
    };
    let written = input::read(path, &Limits::REPORT)?;
    let one = |written: &[u8]| serde_json::from_slice(written).map(|report| vec![report]);
    let mut reports: Vec<Report> = serde_json::from_slice(&written)
        .or_else(|_| one(&written))
        .map_err(|error| refuse(&error))?;
    reports.iter_mut().for_each(|report| report.predict(&changes));
    if json {
        say_json(&reports);
    } else {
        reports.iter().for_each(|report| say(text(report).trim_end()));
    }
    Ok(())
}

//! `belady order record`: writes what a loader read as an order file for the next job.

use std::path::PathBuf;

use serde_json::Value;

use super::output::Target;
use super::{say, say_json};
use crate::cli::warmup::understood;
use crate::control::{Request, ask_for_text};
use crate::engine::{RecordSummary, RecordedEpoch};
use crate::error::Result;
use crate::mount::absolute;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// The loader's number, as in `belady order status`
    #[arg(long, value_name = "N")]
    loader: Option<u32>,
    /// The process that the loader reads for
    #[arg(long, value_name = "PID", conflicts_with = "loader")]
    process: Option<u64>,
    /// How many epochs, the latest; all that are remembered if left out
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: Option<u32>,
    #[command(flatten)]
    target: Target,
    /// Print JSON: what the file has
    #[arg(long, requires = "output")]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let Args { loader, process, epochs, .. } = *args;
    let request = Request::Record { loader, process, epochs };
    let at = absolute(&args.mountpoint);
    let summary = args.target.fill(|out| ask_for_text(&at, &request, out))?;
    let Some(file) = args.target.file() else { return Ok(()) };
    if args.json {
        let mut summary = summary;
        summary["file"] = Value::from(file.to_string_lossy());
        say_json(&summary);
        return Ok(());
    }
    let RecordSummary { program, process, epochs, .. } = understood(summary)?;
    say(format!("wrote {}: as read by {program} (pid {process})", file.display()));
    for RecordedEpoch { epoch, samples, learnt, whole } in epochs {
        let how = match (learnt, whole) {
            (true, _) => "order learnt",
            (false, true) => "in order of first opens",
            (false, false) => "as far as it was read",
        };
        say(format!("  epoch {epoch}: {samples} samples, {how}"));
    }
    Ok(())
}

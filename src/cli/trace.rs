//! `belady trace`: what happens at a mount, for a viewer such as Perfetto.

use std::path::PathBuf;

use serde_json::Value;

use super::whole_file::replace;
use super::{mount_point_of, say, warn};
use crate::control::{Request, ask_for_text};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted; may be left out if there is one mount
    mountpoint: Option<PathBuf>,
    /// How long to trace
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The file to write, for ui.perfetto.dev or chrome://tracing
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mountpoint = mount_point_of(args.mountpoint.as_deref())?;
    let path = &args.output;
    let refuse = |error: std::io::Error| {
        Error::new(ErrorKind::Usage, format!("{}: {error}", path.display()))
            .hint("give a file that can be written with --output")
    };
    // What cannot be written is told before somebody waits.
    let summary = replace(path, refuse, |out| {
        warn(format!("belady: tracing {} for {} s", mountpoint.display(), args.seconds));
        ask_for_text(&mountpoint, &Request::Trace { seconds: args.seconds }, out)
    })?;
    let count = |name: &str| summary.get(name).and_then(Value::as_u64).unwrap_or_default();
    say(format!(
        "wrote {}: {} reads of the source, {} reads of the cache disk, {} pushes, {} waits, {} opens, {} looks",
        path.display(),
        count("reads"),
        count("disk_reads"),
        count("pushes"),
        count("waits"),
        count("opens"),
        count("looks"),
    ));
    if count("left_out") > 0 {
        warn(format!("belady: {} more are left out; trace for a shorter time", count("left_out")));
    }
    if summary.get("was_ended").and_then(Value::as_bool) == Some(true) {
        warn("belady: it is shorter than wanted: another trace has begun, or the mount has ended");
    }
    Ok(())
}

//! `belady doctor`.

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::settings::{Shown, source_settings};
use super::{apart, say, say_json};
use crate::doctor::{Row, Verdict, judge, missing};
use crate::error::{Error, Result};
use crate::mount::{MEASURED_BYTES, absolute, examine};
use crate::source::Location;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A source to look at; it is only read
    #[arg(long, value_name = "DIR|URL")]
    source: Option<PathBuf>,
    #[command(flatten)]
    shown: Shown,
    /// A cache directory to look at; what is written there is deleted
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Look at what a node of a cluster needs, too; two servers run for a few seconds
    #[arg(long)]
    cluster: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    match (&args.source, &args.cache_dir) {
        (Some(source), Some(cache)) => apart::run_with(source, cache, || examine_and_say(args)),
        (None, Some(cache)) => apart::run(cache, || examine_and_say(args)),
        (_, None) => examine_and_say(args),
    }
}

fn examine_and_say(args: &Args) -> Result<()> {
    let cache = args.cache_dir.as_deref().map(absolute);
    let measurements = u64::from(args.source.is_some()) + 2 * u64::from(cache.is_some());
    let style = ProgressStyle::with_template("measuring {bar} {bytes} of {total_bytes}");
    let bar = ProgressBar::new(measurements * MEASURED_BYTES)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let findings = {
        let source =
            args.source.as_deref().map(|source| Location::parse(source, &source_settings()));
        let moved = |bytes| bar.inc(bytes);
        examine(source, args.shown.view, cache.as_deref(), args.cluster, &moved)
    };
    bar.finish_and_clear();
    let rows = judge(&findings);
    let lacking = missing(&rows);
    if args.json {
        say_json(&json!({ "usable": lacking.is_none(), "checks": rows }));
    } else {
        say(table(&rows).trim_end());
    }
    let Some(kind) = lacking else { return Ok(()) };
    let names = rows.iter().filter(|row| row.result == Verdict::Missing).map(|row| row.check);
    let names = names.collect::<Vec<_>>().join(", ");
    Err(Error::new(kind, format!("cannot mount and run here: {names}")))
}

/// A line for each row, and below it a line with the fix, if there is one.
fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.check.len()).max().unwrap_or_default();
    let mut out = String::new();
    for row in rows {
        let result = match row.result {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Missing => "MISSING",
        };
        out += &format!("{:width$}  {result:7}  {}\n", row.check, row.found);
        if let Some(fix) = &row.fix {
            out += &format!("{:width$}           fix: {fix}\n", "");
        }
    }
    out
}

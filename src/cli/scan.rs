//! Waits until a mount knows all of its source.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::warmup::ask;
use crate::control::Request;
use crate::engine::ScanProgress;
use crate::error::{Error, ErrorKind, Result};

/// Waits until the mount knows all files of its source, or until the `deadline`. Shows a spinner.
///
/// # Errors
/// The source's error, and `Timeout` after the deadline.
pub(super) fn await_scan(mountpoint: &Path, deadline: Option<Duration>) -> Result<()> {
    let (begun, bar) = (Instant::now(), ProgressBar::new_spinner());
    let style =
        ProgressStyle::with_template("{spinner} {pos} names found, and the source is scanned");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    loop {
        let ScanProgress { names, whole } = ask(mountpoint, &Request::Scanned)?;
        if whole {
            bar.finish_and_clear();
            return Ok(());
        }
        if deadline.is_some_and(|deadline| begun.elapsed() >= deadline) {
            let message = format!("the source is still being scanned: {names} names so far");
            return Err(Error::new(ErrorKind::Timeout, message)
                .hint("`belady status` says when all is known; give it a longer --deadline"));
        }
        bar.set_position(names);
    }
}

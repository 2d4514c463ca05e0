//! The hidden verb by which a daemon starts its watcher.

use super::warn;
use crate::error::Result;
use crate::mount::watch;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The daemon's process
    pid: u32,
}

pub(super) fn run(args: &Args) -> Result<()> {
    // The output goes to the log of the daemon.
    watch(args.pid, warn)
}

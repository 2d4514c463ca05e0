//! The hidden verb by which a daemon starts its watcher.

use crate::error::Result;
use crate::mount::watch;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The daemon's process
    pid: u32,
}

pub(super) fn run(args: &Args) -> Result<()> {
    watch(args.pid)
}

//! The hidden verb by which a daemon starts a runner of commands.

use std::time::Duration;

use crate::derive::Limits;
use crate::error::Result;
use crate::sandbox::serve;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What is given to a shell
    command: String,
    /// How long it may take, in milliseconds
    time: u64,
    /// The bytes of memory of each of its processes
    memory: u64,
    /// The bytes that it may write
    output: u64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let time = Duration::from_millis(args.time);
    serve(&args.command, Limits { time, memory: args.memory, output: args.output })
}

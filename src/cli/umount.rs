//! `belady umount`.

use std::path::PathBuf;

use crate::control::{self, MountDirectory, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{absolute, cut_off, is_dead, unmount};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Take it away from under programs that use it, and clear a dead mount
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mountpoint = absolute(&args.mountpoint);
    let directory = MountDirectory::of(&mountpoint);
    let socket = directory.socket();
    if socket.exists() {
        let request = Request::Unmount { mountpoint: mountpoint.clone(), force: args.force };
        let answer = control::call(&socket, &request);
        if answer.is_err() {
            cut_off(&mountpoint);
        }
        match answer {
            Ok(_) => return Ok(()),
            Err(error) if !args.force && !is_dead(&mountpoint) => return Err(error),
            Err(_) => {}
        }
    } else if !args.force && !is_dead(&mountpoint) {
        let message = format!("nothing of belady is mounted at {}", mountpoint.display());
        return Err(Error::new(ErrorKind::Mount, message)
            .hint("`belady status` lists what is; --force clears a mount that has no daemon"));
    }
    unmount(&mountpoint, true)?;
    directory.clear();
    Ok(())
}

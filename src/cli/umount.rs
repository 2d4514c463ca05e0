//! `belady umount`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::control::{self, MountDirectory, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{absolute, cut_off, is_dead, is_noted, take_away};

/// A slow disk makes an end take longer than this, and who waits is told so.
const SAY_AFTER: Duration = Duration::from_secs(2);

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
    control::has_runtime()?;
    let directory = MountDirectory::of(&mountpoint);
    let socket = directory.socket();
    // The daemon clears its note when it ends.
    let noted = directory.running();
    if socket.exists() {
        let request = Request::Unmount { mountpoint: mountpoint.clone(), force: args.force };
        let answer = while_told(|| control::call(&socket, &request));
        if answer.is_err() {
            cut_off(&mountpoint);
        }
        let is_left = || noted.is_none() || is_noted(&mountpoint, noted.as_ref());
        match answer {
            Ok(_) => return Ok(()),
            Err(error) if !args.force && is_left() && !is_dead(&mountpoint) => return Err(error),
            Err(_) => {}
        }
    } else if !args.force && !is_dead(&mountpoint) {
        let message = format!("nothing of belady is mounted at {}", mountpoint.display());
        return Err(Error::new(ErrorKind::Mount, message)
            .hint("`belady status` lists what is; --force clears a mount that has no daemon"));
    }
    take_away(&mountpoint, noted.as_ref())?;
    directory.clear();
    Ok(())
}

/// Does what may take its time, and says then why it does.
fn while_told<T>(work: impl FnOnce() -> T) -> T {
    let (working, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Where no thread can be had, nothing is said.
        let _ = thread::Builder::new().spawn_scoped(scope, move || {
            if over.recv_timeout(SAY_AFTER) == Err(RecvTimeoutError::Timeout) {
                // Nobody may be there to read it.
                let _ = writeln!(
                    io::stderr(),
                    "belady: waiting for the daemon, which may be storing what was read last"
                );
            }
        });
        let done = work();
        drop(working);
        done
    })
}

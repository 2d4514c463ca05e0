//! `belady umount`.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::warn;
use crate::control::{self, MountDirectory, MountNote, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::mount::{absolute, cut_off_by_force, cut_off_killed, is_dead, is_noted, take_away};
use crate::peers::end_left;
use crate::process::{is_stopped, wait_until_gone};

/// After this time the user is told why it takes long: the daemon may be writing to a slow disk.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// How long the end of the daemon's process is waited for.
const DAEMON_END_WAIT: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Unmount it even while programs use it, and clear a dead mount
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mountpoint = absolute(&args.mountpoint);
    control::has_runtime()?;
    let directory = MountDirectory::of(&mountpoint);
    // The daemon clears its note when it ends, so the note is read first.
    let noted = directory.read_note();
    let noted = noted.as_ref();
    // Before any request: a killed daemon answers nothing.
    let killed = cut_off_killed(&mountpoint, noted);
    if !killed && directory.socket().exists() {
        let request = Request::Unmount { mountpoint: mountpoint.clone(), force: args.force };
        match explaining_if_slow(|| control::call(&directory.socket(), &request)) {
            Ok(ends) => {
                wait_for_daemon(noted.filter(|_| ends == true));
                return Ok(());
            }
            Err(error) => {
                let is_left = noted.is_none() || is_noted(&mountpoint, noted);
                // A check whether the mount is dead may wait for a daemon that does not answer.
                let lives = || error.kind() == ErrorKind::Timeout || !is_dead(&mountpoint, noted);
                if !args.force && is_left && lives() {
                    return Err(error);
                }
            }
        }
    } else if !killed && !args.force && !is_dead(&mountpoint, noted) {
        let message = format!("nothing of belady is mounted at {}", mountpoint.display());
        return Err(Error::new(ErrorKind::Mount, message)
            .hint("`belady status` lists what is; --force clears a mount that has no daemon"));
    }
    if args.force {
        cut_off_by_force(&mountpoint, noted);
    }
    take_away(&mountpoint, noted, args.force)?;
    directory.clear();
    end_left(&directory.shard());
    if let Some(MountNote { pid, source, .. }) = noted.filter(|noted| is_stopped(noted.pid)) {
        let source = source.display();
        warn(format!(
            "belady: it is unmounted, but process {pid} was stopped, and has {source} open until \
             `kill -CONT {pid}`"
        ));
    }
    Ok(())
}

/// Waits until the daemon has closed the source, which the user may want to unmount next.
fn wait_for_daemon(daemon: Option<&MountNote>) {
    let Some(MountNote { pid, source, .. }) = daemon else { return };
    if !explaining_if_slow(|| wait_until_gone(*pid, DAEMON_END_WAIT)) {
        let source = source.display();
        warn(format!(
            "belady: it is unmounted, but process {pid} still waits for {source} or the cache disk; \
             {source} cannot be unmounted before that ends"
        ));
    }
}

/// Does work that may take long, and says why if it does.
fn explaining_if_slow<T>(work: impl FnOnce() -> T) -> T {
    let (working, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // If no thread can be started, nothing is said.
        let _ = thread::Builder::new().spawn_scoped(scope, move || {
            if over.recv_timeout(SAY_AFTER) == Err(RecvTimeoutError::Timeout) {
                warn("belady: waiting for the daemon, which may be storing what was read last");
            }
        });
        let done = work();
        drop(working);
        done
    })
}

//! The life of `belady run`: a command, and the daemons whose mounts it uses.
//!
//! 1. The run enters a mount namespace of its own, if it may (`mount/namespace`), and mounts there. Only the command and its
//!    children see these mounts, so they may cover the dataset's own path.
//! 2. The daemons and the command are children of the run, and get `SIGTERM` when it is killed ([`tie`]). A daemon unmounts
//!    then.
//! 3. [`supervise`] passes signals on to the command, and waits for its end. If a daemon dies meanwhile, its mount is taken
//!    away: at the dataset's own path the command goes on without belady.
//! 4. Then the daemons are ended, which unmounts everything ([`end`]).

mod signals;

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus, set_parent_process_death_signal, wait};

use crate::control::MountDirectory;
use crate::error::{Error, ErrorKind, Result};
use crate::mount::take_away;
use crate::privileges::let_next_program_mount;
pub use signals::{Signals, hear_of_children};

/// The exit code of a shell for a command that cannot be run.
const CANNOT_RUN: i32 = 126;

/// The exit code of a shell for a command that is not found.
const NOT_FOUND: i32 = 127;

/// Lines of a log that are shown.
const LOG_LINES: usize = 20;

/// Who serves a mount of the run.
pub enum Daemon {
    Own(Child),
    /// The daemon of an earlier mount.
    Shared,
    Ended,
}

/// A mount of the run.
pub struct Mounted {
    pub mountpoint: PathBuf,
    pub daemon: Daemon,
    /// The log of the daemon.
    pub log: PathBuf,
}

impl Mounted {
    fn is_served_by(&self, pid: Pid) -> bool {
        matches!(&self.daemon, Daemon::Own(daemon) if daemon.id() as i32 == pid.as_raw())
    }

    pub fn is_own(&self) -> bool {
        matches!(self.daemon, Daemon::Own(_))
    }

    pub fn is_shared(&self) -> bool {
        matches!(self.daemon, Daemon::Shared)
    }
}

/// Has a program end when this process is killed. `mounts`: whether it needs the right to mount that this process has.
pub fn tie(command: &mut Command, mounts: bool) {
    let run = std::process::id();
    let prepare = move || {
        set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        if parent_id() != run {
            return Err(std::io::Error::other("the run was killed"));
        }
        if mounts { let_next_program_mount() } else { Ok(()) }
    };
    // SAFETY: it makes system calls, and takes no lock. This process has one thread, so memory can be had, too.
    unsafe { command.pre_exec(prepare) };
}

/// Starts the command of a run. Signals are as a shell would have left them.
///
/// # Errors
/// The exit code, and why it cannot be started.
pub fn start(words: &[OsString], signals: &Signals) -> std::result::Result<Child, (i32, String)> {
    let Some((program, arguments)) = words.split_first() else {
        return Err((NOT_FOUND, "there is no command".to_owned()));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let blocked = signals.before();
    let restore = move || {
        blocked.thread_set_mask()?;
        // SAFETY: it sets no handler.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) }?;
        Ok(())
    };
    // SAFETY: it makes system calls only.
    unsafe { command.pre_exec(restore) };
    tie(&mut command, false);
    command.spawn().map_err(|error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let code = if missing { NOT_FOUND } else { CANNOT_RUN };
        (code, format!("{}: {error}", program.display()))
    })
}

/// Waits for the end of the command and passes signals on to it. Returns its exit code as a shell has it: 128 and the
/// number of the signal that ended it. `warn` is told of daemons that die.
///
/// # Errors
/// If signals cannot be read, or if the exit code of the command is not known.
pub fn supervise(
    command: &Child,
    mounted: &mut [Mounted],
    signals: &Signals,
    warn: impl Fn(String),
) -> Result<i32> {
    let command = Pid::from_raw(command.id() as i32);
    loop {
        // A child may have ended before the signals were held back.
        while let Some((pid, status)) = next_ended()? {
            if pid == command {
                let signalled = || status.terminating_signal().map(|signal| 128 + signal);
                return Ok(status.exit_status().or_else(signalled).unwrap_or(1));
            }
            if let Some(ended) = mounted.iter_mut().find(|mounted| mounted.is_served_by(pid)) {
                ended.daemon = Daemon::Ended;
                // The command may have unmounted it.
                if status.exit_status() != Some(0) {
                    give_up(mounted, pid, &warn);
                }
            }
        }
        if let Some(signal) = signals.next(command)? {
            // It may have ended.
            let _ = kill(command, signal);
        }
    }
}

/// A child that has ended since the last call. `None` if all children run.
///
/// # Errors
/// If there are no children. Then the command has ended, and its exit code is not known.
fn next_ended() -> Result<Option<(Pid, WaitStatus)>> {
    match wait(WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended.map(|(pid, status)| (Pid::from_raw(pid.as_raw_pid()), status))),
        Err(rustix::io::Errno::INTR) => next_ended(),
        Err(error) => {
            Err(Error::new(ErrorKind::Internal, format!("the end of the command: {error}")))
        }
    }
}

/// Takes the mounts of a dead daemon away, so that what they cover can be read.
fn give_up(mounted: &[Mounted], pid: Pid, warn: &impl Fn(String)) {
    let is_dead = |mounted: &&Mounted| {
        let noted = MountDirectory::of(&mounted.mountpoint).read_note();
        noted.is_some_and(|noted| noted.pid as i32 == pid.as_raw())
    };
    for Mounted { mountpoint, log, .. } in mounted.iter().filter(is_dead) {
        let at = mountpoint.display();
        let outcome = match take_away(mountpoint, None, true) {
            Ok(()) => "the command goes on without it".to_owned(),
            Err(error) => error.to_string(),
        };
        MountDirectory::of(mountpoint).clear();
        warn(format!("the daemon of {at} has died; {outcome}{}", last_lines(log)));
    }
}

/// How a log ends, for people: the log is removed with the run.
pub fn last_lines(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
    if last.is_empty() { String::new() } else { format!(". Its log ends:\n  {last}") }
}

/// Ends the daemons of a run, and waits until they have stored what they have. Their mounts are gone then.
pub fn end(mounted: &mut [Mounted]) {
    let daemons: Vec<&mut Child> = mounted
        .iter_mut()
        .filter_map(|mounted| match &mut mounted.daemon {
            Daemon::Own(daemon) => Some(daemon),
            Daemon::Shared | Daemon::Ended => None,
        })
        .collect();
    for daemon in &daemons {
        let _ = kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM);
    }
    for daemon in daemons {
        let _ = daemon.wait();
    }
}

/// The error of a run whose signals cannot be handled.
fn unusable(what: &str, errno: Errno) -> Error {
    Error::new(ErrorKind::Internal, format!("{what}: {}", errno.desc()))
}

//! The signals that a run passes on to its command.
//!
//! The terminal sends its signals to all of a process group. If the command is still in the group of the run, it has such
//! a signal already. All other signals are passed on. A signal that a process sends to the whole group, or to all processes
//! of a job, reaches the command twice. `SIGTSTP` is left to the kernel: the run stops with its command, and a shell sees
//! that.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpgid, getpgrp};

use super::unusable;
use crate::error::Result;

/// The signals that are passed on.
const PASSED: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
];

/// Signals that wait for this process instead of ending it.
pub struct Signals {
    held: SignalFd,
    /// The signals that were blocked before.
    before: SigSet,
}

/// Lets this process hear of the end of its children, though its parent may have ignored the end of its own.
///
/// # Errors
/// If that is not possible.
pub fn hear_of_children() -> Result<()> {
    // SAFETY: there is no handler.
    let heard = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    heard.map(drop).map_err(|errno| unusable("signals", errno))
}

impl Signals {
    /// Begins to hold the signals back. To be called while there is one thread.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn hold() -> Result<Self> {
        let set: SigSet = PASSED.into_iter().chain([Signal::SIGCHLD]).collect();
        let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let before = before.map_err(|errno| unusable("signals", errno))?;
        let held = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC);
        let held = held.map_err(|errno| unusable("signals", errno))?;
        Ok(Signals { held, before })
    }

    /// Lets signals end this process again. Those that have come are for the command, and are dropped.
    pub fn release(self) {
        let flags = fcntl(&self.held, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        while flags.is_ok() && matches!(self.held.read_signal(), Ok(Some(_))) {}
        let _ = self.before.thread_set_mask();
    }

    /// The signals that a child is to block, as this process did before.
    pub(super) fn before(&self) -> SigSet {
        self.before
    }

    /// Waits for a signal. Gives it if it is to be passed on to the command. `None`: a child may have ended.
    ///
    /// # Errors
    /// If signals cannot be read.
    pub(super) fn next(&self, command: Pid) -> Result<Option<Signal>> {
        let read = self.held.read_signal().map_err(|errno| unusable("signals", errno))?;
        let has_it = || getpgid(Some(command)).is_ok_and(|group| group == getpgrp());
        let passed = read.filter(|read| read.ssi_code != libc::SI_KERNEL || !has_it());
        let signal = passed.and_then(|read| Signal::try_from(read.ssi_signo as i32).ok());
        Ok(signal.filter(|signal| PASSED.contains(signal)))
    }
}

//! The signals that a run passes on to its command.
//!
//! What the terminal sends goes to all of a job, so the command has it already. Only signals of processes are passed on.
//! `SIGTSTP` is left to the kernel: the run stops with its command, and a shell sees that.

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

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

    /// The signals that a child is to block, as this process did before.
    pub(super) fn before(&self) -> SigSet {
        self.before
    }

    /// Waits for a signal. Gives it if it is to be passed on. `None`: a child may have ended.
    ///
    /// # Errors
    /// If signals cannot be read.
    pub(super) fn next(&self) -> Result<Option<Signal>> {
        let read = self.held.read_signal().map_err(|errno| unusable("signals", errno))?;
        let passed = read.filter(|read| read.ssi_code != libc::SI_KERNEL);
        let signal = passed.and_then(|read| Signal::try_from(read.ssi_signo as i32).ok());
        Ok(signal.filter(|signal| PASSED.contains(signal)))
    }
}

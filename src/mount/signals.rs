//! The signals that end a mount.
//!
//! The kernel may have any thread take a signal, also one of those that use our own mount, whose
//! descriptors are not the daemon's. So the handler writes to no descriptor. It sets a flag and wakes
//! the one thread that waits for it, which works from every thread.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::thread::futex;

use crate::error::{Error, ErrorKind, Result};

/// Whether a signal has come. It stays so: the process ends.
static CAME: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(_signal: c_int) {
    CAME.store(1, Ordering::Release);
    // It fails for no address of our own.
    let _ = futex::wake(&CAME, futex::Flags::PRIVATE, 1);
}

/// Has SIGTERM, SIGINT and SIGHUP end the mount instead of the process: `end` is called at the first
/// one, on a thread of its own.
///
/// # Errors
/// Where there can be no thread.
pub(super) fn listen(end: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |what| Error::new(ErrorKind::Internal, format!("signals: {what}"));
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    // A parent that blocks them has this process begin with them blocked.
    let unblocked = ends.into_iter().collect::<SigSet>().thread_unblock();
    unblocked.map_err(|errno| failed(errno.desc().to_owned()))?;
    for signal in ends {
        // SAFETY: the handler stores to an atomic and makes one system call, which is allowed in a
        // handler, and leaves errno as it was: rustix does not use it.
        unsafe { sigaction(signal, &action) }.map_err(|errno| failed(errno.desc().to_owned()))?;
    }
    let waits = move || {
        while CAME.load(Ordering::Acquire) == 0 {
            // It returns early if a signal came in between, and at times for no reason.
            let _ = futex::wait(&CAME, futex::Flags::PRIVATE, 0, None);
        }
        end();
    };
    let spawned = thread::Builder::new().name("belady-signals".into()).spawn(waits);
    spawned.map_err(|error| failed(error.to_string()))?;
    Ok(())
}

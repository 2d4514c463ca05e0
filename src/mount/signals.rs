//! The signals that end a mount.
//!
//! The kernel may deliver a signal to any thread, even to one that uses our own mount and has other
//! descriptors than the daemon. So the handler uses no descriptor. It sets a flag and wakes the thread that
//! waits for it, which works on every thread.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::thread::futex;

use crate::error::{Error, ErrorKind, Result};

/// Whether a signal has come. It is never reset.
static SIGNALLED: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_signal: c_int) {
    SIGNALLED.store(1, Ordering::Release);
    // It does not fail for an address of our own.
    let _ = futex::wake(&SIGNALLED, futex::Flags::PRIVATE, 1);
}

/// Has SIGTERM, SIGINT and SIGHUP end the mount and not the process. At the first one, `end` is called on a
/// thread of its own.
///
/// # Errors
/// If no thread can be started.
pub(super) fn listen(end: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |what| Error::new(ErrorKind::Internal, format!("signals: {what}"));
    let action =
        SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty());
    let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    // They are blocked if the parent process blocked them.
    let unblocked = ends.into_iter().collect::<SigSet>().thread_unblock();
    unblocked.map_err(|errno| failed(errno.desc().to_owned()))?;
    for signal in ends {
        // SAFETY: the handler stores to an atomic and makes one system call, which is allowed in a handler.
        // It leaves errno as it was, because rustix does not use it.
        unsafe { sigaction(signal, &action) }.map_err(|errno| failed(errno.desc().to_owned()))?;
    }
    let wait = move || {
        while SIGNALLED.load(Ordering::Acquire) == 0 {
            // It may return early, after a signal or for no reason.
            let _ = futex::wait(&SIGNALLED, futex::Flags::PRIVATE, 0, None);
        }
        end();
    };
    let spawned = thread::Builder::new().name("belady-signals".into()).spawn(wait);
    spawned.map_err(|error| failed(error.to_string()))?;
    Ok(())
}

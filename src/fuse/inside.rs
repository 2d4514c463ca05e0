//! Threads that use our own mount.
//!
//! A thread that waits for an answer of its own daemon cannot be killed: it goes on waiting until
//! the answer comes or the device is closed, and a killed daemon's device is closed when no thread
//! has it any more. So these threads have descriptors of their own, and none of a device: once the
//! others have ended the kernel ends the connection, what is waited for here, and what readers wait
//! for.

use std::fs;
use std::os::fd::RawFd;
use std::sync::mpsc;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::close;

use super::own::OwnThreads;
use crate::source::{Pool, Urgency};

/// What is done inside the mount at once.
const THREADS: usize = 4;

pub(super) struct Inside(Pool);

impl Inside {
    pub(super) fn new() -> Self {
        Inside(Pool::starting("belady-inside", THREADS, 0, leave_devices))
    }

    /// Does what uses the mount, and waits for it; none where it panicked.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.0.submit(Urgency::Prefetch, move || {
            let _own = OwnThreads::enter();
            let _ = sender.send(work());
        });
        receiver.recv().ok()
    }
}

/// Gives the thread a table of descriptors of its own, without those of FUSE devices.
fn leave_devices() {
    if let Err(errno) = unshare(CloneFlags::CLONE_FILES) {
        tracing::debug!(%errno, "a thread shares its descriptors");
        return;
    }
    let Ok(descriptors) = fs::read_dir("/proc/thread-self/fd") else { return };
    let devices: Vec<RawFd> = descriptors
        .filter_map(Result::ok)
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to.ends_with("dev/fuse")))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for device in devices {
        // In the table of this thread only: nobody else's descriptor goes.
        let _ = close(device);
    }
}

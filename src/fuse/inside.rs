//! Threads that use our own mount.
//!
//! A thread that waits for an answer of its own daemon cannot be killed: it goes on waiting until
//! the answer comes or the device is closed, and a killed daemon's device is closed when no thread
//! has it any more. So these threads have descriptors of their own, and none of a device: once the
//! others have ended the kernel ends the connection, what is waited for here, and what readers wait
//! for.

use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::close;

use super::own::OwnThreads;
use crate::source::{Pool, Urgency};

/// What nobody waits for is done on so many threads at once, and what somebody does on as many.
const THREADS: usize = 2;

/// How long an unmount waits for our own threads to leave the mount.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The mount, used by ourselves.
pub(super) struct Inside {
    pool: Pool,
    way: Arc<Way>,
}

struct Way {
    mountpoint: PathBuf,
    /// Held for reading while our own mount is used, for writing while it is unmounted: else it
    /// would be we ourselves who keep it busy.
    gate: RwLock<()>,
}

impl Way {
    /// Enters the mount, unless it is being unmounted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        match self.gate.try_read() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno::EBUSY),
        }
    }
}

impl Inside {
    pub(super) fn new(mountpoint: PathBuf) -> Self {
        let here = mountpoint.clone();
        let leave = move || leave_devices(&here);
        let pool = Pool::starting("belady-inside", THREADS, THREADS, leave);
        Inside { pool, way: Arc::new(Way { mountpoint, gate: RwLock::new(()) }) }
    }

    /// Enters the mount, unless it is being unmounted.
    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        self.way.enter()
    }

    /// Keeps our own threads out of the mount as long as the guard lives; none where one of them
    /// is held up inside by the kernel.
    pub(super) fn keep_out(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let patience = Instant::now() + LEAVE_WITHIN;
        loop {
            match self.way.gate.try_write() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > patience => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Has something done that uses the mount point: what somebody waits for goes first. It gets
    /// `EBUSY` while the mount is being unmounted.
    pub(super) fn submit(
        &self,
        urgency: Urgency,
        work: impl FnOnce(Result<&Path, Errno>) + Send + 'static,
    ) {
        let way = Arc::clone(&self.way);
        self.pool.submit(urgency, move || {
            let _own = OwnThreads::enter();
            let entered = way.enter();
            work(entered.as_ref().map(|_| way.mountpoint.as_path()).map_err(|errno| *errno));
        });
    }

    /// Does something that uses the mount point, and waits for it: `EIO` where it panicked.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.submit(Urgency::Demand, move |entered| {
            let _ = sender.send(entered.and_then(work));
        });
        receiver.recv().unwrap_or(Err(Errno::EIO))
    }
}

/// Gives the thread a table of descriptors of its own, without those of FUSE devices, and without
/// what another thread has open in the mount at this moment: that would be in use for good.
fn leave_devices(mountpoint: &Path) {
    if let Err(errno) = unshare(CloneFlags::CLONE_FILES) {
        tracing::debug!(%errno, "a thread shares its descriptors");
        return;
    }
    let Ok(descriptors) = fs::read_dir("/proc/thread-self/fd") else { return };
    let to_leave = |to: &Path| to.ends_with("dev/fuse") || to.starts_with(mountpoint);
    let left: Vec<RawFd> = descriptors
        .filter_map(Result::ok)
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to_leave(&to)))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for descriptor in left {
        // In the table of this thread only: nobody else's descriptor goes.
        let _ = close(descriptor);
    }
}

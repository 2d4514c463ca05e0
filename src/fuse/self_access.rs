//! Uses our own mount, from threads that let a killed daemon end.
//!
//! A thread that waits for an answer of its own daemon cannot be killed. It waits until the answer comes or
//! the device is closed. The device of a killed daemon is closed when none of its threads has the device
//! open any more. So these threads have a descriptor table of their own, without any device. When all other
//! threads have ended, the kernel ends the connection, and with it the waits of these threads and of
//! readers. No descriptor is copied into the table. A copy of what another thread has open at that moment
//! would stay open for good: a file in the mount, or a pipe whose end a process waits for.
//!
//! A read of pages may wait for pages that a reader's own request has locked, and so for the source. Such
//! reads have threads of their own, so that no fetch waits for them.
//!
//! The kernel may hold a thread up as long as the source hangs: our lookup waits for a reader's lookup in
//! the same directory. Further work in that directory is then refused.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;

use super::daemon_threads::DaemonThreads;
use crate::source::{KeyedPool, Urgency};
use crate::sync::is_holding;

/// The number of prefetching jobs at once, and of further jobs for which a thread waits.
const THREADS: usize = 2;

const READERS: usize = 4;

/// How long a job may take before it counts as held up. Work here takes microseconds. Pages may be locked
/// for as long as the source takes.
const PATIENCE: Duration = Duration::from_secs(2);
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// How long a caller waits for a job, before which other jobs may be held up.
const WAIT: Duration = Duration::from_secs(15);

pub(super) type AccessBlock<'a> = RwLockWriteGuard<'a, ()>;

/// Threads of which one directory gets only a few.
type Threads = KeyedPool<PathBuf>;

pub(super) struct SelfAccess {
    threads: Threads,
    /// Started at the first read.
    readers: OnceLock<Threads>,
    gate: Arc<Gate>,
}

/// The mount, and whether our threads may use it.
struct Gate {
    mountpoint: PathBuf,
    /// Held for reading while we use our own mount, and for writing while it is unmounted: otherwise we
    /// would keep it busy ourselves. No thread ever waits for it. So it does not count as a lock that may
    /// not be held while the kernel is notified.
    lock: RwLock<()>,
    /// Whether the mount is to be unmounted. Then no further thread enters.
    closing: AtomicBool,
}

impl Gate {
    /// Enters the mount. Fails with `EBUSY` while it is being unmounted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(Errno::EBUSY);
        }
        match self.lock.try_read() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno::EBUSY),
        }
    }

    fn try_submit(
        self: &Arc<Self>,
        threads: &Threads,
        urgency: Urgency,
        path: &Path,
        work: impl FnOnce(Result<&Path, Errno>) + Send + 'static,
    ) {
        let (gate, at) = (Arc::clone(self), self.mountpoint.join(path));
        threads.try_submit(urgency, directory_of(path), move |admitted| {
            let _marked = DaemonThreads::mark_current();
            let entered = admitted.and_then(|()| gate.enter());
            work(entered.as_ref().map(|_| at.as_path()).map_err(|errno| *errno));
        });
    }

    fn run<T: Send + 'static>(
        self: &Arc<Self>,
        threads: &Threads,
        path: &Path,
        work: impl FnOnce(&Path) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        debug_assert!(!is_holding(), "our own mount is waited for under a lock");
        let (sender, receiver) = mpsc::sync_channel(1);
        self.try_submit(threads, Urgency::Demand, path, move |entered| {
            let _ = sender.send(entered.and_then(work));
        });
        receiver.recv_timeout(WAIT).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(Errno::ETIMEDOUT),
            RecvTimeoutError::Disconnected => Err(Errno::EIO),
        })
    }
}

impl SelfAccess {
    pub(super) fn new(mountpoint: PathBuf) -> Self {
        let threads =
            KeyedPool::new("belady-inside", PATIENCE, THREADS, THREADS, leave_descriptors);
        let gate =
            Arc::new(Gate { mountpoint, lock: RwLock::new(()), closing: AtomicBool::new(false) });
        SelfAccess { threads, readers: OnceLock::new(), gate }
    }

    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        self.gate.enter()
    }

    /// Blocks our own threads from the mount as long as the guard lives. Returns none if the kernel holds one of
    /// them up inside for longer than `patience`.
    pub(super) fn block(&self, patience: Duration) -> Option<AccessBlock<'_>> {
        let start = Instant::now();
        self.gate.closing.store(true, Ordering::Relaxed);
        let guard = loop {
            match self.gate.lock.try_write() {
                Ok(guard) => break Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() > patience => break None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        self.gate.closing.store(false, Ordering::Relaxed);
        guard
    }

    /// Queues work on a path in the mount. Jobs with `Urgency::Demand` go first. The work gets `EBUSY`
    /// while the mount is being unmounted, and `ETIMEDOUT` if jobs in the same directory are held up.
    pub(super) fn submit(
        &self,
        urgency: Urgency,
        path: &Path,
        work: impl FnOnce(Result<&Path, Errno>) + Send + 'static,
    ) {
        self.gate.try_submit(&self.threads, urgency, path, work);
    }

    /// As [`submit`](Self::submit), but the work waits while jobs in its directory are held up.
    pub(super) fn submit_late(
        &self,
        path: &Path,
        work: impl FnOnce(Result<&Path, Errno>) + Send + 'static,
    ) {
        let (gate, at) = (Arc::clone(&self.gate), self.gate.mountpoint.join(path));
        self.threads.submit(Urgency::Prefetch, directory_of(path), move || {
            let _marked = DaemonThreads::mark_current();
            let entered = gate.enter();
            work(entered.as_ref().map(|_| at.as_path()).map_err(|errno| *errno));
        });
    }

    /// Does work on a path in the mount, and waits for it, with a limit. Gives `EIO` if the work panicked,
    /// and `ETIMEDOUT` if it, or other jobs in its directory, are held up.
    pub(super) fn run<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        self.gate.run(&self.threads, path, work)
    }

    /// As [`run`](Self::run), for work that reads pages.
    pub(super) fn read<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let start =
            || KeyedPool::new("belady-reader", READ_PATIENCE, 0, READERS, leave_descriptors);
        self.gate.run(self.readers.get_or_init(start), path, work)
    }
}

/// The key of a job, since it is directories that hang.
fn directory_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_path_buf()
}

/// Gives the thread its own descriptor table, with only the three standard descriptors. A thread that it
/// starts has that table too, and does the same.
fn leave_descriptors() {
    // SAFETY: other threads keep their table as it is. A value that owns a descriptor of that table may not
    // be dropped here: its number may be another file's in this table. The jobs of this thread own no such
    // value. They own senders, paths, and shares of the engine, which the process never drops
    // (`mount::run`). A job closes the files that it opens.
    let left = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if let Err(errno) = Errno::result(left) {
        tracing::debug!(%errno, "a thread shares its descriptors");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn nobody_enters_what_is_to_be_unmounted() {
        let access = SelfAccess::new(PathBuf::from("/nowhere"));
        let one = access.enter().unwrap();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| access.block(Duration::from_secs(3600)).is_some());
            while access.enter().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(access.enter().err(), Some(Errno::EBUSY));
            drop(one);
            assert!(closing.join().unwrap());
        });
        assert!(access.enter().is_ok());
    }

    #[test]
    fn what_others_have_open_when_a_thread_starts_can_be_closed() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let threads = KeyedPool::new("inside", PATIENCE, 1, 1, leave_descriptors);
        let (sender, started) = mpsc::sync_channel(1);
        threads.submit(Urgency::Demand, PathBuf::new(), move || sender.send(()).unwrap());
        started.recv().unwrap();
        drop(writer);
        let mut ends = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ends, PollTimeout::from(u16::MAX)), Ok(1), "the end is seen");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        // The threads live as long as their pool.
        drop(threads);
    }
}

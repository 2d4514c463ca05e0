//! Threads that use our own mount.
//!
//! A thread that waits for an answer of its own daemon cannot be killed: it goes on waiting until
//! the answer comes or the device is closed, and a killed daemon's device is closed when no thread
//! has it any more. So these threads have descriptors of their own, and none of a device: once the
//! others have ended the kernel ends the connection, what is waited for here, and what readers wait
//! for. They begin with none at all: a copy of what another thread has open at that moment, a file in
//! the mount or a pipe whose end somebody waits for, would stay open for good.
//!
//! Who reads pages may wait for those that a reader's own request has locked, and so for the source.
//! That is done on threads for it alone, which no fetch waits for.
//!
//! The kernel may hold one of them up as long as the source hangs: a lookup of ours waits for that of a
//! reader in the same directory. What else is asked of that directory is refused then.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;

use super::own::OwnThreads;
use crate::source::{KeyedPool, Urgency};
use crate::sync::is_holding;

/// What nobody waits for is done on so many threads at once, and what somebody does on as many.
const THREADS: usize = 2;

const READERS: usize = 4;

/// What we do is a matter of microseconds: what takes so long is held up. Pages may be locked for as long
/// as the source takes.
const PATIENCE: Duration = Duration::from_secs(2);
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// For how long somebody waits, before whom others may be held up.
const WAIT: Duration = Duration::from_secs(15);

/// What keeps our own threads out.
pub(super) type KeptOut<'a> = RwLockWriteGuard<'a, ()>;

/// Threads of which one directory takes no more than a few.
type Threads = KeyedPool<PathBuf>;

/// The mount, used by ourselves.
pub(super) struct Inside {
    threads: Threads,
    /// Started when something is read.
    readers: OnceLock<Threads>,
    way: Arc<Way>,
}

struct Way {
    mountpoint: PathBuf,
    /// Held for reading while our own mount is used, for writing while it is unmounted: else it
    /// would be we ourselves who keep it busy. Nobody ever waits for it, so that it is no lock of
    /// those that may not be held when the kernel is notified.
    gate: RwLock<()>,
    /// Whether somebody wants to unmount it: nobody enters then, so that those inside become fewer.
    closing: AtomicBool,
}

impl Way {
    /// Enters the mount, unless it is being unmounted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(Errno::EBUSY);
        }
        match self.gate.try_read() {
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
        let (way, at) = (Arc::clone(self), self.mountpoint.join(path));
        threads.try_submit(urgency, directory_of(path), move |turn| {
            let _own = OwnThreads::enter();
            let entered = turn.and_then(|()| way.enter());
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

impl Inside {
    pub(super) fn new(mountpoint: PathBuf) -> Self {
        let threads =
            KeyedPool::new("belady-inside", PATIENCE, THREADS, THREADS, leave_descriptors);
        let way =
            Arc::new(Way { mountpoint, gate: RwLock::new(()), closing: AtomicBool::new(false) });
        Inside { threads, readers: OnceLock::new(), way }
    }

    /// Enters the mount, unless it is being unmounted.
    pub(super) fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        self.way.enter()
    }

    /// Keeps our own threads out of the mount as long as the guard lives; none where one of them is
    /// held up inside by the kernel for longer than `patience`.
    pub(super) fn keep_out(&self, patience: Duration) -> Option<KeptOut<'_>> {
        let start = Instant::now();
        self.way.closing.store(true, Ordering::Relaxed);
        let guard = loop {
            match self.way.gate.try_write() {
                Ok(guard) => break Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() > patience => break None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        self.way.closing.store(false, Ordering::Relaxed);
        guard
    }

    /// Has something done with what is at a path in the mount: what somebody waits for goes first.
    /// It gets `EBUSY` while the mount is being unmounted, and `ETIMEDOUT` where others are held up
    /// in the same directory.
    pub(super) fn submit(
        &self,
        urgency: Urgency,
        path: &Path,
        work: impl FnOnce(Result<&Path, Errno>) + Send + 'static,
    ) {
        self.way.try_submit(&self.threads, urgency, path, work);
    }

    /// As [`submit`](Self::submit), but waits until nobody holds others up there.
    pub(super) fn submit_late(
        &self,
        path: &Path,
        work: impl FnOnce(Result<&Path, Errno>) + Send + 'static,
    ) {
        let (way, at) = (Arc::clone(&self.way), self.way.mountpoint.join(path));
        self.threads.submit(Urgency::Prefetch, directory_of(path), move || {
            let _own = OwnThreads::enter();
            let entered = way.enter();
            work(entered.as_ref().map(|_| at.as_path()).map_err(|errno| *errno));
        });
    }

    /// Does something with what is at a path in the mount, and waits for it, but not for ever: `EIO`
    /// where it panicked, `ETIMEDOUT` where it or others are held up.
    pub(super) fn run<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        self.way.run(&self.threads, path, work)
    }

    /// As [`run`](Self::run), for what reads.
    pub(super) fn read<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let start =
            || KeyedPool::new("belady-reader", READ_PATIENCE, 0, READERS, leave_descriptors);
        self.way.run(self.readers.get_or_init(start), path, work)
    }
}

/// What hangs is a directory.
fn directory_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(path).to_path_buf()
}

/// Gives the thread a table of descriptors of its own, with the three standard ones alone. A thread that
/// it starts has that table too, and does the same.
fn leave_descriptors() {
    // SAFETY: other threads keep their table as it is. A value with a descriptor of that table may not be
    // dropped here, since its number may be another file's in this one. The jobs of this thread own no
    // such value: they own senders, paths, and shares of the engine, which the process never drops
    // (`mount::run`). The files that a job opens it closes itself.
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
        let inside = Inside::new(PathBuf::from("/nowhere"));
        let one = inside.enter().unwrap();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| inside.keep_out(Duration::from_secs(3600)).is_some());
            while inside.enter().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(inside.enter().err(), Some(Errno::EBUSY));
            drop(one);
            assert!(closing.join().unwrap());
        });
        assert!(inside.enter().is_ok());
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

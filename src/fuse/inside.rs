//! Threads that use our own mount.
//!
//! A thread that waits for an answer of its own daemon cannot be killed: it goes on waiting until
//! the answer comes or the device is closed, and a killed daemon's device is closed when no thread
//! has it any more. So these threads have descriptors of their own, and none of a device: once the
//! others have ended the kernel ends the connection, what is waited for here, and what readers wait
//! for. They begin with none at all: a copy of what another thread has open at that moment, a file in
//! the mount or a pipe whose end somebody waits for, would stay open for good.

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;

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
        let pool = Pool::starting("belady-inside", THREADS, THREADS, leave_descriptors);
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

/// Gives the thread a table of descriptors of its own, with the three standard ones alone. What it
/// does needs no other, and it starts no threads, which would share it.
fn leave_descriptors() {
    // SAFETY: of the other descriptors none is held by what this thread does, and other threads keep
    // theirs.
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
    fn what_others_have_open_when_a_thread_starts_can_be_closed() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pool = Pool::starting("inside", 1, 1, leave_descriptors);
        let (sender, started) = mpsc::sync_channel(1);
        pool.submit(Urgency::Demand, move || sender.send(()).unwrap());
        started.recv().unwrap();
        drop(writer);
        let mut ends = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ends, PollTimeout::from(30_000_u16)), Ok(1), "the end is seen");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        // The thread lives as long as its pool.
        drop(pool);
    }
}

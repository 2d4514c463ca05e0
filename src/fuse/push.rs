//! Pushing blocks into the kernel's page cache, and dropping them.
//!
//! 1. The kernel takes pages only for an inode that it knows; an unknown one is primed by looking
//!    its name up through our own mount.
//! 2. `FUSE_NOTIFY_STORE` copies the bytes into the pages.
//!    It waits for pages that a read in flight has locked.
//! 3. Pages are dropped by opening the file through our own mount and advising the kernel that
//!    they are not needed, which skips pages in use and never waits for them.
//! 4. Whether pages are still there is asked in the same way, shortly before they are read: the
//!    kernel may take any of them back at any time.
//!
//! None of this may run on a request thread: the requests that it causes are answered there.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, PosixFadviseAdvice, open, posix_fadvise};
use nix::sys::stat::{Mode, lstat};

use super::cachestat::cached_pages;
use super::inside::Inside;
use super::known::Known;
use super::notify::Notifier;
use crate::cache::Pages;
use crate::catalog::NodeId;
use crate::fs::Dataset;
use crate::ids::PAGE_BYTES;

/// How long an unmount waits for our own threads to leave the mount.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The page cache of one mount.
pub struct Pusher {
    notifier: Notifier,
    inside: Inside,
    mountpoint: PathBuf,
    known: Arc<Known>,
    dataset: Arc<Dataset>,
    /// Whether pages are pushed; else the kernel has those that it has read.
    pushes: bool,
    /// Held for reading while our own mount is used, for writing while it is unmounted: else it
    /// would be we ourselves who keep it busy.
    gate: RwLock<()>,
}

impl Pusher {
    pub(super) fn new(
        device: OwnedFd,
        mountpoint: PathBuf,
        known: Arc<Known>,
        dataset: Arc<Dataset>,
        pushes: bool,
    ) -> Self {
        let notifier = Notifier::new(device);
        Pusher {
            notifier,
            inside: Inside::new(),
            mountpoint,
            known,
            dataset,
            pushes,
            gate: RwLock::new(()),
        }
    }

    /// Whether the kernel is to open a file without asking.
    fn trusts(&self, node: NodeId) -> bool {
        self.dataset.attr(node).is_ok_and(|attr| !self.dataset.entry_valid(&attr).is_zero())
    }

    /// Keeps our own threads out of the mount as long as the guard lives; none where one of them
    /// is held up inside by the kernel.
    pub(super) fn keep_out(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let patience = Instant::now() + LEAVE_WITHIN;
        loop {
            match self.gate.try_write() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() > patience => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Enters the mount, unless it is being unmounted.
    fn enter(&self) -> Result<RwLockReadGuard<'_, ()>, Errno> {
        match self.gate.try_read() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno::EBUSY),
        }
    }

    /// Number of nodes that the kernel knows.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// Opens a file and the root, so that the kernel learns that it need not ask: it would ask the
    /// first reader else. Says whether it went along. Blocks.
    pub fn stop_asking(&self, file: Option<&Path>) -> bool {
        let Ok(_inside) = self.enter() else { return true };
        let insists = |result: Result<(), Errno>| result == Err(Errno::ENOSYS);
        let mountpoint = self.mountpoint.clone();
        let open = move || Dir::open(&mountpoint, OFlag::O_DIRECTORY, Mode::empty()).map(drop);
        let root = self.inside.run(open).unwrap_or(Err(Errno::EIO));
        !insists(root) && !file.is_some_and(|file| insists(self.with_file(file, |_| Ok(()))))
    }

    /// Makes the kernel forget a name, the node that it stood for, and what it knows of the
    /// directory. Blocks; never call it from a request thread.
    pub fn forget(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        let listing = self.notifier.forget_listing(parent);
        self.notifier.forget(parent, name).and(listing)
    }

    /// Looks a path up so that the kernel knows its node.
    fn prime(&self, path: &Path) -> Result<(), Errno> {
        let path = self.mountpoint.join(path);
        self.inside.run(move || lstat(&path).map(|_| ())).unwrap_or(Err(Errno::EIO))
    }

    /// Does something with an open file of our own mount.
    fn with_file<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(File) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let path = self.mountpoint.join(path);
        let open = move || open(&path, flags, Mode::empty()).map(File::from).and_then(work);
        self.inside.run(open).unwrap_or(Err(Errno::EIO))
    }
}

impl Pages for Pusher {
    fn store(&self, node: NodeId, path: &Path, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        if !self.pushes {
            return Ok(());
        }
        let _inside = self.enter()?;
        if !self.known.contains(node, self.trusts(node)) {
            self.prime(path)?;
        }
        match self.notifier.store(node, offset, bytes) {
            // Forgotten between the look and the push.
            Err(Errno::ENOENT) => {
                self.prime(path)?;
                self.notifier.store(node, offset, bytes)
            }
            result => result,
        }
    }

    fn expire(&self, node: NodeId, parent: NodeId, name: &OsStr) {
        if !self.known.expire(node) || !self.known.expires() {
            return;
        }
        match self.notifier.expire(parent, name) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => tracing::warn!(?name, %errno, "a name was not taken back"),
        }
    }

    fn discard(&self, node: NodeId, path: &Path, offset: u64, length: u64) {
        // What the kernel does not know has no pages.
        if !self.known.contains(node, false) {
            return;
        }
        let Ok(_inside) = self.enter() else { return };
        let dropped = self.with_file(path, move |file| {
            let (offset, length) = (offset as i64, length as i64);
            posix_fadvise(&file, offset, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
        });
        if let Err(errno) = dropped {
            tracing::debug!(?path, %errno, "pages could not be dropped");
        }
    }

    fn is_whole(&self, node: NodeId, path: &Path, offset: u64, length: u64) -> Option<bool> {
        if !self.known.contains(node, false) {
            return Some(false);
        }
        let _inside = self.enter().ok()?;
        let look = move |file: File| cached_pages(file.as_fd(), offset, length);
        let cached = self.with_file(path, look).ok()?;
        Some(cached >= length.div_ceil(PAGE_BYTES))
    }
}

//! Pushing blocks into the kernel's page cache, and dropping them.
//!
//! 1. The kernel takes pages only for an inode that it knows; an unknown one is primed by looking
//!    its name up through our own mount, as soon as its bytes are being fetched.
//! 2. `FUSE_NOTIFY_STORE` copies the bytes into the pages.
//!    It waits for pages that a read in flight has locked.
//! 3. Pages are dropped by opening the file through our own mount and advising the kernel that
//!    they are not needed, which skips pages in use and never waits for them. Those of a large file that
//!    a process has mapped for long are taken back by `FUSE_NOTIFY_INVAL_INODE`.
//! 4. Whether pages are still there is asked in the same way, shortly before they are read: the
//!    kernel may take any of them back at any time. It is told anew how long it may believe the
//!    name then.
//! 5. What a further connection's readers want is read out of the pages in the same way. A page that
//!    is not there makes the kernel ask us, which is answered with an error at once.
//!
//! None of this may run on a request thread: the requests that it causes are answered there.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, PosixFadviseAdvice, open, posix_fadvise};
use nix::libc::dev_t;
use nix::sys::stat::{Mode, fstat, lstat};

use super::cachestat::cached_pages;
use super::inside::{Inside, KeptOut};
use super::known::Known;
use super::notify::Notifier;
use crate::cache::{Looked, Pages};
use crate::catalog::{Located, NodeId};
use crate::fs::Dataset;
use crate::ids::{BLOCK_BYTES, PAGE_BYTES};
use crate::source::{Pool, Urgency};

/// The page cache of one mount.
pub struct Pusher {
    notifier: Arc<Notifier>,
    inside: Arc<Inside>,
    /// Takes back pages that processes have mapped.
    unmapping: Arc<Pool>,
    /// The device of the mount.
    device: Option<dev_t>,
    known: Arc<Known>,
    dataset: Arc<Dataset>,
    /// Whether pages are pushed; else the kernel has those that it has read.
    pushes: bool,
}

impl Pusher {
    pub(super) fn new(
        notifier: Arc<Notifier>,
        (mountpoint, device): (PathBuf, Option<dev_t>),
        known: Arc<Known>,
        dataset: Arc<Dataset>,
        pushes: bool,
    ) -> Self {
        let inside = Arc::new(Inside::new(mountpoint));
        let unmapping = Arc::new(Pool::new("belady-unmap", 1, 0));
        Pusher { notifier, inside, unmapping, device, known, dataset, pushes }
    }

    /// Whether the kernel is to open a file without asking.
    fn may_be_untracked(&self, node: NodeId) -> bool {
        self.dataset.attr(node).is_ok_and(|attr| !self.dataset.entry_valid(&attr).is_zero())
    }

    /// Keeps our own threads out of the mount as long as the guard lives; none where one of them
    /// is held up inside by the kernel.
    pub(super) fn keep_out(&self, patience: Duration) -> Option<KeptOut<'_>> {
        self.inside.keep_out(patience)
    }

    /// Opens a file and the root, so that the kernel learns that it need not ask: it would ask the
    /// first reader else. Says whether it went along. Blocks.
    pub fn stop_asking(&self, file: Option<&Path>) -> bool {
        let insists = |result: Result<(), Errno>| result == Err(Errno::ENOSYS);
        let open_root = |root: &Path| Dir::open(root, OFlag::O_DIRECTORY, Mode::empty()).map(drop);
        let root = self.inside.run(Path::new(""), open_root);
        let opened =
            file.map_or(Ok(()), |file| self.inside.run(file, |at| open_file(at).map(drop)));
        !insists(root) && !insists(opened)
    }

    /// Waits until the kernel serves the mount.
    pub(super) fn wake(&self) {
        // Where it fails, so does what comes next.
        let _ = self.inside.run(Path::new(""), |root| lstat(root).map(drop));
    }

    /// Whether the kernel has yet to be told of a node before it takes pages for it.
    fn is_unknown(&self, node: NodeId) -> bool {
        !self.known.contains(node, self.may_be_untracked(node))
    }

    /// Looks a path up so that the kernel knows its node. Blocks.
    fn prime(&self, path: &Path) -> Result<(), Errno> {
        self.inside.run(path, |at| lstat(at).map(drop))
    }
}

fn open_file(at: &Path) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    open(at, flags, Mode::empty()).map(File::from)
}

impl Pages for Pusher {
    fn expect(&self, at: &Located) {
        if !self.pushes || !self.is_unknown(at.node) {
            return;
        }
        self.inside.submit(Urgency::Demand, &at.path, |entered| {
            // Where it fails, the push finds out why.
            let _ = entered.and_then(lstat);
        });
    }

    fn store(&self, at: &Located, bytes: &[u8]) -> Result<(), Errno> {
        if !self.pushes {
            return Ok(());
        }
        let _inside = self.inside.enter()?;
        if self.is_unknown(at.node) {
            self.prime(&at.path)?;
        }
        match self.notifier.store(at.node, at.offset, bytes) {
            // Forgotten between the look and the push.
            Err(Errno::ENOENT) => {
                self.prime(&at.path)?;
                self.notifier.store(at.node, at.offset, bytes)
            }
            result => result,
        }
    }

    fn expire(&self, node: NodeId, parent: NodeId, name: &OsStr) {
        // Where opens are requests, all of them are seen.
        if self.dataset.sees_opens() || !self.known.expire(node) || !self.known.expires() {
            return;
        }
        self.dataset.let_readers_out(parent);
        match self.notifier.expire(parent, name) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => tracing::warn!(?name, %errno, "a name was not taken back"),
        }
    }

    fn discard(&self, at: Located, done: Box<dyn FnOnce() + Send>) {
        // What the kernel does not know has no pages.
        if !self.known.contains(at.node, false) {
            return done();
        }
        let (path, notifier) = (Arc::clone(&at.path), Arc::clone(&self.notifier));
        let unmapping = Arc::clone(&self.unmapping);
        self.inside.submit_late(&path, move |entered| {
            let (offset, length) = (at.offset as i64, at.length as i64);
            let dropped = entered.and_then(|path| {
                let file = open_file(path)?;
                posix_fadvise(&file, offset, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
                // A small file is read from start to end, and its maps end soon.
                let is_large = file.metadata().is_ok_and(|stat| stat.len() >= BLOCK_BYTES);
                let left = || cached_pages(file.as_fd(), at.offset, at.length as u64);
                Ok(if is_large { left().unwrap_or_default() } else { 0 })
            });
            let left = dropped.unwrap_or_else(|errno| {
                tracing::debug!(path = ?at.path, %errno, "pages could not be dropped");
                0
            });
            // What is left goes when it can: the kernel waits for pages that a read has locked.
            done();
            if left > 0 {
                // The threads inside cannot reach the kernel's end of the connection.
                unmapping.submit(Urgency::Prefetch, move || {
                    // The kernel may have forgotten the node.
                    let _ = notifier.forget_range(at.node, offset, length);
                });
            }
        });
    }

    fn look(&self, at: Located, looked: Looked) {
        if !self.known.contains(at.node, false) {
            return looked(Some(false));
        }
        self.inside.submit(Urgency::Prefetch, &at.path, move |entered| {
            let length = at.length as u64;
            let cached = entered.and_then(|path| {
                let file = open_file(path)?;
                cached_pages(file.as_fd(), at.offset, length)
            });
            looked(cached.ok().map(|cached| cached >= length.div_ceil(PAGE_BYTES)));
        });
    }

    fn renew(&self, at: Located) {
        // Where opens are requests, and where each of them is to be seen, the reader asks in any case.
        let asks = self.dataset.sees_opens() || !self.may_be_untracked(at.node);
        if asks || !self.known.contains(at.node, false) {
            return;
        }
        self.inside.submit(Urgency::Prefetch, &at.path, |entered| {
            // Where it fails, the reader asks.
            let _ = entered.and_then(lstat);
        });
    }

    fn read(&self, at: &Located) -> Result<Vec<u8>, Errno> {
        // What the kernel does not know has no pages.
        if !self.known.contains(at.node, false) {
            return Err(Errno::ENOENT);
        }
        let (node, offset, length, device) = (at.node, at.offset, at.length, self.device);
        self.inside.read(&at.path, move |path| {
            let file = open_file(path)?;
            let found = fstat(&file)?;
            // The name may stand for another version by now, and the path for another mount.
            if (Some(found.st_dev), found.st_ino) != (device, node.0) {
                return Err(Errno::ESTALE);
            }
            let end = offset + length as u64;
            let pages = end.div_ceil(PAGE_BYTES) - offset / PAGE_BYTES;
            let cached = cached_pages(file.as_fd(), offset, length as u64);
            // Who cannot be told tries.
            if cached.is_ok_and(|cached| cached < pages) {
                return Err(Errno::EAGAIN);
            }
            let mut bytes = vec![0; length];
            let read = file.read_exact_at(&mut bytes, offset);
            read.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
            Ok(bytes)
        })
    }
}

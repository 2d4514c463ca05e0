//! Pushes blocks into the kernel's page cache, and drops them.
//!
//! 1. The kernel takes pages only for an inode that it knows. An unknown inode is primed: its name is
//!    looked up through our own mount as soon as its bytes are being fetched.
//! 2. `FUSE_NOTIFY_STORE` copies the bytes into the pages. It waits for pages that a read in flight has
//!    locked.
//! 3. To drop pages, the file is opened through our own mount, and the kernel is advised that they are not
//!    needed. That skips pages in use and never waits for them. If a process keeps pages of a large file
//!    mapped, `FUSE_NOTIFY_INVAL_INODE` drops them.
//! 4. The kernel may take any page back at any time. So the pages are checked through our own mount shortly
//!    before they are read. The kernel is then told again how long it may believe the name.
//! 5. Reads of a further connection are answered from these pages, which are also read through our own
//!    mount. If a page is missing, the kernel asks us, and gets an error at once.
//!
//! None of this may run on a request thread: request threads answer the requests that it causes.

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
use nix::sys::stat::{Mode, fstat, lstat, major, minor};

use super::cachestat::cached_pages;
use super::known::KnownNodes;
use super::notify::Notifier;
use super::self_access::{AccessBlock, SelfAccess};
use crate::cache::{CheckReply, Pages};
use crate::catalog::{Located, NodeId};
use crate::fs::Dataset;
use crate::ids::BLOCK_BYTES;
use crate::page_size::page_bytes;
use crate::source::{Pool, Urgency};

pub struct Pusher {
    notifier: Arc<Notifier>,
    self_access: Arc<SelfAccess>,
    /// Drops pages that processes have mapped.
    unmapper: Arc<Pool>,
    device: Option<dev_t>,
    known: Arc<KnownNodes>,
    dataset: Arc<Dataset>,
    /// Whether pages are pushed. If not, the kernel has only pages that it has read.
    push_pages: bool,
}

impl Pusher {
    pub(super) fn new(
        notifier: Arc<Notifier>,
        (mountpoint, device): (PathBuf, Option<dev_t>),
        known: Arc<KnownNodes>,
        dataset: Arc<Dataset>,
        push_pages: bool,
    ) -> Self {
        let self_access = Arc::new(SelfAccess::new(mountpoint));
        let unmapper = Arc::new(Pool::new("belady-unmap", 1, 0));
        Pusher { notifier, self_access, unmapper, device, known, dataset, push_pages }
    }

    /// Whether the kernel may open a file without a request: its entry is valid for a while.
    fn has_valid_entry(&self, node: NodeId) -> bool {
        let is_valid = |attr| !self.dataset.entry_valid(&attr).is_zero();
        !self.dataset.is_tracked(node) && self.dataset.attr(node).is_ok_and(is_valid)
    }

    /// As [`SelfAccess::block`].
    pub(super) fn block_self_access(&self, patience: Duration) -> Option<AccessBlock<'_>> {
        self.self_access.block(patience)
    }

    /// Opens a file and the root, so that the kernel learns that it need not send opens. Otherwise it would
    /// send the first reader's. Returns whether the kernel sends no more opens. Blocks.
    pub fn disable_open_requests(&self, file: Option<&Path>) -> bool {
        let insists = |result: Result<(), Errno>| result == Err(Errno::ENOSYS);
        let open_root = |root: &Path| Dir::open(root, OFlag::O_DIRECTORY, Mode::empty()).map(drop);
        let root = self.self_access.run(Path::new(""), open_root);
        let opened =
            file.map_or(Ok(()), |file| self.self_access.run(file, |at| open_file(at).map(drop)));
        !insists(root) && !insists(opened)
    }

    /// Waits until the kernel has said what it supports, which it does before its first request.
    pub(super) fn wait_for_init(&self) {
        // If it fails, the next step fails, too.
        let _ = self.self_access.run(Path::new(""), |root| lstat(root).map(drop));
    }

    /// Whether the kernel must look a node up before it takes pages for it.
    fn needs_priming(&self, node: NodeId) -> bool {
        !self.known.contains(node, self.has_valid_entry(node))
    }

    /// Looks a path up so that the kernel knows its node. Blocks.
    fn prime(&self, path: &Path) -> Result<(), Errno> {
        self.self_access.run(path, |at| lstat(at).map(drop))
    }
}

fn open_file(at: &Path) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    open(at, flags, Mode::empty()).map(File::from)
}

impl Pages for Pusher {
    fn are_kept(&self) -> bool {
        self.push_pages
    }

    fn expect(&self, at: &Located) {
        if !self.push_pages || !self.needs_priming(at.node) {
            return;
        }
        self.self_access.submit(Urgency::Demand, &at.path, |entered| {
            // If it fails, the push finds out why.
            let _ = entered.and_then(lstat);
        });
    }

    fn store(&self, at: &Located, bytes: &[u8]) -> Result<(), Errno> {
        if !self.push_pages {
            return Ok(());
        }
        let _entered = self.self_access.enter()?;
        if self.needs_priming(at.node) {
            self.prime(&at.path)?;
        }
        match self.notifier.store(at.node, at.offset, bytes) {
            // The node was forgotten between the check and the push.
            Err(Errno::ENOENT) => {
                self.prime(&at.path)?;
                self.notifier.store(at.node, at.offset, bytes)
            }
            result => result,
        }
    }

    fn expire(&self, node: NodeId, parent: NodeId, name: &OsStr) {
        // If opens are requests, every open is seen.
        if self.dataset.opens_are_requests()
            || !self.known.take_untracked(node)
            || !self.known.can_expire()
        {
            return;
        }
        self.dataset.waiting.wait_for_requests(parent);
        match self.notifier.expire(parent, name) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => tracing::warn!(?name, %errno, "a name was not taken back"),
        }
    }

    fn discard(&self, at: Located, done: Box<dyn FnOnce() + Send>) {
        // A node that the kernel does not know has no pages.
        if !self.known.contains(at.node, false) {
            return done();
        }
        let (path, notifier) = (Arc::clone(&at.path), Arc::clone(&self.notifier));
        let unmapper = Arc::clone(&self.unmapper);
        self.self_access.submit_late(&path, move |entered| {
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
            // Pages that are left are dropped later: the kernel waits for pages that a read has locked.
            done();
            if left > 0 {
                // The threads of [`SelfAccess`] have no descriptor of the device.
                unmapper.submit(Urgency::Prefetch, move || {
                    // The kernel may have forgotten the node.
                    let _ = notifier.forget_range(at.node, offset, length);
                });
            }
        });
    }

    fn limit_read_ahead(&self) {
        let Some(device) = self.device else { return };
        let (major, minor) = (major(device), minor(device));
        let at = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        // Then a read asks for its own pages at once, and a fault of a mapped page for that page. 0 would make each
        // read ask for its pages one by one.
        let page_kb = (page_bytes() / 1024).to_string();
        if let Err(error) = std::fs::write(&at, page_kb) {
            tracing::info!(at, %error, "the kernel may read on past samples that are ranges of files");
        }
    }

    fn check(&self, at: Located, reply: CheckReply) {
        if !self.known.contains(at.node, false) {
            return reply(Some(false));
        }
        self.self_access.submit(Urgency::Prefetch, &at.path, move |entered| {
            let length = at.length as u64;
            let cached = entered.and_then(|path| {
                let file = open_file(path)?;
                cached_pages(file.as_fd(), at.offset, length)
            });
            reply(cached.ok().map(|cached| cached >= length.div_ceil(page_bytes())));
        });
    }

    fn renew(&self, at: Located) {
        // If opens are requests, or if this open is to be seen, the reader asks in any case.
        let asks = self.dataset.opens_are_requests() || !self.has_valid_entry(at.node);
        if asks || !self.known.contains(at.node, false) {
            return;
        }
        self.self_access.submit(Urgency::Prefetch, &at.path, |entered| {
            // If it fails, the reader asks.
            let _ = entered.and_then(lstat);
        });
    }

    fn read(&self, at: &Located) -> Result<Vec<u8>, Errno> {
        // A node that the kernel does not know has no pages.
        if !self.known.contains(at.node, false) {
            return Err(Errno::ENOENT);
        }
        let (node, offset, length, device) = (at.node, at.offset, at.length, self.device);
        self.self_access.read(&at.path, move |path| {
            let file = open_file(path)?;
            let found = fstat(&file)?;
            // By now the name may stand for another version, and the path for another mount.
            if (Some(found.st_dev), found.st_ino) != (device, node.0) {
                return Err(Errno::ESTALE);
            }
            let end = offset + length as u64;
            let pages = end.div_ceil(page_bytes()) - offset / page_bytes();
            let cached = cached_pages(file.as_fd(), offset, length as u64);
            // If the kernel cannot count pages, the read is tried.
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

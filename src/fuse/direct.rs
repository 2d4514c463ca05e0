//! Serves the files of a further connection, which keeps no pages: only the first connection does.
//!
//! 1. Files are opened for direct I/O. Each read is then a request, and its bytes are not cached. Before
//!    Linux 6.6, the kernel allows no shared maps of such files. There, files are read through the page
//!    cache instead.
//! 2. Maps and sendfile(2) fill pages all the same. These pages are dropped whenever an open of the file
//!    ends. A map keeps its open alive, so the last open ends after the last map.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::{FopenFlags, LockOwner};
use nix::errno::Errno;

use super::notify::Notifier;
use crate::catalog::NodeId;
use crate::source::{Pool, Urgency};
use crate::sync::{Mutex, MutexGuard};

pub(super) struct DirectIo {
    /// Whether the kernel allows shared maps of files that are opened for direct I/O.
    allows_maps: AtomicBool,
    /// Files that may have pages.
    paged: Mutex<BTreeSet<NodeId>>,
    notifier: OnceLock<Arc<Notifier>>,
    /// Drops pages. It has a thread of its own: a notification may wait for a lock that a request holds.
    dropper: Pool,
}

impl Default for DirectIo {
    fn default() -> Self {
        DirectIo {
            allows_maps: AtomicBool::new(false),
            paged: Mutex::default(),
            notifier: OnceLock::new(),
            dropper: Pool::new("belady-unmap", 1, 0),
        }
    }
}

impl DirectIo {
    fn paged(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.paged.lock()
    }

    pub(super) fn connect(&self, notifier: Arc<Notifier>) {
        // It is called once.
        let _ = self.notifier.set(notifier);
    }

    pub(super) fn allow_maps(&self) {
        self.allows_maps.store(true, Ordering::Relaxed);
    }

    pub(super) fn flags(&self) -> FopenFlags {
        match self.allows_maps.load(Ordering::Relaxed) {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        }
    }

    /// Notes a read. The kernel reads into pages if the request names no lock owner.
    pub(super) fn note_read(&self, node: NodeId, owner: Option<LockOwner>) {
        if owner.is_none() {
            self.paged().insert(node);
        }
    }

    /// Notes that a descriptor of a file is closed, and drops the file's pages: it may have been mapped.
    pub(super) fn note_close(&self, node: NodeId) {
        if !self.paged().remove(&node) {
            return;
        }
        let Some(notifier) = self.notifier.get().map(Arc::clone) else { return };
        self.dropper.submit(Urgency::Prefetch, move || match notifier.forget_pages(node) {
            // The node is forgotten already, or the mount is unmounted.
            Ok(()) | Err(Errno::ENOENT | Errno::ENODEV | Errno::ENOTCONN) => {}
            Err(errno) => tracing::debug!(%errno, "pages of a further mount point are left"),
        });
    }
}

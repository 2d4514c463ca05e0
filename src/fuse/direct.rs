//! Files of a further connection, which keeps no pages: the first one does.
//!
//! 1. They are opened for direct I/O: each read is a request, and its bytes stay nowhere. Where the
//!    kernel does not map such files for several (before Linux 6.6), they are read by way of pages
//!    instead.
//! 2. Maps and sendfile(2) have pages all the same. They are dropped when a descriptor of their file
//!    is closed, of which the last one is, at the latest, when nobody maps it any more.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::{FopenFlags, LockOwner};
use nix::errno::Errno;

use super::notify::Notifier;
use crate::catalog::NodeId;
use crate::source::{Pool, Urgency};
use crate::sync::{Mutex, MutexGuard};

/// What a further connection has of files.
pub(super) struct Direct {
    /// Whether the kernel maps files for several that are opened for direct I/O.
    maps: AtomicBool,
    /// Files that there may be pages of.
    paged: Mutex<BTreeSet<NodeId>>,
    notifier: OnceLock<Arc<Notifier>>,
    /// A notification may wait for what a request holds.
    dropper: Pool,
}

impl Default for Direct {
    fn default() -> Self {
        Direct {
            maps: AtomicBool::new(false),
            paged: Mutex::default(),
            notifier: OnceLock::new(),
            dropper: Pool::new("belady-unmap", 1, 0),
        }
    }
}

impl Direct {
    fn paged(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.paged.lock()
    }

    /// The kernel's end of the connection.
    pub(super) fn connect(&self, notifier: Arc<Notifier>) {
        // There is but one.
        let _ = self.notifier.set(notifier);
    }

    /// The kernel maps files for several that are opened for direct I/O.
    pub(super) fn set_maps(&self) {
        self.maps.store(true, Ordering::Relaxed);
    }

    /// How files are opened.
    pub(super) fn flags(&self) -> FopenFlags {
        match self.maps.load(Ordering::Relaxed) {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        }
    }

    /// A file is read: into pages unless it is for somebody.
    pub(super) fn read(&self, node: NodeId, owner: Option<LockOwner>) {
        if owner.is_none() {
            self.paged().insert(node);
        }
    }

    /// A descriptor of a file is closed, which may have been mapped.
    pub(super) fn closed(&self, node: NodeId) {
        if !self.paged().remove(&node) {
            return;
        }
        let Some(notifier) = self.notifier.get().map(Arc::clone) else { return };
        self.dropper.submit(Urgency::Prefetch, move || match notifier.forget_pages(node) {
            // Forgotten already, or unmounted.
            Ok(()) | Err(Errno::ENOENT | Errno::ENODEV | Errno::ENOTCONN) => {}
            Err(errno) => tracing::debug!(%errno, "pages of a further mount point are left"),
        });
    }
}

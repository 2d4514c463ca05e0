//! Large files that the kernel reads by itself from the cache directory (passthrough).
//!
//! Where opens are requests, one can be answered with a file to read instead of us. Of one node the
//! kernel takes either kind of open at a time, and always the same file. So a node is passed through
//! from an open at which nobody has it open otherwise, until all who have it open have closed it.
//! Its bytes were compared with their checksums once a mount; they are the only ones from the store
//! that are not compared at each read.
//!
//! Needs Linux 6.9 and CAP_SYS_ADMIN; it is tried at the mount, and the first refusal ends the trying.

use std::collections::HashMap;
use std::io::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use fuser::{BackingId, ReplyOpen};
use tempfile::tempfile_in;

use super::{Notifier, Pusher};
use crate::cache::store::Lent;
use crate::catalog::NodeId;
use crate::source::{Pool, Urgency};
use crate::sync::{Mutex, MutexGuard};

/// The file behind a node, as long as it is passed through.
struct Backing {
    id: Arc<BackingId>,
    /// Its bytes stay as long as this is held.
    _lent: Arc<Lent>,
}

/// Who has a node open.
#[derive(Default)]
struct Opens {
    plain: u32,
    passed: u32,
    backing: Option<Backing>,
}

/// Which nodes are passed through.
pub(super) struct Passing {
    able: AtomicBool,
    opens: Mutex<HashMap<NodeId, Opens>>,
    /// Closes files: the cache disk may take its time to give up one that has been deleted.
    closer: Pool,
}

impl Default for Passing {
    fn default() -> Self {
        let closer = Pool::new("belady-close", 1, 0);
        Passing { able: AtomicBool::default(), opens: Mutex::default(), closer }
    }
}

impl Passing {
    /// The kernel can pass files through.
    pub(super) fn set_able(&self) {
        self.able.store(true, Ordering::Relaxed);
    }

    /// Tries it with a file of a directory: the kernel may have the means and yet not permit it, or not
    /// with this filesystem. Blocks.
    pub(super) fn probe(&self, notifier: &Notifier, pusher: &Pusher, directory: &Path) {
        // The kernel has said what it can when it has answered anything.
        pusher.wake();
        if !self.is_able() {
            return;
        }
        // A disk that has no room for another file may hold some to read.
        if let Ok(file) = tempfile_in(directory)
            && let Err(error) = notifier.back(&file)
        {
            self.refused(&error);
        }
    }

    fn refused(&self, error: &Error) {
        tracing::info!(%error, "the kernel passes no files through");
        self.able.store(false, Ordering::Relaxed);
    }

    /// Whether it can, as far as is known.
    pub(super) fn is_able(&self) -> bool {
        self.able.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Opens>> {
        self.opens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an open of a node; with what to answer it, where the node is passed through. Each is
    /// to be [released](Self::release).
    pub(super) fn open(
        &self,
        node: NodeId,
        lend: impl FnOnce() -> Option<Arc<Lent>>,
        reply: &ReplyOpen,
    ) -> Option<Arc<BackingId>> {
        let able = self.is_able();
        let mut all = self.lock();
        if !able && !all.contains_key(&node) {
            return None;
        }
        let opens = all.entry(node).or_default();
        if able && opens.plain == 0 && opens.backing.is_none() {
            opens.backing = lend().and_then(|lent| self.back(lent, reply));
        }
        match &opens.backing {
            Some(backing) => {
                opens.passed += 1;
                Some(Arc::clone(&backing.id))
            }
            None => {
                opens.plain += 1;
                None
            }
        }
    }

    fn back(&self, lent: Arc<Lent>, reply: &ReplyOpen) -> Option<Backing> {
        match reply.open_backing(&*lent) {
            Ok(id) => Some(Backing { id: Arc::new(id), _lent: lent }),
            Err(error) => {
                self.refused(&error);
                None
            }
        }
    }

    /// An open has ended that was passed through, or was not.
    pub(super) fn release(&self, node: NodeId, passed: bool) {
        let mut all = self.lock();
        let Some(opens) = all.get_mut(&node) else { return };
        let count = if passed { &mut opens.passed } else { &mut opens.plain };
        *count = count.saturating_sub(1);
        let ended = (opens.plain == 0 && opens.passed == 0).then(|| all.remove(&node)).flatten();
        drop(all);
        if let Some(backing) = ended.and_then(|opens| opens.backing) {
            self.closer.submit(Urgency::Prefetch, move || drop(backing));
        }
    }
}

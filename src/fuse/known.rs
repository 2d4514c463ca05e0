//! Which nodes the kernel knows.
//!
//! The kernel holds an inode from the first lookup until it forgets it, and tells both. Only a
//! node that it knows can take pushed pages, and each known one costs kernel memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::catalog::NodeId;

/// Kernel memory of a known node: inode and directory entry, in bytes (measured on Linux 6.18).
pub const KNOWN_BYTES: u64 = 1100;

/// A node that the kernel knows.
#[derive(Clone, Copy, Default)]
struct Lookups {
    /// Those that it has not forgotten yet.
    count: u64,
    /// Whether it opens the file without asking, by the last of them.
    trusts: bool,
}

/// What the kernel knows, by node.
#[derive(Default)]
pub(super) struct Known {
    nodes: Mutex<HashMap<u64, Lookups>>,
    /// Whether the kernel can be made to look a name up again and keep the pages: Linux 6.2.
    expires: AtomicBool,
}

impl Known {
    pub(super) fn set_expires(&self, expires: bool) {
        self.expires.store(expires, Ordering::Relaxed);
    }

    pub(super) fn expires(&self) -> bool {
        self.expires.load(Ordering::Relaxed)
    }

    /// The kernel is told of a node, and whether it may open it without asking again.
    pub(super) fn looked_up(&self, node: NodeId, trusts: bool) {
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let lookups = known.entry(node.0).or_default();
        *lookups = Lookups { count: lookups.count + 1, trusts };
    }

    /// Whether the kernel opens the file without asking; from now on it is taken to ask.
    pub(super) fn expire(&self, node: NodeId) -> bool {
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_mut(&node.0).is_some_and(|lookups| std::mem::take(&mut lookups.trusts))
    }

    pub(super) fn forgotten(&self, node: NodeId, lookups: u64) {
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known_by) = known.get_mut(&node.0) {
            known_by.count = known_by.count.saturating_sub(lookups);
            if known_by.count == 0 {
                known.remove(&node.0);
            }
        }
    }

    /// Whether the kernel knows a node; `trusting`: and opens it without asking.
    pub(super) fn contains(&self, node: NodeId, trusting: bool) -> bool {
        let known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&node.0).is_some_and(|lookups| lookups.trusts || !trusting)
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

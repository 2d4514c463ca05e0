//! Which nodes the kernel knows.
//!
//! The kernel holds an inode from the first lookup until it forgets it, and tells both. Only a
//! node that it knows can take pushed pages, and each known one costs kernel memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::catalog::NodeId;

/// Kernel memory of a known node: inode and directory entry, in bytes (measured on Linux 6.18).
pub const KNOWN_BYTES: u64 = 1100;

/// Lookups that the kernel has not forgotten yet, by node.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<u64, u64>>);

impl Known {
    pub(super) fn looked_up(&self, node: NodeId) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(node.0).or_default() += 1;
    }

    pub(super) fn forgotten(&self, node: NodeId, lookups: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = known.get_mut(&node.0) {
            *count = count.saturating_sub(lookups);
            if *count == 0 {
                known.remove(&node.0);
            }
        }
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&node.0)
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

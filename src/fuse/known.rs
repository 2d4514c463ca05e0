//! Tracks which nodes the kernel knows.
//!
//! The kernel holds an inode from the first lookup until it forgets it, and tells us both. Only a known
//! node can take pushed pages. Each known node costs kernel memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::catalog::NodeId;
use crate::sync::{Mutex, MutexGuard};

/// Kernel memory of a known node, in bytes: inode and directory entry (measured on Linux 6.18).
pub const KNOWN_BYTES: u64 = 1100;

/// A node that the kernel knows, or an empty entry if the count is zero.
#[derive(Clone, Copy, Default)]
struct Lookups {
    /// Lookups that the kernel has not forgotten yet.
    count: u32,
    version: u16,
    /// Whether the kernel opens the file without a request, by the last lookup.
    untracked: bool,
    /// Whether the source, when it was asked last, could not say what the name stands for.
    in_doubt: bool,
}

/// One version of each catalog row is in a table. All other nodes are in a map.
#[derive(Default)]
struct Nodes {
    rows: Vec<Lookups>,
    others: HashMap<u64, Lookups>,
    known: usize,
}

impl Nodes {
    fn find(&mut self, node: NodeId) -> Option<&mut Lookups> {
        let row = node.file().and_then(|file| self.rows.get_mut(file.index()));
        let known = row.filter(|known| known.count > 0 && known.version == node.version());
        known.or_else(|| self.others.get_mut(&node.0))
    }

    fn add(&mut self, node: NodeId) -> &mut Lookups {
        let lookups = Lookups { version: node.version(), ..Lookups::default() };
        self.known += 1;
        let Some(file) = node.file() else { return self.others.entry(node.0).or_default() };
        if self.rows.len() <= file.index() {
            self.rows.resize(file.index() + 1, Lookups::default());
        }
        let row = &mut self.rows[file.index()];
        if row.count == 0 {
            *row = lookups;
            return row;
        }
        self.others.entry(node.0).or_insert(lookups)
    }
}

#[derive(Default)]
pub(super) struct KnownNodes {
    nodes: Mutex<Nodes>,
    /// Whether the kernel can be made to look a name up again and keep its pages: Linux 6.2.
    can_expire: AtomicBool,
}

impl KnownNodes {
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    pub(super) fn set_can_expire(&self, expires: bool) {
        self.can_expire.store(expires, Ordering::Relaxed);
    }

    pub(super) fn can_expire(&self) -> bool {
        self.can_expire.load(Ordering::Relaxed)
    }

    /// Counts a lookup that was answered. `untracked` says whether the kernel may open the file without a
    /// request.
    pub(super) fn note_lookup(&self, node: NodeId, untracked: bool) {
        let mut nodes = self.lock();
        let lookups = match nodes.find(node).is_some() {
            true => nodes.find(node),
            false => Some(nodes.add(node)),
        };
        if let Some(lookups) = lookups {
            (lookups.count, lookups.untracked) = (lookups.count.saturating_add(1), untracked);
        }
    }

    /// Notes whether the source could not say what the name of a node stands for.
    pub(super) fn set_in_doubt(&self, node: NodeId, in_doubt: bool) {
        if let Some(lookups) = self.lock().find(node) {
            lookups.in_doubt = in_doubt;
        }
    }

    pub(super) fn is_in_doubt(&self, node: NodeId) -> bool {
        self.lock().find(node).is_some_and(|lookups| lookups.in_doubt)
    }

    /// Notes that the kernel has to ask before it opens the file. Returns whether the file was untracked until
    /// then.
    pub(super) fn take_untracked(&self, node: NodeId) -> bool {
        self.lock().find(node).is_some_and(|lookups| std::mem::take(&mut lookups.untracked))
    }

    pub(super) fn forget(&self, node: NodeId, lookups: u64) {
        let mut nodes = self.lock();
        let Some(known) = nodes.find(node) else { return };
        known.count = known.count.saturating_sub(u32::try_from(lookups).unwrap_or(u32::MAX));
        if known.count == 0 {
            nodes.others.remove(&node.0);
            nodes.known -= 1;
        }
    }

    /// Whether the kernel knows a node and, if `untracked`, opens it without a request.
    pub(super) fn contains(&self, node: NodeId, untracked: bool) -> bool {
        self.lock().find(node).is_some_and(|lookups| lookups.untracked || !untracked)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FileId;

    #[test]
    fn a_doubt_lasts_until_it_is_settled_or_the_node_is_forgotten() {
        let (known, node) = (KnownNodes::default(), NodeId::new(FileId(3), 0));
        known.set_in_doubt(node, true);
        assert!(!known.is_in_doubt(node), "it is not known");
        let renew = || {
            known.note_lookup(node, false);
            known.set_in_doubt(node, true);
            known.note_lookup(node, true);
            assert!(known.is_in_doubt(node), "our own threads look up what is in doubt");
        };
        renew();
        known.set_in_doubt(node, false);
        assert!(!known.is_in_doubt(node));
        renew();
        known.forget(node, u64::MAX);
        known.note_lookup(node, false);
        assert!(!known.is_in_doubt(node));
    }

    #[test]
    fn a_node_is_known_until_all_its_lookups_are_forgotten() {
        let known = KnownNodes::default();
        let nodes = [NodeId::new(FileId(5), 0), NodeId::new(FileId(5), 1), NodeId(u64::MAX - 1)];
        for (count, node) in nodes.into_iter().enumerate() {
            assert!(!known.contains(node, false));
            known.note_lookup(node, false);
            known.note_lookup(node, true);
            assert_eq!(known.len(), count + 1);
            assert!(known.contains(node, true));
        }
        assert!(known.take_untracked(nodes[1]) && !known.take_untracked(nodes[1]));
        assert!(known.contains(nodes[0], true) && !known.contains(nodes[1], true));
        known.forget(nodes[0], 2);
        known.forget(nodes[0], 7);
        known.forget(nodes[1], 1);
        assert!(!known.contains(nodes[0], false) && known.contains(nodes[1], false));
        known.note_lookup(nodes[1], true);
        known.forget(nodes[1], 2);
        known.forget(nodes[2], u64::MAX);
        assert!(nodes.into_iter().all(|node| !known.contains(node, false)));
        assert_eq!(known.len(), 0);
    }
}

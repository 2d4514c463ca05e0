//! Which version's bytes a node gives.
//!
//! A node stands for one version of a file. When the file changes, the node gives the bytes of the new
//! version from then on in two cases:
//!
//! 1. Nothing was handed out for the node. Its reader sees a file that was always so.
//! 2. The new bytes are those that were handed out: only times, owners or attributes have changed. This
//!    is found out by a checksum when the new bytes come, for files of less than a block.
//!
//! Else it gives those of its own version as long as they can be had, and then `ESTALE`.

use nix::errno::Errno;

use super::node::NodeId;
use super::tree::{Tree, content};
use super::{Attr, Catalog};
use crate::ids::{BLOCK_BYTES, FileId};

impl Tree {
    /// The row whose present version a node gives, as [`resolve`](Self::resolve) but for versions of
    /// which nothing was handed out.
    pub(super) fn serve(&self, node: NodeId) -> Result<FileId, Errno> {
        let present = self.resolve(node);
        let Some(file) = node.file().filter(|_| present.is_err()) else { return present };
        let (Some(oldest), Some(row)) = (self.oldest.get(&file), self.get(file)) else {
            return present;
        };
        let ages = [node.version(), *oldest].map(|version| row.version.wrapping_sub(version));
        if ages[0] <= ages[1] { Ok(file) } else { present }
    }

    /// Gives a file another version. The nodes of earlier ones give its bytes, too, if nothing was handed
    /// out for them, or as long as those bytes may turn out to be the same. They do not if it has another
    /// size: the kernel cuts a file at the size that it knows for the node, and fills it up to that with
    /// zeros.
    pub(super) fn renew(&mut self, file: FileId, is_resized: bool) {
        let row = self.row_mut(file);
        let past = row.version;
        row.version = past.wrapping_add(1);
        let was_handed_out = self.handed_out.set(file, false);
        let is_summed = content(&self.stat(file)) < BLOCK_BYTES;
        if is_resized || was_handed_out && !is_summed {
            self.oldest.remove(&file);
            self.doubtful.set(file, false);
        } else {
            self.oldest.entry(file).or_insert(past);
            if was_handed_out {
                self.doubtful.set(file, true);
            }
        }
    }

    /// The bytes of a version have come, of which nothing was handed out yet: earlier nodes give them if
    /// they are what was handed out for these.
    fn settle(&mut self, file: FileId, sum: u32) {
        if self.doubtful.set(file, false) && self.sums.get(file) != sum {
            self.oldest.remove(&file);
        }
    }
}

impl Catalog {
    /// The node whose bytes a node gives, its file and its size: that of the present version, unless
    /// bytes of another version were handed out for the node.
    ///
    /// # Errors
    /// `ESTALE` for a version that is past, and for a file that is gone.
    pub fn served(&self, node: NodeId) -> Result<(NodeId, FileId, u64), Errno> {
        let tree = self.read();
        let file = tree.serve(node)?;
        let there = tree.is_there(file).then(|| (tree.node(file), file, tree.stat(file).size));
        there.ok_or(Errno::ESTALE)
    }

    /// Notes that bytes of a node are handed out: from then on it gives no others. `sum` is the checksum
    /// of a whole file of less than a block. Says whether these bytes may be handed out, which they may
    /// not if the node gives those of a later version already.
    pub fn hand_out(&self, node: NodeId, sum: Option<u32>) -> bool {
        if let Some(sum) = sum {
            self.settle(node, sum);
        }
        let tree = self.read();
        match (tree.resolve(node), tree.serve(node)) {
            (Ok(file), _) => {
                if let Some(sum) = sum {
                    tree.sums.set(file, sum);
                }
                tree.handed_out.set(file, true);
                true
            }
            (Err(_), served) => served.is_err(),
        }
    }

    fn settle(&self, node: NodeId, sum: u32) {
        let is_doubtful =
            |tree: &Tree| tree.resolve(node).is_ok_and(|file| tree.doubtful.has(file));
        if is_doubtful(&self.read()) {
            let mut tree = self.write();
            if let Ok(file) = tree.resolve(node) {
                tree.settle(file, sum);
            }
        }
    }

    /// Whether the file of a node has several names in the tree.
    pub fn is_shared(&self, node: NodeId) -> bool {
        let tree = self.read();
        tree.serve(node).is_ok_and(|file| tree.is_shared(file))
    }

    /// Whether a node is the present version of its file.
    pub fn is_present(&self, node: NodeId) -> bool {
        self.read().resolve(node).is_ok()
    }

    /// Attributes of what a node [gives](Self::served).
    ///
    /// # Errors
    /// `ESTALE` where that is nothing any more.
    pub fn served_attr(&self, node: NodeId) -> Result<Attr, Errno> {
        let tree = self.read();
        Ok(self.attr(&tree, tree.serve(node)?))
    }
}

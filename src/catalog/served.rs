//! Which version's bytes a node gives.
//!
//! A node stands for one version of a file. When the file changes and has the same size as before, the
//! node gives the bytes of the new version from then on in two cases:
//!
//! 1. Nothing was handed out for the node. Its reader sees a file that was always so.
//! 2. The new bytes are those that were handed out: only times, owners or attributes have changed. This
//!    is found out by the checksum of each block that was handed out, when its new bytes come; of a block
//!    that is read in parts, by those of the pages. Who reads something else of the file waits for that.
//!
//! Else it gives those of its own version as long as they can be had, and then `ESTALE`.

use std::sync::Arc;

use nix::errno::Errno;

use super::node::NodeId;
use super::pages::Pages;
use super::tree::Tree;
use super::{Attr, Catalog};
use crate::ids::{BlockId, FileId, PageRange};
use crate::plan::Layout;

/// So many blocks of a file are read again at most to find out whether they are the same: a gibibyte. A
/// reader waits for it.
const PROVED_MAX: usize = 1024;

/// Bytes of a block that are handed out.
#[derive(Clone, Copy, Debug)]
pub struct Handed<'b> {
    pub block: BlockId,
    /// Which pages of it they are; none: they are all of it.
    pub pages: Option<PageRange>,
    pub bytes: &'b [u8],
}

/// What a node gives.
#[derive(Clone, Debug)]
pub struct Served {
    /// The node of the version whose bytes it gives.
    pub node: NodeId,
    pub file: FileId,
    /// Bytes of the file.
    pub size: u64,
    /// The blocks that files are cut into.
    pub layout: Arc<Layout>,
}

/// Bytes that may be handed out.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// As of [`Catalog::is_settled`].
    pub is_settled: bool,
}

/// The checksums of bytes that are handed out.
enum Summed {
    Block(u32),
    Pages(Pages),
}

impl Handed<'_> {
    fn summed(&self) -> Summed {
        match self.pages {
            None => Summed::Block(crc32c::crc32c(self.bytes)),
            Some(_) => Summed::Pages(self.by_page()),
        }
    }

    fn by_page(&self) -> Pages {
        Pages::of(self.pages, self.bytes)
    }
}

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
        let is_unsummed = self.unsummed.set(file, false);
        let blocks = self.layout.blocks_of(file);
        let has = |block: &BlockId| self.sums.has(*block) || self.pages.has(*block);
        let handed_out: Vec<BlockId> = blocks.filter(has).collect();
        if is_resized || is_unsummed || handed_out.len() > PROVED_MAX {
            self.oldest.remove(&file);
            self.forget(handed_out);
        } else {
            self.oldest.entry(file).or_insert(past);
            self.unproved.extend(handed_out);
        }
    }

    /// Blocks of a file that were handed out of an earlier version alone.
    fn unproved_of(&self, file: FileId) -> impl Iterator<Item = BlockId> + '_ {
        let mut blocks = self.layout.blocks_of(file);
        let (count, first) = (blocks.len() as u32, blocks.next().unwrap_or(BlockId(0)));
        self.unproved.range(first..BlockId(first.0 + count)).copied()
    }

    /// No node gives any more what was handed out of these blocks.
    fn forget(&mut self, blocks: Vec<BlockId>) {
        for block in blocks {
            self.unproved.remove(&block);
            self.sums.forget(block);
            self.pages.forget(block);
        }
    }

    /// Bytes of a block have come: earlier nodes of its file give the present bytes only if these are what
    /// was handed out for them. A block is known to be the same when all of it has come.
    fn prove(&mut self, file: FileId, block: BlockId, whole: Option<u32>, pages: &Pages) {
        let is_same = match whole.filter(|_| self.sums.has(block)) {
            Some(sum) => self.sums.is(block, sum),
            None => self.pages.agree(block, pages),
        };
        if is_same && whole.is_some() {
            self.unproved.remove(&block);
        } else if !is_same && self.unproved.contains(&block) {
            self.oldest.remove(&file);
            let blocks: Vec<BlockId> = self.unproved_of(file).collect();
            // Pages may be among them that were handed out of the present version.
            if blocks.iter().any(|block| self.pages.has(*block)) {
                self.unsummed.set(file, true);
            }
            self.forget(blocks);
        }
    }

    /// All of a block of a file is handed out, or pages are.
    fn note(&self, file: FileId, block: BlockId, summed: &Summed) {
        match summed {
            Summed::Block(sum) => {
                self.sums.set(block, *sum);
                self.pages.forget(block);
            }
            Summed::Pages(pages) => {
                let known = self.sums.has(block) && !self.unproved.contains(&block);
                if !known && !self.unsummed.has(file) && !self.note_pages(file, block, pages) {
                    self.unsummed.set(file, true);
                    self.layout.blocks_of(file).for_each(|block| self.pages.forget(block));
                }
            }
        }
    }

    fn note_pages(&self, file: FileId, block: BlockId, pages: &Pages) -> bool {
        let mut blocks = self.layout.blocks_of(file);
        let (count, first) = (blocks.len() as u32, blocks.next().unwrap_or(block));
        self.pages.note(block, pages, first..BlockId(first.0 + count), PROVED_MAX)
    }
}

impl Catalog {
    /// The node whose bytes a node gives, its file and its size: that of the present version, unless
    /// bytes of another version were handed out for the node.
    ///
    /// # Errors
    /// `ESTALE` for a version that is past, and for a file that is gone.
    pub fn served(&self, node: NodeId) -> Result<Served, Errno> {
        let tree = self.read();
        let file = tree.serve(node)?;
        let there = tree.is_there(file).then(|| Served {
            node: tree.node(file),
            file,
            size: tree.stat(file).size,
            layout: Arc::clone(&tree.layout),
        });
        there.ok_or(Errno::ESTALE)
    }

    /// Blocks of a node that were handed out of earlier versions alone. What else there is of it may only
    /// be given for nodes of these versions if these blocks turn out to be the same.
    pub fn unproved(&self, node: NodeId) -> Vec<BlockId> {
        let tree = self.read();
        tree.resolve(node).map_or(Vec::new(), |file| tree.unproved_of(file).collect())
    }

    /// Bytes of a node have come and are handed out: from then on it gives no others. If they are the
    /// source's, its read began at this tick or later, and has seen the version. None if they may not be
    /// handed out, since the node gives those of a later version already.
    pub fn receive(
        &self,
        node: NodeId,
        handed: &Handed<'_>,
        began: Option<u32>,
    ) -> Option<Received> {
        let summed = handed.summed();
        let mut tree = self.read();
        if tree.resolve(node).is_ok() && tree.unproved.contains(&handed.block) {
            drop(tree);
            self.prove(node, handed, &summed);
            tree = self.read();
        }
        let Ok(file) = tree.resolve(node) else {
            let is_settled = self.period.is_none();
            return tree.serve(node).is_err().then_some(Received { is_settled });
        };
        tree.note(file, handed.block, &summed);
        if let Some(began) = began.filter(|_| !tree.is_unsettled(file)) {
            tree.unchanged(file, began);
        }
        Some(Received { is_settled: self.has_settled(&tree, file) })
    }

    /// Any bytes of a node may be handed out from now on. Says whether they may, as
    /// [`receive`](Self::receive) does.
    pub fn hand_out_any(&self, node: NodeId) -> bool {
        let tree = self.read();
        match tree.resolve(node) {
            Ok(file) => {
                tree.unsummed.set(file, true);
                true
            }
            Err(_) => tree.serve(node).is_err(),
        }
    }

    /// The present version of a file may be another one than before, of which a block was handed out.
    fn prove(&self, node: NodeId, handed: &Handed<'_>, summed: &Summed) {
        let pages = handed.by_page();
        let whole = match summed {
            Summed::Block(sum) => Some(*sum),
            Summed::Pages(_) => None,
        };
        let mut tree = self.write();
        if let Ok(file) = tree.resolve(node) {
            tree.prove(file, handed.block, whole, &pages);
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

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::catalog::tests::{Gated, node_of};
    use crate::ids::BLOCK_BYTES;

    /// A file of one block more than are compared.
    struct Stand(tempfile::TempDir, Catalog);

    impl Stand {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let file = File::create(root.path().join("file")).unwrap();
            file.set_len((PROVED_MAX as u64 + 1) * BLOCK_BYTES).unwrap();
            let period = Some(Duration::from_secs(60));
            let catalog = Catalog::scan(Gated::new(root.path(), "none"), 1, period).unwrap();
            Stand(root, catalog)
        }

        /// Gives the file another time; its node.
        fn touch(&self, seconds: u64) -> NodeId {
            let file = File::options().write(true).open(self.0.path().join("file")).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
            self.1.refresh(NodeId::ROOT, OsStr::new("file")).unwrap();
            node_of(&self.1, "file")
        }

        /// Hands a block out, or pages of it, with these bytes.
        fn give(&self, node: NodeId, block: BlockId, pages: Option<PageRange>, bytes: u32) {
            let bytes = &bytes.to_le_bytes();
            assert!(self.1.receive(node, &Handed { block, pages, bytes }, None).is_some());
        }

        /// Hands so many blocks out, which all have these bytes.
        fn hand_out(&self, node: NodeId, count: usize, bytes: u32) {
            let (file, _) = self.1.file(node).unwrap();
            for block in self.1.layout().blocks_of(file).take(count) {
                self.give(node, block, None, bytes);
            }
        }
    }

    #[test]
    fn a_file_of_which_very_much_was_handed_out_is_not_compared() {
        let stand = Stand::new();
        let catalog = &stand.1;
        for (count, is_compared) in [(PROVED_MAX, true), (PROVED_MAX + 1, false)] {
            let before = node_of(catalog, "file");
            stand.hand_out(before, count, 0);
            let after = stand.touch(count as u64);
            assert_eq!(catalog.served(before).is_ok(), is_compared);
            assert_eq!(catalog.unproved(after).len(), if is_compared { count } else { 0 });
        }
    }

    #[test]
    fn one_block_that_is_another_makes_it_another_file() {
        let stand = Stand::new();
        let catalog = &stand.1;
        let first = node_of(catalog, "file");
        stand.hand_out(first, 3, 7);
        let second = stand.touch(1);
        stand.hand_out(second, 2, 7);
        assert_eq!(catalog.served(first).unwrap().node, second, "nothing speaks against it");
        let third = stand.touch(2);
        assert_eq!(catalog.unproved(third).len(), 3);
        stand.hand_out(third, 1, 8);
        for past in [first, second] {
            assert_eq!(catalog.served(past).err(), Some(Errno::ESTALE));
        }
        assert!(catalog.unproved(third).is_empty(), "there is nobody to know it for");
        let fourth = stand.touch(3);
        assert_eq!(catalog.unproved(fourth).len(), 1, "of what was handed out of the third");
        stand.hand_out(fourth, 1, 8);
        assert_eq!(catalog.served(third).unwrap().node, fourth);
    }

    #[test]
    fn what_was_handed_out_without_a_checksum_is_not_compared() {
        let stand = Stand::new();
        let first = node_of(&stand.1, "file");
        stand.hand_out(first, 1, 7);
        assert!(stand.1.hand_out_any(first));
        let second = stand.touch(1);
        assert_eq!(stand.1.served(first).err(), Some(Errno::ESTALE));
        stand.hand_out(second, 1, 7);
        let third = stand.touch(2);
        assert_eq!(stand.1.served(second).unwrap().node, third);
    }
    const FIRST: Option<PageRange> = Some(PageRange { first: 0, count: 1 });
    const SECOND: Option<PageRange> = Some(PageRange { first: 1, count: 1 });

    #[test]
    fn pages_that_were_handed_out_are_compared_when_their_block_has_come() {
        let stand = Stand::new();
        let (catalog, block) = (&stand.1, stand.1.layout().blocks_of(FileId(1)).next().unwrap());
        let first = node_of(catalog, "file");
        assert_eq!(catalog.file(first).unwrap().0, FileId(1));
        stand.give(first, block, FIRST, 7);
        let second = stand.touch(1);
        assert_eq!(catalog.unproved(second), [block]);
        // That one page is the same says nothing of others.
        stand.give(second, block, FIRST, 7);
        stand.give(second, block, SECOND, 8);
        assert_eq!(catalog.unproved(second), [block]);
        stand.give(second, block, None, 7);
        assert!(catalog.unproved(second).is_empty());
        assert_eq!(catalog.served(first).unwrap().node, second);
        // Of a block that is known whole no pages need to be noted.
        stand.give(second, block, SECOND, 8);
        assert!(!catalog.read().pages.has(block));
        let third = stand.touch(2);
        stand.give(third, block, None, 7);
        assert_eq!(catalog.served(first).unwrap().node, third);
    }

    #[test]
    fn one_page_that_is_another_makes_it_another_file() {
        let stand = Stand::new();
        let (catalog, block) = (&stand.1, stand.1.layout().blocks_of(FileId(1)).next().unwrap());
        for pages in [FIRST, None] {
            let first = node_of(catalog, "file");
            stand.give(first, block, FIRST, 7);
            let second = stand.touch(1 + u64::from(pages.is_none()));
            stand.give(second, block, SECOND, 8);
            stand.give(second, block, pages, 9);
            assert_eq!(catalog.served(first).err(), Some(Errno::ESTALE));
            // Which of the pages were of the second version is not known any more.
            let third = stand.touch(3 + u64::from(pages.is_none()));
            assert_eq!(catalog.served(second).err(), Some(Errno::ESTALE));
            assert!(catalog.unproved(third).is_empty());
        }
    }

    #[test]
    fn a_file_of_which_pages_of_very_many_blocks_were_handed_out_is_not_compared() {
        let stand = Stand::new();
        let before = node_of(&stand.1, "file");
        for block in stand.1.layout().blocks_of(FileId(1)) {
            stand.give(before, block, FIRST, 7);
        }
        assert!(
            stand.1.layout().blocks_of(FileId(1)).all(|block| !stand.1.read().pages.has(block))
        );
        stand.touch(1);
        assert_eq!(stand.1.served(before).err(), Some(Errno::ESTALE));
    }
}

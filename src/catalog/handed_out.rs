//! What was handed out of each file, and so which version's bytes a node gives.
//!
//! A node stands for one version of a file. If the file changes and keeps its size, the node gives the bytes
//! of the new version from then on in two cases:
//!
//! 1. Nothing was handed out for the node. Its reader sees a file that was always so.
//! 2. The new bytes are those that were handed out: only times, owners or attributes have changed. That is
//!    known by the checksums of blocks, or of pages, when the new bytes of each block that was handed out
//!    have come. Who reads something else of the file waits for that.
//!
//! Else it gives those of its own version as long as they can be had, and then `ESTALE`.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::Bits;
use super::sums::{PageSums, Pages, Sums};
use crate::ids::{BlockId, FileId, PageRange};
use crate::plan::Layout;

/// At most so many blocks of a file are read again to find out whether they are the same: a gibibyte. A
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

/// The checksums of bytes that are handed out.
pub(super) enum Summed {
    Block(u32),
    Pages(Pages),
}

impl Handed<'_> {
    pub(super) fn summed(&self) -> Summed {
        match self.pages {
            None => Summed::Block(crc32c::crc32c(self.bytes)),
            Some(_) => Summed::Pages(self.by_page()),
        }
    }

    pub(super) fn by_page(&self) -> Pages {
        Pages::of(self.pages, self.bytes)
    }
}

/// What was handed out of each file.
#[derive(Debug, Default)]
pub(super) struct HandedOut {
    /// Files of whose present version something was handed out that has no checksum.
    unsummed: Bits,
    /// The first version whose node gives the present version's bytes, if that is an earlier one.
    oldest: HashMap<FileId, u16>,
    /// Blocks of which bytes of an earlier version were handed out, if it is not known yet whether the
    /// present version has the same.
    unproved: BTreeSet<BlockId>,
    /// Checksums of the blocks that were handed out, and of pages of those that are read in parts.
    sums: Sums,
    pages: PageSums,
}

/// The blocks of a file.
fn span_of(layout: &Layout, file: FileId) -> Range<BlockId> {
    let mut blocks = layout.blocks_of(file);
    let (count, first) = (blocks.len() as u32, blocks.next().unwrap_or(BlockId(0)));
    first..BlockId(first.0 + count)
}

impl HandedOut {
    /// Whether the node of an earlier version gives the bytes of the present one.
    pub(super) fn gives(&self, file: FileId, version: u16, present: u16) -> bool {
        let oldest = self.oldest.get(&file);
        oldest.is_some_and(|first| present.wrapping_sub(version) <= present.wrapping_sub(*first))
    }

    /// A file has another version than `past`. The nodes of earlier ones give its bytes if nothing was handed
    /// out for them, or as long as those bytes may turn out to be the same. They do not if it has another
    /// size: the kernel cuts a file at the size that it knows for the node, and fills it up to that with
    /// zeros.
    pub(super) fn renew(&mut self, layout: &Layout, file: FileId, past: u16, is_resized: bool) {
        let is_unsummed = self.unsummed.set(file, false);
        let has = |block: &BlockId| self.sums.has(*block) || self.pages.has(*block);
        let handed_out: Vec<BlockId> = layout.blocks_of(file).filter(has).collect();
        if is_resized || is_unsummed || handed_out.len() > PROVED_MAX {
            self.oldest.remove(&file);
            self.forget(handed_out);
        } else {
            self.oldest.entry(file).or_insert(past);
            self.unproved.extend(handed_out);
        }
    }

    /// A file has other blocks than in this layout, and the same bytes. What was handed out of it is not known by
    /// block any more.
    pub(super) fn forget_blocks(&mut self, layout: &Layout, file: FileId) {
        let has = |block: &BlockId| self.sums.has(*block) || self.pages.has(*block);
        let handed_out: Vec<BlockId> = layout.blocks_of(file).filter(has).collect();
        if !self.unproved_of(layout, file).is_empty() {
            self.oldest.remove(&file);
        }
        if !handed_out.is_empty() {
            self.unsummed.set(file, true);
        }
        self.forget(handed_out);
    }

    /// Whether a block was handed out of an earlier version alone.
    pub(super) fn is_unproved(&self, block: BlockId) -> bool {
        self.unproved.contains(&block)
    }

    /// Blocks of a file that were handed out of an earlier version alone.
    pub(super) fn unproved_of(&self, layout: &Layout, file: FileId) -> Vec<BlockId> {
        self.unproved.range(span_of(layout, file)).copied().collect()
    }

    /// No node gives any more what was handed out of these blocks.
    fn forget(&mut self, blocks: Vec<BlockId>) {
        for block in blocks {
            self.unproved.remove(&block);
            self.sums.forget(block);
            self.pages.forget(block);
        }
    }

    /// Bytes of the present version have come, with these checksums of their pages. The nodes of earlier
    /// versions give the present bytes only if these were handed out for them. A block is known to be the
    /// same when all of it has come.
    pub(super) fn prove(
        &mut self,
        layout: &Layout,
        file: FileId,
        block: BlockId,
        summed: &Summed,
        pages: &Pages,
    ) {
        let is_same = match summed {
            Summed::Block(sum) if self.sums.has(block) => self.sums.is(block, *sum),
            _ => self.pages.agree(block, pages),
        };
        if is_same && matches!(summed, Summed::Block(_)) {
            self.unproved.remove(&block);
        } else if !is_same && self.is_unproved(block) {
            self.oldest.remove(&file);
            let blocks = self.unproved_of(layout, file);
            // Pages may be among them that were handed out of the present version.
            if blocks.iter().any(|block| self.pages.has(*block)) {
                self.unsummed.set(file, true);
            }
            self.forget(blocks);
        }
    }

    /// All of a block of a file is handed out, or pages are.
    pub(super) fn note(&self, layout: &Layout, file: FileId, block: BlockId, summed: &Summed) {
        if !layout.has(block) {
            // Its fetch began when the file had other blocks.
            self.unsummed.set(file, true);
            return;
        }
        match summed {
            Summed::Block(sum) => {
                self.sums.set(block, *sum);
                self.pages.forget(block);
            }
            Summed::Pages(pages) => {
                let is_known = self.sums.has(block) && !self.is_unproved(block);
                if is_known || self.unsummed.has(file) {
                    return;
                }
                if !self.pages.note(block, pages, span_of(layout, file), PROVED_MAX) {
                    self.unsummed.set(file, true);
                    layout.blocks_of(file).for_each(|block| self.pages.forget(block));
                }
            }
        }
    }

    /// Any bytes of a file may be handed out from now on.
    pub(super) fn note_any(&self, file: FileId) {
        self.unsummed.set(file, true);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use nix::errno::Errno;

    use super::*;
    use crate::catalog::tests::{Gated, MINUTE, node_of};
    use crate::catalog::{Catalog, NodeId, Received};
    use crate::ids::BLOCK_BYTES;
    use crate::order::{FileRange, Order, SampleTable};

    /// A file of one block more than are compared.
    struct Stand(tempfile::TempDir, Catalog);

    impl Stand {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let file = File::create(root.path().join("file")).unwrap();
            file.set_len((PROVED_MAX as u64 + 1) * BLOCK_BYTES).unwrap();
            let catalog = Catalog::scan(Gated::new(root.path(), "none"), 1, MINUTE).unwrap();
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
            let received = self.1.receive(node, &Handed { block, pages, bytes }, None);
            assert_ne!(received, Received::TooLate);
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

    /// Samples of a file of which blocks were handed out, or are on their way.
    #[test]
    fn what_was_handed_out_before_a_cut_is_not_compared() {
        let samples = || {
            let range = FileRange { file: FileId(1), offset: 0, length: 100_000 };
            let table = SampleTable::Ranges(vec![range]);
            Order::listed("ranges", vec![Arc::from([0])], table).unwrap()
        };
        for is_on_its_way in [false, true] {
            let stand = Stand::new();
            let catalog = &stand.1;
            let first = node_of(catalog, "file");
            let block = catalog.layout().blocks_of(FileId(1)).next().unwrap();
            if !is_on_its_way {
                stand.give(first, block, None, 7);
            }
            assert_eq!(catalog.cut_along(&samples()), [FileId(1)]);
            if is_on_its_way {
                stand.give(first, block, None, 7);
            }
            let second = stand.touch(1);
            assert_eq!(catalog.served(first).err(), Some(Errno::ESTALE), "{is_on_its_way}");
            // What is handed out of slices is compared.
            stand.hand_out(second, 1, 7);
            let third = stand.touch(2);
            assert_eq!(catalog.served(second).unwrap().node, third);
        }
        // An earlier version of which nothing was handed out stays served.
        let stand = Stand::new();
        let first = node_of(&stand.1, "file");
        let second = stand.touch(1);
        assert_eq!(stand.1.cut_along(&samples()), [FileId(1)]);
        assert_eq!(stand.1.served(first).unwrap().node, second);
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
        assert!(!catalog.read().handed_out.pages.has(block));
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
            stand.1.layout().blocks_of(FileId(1)).all(|block| !stand
                .1
                .read()
                .handed_out
                .pages
                .has(block))
        );
        stand.touch(1);
        assert_eq!(stand.1.served(before).err(), Some(Errno::ESTALE));
    }
}

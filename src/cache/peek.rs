//! What lies in the page cache, for readers who have no pages of their own.

use std::ops::Range;

use super::Cache;
use super::flight::Key;
use crate::catalog::{Located, NodeId};
use crate::ids::FileId;

impl Cache {
    /// Whether these bytes of a version of a file may lie in the page cache. Of what was never
    /// fetched none do, and what is on its way is to be waited for. Never blocks.
    pub fn may_peek(&self, node: NodeId, file: FileId, range: &Range<u64>) -> bool {
        let length = range.end.saturating_sub(range.start);
        let mut blocks = self.catalog.layout().blocks_in(file, range.start, length);
        let flights = self.lock();
        self.pages.get().is_some()
            && self.file_flags.is_fetched(file)
            && blocks.all(|block| !flights.contains_key(&Key::whole(block, node)))
    }

    /// Bytes of a version of a file, if all of them lie in the page cache. Blocks, as long as somebody
    /// else's read of the same pages takes.
    pub fn peek(&self, node: NodeId, range: &Range<u64>) -> Option<Vec<u8>> {
        let (file, _) = self.catalog.file(node).ok()?;
        let length = range.end.checked_sub(range.start)?;
        let block = self.catalog.layout().blocks_in(file, range.start, length).next()?;
        let located = self.catalog.locate(block).filter(|located| located.node == node)?;
        let at = Located { offset: range.start, length: length as usize, ..located };
        self.pages.get()?.read(&at).ok()
    }
}

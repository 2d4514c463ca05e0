//! Whole files, for who keeps copies of his own: past the page cache and the planner.

use std::sync::Arc;

use super::{Cache, Local};
use crate::catalog::{Located, NodeId};
use crate::ids::BlockId;
use crate::source::{ReadRequest, Urgency};

/// Takes the bytes of a file; none where they cannot be had.
pub type Taken = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// The bytes of blocks one after the other, if the store has them all. Blocks.
fn stored(local: &Arc<Local>, blocks: &[(BlockId, Located)]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(blocks.iter().map(|(_, at)| at.length).sum());
    for (block, located) in blocks {
        bytes.extend_from_slice(&local.get(*block, located)?);
    }
    Some(bytes)
}

impl Cache {
    /// Reads a version of a file, which is not empty: from the local store if it is all there, else
    /// from the source. Never waits: `taken` is called by the thread that brings the bytes, or
    /// dropped where that panics.
    pub fn whole(self: &Arc<Self>, node: NodeId, taken: Taken) {
        let Ok((file, length)) = self.catalog.file(node) else { return taken(None) };
        let blocks = self.catalog.layout().blocks_of(file);
        let located = |block| Some((block, self.catalog.locate(block).filter(|at| at.node == node)?));
        let blocks: Option<Vec<(BlockId, Located)>> = blocks.map(located).collect();
        let Some(blocks) = blocks.filter(|blocks| !blocks.is_empty()) else { return taken(None) };
        let held = |local: &&Arc<Local>| blocks.iter().all(|(block, at)| local.contains(*block, at));
        let Some(local) = self.local.as_ref().filter(held).map(Arc::clone) else {
            return self.whole_from_source(&blocks[0].1, length, taken);
        };
        let cache = Arc::clone(self);
        self.store_pool.submit(Urgency::Prefetch, move || match stored(&local, &blocks) {
            Some(bytes) => taken(Some(bytes)),
            None => cache.whole_from_source(&blocks[0].1, length, taken),
        });
    }

    fn whole_from_source(&self, first: &Located, length: u64, taken: Taken) {
        self.catalog.source().read(vec![ReadRequest {
            path: Arc::clone(&first.path),
            fingerprint: first.fingerprint,
            offset: 0,
            length: length as usize,
            urgency: Urgency::Prefetch,
            deliver: Box::new(|result| taken(result.ok())),
        }]);
    }
}

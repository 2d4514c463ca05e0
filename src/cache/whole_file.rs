//! Whole files, for a feature that keeps copies of its own: past the page cache and the planner.

use std::sync::Arc;

use super::memory::NO_FLIGHT;
use super::store_tier::StoreTier;
use super::{Cache, Charge};
use crate::catalog::{Catalog, Located, NodeId};
use crate::disk::Buffer;
use crate::ids::BlockId;
use crate::source::{ReadRequest, Urgency};
use crate::sync::Mutex;

/// Takes the bytes of a file; none if they cannot be had.
pub type Taken = Box<dyn FnOnce(Option<Buffer>) + Send>;

/// Reads a version of a file, which is not empty: from the local store if it is all there, else from the
/// source. Never waits: `taken` is called by the thread that brings the bytes, or dropped if that panics.
pub fn read_whole(cache: &Arc<Cache>, node: NodeId, taken: Taken) {
    let Some((blocks, length)) = blocks_of(&cache.catalog, node) else { return taken(None) };
    let first = blocks[0].1.clone();
    let taken = Mutex::new(Some(taken));
    let file = Arc::new(WholeFile { cache: Arc::clone(cache), first, length, taken });
    let holds = |tier: &&Arc<StoreTier>| {
        blocks.iter().all(|(_, at)| tier.holds(at)) && tier.claim_read(&file.first)
    };
    match cache.store_tier.as_ref().filter(holds) {
        Some(tier) => file.ask_store(Arc::clone(tier), blocks),
        None => file.ask_source(),
    }
}

/// Where the blocks of a version of a file are, and its length. None if it has none or is past, or if its length is not
/// known.
fn blocks_of(catalog: &Catalog, node: NodeId) -> Option<(Vec<(BlockId, Located)>, u64)> {
    let (file, _) = catalog.file(node).ok()?;
    let located =
        |block| Some((block, catalog.locate(block).filter(|at| at.node == node && at.is_sized)?));
    let blocks = catalog.layout().blocks_of(file).map(located).collect::<Option<Vec<_>>>()?;
    let length = blocks.first()?.1.fingerprint.size();
    Some((blocks, length))
}

/// A file that is being read.
pub(super) struct WholeFile {
    cache: Arc<Cache>,
    first: Located,
    length: u64,
    /// None once the source was asked instead of the store, or the bytes are there.
    taken: Mutex<Option<Taken>>,
}

impl WholeFile {
    fn take(&self) -> Option<Taken> {
        self.taken.lock().take()
    }

    fn ask_store(self: Arc<Self>, tier: Arc<StoreTier>, blocks: Vec<(BlockId, Located)>) {
        tier.note_whole_file(&self);
        let file = Arc::clone(&self);
        self.charge(move |charge| {
            let readers = Arc::clone(&tier);
            readers.readers.submit(Urgency::Prefetch, move || match stored(&tier, &blocks) {
                Some(bytes) => {
                    if let Some(taken) = file.take() {
                        taken(Some(Buffer::from(bytes).holding(charge.fetched())));
                    }
                }
                None => {
                    drop(charge);
                    file.ask_source();
                }
            });
        });
    }

    /// Asks the source, unless it was asked already, or the bytes are there.
    pub(super) fn ask_source(&self) {
        let Some(taken) = self.take() else { return };
        let (cache, length) = (Arc::clone(&self.cache), self.length as usize);
        let (path, fingerprint) = (Arc::clone(&self.first.path), self.first.fingerprint);
        self.charge(move |charge| {
            cache.source.read(vec![ReadRequest {
                path,
                fingerprint,
                is_sized: true,
                exact: cache.catalog.is_revalidated(),
                offset: 0,
                length,
                urgency: Urgency::Prefetch,
                deliver: Box::new(|result| {
                    let charged = |bytes| Buffer::from(bytes).holding(charge.fetched());
                    taken(result.ok().map(charged));
                }),
            }]);
        });
    }

    /// Has the memory charged that the file takes, and then its read begin.
    fn charge(&self, begin: impl FnOnce(Charge) + Send + 'static) {
        self.cache.memory.admit(
            NO_FLIGHT..=NO_FLIGHT,
            Urgency::Prefetch,
            self.length as usize,
            begin,
        );
    }
}

/// The bytes of blocks one after the other, if the store has all of them. Blocks.
fn stored(tier: &Arc<StoreTier>, blocks: &[(BlockId, Located)]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(blocks.iter().map(|(_, at)| at.length).sum());
    let begin = blocks.first().map_or(0, |(_, at)| at.offset);
    for (block, located) in blocks {
        // Slices share pages.
        bytes.truncate((located.offset - begin) as usize);
        bytes.extend_from_slice(&tier.get(*block, located)?);
    }
    Some(bytes)
}

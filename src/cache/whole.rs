//! Whole files, for who keeps copies of his own: past the page cache and the planner.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Cache, Charge, Local};
use crate::catalog::{Located, NodeId};
use crate::disk::Buffer;
use crate::ids::BlockId;
use crate::source::{ReadRequest, Urgency};
use crate::sync::Mutex;

/// Takes the bytes of a file; none where they cannot be had.
pub type Taken = Box<dyn FnOnce(Option<Buffer>) + Send>;

/// A file that is being read from the local store.
struct Whole {
    first: Located,
    length: u64,
    /// None where the source was asked instead.
    taken: Mutex<Option<Taken>>,
}

impl Whole {
    fn take(&self) -> Option<Taken> {
        self.taken.lock().take()
    }
}

/// Files that are being read from the local store, and some that were.
#[derive(Default)]
pub(super) struct Wholes(Mutex<Vec<Weak<Whole>>>);

impl Wholes {
    fn note(&self, whole: &Arc<Whole>) {
        let mut all = self.0.lock();
        all.retain(|whole| whole.strong_count() > 0);
        all.push(Arc::downgrade(whole));
    }

    fn take(&self) -> Vec<Weak<Whole>> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The bytes of blocks one after the other, or the first block that the store does not have. Blocks.
fn stored(
    cache: &Arc<Cache>,
    local: &Arc<Local>,
    blocks: &[(BlockId, Located)],
) -> Result<Vec<u8>, BlockId> {
    let mut bytes = Vec::with_capacity(blocks.iter().map(|(_, at)| at.length).sum());
    for (block, located) in blocks {
        bytes.extend_from_slice(&local.get(cache, *block, located).ok_or(*block)?);
    }
    Ok(bytes)
}

impl Cache {
    /// Reads a version of a file, which is not empty: from the local store if it is all there, else
    /// from the source. Never waits: `taken` is called by the thread that brings the bytes, or
    /// dropped where that panics.
    pub fn whole(self: &Arc<Self>, node: NodeId, taken: Taken) {
        let Ok((file, length)) = self.catalog.file(node) else { return taken(None) };
        let blocks = self.catalog.layout().blocks_of(file);
        let located =
            |block| Some((block, self.catalog.locate(block).filter(|at| at.node == node)?));
        let blocks: Option<Vec<(BlockId, Located)>> = blocks.map(located).collect();
        let Some(blocks) = blocks.filter(|blocks| !blocks.is_empty()) else { return taken(None) };
        let held = |local: &&Arc<Local>| {
            blocks.iter().all(|(_, at)| local.holds(at)) && local.claim_read(&blocks[0].1)
        };
        let Some(local) = self.local.as_ref().filter(held).map(Arc::clone) else {
            return self.whole_from_source(&blocks[0].1, length, taken);
        };
        let whole =
            Arc::new(Whole { first: blocks[0].1.clone(), length, taken: Mutex::new(Some(taken)) });
        self.wholes.note(&whole);
        self.charge_whole(length, move |cache, charge| {
            let on = Arc::clone(cache);
            cache.store_pool.submit(Urgency::Prefetch, move || {
                let cache = on;
                let bytes = stored(&cache, &local, &blocks);
                if let Err(block) = bytes {
                    cache.lost(block, local.tier);
                }
                match (whole.take(), bytes) {
                    (Some(taken), Ok(bytes)) => {
                        taken(Some(Buffer::from(bytes).holding(charge.fetched())))
                    }
                    (Some(taken), Err(_)) => {
                        drop(charge);
                        cache.whole_from_source(&whole.first, length, taken);
                    }
                    (None, _) => {}
                }
            });
        });
    }

    /// Has the memory charged that a whole file takes, and then its read begin.
    fn charge_whole(
        self: &Arc<Self>,
        length: u64,
        begin: impl FnOnce(&Arc<Self>, Charge) + Send + 'static,
    ) {
        let (cache, number) =
            (Arc::clone(self), self.flights_begun.fetch_add(1, Ordering::Relaxed));
        let begin = move |charge| begin(&cache, charge);
        self.memory.admit(number, Urgency::Prefetch, length as usize, begin);
    }

    /// The source is asked for what waits for a cache disk that hangs.
    pub(super) fn rescue_wholes(self: &Arc<Self>) {
        for whole in self.wholes.take().iter().filter_map(Weak::upgrade) {
            if let Some(taken) = whole.take() {
                self.whole_from_source(&whole.first, whole.length, taken);
            }
        }
    }

    fn whole_from_source(self: &Arc<Self>, first: &Located, length: u64, taken: Taken) {
        let (path, fingerprint) = (Arc::clone(&first.path), first.fingerprint);
        self.charge_whole(length, move |cache, charge| {
            cache.source.read(vec![ReadRequest {
                path,
                fingerprint,
                exact: cache.catalog.is_revalidated(),
                offset: 0,
                length: length as usize,
                urgency: Urgency::Prefetch,
                deliver: Box::new(|result| {
                    let charged = |bytes| Buffer::from(bytes).holding(charge.fetched());
                    taken(result.ok().map(charged));
                }),
            }]);
        });
    }
}

//! Which blocks of the catalog the store holds, and by which key.
//!
//! The store knows only keys of versions. At the start every block of the catalog is looked up.

use std::collections::HashSet;
use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use crate::catalog::{Catalog, Located};
use crate::ids::BlockId;
use crate::plan::Layout;
use crate::store::{Key, Store};
use crate::sync::RwLock;

/// Keys that the store is asked for at once. Each lies elsewhere in memory: a processor waits for
/// several at a time if nothing else comes in between.
const ASKED_AT_ONCE: usize = 1024;

/// Rows that are worth a thread of their own: a millisecond.
const ROWS_MIN: usize = 1 << 12;

/// Blocks that the store holds.
struct Looked {
    found: Vec<(BlockId, Key)>,
    /// Whether the keys of all blocks are known.
    is_all: bool,
}

pub(super) struct StoredBlocks {
    catalog: Arc<Catalog>,
    store: Arc<Store>,
    keys: RwLock<Vec<Option<Key>>>,
}

impl StoredBlocks {
    pub(super) fn new(catalog: Arc<Catalog>, store: Arc<Store>) -> Self {
        StoredBlocks { catalog, store, keys: RwLock::default() }
    }

    /// The key that a version of a block has.
    pub(super) fn key_of(&self, at: &Located) -> Key {
        self.store.key(&at.path, &at.copied_version(), at.offset)
    }

    /// The key by which a block is stored.
    pub(super) fn get(&self, block: BlockId) -> Option<Key> {
        self.keys.read().get(block.index()).copied().flatten()
    }

    /// The keys of blocks, if all of them are stored.
    pub(super) fn get_all(&self, blocks: impl Iterator<Item = BlockId>) -> Option<Vec<Key>> {
        let keys = self.keys.read();
        blocks.map(|block| keys.get(block.index()).copied().flatten()).collect()
    }

    pub(super) fn set(&self, block: BlockId, key: Option<Key>) {
        let mut keys = self.keys.write();
        if keys.len() <= block.index() {
            keys.resize(block.index() + 1, None);
        }
        keys[block.index()] = key;
    }

    /// Looks every block up. Returns those that were not known to be stored, in the order of their
    /// numbers, and the keys of no block if `all_known`. If the keys of some blocks are not known yet, no keys are returned.
    pub(super) fn look_up_all(&self, all_known: bool) -> (Vec<BlockId>, Vec<Key>) {
        let layout = self.catalog.layout();
        if self.store.totals().0 == 0 {
            return Default::default();
        }
        let mut keys = self.keys.read().clone();
        keys.resize(keys.len().max(layout.blocks()), None);
        let Looked { found, is_all } = self.find(&layout, &keys);
        found.iter().for_each(|(block, key)| keys[block.index()] = Some(*key));
        let found = found.into_iter().map(|(block, _)| block).collect();
        // No two blocks have the same key.
        let known = keys.iter().flatten().count() as u64;
        let stray = if !all_known || !is_all || known == self.store.totals().0 {
            Vec::new()
        } else {
            let wanted: HashSet<Key> = keys.iter().copied().flatten().collect();
            self.store.keys().into_iter().filter(|key| !wanted.contains(key)).collect()
        };
        *self.keys.write() = keys;
        (found, stray)
    }

    /// The blocks that the store holds by other keys than are `known`, with these keys. A mount waits for
    /// this: processors take shares of the files.
    fn find(&self, layout: &Layout, known: &[Option<Key>]) -> Looked {
        let rows = self.catalog.rows();
        let threads =
            thread::available_parallelism().map_or(1, NonZero::get).min(rows / ROWS_MIN + 1);
        let share = rows.div_ceil(threads);
        let look = &|nth: usize| self.find_in(layout, known, nth * share..(nth + 1) * share);
        thread::scope(|scope| {
            let other = |nth| {
                let thread = thread::Builder::new().name("belady-find".into());
                thread.spawn_scoped(scope, move || look(nth)).map_err(|_| nth)
            };
            let others: Vec<_> = (1..threads).map(other).collect();
            let mut all = look(0);
            for other in others {
                let mut looked = match other {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    // No thread was to be had.
                    Err(nth) => look(nth),
                };
                all.found.append(&mut looked.found);
                all.is_all &= looked.is_all;
            }
            all
        })
    }

    /// As [`find`](Self::find), of some rows.
    fn find_in(&self, layout: &Layout, known: &[Option<Key>], rows: Range<usize>) -> Looked {
        let (mut found, mut asked) = (Vec::new(), Vec::with_capacity(ASKED_AT_ONCE));
        let mut is_all = true;
        self.catalog.for_each_file_in(rows, |path, file, stat| {
            is_all &= stat.is_sized || !stat.version_has_size;
            let version = stat.copied_version();
            for block in layout.blocks_of(file) {
                let key = self.store.key(path, &version, layout.range(block).0);
                if known[block.index()] != Some(key) {
                    asked.push((block, key));
                }
                if asked.len() == ASKED_AT_ONCE {
                    self.store.retain_held(&mut asked);
                    found.append(&mut asked);
                }
            }
        });
        self.store.retain_held(&mut asked);
        found.append(&mut asked);
        Looked { found, is_all }
    }
}

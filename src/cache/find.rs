//! Which blocks of a catalog a store holds.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

use crate::catalog::Catalog;
use crate::ids::BlockId;
use crate::plan::Layout;
use crate::store::{Key, Store};

/// Keys that the store is asked for at once. Each lies elsewhere in memory: a processor waits for
/// several at a time where nothing else comes in between.
const ASKED_AT_ONCE: usize = 1024;

/// Rows that are worth a thread of their own: a millisecond.
const ROWS_MIN: usize = 1 << 12;

/// The blocks that the store holds by other keys than are `known`, with these, in the order of their
/// files. A mount waits for this: processors take shares of the files.
pub(super) fn find(
    catalog: &Catalog,
    store: &Store,
    layout: &Layout,
    known: &[Option<Key>],
) -> Vec<(BlockId, Key)> {
    let rows = catalog.rows();
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(rows / ROWS_MIN + 1);
    let share = rows.div_ceil(threads);
    let look = &|nth: usize| {
        let (mut found, mut asked) = (Vec::new(), Vec::with_capacity(ASKED_AT_ONCE));
        catalog.for_each_file_in(nth * share..(nth + 1) * share, |path, file, stat| {
            let version = stat.fingerprint();
            for block in layout.blocks_of(file) {
                let key = store.key(path, &version, layout.range(block).0);
                if known[block.index()] != Some(key) {
                    asked.push((block, key));
                }
                if asked.len() == ASKED_AT_ONCE {
                    store.retain_held(&mut asked);
                    found.append(&mut asked);
                }
            }
        });
        store.retain_held(&mut asked);
        found.append(&mut asked);
        found
    };
    thread::scope(|scope| {
        let other = |nth| {
            let thread = thread::Builder::new().name("belady-find".into());
            thread.spawn_scoped(scope, move || look(nth)).map_err(|_| nth)
        };
        let others: Vec<_> = (1..threads).map(other).collect();
        let mut found = look(0);
        for other in others {
            found.extend(match other {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // No thread was to be had.
                Err(nth) => look(nth),
            });
        }
        found
    })
}

//! The directory of a source's store. As long as it is held, no other daemon uses the store.

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::store::directory::{DirLock, StoreDir};
use crate::sync::{Condvar, Mutex};

pub(super) struct StoreLease {
    held: Mutex<Held>,
    /// A use of the directory has ended.
    used: Condvar,
}

struct Held {
    /// Shared with those who use the directory at this moment.
    store_dir: Option<Arc<StoreDir>>,
    /// Says to others that it will be ours.
    stay: Option<DirLock>,
}

/// A use of the directory, which stays ours until it has ended.
struct Use<'a> {
    lease: &'a StoreLease,
    store_dir: Option<Arc<StoreDir>>,
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        let _held = self.lease.held.lock();
        self.store_dir = None;
        self.lease.used.notify_all();
    }
}

impl StoreLease {
    pub(super) fn new(mut store_dir: Option<StoreDir>) -> Self {
        let stay = store_dir.as_mut().and_then(StoreDir::take_lock);
        let held = Held { store_dir: store_dir.map(Arc::new), stay };
        StoreLease { held: Mutex::new(held), used: Condvar::new() }
    }

    /// Calls `work` with the directory, if it is still held. It is held until `work` returns, without a lock:
    /// the disk may hang.
    pub(super) fn with(&self, work: impl FnOnce(&StoreDir)) {
        let using = Use { lease: self, store_dir: self.held.lock().store_dir.clone() };
        if let Some(store_dir) = &using.store_dir {
            work(store_dir);
        }
    }

    /// Tells other daemons that the store will be free soon. Never waits for the disk.
    pub(super) fn announce_end(&self) {
        self.held.lock().stay.iter().for_each(DirLock::announce_end);
    }

    /// Saves the catalog for the last time and releases the directory as soon as it is not used any more: one
    /// thread at a time saves a catalog. Blocks: the disk may hang.
    pub(super) fn end(&self, catalog: &Catalog) {
        let mut held = self.held.lock();
        let Some(store_dir) = held.store_dir.take() else { return };
        while Arc::strong_count(&store_dir) > 1 {
            held = self.used.wait(held);
        }
        drop(held);
        save_catalog(catalog, &store_dir);
        store_dir.note_use();
        drop(store_dir);
        self.held.lock().stay.take();
    }
}

pub(super) fn save_catalog(catalog: &Catalog, store_dir: &StoreDir) {
    if let Err(error) = catalog.save(&store_dir.catalog()) {
        tracing::warn!(%error, "the catalog was not saved; the next mount scans the source");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::source::PosixSource;
    use crate::store::directory::{Owner, claim};

    #[test]
    fn the_directory_stays_ours_until_nobody_uses_it() {
        let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let source = Arc::new(PosixSource::open(root.path(), 1).unwrap());
        let catalog = Catalog::scan(source, 1, None).unwrap();
        let owner = Owner::new(root.path(), 1);
        let lease = &StoreLease::new(Some(claim(cache.path(), &owner).unwrap()));
        let ((begun, begins), (go_on, goes_on)) = (channel(), channel());
        thread::scope(|scope| {
            scope.spawn(move || {
                lease.with(|store_dir| {
                    begun.send(()).unwrap();
                    goes_on.recv().unwrap();
                    assert!(
                        store_dir.catalog().open().is_err(),
                        "it was saved while it was in use"
                    );
                });
            });
            begins.recv().unwrap();
            let ending = scope.spawn(|| lease.end(&catalog));
            lease.announce_end();
            thread::sleep(Duration::from_millis(50));
            assert!(!ending.is_finished());
            go_on.send(()).unwrap();
        });
        lease.with(|_| panic!("it is not ours any more"));
        let again = claim(cache.path(), &owner).unwrap();
        assert!(again.catalog().open().is_ok());
    }
}

//! The directory of a source's store. As long as it is held, no other daemon uses the store.

use crate::catalog::Catalog;
use crate::store::home::{Home, Stay};
use crate::sync::Mutex;

pub(super) struct StoreLease {
    home: Mutex<Option<Home>>,
    /// Tells other daemons that this one is not about to leave the store.
    stay: Mutex<Option<Stay>>,
}

impl StoreLease {
    pub(super) fn new(mut home: Option<Home>) -> Self {
        let stay = home.as_mut().and_then(Home::take_stay);
        StoreLease { home: Mutex::new(home), stay: Mutex::new(stay) }
    }

    /// Calls `work` with the directory, if it is still held. It is held until `work` returns.
    pub(super) fn with(&self, work: impl FnOnce(&Home)) {
        if let Some(home) = &*self.home.lock() {
            work(home);
        }
    }

    /// Tells other daemons that the store will be free soon. Never waits: a thread that waits for the disk
    /// may have locked the directory.
    pub(super) fn announce_end(&self) {
        self.stay.lock().iter().for_each(Stay::leave);
    }

    /// Saves the catalog for the last time and releases the directory. Blocks: the disk may hang.
    pub(super) fn end(&self, catalog: &Catalog) {
        if let Some(home) = self.home.lock().take() {
            save_catalog(catalog, &home);
            home.note_use();
            drop(home);
            self.stay.lock().take();
        }
    }
}

pub(super) fn save_catalog(catalog: &Catalog, home: &Home) {
    if let Err(error) = catalog.save(&home.catalog()) {
        tracing::warn!(%error, "the catalog was not saved; the next mount scans the source");
    }
}

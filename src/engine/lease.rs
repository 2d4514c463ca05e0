//! The local store's directory, as long as it is ours.

use crate::catalog::Catalog;
use crate::store::home::{Home, Stay};
use crate::sync::Mutex;

/// The directory of a source's store. As long as it is held, nobody else uses the store.
pub(super) struct StoreLease {
    home: Mutex<Option<Home>>,
    /// Says to others that it will be ours.
    stay: Mutex<Option<Stay>>,
}

impl StoreLease {
    /// Holds a directory, if there is one.
    pub(super) fn new(mut home: Option<Home>) -> Self {
        let stay = home.as_mut().and_then(Home::take_stay);
        StoreLease { home: Mutex::new(home), stay: Mutex::new(stay) }
    }

    /// Does something with the directory as long as it is ours. It stays ours until that is done.
    pub(super) fn with(&self, work: impl FnOnce(&Home)) {
        if let Some(home) = &*self.home.lock() {
            work(home);
        }
    }

    /// Says to others that it will be free soon. Never waits: the directory may be in the hands of a thread
    /// that waits for its disk.
    pub(super) fn announce_end(&self) {
        self.stay.lock().iter().for_each(Stay::leave);
    }

    /// Saves the catalog for the last time and lets go of the directory. Blocks: the disk may hang.
    pub(super) fn end(&self, catalog: &Catalog) {
        if let Some(home) = self.home.lock().take() {
            save_catalog(catalog, &home);
            home.note_use();
            drop(home);
            self.stay.lock().take();
        }
    }
}

/// Saves what is known of the source's names in the directory of its store.
pub(super) fn save_catalog(catalog: &Catalog, home: &Home) {
    if let Err(error) = catalog.save(&home.catalog()) {
        tracing::warn!(%error, "the catalog was not saved; the next mount scans the source");
    }
}

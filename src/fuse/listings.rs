//! Listings of directories that are being read.
//!
//! A directory is read by several requests, and all of them must be of one moment. Where opening a
//! directory is a request, its handle names the listing; else the last listing that was begun of
//! the directory goes on, as long as it is remembered.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

use crate::catalog::{Listed, NodeId};

pub(super) type Listing = Arc<Vec<Listed>>;

/// Directories read at the same time without handles.
const BEGUN_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("more than none");

pub(super) struct Listings {
    by_handle: Mutex<HashMap<u64, Listing>>,
    begun: Mutex<LruCache<u64, Listing>>,
    handles: AtomicU64,
}

impl Default for Listings {
    fn default() -> Self {
        Listings {
            by_handle: Mutex::default(),
            begun: Mutex::new(LruCache::new(BEGUN_MAX)),
            handles: AtomicU64::new(1),
        }
    }
}

impl Listings {
    /// Gives a listing a handle, never 0.
    pub(super) fn open(&self, listing: Vec<Listed>) -> u64 {
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        let mut listings = self.by_handle.lock().unwrap_or_else(PoisonError::into_inner);
        listings.insert(handle, Arc::new(listing));
        handle
    }

    pub(super) fn close(&self, handle: u64) {
        self.by_handle.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    }

    /// The listing of a handle; with handle 0 the one that is going on.
    pub(super) fn get(&self, directory: NodeId, handle: u64) -> Option<Listing> {
        if handle != 0 {
            let listings = self.by_handle.lock().unwrap_or_else(PoisonError::into_inner);
            return listings.get(&handle).cloned();
        }
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).get(&directory.0).cloned()
    }

    /// A directory has been listed to its end.
    pub(super) fn end(&self, directory: NodeId) {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).pop(&directory.0);
    }

    /// Begins to list a directory without a handle.
    pub(super) fn begin(&self, directory: NodeId, listing: Vec<Listed>) -> Listing {
        let listing = Arc::new(listing);
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.put(directory.0, Arc::clone(&listing));
        listing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_on_by_its_handle_or_its_directory() {
        let listings = Listings::default();
        let handle = listings.open(Vec::new());
        assert!(listings.get(NodeId::ROOT, handle).is_some());
        assert!(listings.get(NodeId::ROOT, 0).is_none());
        listings.close(handle);
        assert!(listings.get(NodeId::ROOT, handle).is_none());
        listings.begin(NodeId::ROOT, Vec::new());
        assert!(listings.get(NodeId::ROOT, 0).is_some());
        listings.end(NodeId::ROOT);
        assert!(listings.get(NodeId::ROOT, 0).is_none());
    }
}

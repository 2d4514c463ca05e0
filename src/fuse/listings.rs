//! Keeps the listings of directories while they are read.
//!
//! A directory is read by several requests, which must all see the same moment. If opening a directory is a
//! request, its handle names the listing. Else the offset at which a request continues names it: the kernel
//! returns an offset unchanged, so the offset holds the listing's number above the entry's index. A listing
//! without a handle can be continued as long as it is remembered.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::LruCache;

use crate::catalog::Listed;
use crate::sync::Mutex;

/// The entries of a directory at one moment.
#[derive(Clone)]
pub(super) struct Listing {
    pub(super) entries: Arc<Vec<Listed>>,
    /// The number in the offsets of its entries, above the index. 0 if a handle names the listing.
    number: u64,
}

impl Listing {
    /// The offset behind the entry `index`.
    pub(super) fn offset_after(&self, index: usize) -> u64 {
        self.number << NUMBER_SHIFT | (index as u64 + 1)
    }
}

pub(super) fn index_of(offset: u64) -> usize {
    (offset & ((1 << NUMBER_SHIFT) - 1)) as usize
}

const NUMBER_SHIFT: u32 = 32;

/// Numbers below this keep offsets positive, as the kernel requires.
const NUMBERS: u64 = 1 << 31;

/// Limit of entries in all remembered listings without handles. The newest listing is kept even if larger.
const ENTRIES_MAX: usize = 1 << 18;

const UNFINISHED_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("more than none");

pub(super) struct Listings {
    by_handle: Mutex<HashMap<u64, Listing>>,
    unfinished: Mutex<LruCache<u64, Listing>>,
    handles: AtomicU64,
}

impl Default for Listings {
    fn default() -> Self {
        Listings {
            by_handle: Mutex::default(),
            unfinished: Mutex::new(LruCache::new(UNFINISHED_MAX)),
            handles: AtomicU64::new(1),
        }
    }
}

impl Listings {
    /// Gives a listing a handle, never 0.
    pub(super) fn open(&self, entries: Vec<Listed>) -> u64 {
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        let listing = Listing { entries: Arc::new(entries), number: 0 };
        self.by_handle.lock().insert(handle, listing);
        handle
    }

    pub(super) fn close(&self, handle: u64) {
        self.by_handle.lock().remove(&handle);
    }

    /// The listing of a handle. For handle 0, the listing that the offset names.
    pub(super) fn get(&self, handle: u64, offset: u64) -> Option<Listing> {
        if handle != 0 {
            let listings = self.by_handle.lock();
            return listings.get(&handle).cloned();
        }
        let number = offset >> NUMBER_SHIFT;
        self.unfinished.lock().get(&number).cloned()
    }

    /// Forgets a listing without a handle that has been read to its end.
    pub(super) fn end(&self, listing: &Listing) {
        self.unfinished.lock().pop(&listing.number);
    }

    /// Starts a listing without a handle.
    pub(super) fn start(&self, entries: Vec<Listed>) -> Listing {
        let number = self.handles.fetch_add(1, Ordering::Relaxed) % (NUMBERS - 1) + 1;
        let listing = Listing { entries: Arc::new(entries), number };
        let mut unfinished = self.unfinished.lock();
        unfinished.put(number, listing.clone());
        let entries = |unfinished: &LruCache<u64, Listing>| -> usize {
            unfinished.iter().map(|(_, listing)| listing.entries.len()).sum()
        };
        // A reader that stops halfway never reports it.
        while unfinished.len() > 1 && entries(&unfinished) > ENTRIES_MAX {
            unfinished.pop_lru();
        }
        listing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_on_by_its_handle() {
        let listings = Listings::default();
        let handle = listings.open(Vec::new());
        let listing = listings.get(handle, 0).unwrap();
        assert_eq!(listing.offset_after(7), 8);
        listings.close(handle);
        assert!(listings.get(handle, 0).is_none());
    }

    #[test]
    fn two_listings_of_a_directory_go_on_by_their_offsets() {
        let listings = Listings::default();
        let (first, second) = (listings.start(Vec::new()), listings.start(Vec::new()));
        assert!(listings.get(0, 0).is_none(), "the start is of no listing");
        for listing in [first, second] {
            let offset = listing.offset_after(40);
            assert_eq!(index_of(offset), 41);
            assert!(i64::try_from(offset).is_ok());
            let found = listings.get(0, offset).unwrap();
            assert!(Arc::ptr_eq(&found.entries, &listing.entries));
            listings.end(&listing);
            assert!(listings.get(0, offset).is_none());
        }
    }
}

//! Undecided offers to a buffer, in their order.
//!
//! An offer is decided when it is the first one. If it may be kept, its bytes must be there: no sample is
//! given up for one that may never come. So the first offers that may be kept are fetched together, and later
//! ones wait. An offer whose bytes cannot be read is dropped.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use super::notes::{Note, Notes};
use super::read_observer::WaitingBytes;
use crate::catalog::NodeId;
use crate::disk::Buffer;

/// How many of the first offers may be fetched at once.
pub(super) const FETCHES_MAX: usize = 4;

/// How many bytes these may have together. The first offer may have any number.
pub(super) const FETCHED_BYTES_MAX: u64 = 64 << 20;

/// Fetched bytes. Empty while they are on their way; none if they cannot be read.
pub(super) type Fetched = OnceLock<Option<Buffer>>;

pub(super) enum OfferBytes {
    NotRequested,
    /// They came with the note of the read.
    Present(Arc<WaitingBytes>),
    Requested(Arc<Fetched>),
}

pub(super) struct Offer {
    pub(super) node: NodeId,
    pub(super) hash: u64,
    pub(super) bytes: OfferBytes,
}

#[derive(Default)]
pub(super) struct Queue {
    offers: VecDeque<Offer>,
    hashes: HashSet<u64>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.offers.len()
    }

    /// Adds an offer, unless the file is in the queue already. Returns whether it was added.
    pub(super) fn push(&mut self, offer: Offer) -> bool {
        let is_new = self.hashes.insert(offer.hash);
        if is_new {
            self.offers.push_back(offer);
        }
        is_new
    }

    pub(super) fn pop(&mut self) -> Option<Offer> {
        let offer = self.offers.pop_front()?;
        self.hashes.remove(&offer.hash);
        Some(offer)
    }

    pub(super) fn first(&self) -> Option<&Offer> {
        self.offers.front()
    }

    /// The offers whose bytes may be fetched.
    pub(super) fn fetchable(&mut self) -> impl Iterator<Item = &mut Offer> {
        self.offers.iter_mut().take(FETCHES_MAX)
    }
}

/// Delivers fetched bytes to an offer and wakes the buffer thread. If it is dropped, there are no bytes.
pub(super) struct Delivery {
    pub(super) fetched: Arc<Fetched>,
    pub(super) notes: Notes,
}

impl Delivery {
    /// Never waits.
    pub(super) fn deliver(self, bytes: Option<Buffer>) {
        let _ = self.fetched.set(bytes);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let _ = self.fetched.set(None);
        // The buffer thread may have ended.
        let _ = self.notes.send(Note::Wake);
    }
}

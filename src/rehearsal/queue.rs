//! What is offered to a buffer and not decided yet, in the order in which it came.
//!
//! An offer is decided when it is the first, with its bytes at hand if it may be kept: nothing is
//! given up for a sample before that is there. So the first ones that may be kept are fetched
//! together, and all others wait. An offer whose bytes cannot be had is none.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use super::notes::{Note, Notes};
use super::offers::Waiting;
use crate::catalog::NodeId;
use crate::disk::Buffer;

/// Offers whose bytes are fetched at once.
pub(super) const FETCHES_MAX: usize = 4;

/// Bytes of these offers beyond the first.
pub(super) const FETCHED_BYTES_MAX: u64 = 64 << 20;

/// Bytes that were asked for: empty as long as they are on their way, none where they cannot be had.
pub(super) type Fetched = OnceLock<Option<Buffer>>;

/// The bytes of an offer.
pub(super) enum Bytes {
    /// They have not been asked for.
    Away,
    /// They came with the reader.
    Here(Arc<Waiting>),
    /// They have been asked for.
    Asked(Arc<Fetched>),
}

/// A file that is offered.
pub(super) struct Offer {
    pub(super) node: NodeId,
    /// The hash of its path.
    pub(super) hash: u64,
    pub(super) bytes: Bytes,
}

/// Offers that wait.
#[derive(Default)]
pub(super) struct Queue {
    offers: VecDeque<Offer>,
    hashes: HashSet<u64>,
}

impl Queue {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.offers.len()
    }

    /// Adds an offer, unless the file waits already. Says whether it was added.
    pub(super) fn push(&mut self, offer: Offer) -> bool {
        let is_new = self.hashes.insert(offer.hash);
        if is_new {
            self.offers.push_back(offer);
        }
        is_new
    }

    /// Takes the first one out.
    pub(super) fn pop(&mut self) -> Option<Offer> {
        let offer = self.offers.pop_front()?;
        self.hashes.remove(&offer.hash);
        Some(offer)
    }

    pub(super) fn first(&self) -> Option<&Offer> {
        self.offers.front()
    }

    /// Those whose bytes may be fetched.
    pub(super) fn firsts(&mut self) -> impl Iterator<Item = &mut Offer> {
        self.offers.iter_mut().take(FETCHES_MAX)
    }
}

/// Brings what was fetched, also where who should bring it is dropped; then there are no bytes.
pub(super) struct Delivery {
    to: Arc<Fetched>,
    notes: Notes,
}

impl Delivery {
    /// Brings it to this place and wakes the owner.
    pub(super) fn new(to: &Arc<Fetched>, notes: &Notes) -> Self {
        Delivery { to: Arc::clone(to), notes: notes.clone() }
    }

    /// Brings these bytes. Never waits.
    pub(super) fn bring(self, bytes: Option<Buffer>) {
        let _ = self.to.set(bytes);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let _ = self.to.set(None);
        // The owner may have ended.
        let _ = self.notes.send(Note::Wake);
    }
}

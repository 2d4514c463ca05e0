//! What is owed to readers and to the planner, even where a job panics.
//!
//! A job that panics drops what it holds. A flight in its hands then fails with `EIO` instead of
//! having its readers wait for ever; an event that the planner waits for is told all the same.

use std::sync::Arc;
use std::thread::panicking;

use nix::errno::Errno;

use super::flight::Key;
use super::{Cache, ReadFailure};
use crate::plan::Event;

/// A flight in the hands of one job. Dropped by a panic, or without having been [`taken`], it
/// fails.
///
/// [`taken`]: InCare::taken
pub(super) struct InCare {
    cache: Arc<Cache>,
    key: Key,
    taken: bool,
}

impl InCare {
    pub(super) fn new(cache: &Arc<Cache>, key: Key) -> Self {
        InCare { cache: Arc::clone(cache), key, taken: false }
    }

    /// The job runs: from here on it ends the flight or hands it on, unless it panics.
    pub(super) fn taken(mut self) -> Self {
        self.taken = true;
        self
    }
}

impl Drop for InCare {
    fn drop(&mut self) {
        if !self.taken || panicking() {
            self.cache.fail(self.key, ReadFailure::Errno(Errno::EIO));
        }
    }
}

/// An event that is told when it is dropped, as it then is.
pub(super) struct Owed {
    cache: Arc<Cache>,
    pub(super) event: Event,
}

impl Owed {
    pub(super) fn new(cache: &Arc<Cache>, event: Event) -> Self {
        Owed { cache: Arc::clone(cache), event }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.cache.inbox.put(self.event.clone(), None);
    }
}

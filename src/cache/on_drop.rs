//! Readers and the planner get their answer even if a job panics.
//!
//! A job that panics drops what it holds. A flight that it holds then fails with `EIO`, so that its readers
//! do not wait for ever. An event that the planner waits for is told.

use std::sync::Arc;
use std::thread::panicking;

use nix::errno::Errno;

use super::flight::Key;
use super::{Cache, ReadFailure};
use crate::plan::Event;

/// A flight in the hands of one job. Dropped by a panic, or without having been [`taken`], it
/// fails.
///
/// [`taken`]: FailOnDrop::taken
pub(super) struct FailOnDrop {
    cache: Arc<Cache>,
    key: Key,
    taken: bool,
}

impl FailOnDrop {
    pub(super) fn new(cache: &Arc<Cache>, key: Key) -> Self {
        FailOnDrop { cache: Arc::clone(cache), key, taken: false }
    }

    /// The job runs: from here on it ends the flight or hands it on, unless it panics.
    pub(super) fn taken(mut self) -> Self {
        self.taken = true;
        self
    }
}

impl Drop for FailOnDrop {
    fn drop(&mut self) {
        if !self.taken || panicking() {
            self.cache.fail(self.key, ReadFailure::Errno(Errno::EIO));
        }
    }
}

/// An event that is told when it is dropped, as it then is.
pub(super) struct NotifyOnDrop {
    cache: Arc<Cache>,
    pub(super) event: Event,
}

impl NotifyOnDrop {
    pub(super) fn new(cache: &Arc<Cache>, event: Event) -> Self {
        NotifyOnDrop { cache: Arc::clone(cache), event }
    }
}

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.cache.inbox.put(self.event.clone(), None);
    }
}

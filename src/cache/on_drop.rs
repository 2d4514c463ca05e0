//! Readers and the planner get their answer even if a job panics.
//!
//! A job that panics drops the values that it holds. Its flight then fails with `EIO`, so that the readers do
//! not wait for ever. The planner is told the event that it waits for.

use std::sync::Arc;
use std::thread::panicking;

use nix::errno::Errno;

use super::flights::FlightKey;
use super::{Cache, Inbox, ReadFailure};
use crate::plan::Event;

/// A flight in the hands of one job. It fails if a panic drops this, or if this is dropped without having
/// been [`taken`](FailOnDrop::taken).
pub(super) struct FailOnDrop {
    cache: Arc<Cache>,
    key: FlightKey,
    taken: bool,
}

impl FailOnDrop {
    pub(super) fn new(cache: &Arc<Cache>, key: FlightKey) -> Self {
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

/// An event that the planner is told when this is dropped.
pub(super) struct NotifyOnDrop {
    inbox: Arc<Inbox>,
    pub(super) event: Event,
}

impl NotifyOnDrop {
    pub(super) fn new(inbox: &Arc<Inbox>, event: Event) -> Self {
        NotifyOnDrop { inbox: Arc::clone(inbox), event }
    }
}

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.inbox.put(self.event.clone(), None);
    }
}

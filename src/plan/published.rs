//! What is told of a planner.

use super::{Accounts, Counters, StreamStatus};
use crate::config::PolicyKind;
use crate::ids::StreamId;

/// What a planner's thread last said of it.
#[derive(Clone, Default)]
pub(crate) struct Published {
    pub(crate) counters: Counters,
    pub(crate) accounts: Accounts,
    pub(crate) policy: PolicyKind,
    pub(crate) trusted: u64,
    pub(crate) streams: Vec<(StreamId, StreamStatus)>,
}

impl Published {
    /// Where a stream stands, if it has an order.
    pub(crate) fn progress(&self, stream: StreamId) -> Option<&StreamStatus> {
        self.streams.iter().find(|(id, _)| *id == stream).map(|(_, status)| status)
    }
}

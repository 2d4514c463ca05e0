//! A planner's numbers, as its thread publishes them.

use super::{Accounts, Counters, StreamStatus};
use crate::config::PolicyKind;
use crate::ids::StreamId;

#[derive(Clone, Default)]
pub(crate) struct Published {
    pub(crate) counters: Counters,
    pub(crate) accounts: Accounts,
    pub(crate) policy: PolicyKind,
    pub(crate) untracked: u64,
    pub(crate) streams: Vec<(StreamId, StreamStatus)>,
}

impl Published {
    /// The status of a stream, if it has an order.
    pub(crate) fn progress(&self, stream: StreamId) -> Option<&StreamStatus> {
        self.streams.iter().find(|(id, _)| *id == stream).map(|(_, status)| status)
    }
}

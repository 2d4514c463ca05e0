//! Those who hear what the planner hears.

use super::Arrival;
use crate::plan::{Action, Event};

/// Hears each event before the planner does. It belongs to the planner's thread and never waits.
pub trait Observer: Send {
    /// Hears an event, with the bytes of a block that has arrived. What the planner is to hear of
    /// that, after the event itself, is added to `says`.
    fn hear(&mut self, event: &Event, arrival: Option<&Arrival>, says: &mut Vec<Event>);

    /// Hears what the planner decided and the cache does not do.
    fn heed(&mut self, _action: &Action) {}
}

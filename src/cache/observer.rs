//! Features that observe the events of the planner.

use super::Arrival;
use crate::plan::{Action, Event};

/// Observes each event before the planner takes it. It belongs to the planner's thread and never waits.
pub trait Observer: Send {
    /// Takes an event, with the bytes if a block has arrived. Events that the planner is to take after
    /// this one are added to `says`.
    fn observe(&mut self, event: &Event, arrival: Option<&Arrival>, says: &mut Vec<Event>);

    /// Takes an action of the planner that the cache does not carry out.
    fn carry_out(&mut self, _action: &Action) {}
}

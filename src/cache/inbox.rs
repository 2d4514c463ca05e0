//! What the planner has yet to hear.
//!
//! Request threads leave events here and go on; the planner's thread takes all that there are at
//! once. Observations are bounded: where the planner is far behind, further ones are dropped and
//! the next ones resynchronise it. Everything that accounts depend on always goes in, and is
//! bounded by the fetches and handles that there are.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Buffer;
use crate::catalog::NodeId;
use crate::plan::Event;

/// Events beyond which observations are dropped.
const EVENTS_MAX: usize = 1 << 16;

/// The bytes of a block that has arrived, and the version of its file that they are.
#[derive(Clone)]
pub struct Arrival {
    /// The version.
    pub node: NodeId,
    /// The block's bytes.
    pub bytes: Arc<Buffer>,
}

/// An event, with the bytes that arrived if it is an arrival.
pub struct Message {
    /// What happened.
    pub event: Event,
    /// The block's bytes, to be written to a tier below RAM if the planner wants so.
    pub arrival: Option<Arrival>,
}

/// A queue with many writers and one reader.
#[derive(Default)]
pub struct Inbox {
    queue: Mutex<(Vec<Message>, bool)>,
    wake: Condvar,
}

impl Inbox {
    /// Leaves an event.
    pub fn put(&self, event: Event, arrival: Option<Arrival>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.0.len() >= EVENTS_MAX && matches!(event, Event::Missed { .. } | Event::Seen { .. })
        {
            return;
        }
        queue.0.push(Message { event, arrival });
        if queue.0.len() == 1 {
            self.wake.notify_one();
        }
    }

    /// Ends the reader's waiting for good.
    pub fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.wake.notify_one();
    }

    /// Waits for events, at most `patience`, and takes them all. False once closed.
    pub fn take(&self, messages: &mut Vec<Message>, patience: Duration) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.0.is_empty() && !queue.1 {
            let woken = self.wake.wait_timeout(queue, patience);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        messages.append(&mut queue.0);
        !queue.1
    }
}

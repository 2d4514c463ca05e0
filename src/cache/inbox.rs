//! The queue of events that the planner has yet to hear.
//!
//! Request threads leave events here and go on. The planner's thread takes all of them at once. The number
//! of observations is bounded: if the planner is far behind, further ones are dropped, and the next ones
//! resynchronise it. Events that accounts depend on always go in. The fetches and handles bound their number.
//!
//! To wake a thread costs more than most events do. So the first event after a silence wakes the planner at
//! once, and so does a reader that waits. As long as there are events, the planner takes them by the batch,
//! a few milliseconds late at most. That is little against the time that blocks are staged ahead.

use std::time::Duration;

use super::memory::Arrival;
use crate::catalog::{Catalog, NodeId};
use crate::plan::{Event, Planner};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Events beyond which observations are dropped.
const EVENTS_MAX: usize = 1 << 16;

/// Events of a batch at most. This number wakes a planner that gathers one.
const BATCH_MAX: usize = 8;

/// How long a batch is gathered.
const GATHER: Duration = Duration::from_millis(4);

/// An event, with the bytes that arrived if it is an arrival.
pub struct Message {
    pub event: Event,
    /// The block's bytes, to be written to a tier below RAM if the planner wants so.
    pub arrival: Option<Arrival>,
}

/// Asks the planner something.
pub type Question = Box<dyn FnOnce(&Planner) + Send>;

#[derive(Default)]
struct Queue {
    messages: Vec<Message>,
    questions: Vec<Question>,
    batch: usize,
    /// Whether the planner gathers a batch: a single event does not wake it.
    gathering: bool,
    /// Whether a reader or a question waits.
    urgent: bool,
    closed: bool,
}

impl Queue {
    /// Whether the planner is to go on.
    fn is_ready(&self) -> bool {
        let enough = if self.gathering { self.batch } else { 1 };
        self.messages.len() >= enough || self.urgent || self.closed
    }
}

/// A queue with many writers and one reader.
pub struct Inbox {
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Inbox {
    /// An inbox of a planner with at most `inflight_max` fetches under way. If they are few, a large batch
    /// would wait for arrivals that only its own events bring about.
    pub fn new(inflight_max: u32) -> Self {
        let batch = (inflight_max as usize).clamp(1, BATCH_MAX);
        let queue = Queue { batch, ..Queue::default() };
        Inbox { queue: Mutex::new(queue), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Leaves an event.
    pub fn put(&self, event: Event, arrival: Option<Arrival>) {
        let mut queue = self.lock();
        let is_observation = matches!(
            event,
            Event::Missed { .. }
                | Event::Joined { .. }
                | Event::Probed { .. }
                | Event::Part { .. }
                | Event::Seen { .. }
                | Event::Touched { .. }
        );
        if is_observation && queue.messages.len() >= EVENTS_MAX {
            return;
        }
        let was_ready = queue.is_ready();
        queue.urgent |= matches!(event, Event::Missed { .. });
        queue.messages.push(Message { event, arrival });
        if !was_ready && queue.is_ready() {
            self.wake.notify_one();
        }
    }

    /// Leaves an event about a version of a file, unless the version is past. If it is, the planner has been
    /// told, or will be, that nothing of the file is left.
    pub(super) fn put_if_present(
        &self,
        catalog: &Catalog,
        node: NodeId,
        event: Event,
        arrival: Option<Arrival>,
    ) {
        if catalog.is_present(node) {
            self.put(event, arrival);
        }
    }

    /// Leaves a question. It is dropped if the inbox is closed.
    pub fn ask(&self, question: Question) {
        let mut queue = self.lock();
        if !queue.closed {
            queue.questions.push(question);
            queue.urgent = true;
            self.wake.notify_one();
        }
    }

    /// Ends the reader's waiting for good.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let questions = std::mem::take(&mut queue.questions);
        drop(queue);
        self.wake.notify_one();
        // Under no lock: a question that is dropped may leave an event.
        drop(questions);
    }

    /// Waits for events and questions, at most `patience`, and takes all of them. The questions are
    /// to be answered once the events have been applied. False if the inbox is closed.
    pub fn take(
        &self,
        messages: &mut Vec<Message>,
        questions: &mut Vec<Question>,
        patience: Duration,
    ) -> bool {
        let mut queue = self.lock();
        if queue.gathering {
            queue = self.wait(queue, GATHER);
            queue.gathering = false;
        }
        if queue.messages.is_empty() && queue.questions.is_empty() {
            queue = self.wait(queue, patience);
        }
        queue.urgent = false;
        queue.gathering = !queue.messages.is_empty();
        messages.append(&mut queue.messages);
        questions.append(&mut queue.questions);
        !queue.closed
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>, patience: Duration) -> MutexGuard<'a, Queue> {
        self.wake.wait_timeout_while(queue, patience, |queue| !queue.is_ready())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::ids::{BlockId, FileId};

    const FOR_LONG: Duration = Duration::from_secs(60);

    fn seen(inbox: &Inbox) {
        inbox.put(Event::Seen { task: 1, file: FileId(0) }, None);
    }

    #[test]
    fn the_first_event_a_whole_batch_and_a_reader_who_waits_wake_the_planner() {
        let inbox = Inbox::new(32);
        let is_ready = || inbox.lock().is_ready();
        let mut messages = Vec::new();
        assert!(!is_ready());
        seen(&inbox);
        assert!(is_ready());
        assert!(inbox.take(&mut messages, &mut Vec::new(), FOR_LONG));
        (1..BATCH_MAX).for_each(|_| seen(&inbox));
        assert!(!is_ready(), "a batch is gathered");
        seen(&inbox);
        assert!(is_ready());
        assert!(inbox.take(&mut messages, &mut Vec::new(), FOR_LONG));
        inbox.put(Event::Missed { block: BlockId(0), task: 1 }, None);
        assert!(is_ready(), "a reader waits");
        assert!(inbox.take(&mut messages, &mut Vec::new(), FOR_LONG));
        assert_eq!(messages.len(), 1 + BATCH_MAX + 1);
        inbox.close();
        assert!(is_ready() && !inbox.take(&mut messages, &mut Vec::new(), FOR_LONG));
    }

    #[test]
    fn less_than_a_batch_is_taken_after_a_while_and_few_fetches_make_small_batches() {
        let inbox = Inbox::new(32);
        let mut messages = Vec::new();
        (0..2).for_each(|_| {
            seen(&inbox);
            inbox.take(&mut messages, &mut Vec::new(), FOR_LONG);
        });
        assert_eq!(messages.len(), 2);
        let single = Inbox::new(1);
        seen(&single);
        single.take(&mut messages, &mut Vec::new(), FOR_LONG);
        seen(&single);
        assert!(single.lock().is_ready());
    }

    /// Leaves an event when it is dropped, as `NotifyOnDrop` does.
    struct Leaves(Arc<Inbox>);

    impl Drop for Leaves {
        fn drop(&mut self) {
            seen(&self.0);
        }
    }

    #[test]
    fn questions_that_leave_events_when_they_are_dropped_do_not_hold_the_end_up() {
        let inbox = Arc::new(Inbox::new(32));
        let (ended, end) = mpsc::channel();
        let leaves = Leaves(Arc::clone(&inbox));
        inbox.ask(Box::new(move |_| drop(leaves)));
        let closing = Arc::clone(&inbox);
        std::thread::spawn(move || {
            closing.close();
            let late = Leaves(Arc::clone(&closing));
            closing.ask(Box::new(move |_| drop(late)));
            ended.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(180)).expect("the inbox is closed");
        assert_eq!(inbox.lock().messages.len(), 2);
    }

    #[test]
    fn observations_beyond_a_number_are_dropped_and_what_accounts_need_is_not() {
        let inbox = Inbox::new(32);
        (0..EVENTS_MAX + 1).for_each(|_| seen(&inbox));
        assert_eq!(inbox.lock().messages.len(), EVENTS_MAX);
        inbox.put(Event::Dropped { block: BlockId(0) }, None);
        let messages = &inbox.lock().messages;
        assert_eq!(messages.len(), EVENTS_MAX + 1);
    }
}

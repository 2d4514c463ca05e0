//! A queue of replies. Each is sent when it is due.
//!
//! The thread that accepted a request does the work, wraps the answer in a closure and takes the next
//! request. The closure waits here. One timer thread sleeps until the earliest reply is due, sends it, and
//! sleeps again. So a few threads are enough for any number of operations in flight. The timer has the finest
//! slack of the kernel and never spins. A reply is sent some tens of microseconds late, never early. The
//! lateness is counted.
//!
//! Replies of operations that hang by an injected fault wait apart, without a time. They are sent at once
//! when the fault is cleared. They fail when the filesystem is unmounted.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use nix::sys::prctl;

use crate::locked;
use crate::model::Nanos;
use crate::stats::Stats;

/// An answer that is ready. Called with `None` it sends the result of the work, otherwise the error.
pub(crate) type Reply = Box<dyn FnOnce(Option<Errno>) + Send>;

/// A reply that waits for its time.
struct Delayed {
    due: Nanos,
    /// Order of arrival among replies of the same time.
    sequence: u64,
    reply: Reply,
}

impl Ord for Delayed {
    /// The heap gives the greatest first, so the earliest reply is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.sequence).cmp(&(self.due, self.sequence))
    }
}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Delayed {}

#[derive(Default)]
struct Waiting {
    due: BinaryHeap<Delayed>,
    hung: Vec<Reply>,
    /// The highest count of clears that was reported here.
    clears: u64,
    sequence: u64,
    /// The filesystem is about to be unmounted: no reply may wait.
    stopping: bool,
}

/// The replies that wait, and the clock of their times.
pub(crate) struct ReplyQueue {
    epoch: Instant,
    waiting: Mutex<Waiting>,
    earlier: Condvar,
}

impl ReplyQueue {
    /// An empty queue, whose clock starts at zero.
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            waiting: Mutex::new(Waiting::default()),
            earlier: Condvar::new(),
        }
    }

    /// The time on the clock of the model.
    pub(crate) fn now(&self) -> Nanos {
        Nanos::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// Sends `reply` at `due`.
    pub(crate) fn send_at(&self, due: Nanos, reply: Reply) {
        let mut waiting = locked(&self.waiting);
        if waiting.stopping {
            drop(waiting);
            return reply(None);
        }
        let sequence = waiting.sequence;
        waiting.sequence += 1;
        let is_next = waiting.due.peek().is_none_or(|next| due < next.due);
        waiting.due.push(Delayed { due, sequence, reply });
        drop(waiting);
        if is_next {
            self.earlier.notify_one();
        }
    }

    /// Sends `reply` when faults are cleared. `clears` is how often they had been cleared before.
    pub(crate) fn send_after_clear(&self, clears: u64, reply: Reply) {
        let mut waiting = locked(&self.waiting);
        if waiting.stopping {
            drop(waiting);
            return reply(Some(Errno::EIO));
        }
        if waiting.clears > clears {
            drop(waiting);
            return reply(None);
        }
        waiting.hung.push(reply);
    }

    /// Sends the replies that hang, because faults were cleared for the `clears`th time.
    pub(crate) fn release_hung(&self, clears: u64) {
        let mut waiting = locked(&self.waiting);
        waiting.clears = waiting.clears.max(clears);
        let hung = std::mem::take(&mut waiting.hung);
        drop(waiting);
        hung.into_iter().for_each(|reply| reply(None));
    }

    /// Sends all replies now, those that hang with EIO. No reply waits from here on.
    pub(crate) fn stop(&self) {
        let mut waiting = locked(&self.waiting);
        waiting.stopping = true;
        let rest = std::mem::take(&mut *waiting);
        waiting.stopping = true;
        drop(waiting);
        rest.hung.into_iter().for_each(|reply| reply(Some(Errno::EIO)));
        rest.due.into_sorted_vec().into_iter().rev().for_each(|next| (next.reply)(None));
        self.earlier.notify_one();
    }

    /// The timer thread: sends replies when they are due, until [`Self::stop`].
    pub(crate) fn run(&self, stats: &Stats) {
        // The default slack of 50 us would be added to every sleep. If it cannot be set, the counted lateness
        // shows that.
        let _ = prctl::set_timerslack(1);
        let mut waiting = locked(&self.waiting);
        while !waiting.stopping {
            let now = self.now();
            match waiting.due.peek().map(|next| next.due) {
                Some(due) if due <= now => {
                    if let Some(next) = waiting.due.pop() {
                        drop(waiting);
                        (next.reply)(None);
                        stats.delayed_reply_sent(self.now().saturating_sub(due));
                        waiting = locked(&self.waiting);
                    }
                }
                Some(due) => {
                    let sleep = Duration::from_nanos(due - now);
                    let woken = self.earlier.wait_timeout(waiting, sleep);
                    waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    waiting = self.earlier.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;

    /// Starts the timer of a queue.
    fn run(queue: &Arc<ReplyQueue>) -> thread::JoinHandle<()> {
        let queue = queue.clone();
        thread::spawn(move || queue.run(&Stats::default()))
    }

    #[test]
    fn replies_go_out_in_the_order_of_their_times_and_never_early() {
        let queue = Arc::new(ReplyQueue::new());
        let (tx, rx) = mpsc::channel();
        let send_at = |due: Nanos| {
            let (tx, clock) = (tx.clone(), queue.clone());
            let reply = move |_| tx.send((due, clock.now())).expect("the test listens");
            queue.send_at(due, Box::new(reply));
        };
        let base = queue.now() + 20_000_000;
        let times = [base + 1_000_000, base + 2_000_000, base + 3_000_000];
        // All of them wait before the first is due.
        [2, 0, 1].into_iter().for_each(|nth| send_at(times[nth]));
        let timer = run(&queue);
        let sent: Vec<_> = rx.iter().take(3).collect();
        assert_eq!(sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), times);
        assert!(sent.iter().all(|&(due, at)| at >= due));
        // The timer sleeps for a reply that is never due, and wakes up for a reply that comes later.
        send_at(Nanos::MAX);
        let near = queue.now() + 1_000_000;
        send_at(near);
        assert_eq!(rx.recv().expect("an answer").0, near);
        queue.stop();
        timer.join().expect("the timer ends");
    }

    #[test]
    fn hung_replies_wait_for_clear_and_fail_at_the_end() {
        let queue = Arc::new(ReplyQueue::new());
        let timer = run(&queue);
        let (tx, rx) = mpsc::channel();
        let reply = || {
            let tx = tx.clone();
            Box::new(move |error: Option<Errno>| {
                tx.send(error.map(Errno::code)).expect("the test listens");
            })
        };
        queue.send_after_clear(0, reply());
        queue.release_hung(1);
        assert_eq!(rx.recv().expect("an answer"), None);
        queue.send_after_clear(0, reply());
        assert_eq!(rx.recv().expect("cleared before it came to wait"), None);
        queue.send_after_clear(1, reply());
        queue.send_at(Nanos::MAX, reply());
        queue.stop();
        queue.send_after_clear(1, reply());
        queue.send_at(Nanos::MAX, reply());
        let eio = Some(Errno::EIO.code());
        assert_eq!(rx.iter().take(4).collect::<Vec<_>>(), [eio, None, eio, None]);
        timer.join().expect("the timer ends");
    }
}

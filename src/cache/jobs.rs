//! The jobs of the thread that writes to the store.
//!
//! Neighbours in the queue are done together. Samples are given up first, and then others are written: a full
//! store takes one sample for another.

use std::collections::{HashSet, VecDeque};

use super::memory::Arrival;
use super::on_drop::NotifyOnDrop;
use crate::disk::{TICK, ticks_in};
use crate::ids::BlockId;
use crate::source::{Pool, Urgency};
use crate::store::Key;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Bytes that are written at once.
const BATCH_BYTES: usize = 4 << 20;

/// For how many looks in a row the end of a mount waits for a disk that takes nothing.
const CLOSE_PATIENCE: u64 = ticks_in(30);

pub(super) enum Job {
    /// Store bytes that have arrived, and tell the planner.
    Put(BlockId, Arrival, NotifyOnDrop),
    /// Give up the copy that is stored of a block by then.
    Remove(BlockId),
    /// Give up a copy that was found to be damaged, or the one that has replaced it, and tell the planner:
    /// a reader may have found the copy damaged before the block was stored again.
    Damaged(BlockId, Key, NotifyOnDrop),
    /// Give up samples of no block.
    Forget(Vec<Key>),
    /// Find the samples of files that came to be known, tell the planner, and give up the rest.
    Adopt(NotifyOnDrop),
    Sync,
}

/// Takes the next jobs that are done together: none gives up a block that one before it stores.
pub(super) fn take_batch(queue: &mut VecDeque<Job>) -> Vec<Job> {
    let (mut jobs, mut bytes) = (Vec::new(), 0);
    let mut stored: HashSet<BlockId> = HashSet::new();
    while let Some(job) = queue.pop_front() {
        let joins = match &job {
            Job::Put(_, arrival, _) => bytes + arrival.bytes.len() <= BATCH_BYTES,
            Job::Remove(block) | Job::Damaged(block, ..) => !stored.contains(block),
            Job::Forget(_) | Job::Sync => true,
            Job::Adopt(_) => false,
        };
        if !jobs.is_empty() && (!joins || matches!(jobs.first(), Some(Job::Adopt(_)))) {
            queue.push_front(job);
            break;
        }
        if let Job::Put(block, arrival, _) = &job {
            stored.insert(*block);
            bytes += arrival.bytes.len();
        }
        jobs.push(job);
    }
    jobs
}

#[derive(Default)]
struct Queued {
    jobs: VecDeque<Job>,
    /// Whether the thread works.
    working: bool,
    /// Nothing is queued any more.
    closed: bool,
}

/// The queue and its thread.
pub(super) struct Jobs {
    queued: Mutex<Queued>,
    idle: Condvar,
    thread: Pool,
}

impl Default for Jobs {
    fn default() -> Self {
        let thread = Pool::new("belady-store-write", 1, 0);
        Jobs { queued: Mutex::default(), idle: Condvar::new(), thread }
    }
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.queued.lock()
    }

    /// Queues a job. If the thread is idle, it does `work`, which is to take all batches.
    pub(super) fn submit(&self, job: Job, work: impl FnOnce() + Send + 'static) {
        let mut queued = self.lock();
        if queued.closed {
            return;
        }
        queued.jobs.push_back(job);
        if !std::mem::replace(&mut queued.working, true) {
            self.thread.submit(Urgency::Prefetch, work);
        }
    }

    /// The next batch of jobs. If it is empty, the thread is to stop working.
    pub(super) fn next(&self) -> Vec<Job> {
        let mut queued = self.lock();
        let jobs = take_batch(&mut queued.jobs);
        if jobs.is_empty() {
            self.stop_working(&mut queued);
        }
        jobs
    }

    fn stop_working(&self, queued: &mut Queued) {
        queued.working = false;
        self.idle.notify_all();
    }

    /// Drops the jobs that are to store something. Says how many.
    pub(super) fn drop_puts(&self) -> usize {
        let mut queued = self.lock();
        let jobs = std::mem::take(&mut queued.jobs).into_iter();
        let (lost, kept) = jobs.partition::<Vec<Job>, _>(|job| matches!(job, Job::Put(..)));
        queued.jobs = kept.into();
        drop(queued);
        lost.len()
    }

    /// Ends the queue, and waits until it is empty. Does not wait for a disk that `hangs`, or does not
    /// answer any further call for a while. Says whether the thread is idle. Blocks.
    pub(super) fn close(&self, hangs: bool, answered: impl Fn() -> u64) -> bool {
        let mut patience = Patience::new(if hangs { 0 } else { CLOSE_PATIENCE }, answered());
        let mut queued = self.lock();
        queued.closed = true;
        while queued.working && patience.spend(answered()) {
            queued = self.idle.wait_timeout_while(queued, TICK, |queued| queued.working);
        }
        !queued.working
    }
}

/// If a panic drops this, the thread counts as idle, so that the next job starts it again.
pub(super) struct Working<'a>(pub(super) &'a Jobs);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop_working(&mut self.0.lock());
        }
    }
}

/// Looks that are left of the wait for a disk. They start again whenever the disk has answered a call.
struct Patience {
    looks: u64,
    left: u64,
    answered: u64,
}

impl Patience {
    fn new(looks: u64, answered: u64) -> Self {
        Patience { looks, left: looks, answered }
    }

    /// Takes another look at a disk that has `answered` this number of calls. False if no look is left.
    fn spend(&mut self, answered: u64) -> bool {
        if std::mem::replace(&mut self.answered, answered) != answered {
            self.left = self.looks;
        }
        let lasts = self.left > 0;
        self.left = self.left.saturating_sub(1);
        lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_something_now_and_then_is_waited_for() {
        let mut patience = Patience::new(2, 5);
        let waits = [5, 5, 6, 6, 7, 7, 7].map(|answered| patience.spend(answered));
        assert_eq!(waits, [true, true, true, true, true, true, false]);
        assert!(!Patience::new(0, 5).spend(5), "one that is known to hang is not");
    }
}

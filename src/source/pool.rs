//! A pool of threads for jobs that wait.
//!
//! If there are more jobs than idle threads, another thread starts, up to a limit. Jobs for waiting readers are
//! taken first. Some threads are reserved for readers and never run a prefetch, so that a reader's job starts
//! at once even if prefetches hang. A [`KeyedPool`](super::KeyedPool) is for jobs that may hang: there a job
//! that takes long gives its slot to others, so more jobs run than there are slots. Its queue is slower, so it
//! is not used here.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use crate::sync::{Condvar, Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A reader waits. Goes before every prefetch.
    Demand,
    Prefetch,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    demand: VecDeque<Job>,
    prefetch: VecDeque<Job>,
    idle: usize,
    threads: usize,
    prefetching: usize,
    closed: bool,
}

struct Shared {
    name: &'static str,
    queue: Mutex<Queue>,
    wake: Condvar,
    threads_max: usize,
    prefetching_max: usize,
    /// Each thread runs this first.
    start: Box<dyn Fn() + Send + Sync>,
}

/// A queue of blocking jobs and the threads that run them.
///
/// Jobs that are queued when the pool is dropped are not run. Its threads end after their present job. They
/// are not waited for, since that job may hang with the source.
pub struct Pool(Arc<Shared>);

impl Pool {
    /// A pool that runs at most `prefetching_max` prefetches and `reserved` further jobs at once.
    pub fn new(name: &'static str, prefetching_max: usize, reserved: usize) -> Self {
        Pool::starting(name, prefetching_max, reserved, || ())
    }

    /// As [`new`](Self::new), but each thread runs `start` first.
    pub fn starting(
        name: &'static str,
        prefetching_max: usize,
        reserved: usize,
        start: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let pool = Pool(Arc::new(Shared {
            name,
            queue: Mutex::default(),
            wake: Condvar::new(),
            threads_max: prefetching_max + reserved,
            prefetching_max,
            start: Box::new(start),
        }));
        // Later it may be impossible to start a thread, and one is needed for the work.
        pool.add_thread(&mut pool.0.lock());
        pool
    }

    /// Starts a thread. If none can be started, the existing threads do the work.
    fn add_thread(&self, queue: &mut Queue) {
        let shared = Arc::clone(&self.0);
        let thread = thread::Builder::new().name(self.0.name.into());
        if thread.spawn(move || shared.run()).is_ok() {
            queue.threads += 1;
        }
    }

    pub fn submit(&self, urgency: Urgency, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.lock();
        match urgency {
            Urgency::Demand => queue.demand.push_back(Box::new(job)),
            Urgency::Prefetch => queue.prefetch.push_back(Box::new(job)),
        }
        // A woken thread counts as idle until it runs: there may be a job for each idle thread.
        let startable = self.0.prefetching_max.saturating_sub(queue.prefetching);
        let runnable = queue.demand.len() + queue.prefetch.len().min(startable);
        if queue.idle >= runnable.max(1) {
            self.0.wake.notify_one();
        } else if queue.threads < self.0.threads_max {
            self.add_thread(&mut queue);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn run(&self) {
        (self.start)();
        let mut queue = self.lock();
        while !queue.closed {
            let demand = queue.demand.pop_front();
            let prefetch = demand.is_none();
            let job = demand.or_else(|| {
                let free = queue.prefetching < self.prefetching_max;
                free.then(|| queue.prefetch.pop_front()).flatten()
            });
            let Some(job) = job else {
                queue.idle += 1;
                queue = self.wake.wait(queue);
                queue.idle -= 1;
                continue;
            };
            queue.prefetching += usize::from(prefetch);
            drop(queue);
            // A panic of a job must not end the thread.
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!(pool = self.name, "a job panicked");
            }
            queue = self.lock();
            queue.prefetching -= usize::from(prefetch);
        }
    }
}

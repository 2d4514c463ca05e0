//! Searches under way: slice by slice, on threads that stand back behind all others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use nix::libc;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use super::Note;
use crate::config::LearnSettings;
use crate::learn::{LoaderId, Search, SearchId};
use crate::source::{Pool, Urgency};

/// The searches of one learner, and the threads that they run on.
pub(super) struct Searches {
    pool: Arc<Pool>,
    threads: u32,
    notes: SyncSender<Note>,
    jobs: Vec<Arc<Job>>,
}

struct Job {
    id: SearchId,
    loader: LoaderId,
    /// Which learner wants it.
    generation: u32,
    search: Arc<Search>,
    /// The first unit that nobody has taken.
    next: AtomicU64,
    /// How many slices may be searched at once; each is followed by another one.
    chains: AtomicU32,
    over: AtomicBool,
}

impl Searches {
    /// Searches on as many threads as are set, which start when there is something to search. What
    /// is found goes to `notes`.
    pub(super) fn new(settings: &LearnSettings, notes: SyncSender<Note>) -> Self {
        let LearnSettings { threads, nice, .. } = *settings;
        let start = move || stand_back(nice);
        let pool = Arc::new(Pool::starting("belady-search", threads as usize, 0, start));
        Searches { pool, threads, notes, jobs: Vec::new() }
    }

    /// Begins one.
    pub(super) fn begin(
        &mut self,
        generation: u32,
        id: SearchId,
        loader: LoaderId,
        search: Arc<Search>,
    ) {
        let job = Arc::new(Job {
            id,
            loader,
            generation,
            search,
            next: AtomicU64::new(0),
            chains: AtomicU32::new(self.threads),
            over: AtomicBool::new(false),
        });
        self.jobs.push(Arc::clone(&job));
        for _ in 0..self.threads {
            go_on(&self.pool, Arc::clone(&job), self.notes.clone());
        }
    }

    /// Ends one; the slices that are searched now are the last.
    pub(super) fn end(&mut self, id: SearchId) {
        for job in self.jobs.extract_if(.., |job| job.id == id) {
            job.over.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something is searched for a loader.
    pub(super) fn runs_for(&self, loader: LoaderId) -> bool {
        self.jobs.iter().any(|job| job.loader == loader)
    }

    /// Ends all.
    pub(super) fn end_all(&mut self) {
        for job in self.jobs.drain(..) {
            job.over.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Searches {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Queues the next slice of a job.
fn go_on(pool: &Arc<Pool>, job: Arc<Job>, notes: SyncSender<Note>) {
    let next = Arc::clone(pool);
    pool.submit(Urgency::Prefetch, move || {
        if job.step(&notes) {
            go_on(&next, job, notes);
        }
    });
}

impl Job {
    /// Searches through one slice. Says whether there may be more.
    fn step(&self, notes: &SyncSender<Note>) -> bool {
        if self.over.load(Ordering::Relaxed) {
            return false;
        }
        let (generation, search) = (self.generation, self.id);
        let slice = self.search.slice();
        let from = self.next.fetch_add(slice, Ordering::Relaxed);
        if from >= self.search.units() {
            if self.chains.fetch_sub(1, Ordering::AcqRel) == 1 {
                // The learner's thread may have ended.
                let _ = notes.send(Note::Searched { generation, search });
            }
            return false;
        }
        let began = processor_time();
        let found = catch_unwind(AssertUnwindSafe(|| self.search.run(from..from + slice)));
        let findings = found.unwrap_or_else(|_| {
            tracing::error!(from, "a search panicked");
            Vec::new()
        });
        let cpu = processor_time().saturating_sub(began);
        let loader = self.loader;
        notes.send(Note::Slice { generation, search, loader, findings, cpu }).is_ok()
    }
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Duration::ZERO };
    let spent = usage.user_time() + usage.system_time();
    Duration::from_micros(spent.num_microseconds().unsigned_abs())
}

/// Lets everyone else go before this thread.
fn stand_back(nice: u32) {
    // SAFETY: a call without pointers; 0 is the calling thread. To be nicer is always permitted.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice as libc::c_int) };
}

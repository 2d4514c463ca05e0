//! Searches under way: slice by slice, on threads that stand back behind all others.
//!
//! They are nice, but the kernel weighs nice values within a session only, where it schedules
//! sessions as groups (`kernel.sched_autogroup_enabled`, sched(7)), and within a control group. A
//! training job is in another one. So a thread that was kept waiting for a processor pauses: for
//! as long as the other one would run in its place if its nice value counted everywhere. The first half
//! second for a process is free: to try popular seeds takes less.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use super::Note;
use crate::config::LearnSettings;
use crate::learn::{LoaderId, Search, SearchId};
use crate::source::{Pool, Urgency};
use crate::sync::lower_priority;

/// A thread was kept waiting where it waited for more than one part in so many of what it computed.
const WAITED: u32 = 4;

/// The longest pause at once, and in which steps is looked whether the search is over.
const PAUSE_MAX: Duration = Duration::from_secs(30);
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// Processor time that is searched for a process without pauses.
const FREE: Duration = Duration::from_millis(500);

/// From how many seeds on a slice says how fast they are searched.
const COUNTS_MIN: u64 = 1 << 18;

/// The searches of one learner, and the threads that they run on.
pub(super) struct Searches {
    pool: Arc<Pool>,
    threads: u32,
    nice: u32,
    notes: SyncSender<Note>,
    jobs: Vec<Arc<Job>>,
}

struct Job {
    id: SearchId,
    loader: LoaderId,
    /// The process that it reads for.
    group: u64,
    /// Which learner wants it.
    generation: u32,
    search: Arc<Search>,
    nice: u32,
    /// The first unit that nobody has taken.
    next: AtomicU64,
    /// Microseconds that may yet be searched without pauses.
    free: AtomicU64,
    /// How many slices may be searched at once; each is followed by another one.
    chains: AtomicU32,
    over: AtomicBool,
}

impl Searches {
    /// Searches on as many threads as are set, which start when there is something to search. What
    /// is found goes to `notes`.
    pub(super) fn new(settings: &LearnSettings, notes: SyncSender<Note>) -> Self {
        let LearnSettings { threads, nice, .. } = *settings;
        let start = move || lower_priority(nice);
        let pool = Arc::new(Pool::starting("belady-search", threads as usize, 0, start));
        Searches { pool, threads, nice, notes, jobs: Vec::new() }
    }

    /// Begins one, for a loader and the process that it reads for, for which so much time has been `spent`
    /// since searches were to begin without pauses.
    pub(super) fn begin(
        &mut self,
        generation: u32,
        id: SearchId,
        (loader, group): (LoaderId, u64),
        search: Arc<Search>,
        spent: Duration,
    ) {
        let job = Arc::new(Job {
            id,
            loader,
            group,
            generation,
            search,
            nice: self.nice,
            next: AtomicU64::new(0),
            free: AtomicU64::new(FREE.saturating_sub(spent).as_micros() as u64),
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

    /// Whether something is searched.
    pub(super) fn run(&self) -> bool {
        !self.jobs.is_empty()
    }

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
    /// Waits, unless the search is over before.
    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.over.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(PAUSE_STEP.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// How much of this processor time is not free.
    fn beyond_free(&self, cpu: Duration) -> Duration {
        let less = |free: u64| Some(free.saturating_sub(cpu.as_micros() as u64));
        let free = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        cpu.saturating_sub(Duration::from_micros(free.unwrap_or_default()))
    }

    /// Searches through one slice. Says whether there may be more.
    fn step(&self, notes: &SyncSender<Note>) -> bool {
        if self.over.load(Ordering::Relaxed) {
            return false;
        }
        let (generation, search) = (self.generation, self.id);
        let after = |from: u64| from.checked_add(self.search.slice(from));
        let from = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        let from = from.unwrap_or(u64::MAX);
        if from >= self.search.units() {
            if self.chains.fetch_sub(1, Ordering::AcqRel) == 1 {
                // The learner's thread may have ended.
                let _ = notes.send(Note::Searched { generation, search });
            }
            return false;
        }
        let units = self.search.slice(from).min(self.search.units() - from);
        let (began, before) = (Instant::now(), processor_time());
        let found = catch_unwind(AssertUnwindSafe(|| self.search.run(from..from + units)));
        let findings = found.unwrap_or_else(|_| {
            tracing::error!(from, "a search panicked");
            Vec::new()
        });
        let cpu = processor_time().saturating_sub(before);
        let (loader, group) = (self.loader, self.group);
        // Of the small slices at the beginning, most is getting ready.
        let counts = self.search.is_of_all_seeds() && units >= COUNTS_MIN;
        let pause = pause(began.elapsed(), cpu, self.beyond_free(cpu), self.nice);
        let took = began.elapsed() + pause;
        let speed = counts.then(|| units as f64 / took.as_secs_f64().max(1e-6));
        self.rest(pause);
        let slice = Note::Slice { generation, search, loader, group, findings, cpu, speed };
        notes.send(slice).is_ok()
    }
}

/// How long to pause after so much time, of which a thread that never waits had a processor for so
/// much, a part of it beyond what is free: as many times as long as that part took as it is nice, if it
/// was kept waiting. So at most one part in 20 of a busy processor goes into a long search.
fn pause(took: Duration, cpu: Duration, beyond: Duration, nice: u32) -> Duration {
    let waited = took.saturating_sub(cpu);
    if waited > cpu / WAITED { (beyond * nice).min(PAUSE_MAX) } else { Duration::ZERO }
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Duration::ZERO };
    let spent = usage.user_time() + usage.system_time();
    Duration::from_micros(spent.num_microseconds().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_kept_waiting_pauses() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(105), ms(100), ms(100), 19), Duration::ZERO);
        assert_eq!(pause(ms(200), ms(100), ms(100), 19), ms(1_900));
        assert_eq!(pause(ms(200), ms(100), ms(10), 19), ms(190));
        assert_eq!(pause(ms(200), ms(100), ms(0), 19), Duration::ZERO);
        assert_eq!(pause(ms(200), ms(100), ms(100), 0), Duration::ZERO);
        assert_eq!(pause(ms(90_000), ms(9_000), ms(9_000), 19), PAUSE_MAX);
    }
}

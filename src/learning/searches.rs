//! The learner's searches, slice by slice, on threads that stand back behind all others.
//!
//! The threads are nice, but the kernel weighs nice values only within a control group, and within a session
//! if it schedules sessions as groups (`kernel.sched_autogroup_enabled`, sched(7)). A training job is in another
//! one. So a thread that was kept waiting for a processor pauses for as long as the other thread would run in
//! its place if its nice value counted everywhere. The first half second for a process, which is enough to try
//! popular seeds, is free.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use super::Note;
use crate::config::LearnSettings;
use crate::learn::{Finding, LoaderId, Search, SearchId, Settings};
use crate::source::{Pool, Urgency};
use crate::sync::lower_priority;

/// A thread was kept waiting if it waited for more than this part of the time that it computed.
const WAITED: u32 = 4;

/// The longest pause, and how often it is looked meanwhile whether the search is over.
const PAUSE_MAX: Duration = Duration::from_secs(30);
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// Processor time for a process without pauses.
const FREE: Duration = Duration::from_millis(500);

/// The fewest seeds of a slice that show how fast they are searched.
const COUNTS_MIN: u64 = 1 << 18;

/// Over how many slices the speed of searches is smoothed.
const SPEEDS: f64 = 32.0;

pub(super) struct Searches {
    pool: Arc<Pool>,
    pub(super) settings: LearnSettings,
    notes: SyncSender<Note>,
    jobs: Vec<Arc<Job>>,
    /// Searches that have not begun: they may wait until a told order turns out to be wrong.
    pub(super) waiting: Vec<Wanted>,
    /// Counts the learners. A search of an earlier learner finds nothing of use.
    pub(super) generation: u32,
    /// Processor time that searches took, by the process that they were for.
    pub(super) spent: BTreeMap<u64, Spent>,
    /// How fast all threads search seeds, once some have been searched.
    seeds_per_second: Option<f64>,
}

/// A search that the learner wants for a loader of a process.
pub(super) struct Wanted {
    pub(super) id: SearchId,
    pub(super) loader: LoaderId,
    pub(super) group: u64,
    pub(super) search: Arc<Search>,
}

/// What a slice of a search found and took.
pub(super) struct Slice {
    pub(super) generation: u32,
    pub(super) search: SearchId,
    pub(super) loader: LoaderId,
    pub(super) group: u64,
    pub(super) findings: Vec<Finding>,
    pub(super) cpu: Duration,
    /// Seeds a second on this thread, if all seeds are searched.
    pub(super) speed: Option<f64>,
}

/// Processor time that searches for a process took.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    all: Duration,
    /// What it was when searches were last to begin without pauses.
    before: Duration,
}

impl Spent {
    /// Processor time since searches were last to begin without pauses.
    pub(super) fn since(self) -> Duration {
        self.all - self.before
    }
}

struct Job {
    wanted: Wanted,
    generation: u32,
    nice: u32,
    /// The first unit that no thread has taken.
    next: AtomicU64,
    /// Microseconds that may yet be searched without pauses.
    free: AtomicU64,
    /// How many slices may be searched at once; each is followed by another one.
    chains: AtomicU32,
    over: AtomicBool,
}

impl Searches {
    /// Searches whose threads start when there is something to search. Findings go to `notes`.
    pub(super) fn new(settings: LearnSettings, notes: SyncSender<Note>) -> Self {
        let LearnSettings { threads, nice, .. } = settings;
        let start = move || lower_priority(nice);
        Searches {
            pool: Arc::new(Pool::starting("belady-search", threads as usize, 0, start)),
            settings,
            notes,
            jobs: Vec::new(),
            waiting: Vec::new(),
            generation: 0,
            spent: BTreeMap::new(),
            seeds_per_second: None,
        }
    }

    /// Begins the searches that are wanted, except those for loaders that have to wait.
    pub(super) fn begin_waiting(&mut self, has_to_wait: impl Fn(LoaderId) -> bool) {
        let due = self.waiting.extract_if(.., |wanted| !has_to_wait(wanted.loader));
        for wanted in due.collect::<Vec<Wanted>>() {
            self.begin(wanted);
        }
    }

    fn begin(&mut self, wanted: Wanted) {
        let Wanted { id, loader, group, search } = &wanted;
        tracing::debug!(?id, ?loader, units = search.units(), "search begins");
        let spent = self.spent.get(group).copied().unwrap_or_default().since();
        let LearnSettings { threads, nice, .. } = self.settings;
        let job = Arc::new(Job {
            wanted,
            generation: self.generation,
            nice,
            next: AtomicU64::new(0),
            free: AtomicU64::new(FREE.saturating_sub(spent).as_micros() as u64),
            chains: AtomicU32::new(threads),
            over: AtomicBool::new(false),
        });
        self.jobs.push(Arc::clone(&job));
        for _ in 0..threads {
            go_on(&self.pool, Arc::clone(&job), self.notes.clone());
        }
    }

    /// Ends a search with the slices that are searched now.
    pub(super) fn end(&mut self, id: SearchId) {
        self.waiting.retain(|wanted| wanted.id != id);
        for job in self.jobs.extract_if(.., |job| job.wanted.id == id) {
            job.over.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn are_running(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(super) fn are_running_for(&self, loader: LoaderId) -> bool {
        self.jobs.iter().any(|job| job.wanted.loader == loader)
    }

    pub(super) fn end_all(&mut self) {
        self.waiting.clear();
        for job in self.jobs.drain(..) {
            job.over.store(true, Ordering::Relaxed);
        }
    }

    /// A search for a process took more processor time. Gives all that it took if that is used up now.
    pub(super) fn spend(&mut self, group: u64, cpu: Duration) -> Option<Duration> {
        let (most, spent) = (self.settings.time, &mut self.spent.entry(group).or_default().all);
        *spent += cpu;
        (*spent >= most && *spent - cpu < most).then_some(*spent)
    }

    /// The processes whose time is used up.
    pub(super) fn used_up(&self) -> impl Iterator<Item = u64> {
        let used_up = self.spent.iter().filter(|(_, spent)| spent.all >= self.settings.time);
        used_up.map(|(group, _)| *group)
    }

    /// The next searches for a process begin without pauses again.
    pub(super) fn begin_without_pauses(&mut self, group: u64) {
        let spent = self.spent.entry(group).or_default();
        spent.before = spent.all;
    }

    /// A slice of all seeds was searched at this speed on one of the threads. Gives the speed of all.
    pub(super) fn measure(&mut self, speed: f64) -> u64 {
        let speed = speed * f64::from(self.settings.threads);
        let known = self.seeds_per_second.get_or_insert(speed);
        *known += (speed - *known) / SPEEDS;
        *known as u64
    }

    /// How the learner is to search.
    pub(super) fn settings(&self) -> Settings {
        let default = Settings::default();
        let guess = default.seeds_per_second * u64::from(self.settings.threads);
        let seeds_per_second = self.seeds_per_second.map_or(guess, |speed| speed as u64);
        Settings { crack: self.settings.crack, seeds_per_second, ..default }
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

    /// The part of this processor time that is not free.
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
        let Wanted { id, loader, group, search } = &self.wanted;
        let after = |from: u64| from.checked_add(search.slice(from));
        let from = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        let from = from.unwrap_or(u64::MAX);
        if from >= search.units() {
            if self.chains.fetch_sub(1, Ordering::AcqRel) == 1 {
                // The learner's thread may have ended.
                let (generation, search) = (self.generation, *id);
                let _ = notes.send(Note::Searched { generation, search });
            }
            return false;
        }
        let units = search.slice(from).min(search.units() - from);
        let (began, before) = (Instant::now(), processor_time());
        let found = catch_unwind(AssertUnwindSafe(|| search.run(from..from + units)));
        let findings = found.unwrap_or_else(|_| {
            tracing::error!(from, "a search panicked");
            Vec::new()
        });
        let cpu = processor_time().saturating_sub(before);
        // The small slices at the beginning mostly get ready.
        let counts = search.is_of_all_seeds() && units >= COUNTS_MIN;
        let pause = pause(began.elapsed(), cpu, self.beyond_free(cpu), self.nice);
        let took = began.elapsed() + pause;
        let speed = counts.then(|| units as f64 / took.as_secs_f64().max(1e-6));
        self.rest(pause);
        let (generation, search) = (self.generation, *id);
        let (loader, group) = (*loader, *group);
        let slice = Slice { generation, search, loader, group, findings, cpu, speed };
        notes.send(Note::Slice(slice)).is_ok()
    }
}

/// How long a thread pauses after it took this time, with a processor for `cpu` of it, of which `beyond` was
/// not free: `nice` times that if it was kept waiting. So a long search gets at most one part in 20 of a busy
/// processor.
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

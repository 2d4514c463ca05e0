//! Looks at the processes of a job from outside, in `/proc`.
//!
//! 1. A job is followed by a process of it: the command of a run ([`Profiler::follow`]), or a task that reads at a mount
//!    ([`Readers::reads`]). Its process tree is searched for workers (`tree`).
//! 2. A thread looks at each worker and at its trainer 50 times a second: in which function of the kernel it sleeps (`task`),
//!    and what the kernel has counted. If there are many tasks, it looks 10 times a second, and at workers in turn: their sums
//!    are exact anyway. The files of `/proc` stay open. Nothing is done to the processes, and no request of a reader passes
//!    here.
//! 3. What is seen becomes the epochs of `stall` (`loaders`).
//!
//! If nobody reads for a while, there is a look each other second. If there is nobody to look at, the thread sleeps.

mod group;
mod loaders;
mod member;
mod task;
mod tree;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::unistd::gettid;
use serde::{Deserialize, Serialize};

use crate::stall::{Epoch, Meters, State};
use crate::sync::{Condvar, Mutex};
use loaders::Loaders;
use task::{TaskFiles, now};

/// The mean pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The pause while first batches are made: what a worker writes for a batch is known if the next one is not written yet.
const FIRST_LOOKS_EVERY: Duration = Duration::from_millis(4);

/// The pause if nobody has read for so many seconds.
const IDLE_LOOKS_EVERY: Duration = Duration::from_secs(2);
const IDLE_AFTER: f64 = 15.0;

/// Multiples of it are spread evenly between whole numbers.
const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;

/// Seconds from one search for new processes to the next one, and from one search for threads that read to the next one.
const SEARCH_EVERY: f64 = 0.2;
const THREADS_EVERY: f64 = 2.0;

/// How long [`Profiler::seen`] waits for a last look.
const PATIENCE: Duration = Duration::from_secs(2);

/// Epochs that are remembered, the latest ones.
const EPOCHS_MAX: usize = 1000;

/// The latest epochs of which it is remembered what was over time.
const DETAILED: usize = 16;

/// Looks of a trace that are kept at most.
const TRACED_MAX: usize = 200_000;

/// Tasks that are remembered as told, and reads after which they are forgotten: a number may be that of another task then.
const TOLD_MAX: usize = 4096;
const FORGET_AFTER: u32 = 1 << 16;

/// What the thread is told, and what it tells.
#[derive(Default)]
struct Exchange {
    has_to_end: bool,
    /// Processes whose trees are to be followed.
    roots: Vec<u32>,
    /// Tasks that read at the mount. `None` if there is no mount.
    readers: Option<Vec<u32>>,
    seen: Seen,
    /// Epochs that go on.
    current: Vec<Epoch>,
    /// Looks so far, and how many somebody waits for.
    looks: u64,
    awaited: u64,
    /// Each look, while somebody traces.
    traced: Option<(Vec<Look>, u64)>,
}

impl Exchange {
    fn has_something(&self) -> bool {
        let readers = self.readers.as_ref().is_some_and(|readers| !readers.is_empty());
        readers || self.has_to_end || !self.roots.is_empty() || self.awaited > self.looks
    }
}

/// What a task did at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub at: Instant,
    /// The process that it reads for.
    pub trainer: u32,
    pub task: u32,
    pub state: State,
}

#[derive(Default)]
struct Shared {
    exchange: Mutex<Exchange>,
    /// Something to look at has come, or a look is awaited.
    told: Condvar,
    looked: Condvar,
    /// Reads at the mount so far.
    reads: AtomicU64,
}

/// What was seen so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// Epochs in the order of their ends, those that go on last.
    pub epochs: Vec<Epoch>,
    /// Whether somebody reads whose processes cannot be seen here: they are in another container.
    pub has_strangers: bool,
    /// Epochs that were too short to be looked at.
    pub short_epochs: u64,
    /// Processor time that looking has taken.
    pub cpu_s: f64,
}

impl Seen {
    fn without_epochs(&self) -> Self {
        let Seen { has_strangers, short_epochs, cpu_s, epochs: _ } = *self;
        Seen { epochs: Vec::new(), has_strangers, short_epochs, cpu_s }
    }

    /// Adds epochs that are over. What was over time is forgotten, but of the latest epochs.
    fn add(&mut self, over: Vec<Epoch>) {
        self.epochs.extend(over);
        let surplus = self.epochs.len().saturating_sub(EPOCHS_MAX);
        self.epochs.drain(..surplus);
        for epoch in self.epochs.iter_mut().rev().skip(DETAILED) {
            epoch.lanes = Vec::new();
            epoch.points = Vec::new();
        }
    }

    /// Keeps so many of the latest epochs of each trainer, if not all.
    pub fn keep_latest(&mut self, count: Option<u32>) {
        self.epochs = latest(self.epochs.iter().collect(), count).into_iter().cloned().collect();
    }
}

/// So many of the latest epochs of each trainer, or all.
fn latest(mut epochs: Vec<&Epoch>, count: Option<u32>) -> Vec<&Epoch> {
    let mut later: HashMap<u32, u32> = HashMap::new();
    epochs.reverse();
    epochs.retain(|epoch| {
        let later = later.entry(epoch.trainer).or_default();
        *later += 1;
        count.is_none_or(|count| *later <= count)
    });
    epochs.reverse();
    epochs
}

/// The thread that looks. It ends when this is dropped.
pub struct Profiler(Arc<Shared>);

impl Profiler {
    /// Begins to look. `meters`: what the mount has counted so far.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(meters: impl Fn() -> Meters + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let run = {
            let shared = Arc::clone(&shared);
            move || look_on(&shared, &meters)
        };
        std::thread::Builder::new().name("belady-profile".into()).spawn(run)?;
        Ok(Profiler(shared))
    }

    /// Follows a process and its children.
    pub fn follow(&self, process: u32) {
        self.0.exchange.lock().roots.push(process);
        self.0.told.notify_all();
    }

    /// Hears of the tasks that read at a mount. Others are left out then.
    pub fn readers(&self) -> Readers {
        self.0.exchange.lock().readers.get_or_insert_default();
        Readers { shared: Arc::clone(&self.0), known: HashSet::new(), reads: 0 }
    }

    /// Notes each look from now on.
    pub fn begin_trace(&self) {
        self.0.exchange.lock().traced = Some(Default::default());
    }

    /// Notes no more. Returns what was noted, and how many others there were.
    pub fn end_trace(&self) -> (Vec<Look>, u64) {
        self.0.exchange.lock().traced.take().unwrap_or_default()
    }

    /// What was seen, after a last look: so many of the latest epochs of each trainer, or all.
    pub fn seen(&self, count: Option<u32>) -> Seen {
        let end = Instant::now() + PATIENCE;
        let mut exchange = self.0.exchange.lock();
        // One may have begun before.
        let awaited = exchange.looks + 2;
        exchange.awaited = awaited;
        self.0.told.notify_all();
        while exchange.looks < awaited && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            exchange = self.0.looked.wait_timeout(exchange, left);
        }
        let all = exchange.seen.epochs.iter().chain(&exchange.current).collect();
        let epochs = latest(all, count).into_iter().cloned().collect();
        Seen { epochs, ..exchange.seen.without_epochs() }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.0.exchange.lock().has_to_end = true;
        self.0.told.notify_all();
    }
}

/// Tells the profiler of tasks that read at a mount.
pub struct Readers {
    shared: Arc<Shared>,
    /// The tasks that it has been told of.
    known: HashSet<u32>,
    /// Reads since then.
    reads: u32,
}

impl Readers {
    /// A task reads. Tasks of other containers have the number 0.
    pub fn reads(&mut self, task: u32) {
        self.shared.reads.fetch_add(1, Ordering::Relaxed);
        self.reads += 1;
        if self.reads >= FORGET_AFTER || self.known.len() >= TOLD_MAX {
            self.known.clear();
            self.reads = 0;
        }
        if self.known.insert(task) {
            let mut exchange = self.shared.exchange.lock();
            exchange.seen.has_strangers |= task == 0;
            let told = exchange.readers.as_mut().filter(|told| task != 0 && told.len() < TOLD_MAX);
            told.into_iter().for_each(|told| told.push(task));
            drop(exchange);
            self.shared.told.notify_all();
        }
    }
}

/// The life of the thread.
fn look_on(shared: &Shared, meters: &dyn Fn() -> Meters) {
    let mut looking = Looking::new(meters);
    while let Some(task) = looking.next_task(shared) {
        looking.look(task, shared);
        looking.pause(shared);
    }
}

/// What one look has to take in.
struct LookTask {
    roots: Vec<u32>,
    readers: Option<Vec<u32>>,
    is_awaited: bool,
}

/// The state of the thread.
struct Looking<'a> {
    meters: &'a dyn Fn() -> Meters,
    loaders: Loaders,
    /// The files of the thread itself.
    own: Option<TaskFiles>,
    looks: u64,
    /// When it looked last, and when new processes and threads are to be searched for.
    last: f64,
    search_due: f64,
    threads_due: f64,
}

impl<'a> Looking<'a> {
    fn new(meters: &'a dyn Fn() -> Meters) -> Self {
        let own = TaskFiles::of_thread(std::process::id(), gettid().as_raw() as u32).ok();
        let loaders = Loaders::default();
        Looking { meters, loaders, own, looks: 0, last: now(), search_due: 0.0, threads_due: 0.0 }
    }

    /// Waits until there is something to look at. `None` at the end.
    fn next_task(&mut self, shared: &Shared) -> Option<LookTask> {
        let mut exchange = shared.exchange.lock();
        while self.loaders.is_empty() && !exchange.has_something() {
            exchange = shared.told.wait(exchange);
            self.last = now();
        }
        (!exchange.has_to_end).then(|| LookTask {
            roots: std::mem::take(&mut exchange.roots),
            readers: exchange.readers.as_mut().map(std::mem::take),
            is_awaited: exchange.awaited > exchange.looks,
        })
    }

    fn look(&mut self, LookTask { roots, readers, is_awaited }: LookTask, shared: &Shared) {
        let Looking { meters, loaders, .. } = self;
        let is_told = !roots.is_empty() || readers.as_ref().is_some_and(|told| !told.is_empty());
        roots.into_iter().for_each(|process| loaders.follow(process));
        if let Some(readers) = readers {
            loaders.want_readers_only();
            readers.into_iter().for_each(|task| loaders.follow_reader(task));
        }
        loaders.note_reads(shared.reads.load(Ordering::Relaxed));
        let before = std::mem::replace(&mut self.last, now());
        loaders.look(self.last - before, is_awaited);
        let is_due = self.last >= self.search_due || is_told || is_awaited;
        loaders.count();
        if is_due {
            self.search_due = self.last + SEARCH_EVERY;
        }
        if is_due || loaders.are_few() && loaders.has_new_workers() {
            loaders.search(&meters());
        }
        if self.last >= self.threads_due {
            self.threads_due = self.last + THREADS_EVERY;
            loaders.search_threads();
        }
        self.tell(shared, is_awaited, is_due);
    }

    /// Tells of the epochs that are over, of those that go on if somebody waits for it, and of its own processor time now and
    /// then.
    fn tell(&mut self, shared: &Shared, is_awaited: bool, is_due: bool) {
        let Looking { meters, loaders, own, .. } = self;
        let over = loaders.take_over(meters);
        let current = (is_awaited || !over.is_empty()).then(|| loaders.current(&meters()));
        let cpu = own.as_ref().filter(|_| is_due).and_then(|own| own.counters().ok());
        let mut exchange = shared.exchange.lock();
        exchange.looks += 1;
        if let Some((traced, left_out)) = &mut exchange.traced {
            let looks = loaders.looks(Instant::now());
            match traced.len() < TRACED_MAX {
                true => traced.extend(looks),
                false => *left_out += looks.len() as u64,
            }
        }
        let Exchange { seen, current: told, .. } = &mut *exchange;
        seen.cpu_s = cpu.map_or(seen.cpu_s, |cpu| cpu.run_s);
        seen.short_epochs = loaders.short;
        if !over.is_empty() {
            seen.add(over);
        }
        *told = current.unwrap_or_else(|| std::mem::take(told));
        drop(exchange);
        shared.looked.notify_all();
    }

    /// Whoever waits for a look, or tells of a reader, does not wait for the end of a long pause.
    fn pause(&mut self, shared: &Shared) {
        self.looks += 1;
        let end = Instant::now() + pause(&self.loaders, self.looks);
        let is_long = self.loaders.idle() > IDLE_AFTER;
        let mut exchange = shared.exchange.lock();
        while Instant::now() < end && !(is_long && exchange.has_something()) {
            let left = end.saturating_duration_since(Instant::now());
            exchange = shared.told.wait_timeout(exchange, left);
        }
    }
}

/// The pause after so many looks. Its length changes, so that looks do not fall into step with what they look at: it is
/// spread evenly between half of the mean and one and a half of it.
fn pause(loaders: &Loaders, looks: u64) -> Duration {
    if loaders.makes_first_batches() {
        return FIRST_LOOKS_EVERY;
    }
    if loaders.idle() > IDLE_AFTER {
        return IDLE_LOOKS_EVERY;
    }
    let spread = 0.5 + (looks as f64 * GOLDEN_RATIO).fract();
    LOOK_EVERY.mul_f64(spread * loaders.slowdown())
}

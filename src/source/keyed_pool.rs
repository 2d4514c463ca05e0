//! A pool of threads whose jobs have a key: the place that a job is about, such as a directory.
//!
//! 1. A job should end soon. If it takes longer than the pool's patience, it is *held up*, and another
//!    thread takes its slot.
//! 2. A place with too many held-up jobs *hangs*. Further jobs at the place wait until one of them ends, or
//!    are refused, as their caller chooses. So a place that hangs costs only its own jobs.
//! 3. If several places near each other hang, such as names in one directory, all places near them count as
//!    hanging.
//! 4. The number of jobs under way, and so of threads, has a limit. Beyond half of it, places near each
//!    other get one job at a time. At the limit every place counts as hanging.
//!
//! A [`Pool`](super::Pool) runs jobs of known length and never more of them at once than it is told, such as one
//! writer of a store. Handing a job over there reads no clock and does not search the jobs under way.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::Urgency;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Jobs under way, including held-up ones, unless a pool is given another limit.
const UNDER_WAY_MAX: usize = 64;

/// If this number of places near each other have held-up jobs, all places near them hang.
const HELD_UP_NEAR_MAX: usize = 8;

/// Stack of a thread: there may be thousands of threads.
const STACK_BYTES: usize = 512 << 10;

/// What a job is about.
pub trait JobKey: Eq + Send + 'static {
    /// Whether two places are so near that if some places there hang, all are likely to hang. Places near a
    /// third one are near each other.
    fn is_near(&self, other: &Self) -> bool {
        self == other
    }
}

impl JobKey for PathBuf {}
impl JobKey for Arc<Path> {}

/// Gets `ETIMEDOUT` if its place hangs.
type Work = Box<dyn FnOnce(Result<(), Errno>) + Send>;

struct Job<K> {
    key: K,
    work: Work,
    /// Whether it waits while its place hangs, instead of being refused.
    waits: bool,
}

struct UnderWay<K> {
    key: K,
    urgency: Urgency,
    since: Instant,
}

struct State<K> {
    patience: Duration,
    /// Limit of jobs under way, including held-up ones.
    under_way_max: usize,
    /// Number of held-up jobs that makes a place hang.
    held_up_max: usize,
    demand: VecDeque<Job<K>>,
    prefetch: VecDeque<Job<K>>,
    /// Jobs that wait for places that hang, grouped by places near each other. No group is empty.
    waiting: Vec<Vec<(Urgency, Job<K>)>>,
    under_way: BTreeMap<u64, UnderWay<K>>,
    started: u64,
    threads: usize,
    /// Whether a thread without a slot waits for the moment when the next job is held up.
    has_timer: bool,
    closed: bool,
}

enum NextJob {
    /// A job that runs under this number.
    Run(u64, Work),
    Refuse(Work),
}

impl<K: JobKey> State<K> {
    fn new(patience: Duration) -> Self {
        State {
            patience,
            under_way_max: UNDER_WAY_MAX,
            held_up_max: 1,
            demand: VecDeque::new(),
            prefetch: VecDeque::new(),
            waiting: Vec::new(),
            under_way: BTreeMap::new(),
            started: 0,
            threads: 0,
            has_timer: false,
            closed: false,
        }
    }

    fn is_held_up(&self, job: &UnderWay<K>, now: Instant) -> bool {
        now.saturating_duration_since(job.since) >= self.patience
    }

    /// The jobs under way that are not held up.
    fn running(&self, now: Instant) -> impl Iterator<Item = &UnderWay<K>> {
        self.under_way.values().filter(move |job| !self.is_held_up(job, now))
    }

    /// Takes the next job, if the jobs under way that are not held up leave a slot.
    fn take_job(
        &mut self,
        prefetching_max: usize,
        reserved: usize,
        now: Instant,
    ) -> Option<NextJob> {
        let prefetches = |job: &&UnderWay<K>| job.urgency == Urgency::Prefetch;
        let (all, prefetching) =
            (self.running(now).count(), self.running(now).filter(prefetches).count());
        if all >= prefetching_max + reserved {
            return None;
        }
        loop {
            let (urgency, job) = match self.demand.pop_front() {
                Some(job) => (Urgency::Demand, job),
                None if prefetching >= prefetching_max => return None,
                None => (Urgency::Prefetch, self.prefetch.pop_front()?),
            };
            let Job { key, work, waits } = job;
            match self.hangs(&key, now) {
                false => {
                    self.started += 1;
                    self.under_way.insert(self.started, UnderWay { key, urgency, since: now });
                    return Some(NextJob::Run(self.started, work));
                }
                true if waits => self.defer(urgency, Job { key, work, waits }),
                true => return Some(NextJob::Refuse(work)),
            }
        }
    }

    /// Whether a job at this place has to wait for the jobs under way.
    fn hangs(&self, key: &K, now: Instant) -> bool {
        let under_way = self.under_way.len();
        let near = || self.under_way.values().filter(|job| job.key.is_near(key));
        let mut held_up: Vec<&K> = Vec::new();
        for job in near().filter(|job| self.is_held_up(job, now)) {
            if job.key == *key || !held_up.contains(&&job.key) {
                held_up.push(&job.key);
            }
        }
        let here = held_up.iter().filter(|held_up| **held_up == key).count();
        under_way >= self.under_way_max
            || here >= self.held_up_max
            || held_up.len() - here >= HELD_UP_NEAR_MAX
            || under_way >= self.under_way_max / 2 && near().next().is_some()
    }

    fn defer(&mut self, urgency: Urgency, job: Job<K>) {
        match self.waiting.iter_mut().find(|jobs| jobs[0].1.key.is_near(&job.key)) {
            Some(jobs) => jobs.push((urgency, job)),
            None => self.waiting.push(vec![(urgency, job)]),
        }
    }

    /// Ends a job. Jobs that wait for its place or a place near it are queued again.
    fn finish(&mut self, number: u64) {
        let full = self.under_way.len() >= self.under_way_max;
        let Some(ended) = self.under_way.remove(&number) else { return };
        let of_it = |jobs: &mut Vec<(Urgency, Job<K>)>| full || jobs[0].1.key.is_near(&ended.key);
        let jobs: Vec<(Urgency, Job<K>)> = self.waiting.extract_if(.., of_it).flatten().collect();
        for (urgency, job) in jobs.into_iter().rev() {
            match urgency {
                Urgency::Demand => self.demand.push_front(job),
                Urgency::Prefetch => self.prefetch.push_front(job),
            }
        }
    }

    fn has_jobs(&self) -> bool {
        !self.demand.is_empty() || !self.prefetch.is_empty()
    }

    /// When the next job counts as held up. None if no job waits for a slot.
    fn next_held_up(&self, now: Instant) -> Option<Instant> {
        let since = self.running(now).map(|job| job.since).min();
        since.filter(|_| self.has_jobs()).map(|since| since + self.patience)
    }
}

struct Shared<K> {
    name: &'static str,
    state: Mutex<State<K>>,
    wake: Condvar,
    prefetching_max: usize,
    reserved: usize,
    /// Each thread runs this first.
    start: Box<dyn Fn() + Send + Sync>,
}

/// A queue of jobs, each about a place, and the threads that run them.
///
/// Jobs that are queued when the pool is dropped are not run. Its threads end after their present job.
pub struct KeyedPool<K: JobKey>(Arc<Shared<K>>);

impl<K: JobKey> KeyedPool<K> {
    /// A pool that runs at most `prefetching_max` prefetches and `reserved` further jobs at once. Jobs that
    /// take longer than `patience` do not count. Each thread runs `start` first.
    pub fn new(
        name: &'static str,
        patience: Duration,
        prefetching_max: usize,
        reserved: usize,
        start: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let pool = KeyedPool(Arc::new(Shared {
            name,
            state: Mutex::new(State::new(patience)),
            wake: Condvar::new(),
            prefetching_max,
            reserved,
            start: Box::new(start),
        }));
        pool.0.add_thread(&mut pool.0.lock());
        pool
    }

    /// Sets the limits of jobs under way, including held-up ones (64 by default), and of held-up jobs at
    /// one place (1 by default).
    pub fn with_limits(self, under_way_max: usize, held_up_max: usize) -> Self {
        let mut state = self.0.lock();
        (state.under_way_max, state.held_up_max) = (under_way_max, held_up_max);
        drop(state);
        self
    }

    /// Queues a job about a place. Jobs with `Urgency::Demand` go first. The job waits while its place hangs.
    pub fn submit(&self, urgency: Urgency, key: K, work: impl FnOnce() + Send + 'static) {
        // Such a job is never refused.
        let work = Box::new(move |_: Result<(), Errno>| work());
        self.queue(urgency, Job { key, work, waits: true });
    }

    /// As [`submit`](Self::submit), but the job gets `ETIMEDOUT` if its place hangs.
    pub fn try_submit(
        &self,
        urgency: Urgency,
        key: K,
        work: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        self.queue(urgency, Job { key, work: Box::new(work), waits: false });
    }

    fn queue(&self, urgency: Urgency, job: Job<K>) {
        let mut state = self.0.lock();
        match urgency {
            Urgency::Demand => state.demand.push_back(job),
            Urgency::Prefetch => state.prefetch.push_back(job),
        }
        if state.threads == state.under_way.len() {
            self.0.add_thread(&mut state);
        }
        let slots = self.0.prefetching_max + self.0.reserved;
        if !state.has_timer || state.running(Instant::now()).count() < slots {
            self.0.wake.notify_one();
        }
    }
}

impl<K: JobKey> Drop for KeyedPool<K> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
    }
}

impl<K: JobKey> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }

    /// Starts a thread. If none can be started, the existing threads do the work.
    fn add_thread(self: &Arc<Self>, state: &mut State<K>) {
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name(self.name.into()).stack_size(STACK_BYTES);
        if thread.spawn(move || shared.run()).is_ok() {
            state.threads += 1;
        }
    }

    fn run(self: &Arc<Self>) {
        (self.start)();
        let slots = self.prefetching_max + self.reserved;
        let mut state = self.lock();
        while !state.closed {
            match state.take_job(self.prefetching_max, self.reserved, Instant::now()) {
                // Held-up jobs have ended, so there are more threads than slots.
                None if !state.has_jobs() && state.threads > state.under_way.len() + slots => {
                    state.threads -= 1;
                    return;
                }
                None => state = self.wait(state),
                Some(NextJob::Refuse(work)) => {
                    drop(state);
                    self.run_work(work, Err(Errno::ETIMEDOUT));
                    state = self.lock();
                }
                Some(NextJob::Run(number, work)) => {
                    // One thread is left to take the slots of held-up jobs.
                    if state.threads == state.under_way.len() {
                        self.add_thread(&mut state);
                    } else if state.has_jobs() && !state.has_timer {
                        self.wake.notify_one();
                    }
                    drop(state);
                    self.run_work(work, Ok(()));
                    state = self.lock();
                    state.finish(number);
                    if state.has_jobs() {
                        self.wake.notify_one();
                    }
                }
            }
        }
    }

    fn run_work(&self, work: Work, admitted: Result<(), Errno>) {
        // A panic of a job must not end the thread.
        if catch_unwind(AssertUnwindSafe(|| work(admitted))).is_err() {
            tracing::error!(pool = self.name, "a job panicked");
        }
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State<K>>) -> MutexGuard<'a, State<K>> {
        let now = Instant::now();
        match state.next_held_up(now).filter(|_| !state.has_timer) {
            Some(then) => {
                state.has_timer = true;
                let waited = self.wake.wait_timeout(state, then.saturating_duration_since(now));
                let mut state = waited;
                state.has_timer = false;
                state
            }
            None => self.wake.wait(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Sender};

    use super::*;

    impl JobKey for u32 {}

    #[derive(PartialEq, Eq)]
    struct Name(u32, u32);

    impl JobKey for Name {
        fn is_near(&self, other: &Self) -> bool {
            self.1 == other.1
        }
    }

    /// A time that only a broken pool takes.
    const LIMIT: Duration = Duration::from_secs(180);

    const PATIENCE: Duration = Duration::from_secs(1);

    fn pool() -> KeyedPool<u32> {
        KeyedPool::new("pool", PATIENCE, 2, 2, || ())
    }

    /// Blocks a job at a place until the returned sender is dropped.
    fn hang(pool: &KeyedPool<u32>, urgency: Urgency, key: u32) -> Sender<()> {
        let (sender, receiver) = mpsc::channel::<()>();
        pool.submit(urgency, key, move || _ = receiver.recv());
        sender
    }

    /// Runs a job at a place. Fails if it is refused.
    fn ask(pool: &KeyedPool<u32>, urgency: Urgency, key: u32) -> Result<(), Errno> {
        let (sender, receiver) = mpsc::channel();
        pool.try_submit(urgency, key, move |admitted| sender.send(admitted).unwrap());
        receiver.recv_timeout(LIMIT).expect("an answer")
    }

    #[test]
    fn places_that_hang_hold_no_others_up() {
        let pool = pool();
        let urgency = [Urgency::Demand, Urgency::Prefetch];
        let hung: Vec<_> = (0..10).map(|n| hang(&pool, urgency[n as usize % 2], n / 2)).collect();
        assert_eq!(urgency.map(|urgency| ask(&pool, urgency, 100)), [Ok(()); 2]);
        assert_eq!(ask(&pool, Urgency::Demand, 0), Err(Errno::ETIMEDOUT));
        drop(hung);
        // They end in a moment.
        while ask(&pool, Urgency::Prefetch, 0).is_err() {}
    }

    fn job(key: u32) -> Job<u32> {
        Job { key, work: Box::new(|_| ()), waits: false }
    }

    /// The places of the jobs that begin now.
    fn begin(state: &mut State<u32>, now: Instant) -> Vec<u32> {
        while state.take_job(2, 2, now).is_some() {}
        let begun = state.under_way.values().filter(|job| job.since == now);
        begun.map(|job| job.key).collect()
    }

    #[test]
    fn slots_are_bounded_and_demand_goes_first() {
        let (mut state, now) = (State::new(PATIENCE), Instant::now());
        state.prefetch.extend((0..3).map(job));
        assert_eq!(begin(&mut state, now), [0, 1]);
        state.demand.extend((10..13).map(job));
        assert_eq!(begin(&mut state, now), [0, 1, 10, 11]);
        assert_eq!(state.next_held_up(now), Some(now + PATIENCE));
        assert_eq!(begin(&mut state, now + PATIENCE), [12, 2]);
    }

    #[test]
    fn where_too_much_hangs_nothing_begins_and_nothing_waits() {
        let (mut state, mut now) = (State::new(PATIENCE), Instant::now());
        for key in 0..100 {
            state.demand.push_back(job(key));
            begin(&mut state, now);
            now += PATIENCE;
        }
        assert_eq!(state.under_way.len(), UNDER_WAY_MAX);
        assert!(!state.has_jobs());
    }

    #[test]
    fn a_few_places_that_hang_do_not_take_all_threads() {
        let (mut state, mut now) = (State::new(PATIENCE), Instant::now());
        for _ in 0..10 {
            // As many jobs as there are slots, all at the same two places.
            state.demand.extend([0, 0, 1, 1].map(job));
            begin(&mut state, now);
            now += PATIENCE;
        }
        assert_eq!(state.under_way.len(), 4);
        for key in 2..40 {
            state.demand.extend([key, key].map(job));
            assert!(begin(&mut state, now).contains(&key));
            now += PATIENCE;
        }
        state.demand.push_back(job(100));
        assert!(begin(&mut state, now).contains(&100));
    }

    /// A large file is read at many offsets at once, from a source that is only slow.
    #[test]
    fn a_place_hangs_when_as_many_as_it_may_have_are_held_up() {
        let (mut state, mut now) = (State::new(PATIENCE), Instant::now());
        state.held_up_max = 6;
        state.demand.extend([0; 10].map(|key| Job { waits: true, ..job(key) }));
        for under_way in [4, 8, 8] {
            begin(&mut state, now);
            assert_eq!(state.under_way.len(), under_way);
            now += PATIENCE;
        }
        // Below the limit again with the third.
        for (number, under_way) in [(1, 7), (2, 6), (3, 7)] {
            state.finish(number);
            begin(&mut state, now);
            assert_eq!(state.under_way.len(), under_way);
        }
    }

    #[test]
    fn some_places_that_hang_do_not_hold_up_places_near_them_and_many_do() {
        let (mut state, mut now) = (State::new(PATIENCE), Instant::now());
        let begins = |state: &mut State<Name>, name: u32, directory: u32, now: Instant| {
            let work = Box::new(|_: Result<(), Errno>| ());
            state.demand.push_back(Job { key: Name(name, directory), work, waits: true });
            matches!(state.take_job(10, 10, now), Some(NextJob::Run(..)))
        };
        for name in 0..HELD_UP_NEAR_MAX as u32 {
            assert!(begins(&mut state, name, 7, now));
            now += PATIENCE;
            assert!(!begins(&mut state, name, 7, now), "it waits for the first of its name");
        }
        assert!(!begins(&mut state, 100, 7, now));
        // All at one place, which counts as one place that hangs.
        assert!((0..10).all(|_| begins(&mut state, 100, 8, now)));
        now += PATIENCE;
        assert!(begins(&mut state, 101, 8, now));
        now += PATIENCE;
        // One of them ends: its name has a slot again, and names near it no longer wait.
        state.finish(1);
        let begun: Vec<u64> = std::iter::from_fn(|| match state.take_job(10, 10, now)? {
            NextJob::Run(number, _) => Some(number),
            NextJob::Refuse(_) => None,
        })
        .collect();
        let names = begun.iter().map(|number| state.under_way[number].key.0);
        assert_eq!(names.collect::<Vec<_>>(), [0, 100]);
    }

    #[test]
    fn threads_that_were_held_up_end_when_they_are_not_needed() {
        let pool = pool();
        let hung: Vec<_> = (0..20).map(|key| hang(&pool, Urgency::Demand, key)).collect();
        while ask(&pool, Urgency::Demand, 19).is_ok() {}
        drop(hung);
        let start = Instant::now();
        while pool.0.lock().threads > 5 {
            assert!(start.elapsed() < LIMIT, "{} threads are left", pool.0.lock().threads);
            // The thread that takes the job checks whether it is surplus.
            let _ = ask(&pool, Urgency::Demand, 100);
        }
        // The last of the held-up threads may take a moment to end.
        while ask(&pool, Urgency::Prefetch, 0).is_err() {}
    }

    #[test]
    fn what_waits_for_its_place_is_done_when_that_is_free() {
        let pool = pool();
        let hung = hang(&pool, Urgency::Demand, 0);
        while ask(&pool, Urgency::Demand, 0).is_ok() {}
        let (sender, done) = mpsc::channel();
        for number in 0..10 {
            let sender = sender.clone();
            pool.submit(Urgency::Prefetch, 0, move || sender.send(number).unwrap());
        }
        assert_eq!(ask(&pool, Urgency::Prefetch, 1), Ok(()));
        assert!(done.try_recv().is_err());
        drop(hung);
        let mut all: Vec<u32> = (0..10).map(|_| done.recv_timeout(LIMIT).unwrap()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..10));
    }

    #[test]
    fn a_panic_costs_its_job() {
        let pool = pool();
        pool.submit(Urgency::Demand, 0, || panic!("on purpose"));
        assert_eq!(ask(&pool, Urgency::Demand, 1), Ok(()));
    }
}

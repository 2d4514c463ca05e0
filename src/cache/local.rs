//! Blocks in the local store: which are there, and what is to be written and given up.
//!
//! The store knows keys of versions; here is known which block of the catalog has which key.
//! At start [`Local::adopt`] looks up every block of the catalog; what the store holds beside them
//! is of files that are gone or changed, and is given up. Afterwards writes and removals queue for
//! the one thread that writes, in order. Neighbours in the queue are written together. While the disk
//! hangs nothing is queued for it, and what was queued is not stored.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nix::libc;

use super::Buffer;
use super::backlog::Arrival;
use super::care::Owed;
use super::store::{Found, Key, Lent, Part, Sample, Store};
use crate::catalog::{Catalog, Located, NodeId};
use crate::ids::BlockId;
use crate::plan::Event;
use crate::source::{Pool, Urgency};

/// Bytes that are written at once.
const BATCH_BYTES: usize = 4 << 20;

/// Samples that are given up at once.
const REMOVED_AT_ONCE: usize = 1 << 14;

/// Niceness of the thread that writes.
const NICE: i32 = 15;

/// After how long at one batch the disk is said to hang.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// For how long the end of a mount waits for a disk that may hang.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

enum Job {
    /// Store what has arrived, and tell the planner.
    Put(BlockId, Arrival, Owed),
    /// Give up whatever is stored of a block by then.
    Remove(BlockId),
    /// Give up what is of no block.
    Forget(Vec<Key>),
    /// Make everything last.
    Sync,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Whether a thread is at it.
    working: bool,
    /// Since when it has been at the same batch.
    since: Option<Instant>,
    /// Nothing is queued any more.
    closed: bool,
}

impl Queue {
    /// Whether the disk hangs.
    fn hangs(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() > HANGS_AFTER)
    }
}

/// The local store as a tier of blocks.
pub(super) struct Local {
    pub(super) tier: usize,
    pub(super) store: Arc<Store>,
    catalog: Arc<Catalog>,
    /// By block, what is stored of it.
    keys: RwLock<Vec<Option<Key>>>,
    queue: Mutex<Queue>,
    idle: Condvar,
    writers: Pool,
    /// Large files being compared with their checksums, and the thread that does.
    comparing: Mutex<HashSet<NodeId>>,
    comparer: Pool,
}

impl Local {
    pub(super) fn new(tier: usize, store: Arc<Store>, catalog: Arc<Catalog>) -> Self {
        Local {
            tier,
            store,
            catalog,
            keys: RwLock::default(),
            queue: Mutex::default(),
            idle: Condvar::new(),
            writers: Pool::new("belady-store-write", 1, 0),
            comparing: Mutex::default(),
            comparer: Pool::starting("belady-compare", 1, 0, step_back),
        }
    }

    fn key(&self, located: &Located) -> Key {
        self.store.key(&located.path, &located.fingerprint, located.offset)
    }

    fn part(&self, at: &Located) -> Option<Part> {
        let (_, size) = self.catalog.file(at.node).ok()?;
        self.store.part(&at.path, &at.fingerprint, at.offset, size)
    }

    fn known(&self, block: BlockId) -> Option<Key> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.get(block.index()).copied().flatten()
    }

    fn set(&self, block: BlockId, key: Option<Key>) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.len() <= block.index() {
            keys.resize(block.index() + 1, None);
        }
        keys[block.index()] = key;
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the blocks that the store holds; what else it holds is given up. In the order of their
    /// numbers.
    pub(super) fn adopt(self: &Arc<Self>) -> Vec<BlockId> {
        let layout = self.catalog.layout();
        let mut found = Vec::new();
        if self.store.totals().0 == 0 {
            return found;
        }
        let mut keys = vec![None; layout.blocks()];
        self.catalog.for_each_file(|path, file, stat| {
            let version = stat.fingerprint();
            for block in layout.blocks_of(file) {
                let (offset, _) = layout.range(block);
                let key = self.store.key(path, &version, offset);
                if self.store.contains(key) {
                    keys[block.index()] = Some(key);
                    found.push(block);
                }
            }
        });
        // No two blocks have the same key.
        let stray = if found.len() as u64 == self.store.totals().0 {
            Vec::new()
        } else {
            let wanted: HashSet<Key> = keys.iter().copied().flatten().collect();
            self.store.keys().into_iter().filter(|key| !wanted.contains(key)).collect()
        };
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.submit(Job::Forget(stray));
        found
    }

    /// Whether the store has this version of a block.
    pub(super) fn contains(&self, block: BlockId, located: &Located) -> bool {
        self.known(block).is_some_and(|key| key == self.key(located) && self.store.contains(key))
    }

    /// A block's bytes. Blocks.
    pub(super) fn get(self: &Arc<Self>, block: BlockId, located: &Located) -> Option<Buffer> {
        let key = self.known(block).filter(|key| *key == self.key(located))?;
        match self.store.get(key) {
            Found::Whole(bytes) if bytes.len() == located.length => Some(bytes),
            Found::Nothing => None,
            Found::Whole(_) | Found::Damaged => {
                tracing::warn!(path = %located.path.display(), "a stored sample is damaged");
                self.remove(block);
                None
            }
        }
    }

    /// A large file as it lies in the store, if it is all there and was found to be right. One that
    /// is all there otherwise is looked at by a thread of its own, for the next time. Never blocks.
    pub(super) fn lent(self: &Arc<Self>, node: NodeId) -> Option<Arc<Lent>> {
        let (file, size) = self.catalog.file(node).ok().filter(|at| self.store.is_large(at.1))?;
        let mut blocks = self.catalog.layout().blocks_of(file);
        let keys: Vec<Key> = {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            let of = |block: BlockId| keys.get(block.index()).copied().flatten();
            blocks.clone().map(of).collect::<Option<_>>()?
        };
        let located = self.catalog.locate(blocks.next()?).filter(|at| at.node == node)?;
        let first = self.key(&located);
        if keys.first() != Some(&first) {
            return None;
        }
        let lent = self.store.lent(first);
        if lent.is_none() && self.comparing().insert(node) {
            let local = Arc::clone(self);
            self.comparer.submit(Urgency::Prefetch, move || {
                local.store.make_lendable(&keys, size);
                local.comparing().remove(&node);
            });
        }
        lent
    }

    fn comparing(&self) -> MutexGuard<'_, HashSet<NodeId>> {
        self.comparing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a block that has arrived, unless too much waits already; `owed` is what the planner is
    /// told, also where it is not stored.
    pub(super) fn put(self: &Arc<Self>, block: BlockId, arrival: Option<Arrival>, owed: Owed) {
        if let Some(arrival) = arrival.filter(|_| !self.lock().hangs()) {
            self.submit(Job::Put(block, arrival, owed));
        }
    }

    /// `normal`, or what is wrong in words.
    pub(super) fn state(&self) -> &'static str {
        if self.lock().hangs() {
            return "down: the cache disk hangs; nothing is stored there";
        }
        self.store.state()
    }

    /// Lets go of what waits for a disk that hangs: the planner waits for it, too.
    pub(super) fn give_up_hanging(&self) {
        let mut queue = self.lock();
        if !queue.hangs() {
            return;
        }
        let jobs = std::mem::take(&mut queue.jobs).into_iter();
        let (lost, kept) = jobs.partition::<Vec<Job>, _>(|job| matches!(job, Job::Put(..)));
        queue.jobs = kept.into();
        drop(queue);
        if !lost.is_empty() {
            tracing::warn!(samples = lost.len(), "the cache disk hangs; samples are not stored");
        }
    }

    /// Gives up what is stored of a block.
    pub(super) fn remove(self: &Arc<Self>, block: BlockId) {
        self.submit(Job::Remove(block));
    }

    /// Waits until everything is written, and lasts; nothing is written afterwards. Says whether
    /// the store is left: a disk that hangs may still be writing. Blocks.
    pub(super) fn close(self: &Arc<Self>) -> bool {
        self.submit(Job::Sync);
        let mut queue = self.lock();
        queue.closed = true;
        let busy = |queue: &mut Queue| queue.working;
        let waited = self.idle.wait_timeout_while(queue, CLOSE_PATIENCE, busy);
        let hangs = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if hangs {
            tracing::warn!("the cache disk hangs; what was stored last may be lost");
        }
        !hangs
    }

    fn submit(self: &Arc<Self>, job: Job) {
        let mut queue = self.lock();
        if queue.closed {
            return;
        }
        queue.jobs.push_back(job);
        if !std::mem::replace(&mut queue.working, true) {
            let local = Arc::clone(self);
            self.writers.submit(Urgency::Prefetch, move || local.work());
        }
    }

    /// Does what is queued until there is no more.
    fn work(self: Arc<Self>) {
        // A panic must not leave a queue behind that nobody works at.
        let _rest = Working(&self);
        step_back();
        loop {
            let jobs = self.next();
            match jobs.first() {
                None => return,
                Some(Job::Put(..)) => self.store_all(jobs),
                Some(Job::Remove(_) | Job::Forget(_) | Job::Sync) => self.remove_all(jobs),
            }
        }
    }

    /// The next jobs of one kind, so many as are done at once.
    fn next(&self) -> Vec<Job> {
        let mut queue = self.lock();
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        while let Some(job) = queue.jobs.pop_front() {
            let (length, alike) = match (&job, jobs.first()) {
                (Job::Put(_, arrival, _), Some(Job::Put(..)) | None) => {
                    (arrival.bytes.len(), bytes + arrival.bytes.len() <= BATCH_BYTES)
                }
                (Job::Put(..), _) | (_, Some(Job::Put(..))) => (0, false),
                _ => (0, true),
            };
            if !alike && !jobs.is_empty() {
                queue.jobs.push_front(job);
                break;
            }
            bytes += length;
            jobs.push(job);
        }
        queue.since = (!jobs.is_empty()).then(Instant::now);
        if jobs.is_empty() {
            queue.working = false;
            self.idle.notify_all();
        }
        jobs
    }

    fn store_all(&self, jobs: Vec<Job>) {
        let mut puts: Vec<(BlockId, Key, Located, Arrival, Owed)> = Vec::new();
        for job in jobs {
            let Job::Put(block, arrival, owed) = job else { continue };
            // Another version by now: what arrived is of no use.
            let located = self.catalog.locate(block).filter(|at| at.node == arrival.node);
            if let Some(located) = located.filter(|at| at.length == arrival.bytes.len()) {
                puts.push((block, self.key(&located), located, arrival, owed));
            }
        }
        let samples = puts.iter().map(|(_, key, located, arrival, _)| Sample {
            key: *key,
            bytes: &arrival.bytes,
            part: self.part(located),
        });
        let done = self.store.put_all(&samples.collect::<Vec<_>>());
        let mut past = Vec::new();
        for (block, key, _, _, owed) in &mut puts {
            if done {
                past.extend(self.known(*block).filter(|before| before != key));
                self.set(*block, Some(*key));
            }
            owed.event = Event::Placed { block: *block, tier: self.tier, done };
        }
        self.store.remove(&past);
    }

    fn remove_all(&self, jobs: Vec<Job>) {
        let (mut keys, mut last) = (Vec::new(), false);
        for job in jobs {
            match job {
                Job::Remove(block) => {
                    keys.extend(self.known(block));
                    self.set(block, None);
                }
                Job::Forget(mut stray) => keys.append(&mut stray),
                Job::Sync => last = true,
                Job::Put(..) => {}
            }
        }
        // Readers wait for the index while samples are given up.
        keys.chunks(REMOVED_AT_ONCE).for_each(|keys| self.store.remove(keys));
        self.store.clear_leftovers();
        if last && let Err(error) = self.store.sync() {
            tracing::warn!(%error, "what was stored last may be lost");
        }
    }
}

/// Lets everyone else go before this thread: whoever reads or brings samples must not wait for
/// processors because others are stored. What then cannot be stored in time is not stored.
fn step_back() {
    // Refused where the whole process stands back further already.
    // SAFETY: no memory is involved; 0 is the calling thread.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

struct Working<'a>(&'a Local);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut queue = self.0.lock();
            (queue.working, queue.since) = (false, None);
            drop(queue);
            self.0.idle.notify_all();
        }
    }
}

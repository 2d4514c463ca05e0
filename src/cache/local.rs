//! Blocks in the local store: which are there, and what is to be written and given up.
//!
//! The store knows keys of versions; here is known which block of the catalog has which key.
//! At start [`Local::adopt`] looks up every block of the catalog; what the store holds beside them
//! is of files that are gone or changed, or that only came after the catalog was saved: it is given
//! up when all that the source told is known. Afterwards writes and removals queue for the one thread that writes.
//! Neighbours in the queue are done together: first what is given up, for a full store takes one
//! sample for another, then what is written. While the disk hangs nothing is queued for it, and what
//! was queued is not stored.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Cache;
use super::find::find;
use super::memory::Arrival;
use super::on_drop::NotifyOnDrop;
use crate::catalog::{Catalog, Located, NodeId};
use crate::disk::{Buffer, DiskState, LOOK_EVERY, looks_in};
use crate::ids::BlockId;
use crate::plan::Event;
use crate::source::{Pool, Urgency};
use crate::store::{Found, Key, Lent, Part, Sample, Store};
use crate::sync::{Condvar, Mutex, MutexGuard, RwLock, stand_back};

/// Bytes that are written at once.
const BATCH_BYTES: usize = 4 << 20;

/// Samples that are given up at once.
const REMOVED_AT_ONCE: usize = 1 << 14;

/// Niceness of the thread that writes.
const NICE: u32 = 15;

/// For how many looks in a row the end of a mount waits for a disk that takes nothing.
const CLOSE_PATIENCE: u64 = looks_in(30);

/// What was stored is made to last after so many looks at it, one a second.
pub(super) const SYNC_LOOKS: u32 = 5;

pub(super) enum Job {
    /// Store what has arrived, and tell the planner.
    Put(BlockId, Arrival, NotifyOnDrop),
    /// Give up whatever is stored of a block by then.
    Remove(BlockId),
    /// Give up what was found to be damaged of a block, or has come in its place since, and tell the
    /// planner: it may have been stored again, and be found damaged by who read it before.
    Damaged(BlockId, Key, NotifyOnDrop),
    /// Give up what is of no block.
    Forget(Vec<Key>),
    /// Find what is of files that came to be known, tell the planner, and give up the rest.
    Adopt(NotifyOnDrop),
    Sync,
}

/// Takes the next jobs, so many as are done at once: none gives up what one before it stores.
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
struct Queue {
    jobs: VecDeque<Job>,
    /// Whether a thread is at it.
    working: bool,
    /// Nothing is queued any more.
    closed: bool,
}

/// Looks that are left of the wait for a disk: as many as at first whenever it has taken something.
struct Patience {
    looks: u64,
    left: u64,
    answered: u64,
}

impl Patience {
    fn new(looks: u64, answered: u64) -> Self {
        Patience { looks, left: looks, answered }
    }

    /// Whether to wait for another look at a disk that has answered so many calls.
    fn lasts(&mut self, answered: u64) -> bool {
        if std::mem::replace(&mut self.answered, answered) != answered {
            self.left = self.looks;
        }
        let lasts = self.left > 0;
        self.left = self.left.saturating_sub(1);
        lasts
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
    /// Looks that have found something that does not last yet.
    unsynced_looks: AtomicU32,
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
            unsynced_looks: AtomicU32::new(0),
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
        let keys = self.keys.read();
        keys.get(block.index()).copied().flatten()
    }

    fn set(&self, block: BlockId, key: Option<Key>) {
        let mut keys = self.keys.write();
        if keys.len() <= block.index() {
            keys.resize(block.index() + 1, None);
        }
        keys[block.index()] = key;
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Finds the blocks that the store holds, in the order of their numbers; what else it holds is
    /// given up, unless its files may be ones that the catalog does not know yet. To be called
    /// before anything else.
    pub(super) fn adopt(self: &Arc<Self>, all_known: bool) -> Vec<BlockId> {
        let (found, stray) = self.take_up(all_known);
        self.submit(Job::Forget(stray));
        found
    }

    /// As [`adopt`](Self::adopt), of files that the catalog has come to know since, behind what is
    /// queued. What is found the planner is `owed`.
    pub(super) fn adopt_again(self: &Arc<Self>, owed: NotifyOnDrop) {
        self.submit(Job::Adopt(owed));
    }

    /// Looks every block up. Returns those that were not known to be stored, and the keys of no
    /// block if `all_known`.
    fn take_up(&self, all_known: bool) -> (Vec<BlockId>, Vec<Key>) {
        let layout = self.catalog.layout();
        if self.store.totals().0 == 0 {
            return Default::default();
        }
        let mut keys = self.keys.read().clone();
        keys.resize(keys.len().max(layout.blocks()), None);
        let found = find(&self.catalog, &self.store, &layout, &keys);
        found.iter().for_each(|(block, key)| keys[block.index()] = Some(*key));
        let found = found.into_iter().map(|(block, _)| block).collect();
        // No two blocks have the same key.
        let known = keys.iter().flatten().count() as u64;
        let stray = if !all_known || known == self.store.totals().0 {
            Vec::new()
        } else {
            let wanted: HashSet<Key> = keys.iter().copied().flatten().collect();
            self.store.keys().into_iter().filter(|key| !wanted.contains(key)).collect()
        };
        *self.keys.write() = keys;
        (found, stray)
    }

    /// Whether the store has this version of a block, be its disk to be used or not.
    pub(super) fn holds(&self, located: &Located) -> bool {
        self.store.holds(self.key(located))
    }

    /// Claims a read of this version of a block: whether the store has it, and its disk is to be used.
    pub(super) fn claim_read(&self, located: &Located) -> bool {
        self.store.claim_read(self.key(located))
    }

    /// A block's bytes. Blocks. What is damaged is given up, of which the `cache`'s planner is told.
    pub(super) fn get(
        self: &Arc<Self>,
        cache: &Arc<Cache>,
        block: BlockId,
        located: &Located,
    ) -> Option<Buffer> {
        let key = self.key(located);
        match self.store.get(key) {
            Found::Whole(bytes) if bytes.len() == located.length => Some(bytes),
            Found::Nothing => None,
            Found::Whole(_) | Found::Damaged => {
                tracing::warn!(path = %located.path.display(), "a stored sample is damaged");
                let owed = NotifyOnDrop::new(cache, Event::NotHere { block, tier: self.tier });
                self.submit(Job::Damaged(block, key, owed));
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
            let keys = self.keys.read();
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
        self.comparing.lock()
    }

    /// Stores a block that has arrived, unless too much waits already; `owed` is what the planner is
    /// told, also where it is not stored.
    pub(super) fn put(
        self: &Arc<Self>,
        block: BlockId,
        arrival: Option<Arrival>,
        owed: NotifyOnDrop,
    ) {
        if let Some(arrival) = arrival.filter(|_| !self.store.hangs()) {
            self.submit(Job::Put(block, arrival, owed));
        }
    }

    /// Lets go of what waits for a disk that hangs: the planner waits for it, too.
    pub(super) fn give_up_hanging(&self) {
        if !self.store.hangs() {
            return;
        }
        let mut queue = self.lock();
        let jobs = std::mem::take(&mut queue.jobs).into_iter();
        let (lost, kept) = jobs.partition::<Vec<Job>, _>(|job| matches!(job, Job::Put(..)));
        queue.jobs = kept.into();
        drop(queue);
        if !lost.is_empty() {
            tracing::warn!(samples = lost.len(), "the cache disk hangs; samples are not stored");
        }
    }

    /// Has what was stored made to last where that has waited for a few looks. Blocks.
    pub(super) fn sync_old(self: &Arc<Self>) {
        if self.store.unsynced() == 0 {
            return self.unsynced_looks.store(0, Ordering::Relaxed);
        }
        let looks = self.unsynced_looks.fetch_add(1, Ordering::Relaxed) + 1;
        if looks >= SYNC_LOOKS && !self.store.hangs() {
            self.unsynced_looks.store(0, Ordering::Relaxed);
            self.submit(Job::Sync);
        }
    }

    /// Gives up what is stored of a block.
    pub(super) fn remove(self: &Arc<Self>, block: BlockId) {
        self.submit(Job::Remove(block));
    }

    /// Waits until everything is written, and lasts; nothing is written afterwards. Says whether
    /// the store is left: a disk that hangs may still be writing, and is not waited for if it is known
    /// to; one that gets on is waited for. Blocks.
    pub(super) fn close(self: &Arc<Self>) -> bool {
        self.submit(Job::Sync);
        let looks = if self.store.hangs() { 0 } else { CLOSE_PATIENCE };
        let mut patience = Patience::new(looks, self.store.writes_answered());
        let mut queue = self.lock();
        queue.closed = true;
        while queue.working && patience.lasts(self.store.writes_answered()) {
            let waited = self.idle.wait_timeout_while(queue, LOOK_EVERY, |queue| queue.working);
            queue = waited;
        }
        let hangs = queue.working;
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
            if jobs.is_empty() {
                return;
            }
            let (puts, others): (Vec<Job>, Vec<Job>) =
                jobs.into_iter().partition(|job| matches!(job, Job::Put(..)));
            let last = others.iter().any(|job| matches!(job, Job::Sync));
            self.remove_all(others);
            self.store_all(puts);
            if last && let Err(error) = self.store.sync() {
                tracing::warn!(%error, "what was stored last may be lost");
            }
        }
    }

    /// The next batch of jobs.
    fn next(&self) -> Vec<Job> {
        let mut queue = self.lock();
        let jobs = take_batch(&mut queue.jobs);
        if jobs.is_empty() {
            queue.working = false;
            self.idle.notify_all();
        }
        jobs
    }

    fn store_all(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let mut puts: Vec<(BlockId, Key, Located, Arrival, NotifyOnDrop)> = Vec::new();
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

    /// Finds what has come to be known, and gives up what is to go.
    fn remove_all(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let (mut keys, mut told) = (Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Remove(block) => {
                    keys.extend(self.known(block));
                    self.set(block, None);
                }
                Job::Damaged(block, key, owed) => {
                    keys.push(key);
                    if self.known(block) == Some(key) {
                        self.set(block, None);
                    }
                    told.push(owed);
                }
                Job::Forget(mut stray) => keys.append(&mut stray),
                Job::Adopt(mut owed) => {
                    let (blocks, mut stray) = self.take_up(true);
                    tracing::debug!(
                        found = blocks.len(),
                        given_up = stray.len(),
                        "all that the source told is known"
                    );
                    owed.event = Event::Found { tier: self.tier, blocks };
                    keys.append(&mut stray);
                }
                Job::Put(..) | Job::Sync => {}
            }
        }
        // Readers wait for the index while samples are given up.
        keys.chunks(REMOVED_AT_ONCE).for_each(|keys| self.store.remove(keys));
        self.store.clear_leftovers();
    }
}

/// Whoever reads or brings samples must not wait for processors because others are stored. What then
/// cannot be stored in time is not stored.
fn step_back() {
    stand_back(NICE);
}

struct Working<'a>(&'a Local);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().working = false;
            self.0.idle.notify_all();
        }
    }
}

impl Cache {
    /// What the disk of the local store does, if there is one.
    pub fn disk_state(&self) -> Option<DiskState> {
        self.store().map(|store| store.state())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_something_now_and_then_is_waited_for() {
        let mut patience = Patience::new(2, 5);
        let waits = [5, 5, 6, 6, 7, 7, 7].map(|answered| patience.lasts(answered));
        assert_eq!(waits, [true, true, true, true, true, true, false]);
        assert!(!Patience::new(0, 5).lasts(5), "one that is known to hang is not");
    }
}

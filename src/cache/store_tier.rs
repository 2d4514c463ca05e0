//! The local store as a tier of blocks.
//!
//! At the start [`StoreTier::adopt`] finds the blocks that the store holds. Its other samples are of
//! files that are gone or changed, or that came after the catalog was saved: they are given up when all that
//! the source told is known. Afterwards writes and removals queue for the one thread that writes. While the
//! disk hangs nothing is queued for it, and queued samples are not stored.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::jobs::{Job, Jobs, Working};
use super::memory::Arrival;
use super::on_drop::NotifyOnDrop;
use super::stored_blocks::StoredBlocks;
use super::whole_file::WholeFile;
use super::{DISK_READ, Inbox, Span, Traffic};
use crate::catalog::{Catalog, Located, NodeId};
use crate::disk::Buffer;
use crate::ids::BlockId;
use crate::plan::Event;
use crate::source::{Pool, Urgency};
use crate::store::{Key, LargeBlock, PassthroughFile, ReadOutcome, Sample, Store};
use crate::sync::{Mutex, lower_priority};

/// Threads that read the store.
const READERS: usize = 4;

/// Samples that are given up at once.
const REMOVED_AT_ONCE: usize = 1 << 14;

/// Niceness of the threads that write and compare. Threads that read or bring samples must not wait for
/// processors because of them. Samples that then cannot be stored in time are not stored.
const NICE: u32 = 15;

/// Looks, one a second, after which stored samples are synced.
pub(super) const SYNC_LOOKS: u32 = 5;

pub(super) struct StoreTier {
    /// The number of the tier.
    pub(super) number: usize,
    pub(super) store: Arc<Store>,
    catalog: Arc<Catalog>,
    inbox: Arc<Inbox>,
    traffic: Arc<Traffic>,
    stored: StoredBlocks,
    pub(super) readers: Pool,
    /// Whole files that are being read, and some that were.
    whole_files: Mutex<Vec<Weak<WholeFile>>>,
    jobs: Jobs,
    /// Looks in a row that have found samples which are not synced.
    unsynced_looks: AtomicU32,
    /// Large files being compared with their checksums, and the thread that does.
    comparing: Mutex<HashSet<NodeId>>,
    comparer: Pool,
}

impl StoreTier {
    pub(super) fn new(
        number: usize,
        store: Arc<Store>,
        catalog: &Arc<Catalog>,
        inbox: &Arc<Inbox>,
        traffic: &Arc<Traffic>,
    ) -> Self {
        StoreTier {
            number,
            stored: StoredBlocks::new(Arc::clone(catalog), Arc::clone(&store)),
            store,
            catalog: Arc::clone(catalog),
            inbox: Arc::clone(inbox),
            traffic: Arc::clone(traffic),
            readers: Pool::new("belady-store", READERS, 2),
            whole_files: Mutex::default(),
            jobs: Jobs::default(),
            unsynced_looks: AtomicU32::new(0),
            comparing: Mutex::default(),
            comparer: Pool::starting("belady-compare", 1, 0, || lower_priority(NICE)),
        }
    }

    /// Tells the planner which blocks the store holds. Other samples are given up if `all_known`. To
    /// be called before anything else.
    pub(super) fn adopt(self: &Arc<Self>, all_known: bool) {
        let (blocks, stray) = self.stored.look_up_all(all_known);
        self.submit(Job::Forget(stray));
        self.inbox.put(Event::Found { tier: self.number, blocks }, None);
    }

    /// As [`adopt`](Self::adopt), of files that the catalog has come to know since, behind the jobs that
    /// are queued and after the events that the planner has been told until now.
    pub(super) fn adopt_again(self: &Arc<Self>) {
        let found = Event::Found { tier: self.number, blocks: Vec::new() };
        let owed = NotifyOnDrop::new(&self.inbox, found);
        let tier = Arc::clone(self);
        // Samples of files that have changed are to be given up: that is queued before.
        self.inbox.ask(Box::new(move |_| tier.submit(Job::Adopt(owed))));
    }

    /// Whether the store has this version of a block, be its disk to be used or not.
    pub(super) fn holds(&self, at: &Located) -> bool {
        self.store.holds(self.stored.key_of(at))
    }

    /// Claims a read of this version of a block: whether the store has it, and its disk is to be used.
    pub(super) fn claim_read(&self, at: &Located) -> bool {
        self.store.claim_read(self.stored.key_of(at))
    }

    /// A block's bytes, which the planner takes for stored. If they are not there, it is told. A damaged
    /// copy is given up. Blocks.
    pub(super) fn get(self: &Arc<Self>, block: BlockId, at: &Located) -> Option<Buffer> {
        let key = self.stored.key_of(at);
        let not_here = Event::NotHere { block, tier: self.number };
        let (began, read) = (Instant::now(), self.store.get(key));
        let took = began.elapsed();
        self.traffic.disk_reads.note(took);
        self.traffic.spans.note(|| Span {
            what: DISK_READ,
            path: Some(Arc::clone(&at.path)),
            task: 0,
            bytes: at.length as u64,
            began,
            took,
        });
        match read {
            ReadOutcome::Whole(bytes) if at.may_have(bytes.len()) => return Some(bytes),
            // Without the size of the file it is of no use yet.
            ReadOutcome::Whole(_) if !at.is_sized => return None,
            ReadOutcome::Missing => {}
            ReadOutcome::Whole(_) | ReadOutcome::Damaged => {
                tracing::warn!(path = %at.path.display(), "a stored sample is damaged");
                let owed = NotifyOnDrop::new(&self.inbox, not_here.clone());
                self.submit(Job::Damaged(block, key, owed));
            }
        }
        self.traffic.store_errors.fetch_add(1, Ordering::Relaxed);
        self.inbox.put(not_here, None);
        None
    }

    /// A large file as it lies in the store, if it is all there and was found to be right. One that is all
    /// there and was not compared yet is compared by a thread of its own, for the next time. Never blocks.
    pub(super) fn passthrough_file(self: &Arc<Self>, node: NodeId) -> Option<Arc<PassthroughFile>> {
        let (file, size) = self.catalog.file(node).ok().filter(|at| self.store.is_large(at.1))?;
        let mut blocks = self.catalog.layout().blocks_of(file);
        let keys = self.stored.get_all(blocks.clone())?;
        let located = self.catalog.locate(blocks.next()?).filter(|at| at.node == node)?;
        let first = self.stored.key_of(&located);
        if keys.first() != Some(&first) {
            return None;
        }
        let passthrough_file = self.store.passthrough_file(first);
        if passthrough_file.is_none() && self.comparing.lock().insert(node) {
            let tier = Arc::clone(self);
            self.comparer.submit(Urgency::Prefetch, move || {
                tier.store.prepare_passthrough(&keys, size);
                tier.comparing.lock().remove(&node);
            });
        }
        passthrough_file
    }

    /// Stores a block that has arrived, unless too much waits already. The planner is told what it is
    /// `owed` in any case.
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

    /// Lets go of samples that wait for a disk that hangs: the planner waits for them, too.
    pub(super) fn give_up_hanging(&self) {
        if !self.store.hangs() {
            return;
        }
        let samples = self.jobs.drop_puts();
        if samples > 0 {
            tracing::warn!(samples, "the cache disk hangs; samples are not stored");
        }
    }

    /// Notes a whole file that is about to be read.
    pub(super) fn note_whole_file(&self, file: &Arc<WholeFile>) {
        let mut files = self.whole_files.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(file));
    }

    /// The whole files that are being read, which are forgotten.
    pub(super) fn take_whole_files(&self) -> Vec<Weak<WholeFile>> {
        std::mem::take(&mut self.whole_files.lock())
    }

    /// Has stored samples synced that have waited for a few looks. Blocks.
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

    /// Gives up the copy of a block.
    pub(super) fn remove(self: &Arc<Self>, block: BlockId) {
        self.submit(Job::Remove(block));
    }

    /// Waits until everything is written, and lasts. Nothing is written afterwards. Says whether the
    /// store is left: a disk that hangs may still be writing, and is not waited for if it is known to
    /// hang; one that gets on is waited for. Blocks.
    pub(super) fn close(self: &Arc<Self>) -> bool {
        self.submit(Job::Sync);
        let is_left = self.jobs.close(self.store.hangs(), || self.store.writes_answered());
        if !is_left {
            tracing::warn!("the cache disk hangs; what was stored last may be lost");
        }
        is_left
    }

    fn submit(self: &Arc<Self>, job: Job) {
        let tier = Arc::clone(self);
        self.jobs.submit(job, move || tier.work());
    }

    /// Does the queued jobs until there are no more.
    fn work(&self) {
        let _working = Working(&self.jobs);
        lower_priority(NICE);
        loop {
            let jobs = self.jobs.next();
            if jobs.is_empty() {
                return;
            }
            let (puts, others): (Vec<Job>, Vec<Job>) =
                jobs.into_iter().partition(|job| matches!(job, Job::Put(..)));
            let is_synced = others.iter().any(|job| matches!(job, Job::Sync));
            self.remove_all(others);
            self.store_all(puts);
            if is_synced && let Err(error) = self.store.sync() {
                tracing::warn!(%error, "what was stored last may be lost");
            }
        }
    }

    fn store_all(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let mut puts: Vec<(BlockId, Key, Located, Arrival, NotifyOnDrop)> = Vec::new();
        for job in jobs {
            let Job::Put(block, arrival, owed) = job else { continue };
            // Bytes of a version that is past by now are of no use.
            let located = self.catalog.locate(block).filter(|at| at.node == arrival.node);
            if let Some(located) = located.filter(|at| at.length == arrival.bytes.len()) {
                puts.push((block, self.stored.key_of(&located), located, arrival, owed));
            }
        }
        let samples = puts.iter().map(|(_, key, located, arrival, _)| Sample {
            key: *key,
            bytes: &arrival.bytes,
            large: self.large_block(located),
        });
        let done = self.store.put_all(&samples.collect::<Vec<_>>());
        let mut past = Vec::new();
        for (block, key, _, _, owed) in &mut puts {
            if done {
                past.extend(self.stored.get(*block).filter(|before| before != key));
                self.stored.set(*block, Some(*key));
            }
            owed.event = Event::Placed { block: *block, tier: self.number, done };
        }
        self.store.remove(&past);
    }

    fn large_block(&self, at: &Located) -> Option<LargeBlock> {
        let (_, size) = self.catalog.file(at.node).ok()?;
        self.store.large_block(&at.path, &at.copied_version(), at.offset, size)
    }

    /// Does the jobs that store nothing.
    fn remove_all(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let (mut keys, mut notices) = (Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Remove(block) => {
                    keys.extend(self.stored.get(block));
                    self.stored.set(block, None);
                }
                Job::Damaged(block, key, owed) => {
                    keys.push(key);
                    if self.stored.get(block) == Some(key) {
                        self.stored.set(block, None);
                    }
                    notices.push(owed);
                }
                Job::Forget(mut stray) => keys.append(&mut stray),
                Job::Adopt(mut owed) => {
                    let (blocks, mut stray) = self.stored.look_up_all(true);
                    tracing::debug!(
                        found = blocks.len(),
                        given_up = stray.len(),
                        "all that the source told is known"
                    );
                    owed.event = Event::Found { tier: self.number, blocks };
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

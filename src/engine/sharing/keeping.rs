//! The choice of blocks for this node's shard, if several jobs read the same blocks and shards cannot hold all.
//!
//! 1. Members tell how far their readers are, and how fast they go. From that follows when each block is asked for next
//!    ([`Uses`]).
//! 2. The blocks of the own shard are listed once a second, or less often if there are many. Those that are asked for last
//!    leave the shard, until the rest fits ([`Kept`]).
//! 3. Others are told how soon a block has to be asked for, so that they do not give it in vain.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job_orders::JobOrders;
use crate::cluster::{Front, Job, JobUses, Kept, Places, Streams, Uses};
use crate::peers::{Key, Shards};

/// The shard is looked at no sooner than after this multiple of the time that it takes.
const REST: u32 = 20;

/// Epochs of a job that are known at the same time.
const EPOCHS: u32 = 3;

/// Jobs that read the same blocks.
pub(super) struct Keeping {
    jobs: Vec<Reading>,
    /// The blocks whose home is here, with their bytes.
    own: HashMap<Key, (u32, u32)>,
    /// Bytes that the shard holds at most.
    capacity: u64,
    /// When the shard was looked at last, how long that took, and what came of it.
    looked: Instant,
    took: Duration,
    horizon: f32,
}

/// A job, and the reads of its epochs from the first that is still read.
struct Reading {
    job: Job,
    orders: JobOrders,
    first: u32,
    epochs: Vec<Arc<Places>>,
}

impl Keeping {
    /// `None` if the jobs read less than half of all blocks: it is not known who asks for the others.
    pub(super) fn of(jobs: Vec<(Job, JobOrders)>, blocks: usize) -> Option<Self> {
        let read: HashSet<usize> = jobs.iter().flat_map(|(_, orders)| orders.blocks()).collect();
        let reading =
            |(job, orders): (Job, JobOrders)| Reading { job, orders, first: 0, epochs: Vec::new() };
        let jobs = jobs.into_iter().map(reading).collect();
        let keeping = Keeping {
            jobs,
            own: HashMap::new(),
            capacity: 0,
            looked: Instant::now(),
            took: Duration::ZERO,
            horizon: f32::INFINITY,
        };
        (2 * read.len() >= blocks).then_some(keeping)
    }

    pub(super) fn set_own(&mut self, own: HashMap<Key, (u32, u32)>, capacity: u64) {
        (self.own, self.capacity) = (own, capacity);
    }

    /// When blocks are asked for next, as far as members have told.
    pub(super) fn uses(&mut self, own: u64, streams: &Streams) -> Uses {
        let uses = self.jobs.iter_mut().filter_map(|reading| {
            let fronts = reading.job.fronts(own, streams);
            let first = fronts.iter().flatten().map(|front| front.epoch).min()?;
            Some(reading.uses(first, fronts))
        });
        Uses(uses.collect())
    }

    /// Removes what is asked for last from this node's shard, until the rest fits. Returns in how many seconds a block has to
    /// be asked for in order to be kept.
    ///
    /// # Errors
    /// If the shard does not answer.
    pub(super) fn trim(&mut self, shards: &dyn Shards, uses: &Uses) -> Result<f32, String> {
        if self.looked.elapsed() >= REST * self.took {
            self.looked = Instant::now();
            let trimmed = self.trim_now(shards, uses);
            self.took = self.looked.elapsed();
            self.horizon = trimmed?;
        }
        Ok(self.horizon)
    }

    fn trim_now(&self, shards: &dyn Shards, uses: &Uses) -> Result<f32, String> {
        let held = RefCell::new(Vec::new());
        shards.sweep(&|key| {
            held.borrow_mut().extend(self.own.get(&key));
            true
        })?;
        let mut held: Vec<(u32, u32)> = held.into_inner();
        // A block may be listed twice.
        held.sort_unstable();
        held.dedup();
        let kept = Kept::of(&held, uses, 0.0, self.capacity);
        if !kept.dropped.is_empty() {
            let dropped: HashSet<u32> = kept.dropped.into_iter().collect();
            let is_kept =
                |key| self.own.get(&key).is_none_or(|(block, _)| !dropped.contains(block));
            shards.sweep(&is_kept)?;
        }
        Ok(kept.horizon)
    }
}

impl Reading {
    fn uses(&mut self, first: u32, fronts: Vec<Vec<Front>>) -> JobUses {
        if self.epochs.is_empty() || self.first != first {
            let (known, orders) = (std::mem::take(&mut self.epochs), &mut self.orders);
            let nth = |epoch: u32| epoch.checked_sub(self.first).map(|nth| nth as usize);
            let known = |epoch: u32| known.get(nth(epoch)?).cloned();
            let places = |epoch| known(epoch).unwrap_or_else(|| Arc::new(orders.places(epoch)));
            self.epochs = (first..first.saturating_add(EPOCHS)).map(places).collect();
            self.first = first;
        }
        JobUses { first, epochs: self.epochs.clone(), fronts }
    }
}

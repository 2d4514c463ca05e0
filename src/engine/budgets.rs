//! Fits the budgets of RAM and of the local store. RAM's budget follows the memory that is free. The store's
//! budget follows the space that others leave on its disk, and memory, too, if that disk is in memory.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::lease::StoreLease;
use super::serving::Serving;
use super::status::{RamStatus, TierStatus};
use super::{Core, STORE_TIER};
use crate::cache::Cache;
use crate::cluster::SPARE;
use crate::config::{Budget, DiskSettings, Reading, Settings};
use crate::disk::DiskState;
use crate::fuse::KNOWN_BYTES;
use crate::plan::{Event, RAM};
use crate::store::directory::StoreDir;
use crate::sync::Mutex;

struct DiskBudget {
    budget: Mutex<Budget>,
    noted: Mutex<Instant>,
    /// The last readings of memory, if the store is in memory.
    memory: Option<Mutex<Vec<Reading>>>,
}

/// How often the space on the disk is looked at: while something changes there, and while nothing does.
const FIT_EVERY: Duration = Duration::from_secs(1);
const IDLE_FIT_EVERY: Duration = Duration::from_secs(5);

/// The part of a shard's memory that marks of samples on the disk may take, and the bytes of one, about.
const MARKS: u64 = 16;
const MARK_BYTES: u64 = 128;

const NOTE_USE_EVERY: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, PartialEq, Eq)]
struct DiskUse {
    /// The answer of [`Store::is_settled`].
    is_idle: bool,
    /// Writing calls that the disk has answered.
    written: u64,
    /// Bytes of others on the disk.
    others: u64,
}

impl DiskBudget {
    fn new(disk: &DiskSettings) -> Self {
        let budget = Mutex::new(Budget::new(disk.configured_bytes, disk.bytes));
        let memory = disk.in_memory.then(Mutex::default);
        DiskBudget { budget, noted: Mutex::new(Instant::now()), memory }
    }

    fn note_memory(&self, readings: &[Reading]) {
        if let Some(memory) = &self.memory {
            *memory.lock() = readings.to_vec();
        }
    }

    /// The limits of memory for a store that takes `own` bytes; none if the store is on a disk.
    fn limits_of_memory(&self, own: u64) -> Vec<Reading> {
        let readings = self.memory.iter().flat_map(|memory| memory.lock().clone());
        readings.map(|reading| reading.to_store(own)).collect()
    }
}

pub(super) struct Budgets {
    core: Arc<Core>,
    serving: Arc<Serving>,
    lease: Arc<StoreLease>,
    ram: Mutex<Budget>,
    disk: Option<DiskBudget>,
}

impl Budgets {
    pub(super) fn new(
        core: &Arc<Core>,
        serving: &Arc<Serving>,
        lease: &Arc<StoreLease>,
        ram: Budget,
    ) -> Self {
        Budgets {
            core: Arc::clone(core),
            serving: Arc::clone(serving),
            lease: Arc::clone(lease),
            ram: Mutex::new(ram),
            disk: core.settings.cache.disk.as_ref().map(DiskBudget::new),
        }
    }

    pub(super) fn room_for_a_request(&self) -> usize {
        self.ram.lock().for_a_file() as usize
    }

    /// Fits the RAM budget to these readings of the present moment. If only further connections are left,
    /// nothing fits.
    pub(super) fn fit_memory(&self, mut readings: Vec<Reading>) {
        if self.serving.first_is_over() {
            readings.push(Reading::memory("the first mount point, now unmounted,", 0, 0));
        }
        self.disk.iter().for_each(|disk| disk.note_memory(&readings));
        let known = self.serving.known_nodes() * KNOWN_BYTES;
        let mut budget = self.ram.lock();
        let changed = budget.fit(&readings, known);
        let memory = self.core.cache.memory();
        memory.resize(budget.moving(memory.used() as u64) as usize);
        self.serving.write_account().resize(budget.for_a_file() as usize);
        if changed {
            let capacity = budget.present();
            let why = budget.reduced().unwrap_or("what is configured fits again");
            tracing::info!(bytes = capacity, why, "the RAM budget has changed");
            self.core.inbox.put(Event::Resized { tier: RAM, capacity }, None);
        }
    }

    /// Starts a thread that fits the local store's budget to the space on its disk. A disk that hangs holds
    /// up only this thread.
    pub(super) fn follow_disk(self: &Arc<Self>) {
        if self.disk.is_none() {
            return;
        }
        let budgets = Arc::clone(self);
        let follow = move || {
            let (mut pause, mut before) = (FIT_EVERY, None);
            while budgets.core.stop.pause(pause) {
                let found = budgets.fit_disk();
                let is_idle = found.is_some_and(|found| found.is_idle) && found == before;
                pause = if is_idle { IDLE_FIT_EVERY } else { FIT_EVERY };
                before = found;
            }
        };
        if let Err(error) = thread::Builder::new().name("belady-disk-look".into()).spawn(follow) {
            tracing::warn!(%error, "the budget of the cache directory stays as it is");
        }
    }

    /// Looks at the disk. `None` if it could not be looked at.
    fn fit_disk(&self) -> Option<DiskUse> {
        let (disk, store) = (self.disk.as_ref()?, self.core.cache.store()?);
        let mut noted = disk.noted.lock();
        if noted.elapsed() >= NOTE_USE_EVERY {
            *noted = Instant::now();
            self.lease.with(StoreDir::note_use);
        }
        drop(noted);
        self.core.cache.sync_old();
        // A disk that cannot be looked at is no reason to change anything.
        let share = store.disk_usage().ok()?;
        let found = DiskUse {
            is_idle: store.is_settled(),
            written: store.writes_answered(),
            others: share.others,
        };
        let reading = Reading {
            what: "the cache disk".into(),
            limit: share.total,
            taken: share.others,
            // An eighth of slack. Without it, each write of others would make the store smaller.
            reserve: share.min_free - share.min_free / 8,
        };
        let mut readings = disk.limits_of_memory(store.totals().1 + store.idle_bytes());
        readings.push(reading);
        let mut budget = disk.budget.lock();
        if !budget.fit(&readings, 0) {
            return Some(found);
        }
        let capacity = budget.present();
        let why = budget.reduced().unwrap_or("what is configured fits again").to_owned();
        drop(budget);
        tracing::info!(bytes = capacity, why, "the budget of the cache directory has changed");
        self.core.inbox.put(Event::Resized { tier: STORE_TIER, capacity }, None);
        // Only if the directory is still ours: the next daemon may have stored something there already.
        self.lease.with(|_| store.resize(capacity));
        Some(found)
    }

    /// Bytes of samples that the local store may hold for other nodes of a cluster, too. The marks of these samples are
    /// in a shard of `ram_bytes`.
    pub(super) fn disk_for_all(&self, ram_bytes: u64) -> u64 {
        let (Some(disk), Some(store)) = (self.disk.as_ref(), self.core.cache.store()) else {
            return 0;
        };
        let present = disk.budget.lock().present();
        let room = match store.state() {
            state if state.is_down() => return 0,
            DiskState::Normal | DiskState::Unstable => present,
            _ => present.min(store.used()),
        };
        let layout = self.core.catalog.layout();
        // Samples take more than their bytes there, and some nodes hold a little more than their share.
        let (bytes, stored) = (layout.bytes_of_all(), layout.stored_bytes_of_all());
        let part = u128::from(room) * u128::from(bytes) / u128::from(stored.max(1));
        let most_marks = ram_bytes / MARKS / MARK_BYTES;
        let marked = u128::from(most_marks) * u128::from(layout.mean_pages_bytes());
        (part / u128::from(SPARE + 1) * u128::from(SPARE)).min(marked) as u64
    }

    pub(super) fn ram_status(&self, kept: u64) -> RamStatus {
        let (budget, memory) = (self.ram.lock().clone(), self.core.cache.memory());
        RamStatus {
            budget: budget.present(),
            configured: budget.configured(),
            reduced: budget.reduced().map(str::to_owned),
            kept,
            moving: memory.used() as u64,
            moving_budget: memory.capacity() as u64,
        }
    }

    pub(super) fn disk_status(&self, kept: u64) -> Option<TierStatus> {
        let budget = self.disk.as_ref()?.budget.lock().clone();
        let stored = self.core.cache.store()?.used();
        Some(TierStatus {
            budget: budget.present(),
            configured: budget.configured(),
            reduced: budget.reduced().map(str::to_owned),
            kept,
            stored,
        })
    }
}

/// How many bytes a file that a user names may have, before the first look at what fits.
pub(super) fn room_for_a_file(budget: &Budget, readings: &[Reading]) -> usize {
    let mut fitted = budget.clone();
    fitted.fit(readings, 0);
    fitted.for_a_file() as usize
}

/// The RAM budget before the first look at what fits.
pub(super) fn ram_budget(settings: &Settings, cache: &Cache) -> Budget {
    let budget = Budget::new(settings.cache.ram_configured_bytes, settings.cache.ram_bytes);
    cache.memory().resize(budget.moving(0) as usize);
    budget
}

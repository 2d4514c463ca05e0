//! The local store follows the space that others leave it on its disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Engine, STORE_TIER, lock};
use crate::cache::store::home::Home;
use crate::config::{Budget, Reading};
use crate::plan::Event;
use crate::source::{Pool, Urgency};

/// The budget of the local store.
pub(super) struct DiskBudget {
    budget: Mutex<Budget>,
    /// A disk that hangs holds up nobody but this thread.
    thread: Pool,
    looking: AtomicBool,
    /// When it was noted last that the store is used.
    noted: Mutex<Instant>,
}

/// How often it is noted that the store is used.
const NOTE_USE_EVERY: Duration = Duration::from_secs(3600);

impl DiskBudget {
    /// For so many bytes as are configured.
    pub(super) fn new(bytes: u64) -> Self {
        let budget = Mutex::new(Budget::new(bytes, bytes));
        let thread = Pool::new("belady-disk-look", 1, 0);
        let (looking, noted) = (AtomicBool::new(false), Mutex::new(Instant::now()));
        DiskBudget { budget, thread, looking, noted }
    }

    /// The budget of this moment.
    pub(super) fn budget(&self) -> Budget {
        lock(&self.budget).clone()
    }
}

/// Lets the next look be taken, also where this one panics.
struct Looking<'a>(&'a DiskBudget);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.looking.store(false, Ordering::Relaxed);
    }
}

impl Engine {
    /// Has the local store's budget follow the space on its disk, without waiting for the disk. To be
    /// called once a second.
    pub fn fit_disk(self: &Arc<Self>) {
        let Some(disk) = &self.disk else { return };
        self.cache.give_up_hanging();
        if disk.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let engine = Arc::downgrade(self);
        disk.thread.submit(Urgency::Prefetch, move || {
            if let Some(engine) = engine.upgrade() {
                engine.look_at_disk();
            }
        });
    }

    fn look_at_disk(&self) {
        let (Some(disk), Some(store)) = (&self.disk, self.cache.store()) else { return };
        let _looking = Looking(disk);
        let mut noted = lock(&disk.noted);
        if noted.elapsed() >= NOTE_USE_EVERY {
            *noted = Instant::now();
            lock(&self.home).iter().for_each(Home::note_use);
        }
        drop(noted);
        // What cannot be looked at is no reason to change anything.
        let Ok(share) = store.share() else { return };
        let reading = Reading {
            what: "the cache disk".into(),
            limit: share.total,
            taken: share.others,
            // Some slack, or whatever others write would make the store smaller.
            reserve: share.min_free - share.min_free / 8,
        };
        let mut budget = lock(&disk.budget);
        if !budget.look(&[reading], 0) {
            return;
        }
        let capacity = budget.present();
        let why = budget.reduced().unwrap_or("what is configured fits again").to_owned();
        drop(budget);
        tracing::info!(bytes = capacity, why, "the budget of the cache directory has changed");
        self.inbox.put(Event::Resized { tier: STORE_TIER, capacity }, None);
        store.resize(capacity);
    }
}

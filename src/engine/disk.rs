//! The local store follows the space that others leave it on its disk, and the memory that there is if
//! that disk is in memory.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Engine, STORE_TIER};
use crate::config::{Budget, DiskSettings, Reading, Settings, hangs};
use crate::disk::Alarm;
use crate::disk::Directory;
use crate::disk::{LOOK_EVERY, unless_it_hangs};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Event;
use crate::store::home::{self, Home, Owner};
use crate::store::{Limits, Store, fresh_secret};
use crate::sync::Mutex;

/// The budget of the local store.
pub(super) struct DiskBudget {
    budget: Mutex<Budget>,
    /// When it was noted last that the store is used.
    noted: Mutex<Instant>,
    /// The last readings of memory, if the store is in memory.
    memory: Option<Mutex<Vec<Reading>>>,
}

/// How often the space on the disk is looked at: while something changes there, and else.
const FIT_EVERY: Duration = Duration::from_secs(1);
const IDLE_FIT_EVERY: Duration = Duration::from_secs(5);

/// How often it is noted that the store is used.
const NOTE_USE_EVERY: Duration = Duration::from_secs(3600);

/// What a look at the disk has found.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    /// As of [`Store::rests`].
    rests: bool,
    /// Calls that write which it has answered.
    written: u64,
    /// Bytes that others have there.
    others: u64,
}

impl DiskBudget {
    /// For what is configured, as far as it fits.
    pub(super) fn new(disk: &DiskSettings) -> Self {
        let budget = Mutex::new(Budget::new(disk.configured_bytes, disk.bytes));
        let memory = disk.in_memory.then(Mutex::default);
        DiskBudget { budget, noted: Mutex::new(Instant::now()), memory }
    }

    /// Takes note of the memory that there is.
    pub(super) fn note_memory(&self, readings: &[Reading]) {
        if let Some(memory) = &self.memory {
            *memory.lock() = readings.to_vec();
        }
    }

    /// The limits of a store that has so many bytes in memory; none if it is on a disk.
    fn limits_of_memory(&self, own: u64) -> Vec<Reading> {
        let readings = self.memory.iter().flat_map(|memory| memory.lock().clone());
        readings.map(|reading| reading.to_store(own)).collect()
    }

    /// The budget of this moment.
    pub(super) fn budget(&self) -> Budget {
        self.budget.lock().clone()
    }
}

/// The local store of a source, if there is one.
pub(super) struct Opened {
    /// It is ours alone as long as this is held.
    pub(super) home: Option<Home>,
    /// The store, with its tier.
    pub(super) store: Option<(usize, Arc<Store>)>,
    /// What is wrong, in words, if the cache directory was on another disk before.
    pub(super) moved: Option<String>,
    /// What its disk said where there is none for that reason.
    pub(super) fault: Option<Error>,
}

/// Opens the store of a source, if the settings have one; where its disk fails, hangs or has no room
/// they have none any more, for a job does without a cache rather than not at all.
///
/// # Errors
/// Where the cache directory cannot be used, and [`ErrorKind::Busy`] where the store is in use.
pub(super) fn open(settings: &mut Settings, owner: &Owner) -> Result<Opened> {
    let none =
        Opened { home: None, store: None, moved: None, fault: settings.cache.disk_fault.clone() };
    let Some(disk) = &settings.cache.disk else { return Ok(none) };
    match answered(disk, owner) {
        Ok((home, store, moved)) => {
            let store = Some((STORE_TIER, Arc::new(store)));
            Ok(Opened { home: Some(home), store, moved, fault: None })
        }
        // What buffers hold may be nowhere else.
        Err(error) if error.kind() == ErrorKind::Disk && settings.rehearsal.is_empty() => {
            tracing::warn!(%error, "going on without a local store");
            settings.cache.disk = None;
            Ok(Opened { fault: Some(error), ..none })
        }
        Err(error) => Err(error),
    }
}

/// As [`open_store`]; where the disk hangs, which it is left to by itself, that is its error.
fn answered(disk: &DiskSettings, owner: &Owner) -> Result<(Home, Store, Option<String>)> {
    let (settings, owner) = (disk.clone(), owner.clone());
    unless_it_hangs(move || open_store(&settings, &owner))
        .map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?
        .unwrap_or_else(|| Err(hangs(&disk.dir)))
}

fn open_store(disk: &DiskSettings, owner: &Owner) -> Result<(Home, Store, Option<String>)> {
    let home = home::claim(&disk.dir, owner)?;
    let limits = Limits {
        large_bytes: disk.large_file_bytes,
        min_free_files: disk.min_free_inodes,
        ..Limits::new(disk.configured_bytes, disk.min_free_bytes)
    };
    let opened = Directory::open(home.path(), true)
        .and_then(|directory| Store::open(Arc::new(directory), limits, fresh_secret()));
    let store = opened.map_err(|error| home::cannot(&disk.dir, &error))?;
    store.resize(disk.bytes);
    let moved = home::moved(&disk.dir);
    moved.iter().for_each(|moved| tracing::warn!("{moved}"));
    Ok((home, store, moved))
}

impl Engine {
    /// Has the local store's budget follow the space on its disk from now on. A disk that hangs holds
    /// up nobody but the thread that looks at it.
    pub fn follow_disk(self: &Arc<Self>) {
        if self.disk.is_none() {
            return;
        }
        let engine = Arc::clone(self);
        let follow = move || {
            let (mut pause, mut before) = (FIT_EVERY, None);
            while engine.over.pause(pause) {
                let found = engine.look_at_disk();
                let rests = found.is_some_and(|found| found.rests) && found == before;
                pause = if rests { IDLE_FIT_EVERY } else { FIT_EVERY };
                before = found;
            }
        };
        if let Err(error) = thread::Builder::new().name("belady-disk-look".into()).spawn(follow) {
            tracing::warn!(%error, "the budget of the cache directory stays as it is");
        }
    }

    /// What wakes who calls [`rescue`](Self::rescue).
    pub fn alarm(&self) -> &Alarm {
        self.cache.alarm()
    }

    /// Whether there is nothing to look at for who calls [`rescue`](Self::rescue). The
    /// [alarm](Self::alarm) rings when there is.
    pub fn rests(&self) -> bool {
        self.cache.rests() && self.dataset.rests()
    }

    /// Looks at everything that may hang: asks the source for what the cache disk does not bring, lets
    /// reads begin beside those that hang, ends the wait of readers that are killed, and logs
    /// notifications that the kernel makes wait. Has the source let go of what nobody reads. To be
    /// called each [`LOOK_EVERY`], or each second where it [rests](Self::rests).
    pub fn rescue(&self) {
        self.cache.memory().look();
        self.cache.source().look();
        if let Some(disk) = &self.settings.cache.disk {
            self.cache.rescue((disk.slow_after.as_millis() / LOOK_EVERY.as_millis()) as u64);
        }
        self.dataset.rescue();
        self.stuck_notifications();
    }

    /// Looks at the disk; says what was found, if it could be.
    fn look_at_disk(&self) -> Option<Found> {
        let (disk, store) = (self.disk.as_ref()?, self.cache.store()?);
        let mut noted = disk.noted.lock();
        if noted.elapsed() >= NOTE_USE_EVERY {
            *noted = Instant::now();
            self.home.lock().iter().for_each(Home::note_use);
        }
        drop(noted);
        self.cache.sync_old();
        // What cannot be looked at is no reason to change anything.
        let share = store.share().ok()?;
        let found =
            Found { rests: store.rests(), written: store.writes_answered(), others: share.others };
        let reading = Reading {
            what: "the cache disk".into(),
            limit: share.total,
            taken: share.others,
            // Some slack, or whatever others write would make the store smaller.
            reserve: share.min_free - share.min_free / 8,
        };
        let mut readings = disk.limits_of_memory(store.totals().1 + store.idle());
        readings.push(reading);
        let mut budget = disk.budget.lock();
        if !budget.look(&readings, 0) {
            return Some(found);
        }
        let capacity = budget.present();
        let why = budget.reduced().unwrap_or("what is configured fits again").to_owned();
        drop(budget);
        tracing::info!(bytes = capacity, why, "the budget of the cache directory has changed");
        self.inbox.put(Event::Resized { tier: STORE_TIER, capacity }, None);
        // Only as long as it is ours: the next daemon may have stored something there already.
        let home = self.home.lock();
        if home.is_some() {
            store.resize(capacity);
        }
        Some(found)
    }
}

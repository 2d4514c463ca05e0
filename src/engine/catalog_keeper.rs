//! Keeps the catalog over the life of an engine: opens it or scans the source, checks it, saves it.

use std::collections::HashSet;
use std::io::{Error as IoError, ErrorKind as IoErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::lease::{StoreLease, save_catalog};
use super::{Core, cannot_read, neighbours};
use crate::catalog::{Catalog, CatalogState, ScanStatus};
use crate::config::SourceSettings;
use crate::disk::unless_it_hangs;
use crate::disk::{STOP_PATIENCE, wait_for_end};
use crate::error::{Error, ErrorKind, Result};
use crate::limiter::MetadataLimits;
use crate::source::Source;
use crate::store::directory::StoreDir;

/// A check of the catalog of an earlier mount has at most one thread for this many of a scan. The readers are there
/// already, and need the source, too.
const SWEEP_SHARE: u32 = 4;

/// The pause before the source is asked again about names that it could not tell about: at first, and at
/// most.
const ASK_AGAIN: Duration = Duration::from_secs(5);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(300);

/// The pause between two saves of a catalog: at least this long, and at least this many times as long as the
/// last save took. After a kill, the next mount has to search for files that are stored but not in the saved
/// catalog.
const SAVE_EVERY: Duration = Duration::from_secs(60);
const SAVE_TIMES: u32 = 50;

/// How often a wait for the scan counts names and checks whether the mount is being ended.
const CHECK_SCAN_EVERY: Duration = Duration::from_millis(100);

/// How long a request for the scan's progress waits for the scan's end.
const SCAN_STATUS_WAIT: Duration = Duration::from_millis(200);

/// Time that a slow disk takes to save the row of a file: a hundred bytes at 10 MB/s.
const SAVE_OF_A_FILE: Duration = Duration::from_micros(10);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ScanProgress {
    /// Names found so far.
    pub names: u64,
    /// Whether these are all names.
    pub whole: bool,
}

/// Opens the catalog that is saved in the store_dir of a source's store, or else begins a new one, with `limits` for
/// its calls. If `first` is given, a new one is scanned whole before this returns, and `first` counts its names.
/// Otherwise it knows only the root.
pub(super) fn open_or_begin(
    source: Arc<dyn Source>,
    limits: impl Fn() -> MetadataLimits + Send + Sync + 'static,
    settings: &SourceSettings,
    path: &Path,
    store_dir: Option<&StoreDir>,
    first: Option<&AtomicU64>,
) -> Result<Catalog> {
    if let Some(store_dir) = store_dir {
        let (from, period, saved) = (Arc::clone(&source), settings.revalidate, store_dir.catalog());
        let opened = unless_it_hangs(move || Catalog::open(from, period, &saved));
        let hangs = || Err(IoError::new(IoErrorKind::TimedOut, "its disk does not answer"));
        match opened.and_then(|opened| opened.unwrap_or_else(hangs)) {
            Ok(catalog) => return Ok(catalog.with_limits(limits)),
            Err(error) if error.kind() == IoErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "the saved catalog is of no use: scanning"),
        }
    }
    let begun = Catalog::begin(source, settings.revalidate);
    let catalog = begun.map_err(|errno| cannot_read(path, errno))?.with_limits(limits);
    if let Some(seen) = first {
        scan_first(&catalog, settings.scan_threads, path, seen)?;
    }
    Ok(catalog)
}

/// Waits until `enough` has an answer about the scan, or until `stop` is set. Counts names in `seen`.
///
/// # Errors
/// The source's error if the answer is `false`, and `Internal` if `stop` is set.
fn wait_for_scan(
    catalog: &Catalog,
    path: &Path,
    stop: &AtomicBool,
    seen: &AtomicU64,
    enough: impl Fn(&ScanStatus) -> Option<bool>,
) -> Result<()> {
    loop {
        let status = catalog.await_scan(CHECK_SCAN_EVERY, |status| enough(status).is_some());
        seen.store(status.names, Ordering::Relaxed);
        match (enough(&status), status.fault) {
            (Some(false), Some((name, errno))) => {
                return Err(cannot_read(&path.join(name), errno));
            }
            (Some(_), _) => return Ok(()),
            (None, _) if stop.load(Ordering::Relaxed) => {
                return Err(Error::new(ErrorKind::Internal, "the mount is being ended"));
            }
            (None, _) => {}
        }
    }
}

/// Whether all of a source is known; `None` if that is not certain yet.
fn whole(status: &ScanStatus) -> Option<bool> {
    (status.is_whole || status.fault.is_some()).then_some(status.is_whole)
}

/// Whether there is something to serve; `None` if that is not certain yet.
fn begun(status: &ScanStatus) -> Option<bool> {
    (status.has_files || status.is_over).then_some(status.has_files)
}

/// Scans all of a source before anything is served. Counts names in `seen`.
fn scan_first(catalog: &Catalog, threads: u32, path: &Path, seen: &AtomicU64) -> Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| catalog.fill(threads as usize, &stop, &|_| ()));
        let outcome = wait_for_scan(catalog, path, &stop, seen, whole);
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

pub(super) struct CatalogKeeper {
    core: Arc<Core>,
    lease: Arc<StoreLease>,
    /// Whether all files were known when the planner was told what the local store holds: stored samples are
    /// found by the names in the catalog.
    adopted: bool,
}

impl CatalogKeeper {
    pub(super) fn new(core: &Arc<Core>, lease: &Arc<StoreLease>, adopted: bool) -> Self {
        CatalogKeeper { core: Arc::clone(core), lease: Arc::clone(lease), adopted }
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// Whether the catalog is from an earlier mount and a part of it is not checked yet.
    pub(super) fn is_unchecked(&self) -> bool {
        self.core.catalog.state() == CatalogState::Checking
    }

    /// Checks what only an earlier mount has seen. Returns whether names came or went.
    pub(super) fn check_catalog(&self, threads: u32) -> bool {
        self.core.catalog.sweep(threads as usize, self.core.stop.flag(), &|found| {
            self.core.dataset.report(found)
        })
    }

    /// Starts a thread that scans the source, if not all of it is known. The thread scans again what the
    /// source could not tell about. Waits until there is a file to serve, and counts names in `seen`.
    ///
    /// # Errors
    /// The source's error, if it fails before that.
    pub(super) fn start_scan(&self, seen: &AtomicU64) -> Result<()> {
        if self.core.catalog.state() != CatalogState::Scanning {
            return Ok(());
        }
        let core = Arc::clone(&self.core);
        let scan = move || {
            let threads = core.settings.source.scan_threads as usize;
            let mut warned = HashSet::new();
            loop {
                let report = |found| core.dataset.report(found);
                core.catalog.fill(threads, core.stop.flag(), &report);
                let Some((name, errno)) = core.catalog.scan_status().fault else { return };
                // Which of several names fails first is chance: the cause is the error.
                if warned.insert(errno as i32) {
                    tracing::warn!(?name, %errno, "the source cannot be scanned; trying again");
                }
                if !core.stop.pause(ASK_AGAIN) {
                    return;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("belady-scan".into()).spawn(scan);
        spawned.map_err(|error| Error::new(ErrorKind::Internal, format!("thread: {error}")))?;
        wait_for_scan(
            &self.core.catalog,
            &self.core.source_path,
            self.core.stop.flag(),
            seen,
            begun,
        )
    }

    pub(super) fn await_scan(&self) -> Result<()> {
        wait_for_scan(
            &self.core.catalog,
            &self.core.source_path,
            self.core.stop.flag(),
            &AtomicU64::new(0),
            whole,
        )
    }

    pub(super) fn scan_progress(&self) -> Result<ScanProgress> {
        let status =
            self.core.catalog.await_scan(SCAN_STATUS_WAIT, |status| whole(status).is_some());
        if let (false, Some((name, errno))) = (status.is_whole, &status.fault) {
            return Err(cannot_read(&self.core.source_path.join(name), *errno));
        }
        Ok(ScanProgress { names: status.names, whole: status.is_whole })
    }

    /// Starts a thread that checks a catalog of an earlier mount, and saves the catalog. `renew` is called if
    /// names came or went.
    pub(super) fn start_upkeep(self: &Arc<Self>, renew: impl Fn() + Send + 'static) {
        let keeper = Arc::clone(self);
        let keep = move || {
            let core = &keeper.core;
            let is_stopping = || core.stop.is_set();
            let threads = (core.settings.source.scan_threads / SWEEP_SHARE).max(1);
            let (mut pause, mut adopted) = (ASK_AGAIN, keeper.adopted);
            if core.catalog.state() != CatalogState::Scanning {
                neighbours::note(core);
            }
            let mut adopt_again = || {
                if !std::mem::replace(&mut adopted, true) && !is_stopping() {
                    core.cache.adopt_again();
                }
            };
            while keeper.is_unchecked() && !is_stopping() {
                if keeper.check_catalog(threads) {
                    renew();
                }
                // Names that the source could not tell about stay as they were, and so do their stored
                // samples.
                adopt_again();
                if keeper.is_unchecked() {
                    // A check that failed is repeated after longer and longer pauses.
                    keeper.save_catalog();
                    core.stop.pause(pause);
                    pause = (pause * 2).min(ASK_AGAIN_MAX);
                }
            }
            while core.catalog.state() == CatalogState::Scanning && !is_stopping() {
                core.catalog.await_scan(CHECK_SCAN_EVERY, |status| status.is_whole);
            }
            neighbours::note(core);
            adopt_again();
            keeper.save_now_and_then();
        };
        if let Err(error) = std::thread::Builder::new().name("belady-catalog".into()).spawn(keep) {
            tracing::warn!(%error, "the catalog is checked where it is asked, and saved at the end");
        }
    }

    /// Saves the catalog at intervals, if it has changed, until the mount is being ended.
    fn save_now_and_then(&self) {
        while !self.core.stop.is_set() {
            let began = Instant::now();
            self.save_catalog();
            self.core.stop.pause(SAVE_EVERY.max(began.elapsed() * SAVE_TIMES));
        }
    }

    /// Saves what is known of the source's names, if there is a place for it.
    fn save_catalog(&self) {
        self.lease.with(|store_dir| save_catalog(&self.core.catalog, store_dir));
    }

    /// Saves the catalog for the last time and releases the store's directory. A thread of its own does that:
    /// the disk may hang.
    pub(super) fn save_and_release(&self) {
        let (core, lease) = (Arc::clone(&self.core), Arc::clone(&self.lease));
        let end = move || lease.end(&core.catalog);
        match std::thread::Builder::new().name("belady-leave".into()).spawn(end) {
            Ok(thread) => {
                let files = u32::try_from(self.core.catalog.totals().0).unwrap_or(u32::MAX);
                let patience = STOP_PATIENCE + SAVE_OF_A_FILE * files;
                wait_for_end(Some(thread), patience, "the catalog");
            }
            Err(error) => tracing::warn!(%error, "the catalog was not saved"),
        }
    }

    pub(super) fn status_note(&self) -> Option<String> {
        let files = self.core.catalog.totals().0;
        match self.core.catalog.state() {
            CatalogState::Checking => {
                Some(format!("catalog: {files} files from an earlier mount, being checked"))
            }
            CatalogState::Scanning => {
                Some(format!("catalog: {files} files so far, the source is being scanned"))
            }
            CatalogState::Scanned | CatalogState::Checked => None,
        }
    }
}

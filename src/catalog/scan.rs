//! Reading the whole tree of the source once, on many threads, while it may be served already.
//!
//! 1. A job lists a directory and stats the names as they come: network filesystems bring attributes along
//!    for who does so. If that is slow, the rest of the names is queued in parts, each a job of its own: a
//!    parallel filesystem answers a `stat` in half a millisecond and hundreds at once. No more jobs of a kind are
//!    under way than the source serves best ([`Catalog::with_limits`]), and threads are started as there is work for
//!    them.
//! 2. Names become rows in the order of the tree, from the root down, whichever directory was
//!    read first: the same tree has the same numbers at each mount.
//! 3. A directory that a reader asks for before its turn is read for that reader, and has its rows
//!    from then on ([`Catalog::refresh_directory`]). The scan goes on below it.
//! 4. An [unsure](super::reading) name has a row if the listing tells its kind. The next scan, if this one
//!    does not become whole, asks for it again. An unsure directory is a fault: nobody knows what is below.

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::names::Names;
use super::reading::{Promptly, known_stat, too_many_are};
use super::row::{is_unsure, unsure};
use super::{Catalog, Changes};
use crate::ids::FileId;
use crate::limiter::MetadataLimits;
use crate::source::{Kind, Stat, is_certain};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The scan ends after so many things that the source could not tell about, if there are more of
/// them than directories of which it told.
const FAULTS_MAX: usize = 64;

/// If rows were added while somebody held the layout, it was copied. The scan then collects more for so many
/// times as long as that took, at most for this long.
const COLLECT_TIMES: u32 = 20;
const COLLECT_MAX: Duration = Duration::from_secs(1);

/// Names of a job that stats, if there are few such jobs: then all threads have work to the end.
const FEW: usize = 8;

/// How often it is asked whether the scan is to end, and whether the source serves more jobs at once than before.
const LOOK: Duration = Duration::from_millis(100);

/// How far the scan of a source is.
#[derive(Clone, Debug, Default)]
pub struct ScanStatus {
    /// Names that were found.
    pub names: u64,
    /// Whether a regular file is among those that are served.
    pub has_files: bool,
    /// Whether all names are known.
    pub is_whole: bool,
    /// Whether no thread scans.
    pub is_over: bool,
    /// The first path below the root that the source could not tell about, and its error.
    pub fault: Option<(PathBuf, Errno)>,
    /// The first unsure name. The scan is whole with it.
    pub unsure: Option<(PathBuf, Errno)>,
}

/// The status of the scan, and who waits for it.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) status: Mutex<ScanStatus>,
    /// The status has changed.
    pub(super) news: Condvar,
    /// Errors of unsure names that were warned of, since a scan last found none.
    warned: Mutex<HashSet<i32>>,
}

impl Progress {
    /// That of a catalog that needs no scan.
    pub(super) fn whole() -> Self {
        let status =
            ScanStatus { has_files: true, is_whole: true, is_over: true, ..ScanStatus::default() };
        Progress { status: Mutex::new(status), ..Progress::default() }
    }

    fn change(&self, change: impl FnOnce(&mut ScanStatus)) {
        change(&mut self.status.lock());
        self.news.notify_all();
    }
}

/// A directory as it was read: its names, or why it cannot be read.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) names: Names,
    /// Where each entry's name is, and what it is.
    pub(super) entries: Vec<(u32, Stat)>,
    pub(super) error: Option<Errno>,
    /// The first error that makes a name unsure.
    silent: Option<Errno>,
    /// The tick before it was read.
    pub(super) now: u32,
}

impl Found {
    /// Adds a name; none if there is no room for it.
    fn add(&mut self, name: &OsStr, stat: Stat) -> Option<()> {
        let at = self.names.add(name)?;
        self.entries.push((at, stat));
        Some(())
    }

    fn has_files(&self) -> bool {
        self.entries.iter().any(|(_, stat)| stat.kind == Kind::File && !is_unsure(stat))
    }
}

/// A directory whose names have yet to become rows.
struct Slot {
    row: FileId,
    path: Arc<Path>,
    /// None if nothing is to be added: it is known already, or the source does not tell.
    found: Option<Found>,
    /// Jobs that are not done.
    open: usize,
}

enum Job {
    List(usize),
    Stat(usize, Vec<OsString>),
}

#[derive(Default)]
struct Work {
    /// In the order of the tree.
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first: usize,
    lists: VecDeque<usize>,
    stats: Vec<(usize, Vec<OsString>)>,
    /// Names in all of them, and in a job if these are few.
    names: usize,
    few: usize,
    /// Jobs of each kind under way.
    listing: u32,
    statting: u32,
    /// Threads that were started, and the most that may be.
    threads: usize,
    threads_max: usize,
    faults: usize,
    /// Unsure names.
    unsure: usize,
    over: bool,
}

impl Work {
    fn push(&mut self, row: FileId, path: Arc<Path>) {
        self.lists.push_back(self.first + self.slots.len());
        self.slots.push_back(Slot { row, path, found: None, open: 1 });
    }

    /// A slot that has jobs.
    fn slot(&mut self, number: usize) -> &mut Slot {
        &mut self.slots[number - self.first]
    }

    /// How many jobs of each kind may begin.
    fn startable(&self, limits: MetadataLimits) -> MetadataLimits {
        let stats = self.stats.len().max(self.names / self.few) as u32;
        // Names that were listed wait in memory for their stats.
        let lists = if stats >= limits.stats { 0 } else { self.lists.len() as u32 };
        MetadataLimits {
            lists: lists.min(limits.lists.saturating_sub(self.listing)),
            stats: stats.min(limits.stats.saturating_sub(self.statting)),
        }
    }

    /// Begins a job. None if there is none, or if enough are under way.
    fn next(&mut self, limits: MetadataLimits) -> Option<Job> {
        let startable = self.startable(limits);
        // Names first: they are what a directory is not ready without.
        if startable.stats > 0 {
            self.statting += 1;
            return self.take_names(limits);
        }
        if startable.lists > 0 {
            self.listing += 1;
            return self.lists.pop_front().map(Job::List);
        }
        None
    }

    fn take_names(&mut self, limits: MetadataLimits) -> Option<Job> {
        let (slot, mut names) = self.stats.pop()?;
        if self.stats.len() < limits.stats as usize && names.len() > self.few {
            let later = names.split_off(self.few);
            self.slot(slot).open += 1;
            self.stats.push((slot, later));
        }
        self.names -= names.len();
        Some(Job::Stat(slot, names))
    }

    /// Threads that do a job.
    fn busy(&self) -> usize {
        (self.listing + self.statting) as usize
    }

    /// How many more threads there is work for.
    fn missing_threads(&self, limits: MetadataLimits) -> usize {
        let MetadataLimits { lists, stats } = self.startable(limits);
        let wanted = self.busy() + (lists + stats) as usize;
        wanted.min(self.threads_max).saturating_sub(self.threads)
    }

    /// Whether a thread that waits may begin a job.
    fn is_waited_for(&self, limits: MetadataLimits) -> bool {
        let MetadataLimits { lists, stats } = self.startable(limits);
        self.threads > self.busy() && lists + stats > 0
    }

    /// The directories at the front that have no open jobs.
    fn take_ready(&mut self) -> Vec<Slot> {
        let ready = self.slots.iter().take_while(|slot| slot.open == 0).count();
        self.first += ready;
        self.slots.drain(..ready).collect()
    }
}

/// Gives memory that was needed for a moment, in many small pieces, back to the system.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: memory in use is not touched.
    let _ = unsafe { nix::libc::malloc_trim(0) };
}

/// Reads what was not read yet of the source, as [`Catalog::fill`].
pub(super) struct Scan<'a> {
    catalog: &'a Catalog,
    over: &'a AtomicBool,
    report: &'a (dyn Fn(Changes) + Sync),
    work: Mutex<Work>,
    /// There is a job, or the end.
    wake: Condvar,
    /// The first directory has no open jobs.
    ready: Condvar,
}

/// Ends the threads of a scan.
struct End<'a>(&'a Scan<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.wake.notify_all();
    }
}

impl<'a> Scan<'a> {
    /// Scans on so many threads at most.
    pub(super) fn run(
        catalog: &'a Catalog,
        threads: usize,
        over: &'a AtomicBool,
        report: &'a (dyn Fn(Changes) + Sync),
    ) {
        catalog.scan.change(|status| {
            if status.unsure.take().is_none() {
                catalog.scan.warned.lock().clear();
            }
            (status.fault, status.names, status.is_over) = (None, 0, false);
        });
        let (wake, ready) = (Condvar::new(), Condvar::new());
        let few = if catalog.source.asks_one_by_one() { FEW } else { usize::MAX };
        let work = Work { threads_max: threads.max(1), few, ..Work::default() };
        let scan = Scan { catalog, over, report, work: Mutex::new(work), wake, ready };
        scan.lock().push(FileId(0), Path::new("").into());
        scan.read_all();
        if too_many_are(scan.lock().unsure, catalog.rows()) {
            let first = catalog.scan_status().unsure;
            first.into_iter().for_each(|(path, errno)| scan.fault(path, errno));
        }
        let is_whole = scan.lock().faults == 0 && !over.load(Ordering::Relaxed);
        if is_whole {
            catalog.write().shrink();
            give_back();
        }
        catalog.scan.change(|status| (status.is_whole, status.is_over) = (is_whole, true));
    }

    /// Does all jobs, and adds what was read.
    fn read_all(&self) {
        thread::scope(|scope| {
            // However this ends, the threads do.
            let _end = End(self);
            let start = || {
                let builder = thread::Builder::new().name("belady-scan".into());
                builder.spawn_scoped(scope, || self.work()).is_ok()
            };
            self.add_threads(&start);
            if self.lock().threads == 0 {
                return self.fault(PathBuf::new(), Errno::EAGAIN);
            }
            self.collect(&start);
        });
    }

    /// Starts threads if there is work for more.
    fn add_threads(&self, start: &dyn Fn() -> bool) {
        let limits = self.catalog.limits();
        let mut work = self.lock();
        let missing = work.missing_threads(limits);
        work.threads += missing;
        drop(work);
        let failed = (0..missing).filter(|_| !start()).count();
        if failed > 0 {
            // With fewer threads it takes longer.
            let mut work = self.lock();
            work.threads -= failed;
            work.threads_max = work.threads;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }

    /// Does jobs until the end.
    fn work(&self) {
        while let Some(job) = self.wait_for_job() {
            let (Job::List(slot) | Job::Stat(slot, _)) = job;
            let doing = || match &job {
                Job::List(slot) => self.list(*slot),
                Job::Stat(slot, names) => self.stat(*slot, names),
            };
            if catch_unwind(AssertUnwindSafe(doing)).is_err() {
                let path = self.give_up(slot);
                self.fault(path, Errno::EIO);
            }
            self.finish(slot, &job);
        }
    }

    /// The next job; none at the end.
    fn wait_for_job(&self) -> Option<Job> {
        let mut work = self.lock();
        while !work.over {
            let limits = self.catalog.limits();
            if let Some(job) = work.next(limits) {
                if work.is_waited_for(limits) {
                    self.wake.notify_one();
                }
                return Some(job);
            }
            work = self.wake.wait_timeout(work, LOOK);
        }
        None
    }

    /// A job of a slot is done.
    fn finish(&self, slot: usize, job: &Job) {
        let mut work = self.lock();
        match job {
            Job::List(_) => work.listing -= 1,
            Job::Stat(..) => work.statting -= 1,
        }
        work.slot(slot).open -= 1;
        if work.slots.front().is_some_and(|first| first.open == 0) {
            self.ready.notify_one();
        }
    }

    /// Nothing of this directory is added.
    fn give_up(&self, number: usize) -> PathBuf {
        let mut work = self.lock();
        let slot = work.slot(number);
        slot.found = None;
        slot.path.to_path_buf()
    }

    /// The source could not tell about a path.
    fn fault(&self, path: PathBuf, errno: Errno) {
        self.lock().faults += 1;
        self.catalog.scan.change(|status| {
            status.fault.get_or_insert((path, errno));
        });
    }

    /// The source could not say what a name stands for.
    fn unsure(&self, path: PathBuf, is_directory: bool, errno: Errno) {
        if is_directory {
            return self.fault(path, errno);
        }
        self.lock().unsure += 1;
        if self.catalog.scan.warned.lock().insert(errno as i32) {
            tracing::warn!(?path, %errno, "the source does not say what this is, nor perhaps others");
        }
        self.catalog.scan.change(|status| {
            status.unsure.get_or_insert((path, errno));
        });
    }

    fn list(&self, number: usize) {
        let (row, path) = {
            let mut work = self.lock();
            let slot = work.slot(number);
            (slot.row, Arc::clone(&slot.path))
        };
        if !self.catalog.read().is_unread(row) {
            return self.ask_again(row, &path);
        }
        let found = Found { now: self.catalog.now(), ..Found::default() };
        self.lock().slot(number).found = Some(found);
        let mut promptly = Promptly::at(&*self.catalog.source);
        let listed = self.catalog.source.list_in_parts(&path, &mut |names| {
            self.catalog.scan.change(|status| status.names += names.len() as u64);
            let left = promptly.ask(names, |names| self.stat(number, names));
            self.queue(number, left);
        });
        if let Err(errno) = listed {
            let certain = is_certain(errno) && row != FileId(0);
            let error = Found { error: Some(errno), ..Found::default() };
            self.lock().slot(number).found = certain.then_some(error);
            if !certain {
                self.fault(path.to_path_buf(), errno);
            }
        }
    }

    /// Names of a directory are to be stat'ed by jobs of their own.
    fn queue(&self, number: usize, names: &[OsString]) {
        if names.is_empty() {
            return;
        }
        let mut work = self.lock();
        work.slot(number).open += 1;
        work.stats.push((number, names.to_vec()));
        work.names += names.len();
        drop(work);
        self.wake.notify_one();
        // There may be work for more threads.
        self.ready.notify_one();
    }

    fn stat(&self, number: usize, names: &[OsString]) {
        let path = Arc::clone(&self.lock().slot(number).path);
        let stats = self.catalog.source.stat_all(&path, names);
        let mut full = false;
        let mut work = self.lock();
        let slot = work.slot(number);
        for (name, stat) in names.iter().zip(stats) {
            let silent = stat.err().filter(|errno| !is_certain(*errno));
            if let (Some(found), Some(stat)) = (&mut slot.found, known_stat(stat)) {
                full |= found.add(name, stat).is_none();
                found.silent = found.silent.or(silent);
            }
        }
        drop(work);
        if full {
            self.give_up(number);
            self.fault(path.to_path_buf(), Errno::EOVERFLOW);
        }
    }

    /// Asks again for the unsure names of a directory that is known.
    fn ask_again(&self, row: FileId, path: &Path) {
        let (node, names) = {
            let tree = self.catalog.read();
            let unsure = tree.entries(row).into_iter().flatten().filter(|row| tree.is_unsure(*row));
            let names: Vec<OsString> = unsure.map(|row| tree.name(row).to_os_string()).collect();
            (tree.node(row), names)
        };
        for name in names {
            match self.catalog.refresh(node, &name) {
                Ok(changes) => (self.report)(changes),
                Err(errno) => {
                    let tree = self.catalog.read();
                    let entry = tree.entry(row, &name);
                    let is_directory = entry.is_some_and(|entry| tree.is_directory(entry));
                    drop(tree);
                    self.unsure(path.join(name), is_directory, errno);
                }
            }
        }
    }

    /// Finds out the kinds of unsure names. If the listing does not tell them either, nothing of the
    /// directory is added.
    fn find_kinds(&self, path: &Path, found: &mut Option<Found>) {
        let Some(Found { names, entries, silent: Some(errno), .. }) = found else { return };
        let kinds = self.catalog.source.listed_kinds(path);
        let mut all = true;
        for (name, stat) in entries.iter_mut().filter(|(_, stat)| is_unsure(stat)) {
            let name = names.get(*name);
            match kinds.get(name) {
                Some(kind) => {
                    *stat = unsure(*kind);
                    self.unsure(path.join(name), *kind == Kind::Directory, *errno);
                }
                None => all = false,
            }
        }
        if !all {
            self.fault(path.to_path_buf(), *errno);
            *found = None;
        }
    }

    /// Adds what was read to the tree, in its order, until nothing is left.
    fn collect(&self, start: &dyn Fn() -> bool) {
        while let Some(ready) = self.wait_for_ready(start) {
            let began = Instant::now();
            let (below, copied) = self.add(ready);
            let mut work = self.lock();
            below.into_iter().for_each(|(row, path)| work.push(row, path));
            let goes_on = !work.slots.is_empty();
            drop(work);
            // A thread that finds a job wakes the next one if there is more work.
            self.wake.notify_one();
            self.add_threads(start);
            if copied && goes_on {
                thread::sleep((began.elapsed() * COLLECT_TIMES).min(COLLECT_MAX));
            }
        }
    }

    /// The directories that come next, once they have no open jobs; none at the end.
    fn wait_for_ready(&self, start: &dyn Fn() -> bool) -> Option<Vec<Slot>> {
        let mut work = self.lock();
        loop {
            let fails = work.faults >= FAULTS_MAX.max(work.first);
            if self.over.load(Ordering::Relaxed) || fails || work.slots.is_empty() {
                return None;
            }
            let ready = work.take_ready();
            if !ready.is_empty() {
                return Some(ready);
            }
            let limits = self.catalog.limits();
            if work.missing_threads(limits) > 0 {
                drop(work);
                self.add_threads(start);
                work = self.lock();
                continue;
            }
            work = self.ready.wait_timeout(work, LOOK);
        }
    }

    /// Makes rows of what was found. Returns the directories that are right below, and whether the
    /// layout had to be copied.
    fn add(&self, mut slots: Vec<Slot>) -> (Vec<(FileId, Arc<Path>)>, bool) {
        for Slot { path, found, .. } in &mut slots {
            let Some(Found { names, entries, .. }) = found else { continue };
            entries.sort_unstable_by(|a, b| names.get(a.0).cmp(names.get(b.0)));
            self.find_kinds(path, found);
        }
        let (mut below, mut changes, mut full) = (Vec::new(), Changes::default(), None);
        let mut tree = self.catalog.write();
        let copied = Arc::strong_count(&tree.layout) > 1;
        for Slot { row, path, found, .. } in &slots {
            match found.as_ref().map_or(Ok(false), |found| tree.fill(*row, found)) {
                Ok(added) => changes.added |= added,
                Err(errno) => full = Some((path.to_path_buf(), errno)),
            }
            let entries = tree.entries(*row).into_iter().flatten();
            let directories = entries.filter(|row| tree.is_there(*row) && tree.is_directory(*row));
            below.extend(directories.map(|row| (row, path.join(tree.name(row)).into())));
        }
        drop(tree);
        (self.report)(changes);
        if let Some((path, errno)) = full {
            self.fault(path, errno);
        }
        if slots.iter().filter_map(|slot| slot.found.as_ref()).any(Found::has_files) {
            self.catalog.scan.change(|status| status.has_files = true);
        }
        (below, copied)
    }
}

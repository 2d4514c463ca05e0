//! Reading the whole tree of the source once, on many threads, while it may be served already.
//!
//! 1. A job lists a directory and stats the names as they are told of: network filesystems bring
//!    attributes along for who does so. Where that is slow, a parallel filesystem answers a `stat`
//!    in half a millisecond and hundreds at once: the rest of the names is queued in parts, each a
//!    job of its own. So one huge directory is as parallel as many small ones.
//! 2. Names become rows in the order of the tree, from the root down, whichever directory was
//!    read first: the same tree has the same numbers at each mount.
//! 3. A directory that a reader asks for before its turn is read for that reader, and has its rows
//!    from then on ([`Catalog::refresh_directory`]). The scan goes on below it.
//! 4. A name of which the source says nothing but that it is there has a row all the same, where the
//!    listing tells what kind it is of. It is asked for by itself when it is looked up, and by the next
//!    scan where this one does not become whole: of a directory nobody knows what is below it.

#[cfg(test)]
mod tests;
mod unsure;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::names::Names;
use super::row::is_unsure;
use super::{Catalog, Changes};
use crate::ids::FileId;
use crate::source::{Kind, Stat};
use crate::sync::{Condvar, Mutex, MutexGuard};
pub(super) use unsure::{told, too_many_are};

/// What a stat takes at most where the attributes have come along with the name.
pub(super) const PROMPT: Duration = Duration::from_micros(20);

/// The scan ends after so many things that the source could not tell about, if there are more of
/// them than directories of which it told.
const FAULTS_MAX: usize = 64;

/// After rows were added the scan gathers more for so many times as long as that took, or this
/// long: whoever holds a layout makes the next addition copy it.
const GATHER_TIMES: u32 = 20;
const GATHER_MAX: Duration = Duration::from_secs(1);

/// How often it is asked whether the scan is to end.
const LOOK: Duration = Duration::from_millis(100);

/// How far the scan of a source is.
#[derive(Clone, Debug, Default)]
pub struct ScanStatus {
    /// Names that were found.
    pub names: u64,
    /// Whether a regular file is among those that are served.
    pub has_files: bool,
    pub is_whole: bool,
    /// Whether it goes on no more.
    pub is_over: bool,
    /// The first path below the root that the source could not tell about, and its error.
    pub fault: Option<(PathBuf, Errno)>,
    /// The first one that it could say no more of than that it is there. The scan is whole with it.
    pub unsure: Option<(PathBuf, Errno)>,
}

/// A directory as found: its names, or why they cannot be read.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) names: Names,
    /// Where each entry's name is, and what it is.
    pub(super) entries: Vec<(u32, Stat)>,
    pub(super) error: Option<Errno>,
    /// Why the source could not say what some names stand for.
    silent: Option<Errno>,
    /// When it was looked at.
    pub(super) now: u32,
}

impl Found {
    /// Adds a name; none where there is no room for it.
    fn add(&mut self, name: &OsStr, stat: Stat) -> Option<()> {
        let at = self.names.add(name)?;
        self.entries.push((at, stat));
        Some(())
    }
}

/// A directory whose names have yet to become rows.
struct Slot {
    row: FileId,
    path: Arc<Path>,
    /// None where nothing is to be added: it is known already, or the source does not tell.
    found: Option<Found>,
    /// Jobs that it waits for.
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
    faults: usize,
    /// Names of which the source could not say what they stand for.
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

    fn next(&mut self) -> Option<Job> {
        // Names first: they are what a directory is not ready without.
        let stat = self.stats.pop().map(|(slot, names)| Job::Stat(slot, names));
        stat.or_else(|| self.lists.pop_front().map(Job::List))
    }

    /// The directories at the front that wait for nothing.
    fn take_ready(&mut self) -> Vec<Slot> {
        let ready = self.slots.iter().take_while(|slot| slot.open == 0).count();
        self.first += ready;
        self.slots.drain(..ready).collect()
    }
}

/// Whether an error says for certain that there is nothing to be had: a name that is gone, or that
/// we may not look at. Anything else may pass, and must not make samples vanish.
pub fn is_certain(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::EPERM)
}

/// Gives memory that was needed for a moment, in many small pieces, back to the system.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: memory in use is not touched.
    let _ = unsafe { nix::libc::malloc_trim(0) };
}

/// What is told of the scan to those who wait for it.
#[derive(Default)]
pub(super) struct Progress {
    status: Mutex<ScanStatus>,
    news: Condvar,
}

impl Progress {
    /// That of a catalog that needs no scan.
    pub(super) fn whole() -> Self {
        let status =
            ScanStatus { has_files: true, is_whole: true, is_over: true, ..ScanStatus::default() };
        Progress { status: Mutex::new(status), news: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ScanStatus> {
        self.status.lock()
    }

    fn change(&self, change: impl FnOnce(&mut ScanStatus)) {
        change(&mut self.lock());
        self.news.notify_all();
    }
}

impl Catalog {
    /// How far the scan is.
    pub fn scan_status(&self) -> ScanStatus {
        self.scan.lock().clone()
    }

    /// Waits until the scan is far `enough`, or for so long. Says how far it is.
    pub fn await_scan(
        &self,
        patience: Duration,
        enough: impl Fn(&ScanStatus) -> bool,
    ) -> ScanStatus {
        let status = self.scan.lock();
        let status = self.scan.news.wait_timeout_while(status, patience, |status| !enough(status));
        status.clone()
    }

    /// Reads what nobody has read yet of the source, on `threads` threads, until that is done, the
    /// source fails too often, or `over` is set. What was added goes to `report`. Blocks; how far
    /// it is, [`scan_status`](Self::scan_status) says.
    pub fn fill(&self, threads: usize, over: &AtomicBool, report: &(dyn Fn(Changes) + Sync)) {
        self.scan.change(|status| {
            (status.fault, status.unsure, status.names) = (None, None, 0);
            status.is_over = false;
        });
        let scan = Scan {
            catalog: self,
            report,
            work: Mutex::default(),
            wake: Condvar::new(),
            ready: Condvar::new(),
        };
        scan.lock().push(FileId(0), Path::new("").into());
        thread::scope(|scope| {
            // However this ends, the threads do.
            let _end = End(&scan);
            let spawn = |_: &usize| {
                let builder = thread::Builder::new().name("belady-scan".into());
                builder.spawn_scoped(scope, || scan.work()).is_ok()
            };
            // With fewer threads it takes longer.
            if (0..threads.max(1)).filter(spawn).count() == 0 {
                return scan.fault(PathBuf::new(), Errno::EAGAIN);
            }
            scan.gather(over);
        });
        if too_many_are(scan.lock().unsure, self.rows()) {
            let first = self.scan_status().unsure;
            first.into_iter().for_each(|(path, errno)| scan.fault(path, errno));
        }
        let is_whole = scan.lock().faults == 0 && !over.load(Ordering::Relaxed);
        if is_whole {
            self.write().shrink();
            give_back();
        }
        self.scan.change(|status| (status.is_whole, status.is_over) = (is_whole, true));
    }
}

struct Scan<'a> {
    catalog: &'a Catalog,
    report: &'a (dyn Fn(Changes) + Sync),
    work: Mutex<Work>,
    /// There is a job, or the end.
    wake: Condvar,
    /// The first directory waits for nothing.
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

impl Scan<'_> {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }

    /// Does jobs until the end.
    fn work(&self) {
        loop {
            let mut work = self.lock();
            let job = loop {
                if work.over {
                    return;
                }
                if let Some(job) = work.next() {
                    break job;
                }
                work = self.wake.wait(work);
            };
            drop(work);
            let (Job::List(slot) | Job::Stat(slot, _)) = job;
            let doing = || match &job {
                Job::List(slot) => self.list(*slot),
                Job::Stat(slot, names) => self.stat(*slot, names),
            };
            if catch_unwind(AssertUnwindSafe(doing)).is_err() {
                let path = self.give_up(slot);
                self.fault(path, Errno::EIO);
            }
            self.finish(&mut self.lock(), slot);
        }
    }

    /// Nothing of this directory is added.
    fn give_up(&self, number: usize) -> PathBuf {
        let mut work = self.lock();
        let slot = work.slot(number);
        slot.found = None;
        slot.path.to_path_buf()
    }

    /// A job of a slot is done.
    fn finish(&self, work: &mut Work, slot: usize) {
        work.slot(slot).open -= 1;
        if work.slots.front().is_some_and(|first| first.open == 0) {
            self.ready.notify_one();
        }
    }

    /// It is open what is there.
    fn fault(&self, path: PathBuf, errno: Errno) {
        self.lock().faults += 1;
        self.catalog.scan.change(|status| {
            status.fault.get_or_insert((path, errno));
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
        let mut is_prompt = true;
        let listed = self.catalog.source.list_in_parts(&path, &mut |names| {
            self.catalog.scan.change(|status| status.names += names.len() as u64);
            if is_prompt {
                let began = Instant::now();
                self.stat(number, names);
                is_prompt = began.elapsed() < PROMPT * names.len() as u32;
                return;
            }
            let mut work = self.lock();
            work.slot(number).open += 1;
            work.stats.push((number, names.to_vec()));
            self.wake.notify_one();
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

    fn stat(&self, number: usize, names: &[OsString]) {
        let path = Arc::clone(&self.lock().slot(number).path);
        let stats = self.catalog.source.stat_all(&path, names);
        let mut full = false;
        let mut work = self.lock();
        let slot = work.slot(number);
        for (name, stat) in names.iter().zip(stats) {
            let silent = stat.err().filter(|errno| !is_certain(*errno));
            if let (Some(found), Some(stat)) = (&mut slot.found, told(stat)) {
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

    /// Adds what was read to the tree, in its order, until nothing is left.
    fn gather(&self, over: &AtomicBool) {
        loop {
            let mut work = self.lock();
            let ready = loop {
                let fails = work.faults >= FAULTS_MAX.max(work.first);
                if over.load(Ordering::Relaxed) || fails || work.slots.is_empty() {
                    return;
                }
                let ready = work.take_ready();
                if !ready.is_empty() {
                    break ready;
                }
                let woken = self.ready.wait_timeout(work, LOOK);
                work = woken;
            };
            drop(work);
            let began = Instant::now();
            let (below, copied) = self.add(ready);
            let mut work = self.lock();
            below.into_iter().for_each(|(row, path)| work.push(row, path));
            self.wake.notify_all();
            let goes_on = !work.slots.is_empty();
            drop(work);
            if copied && goes_on {
                thread::sleep((began.elapsed() * GATHER_TIMES).min(GATHER_MAX));
            }
        }
    }

    /// Makes rows of what was found. Returns the directories that are right below, and whether the
    /// layout had to be copied.
    fn add(&self, mut slots: Vec<Slot>) -> (Vec<(FileId, Arc<Path>)>, bool) {
        for Slot { path, found, .. } in &mut slots {
            let Some(Found { names, entries, .. }) = found else { continue };
            entries.sort_unstable_by(|a, b| names.get(a.0).cmp(names.get(b.0)));
            self.kinds(path, found);
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
            let there = entries.filter(|row| tree.is_there(*row));
            let directories = there.filter(|row| tree.is_directory(*row));
            below.extend(directories.map(|row| (row, path.join(tree.name(row)).into())));
        }
        drop(tree);
        (self.report)(changes);
        if let Some((path, errno)) = full {
            self.fault(path, errno);
        }
        let is_file = |(_, stat): &(u32, Stat)| stat.kind == Kind::File && !is_unsure(stat);
        let mut found = slots.iter().filter_map(|slot| slot.found.as_ref());
        if found.any(|found| found.entries.iter().any(is_file)) {
            self.catalog.scan.change(|status| status.has_files = true);
        }
        (below, copied)
    }
}

//! Reading the whole tree of the source once, on many threads.
//!
//! A parallel filesystem answers a `stat` in half a millisecond and hundreds at once, so the scan
//! keeps many threads waiting: a job lists a directory and queues its names in chunks, a job stats
//! a chunk and queues the directories among them. One huge directory is as parallel as many small
//! ones.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use nix::errno::Errno;

use super::names::Names;
use crate::source::{Kind, Source, Stat};

/// Names that one job stats.
const CHUNK: usize = 64;

/// A directory as found: its entries, or why they could not be read.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) names: Names,
    /// Where each entry's name is, and what it is.
    pub(super) entries: Vec<(u32, Stat)>,
    pub(super) error: Option<Errno>,
}

enum Job {
    List(PathBuf),
    Stat(usize, Vec<OsString>),
}

#[derive(Default)]
struct Work {
    jobs: Vec<Job>,
    /// Jobs queued or being done; the scan ends at 0.
    open: usize,
    found: Vec<Found>,
    /// The first error that leaves open what is there.
    fault: Option<(PathBuf, Errno)>,
}

/// Whether an error says for certain that there is nothing to be had: a name that is gone, or that
/// we may not look at. Anything else may pass, and must not make samples vanish.
pub(super) fn is_certain(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::EPERM)
}

/// Gives memory that was needed for a moment, in many small pieces, back to the system.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: memory in use is not touched.
    let _ = unsafe { nix::libc::malloc_trim(0) };
}

struct Scan<'a> {
    source: &'a dyn Source,
    work: Mutex<Work>,
    wake: Condvar,
    seen: &'a AtomicU64,
}

/// Everything below the source's root, directories in any order. Names seen so far are counted in
/// `seen`.
///
/// # Errors
/// The first path that the source could not tell about, and its error.
pub(super) fn scan(
    source: &dyn Source,
    threads: usize,
    seen: &AtomicU64,
) -> Result<Vec<Found>, (PathBuf, Errno)> {
    let scan = Scan { source, work: Mutex::default(), wake: Condvar::new(), seen };
    scan.queue([Job::List(PathBuf::new())]);
    thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(|| scan.run());
        }
        scan.run();
    });
    let work = scan.work.into_inner().unwrap_or_else(PoisonError::into_inner);
    work.fault.map_or(Ok(work.found), Err)
}

impl Scan<'_> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut work = self.lock();
        for job in jobs {
            work.open += 1;
            work.jobs.push(job);
            self.wake.notify_one();
        }
    }

    fn run(&self) {
        loop {
            let mut work = self.lock();
            while work.jobs.is_empty() && work.open > 0 {
                work = self.wake.wait(work).unwrap_or_else(PoisonError::into_inner);
            }
            // The latest: what a listing has brought along of its names is still there.
            let Some(job) = work.jobs.pop() else { return };
            drop(work);
            match job {
                Job::List(path) => self.list(path),
                Job::Stat(directory, names) => self.stat(directory, &names),
            }
            let mut work = self.lock();
            work.open -= 1;
            if work.open == 0 {
                self.wake.notify_all();
            }
        }
    }

    fn check(&self, path: PathBuf, errno: Errno) {
        if !is_certain(errno) {
            self.lock().fault.get_or_insert((path, errno));
        }
    }

    fn list(&self, path: PathBuf) {
        let (names, error) = match self.source.list(&path) {
            Ok(names) => (names, None),
            Err(errno) => {
                self.check(path.clone(), errno);
                (Vec::new(), Some(errno))
            }
        };
        self.seen.fetch_add(names.len() as u64, Ordering::Relaxed);
        let entries = Vec::with_capacity(names.len());
        let index = {
            let mut work = self.lock();
            work.found.push(Found { path, names: Names::default(), entries, error });
            work.found.len() - 1
        };
        self.queue(names.chunks(CHUNK).map(|chunk| Job::Stat(index, chunk.to_vec())));
    }

    fn stat(&self, directory: usize, names: &[OsString]) {
        let path = self.lock().found[directory].path.clone();
        let stats = self.source.stat_all(&path, names);
        let mut found = Vec::with_capacity(names.len());
        for (name, stat) in names.iter().zip(stats) {
            match stat {
                Ok(stat) => found.push((name, stat)),
                Err(errno) => self.check(path.join(name), errno),
            }
        }
        let directories = found.iter().filter(|(_, stat)| stat.kind == Kind::Directory);
        self.queue(directories.map(|(name, _)| Job::List(path.join(name))).collect::<Vec<_>>());
        let mut work = self.lock();
        let directory = &mut work.found[directory];
        for (name, stat) in found {
            match directory.names.add(name) {
                Some(at) => directory.entries.push((at, stat)),
                None => directory.error = Some(Errno::EOVERFLOW),
            }
        }
    }
}

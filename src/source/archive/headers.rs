//! The headers of many archives, read at once.
//!
//! The headers of a tar file are read one after the other, since each says where the next one is. So each archive has a
//! thread of its own. The limiter finds how many such reads the source serves best at once ([`Calls`]), and there are so
//! many threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::range_reader::RangeReader;
use super::{Fault, Format, FoundFile, Member, Members, broken, tar, zip};
use crate::error::{Error, Result as UserResult};
use crate::source::{Calls, Source, Stat};
use crate::sync::{Condvar, Mutex};

/// The most bytes of a header in a tar file. One that claims more is broken.
const TAR_HEADER_MAX: u64 = 1 << 20;

/// How often it is asked whether the source serves more reads at once than before.
const LOOK: Duration = Duration::from_millis(100);

/// An archive that cannot be shown.
struct Failure {
    error: Error,
    /// Whether the source did not give its bytes, whatever they are.
    of_source: bool,
}

/// What is to be read.
pub(super) struct Reading<'a> {
    pub(super) source: &'a Arc<dyn Source>,
    /// Reads of headers.
    pub(super) calls: &'a Calls,
    /// Whether an archive that is broken is an error. Later it has no members: it may just be written.
    pub(super) is_first: bool,
    /// Counts members.
    pub(super) seen: &'a AtomicU64,
}

/// How far it is.
struct Progress {
    /// The members of each file that is an archive.
    found: Mutex<Vec<Option<Members>>>,
    failed: Mutex<Option<Error>>,
    threads: Mutex<u32>,
    /// A thread has ended.
    ended: Condvar,
}

/// A thread, until it is dropped.
struct Thread<'a>(&'a Progress);

impl Drop for Thread<'_> {
    fn drop(&mut self) {
        *self.0.threads.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Progress {
    /// Waits until one more thread may read.
    fn begin(&self, calls: &Calls) -> Thread<'_> {
        let mut threads = self.threads.lock();
        while *threads >= calls.at_once() {
            threads = self.ended.wait_timeout(threads, LOOK);
        }
        *threads += 1;
        Thread(self)
    }
}

impl Reading<'_> {
    /// The members of each archive among the files.
    ///
    /// # Errors
    /// If an archive cannot be read.
    pub(super) fn all(&self, files: &[FoundFile]) -> UserResult<Vec<Option<Members>>> {
        let progress = Progress {
            found: Mutex::new(files.iter().map(|_| None).collect()),
            failed: Mutex::default(),
            threads: Mutex::default(),
            ended: Condvar::new(),
        };
        let progress = &progress;
        thread::scope(|scope| {
            for (nth, (path, stat)) in files.iter().enumerate() {
                let Some(format) = Format::of(path) else { continue };
                let thread = progress.begin(self.calls);
                if progress.failed.lock().is_some() {
                    return;
                }
                let read = move || self.take(progress, nth, self.one(path, stat, format));
                let read_there = move || {
                    let _thread = thread;
                    read();
                };
                let builder = thread::Builder::new().name("belady-archive".into());
                if builder.spawn_scoped(scope, read_there).is_err() {
                    read();
                }
            }
        });
        match progress.failed.lock().take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut progress.found.lock())),
        }
    }

    /// Notes what is in an archive, or that it cannot be shown.
    fn take(&self, progress: &Progress, nth: usize, read: Result<Members, Failure>) {
        let members = match read {
            Ok(members) => members,
            Err(Failure { error, of_source: false }) if !self.is_first => {
                tracing::warn!(%error, "an archive is not shown");
                Members::default()
            }
            Err(Failure { error, .. }) => {
                progress.failed.lock().get_or_insert(error);
                return;
            }
        };
        self.seen.fetch_add(members.files.len() as u64, Ordering::Relaxed);
        progress.found.lock()[nth] = Some(members);
    }

    fn one(&self, path: &Path, stat: &Stat, format: Format) -> Result<Members, Failure> {
        let run_max = match format {
            Format::Tar => TAR_HEADER_MAX,
            // The directory of a zip file is read in one go.
            Format::Zip => u64::MAX,
        };
        let reader = RangeReader::new(self.source, self.calls, path, stat, run_max);
        let failed = reader.failed();
        let members = match format {
            Format::Tar => tar::members(reader),
            Format::Zip => zip::members(reader),
        };
        let failure = |fault: Fault| Failure {
            error: fault.at(path),
            of_source: failed.load(Ordering::Relaxed),
        };
        let members = members.map_err(failure)?;
        let is_cut = |member: &&Member| member.offset.saturating_add(member.size) > stat.size;
        if let Some(member) = members.files.iter().find(is_cut) {
            let what = format!("it ends within {}", member.path.display());
            let error = broken(path, &what).hint("is the copy of the archive whole?");
            return Err(Failure { error, of_source: false });
        }
        if members.others > 0 {
            let (archive, others) = (path.display(), members.others);
            tracing::warn!(%archive, others, "links and devices in archives are not shown");
        }
        Ok(members)
    }
}

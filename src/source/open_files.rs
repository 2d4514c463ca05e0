//! Keeps large files open between the reads of their parts.
//!
//! At many filesystems an open costs a request of its own. But a file that stays open differs from one that
//! is opened again: many clients drop their pages of a past version only when the file is opened. So an
//! open file is kept with the version that it had when it was opened, and serves only reads of that
//! version. It is closed when it has not been read for a few seconds, so that a deleted file is not held
//! for long.
//!
//! Several parts of a file are often asked for at once. Then one thread opens the file, and the others wait for that. If
//! each of them opened it, some clients would drop the pages that the others are waiting for.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::Fingerprint;
use crate::sync::{Condvar, Mutex};

const FILES_MAX: usize = 64;

/// How long a file is kept open without a read.
const IDLE_MAX: Duration = Duration::from_secs(5);

struct OpenFile {
    file: Arc<File>,
    /// The version that it had when it was opened.
    version: Fingerprint,
    read: Instant,
}

/// Files to close. Dropping one that no read uses closes it, which may wait for the filesystem.
pub(super) type FilesToClose = Vec<Arc<File>>;

pub(super) struct OpenFiles {
    files: Mutex<LruCache<Arc<Path>, OpenFile>>,
    opening: Mutex<Opening>,
    opened: Condvar,
}

/// The paths of the files that are being opened, each with the number of its turn.
#[derive(Default)]
struct Opening {
    turns: HashMap<Arc<Path>, u64>,
    begun: u64,
}

impl Default for OpenFiles {
    fn default() -> Self {
        OpenFiles {
            files: Mutex::new(LruCache::unbounded()),
            opening: Mutex::default(),
            opened: Condvar::default(),
        }
    }
}

/// The turn of a thread to open a file. It ends when this is dropped.
pub(super) struct Turn<'a> {
    open_files: &'a OpenFiles,
    path: Arc<Path>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.open_files.opening.lock().turns.remove(&self.path);
        self.open_files.opened.notify_all();
    }
}

impl OpenFiles {
    /// The file at a path that was opened as this version, or else the turn to open it. Blocks while another thread opens
    /// it. If that thread could not open it as this version, there is no turn: nobody waits twice.
    pub(super) fn get_or_turn(
        &self,
        path: &Arc<Path>,
        version: &Fingerprint,
    ) -> Result<Arc<File>, Option<Turn<'_>>> {
        if let Some(file) = self.get(path, version) {
            return Ok(file);
        }
        let mut opening = self.opening.lock();
        let others = opening.turns.get(path).copied();
        if others.is_none() {
            opening.begun += 1;
            let number = opening.begun;
            opening.turns.insert(Arc::clone(path), number);
        }
        while others.is_some() && opening.turns.get(path).copied() == others {
            opening = self.opened.wait(opening);
        }
        drop(opening);
        let turn = others.is_none().then(|| Turn { open_files: self, path: Arc::clone(path) });
        // It may have been opened since.
        self.get(path, version).ok_or(turn)
    }

    /// The file at a path that was opened as this version.
    pub(super) fn get(&self, path: &Arc<Path>, version: &Fingerprint) -> Option<Arc<File>> {
        let mut files = self.files.lock();
        files.peek(path).filter(|entry| entry.version == *version)?;
        let entry = files.get_mut(path)?;
        entry.read = Instant::now();
        Some(Arc::clone(&entry.file))
    }

    /// Keeps a file open. `version` is the one that it had when it was opened.
    pub(super) fn keep(
        &self,
        path: &Arc<Path>,
        file: &Arc<File>,
        version: Fingerprint,
    ) -> FilesToClose {
        let entry = OpenFile { file: Arc::clone(file), version, read: Instant::now() };
        let mut files = self.files.lock();
        let mut closed = Vec::from_iter(files.put(Arc::clone(path), entry));
        if files.len() > FILES_MAX {
            closed.extend(files.pop_lru().map(|(_, entry)| entry));
        }
        closed.into_iter().map(|entry| entry.file).collect()
    }

    /// Removes this file if its path turned out to lead to another one.
    pub(super) fn forget(&self, path: &Arc<Path>, file: &Arc<File>) -> FilesToClose {
        let mut files = self.files.lock();
        let is_it = files.peek(path).is_some_and(|entry| Arc::ptr_eq(&entry.file, file));
        let forgotten = if is_it { files.pop(path) } else { None };
        forgotten.map(|entry| entry.file).into_iter().collect()
    }

    /// Takes out the files that have not been read for a while.
    pub(super) fn take_idle(&self, now: Instant) -> FilesToClose {
        let is_idle = |entry: &OpenFile| now.saturating_duration_since(entry.read) > IDLE_MAX;
        let mut files = self.files.lock();
        let mut closed = Vec::new();
        while files.peek_lru().is_some_and(|(_, entry)| is_idle(entry)) {
            closed.extend(files.pop_lru().map(|(_, entry)| entry.file));
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    const VERSION: Fingerprint = Fingerprint([1; 40]);

    fn path(number: usize) -> Arc<Path> {
        Path::new(&number.to_string()).into()
    }

    fn file() -> Arc<File> {
        Arc::new(tempfile::tempfile().unwrap())
    }

    #[test]
    fn the_files_read_last_are_kept_open() {
        let (open_files, file) = (OpenFiles::default(), file());
        for number in 0..=FILES_MAX {
            drop(open_files.keep(&path(number), &file, VERSION));
        }
        assert!(
            open_files.get(&path(0), &VERSION).is_none()
                && open_files.get(&path(1), &VERSION).is_some()
        );
        drop(open_files.forget(&path(1), &file));
        assert!(open_files.get(&path(1), &VERSION).is_none());
        assert_eq!(Arc::strong_count(&file), FILES_MAX);
    }

    /// Those who wait get the file that was opened. If it could not be opened, they wait for nobody else.
    #[test]
    fn one_thread_opens_a_file_at_a_time() {
        for fails in [false, true] {
            let (open_files, file) = (OpenFiles::default(), file());
            let turn = open_files.get_or_turn(&path(0), &VERSION).err().flatten().unwrap();
            let found = AtomicU32::new(0);
            let read = || match open_files.get_or_turn(&path(0), &VERSION) {
                Ok(it) => {
                    assert!(Arc::ptr_eq(&it, &file));
                    found.fetch_add(1, Ordering::Relaxed);
                }
                Err(turn) => assert!(fails || turn.is_some()),
            };
            thread::scope(|scope| {
                (0..8).for_each(|_| _ = scope.spawn(read));
                if !fails {
                    drop(open_files.keep(&path(0), &file, VERSION));
                }
                drop(turn);
            });
            assert_eq!(found.into_inner(), if fails { 0 } else { 8 });
            assert!(open_files.opening.lock().turns.is_empty());
        }
    }

    #[test]
    fn what_nobody_reads_is_closed_after_a_while() {
        let (open_files, file) = (OpenFiles::default(), file());
        let before = Instant::now();
        drop(open_files.keep(&path(0), &file, VERSION));
        assert!(open_files.take_idle(before + IDLE_MAX).is_empty());
        assert_eq!(open_files.take_idle(Instant::now() + 2 * IDLE_MAX).len(), 1);
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    fn a_file_that_was_opened_as_another_version_is_not_read() {
        let (open_files, old, new) = (OpenFiles::default(), file(), file());
        drop(open_files.keep(&path(0), &old, VERSION));
        let changed = Fingerprint([2; 40]);
        assert!(open_files.get(&path(0), &changed).is_none());
        drop(open_files.keep(&path(0), &new, changed));
        assert!(Arc::ptr_eq(&open_files.get(&path(0), &changed).unwrap(), &new));
        assert_eq!(Arc::strong_count(&old), 1);
    }
}

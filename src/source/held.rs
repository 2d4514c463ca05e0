//! Files that are read here and there, kept open from one read to the next.
//!
//! To open a file costs a request of its own at many a filesystem. A file is closed when it has not been
//! read for a few seconds and another one is, so that nothing holds a deleted file for long.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::sync::Mutex;

/// Files kept open at most.
const FILES_MAX: usize = 64;

/// For how long a file is kept open that is not read.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// A file, and when it was read last.
type Kept = (Arc<File>, Instant);

/// The files, by path.
pub(super) struct Held(Mutex<LruCache<Arc<Path>, Kept>>);

impl Default for Held {
    fn default() -> Self {
        Held(Mutex::new(LruCache::unbounded()))
    }
}

impl Held {
    /// A file that is open already.
    pub(super) fn get(&self, path: &Arc<Path>) -> Option<Arc<File>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(path).map(|(file, _)| Arc::clone(file))
    }

    /// A file has been read, and may be again.
    pub(super) fn keep(&self, path: &Arc<Path>, file: &Arc<File>) {
        let now = Instant::now();
        let is_over = |(_, read): &Kept| now.duration_since(*read) > KEPT_FOR;
        let mut closed = Vec::new();
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        closed.extend(files.put(Arc::clone(path), (Arc::clone(file), now)));
        while files.len() > FILES_MAX || files.peek_lru().is_some_and(|(_, kept)| is_over(kept)) {
            let Some((_, oldest)) = files.pop_lru() else { break };
            closed.push(oldest);
        }
        // To close a file may wait for its filesystem.
        drop(files);
    }

    /// A file turned out to be another one.
    pub(super) fn forget(&self, path: &Arc<Path>) {
        let closed = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop(path);
        drop(closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_read_last_are_kept_open() {
        let (held, file) = (Held::default(), Arc::new(tempfile::tempfile().unwrap()));
        let path = |number: usize| -> Arc<Path> { Path::new(&number.to_string()).into() };
        (0..=FILES_MAX).for_each(|number| held.keep(&path(number), &file));
        assert!(held.get(&path(0)).is_none() && held.get(&path(1)).is_some());
        held.forget(&path(1));
        assert!(held.get(&path(1)).is_none());
        assert_eq!(Arc::strong_count(&file), FILES_MAX);
    }
}

//! The local store: blocks on a local disk, packed into append-only segments.
//!
//! 1. A block is appended to the newest segment as a record: a header with what it is and a
//!    checksum, then its bytes. A segment that has reached its size is followed by a new one.
//! 2. The index in memory says where each block's record is. Reads check the record: one that is
//!    damaged is dropped and fetched again.
//! 3. A record that is given up has its space punched out of its segment; a segment without
//!    records is deleted.
//!
//! The store lives in a directory of its own inside the cache directory, empty at mount and
//! removed at the end. A disk that is full or fails is bypassed and the state says so.

mod segment;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use tempfile::TempDir;

use crate::catalog::NodeId;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::BlockId;
use segment::Segment;

/// Bytes after which a segment is full.
const SEGMENT_BYTES: u64 = 256 << 20;

/// Errors of the disk in a row after which nothing more is written to it.
const ERRORS_MAX: u64 = 3;

/// Bytes written between two looks at the free space of the disk.
const SPACE_CHECK_BYTES: u64 = 64 << 20;

#[derive(Clone)]
struct Location {
    segment: Arc<Segment>,
    offset: u64,
    length: u32,
    node: NodeId,
}

#[derive(Default)]
struct Index {
    records: HashMap<BlockId, Location>,
    current: Option<Arc<Segment>>,
    sequence: u64,
    written_since_check: u64,
}

/// Blocks on a local disk.
pub struct Store {
    /// As long as it is held, and so as long as this process lives, the store is no leftover.
    _in_use: Option<Flock<File>>,
    directory: TempDir,
    index: Mutex<Index>,
    min_free: u64,
    errors: AtomicU64,
    full: AtomicU64,
}

impl Store {
    /// A new store inside the cache directory, which is made with mode 0700 where it is missing.
    ///
    /// # Errors
    /// Where the directory cannot be written, is a link, or belongs to someone else.
    pub fn open(cache_directory: &Path, min_free: u64) -> Result<Self> {
        let at = cache_directory.display();
        let refuse = |what: String| Error::new(ErrorKind::Cache, format!("cache.dir {at}: {what}"));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(cache_directory)
            .map_err(|error| refuse(error.to_string()).hint("give a writable local directory"))?;
        let found = fs::symlink_metadata(cache_directory).map_err(|e| refuse(e.to_string()))?;
        if !found.is_dir() {
            return Err(refuse("is not a directory but a link".into())
                .hint("give the directory itself, so that nobody can point it elsewhere"));
        }
        let me = nix::unistd::geteuid().as_raw();
        if found.uid() != me {
            let message = format!("belongs to user {}, not to you (user {me})", found.uid());
            return Err(refuse(message).hint("use a cache directory of your own"));
        }
        // Held until the new store is marked as in use, so that nobody takes it for a leftover.
        let _turn = lock(cache_directory, FlockArg::LockExclusive).ok();
        remove_leftovers(cache_directory);
        let directory = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir_in(cache_directory)
            .map_err(|error| {
                refuse(format!("cannot be written: {error}"))
                    .hint("give a writable local directory")
            })?;
        let in_use = lock(directory.path(), FlockArg::LockExclusiveNonblock).ok();
        Ok(Store {
            _in_use: in_use,
            directory,
            index: Mutex::default(),
            min_free,
            errors: AtomicU64::new(0),
            full: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the block of this version is there.
    pub fn contains(&self, block: BlockId, node: NodeId) -> bool {
        self.lock().records.get(&block).is_some_and(|at| at.node == node)
    }

    /// The block's bytes, if they are there and whole. Blocks.
    pub fn get(&self, block: BlockId, node: NodeId) -> Option<Vec<u8>> {
        let at = self.lock().records.get(&block).filter(|at| at.node == node)?.clone();
        match at.segment.read(block, node, at.offset, at.length) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::warn!(?block, %error, "a record of the cache is unusable; fetching again");
                self.remove(block);
                None
            }
        }
    }

    /// Writes a block; false where the disk does not take it. Blocks.
    pub fn put(&self, block: BlockId, node: NodeId, bytes: &[u8]) -> bool {
        if self.errors.load(Ordering::Relaxed) >= ERRORS_MAX || !self.has_space(bytes.len() as u64)
        {
            return false;
        }
        let written = self.reserve(bytes.len()).and_then(|(segment, offset)| {
            segment.write(block, node, offset, bytes).map(|()| (segment, offset))
        });
        match written {
            Ok((segment, offset)) => {
                self.errors.store(0, Ordering::Relaxed);
                let at = Location { segment, offset, length: bytes.len() as u32, node };
                if let Some(before) = self.lock().records.insert(block, at) {
                    before.segment.give_up(before.offset, before.length);
                }
                true
            }
            Err(error) => {
                let full = error.raw_os_error() == Some(nix::libc::ENOSPC);
                let counter = if full { &self.full } else { &self.errors };
                if counter.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "the cache disk takes no more; going on without it");
                }
                false
            }
        }
    }

    /// Gives a block up.
    pub fn remove(&self, block: BlockId) {
        let mut index = self.lock();
        let Some(at) = index.records.remove(&block) else { return };
        let current = index.current.as_ref().is_some_and(|now| Arc::ptr_eq(now, &at.segment));
        drop(index);
        at.segment.give_up(at.offset, at.length);
        if !current && at.segment.is_empty() {
            at.segment.delete();
        }
    }

    /// `normal`, or what is wrong in words.
    pub fn state(&self) -> String {
        if self.errors.load(Ordering::Relaxed) >= ERRORS_MAX {
            "down: the cache disk fails; it is bypassed".into()
        } else if self.full.load(Ordering::Relaxed) > 0 {
            "full: the cache disk has no more space; further samples are not kept there".into()
        } else {
            "normal".into()
        }
    }

    /// Deletes everything: the store is of no use any more.
    pub fn delete(&self) {
        let mut index = self.lock();
        index.records.clear();
        index.current = None;
        self.errors.store(ERRORS_MAX, Ordering::Relaxed);
        if let Err(error) = fs::remove_dir_all(self.directory.path()) {
            tracing::warn!(%error, "the store was not deleted");
        }
    }

    /// Whether the disk keeps enough free space for others. Looked at now and then only.
    fn has_space(&self, bytes: u64) -> bool {
        let mut index = self.lock();
        index.written_since_check += bytes;
        if index.written_since_check < SPACE_CHECK_BYTES && index.sequence > 0 {
            return self.full.load(Ordering::Relaxed) == 0;
        }
        index.written_since_check = 0;
        drop(index);
        let Ok(space) = statvfs(self.directory.path()) else { return true };
        let free = space.blocks_available() * space.fragment_size();
        let enough = free >= self.min_free.saturating_add(bytes);
        self.full.store(u64::from(!enough), Ordering::Relaxed);
        enough
    }

    /// Room for a record in the newest segment.
    fn reserve(&self, length: usize) -> std::io::Result<(Arc<Segment>, u64)> {
        let mut index = self.lock();
        if let Some(segment) = &index.current
            && let Some(offset) = segment.reserve(length, SEGMENT_BYTES)
        {
            return Ok((Arc::clone(segment), offset));
        }
        index.sequence += 1;
        let name = format!("segment-{:08}", index.sequence);
        let segment = Arc::new(Segment::create(self.directory.path().join(name))?);
        let full = index.current.replace(Arc::clone(&segment));
        drop(index);
        if let Some(full) = full.filter(|full| full.is_empty()) {
            full.delete();
        }
        segment
            .reserve(length, u64::MAX)
            .map(|offset| (segment, offset))
            .ok_or_else(|| std::io::Error::other("a new segment has no room"))
    }
}

/// Names of the directories that stores live in begin so; nothing else is ever deleted.
const PREFIX: &str = "belady-store-";

/// Locks a directory, for all processes on all sides of a container.
fn lock(directory: &Path, how: FlockArg) -> std::io::Result<Flock<File>> {
    Flock::lock(File::open(directory)?, how).map_err(|(_, errno)| errno.into())
}

/// Deletes stores whose daemon has ended without doing so.
fn remove_leftovers(cache_directory: &Path) {
    let Ok(entries) = fs::read_dir(cache_directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        let ours = pid.is_some_and(|pid| pid.parse::<i32>().is_ok());
        if !ours || lock(&entry.path(), FlockArg::LockExclusiveNonblock).is_err() {
            continue;
        }
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "an old store was not removed");
        }
    }
}

#[cfg(test)]
mod tests;

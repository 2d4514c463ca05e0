//! What listings tell of directories, and the latest listings.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use nix::errno::Errno;

use crate::source::tree::{Access, Blob, directory_stat};
use crate::source::{Kind, Stat};
use crate::sync::Mutex;

/// Names in all listings that are kept. One listing is always kept.
const NAMES_MAX: usize = 1 << 21;

/// How long a listing is new at least, and for how many times as long as it took.
const NEW_FOR: Duration = Duration::from_secs(1);
const NEW_FOR_TIMES: u32 = 10;

/// How long a listing is kept.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// What is in a directory.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) subdirectories: BTreeSet<OsString>,
    pub(super) files: BTreeMap<OsString, Blob<()>>,
    /// Whether a key is in it that is no path, so that the library lists nothing of it.
    pub(super) is_unreadable: bool,
}

impl Directory {
    /// Takes away the files that have the name of a subdirectory, which a store may have, too.
    pub(super) fn hide_files(&mut self) {
        let Directory { subdirectories, files, .. } = self;
        files.retain(|name, _| !subdirectories.contains(name));
    }

    fn len(&self) -> usize {
        self.subdirectories.len() + self.files.len()
    }

    pub(super) fn names(&self) -> Vec<OsString> {
        self.subdirectories.iter().chain(self.files.keys()).cloned().collect()
    }

    pub(super) fn kinds(&self) -> HashMap<OsString, Kind> {
        let directories = self.subdirectories.iter().map(|name| (name.clone(), Kind::Directory));
        directories.chain(self.files.keys().map(|name| (name.clone(), Kind::File))).collect()
    }

    pub(super) fn file(&self, name: &OsStr) -> Option<&Blob<()>> {
        self.files.get(name)
    }

    pub(super) fn has_subdirectory(&self, name: &OsStr) -> bool {
        self.subdirectories.contains(name)
    }

    pub(super) fn stat(&self, path: &Path, access: Access) -> Stat {
        let names = self.subdirectories.iter().chain(self.files.keys());
        let names: Vec<&[u8]> = names.map(|name| name.as_bytes()).collect();
        let latest_ns = self.files.values().map(|blob| blob.mtime_ns).max();
        directory_stat(path, &names, latest_ns, access)
    }
}

/// A directory as it was listed.
struct Listing {
    directory: Arc<Directory>,
    /// When the store was asked, and how long it took.
    asked: Instant,
    took: Duration,
    /// Whether its names have been told. They are told once.
    is_told: bool,
}

impl Listing {
    /// Whether names that have come or gone since are found later.
    fn is_new(&self) -> bool {
        self.asked.elapsed() < NEW_FOR.max(self.took * NEW_FOR_TIMES)
    }
}

/// When a directory could not be listed, and why.
type TurnLock = tokio::sync::Mutex<Option<(Instant, Errno)>>;

/// The latest listings, by path.
#[derive(Default)]
pub(super) struct Listings {
    kept: Mutex<Kept>,
    /// Directories that are listed now. Whoever wants the same one waits.
    turns: Mutex<HashMap<PathBuf, Arc<TurnLock>>>,
    /// All subdirectories that were ever listed.
    directories: Mutex<HashSet<PathBuf>>,
}

struct Kept {
    by_path: LruCache<PathBuf, Listing>,
    names: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Kept { by_path: LruCache::unbounded(), names: 0 }
    }
}

impl Kept {
    /// Takes listings away until there are few names. They are dropped by the caller, who holds no lock then.
    fn shrink(&mut self) -> Vec<Listing> {
        let mut gone = Vec::new();
        while self.names > NAMES_MAX && self.by_path.len() > 1 {
            gone.extend(self.by_path.pop_lru().map(|(_, listing)| listing));
            self.names -= gone.last().map_or(0, |listing| listing.directory.len());
        }
        gone
    }

    fn remove(&mut self, path: &Path) -> Option<Listing> {
        let listing = self.by_path.pop(path)?;
        self.names -= listing.directory.len();
        Some(listing)
    }
}

impl Listings {
    /// The turn to list a directory, for one at a time.
    pub(super) async fn turn(&self, path: &Path) -> Turn<'_> {
        let turn = Arc::clone(self.turns.lock().entry(path.to_owned()).or_default());
        let lock = Arc::clone(&turn).lock_owned().await;
        Turn { listings: self, path: path.to_owned(), turn, lock }
    }

    /// Keeps a listing that the store was asked for at a time.
    pub(super) fn keep(&self, path: &Path, directory: &Arc<Directory>, asked: Instant) {
        let subdirectories = directory.subdirectories.iter().map(|name| path.join(name));
        self.directories.lock().extend(subdirectories);
        let listing = Listing {
            directory: Arc::clone(directory),
            asked,
            took: asked.elapsed(),
            is_told: false,
        };
        let mut kept = self.kept.lock();
        let before = kept.remove(path);
        kept.names += directory.len();
        kept.by_path.push(path.to_owned(), listing);
        let gone = kept.shrink();
        drop(kept);
        drop((before, gone));
    }

    /// The listing of a directory, if the store was asked for it within this time.
    pub(super) fn get(&self, path: &Path, age: Duration) -> Option<Arc<Directory>> {
        let mut kept = self.kept.lock();
        let listing = kept.by_path.get(path).filter(|listing| listing.asked.elapsed() <= age)?;
        Some(Arc::clone(&listing.directory))
    }

    /// The listing of a directory, if it is new.
    pub(super) fn get_new(&self, path: &Path) -> Option<Arc<Directory>> {
        let mut kept = self.kept.lock();
        let listing = kept.by_path.get(path).filter(|listing| listing.is_new())?;
        Some(Arc::clone(&listing.directory))
    }

    /// The listing that the attributes of a directory came from, whose names nobody has asked for yet.
    pub(super) fn take(&self, path: &Path) -> Option<Arc<Directory>> {
        let mut kept = self.kept.lock();
        let listing = kept.by_path.get_mut(path)?;
        let is_told = std::mem::replace(&mut listing.is_told, true);
        let is_kept = listing.asked.elapsed() <= KEPT_FOR || listing.is_new();
        (!is_told && is_kept).then(|| Arc::clone(&listing.directory))
    }

    /// The names of a directory have been told as they were listed.
    pub(super) fn told(&self, path: &Path) {
        if let Some(listing) = self.kept.lock().by_path.get_mut(path) {
            listing.is_told = true;
        }
    }

    /// What is known of a directory is wrong.
    pub(super) fn forget(&self, path: &Path) {
        let gone = self.kept.lock().remove(path);
        drop(gone);
    }

    /// Whether a path was listed as a directory.
    pub(super) fn is_directory(&self, path: &Path) -> bool {
        self.directories.lock().contains(path)
    }

    /// A directory has gone.
    pub(super) fn forget_directory(&self, path: &Path) {
        self.directories.lock().remove(path);
        self.forget(path);
    }

    /// Drops listings that are of no use any more.
    pub(super) fn close_idle(&self) {
        let mut kept = self.kept.lock();
        let mut gone = Vec::new();
        while let Some((path, oldest)) = kept.by_path.peek_lru()
            && oldest.asked.elapsed() > KEPT_FOR
            && !oldest.is_new()
        {
            let path = path.clone();
            gone.extend(kept.remove(&path));
        }
        drop(kept);
        drop(gone);
    }
}

/// The turn to list a directory.
pub(super) struct Turn<'a> {
    listings: &'a Listings,
    path: PathBuf,
    turn: Arc<TurnLock>,
    lock: tokio::sync::OwnedMutexGuard<Option<(Instant, Errno)>>,
}

impl Turn<'_> {
    /// Why the directory could not be listed since a time, for who has waited meanwhile.
    pub(super) fn failed_since(&self, asked: Instant) -> Option<Errno> {
        let (at, errno) = (*self.lock)?;
        (at >= asked).then_some(errno)
    }

    /// Notes that the directory could not be listed.
    pub(super) fn fail(&mut self, errno: Errno) -> Errno {
        *self.lock = Some((Instant::now(), errno));
        errno
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.listings.turns.lock();
        // The map has it, this has it, and so has its lock.
        if Arc::strong_count(&self.turn) <= 3 {
            turns.remove(&self.path);
        }
    }
}

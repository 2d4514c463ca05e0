//! A source of blobs that a store has under names.
//!
//! 1. The store is listed whole. What it lists becomes a [`Tree`] of directories.
//! 2. If a blob is asked for which is no longer as it was listed, the store is listed again. So it is if a directory,
//!    a missing name or many names are asked for, unless the listing is new.
//! 3. A read of a blob goes to the store with its key, if the tree has the version that is asked for. The store
//!    delivers bytes of that version or none.
//! 4. A store may not tell the sizes of its blobs. Then the blob is read if its size is asked for.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::remote::Failures;
use super::tree::{Blob, Listing, PathFault, Tree, blob_stat};
use super::{Pool, ReadError, ReadRequest, Source, SourceFailures, Stat};
use crate::error::{Error, ErrorKind, Result as UserResult};
use crate::sync::{Mutex, RwLock};

/// How long a listing is new at least, and for how many times as long as it took.
const NEW_FOR: Duration = Duration::from_secs(1);
const NEW_FOR_TIMES: u32 = 10;

/// From so many names on, a listing is faster than a request for each.
const MANY: usize = 64;

/// Names of a directory that are reported at a time.
const PART: usize = 64;

/// The name of a listing in `status`, where a failed read has the key of its blob.
const LISTING: &str = "the listing";

/// A store of blobs under names, with no directories of its own.
pub(super) trait Keyed: Send + Sync + 'static {
    /// How a blob is found.
    type Key: Send + Sync + 'static;

    /// A number that tells this store from others, the same at each mount.
    fn lasting_identity(&self) -> u128;

    /// Lists everything, and counts names in `seen`. `None`: the state is the known one.
    ///
    /// # Errors
    /// If not everything can be listed.
    fn list(&self, known: Option<u64>, seen: &AtomicU64) -> UserResult<Option<Listing<Self::Key>>>;

    /// The error for paths that are no tree.
    fn refuse(&self, fault: &PathFault) -> Error;

    /// As [`Source::is_hedged`].
    fn is_hedged(&self) -> bool {
        false
    }

    /// As [`Source::overloads`].
    fn overloads(&self) -> u64 {
        0
    }

    /// As [`Source::failures`].
    fn failures(&self) -> Option<SourceFailures> {
        None
    }

    /// As [`Source::advice`].
    fn advice(&self) -> Option<String> {
        None
    }

    /// Whether blobs are listed with their sizes.
    fn tells_sizes(&self) -> bool {
        true
    }

    /// The size of a blob that was listed without one.
    fn find_size(&self, _blob: &Blob<Self::Key>) -> Result<u64, Errno> {
        Err(Errno::ENOTSUP)
    }

    /// Whether a blob is still as it was listed.
    fn is_current(&self, blob: &Blob<Self::Key>) -> Result<bool, Errno>;

    /// Starts to read a range of a blob, or all of it if the request has no size. Never blocks. The store delivers
    /// bytes of the blob as it was listed, or [`ReadError::Changed`].
    fn read(&self, blob: &Blob<Self::Key>, request: ReadRequest);

    /// Whether blobs may lie behind each other, so that one request can bring several.
    fn has_neighbours(&self) -> bool {
        false
    }

    /// Whether a blob lies right behind another one.
    fn lies_behind(&self, _before: &Blob<Self::Key>, _blob: &Blob<Self::Key>) -> bool {
        false
    }

    /// Starts to read ranges of several blobs. Ranges that lie one behind the other may come with one request.
    fn read_all(&self, requests: Vec<(&Blob<Self::Key>, ReadRequest)>) {
        requests.into_iter().for_each(|(blob, request)| self.read(blob, request));
    }

    /// As [`Source::list_xattrs`], of a directory.
    fn list_xattrs(&self, _directory: &Path) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    /// As [`Source::xattr`], of a directory.
    fn xattr(&self, _directory: &Path, _name: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENODATA)
    }

    /// As [`Source::space`].
    fn space(&self) -> Result<[u64; 7], Errno>;

    /// As [`Source::close_idle`].
    fn close_idle(&self) {}
}

/// The last listing, and when it was begun.
struct Listed<K> {
    tree: Arc<Tree<K>>,
    state: u64,
    at: Instant,
    took: Duration,
}

impl<K> Listed<K> {
    /// Whether names that have come or gone since are found later.
    fn is_new(&self) -> bool {
        self.at.elapsed() < NEW_FOR.max(self.took * NEW_FOR_TIMES)
    }
}

/// The source that a [`Keyed`] store is.
pub(super) struct KeyedSource<K: Keyed> {
    store: K,
    listed: RwLock<Listed<K::Key>>,
    /// Held by the thread that lists.
    listing: Mutex<()>,
    /// Listings that failed.
    failures: Failures,
    /// Delivers the errors that are known at once.
    refusals: Pool,
}

impl<K: Keyed> KeyedSource<K> {
    /// Lists the store, and counts names in `seen`.
    ///
    /// # Errors
    /// If it cannot be listed, or its paths are no tree.
    pub(super) fn open(store: K, seen: &AtomicU64) -> UserResult<Self> {
        let unlisted = || Error::new(ErrorKind::Internal, "the store was not listed");
        let at = Instant::now();
        let listing = store.list(None, seen)?.ok_or_else(unlisted)?;
        let state = listing.state;
        let tree = Tree::new(listing).map_err(|fault| store.refuse(&fault))?;
        Ok(KeyedSource {
            store,
            listed: RwLock::new(Listed { tree: Arc::new(tree), state, at, took: at.elapsed() }),
            listing: Mutex::default(),
            failures: Failures::default(),
            refusals: Pool::new("belady-refusals", 1, 0),
        })
    }

    /// The attributes of a path as the store tells them at present.
    fn look(&self, path: &Path) -> Result<Stat, Errno> {
        let asked = Instant::now();
        let (tree, is_new) = {
            let listed = self.listed.read();
            (Arc::clone(&listed.tree), listed.is_new())
        };
        let is_current = match tree.blob(path) {
            Some(blob) => self.store.is_current(blob)?,
            // Names may have come or gone.
            None => is_new,
        };
        if !is_current {
            self.list_again(asked)?;
        }
        self.tree().stat(path).ok_or(Errno::ENOENT)
    }

    fn tree(&self) -> Arc<Tree<K::Key>> {
        Arc::clone(&self.listed.read().tree)
    }

    /// Lists the store again, unless another thread has begun to do so after `asked`.
    fn list_again(&self, asked: Instant) -> Result<(), Errno> {
        let _one = self.listing.lock();
        let known = {
            let listed = self.listed.read();
            if listed.at > asked {
                return Ok(());
            }
            listed.state
        };
        let (at, failed_before) = (Instant::now(), self.store.failures().map(|it| it.count));
        let found = self.store.list(Some(known), &AtomicU64::new(0)).and_then(|listing| {
            let tree = |listing: Listing<_>| Ok((listing.state, Tree::new(listing)?));
            listing.map(tree).transpose().map_err(|fault| self.store.refuse(&fault))
        });
        let found = found.map_err(|error| {
            tracing::warn!(%error, "the source cannot be listed");
            // The store may have counted it.
            if self.store.failures().map(|it| it.count) == failed_before {
                self.failures.note(LISTING, error.to_string());
            }
            Errno::EIO
        })?;
        let mut listed = self.listed.write();
        (listed.at, listed.took) = (at, at.elapsed());
        let before = found.map(|(state, tree)| {
            listed.state = state;
            std::mem::replace(&mut listed.tree, Arc::new(tree))
        });
        drop(listed);
        // Readers need not wait until all of it is freed.
        drop(before);
        Ok(())
    }
}

impl<K: Keyed> Source for KeyedSource<K> {
    fn lasting_identity(&self) -> u128 {
        self.store.lasting_identity()
    }

    fn list_in_parts(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&[OsString]),
    ) -> Result<(), Errno> {
        let tree = self.tree();
        let names = tree.names(directory).ok_or_else(|| match tree.stat(directory) {
            Some(_) => Errno::ENOTDIR,
            None => Errno::ENOENT,
        })?;
        let names: Vec<OsString> = names.map(OsStr::to_owned).collect();
        names.chunks(PART).for_each(each);
        Ok(())
    }

    fn is_hedged(&self) -> bool {
        self.store.is_hedged()
    }

    fn overloads(&self) -> u64 {
        self.store.overloads()
    }

    fn failures(&self) -> Option<SourceFailures> {
        let (listings, others) = (self.failures.told(), self.store.failures());
        [listings, others].into_iter().flatten().reduce(SourceFailures::join)
    }

    fn advice(&self) -> Option<String> {
        self.store.advice()
    }

    fn tells_sizes(&self) -> bool {
        self.store.tells_sizes()
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        let stat = self.look(path)?;
        if stat.is_sized {
            return Ok(stat);
        }
        let tree = self.tree();
        let size = self.store.find_size(tree.blob(path).ok_or(Errno::ENOENT)?)?;
        Ok(stat.with_size(size))
    }

    fn asks_one_by_one(&self) -> bool {
        false
    }

    fn stat_all(&self, directory: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let (asked, is_new) = (Instant::now(), self.listed.read().is_new());
        if names.len() < MANY && !is_new {
            // A store that is away is not waited for again for each name.
            let mut away = None;
            let look = |name| match away {
                Some(errno) => Err(errno),
                None => {
                    let found = self.look(&directory.join(name));
                    away = found.as_ref().err().copied().filter(|errno| *errno == Errno::ETIMEDOUT);
                    found
                }
            };
            return names.iter().map(look).collect();
        }
        if !is_new && let Err(errno) = self.list_again(asked) {
            return vec![Err(errno); names.len()];
        }
        let tree = self.tree();
        let stat = |name: &OsString| tree.stat(&directory.join(name)).ok_or(Errno::ENOENT);
        names.iter().map(stat).collect()
    }

    fn read_link(&self, _path: &Path) -> Result<OsString, Errno> {
        Err(Errno::EINVAL)
    }

    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        match self.tree().blob(path) {
            Some(_) => Ok(Vec::new()),
            None => self.store.list_xattrs(path),
        }
    }

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        match self.tree().blob(path) {
            Some(_) => Err(Errno::ENODATA),
            None => self.store.xattr(path, name),
        }
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        self.store.space()
    }

    fn lie_behind(&self, directory: &Path, names: &[OsString]) -> Option<Vec<bool>> {
        if !self.store.has_neighbours() {
            return None;
        }
        let tree = self.tree();
        let mut before: Option<&Blob<K::Key>> = None;
        let is_behind = |blob| {
            let pair = std::mem::replace(&mut before, blob).zip(blob);
            pair.is_some_and(|(before, blob)| self.store.lies_behind(before, blob))
        };
        Some(
            tree.blobs_of(directory, names.iter().map(OsString::as_os_str))
                .map(is_behind)
                .collect(),
        )
    }

    fn close_idle(&self) {
        self.store.close_idle();
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        let (tree, mut listed) = (self.tree(), Vec::with_capacity(requests.len()));
        for request in requests {
            let is_version = |blob: &&Blob<K::Key>| is_version(&request, blob);
            match tree.blob(&request.path).filter(is_version) {
                Some(blob) => listed.push((blob, request)),
                None => {
                    let deliver = request.deliver;
                    let refuse = move || deliver(Err(ReadError::Changed));
                    self.refusals.submit(request.urgency, refuse);
                }
            }
        }
        self.store.read_all(listed);
    }
}

/// Whether the request is for the blob as it was listed.
fn is_version<K>(request: &ReadRequest, blob: &Blob<K>) -> bool {
    let size = request.fingerprint.size();
    blob_stat(&request.path, blob, size).fingerprint() == request.fingerprint
}

/// What a fault of a path is, for people.
pub(super) fn say_fault(fault: &PathFault) -> String {
    match fault {
        PathFault::Twice(path) => format!("two files are {}", path.display()),
        PathFault::FileAndDirectory(path) => {
            format!("{} is both a file and a directory", path.display())
        }
        PathFault::Outside(path) => {
            format!("the path {} leads out of the tree", path.display())
        }
        PathFault::TooLong(path) => {
            format!("a name in {} is longer than 255 bytes, or the path than 4096", path.display())
        }
    }
}

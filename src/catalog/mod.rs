//! What is in the dataset: names, attributes and versions, in memory.
//!
//! 1. At mount the tree is scanned once. Rows are numbered from the root down, directory
//!    by directory, names sorted: the same tree gives the same numbers after a restart.
//! 2. Lookups and listings are answered from here, without the source.
//! 3. A row is checked at the source again when its last check is older than the period that the
//!    consistency setting allows. A file whose fingerprint differs gets a new *version*, and so a
//!    new [`NodeId`]: the kernel never mixes pages of two versions. Names that appeared get new
//!    rows at the end, names that vanished lose theirs.
//!
//! The catalog owns the [`Layout`]: which blocks each row's content is cut into.

mod node;
mod scan;
mod tree;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::ids::{BlockId, FileId};
use crate::plan::Layout;
use crate::source::{Fingerprint, Kind, Source, Stat};
pub use node::NodeId;
use tree::Tree;

/// A row as the kernel is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// The kernel's number of this version of the file.
    pub node: NodeId,
    /// What `stat` tells.
    pub stat: Stat,
    /// For how long this may be believed without asking again.
    pub valid: Duration,
}

/// Where the bytes of a block are at the source.
#[derive(Clone, Debug)]
pub struct Located {
    /// The version of the file.
    pub node: NodeId,
    /// Path below the source's root.
    pub path: Arc<Path>,
    /// The version to expect.
    pub fingerprint: Fingerprint,
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: usize,
}

/// One name of a directory's listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name.
    pub name: OsString,
    /// The row.
    pub attr: Attr,
}

/// What a check at the source brought to light.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Files with another version.
    pub changed: Vec<FileId>,
    /// Names whose row is another one or gone: the directory and the name.
    pub names: Vec<(NodeId, OsString)>,
    /// Whether rows were added.
    pub added: bool,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.names.is_empty() && !self.added
    }
}

/// The catalog of one source, shared by all threads.
pub struct Catalog {
    source: Arc<dyn Source>,
    tree: RwLock<Tree>,
    /// Counts the checks that found other names.
    renamed: AtomicU64,
    /// How old a check may be; none: the source is taken to be immutable.
    period: Option<Duration>,
    start: Instant,
}

/// How long the kernel may believe what can never change.
pub const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Catalog {
    /// Scans the source on `threads` threads, counting names in `seen` as it goes.
    ///
    /// # Errors
    /// The source's own, with the path that it could not tell about.
    pub fn scan(
        source: Arc<dyn Source>,
        threads: usize,
        period: Option<Duration>,
        seen: &AtomicU64,
    ) -> Result<Self, (PathBuf, Errno)> {
        let root = source.stat(Path::new("")).map_err(|errno| (PathBuf::new(), errno))?;
        let found = scan::scan(&*source, threads, seen)?;
        if let Some(errno) =
            found.iter().find(|d| d.path.as_os_str().is_empty()).and_then(|d| d.error)
        {
            return Err((PathBuf::new(), errno));
        }
        seen.store(found.iter().map(|d| d.entries.len() as u64).sum(), Ordering::Relaxed);
        let tree = RwLock::new(Tree::new(root, found));
        let renamed = AtomicU64::new(0);
        Ok(Catalog { source, tree, renamed, period, start: Instant::now() })
    }

    /// The source behind the catalog.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u32 {
        u32::try_from(self.start.elapsed().as_millis()).unwrap_or(u32::MAX)
    }

    /// For how long a row checked at `checked_ms` may still be believed; none: no longer.
    fn valid(&self, checked_ms: u32) -> Option<Duration> {
        let Some(period) = self.period else { return Some(FOR_EVER) };
        let age = Duration::from_millis(u64::from(self.now_ms().saturating_sub(checked_ms)));
        period.checked_sub(age).filter(|left| !left.is_zero())
    }

    fn attr(&self, tree: &Tree, file: FileId) -> Attr {
        let row = tree.row(file);
        let valid = self.valid(row.checked_ms).unwrap_or_default();
        Attr { node: NodeId::new(file, row.version), stat: row.stat, valid }
    }

    /// A name in a directory. `None` where it must be [refreshed](Self::refresh) first, which
    /// `believe` forbids: for our own threads, which must not wait for the source.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, and `ESTALE` for a version that is past.
    pub fn lookup(
        &self,
        parent: NodeId,
        name: &OsStr,
        believe: bool,
    ) -> Option<Result<Attr, Errno>> {
        let tree = self.read();
        let directory = match tree.resolve(parent) {
            Ok(directory) => directory,
            Err(errno) => return Some(Err(errno)),
        };
        let Some(file) = tree.child(directory, name) else {
            let row = tree.row(directory);
            let fresh = believe || self.valid(row.checked_ms).is_some() && !row.is_unread();
            let errno = if row.is_directory() { Errno::ENOENT } else { Errno::ENOTDIR };
            return fresh.then_some(Err(errno));
        };
        let attr = self.attr(&tree, file);
        (believe || !attr.valid.is_zero()).then_some(Ok(attr))
    }

    /// Attributes of a row, as known.
    ///
    /// # Errors
    /// `ESTALE` for a version that is past.
    pub fn getattr(&self, node: NodeId) -> Result<Attr, Errno> {
        let tree = self.read();
        Ok(self.attr(&tree, tree.resolve(node)?))
    }

    /// The listing of a directory, sorted by name. `None` where it must be
    /// [refreshed](Self::refresh_directory) first.
    ///
    /// # Errors
    /// `ENOTDIR`, `ESTALE`, and what the source said when the directory was read.
    pub fn list(&self, node: NodeId, believe: bool) -> Option<Result<Vec<Listed>, Errno>> {
        let tree = self.read();
        let directory = match tree.resolve(node) {
            Ok(directory) => directory,
            Err(errno) => return Some(Err(errno)),
        };
        let row = tree.row(directory);
        if !believe && (row.is_unread() || self.valid(row.checked_ms).is_none()) {
            return None;
        }
        Some(tree.children(directory).map(|children| {
            let listed = |(name, file): (&OsStr, FileId)| Listed {
                name: name.to_os_string(),
                attr: self.attr(&tree, file),
            };
            children.map(listed).collect()
        }))
    }

    /// A row by its name: its node, its directory's and the name there. None for one that is gone.
    pub fn name(&self, file: FileId) -> Option<(NodeId, NodeId, OsString)> {
        let tree = self.read();
        let row = tree.row(file);
        let name = tree.path(file).file_name()?.to_os_string();
        let parent = NodeId::new(row.parent, tree.row(row.parent).version);
        (!row.gone).then(|| (NodeId::new(file, row.version), parent, name))
    }

    /// The directory that holds a row.
    pub fn parent(&self, node: NodeId) -> Result<NodeId, Errno> {
        let tree = self.read();
        let parent = tree.row(tree.resolve(node)?).parent;
        Ok(NodeId::new(parent, tree.row(parent).version))
    }

    /// The row's path below the root.
    ///
    /// # Errors
    /// `ESTALE` for a version that is past.
    pub fn path(&self, node: NodeId) -> Result<PathBuf, Errno> {
        let tree = self.read();
        Ok(tree.path(tree.resolve(node)?))
    }

    /// Path of a file below the root, whatever its version; none for one that is gone.
    pub fn path_of(&self, file: FileId) -> Option<PathBuf> {
        let tree = self.read();
        let row = tree.get(file)?;
        (!row.gone).then(|| tree.path(file))
    }

    /// The file of a node, with its size.
    ///
    /// # Errors
    /// `ESTALE` for a version that is past.
    pub fn file(&self, node: NodeId) -> Result<(FileId, u64), Errno> {
        let tree = self.read();
        let file = tree.resolve(node)?;
        Ok((file, tree.row(file).stat.size))
    }

    /// The blocks that files are cut into, as of now.
    pub fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.read().layout)
    }

    /// Where a block's bytes are; none for a block that its file has left behind or lost.
    pub fn locate(&self, block: BlockId) -> Option<Located> {
        let tree = self.read();
        let (offset, length) = tree.layout.range(block);
        let file = tree.layout.file_of(block);
        let row = tree.row(file);
        if length == 0 || row.gone {
            return None;
        }
        Some(Located {
            node: NodeId::new(file, row.version),
            path: tree.path(file).into(),
            fingerprint: row.stat.fingerprint,
            offset,
            length: length as usize,
        })
    }

    /// Whether half the period since the last look at the source is over: time to look ahead of
    /// the next use, so that no reader waits for it.
    pub fn is_check_due(&self, node: NodeId) -> bool {
        let Some(period) = self.period else { return false };
        let tree = self.read();
        let Ok(file) = tree.resolve(node) else { return false };
        self.valid(tree.row(file).checked_ms).is_none_or(|left| left < period / 2)
    }

    /// A version has just been seen at the source, by reading it.
    pub fn seen(&self, node: NodeId) {
        let now = self.now_ms();
        let mut tree = self.write();
        if let Ok(file) = tree.resolve(node) {
            tree.seen(file, now);
        }
    }

    /// A number that changes when there are other names than before.
    pub fn names(&self) -> u64 {
        self.renamed.load(Ordering::Relaxed)
    }

    fn count(&self, changes: Changes) -> Changes {
        let other = changes.added || !changes.names.is_empty();
        self.renamed.fetch_add(other.into(), Ordering::Relaxed);
        changes
    }

    /// Calls `each` with path, file and attributes of every regular file or link.
    pub fn for_each_file(&self, mut each: impl FnMut(&Path, FileId, &Stat)) {
        let tree = self.read();
        for file in tree.files() {
            let row = tree.row(file);
            if !row.gone && matches!(row.stat.kind, Kind::File | Kind::Symlink) {
                each(&tree.path(file), file, &row.stat);
            }
        }
    }

    /// Path of some regular file.
    pub fn any_file(&self) -> Option<PathBuf> {
        let tree = self.read();
        let regular = |&file: &FileId| {
            let row = tree.row(file);
            row.stat.kind == Kind::File && !row.gone
        };
        tree.files().find(regular).map(|file| tree.path(file))
    }

    /// Number of rows and of the bytes of all regular files.
    pub fn totals(&self) -> (u64, u64) {
        let tree = self.read();
        let regular =
            |&file: &FileId| tree.row(file).stat.kind == Kind::File && !tree.row(file).gone;
        let (mut files, mut bytes) = (0, 0);
        for file in tree.files().filter(regular) {
            files += 1;
            bytes += tree.row(file).stat.size;
        }
        (files, bytes)
    }

    /// Checks one name at the source. Blocks.
    pub fn refresh(&self, parent: NodeId, name: &OsStr) -> Changes {
        let known = {
            let tree = self.read();
            let Ok(directory) = tree.resolve(parent) else { return Changes::default() };
            tree.child(directory, name).map(|_| tree.path(directory).join(name))
        };
        let Some(path) = known else { return self.refresh_directory(parent) };
        let stat = self.source.stat(&path);
        let mut changes = Changes::default();
        let mut tree = self.write();
        match stat {
            Ok(stat) => tree.found(parent, name, stat, self.now_ms(), &mut changes),
            Err(Errno::ENOENT | Errno::ENOTDIR) => tree.remove(parent, name, &mut changes),
            // A source that does not answer well is no reason to forget what is known.
            Err(_) => {}
        }
        self.count(changes)
    }

    /// Checks a directory at the source, and its names if it changed. Blocks.
    pub fn refresh_directory(&self, node: NodeId) -> Changes {
        let (directory, path, before) = {
            let tree = self.read();
            let Ok(directory) = tree.resolve(node) else { return Changes::default() };
            (directory, tree.path(directory), tree.listed(directory))
        };
        let mut changes = Changes::default();
        let Ok(stat) = self.source.stat(&path) else { return changes };
        let now = self.now_ms();
        if Some(stat.fingerprint) == before {
            self.write().update(directory, stat, now, &mut changes);
            return changes;
        }
        let Ok(names) = self.source.list(&path) else { return changes };
        let stats = self.source.stat_all(&path, &names);
        if stats.iter().flat_map(|stat| stat.as_ref().err()).any(|errno| !scan::is_certain(*errno))
        {
            return changes;
        }
        let found =
            names.into_iter().zip(stats).filter_map(|(name, stat)| Some((name, stat.ok()?)));
        let mut tree = self.write();
        tree.relist(directory, stat.fingerprint, found.collect(), now, &mut changes);
        tree.update(directory, stat, now, &mut changes);
        self.count(changes)
    }
}

#[cfg(test)]
mod tests;

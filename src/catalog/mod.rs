//! What is in the dataset: names, attributes and versions, in memory.
//!
//! 1. At the first mount the tree is scanned, while it may be served already. Rows are numbered
//!    from the root down, directory by directory, names sorted: the same tree gives the same numbers
//!    after a restart, but for directories that a reader asks for before the scan is there. The
//!    catalog is saved when it is whole; a later mount takes it up without asking the source, and
//!    has it checked behind its readers. What it says counts as seen when that mount began.
//! 2. Lookups and listings are answered from here, without the source; those of a directory that
//!    nobody has read yet read it. Where the source cannot say what a name stands for, that is an error
//!    of this name alone, which is asked for each time.
//! 3. A row is checked at the source again when its last check is older than the period that the
//!    consistency setting allows. A file whose fingerprint differs gets a new *version*, and so a
//!    new [`NodeId`]: the kernel never mixes pages of two versions. Names that appeared get new
//!    rows at the end, names that vanished lose theirs.
//!
//! The catalog owns the [`Layout`]: which blocks each row's content is cut into.

mod bits;
mod change;
mod doubt;
mod files;
mod listing;
mod names;
mod node;
mod pages;
mod refresh;
mod row;
mod saved;
mod scan;
mod served;
mod sums;
mod sweep;
mod tree;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use serde::Serialize;

use crate::disk::AtomicFile;
use crate::ids::{BlockId, FileId};
use crate::plan::Layout;
use crate::source::{Fingerprint, Source, Stat};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use bits::Bits;
use doubt::Doubts;
pub use files::{Leading, Links};
pub use listing::with_listing;
pub use node::NodeId;
use refresh::Turns;
use scan::Progress;
pub use scan::{ScanStatus, give_back, is_certain};
pub use served::{Handed, Received, Served};
use tree::{Clock, Tables, Tree};

/// A row as the kernel is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// The kernel's number of this version of the file.
    pub node: NodeId,
    pub stat: Stat,
    /// For how long this may be believed without asking again.
    pub valid: Duration,
}

/// Where a catalog comes from, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CatalogState {
    /// From a scan at this mount, which goes on.
    Scanning,
    /// From a scan at this mount, which is over.
    Scanned,
    /// From an earlier mount; its names are being checked.
    Checking,
    /// From an earlier mount; its names have been checked.
    Checked,
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
    pub length: usize,
}

/// One name of a directory's listing.
#[derive(Clone, Debug)]
pub struct Listed {
    pub name: OsString,
    pub attr: Attr,
    /// Whether the source could say what the name stands for; else no more is known than its kind.
    pub sure: bool,
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
    /// Whether rows are gone.
    pub removed: bool,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.names.is_empty() && !self.added
    }

    /// Takes what another check brought to light.
    fn join(&mut self, other: Changes) {
        self.changed.extend(other.changed);
        self.names.extend(other.names);
        self.added |= other.added;
        self.removed |= other.removed;
    }

    /// Whether names came or went.
    pub fn are_of_names(&self) -> bool {
        self.added || self.removed
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
    /// Whether it comes from an earlier mount.
    reopened: bool,
    scan: Progress,
    turns: Turns,
    doubts: Doubts,
    /// Whether nothing is left of it that only an earlier mount has seen.
    swept: AtomicBool,
    /// Whether it is as it was saved last.
    saved: AtomicBool,
}

/// What the age of a check is measured in: 32 bits of it are 2.7 years.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// How long the kernel may believe what can never change.
pub const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Catalog {
    /// The catalog of a source of which nothing is known but its root. The rest comes by a
    /// [scan](Self::fill), or is read where a reader asks for it.
    ///
    /// # Errors
    /// The source's own, of its root.
    pub fn begin(source: Arc<dyn Source>, period: Option<Duration>) -> Result<Self, Errno> {
        let start = Instant::now();
        let root = source.stat(Path::new(""))?;
        Ok(Self::of(Tree::root(&root), source, period, false, start))
    }

    /// Scans the source on `threads` threads. Blocks.
    ///
    /// # Errors
    /// The source's own, with the path that it could not tell about.
    pub fn scan(
        source: Arc<dyn Source>,
        threads: usize,
        period: Option<Duration>,
    ) -> Result<Self, (PathBuf, Errno)> {
        let catalog = Self::begin(source, period).map_err(|errno| (PathBuf::new(), errno))?;
        catalog.fill(threads, &AtomicBool::new(false), &|_| ());
        let status = catalog.scan_status();
        match status.fault.or(status.unsure) {
            Some(fault) => Err(fault),
            None => Ok(catalog),
        }
    }

    fn of(
        mut tree: Tree,
        source: Arc<dyn Source>,
        period: Option<Duration>,
        reopened: bool,
        start: Instant,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began = now.saturating_sub(start.elapsed()).as_nanos();
        tree.clock = Clock { start_ns: i64::try_from(began).unwrap_or(i64::MAX), reopened };
        tree.immutable = period.is_none();
        Catalog {
            source,
            tree: RwLock::new(tree),
            period,
            start,
            renamed: AtomicU64::new(0),
            reopened,
            scan: if reopened { Progress::whole() } else { Progress::default() },
            turns: Turns::default(),
            doubts: Doubts::default(),
            swept: AtomicBool::new(false),
            saved: AtomicBool::new(reopened),
        }
    }

    /// Takes up a catalog that was [saved](Self::save). The source is asked of its root alone; all
    /// else counts as seen at this moment, and is to be checked by a [sweep](Self::sweep).
    ///
    /// # Errors
    /// `NotFound` where there is none, `PermissionDenied` where others than us and root could have
    /// written it, `InvalidData` where it is damaged, of another directory or format, or mostly of
    /// files that are gone.
    pub fn open(
        source: Arc<dyn Source>,
        period: Option<Duration>,
        from: &AtomicFile,
    ) -> std::io::Result<Self> {
        let (identity, mut tables) = saved::read(from)?;
        let root = source.stat(Path::new(""))?;
        let wrong = |what| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
        if !tables.rebase(&root) {
            return wrong("it is of another directory");
        }
        if identity != source.lasting_identity() {
            return wrong("it is of another filesystem");
        }
        if tables.is_worn() {
            return wrong("most files in it are gone");
        }
        let mut tree = Tree::of(tables);
        tree.update(FileId(0), &root, &mut Changes::default());
        Ok(Self::of(tree, source, period, true, Instant::now()))
    }

    /// Saves the catalog to a file, which is replaced; nobody else may write it at the same time.
    /// Nothing happens where it is there as it is, or where the scan is not over.
    pub fn save(&self, to: &AtomicFile) -> std::io::Result<()> {
        if !self.scan_status().is_whole || self.saved.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let outcome = self.export(to);
        self.saved.fetch_and(outcome.is_ok(), Ordering::Relaxed);
        outcome
    }

    /// As [`save`](Self::save), whatever is there.
    pub fn export(&self, to: &AtomicFile) -> std::io::Result<()> {
        // Nobody has to wait for the disk.
        let tables = self.tables();
        saved::write(self.source.lasting_identity(), &tables, to)
    }

    /// The tables as they are to be saved.
    fn tables(&self) -> Tables {
        let tree = self.read();
        let mut tables = tree.tables.clone();
        for directory in &mut tables.directories {
            // It may have got names since that its times do not tell of.
            directory.current &= !tree.is_unsettled(directory.file);
        }
        tables
    }

    /// Where it comes from, and how far it is.
    pub fn state(&self) -> CatalogState {
        match (self.reopened, self.swept.load(Ordering::Relaxed)) {
            (false, _) if self.scan_status().is_whole => CatalogState::Scanned,
            (false, _) => CatalogState::Scanning,
            (true, false) => CatalogState::Checking,
            (true, true) => CatalogState::Checked,
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read()
    }

    /// To change something.
    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        self.saved.store(false, Ordering::Relaxed);
        self.tree.write()
    }

    /// Ticks since the catalog began, never 0: that stands for what was known then.
    pub fn now(&self) -> u32 {
        let ticks = self.start.elapsed().as_millis() / TICK.as_millis();
        u32::try_from(ticks).unwrap_or(u32::MAX).max(1)
    }

    /// For how long a row checked at this tick may still be believed; none: no longer, which is so
    /// of everything where the ticks have come to their end.
    fn valid(&self, checked: u32) -> Option<Duration> {
        let Some(period) = self.period else { return Some(FOR_EVER) };
        let now = self.now();
        // A tick more: the check may have been at its beginning.
        let age = TICK * now.saturating_sub(checked).saturating_add(1);
        period.checked_sub(age).filter(|left| now < u32::MAX && !left.is_zero())
    }

    /// What a row's name stands for, which may be believed as long as the name.
    fn attr(&self, tree: &Tree, entry: FileId) -> Attr {
        let valid = self.valid(tree.checked(entry)).unwrap_or_default();
        let file = tree.target(entry);
        Attr { node: tree.node(file), stat: tree.stat(file), valid }
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
        let Some(entry) = tree.entry(directory, name) else {
            let valid = self.valid(tree.checked(directory)).is_some();
            let fresh = believe || valid && !tree.is_unread(directory);
            let is_directory = tree.is_directory(directory);
            let errno = if is_directory { Errno::ENOENT } else { Errno::ENOTDIR };
            return fresh.then_some(Err(errno));
        };
        if tree.is_unsure(entry) {
            return believe.then_some(Err(Errno::EIO));
        }
        let attr = self.attr(&tree, entry);
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
        let valid = self.valid(tree.checked(directory)).is_some();
        if !believe && (tree.is_unread(directory) || !valid) {
            return None;
        }
        Some(tree.entries(directory).map(|entries| {
            let listed = |entry| Listed {
                name: tree.name(entry).to_os_string(),
                attr: self.attr(&tree, entry),
                sure: !tree.is_unsure(entry),
            };
            entries.map(listed).collect()
        }))
    }

    /// A row by its name: its node, its directory's and the name there. None for one that is gone.
    pub fn name(&self, file: FileId) -> Option<(NodeId, NodeId, OsString)> {
        let tree = self.read();
        let named = file != FileId(0) && tree.is_there(file);
        let parent = tree.node(tree.row(file).parent);
        named.then(|| (tree.node(file), parent, tree.name(file).to_os_string()))
    }

    /// Whether a file is known to have one name in this tree, however many links there are to it.
    pub fn has_one_name(&self, file: FileId) -> bool {
        self.scan_status().is_whole && !self.read().other_names.contains_key(&file)
    }

    /// The directory that holds a row.
    pub fn parent(&self, node: NodeId) -> Result<NodeId, Errno> {
        let tree = self.read();
        Ok(tree.node(tree.row(tree.resolve(node)?).parent))
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
        tree.get(file)?;
        tree.is_there(file).then(|| tree.path(file))
    }

    /// The file of a node, with its size.
    ///
    /// # Errors
    /// `ESTALE` for a version that is past.
    pub fn file(&self, node: NodeId) -> Result<(FileId, u64), Errno> {
        let tree = self.read();
        let file = tree.resolve(node)?;
        Ok((file, tree.stat(file).size))
    }

    /// Whether changes of the source are looked for; else it is taken to be immutable.
    pub fn is_revalidated(&self) -> bool {
        self.period.is_some()
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
        if length == 0 || !tree.is_there(file) {
            return None;
        }
        Some(Located {
            node: tree.node(file),
            path: tree.path(file).into(),
            fingerprint: tree.stat(file).fingerprint(),
            offset,
            length: length as usize,
        })
    }

    /// A number that changes when there are other names than before.
    pub fn names(&self) -> u64 {
        self.renamed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;

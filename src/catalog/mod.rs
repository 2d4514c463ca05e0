//! What is in the dataset: names, attributes and versions, in memory.
//!
//! A *row* is a file or directory. Its number is the `FileId`.
//!
//! 1. At the first mount the tree is scanned, while it is already being served. Rows are numbered
//!    from the root down, directory by directory, names sorted: the same tree gives the same numbers
//!    after a restart, except for directories that a reader asks for before the scan has reached them. The
//!    catalog is saved when it is whole. A later mount opens the saved catalog. All entries count as checked
//!    at that moment, and a *sweep* compares them with the source in the background.
//! 2. Lookups and listings are answered from here, without the source. A directory that was not read yet
//!    is read when a lookup or a listing needs it. If the source cannot say what a name stands for, only
//!    this name gets the error, and the source is asked again at each access.
//!    The same holds for a file whose size the source does not list. Its row has a guess, for the layout alone.
//!    The source is asked for the size when the file is looked up, or tells it with the bytes.
//! 3. A row is checked at the source again when its last check is older than the period that the
//!    consistency setting allows. A file whose fingerprint differs gets a new *version*, and so a
//!    new [`NodeId`]: the kernel never mixes pages of two versions. Names that appeared get new
//!    rows at the end, names that vanished lose theirs.
//!
//! [`Catalog`] is the type that all threads share. Three activities ask the source and change it: `scan`,
//! `refresh` and `sweep`. The catalog owns the [`Layout`]: how each file is cut into blocks.

mod bits;
mod checks;
mod doubt;
mod handed_out;
mod names;
mod neighbours;
mod node;
mod paths;
mod reading;
mod refresh;
mod row;
mod saved;
mod scan;
mod sums;
mod sweep;
mod tables;
mod tree;

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde::Serialize;

use crate::disk::AtomicFile;
use crate::ids::{BLOCK_BYTES, BlockId, FileId};
use crate::limiter::MetadataLimits;
use crate::order::Order;
use crate::plan::Layout;
use crate::source::{Fingerprint, Rights, Source, Stat, copied_version};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use bits::Bits;
use checks::Clock;
pub use checks::FOR_EVER;
#[cfg(test)]
pub(crate) use checks::TICK;
use doubt::Doubts;
pub use handed_out::Handed;
pub use node::NodeId;
pub use paths::with_listing;
use reading::Turns;
use scan::{Progress, Scan};
pub use scan::{ScanStatus, give_back};
use sweep::Sweep;
use tables::Tables;
pub use tree::Changes;
use tree::Tree;

/// Rows that are gone through under one lock.
const ROWS_AT_ONCE: usize = 4096;

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
    /// The directory that holds it.
    pub parent: NodeId,
    /// Path below the source's root.
    pub path: Arc<Path>,
    /// The version to expect.
    pub fingerprint: Fingerprint,
    /// Whether its size is known.
    pub is_sized: bool,
    /// Whether the version is told from others by its size, too.
    pub version_has_size: bool,
    /// Who may read it.
    pub rights: Rights,
    /// First byte in the file.
    pub offset: u64,
    pub length: usize,
}

impl Located {
    /// The version by which copies of the file are named.
    pub fn copied_version(&self) -> Fingerprint {
        copied_version(self.fingerprint, self.is_sized, self.version_has_size)
    }

    /// Whether copies of the file can be found.
    pub fn may_have_copies(&self) -> bool {
        self.is_sized || !self.version_has_size
    }

    /// Whether a copy of so many bytes may be one of the block. If the size of the file is not known, it has to be one of
    /// the whole file: it is shorter than the longest block.
    pub fn may_have(&self, bytes: usize) -> bool {
        match self.is_sized {
            true => bytes == self.length,
            false => self.offset == 0 && (bytes as u64) < BLOCK_BYTES,
        }
    }
}

/// One name of a directory's listing.
#[derive(Clone, Debug)]
pub struct Listed {
    pub name: OsString,
    pub attr: Attr,
    /// Whether more than the kind of what the name stands for is known.
    pub sure: bool,
}

/// What a node gives.
#[derive(Clone, Debug)]
pub struct Served {
    /// The node of the version whose bytes it gives.
    pub node: NodeId,
    pub file: FileId,
    /// Bytes of the file.
    pub size: u64,
    /// The blocks that files are cut into.
    pub layout: Arc<Layout>,
}

/// What may be done with bytes of a node that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// They may be handed out, and are certainly those of the version.
    Settled,
    /// They may be handed out: as [`Catalog::is_settled`].
    Unsettled,
    /// They may not be handed out: the node gives those of a later version already.
    TooLate,
}

/// Tells how many calls of each kind the source serves best at once. The numbers change.
type Limits = Box<dyn Fn() -> MetadataLimits + Send + Sync>;

/// The catalog of one source, shared by all threads. What is asked by a node fails with `ESTALE` if its
/// version is past.
pub struct Catalog {
    source: Arc<dyn Source>,
    limits: Limits,
    tree: RwLock<Tree>,
    clock: Clock,
    /// Counts the checks that found other names.
    names_version: AtomicU64,
    /// The names of which the neighbours were found last: their version and number.
    neighbours_of: Mutex<Option<(u64, usize)>>,
    scan: Progress,
    turns: Turns,
    doubts: Doubts,
    /// Whether a sweep has checked all that an earlier mount has seen; none if there was no such mount.
    swept: Option<AtomicBool>,
    /// Whether it is as it was saved last.
    saved: AtomicBool,
}

impl Catalog {
    /// The catalog of a source of which nothing is known but its root. The rest comes by a
    /// [scan](Self::fill), or is read if a reader asks for it.
    ///
    /// # Errors
    /// The source's own, of its root.
    pub fn begin(source: Arc<dyn Source>, period: Option<Duration>) -> Result<Self, Errno> {
        let start = Instant::now();
        let root = source.stat(Path::new(""))?;
        Ok(Self::of(Tree::root(&root), source, Clock { start, period }, false))
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

    fn of(mut tree: Tree, source: Arc<dyn Source>, clock: Clock, reopened: bool) -> Self {
        (tree.checks.start_ns, tree.checks.reopened) = (clock.start_ns(), reopened);
        tree.immutable = clock.period.is_none();
        Catalog {
            source,
            limits: Box::new(MetadataLimits::default),
            tree: RwLock::new(tree),
            clock,
            names_version: AtomicU64::new(0),
            neighbours_of: Mutex::default(),
            scan: if reopened { Progress::whole() } else { Progress::default() },
            turns: Turns::default(),
            doubts: Doubts::default(),
            swept: reopened.then(AtomicBool::default),
            saved: AtomicBool::new(reopened),
        }
    }

    /// Has scans and checks keep to these limits.
    pub fn with_limits(self, limits: impl Fn() -> MetadataLimits + Send + Sync + 'static) -> Self {
        Catalog { limits: Box::new(limits), ..self }
    }

    /// How many directories may be listed, and how many calls for attributes may be under way, at this moment.
    fn limits(&self) -> MetadataLimits {
        let MetadataLimits { lists, stats } = (self.limits)();
        MetadataLimits { lists: lists.max(1), stats: stats.max(1) }
    }

    /// Opens a catalog that was [saved](Self::save). The source is asked of its root alone; all
    /// else counts as checked at this moment, and is to be checked by a [sweep](Self::sweep).
    ///
    /// # Errors
    /// `NotFound` if there is none, `PermissionDenied` if others than us and root could have
    /// written it, `InvalidData` if it is damaged, of another directory or format, or mostly of
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
        if identity != source.tree_identity() {
            return wrong("it is of another filesystem");
        }
        if tables.is_worn() {
            return wrong("most files in it are gone");
        }
        let mut tree = Tree::of(tables);
        tree.update(FileId(0), &root, &mut Changes::default());
        Ok(Self::of(tree, source, Clock { start: Instant::now(), period }, true))
    }

    /// Saves the catalog to a file, which is replaced; nobody else may write it at the same time.
    /// Nothing happens if it is there as it is, or if the scan is not over.
    pub fn save(&self, to: &AtomicFile) -> std::io::Result<()> {
        if !self.is_whole() || self.saved.swap(true, Ordering::Relaxed) {
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
        saved::write(self.source.tree_identity(), &tables, to)
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
        match &self.swept {
            Some(swept) if swept.load(Ordering::Relaxed) => CatalogState::Checked,
            Some(_) => CatalogState::Checking,
            None if self.is_whole() => CatalogState::Scanned,
            None => CatalogState::Scanning,
        }
    }

    fn is_whole(&self) -> bool {
        self.scan.status.lock().is_whole
    }

    /// How far the scan is.
    pub fn scan_status(&self) -> ScanStatus {
        self.scan.status.lock().clone()
    }

    /// Waits until the scan is far `enough`, or for so long. Says how far it is.
    pub fn await_scan(
        &self,
        patience: Duration,
        enough: impl Fn(&ScanStatus) -> bool,
    ) -> ScanStatus {
        let Progress { status, news, .. } = &self.scan;
        news.wait_timeout_while(status.lock(), patience, |status| !enough(status)).clone()
    }

    /// Reads what was not read yet of the source, on `threads` threads at most, until that is done, the
    /// source fails too often, or `over` is set. What was added goes to `report`. Blocks;
    /// [`scan_status`](Self::scan_status) says how far it is.
    pub fn fill(&self, threads: usize, over: &AtomicBool, report: &(dyn Fn(Changes) + Sync)) {
        Scan::run(self, threads, over, report);
    }

    /// Checks everything that was not checked since the mount, on `threads` threads at most, until that is
    /// done or `over` is set; changes go to `report` as they are found. Says whether there are other
    /// names than before. What the source does not tell is left for another sweep. Blocks.
    pub fn sweep(
        &self,
        threads: usize,
        over: &AtomicBool,
        report: &(dyn Fn(Changes) + Sync),
    ) -> bool {
        Sweep::run(self, threads, over, report)
    }

    /// Checks one name at the source. Blocks.
    ///
    /// # Errors
    /// The source's, which leaves open what the name is by now. What is known is not forgotten.
    pub fn refresh(&self, parent: NodeId, name: &OsStr) -> Result<Changes, Errno> {
        refresh::name(self, parent, name)
    }

    /// Checks a directory at the source, and reads its names if it has changed. Names that were known
    /// stay, each until its own check is due. Blocks.
    ///
    /// # Errors
    /// The source's. A directory that is gone is none: it stays until its own name is checked.
    pub fn refresh_directory(&self, node: NodeId) -> Result<Changes, Errno> {
        refresh::directory(self, node)
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read()
    }

    /// To change something.
    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        self.saved.store(false, Ordering::Relaxed);
        self.tree.write()
    }

    /// Counts a check if it found other names.
    fn count_if_renamed(&self, changes: Changes) -> Changes {
        let other = changes.added || !changes.names.is_empty();
        self.names_version.fetch_add(other.into(), Ordering::Relaxed);
        changes
    }

    /// A number that changes when there are other names than before.
    pub fn names_version(&self) -> u64 {
        self.names_version.load(Ordering::Relaxed)
    }

    /// Whether changes of the source are looked for; else it is taken to be immutable.
    pub fn is_revalidated(&self) -> bool {
        self.clock.period.is_some()
    }

    /// Whether the source lists the sizes of files.
    pub fn tells_sizes(&self) -> bool {
        self.source.tells_sizes()
    }

    /// Ticks of 20 ms since the catalog began, never 0.
    pub fn now(&self) -> u32 {
        self.clock.now()
    }

    /// Whether the period since the last check is nearly over: time to check ahead of the next use. What is
    /// used again and again is checked once in seven to eight eighths of the period. No reader waits for that,
    /// unless it reads later than an eighth of the period after this was asked.
    pub fn is_check_due(&self, node: NodeId) -> bool {
        if !self.is_revalidated() {
            return false;
        }
        let tree = self.read();
        tree.resolve(node).is_ok_and(|file| self.clock.is_due(tree.checks.of_row(file)))
    }

    /// Whether what was read of a version is certainly what it has: not if the source counts its
    /// times in seconds and the file had been written in the last ones when it was checked.
    pub fn is_settled(&self, node: NodeId) -> bool {
        self.read().is_settled(node)
    }

    /// Whether the names of a directory may be believed.
    fn is_current(&self, tree: &Tree, directory: FileId) -> bool {
        self.clock.valid(tree.checks.of_row(directory)).is_some() && !tree.is_unread(directory)
    }

    /// What a row's name stands for, which may be believed as long as the name.
    fn attr(&self, tree: &Tree, entry: FileId) -> Attr {
        let valid = self.clock.valid(tree.checks.of_row(entry)).unwrap_or_default();
        let file = tree.target(entry);
        Attr { node: tree.node(file), stat: tree.stat(file), valid }
    }

    /// A name in a directory. `None` if it must be [refreshed](Self::refresh) first, which
    /// `believe` forbids: for our own threads, which must not wait for the source. They may get a guess of the size.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, and `EIO` if the source could not say what the name stands for.
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
            let is_directory = tree.is_directory(directory);
            let errno = if is_directory { Errno::ENOENT } else { Errno::ENOTDIR };
            return (believe || self.is_current(&tree, directory)).then_some(Err(errno));
        };
        if tree.is_unsure(entry) {
            return believe.then_some(Err(Errno::EIO));
        }
        let attr = self.attr(&tree, entry);
        let may_be_told = attr.stat.is_sized && !attr.valid.is_zero();
        (believe || may_be_told).then_some(Ok(attr))
    }

    /// The node of a file of which the size is not known.
    pub fn without_size(&self, parent: NodeId, name: &OsStr) -> Option<NodeId> {
        let tree = self.read();
        let entry = tree.entry(tree.resolve(parent).ok()?, name)?;
        let file = tree.target(entry);
        (tree.is_regular(file) && !tree.stat(file).is_sized).then(|| tree.node(file))
    }

    /// The listing of a directory, sorted by name. `None` if it must be
    /// [refreshed](Self::refresh_directory) first.
    ///
    /// # Errors
    /// `ENOTDIR`, and what the source said when the directory was read.
    pub fn list(&self, node: NodeId, believe: bool) -> Option<Result<Vec<Listed>, Errno>> {
        let tree = self.read();
        let directory = match tree.resolve(node) {
            Ok(directory) => directory,
            Err(errno) => return Some(Err(errno)),
        };
        if !believe && !self.is_current(&tree, directory) {
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

    /// Attributes of a row, as known.
    pub fn getattr(&self, node: NodeId) -> Result<Attr, Errno> {
        let tree = self.read();
        Ok(self.attr(&tree, tree.resolve(node)?))
    }

    /// The directory that holds a row.
    pub fn parent(&self, node: NodeId) -> Result<NodeId, Errno> {
        let tree = self.read();
        Ok(tree.node(tree.row(tree.resolve(node)?).parent))
    }

    /// The row's path below the root.
    pub fn path(&self, node: NodeId) -> Result<PathBuf, Errno> {
        let tree = self.read();
        Ok(tree.path(tree.resolve(node)?))
    }

    /// The file of a node, with its size.
    pub fn file(&self, node: NodeId) -> Result<(FileId, u64), Errno> {
        let tree = self.read();
        let file = tree.resolve(node)?;
        Ok((file, tree.stat(file).size))
    }

    /// Takes the size of a version of a file, which is known by now. Says whether the blocks of the file are others
    /// than before.
    pub fn set_size(&self, node: NodeId, size: u64) -> bool {
        let is_known = {
            let tree = self.read();
            tree.resolve(node).is_ok_and(|file| tree.stat(file).is_sized)
        };
        if is_known {
            return false;
        }
        let mut tree = self.write();
        tree.resolve(node).is_ok_and(|file| tree.set_size(file, size))
    }

    /// Whether a node is the present version of its file.
    pub fn is_present(&self, node: NodeId) -> bool {
        self.read().resolve(node).is_ok()
    }

    /// Path of a file below the root, whatever its version; none if it is gone.
    pub fn path_of(&self, file: FileId) -> Option<PathBuf> {
        let tree = self.read();
        tree.get(file)?;
        tree.is_there(file).then(|| tree.path(file))
    }

    /// A row by its name: its node, its directory's and the name there. None if it is gone.
    pub fn name(&self, file: FileId) -> Option<(NodeId, NodeId, OsString)> {
        let tree = self.read();
        let named = file != FileId(0) && tree.is_there(file);
        let parent = tree.node(tree.row(file).parent);
        named.then(|| (tree.node(file), parent, tree.name(file).to_os_string()))
    }

    /// Whether a file is known to have one name in this tree, however many links there are to it.
    pub fn has_one_name(&self, file: FileId) -> bool {
        self.is_whole() && !self.read().other_names.contains_key(&file)
    }

    /// The blocks that files are cut into, as of now.
    pub fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.read().layout)
    }

    /// Cuts large files along the samples of an order ([`Layout::cut_along`]). Returns those that have other blocks
    /// than before.
    pub fn cut_along(&self, order: &Order) -> Vec<FileId> {
        loop {
            let before = self.layout();
            let mut cut = Layout::clone(&before);
            let files = cut.cut_along(order, |file| self.read().stat(file).is_sized);
            if files.is_empty() {
                return files;
            }
            let mut tree = self.write();
            let Tree { layout, handed_out, .. } = &mut *tree;
            // Others may have changed it meanwhile.
            if Arc::ptr_eq(layout, &before) {
                *layout = Arc::new(cut);
                files.iter().for_each(|file| handed_out.forget_blocks(&before, *file));
                return files;
            }
        }
    }

    /// Finds which files lie one behind the other at the source, and notes it in the layout. If that is news, `tell` is
    /// called before any other call returns.
    pub fn find_neighbours(&self, tell: impl FnOnce(Arc<Layout>)) {
        neighbours::find(self, tell);
    }

    /// Where a block's bytes are; none for a block that its file has left behind or lost.
    pub fn locate(&self, block: BlockId) -> Option<Located> {
        let tree = self.read();
        let (offset, length) = tree.layout.range(block);
        let file = tree.layout.file_of(block);
        if length == 0 || !tree.is_there(file) {
            return None;
        }
        let stat = tree.stat(file);
        Some(Located {
            node: tree.node(file),
            parent: tree.node(tree.row(file).parent),
            path: tree.path(file).into(),
            fingerprint: stat.fingerprint(),
            is_sized: stat.is_sized,
            version_has_size: stat.version_has_size,
            rights: Rights::of(&stat),
            offset,
            length: length as usize,
        })
    }

    /// The node whose bytes a node gives, its file and its size: that of the present version, unless
    /// bytes of another version were handed out for the node.
    ///
    /// # Errors
    /// `ESTALE` also for a file that is gone, or whose size is not known.
    pub fn served(&self, node: NodeId) -> Result<Served, Errno> {
        let tree = self.read();
        let file = tree.serve(node)?;
        let there = tree.may_be_told(file).then(|| Served {
            node: tree.node(file),
            file,
            size: tree.stat(file).size,
            layout: Arc::clone(&tree.layout),
        });
        there.ok_or(Errno::ESTALE)
    }

    /// Attributes of what a node [gives](Self::served).
    pub fn served_attr(&self, node: NodeId) -> Result<Attr, Errno> {
        let tree = self.read();
        let file = tree.serve(node)?;
        // A node that was handed out gives no version whose size is not known.
        if tree.is_there(file) && !tree.may_be_told(file) {
            return Err(Errno::ESTALE);
        }
        Ok(self.attr(&tree, file))
    }

    /// Whether the file of a node has several names in the tree.
    pub fn is_shared(&self, node: NodeId) -> bool {
        let tree = self.read();
        tree.serve(node).is_ok_and(|file| tree.is_shared(file))
    }

    /// Blocks of a node that were handed out of earlier versions alone. The rest of it may only be given for
    /// nodes of these versions if these blocks turn out to be the same.
    pub fn unproved(&self, node: NodeId) -> Vec<BlockId> {
        let tree = self.read();
        let unproved = |file| tree.handed_out.unproved_of(&tree.layout, file);
        tree.resolve(node).map_or(Vec::new(), unproved)
    }

    /// Bytes of a node have come and are handed out: from then on it gives no others. If they are the
    /// source's, their read `began` at this tick or later, and has seen the version.
    pub fn receive(&self, node: NodeId, handed: &Handed<'_>, began: Option<u32>) -> Received {
        let (summed, block) = (handed.summed(), handed.block);
        let mut tree = self.read();
        if tree.resolve(node).is_ok() && tree.handed_out.is_unproved(block) {
            drop(tree);
            // They may be other bytes than those that were handed out of an earlier version.
            let pages = handed.by_page();
            let mut changing = self.write();
            if let Ok(file) = changing.resolve(node) {
                let Tree { layout, handed_out, .. } = &mut *changing;
                handed_out.prove(layout, file, block, &summed, &pages);
            }
            drop(changing);
            tree = self.read();
        }
        match tree.resolve(node) {
            Ok(file) => {
                tree.handed_out.note(&tree.layout, file, block, &summed);
                if let Some(began) = began.filter(|_| !tree.is_unsettled(file)) {
                    tree.checks.confirm(file, began);
                }
            }
            Err(_) if tree.serve(node).is_ok() => return Received::TooLate,
            Err(_) => {}
        }
        if tree.is_settled(node) { Received::Settled } else { Received::Unsettled }
    }

    /// Any bytes of a node may be handed out from now on. Says whether they may: not if it gives those of a
    /// later version already.
    pub fn hand_out_any(&self, node: NodeId) -> bool {
        let tree = self.read();
        match tree.resolve(node) {
            Ok(file) => {
                tree.handed_out.note_any(file);
                true
            }
            Err(_) => tree.serve(node).is_err(),
        }
    }

    /// Calls `each` with path, file and attributes of every regular file, by one of its names. What
    /// changes meanwhile may be seen as before or after.
    pub fn for_each_file(&self, each: impl FnMut(&Path, FileId, &Stat)) {
        self.for_each_file_in(0..usize::MAX, each);
    }

    /// The same of some [rows](Self::rows) alone.
    pub fn for_each_file_in(&self, rows: Range<usize>, mut each: impl FnMut(&Path, FileId, &Stat)) {
        let mut from = rows.start;
        loop {
            // Readers wait for whoever waits to change something.
            let tree = self.read();
            let end = rows.end.min(tree.tables.rows.len());
            let portion = tree.files().take(end).skip(from).take(ROWS_AT_ONCE);
            let regular = portion.filter(|file| tree.is_regular(*file));
            tree.for_each_path(regular, |path, file| each(path, file, &tree.stat(file)));
            from += ROWS_AT_ONCE;
            if from >= end {
                return;
            }
        }
    }

    /// Number of rows, of what is gone too.
    pub fn rows(&self) -> usize {
        self.read().tables.rows.len()
    }

    /// Number of rows and of the bytes of all regular files.
    pub fn totals(&self) -> (u64, u64) {
        let tree = self.read();
        let regular = tree.files().filter(|file| tree.is_regular(*file));
        regular.fold((0, 0), |(files, bytes), file| (files + 1, bytes + tree.stat(file).size))
    }

    /// Path of some regular file.
    pub fn any_file(&self) -> Option<PathBuf> {
        let tree = self.read();
        tree.files().find(|file| tree.is_regular(*file)).map(|file| tree.path(file))
    }

    pub fn directories(&self) -> Vec<PathBuf> {
        let tree = self.read();
        let there = tree.files().filter(|row| tree.is_there(*row) && tree.is_directory(*row));
        there.map(|row| tree.path(row)).collect()
    }

    /// Directories below `root` that the source does not let us read: the first, why, and how many
    /// there are.
    pub fn unreadable(&self, root: &Path) -> Option<(PathBuf, Errno, usize)> {
        let tree = self.read();
        let mut failed = tree.files().filter(|row| tree.is_there(*row)).filter_map(|row| {
            let errno = tree.entries(row).err().filter(|_| tree.is_directory(row))?;
            let path = tree.path(row);
            path.starts_with(root).then_some((path, errno))
        });
        let (path, errno) = failed.next()?;
        Some((path, errno, 1 + failed.count()))
    }
}

#[cfg(test)]
mod tests;

//! The rows of the catalog and how they lie.
//!
//! Rows are numbered directory by directory, names sorted. So the names of a directory are a run of
//! rows, and need no list of their own until they change. A further name of a file, its hard link,
//! is a row that only leads to the file's.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::names::Names;
use super::node::NodeId;
use super::pages::PageSums;
use super::row::{Class, Row, State};
use super::scan::Found;
use super::sums::Sums;
use super::{Bits, TICK};
use crate::ids::{BlockId, FileId};
use crate::plan::Layout;
use crate::source::{Kind, Stat};

/// The rows of a directory's names, in byte order of the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Children {
    /// Nobody has looked yet.
    Unread,
    /// Rows one after the other: the first and how many.
    Run(u32, u32),
    List(Vec<FileId>),
    /// Why they could not be read.
    Failed(i32),
}

impl Children {
    /// These rows, as a run where they are one.
    pub(super) fn of(rows: Vec<FileId>) -> Self {
        let in_a_row = rows.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0);
        match rows.first().filter(|_| in_a_row) {
            Some(first) => Children::Run(first.0, rows.len() as u32),
            None => Children::List(rows),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Children::Unread | Children::Failed(_) => 0,
            Children::Run(_, count) => *count as usize,
            Children::List(rows) => rows.len(),
        }
    }

    /// The row at a place below [`len`](Self::len).
    pub(super) fn at(&self, index: usize) -> FileId {
        match self {
            Children::List(rows) => rows[index],
            Children::Run(first, _) => FileId(first + index as u32),
            Children::Unread | Children::Failed(_) => FileId(0),
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = FileId> + '_ {
        (0..self.len()).map(|index| self.at(index))
    }
}

/// What is known of a directory beside its row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Directory {
    pub(super) file: FileId,
    pub(super) children: Children,
    /// Whether the names are those of the version that the row has.
    pub(super) current: bool,
}

/// The tables: what is saved. The large ones are shared with who saves them, and copied only where
/// they change meanwhile.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tables {
    pub(super) rows: Arc<Vec<Row>>,
    pub(super) classes: Vec<Class>,
    pub(super) directories: Vec<Directory>,
    /// By row, each with the row that it leads to.
    pub(super) aliases: Vec<(FileId, FileId)>,
    pub(super) names: Names,
}

/// When rows were looked at, by the clock that the source's times are of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// When the catalog began, in nanoseconds since 1970.
    pub(super) start_ns: i64,
    /// Whether what was known then had been known before, and nothing was read of it since.
    pub(super) reopened: bool,
}

/// For how long after its change a file may change again and have the same times, where these are
/// counted in seconds: twice that, since two clocks are compared.
const SETTLES_AFTER_NS: i64 = 2 * SECOND_NS;
const SECOND_NS: i64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) tables: Tables,
    pub(super) layout: Arc<Layout>,
    /// By row, ticks since the catalog began, when its name was last looked at.
    pub(super) checked: Vec<AtomicU32>,
    pub(super) clock: Clock,
    classes: HashMap<Class, u32>,
    /// Files with several names: one row for all of them.
    links: HashMap<(u64, u64), FileId>,
    /// Files of whose present version something was handed out that has no checksum.
    pub(super) unsummed: Bits,
    /// The first version whose node gives the present version's bytes, where that is an earlier one.
    pub(super) oldest: HashMap<FileId, u16>,
    /// Blocks of which bytes of an earlier version were handed out, and it is not known yet whether
    /// those of the present one are the same.
    pub(super) unproved: BTreeSet<BlockId>,
    /// Checksums of the blocks that were handed out, and of pages of those that are read in parts.
    pub(super) sums: Sums,
    pub(super) pages: PageSums,
    /// Whether the source is taken never to change.
    pub(super) immutable: bool,
    /// Rows of the further names of a file.
    pub(super) other_names: HashMap<FileId, Vec<FileId>>,
}

/// Bytes of content that blocks are cut from: only regular files have any.
pub(super) fn content(stat: &Stat) -> u64 {
    if stat.kind == Kind::File { stat.size } else { 0 }
}

fn is_linked(stat: &Stat) -> bool {
    stat.links > 1 && stat.kind != Kind::Directory
}

impl Tree {
    /// The tree of which only the root is known.
    pub(super) fn root(stat: &Stat) -> Self {
        let mut tree = Tree::default();
        tree.push(FileId(0), OsStr::new(""), stat, 0);
        tree
    }

    /// Takes the names of a directory, in their order, as the rows that come next; nothing where
    /// they are known already. Says whether there are any.
    ///
    /// # Errors
    /// `EOVERFLOW` where they are more than the tables can hold; the directory cannot be read then.
    pub(super) fn fill(&mut self, directory: FileId, found: &Found) -> Result<bool, Errno> {
        let full = Children::Failed(Errno::EOVERFLOW as i32);
        let known = self.directory(directory).filter(|_| self.is_there(directory));
        if known.is_some_and(|known| known.children == full) {
            return Err(Errno::EOVERFLOW);
        }
        if known.is_none_or(|known| known.current || known.children != Children::Unread) {
            return Ok(false);
        }
        let first = self.tables.rows.len() as u32;
        let entries = if found.error.is_none() { found.entries.as_slice() } else { &[] };
        for (name, stat) in entries {
            if self.add(directory, found.names.get(*name), stat, found.now).is_none() {
                // Not as it is at the source, and so never taken for known.
                if let Some(known) = self.directory_mut(directory) {
                    known.children = full;
                }
                return Err(Errno::EOVERFLOW);
            }
        }
        let children = match found.error {
            Some(errno) => Children::Failed(errno as i32),
            None => Children::Run(first, entries.len() as u32),
        };
        self.set_children(directory, children);
        Ok(!entries.is_empty())
    }

    /// Gives back what was reserved for more rows.
    pub(super) fn shrink(&mut self) {
        Arc::make_mut(&mut self.tables.rows).shrink_to_fit();
        self.tables.names.shrink();
    }

    /// The tree of tables that were saved. All rows count as seen when the catalog began.
    pub(super) fn of(tables: Tables) -> Self {
        let mut tree = Tree { tables, ..Tree::default() };
        let classes = tree.tables.classes.iter().zip(0..);
        tree.classes = classes.map(|(class, number)| (*class, number)).collect();
        tree.checked.resize_with(tree.tables.rows.len(), AtomicU32::default);
        let sizes = tree.files().map(|file| tree.size_of(file)).collect::<Vec<_>>();
        tree.layout = Arc::new(Layout::new(sizes));
        for (alias, target) in &tree.tables.aliases {
            tree.other_names.entry(*target).or_default().push(*alias);
        }
        for file in tree.files() {
            let stat = tree.stat(file);
            if tree.row(file).state == State::There && is_linked(&stat) {
                tree.links.insert(stat.identity, file);
            }
        }
        tree
    }

    /// Bytes of content of a row.
    fn size_of(&self, file: FileId) -> u64 {
        let there = self.row(file).state == State::There;
        if there { content(&self.stat(file)) } else { 0 }
    }

    /// Adds a row; none where there is no room for it.
    fn push(&mut self, parent: FileId, name: &OsStr, stat: &Stat, now: u32) -> Option<FileId> {
        let file = FileId(u32::try_from(self.tables.rows.len()).ok()?);
        let name = self.tables.names.add(name)?;
        let class = self.class(stat);
        Arc::make_mut(&mut self.tables.rows).push(Row::new(parent, name, class, stat));
        self.checked.push(AtomicU32::new(now));
        if stat.kind == Kind::Directory {
            let directory = Directory { file, children: Children::Unread, current: false };
            self.tables.directories.push(directory);
        }
        Arc::make_mut(&mut self.layout).push(content(stat));
        Some(file)
    }

    /// Whether this is a further link of a file that is known by another name.
    pub(super) fn is_known_link(&self, stat: &Stat) -> bool {
        is_linked(stat) && self.links.contains_key(&stat.identity)
    }

    /// Adds a name, and says which row it is: one of its own, or one that leads to another, which
    /// is known by its identity. None where there is no room for it.
    pub(super) fn add(
        &mut self,
        parent: FileId,
        name: &OsStr,
        stat: &Stat,
        now: u32,
    ) -> Option<FileId> {
        let same = |file: &&FileId| {
            self.is_there(**file) && self.stat(**file).fingerprint() == stat.fingerprint()
        };
        let known = self.links.get(&stat.identity).filter(|_| is_linked(stat)).filter(same);
        if let Some(&target) = known {
            let file = self.push(parent, name, &Stat { size: 0, ..*stat }, now)?;
            self.row_mut(file).state = State::Alias;
            self.tables.aliases.push((file, target));
            self.other_names.entry(target).or_default().push(file);
            return Some(file);
        }
        let file = self.push(parent, name, stat, now)?;
        if is_linked(stat) {
            self.links.insert(stat.identity, file);
        }
        Some(file)
    }

    fn class(&mut self, stat: &Stat) -> u32 {
        let class = Class::of(stat);
        *self.classes.entry(class).or_insert_with(|| {
            self.tables.classes.push(class);
            self.tables.classes.len() as u32 - 1
        })
    }

    /// Gives a row other attributes.
    pub(super) fn set(&mut self, file: FileId, stat: &Stat) {
        let class = self.class(stat);
        if self.is_unsure(file) && is_linked(stat) {
            self.links.insert(stat.identity, file);
        }
        self.row_mut(file).set(class, stat);
    }

    pub(super) fn row(&self, file: FileId) -> &Row {
        &self.tables.rows[file.index()]
    }

    pub(super) fn row_mut(&mut self, file: FileId) -> &mut Row {
        &mut Arc::make_mut(&mut self.tables.rows)[file.index()]
    }

    pub(super) fn stat(&self, file: FileId) -> Stat {
        let row = self.row(file);
        row.stat(&self.tables.classes[row.class as usize])
    }

    pub(super) fn is_directory(&self, file: FileId) -> bool {
        self.tables.classes[self.row(file).class as usize].kind == Kind::Directory
    }

    pub(super) fn is_there(&self, file: FileId) -> bool {
        self.row(file).state == State::There
    }

    /// Whether the source could not say what a name stands for.
    pub(super) fn is_unsure(&self, row: FileId) -> bool {
        self.row(row).state == State::Unsure
    }

    /// Whether a row is a name that the source has: of its own, or a further one of another row.
    pub(super) fn is_named(&self, row: FileId) -> bool {
        self.row(row).state != State::Gone
    }

    pub(super) fn name(&self, file: FileId) -> &OsStr {
        self.tables.names.get(self.row(file).name)
    }

    /// A row, if there is one of this number.
    pub(super) fn get(&self, file: FileId) -> Option<&Row> {
        self.tables.rows.get(file.index())
    }

    pub(super) fn files(&self) -> impl Iterator<Item = FileId> + use<> {
        (0..self.tables.rows.len() as u32).map(FileId)
    }

    /// The node of a row as it is now.
    pub(super) fn node(&self, file: FileId) -> NodeId {
        NodeId::new(file, self.row(file).version)
    }

    /// The row of a node, if that is its present version.
    pub(super) fn resolve(&self, node: NodeId) -> Result<FileId, Errno> {
        let file = node.file().ok_or(Errno::ESTALE)?;
        let row = self.tables.rows.get(file.index()).ok_or(Errno::ESTALE)?;
        if row.version == node.version() { Ok(file) } else { Err(Errno::ESTALE) }
    }

    /// The row that a name's row stands for.
    pub(super) fn target(&self, file: FileId) -> FileId {
        if self.row(file).state != State::Alias {
            return file;
        }
        let found = self.tables.aliases.binary_search_by_key(&file, |(alias, _)| *alias);
        found.map_or(file, |at| self.tables.aliases[at].1)
    }

    fn directory_index(&self, file: FileId) -> Option<usize> {
        self.tables.directories.binary_search_by_key(&file, |directory| directory.file).ok()
    }

    /// What is known of a directory; none for what is none.
    pub(super) fn directory(&self, file: FileId) -> Option<&Directory> {
        self.directory_index(file).map(|index| &self.tables.directories[index])
    }

    pub(super) fn directory_mut(&mut self, file: FileId) -> Option<&mut Directory> {
        self.directory_index(file).map(|index| &mut self.tables.directories[index])
    }

    /// Takes the names of a directory as they are in the version that its row has.
    pub(super) fn set_children(&mut self, file: FileId, children: Children) {
        if let Some(directory) = self.directory_mut(file) {
            (directory.children, directory.current) = (children, true);
        }
    }

    /// Whether this is a directory whose names are not known as they are now: nobody has looked
    /// into it, or it is known to have changed since.
    pub(super) fn is_unread(&self, file: FileId) -> bool {
        self.directory(file).is_some_and(|directory| !directory.current)
    }

    /// Where a name is among a directory's, or would be.
    pub(super) fn place(&self, children: &Children, name: &OsStr) -> Result<usize, usize> {
        let (mut low, mut high) = (0, children.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.name(children.at(middle)).cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The row of a name in a directory, which may lead to the [file's](Self::target).
    pub(super) fn entry(&self, directory: FileId, name: &OsStr) -> Option<FileId> {
        let children = &self.directory(directory)?.children;
        self.place(children, name).ok().map(|index| children.at(index))
    }

    /// The rows of a directory's names, in byte order of the names.
    ///
    /// # Errors
    /// Why it could not be read, and `ENOTDIR` for what is no directory.
    pub(super) fn entries(
        &self,
        directory: FileId,
    ) -> Result<impl ExactSizeIterator<Item = FileId> + '_, Errno> {
        let children = &self.directory(directory).ok_or(Errno::ENOTDIR)?.children;
        match children {
            Children::Failed(errno) => Err(Errno::from_raw(*errno)),
            Children::Unread => Err(Errno::EIO),
            Children::Run(..) | Children::List(_) => Ok(children.iter()),
        }
    }

    pub(super) fn path(&self, file: FileId) -> PathBuf {
        let mut names = Vec::new();
        let mut at = file;
        while at != FileId(0) {
            names.push(self.name(at));
            at = self.row(at).parent;
        }
        names.iter().rev().collect()
    }

    /// A row's name has been looked at. Of a file with several names each has its own time.
    pub(super) fn seen(&self, file: FileId, now: u32) {
        self.checked[file.index()].store(now, Ordering::Relaxed);
    }

    /// A row's name has been looked at, and is as it was known: others may have seen that later.
    pub(super) fn unchanged(&self, file: FileId, now: u32) {
        self.checked[file.index()].fetch_max(now, Ordering::Relaxed);
    }

    /// Whether a file may have changed since it was last looked at without its fingerprint showing
    /// that: the look was too soon after a change, and times are whole seconds.
    pub(super) fn is_unsettled(&self, file: FileId) -> bool {
        self.row(file).ctime_ns() % SECOND_NS == 0 && self.is_fresh(file)
    }

    /// Whether a file was last looked at so soon after a change that a further one may have the same
    /// times.
    pub(super) fn is_fresh(&self, file: FileId) -> bool {
        let (checked, changed_ns) = (self.checked(file), self.row(file).ctime_ns());
        if self.is_unseen(file) {
            return false;
        }
        let since_start = i64::from(checked).saturating_mul(TICK.as_nanos() as i64);
        let looked = self.clock.start_ns.saturating_add(since_start);
        looked < changed_ns.saturating_add(SETTLES_AFTER_NS)
    }

    /// Whether nobody has looked at a file since an earlier mount.
    pub(super) fn is_unseen(&self, file: FileId) -> bool {
        self.clock.reopened && self.checked(file) == 0
    }

    /// When a row's name was last looked at, in ticks since the catalog began.
    pub(super) fn checked(&self, file: FileId) -> u32 {
        self.checked[file.index()].load(Ordering::Relaxed)
    }
}

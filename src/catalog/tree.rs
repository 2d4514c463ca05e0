//! The rows of the catalog, and how they follow what the source turns out to have.
//!
//! 1. Rows are numbered directory by directory, names sorted. So the names of a directory are consecutive
//!    rows, and need no list of their own until they change. A further name of a file, its hard link, is a
//!    row that leads to the file's.
//! 2. If a file changes, its row gets the next version. If a name stands for another thing, it gets another
//!    row. If a name is gone, its row stays and is marked.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;

use super::checks::{Checks, SECOND_NS};
use super::handed_out::HandedOut;
use super::node::NodeId;
use super::row::{Class, Row, RowState};
use super::scan::Found;
use super::tables::{Children, Directory, Tables};
use crate::ids::FileId;
use crate::page_size::page_bytes;
use crate::plan::Layout;
use crate::source::{Kind, Stat};

/// What a check at the source has found out.
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

    /// Adds what another check has found out.
    pub(super) fn join(&mut self, other: Changes) {
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

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) tables: Tables,
    pub(super) layout: Arc<Layout>,
    pub(super) checks: Checks,
    pub(super) handed_out: HandedOut,
    /// Whether the source is taken never to change.
    pub(super) immutable: bool,
    /// Rows of the further names of a file.
    pub(super) other_names: HashMap<FileId, Vec<FileId>>,
    /// Rows of files with several links.
    by_identity: HashMap<(u64, u64), FileId>,
    class_numbers: HashMap<Class, u32>,
}

/// Bytes of content that are cut into blocks: only regular files have any.
fn content(stat: &Stat) -> u64 {
    if stat.kind == Kind::File { stat.size } else { 0 }
}

fn is_linked(stat: &Stat) -> bool {
    stat.links > 1 && stat.kind != Kind::Directory
}

/// The names of a directory as it was read again.
#[derive(Default)]
struct Merged {
    rows: Vec<FileId>,
    /// Rows of names that were not found.
    missing: Vec<FileId>,
    /// Whether a name was found of which it is not known what it is.
    lacks_some: bool,
}

impl Tree {
    /// The tree of which only the root is known.
    pub(super) fn root(stat: &Stat) -> Self {
        let mut tree = Tree::of(Tables::default());
        tree.push(FileId(0), OsStr::new(""), stat, 0);
        tree
    }

    /// The tree of tables that were saved. All rows count as checked when the catalog began.
    pub(super) fn of(tables: Tables) -> Self {
        let rows = || (0..).map(FileId).zip(tables.rows.iter());
        let is_there = |row: &Row| row.state == RowState::There;
        let size = |(file, row)| if is_there(row) { content(&tables.stat(file)) } else { 0 };
        let linked = rows().filter(|(_, row)| is_there(row)).filter_map(|(file, _)| {
            let stat = tables.stat(file);
            is_linked(&stat).then_some((stat.identity, file))
        });
        let mut other_names: HashMap<FileId, Vec<FileId>> = HashMap::new();
        for (alias, target) in &tables.aliases {
            other_names.entry(*target).or_default().push(*alias);
        }
        Tree {
            layout: Arc::new(Layout::with_pages(page_bytes(), rows().map(size))),
            checks: Checks::of(tables.rows.len()),
            handed_out: HandedOut::default(),
            immutable: false,
            other_names,
            by_identity: linked.collect(),
            class_numbers: tables.classes.iter().copied().zip(0..).collect(),
            tables,
        }
    }

    /// Gives back what was reserved for more rows.
    pub(super) fn shrink(&mut self) {
        Arc::make_mut(&mut self.tables.rows).shrink_to_fit();
        self.tables.names.shrink();
    }

    /// Adds a row; none if there is no room for it.
    fn push(&mut self, parent: FileId, name: &OsStr, stat: &Stat, now: u32) -> Option<FileId> {
        let file = FileId(u32::try_from(self.tables.rows.len()).ok()?);
        let name = self.tables.names.add(name)?;
        let class = self.class(stat);
        Arc::make_mut(&mut self.tables.rows).push(Row::new(parent, name, class, stat));
        self.checks.push(now);
        if stat.kind == Kind::Directory {
            let directory = Directory { file, children: Children::Unread, current: false };
            self.tables.directories.push(directory);
        }
        Arc::make_mut(&mut self.layout).push(content(stat));
        Some(file)
    }

    /// Adds a name, and returns its row: one of its own, or one that leads to that of a file with the same
    /// identity. None if there is no room for it.
    pub(super) fn add(
        &mut self,
        parent: FileId,
        name: &OsStr,
        stat: &Stat,
        now: u32,
    ) -> Option<FileId> {
        let is_same = |file: &&FileId| {
            self.is_there(**file) && self.stat(**file).fingerprint() == stat.fingerprint()
        };
        let known = self.by_identity.get(&stat.identity).filter(|_| is_linked(stat));
        if let Some(&target) = known.filter(is_same) {
            let file = self.push(parent, name, &Stat { size: 0, ..*stat }, now)?;
            self.row_mut(file).state = RowState::Alias;
            self.tables.aliases.push((file, target));
            self.other_names.entry(target).or_default().push(file);
            return Some(file);
        }
        let file = self.push(parent, name, stat, now)?;
        if is_linked(stat) {
            self.by_identity.insert(stat.identity, file);
        }
        Some(file)
    }

    fn class(&mut self, stat: &Stat) -> u32 {
        let class = Class::of(stat);
        *self.class_numbers.entry(class).or_insert_with(|| {
            self.tables.classes.push(class);
            self.tables.classes.len() as u32 - 1
        })
    }

    /// Gives a row other attributes.
    fn set(&mut self, file: FileId, stat: &Stat) {
        let class = self.class(stat);
        if self.is_unsure(file) && is_linked(stat) {
            self.by_identity.insert(stat.identity, file);
        }
        self.row_mut(file).set(class, stat);
    }

    pub(super) fn row(&self, file: FileId) -> &Row {
        &self.tables.rows[file.index()]
    }

    fn row_mut(&mut self, file: FileId) -> &mut Row {
        &mut Arc::make_mut(&mut self.tables.rows)[file.index()]
    }

    /// A row, if there is one of this number.
    pub(super) fn get(&self, file: FileId) -> Option<&Row> {
        self.tables.rows.get(file.index())
    }

    pub(super) fn files(&self) -> impl Iterator<Item = FileId> + use<> {
        (0..self.tables.rows.len() as u32).map(FileId)
    }

    pub(super) fn stat(&self, file: FileId) -> Stat {
        self.tables.stat(file)
    }

    pub(super) fn is_directory(&self, file: FileId) -> bool {
        self.tables.classes[self.row(file).class as usize].kind == Kind::Directory
    }

    pub(super) fn is_regular(&self, file: FileId) -> bool {
        self.is_there(file) && self.stat(file).kind == Kind::File
    }

    pub(super) fn is_there(&self, file: FileId) -> bool {
        self.row(file).state == RowState::There
    }

    /// Whether a row is there, and its size is known.
    pub(super) fn may_be_told(&self, file: FileId) -> bool {
        self.is_there(file) && self.stat(file).is_sized
    }

    /// Whether the source could not say what a name stands for.
    pub(super) fn is_unsure(&self, row: FileId) -> bool {
        self.row(row).state == RowState::Unsure
    }

    /// Whether a row is a name that the source has, be it a further one of another row.
    pub(super) fn is_named(&self, row: FileId) -> bool {
        self.row(row).state != RowState::Gone
    }

    pub(super) fn name(&self, file: FileId) -> &OsStr {
        self.tables.names.get(self.row(file).name)
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

    /// Calls `each` with the path of each of these rows. It is fastest if rows of one directory follow each
    /// other.
    pub(super) fn for_each_path(
        &self,
        rows: impl Iterator<Item = FileId>,
        mut each: impl FnMut(&Path, FileId),
    ) {
        let (mut directory, mut path) = (FileId(0), PathBuf::new());
        for row in rows {
            let parent = self.row(row).parent;
            if parent != directory {
                (directory, path) = (parent, self.path(parent));
            }
            path.push(self.name(row));
            each(&path, row);
            path.pop();
        }
    }

    /// The node of a row's present version.
    pub(super) fn node(&self, file: FileId) -> NodeId {
        NodeId::new(file, self.row(file).version)
    }

    /// The row of a node, if that is its present version.
    pub(super) fn resolve(&self, node: NodeId) -> Result<FileId, Errno> {
        let file = node.file().ok_or(Errno::ESTALE)?;
        let row = self.get(file).ok_or(Errno::ESTALE)?;
        if row.version == node.version() { Ok(file) } else { Err(Errno::ESTALE) }
    }

    /// The row whose present version a node gives: as [`resolve`](Self::resolve), and for an earlier version
    /// as long as that gives the bytes of the present one.
    pub(super) fn serve(&self, node: NodeId) -> Result<FileId, Errno> {
        let present = self.resolve(node);
        let Some(file) = node.file().filter(|_| present.is_err()) else { return present };
        let gives = |row: &Row| self.handed_out.gives(file, node.version(), row.version);
        if self.get(file).is_some_and(gives) { Ok(file) } else { present }
    }

    /// The row that a name's row stands for.
    pub(super) fn target(&self, row: FileId) -> FileId {
        if self.row(row).state != RowState::Alias {
            return row;
        }
        let found = self.tables.aliases.binary_search_by_key(&row, |(alias, _)| *alias);
        found.map_or(row, |at| self.tables.aliases[at].1)
    }

    /// The rows of a file's other names.
    pub(super) fn aliases_of(&self, file: FileId) -> impl Iterator<Item = FileId> + '_ {
        let others = self.other_names.get(&file).into_iter().flatten().copied();
        others.filter(|row| self.row(*row).state == RowState::Alias)
    }

    /// Whether the file that a name stands for has another name in the tree.
    pub(super) fn is_shared(&self, entry: FileId) -> bool {
        entry != self.target(entry) || self.aliases_of(entry).next().is_some()
    }

    fn directory_index(&self, file: FileId) -> Option<usize> {
        self.tables.directories.binary_search_by_key(&file, |directory| directory.file).ok()
    }

    fn directory(&self, file: FileId) -> Option<&Directory> {
        self.directory_index(file).map(|index| &self.tables.directories[index])
    }

    fn directory_mut(&mut self, file: FileId) -> Option<&mut Directory> {
        self.directory_index(file).map(|index| &mut self.tables.directories[index])
    }

    /// Whether this is a directory that was not read in the version that its row has.
    pub(super) fn is_unread(&self, file: FileId) -> bool {
        self.directory(file).is_some_and(|directory| !directory.current)
    }

    /// A name's index in a directory, and its row.
    fn find(&self, directory: FileId, name: &OsStr) -> Option<(usize, FileId)> {
        let children = &self.directory(directory)?.children;
        let (mut low, mut high) = (0, children.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.name(children.at(middle)).cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some((middle, children.at(middle))),
            }
        }
        None
    }

    /// The row of a name in a directory, which may lead to the [file's](Self::target).
    pub(super) fn entry(&self, directory: FileId, name: &OsStr) -> Option<FileId> {
        self.find(directory, name).map(|(_, row)| row)
    }

    /// The rows of a directory's names, in byte order of the names.
    ///
    /// # Errors
    /// The error of its read, and `ENOTDIR` for another kind of file.
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

    /// The list of a directory's rows, to be changed; none if it was not read.
    fn list_mut(&mut self, directory: FileId) -> Option<&mut Vec<FileId>> {
        let children = &mut self.directory_mut(directory)?.children;
        if let Children::Run(..) = children {
            *children = Children::List(children.iter().collect());
        }
        match children {
            Children::List(rows) => Some(rows),
            _ => None,
        }
    }

    /// Makes the names of a directory, which are sorted, the next rows; nothing if they are known already.
    /// Says whether there are any.
    ///
    /// # Errors
    /// `EOVERFLOW` if they are more than the tables can hold. The directory cannot be read then.
    pub(super) fn fill(&mut self, directory: FileId, found: &Found) -> Result<bool, Errno> {
        let full = Children::Failed(Errno::EOVERFLOW as i32);
        let known = self.directory(directory).filter(|_| self.is_there(directory));
        match known.map(|known| (&known.children, known.current)) {
            Some((children, _)) if *children == full => return Err(Errno::EOVERFLOW),
            Some((Children::Unread, false)) => {}
            _ => return Ok(false),
        }
        let first = self.tables.rows.len() as u32;
        let entries = if found.error.is_none() { found.entries.as_slice() } else { &[] };
        for (name, stat) in entries {
            if self.add(directory, found.names.get(*name), stat, found.now).is_none() {
                // It is not as it is at the source, and so never current.
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
        if let Some(known) = self.directory_mut(directory) {
            (known.children, known.current) = (children, true);
        }
        Ok(!entries.is_empty())
    }

    /// Whether a file was last checked so soon after a change that a further one may have the same times.
    pub(super) fn is_just_changed(&self, file: FileId) -> bool {
        self.checks.is_just_after(file, self.row(file).ctime_ns)
    }

    /// Whether a file may have changed since its last check with the same fingerprint: the check was too
    /// soon after a change, and times are whole seconds.
    pub(super) fn is_unsettled(&self, file: FileId) -> bool {
        self.row(file).ctime_ns % SECOND_NS == 0 && self.is_just_changed(file)
    }

    /// Whether bytes that were read of a version are certainly those of that version.
    pub(super) fn is_settled(&self, node: NodeId) -> bool {
        self.immutable || self.resolve(node).is_ok_and(|file| !self.is_unsettled(file))
    }

    /// Whether a file certainly is as it is known, if these are its attributes.
    pub(super) fn is_as_known(&self, file: FileId, stat: &Stat) -> bool {
        let known = self.stat(file);
        let is_same = known.fingerprint() == stat.fingerprint() && known.is_sized == stat.is_sized;
        is_same && !self.is_unsettled(file)
    }

    /// Takes the size of a file of which it was not known. Its version stays: nobody was told the guess. Says whether
    /// its blocks are others than before.
    pub(super) fn set_size(&mut self, file: FileId, size: u64) -> bool {
        let before = self.stat(file);
        if before.is_sized || before.kind != Kind::File {
            return false;
        }
        self.set(file, &before.with_size(size));
        Arc::make_mut(&mut self.layout).set_size(file, size)
    }

    /// Takes the attributes that the source tells of a row. Says whether it is another version.
    pub(super) fn update(&mut self, file: FileId, stat: &Stat, changes: &mut Changes) -> bool {
        let before = self.stat(file);
        let mut stat = *stat;
        if self.immutable
            && stat.kind == Kind::File
            && stat.fingerprint().is_content_of(&before.fingerprint())
        {
            // What is known of the content stays so, by the time that it is known by.
            stat.ctime_ns = before.ctime_ns;
        }
        let is_sized_now = !before.is_sized && stat.is_sized;
        if is_sized_now && before.with_size(stat.size).fingerprint() == stat.fingerprint() {
            if self.set_size(file, stat.size) {
                changes.changed.push(file);
            }
            return false;
        }
        let is_same = self.is_as_known(file, &stat);
        self.set(file, &stat);
        if is_same {
            return false;
        }
        if let Some(directory) = self.directory_mut(file) {
            // A directory has no content: its names are compared, its node stays.
            directory.current = false;
            return true;
        }
        let is_resized = content(&before) != content(&stat);
        let row = self.row_mut(file);
        let (past, parent) = (row.version, row.parent);
        row.version = past.wrapping_add(1);
        self.handed_out.renew(&self.layout, file, past, is_resized);
        changes.changed.push(file);
        changes.names.push((self.node(parent), self.name(file).to_os_string()));
        if is_resized {
            Arc::make_mut(&mut self.layout).resize(file, content(&stat));
        }
        true
    }

    /// Whether a name stands for another thing than its row: another kind, or another file if the row's own
    /// may still be there by another name.
    fn is_another(&self, entry: FileId, stat: &Stat) -> bool {
        let before = self.stat(self.target(entry));
        let is_known_link = is_linked(stat) && self.by_identity.contains_key(&stat.identity);
        before.kind != stat.kind
            || self.is_unsure(entry) && is_known_link
            || before.identity != stat.identity && self.is_shared(entry)
    }

    /// Takes what the source says of a name that is known: none if it is gone.
    pub(super) fn apply(
        &mut self,
        parent: NodeId,
        name: &OsStr,
        seen: Option<&Stat>,
        now: u32,
        changes: &mut Changes,
    ) {
        let Ok(directory) = self.resolve(parent) else { return };
        let Some((index, entry)) = self.find(directory, name) else { return };
        match seen {
            Some(stat) if !self.is_another(entry, stat) => {
                let file = self.target(entry);
                let is_changed = self.update(file, stat, changes);
                self.checks.set(entry, now);
                if is_changed {
                    self.checks.set(file, now);
                    self.go_by(entry);
                }
                return;
            }
            Some(stat) => {
                let Some(file) = self.add(directory, name, stat, now) else { return };
                changes.added = true;
                if let Some(rows) = self.list_mut(directory) {
                    rows[index] = file;
                }
            }
            None => drop(self.list_mut(directory).map(|rows| rows.remove(index))),
        }
        changes.names.push((parent, name.to_os_string()));
        self.vanish(vec![entry], changes);
    }

    /// Takes rows of names that are gone, with all that is below them. A file that has another name keeps
    /// its row.
    fn vanish(&mut self, mut entries: Vec<FileId>, changes: &mut Changes) {
        let mut lost = Vec::new();
        while let Some(entry) = entries.pop() {
            let state = &mut self.row_mut(entry).state;
            if std::mem::replace(state, RowState::Gone) != RowState::There {
                continue;
            }
            lost.push(entry);
            if let Some(directory) = self.directory_mut(entry) {
                directory.current = false;
                let below = std::mem::replace(&mut directory.children, Children::Unread);
                entries.extend(below.iter());
            }
        }
        // Only after that loop it is known which names are left.
        for file in lost {
            if !self.take_other_name(file) {
                changes.changed.push(file);
                changes.removed = true;
            }
        }
    }

    /// Exchanges the name of an alias with that of its file: the file's may be gone.
    pub(super) fn go_by(&mut self, alias: FileId) {
        let file = self.target(alias);
        if file == alias {
            return;
        }
        let [a, b] = [alias, file].map(|row| (self.row(row).parent, self.row(row).name));
        for (row, (parent, name)) in [(alias, b), (file, a)] {
            let row = self.row_mut(row);
            (row.parent, row.name) = (parent, name);
        }
        let now = self.checks.of_row(alias);
        self.checks.set(alias, self.checks.of_row(file));
        self.checks.set(file, now);
        let directories = if a.0 == b.0 { vec![a.0] } else { vec![a.0, b.0] };
        for directory in directories {
            for row in self.list_mut(directory).into_iter().flatten() {
                match *row {
                    found if found == alias => *row = file,
                    found if found == file => *row = alias,
                    _ => {}
                }
            }
        }
    }

    /// Gives a file whose name is gone the name of one of its aliases. Says whether it has one.
    fn take_other_name(&mut self, file: FileId) -> bool {
        let mut others: Vec<FileId> = self.aliases_of(file).collect();
        self.other_names.remove(&file);
        let Some(alias) = others.pop() else { return false };
        self.other_names.insert(file, others);
        let (parent, name) = (self.row(alias).parent, self.row(alias).name);
        self.row_mut(alias).state = RowState::Gone;
        let row = self.row_mut(file);
        (row.parent, row.name, row.state) = (parent, name, RowState::There);
        self.checks.set(file, self.checks.of_row(alias));
        if let Some(rows) = self.list_mut(parent)
            && let Some(slot) = rows.iter_mut().find(|row| **row == alias)
        {
            *slot = file;
        }
        true
    }

    /// Takes a directory's names as they were at a tick, in the version that its row has. A name without
    /// attributes was known when it was read. Returns names that were not found but were checked since:
    /// they are left as they are.
    pub(super) fn relist(
        &mut self,
        directory: FileId,
        found: Vec<(OsString, Option<Stat>)>,
        now: u32,
        changes: &mut Changes,
    ) -> Vec<OsString> {
        if !self.is_there(directory) {
            return Vec::new();
        }
        let Some(known) = self.directory_mut(directory) else { return Vec::new() };
        let before = std::mem::replace(&mut known.children, Children::Unread);
        let Merged { mut rows, missing, lacks_some } =
            self.merge(directory, &before, found, now, changes);
        let (lost, late): (Vec<FileId>, Vec<FileId>) =
            missing.into_iter().partition(|row| self.checks.of_row(*row) < now);
        rows.extend(&late);
        rows.sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
        if let Some(known) = self.directory_mut(directory) {
            // If some names are lacking, the directory is read again.
            (known.children, known.current) = (Children::of(rows), !lacks_some);
        }
        let parent = self.node(directory);
        changes.names.extend(lost.iter().map(|row| (parent, self.name(*row).to_os_string())));
        self.vanish(lost, changes);
        late.into_iter().map(|row| self.name(row).to_os_string()).collect()
    }

    /// Compares the names of a directory with those that were found, and adds rows for new ones.
    fn merge(
        &mut self,
        directory: FileId,
        before: &Children,
        mut found: Vec<(OsString, Option<Stat>)>,
        now: u32,
        changes: &mut Changes,
    ) -> Merged {
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let parent = self.node(directory);
        let mut merged = Merged { rows: Vec::with_capacity(found.len()), ..Merged::default() };
        let mut left = before.iter().peekable();
        let mut is_told = false;
        for (name, stat) in found {
            while let Some(row) = left.next_if(|row| self.name(*row) < name.as_os_str()) {
                merged.missing.push(row);
            }
            if let Some(row) = left.next_if(|row| self.name(*row) == name.as_os_str()) {
                merged.rows.push(row);
                continue;
            }
            let Some(stat) = stat else {
                // It was known when it was read, and is gone since.
                merged.lacks_some = true;
                continue;
            };
            // Whoever has listed the directory must list it again: one name is enough for that.
            if !std::mem::replace(&mut is_told, true) {
                changes.names.push((parent, name.clone()));
            }
            changes.added = true;
            merged.rows.extend(self.add(directory, &name, &stat, now));
        }
        merged.missing.extend(left);
        merged
    }
}

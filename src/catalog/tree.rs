//! The rows of the catalog and how they change.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;

use super::Changes;
use super::node::NodeId;
use super::scan::Found;
use crate::ids::FileId;
use crate::plan::Layout;
use crate::source::{Fingerprint, Kind, Stat};

/// Names of a directory in byte order, each with its row.
type Names = Vec<(Box<OsStr>, FileId)>;

/// One file, directory or other thing of the source.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) parent: FileId,
    name: Box<OsStr>,
    pub(super) stat: Stat,
    pub(super) version: u16,
    /// Milliseconds since the catalog began, when the row was last seen at the source.
    pub(super) checked_ms: u32,
    /// The source no longer has it.
    pub(super) gone: bool,
    /// Version of the directory whose names are in `children`.
    listed: Option<Fingerprint>,
    /// Names by byte order, or why they could not be read; none where they were not read yet.
    children: Option<Result<Names, Errno>>,
}

impl Row {
    pub(super) fn is_directory(&self) -> bool {
        self.stat.kind == Kind::Directory
    }

    /// Whether this is a directory whose names are not known as they are now: nobody has looked
    /// into it, or it is known to have changed since.
    pub(super) fn is_unread(&self) -> bool {
        self.is_directory() && self.listed != Some(self.stat.fingerprint)
    }
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    rows: Vec<Row>,
    pub(super) layout: Arc<Layout>,
    /// Files with several names: one row for all of them.
    links: HashMap<(u64, u64), FileId>,
}

/// Bytes of content that blocks are cut from: only regular files have any.
fn content(stat: &Stat) -> u64 {
    if stat.kind == Kind::File { stat.size } else { 0 }
}

impl Tree {
    /// Numbers what a scan found, from the root down.
    pub(super) fn new(root: Stat, found: Vec<Found>) -> Self {
        let mut found: HashMap<PathBuf, Found> =
            found.into_iter().map(|directory| (directory.path.clone(), directory)).collect();
        let mut tree = Tree::default();
        tree.push(FileId(0), OsStr::new(""), root, 0);
        let mut queue = std::collections::VecDeque::from([(FileId(0), PathBuf::new())]);
        while let Some((directory, path)) = queue.pop_front() {
            let Some(Found { mut entries, error, .. }) = found.remove(&path) else { continue };
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let mut children = Vec::with_capacity(entries.len());
            for (name, stat) in entries {
                let file = tree.add(directory, &name, stat, 0);
                if stat.kind == Kind::Directory {
                    queue.push_back((file, path.join(&name)));
                }
                children.push((name.into_boxed_os_str(), file));
            }
            let row = &mut tree.rows[directory.index()];
            row.children = Some(error.map_or(Ok(children), Err));
            row.listed = Some(row.stat.fingerprint);
        }
        tree
    }

    fn push(&mut self, parent: FileId, name: &OsStr, stat: Stat, checked_ms: u32) -> FileId {
        self.rows.push(Row {
            parent,
            name: name.into(),
            stat,
            version: 0,
            checked_ms,
            gone: false,
            listed: None,
            children: None,
        });
        Arc::make_mut(&mut self.layout).push(content(&stat))
    }

    /// Adds a name: a new row, or another name of a row that is known by its identity.
    fn add(&mut self, parent: FileId, name: &OsStr, stat: Stat, checked_ms: u32) -> FileId {
        let linked = stat.links > 1 && stat.kind != Kind::Directory;
        if linked
            && let Some(&file) = self.links.get(&stat.identity)
            && self.row(file).stat.fingerprint == stat.fingerprint
        {
            return file;
        }
        let file = self.push(parent, name, stat, checked_ms);
        if linked {
            self.links.insert(stat.identity, file);
        }
        file
    }

    pub(super) fn row(&self, file: FileId) -> &Row {
        &self.rows[file.index()]
    }

    /// A row, if there is one of this number.
    pub(super) fn get(&self, file: FileId) -> Option<&Row> {
        self.rows.get(file.index())
    }

    pub(super) fn files(&self) -> impl Iterator<Item = FileId> + use<> {
        (0..self.rows.len() as u32).map(FileId)
    }

    /// The row of a node, if that is its present version.
    pub(super) fn resolve(&self, node: NodeId) -> Result<FileId, Errno> {
        let file = node.file().ok_or(Errno::ESTALE)?;
        let row = self.rows.get(file.index()).ok_or(Errno::ESTALE)?;
        if row.version == node.version() { Ok(file) } else { Err(Errno::ESTALE) }
    }

    pub(super) fn child(&self, directory: FileId, name: &OsStr) -> Option<FileId> {
        let children = self.row(directory).children.as_ref()?.as_ref().ok()?;
        let found = children.binary_search_by(|(have, _)| have.as_ref().cmp(name)).ok()?;
        Some(children[found].1)
    }

    pub(super) fn children(
        &self,
        directory: FileId,
    ) -> Result<impl Iterator<Item = (&OsStr, FileId)> + '_, Errno> {
        match &self.row(directory).children {
            Some(Ok(children)) => Ok(children.iter().map(|(name, file)| (name.as_ref(), *file))),
            Some(Err(errno)) => Err(*errno),
            None => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn path(&self, file: FileId) -> PathBuf {
        let mut names = Vec::new();
        let mut at = file;
        while at != FileId(0) {
            let row = self.row(at);
            names.push(row.name.as_ref());
            at = row.parent;
        }
        names.iter().rev().collect()
    }

    /// A row was found as it is known.
    pub(super) fn seen(&mut self, file: FileId, now: u32) {
        self.rows[file.index()].checked_ms = now;
    }

    /// Takes what the source says of a row now.
    pub(super) fn update(&mut self, file: FileId, stat: Stat, now: u32, changes: &mut Changes) {
        let row = &mut self.rows[file.index()];
        row.checked_ms = now;
        let same = row.stat.fingerprint == stat.fingerprint;
        let resized = content(&row.stat) != content(&stat);
        row.stat = stat;
        if same || row.is_directory() {
            // A directory is no content: its names are compared, its node stays.
            return;
        }
        let (parent, name) = (row.parent, row.name.to_os_string());
        row.version = row.version.wrapping_add(1);
        changes.changed.push(file);
        changes.names.push((NodeId::new(parent, self.row(parent).version), name));
        if resized {
            Arc::make_mut(&mut self.layout).resize(file, content(&stat));
        }
    }

    /// Whether what a name stands for now is not the row's thing: another kind, or another file
    /// where the row's own may still be there by another name.
    fn is_another(&self, file: FileId, stat: &Stat) -> bool {
        let before = &self.row(file).stat;
        let linked = before.kind != Kind::Directory && before.links > 1;
        before.kind != stat.kind || linked && before.identity != stat.identity
    }

    /// A name that is known has been looked at again.
    pub(super) fn found(
        &mut self,
        parent: NodeId,
        name: &OsStr,
        stat: Stat,
        now: u32,
        changes: &mut Changes,
    ) {
        let Ok(directory) = self.resolve(parent) else { return };
        let Some(before) = self.child(directory, name) else { return };
        if !self.is_another(before, &stat) {
            return self.update(before, stat, now, changes);
        }
        let file = self.add(directory, name, stat, now);
        changes.added = true;
        changes.names.push((parent, name.to_os_string()));
        if let Some(Ok(children)) = &mut self.rows[directory.index()].children
            && let Ok(at) = children.binary_search_by(|(have, _)| have.as_ref().cmp(name))
        {
            children[at].1 = file;
        }
        self.vanish(directory, name, before, changes);
    }

    /// A name is gone.
    pub(super) fn remove(&mut self, parent: NodeId, name: &OsStr, changes: &mut Changes) {
        let Ok(directory) = self.resolve(parent) else { return };
        let Some(Ok(children)) = &mut self.rows[directory.index()].children else { return };
        let Ok(found) = children.binary_search_by(|(have, _)| have.as_ref().cmp(name)) else {
            return;
        };
        let (_, file) = children.remove(found);
        changes.names.push((parent, name.to_os_string()));
        self.vanish(directory, name, file, changes);
    }

    /// A name no longer stands for a row: the row lives on by another name of the file, or is
    /// gone with all that is below it.
    fn vanish(&mut self, directory: FileId, name: &OsStr, file: FileId, changes: &mut Changes) {
        let row = &self.rows[file.index()];
        if row.gone || row.parent != directory || row.name.as_ref() != name {
            return;
        }
        let other = (!row.is_directory() && row.stat.links > 1).then(|| self.name_of(file));
        let row = &mut self.rows[file.index()];
        if let Some((parent, name)) = other.flatten() {
            (row.parent, row.name) = (parent, name);
            return;
        }
        row.gone = true;
        changes.changed.push(file);
        let below = row.children.take().and_then(Result::ok).unwrap_or_default();
        row.listed = None;
        for (name, child) in below {
            self.vanish(file, &name, child, changes);
        }
    }

    /// Any name of a row, looked for everywhere.
    fn name_of(&self, file: FileId) -> Option<(FileId, Box<OsStr>)> {
        self.files().find_map(|directory| {
            let mut names = self.children(directory).ok()?;
            names.find(|(_, child)| *child == file).map(|(name, _)| (directory, name.into()))
        })
    }

    /// Version of a directory whose names are known.
    pub(super) fn listed(&self, directory: FileId) -> Option<Fingerprint> {
        self.row(directory).listed
    }

    /// Takes a directory's names as they are now, in this version of it.
    pub(super) fn relist(
        &mut self,
        directory: FileId,
        version: Fingerprint,
        mut found: Vec<(OsString, Stat)>,
        now: u32,
        changes: &mut Changes,
    ) {
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let parent = NodeId::new(directory, self.row(directory).version);
        let before = match self.rows[directory.index()].children.take() {
            Some(Ok(children)) => children,
            _ => Vec::new(),
        };
        let mut left = before.iter().peekable();
        let (mut lost, mut told) = (Vec::new(), false);
        let mut children = Vec::with_capacity(found.len());
        for (name, stat) in found {
            while let Some(gone) = left.next_if(|(have, _)| have.as_ref() < name.as_os_str()) {
                lost.push(gone);
            }
            let known = left.next_if(|(have, _)| have.as_ref() == name.as_os_str());
            let file = match known {
                Some((_, file)) if !self.is_another(*file, &stat) => {
                    self.update(*file, stat, now, changes);
                    *file
                }
                _ => {
                    lost.extend(known);
                    // Whoever has listed the directory must list it again.
                    if !std::mem::replace(&mut told, true) {
                        changes.names.push((parent, name.clone()));
                    }
                    changes.added = true;
                    self.add(directory, &name, stat, now)
                }
            };
            children.push((name.into_boxed_os_str(), file));
        }
        lost.extend(left);
        let row = &mut self.rows[directory.index()];
        (row.children, row.listed) = (Some(Ok(children)), Some(version));
        for (name, file) in lost {
            changes.names.push((parent, name.to_os_string()));
            self.vanish(directory, name, *file, changes);
        }
    }
}

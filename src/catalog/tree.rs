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
use crate::source::{Kind, Stat};

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
    /// Names by byte order, or why they could not be read; none where they were not read yet.
    children: Option<Result<Names, Errno>>,
}

impl Row {
    pub(super) fn is_directory(&self) -> bool {
        self.stat.kind == Kind::Directory
    }

    /// Whether this is a directory that nobody has looked into.
    pub(super) fn is_unread(&self) -> bool {
        self.is_directory() && self.children.is_none()
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
            tree.rows[directory.index()].children = Some(error.map_or(Ok(children), Err));
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
        if row.stat.fingerprint == stat.fingerprint {
            row.stat = stat;
            return;
        }
        let same_directory = row.is_directory() && stat.kind == Kind::Directory;
        let parent = row.parent;
        row.stat = stat;
        if same_directory {
            // A directory is no content: its names are compared, its node stays.
            return;
        }
        let name = row.name.to_os_string();
        row.version = row.version.wrapping_add(1);
        row.children = None;
        changes.changed.push(file);
        changes.names.push((NodeId::new(parent, self.row(parent).version), name));
        Arc::make_mut(&mut self.layout).resize(file, content(&stat));
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
        let row = &mut self.rows[file.index()];
        // Another name of the same file may still be there.
        if row.parent == directory && row.name.as_ref() == name && row.stat.links < 2 {
            row.gone = true;
            changes.changed.push(file);
        }
    }

    /// Takes a directory's names as they are now.
    pub(super) fn relist(
        &mut self,
        directory: FileId,
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
        for (name, _) in &before {
            if found.binary_search_by(|(have, _)| have.as_os_str().cmp(name)).is_err() {
                self.rows[directory.index()].children = Some(Ok(before.clone()));
                self.remove(parent, name, changes);
            }
        }
        let mut children = Vec::with_capacity(found.len());
        for (name, stat) in found {
            let known = before.binary_search_by(|(have, _)| have.as_ref().cmp(&name)).ok();
            let file = match known.map(|index| before[index].1) {
                Some(file) if self.row(file).stat.kind == stat.kind => {
                    self.update(file, stat, now, changes);
                    file
                }
                _ => {
                    changes.added = true;
                    self.add(directory, &name, stat, now)
                }
            };
            children.push((name.into_boxed_os_str(), file));
        }
        self.rows[directory.index()].children = Some(Ok(children));
    }
}

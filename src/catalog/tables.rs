//! The tables of the catalog: what is saved of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::names::Names;
use super::row::{Class, Row, RowState};
use crate::ids::FileId;
use crate::source::{Kind, Stat};

/// The rows of a directory's names, in byte order of the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Children {
    /// The directory was never read.
    Unread,
    /// Consecutive rows: the first and how many.
    Run(u32, u32),
    List(Vec<FileId>),
    /// The error of the read.
    Failed(i32),
}

impl Children {
    /// These rows, as a run if they are consecutive.
    pub(super) fn of(rows: Vec<FileId>) -> Self {
        let is_run = rows.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0);
        match rows.first().filter(|_| is_run) {
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

    /// The row at an index below [`len`](Self::len).
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

/// A directory: its row, and the rows of its names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Directory {
    pub(super) file: FileId,
    pub(super) children: Children,
    /// Whether the names are those of the version that the row has.
    pub(super) current: bool,
}

/// All tables. A clone shares the large ones: they are copied only if they change while it lives.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tables {
    pub(super) rows: Arc<Vec<Row>>,
    pub(super) classes: Vec<Class>,
    /// Sorted by row.
    pub(super) directories: Vec<Directory>,
    /// Rows of further names of a file, each with the file's row; sorted by the first.
    pub(super) aliases: Vec<(FileId, FileId)>,
    pub(super) names: Names,
}

impl Tables {
    pub(super) fn stat(&self, file: FileId) -> Stat {
        let row = &self.rows[file.index()];
        row.stat(&self.classes[row.class as usize])
    }

    /// Takes the device number that the root has at this mount: a network filesystem has another one at
    /// each. Says whether these are tables of that root.
    pub(super) fn rebase(&mut self, root: &Stat) -> bool {
        let before = self.stat(FileId(0)).identity;
        for class in self.classes.iter_mut().filter(|class| class.device == before.0) {
            class.device = root.identity.0;
        }
        before.1 == root.identity.1
    }

    /// Whether more than half of the rows are of names that are gone.
    pub(super) fn is_worn(&self) -> bool {
        let gone = self.rows.iter().filter(|row| row.state == RowState::Gone).count();
        gone > self.rows.len() / 2
    }

    /// Whether every number in the tables is a valid one, and every way up ends at the root.
    pub(super) fn is_consistent(&self) -> bool {
        let Tables { rows, classes, directories, aliases, .. } = self;
        let kind = |file: FileId| {
            let row = rows.get(file.index())?;
            classes.get(row.class as usize).map(|class| class.kind)
        };
        let is_directory = |file: FileId| kind(file) == Some(Kind::Directory);
        let has_rows = |directory: &Directory| match &directory.children {
            Children::Unread | Children::Failed(_) => true,
            Children::Run(first, count) => {
                first.checked_add(*count).is_some_and(|end| end as usize <= rows.len())
            }
            Children::List(list) => list.iter().all(|file| file.index() < rows.len()),
        };
        // A directory has a higher number than its parent.
        let is_rooted = |(number, parent): (u32, FileId)| {
            kind(FileId(number)).is_some()
                && is_directory(parent)
                && (!is_directory(FileId(number)) || parent.0 < number || number == 0)
        };
        u32::try_from(rows.len()).is_ok()
            && is_directory(FileId(0))
            && (0..).zip(rows.iter().map(|row| row.parent)).all(is_rooted)
            && directories.is_sorted_by(|a, b| a.file < b.file)
            && directories.iter().all(|each| is_directory(each.file) && has_rows(each))
            && aliases.is_sorted_by(|a, b| a.0 < b.0)
            && aliases.iter().all(|(from, to)| from.index().max(to.index()) < rows.len())
    }
}

//! Going through all files of the catalog.

use std::path::{Path, PathBuf};

use super::Catalog;
use super::tree::Tree;
use crate::ids::FileId;
use crate::source::{Kind, Stat};

impl Catalog {
    /// Calls `each` with path, file and attributes of every regular file or link.
    pub fn for_each_file(&self, mut each: impl FnMut(&Path, FileId, &Stat)) {
        let tree = self.read();
        let (mut directory, mut path) = (FileId(0), PathBuf::new());
        for file in tree.files().filter(|file| tree.is_there(*file)) {
            let stat = tree.stat(file);
            if !matches!(stat.kind, Kind::File | Kind::Symlink) {
                continue;
            }
            let parent = tree.row(file).parent;
            if parent != directory {
                (directory, path) = (parent, tree.path(parent));
            }
            path.push(tree.name(file));
            each(&path, file, &stat);
            path.pop();
        }
    }

    /// Path of some regular file.
    pub fn any_file(&self) -> Option<PathBuf> {
        let tree = self.read();
        tree.files().find(|file| is_regular(&tree, *file)).map(|file| tree.path(file))
    }

    /// Number of rows and of the bytes of all regular files.
    pub fn totals(&self) -> (u64, u64) {
        let tree = self.read();
        let regular = tree.files().filter(|file| is_regular(&tree, *file));
        regular.fold((0, 0), |(files, bytes), file| (files + 1, bytes + tree.stat(file).size))
    }
}

fn is_regular(tree: &Tree, file: FileId) -> bool {
    tree.is_there(file) && tree.stat(file).kind == Kind::File
}

//! The regular files of the tree, every path that leads to one of them, and the directories.
//!
//! Loaders read a dataset by paths, and follow links as they go: a file has as many paths as there
//! are hard links of it, symbolic links to it, and paths through links to directories above it.
//! Links are resolved as the kernel resolves them at a mount point, from the rows alone; one that
//! leads out of the tree is followed by the kernel, not by us.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nix::errno::Errno;

use super::Catalog;
use super::tree::Tree;
use crate::ids::FileId;
use crate::source::{Kind, Stat};
use crate::sync::Mutex;

/// Threads that ask the source where links point.
const LINK_THREADS: usize = 16;

/// Rows that are gone through while nothing can change.
const ROWS_AT_ONCE: usize = 4096;

/// Links that one path may go through, and its length, as the kernel has them.
const HOPS_MAX: u32 = 40;
const PATH_MAX: usize = 4096;

/// Links to directories multiply paths, without end where they lead around. So many paths through
/// them are found, and for each row so many.
const LINKED_MAX: usize = 1 << 20;
const LINKED_MAX_PER_ROW: usize = 8;

/// Where the symbolic links of a tree point.
#[derive(Debug, Default)]
pub struct Links(HashMap<FileId, PathBuf>);

/// A path that leads to a regular file.
#[derive(Debug)]
pub struct Leading<'a> {
    /// The path below the root.
    pub path: &'a Path,
    /// The file's row; of a link that leads out of the tree, or nowhere, its own.
    pub file: FileId,
    /// Bytes of the file; 0 for such a link.
    pub size: u64,
}

impl Catalog {
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
            let (mut directory, mut path) = (FileId(0), PathBuf::new());
            let portion = tree.files().take(end).skip(from).take(ROWS_AT_ONCE);
            for file in portion.filter(|file| is_regular(&tree, *file)) {
                let parent = tree.row(file).parent;
                if parent != directory {
                    (directory, path) = (parent, tree.path(parent));
                }
                path.push(tree.name(file));
                each(&path, file, &tree.stat(file));
                path.pop();
            }
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

    /// Path of some regular file.
    pub fn any_file(&self) -> Option<PathBuf> {
        let tree = self.read();
        tree.files().find(|file| is_regular(&tree, *file)).map(|file| tree.path(file))
    }

    pub fn directories(&self) -> Vec<PathBuf> {
        let tree = self.read();
        let there = tree.files().filter(|row| tree.is_there(*row) && tree.is_directory(*row));
        there.map(|row| tree.path(row)).collect()
    }

    /// Directories below `root` that the source does not let us read: the first, why, and how many
    /// there are; none where there are none.
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

    /// Number of rows and of the bytes of all regular files.
    pub fn totals(&self) -> (u64, u64) {
        let tree = self.read();
        let regular = tree.files().filter(|file| is_regular(&tree, *file));
        regular.fold((0, 0), |(files, bytes), file| (files + 1, bytes + tree.stat(file).size))
    }

    /// Asks the source where each symbolic link points. Blocks. One that cannot be read is left
    /// out.
    pub fn links(&self) -> Links {
        let links: Vec<(FileId, PathBuf)> = {
            let tree = self.read();
            let links = tree
                .files()
                .filter(|row| tree.is_there(*row) && tree.stat(*row).kind == Kind::Symlink);
            links.map(|row| (row, tree.path(row))).collect()
        };
        let (next, found) = (AtomicUsize::new(0), Mutex::new(HashMap::with_capacity(links.len())));
        let ask = || {
            while let Some((row, path)) = links.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Ok(target) = self.source.read_link(path) {
                    let mut found = found.lock();
                    found.insert(*row, PathBuf::from(target));
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..LINK_THREADS.min(links.len()) {
                scope.spawn(ask);
            }
            ask();
        });
        Links(found.into_inner())
    }

    /// Calls `each` with every path that leads to a regular file: by its names, and through
    /// `links` to files and to directories. `points` are where the tree is seen at: absolute links
    /// below them lead into it. A link that leads out of the tree is taken for one to a file.
    pub fn for_each_path(
        &self,
        links: &Links,
        points: &[PathBuf],
        mut each: impl FnMut(Leading<'_>),
    ) {
        let tree = self.read();
        let ways = Ways { tree: &tree, links, points };
        let mut left = LINKED_MAX.max(tree.tables.rows.len().saturating_mul(LINKED_MAX_PER_ROW));
        let (mut directory, mut path) = (FileId(0), PathBuf::new());
        for entry in tree.files().skip(1).filter(|row| tree.is_named(*row)) {
            let parent = tree.row(entry).parent;
            if parent != directory {
                (directory, path) = (parent, tree.path(parent));
            }
            path.push(tree.name(entry));
            match ways.of(parent, entry) {
                Way::File(file, size) => each(Leading { path: &path, file, size }),
                Way::Directory(linked) if linked != entry => {
                    ways.walk(&path, parent, linked, &mut left, &mut each);
                }
                Way::Directory(_) | Way::Other => {}
            }
            path.pop();
        }
    }
}

fn is_regular(tree: &Tree, file: FileId) -> bool {
    tree.is_there(file) && tree.stat(file).kind == Kind::File
}

/// What a name leads to.
enum Way {
    File(FileId, u64),
    Directory(FileId),
    Other,
}

/// The links of a tree and what is needed to follow them.
struct Ways<'a> {
    tree: &'a Tree,
    links: &'a Links,
    points: &'a [PathBuf],
}

impl Ways<'_> {
    /// Where the name of a row in a directory leads.
    fn of(&self, directory: FileId, entry: FileId) -> Way {
        let row = self.tree.target(entry);
        let led = match self.tree.stat(row).kind {
            Kind::Symlink => self.follow(directory, row, &mut 0),
            _ => Some(row),
        };
        let Some(file) = led else { return Way::File(row, 0) };
        let stat = self.tree.stat(file);
        match stat.kind {
            Kind::File => Way::File(file, stat.size),
            Kind::Directory => Way::Directory(file),
            _ => Way::Other,
        }
    }

    /// The row that a link in a directory leads to; none for one that leads out, or nowhere.
    fn follow(&self, directory: FileId, link: FileId, hops: &mut u32) -> Option<FileId> {
        *hops += 1;
        let target = self.links.0.get(&link).filter(|_| *hops <= HOPS_MAX)?;
        let (mut at, rest) = match target.is_absolute() {
            true => (FileId(0), self.points.iter().find_map(|at| target.strip_prefix(at).ok())?),
            false => (directory, target.as_path()),
        };
        for part in rest.components() {
            at = match part {
                Component::CurDir => at,
                Component::ParentDir if at == FileId(0) => return None,
                Component::ParentDir => self.tree.row(at).parent,
                Component::Normal(name) => {
                    let row = self.tree.target(self.tree.entry(at, name)?);
                    match self.tree.stat(row).kind {
                        Kind::Symlink => self.follow(at, row, hops)?,
                        _ => row,
                    }
                }
                Component::RootDir | Component::Prefix(_) => return None,
            };
        }
        Some(at)
    }

    /// Every path through a link in `parent` to a directory, at most as many as are `left`.
    /// Directories that the way there has been through are not entered again.
    fn walk(
        &self,
        link: &Path,
        parent: FileId,
        directory: FileId,
        left: &mut usize,
        each: &mut impl FnMut(Leading<'_>),
    ) {
        let mut through = vec![parent];
        while let Some(&at) = through.last().filter(|at| **at != FileId(0)) {
            through.push(self.tree.row(at).parent);
        }
        let mut open = vec![(directory, link.to_path_buf(), through.len())];
        while let Some((directory, mut path, depth)) = open.pop() {
            through.truncate(depth);
            if through.contains(&directory) {
                continue;
            }
            through.push(directory);
            for entry in self.tree.entries(directory).into_iter().flatten() {
                path.push(self.tree.name(entry));
                if *left == 0 || path.as_os_str().len() >= PATH_MAX {
                    path.pop();
                    continue;
                }
                *left -= 1;
                match self.of(directory, entry) {
                    Way::File(file, size) => each(Leading { path: &path, file, size }),
                    Way::Directory(below) => open.push((below, path.clone(), depth + 1)),
                    Way::Other => {}
                }
                path.pop();
            }
        }
        if *left == 0 {
            tracing::warn!(link = %link.display(), "links lead around; not all paths are known");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::source::PosixSource;

    #[test]
    fn shares_of_the_rows_are_all_of_them() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..ROWS_AT_ONCE + 30 {
            let folder = root.path().join((number / 500).to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(number.to_string()), "").unwrap();
        }
        let source = Arc::new(PosixSource::open(root.path(), 1).unwrap());
        let catalog = Catalog::scan(source, 2, None).unwrap();
        let files = |shares: usize| {
            let share = catalog.rows().div_ceil(shares);
            let mut found = Vec::new();
            for nth in 0..shares {
                let rows = nth * share..(nth + 1) * share;
                catalog.for_each_file_in(rows, |path, file, _| {
                    found.push((path.to_path_buf(), file));
                });
            }
            found
        };
        let mut whole = Vec::new();
        catalog.for_each_file(|path, file, _| whole.push((path.to_path_buf(), file)));
        assert_eq!(whole.len(), ROWS_AT_ONCE + 30);
        assert!([1, 2, 3, 7].into_iter().all(|shares| files(shares) == whole));
    }
}

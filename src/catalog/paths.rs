//! The paths of a catalog as an order sees them.
//!
//! Loaders read a dataset by paths, and follow links as they go: a file has as many paths as there
//! are hard links of it, symbolic links to it, and paths through links to directories above it.
//! Links are resolved as the kernel resolves them at a mount point, from the rows alone; one that
//! leads out of the tree is followed by the kernel, not by us.

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use nix::errno::Errno;

use super::Catalog;
use super::reading::ask_all;
use super::tree::Tree;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use crate::order::containers::FileBytes;
use crate::order::{Entry, FileSamples, FindSamples, Listing};
use crate::source::{Kind, ReadError, ReadRequest, Urgency};
use crate::sync::Mutex;

/// Threads that ask the source where links point.
const LINK_THREADS: usize = 16;

/// Links that one path may go through, and its length, as the kernel has them.
const HOPS_MAX: u32 = 40;
const PATH_MAX: usize = 4096;

/// Links to directories multiply paths, without end if they lead around. So many paths through
/// them are found, and for each row so many.
const LINKED_MAX: usize = 1 << 20;
const LINKED_MAX_PER_ROW: usize = 8;

/// Files whose samples are found at once.
const READ_THREADS: usize = 16;

/// How long the source may take for bytes of a file that an order needs.
const READ_PATIENCE: Duration = Duration::from_secs(60);

/// Where the symbolic links of a tree point.
type Links = HashMap<FileId, PathBuf>;

/// Calls `work` with the paths of a catalog, links followed; the source is asked where those point. Absolute
/// paths may begin with one of the `points`, where the tree is mounted, or with the `source`'s. Blocks.
pub fn with_listing<T>(
    catalog: &Catalog,
    points: &[PathBuf],
    source: Option<&Path>,
    work: impl FnOnce(&Listing<'_>) -> T,
) -> T {
    // All paths in one piece: a million small ones would stay behind in the allocator.
    let mut paths = Vec::new();
    let mut files: Vec<(usize, FileId, u64)> = Vec::new();
    for_each_path(catalog, points, |path, file, size| {
        paths.extend_from_slice(path.as_os_str().as_bytes());
        files.push((paths.len(), file, size));
    });
    let starts = std::iter::once(0).chain(files.iter().map(|(end, ..)| *end));
    let entries = files
        .iter()
        .zip(starts)
        .map(|(&(end, file, size), start)| Entry { path: &paths[start..end], file, size })
        .collect();
    let read = |files: &[Entry<'_>], find: &FindSamples<'_>| read_each(catalog, files, find);
    let mut listing = Listing::new(entries).with_reader(&read);
    listing = listing.with_unlisted(catalog.source.unlisted());
    for prefix in points.iter().map(PathBuf::as_path).chain(source) {
        listing = listing.with_prefix(prefix.as_os_str().as_bytes());
    }
    work(&listing)
}

/// Has the samples of each file found, several files at once. Blocks.
fn read_each(
    catalog: &Catalog,
    files: &[Entry<'_>],
    find: &FindSamples<'_>,
) -> Vec<Result<FileSamples>> {
    ask_all(READ_THREADS, files.len(), |nth| {
        let read = Arc::new(Mutex::default());
        let samples = find(open(catalog, &files[nth], Arc::clone(&read))?)?;
        let index = std::mem::take(&mut *read.lock());
        Ok(FileSamples { samples, index })
    })
}

/// The bytes of a file of the source. Notes what of them is read.
fn open(
    catalog: &Catalog,
    entry: &Entry<'_>,
    noted: Arc<Mutex<Vec<Range<u64>>>>,
) -> Result<FileBytes> {
    let tree = catalog.read();
    // A sample of a rehearsal buffer has the number of no row.
    if entry.file.index() >= tree.tables.rows.len() || !tree.is_there(entry.file) {
        return Err(unreadable(Errno::ENOENT.desc()));
    }
    let (path, stat) = (Arc::<Path>::from(tree.path(entry.file)), tree.stat(entry.file));
    drop(tree);
    if stat.size != entry.size && entry.size != u64::MAX {
        return Err(unreadable("it has changed; try again"));
    }
    let (source, exact) = (Arc::clone(&catalog.source), catalog.is_revalidated());
    let read = move |range: Range<u64>| {
        noted.lock().push(range.clone());
        let (send, answer) = sync_channel(1);
        source.read(vec![ReadRequest {
            path: Arc::clone(&path),
            fingerprint: stat.fingerprint(),
            is_sized: true,
            exact,
            offset: range.start,
            length: (range.end - range.start) as usize,
            urgency: Urgency::Demand,
            // Nobody waits any more if it took too long.
            deliver: Box::new(move |bytes| drop(send.send(bytes))),
        }]);
        match answer.recv_timeout(READ_PATIENCE) {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(ReadError::Source(errno))) => Err(unreadable(errno.desc())),
            Ok(Err(ReadError::Changed)) => Err(unreadable("it has changed; try again")),
            Err(_) => Err(unreadable("the source does not answer")),
        }
    };
    Ok(FileBytes::new(entry.size, Arc::new(read)))
}

fn unreadable(what: &str) -> Error {
    Error::new(ErrorKind::Source, format!("it cannot be read: {what}"))
}

/// Calls `each` with every path that leads to a regular file, its row and its bytes (`u64::MAX` if they are not known):
/// by its names, and through links to files and to directories. Absolute links below one of the `points`, where the
/// tree is mounted, lead into it. A link that leads out of the tree, or nowhere, is taken for an empty file. Blocks.
pub(super) fn for_each_path(
    catalog: &Catalog,
    points: &[PathBuf],
    mut each: impl FnMut(&Path, FileId, u64),
) {
    let links = read_links(catalog);
    let tree = catalog.read();
    let ways = Ways { tree: &tree, links: &links, points };
    let mut left = LINKED_MAX.max(tree.tables.rows.len().saturating_mul(LINKED_MAX_PER_ROW));
    let named = tree.files().skip(1).filter(|row| tree.is_named(*row));
    tree.for_each_path(named, |path, entry| {
        let parent = tree.row(entry).parent;
        match ways.of(parent, entry) {
            Way::File(file, size) => each(path, file, size),
            Way::Directory(linked) if linked != entry => {
                ways.walk(path, parent, linked, &mut left, &mut each);
            }
            Way::Directory(_) | Way::Other => {}
        }
    });
}

/// Asks the source where each symbolic link points. One that cannot be read is left out. Blocks.
fn read_links(catalog: &Catalog) -> Links {
    let links: Vec<(FileId, PathBuf)> = {
        let tree = catalog.read();
        let is_link = |row: &FileId| tree.is_there(*row) && tree.stat(*row).kind == Kind::Symlink;
        tree.files().filter(is_link).map(|row| (row, tree.path(row))).collect()
    };
    let read = |nth: usize| catalog.source.read_link(&links[nth].1).ok();
    let targets = ask_all(LINK_THREADS, links.len(), read);
    let found = links.iter().zip(targets);
    found.filter_map(|((row, _), target)| Some((*row, PathBuf::from(target?)))).collect()
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
            Kind::File if stat.is_sized => Way::File(file, stat.size),
            Kind::File => Way::File(file, u64::MAX),
            Kind::Directory => Way::Directory(file),
            _ => Way::Other,
        }
    }

    /// The row that a link in a directory leads to; none for one that leads out, or nowhere.
    fn follow(&self, directory: FileId, link: FileId, hops: &mut u32) -> Option<FileId> {
        *hops += 1;
        let target = self.links.get(&link).filter(|_| *hops <= HOPS_MAX)?;
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
        each: &mut impl FnMut(&Path, FileId, u64),
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
                    Way::File(file, size) => each(&path, file, size),
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

//! Blobs with paths as a tree of directories.
//!
//! 1. The blobs of one directory stand next to each other, sorted by name. A directory has their range and the names
//!    of its subdirectories.
//! 2. The inode of a directory comes from its path. That of a file comes from its path and version, so two versions
//!    have different fingerprints. Each version has the same one at every mount.
//! 3. The time of a directory is that of its latest blob. Its nanoseconds are a digest of what is in it, so the
//!    time changes if names come or go, or rights change.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use siphasher::sip::SipHasher24;

use super::{Kind, Stat};

/// The longest name and the longest path that the kernel takes.
pub(super) const NAME_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 4096;

pub(super) const SECOND_NS: i64 = 1_000_000_000;

const NOBODY: Access = Access { mode: 0, uid: 0, gid: 0 };

/// Who may do what with a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Permission bits.
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Bytes under a name.
#[derive(Clone, Debug)]
pub(super) struct Blob<K> {
    pub(super) size: u64,
    /// Modification time in nanoseconds since 1970.
    pub(super) mtime_ns: i64,
    /// When it was last changed, in any way, in nanoseconds since 1970.
    pub(super) changed_ns: i64,
    /// Different content has a different version.
    pub(super) version: u64,
    pub(super) access: Access,
    /// How its store finds it.
    pub(super) key: K,
}

/// Everything in a store.
#[derive(Debug)]
pub(super) struct Listing<K> {
    /// Blobs by path, in any order.
    pub(super) blobs: Vec<(PathBuf, Blob<K>)>,
    /// Directories, also such without blobs.
    pub(super) directories: Vec<PathBuf>,
    /// The access of some directories, the root's in any case. Other directories have that of the nearest one above
    /// them.
    pub(super) access: HashMap<PathBuf, Access>,
    /// Another listing with the same number has the same blobs.
    pub(super) state: u64,
}

/// Why paths are not those of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathFault {
    /// Two blobs have this path.
    Twice(PathBuf),
    /// A blob and a directory have this path.
    FileAndDirectory(PathBuf),
    /// It leads out of the tree, or is empty.
    Outside(PathBuf),
    /// It, or a name in it, is longer than the kernel takes.
    TooLong(PathBuf),
}

#[derive(Debug)]
struct Directory {
    blobs: Range<usize>,
    subdirectories: BTreeSet<OsString>,
    stat: Stat,
}

/// The tree of a [`Listing`].
#[derive(Debug)]
pub(super) struct Tree<K> {
    blobs: Vec<(Box<OsStr>, Blob<K>)>,
    directories: HashMap<PathBuf, Directory>,
}

impl<K> Tree<K> {
    /// # Errors
    /// If the paths are not those of a tree.
    pub(super) fn new(listing: Listing<K>) -> Result<Self, PathFault> {
        let Listing { mut blobs, directories: listed, access, state: _ } = listing;
        let mut subdirectories: HashMap<PathBuf, BTreeSet<OsString>> = HashMap::new();
        subdirectories.entry(PathBuf::new()).or_default();
        for path in &listed {
            check(path)?;
            add_directory(&mut subdirectories, path);
        }
        for (path, _) in &blobs {
            check(path)?;
            let parent = path.parent().unwrap_or(Path::new(""));
            if !subdirectories.contains_key(parent) {
                add_directory(&mut subdirectories, parent);
            }
        }
        blobs.sort_by(|(a, _), (b, _)| {
            (a.parent(), a.file_name()).cmp(&(b.parent(), b.file_name()))
        });
        if let Some(pair) = blobs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(PathFault::Twice(pair[0].0.clone()));
        }
        if let Some((path, _)) = blobs.iter().find(|(path, _)| subdirectories.contains_key(path)) {
            return Err(PathFault::FileAndDirectory(path.clone()));
        }
        let directory = |(path, subdirectories): (PathBuf, BTreeSet<OsString>)| {
            let from = blobs.partition_point(|(blob, _)| blob.parent() < Some(&path));
            let to = blobs.partition_point(|(blob, _)| blob.parent() <= Some(&path));
            let access = path.ancestors().find_map(|above| access.get(above));
            let access = access.copied().unwrap_or(NOBODY);
            let files = &blobs[from..to];
            let names = subdirectories.iter().map(|name| name.as_bytes());
            let paths = files.iter().map(|(path, _)| path.as_os_str().as_bytes());
            let names: Vec<&[u8]> = names.chain(paths).collect();
            let latest_ns = files.iter().map(|(_, blob)| blob.mtime_ns).max();
            let stat = directory_stat(&path, &names, latest_ns, access);
            (path, Directory { blobs: from..to, subdirectories, stat })
        };
        let directories = subdirectories.into_iter().map(directory).collect();
        let name = |path: PathBuf| path.file_name().unwrap_or_default().into();
        let blobs = blobs.into_iter().map(|(path, blob)| (name(path), blob)).collect();
        Ok(Tree { blobs, directories })
    }

    /// The names in a directory; `None` if there is none.
    pub(super) fn names(&self, directory: &Path) -> Option<impl Iterator<Item = &OsStr>> {
        let Directory { blobs, subdirectories, .. } = self.directories.get(directory)?;
        let files = self.blobs[blobs.clone()].iter().map(|(name, _)| &**name);
        Some(subdirectories.iter().map(OsString::as_os_str).chain(files))
    }

    pub(super) fn blob(&self, path: &Path) -> Option<&Blob<K>> {
        let directory = self.directories.get(path.parent()?)?;
        let blobs = &self.blobs[directory.blobs.clone()];
        let name = path.file_name()?;
        let nth = blobs.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        Some(&blobs[nth].1)
    }

    /// The attributes of a path; `None` if nothing has it.
    pub(super) fn stat(&self, path: &Path) -> Option<Stat> {
        let directory = self.directories.get(path).map(|directory| directory.stat);
        directory.or_else(|| self.blob(path).map(|blob| blob_stat(path, blob)))
    }
}

fn check(path: &Path) -> Result<(), PathFault> {
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
    if path.as_os_str().is_empty() || !path.components().all(is_name) {
        return Err(PathFault::Outside(path.to_owned()));
    }
    let is_long = path.iter().any(|name| name.len() > NAME_BYTES_MAX);
    if is_long || path.as_os_str().len() > PATH_BYTES_MAX {
        return Err(PathFault::TooLong(path.to_owned()));
    }
    Ok(())
}

/// Adds a directory, and those that it is in.
fn add_directory(subdirectories: &mut HashMap<PathBuf, BTreeSet<OsString>>, path: &Path) {
    subdirectories.entry(path.to_owned()).or_default();
    let mut below = path;
    while let (Some(above), Some(name)) = (below.parent(), below.file_name()) {
        let is_new = subdirectories.entry(above.to_owned()).or_default().insert(name.to_owned());
        if !is_new {
            return;
        }
        below = above;
    }
}

/// A number that is the same at each mount.
pub(super) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher24::new();
    for part in parts {
        hasher.write_u64(part.len() as u64);
        hasher.write(part);
    }
    hasher.finish()
}

pub(super) fn blob_stat<K>(path: &Path, blob: &Blob<K>) -> Stat {
    let Blob { size, mtime_ns, changed_ns, version, access, .. } = *blob;
    let inode = hash(&[path.as_os_str().as_bytes(), &version.to_le_bytes()]);
    Stat {
        kind: Kind::File,
        mode: access.mode,
        links: 1,
        uid: access.uid,
        gid: access.gid,
        rdev: 0,
        size,
        blocks: size.div_ceil(512),
        atime_ns: mtime_ns,
        mtime_ns,
        ctime_ns: changed_ns,
        identity: (0, inode),
    }
}

/// The attributes of a directory with these names, whose latest blob is of this time.
pub(super) fn directory_stat(
    path: &Path,
    names: &[&[u8]],
    latest_ns: Option<i64>,
    access: Access,
) -> Stat {
    let rights = format!("{} {} {}", access.mode, access.uid, access.gid);
    let digested = [&[rights.as_bytes()], names].concat();
    let digest = (hash(&digested) % SECOND_NS as u64) as i64;
    let latest_s = latest_ns.unwrap_or_default().div_euclid(SECOND_NS);
    let time_ns = latest_s.saturating_mul(SECOND_NS).saturating_add(digest);
    Stat {
        kind: Kind::Directory,
        mode: access.mode,
        links: 2,
        uid: access.uid,
        gid: access.gid,
        rdev: 0,
        size: names.len() as u64,
        blocks: 0,
        atime_ns: time_ns,
        mtime_ns: time_ns,
        ctime_ns: time_ns,
        identity: (0, hash(&[path.as_os_str().as_bytes()])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: Access = Access { mode: 0o444, uid: 1, gid: 2 };

    fn blob(path: &str, version: u64) -> (PathBuf, Blob<()>) {
        let time = 5 * SECOND_NS;
        let blob =
            Blob { size: 7, mtime_ns: time, changed_ns: time, version, access: ACCESS, key: () };
        (path.into(), blob)
    }

    fn tree(paths: &[&str], directories: &[&str]) -> Result<Tree<()>, PathFault> {
        Tree::new(Listing {
            blobs: paths.iter().map(|path| blob(path, 1)).collect(),
            directories: directories.iter().map(PathBuf::from).collect(),
            access: [("", 0o555), ("a", 0o500)]
                .map(|(path, mode)| (path.into(), Access { mode, ..ACCESS }))
                .into(),
            state: 0,
        })
    }

    fn names(tree: &Tree<()>, directory: &str) -> Vec<String> {
        let names = tree.names(Path::new(directory)).unwrap();
        names.map(|name| name.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn paths_become_directories() {
        let tree = tree(&["b/2.jpg", "a/x/1.jpg", "b/10.jpg", "readme"], &["empty/er"]).unwrap();
        assert_eq!(names(&tree, ""), ["a", "b", "empty", "readme"]);
        assert_eq!(names(&tree, "b"), ["10.jpg", "2.jpg"]);
        assert_eq!(names(&tree, "a"), ["x"]);
        assert_eq!(names(&tree, "empty"), ["er"]);
        assert_eq!(names(&tree, "empty/er"), [""; 0]);
        assert!(tree.names(Path::new("readme")).is_none());
        let [file, directory] =
            ["a/x/1.jpg", "a/x"].map(|path| tree.stat(Path::new(path)).unwrap());
        assert_eq!((file.kind, file.size, file.mode), (Kind::File, 7, 0o444));
        assert_eq!((directory.kind, directory.mode), (Kind::Directory, 0o500), "as the one above");
        assert_eq!(tree.stat(Path::new("b")).unwrap().mode, 0o555);
        for missing in ["a/x/2.jpg", "c", "b/2.jpg/x"] {
            assert!(tree.stat(Path::new(missing)).is_none(), "{missing}");
        }
    }

    #[test]
    fn a_fingerprint_is_the_same_until_the_content_changes() {
        let stat = |version, path: &str| {
            let blobs = vec![blob(path, version), blob("d/other", 1)];
            let listing =
                Listing { blobs, directories: Vec::new(), access: HashMap::new(), state: 0 };
            let tree = Tree::new(listing).unwrap();
            let [file, directory] = [path, "d"].map(|at| tree.stat(Path::new(at)).unwrap());
            (file.fingerprint(), directory.fingerprint())
        };
        let (file, directory) = stat(1, "d/file");
        assert_eq!(stat(1, "d/file"), (file, directory));
        let (changed, same) = stat(2, "d/file");
        assert!(changed != file && same == directory);
        let (_, renamed) = stat(1, "d/eile");
        assert!(renamed != directory, "names came and went");
    }

    #[test]
    fn paths_that_are_no_tree_are_refused() {
        let refused = |paths: &[&str]| tree(paths, &[]).unwrap_err();
        assert_eq!(refused(&["a", "b", "a"]), PathFault::Twice("a".into()));
        assert_eq!(refused(&["a/b", "a"]), PathFault::FileAndDirectory("a".into()));
        for path in ["../a", "/a", "a/../b", ""] {
            assert_eq!(refused(&[path]), PathFault::Outside(path.into()));
        }
        let long = format!("a/{}", "b".repeat(256));
        assert_eq!(refused(&[&long]), PathFault::TooLong(long.into()));
    }
}

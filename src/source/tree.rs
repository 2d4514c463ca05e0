//! Blobs with paths as a tree of directories.
//!
//! 1. The blobs of one directory stand next to each other, sorted by name. A directory has their range and the names
//!    of its subdirectories.
//! 2. The inode of a directory comes from its path. That of a file comes from its path and version, so two versions
//!    have different fingerprints. Each version has the same one at every mount.
//! 3. The time of a directory is that of its latest blob. Its nanoseconds are a digest of what is in it, so the
//!    time changes if names come or go, or rights change.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::Hasher;
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;

use siphasher::sip::SipHasher24;

use super::{Kind, Stat};
use crate::sync::Mutex;

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
    /// `None`: the store does not tell it.
    pub(super) size: Option<u64>,
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

/// A blob with its name in its directory.
type File<K> = (Box<OsStr>, Blob<K>);

/// Blobs by the directory that they are in. They can be added in any order, while a store is still being listed.
#[derive(Debug)]
pub(super) struct Blobs<K> {
    by_directory: HashMap<PathBuf, Vec<File<K>>>,
    count: usize,
    /// The fault of the first path that cannot be in a tree.
    fault: Option<PathFault>,
}

impl<K> Default for Blobs<K> {
    fn default() -> Self {
        Blobs { by_directory: HashMap::new(), count: 0, fault: None }
    }
}

impl<K> Extend<(PathBuf, Blob<K>)> for Blobs<K> {
    fn extend<B: IntoIterator<Item = (PathBuf, Blob<K>)>>(&mut self, blobs: B) {
        for (path, blob) in blobs {
            self.add(&path, blob);
        }
    }
}

impl<K> FromIterator<(PathBuf, Blob<K>)> for Blobs<K> {
    fn from_iter<B: IntoIterator<Item = (PathBuf, Blob<K>)>>(blobs: B) -> Self {
        let mut all = Blobs::default();
        all.extend(blobs);
        all
    }
}

impl<K> Blobs<K> {
    pub(super) fn add(&mut self, path: &Path, blob: Blob<K>) {
        let path = match check(path) {
            Ok(path) => path,
            Err(fault) => {
                self.fault.get_or_insert(fault);
                return;
            }
        };
        self.count += 1;
        let (parent, name) = split(&path);
        let file = (name.into(), blob);
        match self.by_directory.get_mut(parent) {
            Some(siblings) => siblings.push(file),
            None => {
                self.by_directory.insert(parent.to_owned(), vec![file]);
            }
        }
    }
}

/// Everything in a store.
#[derive(Debug)]
pub(super) struct Listing<K> {
    pub(super) blobs: Blobs<K>,
    /// Directories, also such without blobs.
    pub(super) directories: Vec<PathBuf>,
    /// The access of some directories, the root's in any case. Other directories have that of the nearest one above
    /// them.
    pub(super) access: HashMap<PathBuf, Access>,
    /// Another listing with the same number has the same blobs.
    pub(super) state: u64,
    /// What a blob without a size is taken to have.
    pub(super) guess: u64,
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
    blobs: Vec<File<K>>,
    directories: HashMap<PathBuf, Directory>,
    guess: u64,
}

impl<K: Send> Tree<K> {
    /// # Errors
    /// If the paths are not those of a tree.
    pub(super) fn new(listing: Listing<K>) -> Result<Self, PathFault> {
        let Listing { blobs, directories: listed, access, state: _, guess } = listing;
        let mut subdirectories: HashMap<PathBuf, BTreeSet<OsString>> = HashMap::new();
        subdirectories.entry(PathBuf::new()).or_default();
        for path in &listed {
            add_directory(&mut subdirectories, &check(path)?);
        }
        let Blobs { mut by_directory, count, fault } = blobs;
        if let Some(fault) = fault {
            return Err(fault);
        }
        for path in by_directory.keys() {
            add_directory(&mut subdirectories, path);
        }
        sort(by_directory.values_mut().collect());
        let (blobs, directories) = (Vec::with_capacity(count), HashMap::new());
        let mut tree = Tree { blobs, directories, guess };
        for (path, subdirectories) in subdirectories {
            let files = by_directory.remove(&path).unwrap_or_default();
            let access = path.ancestors().find_map(|above| access.get(above));
            tree.add(path, subdirectories, files, access.copied().unwrap_or(NOBODY))?;
        }
        Ok(tree)
    }

    /// Adds a directory with the names in it. Its files are sorted.
    fn add(
        &mut self,
        path: PathBuf,
        subdirectories: BTreeSet<OsString>,
        mut files: Vec<File<K>>,
        access: Access,
    ) -> Result<(), PathFault> {
        if let Some(pair) = files.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(PathFault::Twice(path.join(&*pair[0].0)));
        }
        if let Some((name, _)) = files.iter().find(|(name, _)| subdirectories.contains(&**name)) {
            return Err(PathFault::FileAndDirectory(path.join(&**name)));
        }
        let below = subdirectories.iter().map(|name| name.as_bytes());
        let names: Vec<&[u8]> =
            below.chain(files.iter().map(|(name, _)| name.as_bytes())).collect();
        let latest_ns = files.iter().map(|(_, blob)| blob.mtime_ns).max();
        let stat = directory_stat(&path, &names, latest_ns, access);
        let blobs = self.blobs.len()..self.blobs.len() + files.len();
        self.blobs.append(&mut files);
        self.directories.insert(path, Directory { blobs, subdirectories, stat });
        Ok(())
    }

    /// The names in a directory; `None` if there is none.
    pub(super) fn names(&self, directory: &Path) -> Option<impl Iterator<Item = &OsStr>> {
        let Directory { blobs, subdirectories, .. } = self.directories.get(directory)?;
        let files = self.blobs[blobs.clone()].iter().map(|(name, _)| &**name);
        Some(subdirectories.iter().map(OsString::as_os_str).chain(files))
    }

    pub(super) fn blob(&self, path: &Path) -> Option<&Blob<K>> {
        let (directory, name) = (path.parent()?, path.file_name()?);
        self.blobs_of(directory, [name]).next()?
    }

    /// The blobs of these names in a directory.
    pub(super) fn blobs_of<'a, 'n>(
        &'a self,
        directory: &Path,
        names: impl IntoIterator<Item = &'n OsStr>,
    ) -> impl Iterator<Item = Option<&'a Blob<K>>> {
        let directory = self.directories.get(directory);
        let blobs = directory.map_or(&[][..], |directory| &self.blobs[directory.blobs.clone()]);
        names.into_iter().map(move |name| {
            let nth = blobs.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
            Some(&blobs[nth].1)
        })
    }

    /// The attributes of a path; `None` if nothing has it.
    pub(super) fn stat(&self, path: &Path) -> Option<Stat> {
        let directory = self.directories.get(path).map(|directory| directory.stat);
        directory.or_else(|| self.blob(path).map(|blob| blob_stat(path, blob, self.guess)))
    }
}

/// A path without parts that say nothing, as `a//b` and `a/./b` have.
fn check(path: &Path) -> Result<Cow<'_, Path>, PathFault> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > PATH_BYTES_MAX {
        return Err(PathFault::TooLong(path.to_owned()));
    }
    let mut is_plain = true;
    for (nth, name) in bytes.split(|byte| *byte == b'/').enumerate() {
        match name {
            b".." => return Err(PathFault::Outside(path.to_owned())),
            b"" | b"." if nth == 0 => return Err(PathFault::Outside(path.to_owned())),
            b"" | b"." => is_plain = false,
            _ if name.len() > NAME_BYTES_MAX => return Err(PathFault::TooLong(path.to_owned())),
            _ => {}
        }
    }
    Ok(if is_plain { path.into() } else { path.components().collect::<PathBuf>().into() })
}

/// Sorts the files of each directory by their names. That takes longest of all of a tree.
fn sort<K: Send>(directories: Vec<&mut Vec<File<K>>>) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(directories.len());
    let queue = Mutex::new(directories.into_iter());
    let work = || {
        loop {
            let next = queue.lock().next();
            let Some(files) = next else { return };
            files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // With fewer threads it takes longer.
            let _ = thread::Builder::new().name("belady-sort".into()).spawn_scoped(scope, work);
        }
        work();
    });
}

/// The directory of a path that was checked, and the name in it. The standard library takes longer.
fn split(path: &Path) -> (&Path, &OsStr) {
    let bytes = path.as_os_str().as_bytes();
    match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(at) => {
            let [parent, name] = [&bytes[..at], &bytes[at + 1..]].map(OsStr::from_bytes);
            (Path::new(parent), name)
        }
        None => (Path::new(""), path.as_os_str()),
    }
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

/// The attributes of a blob. If it has no size, `guess` is taken for it.
pub(super) fn blob_stat<K>(path: &Path, blob: &Blob<K>, guess: u64) -> Stat {
    let Blob { size: known, mtime_ns, changed_ns, version, access, .. } = *blob;
    let size = known.unwrap_or(guess);
    let inode = hash(&[path.as_os_str().as_bytes(), &version.to_le_bytes()]);
    Stat {
        kind: Kind::File,
        mode: access.mode,
        links: 1,
        uid: access.uid,
        gid: access.gid,
        rdev: 0,
        size,
        is_sized: known.is_some(),
        version_has_size: true,
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
        is_sized: true,
        version_has_size: true,
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
        let blob = Blob {
            size: Some(7),
            mtime_ns: time,
            changed_ns: time,
            version,
            access: ACCESS,
            key: (),
        };
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
            guess: 0,
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
    fn parts_of_a_path_that_say_nothing_make_no_difference() {
        let [one, other] =
            [["a//b/1", "a/./b/2"], ["a/b/2/", "a/b/1"]].map(|paths| tree(&paths, &[]));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(names(&one, "a/b"), ["1", "2"]);
        let stats = |tree: &Tree<()>| ["a", "a/b", "a/b/1"].map(|path| tree.stat(Path::new(path)));
        assert_eq!(stats(&one), stats(&other));
    }

    #[test]
    fn a_fingerprint_is_the_same_until_the_content_changes() {
        let stat = |version, path: &str| {
            let blobs = [blob(path, version), blob("d/other", 1)].into_iter().collect();
            let (directories, access) = (Vec::new(), HashMap::new());
            let listing = Listing { blobs, directories, access, state: 0, guess: 0 };
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
        for path in ["../a", "/a", "a/../b", "./a", ".", ""] {
            assert_eq!(refused(&[path]), PathFault::Outside(path.into()));
        }
        let long = format!("a/{}", "b".repeat(256));
        assert_eq!(refused(&[&long]), PathFault::TooLong(long.into()));
    }
}

//! The current path of each inode that the kernel knows.
//!
//! The kernel refers to an inode by number, but the source is reached by path. An entry is made when the
//! kernel learns of an inode (a lookup, an entry of readdirplus). It is dropped when the kernel has forgotten
//! the inode as often. No descriptor is kept, so only memory limits the number of inodes. The path is the one
//! where the inode was last found. After a rename in the source, the kernel's entries expire, the kernel
//! looks the new name up, and the table follows.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::stat::FileStat;

/// The inode number FUSE gives the root.
pub(crate) const ROOT: u64 = 1;
/// The directory of the virtual files, `.slowpfs`.
pub(crate) const CONTROL_DIR: u64 = 0x7fff_ffff_ffff_ff00;
/// The virtual file `.slowpfs/stats`.
pub(crate) const STATS_FILE: u64 = CONTROL_DIR + 1;
/// Numbers from here on stand for inodes whose own number is taken.
const FIRST_ALIAS: u64 = 1 << 62;

/// Identifies the content of a file: seconds and nanoseconds of its modification, and its size.
pub(crate) type Version = (i64, i64, i64);

/// An inode of the source: its device and its number there.
type Identity = (u64, u64);

#[derive(Debug)]
struct Node {
    identity: Identity,
    path: Arc<Path>,
    lookups: u64,
    /// The version of the file whose pages the kernel has.
    cached: Option<Version>,
}

/// The inodes the kernel knows.
#[derive(Debug)]
pub(crate) struct Inodes {
    nodes: HashMap<u64, Node>,
    /// Inodes that cannot use their own number, because another device or the root has it.
    aliases: HashMap<Identity, u64>,
    next_alias: u64,
}

impl Inodes {
    /// A table of only the root.
    pub(crate) fn new(root: &FileStat) -> Self {
        let path: Arc<Path> = PathBuf::new().into();
        let identity = identity(root);
        let node = Node { identity, path, lookups: 1, cached: None };
        Self {
            nodes: HashMap::from([(ROOT, node)]),
            aliases: HashMap::new(),
            next_alias: FIRST_ALIAS,
        }
    }

    /// The path of an inode relative to the source. Empty for the root.
    pub(crate) fn path(&self, ino: u64) -> Option<Arc<Path>> {
        self.nodes.get(&ino).map(|node| node.path.clone())
    }

    /// The number by which the kernel knows an inode: its own number, unless that is taken.
    pub(crate) fn number(&mut self, stat: &FileStat) -> u64 {
        let identity = identity(stat);
        if let Some(&alias) = self.aliases.get(&identity) {
            return alias;
        }
        let own = stat.st_ino;
        let free = self.nodes.get(&own).is_none_or(|node| node.identity == identity);
        if own > ROOT && own < FIRST_ALIAS && free {
            return own;
        }
        let alias = self.next_alias;
        self.next_alias += 1;
        self.aliases.insert(identity, alias);
        alias
    }

    /// Notes that the kernel was told that `number` (from [`Self::number`]) is at `path`.
    pub(crate) fn found(&mut self, number: u64, stat: &FileStat, path: &Path) {
        let node = self.nodes.entry(number).or_insert_with(|| Node {
            identity: identity(stat),
            path: path.into(),
            lookups: 0,
            cached: None,
        });
        node.lookups += 1;
        if *node.path != *path {
            node.path = path.into();
        }
    }

    /// Notes that the kernel has forgotten `count` lookups of an inode.
    pub(crate) fn forget(&mut self, ino: u64, count: u64) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups == 0 && ino != ROOT {
            let identity = node.identity;
            self.nodes.remove(&ino);
            self.aliases.remove(&identity);
        }
    }

    /// Notes that the kernel's pages of an inode are of `version` from here on. Returns whether they were of it
    /// before.
    pub(crate) fn note_version(&mut self, ino: u64, version: Version) -> bool {
        self.nodes.get_mut(&ino).is_some_and(|node| node.cached.replace(version) == Some(version))
    }
}

fn identity(stat: &FileStat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// The version of a file with these attributes.
pub(crate) fn version(stat: &FileStat) -> Version {
    (stat.st_mtime, stat.st_mtime_nsec, stat.st_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(dev: u64, ino: u64) -> FileStat {
        let mut stat = nix::sys::stat::stat("/").expect("the root directory");
        (stat.st_dev, stat.st_ino) = (dev, ino);
        stat
    }

    fn path_of(inodes: &Inodes, ino: u64) -> Option<String> {
        inodes.path(ino).map(|path| path.display().to_string())
    }

    #[test]
    fn numbers_are_those_of_the_source_unless_taken() {
        let mut inodes = Inodes::new(&stat(1, 77));
        let file = stat(1, 5);
        assert_eq!(inodes.number(&file), 5);
        inodes.found(5, &file, Path::new("a"));
        let elsewhere = inodes.number(&stat(2, 5));
        assert!(elsewhere >= FIRST_ALIAS);
        assert_eq!(inodes.number(&stat(2, 5)), elsewhere);
        assert!(inodes.number(&stat(1, ROOT)) >= FIRST_ALIAS, "1 means the root to the kernel");
    }

    #[test]
    fn path_is_the_last_found_and_goes_when_forgotten() {
        let mut inodes = Inodes::new(&stat(1, 77));
        let file = stat(1, 5);
        inodes.found(5, &file, Path::new("a"));
        inodes.found(5, &file, Path::new("b"));
        assert_eq!(path_of(&inodes, 5).as_deref(), Some("b"));
        inodes.forget(5, 1);
        assert_eq!(path_of(&inodes, 5).as_deref(), Some("b"));
        inodes.forget(5, 1);
        assert_eq!(path_of(&inodes, 5), None);
        inodes.forget(ROOT, 9);
        assert_eq!(path_of(&inodes, ROOT).as_deref(), Some(""));
    }

    #[test]
    fn pages_are_kept_while_the_version_is_the_same() {
        let mut inodes = Inodes::new(&stat(1, 77));
        inodes.found(5, &stat(1, 5), Path::new("a"));
        let (old, new) = ((1, 0, 10), (1, 0, 11));
        let kept: Vec<_> = [old, old, new, new].map(|v| inodes.note_version(5, v)).into();
        assert_eq!(kept, [false, true, false, true]);
        assert!(!inodes.note_version(6, old), "an unknown inode");
    }
}

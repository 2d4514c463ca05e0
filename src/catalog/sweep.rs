//! Checking a saved catalog behind the readers that it serves already.
//!
//! Every directory is looked at, and read where it has changed; then its names, many at a time. What
//! was looked at since the mount, by a reader or by an earlier sweep that the source has cut short, is
//! not asked for again. So what has changed while nobody looked shows before long, and most names are
//! fresh when they are asked for.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::errno::Errno;

use super::doubt::is_other_size;
use super::tree::Tree;
use super::{Catalog, Changes, scan};
use crate::ids::FileId;
use crate::sync::Mutex;

/// Names that are looked at at once.
const CHUNK: usize = 512;

/// Some names of a directory.
struct Portion {
    directory: FileId,
    from: usize,
}

/// Where the sweep is: the directory, and the name in it.
#[derive(Default)]
struct Cursor {
    directory: usize,
    name: usize,
}

impl Cursor {
    fn next(&mut self, tree: &Tree) -> Option<Portion> {
        while let Some(directory) = tree.tables.directories.get(self.directory) {
            let from = self.name;
            self.name += CHUNK;
            if self.name >= directory.children.len() {
                *self = Cursor { directory: self.directory + 1, name: 0 };
            }
            if tree.is_there(directory.file) {
                return Some(Portion { directory: directory.file, from });
            }
        }
        None
    }
}

impl Catalog {
    /// Checks everything that was not checked since the mount, on `threads` threads, until that is
    /// done or `over` is set; changes go to `report` as they are found. Says whether there are other
    /// names than before. What the source does not tell is left for another sweep. Blocks.
    pub fn sweep(
        &self,
        threads: usize,
        over: &AtomicBool,
        report: &(dyn Fn(Changes) + Sync),
    ) -> bool {
        let (mut renamed, mut left) = (false, usize::MAX);
        loop {
            let (other_names, told) = self.pass(threads, over, report);
            renamed |= other_names;
            if over.load(Ordering::Relaxed) || !told {
                return renamed;
            }
            // Names that new ones have pushed out of their portion were not looked at.
            let before = std::mem::replace(&mut left, self.unchecked());
            if left == 0 || left >= before {
                self.swept.store(true, Ordering::Relaxed);
                return renamed;
            }
        }
    }

    /// Number of names that nobody has checked since the mount, and of directories that nobody has read.
    fn unchecked(&self) -> usize {
        let tree = self.read();
        let is_new = |row: FileId| tree.is_there(row) && tree.is_unread(row);
        let is_left = |row: FileId| tree.checked(row) == 0 || is_new(row);
        tree.files().filter(|row| tree.is_named(*row) && is_left(*row)).count()
    }

    /// Goes through all directories once. Says whether there are other names than before, and whether
    /// the source told all.
    fn pass(
        &self,
        threads: usize,
        over: &AtomicBool,
        report: &(dyn Fn(Changes) + Sync),
    ) -> (bool, bool) {
        let cursor = Mutex::new(Cursor::default());
        let (renamed, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let next = || {
            let mut cursor = cursor.lock();
            (!over.load(Ordering::Relaxed)).then(|| cursor.next(&self.read())).flatten()
        };
        let work = || {
            while let Some(portion) = next() {
                let (found, told) = self.check(&portion);
                failed.fetch_or(!told, Ordering::Relaxed);
                for changes in found.into_iter().filter(|found| !found.is_empty()) {
                    renamed.fetch_or(changes.are_of_names(), Ordering::Relaxed);
                    report(changes);
                }
            }
        };
        let started = thread::scope(|scope| {
            let spawn =
                |_| thread::Builder::new().name("belady-sweep".into()).spawn_scoped(scope, work);
            // With fewer threads it takes longer.
            (0..threads.max(1)).map(spawn).filter(|spawned| spawned.is_ok()).count()
        });
        if started == 0 {
            work();
        }
        (renamed.into_inner(), !failed.into_inner())
    }

    /// What has changed, and whether the source told all.
    fn check(&self, portion: &Portion) -> (Vec<Changes>, bool) {
        let (mut all, mut told) = (Vec::new(), true);
        let (directory, is_checked) = {
            let (tree, row) = (self.read(), portion.directory);
            // Its own name may have been looked at, with those of its directory.
            (tree.node(row), tree.checked(row) > 0 && !tree.is_unread(row))
        };
        if portion.from == 0 && !is_checked {
            // Where the source does not say, the next reader asks again.
            match self.refresh_directory(directory) {
                Ok(found) => all.push(found),
                Err(errno) => told = scan::is_certain(errno),
            }
        }
        let (path, names) = {
            let tree = self.read();
            (tree.path(portion.directory), unchecked(&tree, portion))
        };
        let now = self.now();
        let stats = self.source.stat_all(&path, &names);
        let (mut differing, mut late) = (Vec::new(), Vec::new());
        {
            let tree = self.read();
            for (name, stat) in names.into_iter().zip(stats) {
                let Some(entry) = tree.entry(portion.directory, &name) else { continue };
                let known = tree.stat(tree.target(entry));
                match stat {
                    Ok(stat) if stat.fingerprint() == known.fingerprint() => {
                        tree.unchanged(entry, now);
                    }
                    // It is asked again before it is believed.
                    Ok(stat) if is_other_size(&known, &stat) => late.push(name),
                    Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => differing.push((name, stat)),
                    // It was like that before, and is asked of the source where it is looked up.
                    Err(_) if tree.is_unsure(entry) => tree.unchanged(entry, now),
                    Err(errno) => told &= scan::is_certain(errno),
                }
            }
        }
        let mut changes = Changes::default();
        if !differing.is_empty() {
            let mut tree = self.write();
            for (name, stat) in differing {
                let unseen = |row| tree.checked(row) == 0;
                if !tree.entry(portion.directory, &name).is_some_and(unseen) {
                    late.push(name);
                    continue;
                }
                match stat {
                    Ok(stat) => tree.found(directory, &name, &stat, now, &mut changes),
                    Err(_) => tree.remove(directory, &name, &mut changes),
                }
            }
        }
        all.push(changes);
        // Of these somebody else may have seen what came after this.
        for name in late {
            match self.refresh(directory, &name) {
                Ok(found) => all.push(found),
                Err(errno) => told &= scan::is_certain(errno),
            }
        }
        (all, told)
    }
}

/// The names of a portion that nobody has checked since the mount.
fn unchecked(tree: &Tree, portion: &Portion) -> Vec<OsString> {
    let Ok(entries) = tree.entries(portion.directory) else { return Vec::new() };
    let unchecked = entries.skip(portion.from).take(CHUNK).filter(|row| tree.checked(*row) == 0);
    unchecked.map(|row| tree.name(row).to_os_string()).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;

    use super::*;
    use crate::catalog::CatalogState;
    use crate::catalog::tests::{Gated, at, node_of};

    #[test]
    fn everything_is_asked_for_once_however_often_the_sweep_begins_anew() {
        let (root, saved) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for path in ["a/b/1", "a/b/2", "a/3", "c/4", "c/5"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let place = at(&saved.path().join("catalog"));
        let source = Gated::new(root.path(), "c/5");
        Catalog::scan(source.clone(), 1, None).unwrap().save(&place).unwrap();
        let again = Catalog::open(source.clone(), None, &place).unwrap();
        again.refresh(node_of(&again, "a"), OsStr::new("3")).unwrap();
        let sweep = |mute: bool| {
            source.mute.store(mute, Ordering::Relaxed);
            let before = source.asked.load(Ordering::Relaxed);
            again.sweep(1, &AtomicBool::new(false), &|found| panic!("{found:?}"));
            source.asked.load(Ordering::Relaxed) - before
        };
        // The root, three directories, and four files of which one does not answer.
        assert_eq!((sweep(true), again.state()), (8, CatalogState::Checking));
        assert_eq!((sweep(true), sweep(false), again.state()), (1, 1, CatalogState::Checked));
        assert!(again.lookup(node_of(&again, "c"), OsStr::new("5"), false).is_some());
    }
}

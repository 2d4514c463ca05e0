//! Checking a saved catalog behind the readers that it serves already.
//!
//! Every directory is checked, and read if it has changed; then its names, many at a time. What was checked
//! since the mount, by a reader or by an earlier sweep that the source has cut short, is not checked again.
//!
//! A sweep begins on few threads: the readers are there already. As long as the source makes it wait, it has as many
//! threads as the source serves best.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nix::errno::Errno;

use super::doubt::is_other_size;
use super::node::NodeId;
use super::tree::Tree;
use super::{Catalog, Changes};
use crate::ids::FileId;
use crate::source::{Stat, is_certain, is_prompt};
use crate::sync::Mutex;

/// Names that are checked at once.
const CHUNK: usize = 512;

/// One thread in so many of those that it may have begins a sweep, and at least the second number.
const START_SHARE: usize = 8;
const START_MIN: usize = 4;

/// Some names of a directory.
struct Portion {
    directory: FileId,
    from: usize,
}

impl Portion {
    /// The names of it that were not checked since the mount.
    fn unchecked(&self, tree: &Tree) -> Vec<OsString> {
        let Ok(entries) = tree.entries(self.directory) else { return Vec::new() };
        let portion = entries.skip(self.from).take(CHUNK);
        let unchecked = portion.filter(|row| tree.checks.of_row(*row) == 0);
        unchecked.map(|row| tree.name(row).to_os_string()).collect()
    }
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

/// Names with what the source says of them; none: they are gone.
type Seen = Vec<(OsString, Option<Stat>)>;

/// A sweep, as [`Catalog::sweep`].
pub(super) struct Sweep<'a> {
    catalog: &'a Catalog,
    over: &'a AtomicBool,
    report: &'a (dyn Fn(Changes) + Sync),
    /// Where the pass is that is under way.
    cursor: Mutex<Cursor>,
    /// Threads of the pass, and the most that it may have.
    threads: AtomicUsize,
    threads_max: usize,
    /// Whether names came or went.
    renamed: AtomicBool,
    /// Whether the source has not told of something.
    failed: AtomicBool,
}

impl<'a> Sweep<'a> {
    /// Sweeps on so many threads at most, and says whether names came or went.
    pub(super) fn run(
        catalog: &'a Catalog,
        threads: usize,
        over: &'a AtomicBool,
        report: &'a (dyn Fn(Changes) + Sync),
    ) -> bool {
        let [renamed, failed] = [false, false].map(AtomicBool::new);
        let sweep = Sweep {
            catalog,
            over,
            report,
            cursor: Mutex::default(),
            threads: AtomicUsize::new(0),
            threads_max: threads.max(1),
            renamed,
            failed,
        };
        let mut left = usize::MAX;
        loop {
            sweep.pass();
            if over.load(Ordering::Relaxed) || sweep.failed.load(Ordering::Relaxed) {
                break;
            }
            // New names may have pushed others out of their portion, which were not checked.
            let before = std::mem::replace(&mut left, sweep.unchecked());
            if left == 0 || left >= before {
                catalog.swept.iter().for_each(|swept| swept.store(true, Ordering::Relaxed));
                break;
            }
        }
        sweep.renamed.into_inner()
    }

    /// Number of names that were not checked since the mount, and of directories that were not read.
    fn unchecked(&self) -> usize {
        let tree = self.catalog.read();
        let is_new = |row: FileId| tree.is_there(row) && tree.is_unread(row);
        let is_left = |row: FileId| tree.checks.of_row(row) == 0 || is_new(row);
        tree.files().filter(|row| tree.is_named(*row) && is_left(*row)).count()
    }

    /// Goes through all directories once.
    fn pass(&self) {
        *self.cursor.lock() = Cursor::default();
        let start = (self.threads_max / START_SHARE).max(START_MIN).min(self.useful_threads());
        self.threads.store(start, Ordering::Relaxed);
        thread::scope(|scope| {
            (1..start).for_each(|_| self.start(scope));
            self.work(scope);
        });
    }

    /// Starts a thread that is counted already. With fewer threads it takes longer.
    fn start<'scope>(&'scope self, scope: &'scope thread::Scope<'scope, '_>) {
        let thread = thread::Builder::new().name("belady-sweep".into());
        if thread.spawn_scoped(scope, move || self.work(scope)).is_err() {
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Checks portions until none is left, or there are more threads than the source serves best.
    fn work<'scope>(&'scope self, scope: &'scope thread::Scope<'scope, '_>) {
        while let Some(portion) = self.next() {
            let began = Instant::now();
            let names = self.check(&portion);
            if is_prompt(began.elapsed(), names) {
                continue;
            }
            let useful = self.useful_threads();
            if self.recount(|threads| (threads < useful).then_some(threads + 1)) {
                self.start(scope);
            } else if self.recount(|threads| (threads > useful).then(|| threads - 1)) {
                return;
            }
        }
        self.recount(|threads| threads.checked_sub(1));
    }

    fn useful_threads(&self) -> usize {
        let limit = self.catalog.limits().stats as usize;
        limit.clamp(1, self.threads_max)
    }

    /// Makes the number of threads another one, unless `change` has none.
    fn recount(&self, change: impl Fn(usize) -> Option<usize>) -> bool {
        self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    fn next(&self) -> Option<Portion> {
        let mut cursor = self.cursor.lock();
        (!self.over.load(Ordering::Relaxed)).then(|| cursor.next(&self.catalog.read())).flatten()
    }

    /// Takes the outcome of a check. What the source does not tell is left for another sweep.
    fn take(&self, outcome: Result<Changes, Errno>) {
        match outcome {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => {
                self.renamed.fetch_or(changes.are_of_names(), Ordering::Relaxed);
                (self.report)(changes);
            }
            Err(errno) => _ = self.failed.fetch_or(!is_certain(errno), Ordering::Relaxed),
        }
    }

    /// Checks a directory with its first portion, and the names of a portion. Returns how many those are.
    fn check(&self, portion: &Portion) -> usize {
        let row = portion.directory;
        let (directory, is_checked) = {
            let tree = self.catalog.read();
            // Its own name may have been checked with those of its directory.
            (tree.node(row), tree.checks.of_row(row) > 0 && !tree.is_unread(row))
        };
        if portion.from == 0 && !is_checked {
            self.take(self.catalog.refresh_directory(directory));
        }
        let (path, names) = {
            let tree = self.catalog.read();
            (tree.path(row), portion.unchecked(&tree))
        };
        let (now, count) = (self.catalog.now(), names.len());
        let (seen, mut late) = self.compare(row, &path, names, now);
        if !seen.is_empty() {
            late.extend(self.apply(directory, seen, now));
        }
        for name in late {
            self.take(self.catalog.refresh(directory, &name));
        }
        count
    }

    /// Asks what names of a directory are, and confirms those that are as they were known. Returns those that
    /// are not, and names that are to be checked by themselves.
    fn compare(
        &self,
        row: FileId,
        path: &Path,
        names: Vec<OsString>,
        now: u32,
    ) -> (Seen, Vec<OsString>) {
        let stats = self.catalog.source.stat_all(path, &names);
        let (mut seen, mut late) = (Seen::new(), Vec::new());
        let tree = self.catalog.read();
        for (name, stat) in names.into_iter().zip(stats) {
            let Some(entry) = tree.entry(row, &name) else { continue };
            let known = tree.stat(tree.target(entry));
            match stat.map(|stat| stat.sized_as(&known)) {
                Ok(stat) if stat.fingerprint() == known.fingerprint() => {
                    tree.checks.confirm(entry, now);
                }
                // It is another version, whose size is not known.
                Ok(stat) if !stat.is_sized => seen.push((name, Some(stat))),
                // It is asked again before it is believed.
                Ok(stat) if is_other_size(&known, &stat) => late.push(name),
                Ok(stat) => seen.push((name, Some(stat))),
                Err(Errno::ENOENT | Errno::ENOTDIR) => seen.push((name, None)),
                // It was unsure before, and the source is asked when it is looked up.
                Err(_) if tree.is_unsure(entry) => tree.checks.confirm(entry, now),
                Err(errno) => self.take(Err(errno)),
            }
        }
        (seen, late)
    }

    /// Takes what was seen of names of a directory. Returns those that others have checked meanwhile.
    fn apply(&self, directory: NodeId, seen: Seen, now: u32) -> Vec<OsString> {
        let (mut changes, mut late) = (Changes::default(), Vec::new());
        let mut tree = self.catalog.write();
        for (name, stat) in seen {
            let row = tree.resolve(directory).ok().and_then(|row| tree.entry(row, &name));
            match row.filter(|row| tree.checks.of_row(*row) == 0) {
                Some(_) => tree.apply(directory, &name, stat.as_ref(), now, &mut changes),
                None => late.push(name),
            }
        }
        drop(tree);
        self.take(Ok(changes));
        late
    }
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

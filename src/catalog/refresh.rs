//! Looking again: whether what is known is still so at the source, and what became of it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nix::errno::Errno;

use super::node::NodeId;
use super::row::is_unsure;
use super::tree::Tree;
use super::{Catalog, Changes, row, scan};
use crate::ids::FileId;
use crate::source::Stat;
use crate::sync::{Condvar, Mutex};

/// Threads that stat the names of a directory that a reader waits for where that is slow, and names
/// that each takes at a time.
const STAT_THREADS: usize = 16;
const CHUNK: usize = 64;

/// How often one name is looked at where others look at it at the same time, and how often a directory
/// is, which may have to be read each time.
const LOOKS: usize = 4;
const LISTINGS: usize = 2;

/// Of the period the last part, one in so many, is when a look comes ahead of the next use.
const EARLY: u32 = 8;

/// Directories that are being read: each by one thread at a time, and the others of its readers
/// wait for that.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<HashSet<FileId>>,
    free: Condvar,
}

/// One thread's turn, until it is dropped.
struct Turn<'a> {
    turns: &'a Turns,
    directory: FileId,
    /// Whether another thread's was waited for.
    waited: bool,
}

impl Turns {
    fn take(&self, directory: FileId) -> Turn<'_> {
        let mut taken = self.taken.lock();
        let mut waited = false;
        while !taken.insert(directory) {
            waited = true;
            taken = self.free.wait(taken);
        }
        Turn { turns: self, directory, waited }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock();
        taken.remove(&self.directory);
        self.turns.free.notify_all();
    }
}

impl Catalog {
    /// Whether the period since the last look at the source is nearly over: time to look ahead of
    /// the next use. What is used again and again is looked at about once a period, and no sooner after
    /// a look than seven eighths of it. No reader waits for that but one so slow that what it is about
    /// to read is looked at more than an eighth of the period before.
    pub fn is_check_due(&self, node: NodeId) -> bool {
        let Some(period) = self.period else { return false };
        let tree = self.read();
        let Ok(file) = tree.resolve(node) else { return false };
        self.valid(tree.checked(file)).is_none_or(|left| left < period / EARLY)
    }

    /// Whether what was read of a version is surely what it has: not where the source counts its
    /// times in seconds and the file had been written in the last ones when it was looked at.
    pub fn is_settled(&self, node: NodeId) -> bool {
        let tree = self.read();
        tree.resolve(node).map_or(self.period.is_none(), |file| self.has_settled(&tree, file))
    }

    /// As [`is_settled`](Self::is_settled), of a row.
    pub(super) fn has_settled(&self, tree: &Tree, file: FileId) -> bool {
        self.period.is_none() || !tree.is_unsettled(file)
    }

    fn count(&self, changes: Changes) -> Changes {
        let other = changes.added || !changes.names.is_empty();
        self.renamed.fetch_add(other.into(), Ordering::Relaxed);
        changes
    }

    /// Checks one name at the source. Blocks.
    ///
    /// # Errors
    /// The source's, which leaves open what the name is by now. What is known is not forgotten.
    pub fn refresh(&self, parent: NodeId, name: &OsStr) -> Result<Changes, Errno> {
        for left in (0..LOOKS).rev() {
            if let Some(changes) = self.look(parent, name, left == 0)? {
                return Ok(changes);
            }
        }
        Ok(Changes::default())
    }

    /// Looks at a name once. Nothing is believed, but at the last look, where somebody else has looked
    /// meanwhile, who may have seen what came after this.
    fn look(&self, parent: NodeId, name: &OsStr, last: bool) -> Result<Option<Changes>, Errno> {
        let known = {
            let tree = self.read();
            let Ok(directory) = tree.resolve(parent) else { return Ok(Some(Changes::default())) };
            tree.entry(directory, name).map(|entry| (tree.path(directory).join(name), entry))
        };
        let Some((path, entry)) = known else { return self.refresh_directory(parent).map(Some) };
        // What is seen may have been so when it was asked for, and not later.
        let now = self.now();
        let mut changes = Changes::default();
        let stat = match self.believed(&path, entry) {
            Ok(Some(stat)) if self.is_as_seen(entry, &stat, now) => return Ok(Some(changes)),
            Ok(Some(stat)) => Some(stat),
            // It is as it was known, until the source says something else that can be believed.
            Ok(None) => {
                self.read().unchanged(entry, now);
                return Ok(Some(changes));
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) if self.period.is_some() => None,
            // A name of an immutable source stays, whatever the source says of it for a while.
            Err(Errno::ENOENT | Errno::ENOTDIR) if self.goes_by_another(entry) => {
                return Ok(Some(changes));
            }
            Err(errno) => return Err(errno),
        };
        let mut tree = self.write();
        let Ok(directory) = tree.resolve(parent) else { return Ok(Some(changes)) };
        let unseen = |row| row == entry && tree.checked(row) < now;
        if !last && !tree.entry(directory, name).is_some_and(unseen) {
            return Ok(None);
        }
        match stat {
            Some(stat) => tree.found(parent, name, &stat, now, &mut changes),
            None => tree.remove(parent, name, &mut changes),
        }
        Ok(Some(self.count(changes)))
    }

    /// Has a file that is not there by the name that it goes by go by another one by which it is
    /// there. Both names stay. Says whether there is such a name. Blocks.
    fn goes_by_another(&self, file: FileId) -> bool {
        let (others, identity) = {
            let tree = self.read();
            let others: Vec<_> =
                tree.aliases_of(file).map(|alias| (alias, tree.path(alias))).collect();
            (others, tree.stat(file).identity)
        };
        let is_it = |stat: Stat| stat.identity == identity;
        let found = others.into_iter().find(|(_, path)| self.source.stat(path).is_ok_and(is_it));
        let Some((alias, _)) = found else { return false };
        let mut tree = self.write();
        let is_still = tree.aliases_of(file).any(|row| row == alias);
        if is_still {
            tree.go_by(alias);
        }
        is_still
    }

    /// Whether a name stands for what the source says now. If so, that is noted.
    fn is_as_seen(&self, entry: FileId, stat: &Stat, now: u32) -> bool {
        let tree = self.read();
        let file = tree.target(entry);
        let same = tree.stat(file).fingerprint() == stat.fingerprint() && !tree.is_unsettled(file);
        if same {
            tree.unchanged(entry, now);
        }
        same
    }

    /// Whether a directory's names may be believed.
    fn is_known(&self, directory: FileId) -> bool {
        let tree = self.read();
        self.valid(tree.checked(directory)).is_some() && !tree.is_unread(directory)
    }

    /// Checks a directory at the source, and reads its names if it changed. Names that were known
    /// are still so, each until its own check is due. Blocks. One that is gone is known as it was,
    /// until its own name is checked.
    pub fn refresh_directory(&self, node: NodeId) -> Result<Changes, Errno> {
        let (mut changes, mut late) = Default::default();
        for left in (0..LISTINGS).rev() {
            if let Some(found) = self.look_into(node, left == 0)? {
                (changes, late) = found;
                break;
            }
        }
        for name in late {
            // What the source does not tell of a name is known as it was, until its check is due.
            if let Ok(found) = self.refresh(node, &name) {
                changes.join(found);
            }
        }
        Ok(changes)
    }

    /// Looks at a directory once, which counts for nothing as in [`look`](Self::look). Further names
    /// are to be looked at: those that others have looked at since their directory was.
    fn look_into(
        &self,
        node: NodeId,
        last: bool,
    ) -> Result<Option<(Changes, Vec<OsString>)>, Errno> {
        let nothing = || Ok(Some(Default::default()));
        let (directory, path) = {
            let tree = self.read();
            let Ok(directory) = tree.resolve(node) else { return nothing() };
            (directory, tree.path(directory))
        };
        let turn = self.turns.take(directory);
        if turn.waited && self.is_known(directory) {
            return nothing();
        }
        let known = |tree: &Tree| (tree.stat(directory).fingerprint(), tree.is_unread(directory));
        let before = known(&self.read());
        let now = self.now();
        let stat = match self.source.stat(&path) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return nothing(),
            found => found?,
        };
        // Whether it is read is asked last: whoever checks its own name may have noted another
        // version of it in the meantime, and has not read that.
        if self.is_as_seen(directory, &stat, now) && !self.read().is_unread(directory) {
            return nothing();
        }
        let found = self.read_names(directory, &path)?;
        let mut tree = self.write();
        if !last && known(&tree) != before {
            return Ok(None);
        }
        let mut changes = Changes::default();
        tree.update(directory, &stat, &mut changes);
        tree.seen(directory, now);
        let late = tree.relist(directory, found, now, &mut changes);
        Ok(Some((self.count(changes), late)))
    }

    /// A directory's names at the source, and what those are that nobody knows yet. One that the
    /// source has and cannot say more of than its kind is there all the same, unless very many are so.
    fn read_names(
        &self,
        directory: FileId,
        path: &Path,
    ) -> Result<Vec<(OsString, Option<Stat>)>, Errno> {
        let (mut found, mut left, mut silent) = (Vec::new(), Vec::new(), None);
        let mut is_prompt = true;
        let mut take = |names: Vec<OsString>, stats: Vec<Result<Stat, Errno>>| {
            let errno = stats.iter().filter_map(|stat| stat.err()).find(|e| !scan::is_certain(*e));
            silent = silent.or(errno);
            let named = names.into_iter().zip(stats);
            named
                .filter_map(|(name, stat)| Some((name, Some(scan::told(stat)?))))
                .collect::<Vec<_>>()
        };
        self.source.list_in_parts(path, &mut |names| {
            let (known, new): (Vec<OsString>, Vec<OsString>) = {
                let tree = self.read();
                names.iter().cloned().partition(|name| tree.entry(directory, name).is_some())
            };
            found.extend(known.into_iter().map(|name| (name, None)));
            if !is_prompt {
                left.extend(new);
                return;
            }
            let began = Instant::now();
            let stats = self.source.stat_all(path, &new);
            is_prompt = began.elapsed() <= scan::PROMPT * new.len() as u32;
            found.extend(take(new, stats));
        })?;
        let stats = self.stat_many(path, &left);
        found.extend(take(left, stats));
        let Some(errno) = silent else { return Ok(found) };
        let (kinds, all, mut count) = (self.source.listed_kinds(path), found.len(), 0);
        for (name, stat) in &mut found {
            if let Some(stat) = stat.as_mut().filter(|stat| is_unsure(stat)) {
                *stat = row::unsure(*kinds.get(name).ok_or(errno)?);
                count += 1;
            }
        }
        if scan::too_many_are(count, all) { Err(errno) } else { Ok(found) }
    }

    /// What names of a directory are, asked by as many threads as that takes.
    fn stat_many(&self, path: &Path, names: &[OsString]) -> Vec<Result<Stat, Errno>> {
        let chunks: Vec<&[OsString]> = names.chunks(CHUNK).collect();
        if chunks.len() < 2 {
            return self.source.stat_all(path, names);
        }
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(chunks.len())));
        let ask = || {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = chunks.get(nth) else { return };
                let stats = self.source.stat_all(path, chunk);
                found.lock().push((nth, stats));
            }
        };
        thread::scope(|scope| {
            for _ in 1..STAT_THREADS.min(chunks.len()) {
                // With fewer threads it takes longer.
                let _ = thread::Builder::new().name("belady-stat".into()).spawn_scoped(scope, ask);
            }
            ask();
        });
        let mut found = found.into_inner();
        found.sort_unstable_by_key(|(nth, _)| *nth);
        found.into_iter().flat_map(|(_, stats)| stats).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;
    use crate::catalog::tests::{Gated, node_of};

    /// A file replaced by another, and one that comes back, while somebody who has looked before is
    /// not done yet.
    #[test]
    fn who_looked_earlier_undoes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let source = Gated::new(root.path(), "none");
        fs::write(root.path().join("file"), "first").unwrap();
        let period = Some(Duration::from_secs(60));
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, period).unwrap());
        let name = OsStr::new("file");
        for (now, later) in [(Some("second one"), "third"), (None, "fourth")] {
            fs::remove_file(root.path().join(name)).unwrap();
            if let Some(now) = now {
                fs::write(root.path().join(name), now).unwrap();
            }
            let (others, path) = (Arc::clone(&catalog), root.path().join(name));
            source.after_stat("file", move || {
                let looked = others.now();
                fs::write(path.with_extension("new"), later).unwrap();
                fs::rename(path.with_extension("new"), path).unwrap();
                while others.now() == looked {
                    thread::sleep(Duration::from_millis(1));
                }
                others.refresh(NodeId::ROOT, OsStr::new("file")).unwrap();
            });
            catalog.refresh(NodeId::ROOT, name).unwrap();
            let known = catalog.getattr(node_of(&catalog, "file")).unwrap();
            assert_eq!(known.stat.size, later.len() as u64);
        }
    }

    /// Whoever sees that a name is gone takes nothing away that was found under it since.
    #[test]
    fn a_name_that_came_back_stays() {
        let root = tempfile::tempdir().unwrap();
        let source = Gated::new(root.path(), "none");
        let (name, path) = (OsStr::new("file"), root.path().join("file"));
        fs::write(&path, "first").unwrap();
        let period = Some(Duration::from_secs(60));
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, period).unwrap());
        fs::remove_file(&path).unwrap();
        let others = Arc::clone(&catalog);
        source.after_stat("file", move || {
            others.refresh(NodeId::ROOT, OsStr::new("file")).unwrap();
            let found = others.lookup(NodeId::ROOT, OsStr::new("file"), true).unwrap();
            assert_eq!(found.err(), Some(Errno::ENOENT));
            fs::write(path, "second one").unwrap();
            assert!(others.refresh_directory(NodeId::ROOT).unwrap().added);
        });
        catalog.refresh(NodeId::ROOT, name).unwrap();
        let known = catalog.getattr(node_of(&catalog, "file")).unwrap();
        assert_eq!(known.stat.size, "second one".len() as u64);
    }

    fn size_of(catalog: &Catalog, name: &str) -> Result<u64, Errno> {
        let found = catalog.lookup(NodeId::ROOT, OsStr::new(name), true).unwrap();
        found.map(|attr| attr.stat.size)
    }

    /// A file that came back, one that went and one that is another, since the names of their
    /// directory were read, which take their time to be told: `new` is stat'ed after that.
    #[test]
    fn a_listing_that_is_told_late_undoes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let source = Gated::new(root.path(), "none");
        let at = |name: &str| root.path().join(name);
        ["back", "gone", "other"].iter().for_each(|name| fs::write(at(name), "first").unwrap());
        let period = Some(Duration::from_secs(60));
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, period).unwrap());
        fs::remove_file(at("back")).unwrap();
        fs::write(at("new"), "new").unwrap();
        let (others, [back, gone, other]) =
            (Arc::clone(&catalog), ["back", "gone", "other"].map(at));
        source.after_stat("new", move || {
            fs::write(back, "second").unwrap();
            fs::remove_file(gone).unwrap();
            fs::write(other, "another").unwrap();
            for name in ["back", "gone", "other"] {
                others.refresh(NodeId::ROOT, OsStr::new(name)).unwrap();
            }
        });
        assert!(catalog.refresh_directory(NodeId::ROOT).unwrap().added);
        let sizes = ["back", "gone", "other", "new"].map(|name| size_of(&catalog, name));
        assert_eq!(sizes, [Ok(6), Err(Errno::ENOENT), Ok(7), Ok(3)]);
        let listed = catalog.list(NodeId::ROOT, true).unwrap().unwrap();
        assert!(listed.iter().map(|listed| &listed.name).eq(["back", "new", "other"]));
    }

    /// A file of an immutable source is found by the name that is left. No name is lost when all are
    /// away for a while.
    #[test]
    fn an_immutable_source_keeps_all_names_of_a_file() {
        let root = tempfile::tempdir().unwrap();
        let [first, second] = ["d/first", "d/second"].map(|name| root.path().join(name));
        fs::create_dir(root.path().join("d")).unwrap();
        fs::write(&first, "content").unwrap();
        fs::hard_link(&first, second).unwrap();
        let catalog = Catalog::scan(Gated::new(root.path(), "none"), 1, None).unwrap();
        let (directory, file) = (node_of(&catalog, "d"), node_of(&catalog, "d/first"));
        let refresh = || catalog.refresh(directory, OsStr::new("first"));
        let goes_by = || catalog.path(file).unwrap();

        fs::rename(root.path().join("d"), root.path().join("away")).unwrap();
        assert_eq!(refresh().err(), Some(Errno::ENOENT));
        fs::rename(root.path().join("away"), root.path().join("d")).unwrap();
        assert_eq!(goes_by(), Path::new("d/first"));

        fs::remove_file(first).unwrap();
        refresh().unwrap();
        assert_eq!(goes_by(), Path::new("d/second"));
        for name in ["d/first", "d/second"] {
            assert_eq!(node_of(&catalog, name), file);
        }
    }

    /// What the listing lacks is taken for gone where it was looked at at the same tick, if it is.
    #[test]
    fn a_name_that_went_right_after_a_look_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "first").unwrap();
        let source = Gated::new(root.path(), "none");
        let period = Some(Duration::from_secs(60));
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, period).unwrap());
        fs::write(root.path().join("new"), "new").unwrap();
        let others = Arc::clone(&catalog);
        source.after_stat("", move || {
            others.refresh(NodeId::ROOT, OsStr::new("file")).unwrap();
            fs::remove_file(path).unwrap();
        });
        assert!(catalog.refresh_directory(NodeId::ROOT).unwrap().removed);
        assert_eq!(size_of(&catalog, "file"), Err(Errno::ENOENT));
    }

    /// Each look at the directory finds that somebody has noted another version of it meanwhile.
    #[test]
    fn a_directory_that_changes_all_the_time_is_read_twice_at_most() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        let source = Gated::new(root.path(), "none");
        let period = Some(Duration::from_secs(60));
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, period).unwrap());
        let directory = node_of(&catalog, "d");
        fn change(source: &Arc<Gated>, catalog: &Arc<Catalog>, path: PathBuf, number: u32) {
            let (again, others) = (Arc::clone(source), Arc::clone(catalog));
            source.after_stat("d", move || {
                fs::write(path.join(number.to_string()), "new").unwrap();
                others.refresh(NodeId::ROOT, OsStr::new("d")).unwrap();
                change(&again, &others, path, number + 1);
            });
        }
        fs::write(root.path().join("d/first"), "new").unwrap();
        change(&source, &catalog, root.path().join("d"), 0);
        let before = source.listed.load(Ordering::Relaxed);
        assert!(catalog.refresh_directory(directory).unwrap().added);
        assert_eq!(source.listed.load(Ordering::Relaxed) - before, LISTINGS as u64);
        let listed = catalog.list(directory, true).unwrap().unwrap();
        assert!(listed.iter().map(|listed| &listed.name).eq(["0", "1", "first"]));
    }

    /// A directory that the scan has read since a reader did.
    #[test]
    fn a_first_listing_that_is_told_late_brings_nothing_back() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "first").unwrap();
        let source = Gated::new(root.path(), "none");
        let period = Some(Duration::from_secs(60));
        let catalog = Arc::new(Catalog::begin(source.clone(), period).unwrap());
        let others = Arc::clone(&catalog);
        source.after_stat("file", move || {
            others.fill(1, &AtomicBool::new(false), &|_| ());
            fs::remove_file(path).unwrap();
            assert!(others.refresh(NodeId::ROOT, OsStr::new("file")).unwrap().removed);
        });
        catalog.refresh_directory(NodeId::ROOT).unwrap();
        assert_eq!(size_of(&catalog, "file"), Err(Errno::ENOENT));
    }
}

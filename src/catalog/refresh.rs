//! Checking one name or one directory at the source, and noting what became of it.
//!
//! Several threads may check the same at the same time. What one has seen is noted only if no other has
//! noted a later check meanwhile; else it checks again. The last of its checks is noted in any case.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use nix::errno::Errno;

use super::Catalog;
use super::doubt::Known;
use super::node::NodeId;
use super::reading::read_names;
use super::tree::{Changes, Tree};
use crate::ids::FileId;
use crate::source::{Source, Stat};

/// Checks of one name at most, and of one directory, which may have to be read each time.
const NAME_CHECKS: usize = 4;
const DIRECTORY_CHECKS: usize = 2;

/// As [`Catalog::refresh`].
pub(super) fn name(catalog: &Catalog, parent: NodeId, name: &OsStr) -> Result<Changes, Errno> {
    for left in (0..NAME_CHECKS).rev() {
        if let Some(changes) = check_name(catalog, parent, name, left == 0)? {
            return Ok(changes);
        }
    }
    Ok(Changes::default())
}

/// As [`Catalog::refresh_directory`].
pub(super) fn directory(catalog: &Catalog, node: NodeId) -> Result<Changes, Errno> {
    let (mut changes, mut late) = Default::default();
    for left in (0..DIRECTORY_CHECKS).rev() {
        if let Some(found) = check_directory(catalog, node, left == 0)? {
            (changes, late) = found;
            break;
        }
    }
    for late in late {
        // A name stays as it is known if the source does not tell of it.
        if let Ok(found) = name(catalog, node, &late) {
            changes.join(found);
        }
    }
    Ok(changes)
}

/// Checks a name once. None if somebody has noted a later check meanwhile, unless this is the `last` one.
fn check_name(
    catalog: &Catalog,
    parent: NodeId,
    name: &OsStr,
    last: bool,
) -> Result<Option<Changes>, Errno> {
    let nothing = || Ok(Some(Changes::default()));
    let known = {
        let tree = catalog.read();
        let Ok(directory) = tree.resolve(parent) else { return nothing() };
        tree.entry(directory, name).map(|entry| (tree.path(directory).join(name), entry))
    };
    let Some((path, entry)) = known else { return directory(catalog, parent).map(Some) };
    // The answer may be as old as the question.
    let now = catalog.now();
    let seen = match ask(catalog, &path, entry) {
        Ok(Some(stat)) if is_confirmed(catalog, entry, &stat, now) => return nothing(),
        Ok(Some(stat)) => Some(stat),
        // It is as it was known, until the source says something else that can be believed.
        Ok(None) => {
            catalog.read().checks.confirm(entry, now);
            return nothing();
        }
        Err(Errno::ENOENT | Errno::ENOTDIR) if catalog.is_revalidated() => None,
        // A name of an immutable source stays, even if the source does not have it for a while.
        Err(Errno::ENOENT | Errno::ENOTDIR) if goes_by_another(catalog, entry) => return nothing(),
        Err(errno) => return Err(errno),
    };
    let mut tree = catalog.write();
    let Ok(directory) = tree.resolve(parent) else { return nothing() };
    let is_earlier = |row| row == entry && tree.checks.of_row(row) < now;
    if !last && !tree.entry(directory, name).is_some_and(is_earlier) {
        return Ok(None);
    }
    let mut changes = Changes::default();
    tree.apply(parent, name, seen.as_ref(), now, &mut changes);
    Ok(Some(catalog.count_if_renamed(changes)))
}

/// What a path is at the source; none if that is not believed of a name that is known as `entry`.
fn ask(catalog: &Catalog, path: &Path, entry: FileId) -> Result<Option<Stat>, Errno> {
    let known = Known::of(&catalog.read(), entry);
    let seen = look(&*catalog.source, path, known.as_ref())?;
    match known {
        Some(known) => catalog.doubts.believed(&*catalog.source, path, seen, &known),
        None => Ok(Some(seen)),
    }
}

/// The attributes of a path. If the source finds out sizes by reading, it is only asked for that of another version than
/// the known one.
fn look(source: &dyn Source, path: &Path, known: Option<&Known>) -> Result<Stat, Errno> {
    let names = path.parent().zip(path.file_name()).filter(|_| !source.tells_sizes());
    if let (Some(known), Some((parent, name))) = (known, names)
        && let Some(listed) = source.stat_all(parent, &[name.to_owned()]).pop()
    {
        let listed = listed?.sized_as(&known.stat);
        if listed.is_sized {
            return Ok(listed);
        }
    }
    source.stat(path)
}

/// Whether a row stands for what the source says. If so, that is noted.
fn is_confirmed(catalog: &Catalog, entry: FileId, stat: &Stat, now: u32) -> bool {
    let tree = catalog.read();
    let is_same = tree.is_as_known(tree.target(entry), stat);
    if is_same {
        tree.checks.confirm(entry, now);
    }
    is_same
}

/// Gives a file that is not there by its name another of its names by which it is there. Both names stay.
/// Says whether there is such a name. Blocks.
fn goes_by_another(catalog: &Catalog, file: FileId) -> bool {
    let (others, identity) = {
        let tree = catalog.read();
        let others: Vec<_> = tree.aliases_of(file).map(|alias| (alias, tree.path(alias))).collect();
        (others, tree.stat(file).identity)
    };
    let is_it = |stat: Stat| stat.identity == identity;
    let found = others.into_iter().find(|(_, path)| catalog.source.stat(path).is_ok_and(is_it));
    let Some((alias, _)) = found else { return false };
    let mut tree = catalog.write();
    let is_still = tree.aliases_of(file).any(|row| row == alias);
    if is_still {
        tree.go_by(alias);
    }
    is_still
}

/// Checks a directory once, as [`check_name`]. Returns names, too, that others have checked since this read
/// of the directory, which lacks them: they are to be checked by themselves.
fn check_directory(
    catalog: &Catalog,
    node: NodeId,
    last: bool,
) -> Result<Option<(Changes, Vec<OsString>)>, Errno> {
    let nothing = || Ok(Some(Default::default()));
    let (directory, path) = {
        let tree = catalog.read();
        let Ok(directory) = tree.resolve(node) else { return nothing() };
        (directory, tree.path(directory))
    };
    let turn = catalog.turns.take(directory);
    if turn.waited && catalog.is_current(&catalog.read(), directory) {
        return nothing();
    }
    let known = |tree: &Tree| (tree.stat(directory).fingerprint(), tree.is_unread(directory));
    let before = known(&catalog.read());
    let now = catalog.now();
    let stat = match catalog.source.stat(&path) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => return nothing(),
        found => found?,
    };
    // The order matters: who checks the directory's own name may note another version of it meanwhile, and
    // does not read that.
    if is_confirmed(catalog, directory, &stat, now) && !catalog.read().is_unread(directory) {
        return nothing();
    }
    let found = read_names(&*catalog.source, catalog.limits(), &path, |names| {
        let tree = catalog.read();
        names.iter().cloned().partition(|name| tree.entry(directory, name).is_some())
    })?;
    let mut tree = catalog.write();
    if !last && known(&tree) != before {
        return Ok(None);
    }
    let mut changes = Changes::default();
    tree.update(directory, &stat, &mut changes);
    tree.checks.set(directory, now);
    let late = tree.relist(directory, found, now, &mut changes);
    Ok(Some((catalog.count_if_renamed(changes), late)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::catalog::tests::{Gated, MINUTE, node_of};

    /// A file replaced by another, and one that comes back, while somebody who has looked before is
    /// not done yet.
    #[test]
    fn who_looked_earlier_undoes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let source = Gated::new(root.path(), "none");
        fs::write(root.path().join("file"), "first").unwrap();
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, MINUTE).unwrap());
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
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, MINUTE).unwrap());
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
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, MINUTE).unwrap());
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
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, MINUTE).unwrap());
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
        let catalog = Arc::new(Catalog::scan(source.clone(), 1, MINUTE).unwrap());
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
        assert_eq!(source.listed.load(Ordering::Relaxed) - before, DIRECTORY_CHECKS as u64);
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
        let catalog = Arc::new(Catalog::begin(source.clone(), MINUTE).unwrap());
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

//! The catalog against a plain model of a directory tree, over random changes at the source.

mod gated;
mod scan;
mod sizes;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::thread;
use std::time::UNIX_EPOCH;

pub(super) use gated::Gated;

use super::*;
use crate::source::{Kind, PosixSource};

/// A period of a minute, longer than any test.
pub(super) const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

/// A generator that is the same on every machine.
pub(super) struct Choice(pub(super) u64);

impl Choice {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The file of a saved catalog.
pub(super) fn at(path: &Path) -> AtomicFile {
    AtomicFile::at(path).unwrap()
}

fn opened(directory: &Path) -> Arc<dyn Source> {
    Arc::new(PosixSource::open(directory, 1).unwrap())
}

fn scanned(directory: &Path, period: Option<Duration>) -> Catalog {
    Catalog::scan(opened(directory), 3, period).unwrap()
}

/// A small tree with everything in it that tables can have.
pub(super) fn some_tree() -> Tree {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir_all(path("a/b")).unwrap();
    for name in ["a/1", "a/2", "a/b/3", "x"] {
        fs::write(path(name), name).unwrap();
    }
    fs::hard_link(path("a/1"), path("a/b/link")).unwrap();
    std::os::unix::fs::symlink("x", path("y")).unwrap();
    let catalog = scanned(directory.path(), None);
    fs::write(path("a/new"), "new").unwrap();
    fs::remove_file(path("a/2")).unwrap();
    let a = node_of(&catalog, "a");
    assert!(!catalog.refresh_directory(a).unwrap().is_empty());
    catalog.tree.into_inner()
}

pub(super) fn node_of(catalog: &Catalog, path: &str) -> NodeId {
    let step =
        |node, name: &str| catalog.lookup(node, OsStr::new(name), true).unwrap().unwrap().node;
    path.split('/').filter(|name| !name.is_empty()).fold(NodeId::ROOT, step)
}

/// All paths with what the catalog or the source has of them.
type Listing = BTreeMap<PathBuf, (u64, u64, i64)>;

fn of_catalog(catalog: &Catalog) -> Listing {
    let mut found = Listing::new();
    let mut queue = vec![(NodeId::ROOT, PathBuf::new())];
    while let Some((node, path)) = queue.pop() {
        let listed = catalog.list(node, true).unwrap().unwrap();
        assert!(listed.is_sorted_by(|a, b| a.name < b.name), "{path:?}");
        for Listed { name, attr, .. } in listed {
            let path = path.join(&name);
            let stat = attr.stat;
            let known = catalog.lookup(node, &name, true).unwrap().unwrap();
            assert_eq!((known.node, known.stat), (attr.node, stat));
            if stat.kind == Kind::Directory {
                assert_eq!(catalog.path(attr.node).unwrap(), path);
                queue.push((attr.node, path.clone()));
            } else {
                let (file, size) = catalog.file(attr.node).unwrap();
                assert_eq!(size, stat.size);
                assert_eq!(catalog.layout().blocks_of(file).len(), size.div_ceil(1 << 20) as usize);
                let (again, parent, name) = catalog.name(file).unwrap();
                let there = catalog.lookup(parent, &name, true).unwrap().unwrap();
                assert_eq!((again, there.node), (attr.node, attr.node));
            }
            found.insert(path, (stat.identity.1, stat.size, stat.mtime_ns));
        }
    }
    found
}

fn of_source(root: &Path) -> Listing {
    let mut found = Listing::new();
    let mut queue = vec![PathBuf::new()];
    while let Some(directory) = queue.pop() {
        for entry in fs::read_dir(root.join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let (path, meta) = (directory.join(entry.file_name()), entry.metadata().unwrap());
            let mtime_ns = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
            if meta.is_dir() {
                queue.push(path.clone());
            }
            found.insert(path, (meta.ino(), meta.size(), mtime_ns));
        }
    }
    found
}

/// Changes something at the source.
fn change(root: &Path, choice: &mut Choice) {
    let paths: Vec<PathBuf> = of_source(root).into_keys().collect();
    let Some(path) = paths.get(choice.below(paths.len().max(1) as u64) as usize) else {
        return fs::write(root.join("first"), "first").unwrap();
    };
    let path = root.join(path);
    let beside = path.with_file_name(format!("n{}", choice.below(40)));
    let is_dir = path.is_dir();
    // Names collide now and then, and what does not go does not.
    let _ = match choice.below(7) {
        0 => fs::write(&beside, vec![1; choice.below(3_000_000) as usize]),
        1 if !is_dir => fs::write(&path, vec![2; choice.below(5000) as usize]),
        2 if !is_dir => fs::hard_link(&path, &beside),
        3 => fs::rename(&path, &beside),
        4 if is_dir && choice.below(4) == 0 => fs::remove_dir_all(&path),
        4 if !is_dir => fs::remove_file(&path),
        5 => fs::create_dir(&beside).and_then(|()| fs::write(beside.join("inside"), "inside")),
        _ if !is_dir => fs::remove_file(&path).and_then(|()| fs::create_dir(&path)),
        _ => Ok(()),
    };
}

#[test]
fn a_catalog_follows_its_source_by_sweeps_and_saves() {
    let mut reopened = 0;
    for seed in 0..12 {
        let (root, saved) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = saved.path().join("catalog");
        let mut choice = Choice(seed);
        for _ in 0..30 {
            change(root.path(), &mut choice);
        }
        let mut catalog = scanned(root.path(), None);
        assert_eq!(of_catalog(&catalog), of_source(root.path()), "seed {seed}");
        for round in 0..8 {
            for _ in 0..choice.below(12) {
                change(root.path(), &mut choice);
            }
            catalog.save(&at(&path)).unwrap();
            let before = (of_catalog(&catalog), catalog.totals());
            catalog = match Catalog::open(opened(root.path()), None, &at(&path)) {
                Ok(catalog) => catalog,
                Err(error) => {
                    assert!(error.to_string().contains("gone"), "{error}");
                    catalog = scanned(root.path(), None);
                    continue;
                }
            };
            reopened += 1;
            assert_eq!((of_catalog(&catalog), catalog.totals()), before, "seed {seed}, {round}");
            assert_eq!(catalog.state(), CatalogState::Checking);
            catalog.sweep(1 + round % 3, &AtomicBool::new(false), &|_| ());
            assert_eq!(catalog.state(), CatalogState::Checked);
            assert_eq!(of_catalog(&catalog), of_source(root.path()), "seed {seed}, round {round}");
        }
    }
    assert!(reopened > 60, "{reopened}");
}

#[test]
fn numbers_and_versions_are_the_same_after_a_restart() {
    let (root, saved) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = saved.path().join("catalog");
    for name in ["b", "a", "c"] {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(root.path().join(name).join("file"), name).unwrap();
    }
    let catalog = scanned(root.path(), Some(Duration::ZERO));
    let names = ["a", "b", "c", "a/file", "b/file", "c/file"];
    let nodes = |catalog: &Catalog| names.map(|name| node_of(catalog, name).0);
    assert_eq!(nodes(&catalog), [2, 3, 4, 5, 6, 7], "from the root down, names sorted");
    fs::write(root.path().join("b/file"), "another").unwrap();
    assert_eq!(
        catalog.refresh(node_of(&catalog, "b"), OsStr::new("file")).unwrap().changed.len(),
        1
    );
    let before = nodes(&catalog);
    assert_eq!(before[4], 1 << 40 | 6, "a new version is a new node");
    catalog.save(&at(&path)).unwrap();
    let again = Catalog::open(opened(root.path()), None, &at(&path)).unwrap();
    assert_eq!(nodes(&again), before);
    assert!(!again.sweep(1, &AtomicBool::new(false), &|changes| panic!("{changes:?}")));
}

#[test]
fn a_saved_catalog_is_of_one_directory_and_not_mostly_of_files_that_are_gone() {
    let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = other.path().join("catalog");
    for name in 0..10 {
        fs::write(root.path().join(name.to_string()), "").unwrap();
    }
    let catalog = scanned(root.path(), MINUTE);
    catalog.save(&at(&path)).unwrap();
    let open = |directory: &Path| Catalog::open(opened(directory), None, &at(&path));
    assert!(open(root.path()).is_ok());
    assert!(open(other.path()).is_err_and(|error| error.to_string().contains("another")));
    (0..9).for_each(|name| fs::remove_file(root.path().join(name.to_string())).unwrap());
    assert!(catalog.refresh_directory(NodeId::ROOT).unwrap().removed);
    catalog.save(&at(&path)).unwrap();
    assert!(open(root.path()).is_err_and(|error| error.to_string().contains("gone")));
}

#[test]
fn a_row_is_checked_again_however_long_the_mount_has_been_there() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "before").unwrap();
    let mut catalog = scanned(root.path(), Some(DAY));
    let known = |catalog: &Catalog| catalog.lookup(NodeId::ROOT, OsStr::new("file"), false);
    // 2000 days are more than there are ticks.
    for days in [2, 60, 400, 2000] {
        assert!(known(&catalog).is_some(), "day {days}");
        catalog.clock.start -= DAY * days;
        assert!(known(&catalog).is_none(), "day {days}");
        fs::write(root.path().join("file"), vec![0; days as usize]).unwrap();
        assert_eq!(catalog.refresh(NodeId::ROOT, OsStr::new("file")).unwrap().changed.len(), 1);
    }
    assert!(known(&catalog).is_none(), "nothing is believed at the end of the ticks");
}

/// As if the catalog had begun then, and found the node at once.
fn found_at(catalog: &mut Catalog, start_ns: i64, node: NodeId) {
    let tree = catalog.tree.get_mut();
    tree.checks.start_ns = start_ns;
    tree.checks.set(tree.resolve(node).unwrap(), 1);
}

#[test]
fn what_was_seen_in_the_second_of_its_change_is_another_version_when_seen_again() {
    let root = tempfile::tempdir().unwrap();
    let name = OsStr::new("file");
    for coarse in [true, false] {
        fs::write(root.path().join(name), "bytes").unwrap();
        let source = Gated::with_times(root.path(), "none", coarse);
        let mut catalog = Catalog::scan(source, 1, MINUTE).unwrap();
        let node = node_of(&catalog, "file");
        // As if the scan had been right after the write, and again as if long after it.
        let written = catalog.getattr(node).unwrap().stat.ctime_ns;
        found_at(&mut catalog, written, node);
        assert_eq!(catalog.is_settled(node), !coarse);
        let (file, _) = catalog.file(node).unwrap();
        let block = catalog.layout().blocks_of(file).next().unwrap();
        let handed = Handed { block, pages: None, bytes: b"bytes" };
        let received = catalog.receive(node, &handed, Some(catalog.now()));
        let expected = if coarse { Received::Unsettled } else { Received::Settled };
        assert_eq!(received, expected);
        assert_eq!(catalog.is_settled(node), !coarse, "reading it settles nothing");
        let changes = catalog.refresh(NodeId::ROOT, name).unwrap();
        assert_eq!(changes.changed.len(), usize::from(coarse), "{changes:?}");
        catalog.tree.get_mut().checks.start_ns = written + 2_000_000_000;
        let node = node_of(&catalog, "file");
        assert!(
            catalog.is_settled(node) && catalog.refresh(NodeId::ROOT, name).unwrap().is_empty()
        );
    }
}

/// Names of 20 bytes, as ImageNet's.
#[test]
fn a_file_takes_few_bytes() {
    const FILES: usize = 20_000;
    let root = tempfile::tempdir().unwrap();
    let source = opened(root.path());
    let mut tree = Tree::root(&source.stat(Path::new("")).unwrap());
    let stat = Stat { kind: Kind::File, ..tree.stat(FileId(0)) };
    let nodes: BTreeSet<FileId> = (0..FILES)
        .map(|number| {
            let name = format!("n01440764_{number:05}.JPEG");
            tree.add(FileId(0), OsStr::new(&name), &stat, 0).unwrap()
        })
        .collect();
    assert_eq!(nodes.len(), FILES);
    let row = size_of::<row::Row>() + size_of::<std::sync::atomic::AtomicU32>();
    assert!(row + tree.tables.names.bytes() / FILES <= 81 && tree.tables.classes.len() <= 2);
}

#[test]
fn a_name_that_came_in_the_second_in_which_its_directory_was_read_is_found() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    let source = || Gated::with_times(root.path(), "none", true);
    let mut catalog = Catalog::scan(source(), 1, MINUTE).unwrap();
    let directory = node_of(&catalog, "d");
    // As if the directory had been made, read and added to in one second.
    let made = catalog.getattr(directory).unwrap().stat.ctime_ns;
    found_at(&mut catalog, made, directory);
    fs::write(root.path().join("d/late"), "late").unwrap();
    let time = fs::File::open(root.path().join("d")).unwrap();
    time.set_modified(UNIX_EPOCH + Duration::from_nanos(made as u64)).unwrap();
    let path = root.path().join("catalog");
    catalog.save(&at(&path)).unwrap();
    assert!(catalog.refresh_directory(directory).unwrap().added);
    node_of(&catalog, "d/late");
    let again = Catalog::open(source(), MINUTE, &at(&path)).unwrap();
    assert!(again.list(node_of(&again, "d"), false).is_none(), "to be read again");
    again.sweep(1, &AtomicBool::new(false), &|_| ());
    node_of(&again, "d/late");
}

#[test]
fn a_directory_with_a_new_name_is_asked_for_that_name_alone_and_by_one() {
    one_asks(0);
    // Too slow for one thread.
    one_asks(100);
}

fn one_asks(delay_us: u64) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    (0..200).for_each(|n| fs::write(root.path().join(format!("d/{n:03}")), "x").unwrap());
    let source = Gated::new(root.path(), "d");
    let catalog = Catalog::scan(Arc::clone(&source) as Arc<dyn Source>, 2, MINUTE).unwrap();
    let directory = node_of(&catalog, "d");
    (0..130).for_each(|n| fs::write(root.path().join(format!("d/new{n:03}")), "x").unwrap());
    let (listed, asked) =
        (source.listed.load(Ordering::Relaxed), source.asked.load(Ordering::Relaxed));
    source.delay_us.store(delay_us, Ordering::Relaxed);
    source.hold(true);
    let added = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let changes = catalog.refresh_directory(directory).unwrap();
                added.fetch_add(u64::from(changes.added), Ordering::Relaxed);
            });
        }
        while source.listed.load(Ordering::Relaxed) == listed {
            thread::yield_now();
        }
        source.hold(false);
    });
    assert_eq!(catalog.list(directory, false).unwrap().unwrap().len(), 330);
    assert_eq!((added.into_inner(), source.listed.load(Ordering::Relaxed) - listed), (1, 1));
    // Each of the five may look whether the directory has changed.
    let asked = source.asked.load(Ordering::Relaxed) - asked;
    assert!((131..=135).contains(&asked), "{asked}");
}

#[test]
fn a_sweep_that_the_source_refuses_is_not_over() {
    let root = tempfile::tempdir().unwrap();
    for directory in ["a", "b"] {
        fs::create_dir(root.path().join(directory)).unwrap();
        fs::write(root.path().join(directory).join("file"), "before").unwrap();
    }
    let path = root.path().join("catalog");
    scanned(root.path(), None).save(&at(&path)).unwrap();
    fs::write(root.path().join("b/file"), "after all").unwrap();
    let source = Gated::new(root.path(), "b/file");
    let again = Catalog::open(Arc::clone(&source) as Arc<dyn Source>, None, &at(&path)).unwrap();
    source.mute.store(true, Ordering::Relaxed);
    let sweep = || again.sweep(2, &AtomicBool::new(false), &|_| ());
    sweep();
    assert_eq!(again.state(), CatalogState::Checking);
    let size = || again.getattr(node_of(&again, "b/file")).unwrap().stat.size;
    assert_eq!(size(), 6);
    source.mute.store(false, Ordering::Relaxed);
    sweep();
    assert_eq!((again.state(), size()), (CatalogState::Checked, 9));
}

#[test]
fn a_sweep_has_as_many_threads_as_the_source_serves_best() {
    let root = tempfile::tempdir().unwrap();
    for directory in 0..40 {
        let directory = root.path().join(directory.to_string());
        fs::create_dir(&directory).unwrap();
        (0..5).for_each(|n| fs::write(directory.join(n.to_string()), "x").unwrap());
    }
    let path = root.path().join("catalog");
    scanned(root.path(), None).save(&at(&path)).unwrap();
    // It begins with an eighth of 64 threads.
    for (stats, gathers) in [(1, 1), (20, 9)] {
        let source = Gated::new(root.path(), "");
        source.delay_us.store(1000, Ordering::Relaxed);
        let again = Catalog::open(Arc::clone(&source) as Arc<dyn Source>, None, &at(&path));
        let again = again.unwrap().with_limits(move || MetadataLimits { lists: 1, stats });
        source.stats.gather(gathers, gathers);
        again.sweep(64, &AtomicBool::new(false), &|_| ());
        assert_eq!(again.state(), CatalogState::Checked);
        let most = source.stats.most.load(Ordering::Relaxed);
        assert!((gathers..=u64::from(stats)).contains(&most), "{most}");
    }
}

#[test]
fn a_sweep_looks_at_names_that_new_ones_have_pushed_away() {
    let root = tempfile::tempdir().unwrap();
    (0..500).for_each(|n| fs::write(root.path().join(format!("old{n:03}")), "x").unwrap());
    let path = root.path().join("catalog");
    scanned(root.path(), None).save(&at(&path)).unwrap();
    (0..100).for_each(|n| fs::write(root.path().join(format!("new{n:03}")), "x").unwrap());
    fs::write(root.path().join("old499"), "after all").unwrap();
    for threads in [1, 4] {
        let again = Catalog::open(opened(root.path()), None, &at(&path)).unwrap();
        assert!(again.sweep(threads, &AtomicBool::new(false), &|_| ()));
        assert_eq!(again.state(), CatalogState::Checked);
        assert_eq!(again.getattr(node_of(&again, "old499")).unwrap().stat.size, 9);
    }
}

/// Who saves the tables takes no memory for them, and has them as they were.
#[test]
fn tables_that_are_being_saved_are_copied_only_where_something_changes() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "first").unwrap();
    let catalog = scanned(root.path(), MINUTE);
    let saved = catalog.tables();
    assert!(Arc::ptr_eq(&saved.rows, &catalog.read().tables.rows));
    fs::write(root.path().join("file"), "another").unwrap();
    fs::write(root.path().join("new"), "new").unwrap();
    catalog.refresh(NodeId::ROOT, OsStr::new("file")).unwrap();
    assert!(catalog.refresh_directory(NodeId::ROOT).unwrap().added);
    let size = |tables: &Tables| tables.rows[1].stat(&tables.classes[1]).size;
    assert_eq!((saved.rows.len(), size(&saved), saved.names.bytes()), (2, 5, 1 + 5));
    let now = catalog.tables();
    assert_eq!((now.rows.len(), size(&now), now.names.bytes()), (3, 7, 1 + 5 + 4));
}

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

//! The catalog against a plain model of a directory tree, over random changes at the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::*;
use crate::source::{Kind, PosixSource, ReadRequest};

/// A generator that is the same on every machine.
pub(super) struct Choice(pub(super) u64);

impl Choice {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn opened(directory: &Path) -> Arc<dyn Source> {
    Arc::new(PosixSource::open(directory, 1).unwrap())
}

fn scanned(directory: &Path, period: Option<Duration>) -> Catalog {
    Catalog::scan(opened(directory), 3, period, &AtomicU64::new(0)).unwrap()
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
    catalog.tree.into_inner().unwrap()
}

fn node_of(catalog: &Catalog, path: &str) -> NodeId {
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
        for Listed { name, attr } in listed {
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
            catalog.save(&path).unwrap();
            let before = (of_catalog(&catalog), catalog.totals());
            catalog = match Catalog::open(opened(root.path()), None, &path) {
                Ok(catalog) => catalog,
                Err(error) => {
                    assert!(error.to_string().contains("gone"), "{error}");
                    catalog = scanned(root.path(), None);
                    continue;
                }
            };
            reopened += 1;
            assert_eq!((of_catalog(&catalog), catalog.totals()), before, "seed {seed}, {round}");
            assert_eq!(catalog.state(), "checking");
            catalog.sweep(1 + round % 3, &AtomicBool::new(false), &|_| ());
            assert_eq!(catalog.state(), "checked");
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
    catalog.save(&path).unwrap();
    let again = Catalog::open(opened(root.path()), None, &path).unwrap();
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
    let catalog = scanned(root.path(), None);
    catalog.save(&path).unwrap();
    let open = |directory: &Path| Catalog::open(opened(directory), None, &path);
    assert!(open(root.path()).is_ok());
    assert!(open(other.path()).is_err_and(|error| error.to_string().contains("another")));
    (0..9).for_each(|name| fs::remove_file(root.path().join(name.to_string())).unwrap());
    assert!(catalog.refresh_directory(NodeId::ROOT).unwrap().removed);
    catalog.save(&path).unwrap();
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
        catalog.start -= DAY * days;
        assert!(known(&catalog).is_none(), "day {days}");
        fs::write(root.path().join("file"), vec![0; days as usize]).unwrap();
        assert_eq!(catalog.refresh(NodeId::ROOT, OsStr::new("file")).unwrap().changed.len(), 1);
    }
    assert!(known(&catalog).is_none(), "nothing is believed at the end of the ticks");
}

/// A directory whose times are whole seconds.
struct Coarse(PosixSource);

impl Source for Coarse {
    fn list(&self, directory: &Path) -> Result<Vec<OsString>, Errno> {
        self.0.list(directory)
    }

    fn stat(&self, path: &Path) -> Result<Stat, Errno> {
        let mut stat = self.0.stat(path)?;
        for time in [&mut stat.atime_ns, &mut stat.mtime_ns, &mut stat.ctime_ns] {
            *time -= time.rem_euclid(1_000_000_000);
        }
        Ok(stat)
    }

    fn read_link(&self, path: &Path) -> Result<OsString, Errno> {
        self.0.read_link(path)
    }

    fn list_xattrs(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.0.list_xattrs(path)
    }

    fn xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        self.0.xattr(path, name)
    }

    fn space(&self) -> Result<[u64; 7], Errno> {
        self.0.space()
    }

    fn read(&self, requests: Vec<ReadRequest>) {
        self.0.read(requests);
    }
}

#[test]
fn what_was_seen_in_the_second_of_its_change_is_another_version_when_seen_again() {
    let root = tempfile::tempdir().unwrap();
    let name = OsStr::new("file");
    for coarse in [true, false] {
        fs::write(root.path().join(name), "bytes").unwrap();
        let source = PosixSource::open(root.path(), 1).unwrap();
        let source: Arc<dyn Source> =
            if coarse { Arc::new(Coarse(source)) } else { Arc::new(source) };
        let period = Some(Duration::from_secs(60));
        let mut catalog = Catalog::scan(source, 1, period, &AtomicU64::new(0)).unwrap();
        let node = node_of(&catalog, "file");
        // As if the scan had been right after the write, and again as if long after it.
        let written = catalog.getattr(node).unwrap().stat.ctime_ns;
        catalog.tree.get_mut().unwrap().clock.start_ns = written;
        assert_eq!(catalog.is_settled(node), !coarse);
        catalog.seen(node);
        assert_eq!(catalog.is_settled(node), !coarse, "reading it settles nothing");
        let changes = catalog.refresh(NodeId::ROOT, name).unwrap();
        assert_eq!(changes.changed.len(), usize::from(coarse), "{changes:?}");
        catalog.tree.get_mut().unwrap().clock.start_ns = written + 2_000_000_000;
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
    let mut tree = Tree::new(source.stat(Path::new("")).unwrap(), Vec::new()).unwrap();
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

//! Scans of trees in which a directory fails, hangs, or is asked for before its turn.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use super::*;
use crate::catalog::paths::for_each_path;

/// Twenty directories of a few files, one of them below another, and a file with two names.
fn some_tree() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for directory in (0..20).map(|number| format!("d{number:02}")).chain(["d07/below".into()]) {
        fs::create_dir_all(root.path().join(&directory)).unwrap();
        for file in 0..5 {
            fs::write(root.path().join(&directory).join(format!("f{file}")), "bytes").unwrap();
        }
    }
    fs::hard_link(root.path().join("d03/f1"), root.path().join("d15/again")).unwrap();
    root
}

/// All paths of files, with their rows and versions.
fn rows(catalog: &Catalog) -> BTreeMap<PathBuf, (FileId, Fingerprint)> {
    let mut found = BTreeMap::new();
    catalog.for_each_file(|path, file, stat| {
        assert!(found.insert(path.to_path_buf(), (file, stat.fingerprint())).is_none());
    });
    found
}

fn node_of(catalog: &Catalog, parent: NodeId, name: &str) -> NodeId {
    catalog.lookup(parent, OsStr::new(name), false).unwrap().unwrap().node
}

/// A catalog of a source that serves so many calls best.
fn limited(source: &Arc<Gated>, lists: u32, stats: u32) -> Catalog {
    let source = Arc::clone(source) as Arc<dyn Source>;
    let catalog = Catalog::begin(source, None).unwrap();
    catalog.with_limits(move || MetadataLimits { lists, stats })
}

#[test]
fn rows_have_the_same_numbers_whoever_is_first() {
    let root = some_tree();
    fs::create_dir(root.path().join("wide")).unwrap();
    (0..300).for_each(|n| fs::write(root.path().join(format!("wide/{n:03}")), "x").unwrap());
    let scan = |threads, delay_us| {
        let source = Gated::new(root.path(), "");
        source.delay_us.store(delay_us, Ordering::Relaxed);
        Catalog::scan(source, threads, None).unwrap()
    };
    let expected = rows(&scan(1, 0));
    assert_eq!(expected.len(), 405, "the second name is no file of its own");
    for (threads, delay_us) in [(2, 0), (7, 0), (40, 0), (1, 100), (7, 100)] {
        assert_eq!(rows(&scan(threads, delay_us)), expected);
    }
}

#[test]
fn no_more_is_asked_for_at_once_than_the_source_serves_best() {
    let root = some_tree();
    (0..300).for_each(|n| fs::write(root.path().join(format!("d04/{n:03}")), "x").unwrap());
    let expected = rows(&Catalog::scan(Gated::new(root.path(), ""), 1, None).unwrap());
    for (lists, stats) in [(1, 1), (2, 3), (5, 1)] {
        let source = Gated::new(root.path(), "");
        // So slow that names are left for jobs of their own.
        source.delay_us.store(200, Ordering::Relaxed);
        let catalog = limited(&source, lists, stats);
        catalog.fill(40, &AtomicBool::new(false), &|_| ());
        assert_eq!(rows(&catalog), expected);
        let most = [&source.lists, &source.stats].map(|calls| calls.most.load(Ordering::Relaxed));
        // The first names of a directory are asked for while it is listed.
        assert!(most[0] <= u64::from(lists) && most[1] <= u64::from(lists + stats), "{most:?}");
    }
}

/// A reader does not wait until the limit is found, and does not ask for more than a few dozen names at once.
#[test]
fn the_names_of_a_directory_that_a_reader_waits_for_are_asked_for_by_many_threads() {
    let root = tempfile::tempdir().unwrap();
    (0..300).for_each(|n| fs::write(root.path().join(n.to_string()), "x").unwrap());
    for (stats, threads) in [(1, 16), (1000, 64)] {
        let source = Gated::new(root.path(), "");
        // The first names take long, and the others are left.
        source.delay_us.store(2000, Ordering::Relaxed);
        source.stats.gather(1, threads);
        let catalog = limited(&source, 1, stats);
        assert!(catalog.refresh_directory(NodeId::ROOT).unwrap().added);
        assert_eq!(catalog.list(NodeId::ROOT, false).unwrap().unwrap().len(), 300);
        assert_eq!(source.stats.most.load(Ordering::Relaxed), threads);
    }
}

/// A source that finds out during the scan that it serves more at once.
#[test]
fn threads_are_started_when_the_limit_rises() {
    let root = some_tree();
    let source = Gated::new(root.path(), "d05");
    let lists = Arc::new(AtomicU32::new(1));
    source.hold(true);
    let catalog = Catalog::begin(Arc::clone(&source) as Arc<dyn Source>, None).unwrap();
    let found = Arc::clone(&lists);
    let limits = move || MetadataLimits { lists: found.load(Ordering::Relaxed), stats: 1 };
    let catalog = catalog.with_limits(limits);
    thread::scope(|scope| {
        scope.spawn(|| catalog.fill(8, &AtomicBool::new(false), &|_| ()));
        let are_listed = |count| {
            let is_time = |_| {
                thread::sleep(Duration::from_millis(1));
                source.listed.load(Ordering::Relaxed) >= count
            };
            (0..180_000).any(is_time)
        };
        // The root, and the directories up to the one that does not answer.
        let before = are_listed(7);
        lists.store(2, Ordering::Relaxed);
        let all = are_listed(21);
        source.hold(false);
        assert!(before && all);
    });
    assert!(catalog.scan_status().is_whole);
    assert_eq!(source.lists.most.load(Ordering::Relaxed), 2);
}

#[test]
fn a_reader_ahead_of_the_scan_finds_what_is_there() {
    let root = some_tree();
    let expected = rows(&Catalog::scan(Gated::new(root.path(), ""), 4, None).unwrap());
    let source = Gated::new(root.path(), "d05");
    let catalog = Catalog::begin(Arc::clone(&source) as Arc<dyn Source>, None).unwrap();
    assert_eq!(catalog.state(), CatalogState::Scanning);
    source.hold(true);
    let (added, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let report = |changes: Changes| {
        added.fetch_add(usize::from(changes.added), Ordering::Relaxed);
    };
    thread::scope(|scope| {
        scope.spawn(|| catalog.fill(3, &over, &report));
        let status = catalog.await_scan(Duration::from_secs(60), |status| status.has_files);
        assert!(status.has_files && !status.is_over, "{status:?}");
        // What comes behind the directory that does not answer is not there yet.
        let late = node_of(&catalog, NodeId::ROOT, "d07");
        assert!(catalog.list(late, false).is_none() && catalog.read().is_unread(FileId(8)));
        assert!(!catalog.refresh_directory(late).unwrap().is_empty());
        assert_eq!(catalog.list(late, false).unwrap().unwrap().len(), 6);
        let below = node_of(&catalog, late, "below");
        assert!(catalog.lookup(below, OsStr::new("f2"), false).is_none());
        let changes = catalog.refresh(below, OsStr::new("f2")).unwrap();
        assert!(changes.added);
        catalog.lookup(below, OsStr::new("f2"), false).unwrap().unwrap();
        let path = root.path().join("catalog");
        catalog.save(&at(&path)).unwrap();
        assert!(!path.exists(), "what is not whole is not saved");
        source.hold(false);
    });
    assert_eq!((catalog.state(), catalog.scan_status().is_whole), (CatalogState::Scanned, true));
    assert!(added.into_inner() > 0);
    let found = rows(&catalog);
    let versions = |rows: &BTreeMap<PathBuf, (FileId, Fingerprint)>| {
        rows.iter().map(|(path, row)| (path.clone(), row.1)).collect::<Vec<_>>()
    };
    assert_eq!(versions(&found), versions(&expected));
    assert_ne!(found, expected, "what the reader asked for was numbered first");
    assert_eq!(catalog.read().tables.rows.len(), 1 + 21 + 105 + 1);
}

#[test]
fn what_the_source_does_not_tell_is_asked_for_again() {
    let root = some_tree();
    let source = Gated::new(root.path(), "d07");
    source.fails.store(true, Ordering::Relaxed);
    let catalog = Catalog::begin(Arc::clone(&source) as Arc<dyn Source>, None).unwrap();
    let over = AtomicBool::new(false);
    catalog.fill(3, &over, &|_| ());
    let status = catalog.scan_status();
    assert_eq!(status.fault, Some(("d07".into(), Errno::EIO)));
    assert!(status.is_over && !status.is_whole);
    assert_eq!(rows(&catalog).len(), 95, "the rest is there");
    let unread = node_of(&catalog, NodeId::ROOT, "d07");
    assert_eq!(catalog.refresh_directory(unread).unwrap_err(), Errno::EIO);
    source.fails.store(false, Ordering::Relaxed);
    let before = source.listed.load(Ordering::Relaxed);
    catalog.fill(3, &over, &|_| ());
    assert!(catalog.scan_status().is_whole && catalog.scan_status().fault.is_none());
    assert_eq!(rows(&catalog).len(), 105);
    assert_eq!(source.listed.load(Ordering::Relaxed) - before, 2, "only what is not known");
}

#[test]
fn a_panic_is_a_fault_of_one_directory() {
    let root = some_tree();
    let source = Gated::new(root.path(), "d07");
    source.panics.store(true, Ordering::Relaxed);
    let catalog = limited(&source, 1, 1);
    catalog.fill(3, &AtomicBool::new(false), &|_| ());
    assert_eq!(catalog.scan_status().fault, Some(("d07".into(), Errno::EIO)));
    assert_eq!(rows(&catalog).len(), 95, "the rest is there");
}

#[test]
fn a_root_that_cannot_be_read_is_an_error_and_an_end_is_an_end() {
    let root = some_tree();
    let source = Gated::new(root.path(), "");
    source.fails.store(true, Ordering::Relaxed);
    let fault = Catalog::scan(source, 3, None).map(|_| ()).unwrap_err();
    assert_eq!(fault, (PathBuf::new(), Errno::EIO));
    let catalog = Catalog::begin(Gated::new(root.path(), ""), None).unwrap();
    catalog.fill(3, &AtomicBool::new(true), &|_| ());
    assert!(catalog.scan_status().is_over && !catalog.scan_status().is_whole);
}

/// Listing of a directory: names, and of which the source could say what they are.
fn listed(catalog: &Catalog, directory: NodeId) -> Vec<(String, bool)> {
    let listed = catalog.list(directory, true).unwrap().unwrap();
    listed.into_iter().map(|name| (name.name.into_string().unwrap(), name.sure)).collect()
}

/// The error of a name is that name's alone: for the scan, for a reader ahead of it, in the saved
/// catalog and its check; the name is served as soon as the source says what it is.
#[test]
fn a_name_that_the_source_says_nothing_of_is_asked_for_alone() {
    for (path, ahead) in [("d07/f2", false), ("d07/f2", true)] {
        let (root, saved) = (some_tree(), tempfile::tempdir().unwrap());
        let place = at(&saved.path().join("catalog"));
        let name = OsStr::new(path.split_once('/').unwrap().1);
        let source = Gated::new(root.path(), path);
        source.mute.store(true, Ordering::Relaxed);
        let over = AtomicBool::new(false);
        let catalog = Catalog::begin(Arc::clone(&source) as Arc<dyn Source>, MINUTE).unwrap();
        if ahead {
            catalog.refresh_directory(NodeId::ROOT).unwrap();
            catalog.refresh_directory(node_of(&catalog, NodeId::ROOT, "d07")).unwrap();
        }
        catalog.fill(3, &over, &|_| ());
        assert!(catalog.scan_status().is_whole, "{:?}", catalog.scan_status());
        catalog.save(&place).unwrap();
        let again = Catalog::open(source.clone(), MINUTE, &place).unwrap();
        assert!(!again.sweep(1, &over, &|found| panic!("{found:?}")));
        assert_eq!(again.state(), CatalogState::Checked);
        for catalog in [&catalog, &again] {
            let directory = node_of(catalog, NodeId::ROOT, "d07");
            let expected = ["below", "f0", "f1", "f2", "f3", "f4"];
            assert_eq!(listed(catalog, directory), expected.map(|n| (n.into(), n != name)));
            catalog.lookup(directory, OsStr::new("f3"), false).unwrap().unwrap();
            assert!(catalog.lookup(directory, name, false).is_none(), "the source is asked");
            assert_eq!(catalog.refresh(directory, name).unwrap_err(), Errno::EIO);
            assert!(!rows(catalog).contains_key(Path::new(path)));
            let row = catalog.read().entry(FileId(8), name).unwrap();
            let mut in_orders = Vec::new();
            for_each_path(catalog, &[], |found, file, _| {
                in_orders.extend((found == Path::new(path)).then_some(file));
            });
            assert_eq!(in_orders, [row]);
            source.mute.store(false, Ordering::Relaxed);
            let changes = catalog.refresh(directory, name).unwrap();
            let found = catalog.lookup(directory, name, false).unwrap().unwrap();
            assert_eq!((found.node.file(), found.stat.identity != (0, 0)), (Some(row), true));
            assert_eq!((found.stat.size, rows(catalog).len()), (5, 105));
            assert_eq!(changes.changed, [row]);
            source.mute.store(true, Ordering::Relaxed);
        }
        source.mute.store(false, Ordering::Relaxed);
        let healed = Catalog::open(source.clone(), MINUTE, &place).unwrap();
        let found = AtomicUsize::new(0);
        healed.sweep(1, &over, &|_| _ = found.fetch_add(1, Ordering::Relaxed));
        assert_eq!((found.into_inner(), healed.state()), (1, CatalogState::Checked));
    }
}

/// Of a directory it is not known what is below it: the scan is not whole, though its siblings are served.
#[test]
fn a_directory_that_the_source_says_nothing_of_is_scanned_when_it_does() {
    for ahead in [false, true] {
        let root = some_tree();
        let source = Gated::new(root.path(), "d07/below");
        source.mute.store(true, Ordering::Relaxed);
        let over = AtomicBool::new(false);
        let catalog = Catalog::begin(Arc::clone(&source) as Arc<dyn Source>, MINUTE).unwrap();
        if ahead {
            catalog.refresh_directory(NodeId::ROOT).unwrap();
            catalog.refresh_directory(node_of(&catalog, NodeId::ROOT, "d07")).unwrap();
        }
        for _ in 0..2 {
            catalog.fill(3, &over, &|_| ());
            let status = catalog.scan_status();
            assert_eq!(status.fault, Some(("d07/below".into(), Errno::EIO)));
            assert!(!status.is_whole && status.unsure.is_none());
            let directory = node_of(&catalog, NodeId::ROOT, "d07");
            assert!(catalog.lookup(directory, OsStr::new("f3"), false).unwrap().is_ok());
            assert!(catalog.lookup(directory, OsStr::new("below"), false).is_none());
        }
        source.mute.store(false, Ordering::Relaxed);
        catalog.fill(3, &over, &|_| ());
        assert!(catalog.scan_status().is_whole);
        assert_eq!(rows(&catalog).len(), 105);
    }
}

/// A check of a saved catalog comes to what is below such a directory, on however many threads.
#[test]
fn what_is_below_a_directory_that_said_nothing_is_found_by_the_check() {
    let (root, saved) = (some_tree(), tempfile::tempdir().unwrap());
    let (place, over) = (at(&saved.path().join("catalog")), AtomicBool::new(false));
    let source = Gated::new(root.path(), "d07/new");
    let catalog = Catalog::scan(Arc::clone(&source) as Arc<dyn Source>, 3, MINUTE).unwrap();
    fs::create_dir_all(root.path().join("d07/new/below")).unwrap();
    fs::write(root.path().join("d07/new/below/one"), "x").unwrap();
    source.mute.store(true, Ordering::Relaxed);
    let directory = node_of(&catalog, NodeId::ROOT, "d07");
    catalog.refresh_directory(directory).unwrap();
    assert!(listed(&catalog, directory).contains(&("new".into(), false)));
    catalog.save(&place).unwrap();
    source.mute.store(false, Ordering::Relaxed);
    for threads in [1, 4] {
        let again = Catalog::open(source.clone(), MINUTE, &place).unwrap();
        again.sweep(threads, &over, &|_| ());
        assert_eq!((rows(&again).len(), again.state()), (106, CatalogState::Checked));
    }
}

#[test]
fn a_further_name_of_a_file_is_known_for_one_when_the_source_says_what_it_is() {
    let root = some_tree();
    let source = Gated::new(root.path(), "d15/again");
    source.mute.store(true, Ordering::Relaxed);
    let muted = Arc::clone(&source) as Arc<dyn Source>;
    let refused = Catalog::scan(Arc::clone(&muted), 3, None).err();
    assert_eq!(refused, Some(("d15/again".into(), Errno::EIO)), "who exports wants all");
    let catalog = Catalog::begin(muted, None).unwrap();
    catalog.fill(3, &AtomicBool::new(false), &|_| ());
    source.mute.store(false, Ordering::Relaxed);
    let [first, other] = ["d03", "d15"].map(|name| node_of(&catalog, NodeId::ROOT, name));
    catalog.refresh(other, OsStr::new("again")).unwrap();
    assert_eq!(node_of(&catalog, other, "again"), node_of(&catalog, first, "f1"));
    assert_eq!(rows(&catalog).len(), 105);
}

#[test]
fn where_the_source_says_nothing_of_many_names_the_scan_is_not_whole_until_it_does() {
    let root = some_tree();
    fs::create_dir(root.path().join("wide")).unwrap();
    (0..300).for_each(|n| fs::write(root.path().join(format!("wide/{n:03}")), "x").unwrap());
    let source = Gated::new(root.path(), "wide/0");
    source.mute.store(true, Ordering::Relaxed);
    let catalog = Catalog::begin(Arc::clone(&source) as Arc<dyn Source>, None).unwrap();
    let over = AtomicBool::new(false);
    for _ in 0..2 {
        catalog.fill(3, &over, &|_| ());
        let status = catalog.scan_status();
        assert!(status.is_over && !status.is_whole, "{status:?}");
        assert_eq!((status.fault.unwrap().1, rows(&catalog).len()), (Errno::EIO, 305));
    }
    source.mute.store(false, Ordering::Relaxed);
    catalog.fill(3, &over, &|_| ());
    assert!(catalog.scan_status().is_whole && catalog.scan_status().fault.is_none());
    assert_eq!(rows(&catalog).len(), 405);
}

//! Files whose sizes the source does not list.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::ids::BLOCK_BYTES;
use crate::page_size::page_bytes;

const GUESS: u64 = 100;

/// A directory with files of some sizes, by their names, and a catalog of it that has guesses.
fn guessed(sizes: &[(&str, usize)]) -> (tempfile::TempDir, Arc<Gated>, Catalog) {
    let root = tempfile::tempdir().unwrap();
    for (name, size) in sizes {
        fs::write(root.path().join(name), vec![7; *size]).unwrap();
    }
    let source = Gated::new(root.path(), "none");
    source.guess.store(GUESS, Ordering::Relaxed);
    let catalog = Catalog::scan(source.clone(), 1, None).unwrap();
    (root, source, catalog)
}

fn look(catalog: &Catalog, name: &str, believe: bool) -> Option<Stat> {
    let found = catalog.lookup(NodeId::ROOT, OsStr::new(name), believe);
    found.map(|attr| attr.unwrap().stat)
}

fn pages(catalog: &Catalog) -> u64 {
    catalog.layout().pages_bytes_of_all()
}

#[test]
fn a_lookup_finds_a_size_out() {
    let large = 2 * BLOCK_BYTES as usize;
    let sizes = [("empty", 0), ("guess", GUESS as usize), ("large", large), ("small", 5)];
    let (_root, _source, catalog) = guessed(&sizes);
    let counted = pages(&catalog);
    for (name, size) in sizes {
        let believed = look(&catalog, name, true).unwrap();
        assert_eq!((believed.size, believed.is_sized), (GUESS, false));
        assert_eq!(look(&catalog, name, false), None, "nobody is told the guess");
        let node = node_of(&catalog, name);
        let changes = catalog.refresh(NodeId::ROOT, OsStr::new(name)).unwrap();
        let has_other_blocks = (size as u64).div_ceil(BLOCK_BYTES) != 1;
        assert_eq!((changes.changed.len(), changes.names), (has_other_blocks.into(), vec![]));
        let found = look(&catalog, name, false).unwrap();
        assert_eq!((found.size, found.is_sized), (size as u64, true));
        assert_eq!(node_of(&catalog, name), node, "it is no other version");
        let (file, _) = catalog.file(node).unwrap();
        assert_eq!(catalog.layout().blocks_in(file, 0, u64::MAX).len(), size.div_ceil(1 << 20));
    }
    let page = page_bytes();
    assert_eq!(pages(&catalog), counted - 2 * page + 2 * BLOCK_BYTES);
}

#[test]
fn a_size_that_came_with_the_bytes_is_taken_once() {
    let (_root, source, catalog) = guessed(&[("file", 5)]);
    let node = node_of(&catalog, "file");
    let block = catalog.layout().blocks_of(node.file().unwrap()).next().unwrap();
    assert!(!catalog.locate(block).unwrap().is_sized);
    let asked = source.asked.load(Ordering::Relaxed);
    assert!(!catalog.set_size(node, 5) && !catalog.set_size(node, 9 * BLOCK_BYTES));
    let located = catalog.locate(block).unwrap();
    assert_eq!((located.length, located.is_sized, located.node), (5, true, node));
    assert_eq!(look(&catalog, "file", false).unwrap().size, 5);
    assert_eq!(source.asked.load(Ordering::Relaxed), asked);
    let (_root, _source, catalog) = guessed(&[("file", 5)]);
    let node = node_of(&catalog, "file");
    assert!(catalog.set_size(node, 3 * BLOCK_BYTES), "it has other blocks");
    assert!(catalog.locate(block).is_none() && !catalog.set_size(NodeId(1 << 50), 5));
}

#[test]
fn sizes_that_were_found_out_outlast_mounts_and_other_guesses() {
    let (_root, source, catalog) = guessed(&[("a", 5), ("b", 6)]);
    catalog.refresh(NodeId::ROOT, OsStr::new("a")).unwrap();
    let saved = tempfile::tempdir().unwrap();
    let place = at(&saved.path().join("catalog"));
    catalog.save(&place).unwrap();
    source.guess.store(GUESS + 1, Ordering::Relaxed);
    let again = Catalog::open(source.clone(), None, &place).unwrap();
    again.sweep(1, &AtomicBool::new(false), &|changes| panic!("{changes:?}"));
    assert_eq!(again.state(), CatalogState::Checked);
    let [a, b] = ["a", "b"].map(|name| look(&again, name, true).unwrap());
    assert_eq!([(a.size, a.is_sized), (b.size, b.is_sized)], [(5, true), (GUESS, false)]);
}

#[test]
fn copies_of_one_block_are_named_alike_before_and_after_the_size_is_known() {
    let (_root, _source, catalog) = guessed(&[("file", 5)]);
    let listed = look(&catalog, "file", true).unwrap();
    let listed = Stat { version_has_size: false, ..listed };
    let name = listed.copied_version();
    assert_eq!(listed.with_size(5).copied_version(), name);
    assert_eq!(listed.with_size(BLOCK_BYTES - 1).copied_version(), name);
    let large = listed.with_size(BLOCK_BYTES);
    assert_eq!(large.copied_version(), large.fingerprint(), "its blocks belong together");
    let told_by_size = Stat { version_has_size: true, ..listed.with_size(5) };
    assert_eq!(told_by_size.copied_version(), told_by_size.fingerprint());
    let later = Stat { mtime_ns: listed.mtime_ns + 1, ..listed };
    assert_ne!(later.copied_version(), name);
}

#[test]
fn a_copy_of_unknown_size_is_that_of_the_whole_file() {
    let (_root, _source, catalog) = guessed(&[("file", 5)]);
    let block = catalog.layout().blocks_of(node_of(&catalog, "file").file().unwrap()).next();
    let at = catalog.locate(block.unwrap()).unwrap();
    assert!(!at.may_have_copies(), "the size tells versions apart");
    let at = Located { version_has_size: false, ..at };
    assert!(at.may_have_copies() && at.may_have(0) && at.may_have(5000));
    assert!(!at.may_have(BLOCK_BYTES as usize), "there may be more of it");
    let sized = Located { is_sized: true, ..at };
    assert!(sized.may_have(sized.length) && !sized.may_have(sized.length + 1));
}

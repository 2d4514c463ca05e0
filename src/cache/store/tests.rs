use std::os::unix::fs::{FileExt, symlink};

use super::*;

const NODE: NodeId = NodeId(7);

fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("cache"), 0).unwrap();
    (directory, store)
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn what_is_put_is_what_is_got() {
    let (_directory, store) = store();
    for (block, length) in [(0, 0), (1, 1), (2, 4096), (3, 1 << 20)] {
        assert!(store.put(BlockId(block), NODE, &bytes(block as u8, length)));
        assert_eq!(store.get(BlockId(block), NODE), Some(bytes(block as u8, length)));
    }
    assert!(!store.contains(BlockId(9), NODE));
    assert!(!store.contains(BlockId(1), NodeId(8)), "another version is not there");
    assert_eq!(store.get(BlockId(1), NodeId(8)), None);
    store.remove(BlockId(1));
    assert_eq!(store.get(BlockId(1), NODE), None);
    assert_eq!(store.state(), "normal");
}

#[test]
fn a_damaged_record_is_dropped() {
    let (_directory, store) = store();
    assert!(store.put(BlockId(1), NODE, &bytes(1, 5000)));
    let path = fs::read_dir(store.directory.path()).unwrap().next().unwrap().unwrap().path();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"X", 3000).unwrap();
    assert_eq!(store.get(BlockId(1), NODE), None);
    assert!(!store.contains(BlockId(1), NODE));
}

#[test]
fn space_given_up_is_given_back() {
    let (_directory, store) = store();
    let used = || {
        let entries = fs::read_dir(store.directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum::<u64>()
    };
    for block in 0..64 {
        assert!(store.put(BlockId(block), NODE, &bytes(block as u8, 1 << 16)));
    }
    assert!(used() >= 64 << 16);
    for block in 0..63 {
        store.remove(BlockId(block));
    }
    assert!(used() < 4 << 16, "{} bytes are still taken", used());
    assert_eq!(store.get(BlockId(63), NODE), Some(bytes(63, 1 << 16)));
}

#[test]
fn only_a_directory_of_ones_own_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    symlink("/tmp", &link).unwrap();
    let error = Store::open(&link, 0).err().unwrap();
    assert!(error.to_string().contains("link"), "{error}");
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(Store::open(&file, 0).err().unwrap().kind(), ErrorKind::Cache);
}

#[test]
fn leftovers_of_dead_daemons_go_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let make = |name: &str| fs::create_dir(directory.path().join(name)).unwrap();
    make("belady-store-1-x");
    let living = Store::open(directory.path(), 0).unwrap();
    assert!(!directory.path().join("belady-store-1-x").exists());
    make("belady-store-1-y");
    make("belady-store-mine");
    make("other");
    let _store = Store::open(directory.path(), 0).unwrap();
    let there = |name: &str| directory.path().join(name).exists();
    assert!(!there("belady-store-1-y"), "nobody has locked it");
    assert!(living.directory.path().exists());
    assert!(there("belady-store-mine") && there("other"));
}

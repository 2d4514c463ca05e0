//! Large files in the store over a real directory.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use super::super::*;
use crate::disk::Directory;
use crate::disk::tests::model::bytes;
use crate::ids::BLOCK_BYTES;

/// Blocks of the file, the last of them half.
const BLOCKS: u64 = 5;

struct Stand {
    directory: tempfile::TempDir,
    content: Vec<u8>,
}

impl Stand {
    fn new() -> Self {
        let size = BLOCKS * BLOCK_BYTES - BLOCK_BYTES / 2 + 7;
        Stand { directory: tempfile::tempdir().unwrap(), content: bytes(1, size as usize) }
    }

    fn open(&self, budget: u64) -> Store {
        let disk = Arc::new(Directory::open(self.directory.path(), true).unwrap());
        let limits = Limits { large_bytes: 2 * BLOCK_BYTES, ..Limits::new(budget, 0) };
        Store::open(disk, limits, 99).unwrap()
    }

    fn version(&self) -> Fingerprint {
        Fingerprint([3; 40])
    }

    fn key(&self, store: &Store, nth: u64) -> Key {
        store.key(Path::new("shard"), &self.version(), nth * BLOCK_BYTES)
    }

    fn block(&self, nth: u64) -> &[u8] {
        let from = (nth * BLOCK_BYTES) as usize;
        &self.content[from..self.content.len().min(from + BLOCK_BYTES as usize)]
    }

    fn put(&self, store: &Store, nth: impl IntoIterator<Item = u64>) -> bool {
        let size = self.content.len() as u64;
        let sample = |nth| Sample {
            key: self.key(store, nth),
            bytes: self.block(nth),
            large: store.large_block(Path::new("shard"), &self.version(), nth * BLOCK_BYTES, size),
        };
        store.put_all(&nth.into_iter().map(sample).collect::<Vec<_>>())
    }

    #[track_caller]
    fn has(&self, store: &Store, expected: &[u64]) {
        for nth in 0..BLOCKS {
            match store.get(self.key(store, nth)) {
                ReadOutcome::Whole(found) => {
                    assert!(expected.contains(&nth), "block {nth}");
                    assert!(*found == *self.block(nth), "block {nth}");
                }
                _ => assert!(!expected.contains(&nth), "block {nth}"),
            }
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_str().unwrap().contains("/file-")).collect()
    }

    /// Whole blocks that the file takes on the disk.
    fn taken(&self) -> u64 {
        self.files()[0].metadata().unwrap().blocks() * 512 / BLOCK_BYTES
    }
}

#[test]
fn a_large_file_is_filled_in_any_order_and_lies_as_it_is() {
    let stand = Stand::new();
    let store = stand.open(1 << 30);
    assert!(stand.put(&store, [3]));
    assert_eq!((stand.files().len(), stand.taken()), (1, 1), "sparse");
    stand.has(&store, &[3]);
    assert!(stand.put(&store, [4, 0]) && stand.put(&store, [2, 1]));
    assert_eq!(fs::read(&stand.files()[0]).unwrap()[..stand.content.len()], stand.content);
    // Small files are packed, wherever they are in a batch.
    let small = Sample { key: Key::new(77), bytes: b"small", large: None };
    assert!(store.put_all(&[small]));
    let counted = count(&Directory::open(stand.directory.path(), false).unwrap()).unwrap();
    assert_eq!((counted.samples, counted.large_files), (BLOCKS + 1, 1));
    for store in [store, stand.open(1 << 30)] {
        stand.has(&store, &[0, 1, 2, 3, 4]);
        assert!(
            matches!(store.get(Key::new(77)), ReadOutcome::Whole(bytes) if *bytes == *b"small")
        );
        assert_eq!(store.totals().1, (BLOCKS - 1) * BLOCK_BYTES + BLOCK_BYTES / 2 + 2 * 4096);
    }
    assert_eq!(stand.files().len(), 1);
}

#[test]
fn what_is_removed_of_a_large_file_is_given_back() {
    let stand = Stand::new();
    let mut store = stand.open(1 << 30);
    assert!(stand.put(&store, 0..BLOCKS));
    for _ in 0..3 {
        store.remove(&[1, 2, 4].map(|nth| stand.key(&store, nth)));
        assert_eq!((stand.taken(), store.idle_bytes()), (2, 0));
        stand.has(&store, &[0, 3]);
        store = stand.open(1 << 30);
        stand.has(&store, &[0, 3]);
        assert!(stand.put(&store, [4, 2, 1]));
    }
    assert_eq!(stand.files().len(), 1, "further blocks go to the same file");
    store.remove(&store.keys());
    assert!(stand.files().is_empty());
    assert!(stand.put(&store, [1]));
    stand.has(&store, &[1]);
}

#[test]
fn large_files_are_under_the_same_budget() {
    let stand = Stand::new();
    let store = stand.open(3 * BLOCK_BYTES);
    let small = bytes(9, 2 << 20);
    assert!(store.put(&[(Key::new(1), &small)]));
    assert!(stand.put(&store, [2]) && !stand.put(&store, [3]));
    // The place of a removed sample goes back to the disk to make room for a block.
    store.remove(&[Key::new(1)]);
    assert!(store.put(&[(Key::new(2), &small[..4096])]) && stand.put(&store, [3]));
    assert!(store.idle_bytes() + store.totals().1 <= 3 * BLOCK_BYTES);
    stand.has(&store, &[2, 3]);
}

#[test]
fn what_was_compared_is_not_read_again_until_something_of_it_is_removed() {
    let stand = Stand::new();
    let store = stand.open(1 << 30);
    let keys: Vec<Key> = (0..BLOCKS).map(|nth| stand.key(&store, nth)).collect();
    let size = stand.content.len() as u64;
    assert!(stand.put(&store, 0..BLOCKS) && store.prepare_passthrough(&keys, size));
    // As if other files had displaced it.
    store.write().clear_passthrough();
    let file = File::options().write(true).open(&stand.files()[0]).unwrap();
    file.write_all_at(b"X", 3 * BLOCK_BYTES + 5).unwrap();
    assert!(store.prepare_passthrough(&keys, size), "it would be found to be damaged");
    store.write().clear_passthrough();
    store.remove(&[keys[1]]);
    assert!(stand.put(&store, [1]) && !store.prepare_passthrough(&keys, size));
}

#[test]
fn a_large_file_that_is_damaged_or_deleted_is_filled_again() {
    let stand = Stand::new();
    let store = stand.open(1 << 30);
    assert!(stand.put(&store, 0..BLOCKS));
    let file = File::options().write(true).open(&stand.files()[0]).unwrap();
    file.write_all_at(b"X", BLOCK_BYTES + 5).unwrap();
    file.set_len(3 * BLOCK_BYTES).unwrap();
    assert!(matches!(store.get(stand.key(&store, 1)), ReadOutcome::Damaged));
    stand.has(&store, &[0, 2]);
    stand.has(&stand.open(1 << 30), &[0, 2]);
    store.remove(&[1, 3, 4].map(|nth| stand.key(&store, nth)));
    assert!(stand.put(&store, 0..BLOCKS));
    stand.has(&store, &[0, 1, 2, 3, 4]);
    fs::remove_file(&stand.files()[0]).unwrap();
    assert!(matches!(store.get(stand.key(&store, 0)), ReadOutcome::Damaged));
    store.remove(&[stand.key(&store, 0)]);
    assert!(stand.put(&store, [0]));
    stand.has(&store, &[0]);
    assert!(store.sync().is_ok());
    assert_eq!(store.state(), DiskState::Normal, "the disk does what it is told");
}

#[test]
fn what_a_crash_leaves_in_a_large_file_is_given_back() {
    let stand = Stand::new();
    let store = stand.open(1 << 30);
    assert!(stand.put(&store, [0, 3]));
    drop(store);
    // Written, but never recorded.
    let file = File::options().write(true).open(&stand.files()[0]).unwrap();
    file.write_all_at(&bytes(5, 2 << 20), BLOCK_BYTES).unwrap();
    file.write_all_at(&bytes(6, 1 << 20), 4 * BLOCK_BYTES).unwrap();
    file.sync_all().unwrap();
    assert_eq!(stand.taken(), 5);
    let store = stand.open(1 << 30);
    assert!(stand.put(&store, [1]));
    store.clear_leftovers();
    assert_eq!(stand.taken(), 3);
    stand.has(&store, &[0, 1, 3]);
}

fn read(opened: &PassthroughFile) -> Vec<u8> {
    let file = File::from(opened.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; 10 << 20];
    let length = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn a_large_file_that_the_kernel_reads_stays_as_it_is_until_it_is_closed() {
    let stand = Stand::new();
    let store = stand.open(1 << 30);
    let keys: Vec<Key> = (0..BLOCKS).map(|nth| stand.key(&store, nth)).collect();
    let size = stand.content.len() as u64;
    assert!(stand.put(&store, 0..BLOCKS - 1));
    assert!(!store.prepare_passthrough(&keys, size), "it is not all there");
    assert!(stand.put(&store, [BLOCKS - 1]) && store.passthrough_file(keys[0]).is_none());
    assert!(store.prepare_passthrough(&keys, size));
    let opened = store.passthrough_file(keys[0]).unwrap();
    assert!(read(&opened) == stand.content, "as long as at the source, too");
    stand.has(&store, &[0, 1, 2, 3, 4]);
    store.remove(&[keys[1], keys[4]]);
    assert!(store.passthrough_file(keys[0]).is_none() && read(&opened) == stand.content);
    // Blocks that come back go to another file.
    assert!(stand.put(&store, [1, 4]));
    assert_eq!(stand.files().len(), 2);
    assert!(read(&opened) == stand.content && !store.prepare_passthrough(&keys, size));
    stand.has(&store, &[0, 1, 2, 3, 4]);
    let bytes = || -> u64 {
        stand.files().iter().map(|file| file.metadata().unwrap().blocks() * 512).sum()
    };
    let held = bytes();
    drop(opened);
    store.clear_leftovers();
    assert!(bytes() <= held - (1 << 20), "what was given up is punched now");
    let again = stand.open(1 << 30);
    stand.has(&again, &[0, 1, 2, 3, 4]);
}

#[test]
fn a_large_file_that_is_damaged_is_not_passed_through() {
    let stand = Stand::new();
    let store = stand.open(1 << 30);
    let keys: Vec<Key> = (0..BLOCKS).map(|nth| stand.key(&store, nth)).collect();
    assert!(stand.put(&store, 0..BLOCKS));
    let file = File::options().write(true).open(&stand.files()[0]).unwrap();
    file.write_all_at(b"X", 3 * BLOCK_BYTES + 5).unwrap();
    assert!(!store.prepare_passthrough(&keys, stand.content.len() as u64));
    assert!(store.passthrough_file(keys[0]).is_none());
    assert!(!store.prepare_passthrough(&[], 0));
}

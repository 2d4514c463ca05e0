//! A disk that fails for a while: its content is available again when it works.

use std::sync::Arc;

use nix::libc;

use super::super::*;
use crate::disk::tests::model::{Model, bytes};
use crate::disk::{self, Disk};

const SAMPLES: u128 = 20;

fn key(sample: u128) -> Key {
    Key::new(sample << 64 | (sample + 5))
}

fn limits() -> Limits {
    Limits { segment_bytes: 60_000, dead_records: 12, ..Limits::new(1 << 20, 0) }
}

fn try_open(disk: &Model) -> Result<Store> {
    Store::open(Arc::new(disk.clone()), limits(), 7)
}

fn losses(disk: &Model) -> Losses {
    Store::open_found(Arc::new(disk.clone()), limits()).unwrap().unwrap().1
}

fn open(disk: &Model) -> Store {
    try_open(disk).unwrap()
}

fn put(store: &Store, sample: u128) -> bool {
    store.put(&[(key(sample), &bytes(sample, 9_000))])
}

/// The samples that are served, all of them right.
fn served(store: &Store) -> Vec<u128> {
    let is_served = |sample: &u128| match store.get(key(*sample)) {
        ReadOutcome::Whole(found) => {
            assert!(*found == *bytes(*sample, 9_000), "{sample}");
            true
        }
        ReadOutcome::Missing | ReadOutcome::Damaged => false,
    };
    (0..SAMPLES).filter(is_served).collect()
}

fn filled() -> Model {
    let disk = Model::default();
    let store = open(&disk);
    assert!((0..SAMPLES).all(|sample| put(&store, sample)));
    store.sync().unwrap();
    disk
}

fn all() -> Vec<u128> {
    (0..SAMPLES).collect()
}

#[test]
fn an_index_that_cannot_be_read_is_not_an_empty_one() {
    let disk = filled();
    disk.fail_reads(Some(libc::EIO));
    assert!(try_open(&disk).is_err());
    disk.fail_reads(None);
    disk.close(Some("index-00000001"));
    assert!(try_open(&disk).is_err());
    disk.close(None);
    assert_eq!(served(&open(&disk)), all());
}

#[test]
fn samples_are_counted_while_the_index_is_replaced() {
    let disk = filled();
    // The name is listed, but the file is gone when it is opened.
    disk.list_once("index-00000009");
    assert_eq!(count(&disk).unwrap().samples, SAMPLES as u64);
    disk.fail_reads(Some(libc::EIO));
    assert!(count(&disk).is_err());
}

#[test]
fn a_sample_that_cannot_be_read_is_damaged_where_others_can() {
    let disk = filled();
    let store = open(&disk);
    disk.fail_reads_of(Some("segment-00000001"));
    let is_whole = |key: &Key| matches!(store.get(*key), ReadOutcome::Whole(_));
    let (whole, unreadable): (Vec<Key>, Vec<Key>) = (0..SAMPLES).map(key).partition(is_whole);
    assert!(unreadable.len() > 2 && !whole.is_empty());
    // The last reads fail.
    let checked = store.verify(&mut whole.into_iter().chain(unreadable.clone())).unwrap();
    assert_eq!(checked.iter().map(|(key, _)| *key).collect::<Vec<_>>(), unreadable);
    assert!(checked.iter().all(|(_, place)| place.starts_with("segment-00000001, bytes ")));
    disk.fail_reads(Some(libc::EIO));
    assert!(store.verify(&mut store.keys().into_iter()).is_err(), "the disk as a whole");
    disk.fail_reads(None);
    disk.fail_reads_of(None);
    store.remove(&checked.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    assert_eq!(served(&store).len(), SAMPLES as usize - checked.len());
}

#[test]
fn a_segment_that_cannot_be_opened_is_there_the_next_time() {
    let disk = filled();
    disk.close(Some("segment-00000002"));
    let store = open(&disk);
    let left = served(&store);
    assert!(!left.is_empty() && left.len() < all().len());
    store.clear_leftovers();
    store.sync().unwrap();
    disk.close(None);
    assert_eq!(served(&open(&disk)), all());
}

#[test]
fn a_segment_that_cannot_be_opened_outlasts_new_indexes() {
    let disk = filled();
    disk.close(Some("segment-00000002"));
    let closed = losses(&disk).closed;
    assert!(matches!(&closed[..], [(name, 2..)] if name == "segment-00000002"), "{closed:?}");
    let store = open(&disk);
    let left = served(&store);
    let missing: Vec<u128> = all().into_iter().filter(|sample| !left.contains(sample)).collect();
    store.compact().unwrap();
    // The index is also rewritten without a request.
    let index = || disk.names().unwrap().into_iter().find(|(name, _)| name.starts_with("index-"));
    let before = index().unwrap().0;
    for _ in 0..SAMPLES {
        store.remove(&[key(left[0])]);
        assert!(put(&store, left[0]));
    }
    assert_ne!(index().unwrap().0, before);
    // A sample that was stored again and then removed does not come back.
    assert!(put(&store, missing[0]));
    store.remove(&[key(missing[0])]);
    store.compact().unwrap();
    drop(store);
    disk.close(None);
    let again = served(&open(&disk));
    assert_eq!(again, all().into_iter().filter(|n| *n != missing[0]).collect::<Vec<_>>());
}

/// A query leaves the try of a disk that is down to a read or a write.
#[test]
fn a_disk_that_is_down_is_tried_by_who_has_to_do_with_it() {
    let disk = filled();
    let store = open(&disk);
    disk.fail_reads(Some(libc::EIO));
    (0..3).for_each(|_| assert!(matches!(store.get(key(1)), ReadOutcome::Damaged)));
    assert!(store.state().is_down() && !store.claim_read(key(1)));
    store.make_due();
    assert!(store.passthrough_file(key(1)).is_none());
    disk.set_space(Some(disk::Space { bytes: 0, total: 1 << 30, files: Some(0) }));
    assert!(!put(&store, 99), "there is no room");
    assert!(store.claim_read(key(1)), "the try was left");
    assert!(!store.claim_read(key(1)));
}

#[test]
fn what_is_lost_is_told_at_the_next_open() {
    let disk = filled();
    assert_eq!(losses(&disk), Losses::default());
    disk.edit("segment-00000002", |bytes| bytes.truncate(bytes.len() / 2));
    let cut = losses(&disk);
    assert!(cut.is_some() && cut.records == 0);
    assert!(cut.samples.len() > 1 && cut.samples.len() < 10);
    assert!(cut.samples.iter().all(|at| at.starts_with("segment-00000002, bytes ")), "{cut:?}");
    let disk = filled();
    disk.remove("segment-00000002").unwrap();
    let gone = losses(&disk);
    assert!(gone.samples.len() > cut.samples.len());
    assert!(gone.samples.iter().all(|at| at.starts_with("file 00000002, which is gone")));
    assert_eq!(served(&open(&disk)).len(), SAMPLES as usize - gone.samples.len());
    let disk = filled();
    disk.edit("index-00000001", |bytes| bytes[45] ^= 1);
    let one = Losses { records: 1, ..Losses::default() };
    assert_eq!((losses(&disk), losses(&disk)), (one.clone(), one));
    let left = served(&open(&disk));
    assert_eq!((losses(&disk), served(&open(&disk))), (Losses::default(), left));
}

/// Nothing is deleted, and no new index is made that would hide the loss.
#[test]
fn a_store_without_an_index_is_lost_and_stays_as_it_is() {
    let found = |disk: &Model| Store::open_found(Arc::new(disk.clone()), limits());
    assert!(found(&Model::default()).unwrap().is_none());
    for deleted in [false, true] {
        let disk = filled();
        match deleted {
            true => disk.remove("index-00000001").unwrap(),
            false => disk.edit("index-00000001", |bytes| bytes[3] ^= 1),
        }
        let before = disk.names().unwrap();
        assert_eq!(found(&disk).err().unwrap().kind(), ErrorKind::InvalidData);
        assert_eq!(disk.names().unwrap(), before);
    }
    // An older index that is left is used, and the damage is reported.
    let disk = filled();
    drop(disk.create("index-00000002", disk::Use::Log).unwrap());
    assert_eq!(losses(&disk).indexes, ["index-00000002"]);
    assert_eq!((losses(&disk), served(&open(&disk))), (Losses::default(), all()));
}

/// A name that is not durable takes samples with it that were synced later.
#[test]
fn nothing_is_stored_in_a_file_whose_name_may_not_last() {
    let disk = Model::default();
    let store = open(&disk);
    let block = |sample| LargeBlock::new(key(99), sample * 12_288);
    let put_part = |sample: u128| {
        let bytes = bytes(sample, 9_000);
        store.put_all(&[Sample { key: key(sample), bytes: &bytes, large: block(sample as u64) }])
    };
    disk.fail_names(Some(libc::EIO));
    assert!(!put(&store, 0) && !put_part(1));
    disk.fail_names(None);
    assert!(put(&store, 0) && put_part(1));
    store.sync().unwrap();
    let mut random = rand::SeedableRng::seed_from_u64(5);
    for _ in 0..50 {
        let left = disk.crash(disk.ops(), &mut random);
        assert_eq!(served(&open(&left)), [0, 1]);
    }
}

/// The same for a file that is made again after it was deleted.
#[test]
fn nothing_is_stored_in_a_file_made_again_whose_name_may_not_last() {
    let disk = Model::default();
    let store = open(&disk);
    let put_part = |sample: u128| {
        let (bytes, block) =
            (bytes(sample, 9_000), LargeBlock::new(key(99), sample as u64 * 12_288));
        store.put_all(&[Sample { key: key(sample), bytes: &bytes, large: block }])
    };
    assert!(put_part(1) && store.sync().is_ok());
    let names = disk.names().unwrap().into_iter().map(|(name, _)| name);
    let file = names.into_iter().find(|name| name.starts_with("file-")).unwrap();
    disk.remove(&file).unwrap();
    disk.fail_names(Some(libc::EIO));
    assert!(!put_part(2));
    disk.fail_names(None);
    assert!(put_part(2) && store.sync().is_ok());
    let mut random = rand::SeedableRng::seed_from_u64(5);
    for _ in 0..50 {
        let left = disk.crash(disk.ops(), &mut random);
        assert_eq!(served(&open(&left)), [2]);
    }
}

#[test]
fn what_an_append_that_was_cut_short_leaves_is_no_loss() {
    let torn = [1; 40];
    let tails: [&[u8]; 4] = [b"half", &torn, &[0; 100], &[&torn[..], &[0; 85]].concat()];
    for tail in tails {
        let disk = filled();
        disk.edit("index-00000001", |bytes| bytes.extend(tail));
        assert_eq!((losses(&disk), served(&open(&disk))), (Losses::default(), all()));
        // It is no loss either after more is written.
        open(&disk).remove(&[key(0)]);
        assert_eq!((losses(&disk), served(&open(&disk))), (Losses::default(), all()[1..].to_vec()));
    }
    let disk = filled();
    disk.edit("index-00000001", |bytes| bytes.extend([1; 80]));
    assert_eq!(losses(&disk), Losses { records: 2, ..Losses::default() });
}

#[test]
fn records_that_were_torn_do_not_count_behind_later_ones() {
    let disk = filled();
    let store = open(&disk);
    let many: Vec<(u128, Vec<u8>)> = (20..40).map(|n| (n, bytes(n, 9_000))).collect();
    let samples: Vec<(Key, &[u8])> = many.iter().map(|(n, b)| (key(*n), &**b)).collect();
    // A failed put leaves half of its records in the index.
    disk.tear(true);
    assert!(!store.put(&samples));
    store.remove(&[key(0), key(1)]);
    disk.tear(false);
    store.remove(&[key(2)]);
    assert!((0..3).all(|sample| put(&store, sample)));
    store.sync().unwrap();
    assert_eq!(served(&store), all());
    assert_eq!(served(&open(&disk)), all());
}

#[test]
fn a_rewrite_without_its_name_does_not_count() {
    let disk = filled();
    let store = open(&disk);
    disk.tear(true);
    assert!(store.compact().is_err());
    disk.tear(false);
    store.remove(&[key(3)]);
    store.sync().unwrap();
    let again = open(&disk);
    assert!(served(&again) == served(&store) && !served(&again).contains(&3));
}

/// The block comes back while its old file is held, and goes to another file.
#[test]
fn a_block_of_a_passthrough_file_whose_removal_cannot_be_recorded_comes_back_elsewhere() {
    const BLOCK: usize = 1 << 20;
    let disk = Model::default();
    let limits = Limits { large_bytes: BLOCK as u64, ..Limits::new(1 << 30, 0) };
    let store = Store::open(Arc::new(disk.clone()), limits, 7).unwrap();
    let (path, version, size) = (Path::new("shard"), Fingerprint([3; 40]), 2 * BLOCK as u64);
    let (content, offsets) = (bytes(1, 2 * BLOCK), [0, BLOCK as u64]);
    let keys = offsets.map(|offset| store.key(path, &version, offset));
    let put = |nth: usize| {
        let block = store.large_block(path, &version, offsets[nth], size);
        let bytes = &content[nth * BLOCK..][..BLOCK];
        store.put_all(&[Sample { key: keys[nth], bytes, large: block }])
    };
    assert!(put(0) && put(1) && store.prepare_passthrough(&keys, size));
    let opened = store.passthrough_file(keys[0]).unwrap();
    disk.fail_writes(Some(libc::EIO));
    store.remove(&[keys[1]]);
    disk.fail_writes(None);
    assert!(put(1) && !store.prepare_passthrough(&keys, size), "it is in two files");
    drop(opened);
    store.clear_leftovers();
    for (nth, key) in keys.into_iter().enumerate() {
        let ReadOutcome::Whole(found) = store.get(key) else { panic!("block {nth} is not there") };
        assert!(*found == content[nth * BLOCK..][..BLOCK]);
    }
}

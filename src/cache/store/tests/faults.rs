//! A disk that fails for a while: what it has is there again when it works.

use std::sync::Arc;

use nix::libc;

use super::super::*;
use super::model::{Model, bytes};

const SAMPLES: u128 = 20;

fn key(sample: u128) -> Key {
    Key::new(sample << 64 | (sample + 5))
}

fn try_open(disk: &Model) -> Result<Store> {
    let limits = Limits { segment_bytes: 60_000, dead_records: 12, ..Limits::new(1 << 20, 0) };
    Store::open(Arc::new(disk.clone()), limits, 7)
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
        Found::Whole(found) => {
            assert!(*found == *bytes(*sample, 9_000), "{sample}");
            true
        }
        Found::Nothing | Found::Damaged => false,
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
    // Listed, and gone when it is opened.
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
    let is_whole = |key: &Key| matches!(store.get(*key), Found::Whole(_));
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
fn records_that_were_torn_do_not_count_behind_later_ones() {
    let disk = filled();
    let store = open(&disk);
    let many: Vec<(u128, Vec<u8>)> = (20..40).map(|n| (n, bytes(n, 9_000))).collect();
    let samples: Vec<(Key, &[u8])> = many.iter().map(|(n, b)| (key(*n), &**b)).collect();
    // Half of the records of one that are stored nowhere.
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

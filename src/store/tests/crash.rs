//! Crash images: what is left of a store when the machine stops at any moment.
//!
//! The goal: after a crash no wrong byte is served, and no synced sample is lost. The method: a seed drives
//! work on a store over the model disk, which records its operations. An image is what a crash after some
//! operation may leave: any of the unsynced writes are missing or torn. Each image is opened, all samples
//! are read and compared, and the store is used and opened once more.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::*;
use crate::disk::tests::model::{Model, bytes};

const IMAGES: usize = 10_000;

const CALLS: usize = 60;

const SAMPLES: u128 = 80;

fn key(sample: u128) -> Key {
    Key::new((sample + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_0c94_2a6b_0001))
}

/// A third of the samples are blocks of large files, a few of each.
fn block(sample: u128) -> Option<LargeBlock> {
    sample
        .is_multiple_of(3)
        .then(|| LargeBlock::new(key(1000 + sample / 20), (sample % 20) as u64 * 20_480))?
}

fn put(store: &Store, samples: &[u128]) -> bool {
    let contents: Vec<Vec<u8>> = samples.iter().map(|sample| content(*sample)).collect();
    let sample = |(number, bytes)| Sample { key: key(number), bytes, large: block(number) };
    let contents = contents.iter().map(Vec::as_slice);
    store.put_all(&samples.iter().copied().zip(contents).map(sample).collect::<Vec<_>>())
}

fn content(sample: u128) -> Vec<u8> {
    // Empty, within a page, whole pages, and more.
    let length = [0, 1, 700, 4096, 4097, 9000, 20_000][(sample % 7) as usize];
    bytes(sample, length)
}

fn limits() -> Limits {
    // The limits are small, so that rare events happen often.
    let limits = Limits::new(400_000, 0);
    Limits { segment_bytes: 60_000, dead_records: 12, ..limits }
}

fn open(disk: &Model) -> Store {
    Store::open(Arc::new(disk.clone()), limits(), 7).unwrap()
}

/// A call, with the number of operations before and after it.
enum Call {
    Put(Vec<u128>),
    Remove(Vec<u128>),
    /// Gives space back and rewrites the index. Stores and removes nothing.
    Compact,
    Sync,
}

struct Done {
    call: Call,
    from: usize,
    to: usize,
}

/// Works on a store as the seed says.
fn work(disk: &Model, random: &mut ChaCha8Rng) -> Vec<Done> {
    let store = open(disk);
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let from = disk.ops();
        let some: Vec<u128> =
            (0..random.random_range(1..6)).map(|_| random.random_range(0..SAMPLES)).collect();
        let call = match random.random_range(0..20) {
            0..12 => {
                // If the budget is full, nothing is stored.
                Call::Put(if put(&store, &some) { some } else { Vec::new() })
            }
            12..17 => {
                store.remove(&some.iter().map(|sample| key(*sample)).collect::<Vec<_>>());
                Call::Remove(some)
            }
            17 => {
                store.compact().unwrap();
                Call::Compact
            }
            _ => {
                store.sync().unwrap();
                Call::Sync
            }
        };
        calls.push(Done { call, from, to: disk.ops() });
    }
    calls
}

/// The samples that must survive a crash after `cut` operations: stored before a completed sync, and not
/// removed since.
fn must_be_left(calls: &[Done], cut: usize) -> Vec<u128> {
    let mut stored: BTreeMap<u128, bool> = BTreeMap::new();
    for done in calls.iter().take_while(|done| done.from < cut) {
        match &done.call {
            Call::Put(samples) => {
                for sample in samples {
                    stored.entry(*sample).or_insert(false);
                }
            }
            Call::Remove(samples) => stored.retain(|sample, _| !samples.contains(sample)),
            Call::Sync if done.to <= cut => stored.values_mut().for_each(|synced| *synced = true),
            Call::Sync | Call::Compact => {}
        }
    }
    stored.into_iter().filter(|(_, synced)| *synced).map(|(sample, _)| sample).collect()
}

#[derive(Default)]
struct Verdict {
    wrong_bytes: usize,
    lost: usize,
    served: usize,
}

fn check(store: &Store, must: &[u128], verdict: &mut Verdict) {
    for sample in 0..SAMPLES {
        match store.get(key(sample)) {
            ReadOutcome::Whole(found) => {
                verdict.served += 1;
                let right = content(sample);
                let differ = found.iter().zip(&right).filter(|(a, b)| a != b).count();
                verdict.wrong_bytes += differ + found.len().abs_diff(right.len());
            }
            ReadOutcome::Missing | ReadOutcome::Damaged => {
                verdict.lost += usize::from(must.contains(&sample));
            }
        }
    }
}

/// Opens an image, reads all samples, goes on with it, and opens it again.
fn try_image(image: &Model, must: &[u128], verdict: &mut Verdict) {
    let store = open(image);
    check(&store, must, verdict);
    let damaged: Vec<Key> = (0..SAMPLES)
        .map(key)
        .filter(|key| !matches!(store.get(*key), ReadOutcome::Whole(_)))
        .collect();
    store.remove(&damaged);
    store.clear_leftovers();
    store.remove(&(40..SAMPLES).map(key).collect::<Vec<_>>());
    assert!(put(&store, &[3, 4]));
    store.sync().unwrap();
    let must: Vec<u128> = must.iter().copied().filter(|n| *n < 40).chain([3, 4]).collect();
    drop(store);
    check(&open(image), &must, verdict);
}

#[test]
fn crash_images() {
    let mut verdict = Verdict::default();
    let (mut images, mut works) = (0, 0);
    while images < IMAGES {
        let mut random = ChaCha8Rng::seed_from_u64(works);
        let disk = Model::default();
        let calls = work(&disk, &mut random);
        for cut in 1..=disk.ops() {
            let left = disk.crash(cut, &mut random);
            try_image(&left, &must_be_left(&calls, cut), &mut verdict);
            images += 1;
        }
        works += 1;
    }
    println!(
        "crash images: {images} of {works} pieces of work, {} samples served, {} wrong bytes, {} \
         synced samples lost",
        verdict.served, verdict.wrong_bytes, verdict.lost
    );
    assert_eq!((verdict.wrong_bytes, verdict.lost), (0, 0));
    assert!(verdict.served > IMAGES, "nearly nothing was served: this shows nothing");
}

/// The model would reveal a store that trusts the bytes on the disk.
#[test]
fn the_model_does_damage() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let disk = Model::default();
    work(&disk, &mut random);
    let damaged = (1..=disk.ops()).any(|cut| {
        let store = open(&disk.crash(cut, &mut random));
        (0..SAMPLES).any(|sample| matches!(store.get(key(sample)), ReadOutcome::Damaged))
    });
    assert!(damaged);
}

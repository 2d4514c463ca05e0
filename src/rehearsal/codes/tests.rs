//! Codes over the model disk, after appends, errors, damage and crashes.

use std::collections::BTreeMap;

use nix::libc;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::disk::Space;
use crate::disk::tests::model::Model;

const BYTES: u32 = 24;

fn try_open(disk: &Model) -> Result<CodeStore> {
    CodeStore::open(Arc::new(disk.clone()), BYTES, 0)
}

fn open(disk: &Model) -> CodeStore {
    try_open(disk).unwrap()
}

impl CodeStore {
    /// Begins the journal anew, however much of it is dead.
    fn begin_anew(&mut self) {
        let saved = self.compacting.journal.rewrite(|journal| self.reader.save(journal)).unwrap();
        self.reader.apply(saved).unwrap();
    }
}

/// The code of a number in a round.
fn code(number: u64, round: u8) -> Vec<u8> {
    (0..BYTES as u8).map(|at| (number as u8).wrapping_mul(7) ^ round ^ at).collect()
}

fn written(numbers: &[u64], round: u8) -> Vec<u8> {
    let one = |number: &u64| [number.to_le_bytes().to_vec(), code(*number, round)].concat();
    numbers.iter().flat_map(one).collect()
}

/// All numbers and codes in their order. All ways to read must agree.
#[track_caller]
fn read(store: &CodeStore) -> Vec<(u64, Vec<u8>)> {
    let (_, codes) = store.reader().all();
    let (all, numbers) = (CodeFile::All(codes.clone()), CodeFile::Numbers(codes));
    let whole = |file: &CodeFile| file.read(0, usize::MAX).unwrap();
    let (all, numbers) = (whole(&all), whole(&numbers));
    assert_eq!(all.len() / BYTES as usize, store.reader().len());
    let numbers = numbers.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
    let codes = all.chunks(BYTES as usize).map(<[u8]>::to_vec);
    let read: Vec<(u64, Vec<u8>)> = numbers.zip(codes).collect();
    for (number, code) in &read {
        let one = CodeFile::One(store.reader().get(*number).unwrap());
        assert_eq!((one.length(), &one.read(0, 99).unwrap()), (u64::from(BYTES), code));
    }
    read
}

fn expected(numbers: &[(u64, u8)]) -> Vec<(u64, Vec<u8>)> {
    numbers.iter().map(|(number, round)| (*number, code(*number, *round))).collect()
}

#[test]
fn codes_are_there_again_in_the_order_of_their_numbers() {
    let disk = Model::default();
    let mut store = open(&disk);
    assert!(store.reader().len() == 0 && read(&store).is_empty());
    assert_eq!(store.append(&[]).unwrap(), 0);
    assert_eq!(store.append(&written(&[9, 3, u64::MAX], 1)).unwrap(), 3);
    let (version, before) = store.reader().all();
    // A number that is given again keeps its place. In one append the last code of a number counts.
    let again = [written(&[3, 5], 2), written(&[5], 3)].concat();
    assert_eq!(store.append(&again).unwrap(), 3);
    let now = expected(&[(9, 1), (3, 2), (u64::MAX, 1), (5, 3)]);
    assert_eq!(read(&store), now);
    assert!(store.reader().get(4).is_none() && store.reader().version() != version);
    // An older file does not change.
    let before = CodeFile::All(before).read(0, 1000).unwrap();
    assert_eq!(before, [code(9, 1), code(3, 1), code(u64::MAX, 1)].concat());
    store.sync().unwrap();
    assert!(store.lasts());
    assert_eq!(read(&open(&disk)), now);
}

#[test]
fn any_part_of_a_file_can_be_read() {
    let disk = Model::default();
    let mut store = open(&disk);
    (0..5).for_each(|n| assert_eq!(store.append(&written(&[2 * n, 2 * n + 1], 0)).unwrap(), 2));
    let (_, codes) = store.reader().all();
    let one = CodeFile::One(store.reader().get(3).unwrap());
    for file in [CodeFile::All(codes.clone()), CodeFile::Numbers(codes), one] {
        let whole = file.read(0, usize::MAX).unwrap();
        assert_eq!(whole.len() as u64, file.length());
        for from in 0..whole.len() + 2 {
            for length in [0, 1, 7, 8, 24, 25, 60, 1000] {
                let part: Vec<u8> = whole.iter().skip(from).take(length).copied().collect();
                assert_eq!(file.read(from as u64, length).unwrap(), part, "{from} {length}");
            }
        }
        assert!(file.read(u64::MAX, 9).unwrap().is_empty());
    }
}

#[test]
fn an_append_of_broken_codes_is_refused() {
    let disk = Model::default();
    let mut store = open(&disk);
    store.append(&written(&[1], 0)).unwrap();
    let length = store.length();
    for cut in 1..BYTES as usize + NUMBER_BYTES {
        let error = store.append(&written(&[2, 3], 0)[cut..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    assert_eq!((read(&store), store.length()), (expected(&[(1, 0)]), length));
    let other = CodeStore::open(Arc::new(disk.clone()), BYTES + 1, 0).err().unwrap();
    assert_eq!(other.to_string(), "codes of 24 bytes are there, not of 25");
    assert_eq!(read(&open(&disk)), expected(&[(1, 0)]));
}

/// An append that fails leaves nothing.
#[test]
fn a_failed_append_leaves_no_codes() {
    let disk = Model::default();
    let mut store = open(&disk);
    store.append(&written(&[1], 0)).unwrap();
    disk.fail_writes(Some(libc::ENOSPC));
    let error = store.append(&written(&[2], 0)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    disk.fail_writes(None);
    disk.tear(true);
    assert!(store.append(&written(&[1, 3], 1)).is_err());
    disk.tear(false);
    assert_eq!(read(&store), expected(&[(1, 0)]));
    store.append(&written(&[4], 0)).unwrap();
    assert_eq!(read(&store), expected(&[(1, 0), (4, 0)]));
    assert_eq!(read(&open(&disk)), expected(&[(1, 0), (4, 0)]));
}

/// Damage in the last record is found at once, in earlier ones when they are read.
#[test]
fn a_damaged_code_is_an_error_until_it_is_given_again() {
    let disk = Model::default();
    let mut store = open(&disk);
    store.append(&written(&[1, 2], 0)).unwrap();
    store.sync().unwrap();
    store.append(&written(&[3], 0)).unwrap();
    let place = |bytes: &[u8]| bytes.windows(24).position(|part| part == code(2, 0)).unwrap();
    disk.edit("journal-00000001", |bytes| {
        let at = place(bytes);
        bytes[at] ^= 1;
    });
    let mut store = open(&disk);
    let whole = |store: &CodeStore| CodeFile::All(store.reader().all().1).read(0, 1000);
    assert_eq!(whole(&store).unwrap_err().kind(), ErrorKind::InvalidData);
    assert_eq!(CodeFile::All(store.reader().all().1).read(0, 24).unwrap(), code(1, 0));
    // Only this code is damaged, and it stays so when the journal is rewritten.
    store.begin_anew();
    let damaged = store.reader().get(2).unwrap().read().unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::InvalidData);
    store.append(&written(&[2], 5)).unwrap();
    let now = expected(&[(1, 0), (2, 5), (3, 0)]);
    assert_eq!((read(&store), read(&open(&disk))), (now.clone(), now));
}

#[test]
fn many_codes_take_little_more_than_they_have() {
    let disk = Model::default();
    let mut store = CodeStore::open(Arc::new(disk.clone()), 1568, 0).unwrap();
    let code = vec![5; 1568];
    let one = |number: u64| [number.to_le_bytes().to_vec(), code.clone()].concat();
    for from in (0..4000).step_by(500) {
        store.append(&(from..from + 500).flat_map(one).collect::<Vec<u8>>()).unwrap();
    }
    let payload = 4000 * 1568;
    println!("on_disk_over_payload = {:.4}", store.length() as f64 / payload as f64);
    assert!(store.length() as f64 <= 1.01 * payload as f64);
    // One code an append.
    (4000..5000).for_each(|number| assert_eq!(store.append(&one(number)).unwrap(), 1));
    assert!(store.length() as f64 <= 1.05 * (5000 * 1568) as f64, "{}", store.length());
}

#[test]
fn dead_codes_are_left_behind() {
    let disk = Model::default();
    let mut store = CodeStore::open(Arc::new(disk.clone()), 1 << 16, 0).unwrap();
    let numbers = 0..40_u64;
    for round in 0..40_u8 {
        let one = |number: u64| [number.to_le_bytes().to_vec(), vec![round; 1 << 16]].concat();
        store.append(&numbers.clone().flat_map(one).collect::<Vec<u8>>()).unwrap();
    }
    let names = disk.names().unwrap();
    assert!(names.len() == 1 && names[0].1 < 80 << 20, "{names:?}");
    let whole = |store: &CodeStore| {
        let codes = CodeFile::All(store.reader().all().1);
        codes.read(0, usize::MAX).unwrap().iter().filter(|byte| **byte == 39).count()
    };
    let again = CodeStore::open(Arc::new(disk.clone()), 1 << 16, 0).unwrap();
    assert_eq!((whole(&store), whole(&again)), (40 << 16, 40 << 16));
}

/// The codes after each step; and the steps that last, each with the number of disk operations until then.
type States = (Vec<BTreeMap<u64, u8>>, Vec<(usize, usize)>);

fn work(disk: &Model, random: &mut ChaCha8Rng) -> States {
    let mut store = open(disk);
    let mut states = vec![BTreeMap::new()];
    let mut lasting = vec![(disk.ops(), 0)];
    for round in 0..30 {
        match random.random_range(0..10) {
            0..7 => {
                let count = random.random_range(1..30);
                let numbers: Vec<u64> = (0..count).map(|_| random.random_range(0..40)).collect();
                store.append(&written(&numbers, round)).unwrap();
                let mut state = states.last().unwrap().clone();
                state.extend(numbers.into_iter().map(|number| (number, round)));
                states.push(state);
            }
            7..9 => {
                store.sync().unwrap();
                lasting.push((disk.ops(), states.len() - 1));
            }
            _ => {
                store.begin_anew();
                lasting.push((disk.ops(), states.len() - 1));
            }
        }
    }
    (states, lasting)
}

/// A crash leaves the codes of the first appends, at least those that were synced.
#[test]
fn crash_images() {
    let mut images = 0;
    for seed in 0..30 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let disk = Model::default();
        let (states, lasting) = work(&disk, &mut random);
        for cut in 1..=disk.ops() {
            let image = disk.crash(cut, &mut random);
            let last = lasting.iter().rfind(|(ops, _)| *ops <= cut).map_or(0, |(_, state)| *state);
            for _ in 0..2 {
                let held: BTreeMap<u64, Vec<u8>> = read(&open(&image)).into_iter().collect();
                let was = states[last..].iter().any(|state| {
                    state.len() == held.len()
                        && state.iter().all(|(number, round)| held[number] == code(*number, *round))
                });
                assert!(was, "seed {seed}, cut {cut}: {} never were since {last}", held.len());
            }
            images += 1;
        }
    }
    println!("{images} crash images");
    assert!(images > 500);
}

/// Replaced codes are given back if other programs need the disk.
#[test]
fn dead_codes_make_room_for_others() {
    let disk = Model::default();
    let room = |bytes| Some(Space { bytes, total: 1 << 40, files: None });
    let mut store = CodeStore::open(Arc::new(disk.clone()), BYTES, 1 << 30).unwrap();
    let numbers: Vec<u64> = (0..100).collect();
    (0..3).for_each(|round| _ = store.append(&written(&numbers, round)).unwrap());
    let before = store.length();
    // Opening a store asks the disk again.
    let mut store = CodeStore::open(Arc::new(disk.clone()), BYTES, 1 << 30).unwrap();
    disk.set_space(room(3 << 28));
    store.append(&written(&[100], 0)).unwrap_err();
    assert!(store.length() < before / 2, "as much as was dead");
    let left: Vec<(u64, u8)> = numbers.iter().map(|number| (*number, 2)).collect();
    assert_eq!(read(&store), expected(&left));
}

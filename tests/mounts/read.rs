//! Bytes: whatever is cached, fetched ahead or evicted meanwhile, readers get the bytes of the source.
//!
//! Goal: no size, no way of reading and no pressure on the caches ever gives a wrong byte. Method: eight
//! threads read files with sizes around those of pages and blocks: whole, by range and mapped, at places
//! chosen by a seed, over caches that hold next to nothing.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use memmap2::Mmap;

use crate::fixture::{Choice, Fixture, check_many, content, wait_until};
use crate::mounted::Mounted;

const MIB: usize = 1 << 20;

/// Sizes around pages, around blocks, and some more.
const SIZES: [usize; 10] = [0, 1, 4095, 4096, 4097, 110 << 10, MIB - 1, MIB, MIB + 1, 5 * MIB];

const THREADS: u64 = 8;

/// The number of reads of each thread.
const READINGS: usize = 40;

struct Known {
    name: String,
    bytes: Vec<u8>,
}

fn write_files(fixture: &Fixture) -> Vec<Known> {
    let known = SIZES.iter().enumerate().flat_map(|(seed, &size)| {
        // There are many small files, so that some of them are evicted, too.
        let copies = if size < MIB / 2 { 4 } else { 1 };
        (0..copies).map(move |copy| {
            let bytes = content(seed as u64 * 100 + copy, size);
            Known { name: format!("{}/{size}-{copy}", seed % 3), bytes }
        })
    });
    let known: Vec<Known> = known.collect();
    for file in &known {
        fixture.write(&file.name, &file.bytes);
    }
    known
}

fn whole(path: &Path, bytes: &[u8]) {
    assert!(fs::read(path).unwrap() == bytes, "{}", path.display());
}

fn ranges(path: &Path, bytes: &[u8], choice: &mut Choice) {
    let file = File::open(path).unwrap();
    for _ in 0..6 {
        // Also beyond the end.
        let offset = choice.below(bytes.len() as u64 + 100) as usize;
        let mut buffer = vec![0; choice.below(300_000) as usize];
        let mut filled = 0;
        loop {
            let at = (offset + filled) as u64;
            match file.read_at(&mut buffer[filled..], at).unwrap() {
                0 => break,
                count => filled += count,
            }
        }
        let from = offset.min(bytes.len());
        let expected = &bytes[from..(from + buffer.len()).min(bytes.len())];
        assert!(buffer[..filled] == *expected, "{} at {offset}", path.display());
    }
}

fn mapped(path: &Path, bytes: &[u8], choice: &mut Choice) {
    let file = File::open(path).unwrap();
    if bytes.is_empty() {
        return;
    }
    // SAFETY: nothing changes the source, and the mount is read-only.
    let map = unsafe { Mmap::map(&file).unwrap() };
    assert_eq!(map.len(), bytes.len());
    for _ in 0..6 {
        let from = choice.below(bytes.len() as u64) as usize;
        let to = (from + choice.below(300_000) as usize).min(bytes.len());
        assert!(map[from..to] == bytes[from..to], "{} mapped at {from}", path.display());
    }
}

fn read_at_random(root: PathBuf, known: &[Known], seed: u64) {
    let mut choice = Choice(seed);
    for _ in 0..READINGS {
        let file = &known[choice.below(known.len() as u64) as usize];
        let path = root.join(&file.name);
        match choice.below(3) {
            0 => whole(&path, &file.bytes),
            1 => ranges(&path, &file.bytes, &mut choice),
            _ => mapped(&path, &file.bytes, &mut choice),
        }
    }
}

/// Reads all files in all ways from many threads at once, then in the order of their names.
fn bytes_are_the_sources(options: &[&str]) {
    let fixture = Fixture::new();
    let known = write_files(&fixture);
    let cache = fixture.path("cache");
    let options: Vec<&str> = options
        .iter()
        .map(|word| if *word == "CACHE" { cache.to_str().unwrap() } else { word })
        .collect();
    let mounted = Mounted::new(&fixture, &options);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (root, known) = (mounted.path(""), &known);
            scope.spawn(move || read_at_random(root, known, seed));
        }
    });
    for file in &known {
        whole(&mounted.path(&file.name), &file.bytes);
    }
    assert_eq!(mounted.count("/read_errors"), 0);
    wait_until("all handles closed and fetches ended", || mounted.count("/fetching") == 0);
    mounted.umount();
}

#[test]
fn with_the_least_memory() {
    bytes_are_the_sources(&["--ram", "1MiB"]);
}

#[test]
fn with_the_least_memory_and_an_order() {
    bytes_are_the_sources(&["--ram", "1MiB", "--order", "torch-distributed:seed=1"]);
}

#[test]
fn with_memory_for_nothing() {
    bytes_are_the_sources(&["--ram", "0", "--order", "torch-random:seed=4"]);
}

#[test]
fn with_a_byte_of_memory_and_one_on_disk() {
    bytes_are_the_sources(&["--ram", "1", "--cache-dir", "CACHE", "--disk", "1MiB"]);
}

#[test]
fn with_nothing_kept() {
    let order = "sequential:index=path";
    bytes_are_the_sources(&["--ram", "3MiB", "--set", "cache.policy=none", "--order", order]);
}

#[test]
fn with_lru_and_one_request_at_a_time() {
    let set = ["--set", "cache.policy=lru", "--set", "prefetch.inflight=1"];
    bytes_are_the_sources(&[&["--ram", "2MiB"][..], &set].concat());
}

#[test]
fn with_a_small_disk() {
    bytes_are_the_sources(&["--ram", "1MiB", "--cache-dir", "CACHE", "--disk", "3MiB"]);
}

#[test]
fn with_a_disk_that_holds_all_and_an_order() {
    let order = "torch-random:seed=5";
    let disk = ["--cache-dir", "CACHE", "--disk", "64MiB", "--order", order];
    bytes_are_the_sources(&[&["--ram", "2MiB"][..], &disk].concat());
}

#[test]
fn with_memory_for_all_and_several_orders() {
    let streams = ["--stream", "a=torch-random:seed=1", "--stream", "b=sequential"];
    bytes_are_the_sources(&[&["--ram", "64MiB"][..], &streams].concat());
}

#[test]
fn a_sparse_file_beyond_four_gibibytes() {
    let fixture = Fixture::new();
    let length = (4 << 30) + 1_012_345_u64;
    let file = File::create(fixture.source("sparse")).unwrap();
    file.set_len(length).unwrap();
    // Across 2 GiB, across 4 GiB, and at the end. All else is a hole.
    let places = [(2 << 30) - 5000_u64, (4 << 30) - 5000, length - 10_000];
    for (seed, at) in places.into_iter().enumerate() {
        file.write_all_at(&content(seed as u64, 10_000), at).unwrap();
    }
    let mounted = Mounted::new(&fixture, &["--ram", "2MiB"]);
    let through = File::open(mounted.path("sparse")).unwrap();
    assert_eq!(through.metadata().unwrap().len(), length);
    let mut buffer = vec![0; 10_000];
    for (seed, at) in places.into_iter().enumerate() {
        through.read_exact_at(&mut buffer, at).unwrap();
        assert!(buffer == content(seed as u64, 10_000), "at {at}");
    }
    for hole in [0, 3 << 30, (4 << 30) - 3 * MIB as u64] {
        through.read_exact_at(&mut buffer, hole).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0), "at {hole}");
    }
    assert_eq!(through.read_at(&mut buffer, length).unwrap(), 0);
    // SAFETY: nothing changes the source, and the mount is read-only.
    let map = unsafe { Mmap::map(&through).unwrap() };
    let at = (4 << 30) - 5000;
    assert!(map[at..at + 10_000] == content(1, 10_000));
    drop((map, through));
    mounted.umount();
}

#[test]
fn samples_read_once_leave_and_come_back() {
    let fixture = Fixture::new();
    fixture.write_many("d", 300, 20_000);
    let mounted = Mounted::new(&fixture, &["--ram", "1MiB"]);
    for _ in 0..3 {
        check_many(&mounted.path(""), "d", 300, 20_000);
    }
    assert!(mounted.count("/ram/kept") <= 1 << 20);
    wait_until("samples dropped", || mounted.count("/dropped") > 0);
    mounted.umount();
}

#[test]
fn a_mount_that_is_unmounted_while_it_reads_ahead_ends() {
    let fixture = Fixture::new();
    fixture.write_many("d", 400, 50_000);
    for _ in 0..3 {
        let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", "sequential"]);
        check_many(&mounted.path(""), "d", 5, 50_000);
        mounted.umount();
    }
}

//! Checks where belady finds the samples of containers. The real libraries wrote the files. They are read whole, cut,
//! and damaged.
//!
//! `tests/vectors/containers` has the files, and the program that made them. Each sample has its number in eight
//! digits at its start, so a range is right if it begins with the sample's number. In a chunk of several rows, and
//! behind other columns, the number is somewhere in it.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belady::error::Result;
use belady::ids::FileId;
use belady::order::containers::{FileBytes, Numbered, numbered};
use belady::order::index::Filter;
use belady::order::{Container, Entry, FileSamples, FindSamples, Listing};

/// The files, and how many samples each has of a kind.
const SAMPLES: [(&str, &str, usize); 17] = [
    ("rows.npy", "npy", 12),
    ("shard.mds", "mds", 9),
    ("old.h5", "hdf5:whole", 7),
    ("old.h5", "hdf5:in/chunks", 90),
    ("old.h5", "hdf5:/growing", 30),
    ("old.h5", "hdf5:several", 10),
    ("old.h5", "hdf5:pieces", 3),
    ("new.h5", "hdf5:whole", 7),
    ("new.h5", "hdf5:in/chunks", 90),
    ("new.h5", "hdf5:growing", 30),
    ("new.h5", "hdf5:words", 2),
    ("hf.arrow", "arrow:image", 25),
    ("hf.arrow", "arrow:list", 25),
    ("stream.arrow", "arrow:bytes", 25),
    ("stream.arrow", "arrow:a.b.c", 25),
    ("file.arrow", "arrow:grid", 25),
    ("values.lmdb", "lmdb", 149),
];

/// What is refused, and a part of the message.
const REFUSED: [(&str, &str, &str); 13] = [
    ("old.h5", "hdf5:apart", "the chunks of row 0 of 'apart' lie apart"),
    ("new.h5", "hdf5:texts", "texts or arrays of different lengths"),
    ("old.h5", "hdf5:number", "is one value"),
    ("new.h5", "hdf5:other", "it has no data set 'other'"),
    ("old.h5", "hdf5:unwritten", "nothing was written to 'unwritten'"),
    ("shard.mds", "hdf5:whole", "HDF5"),
    ("stream.arrow", "arrow:other", "it has no column 'other'"),
    ("stream.arrow", "arrow:a.b.e", "it has no column 'a.b.e'"),
    ("stream.arrow", "arrow:word", "are not ranges of bytes"),
    ("compressed.arrow", "arrow:bytes", "compressed"),
    ("named.lmdb", "lmdb", "several values of a key"),
    ("rows.npy", "lmdb", "no database of LMDB"),
    ("empty.lmdb", "lmdb", "index is empty"),
];

fn file(name: &str) -> Vec<u8> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/containers");
    fs::read(top.join(name)).unwrap()
}

/// The samples of a file, and how many bytes of it were read.
fn samples(bytes: &Arc<[u8]>, kind: &str) -> (Result<Vec<Range<usize>>>, u64) {
    let asked = Arc::new(AtomicU64::new(0));
    let (shared, count) = (Arc::clone(bytes), Arc::clone(&asked));
    let read_each = |files: &[Entry<'_>], find: &FindSamples<'_>| {
        let read = {
            let (shared, count) = (Arc::clone(&shared), Arc::clone(&count));
            move |range: Range<u64>| {
                count.fetch_add(range.end - range.start, Ordering::Relaxed);
                Ok(shared[range.start as usize..range.end as usize].to_vec())
            }
        };
        let of = |entry: &Entry<'_>| {
            let samples = find(FileBytes::new(entry.size, Arc::new(read.clone())))?;
            Ok(FileSamples { samples, index: Vec::new() })
        };
        files.iter().map(of).collect()
    };
    let entry = Entry { path: b"x", file: FileId(0), size: bytes.len() as u64 };
    let listing = Listing::new(vec![entry]).with_reader(&read_each);
    let root = Filter { root: "x".to_owned(), ..Filter::default() };
    let found = numbered(&listing, &root, &Container::parse(kind).unwrap().unwrap()).map(
        |Numbered { table, index }| {
            let range = |row: &u32| {
                let range = &table[*row as usize];
                range.offset as usize..(range.offset + range.length) as usize
            };
            index.iter().map(range).collect()
        },
    );
    (found, asked.load(Ordering::Relaxed))
}

#[test]
fn samples_are_where_their_libraries_wrote_them() {
    for (name, kind, count) in SAMPLES {
        let bytes: Arc<[u8]> = file(name).into();
        let found = samples(&bytes, kind).0.unwrap();
        assert_eq!(found.len(), count, "{name} {kind}");
        for (nth, range) in found.into_iter().enumerate() {
            let number = format!("{nth:08}").into_bytes();
            let place = bytes[range.clone()].windows(8).position(|window| window == number);
            assert!(place.is_some(), "{name} {kind}: sample {nth} is not in {range:?}");
            let is_elsewhere = ["hdf5:several", "mds"].contains(&kind);
            assert!(place == Some(0) || is_elsewhere, "{name} {kind}: {nth} at {place:?}");
        }
    }
}

#[test]
fn rows_of_one_chunk_are_one_range() {
    let bytes: Arc<[u8]> = file("old.h5").into();
    let found = samples(&bytes, "hdf5:small").0.unwrap();
    assert_eq!(found.len(), 20);
    assert!(found.chunks(5).all(|rows| rows.iter().all(|row| *row == rows[0])), "{found:?}");
    assert!(found[0] != found[5], "{found:?}");
}

#[test]
fn columns_of_arrow_end_where_the_next_row_begins() {
    let bytes: Arc<[u8]> = file("stream.arrow").into();
    for (kind, length) in [("arrow:bytes", None), ("arrow:large", None), ("arrow:fixed", Some(40))]
    {
        let found = samples(&bytes, kind).0.unwrap();
        let lengths: Vec<usize> = found.iter().map(ExactSizeIterator::len).collect();
        let expected: Vec<usize> = (0..25).map(|nth| length.unwrap_or(40 + nth % 3)).collect();
        assert_eq!(lengths, expected, "{kind}");
    }
}

#[test]
fn what_is_no_sample_is_refused_with_a_reason() {
    for (name, kind, why) in REFUSED {
        let error = samples(&file(name).into(), kind).0.unwrap_err().to_string();
        assert!(error.contains(why), "{name} {kind}: {error}");
    }
}

/// Every file that has a kind of samples, damaged in a way that differs from turn to turn.
fn damaged(turns: u64, mut damage: impl FnMut(&mut Vec<u8>, &mut dyn FnMut(u64) -> u64)) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |most: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    for (name, kind, _) in SAMPLES {
        let whole = file(name);
        for turn in 0..turns {
            let mut bytes = whole.clone();
            damage(&mut bytes, &mut below);
            let (length, bytes) = (bytes.len(), Arc::from(bytes));
            let (found, asked) = samples(&bytes, kind);
            let words = format!("{name} {kind}, turn {turn}");
            for range in found.into_iter().flatten() {
                assert!(!range.is_empty() && range.end <= length, "{words}: {range:?}");
            }
            assert!(asked < 64 << 20, "{words}: {asked} bytes were read");
        }
    }
}

#[test]
fn a_file_that_was_cut_costs_no_panic() {
    damaged(60, |bytes, below| bytes.truncate(below(bytes.len() as u64) as usize));
}

#[test]
fn a_file_with_wrong_bytes_costs_no_panic() {
    damaged(400, |bytes, below| {
        for _ in 0..=below(4) {
            // Most of what matters is at the start.
            let within = [64, 512, 4096, bytes.len() as u64][below(4) as usize];
            let at = below(within.min(bytes.len() as u64)) as usize;
            let wrong = [0, 1, 0x7f, 0x80, 0xff, below(256)][below(6) as usize] as u8;
            let length = [1, 1, 4, 8][below(4) as usize].min(bytes.len() - at);
            bytes[at..at + length].fill(wrong);
        }
    });
}

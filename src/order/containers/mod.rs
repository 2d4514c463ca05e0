//! Samples inside large files.
//!
//! A *container* is a file with many samples in it: an array, a shard, a database. The dataset class of the job gives
//! each position a sample in one of them. [`numbered`] repeats that:
//!
//! 1. It takes the containers below the dataset's directory, by the endings of their names, in the order of their
//!    paths.
//! 2. Each [format](Container) has a function that finds where the samples of a file are, by the index or the headers
//!    of the file. Several files are read at once ([`ReadEach`](super::ReadEach)).
//! 3. A sample becomes a row of a table. Samples that are read with the same bytes, such as rows of one chunk, share a
//!    row. The parts of the index that were read are rows as well. No position stands for them, but the job reads them
//!    between its samples.
//!
//! Containers are not trusted. Each function bounds what it reads and keeps. Its error says at which byte of the file
//! something is wrong.

mod arrow;
mod file_bytes;
mod hdf5;
mod lmdb;
mod mds;
pub(super) mod npy;

pub use file_bytes::{FileBytes, ReadRange};

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::index::Filter;
use super::samplers::wrong;
use super::{Entry, FileRange, FileSamples, Listing, grouped};
use crate::error::{Error, ErrorKind, Result};

/// More samples are refused. Each takes some bytes of memory.
const SAMPLES_MAX: u64 = 1 << 24;

/// Shorter parts of an index, in bytes, are not told apart from the samples beside them.
const PART_MIN: u64 = 64;

/// A format of files that hold many samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Container {
    /// Arrays of numpy: a sample is a row.
    Npy,
    /// Shards of MosaicML's streaming.
    Mds,
    /// A data set of HDF5 files, by its path in them: a sample is a row.
    Hdf5(String),
    /// A column of Arrow files, such as those of Hugging Face's datasets. Names of fields follow after dots.
    Arrow(String),
    /// LMDB: a sample is a value, in the order of the keys.
    Lmdb,
}

impl Container {
    /// How they are written in a spec.
    pub const FORMS: [&str; 5] = ["npy", "mds", "hdf5:NAME", "arrow:COLUMN", "lmdb"];

    /// The container that is written so in a spec. `None` if it is something else.
    ///
    /// # Errors
    /// If a name is missing, or if there is one too many.
    pub fn parse(text: &str) -> Option<Result<Self>> {
        let (word, name) =
            text.split_once(':').map_or((text, None), |(word, name)| (word, Some(name)));
        let named = |make: fn(String) -> Self, example: &str| match name {
            None | Some("") => Err(wrong(format!("index={word} needs a name"))
                .hint(format!("write index={word}:NAME, such as index={example}"))),
            Some(name) => Ok(make(name.to_owned())),
        };
        let plain = |container: Self| match name {
            Some(_) => Err(wrong(format!("index={word} takes no name"))),
            None => Ok(container),
        };
        match word {
            "npy" => Some(plain(Container::Npy)),
            "mds" => Some(plain(Container::Mds)),
            "lmdb" => Some(plain(Container::Lmdb)),
            "hdf5" => Some(named(Container::Hdf5, "hdf5:images")),
            "arrow" => Some(named(Container::Arrow, "arrow:image")),
            _ => None,
        }
    }

    /// Endings of the names of such files.
    fn endings(&self) -> &'static [&'static str] {
        match self {
            Container::Npy => &[".npy"],
            Container::Mds => &[".mds"],
            Container::Hdf5(_) => &[".h5", ".hdf5"],
            Container::Arrow(_) => &[".arrow"],
            Container::Lmdb => &["data.mdb", ".lmdb"],
        }
    }

    /// Where the samples of a file are, by their position. A range may be empty.
    fn samples(&self, file: &FileBytes) -> Result<Vec<Range<u64>>> {
        match self {
            Container::Npy => npy::samples(file),
            Container::Mds => mds::samples(file),
            Container::Hdf5(name) => hdf5::samples(file, name),
            Container::Arrow(column) => arrow::samples(file, column),
            Container::Lmdb => lmdb::samples(file),
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Container::Npy => f.write_str("npy"),
            Container::Mds => f.write_str("mds"),
            Container::Hdf5(name) => write!(f, "hdf5:{name}"),
            Container::Arrow(column) => write!(f, "arrow:{column}"),
            Container::Lmdb => f.write_str("lmdb"),
        }
    }
}

/// The samples of containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Numbered {
    /// Each sample once, and parts of indexes.
    pub table: Vec<FileRange>,
    /// The row of the table at each position. A file that has several paths has its samples several times.
    pub index: Vec<u32>,
}

/// The samples of all containers that a filter takes, file after file by path. The filter's root may also be a file.
///
/// # Errors
/// If there is no sample, or if there are too many. If a file cannot be read, or if it is no whole container of this
/// format. The error names the file.
pub fn numbered(listing: &Listing<'_>, filter: &Filter, container: &Container) -> Result<Numbered> {
    let is_root = |entry: &&Entry<'_>| entry.path == filter.directory().as_bytes();
    let below = listing.below(filter.directory()).map(|(_, entry)| entry);
    let below = below.filter(|entry| filter.takes(entry.path, container.endings()));
    let mut paths: Vec<&Entry<'_>> =
        listing.entries().iter().filter(is_root).chain(below).collect();
    paths.sort_unstable_by_key(|entry| entry.path);
    let (mut files, mut nth_of) = (Vec::new(), HashMap::new());
    for entry in &paths {
        nth_of.entry(entry.file).or_insert_with(|| {
            files.push(**entry);
            files.len() - 1
        });
    }
    let (count, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let find = |file: FileBytes| {
        if has_failed.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let found = samples_within(container, file).and_then(|samples| {
            let before = count.fetch_add(samples.len() as u64, Ordering::Relaxed);
            check_count(before + samples.len() as u64).map(|()| samples)
        });
        has_failed.fetch_or(found.is_err(), Ordering::Relaxed);
        found
    };
    let found = listing.read_each(&files, &find);
    let (mut numbered, mut rows_of) = (Numbered::default(), Vec::with_capacity(files.len()));
    for (entry, found) in files.iter().zip(found) {
        let FileSamples { samples, index } = found
            .map_err(|error| error.context(String::from_utf8_lossy(entry.path).into_owned()))?;
        let index = beside(index, &samples);
        rows_of.push(add_rows(entry, samples, &mut numbered.table));
        numbered.table.extend(index.into_iter().map(|part| range_of(entry, part)));
    }
    for entry in &paths {
        let rows = &rows_of[nth_of[&entry.file]];
        check_count(numbered.index.len() as u64 + rows.len() as u64)?;
        numbered.index.extend(rows);
    }
    if numbered.index.is_empty() {
        let message = format!(
            "the {container} index is empty: no file of the source with these endings has samples: {}",
            container.endings().join(", ")
        );
        let hint =
            "root= names a directory relative to the source, or one file; ext= other endings";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    Ok(numbered)
}

/// The samples of a file. None of them is empty, and all are in the file.
fn samples_within(container: &Container, file: FileBytes) -> Result<Vec<Range<u64>>> {
    if file.size() == u64::MAX {
        return Err(wrong("its size is not known before it is read"));
    }
    let mut samples = container.samples(&file)?;
    for (nth, sample) in samples.iter_mut().enumerate() {
        if sample.start > sample.end || sample.end > file.size() {
            let Range { start, end } = sample;
            let message = format!("sample {nth} is said to have bytes {start} to {end}");
            return Err(file.is_cut(message));
        }
        // A reader may touch the place of an empty sample.
        sample.start = sample.start.min(file.size().saturating_sub(1));
        sample.end = sample.end.max(sample.start + 1);
    }
    Ok(samples)
}

/// Adds the ranges of a file's samples to a table, and gives the row of each sample.
fn add_rows(entry: &Entry<'_>, samples: Vec<Range<u64>>, table: &mut Vec<FileRange>) -> Vec<u32> {
    let mut add = |sample: Range<u64>| {
        table.push(range_of(entry, sample));
        table.len() as u32 - 1
    };
    if samples.is_sorted_by(|a, b| a.start < b.start) {
        return samples.into_iter().map(add).collect();
    }
    let (mut known, mut last) = (HashMap::new(), None);
    let row = |sample: Range<u64>| {
        if let Some((_, row)) = last.as_ref().filter(|(before, _)| *before == sample) {
            return *row;
        }
        let row = match known.entry(sample.clone()) {
            Slot::Occupied(found) => *found.get(),
            Slot::Vacant(free) => *free.insert(add(sample.clone())),
        };
        last = Some((sample, row));
        row
    };
    samples.into_iter().map(row).collect()
}

fn range_of(entry: &Entry<'_>, bytes: Range<u64>) -> FileRange {
    FileRange { file: entry.file, offset: bytes.start, length: bytes.end - bytes.start }
}

/// The same bytes in as few ranges as they take, sorted.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match joined.last_mut().filter(|last| last.end >= range.start) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// The parts of an index that lie in no sample. Short parts are left out, since they come with the samples beside them.
fn beside(index: Vec<Range<u64>>, samples: &[Range<u64>]) -> Vec<Range<u64>> {
    let samples = joined(samples.to_vec());
    let mut parts = Vec::new();
    for part in joined(index) {
        let mut start = part.start;
        let first = samples.partition_point(|sample| sample.end <= part.start);
        for sample in samples[first..].iter().take_while(|sample| sample.start < part.end) {
            parts.push(start..sample.start.max(start));
            start = sample.end;
        }
        parts.push(start..part.end.max(start));
    }
    parts.retain(|part| part.end - part.start >= PART_MIN);
    parts
}

/// Refuses more samples than are kept.
fn check_count(count: u64) -> Result<()> {
    if count <= SAMPLES_MAX {
        return Ok(());
    }
    Err(wrong(format!("there are more than {} samples", grouped(SAMPLES_MAX)))
        .hint("root= names one file, or write an order file that lists ranges"))
}

#[cfg(test)]
mod tests;

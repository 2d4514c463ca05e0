//! Data sets of HDF5 files.
//!
//! A sample is a row: everything at one position of the first dimension. If a data set lies in one piece, its rows
//! follow each other. If it is in chunks, the index of the file tells where each chunk is, and a row is read with the
//! chunks that it is in. These have to lie together, since a sample is one range of the file.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use hdf5_pure::{
    Chunk, ChunkIndex, Dataset, Datatype, FileAccessProperties, FormatError, Layout,
    MetadataCacheConfig,
};

use super::{FileBytes, check_count};
use crate::error::{Error, Result};
use crate::order::samplers::wrong;

/// The chunks of a row lie together if at most as many bytes are between them as in them, and 4,096 more.
const GAPS_MAX: u64 = 4096;

/// An index is read with at most so many reads, and one more for so many bytes of the file. A node of an index has
/// hundreds of bytes.
const READS_MAX: u64 = 1_000;
const BYTES_EACH_READ: u64 = 16;

/// Bytes of an index for each chunk, at least.
const CHUNK_ENTRY: u64 = 8;

struct Source {
    file: FileBytes,
    /// If it is read more often than that, its index leads around.
    reads_left: AtomicU64,
}

impl Source {
    fn new(file: &FileBytes) -> Self {
        let reads_left = AtomicU64::new(READS_MAX + file.size() / BYTES_EACH_READ);
        Source { file: file.clone(), reads_left }
    }

    fn read(&self, offset: u64, length: u64) -> std::result::Result<Vec<u8>, FormatError> {
        let one_less = |left: u64| left.checked_sub(1);
        if self.reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Err(FormatError::Source("its index leads around".to_owned()));
        }
        let bytes = self.file.read_at(offset, length);
        bytes.map_err(|error| FormatError::Source(error.to_string()))
    }
}

impl hdf5_pure::Source for Source {
    fn len(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), FormatError> {
        into.copy_from_slice(&self.read(offset, into.len() as u64)?);
        Ok(())
    }

    fn read_exact_at(
        &self,
        offset: u64,
        length: usize,
    ) -> std::result::Result<Vec<u8>, FormatError> {
        self.read(offset, length as u64)
    }
}

/// The file is no HDF5, or the crate does not read it.
fn unreadable(error: impl Display) -> Error {
    wrong(format!("HDF5: {error}"))
}

/// Where the rows of a data set are.
pub(super) fn samples(file: &FileBytes, name: &str) -> Result<Vec<Range<u64>>> {
    // What the crate keeps is not counted in `Source`.
    let properties =
        FileAccessProperties::new().with_metadata_cache(MetadataCacheConfig::disabled());
    let opened = hdf5_pure::File::from_source_with_options(Source::new(file), properties);
    let opened = opened.map_err(unreadable)?;
    let data = opened.dataset(name).map_err(|error| {
        let known = opened.root().datasets().unwrap_or_default().join(", ");
        let error = wrong(format!("it has no data set '{name}': {error}"));
        if known.is_empty() { error } else { error.hint(format!("it has {known}")) }
    })?;
    let shape = data.shape().map_err(unreadable)?;
    let [count, of_row @ ..] = &shape[..] else {
        return Err(wrong(format!("'{name}' is one value, and has no rows")));
    };
    check_count(*count)?;
    let element = data.element_size().map_err(unreadable)?;
    let row = of_row.iter().try_fold(element, |bytes, length| bytes.checked_mul(*length));
    let row = row.ok_or_else(|| wrong(format!("the rows of '{name}' are too large")))?;
    if row == 0 {
        return Err(wrong(format!("the rows of '{name}' have no bytes")));
    }
    refuse_lengths(&data, name)?;
    match data.layout().map_err(unreadable)? {
        Layout::Contiguous { address: Some(address), size } => {
            in_one_piece(address, size, *count, row)
        }
        Layout::Chunked { chunk_shape, index } => {
            refuse_counts((&shape, &chunk_shape), index, element, file.size(), name)?;
            let chunks = data.chunks().map_err(unreadable)?;
            in_chunks(&chunks, &chunk_shape, &shape, name)
        }
        Layout::Contiguous { address: None, .. } => {
            Err(wrong(format!("nothing was written to '{name}' yet")))
        }
        other => Err(wrong(format!("'{name}' is stored as {other}"))
            .hint("write it in one piece, or with a chunk for each row")),
    }
}

/// Texts and arrays of different lengths lie elsewhere in the file, and the rows are only their places.
fn refuse_lengths(data: &Dataset, name: &str) -> Result<()> {
    fn differ(kind: &Datatype) -> bool {
        match kind {
            Datatype::VariableLength { .. } => true,
            Datatype::Compound { members, .. } => {
                members.iter().any(|member| differ(&member.datatype))
            }
            Datatype::Array { base_type, .. } => differ(base_type),
            _ => false,
        }
    }
    if differ(&data.datatype().map_err(unreadable)?) {
        return Err(wrong(format!(
            "the rows of '{name}' have texts or arrays of different lengths"
        ))
        .hint("write an order file that lists ranges"));
    }
    Ok(())
}

/// Refuses more chunks than the file can have: the index is made in memory.
fn refuse_counts(
    (shape, of): (&[u64], &[u64]),
    index: ChunkIndex,
    element: u64,
    file_bytes: u64,
    name: &str,
) -> Result<()> {
    let along = |(length, of): (&u64, &u64)| length.div_ceil((*of).max(1));
    let chunks = product(shape.iter().zip(of).map(along));
    let bytes_each = match index {
        // Only what was written has entries.
        ChunkIndex::BTreeV1 => Some(0),
        ChunkIndex::Implicit => product(of.iter().copied().chain([element])),
        _ => Some(CHUNK_ENTRY),
    };
    let bytes = chunks.zip(bytes_each).and_then(|(chunks, each)| chunks.checked_mul(each));
    match bytes {
        Some(bytes) if bytes <= file_bytes => Ok(()),
        _ => Err(wrong(format!("'{name}' has more chunks than the file has room for"))),
    }
}

fn product(mut lengths: impl Iterator<Item = u64>) -> Option<u64> {
    lengths.try_fold(1_u64, |product, length| product.checked_mul(length))
}

/// Rows that follow each other.
fn in_one_piece(address: u64, size: u64, count: u64, row: u64) -> Result<Vec<Range<u64>>> {
    let all = row.checked_mul(count).filter(|all| *all <= size);
    let end = all.and_then(|all| address.checked_add(all));
    if end.is_none() {
        return Err(wrong(format!(
            "its rows need {count} times {row} bytes, and at byte {address} it has {size}"
        ))
        .hint("was it cut off while it was copied?"));
    }
    let begin = |nth: u64| address + nth * row;
    Ok((0..count).map(|nth| begin(nth)..begin(nth + 1)).collect())
}

/// Rows that are read with their chunks.
fn in_chunks(chunks: &[Chunk], of: &[u64], shape: &[u64], name: &str) -> Result<Vec<Range<u64>>> {
    let (count, rows_each) = (shape[0], of.first().copied().unwrap_or(0).max(1));
    // The place of each group of rows, and the bytes of its chunks.
    let mut groups = HashMap::<u64, (Range<u64>, u64)>::new();
    for chunk in chunks {
        let nth = chunk.offset.first().copied().unwrap_or(0) / rows_each;
        let end = chunk.address.checked_add(chunk.storage_size);
        let end =
            end.ok_or_else(|| wrong(format!("a chunk is said to be at {}", chunk.address)))?;
        let (place, bytes) = groups.entry(nth).or_insert((chunk.address..end, 0));
        *place = place.start.min(chunk.address)..place.end.max(end);
        *bytes = bytes.saturating_add(chunk.storage_size);
    }
    let mut samples = Vec::new();
    for nth in 0..count {
        let Some((place, bytes)) = groups.get(&(nth / rows_each)) else {
            return Err(wrong(format!("row {nth} of '{name}' was never written")));
        };
        if place.end - place.start > bytes.saturating_mul(2).saturating_add(GAPS_MAX) {
            let message = format!("the chunks of row {nth} of '{name}' lie apart");
            let chunk = [&["1"], vec!["N"; shape.len() - 1].as_slice()].concat().join("x");
            return Err(wrong(message).hint(format!(
                "write it again with a chunk for each row: h5repack -l {name}:CHUNK={chunk}"
            )));
        }
        samples.push(place.clone());
    }
    Ok(samples)
}

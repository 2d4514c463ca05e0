//! Data sets of HDF5 files.
//!
//! A sample is a row: everything at one position of the first dimension. If a data set lies in one piece, its rows follow
//! each other. If it is in chunks, the index of the file tells where each chunk is, and a row is read with the chunks that
//! it is in. These have to lie together, since a sample is one range of the file.

use std::fmt::Display;
use std::ops::Range;

use hdf5_pure::{Chunk, Dataset, FileAccessProperties, FormatError, Layout, MetadataCacheConfig};

use super::{FileBytes, check_count};
use crate::error::{Error, Result};
use crate::order::samplers::wrong;

/// So many bytes of the index are kept while it is read.
const INDEX_BYTES: usize = 16 << 20;

/// The chunks of a row lie together if there are not more bytes between them than in them, and so many.
const GAPS_MAX: u64 = 4096;

struct Source(FileBytes);

impl hdf5_pure::Source for Source {
    fn len(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::result::Result<(), FormatError> {
        let bytes = self.0.read_at(offset, into.len() as u64);
        let bytes = bytes.map_err(|error| FormatError::Source(error.to_string()))?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
}

/// The file is no HDF5, or the crate does not read it.
fn unreadable(error: impl Display) -> Error {
    wrong(format!("HDF5: {error}"))
}

/// Where the rows of a data set are.
pub(super) fn samples(file: &FileBytes, name: &str) -> Result<Vec<Range<u64>>> {
    let properties =
        FileAccessProperties::new().with_metadata_cache(MetadataCacheConfig::new(INDEX_BYTES));
    let opened = hdf5_pure::File::from_source_with_options(Source(file.clone()), properties);
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
    refuse_texts(&data, name)?;
    match data.layout().map_err(unreadable)? {
        Layout::Contiguous { address: Some(address), size } => {
            in_one_piece(address, size, *count, row)
        }
        Layout::Chunked { chunk_shape, .. } => {
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

/// Texts and bytes of different lengths lie elsewhere in the file, and the rows are only their places.
fn refuse_texts(data: &Dataset, name: &str) -> Result<()> {
    let kind = data.dtype().map_err(unreadable)?.to_string();
    if kind.contains("vlen") || kind.contains("variable") {
        return Err(wrong(format!("the rows of '{name}' have different lengths ({kind})"))
            .hint("write an order file that lists ranges"));
    }
    Ok(())
}

/// Rows that follow each other.
fn in_one_piece(address: u64, size: u64, count: u64, row: u64) -> Result<Vec<Range<u64>>> {
    let all = row.checked_mul(count).filter(|all| *all <= size);
    let end = all.and_then(|all| address.checked_add(all));
    if end.is_none() {
        return Err(wrong(format!(
            "its rows need {count} times {row} bytes, and at byte {address} it has {size}"
        )));
    }
    let begin = |nth: u64| address + nth * row;
    Ok((0..count).map(|nth| begin(nth)..begin(nth + 1)).collect())
}

/// Rows that are read with their chunks.
fn in_chunks(chunks: &[Chunk], of: &[u64], shape: &[u64], name: &str) -> Result<Vec<Range<u64>>> {
    let (count, rows_each) = (shape[0], of.first().copied().unwrap_or(0).max(1));
    // The place of each group of rows, and the bytes of its chunks.
    let mut groups: Vec<Option<(Range<u64>, u64)>> = vec![None; count.div_ceil(rows_each) as usize];
    for chunk in chunks {
        let nth = chunk.offset.first().copied().unwrap_or(0) / rows_each;
        let end = chunk.address.checked_add(chunk.storage_size);
        let end =
            end.ok_or_else(|| wrong(format!("a chunk is said to be at {}", chunk.address)))?;
        // Chunks of rows that the data set does not have any more.
        let Some(group) = usize::try_from(nth).ok().and_then(|nth| groups.get_mut(nth)) else {
            continue;
        };
        let place = chunk.address..end;
        *group = Some(match group.take() {
            None => (place, chunk.storage_size),
            Some((known, bytes)) => {
                let place = known.start.min(place.start)..known.end.max(place.end);
                (place, bytes.saturating_add(chunk.storage_size))
            }
        });
    }
    let mut samples = Vec::with_capacity(count as usize);
    for nth in 0..count {
        // A chunk that was never written has no place. Its rows are made without a read.
        let (place, bytes) = groups[(nth / rows_each) as usize].clone().unwrap_or_default();
        if place.end - place.start > bytes.saturating_mul(2).saturating_add(GAPS_MAX) {
            let message = format!("the chunks of row {nth} of '{name}' lie apart");
            let chunk = [&["1"], vec!["N"; shape.len() - 1].as_slice()].concat().join("x");
            return Err(wrong(message).hint(format!(
                "write it again with a chunk for each row: h5repack -l {name}:CHUNK={chunk}"
            )));
        }
        samples.push(place);
    }
    Ok(samples)
}

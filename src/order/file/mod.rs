//! Order files: an access order written down.
//!
//! **Text.** One sample a line, in the order of access:
//!
//! - a path relative to the source, as raw bytes: the whole file;
//! - `path<TAB>offset<TAB>length`: that byte range of it;
//! - a decimal number: the file at that place of an [index order](crate::order::index), counted
//!   from 0. This holds only when every sample line of the file is a number.
//!
//! A line `# epoch K` begins an epoch; `K` counts up by one from any number. Two directives may
//! stand before the first sample: `# unique` (no sample stands twice in an epoch) and `# count N`
//! (every epoch has exactly `N`). Other lines that begin with `#` are comments. Blank lines do not
//! count, a carriage return before the end of a line is not part of it, and `./` before a path
//! shields a name that would read as something else, such as `./#1.png`.
//!
//! **Binary.** Places of the index order as little-endian `u32`, one epoch. A file with a NUL byte
//! among its first 4,096 bytes is binary.

mod builder;
mod text;
mod write;

pub use write::{write_epoch, write_text};

use std::sync::Arc;

use super::listing::Listing;
use super::sample::SampleTable;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use builder::{Builder, Place};

/// How far into a file a NUL byte tells that it is binary.
const PROBE_BYTES: usize = 4096;

/// What an order file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The sample ids of each epoch.
    pub epochs: Vec<Arc<[u32]>>,
    /// What the ids stand for.
    pub samples: SampleTable,
}

/// Reads an order file, text or binary.
///
/// `index` is what numbers count in; it is asked for only if the file holds numbers. With `count`
/// every epoch has to have this many samples.
///
/// # Errors
/// With the line or the entry (both counted from 1) and the reason: an unknown path, a number
/// beyond the index, a range beyond the file, a duplicate, an epoch of another length, an order
/// without a sample.
pub fn parse(
    text: &[u8],
    listing: &Listing<'_>,
    index: impl FnOnce() -> Result<Vec<FileId>>,
    count: Option<u64>,
) -> Result<Parsed> {
    if text[..text.len().min(PROBE_BYTES)].contains(&0) {
        return parse_binary(text, &index()?, count);
    }
    let shape = text::Shape::of(text);
    match shape.first_path {
        None if shape.samples == 0 => Err(Error::new(ErrorKind::Order, "the order is empty")),
        None => text::parse_numbers(text, &shape, &index()?, count),
        Some(_) => text::parse_paths(text, &shape, listing, count),
    }
}

fn parse_binary(bytes: &[u8], index: &[FileId], count: Option<u64>) -> Result<Parsed> {
    let (entries, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        let message = format!(
            "a binary order file is made of 4-byte entries, and its {} bytes are not a multiple",
            bytes.len()
        );
        let hint = "a text order file holds no NUL byte; was it cut off while it was copied?";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    let mut builder = Builder::new(entries.len(), count);
    for (number, entry) in (1..).zip(entries) {
        let place = Place::Entry(number);
        let id = file_at(index, u32::from_le_bytes(*entry).into(), place)?;
        builder.push(id, place)?;
    }
    let epochs = builder.finish(Place::Entry(entries.len() as u64))?;
    Ok(Parsed { epochs, samples: SampleTable::Files })
}

/// The sample id of the whole file at place `number` of the index.
fn file_at(index: &[FileId], number: u64, place: Place) -> Result<u32> {
    let file = usize::try_from(number).ok().and_then(|number| index.get(number));
    file.map(|file| file.0).ok_or_else(|| {
        let message =
            format!("index {number} is out of range: the dataset has {} samples", index.len());
        place.error(message).hint("indexes count from 0 in the index order the spec gives")
    })
}

#[cfg(test)]
mod tests;

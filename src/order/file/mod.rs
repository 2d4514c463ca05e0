//! Order files: access orders written to a file, as text or binary.
//!
//! **Text.** One sample a line, in the order of access:
//!
//! - a path relative to the source, as raw bytes: the whole file;
//! - `path<TAB>offset<TAB>length`: that byte range of it;
//! - a decimal number: the file at that position of an [index order](crate::order::index), counted from 0.
//!   This holds only if every sample line of the file is a number.
//!
//! A line `# epoch K` begins an epoch. `K` counts up by one from any number. Two directives may stand before
//! the first sample: `# unique` (no sample stands twice in an epoch) and `# count N` (every epoch has exactly
//! `N` samples). If one other word stands in place of such a number, the line is an error. Other lines that
//! begin with `#` are comments. Blank lines are skipped. A carriage return before the end of a line is dropped.
//! `./` before a path protects a name that would read as something else, such as `./#1.png`.
//!
//! **Binary.** One epoch: positions in the index order as little-endian `u32`. A file with a NUL byte among
//! its first 4,096 bytes is binary.

mod builder;
pub mod edit;
mod text;
mod write;

pub use write::{write_sample, write_text};

use std::sync::Arc;

use super::listing::Listing;
use super::sample::SampleTable;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::FileId;
use builder::{Builder, InputLocation};

/// How many bytes of a file are searched for the NUL byte of a binary file.
const PROBE_BYTES: usize = 4096;

/// The content of an order file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The sample ids of each epoch.
    pub epochs: Vec<Arc<[u32]>>,
    /// What the ids stand for.
    pub samples: SampleTable,
}

/// Reads an order file, text or binary.
///
/// `index` makes the index order. It is called only if the file is binary or its first sample is a number. If
/// `count` is given, every epoch must have this many samples.
///
/// # Errors
/// The error names the line or the entry (both counted from 1) and the reason: an unknown path, a number
/// beyond the index, a range beyond the file, a duplicate, an epoch of another length, an order without a
/// sample.
pub fn parse(
    text: &[u8],
    listing: &Listing<'_>,
    index: impl FnOnce() -> Result<Vec<FileId>>,
    count: Option<u64>,
) -> Result<Parsed> {
    if text[..text.len().min(PROBE_BYTES)].contains(&0) {
        return parse_binary(text, &index()?, count);
    }
    // Most files that begin with a number hold only numbers. So all lines are examined only if reading them
    // as numbers fails.
    let numbers = text::begins_with_number(text)
        .then(|| index().and_then(|index| text::parse_numbers(text, &index, count)));
    if let Some(Ok(parsed)) = numbers {
        return Ok(parsed);
    }
    match (text::Shape::of(text), numbers) {
        (shape, _) if shape.first_path.is_some() => text::parse_paths(text, &shape, listing, count),
        (_, Some(numbers)) => numbers,
        (_, None) => Err(Error::new(ErrorKind::Order, "the order is empty")),
    }
}

fn parse_binary(bytes: &[u8], index: &[FileId], count: Option<u64>) -> Result<Parsed> {
    let (entries, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(partial_entry(bytes.len()));
    }
    let locate = |before| InputLocation::Entry(before + 1);
    let mut builder =
        Builder::new(entries.len(), &locate).with_index(Some(index)).with_count(count);
    for (number, entry) in (1..).zip(entries) {
        let position = u32::from_le_bytes(*entry).into();
        builder.push(checked_position(position, index, InputLocation::Entry(number))?);
    }
    let epochs = builder.finish(InputLocation::Entry(entries.len() as u64))?;
    Ok(Parsed { epochs, samples: SampleTable::Files })
}

/// The error about a binary file that ends within an entry.
fn partial_entry(length: usize) -> Error {
    let message = format!(
        "a binary order file is made of 4-byte entries, and its {length} bytes are not a multiple"
    );
    let hint = "a text order file holds no NUL byte; was it cut off while it was copied?";
    Error::new(ErrorKind::Order, message).hint(hint)
}

fn checked_position(number: u64, index: &[FileId], location: InputLocation) -> Result<u32> {
    match u32::try_from(number) {
        Ok(at) if number < index.len() as u64 => Ok(at),
        _ => {
            let size = index.len();
            let message = format!("index {number} is out of range: the dataset has {size} samples");
            let hint = "indexes count from 0 in the index order the spec gives";
            Err(location.error(message).hint(hint))
        }
    }
}

#[cfg(test)]
mod tests;

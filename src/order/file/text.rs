//! Reads the text form of order files.
//!
//! A text whose first sample is a number is read as numbers in one pass. If that fails, or the first sample
//! is a path, another pass over all lines ([`Shape`]) decides between numbers and paths. No line becomes a
//! string.

use std::collections::HashMap;
use std::sync::Arc;

use super::builder::{Builder, InputLocation};
use super::{Parsed, checked_position};
use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::order::listing::{Entry, Listing, Lookup};
use crate::order::sample::{FileRange, SampleTable};

/// A line without its end.
pub(super) enum Line<'t> {
    /// Blank, or a comment.
    Nothing,
    Epoch(u64),
    Unique,
    Count(u64),
    /// `# epoch` or `# count`, followed by one word that is no number.
    BadNumber(&'t [u8]),
    Sample(&'t [u8]),
}

impl<'t> Line<'t> {
    pub(super) fn of(line: &'t [u8]) -> Self {
        match line.first() {
            Some(b'#') => Line::directive(&line[1..]),
            // For nearly every line, the first byte settles this.
            Some(byte) if !byte.is_ascii_whitespace() || !line.trim_ascii().is_empty() => {
                Line::Sample(line)
            }
            _ => Line::Nothing,
        }
    }

    /// Reads what follows a `#`. Anything that is no directive is a comment.
    fn directive(line: &'t [u8]) -> Self {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let form = (words.next(), words.next(), words.next());
        let number = |word, directive: fn(u64) -> Line<'t>| {
            decimal(word).map_or(Line::BadNumber(line), directive)
        };
        match form {
            (Some(b"unique"), None, None) => Line::Unique,
            (Some(b"epoch"), Some(word), None) => number(word, Line::Epoch),
            (Some(b"count"), Some(word), None) => number(word, Line::Count),
            _ => Line::Nothing,
        }
    }
}

/// The lines of a text with their numbers from 1.
fn lines(text: &[u8]) -> impl Iterator<Item = (u64, Line<'_>)> {
    let lines = text.split(|byte| *byte == b'\n');
    (1..).zip(lines.map(|line| Line::of(line.strip_suffix(b"\r").unwrap_or(line))))
}

/// How many lines a text has. After a last line feed, there is an empty line.
pub(super) fn count_lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64 + 1
}

/// The error about a [`Line::BadNumber`].
pub(super) fn bad_number(line: &[u8], location: InputLocation) -> Error {
    let shown = String::from_utf8_lossy(line);
    location.error(format!("'#{shown}' has to end with a number"))
}

/// The value of a word of decimal digits, at most `u64::MAX`. `None` for another word.
pub(super) fn decimal(word: &[u8]) -> Option<u64> {
    if word.is_empty() || !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // 19 digits always fit.
    let append = |number: u64, byte: &u8| number * 10 + u64::from(byte - b'0');
    if word.len() <= 19 {
        return Some(word.iter().fold(0, append));
    }
    Some(std::str::from_utf8(word).ok()?.parse().unwrap_or(u64::MAX))
}

/// The parts of `path<TAB>offset<TAB>length`; `None` for a line of another form.
pub(super) fn split_range(line: &[u8]) -> Option<(&[u8], u64, u64)> {
    let second = line.iter().rposition(|byte| *byte == b'\t')?;
    let length = decimal(&line[second + 1..])?;
    let first = line[..second].iter().rposition(|byte| *byte == b'\t')?;
    let offset = decimal(&line[first + 1..second])?;
    Some((&line[..first], offset, length))
}

/// Whether a file's name needs `./` to be read as a path.
pub(super) fn needs_dot_slash(name: &[u8]) -> bool {
    name.first().is_none_or(|byte| *byte == b'#' || byte.is_ascii_whitespace())
        || decimal(name.trim_ascii()).is_some()
}

pub(super) fn begins_with_number(text: &[u8]) -> bool {
    let first = lines(text).find_map(|(_, line)| match line {
        Line::Sample(line) => Some(line),
        _ => None,
    });
    first.is_some_and(|line| decimal(line.trim_ascii()).is_some())
}

/// What the sample lines of a text are.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// The first sample line that is no number. If there is one, all sample lines are paths.
    pub(super) first_path: Option<u64>,
    /// Whether any sample is a byte range.
    ranged: bool,
}

impl Shape {
    pub(super) fn of(text: &[u8]) -> Self {
        let mut shape = Shape::default();
        for (number, line) in lines(text) {
            if let Line::Sample(line) = line
                && decimal(line.trim_ascii()).is_none()
            {
                shape.first_path.get_or_insert(number);
                shape.ranged = shape.ranged || split_range(line).is_some();
            }
        }
        shape
    }
}

/// Reads a text whose samples are numbers, which are positions in `index`.
///
/// # Errors
/// Also when a sample is no number.
pub(super) fn parse_numbers(text: &[u8], index: &[FileId], count: Option<u64>) -> Result<Parsed> {
    let epochs =
        read(text, Some(index), count, |line, location| match decimal(line.trim_ascii()) {
            Some(number) => checked_position(number, index, location),
            None => Err(location.error("not a number")),
        })?;
    Ok(Parsed { epochs, samples: SampleTable::Files })
}

/// Reads a text whose samples are paths or byte ranges of them.
pub(super) fn parse_paths(
    text: &[u8],
    shape: &Shape,
    listing: &Listing<'_>,
    count: Option<u64>,
) -> Result<Parsed> {
    let names = Names { lookup: Lookup::new(listing), first_path: shape.first_path };
    if !shape.ranged {
        let epochs =
            read(text, None, count, |line, location| Ok(names.find(line, location)?.file.0))?;
        return Ok(Parsed { epochs, samples: SampleTable::Files });
    }
    let mut ranges = Ranges::default();
    let epochs = read(text, None, count, |line, location| {
        let range = match split_range(line) {
            Some((path, offset, length)) => {
                checked_range(names.find(path, location)?, offset, length, location)?
            }
            None => {
                let entry = names.find(line, location)?;
                FileRange { file: entry.file, offset: 0, length: entry.size }
            }
        };
        ranges.id(range, location)
    })?;
    Ok(Parsed { epochs, samples: SampleTable::Ranges(ranges.rows) })
}

/// Reads all lines. `sample` turns a sample line into a position in `index` or, without an index, into a
/// sample id.
fn read(
    text: &[u8],
    index: Option<&[FileId]>,
    count: Option<u64>,
    mut sample: impl FnMut(&[u8], InputLocation) -> Result<u32>,
) -> Result<Vec<Arc<[u32]>>> {
    let locate = |before| {
        let mut samples = lines(text).filter(|(_, line)| matches!(line, Line::Sample(_)));
        InputLocation::Line(samples.nth(before as usize).map_or(0, |(number, _)| number))
    };
    let line_count = count_lines(text);
    let mut builder =
        Builder::new(line_count as usize, &locate).with_index(index).with_count(count);
    for (number, line) in lines(text) {
        let location = InputLocation::Line(number);
        match line {
            Line::Sample(line) => builder.push(sample(line, location)?),
            Line::Nothing => {}
            Line::Epoch(label) => builder.begin_epoch(label, location)?,
            Line::Unique => builder.require_unique(location)?,
            Line::Count(count) => builder.require_count(count, location)?,
            Line::BadNumber(line) => return Err(bad_number(line, location)),
        }
    }
    builder.finish(InputLocation::Line(line_count))
}

/// Finds the files of sample lines.
struct Names<'l> {
    lookup: Lookup<'l>,
    first_path: Option<u64>,
}

impl<'l> Names<'l> {
    fn find(&self, path: &[u8], location: InputLocation) -> Result<&'l Entry<'l>> {
        self.lookup.find(path).ok_or_else(|| self.unknown(path, location))
    }

    fn unknown(&self, path: &[u8], location: InputLocation) -> Error {
        let error = location.error(format!("unknown path '{}'", String::from_utf8_lossy(path)));
        match self.first_path {
            Some(first) if decimal(path).is_some() => error.hint(format!(
                "numbers are indexes only when every sample is one, and line {first} is not"
            )),
            _ => error.hint(self.lookup.hint(path)),
        }
    }
}

/// A range that lies in its file. It is empty only if the file is empty.
fn checked_range(
    entry: &Entry<'_>,
    offset: u64,
    length: u64,
    location: InputLocation,
) -> Result<FileRange> {
    // The empty range is the whole of an empty file.
    if length == 0 && (offset, entry.size) != (0, 0) {
        return Err(location.error("a range of length 0"));
    }
    if offset.checked_add(length).is_none_or(|end| end > entry.size) {
        let path = String::from_utf8_lossy(entry.path);
        let size = entry.size;
        return Err(location.error(format!(
            "{length} bytes from byte {offset} on reach beyond '{path}', which has {size} bytes"
        )));
    }
    Ok(FileRange { file: entry.file, offset, length })
}

/// The ranges seen so far. Equal ranges get the same id.
#[derive(Default)]
struct Ranges {
    rows: Vec<FileRange>,
    ids: HashMap<FileRange, u32>,
}

impl Ranges {
    fn id(&mut self, range: FileRange, location: InputLocation) -> Result<u32> {
        if let Some(id) = self.ids.get(&range) {
            return Ok(*id);
        }
        let id = u32::try_from(self.rows.len())
            .map_err(|_| location.error("an order file holds fewer than 2^32 different ranges"))?;
        self.ids.insert(range, id);
        self.rows.push(range);
        Ok(id)
    }
}

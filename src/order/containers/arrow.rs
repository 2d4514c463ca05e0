//! Columns of Arrow files: streams and files of Arrow's IPC format, such as Hugging Face's datasets keep on disks.
//!
//! A file consists of messages. The first one has the schema, and each *record batch* has some rows. A batch tells where
//! the buffers of its columns are, in the order of the schema: which values are there, where each value begins (*offsets*),
//! and the values themselves. A column of lists has its values in a column below it.
//!
//! The place of a row is found by boundaries: those of the rows lead to those of list items, and at the end to bytes. Only
//! messages and offsets are read.

use std::ops::Range;

use polars_arrow_format::ipc::planus::{self, ReadAsRoot};
use polars_arrow_format::ipc::{
    Endianness, FieldRef, MessageHeaderRef, MessageRef, RecordBatchRef, SchemaRef, TypeRef,
};

use super::{FileBytes, check_count};
use crate::error::{Error, Result};
use crate::order::samplers::wrong;

/// The start of a file that has a footer. Its messages begin after eight bytes.
const FILE_MAGIC: &[u8] = b"ARROW1";
const FILE_HEADER: u64 = 8;

/// A message begins with this number and its length. Before version 0.15 it began with its length.
const CONTINUATION: u32 = u32::MAX;

/// So much of a message is read at once. It holds nearly any.
const FIRST_BYTES: u64 = 4096;

/// Deeper columns are refused.
const DEPTH_MAX: usize = 32;

/// The field of a struct that has an image's or a sound's bytes in Hugging Face's datasets.
const BYTES_FIELD: &str = "bytes";

/// Where the rows of a column are.
pub(super) fn samples(file: &FileBytes, column: &str) -> Result<Vec<Range<u64>>> {
    let begins = file.read_at(0, file.size().min(FILE_HEADER))?.starts_with(FILE_MAGIC);
    let (mut at, mut found, mut samples) = (if begins { FILE_HEADER } else { 0 }, None, Vec::new());
    while let Some(message) = Message::read(file, at)? {
        let broken = |error: planus::Error| is_broken(at, error);
        let parsed = MessageRef::read_as_root(&message.bytes).map_err(broken)?;
        let body_bytes = u64::try_from(parsed.body_length().map_err(broken)?);
        let end = body_bytes.ok().and_then(|bytes| message.body.checked_add(bytes));
        let body = message.body..end.unwrap_or(u64::MAX);
        if body.end > file.size() {
            return Err(file.is_cut(format!("its message at byte {at} ends at byte {}", body.end)));
        }
        match (parsed.header().map_err(broken)?, &found) {
            (Some(MessageHeaderRef::Schema(schema)), None) => {
                found = Some(Column::find(schema, column, at)?);
            }
            (Some(MessageHeaderRef::RecordBatch(batch)), Some(column)) => {
                let rows = Batch::read(batch, body.clone(), at)?.places(file, column)?;
                check_count((samples.len() + rows.len()) as u64)?;
                samples.extend(rows.windows(2).map(|pair| pair[0]..pair[1]));
            }
            (Some(MessageHeaderRef::RecordBatch(_)), None) => {
                return Err(wrong("it is no Arrow file: it has no schema"));
            }
            _ => {}
        }
        at = body.end;
    }
    match found {
        Some(_) => Ok(samples),
        None => Err(wrong("it is no Arrow file: it has no schema")),
    }
}

fn is_broken(at: u64, error: impl std::fmt::Display) -> Error {
    wrong(format!("its message at byte {at} is broken: {error}"))
}

/// A message without its body.
struct Message {
    bytes: Vec<u8>,
    /// Where the body begins.
    body: u64,
}

impl Message {
    /// The message at a place. `None` if it is the end.
    fn read(file: &FileBytes, at: u64) -> Result<Option<Self>> {
        let left = file.size().saturating_sub(at);
        let first = file.read_at(at, left.min(FIRST_BYTES))?;
        let number = |nth: usize| {
            first.get(nth * 4..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
        };
        let (length, begin) = match (number(0), number(1)) {
            (None, _) => return Ok(None),
            (Some(CONTINUATION), None) => {
                return Err(file.is_cut(format!("byte {at} begins a message")));
            }
            (Some(CONTINUATION), Some(length)) => (u64::from(length), 8),
            (Some(length), _) => (u64::from(length), 4),
        };
        if length == 0 {
            return Ok(None);
        }
        let body = at + begin + length;
        let bytes = match first.get(begin as usize..(begin + length) as usize) {
            Some(bytes) => bytes.to_vec(),
            None => file.read(at + begin..body)?,
        };
        Ok(Some(Message { bytes, body }))
    }
}

/// A column, or a part of one.
struct Column {
    name: String,
    kind: Kind,
    /// The number of its first buffer in a batch. `None` if that differs from batch to batch.
    buffer: Option<usize>,
}

enum Kind {
    /// Values of any length. An offset has so many bytes.
    Bytes(usize),
    /// Values of so many bytes.
    Fixed(u64),
    /// Lists of any length. An offset has so many bytes.
    List(usize, Box<Column>),
    /// Lists of one length.
    FixedList(u64, Box<Column>),
    Struct(Vec<Column>),
    /// Values whose place is not known by themselves.
    Other,
}

impl Column {
    /// The column of a name, with names of fields after dots.
    fn find(schema: SchemaRef<'_>, path: &str, at: u64) -> Result<Self> {
        let broken = |error: planus::Error| is_broken(at, error);
        if schema.endianness().map_err(broken)? != Endianness::Little {
            return Err(wrong("its numbers are big-endian"));
        }
        let (mut columns, mut next) = (Vec::new(), Some(0));
        for field in schema.fields().map_err(broken)?.into_iter().flatten() {
            let field = field.map_err(broken)?;
            columns.push(Column::read(field, &mut next, 0).map_err(|error| is_broken(at, error))?);
        }
        Column::named(columns, path)
    }

    /// The one of these columns that has a name. A column may have dots in its name.
    fn named(columns: Vec<Column>, path: &str) -> Result<Self> {
        let known: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
        for column in columns {
            match (path.strip_prefix(&column.name), column.kind) {
                (Some(""), kind) => return Ok(Column { kind, ..column }),
                (Some(rest), Kind::Struct(fields)) if rest.starts_with('.') => {
                    return Column::named(fields, &rest[1..]);
                }
                _ => {}
            }
        }
        Err(wrong(format!("it has no column '{path}'"))
            .hint(format!("it has {}", known.join(", "))))
    }

    /// Reads a field. `next` is the number of the next buffer.
    fn read(field: FieldRef<'_>, next: &mut Option<usize>, depth: usize) -> planus::Result<Self> {
        let name = field.name()?.unwrap_or_default().to_owned();
        let buffer = *next;
        let mut skip = |buffers: usize| *next = next.map(|number| number + buffers);
        let kind = field.type_()?;
        if field.dictionary()?.is_some() {
            skip(2);
            return Ok(Column { name, kind: Kind::Other, buffer });
        }
        // Which values are there, and what else.
        skip(match &kind {
            Some(TypeRef::Null(_) | TypeRef::RunEndEncoded(_)) | None => 0,
            Some(TypeRef::Struct(_) | TypeRef::FixedSizeList(_)) => 1,
            Some(TypeRef::Union(union)) => match union.mode()? {
                polars_arrow_format::ipc::UnionMode::Sparse => 1,
                polars_arrow_format::ipc::UnionMode::Dense => 2,
            },
            Some(
                TypeRef::Binary(_)
                | TypeRef::Utf8(_)
                | TypeRef::LargeBinary(_)
                | TypeRef::LargeUtf8(_)
                | TypeRef::ListView(_)
                | TypeRef::LargeListView(_),
            ) => 3,
            Some(_) => 2,
        });
        let mut below = Vec::new();
        for child in field.children()?.into_iter().flatten().take_while(|_| depth < DEPTH_MAX) {
            below.push(Column::read(child?, next, depth + 1)?);
        }
        if matches!(kind, Some(TypeRef::BinaryView(_) | TypeRef::Utf8View(_))) {
            *next = None;
        }
        let kind = match kind {
            Some(TypeRef::Binary(_) | TypeRef::Utf8(_)) => Kind::Bytes(4),
            Some(TypeRef::LargeBinary(_) | TypeRef::LargeUtf8(_)) => Kind::Bytes(8),
            Some(TypeRef::Struct(_)) => Kind::Struct(below),
            Some(TypeRef::List(_) | TypeRef::Map(_)) => list(below, |it| Kind::List(4, it)),
            Some(TypeRef::LargeList(_)) => list(below, |it| Kind::List(8, it)),
            Some(TypeRef::FixedSizeList(kind)) => {
                let items = kind.list_size()?.max(0) as u64;
                list(below, |it| Kind::FixedList(items, it))
            }
            Some(other) => bytes_of(&other)?.map_or(Kind::Other, Kind::Fixed),
            None => Kind::Other,
        };
        Ok(Column { name, kind, buffer })
    }
}

fn list(mut below: Vec<Column>, make: impl FnOnce(Box<Column>) -> Kind) -> Kind {
    match (below.pop(), below.pop()) {
        (Some(items), None) => make(Box::new(items)),
        _ => Kind::Other,
    }
}

/// Bytes of a value, if all have as many.
fn bytes_of(kind: &TypeRef<'_>) -> planus::Result<Option<u64>> {
    use polars_arrow_format::ipc::Precision;
    let bytes = match kind {
        TypeRef::Int(int) => int.bit_width()? / 8,
        TypeRef::FloatingPoint(float) => match float.precision()? {
            Precision::Half => 2,
            Precision::Single => 4,
            Precision::Double => 8,
        },
        TypeRef::FixedSizeBinary(binary) => binary.byte_width()?,
        TypeRef::Decimal(decimal) => decimal.bit_width()? / 8,
        TypeRef::Timestamp(_) | TypeRef::Duration(_) => 8,
        _ => 0,
    };
    Ok(u64::try_from(bytes).ok().filter(|bytes| *bytes > 0))
}

/// The rows of a batch.
struct Batch {
    rows: u64,
    /// Where each buffer is in the file.
    buffers: Vec<Range<u64>>,
    /// Where its message is.
    at: u64,
}

impl Batch {
    fn read(batch: RecordBatchRef<'_>, body: Range<u64>, at: u64) -> Result<Self> {
        let broken = |error: planus::Error| is_broken(at, error);
        if batch.compression().map_err(broken)?.is_some() {
            return Err(wrong(format!("its rows are compressed, at byte {at}"))
                .hint("save it without compression: no range of it is a row"));
        }
        let mut buffers = Vec::new();
        for buffer in batch.buffers().map_err(broken)?.into_iter().flatten() {
            let place = (u64::try_from(buffer.offset()), u64::try_from(buffer.length()));
            let place = match place {
                (Ok(offset), Ok(length)) => body.start.checked_add(offset).zip(Some(length)),
                _ => None,
            };
            let range = place.and_then(|(start, length)| Some(start..start.checked_add(length)?));
            match range.filter(|range| range.end <= body.end) {
                Some(range) => buffers.push(range),
                None => return Err(is_broken(at, "a buffer lies outside of it")),
            }
        }
        let rows = u64::try_from(batch.length().map_err(broken)?);
        let rows = rows.map_err(|_| is_broken(at, "it has a negative number of rows"))?;
        check_count(rows)?;
        Ok(Batch { rows, buffers, at })
    }

    /// Where the rows of a column begin in the file, and where the last one ends.
    fn places(&self, file: &FileBytes, column: &Column) -> Result<Vec<u64>> {
        self.below(file, column, (0..=self.rows).collect())
    }

    /// The same of a part of a column, whose items have these boundaries.
    fn below(&self, file: &FileBytes, column: &Column, bounds: Vec<u64>) -> Result<Vec<u64>> {
        let buffer = |nth: usize| {
            let found = column.buffer.and_then(|first| self.buffers.get(first + nth));
            found.cloned().ok_or_else(|| is_broken(self.at, "a buffer is missing"))
        };
        let within = |buffer: Range<u64>, bounds: Vec<u64>| {
            let place = |bound: u64| buffer.start.checked_add(bound).filter(|at| *at <= buffer.end);
            let places: Option<Vec<u64>> = bounds.into_iter().map(place).collect();
            places.ok_or_else(|| is_broken(self.at, "a row lies outside of it"))
        };
        let times = |bounds: Vec<u64>, factor: u64| {
            let bounds: Option<Vec<u64>> =
                bounds.into_iter().map(|bound| bound.checked_mul(factor)).collect();
            bounds.ok_or_else(|| is_broken(self.at, "a row lies outside of it"))
        };
        match &column.kind {
            Kind::Bytes(width) => {
                within(buffer(2)?, self.offsets(file, buffer(1)?, *width, bounds)?)
            }
            Kind::Fixed(bytes) => within(buffer(1)?, times(bounds, *bytes)?),
            Kind::List(width, items) => {
                self.below(file, items, self.offsets(file, buffer(1)?, *width, bounds)?)
            }
            Kind::FixedList(count, items) => self.below(file, items, times(bounds, *count)?),
            Kind::Struct(fields) => {
                let is_bytes = |field: &&Column| field.name == BYTES_FIELD;
                match fields.iter().find(is_bytes) {
                    Some(field) => self.below(file, field, bounds),
                    None => Err(wrong(format!("the column '{}' has several fields", column.name))
                        .hint(format!(
                            "name one of them after a dot: {}",
                            fields.iter().map(|field| &*field.name).collect::<Vec<_>>().join(", ")
                        ))),
                }
            }
            Kind::Other => Err(wrong(format!(
                "the rows of the column '{}' are not ranges of bytes",
                column.name
            ))),
        }
    }

    /// The offsets at these boundaries. They do not decrease.
    fn offsets(
        &self,
        file: &FileBytes,
        buffer: Range<u64>,
        width: usize,
        bounds: Vec<u64>,
    ) -> Result<Vec<u64>> {
        let (Some(first), Some(last)) = (bounds.first().copied(), bounds.last().copied()) else {
            return Ok(Vec::new());
        };
        if last == 0 {
            // A batch without rows may have no offsets.
            return Ok(bounds);
        }
        let outside = || is_broken(self.at, "its offsets lie outside of it");
        let place = |bound: u64| {
            let at = bound.checked_mul(width as u64)?;
            buffer.start.checked_add(at).filter(|at| *at <= buffer.end)
        };
        let start = place(first).ok_or_else(outside)?;
        let end = last.checked_add(1).and_then(place).ok_or_else(outside)?;
        let bytes = file.read(start..end)?;
        let number = |bound: u64| {
            let at = (bound.checked_sub(first)? as usize) * width;
            let bytes = bytes.get(at..at + width)?;
            match width {
                4 => u64::try_from(i32::from_le_bytes(bytes.try_into().ok()?)).ok(),
                _ => u64::try_from(i64::from_le_bytes(bytes.try_into().ok()?)).ok(),
            }
        };
        let offsets: Option<Vec<u64>> = bounds.into_iter().map(number).collect();
        let offsets = offsets.filter(|offsets| offsets.is_sorted());
        offsets.ok_or_else(|| is_broken(self.at, "its offsets decrease"))
    }
}

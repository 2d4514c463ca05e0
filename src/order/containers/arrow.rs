//! Columns of Arrow files: streams and files of Arrow's IPC format, such as Hugging Face's datasets keep on disks.
//!
//! A file consists of messages. The first one has the schema, and each *record batch* has some rows. A batch tells
//! where the buffers of its columns are, in the order of the schema: which values are there, where each value begins
//! (*offsets*), and the values themselves. A column of lists has its values in a column below it.
//!
//! The place of a row is found by boundaries: those of the rows lead to those of list items, and at the end to bytes.
//! Only messages and offsets are read.

use std::ops::Range;

use polars_arrow_format::ipc::planus::{self, ReadAsRoot};
use polars_arrow_format::ipc::{
    Endianness, FieldRef, MessageHeaderRef, MessageRef, MetadataVersion, Precision, RecordBatchRef,
    SchemaRef, TypeRef, UnionMode,
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

/// Schemas whose columns are deeper, or that have more of them, are refused.
const DEPTH_MAX: usize = 32;
const COLUMNS_MAX: usize = 1 << 16;

/// The field of a struct that has an image's or a sound's bytes in Hugging Face's datasets.
const BYTES_FIELD: &str = "bytes";

/// Where the rows of a column are.
pub(super) fn samples(file: &FileBytes, column: &str) -> Result<Vec<Range<u64>>> {
    let is_file = file.read_at(0, file.size().min(FILE_HEADER))?.starts_with(FILE_MAGIC);
    let end = file.size() - file.size().min(FILE_MAGIC.len() as u64);
    if is_file && file.read(end..file.size())? != FILE_MAGIC {
        return Err(file.is_cut("it does not end as an Arrow file does".to_owned()));
    }
    let (mut at, mut found, mut samples) =
        (if is_file { FILE_HEADER } else { 0 }, None, Vec::new());
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
                let unions_have_validity = parsed.version().map_err(broken)? < MetadataVersion::V5;
                found = Some(Column::find(schema, unions_have_validity, column, at)?);
            }
            (Some(MessageHeaderRef::RecordBatch(batch)), Some(column)) => {
                let batch = Batch::read(batch, body.clone(), at)?;
                check_count(samples.len() as u64 + batch.rows)?;
                let places = batch.places(file, column)?;
                samples.extend(places.windows(2).map(|pair| pair[0]..pair[1]));
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
            (None, _) if left == 0 => return Ok(None),
            (None, _) | (Some(CONTINUATION), None) => {
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
    fn find(
        schema: SchemaRef<'_>,
        unions_have_validity: bool,
        path: &str,
        at: u64,
    ) -> Result<Self> {
        let broken = |error: planus::Error| is_broken(at, error);
        if schema.endianness().map_err(broken)? != Endianness::Little {
            return Err(wrong("its numbers are big-endian"));
        }
        let mut fields = Fields { unions_have_validity, next: Some(0), left: COLUMNS_MAX };
        let mut columns = Vec::new();
        for field in schema.fields().map_err(broken)?.into_iter().flatten() {
            let column = field
                .map_err(broken)
                .and_then(|field| fields.read(field, 0).map_err(|error| is_broken(at, error)))?;
            columns.push(column);
        }
        let known: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
        Column::named(columns, path).ok_or_else(|| {
            wrong(format!("it has no column '{path}'"))
                .hint(format!("its columns are {}", known.join(", ")))
        })
    }

    /// The one of these columns that has a name. A column may have dots in its name.
    fn named(columns: Vec<Column>, path: &str) -> Option<Self> {
        let (exact, others): (Vec<_>, Vec<_>) =
            columns.into_iter().partition(|column| column.name == path);
        exact.into_iter().next().or_else(|| {
            others.into_iter().find_map(|column| {
                let rest = path.strip_prefix(&column.name)?.strip_prefix('.')?;
                let Kind::Struct(fields) = column.kind else { return None };
                Column::named(fields, rest)
            })
        })
    }
}

/// The fields of a schema, as they are read.
struct Fields {
    /// Whether unions have a buffer that says which values are there: before version 5 of the format.
    unions_have_validity: bool,
    /// The number of the next buffer. `None` if that differs from batch to batch.
    next: Option<usize>,
    /// How many more fields are read. A schema may name a field many times.
    left: usize,
}

impl Fields {
    fn skip(&mut self, buffers: usize) {
        self.next = self.next.map(|number| number + buffers);
    }

    /// Reads a field, and what is below it.
    fn read(&mut self, field: FieldRef<'_>, depth: usize) -> std::result::Result<Column, Broken> {
        self.left = self.left.checked_sub(1).ok_or("it has too many columns")?;
        let name = field.name()?.unwrap_or_default().to_owned();
        let (buffer, kind) = (self.next, field.type_()?);
        if field.dictionary()?.is_some() {
            self.skip(2);
            return Ok(Column { name, kind: Kind::Other, buffer });
        }
        self.skip(match &kind {
            Some(TypeRef::Null(_) | TypeRef::RunEndEncoded(_)) | None => 0,
            Some(TypeRef::Struct(_) | TypeRef::FixedSizeList(_)) => 1,
            Some(TypeRef::Union(union)) => {
                let is_dense = union.mode()? == UnionMode::Dense;
                1 + usize::from(is_dense) + usize::from(self.unions_have_validity)
            }
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
        for child in field.children()?.into_iter().flatten() {
            if depth == DEPTH_MAX {
                return Err(Broken("its columns are too deep".to_owned()));
            }
            below.push(self.read(child?, depth + 1)?);
        }
        if matches!(kind, Some(TypeRef::BinaryView(_) | TypeRef::Utf8View(_))) {
            self.next = None;
        }
        let kind = match kind {
            Some(TypeRef::Binary(_) | TypeRef::Utf8(_)) => Kind::Bytes(4),
            Some(TypeRef::LargeBinary(_) | TypeRef::LargeUtf8(_)) => Kind::Bytes(8),
            Some(TypeRef::Struct(_)) => Kind::Struct(below),
            Some(TypeRef::List(_)) => list(below, |it| Kind::List(4, it)),
            Some(TypeRef::LargeList(_)) => list(below, |it| Kind::List(8, it)),
            Some(TypeRef::FixedSizeList(kind)) => {
                let items = kind.list_size()?.max(0) as u64;
                list(below, |it| Kind::FixedList(items, it))
            }
            // The entries of a map are pairs.
            Some(TypeRef::Map(_)) => Kind::Other,
            Some(other) => bytes_of(&other)?.map_or(Kind::Other, Kind::Fixed),
            None => Kind::Other,
        };
        Ok(Column { name, kind, buffer })
    }
}

/// Why a schema cannot be read.
struct Broken(String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<planus::Error> for Broken {
    fn from(error: planus::Error) -> Self {
        Broken(error.to_string())
    }
}

impl From<&str> for Broken {
    fn from(what: &str) -> Self {
        Broken(what.to_owned())
    }
}

/// A list of items that are values by themselves.
fn list(mut below: Vec<Column>, make: impl FnOnce(Box<Column>) -> Kind) -> Kind {
    match (below.pop(), below.pop()) {
        (Some(items), None) if !matches!(items.kind, Kind::Struct(_)) => make(Box::new(items)),
        _ => Kind::Other,
    }
}

/// Bytes of a value, if all have as many.
fn bytes_of(kind: &TypeRef<'_>) -> planus::Result<Option<u64>> {
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

    /// The places in the file at which the rows of a column begin. One more place is the end of the last row.
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
        offsets.ok_or_else(|| is_broken(self.at, "its offsets decrease or are negative"))
    }
}

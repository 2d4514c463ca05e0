//! Values of cells as text: parts of paths, and keys in messages.

use scylla::cluster::metadata::{ColumnType, NativeType};

/// The types whose values can be a part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    TinyInt,
    SmallInt,
    Int,
    BigInt,
    Uuid,
    Blob,
}

impl Kind {
    /// `None`: values of this type are no part of a path.
    pub(super) fn of(column: &ColumnType<'_>) -> Option<Self> {
        let ColumnType::Native(native) = column else { return None };
        match native {
            NativeType::Ascii | NativeType::Text => Some(Kind::Text),
            NativeType::TinyInt => Some(Kind::TinyInt),
            NativeType::SmallInt => Some(Kind::SmallInt),
            NativeType::Int => Some(Kind::Int),
            NativeType::BigInt => Some(Kind::BigInt),
            NativeType::Uuid | NativeType::Timeuuid => Some(Kind::Uuid),
            NativeType::Blob => Some(Kind::Blob),
            _ => None,
        }
    }

    /// Whether rows can be found by a key of this type.
    pub(super) fn is_key(self) -> bool {
        !matches!(self, Kind::TinyInt | Kind::SmallInt)
    }

    /// Appends a value to a path. Returns whether the cell has a value of this type.
    pub(super) fn write(self, cell: &[u8], path: &mut String) -> bool {
        match self {
            Kind::Text => std::str::from_utf8(cell).is_ok_and(|text| add(path, text)),
            Kind::Uuid => uuid(cell).is_some_and(|text| add(path, &text)),
            Kind::Blob => add(path, &hex(cell)),
            Kind::TinyInt | Kind::SmallInt | Kind::Int | Kind::BigInt => {
                self.number(cell).is_some_and(|number| add(path, &number.to_string()))
            }
        }
    }

    /// A value as text; `None` if the cell has another one than a value of this type.
    fn text(self, cell: &[u8]) -> Option<String> {
        let mut text = String::new();
        self.write(cell, &mut text).then_some(text)
    }

    /// A whole number; `None` if the cell has none.
    pub(super) fn number(self, cell: &[u8]) -> Option<i64> {
        match self {
            Kind::TinyInt => Some(i8::from_be_bytes(cell.try_into().ok()?).into()),
            Kind::SmallInt => Some(i16::from_be_bytes(cell.try_into().ok()?).into()),
            Kind::Int => Some(i32::from_be_bytes(cell.try_into().ok()?).into()),
            Kind::BigInt => Some(i64::from_be_bytes(cell.try_into().ok()?)),
            Kind::Text | Kind::Uuid | Kind::Blob => None,
        }
    }

    /// A value as CQL has it.
    pub(super) fn literal(self, cell: &[u8]) -> String {
        match (self, self.text(cell)) {
            (Kind::Text, Some(text)) => format!("'{}'", text.replace('\'', "''")),
            (Kind::Blob, _) | (_, None) => format!("0x{}", hex(cell)),
            (_, Some(text)) => text,
        }
    }
}

/// The name of a type, for messages.
pub(super) fn type_name(column: &ColumnType<'_>) -> String {
    match column {
        ColumnType::Native(native) => format!("{native:?}").to_ascii_lowercase(),
        ColumnType::Collection { .. } => "collection".to_owned(),
        ColumnType::Tuple(_) => "tuple".to_owned(),
        _ => "composed".to_owned(),
    }
}

/// A name as CQL has it, whatever letters it has.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Appends a text, which always succeeds.
fn add(to: &mut String, text: &str) -> bool {
    to.push_str(text);
    true
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn uuid(cell: &[u8]) -> Option<String> {
    let cell: &[u8; 16] = cell.try_into().ok()?;
    let parts = [&cell[..4], &cell[4..6], &cell[6..8], &cell[8..10], &cell[10..]];
    Some(parts.map(hex).join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [
        0x4b, 0x1f, 0x00, 0xa2, 0x9d, 0x3c, 0x4e, 0x7f, 0x80, 0x01, 0xde, 0xad, 0xbe, 0xef, 0x00,
        0x10,
    ];

    #[test]
    fn cells_are_parts_of_paths() {
        let uuid = "4b1f00a2-9d3c-4e7f-8001-deadbeef0010";
        for (kind, cell, text) in [
            (Kind::Text, "n01440764/ü".as_bytes(), "n01440764/ü"),
            (Kind::Uuid, &UUID, uuid),
            (Kind::TinyInt, &[0xff], "-1"),
            (Kind::SmallInt, &[1, 0], "256"),
            (Kind::Int, &[0xff, 0xff, 0xff, 0xfe], "-2"),
            (Kind::BigInt, &[0, 0, 0, 1, 0, 0, 0, 0], "4294967296"),
            (Kind::Blob, &[0, 0xab], "00ab"),
        ] {
            assert_eq!(kind.text(cell).as_deref(), Some(text), "{kind:?}");
        }
        for (kind, cell) in [
            (Kind::Text, &[0xff][..]),
            (Kind::Uuid, &UUID[1..]),
            (Kind::Int, &[1]),
            (Kind::Int, &[]),
        ] {
            assert_eq!(kind.text(cell), None, "{kind:?}");
        }
        assert_eq!(
            (Kind::Int.number(&[0, 0, 1, 0]), Kind::Text.number(b"1234")),
            (Some(256), None)
        );
    }

    #[test]
    fn keys_are_written_as_cql_reads_them() {
        assert_eq!(Kind::Text.literal(b"it's"), "'it''s'");
        assert_eq!(Kind::Uuid.literal(&UUID), "4b1f00a2-9d3c-4e7f-8001-deadbeef0010");
        assert_eq!(Kind::Int.literal(&[0, 0, 0, 7]), "7");
        assert_eq!(Kind::Blob.literal(&[1, 2]), "0x0102");
        assert_eq!(Kind::Int.literal(&[7]), "0x07", "no number of four bytes");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn types_are_told_apart() {
        let kind = |native| Kind::of(&ColumnType::Native(native));
        assert_eq!(kind(NativeType::Timeuuid), Some(Kind::Uuid));
        assert_eq!(kind(NativeType::Ascii), Some(Kind::Text));
        assert_eq!(kind(NativeType::Double), None);
        assert_eq!(Kind::of(&ColumnType::Tuple(Vec::new())), None);
        assert!(Kind::Blob.is_key() && !Kind::TinyInt.is_key());
        assert_eq!(type_name(&ColumnType::Native(NativeType::BigInt)), "bigint");
    }
}

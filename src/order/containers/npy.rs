//! Arrays in numpy's format: `.npy` (NEP 1). A dataset over an array that is mapped (`numpy.load(path, mmap_mode="r")`)
//! takes a row of it for a sample.
//!
//! A file begins with six magic bytes, two bytes of version, the length of its header in two bytes (four from version 2
//! on), and the header, a dictionary as Python writes it. The numbers follow, row by row.

use std::ops::Range;

use super::{FileBytes, check_count};
use crate::error::Result;
use crate::order::samplers::wrong;

pub(in crate::order) const MAGIC: &[u8] = b"\x93NUMPY";

/// Bytes before the header in the latest version.
const PREFIX: usize = 12;

/// Longer headers are refused: numpy writes some hundred bytes, and more for arrays of many named fields.
const HEADER_MAX: usize = 1 << 20;

/// What the header of an array says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::order) struct Header {
    /// The type of a number as Python writes it, such as `'<f4'`.
    pub(in crate::order) descr: String,
    /// The length of each dimension.
    pub(in crate::order) shape: Vec<u64>,
    /// Whether the columns lie in one piece each, and not the rows.
    pub(in crate::order) by_columns: bool,
    /// Where the numbers begin, in bytes from the start of the file.
    pub(in crate::order) end: usize,
}

impl Header {
    /// The length of a header and of what is before it. The file begins with these bytes.
    ///
    /// # Errors
    /// If this is no array, or if its header is longer than any that numpy writes.
    pub(in crate::order) fn end_of(file: &[u8]) -> Result<usize> {
        let rest = file.strip_prefix(MAGIC).ok_or_else(|| wrong("it is no array of numpy"))?;
        let too_short = || wrong("it ends in its header");
        let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(too_short)?;
        let (length, begin) = match version[0] {
            1 => (rest.first_chunk::<2>().map(|length| u16::from_le_bytes(*length).into()), 10),
            _ => (rest.first_chunk::<4>().map(|length| u32::from_le_bytes(*length)), 12),
        };
        let length = length.ok_or_else(too_short)? as usize;
        if length > HEADER_MAX {
            return Err(wrong(format!(
                "its header has {length} bytes, which numpy does not write"
            )));
        }
        Ok(begin + length)
    }

    /// Reads the header of a file from its start, up to the header's end or farther.
    ///
    /// # Errors
    /// If this is no array of numpy, or the bytes end in its header.
    pub(in crate::order) fn parse(file: &[u8]) -> Result<Self> {
        let end = Self::end_of(file)?;
        let header = file.get(..end).ok_or_else(|| wrong("it ends in its header"))?;
        let begin = if header[MAGIC.len()] == 1 { PREFIX - 2 } else { PREFIX };
        let text: String = String::from_utf8_lossy(&header[begin..]).split_whitespace().collect();
        let field = |name: &str, end: &str| {
            let (_, after) = text.split_once(&format!("'{name}':"))?;
            after.split_once(end).map(|(value, _)| value)
        };
        let length = |text: &str| text.parse::<u64>().ok();
        let shape = field("shape", ")").and_then(|shape| {
            let lengths = shape.strip_prefix('(')?.split(',').filter(|text| !text.is_empty());
            lengths.map(length).collect()
        });
        Ok(Header {
            descr: field("descr", ",").unwrap_or_default().to_owned(),
            shape: shape.ok_or_else(|| wrong("its header tells no shape"))?,
            by_columns: field("fortran_order", ",").is_none_or(|value| value != "False"),
            end,
        })
    }

    /// Bytes of a number. `None` if it is a type that has parts.
    pub(in crate::order) fn number_bytes(&self) -> Option<u64> {
        let text = self.descr.strip_prefix('\'')?.strip_suffix('\'')?;
        let size: u64 = text.get(2..)?.split('[').next()?.parse().ok()?;
        // Characters of Unicode texts take four bytes.
        size.checked_mul(if text.as_bytes()[1] == b'U' { 4 } else { 1 })
    }
}

/// So many bytes of a file are read first. They hold the header of nearly any array.
const FIRST_BYTES: u64 = 512;

/// Where the rows of an array are. Only its header is read: the rows are of one length.
pub(super) fn samples(file: &FileBytes) -> Result<Vec<Range<u64>>> {
    let size = file.size();
    let mut first = file.read(0..FIRST_BYTES.min(size))?;
    let end = Header::end_of(&first)? as u64;
    if end > FIRST_BYTES {
        first = file.read(0..end.min(size))?;
    }
    let header = Header::parse(&first)?;
    let [count, ref of_row @ ..] = header.shape[..] else {
        return Err(wrong("it is one number, and has no rows"));
    };
    let length = row_bytes(&header, (count, of_row), size - end)?;
    check_count(count)?;
    let begin = |nth: u64| end + nth * length;
    Ok((0..count).map(|nth| begin(nth)..begin(nth + 1)).collect())
}

/// Bytes of a row, in a file that `has` so many bytes after its header.
fn row_bytes(header: &Header, (count, of_row): (u64, &[u64]), has: u64) -> Result<u64> {
    if header.descr.contains('O') {
        return Err(wrong("it is an array of Python's objects, which numpy cannot map"));
    }
    if header.by_columns && count > 1 && of_row.iter().any(|length| *length > 1) {
        return Err(wrong("its columns lie in one piece each, and its rows do not")
            .hint("save it with numpy.ascontiguousarray"));
    }
    let length = match header.number_bytes() {
        _ if count == 0 => return Ok(0),
        Some(bytes) => of_row.iter().try_fold(bytes, |sum, length| sum.checked_mul(*length)),
        // A type that has parts.
        None => has.checked_div(count).filter(|length| length * count == has),
    };
    let length = length.filter(|length| *length > 0);
    let length = length.ok_or_else(|| wrong("its header does not say how long a row is"))?;
    match length.checked_mul(count) {
        Some(wanted) if wanted <= has => Ok(length),
        wanted => {
            let wanted = wanted.map_or("more".to_owned(), |wanted| wanted.to_string());
            Err(wrong(format!("its rows need {wanted} bytes, and after its header it has {has}"))
                .hint("was it cut off while it was copied?"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Container;
    use super::super::tests::{array, array_of, samples_of};
    use super::*;

    fn file(version: u8, header: &str) -> Vec<u8> {
        let length = (header.len() as u32).to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..] };
        [MAGIC, &[version, 0], length, header.as_bytes()].concat()
    }

    #[test]
    fn a_header_tells_the_type_and_the_shape() {
        for version in [1, 2, 3] {
            let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 3, 4), }   \n";
            let bytes = file(version, text);
            let header = Header::parse(&[&bytes[..], b"numbers"].concat()).unwrap();
            assert_eq!(
                (header.shape.as_slice(), header.by_columns),
                ([10, 3, 4].as_slice(), false)
            );
            assert_eq!((header.end, header.number_bytes()), (bytes.len(), Some(4)));
        }
        let of = |text: &str| Header::parse(&file(1, text)).unwrap();
        let header = of("{'descr': '<U7', 'fortran_order': True, 'shape': (3,), }");
        assert_eq!((header.number_bytes(), header.by_columns), (Some(28), true));
        for descr in ["\u{e9}1", "<U4611686018427387905", "<f", "|O", ""] {
            let header = of(&format!("{{'descr': '{descr}', 'shape': (3,), }}"));
            assert!(header.number_bytes().is_none_or(|bytes| bytes == 1), "{descr}");
        }
        let header =
            of("{'descr': [('a', '<i8'), ('b', '|u1')], 'fortran_order': False, 'shape': (), }");
        assert_eq!((header.number_bytes(), header.shape.len()), (None, 0));
    }

    #[test]
    fn what_is_no_array_is_refused() {
        let cut = file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 3, 4), }");
        for (bytes, why) in [
            (b"PK\x03\x04".to_vec(), "no array of numpy"),
            (MAGIC.to_vec(), "ends in its header"),
            (cut[..40].to_vec(), "ends in its header"),
            (file(1, "{}"), "no shape"),
            (file(1, "{'shape': (3, x), }"), "no shape"),
            ([MAGIC, &[2, 0, 0, 0, 0, 9]].concat(), "numpy does not write"),
        ] {
            let error = Header::parse(&bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn an_array_without_rows_in_one_piece_is_refused() {
        let cases = [
            (array("(2, 3)", 23), "its rows need 24 bytes, and after its header it has 23"),
            (array("(2, 0)", 0), "how long a row is"),
            (array("()", 4), "no rows"),
            (array("(18446744073709551615, 2)", 4), "its rows need more"),
            (array("(2, 18446744073709551615)", 4), "how long a row is"),
            (array("(2, 3)", 24)[..30].to_vec(), "ends in its header"),
            (array_of("<f4", "True", "(2, 3)", 24), "its columns lie"),
            (array_of("<f999999999999999999", "False", "(2, 99)", 24), "how long a row is"),
            (array_of("|O", "False", "(2,)", 24), "objects"),
            (array_of("|u1", "False", "(9999999999999,)", 24), "its rows need 9999999999999"),
            (array_of("|V8", "False", "(4,)", 24), "its rows need 32"),
            (b"PK".to_vec(), "no array"),
            (Vec::new(), "no array"),
        ];
        for (bytes, why) in cases {
            let error = samples_of(&Container::Npy, bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = Header::parse(&[MAGIC, &bytes].concat());
            let text = String::from_utf8_lossy(&bytes);
            let _ = Header::parse(&file(1, &format!("{{'descr': '{text}', 'shape': ({text}), }}")))
                .map(|header| header.number_bytes());
        }
    }
}

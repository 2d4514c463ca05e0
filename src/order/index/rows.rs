//! Rows of arrays: samples that lie one after the other in large files.
//!
//! A dataset over an array that is mapped (`numpy.load(path, mmap_mode="r")`) takes a row of it for a sample.
//! Several arrays are read as one, in the order of their paths. Only the header of each file is read: the rows are
//! of one length.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ops::Range;

use super::Filter;
use crate::error::{Error, ErrorKind, Result};
use crate::order::npy::Header;
use crate::order::samplers::wrong;
use crate::order::{Entry, FileRange, Listing, grouped};

/// The word for it in a spec.
pub const NPY: &str = "npy";

/// More rows are refused. Each takes some bytes of memory.
const ROWS_MAX: u64 = 1 << 24;

/// So many bytes of a file are read first. They hold the header of nearly any array.
const FIRST_BYTES: u64 = 512;

/// The rows of arrays.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Each row once.
    pub table: Vec<FileRange>,
    /// The row of the table at each position. A file that has several paths has its rows several times.
    pub index: Vec<u32>,
}

/// The rows of all arrays that a filter takes. These are the files whose names end in `.npy` if the filter names no
/// endings. Its root may also be an array.
///
/// # Errors
/// If there is no array, or if there are too many rows. If the header of a file cannot be read or is wrong, or if the
/// file is shorter than its rows. The error names the file.
pub fn rows(listing: &Listing<'_>, filter: &Filter) -> Result<Rows> {
    let is_root = |entry: &&Entry<'_>| entry.path == filter.directory().as_bytes();
    let is_below = |entry: &&Entry<'_>| {
        filter.below(entry.path).is_some() && filter.takes(entry.path, &[".npy"])
    };
    let mut arrays: Vec<&Entry<'_>> =
        listing.entries().iter().filter(|entry| is_root(entry) || is_below(entry)).collect();
    arrays.sort_unstable_by_key(|entry| entry.path);
    let (mut rows, mut known) = (Rows::default(), HashMap::new());
    for array in arrays {
        let of_file: &mut Range<u32> = match known.entry(array.file) {
            Slot::Occupied(found) => found.into_mut(),
            Slot::Vacant(free) => {
                let begun = rows.table.len() as u32;
                let name = String::from_utf8_lossy(array.path);
                let added = rows_of(listing, array, &mut rows.table);
                added.map_err(|error| error.context(name))?;
                free.insert(begun..rows.table.len() as u32)
            }
        };
        if rows.index.len() as u64 + of_file.len() as u64 > ROWS_MAX {
            return Err(wrong(format!("there are more than {} rows", grouped(ROWS_MAX)))
                .hint("root= names one array, or write an order file that lists ranges"));
        }
        rows.index.extend(of_file.clone());
    }
    if rows.index.is_empty() {
        let message = "the npy index is empty: no file of the source is an array with rows";
        let hint = "root= names a directory of .npy files relative to the source, or one such file";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    Ok(rows)
}

/// Adds the rows of an array.
fn rows_of(listing: &Listing<'_>, array: &Entry<'_>, table: &mut Vec<FileRange>) -> Result<()> {
    let Entry { file, size, .. } = *array;
    if size == u64::MAX {
        return Err(wrong("its size is not known before it is read"));
    }
    let mut first = listing.read(file, 0..FIRST_BYTES.min(size))?;
    let end = Header::end_of(&first)? as u64;
    if end > FIRST_BYTES {
        first = listing.read(file, 0..end.min(size))?;
    }
    let header = Header::parse(&first)?;
    let [count, ref of_row @ ..] = header.shape[..] else {
        return Err(wrong("it is one number, and has no rows"));
    };
    let length = row_bytes(&header, (count, of_row), size - end)?;
    if table.len() as u64 + count > ROWS_MAX {
        return Err(wrong(format!("it has more than {} rows", grouped(ROWS_MAX)))
            .hint("write an order file that lists ranges"));
    }
    let row = |nth: u64| FileRange { file, offset: end + nth * length, length };
    table.extend((0..count).map(row));
    Ok(())
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
    use super::*;
    use crate::ids::FileId;

    fn array(shape: &str, bytes: usize) -> Vec<u8> {
        array_of("<f4", "False", shape, bytes)
    }

    fn array_of(descr: &str, by_columns: &str, shape: &str, bytes: usize) -> Vec<u8> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': {by_columns}, 'shape': {shape}, }}\n");
        let length = (header.len() as u16).to_le_bytes();
        let bytes = vec![0; bytes];
        [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), &bytes].concat()
    }

    fn found(files: &[(&str, Vec<u8>)], root: &str) -> Result<Rows> {
        let read = |file: FileId, range: Range<u64>| {
            Ok(files[file.index()].1[range.start as usize..range.end as usize].to_vec())
        };
        let entries = (0..).zip(files).map(|(nth, (path, bytes))| Entry {
            path: path.as_bytes(),
            file: FileId(nth),
            size: bytes.len() as u64,
        });
        let listing = Listing::new(entries.collect()).with_reader(&read);
        rows(&listing, &Filter { root: root.into(), ..Filter::default() })
    }

    #[test]
    fn arrays_are_read_one_after_the_other_row_by_row() {
        let files =
            [("b.npy", array("(2, 3)", 24)), ("a.txt", vec![1; 99]), ("a.npy", array("(3,)", 12))];
        let Rows { table, index } = found(&files, "").unwrap();
        let at = |file: usize| files[file].1.len() as u64;
        let row = |file: usize, left: u64, length| FileRange {
            file: FileId(file as u32),
            offset: at(file) - left,
            length,
        };
        let of_a = [row(2, 12, 4), row(2, 8, 4), row(2, 4, 4)];
        assert_eq!(table, [of_a.as_slice(), &[row(0, 24, 12), row(0, 12, 12)]].concat());
        assert_eq!(index, [0, 1, 2, 3, 4]);
        assert_eq!(found(&files, "b.npy").unwrap().table.len(), 2, "a file");
    }

    #[test]
    fn errors_name_the_file_and_what_is_wrong() {
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
            let error = found(&[("x.npy", bytes)], "").unwrap_err().to_string();
            assert!(error.contains("x.npy: ") && error.contains(why), "{why}: {error}");
        }
        let none = found(&[("a.txt", vec![1])], "").unwrap_err().to_string();
        assert!(none.contains("index is empty"), "{none}");
    }
}

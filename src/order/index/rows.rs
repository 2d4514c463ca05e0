//! Rows of arrays: samples that lie one after the other in large files.
//!
//! A dataset over an array that is mapped (`numpy.load(path, mmap_mode="r")`) takes a row of it for a sample.
//! Several arrays are read as one, in the order of their paths. Only the header of each file is read: the rows are
//! of one length.

use super::Filter;
use crate::error::{Error, ErrorKind, Result};
use crate::order::npy::{Header, PREFIX};
use crate::order::samplers::wrong;
use crate::order::{Entry, FileRange, Listing};

/// The word for it in a spec.
pub const NPY: &str = "npy";

/// The rows of all arrays that a filter takes: those whose names end in `.npy` if it names no endings. Its root may
/// also be an array.
///
/// # Errors
/// If there is no array. If the header of a file cannot be read or is wrong, or if the file is shorter than its
/// rows. The error names the file.
pub fn rows(listing: &Listing<'_>, filter: &Filter) -> Result<Vec<FileRange>> {
    let is_root = |entry: &&Entry<'_>| entry.path == filter.directory().as_bytes();
    let is_below = |entry: &&Entry<'_>| {
        filter.below(entry.path).is_some() && filter.takes(entry.path, &[".npy"])
    };
    let mut arrays: Vec<&Entry<'_>> =
        listing.entries().iter().filter(|entry| is_root(entry) || is_below(entry)).collect();
    arrays.sort_unstable_by_key(|entry| entry.path);
    let mut rows = Vec::new();
    for array in arrays {
        let name = String::from_utf8_lossy(array.path);
        rows_of(listing, array, &mut rows).map_err(|error| error.context(name))?;
    }
    if rows.is_empty() {
        let message = "the npy index is empty: no file of the source is an array with rows";
        let hint = "root= names a directory of .npy files relative to the source, or one such file";
        return Err(Error::new(ErrorKind::Order, message).hint(hint));
    }
    Ok(rows)
}

/// Adds the rows of an array.
fn rows_of(listing: &Listing<'_>, array: &Entry<'_>, rows: &mut Vec<FileRange>) -> Result<()> {
    let Entry { file, size, .. } = *array;
    if size == u64::MAX {
        return Err(wrong("its size is not known before it is read"));
    }
    let read = |end: u64| listing.read(file, 0..end.min(size));
    let end = Header::end_of(&read(PREFIX as u64)?)?;
    let header = Header::parse(&read(end as u64)?)?;
    let offset = end as u64;
    let [count, ref of_row @ ..] = header.shape[..] else {
        return Err(wrong("it is one number, and has no rows"));
    };
    let has = size.saturating_sub(offset);
    let length = match header.number_bytes() {
        Some(bytes) => of_row.iter().try_fold(bytes, |sum, length| sum.checked_mul(*length)),
        None => has.checked_div(count),
    };
    let length = length.filter(|length| *length > 0 || count == 0);
    let length = length.ok_or_else(|| wrong("its header tells rows of no length"))?;
    let wants = length.checked_mul(count);
    if wants.is_none_or(|wants| wants > has) {
        let wants = wants.map_or("more".to_owned(), |wants| wants.to_string());
        return Err(wrong(format!(
            "from byte {offset} on it has {has} bytes, and its rows {wants}"
        ))
        .hint("was it cut off while it was copied?"));
    }
    if header.by_columns && count > 1 && of_row.iter().any(|length| *length > 1) {
        return Err(wrong("its columns lie in one piece each, and its rows do not")
            .hint("save it with numpy.ascontiguousarray"));
    }
    if rows.len() as u64 + count > u64::from(u32::MAX) {
        return Err(wrong("an order holds fewer than 2^32 samples"));
    }
    let row = |nth: u64| FileRange { file, offset: offset + nth * length, length };
    rows.extend((0..count).map(row));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

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

    fn found(files: &[(&str, Vec<u8>)], root: &str) -> Result<Vec<FileRange>> {
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
        let rows = found(&files, "").unwrap();
        let at = |file: usize| files[file].1.len() as u64;
        let row = |file: usize, left: u64, length| FileRange {
            file: FileId(file as u32),
            offset: at(file) - left,
            length,
        };
        let of_a = [row(2, 12, 4), row(2, 8, 4), row(2, 4, 4)];
        assert_eq!(rows, [of_a.as_slice(), &[row(0, 24, 12), row(0, 12, 12)]].concat());
        assert_eq!(found(&files, "b.npy").unwrap().len(), 2, "a file");
    }

    #[test]
    fn errors_name_the_file_and_what_is_wrong() {
        let cases = [
            (array("(2, 3)", 23), "from byte"),
            (array("(2, 0)", 0), "no length"),
            (array("()", 4), "no rows"),
            (array("(18446744073709551615, 2)", 4), "its rows more"),
            (array("(2, 18446744073709551615)", 4), "no length"),
            (array("(2, 3)", 24)[..30].to_vec(), "ends in its header"),
            (array_of("<f4", "True", "(2, 3)", 24), "its columns lie"),
            (array_of("<f999999999999999999", "False", "(2, 99)", 24), "no length"),
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

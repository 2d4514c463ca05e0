use std::sync::Arc;

use super::*;
use crate::ids::FileId;
use crate::order::FindSamples;

/// A file of these bytes.
pub(super) fn file_of(bytes: Vec<u8>) -> FileBytes {
    let size = bytes.len() as u64;
    let read =
        move |range: Range<u64>| Ok(bytes[range.start as usize..range.end as usize].to_vec());
    FileBytes::new(size, Arc::new(read))
}

/// The samples of such a file.
pub(super) fn samples_of(container: &Container, bytes: Vec<u8>) -> Result<Vec<Range<u64>>> {
    samples_within(container, file_of(bytes))
}

/// An array of numpy.
pub(super) fn array(shape: &str, bytes: usize) -> Vec<u8> {
    array_of("<f4", "False", shape, bytes)
}

pub(super) fn array_of(descr: &str, by_columns: &str, shape: &str, bytes: usize) -> Vec<u8> {
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': {by_columns}, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    let bytes = vec![0; bytes];
    [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), &bytes].concat()
}

/// The samples of files with names.
fn found(files: &[(&str, Vec<u8>)], root: &str, container: &Container) -> Result<Numbered> {
    let read_each = |entries: &[Entry<'_>], find: &FindSamples<'_>| {
        let of = |entry: &Entry<'_>| {
            let samples = find(file_of(files[entry.file.index()].1.clone()))?;
            Ok(FileSamples { samples, index: Vec::new() })
        };
        entries.iter().map(of).collect()
    };
    let entries = (0..).zip(files).map(|(nth, (path, bytes))| Entry {
        path: path.as_bytes(),
        file: FileId(nth),
        size: bytes.len() as u64,
    });
    let listing = Listing::new(entries.collect()).with_reader(&read_each);
    numbered(&listing, &Filter { root: root.into(), ..Filter::default() }, container)
}

#[test]
fn files_are_read_one_after_the_other_sample_by_sample() {
    let files =
        [("b.npy", array("(2, 3)", 24)), ("a.txt", vec![1; 99]), ("a.npy", array("(3,)", 12))];
    let Numbered { table, index } = found(&files, "", &Container::Npy).unwrap();
    let at = |file: usize| files[file].1.len() as u64;
    let row = |file: usize, left: u64, length| FileRange {
        file: FileId(file as u32),
        offset: at(file) - left,
        length,
    };
    let of_a = [row(2, 12, 4), row(2, 8, 4), row(2, 4, 4)];
    assert_eq!(table, [of_a.as_slice(), &[row(0, 24, 12), row(0, 12, 12)]].concat());
    assert_eq!(index, [0, 1, 2, 3, 4]);
    assert_eq!(found(&files, "b.npy", &Container::Npy).unwrap().table.len(), 2, "a file");
}

#[test]
fn errors_name_the_file() {
    let error = found(&[("d/x.mds", vec![9])], "d", &Container::Mds).unwrap_err().to_string();
    assert!(error.contains("d/x.mds: bytes 0 to 4 are missing, and it has 1 bytes"), "{error}");
    let none = found(&[("a.txt", vec![1])], "", &Container::Lmdb).unwrap_err().to_string();
    assert!(none.contains("the lmdb index is empty") && none.contains("data.mdb"), "{none}");
}

#[test]
fn samples_with_the_same_bytes_share_a_row() {
    let entry = Entry { path: b"x", file: FileId(7), size: 99 };
    let mut table = vec![FileRange { file: FileId(3), offset: 0, length: 1 }];
    let rows = add_rows(&entry, vec![5..9, 5..9, 0..5, 5..9, 5..8], &mut table);
    assert_eq!((rows, table.len()), (vec![1, 1, 2, 1, 3], 4));
    assert_eq!(add_rows(&entry, vec![1..2, 2..3], &mut table), [4, 5]);
}

#[test]
fn containers_are_written_as_they_are_read() {
    for text in ["npy", "mds", "lmdb", "hdf5:a/b", "arrow:image.bytes"] {
        assert_eq!(Container::parse(text).unwrap().unwrap().to_string(), text);
    }
    assert!(Container::parse("path").is_none());
    for (text, why) in
        [("hdf5", "needs a name"), ("arrow:", "needs a name"), ("npy:x", "takes no name")]
    {
        let error = Container::parse(text).unwrap().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn what_was_read_of_an_index_is_in_as_few_ranges_as_it_takes() {
    assert_eq!(joined(vec![8..9, 0..4, 2..6, 6..7, 20..20, 9..12]), [0..7, 8..12]);
}

#[test]
fn an_index_is_what_lies_beside_samples() {
    let parts = beside(vec![0..1000, 5000..6000, 900..1500], &[100..200, 210..400, 5500..9000]);
    assert_eq!(parts, [0..100, 400..1500, 5000..5500], "ten bytes come with a sample");
    let parts = beside(vec![0..512, 9000..9100], &[128..4096, 4096..9000]);
    assert_eq!(parts, [0..128, 9000..9100]);
    assert!(beside(vec![200..300, 400..900], &[0..1000, 2000..2001]).is_empty());
}

/// More samples than are kept are refused before all files have been read.
#[test]
fn too_many_samples_of_all_files_are_refused() {
    let tiny =
        |nth: u32| (format!("{nth:03}.npy"), array_of("|u1", "False", "(9000000,)", 9_000_000));
    let files: Vec<_> = (0..4).map(tiny).collect();
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let error = found(&files, "", &Container::Npy).unwrap_err().to_string();
    assert!(error.contains("001.npy: there are more than 16,777,216 samples"), "{error}");
}

use super::*;
use crate::order::Order;
use crate::order::listing::Entry;
use crate::order::sample::FileRange;

const PATHS: [&[u8]; 6] = [b"a", b"b", b"dir/c", b"#d", b"7", b"caf\xe9\tx"];

/// Files 0.. with sizes 100, 99, ...
fn listing() -> Listing<'static> {
    let entry = |(row, path)| Entry { path, file: FileId(row as u32), size: 100 - row as u64 };
    Listing::new(PATHS.into_iter().enumerate().map(entry).collect()).with_prefix(b"/src")
}

/// The files from the last to the first.
fn index() -> Result<Vec<FileId>> {
    Ok((0..PATHS.len() as u32).rev().map(FileId).collect())
}

fn ids(text: impl AsRef<[u8]>) -> Vec<Vec<u32>> {
    let parsed = parse(text.as_ref(), &listing(), index, None).unwrap();
    parsed.epochs.iter().map(|epoch| epoch.to_vec()).collect()
}

fn error(text: impl AsRef<[u8]>) -> String {
    parse(text.as_ref(), &listing(), index, None).unwrap_err().to_string()
}

#[test]
fn lines_of_paths() {
    assert_eq!(ids("b\na\nb"), [[1, 0, 1]]);
    assert_eq!(ids(b"./#d\r\n\r\n# word\n  \n#d\n./7\n/src/dir/c\ncaf\xe9\tx\n"), [[3, 4, 2, 5]]);
}

#[test]
fn lines_of_numbers_count_in_the_index() {
    assert_eq!(ids("0\n5\r\n 1 \n"), [[5, 0, 4]]);
    assert_eq!(ids("7\na"), [[4, 0]], "numbers among paths are names");
}

#[test]
fn epochs() {
    assert_eq!(ids("# epoch 3\na\nb\n# epoch 4\nb\n"), [vec![0, 1], vec![1]]);
    assert_eq!(ids("a\n#epoch 1\nb\n#  epoch  2\na\n"), [[0], [1], [0]]);
    assert_eq!(ids("# epoch of wonder\na\n# unique as snow\na"), [[0, 0]]);
    assert_eq!(error("# epoch 0\na\n# epoch 2\nb"), "line 3: epoch 2 follows epoch 0");
    assert_eq!(error("# epoch 0\n# epoch 1\nb"), "line 2: epoch 0 ends without a sample");
    assert_eq!(error("# epoch 0\nb\n# epoch 1\n"), "line 4: epoch 1 ends without a sample");
    assert_eq!(error("# epoch one\nb"), "line 1: '# epoch one' has to end with a number");
}

#[test]
fn directives_are_kept_to() {
    assert_eq!(ids("# unique\n# count 2\na\nb\n# epoch 1\nb\na"), [[0, 1], [1, 0]]);
    assert_eq!(error("# unique\na\nb\na"), "line 4: this sample stands twice in its epoch");
    assert_eq!(
        error("# unique\n1\n# epoch 1\n# x\n2\n\n1\n2"),
        "line 8: this sample stands twice in its epoch"
    );
    let shorter = error("# count 2\na\nb\n# epoch 1\nb\n# epoch 2\na\nb");
    assert_eq!(shorter, "line 6: epoch 1 ends with 1 samples; count says 2");
    assert_eq!(error("a\n# unique"), "line 2: a directive has to stand before the first sample");
    let counts = parse(b"# count 2\na\nb", &listing(), index, Some(3)).unwrap_err();
    assert_eq!(counts.message(), "line 1: count 2, but another count given is 3");
    assert!(parse(b"a\nb", &listing(), index, Some(3)).is_err());
}

#[test]
fn ranges() {
    let parsed = parse(b"a\t10\t20\nb\na\t10\t20\na\t0\t100\n", &listing(), index, None).unwrap();
    assert_eq!(*parsed.epochs[0], [0, 1, 0, 2]);
    let rows = [(0, 10, 20), (1, 0, 99), (0, 0, 100)];
    let rows = rows.map(|(file, offset, length)| FileRange { file: FileId(file), offset, length });
    assert_eq!(parsed.samples, SampleTable::Ranges(rows.to_vec()));
    assert_eq!(error("a\t10\t0"), "line 1: a range of length 0");
    let beyond = "line 2: 1 bytes from byte 99 on reach beyond 'b', which has 99 bytes";
    assert_eq!(error("a\nb\t99\t1"), beyond);
    assert!(error("a\t99999999999999999999999\t1").contains("reach beyond"));
    assert!(error("x\t1\t1").starts_with("line 1: unknown path 'x'"));
    assert!(error("./\t1\t1").starts_with("line 1: unknown path './'"));
}

#[test]
fn an_empty_file_among_ranges_is_the_range_of_nothing() {
    let listing = Listing::new(vec![Entry { path: b"e", file: FileId(0), size: 0 }]);
    let parsed = parse(b"e\ne\t0\t0\n", &listing, index, None).unwrap();
    assert_eq!(*parsed.epochs[0], [0, 0]);
    assert!(parse(b"e\t1\t0\n", &listing, index, None).is_err());
}

#[test]
fn errors_say_where_and_why() {
    assert!(error("a\n\ndir/d").starts_with("line 3: unknown path 'dir/d'\n"));
    assert!(error("c").contains("did you mean 'dir/c'?"));
    assert!(error("a\n12\n").contains("line 1 is not"));
    assert!(error("0\n6").starts_with("line 2: index 6 is out of range: the dataset has 6"));
    assert!(error("99999999999999999999999").contains("out of range"));
    for empty in ["", "\n\n", "# unique\n# nothing\n"] {
        assert_eq!(error(empty), "the order is empty");
    }
}

#[test]
fn binary_files() {
    let bytes = |entries: &[u32]| entries.iter().flat_map(|e| e.to_le_bytes()).collect::<Vec<_>>();
    assert_eq!(ids(bytes(&[0, 1, 0])), [[5, 4, 5]]);
    assert!(error(bytes(&[0, 6])).starts_with("entry 2: index 6 is out of range"));
    assert!(error([0; 7]).contains("7 bytes"));
    assert!(parse(&bytes(&[0, 1]), &listing(), index, Some(3)).is_err());
}

#[test]
fn the_index_is_not_asked_for_without_numbers() {
    let none = || Err(Error::new(ErrorKind::Internal, "asked"));
    assert!(parse(b"a", &listing(), none, None).is_ok());
    assert!(parse(b"1", &listing(), none, None).is_err());
}

#[test]
fn a_million_lines_are_held_in_four_bytes_each() {
    let files: Vec<_> = (0..1_000_000).map(FileId).collect();
    let mut text = String::from("# unique\n");
    for file in files.iter().rev() {
        text += &format!("{}\n", file.0);
    }
    let parsed = parse(text.as_bytes(), &listing(), || Ok(files), Some(1_000_000)).unwrap();
    assert_eq!(parsed.epochs.len(), 1);
    assert_eq!(size_of_val(&*parsed.epochs[0]), 4_000_000);
    assert_eq!(parsed.epochs[0][..3], [999_999, 999_998, 999_997]);
}

#[test]
fn names_that_read_as_something_else_get_a_dot_slash_or_are_refused() {
    let write = |name: &'static [u8]| {
        let order = Order::listed("o", vec![Arc::from([0])], SampleTable::Files).unwrap();
        let text = write_text(&order, 0..1, |_| name.into())?;
        Ok::<_, Error>(text.split(|byte| *byte == b'\n').nth(3).unwrap_or_default().to_vec())
    };
    let prefixed: [(&[u8], &[u8]); 5] =
        [(b"#a", b"./#a"), (b"7", b"./7"), (b" ", b"./ "), (b"a\r", b"a\r\r"), (b"a#7", b"a#7")];
    for (name, line) in prefixed {
        assert_eq!(write(name).unwrap(), line);
    }
    for name in [b"a\nb".as_slice(), b"a\t1\t2", b"\t1\t2"] {
        assert!(write(name).unwrap_err().message().contains("cannot stand"));
    }
}

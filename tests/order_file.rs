//! Properties of order files: a written order reads back, and no input panics.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use belady::ids::FileId;
use belady::order::file::{parse, write_text};
use belady::order::{Entry, FileRange, Listing, Order, OrderSpec, Sample, SampleTable};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

/// Bytes of file names. Bytes with a meaning in order files are more frequent.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let special = prop::sample::select(b"#./ \t\r0123456789".to_vec());
    let byte = prop_oneof![4 => special, 1 => 1u8..=255];
    vec(byte, 1..8).prop_filter("what no listing or order file holds", |name| {
        !name.contains(&b'\n') && !name.starts_with(b"./") && !name.starts_with(b"/")
    })
}

/// The row of a name, and the offset and length of a possible byte range.
type Row = (usize, u64, u64);

/// Some names, and epochs over them.
fn orders() -> impl Strategy<Value = (BTreeSet<Vec<u8>>, Vec<Vec<Row>>)> {
    btree_set(name(), 1..10).prop_flat_map(|names| {
        let sample = (0..names.len(), 0u64..50, 1u64..50);
        (Just(names), vec(vec(sample, 1..20), 1..4))
    })
}

fn listing<'n>(names: &[&'n [u8]]) -> Listing<'n> {
    let entry =
        |(row, path): (usize, &&'n [u8])| Entry { path, file: FileId(row as u32), size: 100 };
    Listing::new(names.iter().enumerate().map(entry).collect())
}

fn no_index() -> belady::error::Result<Vec<FileId>> {
    panic!("a file of paths has no numbers")
}

fn samples(epochs: &[Arc<[u32]>], table: &SampleTable) -> Vec<Vec<Sample>> {
    epochs.iter().map(|epoch| epoch.iter().map(|id| table.get(*id)).collect()).collect()
}

proptest! {
    #[test]
    fn a_written_order_reads_back((names, epochs) in orders(), ranged: bool) {
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut rows = Vec::new();
        let mut id = |&(file, offset, length): &Row| {
            let file = FileId(file as u32);
            if ranged {
                let range = FileRange { file, offset, length };
                let row = rows.iter().position(|row| *row == range);
                row.unwrap_or_else(|| { rows.push(range); rows.len() - 1 }) as u32
            } else {
                file.0
            }
        };
        let epochs: Vec<Arc<[u32]>> = epochs.iter().map(|e| e.iter().map(&mut id).collect()).collect();
        let table = if ranged { SampleTable::Ranges(rows) } else { SampleTable::Files };
        let order = Order::listed("a\nb", epochs.clone(), table.clone()).unwrap();
        let path = |file: FileId| Cow::Borrowed(names[file.index()]);
        match write_text(&order, 0..epochs.len() as u32, path) {
            Ok(text) => {
                let read = parse(&text, &listing(&names), no_index, None).unwrap();
                prop_assert_eq!(samples(&read.epochs, &read.samples), samples(&epochs, &table));
            }
            Err(error) => prop_assert!(error.message().contains("cannot stand")),
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in vec(any::<u8>(), 0..300)) {
        let names: [&[u8]; 3] = [b"a", b"b/c", b"7"];
        let _ = parse(&bytes, &listing(&names), || Ok(vec![FileId(1), FileId(0)]), Some(3));
    }

    #[test]
    fn no_lines_make_the_parser_panic(text in "((#|# epoch|# count|a|b/c|\\./7|7|1|0)[ \t\r]?[0-9]{0,2}(\t[0-9]{1,20}){0,3}\n){0,12}") {
        let names: [&[u8]; 3] = [b"a", b"b/c", b"7"];
        let index = || Ok(vec![FileId(1), FileId(0)]);
        if let Ok(parsed) = parse(text.as_bytes(), &listing(&names), index, None) {
            for sample in samples(&parsed.epochs, &parsed.samples).concat() {
                prop_assert!(sample.file.index() < 3);
                prop_assert!(sample.length.is_none_or(|length| sample.offset + length <= 100));
            }
        }
    }

    #[test]
    fn a_spec_that_parses_is_shown_as_one_that_parses_the_same(
        text in "(torch-distributed|torch-random|sequential|file:|a/b)[:,]?((seed|epoch|world|rank|root|ext|index|count|shuffle)=(0|1|7|true|path|imagefolder|manifest:m|\\.jpg,\\.png),?){0,5}"
    ) {
        if let Ok(spec) = text.parse::<OrderSpec>() {
            prop_assert_eq!(spec.to_string().parse::<OrderSpec>(), Ok(spec));
        }
    }
}

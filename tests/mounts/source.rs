//! What a read of a directory costs the filesystem that the directory is on.
//!
//! Goal: a read of a part fetches no byte beside it, the parts of a file share one open, and a file that never
//! changes is not looked at again after its bytes. Method: a source reads files of a filesystem that counts its
//! operations, or writes them down. The kernel trusts no attributes there, so each look at a file is a request.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;

use belady::source::{PosixSource, ReadRequest, Source, Urgency};

use crate::fixture::{Fixture, LIMIT, content, wait_until};
use crate::mounted::Slowpfs;

/// Bytes of a part: half of what the kernel reads at once at the start of a file.
const PART: usize = 64 << 10;

const SEED: u64 = 9;

fn write(fixture: &Fixture, name: &str, parts: usize) {
    fixture.write(name, &content(SEED, parts * PART));
}

fn open_source(slow: &Slowpfs) -> PosixSource {
    PosixSource::open(&slow.point, 1).unwrap()
}

/// Reads a range of a file, and waits for its bytes. `exact`: whether the file may change.
fn read(source: &PosixSource, name: &str, exact: bool, range: Range<usize>) {
    let (send, answer) = mpsc::channel();
    let path = Path::new(name);
    source.read(vec![ReadRequest {
        path: path.into(),
        fingerprint: source.stat(path).unwrap().fingerprint(),
        is_sized: true,
        exact,
        offset: range.start as u64,
        length: range.len(),
        urgency: Urgency::Demand,
        deliver: Box::new(move |read| send.send(read).unwrap()),
    }]);
    let bytes = answer.recv_timeout(LIMIT).unwrap().unwrap();
    let expected = content(SEED, range.end);
    assert!(bytes == expected[range], "{name} has other bytes");
}

/// The bytes that were read of the filesystem. The kernel closes a file only after all reads of it, so none is
/// on its way any more.
fn bytes_when_all_is_closed(slow: &Slowpfs) -> u64 {
    wait_until("all files are closed", || slow.count("release") == slow.count("open"));
    slow.count("bytes")
}

#[test]
fn a_read_of_a_part_fetches_no_byte_beside_it() {
    let fixture = Fixture::new();
    write(&fixture, "rows", 16);
    write(&fixture, "plain", 16);
    let slow = Slowpfs::new(&fixture, &[]);
    let source = open_source(&slow);
    // The kernel reads ahead at the start of a file, and where a read continues another one. The last range needs
    // several requests. It begins beyond what would be read ahead for the others, so that they cannot pay for it.
    let ranges = [0..PART, PART..2 * PART, 8 * PART..14 * PART];
    let asked: usize = ranges.iter().map(|range| range.len()).sum();
    for range in ranges {
        read(&source, "rows", true, range);
    }
    drop(source);
    assert_eq!(bytes_when_all_is_closed(&slow), asked as u64);
    // A reader that gives no advice gets more than it asks for.
    let mut bytes = vec![0; PART];
    let plain = File::open(slow.point.join("plain")).unwrap();
    plain.read_exact_at(&mut bytes, 0).unwrap();
    drop(plain);
    let all = bytes_when_all_is_closed(&slow);
    assert!(all > (asked + PART) as u64, "the kernel does not read ahead: {all} bytes");
}

#[test]
fn parts_of_a_file_are_read_with_one_open() {
    let fixture = Fixture::new();
    let slow = Slowpfs::new(&fixture, &[]);
    let source = open_source(&slow);
    for (name, exact, opens) in [("changing", true, 1), ("immutable", false, 2)] {
        write(&fixture, name, 16);
        for part in [3, 0, 7, 8, 3] {
            read(&source, name, exact, part * PART..(part + 1) * PART);
        }
        assert_eq!(slow.count("open"), opens, "{name}");
    }
}

/// The operations on a file, as the trace names them.
fn traced(trace: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(trace).unwrap();
    let end = format!(" {name}");
    let of_file = text.lines().filter(|line| line.ends_with(&end));
    of_file.filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
}

/// The operations on a file that come after its bytes. It was opened once, so its release is the last.
fn after_bytes(trace: &Path, name: &str) -> Vec<String> {
    let mut operations = Vec::new();
    wait_until("the file is closed", || {
        operations = traced(trace, name);
        operations.last().is_some_and(|last| last == "release")
    });
    let last_read = operations.iter().rposition(|operation| operation == "read").unwrap();
    operations.split_off(last_read + 1)
}

#[test]
fn only_a_file_that_may_change_is_looked_at_after_its_bytes() {
    let fixture = Fixture::new();
    let trace = fixture.path("trace");
    let slow = Slowpfs::new(&fixture, &["--trace", trace.to_str().unwrap()]);
    let cases: [(&str, bool, &[&str]); 2] =
        [("immutable", false, &["release"]), ("changing", true, &["getattr", "release"])];
    for (kind, exact, expected) in cases {
        // A part, and a whole file.
        for parts in [1, 2] {
            let name = format!("{kind}{parts}");
            write(&fixture, &name, 2);
            let source = open_source(&slow);
            read(&source, &name, exact, 0..parts * PART);
            // This closes the file, if it was kept open.
            drop(source);
            assert_eq!(after_bytes(&trace, &name), expected, "{name}");
        }
    }
}

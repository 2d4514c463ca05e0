//! Large files that an order reads whole.
//!
//! Goal: blocks of a file that its reader has left behind give way to its next ones, so a small window is enough to
//! have these in RAM in time. Method: files of several blocks are read in an order that is told, with RAM for less than
//! half of them and a window of four blocks. Some reads begin with the end of a file, as those of archives do.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;

use crate::fixture::{Choice, Fixture, content};
use crate::mounted::{Mounted, Slowpfs};

const FILES: usize = 5;
const BYTES: usize = (10 << 20) - 1_003;
const EPOCHS: usize = 4;

/// As much as numpy reads of an archive's end.
const END: usize = 70_000;

#[test]
fn a_small_window_goes_along_with_the_reader_of_a_large_file() {
    let fixture = Fixture::new();
    let contents: Vec<Vec<u8>> = (0..FILES).map(|nth| content(nth as u64, BYTES)).collect();
    for (nth, bytes) in contents.iter().enumerate() {
        fixture.write(&format!("{nth}.npz"), bytes);
    }
    let mut choice = Choice(3);
    let mut epoch = || {
        let mut files: Vec<usize> = (0..FILES).collect();
        (1..FILES).rev().for_each(|at| files.swap(at, choice.below(at as u64 + 1) as usize));
        files
    };
    let epochs: Vec<Vec<usize>> = (0..EPOCHS).map(|_| epoch()).collect();
    let lines = |files: &Vec<usize>| files.iter().map(|nth| format!("{nth}.npz\n")).collect();
    let text: Vec<String> = epochs.iter().map(lines).collect();
    let text: String = (0..).zip(text).map(|(k, it)| format!("# epoch {k}\n{it}")).collect();
    let order = fixture.path("order.txt");
    fs::write(&order, text).unwrap();
    let slow = Slowpfs::new(&fixture, &["--read-ms", "5"]);
    let options = ["--ram", "20MiB", "--set", "prefetch.window=4MiB", "--order"];
    let options = [&options[..], &[order.to_str().unwrap()]].concat();
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let mut bytes = vec![0; 128 << 10];
    for (turn, nth) in epochs.iter().flatten().enumerate() {
        let (whole, mut file) =
            (&contents[*nth], File::open(mounted.path(format!("{nth}.npz"))).unwrap());
        if turn % 2 == 0 {
            file.read_exact_at(&mut bytes[..END], (BYTES - END) as u64).unwrap();
            assert!(bytes[..END] == whole[BYTES - END..], "the end of {nth}");
        }
        let mut at = 0;
        while at < BYTES {
            let read = file.read(&mut bytes).unwrap();
            assert!(read > 0 && bytes[..read] == whole[at..at + read], "{nth} at {at}");
            at += read;
        }
    }
    let status = mounted.status();
    let count = |key: &str| status[key].as_u64().unwrap();
    println!("{} prefetched, {} demanded", count("prefetched"), count("demanded"));
    assert!(count("prefetched") > count("demanded"), "{status}");
    assert_eq!(count("failed"), 0, "{status}");
    mounted.umount();
}

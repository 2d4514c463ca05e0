//! Random reads in files that RAM cannot hold.
//!
//! Goal: random reads cost the source about the bytes that they ask for, every byte is right, and the bytes
//! stay in RAM only as long as its budget allows. Method: rows are read here and there, from one descriptor
//! and through a map, over a filesystem that counts the bytes read of it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::fixture::{Choice, Fixture, content, wait_until};
use crate::mounted::{Mounted, Slowpfs};

const MIB: u64 = 1 << 20;

/// Bytes of the file, and of a row. Rows do not begin or end at page boundaries.
const BYTES: u64 = 48 * MIB;
const ROW: usize = 8_000;

const ROWS: u64 = 1500;

/// The most bytes that may be read besides: whole blocks until the reads are known to jump, and what the
/// kernel reads around a row.
const BESIDES: u64 = 6 * MIB;

struct Setup {
    whole: Vec<u8>,
    slow: Slowpfs,
    mounted: Mounted,
    fixture: Fixture,
}

impl Setup {
    fn new() -> Self {
        let fixture = Fixture::new();
        let whole = content(3, BYTES as usize);
        fixture.write("data/rows.bin", &whole);
        let slow = Slowpfs::new(&fixture, &[]);
        let mounted =
            Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &["--ram", "16MiB"]);
        Setup { whole, slow, mounted, fixture }
    }

    /// Reads rows, and returns the bytes that the source read for them.
    fn read_rows(&self, seed: u64) -> u64 {
        let before = self.slow.count("bytes");
        let file = File::open(self.mounted.path("data/rows.bin")).unwrap();
        let (mut choice, mut row) = (Choice(seed), vec![0; ROW]);
        for _ in 0..ROWS {
            let at = choice.below(BYTES - ROW as u64) as usize;
            file.read_exact_at(&mut row, at as u64).unwrap();
            assert!(row == self.whole[at..][..ROW], "row at {at}");
        }
        self.slow.count("bytes") - before
    }
}

#[test]
fn rows_of_a_large_file_cost_their_own_pages() {
    let setup = Setup::new();
    let pages = ROWS * (ROW as u64 + 2 * 4096);
    for epoch in 0..2 {
        let cost = setup.read_rows(epoch);
        assert!(cost <= pages + BESIDES, "epoch {epoch}: {cost} bytes for {pages}");
    }
    assert!(setup.mounted.count("/parts") > ROWS / 2);
    wait_until("RAM has no more than it may", || {
        let held = ["/ram/kept", "/staged", "/parts_bytes"].map(|key| setup.mounted.count(key));
        held.iter().sum::<u64>() <= 16 * MIB
    });
    assert!(fs::read(setup.mounted.path("data/rows.bin")).unwrap() == setup.whole);
    setup.mounted.umount();
}

#[test]
fn a_file_that_is_replaced_is_read_anew() {
    let setup = Setup::new();
    setup.read_rows(1);
    let other = content(4, BYTES as usize);
    setup.fixture.write("other.bin", &other);
    fs::rename(setup.fixture.source("other.bin"), setup.fixture.source("data/rows.bin")).unwrap();
    wait_until("a new open reads the new bytes", || {
        let mut row = vec![0; ROW];
        let file = File::open(setup.mounted.path("data/rows.bin")).unwrap();
        let at = (7 * MIB + 11) as usize;
        // A reader that opens the file before the change shows may be refused the rest of the old file.
        let read = file.read_exact_at(&mut row, at as u64).is_ok();
        assert!(!read || [&setup.whole, &other].iter().any(|of| of[at..][..ROW] == row));
        read && other[at..][..ROW] == row
    });
    setup.mounted.umount();
}

/// A map reads by page faults, and its pages are in use as long as the map lasts.
#[test]
fn rows_of_a_map_are_right_and_leave_ram_again() {
    let setup = Setup::new();
    let path = setup.mounted.path("data/rows.bin");
    let script = format!(
        "import mmap, random, sys\n\
         whole = open({:?}, 'rb').read()\n\
         file = open({:?}, 'rb')\n\
         rows = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n\
         random.seed(1)\n\
         for _ in range(3000):\n    \
             at = random.randrange(len(whole) - {ROW})\n    \
             assert rows[at:at + {ROW}] == whole[at:at + {ROW}], at\n",
        setup.fixture.source("data/rows.bin"),
        path,
    );
    let output = Command::new("/usr/bin/python3").arg("-c").arg(script).output().unwrap();
    assert!(output.status.success(), "{}", crate::fixture::said(&output));
    assert!(setup.mounted.count("/parts") > 0);
    wait_until("RAM has no more than it may", || setup.mounted.count("/parts_bytes") <= 16 * MIB);
    setup.mounted.umount();
}

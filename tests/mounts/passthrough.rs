//! Large files that the kernel reads by itself from the cache directory.
//!
//! Goal: the reader gets the same bytes as in other modes, without a request. While it reads so, no change of
//! the cache or of the source changes a byte for it. If the kernel cannot do it, the daemon reads instead.
//! Method: real mounts whose opens are requests. Bytes are compared; requests and the source's reads are
//! counted.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::errno::Errno;

use crate::faults::files_of_stores;
use crate::fixture::{Fixture, check_many, content, wait_until};
use crate::kernel::Kernel;
use crate::mounted::{Mounted, Slowpfs};

const SHARDS: u64 = 3;
const SHARD: usize = (5 << 20) + 1234;

struct Setup {
    mounted: Mounted,
    slow: Slowpfs,
    fixture: Fixture,
    /// Whether the kernel can read files by itself.
    passes: bool,
}

impl Setup {
    /// A mount whose cache directory has all shards, with a daemon that sees this kernel.
    fn new(kernel: Kernel) -> Self {
        let setup = Setup::empty(kernel);
        setup.fixture.run(0, &["warmup", setup.mounted.point.to_str().unwrap()]);
        setup
    }

    /// As [`new`](Self::new), with an empty cache directory.
    fn empty(kernel: Kernel) -> Self {
        let fixture = Fixture::new();
        fixture.write_many("s", SHARDS, SHARD);
        fixture.write_many("d", 20, 3000);
        let slow = Slowpfs::new(&fixture, &[]);
        let cache = fixture.path("cache");
        let options = [
            "--ram",
            "2MiB",
            "--disk",
            "64MiB",
            "--cache-dir",
            cache.to_str().unwrap(),
            "--set",
            "mount.mode=passthrough",
            "--set",
            "cache.large-file=4MiB",
            "--set",
            "order.learn=off",
            "--set",
            "cache.slow-after=1h",
            "--set",
            "source.revalidate=200ms",
        ];
        let (passes, point) = (kernel.passes_through(&fixture), fixture.path("mount"));
        let mut command = fixture.belady();
        command.arg("mount").args([&slow.point, &point]).args(options);
        let mounted = Mounted::by(&fixture, kernel.for_command(&mut command), &point);
        let mode = if passes { "passthrough" } else { "keep-cache" };
        assert_eq!(mounted.status()["mode"], mode, "known before anything is opened");
        Setup { mounted, slow, fixture, passes }
    }

    fn asked(&self, kind: &str) -> u64 {
        self.mounted.count(&format!("/requests/{kind}"))
    }

    fn check(&self) {
        check_many(&self.mounted.path(""), "s", SHARDS, SHARD);
        check_many(&self.mounted.path(""), "d", 20, 3000);
    }

    /// Opens a shard until the kernel reads it by itself, if it can.
    #[track_caller]
    fn passed(&self, shard: u64) -> File {
        if !self.passes {
            let file = File::open(self.mounted.path(format!("s/{shard:04}"))).unwrap();
            assert_eq!(self.asked("passed"), 0);
            return file;
        }
        let mut file = None;
        wait_until("a file that is passed through", || {
            // The file before is closed first, and the daemon knows it.
            drop(file.take());
            let before = self.asked("passed");
            file = Some(File::open(self.mounted.path(format!("s/{shard:04}"))).unwrap());
            self.asked("passed") > before
        });
        file.unwrap()
    }
}

fn is_whole(file: &File, seed: u64) -> bool {
    let mut bytes = vec![0; SHARD + 4096];
    let mut length = 0;
    loop {
        match file.read_at(&mut bytes[length..], length as u64).unwrap() {
            0 => break,
            more => length += more,
        }
    }
    bytes[..length] == content(seed, SHARD)
}

#[test]
fn what_is_all_there_is_read_without_a_request() {
    Kernel::BOTH.map(Setup::new).into_iter().for_each(read_all);
}

fn read_all(setup: Setup) {
    setup.check();
    (0..SHARDS).for_each(|shard| drop(setup.passed(shard)));
    wait_until("nothing is on its way", || setup.mounted.count("/fetching") == 0);
    let (read, source) = (setup.asked("read"), setup.slow.count("bytes"));
    let tier = setup.mounted.count("/tier_bytes");
    check_many(&setup.mounted.path(""), "s", SHARDS, SHARD);
    let file = setup.passed(0);
    // SAFETY: nothing else has the file open.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    assert!(map[..] == content(0, SHARD));
    assert_eq!(setup.slow.count("bytes"), source);
    if setup.passes {
        assert_eq!(setup.asked("read"), read);
    } else {
        assert!(setup.asked("read") > read);
        wait_until("what is read counted", || setup.mounted.count("/tier_bytes") > tier);
    }
    drop((map, file));
    setup.check();
    assert_eq!(setup.mounted.count("/read_errors"), 0);
    setup.mounted.umount();
}

#[test]
fn what_is_still_filling_is_read_by_blocks_and_passed_through_after_its_last_close() {
    let setup = Setup::empty(Kernel::Own);
    let held = File::open(setup.mounted.path("s/0001")).unwrap();
    let mut part = vec![0; 1 << 20];
    held.read_exact_at(&mut part, 2 << 20).unwrap();
    assert!(part == content(1, SHARD)[2 << 20..3 << 20]);
    setup.fixture.run(0, &["warmup", setup.mounted.point.to_str().unwrap()]);
    // A reader that has the file open goes on as it began, and a reader that joins it does the same.
    let (passed, asked) = (setup.asked("passed"), setup.asked("open"));
    let other = File::open(setup.mounted.path("s/0001")).unwrap();
    assert_eq!((setup.asked("passed"), setup.asked("open")), (passed, asked + 1));
    assert!(is_whole(&held, 1) && is_whole(&other, 1));
    drop((held, other));
    let file = setup.passed(1);
    assert!(is_whole(&file, 1));
    drop(file);
    setup.mounted.umount();
}

#[test]
fn what_is_given_up_stays_for_those_who_read_it() {
    Kernel::BOTH.map(Setup::new).into_iter().for_each(give_up);
}

fn give_up(setup: Setup) {
    let held = setup.passed(1);
    let point = setup.mounted.point.to_str().unwrap();
    setup.fixture.run(0, &["warmup", point, "--evict", "--glob", "s/*"]);
    wait_until("the store has none of them", || {
        files_of_stores(&setup.fixture.path("cache"), "file-").is_empty()
    });
    assert!(is_whole(&held, 1));
    // Another open of the same file, and opens of other files.
    let another = File::open(setup.mounted.path("s/0001")).unwrap();
    assert!(is_whole(&another, 1));
    setup.check();
    setup.fixture.run(0, &["warmup", point]);
    assert!(is_whole(&held, 1) && is_whole(&another, 1));
    drop((held, another));
    setup.check();
    let again = setup.passed(1);
    assert!(is_whole(&again, 1));
    drop(again);
    setup.mounted.umount();
}

#[test]
fn a_file_that_changes_at_the_source_is_another_one() {
    Kernel::BOTH.map(Setup::new).into_iter().for_each(change);
}

fn change(setup: Setup) {
    let held = setup.passed(2);
    setup.fixture.write("s/0002", &content(102, SHARD));
    let path = setup.mounted.path("s/0002");
    wait_until("the new version", || fs::read(&path).unwrap() == content(102, SHARD));
    if setup.passes {
        assert!(is_whole(&held, 2), "who has the old one reads the old one");
    } else if let Err(error) = held.read_at(&mut [0], 0) {
        assert_eq!(error.raw_os_error(), Some(Errno::ESTALE as i32), "what is not kept");
    }
    let new = File::open(&path).unwrap();
    assert!(is_whole(&new, 102));
    assert_ne!(held.metadata().unwrap().ino(), new.metadata().unwrap().ino());
    drop((held, new));
    setup.mounted.umount();
}

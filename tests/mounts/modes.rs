//! The modes in which samples reach readers.
//!
//! Goal: each mode serves the same bytes, says which mode it is, and sends the requests that it promises.
//! Method: the same files are read twice over a mount in each mode, and requests are counted by kind.

use std::fs;
use std::path::Path;
use std::thread;

use memmap2::Mmap;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc;
use serde_json::Value;

use crate::fixture::{Fixture, check_many, content, wait_until};
use crate::mounted::Mounted;
use crate::programs::Program;

const FILES: u64 = 200;

fn asked(status: &Value, kind: &str) -> u64 {
    status["requests"][kind].as_u64().unwrap()
}

#[test]
fn each_mode_serves_the_bytes_and_says_which_it_is() {
    for (mode, opens) in [("push", false), ("keep-cache", true), ("plain", true)] {
        let fixture = Fixture::new();
        fixture.write_many("d", FILES, 5000);
        let set = format!("mount.mode={mode}");
        let options = ["--ram", "64MiB", "--order", "sequential", "--set", &set];
        let mounted = Mounted::new(&fixture, &options);
        check_many(&mounted.path(""), "d", FILES, 5000);
        check_many(&mounted.path(""), "d", FILES, 5000);
        let status = mounted.status();
        assert_eq!(status["mode"], mode);
        assert_eq!(asked(&status, "open") >= 2 * FILES, opens, "{status}");
        assert_eq!(asked(&status, "release") > 0, opens, "{status}");
        mounted.umount();
    }
}

/// Requests that the kernel is told once not to send any more.
const ASKED_ONCE: [&str; 3] = ["open", "opendir", "flush"];

#[test]
fn the_first_reader_is_spared_what_need_not_be_asked() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 5000);
    let options = ["--ram", "64MiB", "--order", "sequential", "--set"];
    let push = Mounted::new(&fixture, &[&options[..], &["mount.mode=push"]].concat());
    let read_all = |mounted: &Mounted| {
        assert_eq!(fs::read_dir(mounted.path("d")).unwrap().count(), 20);
        check_many(&mounted.path(""), "d", 20, 5000);
    };
    read_all(&push);
    let status = push.status();
    assert_eq!(ASKED_ONCE.map(|kind| asked(&status, kind)), [0; 3], "{status}");
    assert_eq!(asked(&status, "release"), 0, "{status}");
    assert!(asked(&status, "own") >= 3, "by the daemon itself: {status}");
    let words = fixture.run(0, &["status", push.point.to_str().unwrap()]);
    assert!(
        words.contains("  mode     push, ") && words.contains("files opened without a request"),
        "{words}"
    );
    assert!(words.contains("revalidate: a change at the source shows within 60 s"), "{words}");
    push.umount();
    let kept = Mounted::new(&fixture, &[&options[..], &["mount.mode=keep-cache"]].concat());
    read_all(&kept);
    let status = kept.status();
    assert!(asked(&status, "open") >= 20 && asked(&status, "opendir") >= 1, "{status}");
    assert!(asked(&status, "flush") <= 1, "{status}");
    let words = fixture.run(0, &["status", kept.point.to_str().unwrap()]);
    assert!(words.contains("  mode     keep-cache; ") && words.contains(" open, "), "{words}");
    kept.umount();
}

/// Opens and reads the named files.
const PYTHON: &str = r#"
import sys
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        assert len(file.read()) == 5000
"#;

/// Of a trusted file, Python asks only whether it is a terminal.
#[test]
fn what_python_asks_of_a_file_shows_its_open() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 5000);
    let order = ["--order", "sequential", "--set", "mount.mode=push", "--set", "order.learn=off"];
    let mounted = Mounted::new(&fixture, &[&["--ram", "64MiB"], &order[..]].concat());
    let names: Vec<String> = (0..FILES).map(|number| format!("d/{number:04}")).collect();
    let paths: Vec<String> =
        names.iter().map(|name| mounted.path(name).to_str().unwrap().to_owned()).collect();
    let read = |range: std::ops::Range<usize>| {
        let args: Vec<&str> = paths[range].iter().map(String::as_str).collect();
        Program::python(PYTHON, &args).finish();
    };
    read(0..20);
    wait_until("the rest trusted", || mounted.count("/trusted_files") > FILES / 2);
    let before = mounted.status();
    read(20..120);
    wait_until("each open followed", || mounted.count("/orders/0/position") == 120);
    let after = mounted.status();
    assert_eq!(asked(&after, "ioctl") - asked(&before, "ioctl"), 100, "{after}");
    let looked_up = asked(&after, "lookup") - asked(&before, "lookup");
    assert!(looked_up < 50, "{looked_up} names of 100 were looked up: {after}");
    assert_eq!(after["orders"][0]["opens_seen"], 120, "{after}");
    mounted.umount();
}

/// Pages of a file in the page cache.
pub(crate) fn resident(path: &Path) -> usize {
    // SAFETY: nothing changes the file while it is mapped.
    let map = unsafe { Mmap::map(&fs::File::open(path).unwrap()) }.unwrap();
    let mut pages = vec![0; map.len().div_ceil(4096)];
    let address = map.as_ptr().cast_mut().cast();
    // SAFETY: the mapping is alive and there is a byte for each of its pages.
    assert_eq!(unsafe { libc::mincore(address, map.len(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

/// The page cache does not hold pages of the source that it holds of the mount. Of files of several blocks,
/// some may stay: while one block is dropped, the kernel reads pages of it ahead of the next.
#[test]
fn reads_of_the_source_leave_no_second_copy() {
    let fixture = Fixture::new();
    fixture.write_many("d", 50, 30_000);
    let names = || (0..50).map(|number| format!("d/{number:04}"));
    for name in names() {
        let file = fs::File::open(fixture.source(&name)).unwrap();
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
    let at_source = || names().map(|name| resident(&fixture.source(name))).sum::<usize>();
    assert_eq!(at_source(), 0, "the test begins with none");
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB"]);
    // Some on demand, and the rest ahead.
    check_many(&mounted.path(""), "d", 10, 30_000);
    fixture.run(0, &["warmup", mounted.point.to_str().unwrap()]);
    check_many(&mounted.path(""), "d", 50, 30_000);
    assert_eq!(at_source(), 0);
    mounted.umount();
}

#[test]
fn what_is_kept_and_expected_is_opened_and_read_without_a_request() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 5000);
    // A snapshot elsewhere that shares the files must not cause requests.
    fs::create_dir(fixture.path("snapshot")).unwrap();
    for number in 0..FILES {
        let name = format!("{number:04}");
        let (file, link) = (fixture.source("d").join(&name), fixture.path("snapshot").join(&name));
        fs::hard_link(file, link).unwrap();
    }
    let options = ["--ram", "64MiB", "--order", "sequential", "--set", "mount.mode=push"];
    let mounted = Mounted::new(&fixture, &options);
    check_many(&mounted.path(""), "d", FILES, 5000);
    // The first files of an epoch are tracked, and a sixteenth of the others.
    wait_until("the rest trusted", || mounted.count("/trusted_files") > FILES / 2);
    check_many(&mounted.path(""), "d", FILES, 5000);
    let before = mounted.status();
    thread::scope(|scope| {
        // Another task reads, which reads only files that are trusted by now.
        scope.spawn(|| check_many(&mounted.path(""), "d", FILES, 5000));
    });
    let after = mounted.status();
    let requests = asked(&after, "lookup") + asked(&after, "read")
        - asked(&before, "lookup")
        - asked(&before, "read");
    assert!(requests < FILES, "{requests} requests for {FILES} files: {before} {after}");
    mounted.umount();
}

#[test]
fn files_that_come_and_go_show_in_a_listing_that_the_kernel_keeps() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 100);
    let options = ["--set", "source.revalidate=200ms", "--set", "mount.mode=push"];
    let mounted = Mounted::new(&fixture, &options);
    let names = || {
        let entries = fs::read_dir(mounted.path("d")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!((names().len(), names().len()), (20, 20));
    fixture.write("d/new", &content(7, 100));
    wait_until("the new file listed", || names().contains(&"new".to_owned()));
    fs::remove_file(fixture.source("d/0003")).unwrap();
    wait_until("the old file gone", || !names().contains(&"0003".to_owned()));
    assert_eq!(names().len(), 20);
    assert_eq!(fs::read(mounted.path("d/new")).unwrap(), content(7, 100));
    mounted.umount();
}

//! Sources and caches that fail: errors reach only the right readers, and all other bytes are right.
//!
//! Goal: a fault of the source reaches the reader as it is, and no longer than it lasts. A fault of the cache
//! reaches no reader. Method: `slowpfs` fails on command under a live mount. Cache directories are too small,
//! damaged or emptied.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::sys::signal::Signal;

use crate::fixture::{Fixture, check_many, content, fails, wait_until};
use crate::killed::held_up;
use crate::mounted::{Mounted, Slowpfs, mounts_at};
use crate::programs::{Reader, signal};
use crate::refused::Tmpfs;

/// A mount over a slow filesystem with `count` files.
fn over_slow(count: u64, slow: &[&str], options: &[&str]) -> (Fixture, Slowpfs, Mounted) {
    let fixture = Fixture::new();
    fixture.write_many("d", count, 10_000);
    let slow = Slowpfs::new(&fixture, slow);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), options);
    (fixture, slow, mounted)
}

fn errors_reach_the_reader(fault: &str, errno: i32) {
    let (_fixture, slow, mounted) = over_slow(6, &[], &[]);
    slow.ctl(&["fault", fault, "d/0001"]);
    for _ in 0..3 {
        fails(fs::read(mounted.path("d/0001")), errno);
    }
    assert!(fs::read(mounted.path("d/0002")).unwrap() == content(2, 10_000));
    assert!(mounted.count("/read_errors") >= 3);
    slow.ctl(&["fault", "clear"]);
    check_many(&mounted.path(""), "d", 6, 10_000);
    // The source is not asked again for pages that the kernel holds.
    slow.ctl(&["fault", fault, "*"]);
    check_many(&mounted.path(""), "d", 6, 10_000);
    mounted.umount();
}

#[test]
fn eio_reaches_the_reader_while_it_lasts() {
    errors_reach_the_reader("eio", libc::EIO);
}

#[test]
fn estale_reaches_the_reader_while_it_lasts() {
    errors_reach_the_reader("estale", libc::ESTALE);
}

/// Cached names are not served for longer than promised either.
#[test]
fn errors_of_names_reach_the_reader_when_these_are_due() {
    let revalidate = ["--set", "source.revalidate=200ms"];
    for (fault, errno) in [("eio", libc::EIO), ("estale", libc::ESTALE)] {
        let (_fixture, slow, mounted) = over_slow(6, &[], &revalidate);
        check_many(&mounted.path(""), "d", 6, 10_000);
        let reads = mounted.count("/reads");
        slow.ctl(&["fault", fault, "*", "ops=lookup,getattr"]);
        let path = mounted.path("d/0001");
        wait_until("the errors", || {
            let read = fs::read(&path);
            assert!(read.as_ref().map_or(true, |bytes| *bytes == content(1, 10_000)));
            read.is_err_and(|error| error.raw_os_error() == Some(errno))
        });
        // Directories may have been looked at later.
        let is_due = |error: std::io::Error| error.raw_os_error() == Some(errno);
        let first = |mut names: fs::ReadDir| names.next().unwrap();
        wait_until("the error of a directory", || {
            fs::metadata(mounted.path("d")).is_err_and(is_due)
        });
        wait_until("the error of a listing", || {
            fs::read_dir(mounted.path("")).and_then(first).is_err_and(is_due)
        });
        // The mount does not count as a dead one.
        assert!(fs::metadata(mounted.path("")).unwrap().is_dir());
        assert_eq!(mounted.count("/changed_files"), 0);
        for number in 0..6 {
            if let Err(error) = fs::read(mounted.path(format!("d/{number:04}"))) {
                assert_eq!(error.raw_os_error(), Some(errno), "{error}");
            }
        }
        slow.ctl(&["fault", "clear"]);
        check_many(&mounted.path(""), "d", 6, 10_000);
        // The kernel may take single pages back at any time; otherwise all files would be read again.
        assert!(mounted.count("/reads") < reads + 6, "the pages are gone");
        mounted.umount();
    }
    let (_fixture, slow, mounted) = over_slow(6, &[], &["--set", "source.consistency=immutable"]);
    check_many(&mounted.path(""), "d", 6, 10_000);
    slow.ctl(&["fault", "eio", "*", "ops=lookup,getattr,open,read"]);
    check_many(&mounted.path(""), "d", 6, 10_000);
    mounted.umount();
}

#[test]
fn prefetches_that_fail_are_made_good_by_reads() {
    let (fixture, slow, mounted) = over_slow(60, &[], &["--ram", "64MiB"]);
    slow.ctl(&["fault", "eio", "*"]);
    fixture.run(0, &["order", "set", mounted.point.to_str().unwrap(), "sequential"]);
    wait_until("failed prefetches, and none under way", || {
        let status = mounted.status();
        status["failed"].as_u64() >= Some(60) && status["fetching"] == 0
    });
    slow.ctl(&["fault", "clear"]);
    check_many(&mounted.path(""), "d", 60, 10_000);
    mounted.umount();
}

#[test]
fn short_reads_are_errors_or_right() {
    for options in [&[][..], &["--direct-io"]] {
        let (_fixture, slow, mounted) = over_slow(8, options, &[]);
        slow.ctl(&["fault", "short", "*"]);
        for number in 0..8 {
            if let Ok(bytes) = fs::read(mounted.path(format!("d/{number:04}"))) {
                assert!(bytes == content(number, 10_000), "short, and not an error");
            }
        }
        slow.ctl(&["fault", "clear"]);
        for number in 0..8 {
            let path = mounted.path(format!("d/{number:04}"));
            wait_until("right bytes", || {
                let result = fs::read(&path);
                assert!(result.as_ref().map_or(true, |b| *b == content(number, 10_000)));
                result.is_ok()
            });
        }
        mounted.umount();
    }
}

#[test]
fn where_one_file_hangs_others_are_read_and_force_unmounts() {
    let (fixture, slow, mounted) = over_slow(20, &[], &[]);
    slow.ctl(&["fault", "hang", "d/0007", "ops=read"]);
    let path = mounted.path("d/0007");
    let reader = Reader::start(move || fs::read(path));
    wait_until("a read that hangs", || slow.count("read") > 0);
    for number in (0..20).filter(|number| *number != 7) {
        let bytes = fs::read(mounted.path(format!("d/{number:04}"))).unwrap();
        assert!(bytes == content(number, 10_000));
    }
    let point = mounted.point.to_str().unwrap().to_owned();
    assert!(fixture.run(8, &["umount", &point]).contains("in use"));
    assert!(reader.is_reading());
    fixture.run(0, &["umount", "--force", &point]);
    assert_eq!(mounts_at(&mounted.point), 0);
    slow.ctl(&["fault", "clear"]);
    if let Ok(bytes) = reader.result() {
        assert!(bytes == content(7, 10_000));
    }
    mounted.wait_until_gone();
}

#[test]
fn prefetches_that_hang_do_not_hold_readers_up() {
    let fixture = Fixture::new();
    fixture.write_many("a", 100, 10_000);
    fixture.write_many("b", 100, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    slow.ctl(&["fault", "hang", "a/*"]);
    let options = ["--ram", "64MiB", "--order", "sequential"];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    wait_until("prefetches that hang", || slow.count("in_flight") >= 16);
    check_many(&mounted.path(""), "b", 100, 10_000);
    slow.ctl(&["fault", "clear"]);
    check_many(&mounted.path(""), "a", 100, 10_000);
    mounted.umount();
}

/// Starts to create a file. The kernel makes it wait for the lookups in its directory, and makes later
/// lookups wait for it.
pub(crate) fn stand_in_line(path: PathBuf) -> Reader<std::io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    let maker = Reader::start(move || {
        sender.send(nix::unistd::gettid()).unwrap();
        File::create(path).map(drop)
    });
    let stat = format!("/proc/self/task/{}/stat", receiver.recv().unwrap());
    wait_until("a place in the line", || fs::read_to_string(&stat).unwrap().contains(") D "));
    maker
}

#[test]
fn directories_that_hang_do_not_hold_up_what_is_staged_of_others() {
    let fixture = Fixture::new();
    let hanging = ["b", "c", "d", "e", "f"];
    fixture.write_many("a", 1, 10_000);
    for dir in hanging {
        fixture.write_many(dir, 20, 10_000);
        fixture.write(&format!("{dir}/hung"), b"");
    }
    fixture.write_many("z", 60, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let options = ["--ram", "64MiB", "--set", "source.revalidate=200ms"];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    // By then names have to be checked again.
    thread::sleep(Duration::from_millis(400));
    slow.ctl(&["fault", "hang", "*/hung", "ops=lookup,getattr"]);
    let path = |dir: &str, name: &str| mounted.path(dir).join(name);
    let readers =
        hanging.map(|dir| path(dir, "hung")).map(|path| Reader::start(move || fs::metadata(path)));
    wait_until("lookups that hang", || slow.count("in_flight") >= hanging.len() as u64);
    let makers = hanging.map(|dir| stand_in_line(path(dir, "new")));
    fixture.run(0, &["order", "set", mounted.point.to_str().unwrap(), "sequential"]);
    wait_until("all others staged", || {
        let status = mounted.status();
        let bytes = |key: &str| status.pointer(key).unwrap().as_u64().unwrap();
        // Three pages each.
        status["fetching"] == 0 && bytes("/ram/kept") + bytes("/staged") >= 61 * 12_288
    });
    check_many(&mounted.path(""), "z", 60, 10_000);
    // The daemon's numbers may be a moment old.
    wait_until("no read but of what the kernel took back", || {
        let status = mounted.status();
        let [reads, restored, lost] =
            ["reads", "restored", "lost"].map(|key| status[key].as_u64().unwrap());
        reads <= restored + lost
    });
    assert!(mounted.count("/failed") > 0, "nothing hung");
    assert!(readers.iter().all(Reader::is_reading));
    slow.ctl(&["fault", "clear"]);
    assert!(readers.into_iter().all(|reader| reader.result().unwrap().is_file()));
    makers.into_iter().for_each(|maker| fails(maker.result(), libc::EROFS));
    hanging.into_iter().for_each(|dir| check_many(&mounted.path(""), dir, 20, 10_000));
    mounted.umount();
}

/// The kernel locks a directory while a lookup hangs there. The order has the kernel notified of the
/// directory's files, and the notification must not wait for the lock.
#[test]
fn a_lookup_that_hangs_keeps_no_daemon_alive() {
    for end in ["--force", "SIGTERM"] {
        let (fixture, slow, mounted, waiting) = held_up();
        fixture.run(0, &["order", "set", mounted.point.to_str().unwrap(), "sequential"]);
        // A notification that waits is reported after a second.
        thread::sleep(Duration::from_millis(2500));
        assert_eq!(mounted.count("/stuck_notifications"), 0);
        match end {
            "SIGTERM" => signal(mounted.pid, Signal::SIGTERM),
            _ => drop(fixture.run(0, &["umount", end, mounted.point.to_str().unwrap()])),
        }
        mounted.wait_until_gone();
        assert!(waiting.into_iter().all(|waits| waits.result().is_err()));
        assert_eq!(mounts_at(&mounted.point), 0);
        assert!(slow.count("in_flight") >= 1, "the source hangs all the time");
        slow.ctl(&["fault", "clear"]);
    }
}

#[test]
fn a_source_that_dies_is_an_error_and_no_hang() {
    let (_fixture, slow, mounted) = over_slow(20, &[], &[]);
    assert!(fs::read(mounted.path("d/0000")).unwrap() == content(0, 10_000));
    drop(slow);
    assert!(fs::read(mounted.path("d/0001")).is_err());
    assert!(fs::read(mounted.path("d/0000")).unwrap() == content(0, 10_000), "it is in memory");
    mounted.umount();
}

/// Reads everything over and over until the condition holds.
fn read_until(mounted: &Mounted, count: u64, size: usize, what: &str, done: impl Fn() -> bool) {
    wait_until(what, || {
        check_many(&mounted.path(""), "d", count, size);
        done()
    });
}

#[test]
fn a_cache_disk_that_is_full_is_told_of_and_costs_no_byte() {
    let fixture = Fixture::new();
    fixture.write_many("d", 300, 30_000);
    let tiny = Tmpfs::new(&fixture, "tiny", "size=2M,mode=700");
    let cache = tiny.0.to_str().unwrap();
    let options = ["--ram", "1MiB", "--cache-dir", cache, "--disk", "1900KiB"];
    let mounted = Mounted::new(&fixture, &[&options[..], &["--set", "cache.min-free=0"]].concat());
    assert_eq!(mounted.status()["disk_state"], "normal");
    // Another file takes the space.
    let other = File::create(tiny.0.join("other")).unwrap();
    let mut end = 0;
    while other.write_all_at(&[1; 4096], end).is_ok() {
        end += 4096;
    }
    let state = || mounted.status()["disk_state"].as_str().unwrap().to_owned();
    // Either may show first: a failed write, or a budget that is less than configured.
    let is_told = || state().contains("full") || mounted.status()["disk"]["reduced"].is_string();
    read_until(&mounted, 300, 30_000, "a disk that is full", is_told);
    check_many(&mounted.path(""), "d", 300, 30_000);
    assert_eq!(mounted.count("/read_errors"), 0);
    mounted.umount();
}

/// Whether a store has a file of this name. A file that is still being written has another name.
pub(crate) fn is_saved(cache: &Path, name: &str) -> bool {
    files_of_stores(cache, name).iter().any(|path| path.file_name().is_some_and(|n| n == name))
}

/// The files of all stores in a cache directory whose names begin with `prefix`.
pub(crate) fn files_of_stores(cache: &Path, prefix: &str) -> Vec<PathBuf> {
    let inside = |directory: PathBuf| {
        let entries = fs::read_dir(directory).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let stores = inside(cache.join("belady-store-v3")).into_iter().flat_map(inside);
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
    stores.filter(named).collect()
}

/// A mount whose disk holds all 150 files, and the segments on it.
fn with_segments(fixture: &Fixture) -> (Mounted, Vec<PathBuf>) {
    fixture.write_many("d", 150, 30_000);
    let cache = fixture.path("cache");
    let disk = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let mounted = Mounted::new(fixture, &[&["--ram", "1MiB"][..], &disk].concat());
    read_until(&mounted, 150, 30_000, "all on disk", || mounted.count("/placed") >= 150);
    let segments = files_of_stores(&cache, "segment-");
    assert!(!segments.is_empty());
    (mounted, segments)
}

#[test]
fn records_damaged_on_disk_are_fetched_again() {
    let fixture = Fixture::new();
    let (mounted, segments) = with_segments(&fixture);
    for segment in &segments {
        let file = File::options().write(true).open(segment).unwrap();
        let length = file.metadata().unwrap().len();
        // Damages every record, in headers and in bytes.
        for at in (0..length).step_by(17_000) {
            file.write_all_at(&[0x5a; 3], at).unwrap();
        }
    }
    let errors = || mounted.count("/store_errors");
    read_until(&mounted, 150, 30_000, "damage found", || errors() > 0);
    check_many(&mounted.path(""), "d", 150, 30_000);
    assert_eq!(mounted.count("/read_errors"), 0);
    mounted.umount();
}

#[test]
fn segments_cut_or_removed_under_the_mount_cost_no_byte() {
    let fixture = Fixture::new();
    let (mounted, segments) = with_segments(&fixture);
    for segment in &segments {
        File::options().write(true).open(segment).unwrap().set_len(70_000).unwrap();
        fs::remove_file(segment).unwrap();
    }
    let errors = || mounted.count("/store_errors");
    read_until(&mounted, 150, 30_000, "damage found", || errors() > 0);
    // A file that is being written may be in the way.
    wait_until("the directory is removed", || {
        let _ = fs::remove_dir_all(fixture.path("cache"));
        !fixture.path("cache").exists()
    });
    check_many(&mounted.path(""), "d", 150, 30_000);
    mounted.umount();
}

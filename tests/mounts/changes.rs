//! Changes at the source under a live mount: the old bytes or the new ones, never a mix.
//!
//! Goal: after the configured period, new opens give the present content of the source. An open file stays
//! one version or fails. Method: every 8 bytes of a file are its version and a place. Files change in all the
//! ways that files change, while readers read them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::libc;

use crate::fixture::{Fixture, LIMIT, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::refused::Tmpfs;

/// Names are checked after this time.
const PERIOD: &str = "source.revalidate=1s";

/// A file of one version: every 8 bytes are the version and a running number.
pub(crate) fn version(version: u32, length: usize) -> Vec<u8> {
    let words = (0..length as u32 / 8).map(|word| u64::from(version) << 32 | u64::from(word));
    words.flat_map(u64::to_le_bytes).collect()
}

/// The one version of all these bytes of a file, which begin at `offset`.
#[track_caller]
pub(crate) fn version_of(bytes: &[u8], offset: usize) -> u32 {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut found = None;
    for (number, word) in (offset as u64 / 8..).zip(words) {
        assert_eq!(word & 0xffff_ffff, number, "bytes of another place");
        assert_eq!(*found.get_or_insert(word >> 32), word >> 32, "a mix of versions");
    }
    found.unwrap_or_default() as u32
}

/// Reads a file through one descriptor from start to end. Returns the version, or an error.
fn read_version(path: &Path) -> io::Result<u32> {
    let bytes = fs::read(path)?;
    Ok(version_of(&bytes, 0))
}

fn mount(fixture: &Fixture, options: &[&str]) -> Mounted {
    Mounted::new(fixture, &[&["--set", PERIOD][..], options].concat())
}

/// Waits until new opens give this version. Until then they may give earlier ones.
#[track_caller]
pub(crate) fn wait_for_version(path: &Path, wanted: u32) {
    wait_until("the new version", || match read_version(path) {
        Ok(version) => {
            assert!(version <= wanted);
            version == wanted
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
            false
        }
    });
    assert_eq!(read_version(path).unwrap(), wanted, "once new, always new");
}

fn replace(fixture: &Fixture, name: &str, bytes: &[u8]) {
    fixture.write("../replacement", bytes);
    fs::rename(fixture.path("replacement"), fixture.source(name)).unwrap();
}

#[test]
fn a_file_changed_in_place() {
    let fixture = Fixture::new();
    for length in [4096, 3 << 20] {
        fixture.write("file", &version(1, length));
        let mounted = mount(&fixture, &[]);
        let path = mounted.path("file");
        assert_eq!(read_version(&path).unwrap(), 1);
        let file = File::options().write(true).open(fixture.source("file")).unwrap();
        file.write_all_at(&version(2, length), 0).unwrap();
        wait_for_version(&path, 2);
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        mounted.umount();
    }
}

/// Many network clients drop their pages of a past version when a file is opened, and at no other time. If a
/// file stays open at the source from one block to the next, they go on giving the past version.
#[test]
fn a_large_file_changed_in_place_that_is_open_at_the_source() {
    const LENGTH: usize = 4 << 20;
    let fixture = Fixture::new();
    for client in [&[][..], &["--client-cache"]] {
        fixture.write("file", &version(1, LENGTH));
        let slow = Slowpfs::new(&fixture, client);
        let options = ["--set", PERIOD, "--set", "prefetch.enabled=false"];
        let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
        let path = mounted.path("file");
        let mut first = [0; 4096];
        File::open(&path).unwrap().read_exact_at(&mut first, 0).unwrap();
        let mut here = vec![0; LENGTH];
        File::open(slow.point.join("file")).unwrap().read_exact_at(&mut here, 0).unwrap();
        assert_eq!((version_of(&first, 0), version_of(&here, 0)), (1, 1));
        let file = File::options().write(true).open(fixture.source("file")).unwrap();
        file.write_all_at(&version(2, LENGTH), 0).unwrap();
        wait_for_version(&path, 2);
        mounted.umount();
    }
}

#[test]
fn a_file_that_shrinks_and_grows() {
    let fixture = Fixture::new();
    fixture.write("file", &version(1, 300_000));
    let mounted = mount(&fixture, &[]);
    for (number, length) in [(2, 8), (3, 5 << 20), (4, 0), (5, 100_000)] {
        assert!(read_version(&mounted.path("file")).is_ok());
        fixture.write("file", &version(number, length));
        let seen = || fs::metadata(mounted.path("file")).unwrap().len() == length as u64;
        wait_until("the new size", seen);
        wait_until("all of the new bytes", || {
            fs::read(mounted.path("file")).is_ok_and(|bytes| bytes == version(number, length))
        });
    }
    mounted.umount();
}

#[test]
fn an_open_file_stays_one_version_or_fails() {
    const LENGTH: usize = 4 << 20;
    let fixture = Fixture::new();
    for in_place in [true, false] {
        fixture.write("file", &version(1, LENGTH));
        // Nothing is read ahead, so that the later blocks are asked for after the change.
        let mounted = mount(&fixture, &["--set", "prefetch.enabled=false"]);
        let file = File::open(mounted.path("file")).unwrap();
        let mut buffer = vec![0; 4096];
        file.read_exact_at(&mut buffer, 0).unwrap();
        assert_eq!(version_of(&buffer, 0), 1);
        if in_place {
            fixture.write("file", &version(2, LENGTH));
        } else {
            replace(&fixture, "file", &version(2, LENGTH));
        }
        for offset in (0..LENGTH).step_by(500 << 10) {
            match file.read_exact_at(&mut buffer, offset as u64) {
                Ok(()) => assert_eq!(version_of(&buffer, offset), 1, "at {offset}"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
            }
        }
        wait_for_version(&mounted.path("file"), 2);
        drop(file);
        mounted.umount();
    }
}

/// Sets a flag when it is dropped.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Replaces a file over and over while other threads read it.
fn readers_meet_writers(options: &[&str]) {
    const LENGTH: usize = 2_500_000;
    const VERSIONS: u32 = 6;
    let fixture = Fixture::new();
    fixture.write("file", &version(1, LENGTH));
    let mounted = mount(&fixture, options);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also if this thread fails: the readers would go on for ever.
        let _ends = Ends(&over);
        let reader = || {
            let mut newest = 0;
            let start = Instant::now();
            while !over.load(Ordering::Relaxed) || newest == 0 && start.elapsed() < LIMIT {
                if let Ok(version) = read_version(&mounted.path("file")) {
                    assert!(version >= newest, "back to an old version");
                    newest = version;
                }
            }
            newest
        };
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(reader)).collect();
        for number in 2..=VERSIONS {
            replace(&fixture, "file", &version(number, LENGTH));
            wait_until("the new version", || {
                readers.iter().any(|reader| reader.is_finished())
                    || read_version(&mounted.path("file")).is_ok_and(|seen| seen == number)
            });
        }
        over.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0, "it has read something");
        }
    });
    mounted.umount();
}

#[test]
fn readers_meet_writers_with_memory() {
    readers_meet_writers(&[]);
}

#[test]
fn readers_meet_writers_with_next_to_none() {
    readers_meet_writers(&["--ram", "2MiB", "--order", "sequential"]);
}

#[test]
fn readers_meet_writers_with_a_disk() {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().to_str().unwrap();
    readers_meet_writers(&["--ram", "2MiB", "--cache-dir", cache, "--disk", "32MiB"]);
}

#[test]
fn files_added_and_removed() {
    let fixture = Fixture::new();
    fixture.write("dir/old", &version(1, 800));
    fixture.write("other/stays", &version(1, 800));
    let mounted = mount(&fixture, &[]);
    assert!(fs::metadata(mounted.path("dir/new")).is_err());
    assert!(read_version(&mounted.path("dir/old")).is_ok());
    fixture.write("dir/new", &version(2, 1600));
    fixture.write("dir/sub/below", &version(3, 2400));
    fs::remove_file(fixture.source("dir/old")).unwrap();
    wait_until("the new file", || read_version(&mounted.path("dir/new")).is_ok_and(|v| v == 2));
    wait_until("the new directory", || {
        read_version(&mounted.path("dir/sub/below")).is_ok_and(|v| v == 3)
    });
    wait_until("the end of the old file", || fs::metadata(mounted.path("dir/old")).is_err());
    let names = || -> Vec<_> {
        fs::read_dir(mounted.path("dir")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    wait_until("the new listing", || names() == ["new", "sub"]);
    // A removed name may come back as something else.
    fs::create_dir(fixture.source("dir/old")).unwrap();
    fixture.write("dir/old/inside", &version(4, 80));
    wait_until("a directory of that name", || {
        read_version(&mounted.path("dir/old/inside")).is_ok_and(|version| version == 4)
    });
    fs::remove_dir_all(fixture.source("dir")).unwrap();
    wait_until("the end of the directory", || fs::metadata(mounted.path("dir")).is_err());
    assert_eq!(read_version(&mounted.path("other/stays")).unwrap(), 1);
    mounted.umount();
}

#[test]
fn one_name_of_a_hard_link_is_replaced_or_removed() {
    let fixture = Fixture::new();
    fixture.write("first", &version(1, 50_000));
    fixture.write("pair/one", &version(1, 50_000));
    for name in ["second", "third"] {
        fs::hard_link(fixture.source("first"), fixture.source(name)).unwrap();
    }
    fs::hard_link(fixture.source("pair/one"), fixture.source("pair/two")).unwrap();
    let mounted = mount(&fixture, &[]);
    for name in ["first", "second", "third", "pair/one", "pair/two"] {
        assert_eq!(read_version(&mounted.path(name)).unwrap(), 1, "{name}");
    }
    replace(&fixture, "second", &version(2, 50_000));
    fs::remove_file(fixture.source("pair/one")).unwrap();
    wait_for_version(&mounted.path("second"), 2);
    wait_until("the end of a name", || fs::metadata(mounted.path("pair/one")).is_err());
    // The file still has its other names, and each reads as what it is.
    for _ in 0..3 {
        for (name, wanted) in [("first", 1), ("third", 1), ("pair/two", 1), ("second", 2)] {
            wait_until(name, || read_version(&mounted.path(name)).is_ok());
            assert_eq!(read_version(&mounted.path(name)).unwrap(), wanted, "{name}");
        }
    }
    mounted.umount();
}

#[test]
fn a_source_taken_to_be_immutable_is_not_asked_again() {
    let fixture = Fixture::new();
    fixture.write("file", &version(1, 100_000));
    let mounted = Mounted::new(&fixture, &["--set", "source.consistency=immutable"]);
    assert_eq!(read_version(&mounted.path("file")).unwrap(), 1);
    replace(&fixture, "file", &version(2, 100_000));
    assert_eq!(read_version(&mounted.path("file")).unwrap(), 1, "it is in memory");
    mounted.umount();
}

/// A file that was read over a mount and rewritten within the second in which it was written; `None` if that
/// took longer.
fn rewritten_at_once(fixture: &Fixture, slow: &Slowpfs, options: &[&str]) -> Option<Mounted> {
    let file = fixture.source("file");
    let second = || fs::metadata(&file).unwrap().ctime();
    wait_until("the beginning of a second", || {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis() < 100
    });
    fixture.write("file", &version(1, 8192));
    let first = second();
    let mounted = Mounted::at(fixture, &slow.point, &fixture.path("mount"), options);
    // A file that may be rewritten within the second is looked at again, and is another version then.
    wait_for_version(&mounted.path("file"), 1);
    File::options().write(true).open(&file).unwrap().write_all_at(&version(2, 8192), 0).unwrap();
    if second() == first {
        return Some(mounted);
    }
    mounted.umount();
    None
}

#[test]
fn a_file_rewritten_within_a_second_where_times_are_in_seconds() {
    let fixture = Fixture::new();
    let slow = Slowpfs::new(&fixture, &["--coarse-times"]);
    // Waits on this disk never take most of a second.
    let disk = Tmpfs::new(&fixture, "disk", "size=64M,mode=700");
    let mut done = false;
    wait_until("a second that was long enough", || {
        let options = ["--set", PERIOD, "--cache-dir", disk.0.to_str().unwrap()];
        if let Some(mounted) = rewritten_at_once(&fixture, &slow, &options) {
            wait_for_version(&mounted.path("file"), 2);
            mounted.umount();
            // Bytes that were read too soon were not stored.
            let again = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
            assert_eq!(read_version(&again.path("file")).unwrap(), 2);
            again.umount();
            done = true;
        }
        done
    });
}

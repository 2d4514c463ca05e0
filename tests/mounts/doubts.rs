//! Files that seem to have changed at the source: what belady believes, and what readers get.
//!
//! Goal: a wrong size that the source reports for a moment never becomes the file's size. A reader that has
//! read nothing of an old version never gets an error because there is a new one. Method: `slowpfs` reports
//! half of the size on command, or reads too little as a failing filesystem does. Files are changed between
//! the mount and their first read.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use nix::libc;

use crate::changes::{version, version_of};
use crate::fixture::{Fixture, fails, wait_until};
use crate::mounted::{Mounted, Slowpfs};

const LENGTH: usize = 5 << 20;

/// No byte of a file is handed out before its first read.
const ON_DEMAND: [&str; 2] = ["--set", "prefetch.enabled=false"];

/// A name is looked at again only if a read gives cause to.
const MODES: [&str; 2] = ["source.consistency=immutable", "source.revalidate=1h"];

/// A mount over a slow filesystem with one file. The file is known for long after its last change.
fn over_slow(mode: &str, options: &[&str]) -> (Fixture, Slowpfs, Mounted) {
    let fixture = Fixture::new();
    fixture.write("file", &version(1, LENGTH));
    let slow = Slowpfs::new(&fixture, options);
    let age = || fs::metadata(fixture.source("file")).unwrap().modified().unwrap().elapsed();
    wait_until("a file of some age", || age().is_ok_and(|age| age > Duration::from_secs(3)));
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &["--set", mode]);
    (fixture, slow, mounted)
}

#[test]
fn a_wrong_size_is_an_error_as_long_as_it_lasts_and_never_the_file() {
    for mode in MODES {
        let (_fixture, slow, mounted) = over_slow(mode, &[]);
        let path = mounted.path("file");
        slow.ctl(&["fault", "shrunk", "file"]);
        fails(fs::read(&path), libc::EIO);
        assert_eq!(fs::metadata(&path).unwrap().len(), LENGTH as u64);
        assert!(mounted.log().contains("`touch` it at the source"), "{}", mounted.log());
        slow.ctl(&["fault", "clear"]);
        assert!(fs::read(&path).unwrap() == version(1, LENGTH));
        assert_eq!(mounted.count("/changed_files"), 0);
        mounted.umount();
    }
}

/// A client cuts the size that it remembers if a read falls short.
#[test]
fn a_size_that_a_client_has_cut_is_asked_of_the_servers() {
    for mode in MODES {
        let (_fixture, slow, mounted) = over_slow(mode, &["--ttl", "3600"]);
        let path = mounted.path("file");
        slow.ctl(&["fault", "short", "file"]);
        fails(fs::read(&path), libc::EIO);
        slow.ctl(&["fault", "clear"]);
        assert!(fs::read(&path).unwrap() == version(1, LENGTH));
        assert_eq!(fs::metadata(&path).unwrap().len(), LENGTH as u64);
        mounted.umount();
    }
}

/// The name of a change, and the function that makes it.
type Change = (&'static str, fn(&Path));

/// Ways in which a file's attributes change and its content does not.
const CHANGES: [Change; 4] = [
    ("link", |path| fs::hard_link(path, path.with_extension("link")).unwrap()),
    ("mode", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap()),
    ("owner", |path| chown(path, Some(1000), Some(1000)).unwrap()),
    ("time", |path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
    }),
];

#[test]
fn who_opens_a_file_whose_attributes_have_changed_reads_it() {
    for mode in MODES {
        let fixture = Fixture::new();
        for length in [8000, 3 << 20] {
            for (name, _) in CHANGES {
                fixture.write(&format!("{name}{length}"), &version(1, length));
            }
        }
        // Otherwise the changes may have the same time as the making of the files.
        thread::sleep(Duration::from_millis(50));
        let mounted = Mounted::new(&fixture, &[&["--set", mode], &ON_DEMAND[..]].concat());
        for length in [8000, 3 << 20] {
            for (name, change) in CHANGES {
                let name = format!("{name}{length}");
                let open = File::open(mounted.path(&name)).unwrap();
                change(&fixture.source(&name));
                assert!(fs::read(mounted.path(&name)).unwrap() == version(1, length), "{name}");
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut &open, &mut bytes).unwrap();
                assert!(bytes == version(1, length), "{name} by an open file");
            }
        }
        mounted.umount();
    }
}

#[test]
fn a_file_replaced_before_its_first_read_is_read_as_it_is_now() {
    for mode in MODES {
        let fixture = Fixture::new();
        fixture.write("same", &version(1, 80_000));
        fixture.write("shorter", &version(1, 80_000));
        fixture.write("longer", &version(1, 80_000));
        let mounted = Mounted::new(&fixture, &[&["--set", mode], &ON_DEMAND[..]].concat());
        for (name, length) in [("same", 80_000), ("shorter", 8_000), ("longer", 400_000)] {
            assert_eq!(fs::metadata(mounted.path(name)).unwrap().size(), 80_000);
            fixture.write("../replacement", &version(2, length));
            fs::rename(fixture.path("replacement"), fixture.source(name)).unwrap();
            if name != "same" {
                // For an open file the kernel goes by the old size.
                wait_until("the new version", || match fs::read(mounted.path(name)) {
                    Ok(bytes) => bytes == version(2, length),
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
                        false
                    }
                });
            }
            let bytes = fs::read(mounted.path(name)).unwrap();
            assert_eq!((version_of(&bytes, 0), bytes.len()), (2, length), "{name}");
        }
        let is_told = mounted.status()["consistency"].as_str().unwrap().contains("warning");
        assert_eq!(is_told, mode.contains("immutable"));
        mounted.umount();
    }
}

#[test]
fn a_large_file_is_read_on_if_only_its_time_has_changed_and_is_stale_if_its_bytes_have() {
    for mode in MODES {
        let fixture = Fixture::new();
        fixture.write("file", &version(1, LENGTH));
        let mounted = Mounted::new(&fixture, &[&["--set", mode], &ON_DEMAND[..]].concat());
        let path = mounted.path("file");
        let open = File::open(&path).unwrap();
        let mut bytes = [0; 8];
        open.read_exact_at(&mut bytes, 0).unwrap();
        let age = |seconds| {
            let file = File::options().write(true).open(fixture.source("file")).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        age(100);
        let last = LENGTH - 8;
        for file in [&open, &File::open(&path).unwrap()] {
            file.read_exact_at(&mut bytes, last as u64).unwrap();
            assert_eq!(bytes, version(1, LENGTH)[last..]);
        }
        fixture.write("file", &version(2, LENGTH));
        age(200);
        fails(open.read_exact_at(&mut bytes, 5 << 19), libc::ESTALE);
        drop(open);
        wait_until("the new version", || match fs::read(&path) {
            Ok(bytes) => bytes == version(2, LENGTH),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
                false
            }
        });
        mounted.umount();
    }
}

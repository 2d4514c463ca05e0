//! The mount is read-only, and the source stays untouched.
//!
//! Goal: no program changes training data through a mount. Method: every call that writes, from system calls
//! to the default mode of `numpy.memmap`, must fail with `EROFS`.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};
use nix::libc;

use crate::fixture::{Fixture, content, fails};
use crate::mounted::Mounted;
use crate::programs::Program;
use crate::tree::set_xattr;

/// Everything of a file that a write would change.
fn state(path: &Path) -> (Vec<u8>, i64, i64, i64, i64, u32) {
    let at = fs::metadata(path).unwrap();
    let bytes = fs::read(path).unwrap();
    (bytes, at.mtime(), at.mtime_nsec(), at.ctime(), at.ctime_nsec(), at.mode())
}

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write("dir/file", &content(1, 10_000));
    fs::create_dir(fixture.source("empty")).unwrap();
    fixture
}

#[test]
fn files_cannot_be_opened_for_writing() {
    let fixture = fixture();
    let before = state(&fixture.source("dir/file"));
    let mounted = Mounted::new(&fixture, &[]);
    let (file, new) = (mounted.path("dir/file"), mounted.path("dir/new"));
    fails(OpenOptions::new().write(true).open(&file), libc::EROFS);
    fails(OpenOptions::new().read(true).write(true).open(&file), libc::EROFS);
    fails(OpenOptions::new().append(true).open(&file), libc::EROFS);
    fails(OpenOptions::new().write(true).create(true).truncate(true).open(&file), libc::EROFS);
    fails(OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(&file), libc::EROFS);
    fails(OpenOptions::new().read(true).custom_flags(libc::O_CREAT).open(&new), libc::EROFS);
    fails(OpenOptions::new().write(true).create_new(true).open(&new), libc::EROFS);
    fails(File::create(&new), libc::EROFS);
    assert!(OpenOptions::new().read(true).custom_flags(libc::O_CREAT).open(&file).is_ok());
    mounted.umount();
    assert!(state(&fixture.source("dir/file")) == before);
}

#[test]
fn names_and_attributes_cannot_be_changed() {
    let fixture = fixture();
    let before = state(&fixture.source("dir/file"));
    let mounted = Mounted::new(&fixture, &[]);
    let at = |name: &str| mounted.path(name);
    let file = at("dir/file");
    fails(fs::create_dir(at("new")), libc::EROFS);
    fails(fs::remove_file(&file), libc::EROFS);
    fails(fs::remove_dir(at("empty")), libc::EROFS);
    fails(fs::rename(&file, at("dir/renamed")), libc::EROFS);
    fails(fs::hard_link(&file, at("dir/linked")), libc::EROFS);
    fails(symlink("file", at("dir/link")), libc::EROFS);
    fails(fs::set_permissions(&file, fs::Permissions::from_mode(0o600)), libc::EROFS);
    fails(chown(&file, Some(1), Some(1)), libc::EROFS);
    fails(set_xattr(&file, "user.name", b"value"), libc::EROFS);
    let open = File::open(&file).unwrap();
    fails(open.set_modified(std::time::SystemTime::now()), libc::EROFS);
    fails(
        fs::File::open(at("dir")).unwrap().set_permissions(fs::Permissions::from_mode(0o700)),
        libc::EROFS,
    );
    fails(nix::unistd::truncate(&file, 0).map_err(std::io::Error::from), libc::EROFS);
    assert!(open.set_len(0).is_err());
    drop(open);
    mounted.umount();
    assert!(state(&fixture.source("dir/file")) == before);
    assert_eq!(fs::read_dir(fixture.source("dir")).unwrap().count(), 1);
}

#[test]
fn a_shared_map_cannot_be_written_and_a_private_one_is_ones_own() {
    let fixture = fixture();
    let mounted = Mounted::new(&fixture, &[]);
    let file = File::open(mounted.path("dir/file")).unwrap();
    // SAFETY: nothing changes the source, and the map is refused anyway.
    fails(unsafe { MmapMut::map_mut(&file.as_fd()) }, libc::EACCES);
    // SAFETY: nothing changes the source.
    let mut private = unsafe { MmapOptions::new().map_copy(&file).unwrap() };
    private[0] ^= 0xff;
    assert!(private[1..] == content(1, 10_000)[1..]);
    assert!(fs::read(mounted.path("dir/file")).unwrap() == content(1, 10_000));
    drop((private, file));
    mounted.umount();
    assert!(fs::read(fixture.source("dir/file")).unwrap() == content(1, 10_000));
}

#[test]
fn numpy_memmap_fails_in_its_default_mode_and_reads_in_mode_r() {
    const SCRIPT: &str = r#"
import errno, sys
import numpy
path = sys.argv[1]
try:
    numpy.memmap(path, dtype=numpy.uint8)
except OSError as error:
    assert error.errno == errno.EROFS, error
else:
    raise SystemExit("r+ was granted")
for mode in ("r", "c"):
    print(int(numpy.memmap(path, dtype=numpy.uint8, mode=mode).astype(numpy.uint64).sum()))
"#;
    let fixture = fixture();
    let mounted = Mounted::new(&fixture, &[]);
    let file = mounted.path("dir/file");
    let said = Program::python(SCRIPT, &[file.to_str().unwrap()]).finish();
    let sum: u64 = content(1, 10_000).iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(said, format!("{sum}\n{sum}\n"));
    mounted.umount();
    assert!(fs::read(fixture.source("dir/file")).unwrap() == content(1, 10_000));
}

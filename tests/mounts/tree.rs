//! The tree: names, kinds, attributes and links are those of the source.
//!
//! Goal: no program that lists, stats or indexes a dataset sees a difference, now or after the next mount.
//! Method: a source with all kinds of entries, compared entry by entry with the mount.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use nix::libc;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::sys::statvfs::statvfs;
use nix::unistd::mkfifo;

use crate::fixture::{Fixture, content, fails};
use crate::mounted::Mounted;

/// A tree of all kinds of entries.
fn write_files(fixture: &Fixture) {
    fixture.write("dir/deep/deeper/file", &content(1, 100_000));
    fixture.write("dir/linked", &content(2, 5000));
    fs::hard_link(fixture.source("dir/linked"), fixture.source("dir/deep/linked too")).unwrap();
    fs::create_dir(fixture.source("empty dir")).unwrap();
    for name in
        [&b"not \xff\xfe utf-8"[..], b"new\nline", b"tab\t and space ", b"-rf", &[b'n'; 255]]
    {
        fs::write(fixture.source(OsStr::from_bytes(name)), name).unwrap();
    }
    symlink("dir/deep/deeper/file", fixture.source("link")).unwrap();
    symlink("no/such/file", fixture.source("dangling")).unwrap();
    symlink(OsStr::from_bytes(b"\xff/../odd"), fixture.source("dir/odd link")).unwrap();
    mkfifo(&fixture.source("fifo"), Mode::S_IRUSR).unwrap();
    mknod(&fixture.source("null"), SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)).unwrap();
    let rights =
        [("dir/linked", 0o640), ("-rf", 0o4755), ("empty dir", 0o1777), ("dir/deep", 0o750)];
    for (name, mode) in rights {
        fs::set_permissions(fixture.source(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    chown(fixture.source("new\nline"), Some(1234), Some(5678)).unwrap();
    let past = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    let file = fs::File::options().write(true).open(fixture.source("-rf")).unwrap();
    file.set_modified(past).unwrap();
}

/// The attributes of `stat` that must be those of the source.
fn attributes(at: &fs::Metadata) -> [u64; 10] {
    let times = [at.mtime(), at.mtime_nsec(), at.ctime(), at.ctime_nsec()].map(|t| t as u64);
    let [mtime, mtime_ns, ctime, ctime_ns] = times;
    let (mode, owner) = (u64::from(at.mode()), u64::from(at.uid()) << 32 | u64::from(at.gid()));
    let kind = if at.is_dir() { 0 } else { at.rdev() };
    [mode, owner, at.size(), at.nlink(), at.blocks(), mtime, mtime_ns, ctime, ctime_ns, kind]
}

fn names(directory: &Path) -> Vec<OsString> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// Compares a directory with its view through the mount; `inodes` takes all inode numbers.
fn compare(source: &Path, through: &Path, inodes: &mut Vec<u64>) {
    let seen = names(through);
    let mut expected = names(source);
    expected.sort();
    assert_eq!(seen, expected, "all names, sorted, in {}", source.display());
    for entry in fs::read_dir(through).unwrap() {
        let entry = entry.unwrap();
        let (ours, theirs) = (entry.path(), source.join(entry.file_name()));
        let at = fs::symlink_metadata(&ours).unwrap();
        let other = fs::symlink_metadata(&theirs).unwrap();
        assert_eq!(attributes(&at), attributes(&other), "{}", theirs.display());
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), at.ino());
        assert_eq!(entry.file_type().unwrap(), other.file_type());
        inodes.push(at.ino());
        if at.is_dir() {
            compare(&theirs, &ours, inodes);
        } else if at.is_symlink() {
            assert_eq!(fs::read_link(&ours).unwrap(), fs::read_link(&theirs).unwrap());
        } else if at.is_file() {
            assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap());
        }
    }
}

#[test]
fn a_tree_is_as_at_the_source_and_keeps_its_numbers() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mounted = Mounted::new(&fixture, &[]);
        let mut inodes = Vec::new();
        compare(&fixture.path("source"), &mounted.point, &mut inodes);
        let names = inodes.len();
        numbers.push(inodes.clone());
        inodes.sort_unstable();
        inodes.dedup();
        assert_eq!(inodes.len(), names - 1, "all numbers differ but those of the hard links");
        mounted.umount();
    }
    assert_eq!(numbers[0], numbers[1], "the same after another mount");
}

#[test]
fn links_and_special_files() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = Mounted::new(&fixture, &[]);
    let (a, b) = (mounted.path("dir/linked"), mounted.path("dir/deep/linked too"));
    let (a, b) = (fs::metadata(a).unwrap(), fs::metadata(b).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    assert!(fs::read(mounted.path("link")).unwrap() == content(1, 100_000));
    fails(fs::read(mounted.path("dangling")), libc::ENOENT);
    assert!(fs::symlink_metadata(mounted.path("fifo")).unwrap().file_type().is_fifo());
    let null = fs::symlink_metadata(mounted.path("null")).unwrap();
    assert!(null.file_type().is_char_device());
    assert_eq!(null.rdev(), fs::symlink_metadata("/dev/null").unwrap().rdev());
    // The mount gives no access to devices, whoever made them.
    fails(fs::File::open(mounted.path("null")), libc::EACCES);
    fails(fs::read(mounted.path("none")), libc::ENOENT);
    fails(fs::read(mounted.path("-rf/below a file")), libc::ENOTDIR);
    mounted.umount();
}

/// Names and paths that are too long give the errors of a plain directory.
#[test]
fn names_and_paths_that_are_too_long() {
    let fixture = Fixture::new();
    write_files(&fixture);
    let longest = "n".repeat(255);
    fixture.write(&format!("dir/{longest}/{longest}"), b"x");
    let mounted = Mounted::new(&fixture, &["--set", "source.revalidate=1s"]);
    let names = [254, 255, 256, 300, 1023, 1024, 1025, 4000].map(|length| "x".repeat(length));
    let deep = "dir/".to_owned() + &"../dir/".repeat(600);
    let below = ["", "dir/", "dir/deep/", "none/", "-rf/"];
    let mut paths: Vec<String> =
        below.iter().flat_map(|at| names.iter().map(move |name| format!("{at}{name}"))).collect();
    paths.extend([format!("dir/{longest}/{longest}"), deep.clone(), format!("{deep}linked")]);
    for path in &paths {
        let errno = |path: &Path| fs::metadata(path).err().and_then(|error| error.raw_os_error());
        let expected = errno(&fixture.source(path));
        assert_eq!(errno(&mounted.path(path)), expected, "{} bytes: {path}", path.len());
    }
    let name = "x".repeat(256);
    fails(fs::metadata(mounted.path(&name)), libc::ENAMETOOLONG);
    fails(fs::File::open(mounted.path(format!("dir/{name}"))), libc::ENAMETOOLONG);
    fails(fs::metadata(mounted.path(format!(".belady/{name}"))), libc::ENAMETOOLONG);
    mounted.umount();
}

#[test]
fn one_directory_with_a_hundred_thousand_entries() {
    const ENTRIES: usize = 100_000;
    let fixture = Fixture::new();
    fs::create_dir(fixture.source("large")).unwrap();
    for number in 0..ENTRIES {
        fs::File::create(fixture.source(format!("large/{:06}", number * 7 % ENTRIES))).unwrap();
    }
    let mounted = Mounted::new(&fixture, &[]);
    let seen = names(&mounted.path("large"));
    let expected = (0..ENTRIES).map(|number| OsString::from(format!("{number:06}")));
    assert!(seen.iter().cloned().eq(expected), "{} names, all and sorted", seen.len());
    let last = fs::metadata(mounted.path("large/099999")).unwrap();
    assert_eq!(last.size(), 0);
    assert_eq!(mounted.count("/files"), ENTRIES as u64);
    mounted.umount();
}

/// The value of an extended attribute.
fn xattr(path: &Path, name: &str) -> std::io::Result<Vec<u8>> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    let mut value = vec![0_u8; 70_000];
    // SAFETY: both strings end in a NUL and the buffer is valid for its length.
    let length = unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    value.truncate(usize::try_from(length).map_err(|_| std::io::Error::last_os_error())?);
    Ok(value)
}

/// The names of the extended attributes, each ended by a NUL.
fn xattrs(path: &Path) -> Vec<u8> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut list = vec![0_u8; 4096];
    // SAFETY: the string ends in a NUL and the buffer is valid for its length.
    let length = unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(usize::try_from(length).unwrap());
    list
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) -> std::io::Result<()> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    // SAFETY: both strings end in a NUL and the value is valid for its length.
    let done = unsafe {
        libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn extended_attributes() {
    let fixture = Fixture::new();
    fixture.write("dir/file", b"x");
    let names = ["user.short", "user.long", "user.empty"];
    let values = [b"value".to_vec(), content(1, 2000), Vec::new()];
    for path in [fixture.source("dir"), fixture.source("dir/file")] {
        for (name, value) in names.iter().zip(&values) {
            set_xattr(&path, name, value)
                .unwrap_or_else(|error| panic!("{path:?} must take user.*: {error}"));
        }
    }
    let mounted = Mounted::new(&fixture, &[]);
    for path in ["dir", "dir/file"] {
        assert_eq!(xattrs(&mounted.path(path)), xattrs(&fixture.source(path)));
        for (name, value) in names.iter().zip(&values) {
            assert!(xattr(&mounted.path(path), name).unwrap() == *value, "{name} of {path}");
        }
        fails(xattr(&mounted.path(path), "user.none"), libc::ENODATA);
    }
    mounted.umount();
}

#[test]
fn the_filesystem_is_as_large_as_the_sources() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let mounted = Mounted::new(&fixture, &[]);
    let (ours, theirs) =
        (statvfs(&mounted.point).unwrap(), statvfs(&fixture.path("source")).unwrap());
    assert_eq!(ours.blocks(), theirs.blocks());
    assert_eq!(ours.fragment_size(), theirs.fragment_size());
    assert_eq!(ours.files(), theirs.files());
    assert_eq!(ours.name_max(), theirs.name_max());
    mounted.umount();
}

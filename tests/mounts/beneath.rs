//! The daemon has more rights than its readers. It reaches only files beneath the source, and only its user
//! reaches it.
//!
//! Goal: neither a link that is put into the tree nor a special file in it leads the daemon elsewhere.
//! Method: the source is changed under a live mount, and opens of its files are watched.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

use crate::fixture::{Fixture, check_many, content, fails, wait_until};
use crate::mounted::Mounted;

#[test]
fn links_that_are_put_into_the_tree_lead_the_daemon_nowhere() {
    let fixture = Fixture::new();
    fixture.write_many("d/deep", 10, 5000);
    fs::create_dir(fixture.path("outside")).unwrap();
    for number in 0..10 {
        // As long as the files that they replace.
        fs::write(fixture.path(&format!("outside/{number:04}")), content(900, 5000)).unwrap();
    }
    let mounted = Mounted::new(&fixture, &["--set", "source.consistency=immutable"]);
    let path = |number: u64| mounted.path(format!("d/deep/{number:04}"));
    assert!(fs::read(path(0)).unwrap() == content(0, 5000));
    // In place of the directory, of the directory above it, and of a file.
    for (place, target) in [("d/deep", "outside"), ("d", "above"), ("d/deep/0003", "outside/0003")]
    {
        let (place, aside) = (fixture.source(place), fixture.path("aside"));
        fs::create_dir_all(fixture.path("above")).unwrap();
        if !fixture.path("above/deep").exists() {
            symlink(fixture.path("outside"), fixture.path("above/deep")).unwrap();
        }
        fs::rename(&place, &aside).unwrap();
        symlink(fixture.path(target), &place).unwrap();
        fails(fs::read(path(3)), libc::ELOOP);
        fs::remove_file(&place).unwrap();
        fs::rename(&aside, &place).unwrap();
    }
    // The file was away, and may be another one by now.
    wait_until("the file again", || fs::read(path(3)).is_ok_and(|b| b == content(3, 5000)));
    check_many(&mounted.path(""), "d/deep", 10, 5000);
    mounted.umount();
}

/// The names in a directory that were opened since.
struct Opens(File);

impl Opens {
    fn of(directory: &Path) -> Self {
        let path = CString::new(directory.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends in a NUL; the descriptor is ours alone.
        unsafe {
            let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            assert!(fd >= 0 && libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_OPEN) >= 0);
            Opens(File::from_raw_fd(fd))
        }
    }

    /// Takes the names out of the kernel's records: 16 bytes, of which the last 4 are the length of the name.
    fn names(&mut self) -> Vec<String> {
        let (mut names, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(length) = self.0.read(&mut buffer) {
            let mut records = &buffer[..length];
            while let Some((head, rest)) = records.split_first_chunk::<16>() {
                let size = u32::from_ne_bytes(*head.last_chunk().unwrap()) as usize;
                let name = rest[..size].split(|byte| *byte == 0).next().unwrap();
                names.push(OsStr::from_bytes(name).to_str().unwrap().to_owned());
                records = &rest[size..];
            }
        }
        names
    }
}

#[test]
fn special_files_are_shown_and_never_opened() {
    let fixture = Fixture::new();
    fixture.write("file", b"bytes");
    mkfifo(&fixture.source("fifo"), Mode::S_IRWXU).unwrap();
    mknod(&fixture.source("null"), SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(fixture.source("socket")).unwrap();
    let mut opens = Opens::of(&fixture.path("source"));
    let mounted = Mounted::new(&fixture, &["--set", "source.revalidate=100ms"]);
    let point = mounted.point.to_str().unwrap();
    for _ in 0..3 {
        assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 4);
        for name in ["fifo", "null", "socket"] {
            let path = mounted.path(name);
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            assert!(kind.is_fifo() || kind.is_char_device() || kind.is_socket());
            let path = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: the path ends in a NUL; no buffer is written to with length 0.
            unsafe { libc::llistxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
        }
        // The kernel opens a FIFO of its own. Devices cannot be opened on this mount.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        drop(options.open(mounted.path("fifo")).unwrap());
        fails(options.open(mounted.path("null")), libc::EACCES);
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"bytes");
        fixture.run(0, &["order", "set", point, "sequential"]);
        fixture.run(0, &["warmup", point]);
        fixture.run(0, &["warmup", point, "--evict"]);
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    mounted.umount();
    let names = opens.names();
    assert!(names.contains(&"file".to_owned()), "{names:?}");
    assert!(names.iter().all(|name| name == "file" || name.is_empty()), "{names:?}");
}

#[test]
fn the_control_socket_is_its_users_alone() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let mounted = Mounted::new(&fixture, &[]);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let directory = fixture.path("run/belady");
    assert_eq!(mode(&directory), 0o700);
    let entries = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let (own, locks): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    assert_eq!((mode(&own[0]), mode(&own[0].join("socket"))), (0o700, 0o600));
    assert_eq!((own.len(), locks.iter().map(|lock| mode(lock)).collect()), (1, vec![0o600]));
    mounted.umount();
    // A directory of another user is not used.
    std::os::unix::fs::chown(&directory, Some(65534), None).unwrap();
    let (source, point) = (fixture.path("source"), fixture.path("mount"));
    let said = fixture.run(6, &["mount", source.to_str().unwrap(), point.to_str().unwrap()]);
    assert!(
        said.contains("not a directory of yours") && said.contains("XDG_RUNTIME_DIR"),
        "{said}"
    );
}

#[test]
fn control_files_are_where_the_settings_say() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 100);
    fs::create_dir(fixture.path("control")).unwrap();
    let control = format!("mount.control={}", fixture.path("control").display());
    let mounted = Mounted::new(&fixture, &["--set", &control]);
    let status = fs::read_to_string(fixture.path("control/status.json")).unwrap();
    assert!(status.contains("\"files\": 5"), "{status}");
    fs::write(fixture.path("control/order"), "sequential\n").unwrap();
    wait_until("the order", || mounted.status()["orders"][0]["spec"] == "sequential");
    assert_eq!(fs::read_dir(mounted.path(".belady")).unwrap().count(), 0);
    mounted.umount();
    assert_eq!(fs::read_dir(fixture.path("control")).unwrap().count(), 0);
    let mounted = Mounted::new(&fixture, &["--set", "mount.control=off"]);
    assert_eq!(fs::read_dir(mounted.path(".belady")).unwrap().count(), 0);
    mounted.umount();
    let none = format!("mount.control={}", fixture.path("none").display());
    let (source, point) = (fixture.path("source"), fixture.path("mount"));
    let words = ["mount", source.to_str().unwrap(), point.to_str().unwrap(), "--set", &none];
    let said = fixture.run(6, &words);
    assert!(said.contains("none"), "{said}");
    assert_eq!(crate::mounted::mounts_at(&point), 0);
}

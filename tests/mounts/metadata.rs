//! Metadata of the source that changes under a running job.
//!
//! Goal: no reader gets an error because a file has a new link, time, owner or attribute, whatever of it was
//! read before. A file that is rewritten with the same size and time of modification never shows an old byte.
//! Method: the changes that administrators make, to files that two readers read over and over. Each open
//! passes the page cache by, in each mode and consistency.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, chown};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rustix::fs::{XattrFlags, setxattr};

use crate::changes::{Ends, version, version_of, wait_for_version};
use crate::fixture::{Fixture, LIMIT, check_many, content, said, wait_until};
use crate::mounted::Mounted;

const MODES: [&str; 4] = ["push", "keep-cache", "passthrough", "plain"];

const FILES: u64 = 20;
const SIZE: usize = 60_000;

/// Runs a shell command in the source.
fn shell(fixture: &Fixture, line: &str) {
    let output =
        Command::new("sh").args(["-ec", line]).current_dir(fixture.path("source")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{line}: {}", said(&output));
}

fn each_file(fixture: &Fixture, change: impl Fn(&Path)) {
    (0..FILES).for_each(|number| change(&fixture.source(format!("d/{number:04}"))));
}

/// The name of a change, and the function that makes it to all files.
type Change = (&'static str, fn(&Fixture));

/// Changes that leave the bytes as they are.
const CHANGES: [Change; 7] = [
    ("ln", |fixture| shell(fixture, "mkdir links; ln d/* links/")),
    ("cp -al", |fixture| shell(fixture, "cp -al d copy")),
    // What rsync does to files that are already in the earlier backup.
    ("rsync --link-dest", |fixture| {
        fs::create_dir(fixture.path("backup")).unwrap();
        each_file(fixture, |file| {
            fs::hard_link(file, fixture.path("backup").join(file.file_name().unwrap())).unwrap();
        });
    }),
    ("touch", |fixture| shell(fixture, "touch d/*")),
    ("chmod", |fixture| shell(fixture, "chmod 644 d/*")),
    ("chown", |fixture| each_file(fixture, |file| chown(file, Some(0), Some(0)).unwrap())),
    ("setfattr", |fixture| {
        each_file(fixture, |file| setxattr(file, "user.kept", b"1", XattrFlags::empty()).unwrap());
    }),
];

/// Reads all files until the test is over, each from the daemon, and counts the rounds.
fn read_on(mounted: &Mounted, over: &AtomicBool, rounds: &AtomicU64) {
    let start = Instant::now();
    while !over.load(Ordering::Relaxed) && start.elapsed() < LIMIT {
        for number in 0..FILES {
            let path = mounted.path(format!("d/{number:04}"));
            let read = |mut file: File| {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut file, &mut bytes)?;
                posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
                Ok(bytes)
            };
            let bytes = File::open(&path).and_then(read);
            let bytes = bytes.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(bytes == content(number, SIZE), "{} has other bytes", path.display());
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes each change while readers read a mount with these settings.
fn change_under_readers(mode: &str, consistency: &str) {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, SIZE);
    // Otherwise the first change may have the same time as the making of the files.
    thread::sleep(Duration::from_millis(50));
    let mode = format!("mount.mode={mode}");
    let options = ["--ram", "1MiB", "--set", consistency, "--set", &mode];
    let mounted = Mounted::new(&fixture, &options);
    let (over, rounds) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    thread::scope(|scope| {
        let _ends = Ends(&over);
        let readers = rounds.each_ref().map(|rounds| {
            let (mounted, over) = (&mounted, &over);
            scope.spawn(move || read_on(mounted, over, rounds))
        });
        let read = || rounds.each_ref().map(|rounds| rounds.load(Ordering::Relaxed));
        let read_all = |name: &str| {
            let before = read();
            wait_until(name, || {
                let now = read();
                readers.iter().any(|reader| reader.is_finished())
                    || (0..2).all(|reader| now[reader] >= before[reader] + 2)
            });
            let failed = readers.iter().any(|reader| reader.is_finished());
            assert!(!failed, "a reader has failed: {name}, {consistency}, {mode}");
        };
        read_all("the first rounds");
        for (name, change) in CHANGES {
            change(&fixture);
            read_all(name);
        }
    });
    assert_eq!(mounted.count("/read_errors"), 0);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    mounted.umount();
}

#[test]
fn no_reader_sees_that_metadata_changes() {
    thread::scope(|scope| {
        for mode in MODES {
            // With the first two, a name is looked at again only if a read gives cause to; with the third,
            // soon.
            for consistency in
                ["source.consistency=immutable", "source.revalidate=1h", "source.revalidate=200ms"]
            {
                scope.spawn(move || change_under_readers(mode, consistency));
            }
        }
    });
}

/// The name of a rewrite, and the function that writes the first file's content to the second.
type Rewrite = (&'static str, fn(&Path, &Path));

/// The new content has the size and the time of modification of the old one.
const REWRITES: [Rewrite; 3] = [
    ("cp", |new, file| {
        let mut copy = Command::new("cp");
        assert!(copy.arg("-p").args([new, file]).status().unwrap().success());
    }),
    // What rsync does with -t and --inplace.
    ("rsync", |new, file| {
        let time = fs::metadata(new).unwrap().modified().unwrap();
        let file = File::options().write(true).open(file).unwrap();
        file.write_all_at(&fs::read(new).unwrap(), 0).unwrap();
        file.set_modified(time).unwrap();
    }),
    ("touch", |new, file| {
        fs::write(file, fs::read(new).unwrap()).unwrap();
        let mut touch = Command::new("touch");
        assert!(touch.arg("-r").args([new, file]).status().unwrap().success());
    }),
];

/// Rewrites files that were read, and files that were not, under a mount in this mode.
fn rewrite_under_mount(mode: &str) {
    const LENGTHS: [usize; 2] = [8000, 3 << 20];
    let fixture = Fixture::new();
    let names = |kind: &'static str| {
        REWRITES.iter().flat_map(move |(how, rewrite)| {
            LENGTHS.map(|length| (format!("{kind}/{how}{length}"), length, rewrite))
        })
    };
    for (name, length, _) in names("read").chain(names("unread")) {
        fixture.write(&name, &version(1, length));
        let new = fixture.path("new").join(&name);
        fs::create_dir_all(new.parent().unwrap()).unwrap();
        fs::write(&new, version(2, length)).unwrap();
        let time = fs::metadata(fixture.source(&name)).unwrap().modified().unwrap();
        File::options().write(true).open(new).unwrap().set_modified(time).unwrap();
    }
    // Otherwise the change may have the same time as the making of the files.
    thread::sleep(Duration::from_millis(50));
    let mode = format!("mount.mode={mode}");
    let on_demand = ["--set", "source.revalidate=1s", "--set", "prefetch.enabled=false"];
    let mounted = Mounted::new(&fixture, &[&["--set", &mode], &on_demand[..]].concat());
    for (name, length, _) in names("read") {
        assert!(fs::read(mounted.path(&name)).unwrap() == version(1, length), "{name}");
        assert_eq!(
            fs::metadata(mounted.path(name.replace("read", "unread"))).unwrap().len(),
            length as u64
        );
    }
    for (name, length, rewrite) in names("read").chain(names("unread")) {
        let (file, new) = (fixture.source(&name), fixture.path("new").join(&name));
        let before = fs::metadata(&file).unwrap();
        rewrite(&new, &file);
        let after = fs::metadata(&file).unwrap();
        let seen = |found: &fs::Metadata| (found.len(), found.modified().unwrap());
        assert_eq!(seen(&before), seen(&after), "{name} looks the same");
        assert_eq!(after.len(), length as u64);
    }
    for (name, ..) in names("unread") {
        let bytes = fs::read(mounted.path(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(version_of(&bytes, 0), 2, "{name}");
    }
    names("read").for_each(|(name, ..)| wait_for_version(&mounted.path(name), 2));
    mounted.umount();
}

#[test]
fn a_file_that_is_rewritten_with_its_time_never_shows_an_old_byte() {
    thread::scope(|scope| {
        for mode in MODES {
            scope.spawn(move || rewrite_under_mount(mode));
        }
    });
}

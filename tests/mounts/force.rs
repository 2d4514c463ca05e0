//! Unmounting a mount in use: it is refused without force and done with force, and no other mount is harmed.
//!
//! Goal: a job that holds files open cannot keep a mount from being taken away. A daemon that is ending
//! touches nothing that came after it. Method: open files and working directories inside the mount, and a new
//! mount at the same place while the old daemon lives on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use nix::sys::stat::{fstat, minor};

use crate::fixture::{Fixture, check_many, content, said, wait_until};
use crate::mounted::{Mounted, mounts_at};
use crate::programs::{Program, runs, signal, wait_for_end};

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    fixture.write("large", &content(99, 5 << 20));
    fixture
}

#[test]
fn a_busy_mount_stays_until_it_is_idle() {
    let fixture = fixture();
    let mounted = Mounted::new(&fixture, &[]);
    let point = mounted.point.to_str().unwrap().to_owned();
    let open = File::open(mounted.path("d/0000")).unwrap();
    assert!(fixture.run(8, &["umount", &point]).contains("in use"));
    let mut buffer = vec![0; 10_000];
    open.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == content(0, 10_000));
    check_many(&mounted.path(""), "d", 20, 10_000);
    drop(open);
    let mut inside = Command::new("sleep").arg("100").current_dir(&mounted.point).spawn().unwrap();
    let refused = fixture.belady().args(["umount", &point]).output().unwrap();
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert_eq!(refused.status.code(), Some(8));
    mounted.umount();
}

#[test]
fn a_busy_mount_is_taken_away_by_force_and_by_signals() {
    let fixture = fixture();
    for end in ["--force", "SIGTERM"] {
        let mounted = Mounted::new(&fixture, &[]);
        let open = File::open(mounted.path("large")).unwrap();
        let mut buffer = vec![0; 1000];
        open.read_exact_at(&mut buffer, 0).unwrap();
        match end {
            "SIGTERM" => signal(mounted.pid, Signal::SIGTERM),
            _ => drop(fixture.run(0, &["umount", "--force", mounted.point.to_str().unwrap()])),
        }
        // The file is open all the time.
        mounted.wait_until_gone();
        assert_eq!(mounts_at(&mounted.point), 0);
        assert!(open.read_exact_at(&mut buffer, 4 << 20).is_err(), "cut off after {end}");
        assert_eq!(fixture.daemons(), Vec::<i32>::new());
    }
}

/// Opens a file, and reads when told to.
const OPENS: &str = r#"
import os, sys
opened = os.open(sys.argv[1], os.O_RDONLY)
print("open", flush=True)
input()
try:
    os.pread(opened, 1000, 4 << 20)
    print("read", flush=True)
except OSError:
    print("cut off", flush=True)
"#;

#[test]
fn a_stopped_daemon_is_told_of_and_taken_away_by_force() {
    let fixture = fixture();
    let mounted = Mounted::new(&fixture, &[]);
    let (source, point) = (fixture.path("source"), mounted.point.to_str().unwrap().to_owned());
    // Another process has the file open. A process that this one starts would close a copy of the descriptor,
    // and a stopped daemon answers no close.
    let mut reader = Program::python(OPENS, &[mounted.path("large").to_str().unwrap()]);
    assert_eq!(reader.line(), "open");
    signal(mounted.pid, Signal::SIGSTOP);
    let state = || fs::read_to_string(format!("/proc/{}/stat", mounted.pid)).unwrap();
    wait_until("a daemon that stands still", || state().contains(") T "));
    let fix = format!("kill -CONT {}", mounted.pid);
    let commands = [
        vec!["umount", &point],
        vec!["status", &point],
        vec!["mount", source.to_str().unwrap(), &point],
    ];
    for words in commands {
        let output = fixture.belady().args(&words).output().unwrap();
        let said = said(&output);
        assert!(!output.status.success() && said.contains(&fix), "{words:?}: {said}");
        assert_eq!(mounts_at(&mounted.point), 1);
    }
    let told = fixture.run(0, &["umount", "--force", &point]);
    assert!(told.contains(&fix), "{told}");
    assert_eq!(mounts_at(&mounted.point), 0);
    reader.tell("read");
    assert_eq!(reader.line(), "cut off");
    signal(mounted.pid, Signal::SIGCONT);
    mounted.wait_until_gone();
}

#[test]
fn a_mount_at_the_same_place_outlives_the_one_before() {
    let fixture = fixture();
    let first = Mounted::new(&fixture, &[]);
    let open = File::open(first.path("large")).unwrap();
    // The daemon lives as long as its file is open, although its mount was detached.
    assert!(Command::new("umount").arg("-l").arg(&first.point).status().unwrap().success());
    assert_eq!(mounts_at(&first.point), 0);
    let mut buffer = vec![0; 1000];
    open.read_exact_at(&mut buffer, 0).unwrap();
    assert!(runs(first.pid));
    fs::remove_dir_all(fixture.path("run/belady")).unwrap();
    let second = Mounted::new(&fixture, &[]);
    drop(open);
    first.wait_until_gone();
    assert_eq!(mounts_at(&second.point), 1, "the second mount is still there");
    assert_eq!(second.status()["pid"], second.pid);
    check_many(&second.path(""), "d", 20, 10_000);
    second.umount();
}

#[test]
fn a_mount_that_was_detached_ends_with_its_last_file() {
    let fixture = fixture();
    let mounted = Mounted::new(&fixture, &[]);
    let open = File::open(mounted.path("large")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(&mounted.point).status().unwrap().success());
    let mut buffer = vec![0; 1000];
    open.read_exact_at(&mut buffer, 4 << 20).unwrap();
    assert!(buffer == content(99, 5 << 20)[4 << 20..(4 << 20) + 1000]);
    drop(open);
    wait_for_end(mounted.pid);
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}

#[test]
fn a_mount_that_is_cut_off_from_outside_is_taken_away_by_its_daemon() {
    let fixture = fixture();
    let mounted = Mounted::new(&fixture, &[]);
    check_many(&mounted.path(""), "d", 20, 10_000);
    assert_eq!(mounts_at(&mounted.path(".belady")), 1);
    let open = File::open(mounted.path("large")).unwrap();
    let (number, list) = (fstat(&open).unwrap().st_dev, fixture.path("connections"));
    fs::create_dir(&list).unwrap();
    let (none, flags): (Option<&str>, _) = (None, MsFlags::empty());
    mount(none, &list, Some("fusectl"), flags, none).unwrap();
    let cut_off = fs::write(list.join(minor(number).to_string()).join("abort"), "1");
    // Another test may just have forked a process that has the file open until it executes its program.
    umount2(&list, MntFlags::MNT_DETACH).unwrap();
    cut_off.unwrap();
    mounted.wait_until_gone();
    assert_eq!((mounts_at(&mounted.path(".belady")), mounts_at(&mounted.point)), (0, 0));
    assert!(!mounted.log().contains("error="), "{}", mounted.log());
    assert!(open.read_exact_at(&mut [0; 1000], 4 << 20).is_err());
}

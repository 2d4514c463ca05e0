//! A source that hangs: only requests for the hanging names and reads wait.
//!
//! Goal: however many names or reads hang, all other requests are answered. A reader that is killed ends, and
//! programs that look at the mount itself never hang. Method: `slowpfs` leaves requests for some paths
//! unanswered until the test says otherwise. Readers are processes, which can be killed.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;

use crate::fixture::{Fixture, check_many, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::{Reader, Watchdog, signal};

/// Names are asked of the source again after this time.
const PERIOD: [&str; 2] = ["--set", "source.revalidate=200ms"];

/// A process that can be killed, and ends with its test.
struct Process(Child, #[expect(dead_code, reason = "it ends the process")] Watchdog);

impl Process {
    fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let watchdog = Watchdog::over(child.id() as i32);
        Process(child, watchdog)
    }

    fn kill(&self) {
        signal(self.0.id() as i32, Signal::SIGKILL);
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
        }
    }
}

/// Kills readers, none of which has ended, and waits until they have ended.
#[track_caller]
fn kill_all(mut readers: Vec<Process>) {
    assert!(!readers.iter_mut().any(Process::has_ended), "a reader does not hang");
    readers.iter().for_each(Process::kill);
    let ended = || readers.iter_mut().all(Process::has_ended);
    wait_until("the end of readers that were killed", ended);
}

fn stat(path: PathBuf) -> Process {
    Process::start(Command::new("stat").arg(path))
}

fn read(path: PathBuf) -> Process {
    Process::start(Command::new("cat").arg(path))
}

#[test]
fn directories_that_hang_do_not_stop_others_and_killed_readers_end() {
    let fixture = Fixture::new();
    let hanging: Vec<String> = (0..40).map(|nth| format!("hung{nth:02}")).collect();
    hanging.iter().for_each(|dir| fixture.write(&format!("{dir}/file"), b"bytes"));
    fixture.write_many("fine", 20, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &PERIOD);
    check_many(&mounted.path(""), "fine", 20, 10_000);
    // By then names have to be checked again.
    thread::sleep(Duration::from_millis(400));
    slow.ctl(&["fault", "hang", "hung*/file", "ops=lookup,getattr"]);
    // Two readers of each name. The second one waits for the directory.
    let paths = hanging.iter().chain(&hanging).map(|dir| mounted.path(dir).join("file"));
    let readers: Vec<Process> = paths.map(stat).collect();
    wait_until("lookups that hang", || slow.count("in_flight") >= hanging.len() as u64);
    for _ in 0..3 {
        check_many(&mounted.path(""), "fine", 20, 10_000);
        // By then names have to be checked again.
        thread::sleep(Duration::from_millis(400));
    }
    kill_all(readers);
    assert!(slow.count("in_flight") >= hanging.len() as u64, "the source hangs all the time");
    slow.ctl(&["fault", "clear"]);
    wait_until("names that are answered again", || {
        hanging.iter().all(|dir| fs::read(mounted.path(dir).join("file")).is_ok())
    });
    mounted.umount();
}

#[test]
fn a_directory_whose_name_hangs_does_not_stop_those_beside_it() {
    let fixture = Fixture::new();
    fixture.write("hung/file", b"bytes");
    fixture.write_many("fine", 20, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &PERIOD);
    check_many(&mounted.path(""), "fine", 20, 10_000);
    // By then names have to be checked again.
    thread::sleep(Duration::from_millis(400));
    slow.ctl(&["fault", "hang", "hung", "ops=lookup,getattr"]);
    let readers: Vec<Process> = (0..20).map(|_| stat(mounted.path("hung/file"))).collect();
    wait_until("a lookup that hangs", || slow.count("in_flight") >= 1);
    for _ in 0..5 {
        // The directory's own name is asked of the source again.
        check_many(&mounted.path(""), "fine", 20, 10_000);
        thread::sleep(Duration::from_millis(400));
    }
    kill_all(readers);
    assert!(slow.count("in_flight") >= 1, "the source hangs all the time");
    slow.ctl(&["fault", "clear"]);
    wait_until("the name", || fs::read(mounted.path("hung/file")).is_ok());
    mounted.umount();
}

/// A listing locks its directory in the kernel. A notification about a change in the directory waits for the
/// lock, and meanwhile keeps all lookups out.
#[test]
fn a_listing_that_hangs_does_not_stop_lookups_where_something_changes() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &PERIOD);
    check_many(&mounted.path(""), "d", 20, 10_000);
    // By then the directory has to be checked again. It has changed, so it is listed at the source.
    fixture.write("d/further", b"bytes");
    thread::sleep(Duration::from_millis(400));
    slow.ctl(&["fault", "hang", "d", "ops=opendir,readdir"]);
    let listing = Process::start(Command::new("ls").arg(mounted.path("d")));
    wait_until("a listing that hangs", || slow.count("in_flight") >= 1);
    let changed = |number: usize| format!("{number:04} is another file now");
    for number in 0..20 {
        let name = format!("d/{number:04}");
        fixture.write("new", changed(number).as_bytes());
        fs::rename(fixture.source("new"), fixture.source(&name)).unwrap();
        let mut seen =
            [read(mounted.path(&name)), stat(mounted.path(format!("d/{:04}", number + 20)))];
        wait_until("readers beside a listing", || seen.iter_mut().all(Process::has_ended));
    }
    assert!(slow.count("in_flight") >= 1, "the source hangs all the time");
    kill_all(vec![listing]);
    slow.ctl(&["fault", "clear"]);
    for number in 0..20 {
        let path = mounted.path(format!("d/{number:04}"));
        let is_new = || fs::read(&path).is_ok_and(|bytes| bytes == changed(number).as_bytes());
        wait_until("the new files", is_new);
    }
    mounted.umount();
}

#[test]
fn reads_that_hang_do_not_stop_others_and_killed_readers_end() {
    let fixture = Fixture::new();
    fixture.write_many("hung", 100, 10_000);
    fixture.write_many("fine", 20, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &[]);
    slow.ctl(&["fault", "hang", "hung/*", "ops=read"]);
    let paths = (0..100).map(|number| mounted.path(format!("hung/{number:04}")));
    let readers: Vec<Process> = paths.map(read).collect();
    wait_until("reads that hang", || slow.count("in_flight") >= 100);
    check_many(&mounted.path(""), "fine", 20, 10_000);
    kill_all(readers);
    assert!(slow.count("in_flight") >= 100, "the source hangs all the time");
    slow.ctl(&["fault", "clear"]);
    check_many(&mounted.path(""), "hung", 100, 10_000);
    mounted.umount();
}

#[test]
fn a_listing_and_a_read_that_was_joined_are_left_when_the_reader_is_killed() {
    let fixture = Fixture::new();
    fixture.write_many("d", 3, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &PERIOD);
    thread::sleep(Duration::from_millis(400));
    slow.ctl(&["fault", "hang", "d*", "ops=read,opendir,readdir,getattr"]);
    let listing = Process::start(Command::new("ls").arg(mounted.path("d")));
    let mut readers = vec![listing];
    readers.extend([(); 2].map(|()| read(mounted.path("d/0001"))));
    wait_until("requests that hang", || slow.count("in_flight") >= 1);
    thread::sleep(Duration::from_millis(500));
    kill_all(readers);
    slow.ctl(&["fault", "clear"]);
    check_many(&mounted.path(""), "d", 3, 10_000);
    mounted.umount();
}

#[test]
fn the_mount_itself_is_known_while_the_source_hangs() {
    let fixture = Fixture::new();
    fixture.write_many("d", 3, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &PERIOD);
    let blocks = statvfs(&mounted.point).unwrap().blocks();
    thread::sleep(Duration::from_millis(400));
    slow.ctl(&["fault", "hang", "*", "ops=lookup,getattr,other,opendir,readdir"]);
    let point = mounted.point.clone();
    let asked = Reader::start(move || {
        for _ in 0..5 {
            assert!(fs::metadata(&point).unwrap().is_dir());
            assert_eq!(statvfs(&point).unwrap().blocks(), blocks);
        }
    });
    asked.result();
    assert!(slow.count("in_flight") > 0, "nothing hung");
    slow.ctl(&["fault", "clear"]);
    check_many(&mounted.path(""), "d", 3, 10_000);
    mounted.umount();
}

//! Daemons that end by signals: each signal is heard, and a killed daemon makes nothing wait.
//!
//! Goal: whatever thread takes a signal, the mount is taken down. After `kill -9` readers get an error,
//! commands answer, and every mount point can be used again. Method: signals to single threads of real
//! daemons, and kills of daemons that wait in the kernel for a notification.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::Signal;

use crate::faults::stand_in_line;
use crate::fixture::{Fixture, check_many, content, said, wait_until};
use crate::mounted::{Mounted, Slowpfs, mounts_at};
use crate::programs::{Reader, runs, signal, wait_for_end};

/// The longest that a command that cannot hang takes on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(60);

/// Whether a thread waits. A signal to one that is about to end may end with it.
fn waits(pid: i32, thread: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
    status.unwrap_or_default().lines().any(|line| line.starts_with("State:\tS"))
}

/// The watcher of a daemon. It is a child of one of the daemon's threads.
fn watcher(daemon: i32) -> i32 {
    let mut found = None;
    wait_until("a watcher", || {
        let tasks = threads(daemon).into_iter();
        let children = tasks.filter_map(|(_, task)| {
            fs::read_to_string(format!("/proc/{daemon}/task/{task}/children")).ok()
        });
        let children: Vec<i32> = children
            .flat_map(|line| {
                line.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()
            })
            .collect();
        found = children.into_iter().find(|child| {
            let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            name == "belady-watcher\n"
        });
        found.is_some()
    });
    found.unwrap()
}

/// Whether a process has the device of a FUSE connection open.
fn has_fuse(pid: i32) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    open.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
}

/// The threads of a process, by name.
fn threads(pid: i32) -> Vec<(String, i32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let named = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((name.trim().to_owned(), task.file_name().to_str()?.parse().ok()?))
    });
    named.collect()
}

#[test]
fn every_thread_hears_a_signal_that_ends_the_mount() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let (mut tried, mut rounds) = (Vec::<String>::new(), 0);
    loop {
        let mounted = Mounted::new(&fixture, &options);
        check_many(&mounted.path(""), "d", 20, 10_000);
        // Then the threads that read names have ended.
        let is_over = |state: &str| ["scanned", "checked"].contains(&state);
        wait_until("the catalog is read", || {
            mounted.status()["catalog"].as_str().is_some_and(is_over)
        });
        // Of threads with the same name, another one each time.
        let tried_of = |name: &String| tried.iter().filter(|tried| *tried == name).count();
        let mut seen = HashMap::<String, usize>::new();
        let next = threads(mounted.pid).into_iter().find(|(name, thread)| {
            let nth = seen.entry(name.clone()).or_default();
            *nth += 1;
            *nth > tried_of(name) && waits(mounted.pid, *thread)
        });
        let Some((name, thread)) = next else { break mounted.umount() };
        // SAFETY: the call names a thread of our own child by its number, and passes no pointer.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, mounted.pid, thread, libc::SIGTERM) };
        if sent == 0 {
            mounted.wait_until_gone();
            assert_eq!(mounts_at(&mounted.point), 0, "after a signal to {name}");
            tried.push(name);
        }
        rounds += 1;
        assert!(rounds < 300, "threads come and go: {tried:?}");
    }
    let met = |name: &str| tried.iter().any(|tried| tried.starts_with(name));
    assert!(met("belady-inside") && met("belady-signals") && met("belady"), "{tried:?}");
}

/// A mount whose daemon waits in the kernel, since a reader's lookup hangs at the source. The fixture, the
/// source, the mount, and two tasks that wait.
pub(crate) type HeldUp = (Fixture, Slowpfs, Mounted, [Reader<std::io::Result<()>>; 2]);

pub(crate) fn held_up() -> HeldUp {
    let fixture = Fixture::new();
    fixture.write_many("b", 20, 10_000);
    fixture.write("b/hung", b"");
    let slow = Slowpfs::new(&fixture, &[]);
    let options =
        ["--ram", "64MiB", "--set", "source.revalidate=200ms", "--set", "mount.mode=push"];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    // By then names have to be checked again.
    thread::sleep(Duration::from_millis(400));
    assert!((0..20).all(|file| mounted.path(format!("b/{file:04}")).exists()));
    slow.ctl(&["fault", "hang", "*/hung", "ops=lookup,getattr"]);
    let path = mounted.path("b/hung");
    let reader = Reader::start(move || fs::metadata(path).map(drop));
    wait_until("a lookup that hangs", || slow.count("in_flight") >= 1);
    let maker = stand_in_line(mounted.path("b/new"));
    (fixture, slow, mounted, [reader, maker])
}

#[test]
fn readers_of_a_killed_daemon_are_set_free_without_help() {
    // A daemon that aborts dumps core, and waits for its last thread in another state.
    for kill in [Signal::SIGKILL, Signal::SIGABRT] {
        set_free_after(kill);
    }
}

fn set_free_after(kill: Signal) {
    let (fixture, slow, mounted, waiting) = held_up();
    let first = watcher(mounted.pid);
    assert!(has_fuse(mounted.pid) && !has_fuse(first));
    signal(first, Signal::SIGKILL);
    wait_until("the end of the first watcher", || !Path::new(&format!("/proc/{first}")).exists());
    let watcher = watcher(mounted.pid);
    assert!(watcher != first && !has_fuse(watcher), "the daemon has started another one");
    // Signals that the end of a unit or a session sends.
    for ends in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signal(watcher, ends);
    }
    signal(mounted.pid, kill);
    let start = Instant::now();
    for waits in waiting {
        assert!(waits.result().is_err());
    }
    assert!(start.elapsed() < AT_ONCE, "{kill}: it took {:?}", start.elapsed());
    assert!(slow.count("in_flight") >= 1, "the source hangs all the time");
    assert!(runs(watcher), "a thread of the daemon waits for the source");
    slow.ctl(&["fault", "clear"]);
    wait_until("the end of the watcher, when nothing is left of the daemon", || !runs(watcher));
    assert!(mounted.log().contains("was cut off"), "{}", mounted.log());
    assert_eq!(mounts_at(&mounted.point), 1, "the dead mount stays until it is cleared");
    fixture.run(0, &["umount", mounted.point.to_str().unwrap()]);
    assert_eq!(mounts_at(&mounted.point), 0);
}

/// The new mount gets the device number of the old one, which is gone.
#[test]
fn the_watcher_of_a_killed_daemon_leaves_the_next_mount_alone() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    let mount = || Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &[]);
    let first = mount();
    let (pid, watcher) = (first.pid, watcher(first.pid));
    slow.ctl(&["fault", "hang", "*0003", "ops=open,read"]);
    let path = first.path("d/0003");
    let reader = Reader::start(move || fs::read(path).map(drop));
    wait_until("a read that hangs", || slow.count("in_flight") >= 1);
    signal(pid, Signal::SIGKILL);
    let second = mount();
    assert!(reader.result().is_err());
    // The watcher looks once a second.
    thread::sleep(Duration::from_secs(3));
    assert!(runs(watcher), "a thread of the daemon waits for the source");
    assert!((0..3).all(|file| second.path(format!("d/{file:04}")).exists()));
    slow.ctl(&["fault", "clear"]);
    wait_until("the end of the watcher", || !runs(watcher));
    check_many(&second.path(""), "d", 20, 10_000);
    second.umount();
}

/// Replaces the socket of the only daemon.
fn listen_instead(run: &Path) -> UnixListener {
    let entries = fs::read_dir(run.join("belady")).unwrap().flatten();
    let inside = entries.flat_map(|entry| fs::read_dir(entry.path()).into_iter().flatten());
    let is_socket = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let socket = inside.flatten().map(|entry| entry.path()).find(is_socket).unwrap();
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

/// The watcher is killed first, so that the commands must do everything by themselves.
#[test]
fn commands_do_not_wait_for_what_is_left_of_a_killed_daemon() {
    for command in ["umount", "umount --force", "mount", "status"] {
        let (fixture, slow, mounted, waiting) = held_up();
        let (mut waiting, mut freed) = (Some(waiting), None);
        let results = |waiting: [Reader<_>; 2]| waiting.map(Reader::result);
        signal(watcher(mounted.pid), Signal::SIGKILL);
        signal(mounted.pid, Signal::SIGKILL);
        let point = mounted.point.to_str().unwrap().to_owned();
        let start = Instant::now();
        let mut again = None;
        // An `umount` that asks the killed daemon asks this socket.
        let listens = command.starts_with("umount");
        let listener = listens.then(|| listen_instead(&fixture.path("run")));
        match command {
            // `mount` sets the readers free, and then waits for the source.
            "mount" => {
                let mount = || Mounted::at(&fixture, &slow.point, &mounted.point, &[]);
                again = thread::scope(|scope| {
                    let mounting = scope.spawn(mount);
                    freed = waiting.take().map(results);
                    slow.ctl(&["fault", "clear"]);
                    mounting.join().ok()
                });
            }
            // `status` may report a mount that does not answer.
            "status" => drop(fixture.belady().args(["status", &point]).output().unwrap()),
            _ => {
                let words: Vec<&str> = command.split(' ').chain([point.as_str()]).collect();
                fixture.run(0, &words);
                assert_eq!(mounts_at(&mounted.point), 0);
                let asked = listener.unwrap().accept().map(drop).map_err(|error| error.kind());
                assert_eq!(asked, Err(ErrorKind::WouldBlock), "{command} asks the killed daemon");
            }
        }
        assert!(start.elapsed() < AT_ONCE, "{command} took {:?}", start.elapsed());
        if command == "status" {
            fixture.run(0, &["umount", "--force", &point]);
        }
        let freed = freed.or_else(|| waiting.map(results)).unwrap();
        assert!(freed.iter().all(Result::is_err), "{command}: the source hangs all the time");
        slow.ctl(&["fault", "clear"]);
        if let Some(again) = again {
            check_many(&again.path(""), "b", 20, 10_000);
            again.umount();
        }
    }
}

#[test]
fn every_mount_point_of_a_killed_daemon_is_mounted_again() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let points = ["mount", "second", "third"].map(|name| fixture.path(name));
    points[1..].iter().for_each(|point| fs::create_dir(point).unwrap());
    let first = Mounted::new(&fixture, &[]);
    let attach = |point: &PathBuf| {
        let source = fixture.path("source");
        let output = fixture.belady().arg("mount").args([&source, point]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    };
    points[1..].iter().for_each(attach);
    signal(first.pid, Signal::SIGKILL);
    wait_for_end(first.pid);
    let again = Mounted::new(&fixture, &[]);
    points[1..].iter().for_each(attach);
    for point in &points {
        check_many(point, "d", 20, 10_000);
        assert_eq!(mounts_at(point), 1);
    }
    again.umount();
    assert!(points.iter().all(|point| mounts_at(point) == 0));
}

#[test]
fn names_that_are_no_text_are_mounted_shared_and_unmounted() {
    let fixture = Fixture::new();
    let name = |name: &[u8]| fixture.path("").join(OsStr::from_bytes(name));
    let (source, point, second) = (name(b"s\xff,#\\ x"), name(b"m\xe9\xff x"), name(b"n\xfe"));
    let cache = fixture.path("cache");
    for directory in [&source, &point, &second] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(source.join("a"), content(1, 30_000)).unwrap();
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    for end in ["umount", "--force", "SIGTERM", "SIGKILL"] {
        let mounted = Mounted::at(&fixture, &source, &point, &options);
        assert!(mounted.status()["disk"].is_object(), "it has a cache directory");
        assert!(fs::read(point.join("a")).unwrap() == content(1, 30_000));
        let mut attach = fixture.belady();
        assert!(attach.arg("mount").args([&source, &second]).status().unwrap().success());
        assert!(fs::read(second.join("a")).unwrap() == content(1, 30_000));
        let umount = |words: &[&str], point: &PathBuf| {
            let output = fixture.belady().arg("umount").args(words).arg(point).output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
        };
        match end {
            "umount" => umount(&[], &second),
            "--force" => umount(&["--force"], &point),
            "SIGTERM" => signal(mounted.pid, Signal::SIGTERM),
            _ => signal(mounted.pid, Signal::SIGKILL),
        }
        if end == "umount" {
            umount(&[], &point);
        }
        mounted.wait_until_gone();
        if end == "SIGKILL" {
            umount(&[], &point);
            umount(&[], &second);
        }
        let table = fs::read("/proc/self/mountinfo").unwrap();
        let ours = fixture.path("");
        let ours = ours.as_os_str().as_bytes();
        assert!(!table.windows(ours.len()).any(|part| part == ours), "after {end}");
        assert_eq!(fixture.daemons(), Vec::<i32>::new(), "after {end}");
    }
    let refused = std::ffi::OsString::from_vec(b"/tmp/\xff".to_vec());
    let mut command = fixture.belady();
    let output = command.arg("mount").args([&source, &point]).arg("--cache-dir").arg(refused);
    let output = output.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("cache.dir"), "{}", said(&output));
}

#[test]
fn a_mount_whose_names_hang_is_taken_away_by_force() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 10_000);
    let slow = Slowpfs::new(&fixture, &[]);
    fs::create_dir(fixture.path("second")).unwrap();
    for end in ["first", "second", "SIGTERM"] {
        let options = ["--set", "source.revalidate=200ms"];
        let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
        let second = fixture.path("second");
        let mut attach = fixture.belady();
        assert!(attach.arg("mount").args([&slow.point, &second]).status().unwrap().success());
        slow.ctl(&["fault", "hang", "*", "ops=lookup,getattr"]);
        // By then names have to be checked again.
        thread::sleep(Duration::from_millis(400));
        let start = Instant::now();
        let force = |point: &Path| {
            drop(fixture.run(0, &["umount", "--force", point.to_str().unwrap()]));
        };
        match end {
            "first" => force(&mounted.point),
            "second" => {
                force(&second);
                assert_eq!((mounts_at(&second), mounts_at(&mounted.point)), (0, 1));
                force(&mounted.point);
            }
            _ => signal(mounted.pid, Signal::SIGTERM),
        }
        wait_until("the end of the mounts", || mounts_at(&mounted.point) + mounts_at(&second) == 0);
        assert!(start.elapsed() < AT_ONCE, "{end} took {:?}", start.elapsed());
        slow.ctl(&["fault", "clear"]);
        mounted.wait_until_gone();
    }
}

#[test]
fn the_source_is_free_once_a_mount_has_ended() {
    let fixture = Fixture::new();
    let source = fixture.path("source");
    for round in 0..20 {
        let none: Option<&str> = None;
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &source, Some("tmpfs"), flags, none).unwrap();
        fixture.write_many("d", 5, 10_000);
        let mounted = Mounted::new(&fixture, &[]);
        check_many(&mounted.path(""), "d", 5, 10_000);
        fixture.run(0, &["umount", mounted.point.to_str().unwrap()]);
        let freed = nix::mount::umount(&source);
        if freed.is_err() {
            let _ = nix::mount::umount2(&source, nix::mount::MntFlags::MNT_DETACH);
        }
        assert_eq!(freed, Ok(()), "in round {round}");
    }
}

//! The first mount of a source: it is served while it is scanned.
//!
//! Goal: files that the source answers for are there at once, whatever the rest does. Only what depends on
//! the whole source waits for it. Method: a directory of the source does not answer, or fails, until the test
//! lets it go. Meanwhile the mount is used.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::libc;
use nix::sys::signal::Signal;

use crate::fixture::{Fixture, check_many, content, fails, said, wait_until};
use crate::mounted::{Mounted, Slowpfs};
use crate::programs::{Reader, signal, wait_for_end};

const FILES: u64 = 12;
const SIZE: usize = 9000;
const DIRS: [&str; 4] = ["a", "b/below", "held", "z/below"];

/// Directories, one of which does not answer yet.
fn held(fixture: &Fixture, fault: &str) -> Slowpfs {
    for dir in DIRS {
        fixture.write_many(dir, FILES, SIZE);
    }
    let slow = Slowpfs::new(fixture, &[]);
    slow.ctl(&["fault", fault, "held", "ops=opendir"]);
    slow
}

fn mount(fixture: &Fixture, slow: &Slowpfs) -> Mounted {
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB", "--ram", "8MiB"];
    Mounted::early(fixture, &slow.point, &fixture.path("mount"), &options)
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[track_caller]
fn check(mounted: &Mounted, dirs: &[&str]) {
    for dir in dirs {
        assert_eq!(names(&mounted.path(dir)).len() as u64, FILES);
        check_many(&mounted.point, dir, FILES, SIZE);
    }
}

#[test]
fn what_answers_is_served_while_the_rest_is_scanned() {
    let fixture = Fixture::new();
    let slow = held(&fixture, "hang");
    let mounted = mount(&fixture, &slow);
    assert_eq!(mounted.status()["catalog"], "scanning");
    let words = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(words.contains("being scanned"), "{words}");
    assert_eq!(names(&mounted.point), ["a", "b", "held", "z"]);
    // In another order than the scan's, and beyond its place.
    check(&mounted, &["z/below", "a", "b/below"]);
    assert!(!mounted.path("z/none").exists());
    let point = mounted.point.to_str().unwrap();
    let late = fixture.run(7, &["warmup", point, "--deadline", "500ms"]);
    assert!(late.contains("still being scanned"), "{late}");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ordered = scope.spawn(|| {
            let mut command = fixture.belady();
            let spec = "torch-random:seed=1,index=path";
            let output = command.args(["order", "set"]).arg(&mounted.point).arg(spec).output();
            over.store(true, Ordering::Relaxed);
            output.unwrap()
        });
        let held = scope.spawn(|| check(&mounted, &["held"]));
        // An order needs all files.
        assert_eq!(mounted.status()["catalog"], "scanning");
        assert!(!over.load(Ordering::Relaxed));
        slow.ctl(&["fault", "clear"]);
        held.join().unwrap();
        let output = ordered.join().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(&format!("{}", FILES * 4)), "{}", said(&output));
    });
    assert_eq!(mounted.status()["catalog"], "scanned");
    assert_eq!(mounted.count("/files"), FILES * 4);
    check(&mounted, &DIRS);
    mounted.umount();
    let mounted = mount(&fixture, &slow);
    assert!(mounted.status()["catalog"].as_str().unwrap().starts_with("check"));
    check(&mounted, &DIRS);
}

#[test]
fn a_mount_may_end_before_its_scan() {
    let fixture = Fixture::new();
    let slow = held(&fixture, "hang");
    let mounted = mount(&fixture, &slow);
    check(&mounted, &["z/below"]);
    mounted.umount();
    slow.ctl(&["fault", "clear"]);
    let mounted = mount(&fixture, &slow);
    // A catalog that is not whole is not opened.
    wait_until("the scan", || mounted.status()["catalog"] == "scanned");
    check(&mounted, &DIRS);
}

/// A daemon that was killed before its scan was over has stored samples and saved no catalog.
#[test]
fn a_store_without_a_catalog_waits_for_no_scan() {
    for fault in [Some("hang"), Some("eio"), None] {
        let fixture = Fixture::new();
        let slow = held(&fixture, "eio");
        let mounted = mount(&fixture, &slow);
        check(&mounted, &["a"]);
        wait_until("all is stored", || mounted.count("/disk/stored") >= FILES * SIZE as u64);
        signal(mounted.pid, Signal::SIGKILL);
        wait_for_end(mounted.pid);
        drop(mounted);
        slow.ctl(&["fault", "clear"]);
        if let Some(fault) = fault {
            slow.ctl(&["fault", fault, "held", "ops=opendir"]);
        }
        let mounted = mount(&fixture, &slow);
        assert!(fault.is_none() || mounted.status()["catalog"] == "scanning");
        check(&mounted, &["a"]);
        slow.ctl(&["fault", "clear"]);
        wait_until("the scan", || mounted.status()["catalog"] == "scanned");
        wait_until("what is stored is known", || {
            mounted.count("/disk/kept") >= FILES * SIZE as u64
        });
        check(&mounted, &DIRS);
        mounted.umount();
    }
}

#[test]
fn a_directory_that_fails_is_an_error_where_it_is_read_and_scanned_when_it_answers() {
    let fixture = Fixture::new();
    let slow = held(&fixture, "eio");
    let mounted = mount(&fixture, &slow);
    check(&mounted, &["a", "b/below", "z/below"]);
    fails(
        fs::read_dir(mounted.path("held")).and_then(|mut names| names.next().unwrap()),
        libc::EIO,
    );
    assert_eq!(mounted.status()["catalog"], "scanning");
    let order = ["order", "set", mounted.point.to_str().unwrap(), "sequential:index=path"];
    let message = fixture.run(4, &order);
    assert!(message.contains("held"), "{message}");
    slow.ctl(&["fault", "clear"]);
    wait_until("the scan", || mounted.status()["catalog"] == "scanned");
    check(&mounted, &DIRS);
}

#[test]
fn an_order_given_to_the_mount_is_checked_against_all_files() {
    let fixture = Fixture::new();
    let slow = held(&fixture, "eio");
    let (source, point) = (slow.point.to_str().unwrap(), fixture.path("mount"));
    let point = point.to_str().unwrap();
    let message = fixture.run(4, &["mount", source, point, "--order", "sequential:index=path"]);
    assert!(message.contains("held"), "{message}");
    slow.ctl(&["fault", "clear"]);
    let mounted = Mounted::early(
        &fixture,
        &slow.point,
        &fixture.path("mount"),
        &["--order", "sequential:index=path"],
    );
    assert_eq!(mounted.status()["catalog"], "scanned");
}

/// One name of a directory fails, and the other names do not. So it is while the scan is at another
/// directory, when the scan is over, and at the next mount. Then the source answers again.
#[test]
fn an_error_of_one_name_is_that_names_alone() {
    let fixture = Fixture::new();
    let slow = held(&fixture, "hang");
    slow.ctl(&["fault", "eio", "z/below/0003", "ops=lookup,getattr"]);
    let check_others = |mounted: &Mounted| {
        for number in (0..FILES).filter(|number| *number != 3) {
            let bytes = fs::read(mounted.path(format!("z/below/{number:04}"))).unwrap();
            assert!(bytes == content(number, SIZE), "{number}");
        }
        fails(fs::read(mounted.path("z/below/0003")), libc::EIO);
        assert_eq!(names(&mounted.path("z/below")), names(&fixture.source("z/below")));
        fails(fs::metadata(mounted.path("z/below/0003")), libc::EIO);
    };
    let mounted = mount(&fixture, &slow);
    check_others(&mounted);
    assert_eq!(mounted.status()["catalog"], "scanning", "it is read for who asks for it");
    mounted.umount();
    slow.ctl(&["fault", "clear"]);
    slow.ctl(&["fault", "eio", "z/below/0003", "ops=lookup,getattr"]);
    let mounted = mount(&fixture, &slow);
    wait_until("the scan", || mounted.status()["catalog"] == "scanned");
    check_others(&mounted);
    let point = mounted.point.to_str().unwrap();
    let set = fixture.run(0, &["order", "set", point, "sequential:index=path"]);
    let all = (DIRS.len() as u64 * FILES).to_string();
    assert!(set.split_whitespace().any(|word| word == all), "it has its place: {set}");
    mounted.umount();
    let mounted = mount(&fixture, &slow);
    wait_until("the check", || mounted.status()["catalog"] == "checked");
    check_others(&mounted);
    slow.ctl(&["fault", "clear"]);
    check(&mounted, &DIRS);
    mounted.umount();
}

/// Begins to mount at a point of this name, with an order that needs all files.
fn begin(fixture: &Fixture, slow: &Slowpfs, name: &str, options: &[&str]) -> Child {
    fs::create_dir_all(fixture.path(name)).unwrap();
    let mut command = fixture.belady();
    command.arg("mount").args([&slow.point, &fixture.path(name)]).args(options);
    command.args(["--order", "sequential:index=path"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The second mount waits while the first one scans, and shares its daemon. If the first one is killed, the
/// second one goes on by itself.
#[test]
fn of_two_mounts_of_a_source_that_begin_at_once_one_waits() {
    for (cached, killed) in [(false, false), (true, false), (false, true), (true, true)] {
        let fixture = Fixture::new();
        let slow = held(&fixture, "hang");
        let cache = fixture.path("cache");
        let disk = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
        let options = if cached { &disk[..] } else { &[] };
        let mut first = begin(&fixture, &slow, "mount", options);
        wait_until("a scan", || slow.count("opendir") > 0);
        let mut second = begin(&fixture, &slow, "mount2", options);
        let mut words = BufReader::new(second.stderr.take().unwrap()).lines();
        let line = Reader::start(move || words.next().unwrap().unwrap()).result();
        assert!(line.contains("is being mounted already"), "{line}");
        if killed {
            first.kill().unwrap();
        }
        assert_eq!(fixture.daemons(), Vec::<i32>::new());
        if !killed {
            slow.ctl(&["fault", "clear"]);
        }
        let first = first.wait_with_output().unwrap();
        slow.ctl(&["fault", "clear"]);
        let second = second.wait_with_output().unwrap();
        assert_eq!(first.status.success(), !killed, "{}", said(&first));
        assert!(second.status.success(), "{}", said(&second));
        assert_eq!(said(&second).contains("shares the daemon"), !killed, "{}", said(&second));
        let mut daemons = fixture.daemons();
        assert_eq!(daemons.len(), if killed { 1 } else { 2 });
        daemons.dedup();
        assert_eq!(daemons.len(), 1, "one daemon");
        for point in if killed { &["mount2"][..] } else { &["mount2", "mount"] } {
            DIRS.iter().for_each(|dir| check_many(&fixture.path(point), dir, FILES, SIZE));
            fixture.umount(&fixture.path(point));
        }
        wait_for_end(daemons[0]);
    }
}

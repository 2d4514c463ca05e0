//! Scarce memory: the budget of RAM follows the limits of the daemon's cgroup.
//!
//! Goal: neither the daemon nor a job in its cgroup is ever killed because memory runs out, whatever budget
//! was asked for. Method: more data than the limit allows is read, the limit changes while the mount runs,
//! and a job in the same group takes memory of its own.

use std::fs;
use std::process::Command;
use std::thread::{self, JoinHandle};

use crate::cgroup::MemoryGroup;
use crate::fixture::{Fixture, check_many, content, said, wait_until};
use crate::mounted::{Mounted, mounts_at};
use crate::programs::{Program, runs};

const MIB: u64 = 1 << 20;
const FILES: u64 = 700;
const SIZE: usize = 1 << 20;

/// Mounts with a budget far beyond the limit of the group.
fn mounted(fixture: &Fixture, group: &MemoryGroup) -> Mounted {
    fixture.write_many("d", FILES, SIZE);
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]);
    command.args(["--ram", "4GiB", "--order", "sequential"]);
    Mounted::by(fixture, &mut group.inside(&command), &fixture.path("mount"))
}

#[track_caller]
fn check_budget(mounted: &Mounted, group: &MemoryGroup, limit: u64) {
    assert_eq!(group.killed(), 0);
    assert!(runs(mounted.pid));
    wait_until("the budget", || {
        let ram = &mounted.status()["ram"];
        assert_eq!(ram["configured"], 4096 * MIB);
        ram["budget"].as_u64().unwrap() <= limit - limit / 8
            && ram["reduced"].as_str().is_some_and(|reduced| reduced.contains(group.name()))
    });
}

#[test]
fn the_budget_follows_the_limit_of_the_daemon() {
    let fixture = Fixture::new();
    let group = MemoryGroup::new(512 * MIB);
    let mounted = mounted(&fixture, &group);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    check_budget(&mounted, &group, 512 * MIB);
    // The kernel may exceed a limit by some pages.
    assert!(group.peak() <= 513 * MIB, "{}", group.peak());
    wait_until("much is kept", || mounted.count("/ram/kept") > 128 * MIB);

    group.limit(256 * MIB);
    let held =
        || (mounted.count("/ram/budget"), mounted.count("/ram/kept") + mounted.count("/staged"));
    wait_until("the smaller budget", || {
        let (budget, held) = held();
        budget <= 224 * MIB && held <= budget
    });
    check_budget(&mounted, &group, 256 * MIB);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    check_budget(&mounted, &group, 256 * MIB);
    let text = fixture.run(0, &["status", mounted.point.to_str().unwrap()]);
    assert!(text.contains("less than the 4 GiB configured: cgroup "), "{text}");

    group.limit(1024 * MIB);
    wait_until("the larger budget", || held().0 > 512 * MIB);
    check_many(&mounted.path(""), "d", FILES, SIZE);
    check_budget(&mounted, &group, 1024 * MIB);
    mounted.umount();
}

/// Takes memory, and compares what it reads through the mount with the source.
const JOB: &str = r#"
import os, sys
mount, source = sys.argv[1:]
memory = bytearray(200 << 20)
memory[::4096] = b"x" * len(memory[::4096])
for name in sorted(os.listdir(source)):
    with open(f"{mount}/{name}", "rb") as a, open(f"{source}/{name}", "rb") as b:
        assert a.read() == b.read(), name
print("equal", flush=True)
sys.stdin.readline()
"#;

#[test]
fn a_job_in_the_same_group_has_its_memory() {
    let fixture = Fixture::new();
    let group = MemoryGroup::new(512 * MIB);
    let mounted = mounted(&fixture, &group);
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", JOB]).arg(mounted.path("d")).arg(fixture.source("d"));
    let mut job = Program::start(&mut group.inside(&python));
    assert_eq!(job.line(), "equal");
    wait_until("the budget beside the job", || mounted.count("/ram/budget") <= 248 * MIB);
    check_budget(&mounted, &group, 512 * MIB);
    let beside = mounted.count("/ram/budget");
    job.tell("end");
    job.finish();
    wait_until("the budget without the job", || mounted.count("/ram/budget") > beside + 64 * MIB);
    mounted.umount();
}

#[test]
fn an_order_file_that_does_not_fit_into_memory_is_refused_by_the_daemon() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 1000);
    let group = MemoryGroup::new(256 * MIB);
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]);
    let mounted = Mounted::by(&fixture, &mut group.inside(&command), &fixture.path("mount"));
    let order = fixture.path("order.bin");
    fs::File::create(&order).unwrap().set_len(3 << 30).unwrap();
    let spec = format!("file:{}", order.display());
    let said = fixture.run(3, &["order", "set", mounted.point.to_str().unwrap(), &spec]);
    assert!(said.contains("there is no memory for more than"), "{said}");
    check_many(&mounted.path(""), "d", 5, 1000);
    assert_eq!(group.killed(), 0);
    mounted.umount();
}

#[test]
fn a_file_of_labels_that_does_not_fit_into_memory_is_refused() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 1000);
    let group = MemoryGroup::new(128 * MIB);
    let (labels, cache) = (fixture.path("labels"), fixture.path("cache"));
    fs::write(&labels, "d/0000,class of the first\n".repeat(2 << 20)).unwrap();
    let classes = format!("rehearsal.old.classes={}", labels.display());
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]);
    command.args(["--set", "rehearsal.old.size=3", "--set", &classes, "--cache-dir"]).arg(cache);
    let output = group.inside(&command).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("there is no memory for more than"), "{}", said(&output));
    assert_eq!((group.killed(), mounts_at(&fixture.path("mount"))), (0, 0));
}

#[test]
fn many_readers_at_once_fit_into_a_small_group_beside_a_cache_directory() {
    const READERS: u64 = 2000;
    const SIZE: usize = 128 << 10;
    const STACK: usize = 128 << 10;
    let fixture = Fixture::new();
    let group = MemoryGroup::new(64 * MIB);
    fixture.write_many("d", READERS, SIZE);
    let cache = fixture.path("cache");
    let mut command = fixture.belady();
    command.arg("mount").args([fixture.path("source"), fixture.path("mount")]);
    command.args(["--disk", "1GiB", "--set", "order.learn=off", "--cache-dir"]).arg(&cache);
    let mounted = Mounted::by(&fixture, &mut group.inside(&command), &fixture.path("mount"));
    for _ in 0..2 {
        let read = |number| {
            let path = mounted.path(format!("d/{number:04}"));
            let read = move || fs::read(path).unwrap() == content(number, SIZE);
            thread::Builder::new().stack_size(STACK).spawn(read).unwrap()
        };
        let readers: Vec<JoinHandle<bool>> = (0..READERS).map(read).collect();
        wait_until("all readers", || readers.iter().all(JoinHandle::is_finished));
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()), "other bytes");
        assert_eq!(group.killed(), 0);
        assert!(runs(mounted.pid));
    }
    assert_eq!(mounted.count("/read_errors"), 0);
    assert!(mounted.count("/ram/moving_budget") <= 32 * MIB);
    wait_until("no byte is on its way", || mounted.count("/ram/moving") == 0);
    mounted.umount();
    assert_eq!(group.killed(), 0);
}

//! A mount that is not used leaves the machine alone.
//!
//! Goal: an idle daemon and its watcher together wake up three times a second at most. Method: the kernel
//! counts how often each of their threads has gone to sleep. Windows of some seconds are counted until one is
//! quiet, since in the first ones the samples that were read last are still being stored. A process of its own reads the
//! files: as long as a reader runs, belady looks at what it does. A search through all seeds would go on for minutes
//! if the processors are busy, and is left out.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::fixture::{Fixture, wait_until};
use crate::mounted::Mounted;

/// Seconds of a window, and the most wake-ups a second in a quiet window.
const WINDOW: u64 = 5;
const WAKES_MAX: u64 = 3;

/// The tasks of a process.
fn tasks(pid: i32) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().map(|task| task.path()).collect()
}

/// The processes that a process's tasks have started.
fn children(pid: i32) -> Vec<i32> {
    let children = tasks(pid).into_iter().filter_map(|task| {
        let children = fs::read_to_string(task.join("children")).ok()?;
        Some(children.split_whitespace().map(|child| child.parse().unwrap()).collect::<Vec<i32>>())
    });
    children.flatten().collect()
}

/// How often the threads of a process have gone to sleep.
fn waits(pid: i32) -> u64 {
    let waits = tasks(pid).into_iter().filter_map(|task| {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    waits.sum()
}

#[test]
fn an_idle_mount_hardly_wakes_up() {
    let fixture = Fixture::new();
    fixture.write_many("d", 20, 5000);
    let cache = fixture.path("cache");
    for more in [&[][..], &["--cache-dir", cache.to_str().unwrap()]] {
        let options = [&["--set", "order.learn=no-crack"], more].concat();
        let mounted = Mounted::new(&fixture, &options);
        let mut read = Command::new("cp");
        read.arg("-r").args([mounted.path("d"), fixture.path("copy")]);
        assert!(read.status().unwrap().success());
        let [watcher] = children(mounted.pid)[..] else { panic!("the daemon has one watcher") };
        let both = || waits(mounted.pid) + waits(watcher);
        wait_until("a quiet window", || {
            let before = both();
            thread::sleep(Duration::from_secs(WINDOW));
            // Threads that have ended meanwhile are not counted.
            both().saturating_sub(before) <= WAKES_MAX * WINDOW
        });
        mounted.umount();
    }
}

//! A mount that nobody uses leaves the machine alone.
//!
//! Goal: an idle daemon wakes up twice a second or so. Method: the kernel counts how often each of
//! its threads has gone to sleep; windows of some seconds are counted until one is quiet, since what
//! was read last is still being stored in the first ones.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::ground::{Ground, check_many, wait_until};
use crate::mounted::Mounted;

/// Seconds of a window, and what a quiet one has a second at most.
const WINDOW: u64 = 5;
const WAKES_MAX: u64 = 6;

/// How often the threads of a process have waited for something.
fn waits(pid: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let waits = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    waits.sum()
}

#[test]
fn an_idle_mount_hardly_wakes_up() {
    let ground = Ground::new();
    ground.plant_many("d", 20, 5000);
    let cache = ground.path("cache");
    for options in [&[][..], &["--cache-dir", cache.to_str().unwrap()]] {
        let mounted = Mounted::new(&ground, options);
        check_many(&mounted.path(""), "d", 20, 5000);
        wait_until("a quiet window", || {
            let before = waits(mounted.pid);
            thread::sleep(Duration::from_secs(WINDOW));
            // Threads that have ended meanwhile count for nothing.
            waits(mounted.pid).saturating_sub(before) <= WAKES_MAX * WINDOW
        });
        mounted.umount();
    }
}

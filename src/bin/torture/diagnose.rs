//! Prints the state of a daemon that hangs or serves wrong bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::mounts::mounts_below;

/// Lines printed of each log.
const LOG_LINES: usize = 30;

/// The lines of a thread's status that tell its state and what signals do to it.
const STATUS: [&str; 6] = ["State:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:"];

/// Prints every thread of some processes, the mounts below a directory, and the ends of logs.
pub(crate) fn print(processes: &[i32], own_threads: &[i32], directory: &Path) {
    for pid in processes {
        eprintln!("-- process {pid}");
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        print_threads(tasks.map(|task| task.path()));
    }
    let own = own_threads.iter().map(|thread| PathBuf::from(format!("/proc/self/task/{thread}")));
    eprintln!("-- our threads that wait");
    print_threads(own);
    eprintln!("-- mounts");
    mounts_below(directory).iter().for_each(|mount| eprintln!("   {}", mount.line));
    print_logs(directory);
}

/// Prints threads. Threads in the same state are printed once.
fn print_threads(tasks: impl Iterator<Item = PathBuf>) {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for task in tasks {
        let number = task.file_name().unwrap_or_default().display().to_string();
        found.entry(describe(&task)).or_default().push(number);
    }
    for (described, threads) in found {
        eprintln!("   {} x {described}", threads.len());
        eprintln!("      threads {}", threads.join(" "));
    }
}

/// Where a thread is, and what signals do to it.
fn describe(task: &Path) -> String {
    let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let status = read("status");
    let shown: Vec<String> = status
        .lines()
        .filter(|line| STATUS.iter().any(|name| line.starts_with(name)))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let (name, wchan, call) = (read("comm"), read("wchan"), read("syscall"));
    let call = call.split_whitespace().next().unwrap_or("none").to_owned();
    let mut text = format!("{} in {} (call {call}): ", name.trim(), wchan.trim());
    text.push_str(&shown.join(", "));
    for line in read("stack").lines() {
        text.push_str("\n      ");
        text.push_str(line);
    }
    text
}

fn print_logs(directory: &Path) {
    let entries = fs::read_dir(directory.join("run/belady")).into_iter().flatten().flatten();
    for entry in entries {
        let Ok(text) = fs::read_to_string(entry.path().join("log")) else { continue };
        eprintln!("-- log {}", entry.path().display());
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(LOG_LINES);
        lines[from..].iter().for_each(|line| eprintln!("   {line}"));
    }
}

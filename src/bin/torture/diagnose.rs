//! What is printed of a daemon that hangs or serves wrong bytes.

use std::fs;
use std::path::Path;

use crate::mounts::below;

/// Lines of a log that are printed.
const LOG_LINES: usize = 30;

/// The lines of a thread's status that tell where it is and what signals do to it.
const STATUS: [&str; 7] =
    ["State:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:", "VmRSS:"];

/// Prints every thread of some processes, the mounts below a directory, and the ends of logs.
pub(crate) fn print(processes: &[i32], own_threads: &[i32], directory: &Path) {
    for pid in processes {
        eprintln!("-- process {pid}");
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.for_each(|task| print_thread(&task.path()));
    }
    for thread in own_threads {
        eprintln!("-- our thread that waits");
        print_thread(Path::new(&format!("/proc/self/task/{thread}")));
    }
    eprintln!("-- mounts");
    below(directory).iter().for_each(|mount| eprintln!("   {}", mount.line));
    print_logs(directory);
}

fn print_thread(task: &Path) {
    let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let status = read("status");
    let shown: Vec<String> = status
        .lines()
        .filter(|line| STATUS.iter().any(|name| line.starts_with(name)))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let number = task.file_name().unwrap_or_default().display().to_string();
    let (name, wchan, call) = (read("comm"), read("wchan"), read("syscall"));
    eprintln!(
        "   thread {number} {} in {} ({}): {}",
        name.trim(),
        wchan.trim(),
        call.split_whitespace().next().unwrap_or("no call"),
        shown.join(", ")
    );
    read("stack").lines().for_each(|line| eprintln!("      {line}"));
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

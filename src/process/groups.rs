//! For which process a task reads.
//!
//! A loader's workers are processes. The process that has the dataset starts them by a fork, which keeps the
//! command line, or by Python's `multiprocessing` with another one.

use std::fs;
use std::path::Path;

/// Parts of the command lines of workers that Python did not fork.
const WORKERS: [&[u8]; 3] = [b"multiprocessing.spawn", SERVER, b"--multiprocessing-fork"];

/// A part of the command lines of the server that forks workers, and of these workers.
const SERVER: &[u8] = b"multiprocessing.forkserver";

/// A task's own process, and that for which it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub own: u64,
    pub group: u64,
}

impl Task {
    /// `None` if the task has ended already: its process is not known.
    pub fn of(task: u32) -> Option<Self> {
        let (own, parent) = process_and_parent(u64::from(task))?;
        Self::of_process(own, parent)
    }

    /// The same of the main thread of a process whose parent is known.
    pub fn of_process(own: u64, parent: u64) -> Option<Self> {
        let line = command(own)?;
        let says = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
        let of_parent = command(parent);
        let forked = of_parent.as_ref() == Some(&line);
        // The server itself reads for nobody.
        let started = WORKERS.iter().any(|word| says(word)) && (forked || !says(SERVER));
        if forked && says(SERVER) {
            // The parent is the server, or a worker that the server has forked. The server was started by the process
            // that is read for, and has another command line than that.
            let (_, before) = process_and_parent(parent)?;
            let by_server = command(before) != of_parent;
            return Some(Task { own, group: if by_server { before } else { parent } });
        }
        Some(Task { own, group: if started || forked { parent } else { own } })
    }
}

/// The process of a task, and its parent.
fn process_and_parent(task: u64) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some((field("Tgid:")?, field("PPid:")?))
}

/// The command line of a process that has not ended.
fn command(process: u64) -> Option<Vec<u8>> {
    let line = fs::read(format!("/proc/{process}/cmdline")).ok();
    line.filter(|line| !line.is_empty())
}

/// Whether a task or process runs.
pub fn runs(number: u64) -> bool {
    Path::new("/proc").join(number.to_string()).exists()
}

/// The name of a process's program; empty if it has ended.
pub fn program(process: u64) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
